"""The whole Atari loop beside what it cannot do without: the update, and stepping the games."""

import dataclasses
import time
from collections.abc import Callable
from typing import Literal

import jax
import numpy as np
from tqdm import tqdm

from bqfd_jax import checks
from bqfd_jax.runs.atari import AtariConfig, AtariWorld
from bqfd_jax.runs.job import make_job
from bqfd_jax.training.on_host import to_device


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
    checks.at_least(1, envs=config.envs, iterations=config.iterations, rounds=config.rounds)
    settings = dataclasses.replace(
        AtariConfig.of(config.preset, config.game),
        agent=config.agent,
        envs=config.envs,
        update_period=config.update_period,
        learning_starts=0,
        replay_rows=20_000,
        demo=("none",),
    )
    settings.check()
    job = make_job(settings, AtariWorld(settings))
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

    games = job.world.training()
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
