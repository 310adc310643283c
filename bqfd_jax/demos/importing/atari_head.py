"""Atari-HEAD (Zhang et al., 2019): human play frame by frame, with the gaze.

`<game>.zip` holds, for every trial, pictures in `<trial>_<subject>_<n>_<date>.tar.bz2` and a table
in the `.txt` of the same stem: one line per emulator frame with its number, episode, score,
duration, reward, action and as many gaze positions as there were.  Any value may be `null`.  That
a game is over is seen from the next line's episode alone; the trial's last episode is cut off, and
may go on in another trial.
"""

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import numpy as np

from bqfd_jax.demos.errors import DemonstrationError
from bqfd_jax.demos.importing import actions, games, screens, takes
from bqfd_jax.demos.importing.build import SKIP, Builder, Imported, Wanted

_FIELDS = ("frame_id", "episode_id", "score", "duration(ms)", "unclipped_reward", "action")
_HEADER = (*_FIELDS, "gaze_positions")
_PICTURES = ".tar.bz2"
# Screens take a few kilobytes; whatever is larger is none.
_MAX_PICTURE = 1 << 20


class _Trial(NamedTuple):
    name: str  # the files' stem
    where: str  # of its table, for errors
    table: Callable[[], bytes]
    pictures: Callable[[], dict[str, bytes]]  # frame's name -> PNG


def read_atari_head(path: Path, wanted: Wanted) -> Imported:
    """Reads trials of one game.

    Args:
      path: a game's zip, a folder with what was in it, or one trial's `.txt` or `.tar.bz2`.
      wanted: what is asked for.
        `game`: which one; needed if neither file nor folder is called like a game.
        `only`: trials to use, by their number or their whole name; all unless given.
    """
    trials = _find_trials(path)
    folders = (path.name.split(".")[0], path.parent.name, path.parent.parent.name)
    game = games.choose_game(wanted.game, folders, str(path))
    meaning = actions.action_set(game)
    builder = Builder(actions.by_meaning(meaning), skip=SKIP, max_steps=wanted.max_steps)
    used, remarks = [], []
    for trial in trials:
        if wanted.only and not {trial.name, trial.name.split("_")[0]} & set(wanted.only):
            continue
        if builder.is_full:
            break
        wanted.tell(trial.name)
        lines, begins_at = _read_table(trial)
        if begins_at:
            builder.counts["trials that go on with a saved game"] += 1
            remarks.append(f"{trial.name} goes on with a saved game, at {begins_at} points")
        _add_trial(builder, trial, lines)
        used.append(trial.name)
    if not used:
        listed = ", ".join(trial.name for trial in trials) or "none"
        raise DemonstrationError(f"{path} has no such trial ({listed})")
    return builder.finish(
        game=game,
        num_actions=len(meaning),
        name=wanted.name or path.name.split(".")[0],
        source={"from": "Atari-HEAD", "file": path.name, "trials": used},
        nothing=f"{path}: no frames of {game} could be used",
        action_meaning=meaning,
        remarks=remarks,
    )


def _add_trial(builder: Builder, trial: _Trial, lines: list[takes.Line]) -> None:
    pictures = trial.pictures()
    builder.counts["frames told of"] += len(lines)

    def screen(name: str) -> np.ndarray:
        return screens.decode_screen(pictures[name], f"{trial.where}: {name}.png")

    for take in takes.split_lines(lines, screen, pictures.__contains__, builder.counts):
        builder.add(take)


# --- The table ---


def _read_table(trial: _Trial) -> tuple[list[takes.Line], int]:
    """Its lines, and the score that the trial began with."""
    table = takes.Table(trial.table(), trial.where)
    table.check_header(1, _HEADER)
    found: list[tuple[takes.Line, int | None]] = []
    begins_at, previous = 0, None
    for line, row in table.rows(2, _FIELDS, tail=True):
        number = _frame_number(table, line, row)
        if number is not None:
            takes.check_order(table, line, "frame_id", number, previous)
            previous = number
        episode = table.number(line, row, "episode_id")
        score = table.number(line, row, "score")
        table.number(line, row, "duration(ms)")
        reward = table.number(line, row, "unclipped_reward")
        action = table.number(line, row, "action", low=0, high=len(actions.NAMES))
        if not found:
            # The score of the first line may or may not hold its reward.
            begins_at = max((score or 0) - (reward or 0), 0)
        found.append((takes.Line(number, row["frame_id"], action, reward, None), episode))
    return [
        line._replace(is_over=_is_over(found, index)) for index, (line, _) in enumerate(found)
    ], begins_at


