"""One item of a checkpoint: a pytree as a folder of arrays, and a description that JSON can hold.

The description has `leaves` (path, shape and dtype of each), `groups` (which pieces of which leaves
lie in which folder `arrays-000`, `arrays-001`, ...) and `files` (a checksum of each).
"""

import functools
import itertools
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import files

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

# Arrays are cut here, not by orbax: it takes only divisors of the shape as chunk sizes, so a large
# array with a prime number of rows would be stored row by row, twenty times slower to read.
_BLOCK_BYTES = 32 * 2**20
# Orbax holds what it writes or reads in memory once more; groups bound that for a 7 GB replay.
_GROUP_BYTES = 128 * 2**20

Description = dict[str, Any]


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or none could be used."""


class DamagedError(Exception):
    """The files are not what was written."""


# --- An item's folder ---


def write_item(folder: Path, leaves: Mapping[str, Any]) -> Description:
    """Writes what `flatten` gave into a new folder, all of it on disk when this returns."""
    folder.mkdir()
    groups = list(_groups(leaves))
    arrays = list(leaves.values())
    for i, group in enumerate(groups):
        pieces = {f"{leaf}-{start}": _piece(arrays[leaf], start, n) for leaf, start, n in group}
        # Atari frames shrink so much that compressing them also saves time.
        with _orbax(use_ocdbt=True, use_compression=True) as orbax:
            orbax.save(folder / f"arrays-{i:03d}", args=_load_orbax().args.PyTreeSave(pieces))
    written = sorted(folder.rglob("*"))
    for path in (folder, *written):
        files.sync(path)
    return {
        "leaves": {path: _describe(leaf) for path, leaf in leaves.items()},
        "groups": groups,
        "files": {
            path.relative_to(folder).as_posix(): checksum(path)
            for path in written
            if path.is_file()
        },
    }


def check_description(description: Any) -> None:
    """Raises `FileError` for what `write_item` cannot have written."""
    files.check_fields(description, leaves=dict, groups=[[[(int, None)]]], files=dict)
    for found in description["files"].values():
        files.check_fields(found, bytes=int, crc32=int)
    rows_to_come = []
    for leaf in description["leaves"].values():
        files.check_fields(leaf, shape=[int], dtype=str)
        files.check_fields({"key_impl": ""} | leaf, key_impl=str)
        is_python = leaf["dtype"].startswith("python")
        if is_python:
            files.check_fields(leaf, value=_STORED.get(leaf["dtype"], ()))
            _python_value(leaf)
        rows_to_come.append(0 if is_python or 0 in leaf["shape"] else (leaf["shape"] or [1])[0])
    rows_there = [0] * len(rows_to_come)
    for piece in itertools.chain(*description["groups"]):
        leaf, start, rows = piece if len(piece) == 3 else (None, None, None)
        if None in (leaf, start) or not 0 <= leaf < len(rows_there) or start != rows_there[leaf]:
            raise files.FileError(f"there can be no piece {piece}")
        rows_there[leaf] += rows_to_come[leaf] if rows is None else rows
    if rows_there != rows_to_come:
        raise files.FileError("its pieces do not make up its arrays")


# How a leaf that is a python number is kept in JSON.
_STORED = {"python bool": bool, "python int": int, "python float": str}


def verify_item(folder: Path, description: Description) -> None:
    """Raises `DamagedError` unless all files are as they were written, and no others are there."""
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    for name in sorted(there | set(description["files"])):
        where, expected = f"{folder.name}/{name}", description["files"].get(name)
        if name not in there:
            raise DamagedError(f"{where} is missing")
        if expected is None:
            raise DamagedError(f"{where} was not there when it was written")
        found = checksum(folder / name)
        if found["bytes"] != expected["bytes"]:
            raise DamagedError(
                f"{where} has {found['bytes']} bytes where {expected['bytes']} were written"
            )
        if found != expected:
            raise DamagedError(f"{where} does not match its checksum")


def read_item(folder: Path, description: Description, wanted: Mapping[str, Any]) -> list[Any]:
    """The leaves of an item that fits, in the order and as the kind of array of `wanted`."""
    read: dict[str, Any] = {}
    names = list(description["leaves"])
    for i, group in enumerate(description["groups"]):
        pieces = _read_pieces(folder / f"arrays-{i:03d}", group)
        for leaf, start, rows in group:
            name = names[leaf]
            piece = pieces.pop(f"{leaf}-{start}")
            if rows is None:
                read[name] = piece
            else:
                read[name] = _joined(read.pop(name, None), piece, start, wanted[name])
    return [
        _as_template(description["leaves"][name], read.pop(name, None), leaf)
        for name, leaf in wanted.items()
    ]


def checksum(path: Path) -> dict[str, int]:
    """Size and CRC-32 of a file."""
    # It finds accidents as surely as SHA-256 does, at twice the speed.
    crc, size = 0, 0
    with open(path, "rb") as file:
        while block := file.read(2**20):
            crc = zlib.crc32(block, crc)
            size += len(block)
    return {"bytes": size, "crc32": crc}


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
    if not found and list(stored) != list(wanted):
        found.append("the same leaves in another order")
    return found


# --- Arrays: cut into pieces on the way out, put together on the way in ---


def _groups(leaves: Mapping[str, Any]) -> Iterator[list[tuple[int, int, int | None]]]:
    """Lists of pieces `(leaf, first row, rows or None for all)`, each list one orbax save."""
    group, size = [], 0
    for i, leaf in enumerate(leaves.values()):
        # Orbax refuses arrays of size zero, and the description of one says all there is to say.
        if _is_python(leaf) or leaf.size == 0:
            continue
        for start, rows in _cuts(leaf):
            n_bytes = leaf.nbytes if rows is None else rows * (leaf.nbytes // leaf.shape[0])
            if group and size + n_bytes > _GROUP_BYTES:
                yield group
                group, size = [], 0
            group.append((i, start, rows))
            size += n_bytes
    if group:
        yield group


def _cuts(leaf: Any) -> list[tuple[int, int | None]]:
    if leaf.nbytes <= _BLOCK_BYTES or _is_key(leaf) or leaf.ndim == 0:
        return [(0, None)]
    total = leaf.shape[0]
    rows = max(1, _BLOCK_BYTES // (leaf.nbytes // total))
    return [(start, min(rows, total - start)) for start in range(0, total, rows)]


def _piece(leaf: Any, start: int, rows: int | None) -> Any:
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    if not isinstance(leaf, jax.Array):
        leaf = np.asarray(leaf)
        return leaf if rows is None else leaf[start : start + rows]
    # Not `leaf[a:b]`, which compiles anew for every start.
    return leaf if rows is None else jax.lax.dynamic_slice_in_dim(leaf, start, rows)


@functools.partial(jax.jit, donate_argnums=0)
def _put_rows(array: jax.Array, rows: jax.Array, start: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(array, rows, start, axis=0)


def _read_pieces(folder: Path, group: list[tuple[int, int, int | None]]) -> dict[str, Any]:
    ocp = _load_orbax()
    # As numpy, because orbax would commit jax arrays to a device and keep them all twice.
    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    arguments = {f"{leaf}-{start}": as_numpy for leaf, start, _ in group}
    with _orbax() as orbax:
        return orbax.restore(folder, args=ocp.args.PyTreeRestore(restore_args=arguments))


def _joined(whole: Any, piece: np.ndarray, start: int, leaf: Any) -> Any:
    """A leaf with one more of its pieces; `whole` is None before the first."""
    if _is_numpy(leaf):
        whole = np.empty(leaf.shape, piece.dtype) if whole is None else whole
        whole[start : start + len(piece)] = piece
        return whole
    # Filled in place on the device: a large array never lies whole on the host.
    return _put_rows(jnp.empty(leaf.shape, leaf.dtype) if whole is None else whole, piece, start)


def _is_numpy(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic)


def _as_template(stored: dict[str, Any], array: Any, leaf: Any) -> Any:
    if stored["dtype"].startswith("python"):
        value = _python_value(stored)
        return value if _is_python(leaf) else jnp.asarray(value)
    if _is_key(leaf):
        impl = stored["key_impl"]
        if array is None:
            words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=impl)))
            array = np.zeros((*stored["shape"], *words.shape), words.dtype)
        return _placed(jax.random.wrap_key_data(jnp.asarray(array), impl=impl), leaf)
    if array is None:
        array = np.zeros(leaf.shape, leaf.dtype)
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
    # An uncommitted array must stay so, or jit would compile for it again.
    committed = not isinstance(leaf, jax.Array) or getattr(leaf, "committed", False)
    return jax.device_put(array, getattr(leaf, "sharding", None) if committed else None)


@functools.cache
def _load_orbax() -> Any:
    # Only when a checkpoint is written or read: it takes a second, and memory.
    import orbax.checkpoint

    return orbax.checkpoint


def _orbax(**options: Any) -> "ocp.Checkpointer":
    orbax = _load_orbax()
    return orbax.Checkpointer(orbax.PyTreeCheckpointHandler(**options))
