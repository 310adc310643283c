"""Torsos: what turns observations `[B, S, *frame_shape]` into features `[B, F]`.

Parameters and features are float32.  What lies between may be bfloat16 (`dtype`), half as large and
what accelerators multiply fastest.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bqfd_jax.types import Array

Encoder = Callable[[Array], Array]
Layers = Sequence[tuple[Array, Array]]  # kernels and biases


class MLPTorso(nn.Module):
    """Dense layers with ReLU on a flattened observation."""

    sizes: Sequence[int] = (64, 64)
    encode: Encoder | None = None  # what turns frames into features, e.g. a one-hot code
    bias_init: nn.initializers.Initializer = nn.initializers.zeros
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        x = observation if self.encode is None else self.encode(observation)
        x = x.reshape(x.shape[0], -1).astype(self.dtype)
        for size in self.sizes:
            x = nn.relu(nn.Dense(size, bias_init=self.bias_init, dtype=self.dtype)(x))
        return x.astype(jnp.float32)


class NatureTorso(nn.Module):
    """The three convolutions of Mnih et al. (2015) on `[B, 4, 84, 84]` uint8 stacks."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        layers = [
            _Layer((8, 8, observation.shape[1], 32), name="Conv_0")(),
            _Layer((4, 4, 32, 64), name="Conv_1")(),
            _Layer((3, 3, 64, 64), name="Conv_2")(),
        ]

        def torso(layers: Layers, observation: Array) -> Array:
            x = jnp.moveaxis(observation, 1, -1).astype(self.dtype) / 255.0
            for (kernel, bias), stride in zip(layers, (4, 2, 1), strict=True):
                x = nn.relu(_convolve(x, kernel, stride, "VALID") + bias.reshape(1, 1, 1, -1))
            return x.reshape(x.shape[0], -1)

        return _by_platform(torso, layers, observation, self.dtype)


class PatchTorso(nn.Module):
    """Two convolutions with 5 x 5 kernels and stride 5 on `[B, 4, 84, 84]` uint8 stacks.

    The small torso of van Hasselt et al.: "When to use parametric models in reinforcement
    learning?" (2019), for agents that learn from few steps; about a quarter of Nature's work.
    """

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        layers = [
            _Layer((5, 5, observation.shape[1], 32), name="Conv_0")(),
            _Layer((5 * 5 * 32, 64), name="Dense_0")(),
        ]

        def torso(layers: Layers, observation: Array) -> Array:
            (kernel, bias), (matrix, matrix_bias) = layers
            x = jnp.moveaxis(observation, 1, -1).astype(self.dtype) / 255.0
            x = nn.relu(_convolve(x, kernel, 5, "SAME") + bias.reshape(1, 1, 1, -1))
            # With a stride as wide as its kernel a convolution is one matrix product over patches,
            # whose gradients are cheaper on a CPU.
            x = _patches(x, 5)
            x = nn.relu(x.reshape(-1, x.shape[-1]) @ matrix + matrix_bias.reshape(1, -1))
            return x.reshape(observation.shape[0], -1)

        return _by_platform(torso, layers, observation, self.dtype)


class OverlapTorso(nn.Module):
    """Nature's three convolutions with 16, 32 and 32 features, on `[B, 4, 84, 84]` uint8 stacks.

    As cheap as `PatchTorso`, but its patches overlap, so that it sees where small things are.  The
    features of every place are standardised (Ba et al.: "Layer Normalization", 2016): without that,
    a ball of two pixels is lost among what fills the screen.
    """

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        layers = [
            _Layer((8, 8, observation.shape[1], 16), name="Conv_0")(),
            _Layer((4, 4, 16, 32), name="Conv_1")(),
            _Layer((3, 3, 32, 32), name="Conv_2")(),
        ]

        def torso(layers: Layers, observation: Array) -> Array:
            x = jnp.moveaxis(observation, 1, -1).astype(self.dtype) / 255.0
            for (kernel, bias), stride in zip(layers, (4, 2, 1), strict=True):
                x = nn.standardize(_convolve(x, kernel, stride, "VALID"), epsilon=1e-6)
                x = nn.relu(x + bias.reshape(1, 1, 1, -1))
            return x.reshape(x.shape[0], -1)

        return _by_platform(torso, layers, observation, self.dtype)


class ImageTorso(nn.Module):
    """Convolutions with 3 x 3 kernels on `[B, C, H, W]` of any size.

    Large images are halved until little is left; small ones, where every cell counts, never.
    """

    scale: float = 1.0  # what the values are divided by
    features: Sequence[int] = (16, 32)
    large: int = 16  # a side longer than this is halved
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, image: Array) -> Array:  # noqa: D102
        x = jnp.moveaxis(image, 1, -1).astype(self.dtype) / self.scale
        for features in self.features:
            x = nn.relu(nn.Conv(features, (3, 3), self._strides(x), dtype=self.dtype)(x))
        while max(x.shape[1:3]) > self.large:
            last = self.features[-1]
            x = nn.relu(nn.Conv(last, (3, 3), self._strides(x), dtype=self.dtype)(x))
        return x.reshape(x.shape[0], -1).astype(jnp.float32)

    def _strides(self, x: Array) -> tuple[int, ...]:
        return tuple(2 if side > self.large else 1 for side in x.shape[1:3])


