"""Experts of DeepSea, and training that watches the eta of each."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax.agents import BqfdConfig
from bqfd_jax.envs import deep_sea, deep_sea_experts, deep_sea_values
from bqfd_jax.runs.deep_sea import make_training, seed_keys
from bqfd_jax.streams import KeyStream
from bqfd_jax.training import on_device
from bqfd_jax.types import Row

from .config import Config

# Panel -> the experts that show something in one run, each a demonstration of its own.
SCENES = {
    "always right": ("always right",),
    "errs 20 %": ("errs 20 %",),
    "any action": ("any action",),
    "always wrong": ("always wrong",),
    "two that contradict each other": ("always right", "always wrong"),
}


class Watched(NamedTuple):
    """What came of one scene."""

    eta: np.ndarray  # [seeds, experts, episodes]
    returns: np.ndarray  # [seeds, episodes]


def expert(size: int, name: str) -> np.ndarray:
    """The expert as a table, see `deep_sea_experts`."""
    q = deep_sea_values.optimal_q(deep_sea.treasure(size), size, gamma=1.0)
    if name == "errs 20 %":
        return deep_sea_experts.erring(q, 0.2)
    eta = {"always right": math.inf, "any action": 0.0, "always wrong": -math.inf}[name]
    return deep_sea_experts.boltzmann(q, eta)


def watch(config: Config, options: BqfdConfig, names: tuple[str, ...]) -> Watched:
    """Trains all seeds of a scene side by side; each expert's trajectories are a demonstration."""
    tables = np.stack([expert(config.size, name) for name in names])
    keys = seed_keys(config.seeds, 1)
    eta, returns = _compiled(config, options, len(names))(keys, tables)
    return Watched(np.moveaxis(np.asarray(eta), 1, 2), np.asarray(returns))


@functools.cache
def _compiled(config: Config, options: BqfdConfig, num_experts: int) -> Callable[..., Any]:
    """Once for all scenes with as many experts: compiling takes longer than training."""
    size, rows_each = config.size, config.size * config.trajectories
    params = deep_sea.treasure(size)
    env, agent, trainer = make_training(config, options, num_demo_rows=rows_each * num_experts)

    def show(key: jax.Array, table: jax.Array) -> Row:
        return deep_sea_experts.show(
            key,
            env,
            params,
            table[None],
            first=0,
            trajectories=config.trajectories,
            rows=size,
            max_trajectories=config.trajectories,
            size=size,
            gamma=agent.gamma,
        )

    def run(key: jax.Array, tables: jax.Array) -> tuple[jax.Array, jax.Array]:
        show_key = jax.random.fold_in(key, KeyStream.DEMONSTRATIONS)
        shown = jax.vmap(show)(jax.random.split(show_key, num_experts), tables)
        shown = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), shown)
        state = trainer.init(key, params, shown, jnp.full(num_experts, rows_each))
        if options.pretrain_updates:
            state, _ = trainer.pretrain(state, options.pretrain_updates)

        def episode(state: on_device.TrainState, _: None) -> tuple[Any, tuple[jax.Array, ...]]:
            state, trace = trainer.run(state, params, size)
            (trust,) = state.learner.extra
            # An episode ends with its last step, in its only lane.
            return state, (jnp.exp(trust.log_eta), trace.episode_return[-1, -1, 0])

        return jax.lax.scan(episode, state, length=config.episodes)[1]

    return on_device.over_runs(run, config.seeds, shared_argnums=(1,))
