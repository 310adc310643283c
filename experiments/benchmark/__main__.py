"""How fast, and how large: measurements that print their figures.

python -m experiments.benchmark replay
python -m experiments.benchmark replay --rows 100000
python -m experiments.benchmark atari
python -m experiments.benchmark memory
python -m experiments.benchmark gym
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from tqdm import tqdm

from bqfd_jax.envs import atari as atari_env
from bqfd_jax.replay import Replay, ReplayState, make_replay, sum_tree
from bqfd_jax.runs.folder import UsageError, peak_memory_gb, require_at_least, run_main
from bqfd_jax.training.on_host import to_device
from bqfd_jax.types import Batch, Row
from experiments.atari.__main__ import config as atari_config
from experiments.atari.__main__ import job as atari_job
from experiments.benchmark.gym import GymBenchmark, benchmark_gym

_FRAME = (84, 84)
# Row i gets priority _PRIORITIES[i % 4], set by hand, so that the right shares are known.
_PRIORITIES = (0.0, 1.0, 2.0, 4.0)


@dataclasses.dataclass(frozen=True)
class ReplayBenchmark:
    """A full replay of Atari frames: its memory, its speed, and whether draws follow priorities."""

    rows: int = 1_000_000
    """Rows of 84 x 84 that the replay holds."""
    lanes: int = 8
    """Environments, and so rows added at a time."""
    batch_size: int = 32
    """Transitions drawn, and re-prioritised, at a time."""
    stack: int = 4
    """Frames per observation."""
    n_step: int = 10
    """Steps of the n-step return."""
    calls: int = 300
    """Calls timed; the median counts."""
    draws: int = 1_000_000
    """Rows drawn to compare with their priorities."""


def benchmark_replay(config: ReplayBenchmark) -> dict[str, float]:
    """Measures and prints; returns the figures by name."""
    require_at_least(1, config, "lanes", "batch_size", "stack", "n_step", "calls", "draws")
    if config.rows < 1000 * config.lanes:
        raise UsageError(f"--rows is {config.rows}, but must be at least 1000 per lane")
    replay = make_replay(
        frame_shape=_FRAME,
        frame_dtype=jnp.uint8,
        rows_per_lane=config.rows // config.lanes,
        num_lanes=config.lanes,
        stack=config.stack,
        n_step=config.n_step,
        priority_exponent=1.0,
    )
    print(f"replay of {replay.layout.num_rows:,} rows, {replay.num_bytes / 1e9:.2f} GB by design")
    state = _fill(replay, replay.init())
    milliseconds, state = _time_parts(replay, state, config)
    memory = peak_memory_gb()
    print(f"  filled and used; peak memory of the process {memory:.2f} GB")
    for name, value in milliseconds.items():
        print(f"  {name:36s} {value:6.3f} ms")
    together = sum(milliseconds.values())
    print(f"  {'together':36s} {together:6.3f} ms")

    state = _prioritise(replay, state)
    zeros, by_priority, by_region = _compare_draws(state, config)
    print(
        f"  {config.draws:,} draws: {zeros} of priority zero; chi-square per degree of freedom "
        f"{by_priority:.2f} (priorities), {by_region:.2f} ({_REGIONS} regions)"
    )
    return {
        "memory_gb": memory,
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
    replay: Replay, state: ReplayState, config: ReplayBenchmark
) -> tuple[dict[str, float], ReplayState]:
    add = jax.jit(replay.add, donate_argnums=0)

    @jax.jit
    def draw(state: ReplayState, call: int) -> Batch:
        key = jax.random.fold_in(jax.random.key(0), call)
        return replay.sample(key, state, config.batch_size)

    prioritise = jax.jit(replay.set_priorities, donate_argnums=0)
    row = jax.block_until_ready(jax.jit(_row, static_argnums=1)(1, config.lanes))
    seconds: dict[str, list[float]] = {"add": [], "draw": [], "prioritise": []}

    def timed(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        result = jax.block_until_ready(function(*arguments))
        seconds[name].append(time.perf_counter() - start)
        return result

    random = np.random.default_rng(0)
    for call in range(config.calls + 10):
        state = timed("add", add, state, row)
        batch = timed("draw", draw, state, call)
        priorities = random.uniform(size=config.batch_size).astype(np.float32)
        state = timed("prioritise", prioritise, state, batch.index, priorities)
    # The first calls compile.
    median = {name: 1e3 * float(np.median(values[10:])) for name, values in seconds.items()}
    frames = config.batch_size * config.stack * 3
    return {
        f"add of {config.lanes} rows": median["add"],
        f"draw of {config.batch_size} with {frames} frames": median["draw"],
        f"new priorities for {config.batch_size}": median["prioritise"],
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


def _compare_draws(state: ReplayState, config: ReplayBenchmark) -> tuple[int, float, float]:
    """Draws of priority zero, and chi-square per degree of freedom by priority and by region."""
    batches = max(1, config.draws // config.batch_size)

    def draw(key: jax.Array) -> jax.Array:
        return sum_tree.sample(key, state.tree, config.batch_size)

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


# --- Atari: the loop beside its parts ---


@dataclasses.dataclass(frozen=True)
class AtariBenchmark:
    """The whole Atari loop, and what it cannot do without: the update, and stepping the games."""

    game: str = "Breakout"
    """Which game."""
    agent: Literal["bqfd", "dqfd", "dqn"] = "bqfd"
    """Which agent, with the hyper-parameters of the preset."""
    preset: Literal["laptop", "paper"] = "laptop"
    """Where they come from."""
    envs: int = 8
    """Games side by side."""
    update_period: float = 4
    """Agent steps, over all games, per update."""
    iterations: int = 60
    """Steps of all games per round."""
    rounds: int = 5
    """Every part is measured once per round; the median counts."""


def benchmark_atari(config: AtariBenchmark) -> dict[str, float]:
    """Measures and prints; returns the figures by name."""
    require_at_least(1, config, "envs", "iterations", "rounds")
    settings = dataclasses.replace(
        atari_config.preset(config.preset, config.game),
        agent=config.agent,
        envs=config.envs,
        update_period=config.update_period,
        learning_starts=0,
        replay_rows=20_000,
        demo="none",
    )
    atari_config.check(settings)
    num_actions = atari_env.Atari(config.game).num_actions
    job = atari_job.make_job(settings, num_actions, None)
    loop = job.make_loop(job.init())
    updates = max(1, round(config.iterations * config.envs / config.update_period))

    def update_alone() -> None:
        for _ in range(updates):
            loop.state = loop.trainer.update(loop.state)

    def step_alone() -> None:
        for _ in range(config.iterations):
            games.step(actions)

    def whole() -> None:
        loop.run(config.iterations * config.envs)

    def act_alone() -> None:
        for _ in range(config.iterations):
            loop.state, chosen = loop.trainer.interact(loop.state, seen)
            np.asarray(chosen)

    games = job.make_env()
    seen = to_device(games.reset())
    actions = np.zeros(config.envs, np.int32)
    # Compiles, and fills the replay a little.
    loop.run(40 * config.envs)
    jax.block_until_ready(loop.state)
    parts: dict[str, Callable[[], None]] = {
        "update": update_alone,
        "games": step_alone,
        "act and add": act_alone,
        "whole loop": whole,
    }
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for _ in tqdm(range(config.rounds), unit="round", leave=False):
        for name, part in parts.items():
            start = time.perf_counter()
            part()
            jax.block_until_ready(loop.state)
            seconds[name].append(time.perf_counter() - start)
    # Noise of the machine strikes neighbours alike: compare within rounds.
    ratios = np.array(seconds["whole loop"]) / (
        np.array(seconds["update"]) + np.array(seconds["games"])
    )
    median = {name: float(np.median(values)) for name, values in seconds.items()}
    steps = config.iterations * config.envs
    figures = {
        "update_ms": 1e3 * median["update"] / updates,
        "games_ms": 1e3 * median["games"] / config.iterations,
        "act_ms": 1e3 * median["act and add"] / config.iterations,
        "loop_ms": 1e3 * median["whole loop"] / config.iterations,
        "ratio": float(np.median(ratios)),
        "updates_per_second": updates / median["whole loop"],
        "steps_per_second": steps / median["whole loop"],
    }
    print(
        f"{config.game}, {config.agent}, {config.envs} games, an update per "
        f"{config.update_period:g} steps, {jax.devices()[0].device_kind}\n"
        f"  one update                              {figures['update_ms']:7.1f} ms\n"
        f"  one step of all games                   {figures['games_ms']:7.1f} ms\n"
        f"  acting and adding once                  {figures['act_ms']:7.1f} ms\n"
        f"  the loop, per step of all games         {figures['loop_ms']:7.1f} ms\n"
        f"  the loop / (its updates + the games)    {figures['ratio']:7.2f}   "
        f"({', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))})\n"
        f"  {figures['updates_per_second']:.1f} updates/s, "
        f"{figures['steps_per_second']:.0f} agent steps/s"
    )
    return figures


@dataclasses.dataclass(frozen=True)
class MemoryBenchmark:
    """A run of the paper's size: its replay filled to the last row, then some steps of training."""

    game: str = "Breakout"
    """Which game; one with a demonstration in the package."""
    preset: Literal["laptop", "paper"] = "paper"
    """Where the hyper-parameters come from."""
    rows: int = 1_000_000
    """Rows of the replay, the demonstration's apart."""
    steps: int = 2_000
    """Agent steps of training after that."""


