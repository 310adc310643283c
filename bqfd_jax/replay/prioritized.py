"""The replay buffer: demonstrations for ever, a ring per environment lane, one priority tree.

`make_replay` binds the static sizes and returns pure functions; donate the state to whatever
changes it, or every call copies all rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax.replay import rows as rows_lib
from bqfd_jax.replay import sum_tree
from bqfd_jax.types import Array, Batch, Row


@chex.dataclass(frozen=True)
class ReplayState:
    """Everything the replay remembers."""

    rows: Row  # fields [R, ...]: demonstrations first, then lane after lane
    tree: sum_tree.SumTree  # leaves [>= R] float32, priority ** exponent; 0 cannot be drawn
    visit_count: Array  # [E] int32, online replays of each demonstration row
    position: Array  # [] int32, where every lane writes next
    num_added: Array  # [] int32, rows each lane has written, at most `rows_per_lane`
    max_priority: Array  # [] float32, what new rows get


class Replay(NamedTuple):
    """The replay's pure functions."""

    init: Callable[..., ReplayState]
    add: Callable[[ReplayState, Row], ReplayState]
    sample: Callable[..., Batch]
    sample_demonstrations: Callable[..., Batch]
    set_priorities: Callable[[ReplayState, Array, Array], ReplayState]
    count_visits: Callable[[ReplayState, Array], ReplayState]
    layout: rows_lib.Layout
    n_step: int
    path_steps: int
    priority_exponent: float
    num_bytes: int  # memory that the state takes


