"""How frames lie in the replay: as whole tiles of 8 x 128 numbers, where that wastes little.

A TPU keeps the last two axes of an array in such tiles.  Frames of 84 x 84 do not fit into them:
with a million of those, every update would copy all of them from one layout to another.
"""

import chex
import jax.numpy as jnp
import numpy as np

from bqfd_jax.types import Array

_TILE_ROWS, _TILE_COLUMNS = 8, 128
_MOST_WASTE = 1 / 32  # of a frame's own size


def packed_shape(frame_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that one frame is stored in; its own, if whole tiles would waste too much."""
    size = int(np.prod(frame_shape, dtype=np.int64))
    tiles = -(-size // (_TILE_ROWS * _TILE_COLUMNS))
    packed = (tiles * _TILE_ROWS, _TILE_COLUMNS)
    return packed if np.prod(packed) - size <= _MOST_WASTE * size else tuple(frame_shape)


def pack(frames: Array, frame_shape: tuple[int, ...]) -> Array:
    """From `[..., *frame_shape]` to `[..., *packed_shape]`, with zeros at the end."""
    chex.assert_shape(frames, (..., *frame_shape))
    packed = packed_shape(frame_shape)
    if packed == tuple(frame_shape):
        return frames
    leading = frames.shape[: frames.ndim - len(frame_shape)]
    flat = frames.reshape(*leading, -1)
    beyond = int(np.prod(packed)) - flat.shape[-1]
    return jnp.pad(flat, [(0, 0)] * len(leading) + [(0, beyond)]).reshape(*leading, *packed)


def unpack(stored: Array, frame_shape: tuple[int, ...]) -> Array:
    """From `[..., *packed_shape]` to `[..., *frame_shape]`."""
    if packed_shape(frame_shape) == tuple(frame_shape):
        return stored
    leading = stored.shape[:-2]
    flat = stored.reshape(*leading, -1)[..., : int(np.prod(frame_shape))]
    return flat.reshape(*leading, *frame_shape)
