"""Training where the environment runs on the host: emulators beside the compiled learner.

Each phase is one compiled function that takes the whole state and gives it back in the same memory.
What the host sends in a step (frames, rewards, discounts, flags) goes with one call, and what it
gets is one array of actions.  The device is told to learn before the host waits for the actions,
which do not depend on that learning: so the emulators step while the device learns.
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax.agents import Agent
from bqfd_jax.agents.acting import ActorState
from bqfd_jax.envs import host
from bqfd_jax.replay import Replay, ReplayState
from bqfd_jax.replay.rows import push_frame
from bqfd_jax.types import Array, HostEnvironment, HostStep, LearnerState, Row


@chex.dataclass(frozen=True)
class LaneState:
    """Where the running episodes stand; they begin anew when a run is resumed."""

    actor: ActorState  # fields [L]
    observation: Array  # [L, S, *frame_shape], the newest that an action was chosen on
    is_first: Array  # [L] bool, it begins an episode
    is_last: Array  # [L] bool, it ends one
    action: Array  # [L] int32, what was chosen there; its outcome is not yet known


@chex.dataclass(frozen=True)
class HostTrainState:
    """All of a run; `lanes` apart, all of a checkpoint."""

    learner: LearnerState
    replay: ReplayState
    lanes: LaneState
    step: Array  # [] int32, agent steps over all lanes
    key: Array  # [] the run's random key; it never changes, since counters are folded into it
    totals: dict[str, Array]  # name -> [] float32, sums over the updates since they were last read
    num_totals: Array  # [] int32, how many updates those are


class Seen(NamedTuple):
    """What the device is told of a `HostStep`."""

    frame: Array  # [L, *frame_shape]
    reward: Array  # [L] float32
    discount: Array  # [L] float32, without gamma
    is_first: Array  # [L] bool
    is_last: Array  # [L] bool


class HostTrainer(NamedTuple):
    """Training as compiled functions; each but `init` takes over the memory of its state."""

    init: Callable[..., HostTrainState]  # (key, demonstrations or None) -> state
    init_lanes: Callable[[], LaneState]
    begin: Callable[..., tuple[HostTrainState, Array]]  # (state, Seen) -> (state, actions [L])
    interact: Callable[..., tuple[HostTrainState, Array]]  # the same
    update: Callable[[HostTrainState], HostTrainState]
    iterate: Callable[..., tuple[HostTrainState, Array]]  # (state, Seen, count): both in one call
    pretrain: Callable[[HostTrainState], HostTrainState]
    read: Callable[..., tuple[HostTrainState, Array, dict[str, Array]]]  # state -> (.., means)


def make_host_trainer(
    agent: Agent,
    replay: Replay,
    *,
    frame_shape: tuple[int, ...],
    frame_dtype: Any,
    gamma: float,
    stack: int = 1,
) -> HostTrainer:
    """Binds an agent and a replay into the phases of training on the host.

    Args:
      agent: made for the same replay.
      replay: its lanes are the environments that are stepped side by side.
      frame_shape: shape of one frame.
      frame_dtype: its dtype.
      gamma: discount per step.
      stack: frames per observation, as the replay was made for.

    Returns:
      A `HostTrainer`.
      `begin` is shown the first observations of new episodes and chooses actions.
      `interact` is shown what came of them: it writes that into the replay and chooses the next.
      `update` learns from one batch, `pretrain` from one of demonstrations alone.
      `iterate` is `interact` and then `count` times `update`, in one call.
      `read` gives the number of updates since it was last called, the means of their metrics, and
        with these what the agent says of its replay.
    """
    num_lanes = replay.layout.num_lanes

    def init_lanes() -> LaneState:
        return LaneState(
            actor=agent.init_actor(num_lanes),
            observation=jnp.zeros((num_lanes, stack, *frame_shape), frame_dtype),
            is_first=jnp.zeros(num_lanes, bool),
            is_last=jnp.zeros(num_lanes, bool),
            action=jnp.zeros(num_lanes, jnp.int32),
        )

    def init(key: Array, demonstrations: Row | None = None) -> HostTrainState:
        lanes = init_lanes()
        learner = agent.init(jax.random.fold_in(key, 0), lanes.observation)
        replay_state = replay.init(demonstrations)
        metrics = jax.eval_shape(agent.update, learner, replay_state, key, 0)[2]
        return HostTrainState(
            learner=learner,
            replay=replay_state,
            lanes=lanes,
            step=jnp.zeros((), jnp.int32),
            key=jax.random.clone(key),
            totals={name: jnp.zeros((), jnp.float32) for name in metrics},
            num_totals=jnp.zeros((), jnp.int32),
        )

    def act(state: HostTrainState, seen: Seen) -> tuple[HostTrainState, Array]:
        observation = push_frame(state.lanes.observation, seen.frame, seen.is_first)
        key = jax.random.fold_in(jax.random.fold_in(state.key, 1), state.step)
        action, actor = agent.act(
            state.learner.params, state.lanes.actor, observation, seen.is_first, key, state.step
        )
        lanes = LaneState(
            actor=actor,
            observation=observation,
            is_first=seen.is_first,
            is_last=seen.is_last,
            action=action,
        )
        return state.replace(lanes=lanes, step=state.step + num_lanes), action

    def interact(state: HostTrainState, seen: Seen) -> tuple[HostTrainState, Array]:
        row = Row(
            frame=state.lanes.observation[:, -1],
            action=state.lanes.action,
            reward=seen.reward,
            discount=jnp.float32(gamma) * seen.discount,
            is_first=state.lanes.is_first,
            is_last=state.lanes.is_last,
        )
        return act(state.replace(replay=replay.add(state.replay, row)), seen)

    def learn(state: HostTrainState, update: Callable[..., Any]) -> HostTrainState:
        key = jax.random.fold_in(jax.random.fold_in(state.key, 2), state.learner.updates)
        learner, replay_state, metrics = update(state.learner, state.replay, key, state.step)
        return state.replace(
            learner=learner,
            replay=replay_state,
            totals={name: state.totals[name] + value for name, value in metrics.items()},
            num_totals=state.num_totals + 1,
        )

    def iterate(state: HostTrainState, seen: Seen, count: Array) -> tuple[HostTrainState, Array]:
        state, action = interact(state, seen)
        return jax.lax.fori_loop(
            0, count, lambda _, state: learn(state, agent.update), state
        ), action

    def read(state: HostTrainState) -> tuple[HostTrainState, Array, dict[str, Array]]:
        count = state.num_totals
        means = {name: total / count for name, total in state.totals.items()}
        state = state.replace(
            totals=jax.tree.map(jnp.zeros_like, state.totals),
            num_totals=jnp.zeros((), jnp.int32),
        )
        return state, count, means | agent.describe(state.replay)

    def donating(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(function, donate_argnums=0)

    return HostTrainer(
        init=jax.jit(init),
        init_lanes=jax.jit(init_lanes),
        begin=donating(act),
        interact=donating(interact),
        update=donating(lambda state: learn(state, agent.update)),
        iterate=donating(iterate),
        pretrain=donating(lambda state: learn(state, agent.pretrain)),
        read=donating(read),
    )


def to_checkpoint(state: HostTrainState, *, with_replay: bool = True) -> dict[str, Any]:
    """What is worth saving of a state.

    Without the replay, which may take gigabytes, the mean of its visit counts is kept.
    """
    saved = {name: getattr(state, name) for name in _SAVED}
    if with_replay:
        return saved | {"replay": state.replay}
    return saved | {"mean_visits": _mean_visits(state.replay)}


def from_checkpoint(
    saved: dict[str, Any], trainer: HostTrainer, fresh_replay: Callable[[], ReplayState]
) -> HostTrainState:
    """The state that was saved; running episodes begin anew.

    If the replay was not saved it starts with the demonstrations alone, and every visit count goes
    on from the mean that was reached.

    Args:
      saved: what `to_checkpoint` gave.
      trainer: that the state is for.
      fresh_replay: makes a replay that holds the demonstrations and nothing else.
    """
    if "replay" in saved:
        replay_state = saved["replay"]
    else:
        replay_state = fresh_replay()
        mean = jnp.round(saved["mean_visits"]).astype(jnp.int32)
        visits = jnp.maximum(mean, 1) * jnp.ones_like(replay_state.visit_count)
        replay_state = replay_state.replace(visit_count=visits)
    fields = {name: saved[name] for name in _SAVED}
    return HostTrainState(replay=replay_state, lanes=trainer.init_lanes(), **fields)


_SAVED = ("learner", "step", "key", "totals", "num_totals")


def _mean_visits(replay_state: ReplayState) -> Array:
    """Over the demonstration rows that can be visited."""
    visits = replay_state.visit_count
    starts = ~replay_state.rows.is_last[: visits.shape[0]]
    return jnp.sum(visits * starts, dtype=jnp.float32) / jnp.maximum(jnp.sum(starts), 1)


def updates_due(step: int, *, updates_per_step: Fraction, learning_starts: int = 0) -> int:
    """How many updates should have been made by an agent step, pre-training apart."""
    return math.floor(max(step - learning_starts, 0) * updates_per_step)


class HostLoop:
    """Environments that go on for ever, and the state that learns from them.

    Args:
      env: what is stepped; reset at the first `run`.
      trainer: made for as many lanes.
      state: taken over; read it back from `state`.
      updates_per_step: updates per agent step, all lanes counted: with 8 lanes and 1/4, two
        updates each time that all lanes have stepped.
      learning_starts: agent steps before the first update.
      one_call: act and learn in one call.  A call takes as long as an update of a small network, so
        that waiting for the learning, too, is the lesser evil there.
    """

    def __init__(
        self,
        env: HostEnvironment,
        trainer: HostTrainer,
        state: HostTrainState,
        *,
        updates_per_step: Fraction,
        learning_starts: int = 0,
        one_call: bool = False,
    ):
        if updates_per_step < 0:
            raise ValueError(f"updates_per_step is {updates_per_step}, but must be at least 0")
        self.env = env
        self.trainer = trainer
        self.state = state
        self.step = int(state.step)
        self.scores = host.Scores(env.num_lanes)
        self._updates_due = functools.partial(
            updates_due, updates_per_step=updates_per_step, learning_starts=learning_starts
        )
        self._one_call = one_call
        self._seen: HostStep | None = None

    def run(self, num_steps: int) -> list[float]:
        """Goes on for at least that many agent steps; returns scores of episodes that ended."""
        finished = []
        until = self.step + num_steps
        while self.step < until:
            finished += self._iterate()
        return finished

    def _iterate(self) -> list[float]:
        """One step in every lane, and the updates that are due with it."""
        before, self.step = self.step, self.step + self.env.num_lanes
        due = self._updates_due(self.step) - self._updates_due(before)
        if self._seen is not None and self._one_call:
            self.state, actions = self.trainer.iterate(
                self.state, to_device(self._seen), np.int32(due)
            )
        else:
            actions = self._act()
            for _ in range(due):
                self.state = self.trainer.update(self.state)
        self._seen = self.env.step(np.asarray(actions))
        return self.scores.see(self._seen)

    def _act(self) -> Array:
        if self._seen is None:
            self._seen = self.env.reset()
            self.state, actions = self.trainer.begin(self.state, to_device(self._seen))
        else:
            self.state, actions = self.trainer.interact(self.state, to_device(self._seen))
        # Asked for ahead of the learning, or it would arrive after it.
        actions.copy_to_host_async()
        return actions


def to_device(step: HostStep) -> Seen:
    """The part of a step that the device is told."""
    return Seen(**{name: getattr(step, name) for name in Seen._fields})
