"""Checkpoints of a whole run: one pytree in, the same pytree out, bit for bit, or a clear refusal.

A directory holds the last few checkpoints, each a folder `<number>-step-<step>`:

    arrays-000/ ...   the arrays, written by orbax
    manifest.json     the tree's paths, shapes and dtypes, and a checksum of every file

A checkpoint is written as `tmp-<number>-step-<step>`, manifest last, and renamed once it is all on
disk; so whatever has a proper name was whole when it got it.  Loading parses JSON and array bytes
and runs no code from the files.  One process at a time may save into a directory.
"""

import functools
import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

_FORMAT = 1
_MANIFEST = "manifest.json"
_NAME = re.compile(r"(\d{6,})-step-(\d+)")
_TEMPORARY = re.compile(r"tmp-\d{6,}-step-(\d+)")

# Arrays are cut here, not by orbax: it takes only divisors of the shape as chunk sizes, so a large
# array with a prime number of rows would be stored row by row, twenty times slower to read.
_BLOCK_BYTES = 32 * 2**20
# Orbax holds what it writes or reads in memory once more; groups bound that for a 7 GB replay.
_GROUP_BYTES = 128 * 2**20


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or none could be used."""


class Checkpointer:
    """Saves and restores pytrees in a directory.

    Leaves may be jax arrays, typed PRNG keys, numpy arrays and python bools, ints and floats.

    Args:
      directory: where the checkpoints are; made at the first save.
      keep: how many whole checkpoints stay after a save, at least 1.
      compress: zstd at its fastest level; Atari frames shrink so much that it also saves time.
      on_skip: told in one sentence about anything found damaged; `warnings.warn` by default.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int = 2,
        compress: bool = True,
        on_skip: Callable[[str], None] | None = None,
    ):
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        # Orbax refuses relative paths.
        self._directory = Path(directory).absolute()
        self._keep = keep
        self._compress = compress
        self._on_skip = on_skip or functools.partial(warnings.warn, stacklevel=3)
        self._damaged: set[Path] = set()

    def steps(self) -> list[int]:
        """Steps of the checkpoints present, in the order they were saved; none is opened."""
        return list(dict.fromkeys(_step_of(path) for path in self._checkpoints()))

    def save(self, step: int, state: Any) -> Path:
        """Writes `state`, and only then deletes what is older than the last `keep`.

        Args:
          step: the step the state belongs to; saving the same step again replaces it.
          state: pytree of arrays.

        Returns:
          The checkpoint's folder.

        Raises:
          CheckpointError: it could not be written; earlier checkpoints are untouched.
        """
        step = int(step)
        if step < 0:
            raise ValueError(f"step must not be negative, got {step}")
        leaves = _flatten(state)
        for path in self._leftovers():
            shutil.rmtree(path, ignore_errors=True)
        previous = self._checkpoints()
        number = _number_of(previous[-1]) + 1 if previous else 0
        final = self._directory / f"{number:06d}-step-{step}"
        temporary = self._directory / f"tmp-{final.name}"
        try:
            temporary.mkdir(parents=True)
            self._write(temporary, step, leaves)
            os.rename(temporary, final)
            _sync(self._directory)
        except Exception as error:
            raise CheckpointError(
                f"could not save step {step} to {final} ({type(error).__name__}: {error}); "
                f"earlier checkpoints are untouched: steps {self.steps()}"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._prune(final)
        return final

    def restore(self, template: Any) -> tuple[int, Any] | None:
        """Reads the newest whole checkpoint, going back past damaged ones.

        Args:
          template: pytree of the structure, shapes and dtypes wanted, as arrays or as
            `jax.ShapeDtypeStruct`s from `jax.eval_shape`, so that a large state need not be in
            memory twice.  Leaves come back as the template has them: numpy for numpy, python
            numbers for python numbers, otherwise jax arrays (weakly typed where it is).

        Returns:
          `(step, state)`, or None if nothing was ever saved here.

        Raises:
          CheckpointError: there are checkpoints but none is whole, or the newest whole one does
            not fit the template.
        """
        wanted = _flatten(template)
        skipped = [(path, "its writing was never finished") for path in self._leftovers()]
        checkpoints = self._checkpoints()
        for path in reversed(checkpoints):
            try:
                manifest = _verified_manifest(path)
            except (_DamagedError, OSError) as error:
                skipped.append((path, str(error)))
                continue
            _check_fits(path, manifest["leaves"], wanted)
            try:
                leaves = _read(path, manifest, wanted)
            except (CheckpointError, MemoryError):
                raise
            except Exception as error:
                skipped.append((path, f"orbax cannot read it: {type(error).__name__}: {error}"))
                continue
            self._report(skipped, f"using {path} instead")
            treedef = jax.tree_util.tree_structure(template)
            return manifest["step"], treedef.unflatten(leaves)
        if checkpoints:
            listed = "".join(f"\n  {path}: {wrong}" for path, wrong in skipped)
            raise CheckpointError(f"no checkpoint in {self._directory} is whole:{listed}")
        self._report(skipped, "there is no earlier one, starting anew")
        return None

    def _report(self, skipped: list[tuple[Path, str]], consequence: str) -> None:
        for path, wrong in skipped:
            self._damaged.add(path)
            self._on_skip(f"skipped checkpoint {path}: {wrong}; {consequence}")

    def _checkpoints(self) -> list[Path]:
        return sorted(self._matching(_NAME), key=_number_of)

    def _leftovers(self) -> list[Path]:
        return sorted(self._matching(_TEMPORARY))

    def _matching(self, pattern: re.Pattern[str]) -> list[Path]:
        if not self._directory.is_dir():
            return []
        return [path for path in self._directory.iterdir() if pattern.fullmatch(path.name)]

    def _write(self, folder: Path, step: int, leaves: dict[str, Any]) -> None:
        groups = list(_groups(leaves))
        arrays = list(leaves.values())
        for i, group in enumerate(groups):
            items = {f"{leaf}-{start}": _piece(arrays[leaf], start, n) for leaf, start, n in group}
            with self._orbax() as orbax:
                orbax.save(folder / f"arrays-{i:03d}", args=_load_orbax().args.PyTreeSave(items))
        body = {
            "format": _FORMAT,
            "step": step,
            "leaves": {path: _describe(leaf) for path, leaf in leaves.items()},
            "groups": groups,
            "files": {name: _checksum(folder / name, sync=True) for name in _files(folder)},
        }
        with open(folder / _MANIFEST, "w") as file:
            json.dump({"body": body, "crc32": _body_checksum(body)}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        for parent, _, _ in os.walk(folder):
            _sync(parent)

    def _orbax(self) -> "ocp.Checkpointer":
        ocp = _load_orbax()
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_compression=self._compress)
        return ocp.Checkpointer(handler)

    def _prune(self, newest: Path) -> None:
        step = _step_of(newest)
        others = [path for path in self._checkpoints() if path != newest]
        # Known damage must not take the place of a checkpoint that could be fallen back to.
        sound = [p for p in others if p not in self._damaged and _step_of(p) != step]
        kept = sound[-(self._keep - 1) :] if self._keep > 1 else []
        for path in others:
            if path in kept:
                continue
            # Renamed first, for a deletion cut short must not look like a damaged checkpoint.
            doomed = path.with_name(f"tmp-{path.name}")
            try:
                os.rename(path, doomed)
                shutil.rmtree(doomed)
            except OSError as error:
                self._on_skip(f"could not delete the old checkpoint {path}: {error}")


class _DamagedError(Exception):
    """The files are not what was written."""


@functools.cache
def _load_orbax() -> Any:
    # Only when a checkpoint is written or read: it takes a second, and memory.
    import orbax.checkpoint

    return orbax.checkpoint


def _number_of(path: Path) -> int:
    return int(_NAME.fullmatch(path.name)[1])


def _step_of(path: Path) -> int:
    return int(_NAME.fullmatch(path.name)[2])


# --- The tree: paths and leaves ---


def _flatten(tree: Any) -> dict[str, Any]:
    leaves = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        path = jax.tree_util.keystr(keys) or "(root)"
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
    is_float = stored["dtype"] == "python float"
    return float.fromhex(stored["value"]) if is_float else stored["value"]


def _fits(stored: dict[str, Any], leaf: Any) -> bool:
    expected = _describe(leaf)
    if stored["dtype"].startswith("python") and isinstance(leaf, jax.ShapeDtypeStruct):
        # What `jax.eval_shape` makes of a python number.
        made = jnp.result_type(type(_python_value(stored)))
        stored = {"shape": [], "dtype": str(made)}
    return all(stored[field] == expected[field] for field in ("shape", "dtype"))


def _check_fits(path: Path, stored: dict[str, dict], wanted: dict[str, Any]) -> None:
    def show(leaf: dict[str, Any]) -> str:
        return f"{leaf['dtype']}{leaf['shape']}"

    differences = []
    for name in dict.fromkeys([*stored, *wanted]):
        if name not in wanted:
            differences.append(f"{name}: stored {show(stored[name])}, expected nothing")
        elif name not in stored:
            differences.append(f"{name}: stored nothing, expected {show(_describe(wanted[name]))}")
        elif not _fits(stored[name], wanted[name]):
            expected = show(_describe(wanted[name]))
            differences.append(f"{name}: stored {show(stored[name])}, expected {expected}")
    if differences:
        more = f"\n  and {len(differences) - 8} more" if len(differences) > 8 else ""
        listed = "".join(f"\n  {line}" for line in differences[:8])
        raise CheckpointError(
            f"checkpoint {path} is whole but was made with another configuration:{listed}{more}\n"
            "Resume with the configuration the run was started with, or use another directory."
        )


# --- Arrays: cut into pieces on the way out, put together on the way in ---


def _groups(leaves: dict[str, Any]) -> Iterator[list[tuple[int, int, int | None]]]:
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


def _read(path: Path, manifest: dict[str, Any], wanted: dict[str, Any]) -> list[Any]:
    ocp = _load_orbax()
    names = list(manifest["leaves"])
    read: dict[str, Any] = {}
    for i, group in enumerate(manifest["groups"]):
        # As numpy, because orbax would commit jax arrays to a device and keep them all twice.
        as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
        arguments = {f"{leaf}-{start}": as_numpy for leaf, start, _ in group}
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as orbax:
            items = orbax.restore(
                path / f"arrays-{i:03d}", args=ocp.args.PyTreeRestore(restore_args=arguments)
            )
        for leaf, start, rows in group:
            name = names[leaf]
            item = items.pop(f"{leaf}-{start}")
            if rows is None:
                read[name] = item
            elif _is_numpy(wanted[name]):
                whole = read.setdefault(name, np.empty(wanted[name].shape, item.dtype))
                whole[start : start + rows] = item
            else:
                # Filled in place on the device: a large array never lies whole on the host.
                whole = read.pop(name, None)
                if whole is None:
                    whole = jnp.empty(wanted[name].shape, wanted[name].dtype)
                read[name] = _put_rows(whole, item, start)
    return [
        _as_template(manifest["leaves"][name], read.pop(name, None), leaf)
        for name, leaf in wanted.items()
    ]


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


# --- Files: checksums and syncing ---


def _files(folder: Path) -> list[str]:
    paths = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def _checksum(path: Path, *, sync: bool = False) -> dict[str, int]:
    # CRC-32 finds accidents as surely as SHA-256 does, at twice the speed.
    crc, size = 0, 0
    with open(path, "rb") as file:
        if sync:
            os.fsync(file.fileno())
        while block := file.read(2**20):
            crc = zlib.crc32(block, crc)
            size += len(block)
    return {"bytes": size, "crc32": crc}


def _body_checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body).encode())


def _verified_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
        body = manifest["body"]
        whole = manifest["crc32"] == _body_checksum(body)
    except FileNotFoundError:
        raise _DamagedError(f"{_MANIFEST} is missing") from None
    except (ValueError, TypeError, KeyError) as error:
        raise _DamagedError(f"{_MANIFEST} cannot be parsed ({error})") from error
    if not whole:
        raise _DamagedError(f"{_MANIFEST} does not match its checksum")
    if body["format"] != _FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {body['format']}, this version reads {_FORMAT}; "
            "resume with the version that wrote it"
        )
    for name, expected in body["files"].items():
        try:
            found = _checksum(path / name)
        except FileNotFoundError:
            raise _DamagedError(f"{name} is missing") from None
        if found["bytes"] != expected["bytes"]:
            raise _DamagedError(
                f"{name} has {found['bytes']} bytes where {expected['bytes']} were written"
            )
        if found != expected:
            raise _DamagedError(f"{name} does not match its checksum")
    return body


def _sync(directory: str | os.PathLike[str]) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
