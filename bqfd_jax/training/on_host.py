"""Training where the environment runs on the host: emulators beside the compiled learner.

Each phase is one compiled function that takes the whole state and gives it back in the same memory.
What the host sends in a step (frames, rewards, discounts, flags) goes with one call, and what it
gets is one array of actions.  The device is told to learn before the host waits for the actions,
which do not depend on that learning: so the emulators step while the device learns.
"""

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks
from bqfd_jax.agents import Agent
from bqfd_jax.agents.acting import ActorState
from bqfd_jax.envs import host
from bqfd_jax.replay import Replay, ReplayState, check_discounts, spread
from bqfd_jax.replay.rows import push_frame
from bqfd_jax.streams import KeyStream
from bqfd_jax.types import Array, HostEnvironment, HostStep, LearnerState, Row


@chex.dataclass(frozen=True)
class LaneState:
    """Where the running episodes stand; they begin anew when a run is resumed."""

    actor: ActorState  # fields [L]
    observation: Array  # [L, S, *frame_shape], the newest that an action was chosen on
    is_first: Array  # [L] bool, it begins an episode
    is_last: Array  # [L] bool, it ends one


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
    """What the device is told of a `HostStep`, and of what was done before it."""

    frame: Array  # [L, *frame_shape]
    reward: Array  # [L] float32
    discount: Array  # [L] float32, without gamma
    is_first: Array  # [L] bool
    is_last: Array  # [L] bool
    action: Array  # [L] int32, taken at the observation before; an environment may not obey


class HostTrainer(NamedTuple):
    """Training as compiled functions; each but `init` takes over the memory of its state."""

    init: Callable[..., HostTrainState]  # (key, demonstrations=None, demo_sizes=None) -> state
    init_lanes: Callable[[], LaneState]
    begin: Callable[..., tuple[HostTrainState, Array]]  # `act`: (state, Seen) -> (.., actions [L])
    interact: Callable[..., tuple[HostTrainState, Array]]  # the same
    update: Callable[[HostTrainState], HostTrainState]  # `learn` by the agent's update
    updates: Callable[[int], Callable[[HostTrainState], HostTrainState]]  # so many in one call
    iterate: Callable[..., tuple[HostTrainState, Array]]  # (state, Seen, count)
    reset: Callable[[HostTrainState], HostTrainState]  # makes the network partly anew
    pretrain: Callable[[HostTrainState], HostTrainState]  # `learn` by the agent's pre-training
    read: Callable[..., tuple[HostTrainState, Array, dict[str, Array]]]  # state -> (.., means)


Jit = Callable[[Callable[..., Any]], Callable[..., Any]]
_donating: Jit = functools.partial(jax.jit, donate_argnums=0)


def make_host_trainer(agent: Agent, replay: Replay, jit: Jit = _donating) -> HostTrainer:
    """Compiles the functions below for an agent and the replay that it was made for.

    The lanes of the replay are the environments that are stepped side by side.  `jit` compiles
    functions of one run's state; `group.make_group_trainer` has one for many runs.
    """
    place = functools.partial(spread.placing, replay.mesh)
    compiled_init = jax.jit(place(functools.partial(init, agent, replay)))

    def checked_init(
        key: Array, demonstrations: Row | None = None, demo_sizes: Array | None = None
    ) -> HostTrainState:
        check_discounts(demonstrations, agent.gamma)
        return compiled_init(key, demonstrations, demo_sizes)

    def compiled(function: Callable[..., Any], *parts: Any) -> Callable[..., Any]:
        return jit(place(functools.partial(function, *parts)))

    return HostTrainer(
        init=checked_init,
        init_lanes=jax.jit(functools.partial(init_lanes, agent, replay)),
        begin=compiled(act, agent),
        interact=compiled(interact, agent, replay),
        update=compiled(learn, agent.update),
        updates=functools.cache(lambda count: compiled(learn_often, agent.update, count)),
        iterate=compiled(iterate, agent, replay),
        reset=compiled(reset, agent),
        pretrain=compiled(learn, agent.pretrain),
        read=compiled(read, agent),
    )


def init_lanes(agent: Agent, replay: Replay) -> LaneState:
    """Before anything was seen."""
    num_lanes = replay.layout.num_lanes
    return LaneState(
        actor=agent.init_actor(num_lanes),
        observation=jnp.zeros((num_lanes, replay.stack, *replay.frame_shape), replay.frame_dtype),
        is_first=jnp.zeros(num_lanes, bool),
        is_last=jnp.zeros(num_lanes, bool),
    )


