"""Bayesian Q-learning from demonstrations: the paper's Algorithm 3."""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from bqfd_jax import losses, posterior, schedules
from bqfd_jax.agents import learner, td
from bqfd_jax.agents.config import BqfdConfig
from bqfd_jax.networks import Network
from bqfd_jax.replay import Replay, ReplayState
from bqfd_jax.types import Array, Batch, LossOutput, Params


def make_loss(network: Network, config: BqfdConfig) -> learner.Loss:
    """Double Q-learning whose targets hold the expert correction for demonstration samples."""
    path_steps = config.replay_options()["path_steps"]
    # The functions of one transition, bound to the config and vmapped over the batch.
    corrected = {"eta": config.eta, "stop_correction_gradient": config.stop_correction_gradient}
    td_error_of = _batched(losses.bqfd_td_error, **corrected)
    path_td_error_of = _batched(losses.bqfd_path_td_error, **corrected)
    plain_td_error_of = _batched(losses.double_q_td_error)
    likelihood_loss_of = _batched(losses.expert_likelihood_loss, eta=config.eta)
    off_policy_of = _batched(posterior.off_policy_weight, eta=config.eta, zeta=config.zeta)
    path_off_policy_of = _batched(
        posterior.path_off_policy_weight, eta=config.eta, zeta=config.n_step_zeta
    )

    def loss(params: Params, target_params: Params, batch: Batch) -> tuple[Array, LossOutput]:
        chex.assert_shape(batch.path_action, (None, path_steps))
        q_path = _path_q(network, params, batch)
        q_tm1 = q_path[:, 0]
        q_policy = _path_q(network, target_params, batch) if config.weight_from_target else q_path
        q_policy = jax.lax.stop_gradient(q_policy)
        weight = visit_weight(config, batch.path_visit_count)
        expert = (batch.is_expert, weight[:, 0])
        total, td_errors = 0.0, []
        for look in td.lookaheads(network.apply, params, target_params, batch, config):
            transition = (q_tm1, batch.action, *look.target)
            if look.n_step and path_steps > 1:
                path = (q_path, batch.path_action, batch.path_discount, weight)
                later = (x[:, 1:] for x in path)
                td_error = path_td_error_of(*transition, *expert, *later)
                off_policy = path_off_policy_of(q_policy, batch.path_action, batch.path_discount)
            else:
                td_error = td_error_of(*transition, *expert)
                off_policy = off_policy_of(q_policy[:, 0], batch.action)
            if config.correct_all_actions:
                # The correction leaves the target and comes back for all actions.
                plain = plain_td_error_of(*transition)
                error_loss = td.td_loss(plain, huber_delta=config.huber_delta)
                error_loss += likelihood_loss_of(q_tm1, batch.action, *expert)
            else:
                error_loss = td.td_loss(td_error, huber_delta=config.huber_delta)
            total += look.weight * jnp.where(batch.is_expert, off_policy, 1.0) * error_loss
            td_errors.append(td_error)
        output = LossOutput(td_error=td_errors[0], metrics={"mean_q": jnp.mean(q_tm1)})
        return jnp.mean(batch.importance_weight * total), output

    return loss


def visit_weight(config: BqfdConfig, count: Array) -> Array:
    """`posterior.visit_weight` of counts of any shape, as a config has it."""
    options = {name: getattr(config, name) for name in ("beta", "variance", "noise_ratio")}
    return posterior.visit_weight(count, **options)


def make_agent(network: Network, config: BqfdConfig, replay: Replay | None = None) -> learner.Agent:
    """BQfD on `network`, learning from `replay`."""
    demo_factor = schedules.piecewise_linear(
        config.demo_priority_steps, config.demo_priority_factors
    )

    def priority(td_size: Array, is_expert: Array, step: Array) -> Array:
        factor = jnp.where(is_expert, demo_factor(step), 1.0)
        return factor * (td_size + config.priority_epsilon)

    def describe(replay_state: ReplayState) -> learner.Metrics:
        weight = visit_weight(config, replay_state.visit_count)
        starts = ~replay_state.rows.is_last[: weight.shape[0]]
        return {"visit_weight": jnp.sum(weight * starts) / jnp.maximum(jnp.sum(starts), 1)}

    loss = make_loss(network, config)
    return learner.make_agent(
        network, config, replay, loss=loss, priority=priority, describe=describe
    )


def _batched(function: Callable[..., Array], **options: Any) -> Callable[..., Array]:
    return jax.vmap(functools.partial(function, **options))


def _path_q(network: Network, params: Params, batch: Batch) -> Array:
    """Q-values of the path's K states, `[B, K, A]`."""
    q_tm1 = network.apply(params, batch.observation)
    num_later = batch.path_observation.shape[1]
    if num_later == 0:
        return q_tm1[:, None]
    later = batch.path_observation.reshape(-1, *batch.observation.shape[1:])
    later_q = network.apply(params, later).reshape(-1, num_later, q_tm1.shape[-1])
    return jnp.concatenate([q_tm1[:, None], later_q], axis=1)
