"""Prioritized dueling double DQN, the baseline: demonstrations are rows like any other."""

import jax
import jax.numpy as jnp

from bqfd_jax import losses
from bqfd_jax.agents import learner, td
from bqfd_jax.agents.config import PddDqnConfig
from bqfd_jax.networks import Network
from bqfd_jax.replay import Replay
from bqfd_jax.types import Array, Batch, LossOutput, Params


def make_loss(network: Network, config: PddDqnConfig) -> learner.Loss:
    """Importance-weighted 1-step and n-step double Q-learning losses."""

    def loss(params: Params, target_params: Params, batch: Batch) -> tuple[Array, LossOutput]:
        q_tm1 = network.apply(params, batch.observation)
        total, td_errors = 0.0, []
        for look in td.lookaheads(network.apply, params, target_params, batch, config):
            td_error = jax.vmap(losses.double_q_td_error)(q_tm1, batch.action, *look.target)
            total += look.weight * td.td_loss(td_error, huber_delta=config.huber_delta)
            td_errors.append(td_error)
        metrics = {"mean_q": jnp.mean(q_tm1)}
        output = LossOutput(td_error=td_errors[0], metrics=metrics)
        return jnp.mean(batch.importance_weight * total), output

    return loss


def make_agent(
    network: Network, config: PddDqnConfig, replay: Replay | None = None
) -> learner.Agent:
    """PDD DQN on `network`, learning from `replay`."""
    return learner.make_agent(network, config, replay, loss=make_loss(network, config))
