"""Networks put together for what is seen, given by the user, or described by a policy file.

A network maps observations `[B, S, *frame_shape]` to Q-values `[B, A]`, an ensemble of K to
`[B, K, A]`.  Any module or pair of functions with these shapes can stand in for them.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks
from bqfd_jax.networks.impala import ImpalaTorso
from bqfd_jax.networks.members import (
    Network,
    dense_network,
    ensemble,
    from_flax,
    image_network,
    prior_ensemble,
)
from bqfd_jax.networks.torsos import (
    Encoder,
    GridTorso,
    ImageTorso,
    MLPTorso,
    NatureTorso,
    OverlapTorso,
    PatchTorso,
    StackedImages,
)


def deep_sea_network(
    *, encode: Encoder, torso: Sequence[int] = (64, 64), hidden: int = 256, num_actions: int = 2
) -> Network:
    """The paper's DeepSea network: two dense layers, then streams of 256 units.

    The widths of the first two layers are not in the paper.
    """
    return dense_network(MLPTorso(tuple(torso), encode), num_actions, hidden)


ATARI_TORSOS = {
    "nature": NatureTorso,
    "patch": PatchTorso,
    "overlap": OverlapTorso,
    "impala": ImpalaTorso,
}
TORSO_DTYPES = ("float32", "bfloat16")


def atari_network(
    num_actions: int,
    *,
    hidden: int = 512,
    torso: str = "nature",
    torso_dtype: str = "float32",
    layer_norm: bool = False,
    zero_values: bool = False,
    torso_width: int = 4,
) -> Network:
    """The paper's Atari network, Nature's convolutions under a dueling head; or a smaller one.

    The torsos `patch` and `overlap` do about a quarter of the work; `hidden` is the width of the
    streams, `torso_dtype` what the torso computes in, and `layer_norm` standardises the streams.
    With `zero_values` all Q-values of a new network are 0; not for `ensemble`, whose members and
    priors would all be alike.
    `impala` is for accelerators, and the only one that `torso_width` widens.
    """
    checks.one_of(ATARI_TORSOS, torso=torso)
    checks.one_of(TORSO_DTYPES, torso_dtype=torso_dtype)
    checks.at_least(1, torso_width=torso_width)
    options = {"width": torso_width} if torso == "impala" else {}
    made = ATARI_TORSOS[torso](dtype=jnp.dtype(torso_dtype), **options)
    return image_network(made, num_actions, hidden, layer_norm=layer_norm, zero_values=zero_values)


def grid_network(num_actions: int, *, width: int = 64) -> Network:
    """For MinAtar and its like: a few channels of zeros and ones, on a grid of some ten cells.

    `width` is that of the dense layer and of the value and advantage streams.
    """
    return image_network(StackedImages(GridTorso(width=width)), num_actions, width)


def for_observation(
    frame_shape: tuple[int, ...],
    frame_dtype: Any,
    num_actions: int,
    *,
    stack: int = 1,
    hidden: int = 0,
    scale: float = 0.0,
    torso_dtype: str = "float32",
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
      torso_dtype: what the torso computes in, `float32` or `bfloat16`.
    """
    if not 1 <= len(frame_shape) <= 3:
        raise ValueError(
            f"frames are {list(frame_shape)}, but a network is chosen for vectors and images only; "
            "give your own"
        )
    checks.at_least(1, stack=stack)
    checks.at_least(0, hidden=hidden, scale=scale)
    checks.one_of(TORSO_DTYPES, torso_dtype=torso_dtype)
    dtype = jnp.dtype(torso_dtype)
    if len(frame_shape) == 1:
        width = hidden or 128
        return dense_network(MLPTorso((width, width), dtype=dtype), num_actions, width)
    is_bytes = np.dtype(frame_dtype) == np.uint8
    sides = sorted(frame_shape)[-2:]
    if is_bytes and sides == [84, 84] and not scale:
        nature = StackedImages(NatureTorso(dtype=dtype))
        return image_network(nature, num_actions, hidden or 512)
    torso = ImageTorso(scale=scale or (255.0 if is_bytes else 1.0), dtype=dtype)
    return image_network(StackedImages(torso), num_actions, hidden or 128)


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


def own_network(
    network: Any, *, num_actions: int, frame_shape: tuple[int, ...], frame_dtype: Any, stack: int
) -> Network:
    """Someone's own network, checked; without stacks it need not know of their axis."""
    made = as_network(network)
    if stack == 1:
        given = made
        made = Network(
            init=lambda key, observation: given.init(key, observation[:, 0]),
            apply=lambda params, observation: given.apply(params, observation[:, 0]),
        )
    shown = [1, *frame_shape] if stack == 1 else [1, stack, *frame_shape]
    try:
        q = jax.eval_shape(
            lambda observation: made.apply(made.init(jax.random.key(0), observation), observation),
            jnp.zeros((1, stack, *frame_shape), frame_dtype),
        )
    except Exception as error:
        raise ValueError(
            f"the network cannot be applied to observations {shown}: {error}"
        ) from error
    if getattr(q, "shape", None) != (1, num_actions):
        found = f"{q.dtype}{list(q.shape)}" if hasattr(q, "shape") else f"a {type(q).__name__}"
        raise ValueError(
            f"the network gives {found} for observations {shown}, but must give Q-values "
            f"[1, {num_actions}]"
        )
    return made


def described_network(
    made_with: dict[str, Any],
    *,
    num_actions: int,
    frame_shape: tuple[int, ...],
    frame_dtype: Any,
    stack: int,
) -> Network:
    """The network that a policy file describes, as an ensemble if `made_with` has a size."""
    names = ("hidden", "scale", "torso", "torso_dtype", "torso_width", "layer_norm")
    options = {name: made_with[name] for name in names if name in made_with}
    if "torso" in options:
        network = atari_network(num_actions, **options)
    else:
        network = for_observation(frame_shape, frame_dtype, num_actions, stack=stack, **options)
    return as_ensemble(network, made_with)


def as_ensemble(network: Network, made_with: dict[str, Any]) -> Network:
    """An ensemble of a network if `made_with` has a size, otherwise the network."""
    if "size" not in made_with:
        return network
    if made_with.get("prior") == "scaled":
        return prior_ensemble(network, made_with["size"])
    return ensemble(network, made_with["size"], prior_scale=made_with["prior_scale"])
