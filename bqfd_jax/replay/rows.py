"""Rows to transitions: frame stacks and n-step returns gathered from single observations.

All rows live in one array.  Demonstrations take `[0, E)`; each environment lane then owns a ring
of `rows_per_lane`.  A neighbour is looked up within its own region, and nothing is ever read
across the beginning or the end of an episode.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax.types import Array, Row


class Layout(NamedTuple):
    """Where rows lie; all static."""

    num_demo_rows: int
    num_lanes: int
    rows_per_lane: int
    spare_rows: int = 0  # at the end, never used

    @property
    def num_rows(self) -> int:
        """Rows in all."""
        return self.num_demo_rows + self.num_lanes * self.rows_per_lane + self.spare_rows


class Walk(NamedTuple):
    """A path of up to n steps from a row; entry k describes the moment after k steps."""

    index: Array  # [n + 1, B] int32, the row reached; stays where the episode ended
    n_step_return: Array  # [n + 1, B] float32, rewards on the way, discounted
    discount: Array  # [n + 1, B] float32, product of discounts on the way
    alive: Array  # [n + 1, B] bool, row k really lies k steps on in the same episode


def lane_index(layout: Layout, position: Array) -> Array:
    """Row of ring position `position` (`[]`) in every lane, `[L]` int32."""
    lanes = jnp.arange(layout.num_lanes, dtype=jnp.int32) * layout.rows_per_lane
    return layout.num_demo_rows + lanes + position


def neighbour(layout: Layout, index: Array, offset: int | Array) -> Array:
    """Row `offset` steps after `index` in its own region, which closes on itself."""
    E, M = layout.num_demo_rows, layout.rows_per_lane
    in_lane = jnp.maximum(index - E, 0)
    lane_row = E + in_lane - in_lane % M + (in_lane % M + offset) % M
    if E == 0:
        return lane_row
    return jnp.where(index < E, (index + offset) % E, lane_row)


def stack_index(rows: Row, layout: Layout, index: Array, stack: int) -> Array:
    """Rows of the `stack` frames that end at `index` (`[B]`), oldest first, `[B, stack]`.

    Before an episode's first frame that frame is repeated.
    """
    stacked = [index]
    for _ in range(stack - 1):
        oldest = stacked[0]
        before = neighbour(layout, oldest, -1)
        stacked.insert(0, jnp.where(rows.is_first[oldest], oldest, before))
    return jnp.stack(stacked, axis=-1)


def walk(rows: Row, layout: Layout, index: Array, steps: int) -> Walk:
    """Follows the transitions from `index` (`[B]`) for `steps`, or to the end of the episode."""
    start = Walk(
        index=index,
        n_step_return=jnp.zeros(index.shape, jnp.float32),
        discount=jnp.ones(index.shape, jnp.float32),
        alive=jnp.ones(index.shape, bool),
    )

    # All rows that a path may lead over are read at once: one by one, a gather would wait for
    # another at every step.
    ahead = neighbour(layout, index[None], jnp.arange(steps + 1)[:, None])
    passed, following = ahead[:-1], ahead[1:]
    read = (rows.is_last[passed], rows.reward[passed], rows.discount[passed])

    def advance(here: Walk, step: tuple[Array, ...]) -> tuple[Walk, Walk]:
        is_last, reward, discount, following, begins = step
        moves = here.alive & ~is_last
        alive = moves & ~begins
        there = Walk(
            index=jnp.where(alive, following, here.index),
            n_step_return=here.n_step_return + jnp.where(moves, here.discount * reward, 0.0),
            discount=here.discount * jnp.where(moves, discount, 1.0),
            alive=alive,
        )
        return there, there

    scan = functools.partial(jax.lax.scan, advance)
    # Without a loop there is no kernel per step; for a CPU, XLA takes seconds to compile that.
    _, path = jax.lax.platform_dependent(
        start,
        (*read, following, rows.is_first[following]),
        cpu=scan,
        default=functools.partial(scan, unroll=True),
    )
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, path)


def push_frame(stack: Array, frame: Array, is_first: Array) -> Array:
    """The stack an actor sees next; the same frames that `stack_index` gathers for that row.

    The stack is `[L, S, *frame_shape]`, oldest first, and the newest frame `[L, *frame_shape]`;
    `is_first`, `[L]` bool, says whether it begins an episode.
    """
    pushed = jnp.concatenate([stack[:, 1:], frame[:, None]], axis=1)
    repeated = jnp.broadcast_to(frame[:, None], stack.shape)
    return jnp.where(is_first.reshape(-1, *[1] * (stack.ndim - 1)), repeated, pushed)


# --- How frames lie: in whole tiles of 8 x 128 numbers, where that wastes little ---
#
# A TPU keeps the last two axes of an array in such tiles.  Frames of 84 x 84 do not fit into them:
# with a million of those, every update would copy all of them from one layout to another.

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
