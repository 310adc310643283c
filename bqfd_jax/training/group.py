"""Several runs in one program: their states lead with the runs, and every call is for all of them.

Runs that differ by their seed have the same shapes, so a function of one run is one of many by
`over_runs`.  On an accelerator, where small calls cost more than the arithmetic in them, several
runs then take little longer than one.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax.agents import Agent
from bqfd_jax.replay import Replay
from bqfd_jax.training import on_host
from bqfd_jax.training.on_device import over_runs, runs_sharding

Tree = TypeVar("Tree")


def make_group_trainer(agent: Agent, replay: Replay, num_runs: int) -> on_host.HostTrainer:
    """As `make_host_trainer`, for states and steps that lead with the runs; see `join`.

    `init` and `init_lanes` are still those of one run.
    """

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        # How many updates are due is the same for all: one that differed would have every state
        # copied in every turn of the loop.
        return over_runs(function, num_runs, donate_argnums=(0,), shared_argnums=(2,))

    return on_host.make_host_trainer(agent, replay, compiled)


def join(members: Iterable[Tree], num_runs: int) -> Tree:
    """The states of runs as one that leads with the runs, laid out as `over_runs` wants it.

    They are asked for one after the other, so that memory holds all runs and one more.
    """
    sharding, members = runs_sharding(num_runs), iter(members)
    devices = list(sharding.mesh.devices.flat)
    parts = [
        _stack(members, num_runs // len(devices), jax.sharding.SingleDeviceSharding(device))
        for device in devices
    ]

    def spread(*arrays: jax.Array) -> jax.Array:
        shape = (num_runs, *arrays[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, list(arrays))

    return jax.tree.map(spread, *parts)


def _stack(members: Iterable[Tree], count: int, place: jax.sharding.Sharding) -> Tree:
    stacked = _repeat(jax.device_put(next(members), place), count)
    for number in range(1, count):
        stacked = _put(stacked, jax.device_put(next(members), place), np.int32(number))
    return stacked


@functools.partial(jax.jit, static_argnums=1)
def _repeat(member: Tree, count: int) -> Tree:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), member)


@functools.partial(jax.jit, donate_argnums=0)
def _put(stacked: Tree, member: Tree, number: jax.Array) -> Tree:
    return jax.tree.map(lambda all_runs, x: all_runs.at[number].set(x), stacked, member)


def of_run(tree: Tree, number: int) -> Tree:
    """One run's part of what leads with the runs; a copy, on the device that it lies on."""

    def pick(array: jax.Array) -> jax.Array:
        # Of the shard: an index into the whole would gather all of it on every device.
        for shard in array.addressable_shards:
            first, end, _ = shard.index[0].indices(array.shape[0])
            if first <= number < end:
                return shard.data[number - first]
        raise IndexError(f"there is no run {number} among {array.shape[0]}")

    return jax.tree.map(pick, tree)
