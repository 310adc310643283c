"""Bayesian Q-learning from demonstrations: the paper's Algorithm 3."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bqfd_jax import exploration, losses, posterior
from bqfd_jax.agents import acting, learner, td
from bqfd_jax.agents.config import BqfdConfig
from bqfd_jax.networks import Network
from bqfd_jax.replay import Replay, ReplayState
from bqfd_jax.types import Array, Batch, LossOutput, Params


def make_loss(network: Network, config: BqfdConfig) -> learner.Loss:
    """Double Q-learning whose targets hold the expert correction for demonstration samples."""
    num_path_steps = config.replay_options()["path_steps"]
    log_probability = functools.partial(posterior.expert_log_likelihood, eta=config.eta)
    posterior_options = {
        "eta": config.eta,
        "beta": config.beta,
        "variance": config.variance,
        "noise_ratio": config.noise_ratio,
    }
    path_td_error = jax.vmap(
        functools.partial(
            losses.bqfd_path_td_error,
            stop_correction_gradient=config.stop_correction_gradient,
            **posterior_options,
        )
    )
    likelihood_loss = jax.vmap(
        functools.partial(losses.expert_likelihood_loss, **posterior_options)
    )

    def path_q(params: Params, batch: Batch, q_tm1: Array) -> Array:
        """Q-values of the path's K states, `[B, K, A]`."""
        K = num_path_steps
        if K == 1:
            return q_tm1[:, None]
        later = batch.path_observation.reshape(-1, *batch.observation.shape[1:])
        later_q = network.apply(params, later).reshape(-1, K - 1, q_tm1.shape[-1])
        return jnp.concatenate([q_tm1[:, None], later_q], axis=1)

    def path_log_probability(target_params: Params, batch: Batch, q_path: Array) -> Array:
        """Of each step of the path under the Boltzmann policy, `[B, K]`; a constant."""
        if config.weight_from_target:
            q_tm1 = network.apply(target_params, batch.observation)
            q_path = path_q(target_params, batch, q_tm1)
        log_p = jax.vmap(jax.vmap(log_probability))(q_path, batch.path_action)
        # Past the episode's end there are no more choices to explain.
        return jax.lax.stop_gradient(jnp.where(batch.path_discount > 0, log_p, 0.0))

    def loss(params: Params, target_params: Params, batch: Batch) -> tuple[Array, LossOutput]:
        q_tm1 = network.apply(params, batch.observation)
        q_path = path_q(params, batch, q_tm1)
        log_p = path_log_probability(target_params, batch, q_path)
        total, td_errors = 0.0, []
        for look in td.lookaheads(network.apply, params, target_params, batch, config):
            steps, zeta = 1, config.zeta
            if look.n_step and num_path_steps > 1:
                steps, zeta = num_path_steps, config.n_step_zeta
            td_error = path_td_error(
                q_tm1,
                batch.action,
                look.reward,
                look.discount,
                look.q_value,
                look.q_selector,
                batch.is_expert,
                q_path[:, :steps],
                batch.path_action[:, :steps],
                batch.path_discount[:, :steps],
                batch.path_visit_count[:, :steps],
            )
            off_policy = jnp.exp(zeta * jnp.sum(log_p[:, :steps], axis=1))
            off_policy = jnp.where(batch.is_expert, off_policy, 1.0)
            if config.correct_all_actions:
                # The correction leaves the target and comes back for all actions.
                plain = jax.vmap(losses.double_q_td_error)(
                    q_tm1, batch.action, look.reward, look.discount, look.q_value, look.q_selector
                )
                visits = batch.path_visit_count[:, 0]
                error_loss = td.td_loss(plain, huber_delta=config.huber_delta)
                error_loss += likelihood_loss(q_tm1, batch.action, batch.is_expert, visits)
            else:
                error_loss = td.td_loss(td_error, huber_delta=config.huber_delta)
            total += look.weight * off_policy * error_loss
            td_errors.append(td_error)
        output = LossOutput(td_error=td_errors[0], metrics={"mean_q": jnp.mean(q_tm1)})
        return jnp.mean(batch.importance_weight * total), output

    return loss


def make_agent(network: Network, replay: Replay, config: BqfdConfig) -> learner.Agent:
    """BQfD on `network`, learning from `replay`."""
    demo_factor = exploration.linear_schedule(
        config.demo_priority_steps, config.demo_priority_factors
    )

    def priority(td_size: Array, is_expert: Array, step: Array) -> Array:
        factor = jnp.where(is_expert, demo_factor(step), 1.0)
        return factor * (td_size + config.priority_epsilon)

    def describe(replay_state: ReplayState) -> learner.Metrics:
        weight = _visit_weight(config)(replay_state.visit_count)
        starts = ~replay_state.rows.is_last[: weight.shape[0]]
        return {"visit_weight": jnp.sum(weight * starts) / jnp.maximum(jnp.sum(starts), 1)}

    return learner.make_agent(
        init_params=network.init,
        act=acting.make_act(network.apply, config),
        evaluate=network.apply,
        loss=make_loss(network, config),
        priority=priority,
        replay=replay,
        config=config,
        describe=describe,
    )


def _visit_weight(config: BqfdConfig) -> Callable[[Array], Array]:
    return functools.partial(
        posterior.visit_weight,
        beta=config.beta,
        variance=config.variance,
        noise_ratio=config.noise_ratio,
    )
