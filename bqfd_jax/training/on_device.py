"""Training where the environment is jnp too: acting, stepping, adding and learning in one scan.

A run is a pure function of its key, so seeds are a vmap, and a chunk of a run is one compiled
call.  Between chunks the host is free to look at the numbers, draw a progress bar or save.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from bqfd_jax import checks
from bqfd_jax.agents import Agent
from bqfd_jax.agents.acting import ActorState
from bqfd_jax.envs.auto_reset import auto_reset
from bqfd_jax.replay import Replay, ReplayState, check_discounts
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

    init: Callable[..., TrainState]  # see `init`
    pretrain: Callable[..., tuple[TrainState, dict[str, Array]]]  # (state, num_updates)
    run: Callable[..., tuple[TrainState, Trace]]  # (state, env_params, num_iterations)
    steps_per_iteration: int  # agent steps, over all lanes


class Parts(NamedTuple):
    """What training is made of; all static, and bound by `make_trainer`."""

    env: Environment
    agent: Agent
    replay: Replay
    lane_steps: int  # steps of each lane between updates
    updates_per_period: int


def make_trainer(
    env: Environment,
    agent: Agent,
    replay: Replay,
    *,
    update_period: int | None = None,
    updates_per_period: int = 1,
) -> Trainer:
    """Binds an environment, an agent and a replay into training.

    Args:
      env: a jnp environment.
      agent: made for the same replay.
      replay: its lanes are the environments that are stepped side by side.
      update_period: agent steps, over all lanes, between updates; a multiple of the lanes, and as
        many as there are lanes unless given.
      updates_per_period: updates made then.
    """
    check_no_resets(agent.reset_period)
    num_lanes = replay.layout.num_lanes
    period = num_lanes if update_period is None else update_period
    if period < num_lanes or period % num_lanes:
        raise ValueError(
            f"update_period is {period}, but must be a multiple of the {num_lanes} lanes: it "
            "counts agent steps over all of them"
        )
    parts = Parts(env, agent, replay, period // num_lanes, updates_per_period)
    return Trainer(
        init=functools.partial(init, parts),
        pretrain=functools.partial(pretrain, parts),
        run=functools.partial(run, parts),
        steps_per_iteration=period,
    )


def check_no_resets(reset_period: int, name: str = "reset_period") -> None:
    """Raises `OptionError` if resets are wanted: in a scan, every update would pay for them."""
    expected = "0 here: networks are reset only beside host environments (Atari, gymnasium)"
    checks.require(reset_period == 0, name, reset_period, expected)


def init(
    parts: Parts,
    key: Array,
    env_params: Any,
    demonstrations: Row | None = None,
    demo_sizes: Array | None = None,
) -> TrainState:
    """The state at the beginning of a run; the key is consumed.

    `demo_sizes`, `[D]` integers, are the rows of each demonstration; unless given, there is one.
    """
    _, agent, replay, *_ = parts
    check_discounts(demonstrations, agent.gamma)
    num_lanes = replay.layout.num_lanes
    key, learner_key, reset_key = jax.random.split(key, 3)
    reset_lanes = jax.vmap(parts.env.reset, in_axes=(0, None))
    env_state, frame = reset_lanes(jax.random.split(reset_key, num_lanes), env_params)
    observation = jnp.repeat(frame[:, None], replay.stack, axis=1)
    replay_state = replay.init(demonstrations)
    learner = agent.init(learner_key, observation)
    return TrainState(
        learner=agent.prepare(learner, replay_state, demo_sizes),
        replay=replay_state,
        actor=agent.init_actor(num_lanes),
        env_state=env_state,
        observation=observation,
        is_first=jnp.ones(num_lanes, bool),
        episode_return=jnp.zeros(num_lanes, jnp.float32),
        step=jnp.zeros((), jnp.int32),
        key=key,
    )


def pretrain(
    parts: Parts, state: TrainState, num_updates: int
) -> tuple[TrainState, dict[str, Array]]:
    """That many updates on demonstrations alone, and the metrics of each."""
    return jax.lax.scan(
        lambda state, _: _learn(parts.agent.pretrain, state), state, length=num_updates
    )


def run(
    parts: Parts, state: TrainState, env_params: Any, num_iterations: int, *, updates: bool = True
) -> tuple[TrainState, Trace]:
    """Steps in every lane until an update is due, then the updates, and all that many times.

    Donate the state; the number is static.  Without `updates` it only acts, to have something to
    learn from; until there is, updates change next to nothing.
    """

    def iterate(state: TrainState, _: None) -> tuple[TrainState, Trace]:
        state, (ended, returns) = jax.lax.scan(
            lambda state, _: _interact(parts, state, env_params), state, length=parts.lane_steps
        )
        metrics = {}
        if updates:
            state, metrics = jax.lax.scan(
                lambda state, _: _learn(parts.agent.update, state),
                state,
                length=parts.updates_per_period,
            )
            metrics = jax.tree.map(jnp.mean, metrics)
        return state, Trace(episode_ended=ended, episode_return=returns, metrics=metrics)

    return jax.lax.scan(iterate, state, length=num_iterations)


def _interact(
    parts: Parts, state: TrainState, env_params: Any
) -> tuple[TrainState, tuple[Array, Array]]:
    """One step in every lane, written to the replay; which episodes it ended, and their returns."""
    env, agent, replay, *_ = parts
    num_lanes = replay.layout.num_lanes
    key, act_key, step_key = jax.random.split(state.key, 3)
    action, actor = agent.act(
        act_key,
        agent.acting_params(state.learner),
        state.actor,
        state.observation,
        state.is_first,
        state.step,
    )
    step_lanes = jax.vmap(auto_reset(env), in_axes=(0, None, 0, 0))
    env_state, outcome, next_frame = step_lanes(
        jax.random.split(step_key, num_lanes), env_params, state.env_state, action
    )
    row = Row(
        frame=state.observation[:, -1],
        action=action,
        reward=outcome.reward,
        discount=jnp.where(outcome.terminated, 0.0, jnp.float32(agent.gamma)),
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


def _learn(update: Callable[..., Any], state: TrainState) -> tuple[TrainState, dict[str, Array]]:
    """One update, the agent's own or its pre-training."""
    key, update_key = jax.random.split(state.key)
    learner, replay_state, metrics = update(update_key, state.learner, state.replay, state.step)
    return state.replace(learner=learner, replay=replay_state, key=key), metrics


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
    shared_argnums: tuple[int, ...] = (),
    called_once: bool = False,
) -> Callable[..., Any]:
    """Compiles `function` for many runs at once: vmapped, and spread over the devices.

    Every result has a leading axis of `num_runs`, and every argument unless it is shared.  Runs
    never talk to each other, so as many devices are used as divide their number.  To use several
    cores, make each a device: `jax.config.update("jax_num_cpu_devices", n)` before anything else.

    Args:
      function: of one run.
      num_runs: how many there are.
      donate_argnums: arguments whose memory may be reused for the results.
      shared_argnums: arguments that are the same for all runs.
      called_once: do not spend time on optimising the compiled code.
    """
    runs = runs_sharding(num_runs)

    def mapped(*arguments: Any) -> Any:
        shared = [number in shared_argnums for number in range(len(arguments))]
        return jax.shard_map(
            jax.vmap(function, in_axes=tuple(None if one else 0 for one in shared)),
            mesh=runs.mesh,
            in_specs=tuple(jax.sharding.PartitionSpec() if one else runs.spec for one in shared),
            out_specs=runs.spec,
            check_vma=False,
        )(*arguments)

    options = {"xla_backend_optimization_level": 0} if called_once else None
    return jax.jit(mapped, donate_argnums=donate_argnums, compiler_options=options)
