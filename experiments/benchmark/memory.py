"""Memory of a run of the paper's size, with a full replay."""

import dataclasses
from typing import Literal

import jax
from tqdm import tqdm

from bqfd_jax import checks
from bqfd_jax.runs.atari import AtariConfig
from bqfd_jax.runs.machine import peak_memory_gb
from bqfd_jax.runs.run import load_job

from .replay import fill


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
    checks.at_least(1000, rows=config.rows)
    checks.at_least(1, steps=config.steps)
    settings = dataclasses.replace(
        AtariConfig.of(config.preset, config.game),
        replay_rows=config.rows,
        learning_starts=0,
    )
    job = load_job(settings)
    replay, state = job.replay, job.init()
    empty, state = state.replay, state.replace(replay=None)
    loop = job.make_loop(state.replace(replay=fill(replay, empty)))
    # The memory of both belongs to the loop now.
    del state, empty
    with tqdm(total=config.steps, unit="step", desc="training", leave=False) as bar:
        while loop.step < config.steps:
            loop.run(min(settings.envs * 4, config.steps - loop.step))
            bar.update(loop.step - bar.n)
    jax.block_until_ready(loop.state)
    figures = {
        "replay_gb": replay.num_bytes / 1e9,
        "memory_gb": peak_memory_gb(),
        "updates": int(loop.state.learner.updates),
        "rows": int(loop.state.replay.num_added) * settings.envs + replay.layout.num_demo_rows,
    }
    print(
        f"{config.game}, preset {config.preset}: a full replay of {figures['rows']:,} rows "
        f"({figures['replay_gb']:.2f} GB by design), {loop.step:,} agent steps, "
        f"{figures['updates']:,} updates; peak memory of the process {figures['memory_gb']:.2f} GB"
    )
    return figures
