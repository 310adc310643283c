"""The one update that all agents share, and the shape of an agent."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from bqfd_jax.agents.acting import ActorState, init_actor
from bqfd_jax.agents.config import AgentConfig
from bqfd_jax.replay import Replay, ReplayState
from bqfd_jax.types import Array, Batch, LearnerState, LossOutput, Params

Loss = Callable[[Params, Params, Batch], tuple[Array, LossOutput]]
Priority = Callable[[Array, Array, Array], Array]  # (|td error| [B], is_expert [B], step [])
Metrics = dict[str, Array]


class Agent(NamedTuple):
    """An agent as pure functions."""

    init: Callable[[Array, Array], LearnerState]  # (key, observation [B, S, ...])
    init_actor: Callable[[int], ActorState]  # number of lanes -> actor state
    act: Callable[..., tuple[Array, ActorState]]  # see `acting.make_act`
    evaluate: Callable[[Params, Array], Array]  # observation [B, S, ...] -> Q-values [B, A]
    update: Callable[..., tuple[LearnerState, ReplayState, Metrics]]  # see `make_update`
    pretrain: Callable[..., tuple[LearnerState, ReplayState, Metrics]]  # the same signature
    describe: Callable[[ReplayState], Metrics]  # what to log of the replay now and then


def make_optimizer(config: AgentConfig) -> optax.GradientTransformation:
    """Adam on gradients of bounded norm."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm),
        optax.adam(config.learning_rate, eps=config.adam_epsilon),
    )


def make_init(
    init_params: Callable[[Array, Array], Params], optimizer: optax.GradientTransformation
) -> Callable[[Array, Array], LearnerState]:
    """A function from a key and an example observation to a new learner."""

    def init(key: Array, observation: Array) -> LearnerState:
        params = init_params(key, observation)
        return LearnerState(
            params=params,
            # A copy: two donated buffers must not be one.
            target_params=jax.tree.map(jnp.copy, params),
            opt_state=optimizer.init(params),
            updates=jnp.zeros((), jnp.int32),
        )

    return init


def make_update(
    loss: Loss,
    priority: Priority,
    optimizer: optax.GradientTransformation,
    replay: Replay,
    config: AgentConfig,
    *,
    pretraining: bool = False,
) -> Callable[..., tuple[LearnerState, ReplayState, Metrics]]:
    """Draw, differentiate, step, move the target, re-prioritise, count.

    Args:
      loss: `loss(params, target_params, batch)` -> (scalar, `LossOutput`).
      priority: from TD errors to priorities.
      optimizer: what turns gradients into steps.
      replay: where batches come from.
      config: batch size, target period and the like.
      pretraining: draw uniformly from the demonstrations, and count no visits.

    Returns:
      `update(learner, replay_state, key, step)` -> (learner, replay_state, metrics), where `step`
      is the agent step that schedules look at.  Donate the first two; the key is consumed.
    """

    def draw(replay_state: ReplayState, key: Array) -> Batch:
        if pretraining:
            return replay.sample_demonstrations(replay_state, key, config.batch_size)
        return replay.sample(replay_state, key, config.batch_size, config.importance_exponent)

    def update(
        learner: LearnerState, replay_state: ReplayState, key: Array, step: Array
    ) -> tuple[LearnerState, ReplayState, Metrics]:
        batch = draw(replay_state, key)
        (loss_value, output), gradients = jax.value_and_grad(loss, has_aux=True)(
            learner.params, learner.target_params, batch
        )
        chex.assert_rank(output.td_error, 1)
        deltas, opt_state = optimizer.update(gradients, learner.opt_state, learner.params)
        params = optax.apply_updates(learner.params, deltas)
        updates = learner.updates + 1
        learner = LearnerState(
            params=params,
            target_params=_move_target(params, learner.target_params, updates, config),
            opt_state=opt_state,
            updates=updates,
        )
        priorities = priority(jnp.abs(output.td_error), batch.is_expert, step)
        replay_state = replay.set_priorities(replay_state, batch.index, priorities)
        if not pretraining:
            replay_state = replay.count_visits(replay_state, batch.index)
        metrics = {
            "loss": loss_value,
            "gradient_norm": optax.global_norm(gradients),
            "expert_share": jnp.mean(batch.is_expert, dtype=jnp.float32),
            **output.metrics,
        }
        return learner, replay_state, metrics

    return update


def _move_target(params: Params, target: Params, updates: Array, config: AgentConfig) -> Params:
    moved = optax.incremental_update(params, target, config.target_step_size)
    if config.target_period == 1:
        return moved
    due = updates % config.target_period == 0
    return jax.tree.map(lambda new, old: jnp.where(due, new, old), moved, target)


def make_agent(
    *,
    init_params: Callable[[Array, Array], Params],
    act: Callable[..., tuple[Array, ActorState]],
    evaluate: Callable[[Params, Array], Array],
    loss: Loss,
    priority: Priority,
    replay: Replay,
    config: AgentConfig,
    describe: Callable[[ReplayState], Metrics] = lambda replay_state: {},
) -> Agent:
    """Binds what is an agent's own to what all share."""
    _check_agree(config, replay)
    optimizer = make_optimizer(config)
    parts = (loss, priority, optimizer, replay, config)
    return Agent(
        init=make_init(init_params, optimizer),
        init_actor=init_actor,
        act=act,
        evaluate=evaluate,
        update=make_update(*parts),
        pretrain=make_update(*parts, pretraining=True),
        describe=describe,
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
