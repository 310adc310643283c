"""The replay buffer: demonstrations for ever, a ring per environment lane, one priority tree.

`make_replay` checks the static sizes and binds them to the pure functions of this module.  Donate
the state to whatever changes it, or every call copies all rows.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks
from bqfd_jax.replay import rows as rows_lib
from bqfd_jax.replay import sum_tree
from bqfd_jax.types import Array, Batch, Row


@chex.dataclass(frozen=True)
class ReplayState:
    """Everything the replay remembers."""

    rows: Row  # fields [R, ...]: demonstrations first, then lane after lane; frames are packed
    tree: sum_tree.SumTree  # leaves [>= R] float32, priority ** exponent; 0 cannot be drawn
    visit_count: Array  # [E] int32, online replays of each demonstration row
    position: Array  # [] int32, where every lane writes next
    num_added: Array  # [] int32, rows each lane has written, at most `rows_per_lane`
    max_priority: Array  # [] float32, what new rows get


class Sizes(NamedTuple):
    """What a replay was made for; all static, and bound to the functions below."""

    layout: rows_lib.Layout
    frame_shape: tuple[int, ...]
    frame_dtype: Any
    stack: int  # frames per observation
    n_step: int
    path_steps: int
    priority_exponent: float


class Replay(NamedTuple):
    """The replay's pure functions, and what it was made for."""

    init: Callable[..., ReplayState]  # (demonstrations=None, demo_priority=1.0)
    add: Callable[[ReplayState, Row], ReplayState]
    # (key, state, batch_size, importance_exponent=0.4, n_step=None)
    sample: Callable[..., Batch]
    # (key, state, batch_size, among=None, n_step=None)
    sample_demonstrations: Callable[..., Batch]
    set_priorities: Callable[[ReplayState, Array, Array], ReplayState]  # (state, index, priority)
    count_visits: Callable[[ReplayState, Array], ReplayState]  # (state, index)
    observe: Callable[[Row, Array], Array]  # (rows, index [B]) -> stacks of frames
    num_bytes: int  # memory that the state takes
    layout: rows_lib.Layout
    frame_shape: tuple[int, ...]
    frame_dtype: Any
    stack: int
    n_step: int
    path_steps: int
    priority_exponent: float
    mesh: jax.sharding.Mesh | None = None  # devices that frames are spread over, see `spread`


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
    row_multiple: int = 1,
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
      row_multiple: spare rows make the number of all rows a multiple of this, so that so many
        devices hold equally many.
    """
    checks.at_least(1, num_lanes=num_lanes, stack=stack, n_step=n_step, path_steps=path_steps)
    checks.at_least(1, row_multiple=row_multiple)
    checks.at_least(0, num_demo_rows=num_demo_rows)
    checks.at_least(n_step + stack + 1, rows_per_lane=rows_per_lane)
    checks.require(path_steps <= n_step, "path_steps", path_steps, f"at most n_step ({n_step})")
    checks.within(0, 1, priority_exponent=priority_exponent)
    used_rows = num_demo_rows + num_lanes * rows_per_lane
    layout = rows_lib.Layout(num_demo_rows, num_lanes, rows_per_lane, -used_rows % row_multiple)
    if layout.num_rows > np.iinfo(np.int32).max:
        raise ValueError(f"{layout.num_rows} rows do not fit into int32 indices; use fewer")
    sizes = Sizes(
        layout, tuple(frame_shape), frame_dtype, stack, n_step, path_steps, priority_exponent
    )
    return Replay(
        # Compiled: outside of jit, writing the demonstrations would copy all rows.
        init=jax.jit(functools.partial(init, sizes)),
        add=functools.partial(add, sizes),
        sample=functools.partial(sample, sizes),
        sample_demonstrations=functools.partial(sample_demonstrations, sizes),
        set_priorities=functools.partial(set_priorities, sizes),
        count_visits=count_visits,
        observe=functools.partial(observe, sizes),
        num_bytes=_num_bytes(sizes),
        **sizes._asdict(),
    )


def init(
    sizes: Sizes, demonstrations: Row | None = None, demo_priority: float = 1.0
) -> ReplayState:
    """A replay that holds the demonstrations and nothing else, all of priority `demo_priority`.

    They are `num_demo_rows` rows, episodes one after the other; check them with
    `check_demonstrations` first.
    """
    R, E = sizes.layout.num_rows, sizes.layout.num_demo_rows
    rows = Row(
        frame=jnp.zeros((R, *rows_lib.packed_shape(sizes.frame_shape)), sizes.frame_dtype),
        action=jnp.zeros(R, jnp.int32),
        reward=jnp.zeros(R, jnp.float32),
        discount=jnp.zeros(R, jnp.float32),
        is_first=jnp.zeros(R, bool),
        is_last=jnp.zeros(R, bool),
    )
    _check_fits(demonstrations, sizes)
    leaves = jnp.zeros(R, jnp.float32)
    if demonstrations is not None:
        rows = jax.tree.map(
            lambda all_rows, demo: all_rows.at[:E].set(jnp.asarray(demo, all_rows.dtype)),
            rows,
            _packed(sizes, demonstrations),
        )
        priority = jnp.where(rows.is_last[:E], 0.0, demo_priority)
        leaves = leaves.at[:E].set(_to_leaf(sizes, priority))
    return ReplayState(
        rows=rows,
        tree=sum_tree.init(leaves),
        visit_count=jnp.ones(E, jnp.int32),
        position=jnp.zeros((), jnp.int32),
        num_added=jnp.zeros((), jnp.int32),
        max_priority=jnp.maximum(1.0, jnp.asarray(demo_priority, jnp.float32)),
    )


def add(sizes: Sizes, state: ReplayState, row: Row) -> ReplayState:
    """Writes one row per lane, fields `[L, ...]`.

    A transition can be drawn once its n-step successor is there, and until its oldest stacked
    frame is overwritten.
    """
    layout, num_lanes = sizes.layout, sizes.layout.num_lanes
    chex.assert_shape(row.action, (num_lanes,))
    # Before the very first row there is nothing to stack.
    row = row.replace(is_first=row.is_first | (state.num_added == 0))
    index = rows_lib.lane_index(layout, state.position)
    rows = jax.tree.map(
        lambda all_rows, new: all_rows.at[index].set(new.astype(all_rows.dtype)),
        state.rows,
        _packed(sizes, row),
    )
    rows = _end_what_was_left_open(rows, row, rows_lib.neighbour(layout, index, -1))

    completed = rows_lib.neighbour(layout, index, -sizes.n_step)
    can_draw = (state.num_added >= sizes.n_step) & ~rows.is_last[completed]
    # This write took the oldest frame of that row's stack.
    retired = rows_lib.neighbour(layout, index, sizes.stack - 1)
    new_leaf = _to_leaf(sizes, state.max_priority)
    tree = sum_tree.update(
        state.tree,
        jnp.concatenate([completed, retired]),
        jnp.concatenate([jnp.where(can_draw, new_leaf, 0.0), jnp.zeros(num_lanes)]),
    )
    return state.replace(
        rows=rows,
        tree=tree,
        position=(state.position + 1) % layout.rows_per_lane,
        num_added=jnp.minimum(state.num_added + 1, layout.rows_per_lane),
    )


def sample(
    sizes: Sizes,
    key: Array,
    state: ReplayState,
    batch_size: int,
    importance_exponent: float = 0.4,
    n_step: Array | None = None,
) -> Batch:
    """Draws by priority; the key is consumed, and `n_step` as in `gather`.

    While nothing is there to draw, all importance weights are 0.
    """
    index = sum_tree.sample(key, state.tree, batch_size)
    leaf = sum_tree.get(state.tree, index)
    # (N P(i)) ** -beta over its maximum in the batch: N and the tree's total cancel.
    weight = jnp.where(leaf > 0, leaf**-importance_exponent, 0.0)
    largest = jnp.max(weight)
    return gather(sizes, state, index, weight / jnp.where(largest > 0, largest, 1.0), n_step)


def sample_demonstrations(
    sizes: Sizes,
    key: Array,
    state: ReplayState,
    batch_size: int,
    among: Array | None = None,
    n_step: Array | None = None,
) -> Batch:
    """Draws uniformly from the demonstrations, or from their rows `among`; the key is consumed.

    `among`, `[E]` bool, must leave a row that starts a transition; `n_step` is as in `gather`.
    """
    num_demo_rows = sizes.layout.num_demo_rows
    if not num_demo_rows:
        raise ValueError("there are no demonstrations to draw from; num_demo_rows is 0")
    starts = ~state.rows.is_last[:num_demo_rows]
    drawable = jnp.cumsum(starts if among is None else starts & among)
    rank = jax.random.randint(key, (batch_size,), 0, drawable[-1])
    index = jnp.searchsorted(drawable, rank, side="right").astype(jnp.int32)
    return gather(sizes, state, index, jnp.ones(batch_size), n_step)


def gather(
    sizes: Sizes,
    state: ReplayState,
    index: Array,
    importance_weight: Array,
    n_step: Array | None = None,
) -> Batch:
    """The transitions that start at the rows `index`, both arguments `[B]`.

    `n_step`, `[]` int32, is the n of `Batch.n_step_*`, from `path_steps` to what the replay was
    made for, which it is unless given.
    """
    n = sizes.n_step if n_step is None else n_step
    rows, num_demo_rows = state.rows, sizes.layout.num_demo_rows
    path = rows_lib.walk(rows, sizes.layout, index, sizes.n_step)
    first = slice(0, sizes.path_steps)
    if num_demo_rows:
        visits = state.visit_count[jnp.minimum(path.index[first], num_demo_rows - 1)]
    else:
        visits = jnp.zeros_like(path.index[first])
    observation = observe(sizes, rows, index)
    later = [observe(sizes, rows, path.index[k]) for k in range(1, sizes.path_steps)]
    return Batch(
        observation=observation,
        action=rows.action[index],
        reward=path.n_step_return[1],
        discount=path.discount[1],
        next_observation=observe(sizes, rows, path.index[1]),
        n_step_return=path.n_step_return[n],
        n_step_discount=path.discount[n],
        n_step_observation=observe(sizes, rows, path.index[n]),
        path_observation=(jnp.stack(later, axis=1) if later else observation[:, None][:, :0]),
        path_action=rows.action[path.index[first]].T,
        path_discount=_path_discount(path, rows, sizes.path_steps).T,
        path_visit_count=visits.astype(jnp.float32).T,
        is_expert=index < num_demo_rows,
        index=index,
        importance_weight=importance_weight,
    )


def set_priorities(sizes: Sizes, state: ReplayState, index: Array, priority: Array) -> ReplayState:
    """Sets the priorities of rows, both arguments `[B]`; the exponent is not yet applied.

    A row that gets 0 (or NaN) is never drawn again.
    """
    # A row drawn earlier may have been overwritten or retired since: it stays undrawable.
    still_there = sum_tree.get(state.tree, index) > 0
    leaf = jnp.where(still_there, _to_leaf(sizes, priority), 0.0)
    return state.replace(
        tree=sum_tree.update(state.tree, index, leaf),
        max_priority=jnp.maximum(
            state.max_priority, jnp.max(jnp.where(priority > 0, priority, 0.0))
        ),
    )


def count_visits(state: ReplayState, index: Array) -> ReplayState:
    """Counts those rows of `index` (`[B]`) that are demonstrations."""
    # Out-of-bounds indices, the agents' own rows, are dropped.
    return state.replace(visit_count=state.visit_count.at[index].add(1, mode="drop"))


def _check_fits(demonstrations: Row | None, sizes: Sizes) -> None:
    num_rows, dtype = sizes.layout.num_demo_rows, jnp.dtype(sizes.frame_dtype)
    given = 0 if demonstrations is None else demonstrations.action.shape[0]
    if given != num_rows:
        raise ValueError(f"the replay was made for {num_rows} demonstration rows, but {given} came")
    if demonstrations is None:
        return
    frame = demonstrations.frame
    if frame.shape[1:] != sizes.frame_shape or frame.dtype != dtype:
        raise ValueError(
            f"demonstration frames are {frame.dtype}{list(frame.shape[1:])}, but the replay was "
            f"made for {dtype}{list(sizes.frame_shape)}"
        )


def _packed(sizes: Sizes, rows: Row) -> Row:
    return rows.replace(frame=rows_lib.pack(rows.frame, sizes.frame_shape))


def _path_discount(path: rows_lib.Walk, rows: Row, steps: int) -> Array:
    """Discount of each of the first `steps` transitions of a path, 0 where there is none."""
    starts = path.alive[:steps] & ~rows.is_last[path.index[:steps]]
    return jnp.where(starts, path.discount[:steps], 0.0)


def observe(sizes: Sizes, rows: Row, index: Array) -> Array:
    """The stacks of frames that end at `index` (`[B]`), `[B, S, *frame_shape]`."""
    stacks = rows.frame[rows_lib.stack_index(rows, sizes.layout, index, sizes.stack)]
    return rows_lib.unpack(stacks, sizes.frame_shape)


def _to_leaf(sizes: Sizes, priority: Array) -> Array:
    # 0 ** 0 is 1, but a row of priority 0 must not be drawn whatever the exponent.
    return jnp.where(priority > 0, priority**sizes.priority_exponent, 0.0)


def _end_what_was_left_open(rows: Row, row: Row, previous: Array) -> Row:
    """An episode that was left without an end (a killed run, say) is cut where it stopped."""
    left_open = row.is_first & (rows.discount[previous] > 0)
    return rows.replace(is_last=rows.is_last.at[previous].set(rows.is_last[previous] | left_open))


def _num_bytes(sizes: Sizes) -> int:
    """Of rows, the tree's levels and the visit counts."""
    num_rows, frame_shape = sizes.layout.num_rows, rows_lib.packed_shape(sizes.frame_shape)
    frame = int(np.prod(frame_shape, dtype=np.int64))
    row_bytes = frame * np.dtype(sizes.frame_dtype).itemsize + 14
    tree_bytes = sum_tree.num_bytes(num_rows)
    return num_rows * row_bytes + tree_bytes + sizes.layout.num_demo_rows * 4
