"""One cycle of a prioritized replay, here and elsewhere: add, draw, set priorities.

Rows are as small as they can be, so that what is measured is the replay and not the copying of
frames.  Builds are called in processes of their own, and import what they need.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Run = Callable[[int], None]
_EXPONENT = 0.6
_CHUNK = 1000


class Work(NamedTuple):
    """What all of them do."""

    rows: int = 1_000_000
    lanes: int = 8
    batch_size: int = 32


def ours(work: Work, calls: str = "one", draw: str = "indices") -> Run:
    """This project's: `calls` "one" compiles a cycle as a whole, "three" each of its parts.

    `draw` "indices" leaves the rows where they are, "rows" gathers them as the others do.
    """
    import jax
    import jax.numpy as jnp

    from bqfd_jax.replay import make_replay, sum_tree
    from bqfd_jax.types import Row

    replay = make_replay(
        frame_shape=(1,),
        frame_dtype=jnp.uint8,
        rows_per_lane=work.rows // work.lanes,
        num_lanes=work.lanes,
        priority_exponent=_EXPONENT,
    )
    row = Row(
        frame=jnp.zeros((work.lanes, 1), jnp.uint8),
        action=jnp.zeros(work.lanes, jnp.int32),
        reward=jnp.zeros(work.lanes),
        discount=jnp.ones(work.lanes),
        is_first=jnp.zeros(work.lanes, bool),
        is_last=jnp.zeros(work.lanes, bool),
    )

    def take(key: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        if draw == "indices":
            return sum_tree.sample(key, state.tree, work.batch_size), None
        batch = replay.sample(key, state, work.batch_size)
        return batch.index, batch

    def add(state: Any) -> Any:
        return replay.add(state, row)

    state = _fill(add, replay.init(), work)
    return _jax_run(state, add, take, replay.set_priorities, work, one_call=calls == "one")


def flashbax(work: Work, calls: str = "one") -> Run:
    """Its prioritised flat buffer, with the state donated, as it recommends."""
    import flashbax as fbx
    import jax
    import jax.numpy as jnp

    buffer = fbx.make_prioritised_flat_buffer(
        max_length=work.rows,
        min_length=work.batch_size,
        sample_batch_size=work.batch_size,
        add_batch_size=work.lanes,
        priority_exponent=_EXPONENT,
        device=jax.default_backend(),
    )
    row = {
        "frame": jnp.zeros((1,), jnp.uint8),
        "action": jnp.int32(0),
        "reward": jnp.float32(0),
        "discount": jnp.float32(1),
    }
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (work.lanes, *x.shape)), row)

    def take(key: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        batch = buffer.sample(state, key)
        return batch.indices, batch

    def add(state: Any) -> Any:
        return buffer.add(state, rows)

    state = _fill(add, buffer.init(row), work)
    return _jax_run(state, add, take, buffer.set_priorities, work, one_call=calls == "one")


def cpprb(work: Work) -> Run:
    """Its prioritized buffer, in C++ and called from Python."""
    from cpprb import PrioritizedReplayBuffer

    fields = {
        "frame": {"shape": 1, "dtype": np.uint8},
        "action": {"dtype": np.int32},
        "reward": {"dtype": np.float32},
        "discount": {"dtype": np.float32},
    }
    buffer = PrioritizedReplayBuffer(work.rows, fields, alpha=_EXPONENT)

    def rows(number: int) -> dict[str, np.ndarray]:
        return {
            "frame": np.zeros((number, 1), np.uint8),
            "action": np.zeros(number, np.int32),
            "reward": np.zeros(number, np.float32),
            "discount": np.ones(number, np.float32),
        }

    buffer.add(**rows(work.rows))
    row = rows(work.lanes)
    priorities = _priorities(work)

    def run(cycles: int) -> None:
        for cycle in range(cycles):
            buffer.add(**row)
            batch = buffer.sample(work.batch_size, beta=0.4)
            buffer.update_priorities(batch["indexes"], priorities[cycle % len(priorities)])

    return run


def _fill(add: Callable[[Any], Any], state: Any, work: Work) -> Any:
    """Adds until every row has been written, some of them twice."""
    import jax

    def add_many(state: Any) -> Any:
        return jax.lax.scan(lambda s, _: (add(s), None), state, length=_CHUNK)[0]

    add_many = jax.jit(add_many, donate_argnums=0)
    for _ in range(work.rows // work.lanes // _CHUNK + 1):
        state = add_many(state)
    return jax.block_until_ready(state)


def _jax_run(
    state: Any,
    add: Callable[[Any], Any],
    take: Callable[[Any, Any], tuple[Any, Any]],
    set_priorities: Callable[[Any, Any, Any], Any],
    work: Work,
    *,
    one_call: bool,
) -> Run:
    """Cycles one after the other, each waited for."""
    import jax

    def draw(state: Any, cycle: Any) -> tuple[Any, Any]:
        return take(jax.random.fold_in(jax.random.key(0), cycle), state)

    def whole(state: Any, cycle: Any, priorities: Any) -> tuple[Any, Any]:
        state = add(state)
        index, batch = draw(state, cycle)
        return set_priorities(state, index, priorities), batch

    whole = jax.jit(whole, donate_argnums=0)
    add_alone, draw_alone = jax.jit(add, donate_argnums=0), jax.jit(draw)
    set_alone = jax.jit(set_priorities, donate_argnums=0)
    priorities = _priorities(work)
    held = [state, 0]

    def run(cycles: int) -> None:
        state, done = held
        for number in range(done, done + cycles):
            new = priorities[number % len(priorities)]
            if one_call:
                state, batch = whole(state, number, new)
            else:
                state = add_alone(state)
                index, batch = draw_alone(state, number)
                state = set_alone(state, index, new)
            jax.block_until_ready((state, batch))
        held[:] = state, done + cycles

    return run


def _priorities(work: Work) -> np.ndarray:
    shape = (64, work.batch_size)
    return np.random.default_rng(0).uniform(0.1, 1.0, shape).astype(np.float32)
