"""Heads: from features `[B, F]` to Q-values `[B, A]`."""

import flax.linen as nn
import jax.numpy as jnp
import optax

from bqfd_jax.types import Array


class DuelingHead(nn.Module):
    """Value and advantage streams, `q = v + a - mean(a)`.

    Wang et al.: "Dueling Network Architectures for Deep Reinforcement Learning" (2016), who scale
    the gradient that both streams send into the torso by 1 / sqrt(2).
    """

    num_actions: int
    hidden: int = 256
    torso_gradient_scale: float = 2**-0.5

    @nn.compact
    def __call__(self, features: Array) -> Array:  # noqa: D102
        x = optax.scale_gradient(features, self.torso_gradient_scale)
        # One wide layer is two streams side by side, and one matrix product instead of two.
        streams = nn.relu(nn.Dense(2 * self.hidden, name="streams")(x))
        value = nn.Dense(1, name="value")(streams[..., : self.hidden])
        advantage = nn.Dense(self.num_actions, name="advantage")(streams[..., self.hidden :])
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


class QNetwork(nn.Module):
    """A torso and the dueling head."""

    torso: nn.Module
    num_actions: int
    hidden: int = 256

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        return DuelingHead(self.num_actions, self.hidden)(self.torso(observation))
