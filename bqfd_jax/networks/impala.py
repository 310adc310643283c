"""The residual torso of agents that learn much from few steps, on accelerators."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from bqfd_jax.types import Array

_STAGES = (16, 32, 32)  # features of each, times the width


class ImpalaTorso(nn.Module):
    """Three stages of residual blocks on `[B, 4, 84, 84]` uint8 stacks.

    Espeholt et al.: "IMPALA" (2018), widened as in Schwarzer et al.: "Bigger, Better, Faster"
    (2023), which has a width of 4.
    """

    width: int = 4
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        x = jnp.moveaxis(observation, 1, -1).astype(self.dtype) / 255.0
        for features in _STAGES:
            x = self._convolve(x, self.width * features)
            x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
            for _ in range(2):
                inner = self._convolve(nn.relu(x), self.width * features)
                x += self._convolve(nn.relu(inner), self.width * features)
        return nn.relu(x).reshape(x.shape[0], -1).astype(jnp.float32)

    def _convolve(self, x: Array, features: int) -> Array:
        return nn.Conv(features, (3, 3), dtype=self.dtype)(x)
