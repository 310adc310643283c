"""Files: written whole or not at all, read without executing anything in them.

The one rule of writing: a new file lies under a temporary name in the same folder until all of it
is on the disk, then it is renamed, then the folder is brought to the disk too.  So after a crash or
a power cut `path` holds the old file or all of the new one.
"""

import contextlib
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

_TEMPORARY = ".tmp-"

StrPath = str | os.PathLike[str]


class FileError(ValueError):
    """A file is damaged, or is not what it should be; the message names it."""


# --- Writing ---


@contextlib.contextmanager
def replacing_path(path: StrPath) -> Iterator[Path]:
    """The name of an empty file that takes the place of `path` when the block is left.

    For what can write to names only.  The name ends as `path` does.  If the block raises, `path` is
    untouched and nothing is left behind.

    Args:
      path: the file to write, in a folder that exists.
    """
    path = Path(path)
    # Unpredictable, because several processes may write the same file.
    temporary = path.with_name(f"{_TEMPORARY}{os.urandom(8).hex()}-{path.name}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


@contextlib.contextmanager
def replacing(path: StrPath, mode: str = "wb") -> Iterator[IO[Any]]:
    """An open file that takes the place of `path` when the block is left; see `replacing_path`.

    Args:
      path: the file to write, in a folder that exists.
      mode: `wb`, or `w` for UTF-8.
    """
    with (
        replacing_path(path) as temporary,
        open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file,
    ):
        yield file


def write_text(path: StrPath, text: str) -> None:
    """Writes a text, whole or not at all."""
    with replacing(path, "w") as file:
        file.write(text)


def write_json(path: StrPath, value: Any) -> None:
    """Writes JSON, whole or not at all.

    Args:
      path: the file, in a folder that exists.
      value: dicts, lists, numbers, strings, and numpy or jax arrays; see `plain`.
    """
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def write_npz(path: StrPath, **arrays: np.ndarray) -> None:
    """Writes compressed arrays, whole or not at all."""
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


def is_temporary(path: StrPath) -> bool:
    """Whether a file is what a process that was killed while writing left behind."""
    return Path(path).name.startswith(_TEMPORARY)


def sync(path: StrPath) -> None:
    """Returns when what was written to a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain(value: Any, where: str = "the row") -> Any:
    """What strict JSON can hold: NaN and infinities become null, arrays lists, paths strings.

    Raises:
      TypeError: it holds something else; the message says where.
    """
    if isinstance(value, Mapping):
        return {key: plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise TypeError(f"{where} is a PRNG key, which JSON cannot hold")
        return plain(np.asarray(value).tolist(), where)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{where} is a {type(value).__name__}, which JSON cannot hold")


# --- Reading ---


def read_json(path: StrPath, *, error: type[FileError] = FileError) -> Any:
    """The value of a JSON file.

    Raises:
      FileNotFoundError: there is no such file.
      FileError: it is no JSON; `error` chooses a more special one.
    """
    _check_exists(path)
    try:
        return json.loads(Path(path).read_bytes())
    except ValueError as cause:
        raise error(f"{path} is damaged or no JSON: {cause}") from cause


def read_npz(
    path: StrPath, names: Sequence[str] | None = None, *, error: type[FileError] = FileError
) -> dict[str, np.ndarray]:
    """Arrays of a file.

    Args:
      path: an `.npz` file.
      names: of the arrays to read; all unless given.
      error: raised instead of `FileError`.

    Raises:
      FileNotFoundError: there is no such file.
      FileError: what is read of it is damaged, or an array of `names` is not there.
    """
    _check_exists(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            there = list(file.files)
            arrays = {name: file[name] for name in there if names is None or name in names}
    # All that a damaged archive makes numpy and zipfile raise.
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as cause:
        raise error(f"{path} is damaged or no .npz file: {cause}") from cause
    missing = [name for name in names or () if name not in arrays]
    if missing:
        raise error(f"{path} has no array {', '.join(missing)}, only {', '.join(there)}")
    return arrays


def _check_exists(path: StrPath) -> None:
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no file {path}")
