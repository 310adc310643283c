"""Heads: from features `[B, F]` to Q-values `[B, A]`, or to those of K members, `[B, K, A]`."""

from typing import Any

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
    layer_norm: bool = False  # see `_streams`
    zero_values: bool = False  # see `_first_kernel`
    torso_gradient_scale: float = 2**-0.5

    @nn.compact
    def __call__(self, features: Array) -> Array:  # noqa: D102
        x = optax.scale_gradient(features, self.torso_gradient_scale)
        # One wide layer is two streams side by side, and one matrix product instead of two.
        streams = _streams(nn.Dense(2 * self.hidden, name="streams")(x), 1, self.layer_norm)
        drawn = {"kernel_init": _first_kernel(self.zero_values)}
        value = nn.Dense(1, name="value", **drawn)(streams[..., 0, 0, :])
        advantage = nn.Dense(self.num_actions, name="advantage", **drawn)(streams[..., 0, 1, :])
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


class QNetwork(nn.Module):
    """A torso and the dueling head."""

    torso: nn.Module
    num_actions: int
    hidden: int = 256
    layer_norm: bool = False
    zero_values: bool = False

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        features = self.torso(observation)
        how = (self.layer_norm, self.zero_values)
        return DuelingHead(self.num_actions, self.hidden, *how)(features)


class DuelingHeads(nn.Module):
    """K dueling heads on the same features; one matrix product makes the streams of all.

    What they send into the torso is the mean of their gradients: it learns as fast as under one.
    """

    num_actions: int
    size: int
    hidden: int
    layer_norm: bool = False
    zero_values: bool = False
    torso_gradient_scale: float = 2**-0.5

    @nn.compact
    def __call__(self, features: Array) -> Array:  # noqa: D102
        x = optax.scale_gradient(features, self.torso_gradient_scale / self.size)
        streams = nn.Dense(2 * self.size * self.hidden, name="streams")(x)
        streams = _streams(streams, self.size, self.layer_norm)
        value = self._linear("value", streams[..., 0, :], 1)
        advantage = self._linear("advantage", streams[..., 1, :], self.num_actions)
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)

    def _linear(self, name: str, x: Array, outputs: int) -> Array:
        """Each head's own layer, from `[B, K, hidden]` to `[B, K, outputs]`."""
        drawn = _first_kernel(self.zero_values, batch_axis=(0,))
        kernel = self.param(f"{name}_kernel", drawn, (self.size, self.hidden, outputs))
        bias = self.param(f"{name}_bias", nn.initializers.zeros, (self.size, outputs))
        return jnp.einsum("bkh,kho->bko", x, kernel) + bias[None]


class HeadsNetwork(nn.Module):
    """A torso and K dueling heads."""

    torso: nn.Module
    num_actions: int
    size: int
    hidden: int
    layer_norm: bool = False
    zero_values: bool = False

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        features = self.torso(observation)
        how = (self.layer_norm, self.zero_values)
        return DuelingHeads(self.num_actions, self.size, self.hidden, *how)(features)


def _streams(x: Array, size: int, layer_norm: bool) -> Array:
    """From a wide layer `[B, K 2 hidden]` to value and advantage streams, `[B, K, 2, hidden]`.

    Each is standardised before its ReLU if asked for (Ba et al.: "Layer Normalization", 2016): what
    is learnt from the same rows again and again then neither grows nor dies.
    """
    x = x.reshape(*x.shape[:-1], size, 2, -1)
    return nn.relu(nn.standardize(x, epsilon=1e-6) if layer_norm else x)


def _first_kernel(zero_values: bool, **options: Any) -> nn.initializers.Initializer:
    """How the last layers begin: at zero, so that all Q-values do, or as layers usually do.

    A constant that the first updates make of what a new network says is forgotten only as fast as
    values travel back: by `gamma ** n` each time that the target network has followed.
    """
    return nn.initializers.zeros if zero_values else nn.initializers.lecun_normal(**options)
