"""Training in one cell with one seed, as pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bqfd_jax import networks, tabular
from bqfd_jax.agents import AgentConfig, BqfdConfig, make_agent
from bqfd_jax.envs import deep_sea, deep_sea_experts, deep_sea_values
from bqfd_jax.replay import make_replay
from bqfd_jax.streams import KeyStream
from bqfd_jax.training import on_device
from bqfd_jax.types import Row

from .cells import Inputs
from .config import LEARNERS, Config


class CellTraining(NamedTuple):
    """One run in two steps, the second of which takes nearly all of the time."""

    # (key, inputs) -> state
    init: Callable[[jax.Array, Inputs], Any]
    # (state, inputs) -> (returns [episodes], whether all stayed finite [] bool)
    run: Callable[[Any, Inputs], tuple[jax.Array, jax.Array]]


def make_training(config: Config, agent: str) -> CellTraining:
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
    env = deep_sea.make(size)
    replay = make_replay(
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        num_demo_rows=size * config.max_trajectories if with_demos else 0,
        rows_per_lane=num_steps + options.n_step + 2,
        **options.replay_options(),
    )
    network = networks.deep_sea_network(
        encode=deep_sea.encode_position(size), torso=config.torso, hidden=config.hidden
    )
    agent = make_agent(network, options, replay)
    trainer = on_device.make_trainer(env, agent, replay)
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
