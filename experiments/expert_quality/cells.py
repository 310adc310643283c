"""The cells of the map, and training in one of them with one seed, as pure functions."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import tabular
from bqfd_jax.agents import AgentConfig, BqfdConfig
from bqfd_jax.envs import deep_sea, deep_sea_experts, deep_sea_values
from bqfd_jax.runs.deep_sea import CASES, make_training
from bqfd_jax.streams import KeyStream
from bqfd_jax.training import on_device
from bqfd_jax.types import Row

from .config import LEARNERS, Config, Quantity, parse_quality, parse_quantity


class Cell(NamedTuple):
    """A place on the map, by names; without demonstrations, of a case alone."""

    case: str
    quality: str | None = None
    quantity: str | None = None


class Inputs(NamedTuple):
    """What distinguishes one run from another, besides its seed; all may be traced."""

    params: deep_sea.Params
    experts: jax.Array  # [2, N, N] float32, see `deep_sea_experts`
    first: jax.Array  # [] int32, which of the two begins
    trajectories: jax.Array  # [] int32
    rows: jax.Array  # [] int32, transitions shown of each


def cells_of(config: Config, agent: str) -> list[Cell]:
    """What the agent is trained on, in the order of the map."""
    if not config.sees_demonstrations(agent):
        return [Cell(case) for case in config.cases]
    places = itertools.product(config.cases, config.qualities, config.quantities)
    return [Cell(*place) for place in places]


def make_inputs(config: Config, cell: Cell, seed: int) -> Inputs:
    """What training in a cell begins with."""
    size = config.size
    if cell.quality is None:
        experts, quantity = np.zeros((2, size, size), np.float32), Quantity(0, 0.0)
    else:
        experts = make_expert(size, cell.quality)
        quantity = parse_quantity(cell.quantity)
    return Inputs(
        params=_case_params(size, cell.case),
        experts=experts,
        # Of a single trajectory, half of the seeds see the wrong one.
        first=np.int32(seed % 2),
        trajectories=np.int32(quantity.trajectories),
        # A share of more than nothing shows one row at least.
        rows=np.int32(max(round(quantity.share * size), 1)),
    )


@functools.cache
def make_expert(size: int, quality: str) -> np.ndarray:
    """The expert as two tables, `[2, N, N]`, that take turns; most are the same twice.

    It goes by what is best if the corner holds a treasure and there is none elsewhere.
    """
    kind, value = parse_quality(quality)
    q = deep_sea_values.optimal_q(deep_sea.treasure(size), size, gamma=1.0)
    if kind == "two":
        experts = [deep_sea_experts.boltzmann(q, eta) for eta in (math.inf, -math.inf)]
    elif kind == "eta":
        experts = [deep_sea_experts.boltzmann(q, value)] * 2
    elif kind == "errs":
        experts = [deep_sea_experts.erring(q, value)] * 2
    else:
        experts = [deep_sea_experts.right_until(q, round(value * size))] * 2
    return np.stack(experts)


@functools.cache
def _case_params(size: int, case: str) -> deep_sea.Params:
    return jax.tree.map(np.asarray, CASES[case](size))


# --- Training in a cell ---


class CellTraining(NamedTuple):
    """One run in two steps, the second of which takes nearly all of the time."""

    # (key, inputs) -> state
    init: Callable[[jax.Array, Inputs], Any]
    # (state, inputs) -> (returns [episodes], whether all stayed finite [] bool)
    run: Callable[[Any, Inputs], tuple[jax.Array, jax.Array]]


def cell_training(config: Config, agent: str) -> CellTraining:
    """How the agent is trained."""
    options = getattr(config, LEARNERS[agent])
    if agent == "tabular":
        return _tabular_training(config, options)
    return _deep_training(config, options, with_demos=config.sees_demonstrations(agent))


def make_demonstrate(config: Config, gamma: float) -> Callable[[jax.Array, Inputs], Row]:
    """`(key, inputs) -> rows`, the same rows for all agents, and as many in all cells."""
    env = deep_sea.make(config.size)

    def demonstrate(key: jax.Array, inputs: Inputs) -> Row:
        return deep_sea_experts.show(
            jax.random.fold_in(key, KeyStream.DEMONSTRATIONS),
            env,
            inputs.params,
            inputs.experts,
            first=inputs.first,
            trajectories=inputs.trajectories,
            rows=inputs.rows,
            max_trajectories=config.max_trajectories,
            size=config.size,
            gamma=gamma,
        )

    return demonstrate


def _deep_training(config: Config, options: AgentConfig, *, with_demos: bool) -> CellTraining:
    size, num_steps = config.size, config.size * config.episodes
    num_demo_rows = size * config.max_trajectories if with_demos else 0
    _, agent, trainer = make_training(config, options, num_demo_rows=num_demo_rows)
    demonstrate = make_demonstrate(config, agent.gamma)

    def init(key: jax.Array, inputs: Inputs) -> on_device.TrainState:
        demonstrations = demonstrate(key, inputs) if with_demos else None
        return trainer.init(key, inputs.params, demonstrations)

    def run(state: on_device.TrainState, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        if options.pretrain_updates and with_demos:
            state, _ = trainer.pretrain(state, options.pretrain_updates)
        _, trace = trainer.run(state, inputs.params, num_steps)
        # Every episode has as many steps: [steps, period, lanes].
        returns = trace.episode_return[size - 1 :: size, -1, 0]
        return returns, jnp.isfinite(trace.metrics["loss"]).all()

    return CellTraining(init, run)


def _tabular_training(config: Config, options: BqfdConfig) -> CellTraining:
    size, dynamics = config.size, deep_sea_values.dynamics(config.size)
    demonstrate = make_demonstrate(config, options.gamma)

    def run(state: tuple[jax.Array, Row], inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        key, rows = state
        action = jnp.where(rows.is_last, -1, rows.action)
        outcome = tabular.run(
            key,
            tabular.Problem(deep_sea_values.reward_table(inputs.params, size), *dynamics),
            tabular.Demonstrations(rows.frame[:, 1].reshape(-1, size), action.reshape(-1, size)),
            episodes=config.episodes,
            eta=options.eta,
            beta=options.beta,
            variance=options.variance,
            noise_ratio=options.noise_ratio,
            gamma=options.gamma,
            # The other agents learn from the demonstrations' rewards, too.
            replay_demonstrations=True,
        )
        # Not the returns: even actions chosen by NaN bring rewards that are finite.
        return outcome.returns, jnp.isfinite(outcome.state.q).all()

    return CellTraining(lambda key, inputs: (key, demonstrate(key, inputs)), run)
