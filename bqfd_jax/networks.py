"""Q-networks in flax linen: torsos, the dueling head, and ensembles of whole networks.

A network maps observations `[B, S, *frame_shape]` to Q-values `[B, A]`, an ensemble of K to
`[B, K, A]`.  Any module or pair of functions with these shapes can stand in for them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bqfd_jax.types import Array, Params

Encoder = Callable[[Array], Array]


def scale_gradient(x: Array, scale: float) -> Array:
    """`x` itself, with gradients through it multiplied by `scale`."""
    # The second term is zero to the bit, so the value is `x` exactly.
    return x + (scale - 1.0) * (x - jax.lax.stop_gradient(x))


class MLPTorso(nn.Module):
    """Dense layers with ReLU on a flattened observation."""

    sizes: Sequence[int] = (64, 64)
    encode: Encoder | None = None  # what turns frames into features, e.g. a one-hot code
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        x = observation if self.encode is None else self.encode(observation)
        x = x.reshape(x.shape[0], -1).astype(jnp.float32)
        for size in self.sizes:
            x = nn.relu(nn.Dense(size, bias_init=self.bias_init)(x))
        return x


# What flax says of a plain convolution; what is not listed does not change its result.
_USUAL = {"lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "feature_group_count": 1}


def convolve(
    x: Array, kernel: Array, window_strides: Sequence[int], padding: str, **options: Any
) -> Array:
    """`jax.lax.conv_general_dilated`, but by matrix products where the device is a CPU.

    XLA's own convolutions, and still more their gradients, are slow there.

    Args:
      x: `[B, H, W, C]`.
      kernel: `[k, k, C, F]`, where the stride divides k.
      window_strides: twice the same.
      padding: "VALID".
      **options: what else flax gives; used as it is on other devices.

    Returns:
      `[B, H', W', F]`.
    """
    stride = window_strides[0]
    size = kernel.shape[0]
    if padding != "VALID" or set(window_strides) != {stride} or size % stride:
        raise ValueError(
            f"a kernel of {kernel.shape[:2]} with strides {window_strides} and padding {padding} "
            "is not supported: padding must be VALID and one stride must divide the size"
        )

    unusual = {name: value for name, value in options.items() if value != _USUAL.get(name, value)}
    if unusual:
        raise ValueError(f"convolutions with {unusual} are not supported")

    def natively(x: Array, kernel: Array) -> Array:
        return jax.lax.conv_general_dilated(x, kernel, window_strides, padding, **options)

    def by_products(x: Array, kernel: Array) -> Array:
        blocks = size // stride
        x = _to_depth(x, stride)
        parts = kernel.reshape(blocks, stride, blocks, stride, *kernel.shape[2:])
        parts = parts.transpose(0, 2, 1, 3, 4, 5).reshape(blocks, blocks, -1, kernel.shape[-1])
        return _convolve_blocks(x, parts)

    return jax.lax.platform_dependent(x, kernel, cpu=by_products, default=natively)


def _to_depth(x: Array, block: int) -> Array:
    """Blocks of pixels become channels: `[B, H, W, C]` -> `[B, H/b, W/b, b*b*C]`."""
    B, H, W, C = x.shape
    h, w = H // block, W // block
    x = x[:, : h * block, : w * block].reshape(B, h, block, w, block, C)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(B, h, w, -1)


def _convolve_blocks(x: Array, kernel: Array) -> Array:
    """A convolution of stride 1, `[B, H, W, C]` with `[n, n, C, F]`, as matrix products."""
    n, _, C, F = kernel.shape
    h, w = x.shape[1] - n + 1, x.shape[2] - n + 1
    offsets = [(i, j) for i in range(n) for j in range(n)]
    if n <= 2:
        # Multiply by all parts of the kernel at once, and add what comes of it, shifted.
        y = (x @ kernel.transpose(2, 0, 1, 3).reshape(C, n * n * F)).reshape(*x.shape[:3], n, n, F)
        return sum(y[:, i : i + h, j : j + w, i, j] for i, j in offsets)
    # With larger ones most of that would be thrown away at the borders: gather first.
    patches = jnp.concatenate([x[:, i : i + h, j : j + w] for i, j in offsets], axis=-1)
    return patches @ kernel.reshape(n * n * C, F)


class NatureTorso(nn.Module):
    """The three convolutions of Mnih et al. (2015) on `[B, 4, 84, 84]` uint8 stacks."""

    convolve: Callable[..., Array] = convolve

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        x = jnp.moveaxis(observation, 1, -1).astype(jnp.float32) / 255.0
        for features, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            conv = nn.Conv(
                features,
                (kernel, kernel),
                (stride, stride),
                padding="VALID",
                conv_general_dilated=self.convolve,
            )
            x = nn.relu(conv(x))
        return x.reshape(x.shape[0], -1)


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
        x = scale_gradient(features, self.torso_gradient_scale)
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


class Network(NamedTuple):
    """A network as two pure functions; this is all that agents know of it."""

    init: Callable[[Array, Array], Params]  # (key, observation [B, ...]) -> params
    apply: Callable[[Params, Array], Array]  # (params, observation [B, ...]) -> Q-values


def from_flax(module: nn.Module) -> Network:
    """The two functions of a flax module."""
    return Network(init=module.init, apply=module.apply)


def ensemble(network: Network, size: int, *, prior_scale: float = 0.0) -> Network:
    """K separate networks, Q-values `[B, K, A]`, each with an optional fixed random prior.

    Osband et al.: "Deep Exploration via Bootstrapped DQN" (2016) and "Randomized Prior Functions
    for Deep Reinforcement Learning" (2018): member k is `f_k(x) + prior_scale p_k(x)`, where p_k
    keeps its initial weights because no gradient reaches them.
    """
    if size < 1:
        raise ValueError(f"an ensemble needs at least one member, got {size}")

    def init_members(key: Array, observation: Array) -> Params:
        return jax.vmap(network.init, in_axes=(0, None))(jax.random.split(key, size), observation)

    def init(key: Array, observation: Array) -> Params:
        members_key, prior_key = jax.random.split(key)
        params = {"members": init_members(members_key, observation)}
        if prior_scale:
            params["prior"] = init_members(prior_key, observation)
        return params

    def apply(params: Params, observation: Array) -> Array:
        apply_members = jax.vmap(network.apply, in_axes=(0, None), out_axes=1)
        q = apply_members(params["members"], observation)
        if prior_scale:
            prior = jax.lax.stop_gradient(apply_members(params["prior"], observation))
            q += prior_scale * prior
        return q

    return Network(init=init, apply=apply)


def deep_sea_network(
    *, encode: Encoder, torso: Sequence[int] = (64, 64), hidden: int = 256, num_actions: int = 2
) -> Network:
    """The paper's DeepSea network: two dense layers, then streams of 256 units.

    The widths of the first two layers are not in the paper.
    """
    return from_flax(QNetwork(MLPTorso(tuple(torso), encode), num_actions, hidden))


def atari_network(
    num_actions: int, *, hidden: int = 512, convolve: Callable[..., Array] = convolve
) -> Network:
    """The paper's Atari network: Nature's convolutions under a dueling head."""
    return from_flax(QNetwork(NatureTorso(convolve), num_actions, hidden))