def make_replay(
    *,
    frame_shape: tuple[int, ...],
    frame_dtype: Any,
    rows_per_lane: int,
    num_lanes: int = 1,
    num_demo_rows: int = 0,
    stack: int = 1,
    n_step: int = 1,
    path_steps: int = 1,
    priority_exponent: float = 0.6,
) -> Replay:
    """A prioritized replay of single observations.

    Args:
      frame_shape: shape of one frame.
      frame_dtype: its dtype.
      rows_per_lane: rows that each lane's ring holds.
      num_lanes: environments that add rows side by side.
      num_demo_rows: demonstration rows, kept for ever.
      stack: frames per observation.
      n_step: steps of the n-step return.
      path_steps: steps of `Batch.path_*`, at most `n_step`.
      priority_exponent: PER's alpha; 0 draws uniformly.

    Returns:
      A `Replay`:
      `init(demonstrations=None, demo_priority=1.0)` makes the state; the demonstrations are a
        `Row` with leading axis `num_demo_rows`, episodes one after the other (check them with
        `check_demonstrations` first).
      `add(state, row)` writes one row per lane, fields `[L, ...]`.  A transition can be drawn
        once its n-step successor is there, and until its oldest stacked frame is overwritten.
      `sample(state, key, batch_size, importance_exponent)` draws by priority; the key is consumed.
        While nothing is there to draw, all importance weights are 0.
      `sample_demonstrations(state, key, batch_size)` draws uniformly from the demonstrations.
      `set_priorities(state, index, priority)` takes priorities, exponent not applied; a row that
        gets 0 (or NaN) is never drawn again.
      `count_visits(state, index)` counts those rows of `index` that are demonstrations.
    """
    for name, value, least in (
        ("num_lanes", num_lanes, 1),
        ("num_demo_rows", num_demo_rows, 0),
        ("stack", stack, 1),
        ("n_step", n_step, 1),
        ("path_steps", path_steps, 1),
        ("rows_per_lane", rows_per_lane, n_step + stack + 1),
    ):
        if value < least:
            raise ValueError(f"{name} is {value}, but must be at least {least}")
    if path_steps > n_step:
        raise ValueError(f"path_steps is {path_steps}, but must be at most n_step ({n_step})")
    if not 0 <= priority_exponent <= 1:
        raise ValueError(f"priority_exponent is {priority_exponent}, but must lie in [0, 1]")
    layout = rows_lib.Layout(num_demo_rows, num_lanes, rows_per_lane)
    if layout.num_rows > np.iinfo(np.int32).max:
        raise ValueError(f"{layout.num_rows} rows do not fit into int32 indices; use fewer")

    def to_leaf(priority: Array) -> Array:
        # 0 ** 0 is 1, but a row of priority 0 must not be drawn whatever the exponent.
        return jnp.where(priority > 0, priority**priority_exponent, 0.0)

    # Compiled, for written outside of jit the demonstrations would copy all rows.
    @jax.jit
    def init(demonstrations: Row | None = None, demo_priority: float = 1.0) -> ReplayState:
        R, E = layout.num_rows, num_demo_rows
        rows = Row(
            frame=jnp.zeros((R, *frame_shape), frame_dtype),
            action=jnp.zeros(R, jnp.int32),
            reward=jnp.zeros(R, jnp.float32),
            discount=jnp.zeros(R, jnp.float32),
            is_first=jnp.zeros(R, bool),
            is_last=jnp.zeros(R, bool),
        )
        _check_fits(demonstrations, E, rows.frame)
        leaves = jnp.zeros(R, jnp.float32)
        if demonstrations is not None:
            rows = jax.tree.map(
                lambda all_rows, demo: all_rows.at[:E].set(jnp.asarray(demo, all_rows.dtype)),
                rows,
                demonstrations,
            )
            priority = jnp.where(rows.is_last[:E], 0.0, demo_priority)
            leaves = leaves.at[:E].set(to_leaf(priority))
        return ReplayState(
            rows=rows,
            tree=sum_tree.init(leaves),
            visit_count=jnp.ones(E, jnp.int32),
            position=jnp.zeros((), jnp.int32),
            num_added=jnp.zeros((), jnp.int32),
            max_priority=jnp.maximum(1.0, jnp.asarray(demo_priority, jnp.float32)),
        )

    def add(state: ReplayState, row: Row) -> ReplayState:
        chex.assert_shape(row.action, (num_lanes,))
        # Before the very first row there is nothing to stack.
        row = row.replace(is_first=row.is_first | (state.num_added == 0))
        index = rows_lib.lane_index(layout, state.position)
        previous = rows_lib.neighbour(layout, index, -1)
        rows = jax.tree.map(
            lambda all_rows, new: all_rows.at[index].set(new.astype(all_rows.dtype)),
            state.rows,
            row,
        )
        # An episode that was left without an end (a killed run, say) is cut where it stopped.
        left_open = row.is_first & (rows.discount[previous] > 0)
        is_last = rows.is_last.at[previous].set(rows.is_last[previous] | left_open)
        rows = rows.replace(is_last=is_last)

        completed = rows_lib.neighbour(layout, index, -n_step)
        can_draw = (state.num_added >= n_step) & ~rows.is_last[completed]
        # This write took the oldest frame of that row's stack.
        retired = rows_lib.neighbour(layout, index, stack - 1)
        tree = sum_tree.update(
            state.tree,
            jnp.concatenate([completed, retired]),
            jnp.concatenate(
                [jnp.where(can_draw, to_leaf(state.max_priority), 0.0), jnp.zeros(num_lanes)]
            ),
        )
        return state.replace(
            rows=rows,
            tree=tree,
            position=(state.position + 1) % rows_per_lane,
            num_added=jnp.minimum(state.num_added + 1, rows_per_lane),
        )

    def observe(rows: Row, index: Array) -> Array:
        return rows.frame[rows_lib.stack_index(rows, layout, index, stack)]

    def gather(state: ReplayState, index: Array, importance_weight: Array) -> Batch:
        rows = state.rows
        path = rows_lib.walk(rows, layout, index, n_step)
        is_expert = index < num_demo_rows
        first = slice(0, path_steps)
        if num_demo_rows:
            visits = state.visit_count[jnp.minimum(path.index[first], num_demo_rows - 1)]
        else:
            visits = jnp.zeros_like(path.index[first])
        later = [observe(rows, path.index[k]) for k in range(1, path_steps)]
        observation = observe(rows, index)
        return Batch(
            observation=observation,
            action=rows.action[index],
            reward=path.n_step_return[1],
            discount=path.discount[1],
            next_observation=observe(rows, path.index[1]),
            n_step_return=path.n_step_return[n_step],
            n_step_discount=path.discount[n_step],
            n_step_observation=observe(rows, path.index[n_step]),
            path_observation=(jnp.stack(later, axis=1) if later else observation[:, None][:, :0]),
            path_action=rows.action[path.index[first]].T,
            path_discount=_path_discount(path, rows, path_steps).T,
            path_visit_count=visits.astype(jnp.float32).T,
            is_expert=is_expert,
            index=index,
            importance_weight=importance_weight,
        )

    def sample(
        state: ReplayState, key: Array, batch_size: int, importance_exponent: float = 0.4
    ) -> Batch:
        index = sum_tree.sample(state.tree, key, batch_size)
        leaf = sum_tree.get(state.tree, index)
        # (N P(i)) ** -beta over its maximum in the batch: N and the tree's total cancel.
        weight = jnp.where(leaf > 0, leaf**-importance_exponent, 0.0)
        largest = jnp.max(weight)
        return gather(state, index, weight / jnp.where(largest > 0, largest, 1.0))

    def sample_demonstrations(state: ReplayState, key: Array, batch_size: int) -> Batch:
        if not num_demo_rows:
            raise ValueError("there are no demonstrations to draw from; num_demo_rows is 0")
        drawable = jnp.cumsum(~state.rows.is_last[:num_demo_rows])
        rank = jax.random.randint(key, (batch_size,), 0, drawable[-1])
        index = jnp.searchsorted(drawable, rank, side="right").astype(jnp.int32)
        return gather(state, index, jnp.ones(batch_size))

    def set_priorities(state: ReplayState, index: Array, priority: Array) -> ReplayState:
        # A row drawn earlier may have been overwritten or retired since: it stays undrawable.
        still_there = sum_tree.get(state.tree, index) > 0
        leaf = jnp.where(still_there, to_leaf(priority), 0.0)
        return state.replace(
            tree=sum_tree.update(state.tree, index, leaf),
            max_priority=jnp.maximum(
                state.max_priority, jnp.max(jnp.where(priority > 0, priority, 0.0))
            ),
        )

    def count_visits(state: ReplayState, index: Array) -> ReplayState:
        # Out-of-bounds indices, the agents' own rows, are dropped.
        return state.replace(visit_count=state.visit_count.at[index].add(1, mode="drop"))

    row_bytes = int(np.prod(frame_shape, dtype=np.int64)) * np.dtype(frame_dtype).itemsize + 14
    leaves = 2 ** max(layout.num_rows - 1, 0).bit_length()
    return Replay(
        init=init,
        add=add,
        sample=sample,
        sample_demonstrations=sample_demonstrations,
        set_priorities=set_priorities,
        count_visits=count_visits,
        layout=layout,
        n_step=n_step,
        path_steps=path_steps,
        priority_exponent=priority_exponent,
        num_bytes=layout.num_rows * row_bytes + 2 * leaves * 4 + num_demo_rows * 4,
    )


