"""Q-networks in flax linen: torsos, the dueling head, and ensembles of whole networks.

A network maps observations `[B, S, *frame_shape]` to Q-values `[B, A]`, an ensemble of K to
`[B, K, A]`.  Any module or pair of functions with these shapes can stand in for them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

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


class NatureTorso(nn.Module):
    """The three convolutions of Mnih et al. (2015) on `[B, 4, 84, 84]` uint8 stacks."""

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        x = jnp.moveaxis(observation, 1, -1).astype(jnp.float32) / 255.0
        for features, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            conv = nn.Conv(features, (kernel, kernel), (stride, stride), padding="VALID")
            x = nn.relu(conv(x))
        return x.reshape(x.shape[0], -1)


class PatchTorso(nn.Module):
    """Two convolutions with 5 x 5 kernels and stride 5 on `[B, 4, 84, 84]` uint8 stacks.

    The small torso of van Hasselt et al.: "When to use parametric models in reinforcement
    learning?" (2019), for agents that learn from few steps; about a quarter of Nature's work.
    """

    @nn.compact
    def __call__(self, observation: Array) -> Array:  # noqa: D102
        x = jnp.moveaxis(observation, 1, -1).astype(jnp.float32) / 255.0
        x = nn.relu(nn.Conv(32, (5, 5), (5, 5), padding="SAME")(x))
        # With a stride as wide as its kernel a convolution is one matrix product over patches,
        # whose gradients are cheaper on a CPU.
        x = nn.relu(nn.Dense(64)(_patches(x, 5)))
        return x.reshape(x.shape[0], -1)


def _patches(x: Array, size: int) -> Array:
    """Cuts `[B, H, W, C]` into `[B, ceil(H / size), ceil(W / size), size size C]`, zeros beyond."""
    batch, height, width, channels = x.shape
    rows, columns = -(-height // size), -(-width // size)
    beyond = ((0, 0), (0, rows * size - height), (0, columns * size - width), (0, 0))
    x = jnp.pad(x, beyond).reshape(batch, rows, size, columns, size, channels)
    return jnp.moveaxis(x, 3, 2).reshape(batch, rows, columns, -1)


class ImageTorso(nn.Module):
    """Convolutions with 3 x 3 kernels on `[B, C, H, W]` of any size.

    Large images are halved until little is left; small ones, where every cell counts, never.
    """

    scale: float = 1.0  # what the values are divided by
    features: Sequence[int] = (16, 32)
    large: int = 16  # a side longer than this is halved

    @nn.compact
    def __call__(self, image: Array) -> Array:  # noqa: D102
        x = jnp.moveaxis(image, 1, -1).astype(jnp.float32) / self.scale
        for features in self.features:
            x = nn.relu(nn.Conv(features, (3, 3), self._strides(x))(x))
        while max(x.shape[1:3]) > self.large:
            x = nn.relu(nn.Conv(self.features[-1], (3, 3), self._strides(x))(x))
        return x.reshape(x.shape[0], -1)

    def _strides(self, x: Array) -> tuple[int, ...]:
        return tuple(2 if side > self.large else 1 for side in x.shape[1:3])


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


ATARI_TORSOS = {"nature": NatureTorso, "patch": PatchTorso}


def atari_network(num_actions: int, *, hidden: int = 512, torso: str = "nature") -> Network:
    """The paper's Atari network, Nature's convolutions under a dueling head; or a smaller one.

    Args:
      num_actions: the game's actions.
      hidden: width of the value and advantage streams.
      torso: `nature`, or `patch` for about a quarter of its work.
    """
    if torso not in ATARI_TORSOS:
        raise ValueError(f"torso is {torso!r}, but must be one of {', '.join(ATARI_TORSOS)}")
    return from_flax(QNetwork(ATARI_TORSOS[torso](), num_actions, hidden))


def for_observation(
    frame_shape: tuple[int, ...],
    frame_dtype: Any,
    num_actions: int,
    *,
    stack: int = 1,
    hidden: int = 0,
    scale: float = 0.0,
) -> Network:
    """The network that fits what is seen, under a dueling head.

    Two dense layers for vectors, Nature's convolutions for images of 84 x 84 bytes, smaller ones
    for all other images.

    Args:
      frame_shape: of one frame: `[n]`, `[H, W]`, `[H, W, C]` or `[C, H, W]`.
      frame_dtype: its dtype.
      num_actions: of the environment.
      stack: frames per observation.
      hidden: width of the dense layers and of the value and advantage streams; 0 chooses 128 for
        vectors and small images, 512 for Nature's.
      scale: what images are divided by; 0 chooses 255 for bytes and 1 for all others.
    """
    if not 1 <= len(frame_shape) <= 3:
        raise ValueError(
            f"frames are {list(frame_shape)}, but a network is chosen for vectors and images only; "
            "give your own"
        )
    for name, value, least in (("stack", stack, 1), ("hidden", hidden, 0), ("scale", scale, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}, but must be at least {least}")
    if len(frame_shape) == 1:
        width = hidden or 128
        return from_flax(QNetwork(MLPTorso((width, width)), num_actions, width))
    is_bytes = np.dtype(frame_dtype) == np.uint8
    sides = sorted(frame_shape)[-2:]
    if is_bytes and sides == [84, 84] and not scale:
        return from_flax(QNetwork(StackedImages(NatureTorso()), num_actions, hidden or 512))
    torso = ImageTorso(scale=scale or (255.0 if is_bytes else 1.0))
    return from_flax(QNetwork(StackedImages(torso), num_actions, hidden or 128))


def as_network(network: Any) -> Network:
    """A `Network` from a flax module or a pair of functions `(init, apply)`."""
    if isinstance(network, Network):
        return network
    if isinstance(network, nn.Module):
        return from_flax(network)
    if isinstance(network, tuple) and len(network) == 2 and all(map(callable, network)):
        return Network(*network)
    raise ValueError(
        f"a network is a flax module or a pair of functions (init, apply), not {network!r}"
    )
