"""Atari Grand Challenge (Kurin et al., 2017): human play in browsers.

A folder with `trajectories/<game>/<id>.txt`, one game each (a line about the recording, a header,
then a line per emulator frame), and their pictures `screens/<game>/<id>/<frame>.png`.  Pinball is
short for VideoPinball and revenge for MontezumaRevenge.  A line's reward and terminal are taken as
what came of its action.
"""

from pathlib import Path

import numpy as np

from bqfd_jax.demos.importing import actions, games, screens, takes
from bqfd_jax.demos.importing.build import Builder, Imported, Wanted
from bqfd_jax.demos.schema import DemonstrationError
from bqfd_jax.files import read_bytes

_FIELDS = ("frame", "reward", "score", "terminal", "action")
_FLAGS = {"True": True, "False": False, "1": True, "0": False, "null": None}


def read_agc(path: Path, wanted: Wanted) -> Imported:
    """Reads recordings of one game, which is needed if the folder has several."""
    game, folder = _find_game(path, wanted.game)
    builder = Builder(game, max_steps=wanted.max_steps)
    tables = sorted(folder.glob("*.txt"), key=lambda file: (len(file.stem), file.stem))
    used = []
    for table in tables:
        if (wanted.only and table.stem not in wanted.only) or builder.is_full:
            continue
        pictures = path / "screens" / folder.name / table.stem
        if not pictures.is_dir():
            builder.counts["recordings without pictures"] += 1
            continue
        wanted.tell(f"recording {table.stem}")
        _add_recording(builder, table, pictures)
        used.append(table.stem)
    if not used:
        listed = ", ".join(table.stem for table in tables) or "none"
        raise DemonstrationError(f"{folder}: no recording with pictures to use (there is {listed})")
    return builder.finish(
        name=wanted.name or f"agc-{folder.name}",
        source={"from": "Atari Grand Challenge", "file": path.name, "recordings": used},
        nothing=f"{folder}: no frames of {game} could be used",
    )


def _find_game(path: Path, game: str | None) -> tuple[str, Path]:
    root = path / "trajectories"
    if not root.is_dir():
        raise DemonstrationError(f"{path} has no folder trajectories; name the one that has it")
    there = {games.find_game(folder.name): folder for folder in root.iterdir() if folder.is_dir()}
    there.pop(None, None)
    wanted = None if game is None else games.choose_game(game, (), str(path))
    if wanted is None and len(there) == 1:
        wanted = next(iter(there))
    if wanted not in there:
        listed = ", ".join(sorted(there)) or "no game"
        raise DemonstrationError(
            f"{root} has {listed}" + ("; say which (game)" if wanted is None else f", not {wanted}")
        )
    return wanted, there[wanted]


def _add_recording(builder: Builder, file: Path, pictures: Path) -> None:
    lines = _read_table(builder, file)
    builder.counts["frames told of"] += len(lines)
    names = {line.name for line in lines}
    builder.counts[takes.UNTOLD] += sum(file.stem not in names for file in pictures.glob("*.png"))

    def screen(name: str) -> np.ndarray:
        picture = pictures / f"{name}.png"
        data = read_bytes(picture, most=screens.MAX_BYTES, error=DemonstrationError)
        return screens.decode_screen(data, str(picture))

    def has_picture(name: str) -> bool:
        return (pictures / f"{name}.png").is_file()

    for take in takes.split_lines(lines, screen, has_picture, builder.counts):
        builder.add(take)


def _read_table(builder: Builder, file: Path) -> list[takes.Line]:
    table = takes.Table(file)
    # The first line tells of the recording, in no fixed form.
    table.check_header(2, _FIELDS)
    lines: list[takes.Line] = []
    previous = None
    for line, row in table.rows(3, _FIELDS):
        if lines and lines[-1].is_over:
            builder.counts["lines after a game's end"] += 1
            continue
        number = table.number(line, row, "frame", low=0)
        if number is not None:
            takes.check_order(table, line, "frame", number, previous)
            previous = number
        if row["terminal"] not in _FLAGS:
            raise table.error(line, "terminal", row["terminal"], "True, False or null")
        lines.append(
            takes.Line(
                number=number,
                name=str(number),
                action=table.number(line, row, "action", low=0, high=len(actions.NAMES)),
                reward=table.number(line, row, "reward"),
                is_over=_FLAGS[row["terminal"]],
                score=table.number(line, row, "score"),
            )
        )
    return lines
