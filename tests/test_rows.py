"""Stacks and walks over rows whose frames say (region, episode, step)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax.replay import rows as rows_lib
from bqfd_jax.types import Row

SIZE = 8  # rows of each region
LAYOUT = rows_lib.Layout(num_demo_rows=SIZE, num_lanes=2, rows_per_lane=SIZE)
REGIONS = {"demonstrations": 0, "lane 0": SIZE, "lane 1": 2 * SIZE}
ABSURD = 1e9
FIRST, LAST = "first", "last"

walk = jax.jit(lambda rows, index: rows_lib.walk(rows, LAYOUT, index, 4))
stack_index = jax.jit(lambda rows, index: rows_lib.stack_index(rows, LAYOUT, index, 4))
push_frame = jax.jit(rows_lib.push_frame)

everywhere = pytest.mark.parametrize("region", REGIONS)
turned = pytest.mark.parametrize("start", [0, 3, 5, SIZE - 1])


def place(region, start, *table):
    """Rows (reward, discount, *marks) in a row from `start` on; absurd ones everywhere else."""
    R = LAYOUT.num_rows
    reward, discount = np.full((2, R), ABSURD, np.float32)
    is_first, is_last = np.zeros((2, R), bool)
    where = REGIONS[region] + (start + np.arange(len(table))) % SIZE
    for row, (r, d, *marks) in zip(where, table, strict=True):
        reward[row], discount[row] = r, d
        is_first[row], is_last[row] = FIRST in marks, LAST in marks
    rows = Row(
        frame=np.arange(R),
        action=np.zeros(R, np.int32),
        reward=reward,
        discount=discount,
        is_first=is_first,
        is_last=is_last,
    )
    return rows, where


def test_regions_lie_one_after_the_other():
    assert LAYOUT.num_rows == 3 * SIZE
    np.testing.assert_array_equal(rows_lib.lane_index(LAYOUT, jnp.int32(3)), [11, 19])


@pytest.mark.parametrize("num_demo_rows", [0, 1, 5])
def test_a_neighbour_stays_in_its_region(num_demo_rows):
    layout = rows_lib.Layout(num_demo_rows, num_lanes=3, rows_per_lane=7)
    ends = np.cumsum([num_demo_rows, 7, 7, 7])
    regions = np.split(np.arange(layout.num_rows), ends[:-1])
    offsets = (-5, -1, 0, 1, 4)
    look_up = jax.jit(lambda index: [rows_lib.neighbour(layout, index, k) for k in offsets])
    for offset, found in zip(offsets, look_up(np.arange(layout.num_rows)), strict=True):
        expected = np.concatenate([np.roll(region, -offset) for region in regions])
        np.testing.assert_array_equal(found, expected)


def test_indices_hold_up_to_the_largest_layout():
    size = (2**31 - 2001) // 7
    layout = rows_lib.Layout(num_demo_rows=2000, num_lanes=7, rows_per_lane=size)
    assert 2**31 - 8 <= layout.num_rows < 2**31
    last = rows_lib.lane_index(layout, jnp.int32(size - 1))
    begin = np.asarray([2000 + lane * size for lane in range(7)])
    assert last.dtype == jnp.int32
    np.testing.assert_array_equal(last, begin + size - 1)
    np.testing.assert_array_equal(rows_lib.neighbour(layout, last, 4), begin + 3)
    np.testing.assert_array_equal(rows_lib.neighbour(layout, jnp.asarray(begin), -4), last - 3)
    np.testing.assert_array_equal(rows_lib.neighbour(layout, jnp.asarray([1999, 0]), 1), [0, 1])


@everywhere
@turned
def test_stacks_repeat_the_first_frame_and_stay_in_the_episode(region, start):
    step = (0, 1)
    rows, at = place(
        region, start, (0, 1, FIRST), step, step, step, step, (0, 0, FIRST), (0, 1, FIRST), step
    )
    expected = [
        [0, 0, 0, 0],
        [0, 0, 0, 1],
        [0, 0, 1, 2],
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [5, 5, 5, 5],  # an episode of one row
        [6, 6, 6, 6],
        [6, 6, 6, 7],
    ]
    np.testing.assert_array_equal(stack_index(rows, at), at[np.asarray(expected)])


@pytest.mark.parametrize("stack", [1, 2])
def test_stack_size(stack):
    rows, at = place("lane 0", 2, (0, 1, FIRST), (0, 1), (0, 1))
    found = jax.jit(lambda rows, at: rows_lib.stack_index(rows, LAYOUT, at, stack))(rows, at)
    expected = {1: [[0], [1], [2]], 2: [[0, 0], [0, 1], [1, 2]]}[stack]
    np.testing.assert_array_equal(found, at[np.asarray(expected)])


# What follows the rows of interest begins another episode and is worth an absurd amount.
NEXT = (ABSURD, ABSURD, FIRST)
WALKS = {
    "goes on": (
        [(1, 0.5, FIRST), (2, 0.5), (4, 0.25), (8, 0.5), (16, 0.5), NEXT],
        {"index": [0, 1, 2, 3, 4], "n_step_return": [0, 1, 2, 3, 3.5]},
        {"discount": [1, 0.5, 0.25, 0.0625, 0.03125], "alive": [1, 1, 1, 1, 1]},
    ),
    "terminates": (
        [(1, 0.5, FIRST), (2, 0.5), (4, 0), NEXT],
        {"index": [0, 1, 2, 2, 2], "n_step_return": [0, 1, 2, 3, 3]},
        {"discount": [1, 0.5, 0.25, 0, 0], "alive": [1, 1, 1, 0, 0]},
    ),
    "terminates at once": (
        [(1, 0, FIRST), NEXT],
        {"index": [0, 0, 0, 0, 0], "n_step_return": [0, 1, 1, 1, 1]},
        {"discount": [1, 0, 0, 0, 0], "alive": [1, 0, 0, 0, 0]},
    ),
    "terminates, with the terminal row": (
        [(1, 0.5, FIRST), (2, 0), (ABSURD, ABSURD, LAST), NEXT],
        {"index": [0, 1, 2, 2, 2], "n_step_return": [0, 1, 2, 2, 2]},
        {"discount": [1, 0.5, 0, 0, 0], "alive": [1, 1, 1, 0, 0]},
    ),
    "terminates on the last step": (
        [(1, 0.5, FIRST), (2, 0.5), (4, 0.5), (8, 0), NEXT],
        {"index": [0, 1, 2, 3, 3], "n_step_return": [0, 1, 2, 3, 4]},
        {"discount": [1, 0.5, 0.25, 0.125, 0], "alive": [1, 1, 1, 1, 0]},
    ),
    "is cut off": (
        [(1, 0.5, FIRST), (2, 0.25), (ABSURD, ABSURD, LAST), NEXT],
        {"index": [0, 1, 2, 2, 2], "n_step_return": [0, 1, 2, 2, 2]},
        {"discount": [1, 0.5, 0.125, 0.125, 0.125], "alive": [1, 1, 1, 0, 0]},
    ),
    "is cut off by a row of discount 0": (
        [(1, 0.5, FIRST), (ABSURD, 0, LAST), NEXT],
        {"index": [0, 1, 1, 1, 1], "n_step_return": [0, 1, 1, 1, 1]},
        {"discount": [1, 0.5, 0.5, 0.5, 0.5], "alive": [1, 1, 0, 0, 0]},
    ),
    "starts no transition": (
        [(ABSURD, ABSURD, FIRST, LAST), NEXT],
        {"index": [0, 0, 0, 0, 0], "n_step_return": [0, 0, 0, 0, 0]},
        {"discount": [1, 1, 1, 1, 1], "alive": [1, 0, 0, 0, 0]},
    ),
}


@everywhere
@turned
@pytest.mark.parametrize("case", WALKS)
def test_walk_by_hand(case, region, start):
    table, *parts = WALKS[case]
    expected = parts[0] | parts[1]
    rows, at = place(region, start, *table)
    path = walk(rows, at[:1])
    np.testing.assert_array_equal(path.index[:, 0], at[expected.pop("index")])
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(path, name)[:, 0], values, err_msg=name)
    assert [field.dtype for field in path[1:]] == [jnp.float32, jnp.float32, bool]


def test_an_episode_that_fills_the_demonstrations_does_not_go_on_where_it_began():
    rows, at = place("demonstrations", 0, (1, 0.5, FIRST), *[(1, 0.5)] * 6, (1, 0))
    path = walk(rows, at[-2:-1])
    np.testing.assert_array_equal(path.index[:, 0], at[[-2, -1, -1, -1, -1]])
    np.testing.assert_array_equal(path.n_step_return[-1], [1.5])
    np.testing.assert_array_equal(path.discount[-1], [0])


def test_pushed_frames_are_the_frames_that_the_replay_gathers():
    rng = np.random.default_rng(0)
    steps, lanes = 60, 2
    is_first = rng.random((steps, lanes)) < 0.25
    is_first[0] = True
    episode = np.cumsum(is_first, axis=0)
    lane, time = np.broadcast_arrays(np.arange(lanes), np.arange(steps)[:, None])
    frame = np.stack([lane, time, episode], axis=-1).astype(np.int32)  # [T, L, 3]

    layout = rows_lib.Layout(num_demo_rows=0, num_lanes=lanes, rows_per_lane=steps)
    by_lane = {"frame": frame, "is_first": is_first, "is_last": np.zeros_like(is_first)}
    by_lane |= {name: np.zeros((steps, lanes)) for name in ("action", "reward", "discount")}
    rows = Row(**{k: v.swapaxes(0, 1).reshape(-1, *v.shape[2:]) for k, v in by_lane.items()})
    gather = jax.jit(lambda rows, at: rows_lib.stack_index(rows, layout, at, 4))
    gathered = rows.frame[gather(rows, np.arange(layout.num_rows))].reshape(lanes, steps, 4, 3)

    stack = jnp.full((lanes, 4, 3), -1, jnp.int32)
    for t in range(steps):
        stack = push_frame(stack, frame[t], is_first[t])
        np.testing.assert_array_equal(stack, gathered[:, t])
    assert (gathered[..., 2] == gathered[:, :, :1, 2]).all()  # one episode per stack
    assert len(np.unique(np.diff(gathered[..., 1], axis=2))) == 2  # repeated, or one step on


def test_push_frame_keeps_images_and_their_dtype():
    stack = jnp.arange(2 * 3 * 4, dtype=jnp.uint8).reshape(2, 3, 2, 2)
    frame = jnp.full((2, 2, 2), 255, jnp.uint8)
    pushed = rows_lib.push_frame(stack, frame, jnp.asarray([False, True]))
    assert pushed.dtype == jnp.uint8
    np.testing.assert_array_equal(pushed[0], [*stack[0, 1:], frame[0]])
    np.testing.assert_array_equal(pushed[1], [frame[1]] * 3)


def test_vmap_over_independent_rows():
    cases = [
        place("lane 1", 6, *WALKS[case][0]) for case in ("terminates", "is cut off", "goes on")
    ]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *[rows for rows, _ in cases])
    index = np.stack([at[:1] for _, at in cases])
    together = jax.jit(jax.vmap(walk))(stacked, index)
    for i, (rows, at) in enumerate(cases):
        for many, one in zip(together, walk(rows, at[:1]), strict=True):
            np.testing.assert_array_equal(many[i], one)


def test_walks_of_accelerators_are_those_of_a_cpu(monkeypatch):
    rng = np.random.default_rng(0)
    marks = [[], [], [], [FIRST], [LAST]]
    table = [(rng.normal(), 0.9 * rng.integers(2), *marks[rng.integers(5)]) for _ in range(SIZE)]
    rows, _ = place("lane 1", 3, *table)
    index = jnp.arange(2 * SIZE, 3 * SIZE)
    expected = walk(rows, index)
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *arguments, cpu, default: default(*arguments)
    )
    unrolled = jax.jit(lambda rows, index: rows_lib.walk(rows, LAYOUT, index, 4))(rows, index)
    for one, other in zip(expected, unrolled, strict=True):
        np.testing.assert_array_equal(one, other)
    assert expected.alive[1:].any()
    assert not expected.alive[1:].all()