def init(
    agent: Agent,
    replay: Replay,
    key: Array,
    demonstrations: Row | None = None,
    demo_sizes: Array | None = None,
) -> HostTrainState:
    """The state at the beginning of a run.

    `demo_sizes`, `[D]` integers, are the rows of each demonstration; unless given, there is one.
    """
    lanes = init_lanes(agent, replay)
    network_key = jax.random.fold_in(key, KeyStream.NETWORK)
    learner = agent.init(network_key, lanes.observation)
    replay_state = replay.init(demonstrations)
    learner = agent.prepare(learner, replay_state, demo_sizes)
    metrics = jax.eval_shape(agent.update, key, learner, replay_state, 0)[2]
    return HostTrainState(
        learner=learner,
        replay=replay_state,
        lanes=lanes,
        step=jnp.zeros((), jnp.int32),
        key=jax.random.clone(key),
        totals={name: jnp.zeros((), jnp.float32) for name in metrics},
        num_totals=jnp.zeros((), jnp.int32),
    )


def act(agent: Agent, state: HostTrainState, seen: Seen) -> tuple[HostTrainState, Array]:
    """Chooses actions on the newest observations; alone, on the first ones of new episodes."""
    observation = push_frame(state.lanes.observation, seen.frame, seen.is_first)
    key = _stream_key(state, KeyStream.ACTING, state.step)
    action, actor = agent.act(
        key,
        agent.acting_params(state.learner),
        state.lanes.actor,
        observation,
        seen.is_first,
        state.step,
    )
    lanes = LaneState(
        actor=actor,
        observation=observation,
        is_first=seen.is_first,
        is_last=seen.is_last,
    )
    return state.replace(lanes=lanes, step=state.step + action.shape[0]), action


def interact(
    agent: Agent, replay: Replay, state: HostTrainState, seen: Seen
) -> tuple[HostTrainState, Array]:
    """Writes what came of the last actions into the replay, and chooses the next."""
    row = Row(
        frame=state.lanes.observation[:, -1],
        action=seen.action,
        reward=seen.reward,
        discount=jnp.float32(agent.gamma) * seen.discount,
        is_first=state.lanes.is_first,
        is_last=state.lanes.is_last,
    )
    return act(agent, state.replace(replay=replay.add(state.replay, row)), seen)


def learn(update: Callable[..., Any], state: HostTrainState) -> HostTrainState:
    """Learns from one batch, by the agent's update or its pre-training."""
    key = _stream_key(state, KeyStream.UPDATES, state.learner.updates)
    learner, replay_state, metrics = update(key, state.learner, state.replay, state.step)
    return state.replace(
        learner=learner,
        replay=replay_state,
        totals={name: state.totals[name] + value for name, value in metrics.items()},
        num_totals=state.num_totals + 1,
    )


def learn_often(update: Callable[..., Any], count: int, state: HostTrainState) -> HostTrainState:
    """`learn`, so many times."""
    return jax.lax.scan(lambda state, _: (learn(update, state), None), state, length=count)[0]


def iterate(
    agent: Agent, replay: Replay, state: HostTrainState, seen: Seen, count: Array
) -> tuple[HostTrainState, Array]:
    """`interact`, and then `count` updates, in one call."""
    state, action = interact(agent, replay, state, seen)
    learn_once = functools.partial(learn, agent.update)
    return jax.lax.fori_loop(0, count, lambda _, state: learn_once(state), state), action


def reset(agent: Agent, state: HostTrainState) -> HostTrainState:
    """Makes the network partly anew; the replay and the lanes stay."""
    key = _stream_key(state, KeyStream.RESETS, state.learner.updates)
    return state.replace(learner=agent.reset(key, state.learner, state.lanes.observation))


def read(agent: Agent, state: HostTrainState) -> tuple[HostTrainState, Array, dict[str, Array]]:
    """How many updates there were since the last call, and the means of their metrics.

    With the means comes what the agent says of its replay.
    """
    count = state.num_totals
    means = {name: total / count for name, total in state.totals.items()}
    state = state.replace(
        totals=jax.tree.map(jnp.zeros_like, state.totals),
        num_totals=jnp.zeros((), jnp.int32),
    )
    return state, count, means | agent.describe(state.replay)


