"""A replay over several devices: each holds a part of the frames, and learns from a part of them.

Frames take nearly all of the memory, so they alone are spread.  Everything else lies whole on every
device, so that none must ask another for anything but the frames of a batch.  XLA makes one program
for all devices of this, and adds up the gradients of their parts.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bqfd_jax import checks
from bqfd_jax.replay.prioritized import Replay
from bqfd_jax.types import Batch, Row

_AXIS = "devices"


def make_mesh(num_devices: int) -> Mesh | None:
    """The first so many devices; None for a single one, which needs nothing of this module.

    Raises:
      OptionError: there are not so many.
    """
    available = jax.device_count()
    checks.at_least(1, devices=num_devices)
    expected = f"at most {available}, as many as jax sees here"
    if jax.default_backend() == "cpu":
        expected += " (JAX_NUM_CPU_DEVICES=n makes n of a CPU)"
    checks.require(num_devices <= available, "devices", num_devices, expected)
    return None if num_devices == 1 else Mesh(jax.devices()[:num_devices], (_AXIS,))


def shardings(mesh: Mesh, tree: Any) -> Any:
    """Where each leaf of a state lies: frames of rows are spread, and nothing else."""
    whole, spread = NamedSharding(mesh, PartitionSpec()), _spread(mesh)

    def place(node: Any) -> Any:
        if not isinstance(node, Row):
            return whole
        return jax.tree.map(lambda _: whole, node).replace(frame=spread)

    return jax.tree.map(place, tree, is_leaf=lambda node: isinstance(node, Row))


def shapes(mesh: Mesh | None, tree: Any) -> Any:
    """Shapes, as `jax.eval_shape` gives them, with the devices that the leaves should lie on."""
    if mesh is None:
        return tree

    def place(leaf: jax.ShapeDtypeStruct, where: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=where, weak_type=leaf.weak_type
        )

    return jax.tree.map(place, tree, shardings(mesh, tree))


def placing(mesh: Mesh | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, to be compiled, with results that lie where they should."""
    if mesh is None:
        return function

    def placed(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        return jax.lax.with_sharding_constraint(result, shardings(mesh, result))

    return placed


def spread_over(replay: Replay, mesh: Mesh | None) -> Replay:
    """The same replay with its frames, and the batches drawn from it, spread over devices.

    Its rows must divide by the devices, see `make_replay(row_multiple=...)`; so must batch sizes.
    """
    if mesh is None:
        return replay
    rows = replay.layout.num_rows
    checks.require(rows % mesh.size == 0, "rows", rows, f"a multiple of {mesh.size} devices")

    def spreading(draw: Callable[..., Batch]) -> Callable[..., Batch]:
        def drawn(*arguments: Any, **options: Any) -> Batch:
            return jax.lax.with_sharding_constraint(draw(*arguments, **options), _spread(mesh))

        return functools.wraps(draw)(drawn)

    return replay._replace(
        init=jax.jit(placing(mesh, replay.init)),
        sample=spreading(replay.sample),
        sample_demonstrations=spreading(replay.sample_demonstrations),
        mesh=mesh,
    )


def _spread(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(_AXIS))
