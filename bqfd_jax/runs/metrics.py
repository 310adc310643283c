"""What a run measures: lines of JSON that only grow, and mirrors of them.

It is strict JSON: NaN and infinities become null, numpy and jax values numbers and lists.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bqfd_jax.files import FileError, plain
from bqfd_jax.runs.mirrors import Mirror, Mirrors, TensorBoard, load_tensorboard


class MetricsWriter:
    """Writes one JSON object per line; each line has left the process when `write` returns.

    A line cut short by a crash is dropped on opening, so the file always grows by whole rows.

    Args:
      path: the `.jsonl` file; its directory is made if need be.
      position: continue after this many bytes, as `position()` gave them for a checkpoint, and
        forget what was written later; 0 starts over.  None appends to what is there.
      tensorboard_dir: where to mirror the numbers of rows that have a "step", by tensorboardX.
      mirror: makes another mirror of such rows.

    Raises:
      ValueError: the file is shorter than `position`.
      ImportError: `tensorboard_dir` is given and tensorboardX is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        position: int | None = None,
        tensorboard_dir: str | os.PathLike[str] | None = None,
        mirror: Callable[[], Mirror] | None = None,
    ):
        self._path = Path(path)
        self._mirrors = Mirrors([])
        if tensorboard_dir is not None:
            load_tensorboard()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        size = self._path.stat().st_size if self._path.exists() else 0
        if position is not None and position > size:
            raise ValueError(
                f"cannot continue {self._path} after byte {position}: it has only {size} bytes; "
                "it is not the file that the checkpoint was made with, or it was cut off since"
            )
        # Unbuffered, so that a failed write leaves nothing behind to be written later.
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
        self._position = _end_of_last_line(self._path, size if position is None else position)
        self._file.truncate(self._position)
        mirrors: list[Mirror] = [] if mirror is None else [mirror()]
        if tensorboard_dir is not None:
            mirrors.append(TensorBoard(tensorboard_dir, _step_after(self._path)))
        self._mirrors = Mirrors(mirrors)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row; if that fails, the file is as before."""
        values = plain(row)
        line = json.dumps(values, allow_nan=False).encode() + b"\n"
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"{self._path}: only {written} of {len(line)} bytes were written")
        except OSError:
            self._file.truncate(self._position)
            raise
        self._position += len(line)
        self._mirrors.write(values)

    def is_there(self) -> bool:
        """Whether the file still lies where it was opened."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def position(self) -> int:
        """Bytes written so far, all of them on disk, for a checkpoint to remember."""
        # Else a power cut could leave a checkpoint that remembers more than the file has.
        os.fsync(self._file.fileno())
        return self._position

    def close(self) -> None:
        """Closes the file and the mirrors; safe to call twice."""
        self._file.close()
        self._mirrors.close()


def read_jsonl(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Rows of a file by `MetricsWriter`, without a last line that was cut short.

    Args:
      path: the `.jsonl` file.

    Returns:
      The rows, in order.

    Raises:
      FileError: a whole line is not JSON.
    """
    *lines, _ = Path(path).read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise FileError(f"{path}, line {number} is not JSON: {error}") from error
    return rows


def readable_rows(content: bytes) -> list[dict[str, Any]]:
    """Rows of those lines that can be read, for who only looks on while others write."""
    rows = []
    # The last is cut short or empty.
    for line in content.split(b"\n")[:-1]:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows += [row] if isinstance(row, dict) else []
    return rows


def _end_of_last_line(path: Path, end: int) -> int:
    """Bytes up to and with the last line break before `end`."""
    with open(path, "rb") as file:
        while end > 0:
            start = max(0, end - 2**16)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def _step_after(path: Path) -> int:
    """The first step not in the file, from which TensorBoard is to forget an earlier attempt."""
    steps = [row["step"] for row in read_jsonl(path) if row.get("step") is not None]
    # Rows of evaluations may come late.
    return int(max(steps)) + 1 if steps else 0
