"""One item of a checkpoint: a pytree as a zip file of array bytes, and a description for JSON.

The description has `leaves` (path, shape and dtype of each) and `pieces` (size and CRC-32 of every
member of the zip file).  A large array lies there in several pieces, so that it never needs to be
in memory once more.
"""

import functools
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import files

_PIECE_BYTES = 32 * 2**20

# All that bytes which are not as they were can make zipfile raise.
_UNREADABLE = (
    OSError, EOFError, KeyError, ValueError, NotImplementedError, zlib.error, zipfile.BadZipFile
)  # fmt: skip

Description = dict[str, Any]


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or none could be used."""


class DamagedError(Exception):
    """The files are not what was written."""


# --- An item's file ---


def write_item(path: Path, leaves: Mapping[str, Any]) -> Description:
    """Writes what `flatten` gave into a new file, all of it on disk when this returns."""
    with open(path, "xb") as file:
        # At its fastest: Atari frames shrink so much that compressing them also saves time.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for number, leaf in enumerate(leaves.values()):
                for start, piece in _pieces(leaf):
                    with archive.open(f"{number}-{start}", "w", force_zip64=True) as member:
                        member.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8))
        file.flush()
        os.fsync(file.fileno())
    return {
        "leaves": {name: _describe(leaf) for name, leaf in leaves.items()},
        "pieces": _checksums(archive),
    }


# How a leaf that is a python number is kept in JSON.
_STORED = {"python bool": bool, "python int": int, "python float": str}


def check_description(description: Any) -> None:
    """Raises `FileError` for what `write_item` cannot have returned."""
    files.check_fields(description, leaves=dict, pieces=dict)
    for piece in description["pieces"].values():
        files.check_fields({"piece": piece}, piece=[int])
    for leaf in description["leaves"].values():
        files.check_fields(leaf, shape=[int], dtype=str)
        files.check_fields({"key_impl": ""} | leaf, key_impl=str)
        if leaf["dtype"].startswith("python"):
            files.check_fields(leaf, value=_STORED.get(leaf["dtype"], ()))
            _python_value(leaf)


def read_item(path: Path, description: Description, wanted: Mapping[str, Any]) -> list[Any]:
    """The leaves of an item that fits, in the order and as the kind of array of `wanted`.

    Raises:
      DamagedError: the file is not what was written.
    """
    numbers = {name: number for number, name in enumerate(description["leaves"])}
    try:
        with zipfile.ZipFile(path) as archive:
            if _checksums(archive) != description["pieces"]:
                raise DamagedError(f"{path.name} does not match its checksums")
            return [
                _read_leaf(archive, numbers[name], description["leaves"][name], leaf)
                for name, leaf in wanted.items()
            ]
    except FileNotFoundError:
        raise DamagedError(f"{path.name} is missing") from None
    except _UNREADABLE as error:
        raise DamagedError(f"{path.name} is damaged: {error}") from error


def _checksums(archive: zipfile.ZipFile) -> dict[str, list[int]]:
    return {member.filename: [member.file_size, member.CRC] for member in archive.infolist()}


# --- The tree: paths and leaves ---


def flatten(name: str, tree: Any) -> dict[str, Any]:
    """Leaves by their paths, which begin with the item's name."""
    leaves = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        path = name + jax.tree_util.keystr(keys)
        if not (_is_python(leaf) or _is_key(leaf) or _is_numeric(leaf)):
            raise CheckpointError(
                f"leaf {path} is a {type(leaf).__name__}; a checkpoint holds numeric arrays, "
                "PRNG keys and python numbers only"
            )
        if path in leaves:
            raise CheckpointError(f"two leaves of the tree share the path {path}")
        leaves[path] = leaf
    return leaves


