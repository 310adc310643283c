"""The whole Atari loop beside what it cannot do without: the update, and stepping the games."""

import dataclasses
from typing import Literal

import jax
import numpy as np

from bqfd_jax import checks
from bqfd_jax.runs.atari import AtariConfig, AtariWorld
from bqfd_jax.runs.job import make_job
from bqfd_jax.training.on_host import to_device

from .timing import measure


def atari(
    game: str = "Breakout",
    agent: Literal["bqfd", "ensemble_bqfd", "dqfd", "dqn"] = "bqfd",
    preset: Literal["laptop", "paper"] = "laptop",
    envs: int = 8,
    update_period: float = 4,
    iterations: int = 60,
    rounds: int = 5,
) -> dict[str, float]:
    """The whole Atari loop, and what it cannot do without: the update, and stepping the games.

    Args:
      game: Which game.
      agent: Which agent, with the hyper-parameters of the preset.
      preset: Where they come from.
      envs: Games side by side.
      update_period: Agent steps, over all games, per update.
      iterations: Steps of all games per round.
      rounds: Every part is measured once per round; the median counts.

    Returns:
      The figures by name.
    """
    checks.at_least(1, envs=envs, iterations=iterations, rounds=rounds)
    settings = dataclasses.replace(
        AtariConfig.of(preset, game),
        agent=agent,
        envs=envs,
        update_period=update_period,
        learning_starts=0,
        replay_rows=20_000,
        demo=("none",),
    )
    settings.check()
    job = make_job(settings, AtariWorld(settings))
    loop = job.make_loop(job.init())
    updates = max(1, round(iterations * envs / update_period))

    games = job.world.training()
    seen = to_device(games.reset())
    actions = np.zeros(envs, np.int32)

    def update() -> None:
        for _ in range(updates):
            loop.state = loop.trainer.update(loop.state)
        jax.block_until_ready(loop.state)

    def step_games() -> None:
        for _ in range(iterations):
            games.step(actions)

    def act() -> None:
        for _ in range(iterations):
            loop.state, chosen = loop.trainer.interact(loop.state, seen)
            np.asarray(chosen)
        jax.block_until_ready(loop.state)

    def whole(steps: int = iterations * envs) -> None:
        loop.run(steps)
        jax.block_until_ready(loop.state)

    # Compiles, and fills the replay a little.
    whole(40 * envs)
    seconds = measure(
        {"update": update, "games": step_games, "act and add": act, "whole loop": whole}, rounds
    )
    ratios = seconds["whole loop"].wall / (seconds["update"].wall + seconds["games"].wall)
    median = {name: float(np.median(times.wall)) for name, times in seconds.items()}
    steps = iterations * envs
    figures = {
        "update_ms": 1e3 * median["update"] / updates,
        "games_ms": 1e3 * median["games"] / iterations,
        "act_ms": 1e3 * median["act and add"] / iterations,
        "loop_ms": 1e3 * median["whole loop"] / iterations,
        "ratio": float(np.median(ratios)),
        "updates_per_second": updates / median["whole loop"],
        "steps_per_second": steps / median["whole loop"],
    }
    print(
        f"{game}, {agent}, {envs} games, an update per "
        f"{update_period:g} steps, {jax.devices()[0].device_kind}\n"
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
