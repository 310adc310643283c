"""Files: written whole or not at all, read without executing anything in them.

The one rule of writing: a new file lies under a temporary name in the same folder until all of it
is on the disk, then it is renamed, then the folder is brought to the disk too.  So after a crash or
a power cut `path` holds the old file or all of the new one.
"""

import contextlib
import hashlib
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

from bqfd_jax.limits import check_size

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
    """An open file, `w` for UTF-8, that takes the place of `path` when the block is left."""
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
    """Writes JSON of what `plain` takes, whole or not at all."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def write_npz(path: StrPath, **arrays: np.ndarray) -> None:
    """Writes compressed arrays, whole or not at all."""
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


def write_record(path: StrPath, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays and JSON about them, for `read_record`."""
    write_npz(path, meta=np.array(json.dumps(meta)), **arrays)


def digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """sha256 of a text and of arrays: their names, types, shapes and contents."""
    found = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(byte_view(array))
    return found.hexdigest()


def byte_view(array: np.ndarray) -> np.ndarray:
    """The bytes of an array, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


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

# What a text in a file may be long; tables of hours of play have a tenth of it.
MAX_TEXT = 2**28
# All that numpy writes.  Others shrink zeros a million times.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_bytes(
    path: Path | zipfile.Path, *, most: int = MAX_TEXT, error: type[FileError] = FileError
) -> bytes:
    """What is in a file, on the disk or in a zip, if that is not more than `most` bytes.

    Raises:
      FileNotFoundError: there is no such file.
      FileError: it is damaged, too large or no regular file; `error` chooses a more special one.
    """
    _check_file(path, error)
    in_zip = isinstance(path, zipfile.Path)
    size = path.root.getinfo(path.at).file_size if in_zip else path.stat().st_size
    if size > most:
        raise error(f"{path} has more than {most:,} bytes, too many for what it should be")
    try:
        with path.open("rb") as stream:
            return stream.read(size)
    except Exception as cause:
        raise error(f"{path} is damaged: {cause}") from cause


def parse_json(text: str | bytes, where: Any, *, error: type[FileError] = FileError) -> Any:
    """The value of strict JSON; raises `FileError` for anything else."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as cause:
        raise error(f"{where} is damaged or no JSON: {cause}") from cause


def read_json(path: StrPath, *, error: type[FileError] = FileError) -> Any:
    """The value of a JSON file; for what it raises see `read_bytes`."""
    return parse_json(read_bytes(Path(path), error=error), path, error=error)


def read_npz(
    path: StrPath,
    names: Sequence[str] | None = None,
    *,
    optional: Sequence[str] = (),
    error: type[FileError] = FileError,
) -> dict[str, np.ndarray]:
    """Arrays of a file: those of `names`, and of `optional` if they are there; all unless given.

    Sizes are checked before anything is unpacked; see `limits`.

    Raises:
      FileNotFoundError: there is no such file.
      FileError: what is read of it is damaged or too large, or an array of `names` is not there;
        `error` chooses a more special one.
    """
    _check_file(Path(path), error)
    try:
        with zipfile.ZipFile(path) as archive:
            there = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = there if names is None else [n for n in (*names, *optional) if n in there]
            check_size(path, sum(there[name].file_size for name in wanted), error=error)
            arrays = {name: _read_member(archive, there[name]) for name in wanted}
    except error:
        raise
    # Whatever a damaged archive makes zipfile and numpy raise.
    except Exception as cause:
        raise error(f"{path} is damaged or no .npz file: {cause}") from cause
    missing = [name for name in names or () if name not in arrays]
    if missing:
        raise error(f"{path} has no array {', '.join(missing)}, only {', '.join(there)}")
    return arrays


def read_record(
    path: StrPath,
    names: Sequence[str] = (),
    *,
    optional: Sequence[str] = (),
    error: type[FileError] = FileError,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `write_record` wrote: the JSON, an object, and arrays; see `read_npz`."""
    arrays = read_npz(path, ("meta", *names), optional=optional, error=error)
    text = arrays.pop("meta")
    if text.shape or text.dtype.kind != "U":
        raise error(f"{path}: meta is {text.dtype}{list(text.shape)}, not a text")
    meta = parse_json(str(text), f"{path}: meta", error=error)
    if not isinstance(meta, dict):
        raise error(f"{path}: meta is no JSON object")
    return meta, arrays


def check_fields(meta: Any, **kinds: Any) -> None:
    """Refuses JSON without one of some fields, or with one of another kind.

    A kind is a type, `[kind]` for lists of it, or a tuple of several.
    """
    if not isinstance(meta, dict):
        raise FileError("its meta is no JSON object")
    missing = [name for name in kinds if name not in meta]
    if missing:
        raise FileError(f"it has no {', '.join(missing)}")
    for name, kind in kinds.items():
        if not _is_kind(meta[name], kind):
            raise FileError(f"{name} is {repr(meta[name])[:60]}, but must be {_say(kind)}")


def _is_kind(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return any(_is_kind(value, one) for one in kind)
    if isinstance(kind, list):
        return isinstance(value, list) and all(_is_kind(item, kind[0]) for item in value)
    if kind is None:
        return value is None
    if kind is float:
        return type(value) in (int, float) and abs(value) <= 1e300
    # Control characters would reach the terminal of whoever looks at it.
    return type(value) is kind and (kind is not str or value.isprintable())


def _say(kind: Any) -> str:
    if isinstance(kind, tuple):
        return " or ".join(map(_say, kind))
    if isinstance(kind, list):
        return f"a list of {_say(kind[0])}"
    words = {str: "plain text", int: "a whole number", float: "a number", dict: "an object"}
    return "null" if kind is None else words.get(kind, "true or false")


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    name = info.filename
    if info.compress_type not in _COMPRESSIONS:
        raise ValueError(f"{name} is packed as numpy never does it")
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{name} has an unknown header")
        read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
        shape, _, dtype = read_header(stream)
        if dtype.hasobject or dtype.names or dtype.subdtype:
            raise ValueError(f"{name} holds objects, not numbers or text")
        declared = math.prod(shape) * dtype.itemsize
        if stream.tell() + declared != info.file_size:
            raise ValueError(f"{name} declares {declared} bytes that are not there")
    with archive.open(info) as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
        # The checksum is compared at the very end.
        stream.read(1)
    return array


def _check_file(path: Path | zipfile.Path, error: type[FileError]) -> None:
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    # Opening a pipe would wait for ever.
    if not path.is_file():
        raise error(f"{path} is no regular file")