def _stream_key(state: HostTrainState, stream: KeyStream, counter: Array) -> Array:
    return jax.random.fold_in(jax.random.fold_in(state.key, stream), counter)


def updates_due(step: int, *, update_period: float, learning_starts: int = 0) -> int:
    """How many updates should have been made by an agent step, pre-training apart."""
    # Exact, so that nothing is lost or gained over millions of steps.
    return max(step - learning_starts, 0) // Fraction(update_period).limit_denominator(10**6)


def resets_due(updates: int, *, period: int, total: int | None = None) -> int:
    """How many resets there should have been after so many updates, pre-training apart.

    A network needs time to recover: with less than half a period left of `total`, none is due.
    """
    if not period:
        return 0
    last = updates if total is None else min(updates, total - period / 2)
    return max(int(last // period), 0)


class HostLoop:
    """Environments that go on for ever, and the state that learns from them.

    Args:
      env: what is stepped; reset at the first `run`.
      trainer: made for as many lanes.
      state: taken over; read it back from `state`.
      update_period: agent steps, over all lanes, per update: with 8 lanes and a period of 4, two
        updates each time that all lanes have stepped.
      learning_starts: agent steps before the first update.
      reset_period: updates between resets, see `agents.resets`; 0 for none.
      steps: where training will end, so that it does not end with a network just made anew; unless
        given, that is not known.
      one_call: act and learn in one call.  With a small network a call costs as much as an update,
        so that waiting for the learning as well is the cheaper choice.
      join_updates: make the updates that are due together one call; unless given, everywhere but
        on a CPU, where a call costs little and convolutions in a loop are several times slower.
    """

    def __init__(
        self,
        env: HostEnvironment,
        trainer: HostTrainer,
        state: HostTrainState,
        *,
        update_period: float,
        learning_starts: int = 0,
        reset_period: int = 0,
        steps: int | None = None,
        one_call: bool = False,
        join_updates: bool | None = None,
    ):
        checks.above(0, update_period=update_period)
        self.env = env
        self.trainer = trainer
        self.state = state
        self.step = int(np.max(state.step))  # runs of a group are in step
        self.scores = host.Scores(env.num_lanes)
        self._updates_due = functools.partial(
            updates_due, update_period=update_period, learning_starts=learning_starts
        )
        total = None if steps is None else self._updates_due(steps)
        self._resets_due = functools.partial(resets_due, period=reset_period, total=total)
        self._one_call = one_call
        self._join = jax.default_backend() != "cpu" if join_updates is None else join_updates
        self._seen: Seen | None = None
        # [] or [runs], steps at which something else was done than was chosen; None: cannot be.
        self.guarded: np.ndarray | None = None

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
        done, due_by_now = self._updates_due(before), self._updates_due(self.step)
        due = due_by_now - done
        if self._seen is not None and self._one_call:
            self.state, actions = self.trainer.iterate(self.state, self._seen, np.int32(due))
        else:
            actions = self._act()
            joined = due > 1 and self._join
            for learn in [self.trainer.updates(due)] if joined else [self.trainer.update] * due:
                self.state = learn(self.state)
        if self._resets_due(due_by_now) > self._resets_due(done):
            self.state = self.trainer.reset(self.state)
        actions = np.asarray(actions)
        step = self.env.step(actions)
        if step.action is not None:
            before = 0 if self.guarded is None else self.guarded
            self.guarded = before + (step.action != actions).sum(axis=-1)
        self._seen = to_device(step, actions)
        return self.scores.see(step)

    def _act(self) -> Array:
        if self._seen is None:
            self._seen = to_device(self.env.reset())
            self.state, actions = self.trainer.begin(self.state, self._seen)
        else:
            self.state, actions = self.trainer.interact(self.state, self._seen)
        # Asked for ahead of the learning, or it would arrive after it.
        actions.copy_to_host_async()
        return actions


def to_device(step: HostStep, chosen: np.ndarray | None = None) -> Seen:
    """The part of a step that the device is told.

    `chosen` are the actions that led to it; a reset has none.
    """
    chosen = np.zeros(step.is_first.shape) if chosen is None else chosen
    action = np.asarray(chosen if step.action is None else step.action, np.int32)
    shown = {name: getattr(step, name) for name in Seen._fields if name != "action"}
    return Seen(action=action, **shown)
