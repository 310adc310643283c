"""`python -m experiments.demos import`: other people's recordings as a demonstration."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from bqfd_jax.demos import importing
from bqfd_jax.demos.importing import Imported
from bqfd_jax.runs.errors import UsageError

from .output import check_out, save


@dataclasses.dataclass(frozen=True)
class ImportConfig:
    """Makes a demonstration of a recording, and says what could not be used.

    Atari frames become what the agents see: 4 emulator frames a step, rewards added up, the maximum
    of two grey screens, 84 x 84; actions are mapped by what they do. Where something is missing the
    episode is cut.
    """

    path: Annotated[Path, tyro.conf.Positional]
    """Atari-HEAD: a game's .zip, its folder, or one trial's .txt. Atari Grand Challenge: the folder
    of trajectories/ and screens/. Minari: a dataset's folder or .hdf5. npz: a file of the arrays
    frames (or observations), actions, rewards, terminated, truncated; see
    bqfd_jax/demos/importing/arrays.py."""
    source: Annotated[Literal["atari-head", "agc", "minari", "npz"], tyro.conf.arg(name="from")]
    """Layout of what is read."""
    game: str | None = None
    """The game or environment, where the files do not tell."""
    only: tuple[str, ...] = ()
    """Use these trials, recordings or episodes (their numbers) and no others."""
    max_steps: int = 0
    """Agent steps after which no more is read; 0: all."""
    name: str = ""
    """What metrics call it; made of the file's name unless given."""
    out: Path | None = None
    """The file to write; GAME-NAME.npz here unless given."""
    overwrite: bool = False
    """Replace the file if it exists."""


def import_demonstration(config: Annotated[ImportConfig, tyro.conf.arg(name="")]) -> None:
    """Makes a demonstration of a recording, and says what could not be used."""
    # Reading may take long: see first whether the result has a place.
    if config.out is not None:
        check_out(config.out, overwrite=config.overwrite)
    try:
        imported = importing.read(
            config.source,
            config.path,
            game=config.game,
            only=config.only,
            max_steps=config.max_steps,
            name=config.name,
            tell=lambda progress: print(f"reading {progress} ...", flush=True),
        )
    except ImportError as error:
        raise UsageError(str(error)) from error
    demonstration = imported.demonstration
    out = config.out or Path(_file_name(f"{demonstration.game}-{demonstration.name}.npz"))
    check_out(out, overwrite=config.overwrite)
    save(demonstration, out)
    print(describe(imported))
    print(f"\nwritten to {out}, {out.stat().st_size / 1e6:.1f} MB; look at it with")
    print(f"  python -m experiments.demos show {out}")


def describe(imported: Imported) -> str:
    """What came of an import, as text."""
    demonstration = imported.demonstration
    scores = demonstration.scores
    shown = ", ".join(f"{score:g}" for score in scores[:12]) + (", ..." if scores[12:] else "")
    lines = [
        f"{demonstration.game}, {demonstration.name!r}: {len(demonstration.actions):,} steps in "
        f"{len(scores)} episodes, score {shown}",
        *(f"  {count:>9,} {what}" for what, count in imported.counts.items()),
        *(f"  note: {remark}" for remark in imported.remarks),
    ]
    return "\n".join(lines)


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)
