"""The folder of a run: begun once, resumed with the same options, used by one process at a time."""

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from bqfd_jax import files
from bqfd_jax.runs.checkpoint import Checkpointer
from bqfd_jax.runs.errors import FolderBusyError, UsageError

_LOCK = ".lock"
# What must stay of a finished run; all else in its folder may be deleted.
_RESULTS = ("config.json", "metrics.jsonl", "summary.json")


def prepare(
    out: Path | None,
    config: dict[str, Any],
    *,
    name: str,
    resume: bool = False,
    can_resume: bool = True,
    fill: Callable[[Path], None] = lambda out: None,
    complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda stored: stored,
) -> Path:
    """Makes a run folder, or checks that an old one can be resumed.

    Args:
      out: the folder, or None for a new one below `runs/`.
      config: what the run depends on, JSON-able; a resumed run must have the same.
      name: of the experiment, for new folders.
      resume: continue what is there.
      can_resume: whether the experiment knows how to go on.
      fill: puts what the run needs besides into a new folder, before there is a `config.json`: what
        has one can be resumed.
      complete: adds to what is stored the options that it lacks, being of an earlier version.

    Returns:
      The folder; it holds `config.json`.
    """
    if out is None and not resume:
        out = new_path(name)
    check(out, config, resume=resume, can_resume=can_resume, complete=complete)
    if resume:
        return out
    try:
        out.mkdir(parents=True, exist_ok=True)
        fill(out)
        write_config(out, config)
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror or error}") from error
    return out


def new_path(name: str) -> Path:
    """Where a run goes that was given no folder."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def seed_folders(out: Path) -> dict[int, Path]:
    """Seed -> run folder of seeds that were trained in one program, all below `out`."""
    found = [path for path in out.glob("seed-*") if (path / "config.json").exists()]
    numbered = {path.name.removeprefix("seed-"): path for path in found}
    return {int(seed): numbered[seed] for seed in sorted(filter(str.isdecimal, numbered), key=int)}


def check(
    out: Path | None,
    config: dict[str, Any],
    *,
    resume: bool,
    can_resume: bool = True,
    complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda stored: stored,
) -> None:
    """Raises `UsageError` unless a run can begin or go on there; see `prepare`."""
    if out is None:
        raise UsageError("to resume needs the folder of the run: name it (--out FOLDER)")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; name a folder (--out)")
    if resume:
        _check_same(out, _plain(complete(read_config(out))), _plain(config))
    # A run that was killed before it had a config has left nothing worth keeping.
    elif out.exists() and any(not _is_leftover(item.name) for item in out.iterdir()):
        advice = "Resume the run in it (--resume), or choose" if can_resume else "Choose"
        raise UsageError(f"{out} exists already. {advice} another folder (--out).")


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """As it reads back from the file, tuples being lists there."""
    return json.loads(json.dumps(config))


def _is_leftover(name: str) -> bool:
    return name.startswith(".") or (name.startswith("demonstration") and name.endswith(".npz"))


def write_config(out: Path, config: dict[str, Any]) -> None:
    """Writes `config.json`."""
    files.write_json(out / "config.json", config)


def read_config(out: Path) -> dict[str, Any]:
    """What a run was started with; raises `UsageError` if that cannot be known."""
    path = out / "config.json"
    if not path.exists():
        if seeds := seed_folders(out):
            raise UsageError(
                f"{out} holds several seeds, each a run of its own: name one of "
                f"{', '.join(path.name for path in seeds.values())} in it, or go on with all of "
                f"them by `bqfd resume {out}`"
            )
        raise UsageError(f"there is no run in {out} (no config.json)")
    try:
        stored = files.read_json(path)
        if not isinstance(stored, dict):
            raise files.FileError("it holds no options")
    except files.FileError as error:
        raise UsageError(f"{path} is damaged ({error}); it cannot be resumed safely") from error
    return stored


def identity(config: dict[str, Any]) -> bytes:
    """Tells runs apart: a digest of `config.json`, less what may change as a run goes on."""
    lasting = {k: v for k, v in config.items() if k not in ("steps", "replay_rows")}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).digest()


def is_finished(out: Path) -> bool:
    """Whether a run has come to its end, and all that is told of it is there."""
    return all((out / name).exists() for name in _RESULTS)


def check_goes_on(out: Path) -> None:
    """Raises `UsageError` for a finished run without checkpoints.

    It would be trained anew, over what is left of it.
    """
    if is_at_its_end(out):
        has_policy = (out / "policy.npz").exists()
        learnt = "what it has learnt is in policy.npz, and " if has_policy else ""
        raise UsageError(
            f"{out} holds a finished run, but no checkpoint that it could go on from; {learnt}to "
            "train it anew choose another folder (--out)"
        )


def what_is_lost(out: Path) -> str | None:
    """Of a finished run that can be neither told of nor gone on with: why, in words; else None.

    To resume it would train it anew, over the summary that is left.
    """
    if (out / "metrics.jsonl").exists() or not is_at_its_end(out):
        return None
    return (
        f"{out} holds a finished run without its metrics.jsonl, and no checkpoint that it could "
        "come back from; put the file back, or move the folder away to train the run anew"
    )


def is_at_its_end(out: Path) -> bool:
    """Whether a run is finished and has no checkpoint: to resume it would begin it anew."""
    return (out / "summary.json").exists() and not Checkpointer(out / "checkpoints").steps()


@contextmanager
def sole_use(out: Path) -> Iterator[None]:
    """Raises `FolderBusyError` if another process works in a run folder; two would spoil its files.

    The folder is free again when the process ends, however it does.
    """
    # A file opened for writing: network file systems ignore exclusive locks on anything else.
    with open(out / _LOCK, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderBusyError(
                f"another process is at work in {out}; stop it first, or wait for its end"
            ) from error
        except OSError:
            # Not every file system knows locks; there, nobody can be told.
            pass
        yield


def _check_same(out: Path, stored: dict[str, Any], given: dict[str, Any]) -> None:
    differences = list(_differences(stored, given))
    if differences:
        listed = "\n".join(f"  {line}" for line in differences)
        raise UsageError(
            f"{out} was started with another configuration:\n{listed}\n"
            "Resume with the same options, or start a new run in another folder (--out)."
        )


def _differences(stored: Any, given: Any, where: str = "") -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in dict.fromkeys([*stored, *given]):
            nested = f"{where}.{key}" if where else key
            yield from _differences(stored.get(key), given.get(key), nested)
    elif stored != given:
        yield f"{where}: was {json.dumps(stored)}, now {json.dumps(given)}"
