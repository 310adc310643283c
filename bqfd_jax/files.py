"""Files of arrays: written whole or not at all, read without executing anything in them."""

import os
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np


class DemonstrationError(ValueError):
    """A demonstration cannot be used; the message says why."""


def write_npz_atomic(path: str | os.PathLike[str], **arrays: np.ndarray) -> None:
    """Writes compressed arrays so that `path` holds either the old file or all of the new."""
    path = Path(path)
    # A name of its own, for two processes may write the same file.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        # Unlike other files, temporary ones are for their owner's eyes only.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """All arrays of a file; raises `DemonstrationError` if any of it is damaged."""
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
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
    ) as error:
        raise DemonstrationError(f"{path} is damaged or no .npz file: {error}") from error