class GridTorso(nn.Module):
    """One convolution with 3 x 3 kernels and a dense layer, on small `[B, C, H, W]` of 0 and 1.

    The network of Young and Tian: "MinAtar" (2019), where the dense layer has 128 units.
    """

    scale: float = 1.0  # what the values are divided by
    features: int = 16
    width: int = 64

    @nn.compact
    def __call__(self, image: Array) -> Array:  # noqa: D102
        channels, height, width = image.shape[1:]
        kernel, bias = _Layer((9 * channels, self.features), name="Conv_0")()
        x = jnp.moveaxis(image, 1, -1).astype(jnp.float32) / self.scale
        # As a matrix product over patches: its gradients are cheaper on a CPU.
        shifted = [x[:, i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3)]
        x = nn.relu(jnp.concatenate(shifted, axis=-1) @ kernel + bias.reshape(1, 1, 1, -1))
        return nn.relu(nn.Dense(self.width)(x.reshape(x.shape[0], -1)))


class PooledTorso(nn.Module):
    """A coarse view of `[B, C, H, W]`: means over squares; there is nothing to learn in it."""

    scale: float = 1.0  # what the values are divided by
    sides: int = 12  # squares along the longer side, at most

    @nn.compact
    def __call__(self, image: Array) -> Array:  # noqa: D102
        batch, channels, height, width = image.shape
        square = -(-max(height, width) // self.sides)
        # What lies beyond the edge counts as zeros.
        beyond = ((0, 0), (0, 0), (0, -height % square), (0, -width % square))
        x = jnp.pad(image, beyond)
        rows, columns = x.shape[2] // square, x.shape[3] // square
        x = x.reshape(batch, channels, rows, square, columns, square).astype(jnp.float32)
        return jnp.mean(x, axis=(3, 5)).reshape(batch, -1) / self.scale


class StackedImages(nn.Module):
    """Lays the frames of a stack, and their colours, upon each other for a torso of images.

    From `[B, S, H, W]`, `[B, S, H, W, C]` or `[B, S, C, H, W]` to `[B, S C, H, W]`; the shorter of
    the first and the last axis of a frame are its colours.
    """

    torso: nn.Module

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        if observation.ndim == 5:
            if observation.shape[2] > observation.shape[4]:
                observation = jnp.moveaxis(observation, 4, 2)
            observation = observation.reshape(
                observation.shape[0], -1, observation.shape[3], observation.shape[4]
            )
        return self.torso(observation)


def _patches(x: Array, size: int) -> Array:
    """Cuts `[B, H, W, C]` into `[B, ceil(H / size), ceil(W / size), size size C]`, zeros beyond."""
    batch, height, width, channels = x.shape
    rows, columns = -(-height // size), -(-width // size)
    beyond = ((0, 0), (0, rows * size - height), (0, columns * size - width), (0, 0))
    x = jnp.pad(x, beyond).reshape(batch, rows, size, columns, size * channels)
    # As XLA copies slices faster than it transposes.
    x = jnp.stack([x[:, :, row] for row in range(size)], axis=3)
    return x.reshape(batch, rows, columns, -1)


class _Layer(nn.Module):
    """Kernel and bias of a layer, named and drawn like those of `nn.Conv` and `nn.Dense`."""

    shape: tuple[int, ...]

    @nn.compact
    def __call__(self) -> tuple[Array, Array]:
        kernel = self.param("kernel", nn.initializers.lecun_normal(), self.shape)
        return kernel, self.param("bias", nn.initializers.zeros, self.shape[-1:])


def _convolve(x: Array, kernel: Array, stride: int, padding: str) -> Array:
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


_CHUNK, _MOST_CHUNKS = 8, 4


def _by_platform(
    torso: Callable[[Layers, Array], Array], layers: Layers, observation: Array, dtype: Any
) -> Array:
    """Applies a torso to all of a batch, and on a CPU to parts of it side by side.

    There a convolution runs on one core, so that the others need convolutions of their own; and
    what a few frames become on their way through the layers stays in the cache.
    """

    def in_chunks(layers: Layers, observation: Array) -> Array:
        count = max(1, min(_MOST_CHUNKS, observation.shape[0] // _CHUNK))
        chunks = jnp.array_split(observation, count)
        return jnp.concatenate([torso(layers, chunk) for chunk in chunks])

    layers = jax.tree.map(lambda parameter: parameter.astype(dtype), layers)
    features = jax.lax.platform_dependent(layers, observation, cpu=in_chunks, default=torso)
    return features.astype(jnp.float32)
