"""The one update that all agents share, and the shape of an agent.

In reading order: `learn` from a batch, whoever drew it; `update`, which draws it from a replay and
writes back what was learnt about its rows; `pretrain`, the same on demonstrations alone.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import chex
import jax
import jax.numpy as jnp
import optax

from bqfd_jax import schedules
from bqfd_jax.agents import resets
from bqfd_jax.agents.acting import ActorState, act, init_actor
from bqfd_jax.agents.config import AgentConfig
from bqfd_jax.networks import PRIORS, Network, mean_q
from bqfd_jax.replay import Replay, ReplayState
from bqfd_jax.types import Array, Batch, LearnerState, LossOutput, Params

# (params, target_params, batch, *`LearnerState.extra`) -> (scalar, `LossOutput`)
Loss = Callable[..., tuple[Array, LossOutput]]
Priority = Callable[[Array, Array, Array], Array]  # (|td error| [B], is_expert [B], step []) -> [B]
Metrics = dict[str, Array]


class Agent(NamedTuple):
    """An agent as pure functions; `update` and `pretrain` need a replay, the others do not."""

    gamma: float  # discount per agent step
    init: Callable[[Array, Array], LearnerState]  # (key, observation [B, S, ...])
    init_actor: Callable[[int], ActorState]  # number of lanes -> actor state
    act: Callable[..., tuple[Array, ActorState]]  # see `acting.act`
    q_values: Callable[[Params, Array], Array]  # observation [B, S, ...] -> Q-values [B, A]
    learn: Callable[[LearnerState, Batch], tuple[LearnerState, Array, Metrics]]  # see `learn`
    priority: Priority  # of a row, from its newest TD error
    update: Callable[..., tuple[LearnerState, ReplayState, Metrics]]  # see `update`
    pretrain: Callable[..., tuple[LearnerState, ReplayState, Metrics]]  # the same signature
    describe: Callable[[ReplayState], Metrics]  # what to log of the replay now and then
    # Whose network acts in training.
    acting_params: Callable[[LearnerState], Params] = lambda learner: learner.params
    # (learner, replay state, rows of each demonstration or None) -> the learner, which has now seen
    # what the demonstrations tell before anything is learnt.
    prepare: Callable[..., LearnerState] = lambda learner, replay_state, sizes=None: learner
    # (key, learner, observation [B, S, ...]) -> a learner whose network is partly new.
    reset: Callable[..., LearnerState] = lambda key, learner, observation: learner
    reset_period: int = 0  # updates, pre-training apart, after which that is due; 0: never
    # Whether more pre-training would be of no use, `[]` bool; None: that is never known.
    finished: Callable[[LearnerState], Array] | None = None


class Parts(NamedTuple):
    """What an agent's update is made of; all static, and bound by `make_agent`."""

    loss: Loss
    priority: Priority
    optimizer: optax.GradientTransformation
    config: AgentConfig
    replay: Replay | None


def init(
    network: Network,
    optimizer: optax.GradientTransformation,
    key: Array,
    observation: Array,
    *,
    extra: tuple[Any, ...] = (),
) -> LearnerState:
    """A new learner; the key is consumed, and the observation is only an example."""
    params = network.init(key, observation)
    return LearnerState(
        params=params,
        # A copy: two donated buffers must not be one.
        target_params=jax.tree.map(jnp.copy, params),
        opt_state=optimizer.init(params),
        updates=jnp.zeros((), jnp.int32),
        extra=extra,
    )


def learn(parts: Parts, learner: LearnerState, batch: Batch) -> tuple[LearnerState, Array, Metrics]:
    """Differentiates, steps and moves the target; the batch may come from any replay.

    Returns the new learner, the TD errors `[B]` that priorities are made of, and metrics.
    """
    (loss_value, output), gradients = jax.value_and_grad(parts.loss, has_aux=True)(
        learner.params, learner.target_params, batch, *learner.extra
    )
    chex.assert_rank(output.td_error, 1)
    deltas, opt_state = parts.optimizer.update(gradients, learner.opt_state, learner.params)
    params = optax.apply_updates(learner.params, deltas)
    updates = learner.updates + 1
    learner = LearnerState(
        params=params,
        target_params=_move_target(params, learner.target_params, updates, parts.config),
        opt_state=opt_state,
        updates=updates,
        extra=output.extra,
    )
    metrics = {
        "loss": loss_value,
        "gradient_norm": optax.tree.norm(gradients),
        "expert_share": jnp.mean(batch.is_expert, dtype=jnp.float32),
        **output.metrics,
    }
    return learner, output.td_error, metrics


def update(
    parts: Parts, key: Array, learner: LearnerState, replay_state: ReplayState, step: Array
) -> tuple[LearnerState, ReplayState, Metrics]:
    """Draws by priority, learns, writes priorities and visits back; `step` is for schedules.

    The key is consumed; donate the learner and the state of the replay.
    """
    config, replay = parts.config, parts.replay
    n_step = n_step_now(config, learner)
    batch = replay.sample(
        key, replay_state, config.batch_size, config.importance_exponent, n_step=n_step
    )
    learner, replay_state, metrics = _learn_and_prioritise(
        parts, learner, replay_state, batch, step
    )
    return learner, replay.count_visits(replay_state, batch.index), metrics | _told(n_step)


