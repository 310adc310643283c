"""Reads all of an HDF5 file; a script that is told the file, and the most bytes, on its input.

Damage can make the HDF5 library loop for ever, crash, or ask for all memory there is.  So somebody
else's file is read once in a process of its own, which can be ended.  This one says nothing; it
fails with the library's message.
"""

import resource
import sys
from typing import Any

import h5py

_BLOCK = 2**24  # bytes read at once
_DEPTH = 4  # of groups within groups


def main(path: str, most: int) -> None:
    """Reads the file, as far as it does not declare more than `most` bytes."""
    resource.setrlimit(resource.RLIMIT_AS, (2 * most + 2**33, resource.RLIM_INFINITY))
    with h5py.File(path, "r") as file:
        _read(file, most, _DEPTH)


def _read(group: Any, most: int, depth: int) -> None:
    for name in group.attrs:
        _ = group.attrs[name]
    for name in group:
        # Nothing outside of the file is opened; whoever reads it refuses such things.
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            continue
        item = group[name]
        if isinstance(item, h5py.Group) and depth:
            _read(item, most, depth - 1)
        elif isinstance(item, h5py.Dataset) and item.shape and item.size:
            if item.external or item.is_virtual or item.size * item.dtype.itemsize > most:
                continue
            if item.id.get_storage_size():
                rows = max(1, _BLOCK * len(item) // (item.size * item.dtype.itemsize))
                for start in range(0, len(item), rows):
                    _ = item[start : start + rows]


if __name__ == "__main__":
    file, most = sys.stdin.read().splitlines()
    main(file, int(float(most)))