def _is_python(leaf: Any) -> bool:
    return type(leaf) in (bool, int, float)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_numeric(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and (
        jax.dtypes.issubdtype(leaf.dtype, np.number) or jax.dtypes.issubdtype(leaf.dtype, np.bool_)
    )


def _describe(leaf: Any) -> dict[str, Any]:
    if _is_python(leaf):
        # The hexadecimal form of a float is exact, and strict JSON has no NaN.
        value = leaf.hex() if type(leaf) is float else leaf
        return {"shape": [], "dtype": f"python {type(leaf).__name__}", "value": value}
    description = {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}
    if _is_key(leaf) and isinstance(leaf, jax.Array):
        description["key_impl"] = str(jax.random.key_impl(leaf))
    return description


def _python_value(stored: dict[str, Any]) -> bool | int | float:
    if stored["dtype"] != "python float":
        return stored["value"]
    try:
        return float.fromhex(stored["value"])
    except (ValueError, OverflowError):
        raise files.FileError(f"{stored['value']!r} is no number") from None


def _fits(stored: dict[str, Any], leaf: Any) -> bool:
    expected = _describe(leaf)
    if stored["dtype"].startswith("python") and isinstance(leaf, jax.ShapeDtypeStruct):
        # What `jax.eval_shape` makes of a python number.
        made = jnp.result_type(type(_python_value(stored)))
        stored = {"shape": [], "dtype": str(made)}
    return all(stored[field] == expected[field] for field in ("shape", "dtype"))


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Where an item's leaves are not those wanted; `stored` is `leaves` of its description."""

    def show(leaf: Description) -> str:
        return f"{leaf['dtype']}{leaf['shape']}"

    found = []
    for name in dict.fromkeys([*stored, *wanted]):
        if name not in wanted:
            found.append(f"{name}: stored {show(stored[name])}, expected nothing")
        elif name not in stored:
            found.append(f"{name}: stored nothing, expected {show(_describe(wanted[name]))}")
        elif not _fits(stored[name], wanted[name]):
            expected = show(_describe(wanted[name]))
            found.append(f"{name}: stored {show(stored[name])}, expected {expected}")
    # Pieces are found by their leaf's place, so that two of one shape must not be exchanged.
    if not found and list(stored) != list(wanted):
        found.append("the same leaves, but in another order")
    return found


# --- Arrays: cut into pieces on the way out, put together on the way in ---


def _pieces(leaf: Any) -> Iterator[tuple[int, np.ndarray]]:
    """First row and content of each piece; the description of python numbers says all of them."""
    if _is_python(leaf):
        return
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    for start, rows in _cuts(leaf.shape, leaf.nbytes):
        if leaf.ndim == 0 or rows == len(leaf):
            yield start, np.asarray(leaf)
        elif isinstance(leaf, jax.Array):
            yield start, _rows_of(leaf, start, rows)
        else:
            yield start, leaf[start : start + rows]


def _rows_of(array: jax.Array, start: int, rows: int) -> np.ndarray:
    """Not `array[a:b]`, which compiles anew for every start; and each device gives its own rows."""
    pieces = []
    for shard in array.addressable_shards:
        first, end, _ = shard.index[0].indices(len(array))
        begin, end = max(start, first), min(start + rows, end)
        if shard.replica_id == 0 and begin < end:
            own = jax.lax.dynamic_slice_in_dim(shard.data, begin - first, end - begin)
            pieces.append((first, np.asarray(own)))
    pieces.sort(key=lambda piece: piece[0])
    return pieces[0][1] if len(pieces) == 1 else np.concatenate([own for _, own in pieces])


def _cuts(shape: tuple[int, ...], num_bytes: int) -> list[tuple[int, int]]:
    """First row and number of rows of each piece."""
    total = shape[0] if shape else 1
    rows = total if num_bytes <= _PIECE_BYTES else max(1, _PIECE_BYTES * total // num_bytes)
    return [(start, min(rows, total - start)) for start in range(0, total, max(rows, 1))]


@functools.partial(jax.jit, donate_argnums=0)
def _put_rows(array: jax.Array, rows: jax.Array, start: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(array, rows, start, axis=0)


def _read_leaf(archive: zipfile.ZipFile, number: int, stored: Description, leaf: Any) -> Any:
    if stored["dtype"].startswith("python"):
        value = _python_value(stored)
        return value if _is_python(leaf) else jnp.asarray(value)
    shape, dtype = tuple(stored["shape"]), stored["dtype"]
    if _is_key(leaf):
        impl = stored["key_impl"]
        words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=impl)))
        shape, dtype = (*shape, *words.shape), words.dtype
    dtype = jnp.dtype(dtype)
    cuts = _cuts(shape, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    pieces = (_read_piece(archive, f"{number}-{start}", rows * row_bytes) for start, rows in cuts)
    if len(cuts) > 1 and not _is_numpy(leaf):
        arrays = (np.frombuffer(piece, dtype).reshape(-1, *shape[1:]) for piece in pieces)
        whole = _filled(shape, dtype, _wanted_sharding(leaf), arrays)
    else:
        whole = np.frombuffer(bytearray().join(pieces), dtype).reshape(shape)
    if _is_key(leaf):
        return _placed(jax.random.wrap_key_data(jnp.asarray(whole), impl=impl), leaf)
    return _as_template(whole, leaf)


def _filled(
    shape: tuple[int, ...],
    dtype: Any,
    sharding: jax.sharding.Sharding | None,
    pieces: Iterator[np.ndarray],
) -> jax.Array:
    """Filled in place on each device that holds rows: the array never lies whole on the host."""
    holders = {None: (slice(None),)} if sharding is None else sharding.devices_indices_map(shape)
    parts = {}
    for device, (rows, *_) in holders.items():
        first, end, _ = rows.indices(shape[0])
        parts[device] = first, jnp.empty((end - first, *shape[1:]), dtype, device=device)
    start = 0
    for piece in pieces:
        for device, (first, part) in parts.items():
            begin, end = max(start, first), min(start + len(piece), first + len(part))
            if begin < end:
                part = _put_rows(part, piece[begin - start : end - start], begin - first)
                parts[device] = first, part
        start += len(piece)
    filled = [part for _, part in parts.values()]
    if sharding is None:
        return filled[0]
    return jax.make_array_from_single_device_arrays(shape, sharding, filled)


def _read_piece(archive: zipfile.ZipFile, name: str, size: int) -> bytes:
    try:
        # Before it is unpacked: a few bytes could declare more than there is memory.
        if archive.getinfo(name).file_size != size:
            raise ValueError(f"piece {name} has another size than its array")
        return archive.read(name)
    except Exception as error:
        raise DamagedError(f"{Path(archive.filename).name} is damaged: {error}") from error


def _is_numpy(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic)


def _as_template(array: Any, leaf: Any) -> Any:
    if _is_numpy(leaf):
        return array if isinstance(leaf, np.ndarray) else array[()]
    array = _placed(array, leaf)
    if array.dtype != leaf.dtype:
        raise CheckpointError(f"{leaf.dtype} leaves need jax_enable_x64 or a numpy template")
    if getattr(leaf, "weak_type", False):
        # Promotion depends on it, so a resumed run would otherwise compute something else.
        weak = jnp.broadcast_to(jnp.asarray(leaf.dtype.type(0).item()), leaf.shape)
        array = weak.at[...].set(array) if weak.dtype == array.dtype else array
    return array


def _placed(array: Any, leaf: Any) -> jax.Array:
    return jax.device_put(array, _wanted_sharding(leaf))


def _wanted_sharding(leaf: Any) -> jax.sharding.Sharding | None:
    # An uncommitted array must stay so, or jit would compile for it again.
    committed = not isinstance(leaf, jax.Array) or getattr(leaf, "committed", False)
    return getattr(leaf, "sharding", None) if committed else None
