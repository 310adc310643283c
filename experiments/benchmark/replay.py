"""A full replay of Atari frames: its memory and speed, alone and in a run of the paper's size."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from bqfd_jax import checks
from bqfd_jax.replay import Replay, ReplayState, make_replay, sum_tree
from bqfd_jax.runs.atari import AtariConfig
from bqfd_jax.runs.machine import peak_memory_gb
from bqfd_jax.runs.run import load_job
from bqfd_jax.types import Batch, Row

_FRAME = (84, 84)
# Row i gets priority _PRIORITIES[i % 4], set by hand, so that the right shares are known.
_PRIORITIES = (0.0, 1.0, 2.0, 4.0)


def replay(
    rows: int = 1_000_000,
    lanes: int = 8,
    batch_size: int = 32,
    stack: int = 4,
    n_step: int = 10,
    calls: int = 300,
    draws: int = 1_000_000,
) -> dict[str, float]:
    """A full replay of Atari frames: its memory, its speed, and whether draws follow priorities.

    Args:
      rows: Rows of 84 x 84 that the replay holds.
      lanes: Environments, and so rows added at a time.
      batch_size: Transitions drawn, and re-prioritised, at a time.
      stack: Frames per observation.
      n_step: Steps of the n-step return.
      calls: Calls timed; the median counts.
      draws: Rows drawn to compare with their priorities.

    Returns:
      The figures by name.
    """
    checks.at_least(1, lanes=lanes, batch_size=batch_size, stack=stack, n_step=n_step)
    checks.at_least(1, calls=calls, draws=draws)
    checks.at_least(1000 * lanes, rows=rows)
    buffer = make_replay(
        frame_shape=_FRAME,
        frame_dtype=jnp.uint8,
        rows_per_lane=rows // lanes,
        num_lanes=lanes,
        stack=stack,
        n_step=n_step,
        priority_exponent=1.0,
    )
    print(f"replay of {buffer.layout.num_rows:,} rows, {buffer.num_bytes / 1e9:.2f} GB by design")
    state = _fill(buffer, buffer.init())
    milliseconds, state = _time_parts(buffer, state, batch_size, calls)
    peak = peak_memory_gb()
    print(f"  filled and used; peak memory of the process {peak:.2f} GB")
    for name, value in milliseconds.items():
        print(f"  {name:36s} {value:6.3f} ms")
    together = sum(milliseconds.values())
    print(f"  {'together':36s} {together:6.3f} ms")

    state = _prioritise(buffer, state)
    zeros, by_priority, by_region = _compare_draws(state, batch_size, draws)
    print(
        f"  {draws:,} draws: {zeros} of priority zero; chi-square per degree of freedom "
        f"{by_priority:.2f} (priorities), {by_region:.2f} ({_REGIONS} regions)"
    )
    return {
        "memory_gb": peak,
        "milliseconds": together,
        "zero_draws": zeros,
        "chi_square_priorities": by_priority,
        "chi_square_regions": by_region,
        **milliseconds,
    }


def _row(step: jax.Array, lanes: int) -> Row:
    """Rows whose frames and rewards tell their time; an episode lasts 1000 steps."""
    is_first = step % 1000 == 0
    return Row(
        frame=jnp.full((lanes, *_FRAME), step % 256, jnp.uint8),
        action=jnp.zeros(lanes, jnp.int32),
        reward=jnp.full(lanes, step, jnp.float32),
        discount=jnp.where(jnp.full(lanes, step % 1000 == 999), 0.0, 0.99),
        is_first=jnp.full(lanes, is_first),
        is_last=jnp.zeros(lanes, bool),
    )


def _fill(replay: Replay, state: ReplayState) -> ReplayState:
    """Adds rows until every one has been written, and some of them twice."""
    lanes, length = replay.layout.num_lanes, replay.layout.rows_per_lane
    chunk = 1000

    def add_many(state: ReplayState, start: jax.Array) -> ReplayState:
        steps = start + jnp.arange(chunk)
        return jax.lax.scan(lambda s, t: (replay.add(s, _row(t, lanes)), None), state, steps)[0]

    add_many = jax.jit(add_many, donate_argnums=0)
    # A little more than once around, so that the ring has wrapped.
    for start in tqdm(range(0, length + chunk, chunk), desc="filling", unit="k", leave=False):
        state = add_many(state, start)
    return jax.block_until_ready(state)


def _time_parts(
    replay: Replay, state: ReplayState, batch_size: int, calls: int
) -> tuple[dict[str, float], ReplayState]:
    add = jax.jit(replay.add, donate_argnums=0)

    @jax.jit
    def draw(state: ReplayState, call: int) -> Batch:
        key = jax.random.fold_in(jax.random.key(0), call)
        return replay.sample(key, state, batch_size)

    prioritise = jax.jit(replay.set_priorities, donate_argnums=0)
    row = jax.block_until_ready(jax.jit(_row, static_argnums=1)(1, replay.layout.num_lanes))
    seconds: dict[str, list[float]] = {"add": [], "draw": [], "prioritise": []}

    def timed(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        result = jax.block_until_ready(function(*arguments))
        seconds[name].append(time.perf_counter() - start)
        return result

    random = np.random.default_rng(0)
    for call in range(calls + 10):
        state = timed("add", add, state, row)
        batch = timed("draw", draw, state, call)
        priorities = random.uniform(size=batch_size).astype(np.float32)
        state = timed("prioritise", prioritise, state, batch.index, priorities)
    # The first calls compile.
    median = {name: 1e3 * float(np.median(values[10:])) for name, values in seconds.items()}
    frames = batch_size * replay.stack * 3
    return {
        f"add of {replay.layout.num_lanes} rows": median["add"],
        f"draw of {batch_size} with {frames} frames": median["draw"],
        f"new priorities for {batch_size}": median["prioritise"],
    }, state


def _prioritise(replay: Replay, state: ReplayState) -> ReplayState:
    """Gives every drawable row the priority that its index says, by the replay's own means."""
    chunk = 2000
    priorities = jnp.asarray(_PRIORITIES)

    def set_many(state: ReplayState, start: jax.Array) -> ReplayState:
        index = start + jnp.arange(chunk)
        return replay.set_priorities(state, index, priorities[index % len(_PRIORITIES)])

    set_many = jax.jit(set_many, donate_argnums=0)
    for start in range(0, replay.layout.num_rows - chunk + 1, chunk):
        state = set_many(state, start)
    return state


