"""Deep Q-learning from demonstrations (Hester et al., 2017)."""

import functools

import jax
import jax.numpy as jnp

from bqfd_jax import losses
from bqfd_jax.agents import learner, pdd_dqn
from bqfd_jax.agents.config import DqfdConfig
from bqfd_jax.networks import Network
from bqfd_jax.replay import Replay
from bqfd_jax.types import Array, Batch, LossOutput, Params


def make_loss(network: Network, config: DqfdConfig) -> learner.Loss:
    """PDD DQN's loss, the large margin on demonstrations, and L2 on all parameters."""
    td_loss = pdd_dqn.make_loss(network, config)
    margin_loss = jax.vmap(functools.partial(losses.large_margin_loss, margin=config.margin))

    def loss(params: Params, target_params: Params, batch: Batch) -> tuple[Array, LossOutput]:
        # The second forward pass of the same observations is merged with the first by XLA.
        q_tm1 = network.apply(params, batch.observation)
        total, output = td_loss(params, target_params, batch)
        margins = jnp.where(batch.is_expert, margin_loss(q_tm1, batch.action), 0.0)
        margin = jnp.mean(batch.importance_weight * margins)
        squares = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params))
        total += config.margin_weight * margin + config.l2_weight * squares
        return total, output.replace(metrics={**output.metrics, "margin_loss": margin})

    return loss


def make_agent(network: Network, config: DqfdConfig, replay: Replay | None = None) -> learner.Agent:
    """DQfD on `network`, learning from `replay`."""

    def priority(td_size: Array, is_expert: Array, step: Array) -> Array:
        del step
        return td_size + jnp.where(is_expert, config.demo_priority_bonus, config.priority_epsilon)

    loss = make_loss(network, config)
    return learner.make_agent(network, config, replay, loss=loss, priority=priority)