def check_demonstrations(demonstrations: Row, *, lives: bool = False) -> None:
    """Raises `ValueError` unless the rows are whole episodes, one after the other.

    Args:
      demonstrations: rows with one leading axis.
      lives: discounts may be 0 within an episode, where a life was lost.  Otherwise such a row is
        taken for a terminal one whose successor was not marked `is_first`.
    """
    is_first, is_last = np.asarray(demonstrations.is_first), np.asarray(demonstrations.is_last)
    terminates = ~is_last & (np.asarray(demonstrations.discount) == 0)
    if is_last.all():
        raise ValueError("the demonstrations hold no transition; leave them out instead")
    if not is_first[0]:
        raise ValueError("row 0 of the demonstrations must begin an episode (is_first)")
    for row in range(len(is_first)):
        ends_here = row + 1 == len(is_first) or is_first[row + 1]
        if ends_here and not (is_last[row] or terminates[row]):
            raise ValueError(
                f"row {row} of the demonstrations is the last of its episode, but neither "
                "terminates (discount 0) nor is marked is_last"
            )
        if not ends_here and is_last[row]:
            raise ValueError(f"row {row} is marked is_last, but its episode goes on")
        if not ends_here and terminates[row] and not is_last[row + 1] and not lives:
            raise ValueError(f"row {row} terminates (discount 0), but its episode goes on")


def _check_fits(demonstrations: Row | None, num_rows: int, frames: Array) -> None:
    given = 0 if demonstrations is None else demonstrations.action.shape[0]
    if given != num_rows:
        raise ValueError(f"the replay was made for {num_rows} demonstration rows, but {given} came")
    if demonstrations is None:
        return
    frame = demonstrations.frame
    if frame.shape[1:] != frames.shape[1:] or frame.dtype != frames.dtype:
        raise ValueError(
            f"demonstration frames are {frame.dtype}{list(frame.shape[1:])}, but the replay was "
            f"made for {frames.dtype}{list(frames.shape[1:])}"
        )


def _path_discount(path: rows_lib.Walk, rows: Row, steps: int) -> Array:
    """Discount of each of the first `steps` transitions of a path, 0 where there is none."""
    starts = path.alive[:steps] & ~rows.is_last[path.index[:steps]]
    return jnp.where(starts, path.discount[:steps], 0.0)