def benchmark_memory(config: MemoryBenchmark) -> dict[str, float]:
    """Measures and prints; returns the figures by name."""
    if config.rows < 1000 or config.steps < 1:
        raise UsageError("--rows must be at least 1000 and --steps at least 1")
    settings = dataclasses.replace(
        atari_config.preset(config.preset, config.game),
        replay_rows=config.rows,
        learning_starts=0,
    )
    atari_config.check(settings)
    job, _ = atari_job.prepare(settings)
    state = job.init()
    replay_state, state = state.replay, state.replace(replay=None)
    loop = job.make_loop(state.replace(replay=_fill(job.replay, replay_state)))
    del state, replay_state
    with tqdm(total=config.steps, unit="step", desc="training", leave=False) as bar:
        while loop.step < config.steps:
            loop.run(min(settings.envs * 4, config.steps - loop.step))
            bar.update(loop.step - bar.n)
    jax.block_until_ready(loop.state)
    figures = {
        "replay_gb": job.replay.num_bytes / 1e9,
        "memory_gb": peak_memory_gb(),
        "updates": int(loop.state.learner.updates),
        "rows": int(loop.state.replay.num_added) * settings.envs + job.replay.layout.num_demo_rows,
    }
    print(
        f"{config.game}, preset {config.preset}: a full replay of {figures['rows']:,} rows "
        f"({figures['replay_gb']:.2f} GB by design), {loop.step:,} agent steps, "
        f"{figures['updates']:,} updates; peak memory of the process {figures['memory_gb']:.2f} GB"
    )
    return figures


def main() -> None:
    """Runs the benchmark that the command line names."""
    tyro.extras.subcommand_cli_from_dict(
        {
            "replay": _replay_command,
            "atari": _atari_command,
            "memory": _memory_command,
            "gym": _gym_command,
        },
        description=__doc__,
        prog="python -m experiments.benchmark",
    )


def _atari_command(config: Annotated[AtariBenchmark, tyro.conf.arg(name="")]) -> None:
    """The Atari loop beside its parts."""
    benchmark_atari(config)


def _gym_command(config: Annotated[GymBenchmark, tyro.conf.arg(name="")]) -> None:
    """The host loop on CartPole beside stable-baselines3's DQN."""
    benchmark_gym(config)


def _memory_command(config: Annotated[MemoryBenchmark, tyro.conf.arg(name="")]) -> None:
    """Memory of a run of the paper's size with a full replay."""
    benchmark_memory(config)


def _replay_command(config: Annotated[ReplayBenchmark, tyro.conf.arg(name="")]) -> None:
    """Memory and speed of the replay at Atari size, and a check of what it draws."""
    benchmark_replay(config)


if __name__ == "__main__":
    run_main(main)