def _frame_number(table: takes.Table, line: int, row: dict[str, str]) -> int | None:
    """The last part of `RZ_2464601_17`."""
    name = row["frame_id"]
    if name == "null":
        return None
    number = name.rsplit("_", 1)[-1]
    if not number.isdecimal() or name != PurePosixPath(name).name:
        raise table.error(line, "frame_id", name, "a name that ends in the frame's number")
    return int(number)


def _is_over(found: list[tuple[takes.Line, int | None]], index: int) -> bool | None:
    """Whether the next frame is another episode's; None: the line does not say whose it is."""
    line, episode = found[index]
    if episode is None:
        return None
    if index + 1 == len(found):
        return False
    following, next_episode = found[index + 1]
    if next_episode is None or None in (line.number, following.number):
        return False
    # Across a gap nobody knows how the episode ended.
    return next_episode != episode and following.number == line.number + 1


# --- Where the files are ---


def _find_trials(path: Path) -> list[_Trial]:
    if not path.exists():
        raise DemonstrationError(f"there is no file or folder {path}")
    if path.is_dir():
        trials = list(_trials_in_folder(path))
    elif path.suffix == ".zip":
        trials = list(_trials_in_zip(path))
    elif path.name.endswith((".txt", _PICTURES)):
        stem = path.name.removesuffix(".txt").removesuffix(_PICTURES)
        trials = [_trial_of_files(path.with_name(f"{stem}.txt"), stem)]
    else:
        raise DemonstrationError(
            f"{path} is neither a game's .zip nor a folder nor a trial's .txt or {_PICTURES}"
        )
    if not trials:
        raise DemonstrationError(f"{path} holds no trial: no .txt with a {_PICTURES} beside it")
    return sorted(trials, key=_trial_order)


def _trial_order(trial: _Trial) -> tuple[int, str]:
    number = trial.name.split("_")[0]
    return (int(number) if number.isdecimal() else 0, trial.name)


def _trials_in_folder(folder: Path) -> Iterator[_Trial]:
    for table in sorted(folder.rglob("*.txt")):
        stem = table.name.removesuffix(".txt")
        # Other texts lie about too.
        if table.with_name(stem + _PICTURES).exists() or table.with_name(stem).is_dir():
            yield _trial_of_files(table, stem)


def _trial_of_files(table: Path, stem: str) -> _Trial:
    archive, folder = table.with_name(stem + _PICTURES), table.with_name(stem)
    for file in (table, folder if folder.is_dir() else archive):
        if not file.exists():
            raise DemonstrationError(f"{file} is missing: a trial is a .txt and a {_PICTURES}")

    def pictures() -> dict[str, bytes]:
        if folder.is_dir():
            return {file.stem: file.read_bytes() for file in folder.glob("*.png")}
        with archive.open("rb") as stream:
            return _read_archive(stream, str(archive))

    return _Trial(stem, str(table), table.read_bytes, pictures)


def _trials_in_zip(path: Path) -> Iterator[_Trial]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
    except (OSError, zipfile.BadZipFile) as error:
        raise DemonstrationError(f"{path} is damaged or no zip file: {error}") from error

    def read(member: str) -> bytes:
        with _zip_errors(f"{path}: {member}"), zipfile.ZipFile(path) as archive:
            return archive.read(member)

    def pictures(member: str) -> dict[str, bytes]:
        where = f"{path}: {member}"
        with (
            _zip_errors(where),
            zipfile.ZipFile(path) as archive,
            archive.open(member) as stream,
        ):
            return _read_archive(stream, where)

    for member in sorted(names):
        stem = member.removesuffix(".txt")
        if member.endswith(".txt") and stem + _PICTURES in names:
            yield _Trial(
                PurePosixPath(stem).name,
                f"{path}: {member}",
                lambda member=member: read(member),
                lambda member=stem + _PICTURES: pictures(member),
            )


@contextmanager
def _zip_errors(where: str) -> Iterator[None]:
    try:
        yield
    # What damaged or encrypted members make zipfile raise.
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise DemonstrationError(f"{where} is damaged: {error}") from error


def _read_archive(stream: IO[bytes], where: str) -> dict[str, bytes]:
    """All pictures of an archive, as they lie there; nothing is written to the disk."""
    found = {}
    try:
        with tarfile.open(fileobj=stream, mode="r|bz2") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                # Only regular files, by their last name: paths and links mean nothing here.
                if not member.isfile() or name.suffix != ".png" or member.size > _MAX_PICTURE:
                    continue
                found[name.stem] = archive.extractfile(member).read()
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        raise DemonstrationError(f"{where} is damaged: {error}") from error
    if not found:
        raise DemonstrationError(f"{where} holds no picture")
    return found
