"""Atari-HEAD (Zhang et al., 2019): human play frame by frame, with the gaze.

`<game>.zip` holds, for every trial, pictures in `<trial>_<subject>_<n>_<date>.tar.bz2` and a table
in the `.txt` of the same stem: one line per emulator frame with its number, episode, score,
duration, reward, action and as many gaze positions as there were.  Any value may be `null`.  That
a game is over is seen from the next line's episode alone; the trial's last episode is cut off, and
may go on in another trial.
"""

import bz2
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from bqfd_jax.demos.importing import actions, games, screens, takes
from bqfd_jax.demos.importing.build import Builder, Imported, Wanted
from bqfd_jax.demos.schema import DemonstrationError
from bqfd_jax.files import read_bytes
from bqfd_jax.limits import BoundedReader

_FIELDS = ("frame_id", "episode_id", "score", "duration(ms)", "unclipped_reward", "action")
_HEADER = (*_FIELDS, "gaze_positions")
_PICTURES = ".tar.bz2"
# That an archive may hold beside those of its table.
_MORE_PICTURES = 1_000


# A file, on the disk or in a zip.
_Place = Path | zipfile.Path


class _Trial(NamedTuple):
    name: str  # the files' stem
    table: _Place
    pictures: _Place  # an archive, or a folder of PNGs


def read_atari_head(path: Path, wanted: Wanted) -> Imported:
    """Reads trials of one game: a zip, a folder with what was in it, a `.txt` or `.tar.bz2`.

    The game is needed if neither file nor folder is called like one.  Trials are called by their
    number or their whole name.
    """
    trials = _find_trials(path)
    folders = (path.name.split(".")[0], path.parent.name, path.parent.parent.name)
    game = games.choose_game(wanted.game, folders, str(path))
    builder = Builder(game, max_steps=wanted.max_steps)
    used = []
    for trial in trials:
        if wanted.only and not {trial.name, trial.name.split("_")[0]} & set(wanted.only):
            continue
        if builder.is_full:
            break
        wanted.tell(trial.name)
        lines, begins_at = _read_table(trial)
        if begins_at:
            builder.counts["trials that go on with a saved game"] += 1
            builder.remarks.append(f"{trial.name} goes on with a saved game, at {begins_at} points")
        _add_trial(builder, trial, lines)
        used.append(trial.name)
    if not used:
        listed = ", ".join(trial.name for trial in trials) or "none"
        raise DemonstrationError(f"{path} has no such trial ({listed})")
    return builder.finish(
        name=wanted.name or path.name.split(".")[0],
        source={"from": "Atari-HEAD", "file": path.name, "trials": used},
        nothing=f"{path}: no frames of {game} could be used",
    )


def _add_trial(builder: Builder, trial: _Trial, lines: list[takes.Line]) -> None:
    names = {line.name for line in lines}
    pictures, unused = _read_pictures(trial.pictures, names)
    builder.counts["frames told of"] += len(lines)
    builder.counts[takes.UNTOLD] += unused

    def screen(name: str) -> np.ndarray:
        return screens.decode_screen(pictures[name], f"{trial.pictures}: {name}.png")

    for take in takes.split_lines(lines, screen, pictures.__contains__, builder.counts):
        builder.add(take)


# --- The table ---


def _read_table(trial: _Trial) -> tuple[list[takes.Line], int]:
    """Its lines, and the score that the trial began with."""
    table = takes.Table(trial.table)
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
        found.append((takes.Line(number, row["frame_id"], action, reward, None, score), episode))
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
        trials = _trials_of(sorted(path.rglob("*.txt")))
    elif path.suffix == ".zip":
        try:
            archive = zipfile.ZipFile(path)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise DemonstrationError(f"{path} is damaged or no zip file: {error}") from error
        texts = sorted(name for name in archive.namelist() if name.endswith(".txt"))
        trials = _trials_of([zipfile.Path(archive, name) for name in texts])
    elif path.name.endswith((".txt", _PICTURES)):
        table = path.with_name(path.name.removesuffix(".txt").removesuffix(_PICTURES) + ".txt")
        trials = _trials_of([table])
        if not trials:
            raise DemonstrationError(
                f"{table} or its {_PICTURES} is missing: a trial is a .txt and a {_PICTURES}"
            )
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


def _trials_of(tables: Sequence[_Place]) -> list[_Trial]:
    """Tables that exist and have pictures beside them; other texts lie about too."""
    trials = []
    for table in tables:
        stem = table.name.removesuffix(".txt")
        for pictures in (table.parent / stem, table.parent / (stem + _PICTURES)):
            if table.is_file() and (pictures.is_file() or pictures.is_dir()):
                trials.append(_Trial(stem, table, pictures))
                break
    return trials


def _read_pictures(place: _Place, names: set[str]) -> tuple[dict[str, bytes], int]:
    """The pictures of some names as they lie there, and how many there are of others."""
    if place.is_dir():
        files = (file for file in place.iterdir() if file.name.endswith(".png"))
        there = {file.name.removesuffix(".png"): file for file in files}
        found = {
            name: read_bytes(there[name], most=screens.MAX_BYTES, error=DemonstrationError)
            for name in names & set(there)
        }
        return found, len(set(there) - names)
    found, unused = {}, 0
    most = (len(names) + _MORE_PICTURES) * screens.MAX_BYTES
    try:
        with place.open("rb") as stream, bz2.open(stream) as unpacked:
            too_much = DemonstrationError(f"{place} holds more than {most:,} bytes")
            bounded = BoundedReader(unpacked, most, too_much)
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                for member in archive:
                    name = PurePosixPath(member.name)
                    # Only regular files, by their last name: paths and links mean nothing here.
                    if not member.isfile() or name.suffix != ".png":
                        continue
                    if member.size > screens.MAX_BYTES:
                        raise DemonstrationError(f"{place}: {name} is larger than any screen")
                    if name.stem in names:
                        found[name.stem] = archive.extractfile(member).read()
                    else:
                        unused += 1
    except DemonstrationError:
        raise
    # Whatever damaged contents make the libraries raise.
    except Exception as error:
        raise DemonstrationError(f"{place} is damaged: {error}") from error
    if not found and not unused:
        raise DemonstrationError(f"{place} holds no picture")
    return found, unused