def pretrain(
    parts: Parts, key: Array, learner: LearnerState, replay_state: ReplayState, step: Array
) -> tuple[LearnerState, ReplayState, Metrics]:
    """As `update`, but draws uniformly from the demonstrations and counts no visits."""
    n_step = n_step_now(parts.config, learner)
    batch = parts.replay.sample_demonstrations(
        key, replay_state, parts.config.batch_size, n_step=n_step
    )
    learner, replay_state, metrics = _learn_and_prioritise(
        parts, learner, replay_state, batch, step
    )
    return learner, replay_state, metrics | _told(n_step)


def n_step_now(config: AgentConfig, learner: LearnerState) -> Array | None:
    """n of the next update, `[]` int32; None if it always stays the same."""
    if config.least_n_step == config.n_step or config.n_step_weight == 0:
        return None
    falling = schedules.geometric(config.n_step, config.n_step_final, config.n_step_updates)
    return jnp.round(falling(resets.updates_since(learner))).astype(jnp.int32)


def _told(n_step: Array | None) -> Metrics:
    return {} if n_step is None else {"n_step": n_step.astype(jnp.float32)}


def make_agent(
    network: Network,
    config: AgentConfig,
    replay: Replay | None = None,
    *,
    loss: Loss,
    priority: Priority | None = None,
    describe: Callable[[ReplayState], Metrics] = lambda replay_state: {},
    extra: Callable[[], tuple[Any, ...]] = tuple,
    frozen: tuple[str, ...] = (),
    **functions: Callable[..., Any],
) -> Agent:
    """Binds what is an agent's own to what all share.

    With an ensemble, each episode follows one member, and `q_values` are the members' mean.
    Without a `priority` of its own, all rows have their TD error and `priority_epsilon`.  `extra`
    makes what a new learner remembers besides its network; `frozen` are parts of the parameters
    that get no gradients; `functions` are others of `Agent`'s.
    """
    if replay is not None:
        _check_agree(config, replay)
    if priority is None:
        priority = functools.partial(_plain_priority, config.priority_epsilon)
    optimizer = make_optimizer(config)
    if frozen:
        # Adam would keep two numbers for each that never changes.
        trained = lambda params: {name: name not in frozen for name in params}  # noqa: E731
        optimizer = optax.masked(optimizer, trained)
    parts = Parts(loss, priority, optimizer, config, replay)
    reset = functools.partial(
        resets.reset,
        network,
        optimizer,
        share=config.reset_share,
        kept=PRIORS if config.members else (),
    )
    return Agent(
        gamma=config.gamma,
        init=lambda key, observation: init(network, optimizer, key, observation, extra=extra()),
        init_actor=init_actor,
        act=functools.partial(act, network.apply, config),
        q_values=functools.partial(mean_q, network.apply),
        learn=functools.partial(learn, parts),
        priority=priority,
        update=functools.partial(update, parts) if replay else refuse,
        pretrain=functools.partial(pretrain, parts) if replay else refuse,
        describe=describe,
        reset=reset,
        reset_period=config.reset_period,
        **functions | ({"acting_params": _target_params} if config.act_with_target else {}),
    )


def _target_params(learner: LearnerState) -> Params:
    return learner.target_params


def make_optimizer(config: AgentConfig) -> optax.GradientTransformation:
    """Adam on gradients of bounded norm."""
    return optax.chain(
        clip_by_norm(config.max_gradient_norm),
        optax.adam(config.learning_rate, eps=config.adam_epsilon),
    )


def clip_by_norm(max_norm: float) -> optax.GradientTransformation:
    """Shortens gradients to `max_norm`, as `optax.clip_by_global_norm` but with one factor for all.

    XLA multiplies where Adam reads them, while a choice between two gradients would be written to
    memory first.
    """

    def update(gradients: Params, state: optax.EmptyState, params: Params) -> tuple[Params, Any]:
        del params
        factor = max_norm / jnp.maximum(optax.tree.norm(gradients), max_norm)
        return jax.tree.map(lambda gradient: factor * gradient, gradients), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _move_target(params: Params, target: Params, updates: Array, config: AgentConfig) -> Params:
    moved = optax.incremental_update(params, target, config.target_step_size)
    if config.target_period == 1:
        return moved
    due = updates % config.target_period == 0
    return jax.tree.map(lambda new, old: jnp.where(due, new, old), moved, target)


def _learn_and_prioritise(
    parts: Parts, learner: LearnerState, replay_state: ReplayState, batch: Batch, step: Array
) -> tuple[LearnerState, ReplayState, Metrics]:
    learner, td_error, metrics = learn(parts, learner, batch)
    priorities = parts.priority(jnp.abs(td_error), batch.is_expert, step)
    return learner, parts.replay.set_priorities(replay_state, batch.index, priorities), metrics


def _plain_priority(epsilon: float, td_size: Array, is_expert: Array, step: Array) -> Array:
    del is_expert, step
    return td_size + epsilon


def refuse(*unused: object) -> NoReturn:
    """What `update` and `pretrain` of an agent without a replay do."""
    raise ValueError(
        "the agent was made without a replay, so there is nothing to draw from; give make_agent a "
        "replay, or batches of your own to Agent.learn"
    )


def _check_agree(config: AgentConfig, replay: Replay) -> None:
    for name, value in config.replay_options().items():
        made_for = getattr(replay, name)
        # Looking further ahead than needed does no harm.
        unused = name == "n_step" and config.n_step_weight == 0
        if value != made_for and not unused:
            raise ValueError(
                f"the agent's config wants a replay with {name}={value}, but it was made with "
                f"{name}={made_for}; use make_replay(..., **config.replay_options())"
            )
