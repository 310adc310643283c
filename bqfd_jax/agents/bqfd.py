"""Bayesian Q-learning from demonstrations: the paper's Algorithm 3."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp

from bqfd_jax import losses, posterior, schedules
from bqfd_jax.agents import learner, td
from bqfd_jax.agents import trust as trust_lib
from bqfd_jax.agents.bootstrapped import bootstrap_mask
from bqfd_jax.agents.config import BqfdConfig
from bqfd_jax.agents.trust import Trust
from bqfd_jax.networks import PRIORS, Network, as_ensemble
from bqfd_jax.replay import Replay, ReplayState
from bqfd_jax.types import Array, Batch, LossOutput, Params


def make_loss(network: Network, config: BqfdConfig) -> learner.Loss:
    """Double Q-learning whose targets hold the expert correction for demonstration samples.

    The network is an ensemble if the config has members; each has its own loss on its share of the
    batch, and of demonstrations on all.
    """
    path_steps = config.replay_options()["path_steps"]
    is_ensemble = config.members is not None

    def loss(
        params: Params, target_params: Params, batch: Batch, trust: Trust | None = None
    ) -> tuple[Array, LossOutput]:
        chex.assert_shape(batch.path_action, (None, path_steps))
        q_path = _path_q(network, params, batch)  # [B, P, A], or [B, P, K, A] of an ensemble
        q_policy = _path_q(network, target_params, batch) if config.weight_from_target else q_path
        q_policy = jax.lax.stop_gradient(q_policy)
        weight = expert_weight(config, batch, q_path, trust)
        eta = config.eta
        if config.learn_eta:
            eta = jnp.exp(trust.log_eta)[trust_lib.owner(trust, batch.index)]
        # Eta is one over a value, and the weight is a variance of values.
        unit = trust_lib.counted_in(trust)
        believed = {"eta": eta / unit, "weight": weight * unit**2}
        looks = td.lookaheads(network.apply, params, target_params, batch, config)

        def one_member(q_path: Array, q_policy: Array, ahead: list) -> tuple[Array, Array]:
            own = [
                look._replace(q_value=value, q_selector=selector)
                for look, (value, selector) in zip(looks, ahead, strict=True)
            ]
            return _losses(config, batch, q_path, q_policy, own, **believed)

        ahead = [(look.q_value, look.q_selector) for look in looks]
        if is_ensemble:
            over_members = jax.vmap(one_member, in_axes=(2, 2, 1), out_axes=1)
            total, td_error = over_members(q_path, q_policy, ahead)  # [B, K]
            # A sum over members: each gets the gradient it would get alone, but for clipping.
            total = jnp.sum(_mask(config, batch) * total, axis=1)
            td_error = jnp.mean(jnp.abs(td_error), axis=1)
        else:
            total, td_error = one_member(q_path, q_policy, ahead)
        q_tm1 = q_path[:, 0]
        extra = _trust_after(config, trust, batch, q_tm1, weight[:, 0])
        metrics = {"mean_q": jnp.mean(q_tm1), **trust_lib.describe(config, extra)}
        output = LossOutput(td_error=td_error, metrics=metrics, extra=extra)
        return jnp.mean(batch.importance_weight * total), output

    return loss


def _losses(
    config: BqfdConfig,
    batch: Batch,
    q_path: Array,
    q_policy: Array,
    looks: Sequence[td.Lookahead],
    weight: Array,
    eta: Array | float,
) -> tuple[Array, Array]:
    """Losses `[B]` of one network, and TD errors `[B]` that priorities are made of.

    Args:
      config: hyper-parameters.
      batch: what they are of.
      q_path: Q-values of the path's P states, `[B, P, A]`.
      q_policy: the same, by which demonstrations are weighed.
      looks: 1 and n steps ahead.
      weight: of the expert, `[B, P]`.
      eta: of all rows, or `[B]`.
    """
    # The functions of one transition, bound to the config and vmapped over the batch.
    batched = functools.partial(_batched, eta)
    corrected = {"stop_correction_gradient": config.stop_correction_gradient}
    td_error_of = batched(losses.bqfd_td_error, **corrected)
    path_td_error_of = batched(losses.bqfd_path_td_error, **corrected)
    likelihood_loss_of = batched(losses.expert_likelihood_loss)
    off_policy_of = batched(posterior.off_policy_weight, zeta=config.zeta)
    path_off_policy_of = batched(posterior.path_off_policy_weight, zeta=config.n_step_zeta)

    q_tm1, expert = q_path[:, 0], (batch.is_expert, weight[:, 0])
    total, td_errors = 0.0, []
    for look in looks:
        transition = (q_tm1, batch.action, *look.target)
        if look.n_step and q_path.shape[1] > 1:
            path = (q_path, batch.path_action, batch.path_discount, weight)
            later = (x[:, 1:] for x in path)
            td_error = path_td_error_of(*transition, *expert, *later)
            off_policy = path_off_policy_of(q_policy, batch.path_action, batch.path_discount)
        else:
            td_error = td_error_of(*transition, *expert)
            off_policy = off_policy_of(q_policy[:, 0], batch.action)
        if config.correct_all_actions:
            # The correction leaves the target and comes back for all actions.
            plain = jax.vmap(losses.double_q_td_error)(*transition)
            error_loss = td.td_loss(plain, huber_delta=config.huber_delta)
            error_loss += likelihood_loss_of(q_tm1, batch.action, *expert)
        else:
            error_loss = td.td_loss(td_error, huber_delta=config.huber_delta)
        total += look.weight * jnp.where(batch.is_expert, off_policy, 1.0) * error_loss
        td_errors.append(td_error)
    return total, td_errors[0]


def expert_weight(config: BqfdConfig, batch: Batch, q_path: Array, trust: Trust | None) -> Array:
    """Weights of the path's rows, `[B, P]`; `q_path` is `[B, P, K, A]` if they are an ensemble's.

    What eta is learnt from has weight 0.
    """
    weights = []
    if config.weight in ("visits", "smaller"):
        weights.append(visit_weight(config, batch.path_visit_count))
    if config.weight in ("ensemble", "smaller"):
        weight_of = functools.partial(
            posterior.ensemble_weight, initial=trust.initial, variance=config.variance
        )
        q_path = jax.lax.stop_gradient(q_path)
        weights.append(jax.vmap(jax.vmap(weight_of))(q_path, batch.path_action))
    weight = functools.reduce(jnp.minimum, weights)
    if config.learn_eta:
        # A demonstration's rows follow each other.
        index = batch.index[:, None] + jnp.arange(weight.shape[1])[None]
        weight = jnp.where(trust_lib.is_held_out(trust, index), 0.0, weight)
    return weight


def visit_weight(config: BqfdConfig, count: Array) -> Array:
    """`posterior.visit_weight` of counts of any shape, as a config has it.

    Counts are 1 before the first draw, and 1 more after each.
    """
    count = 1 + config.visits_per_draw * (count - 1)
    options = {name: getattr(config, name) for name in ("beta", "variance", "noise_ratio")}
    return posterior.visit_weight(count, **options)


def make_agent(network: Network, config: BqfdConfig, replay: Replay | None = None) -> learner.Agent:
    """BQfD on `network`, or on an ensemble of such networks, learning from `replay`."""
    network = as_ensemble(network, config.members or {})
    demo_factor = schedules.piecewise_linear(
        config.demo_priority_steps, config.demo_priority_factors
    )

    def priority(td_size: Array, is_expert: Array, step: Array) -> Array:
        factor = jnp.where(is_expert, demo_factor(step), 1.0)
        return factor * (td_size + config.priority_epsilon)

    def describe(replay_state: ReplayState) -> learner.Metrics:
        if config.weight != "visits":
            return {}
        weight = visit_weight(config, replay_state.visit_count)
        starts = ~replay_state.rows.is_last[: weight.shape[0]]
        return {"visit_weight": jnp.sum(weight * starts) / jnp.maximum(jnp.sum(starts), 1)}

    functions: dict[str, Any] = {}
    if config.members:
        functions["frozen"] = PRIORS
    if config.keeps_trust:
        functions["extra"] = lambda: (trust_lib.init(config),)
        if replay is not None:
            functions["prepare"] = functools.partial(trust_lib.prepare, network, config, replay)
    return learner.make_agent(
        network,
        config,
        replay,
        loss=make_loss(network, config),
        priority=priority,
        describe=describe,
        **functions,
    )


def _trust_after(
    config: BqfdConfig, trust: Trust | None, batch: Batch, q_tm1: Array, weight: Array
) -> tuple[Trust, ...]:
    """What is remembered of the demonstrations after a batch; nothing if nothing was."""
    if trust is None:
        return ()
    trust = trust_lib.remember_weight(trust, weight, batch)
    if config.learn_eta:
        members = q_tm1 if q_tm1.ndim == 3 else q_tm1[:, None]
        trust = trust_lib.learn_eta(config, trust, members, batch)
    return (trust,)


def _mask(config: BqfdConfig, batch: Batch) -> Array:
    """Which members learn from each row, `[B, K]` bool: all of them from demonstrations."""
    own = bootstrap_mask(
        batch.index, size=config.ensemble_size, probability=config.mask_probability
    )
    return own | batch.is_expert[:, None]


def _batched(
    eta: Array | float, function: Callable[..., Array], **options: Any
) -> Callable[..., Array]:
    """Over the batch; eta is one of all rows, or each has its own."""

    def of_row(eta: Array | float, *arguments: Array) -> Array:
        return function(*arguments, eta=eta, **options)

    def of_batch(*arguments: Array) -> Array:
        axes = (0 if jnp.ndim(eta) else None, *[0] * len(arguments))
        return jax.vmap(of_row, in_axes=axes)(eta, *arguments)

    return of_batch


def _path_q(network: Network, params: Params, batch: Batch) -> Array:
    """Q-values of the path's P states, `[B, P, A]`, or `[B, P, K, A]` of an ensemble."""
    q_tm1 = network.apply(params, batch.observation)
    num_later = batch.path_observation.shape[1]
    if num_later == 0:
        return q_tm1[:, None]
    later = batch.path_observation.reshape(-1, *batch.observation.shape[1:])
    later_q = network.apply(params, later).reshape(-1, num_later, *q_tm1.shape[1:])
    return jnp.concatenate([q_tm1[:, None], later_q], axis=1)