_REGIONS = 1000


def _compare_draws(state: ReplayState, batch_size: int, draws: int) -> tuple[int, float, float]:
    """Draws of priority zero, and chi-square per degree of freedom by priority and by region."""
    batches = max(1, draws // batch_size)

    def draw(key: jax.Array) -> jax.Array:
        return sum_tree.sample(key, state.tree, batch_size)

    keys = jax.random.split(jax.random.key(1), batches)
    drawn = np.asarray(jax.lax.map(draw, keys, batch_size=256)).ravel()
    leaves = np.asarray(state.tree[-1], np.float64)
    row = np.arange(len(leaves))
    by_priority = _chi_square(row % len(_PRIORITIES), leaves, drawn)
    by_region = _chi_square(row * _REGIONS // len(leaves), leaves, drawn)
    return int((leaves[drawn] == 0).sum()), by_priority, by_region


def _chi_square(group: np.ndarray, leaves: np.ndarray, drawn: np.ndarray) -> float:
    """How far groups' shares of the draws are from their shares of the weight; about 1 if right."""
    expected = np.bincount(group, weights=leaves) / leaves.sum() * len(drawn)
    found = np.bincount(group[drawn], minlength=len(expected))
    some = expected > 0
    return float(((found - expected)[some] ** 2 / expected[some]).sum() / (some.sum() - 1))


def memory(
    game: str = "Breakout",
    preset: Literal["laptop", "paper"] = "paper",
    rows: int = 1_000_000,
    steps: int = 2_000,
) -> dict[str, float]:
    """A run of the paper's size: its replay filled to the last row, then some steps of training.

    Args:
      game: Which game; one with a demonstration in the package.
      preset: Where the hyper-parameters come from.
      rows: Rows of the replay, the demonstration's apart.
      steps: Agent steps of training after that.

    Returns:
      The figures by name.
    """
    checks.at_least(1000, rows=rows)
    checks.at_least(1, steps=steps)
    settings = dataclasses.replace(
        AtariConfig.of(preset, game),
        replay_rows=rows,
        learning_starts=0,
    )
    job = load_job(settings)
    state = job.init()
    empty, state = state.replay, state.replace(replay=None)
    loop = job.make_loop(state.replace(replay=_fill(job.replay, empty)))
    # The memory of both belongs to the loop now.
    del state, empty
    with tqdm(total=steps, unit="step", desc="training", leave=False) as bar:
        while loop.step < steps:
            loop.run(min(settings.envs * 4, steps - loop.step))
            bar.update(loop.step - bar.n)
    jax.block_until_ready(loop.state)
    figures = {
        "replay_gb": job.replay.num_bytes / 1e9,
        "memory_gb": peak_memory_gb(),
        "updates": int(loop.state.learner.updates),
        "rows": int(loop.state.replay.num_added) * settings.envs + job.replay.layout.num_demo_rows,
    }
    print(
        f"{game}, preset {preset}: a full replay of {figures['rows']:,} rows "
        f"({figures['replay_gb']:.2f} GB by design), {loop.step:,} agent steps, "
        f"{figures['updates']:,} updates; peak memory of the process {figures['memory_gb']:.2f} GB"
    )
    return figures
