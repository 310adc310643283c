"""Bootstrapped DQN (Osband et al., 2016): deep exploration by following one of many networks."""

import jax
import jax.numpy as jnp

from bqfd_jax import losses
from bqfd_jax.agents import learner, td
from bqfd_jax.agents.config import BootstrappedConfig
from bqfd_jax.networks import Network, as_ensemble
from bqfd_jax.replay import Replay
from bqfd_jax.types import Array, Batch, LossOutput, Params

_MASK_SEED = 0


def bootstrap_mask(index: Array, *, size: int, probability: float) -> Array:
    """Which members learn from the rows `index` (`[B]`), `[B, K]` bool.

    A function of the row alone, so that a row belongs to the same members whenever it is drawn.
    """
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(_MASK_SEED), index)
    return jax.vmap(lambda key: jax.random.bernoulli(key, probability, (size,)))(keys)


def make_loss(members: Network, config: BootstrappedConfig) -> learner.Loss:
    """Each member's own double Q-learning loss on its share of the batch."""
    # over members, then over the batch
    td_error_of = jax.vmap(jax.vmap(losses.double_q_td_error, in_axes=(0, None, None, None, 0, 0)))

    def loss(params: Params, target_params: Params, batch: Batch) -> tuple[Array, LossOutput]:
        q_tm1 = members.apply(params, batch.observation)  # [B, K, A]
        mask = bootstrap_mask(
            batch.index, size=config.ensemble_size, probability=config.mask_probability
        )
        total, td_sizes = 0.0, []
        for look in td.lookaheads(members.apply, params, target_params, batch, config):
            td_error = td_error_of(q_tm1, batch.action, *look.target)
            error_loss = td.td_loss(td_error, huber_delta=config.huber_delta)
            # A sum over members: each gets the gradient it would get alone, but for clipping.
            total += look.weight * jnp.sum(mask * error_loss, axis=1)
            td_sizes.append(jnp.mean(jnp.abs(td_error), axis=1))
        output = LossOutput(td_error=td_sizes[0], metrics={"mean_q": jnp.mean(q_tm1)})
        return jnp.mean(batch.importance_weight * total), output

    return loss


def make_agent(
    network: Network, config: BootstrappedConfig, replay: Replay | None = None
) -> learner.Agent:
    """Bootstrapped DQN: `config.ensemble_size` copies of `network`, learning from `replay`."""
    members = as_ensemble(network, config.members)
    return learner.make_agent(members, config, replay, loss=make_loss(members, config))
