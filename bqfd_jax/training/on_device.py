"""Training where the environment is jnp too: acting, stepping, adding and learning in one scan.

A run is a pure function of its key, so seeds are a vmap, and a chunk of a run is one compiled
call.  Between chunks the host is free to look at the numbers, draw a progress bar or save.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from bqfd_jax.agents import Agent
from bqfd_jax.agents.acting import ActorState
from bqfd_jax.envs.auto_reset import auto_reset
from bqfd_jax.replay import Replay, ReplayState
from bqfd_jax.replay.rows import push_frame
from bqfd_jax.types import Array, Environment, LearnerState, Row


@chex.dataclass(frozen=True)
class TrainState:
    """All of a run, and so all of a checkpoint."""

    learner: LearnerState
    replay: ReplayState
    actor: ActorState
    env_state: Any  # fields [L, ...]
    observation: Array  # [L, S, *frame_shape], what the next action is chosen on
    is_first: Array  # [L] bool
    episode_return: Array  # [L] float32, rewards of the running episode
    step: Array  # [] int32, agent steps, over all lanes
    key: Array  # [] the run's random key


@chex.dataclass(frozen=True)
class Trace:
    """What one iteration shows of itself; a chunk stacks them along a leading axis."""

    episode_ended: Array  # [P, L] bool, P steps between updates
    episode_return: Array  # [P, L] float32, meaningful where an episode ended
    metrics: dict[str, Array]  # name -> [], means over the iteration's updates


class Trainer(NamedTuple):
    """Training as pure functions; each may be vmapped over keys and environment parameters."""

    init: Callable[..., TrainState]  # (key, env_params, demonstrations) -> state
    pretrain: Callable[..., tuple[TrainState, dict[str, Array]]]  # (state, num_updates)
    run: Callable[..., tuple[TrainState, Trace]]  # (state, env_params, num_iterations)
    steps_per_iteration: int  # agent steps, over all lanes


def make_trainer(
    env: Environment,
    agent: Agent,
    replay: Replay,
    *,
    gamma: float,
    stack: int = 1,
    update_period: int = 1,
    updates_per_period: int = 1,
) -> Trainer:
    """Binds an environment, an agent and a replay into training.

    Args:
      env: a jnp environment.
      agent: made for the same replay.
      replay: its lanes are the environments that are stepped side by side.
      gamma: discount per step.
      stack: frames per observation, as the replay was made for.
      update_period: steps of each lane between updates.
      updates_per_period: updates made then.

    Returns:
      A `Trainer`.  `run(state, env_params, num_iterations)` does `update_period` steps in every
      lane and then the updates, `num_iterations` times (a static number).  `updates=False` only
      acts, to have something to learn from; until there is, updates change nothing much.
    """
    num_lanes = replay.layout.num_lanes
    reset_lanes = jax.vmap(env.reset, in_axes=(None, 0))
    step_lanes = jax.vmap(auto_reset(env), in_axes=(None, 0, 0, 0))

    def init(key: Array, env_params: Any, demonstrations: Row | None = None) -> TrainState:
        key, learner_key, reset_key = jax.random.split(key, 3)
        env_state, frame = reset_lanes(env_params, jax.random.split(reset_key, num_lanes))
        observation = jnp.repeat(frame[:, None], stack, axis=1)
        return TrainState(
            learner=agent.init(learner_key, observation),
            replay=replay.init(demonstrations),
            actor=agent.init_actor(num_lanes),
            env_state=env_state,
            observation=observation,
            is_first=jnp.ones(num_lanes, bool),
            episode_return=jnp.zeros(num_lanes, jnp.float32),
            step=jnp.zeros((), jnp.int32),
            key=key,
        )

    def interact(state: TrainState, env_params: Any) -> tuple[TrainState, tuple[Array, Array]]:
        key, act_key, step_key = jax.random.split(state.key, 3)
        action, actor = agent.act(
            state.learner.params,
            state.actor,
            state.observation,
            state.is_first,
            act_key,
            state.step,
        )
        env_state, outcome, next_frame = step_lanes(
            env_params, state.env_state, action, jax.random.split(step_key, num_lanes)
        )
        row = Row(
            frame=state.observation[:, -1],
            action=action,
            reward=outcome.reward,
            discount=jnp.where(outcome.terminated, 0.0, jnp.float32(gamma)),
            is_first=state.is_first,
            # Where a step was cut off, its own outcome is not kept; the step before it still
            # bootstraps from this row's frame.
            is_last=outcome.truncated & ~outcome.terminated,
        )
        ended = outcome.terminated | outcome.truncated
        episode_return = state.episode_return + outcome.reward
        state = state.replace(
            replay=replay.add(state.replay, row),
            actor=actor,
            env_state=env_state,
            observation=push_frame(state.observation, next_frame, ended),
            is_first=ended,
            episode_return=jnp.where(ended, 0.0, episode_return),
            step=state.step + num_lanes,
            key=key,
        )
        return state, (ended, episode_return)

    def learn(state: TrainState, update: Callable[..., Any]) -> tuple[TrainState, dict]:
        key, update_key = jax.random.split(state.key)
        learner, replay_state, metrics = update(state.learner, state.replay, update_key, state.step)
        return state.replace(learner=learner, replay=replay_state, key=key), metrics

    def pretrain(state: TrainState, num_updates: int) -> tuple[TrainState, dict[str, Array]]:
        return jax.lax.scan(
            lambda state, _: learn(state, agent.pretrain), state, length=num_updates
        )

    def run(
        state: TrainState, env_params: Any, num_iterations: int, *, updates: bool = True
    ) -> tuple[TrainState, Trace]:
        def iterate(state: TrainState, _: None) -> tuple[TrainState, Trace]:
            state, (ended, returns) = jax.lax.scan(
                lambda state, _: interact(state, env_params), state, length=update_period
            )
            metrics = {}
            if updates:
                state, metrics = jax.lax.scan(
                    lambda state, _: learn(state, agent.update), state, length=updates_per_period
                )
                metrics = jax.tree.map(jnp.mean, metrics)
            return state, Trace(episode_ended=ended, episode_return=returns, metrics=metrics)

        return jax.lax.scan(iterate, state, length=num_iterations)

    return Trainer(
        init=init, pretrain=pretrain, run=run, steps_per_iteration=update_period * num_lanes
    )


def runs_sharding(num_runs: int) -> jax.sharding.NamedSharding:
    """How `over_runs` lays out what leads with the runs: over as many devices as divide them."""
    devices = jax.devices()
    count = max(n for n in range(1, len(devices) + 1) if num_runs % n == 0)
    mesh = jax.sharding.Mesh(devices[:count], ("runs",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("runs"))


def over_runs(
    function: Callable[..., Any],
    num_runs: int,
    *,
    donate_argnums: tuple[int, ...] = (),
    called_once: bool = False,
) -> Callable[..., Any]:
    """Compiles `function` for many runs at once: vmapped, and spread over the devices.

    Every argument and result has a leading axis of `num_runs`.  Runs never talk to each other, so
    as many devices are used as divide their number.  To use several cores, make each a device:
    `jax.config.update("jax_num_cpu_devices", n)` before anything else.

    Args:
      function: of one run.
      num_runs: how many there are.
      donate_argnums: arguments whose memory may be reused for the results.
      called_once: do not spend time on optimising the compiled code.

    Returns:
      The compiled function.
    """
    runs = runs_sharding(num_runs)
    mapped = jax.shard_map(
        jax.vmap(function),
        mesh=runs.mesh,
        in_specs=runs.spec,
        out_specs=runs.spec,
        check_vma=False,
    )
    options = {"xla_backend_optimization_level": 0} if called_once else None
    return jax.jit(mapped, donate_argnums=donate_argnums, compiler_options=options)
