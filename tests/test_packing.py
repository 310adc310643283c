import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax.replay import make_replay
from bqfd_jax.replay import rows as rows_lib
from bqfd_jax.types import Row


@pytest.mark.parametrize(
    ("frame_shape", "stored"),
    [
        # 7056 numbers are 6.9 tiles of 1024.
        ((84, 84), (56, 128)),
        ((84, 84, 3), (168, 128)),
        ((64, 64, 3), (96, 128)),
        ((8, 128), (8, 128)),
        # Whole tiles would be much larger than these.
        ((2,), (2,)),
        ((), ()),
        ((40, 40), (40, 40)),
    ],
)
def test_frames_are_stored_in_whole_tiles_where_little_is_wasted(frame_shape, stored):
    assert rows_lib.packed_shape(frame_shape) == stored
    frames = np.random.default_rng(0).integers(256, size=(3, 2, *frame_shape)).astype(np.uint8)
    packed = rows_lib.pack(frames, frame_shape)
    assert packed.shape == (3, 2, *stored)
    size = int(np.prod(frame_shape))
    flat = np.asarray(packed).reshape(6, -1)
    np.testing.assert_array_equal(flat[:, :size], frames.reshape(6, -1))
    np.testing.assert_array_equal(flat[:, size:], 0)
    unpacked = rows_lib.unpack(packed, frame_shape)
    assert unpacked.dtype == np.uint8
    np.testing.assert_array_equal(unpacked, frames)


def test_a_frame_of_another_size_is_not_padded():
    with pytest.raises(AssertionError, match="84"):
        rows_lib.pack(np.zeros((3, 42, 84), np.uint8), (84, 84))


def rows(frames):
    n = len(frames)
    return Row(
        frame=frames,
        action=np.zeros(n, np.int32),
        reward=np.zeros(n, np.float32),
        discount=np.full(n, 0.9, np.float32),
        is_first=np.arange(n) == 0,
        is_last=np.arange(n) == n - 1,
    )


def test_a_replay_of_atari_frames_is_packed_and_gives_them_back():
    frames = np.random.default_rng(0).integers(256, size=(16, 84, 84)).astype(np.uint8)
    replay = make_replay(
        frame_shape=(84, 84),
        frame_dtype=jnp.uint8,
        rows_per_lane=10,
        num_demo_rows=6,
        stack=2,
        n_step=2,
    )
    state = replay.init(rows(frames[:6]))
    add = jax.jit(replay.add, donate_argnums=0)
    for t in range(10):
        state = add(state, jax.tree.map(lambda x, t=t: x[t : t + 1], rows(frames[6:])))
    assert state.rows.frame.shape == (16, 56, 128)
    # 14 bytes of other fields, 16 leaves under one sum, a visit count per demonstration row
    assert replay.num_bytes == 16 * (7168 + 14) + (16 + 1) * 4 + 6 * 4

    batch = jax.jit(replay.sample, static_argnums=2)(jax.random.key(0), state, 64)
    first, index = np.array([0, 6])[(batch.index >= 6).astype(int)], np.asarray(batch.index)
    last = np.where(index >= 6, 15, 5)
    assert len(set(index.tolist())) > 8

    def stack_at(row):
        return np.stack([frames[np.maximum(row - 1, first)], frames[row]], axis=1)

    np.testing.assert_array_equal(batch.observation, stack_at(index))
    np.testing.assert_array_equal(batch.next_observation, stack_at(index + 1))
    np.testing.assert_array_equal(batch.n_step_observation, stack_at(np.minimum(index + 2, last)))
