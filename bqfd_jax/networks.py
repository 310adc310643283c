"""Q-networks in flax linen: torsos, the dueling head, and ensembles of whole networks.

A network maps observations `[B, S, *frame_shape]` to Q-values `[B, A]`, an ensemble of K to
`[B, K, A]`.  Any module or pair of functions with these shapes can stand in for them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
