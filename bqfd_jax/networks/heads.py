"""Heads: from features `[B, F]` to Q-values `[B, A]`, or to those of K members, `[B, K, A]`."""

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


class DuelingHeads(nn.Module):
    """K dueling heads on the same features; one matrix product makes the streams of all.

    What they send into the torso is the mean of their gradients: it learns as fast as under one.
    """

    num_actions: int
    size: int
    hidden: int
    torso_gradient_scale: float = 2**-0.5

    @nn.compact
    def __call__(self, features: Array) -> Array:  # noqa: D102
        x = optax.scale_gradient(features, self.torso_gradient_scale / self.size)
        streams = nn.relu(nn.Dense(2 * self.size * self.hidden, name="streams")(x))
        streams = streams.reshape(*streams.shape[:-1], self.size, 2 * self.hidden)
        value = self._linear("value", streams[..., : self.hidden], 1)
        advantage = self._linear("advantage", streams[..., self.hidden :], self.num_actions)
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)

    def _linear(self, name: str, x: Array, outputs: int) -> Array:
        """Each head's own layer, from `[B, K, hidden]` to `[B, K, outputs]`."""
        drawn = nn.initializers.lecun_normal(batch_axis=(0,))
        kernel = self.param(f"{name}_kernel", drawn, (self.size, self.hidden, outputs))
        bias = self.param(f"{name}_bias", nn.initializers.zeros, (self.size, outputs))
        return jnp.einsum("bkh,kho->bko", x, kernel) + bias[None]


class HeadsNetwork(nn.Module):
    """A torso and K dueling heads."""

    torso: nn.Module
    num_actions: int
    size: int
    hidden: int

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        features = self.torso(observation)
        return DuelingHeads(self.num_actions, self.size, self.hidden)(features)
