"""How much a file may hold once it is unpacked: checked before anything is.

A few kilobytes can declare, or unpack to, more than any memory.  So sizes are compared with
`max_bytes()`, which the environment variable `BQFD_MAX_GB` raises, and with the free memory.
"""

import os
from pathlib import Path
from typing import Any

_DEFAULT_GB = 4.0
_MOST_OF_IT = 0.8  # of the free memory


def max_bytes() -> float:
    """What a file may hold once it is unpacked."""
    try:
        return float(os.environ.get("BQFD_MAX_GB", _DEFAULT_GB)) * 1e9
    except ValueError:
        return _DEFAULT_GB * 1e9


def check_size(where: Any, size: int, *, error: type[ValueError]) -> None:
    """Raises `error` for what is larger than allowed, or than the free memory."""
    if size > max_bytes():
        raise error(
            f"{where} holds {size / 1e9:,.1f} GB once it is unpacked, but only "
            f"{max_bytes() / 1e9:g} GB are allowed; if you trust it, set BQFD_MAX_GB higher"
        )
    free = free_memory()
    if free is not None and size > _MOST_OF_IT * free:
        raise error(
            f"{where} holds {size / 1e9:,.1f} GB once it is unpacked, but the free memory has only "
            f"{free / 1e9:,.1f} GB"
        )


def free_memory() -> int | None:
    """Bytes that may still be taken; None if that cannot be known."""
    limits = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pass
    try:
        # What a container may take, if this is one.
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Files that are kept in memory give way when it is needed.
        limits.append(limit - used + int(stat["active_file"]) + int(stat["inactive_file"]))
    except (OSError, ValueError, KeyError):
        pass
    return min(limits, default=None)


class BoundedReader:
    """A stream that refuses to give more than so many bytes."""

    def __init__(self, stream: Any, most: float, complaint: Exception):
        self._stream, self._left, self._complaint = stream, min(most, max_bytes()), complaint

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise self._complaint
        return data
