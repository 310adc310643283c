"""What was played but not saved, on the disk from the first step on.

A file beside the one that will be saved, of JSON lines: the game, then for every change how much of
what was written before still holds, and what was played after that.  Whoever kills the recorder
loses nothing by it.  A running recorder holds a lock on its journal.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bqfd_jax.envs import ale
from bqfd_jax.files import FileError, check_fields, parse_json, read_bytes

ENDING = ".unsaved"
Games = list[list[int]]  # the actions of each game


def fallback_folder() -> Path:
    """Where things go if they cannot go where they should: in `$XDG_STATE_HOME`, or near it."""
    base = os.environ.get("XDG_STATE_HOME", "")
    state = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    folder = state / "bqfd-jax" / "recordings"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="bqfd-jax-"))


def create(path: Path) -> tuple[int, Path]:
    """A new file to write, and its name: `path`, or that with a number if it is taken."""
    number, name = 1, path
    while True:
        try:
            return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), name
        except FileExistsError:
            number += 1
            name = path.with_name(f"{path.stem}-{number}{path.suffix}")


class Journal:
    """Keeps a file that says what was played so far; moves elsewhere if it cannot be written."""

    def __init__(self, path: Path, game: str, warn: Callable[[str], None]):
        """Begins nothing yet: the first step makes the file, `path` with another ending."""
        self.path: Path | None = None  # once there is a file
        self._wanted = path.with_name(path.name + ENDING)
        self._game, self._warn = game, warn
        self._warning = ""  # the last one
        self._descriptor: int | None = None
        self._written: Games = []

    def update(self, games: Games) -> None:
        """Writes what has changed since the last time."""
        if not any(games) and self._descriptor is None:
            return
        # Whoever deletes the folder deletes the file with it.
        if self._descriptor is not None and os.fstat(self._descriptor).st_nlink == 0:
            self._close()
        if games == self._written:
            return
        try:
            self._write(games, self._wanted)
            return
        except OSError as error:
            why = str(error)
        try:
            self._write(games, fallback_folder() / self._wanted.name)
            warning = (
                f"{self._wanted} cannot be written: {why}. UNSAVED PLAY IS KEPT IN {self.path}"
            )
        except OSError as error:
            warning = f"UNSAVED PLAY IS NOT KEPT: {why}; nor elsewhere: {error}"
        if warning != self._warning:
            self._warn(warning)
        self._warning = warning

    def _write(self, games: Games, path: Path) -> None:
        """Goes on with the file, or begins another that has everything before the old one goes."""
        old, is_new = self.path, self._descriptor is None
        try:
            if is_new:
                self._descriptor, self.path = create(path)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
                self._line({"game": self._game})
            self._line(_difference(self._written, games))
        except OSError:
            if self._descriptor is not None:
                self.remove() if is_new else self._close()
            self.path = old
            raise
        self._written = [list(game) for game in games]
        if is_new and old not in (None, self.path):
            old.unlink(missing_ok=True)

    def _line(self, value: Any) -> None:
        # Not through a buffer of this process, which would be lost with it.
        data = json.dumps(value).encode() + b"\n"
        if os.write(self._descriptor, data) != len(data):
            raise OSError("the disk is full")

    def _close(self) -> None:
        os.close(self._descriptor)
        self._descriptor, self._written = None, []

    def remove(self) -> None:
        """Everything is on the disk elsewhere."""
        if self._descriptor is not None:
            self._close()
            self.path.unlink(missing_ok=True)


def _difference(old: Games, new: Games) -> dict[str, Any]:
    """How many games, and how many actions of the next, still hold; and what comes after them."""
    games = _common(old, new)
    one, other = (some[games] if games < len(some) else [] for some in (old, new))
    steps = _common(one, other)
    return {"games": games, "steps": steps, "then": [other[steps:], *new[games + 1 :]]}


def _common(some: Sequence[Any], other: Sequence[Any]) -> int:
    """How many items two lists begin with alike."""
    differ = (i for i, (a, b) in enumerate(zip(some, other, strict=False)) if a != b)
    return next(differ, min(len(some), len(other)))


def read(path: Path) -> tuple[str, Games]:
    """The game and the actions that a journal tells of; a last line that was cut off is left out.

    Raises:
      FileError: it is no journal.
    """
    head, *lines = read_bytes(path).split(b"\n")
    told = parse_json(head, path)
    check_fields(told, game=str)
    try:
        num_actions = ale.Ale(told["game"]).num_actions
    except ValueError as error:
        raise FileError(f"{path}: {error}") from error
    games: Games = []
    for number, line in enumerate(lines[:-1], start=2):
        where = f"{path}, line {number}"
        change = parse_json(line, where)
        check_fields(change, games=int, steps=int, then=[[int]])
        whole, steps, then = change["games"], change["steps"], change["then"]
        if not 0 <= whole <= len(games) or steps < 0 or not then:
            raise FileError(f"{where} does not fit those before it")
        begun = games[whole][:steps] if whole < len(games) else []
        if len(begun) != steps or any(not 0 <= a < num_actions for game in then for a in game):
            raise FileError(f"{where} does not fit those before it")
        games = [*games[:whole], begun + then[0], *then[1:]]
    return told["game"], games


def leftovers(folder: Path, game: str) -> dict[Path, int]:
    """Journals of a game that nobody writes any more -> steps that were played."""
    found = {}
    for path in sorted({*folder.glob(f"*{ENDING}"), *fallback_folder().glob(f"*{ENDING}")}):
        try:
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            told, games = read(path)
        except (OSError, ValueError):
            continue
        if told == game and any(games):
            found[path] = sum(map(len, games))
    return found
