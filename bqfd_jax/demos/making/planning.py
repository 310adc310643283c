"""A planner that makes demonstrations: what a skill means, and game after game by `search`.

The planner sees the future, which no player does: what it makes is not human play.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bqfd_jax import checks
from bqfd_jax.demos.demonstration import ActionDemonstration
from bqfd_jax.demos.making import shaping
from bqfd_jax.demos.making.search import Candidate, Game, Settings, plan_game
from bqfd_jax.envs import ale, atari

DEFAULT_SKILL = 0.5
_LARGEST_SEED = 2**63 - 1
# No new game for less than this share of the steps: a few opening moves teach nothing.
_LEAST_GAME = 0.1


class Progress(NamedTuple):
    """How far the planner is; after a retry it is less far than before."""

    episode: int  # from 0
    steps: int  # of all episodes, the last one's so far included
    scores: tuple[float, ...]  # of all episodes, the last one's best so far included
    simulated: int  # agent steps simulated in all


def settings(game: str, *, skill: float = DEFAULT_SKILL) -> Settings:
    """What a skill from 0 (clumsy, little better than random) to 1 (superhuman) means in a game."""
    checks.within(0, 1, skill=skill)
    table = shaping.of(game)
    return Settings(
        population=2 + round(60 * skill),
        compare_probability=min(1.0, 0.1 + 1.8 * skill),
        retries=round(4 * skill),
        generation_steps=table.generation_steps,
        change_probability=table.change_probability,
        rollback_generations=table.rollback_generations,
    )


def check(game: str, *, skill: float, steps: int, seed: int, episodes: int | None) -> None:
    """Raises `ValueError` if `plan` could not be called so, `ImportError` without ale-py."""
    ale.check_game(game)
    settings(game, skill=skill)
    checks.within(1, atari.MAX_EPISODE_STEPS, steps=steps)
    checks.within(0, _LARGEST_SEED, seed=seed)
    checks.at_least(1, episodes=episodes)


def plan(
    game: str,
    *,
    skill: float = DEFAULT_SKILL,
    steps: int = 6_000,
    seed: int = 0,
    episodes: int | None = None,
    on_progress: Callable[[Progress], bool | None] = lambda _: None,
) -> ActionDemonstration:
    """Makes a demonstration; the same arguments always make the same one.

    Args:
      game: a name as in `envs.atari.games()`.
      skill: see `settings`; time grows with it.
      steps: agent steps of all episodes together, at most; the last episode may be cut there.
      seed: of the search.
      episodes: games at most; None plays as many as fit.
      on_progress: called after every generation; the planner stops when it returns True.

    Returns:
      The demonstration, not yet played back: without a hash of its frames.
    """
    check(game, skill=skill, steps=steps, seed=seed, episodes=episodes)
    how = settings(game, skill=skill)
    emulator = ale.Ale(game)
    games: list[Game] = []
    stopped = False
    while not stopped and (episodes is None or len(games) < episodes):
        left = steps - sum(len(done.actions) for done in games)
        if games and left < max(1, _LEAST_GAME * steps):
            break

        def report(best: Candidate, simulated: int) -> bool:
            nonlocal stopped
            stopped = bool(on_progress(_progress(games, best, simulated)))
            return stopped

        games.append(
            plan_game(
                emulator,
                how,
                shape=shaping.of(game),
                steps=left,
                # Episodes must differ, and must not depend on how long the ones before took.
                rng=np.random.default_rng([seed, len(games)]),
                on_generation=report,
            )
        )
    origin = {
        "made_by": "a planner that clones the emulator",
        "planner": dataclasses.asdict(how)
        | {"skill": skill, "seed": seed, "steps": steps, "episodes": episodes},
        "simulated": [done.simulated for done in games],
        "retries": [done.retries for done in games],
        "stopped_early": stopped,
        "ale_py": ale.version(),
    }
    return ActionDemonstration(
        game=game,
        actions=np.concatenate([done.actions for done in games]),
        episode_lengths=np.array([len(done.actions) for done in games], np.int32),
        scores=tuple(done.score for done in games),
        game_over=tuple(done.is_over for done in games),
        configuration=atari.EMULATOR
        | {"noop_max": 1, "max_episode_steps": atari.MAX_EPISODE_STEPS},
        action_meaning=emulator.action_meaning,
        name=f"planned-skill-{skill:g}-seed-{seed}",
        origin=origin,
    )


def _progress(games: list[Game], best: Candidate, simulated: int) -> Progress:
    return Progress(
        episode=len(games),
        steps=sum(len(done.actions) for done in games) + best.steps,
        scores=(*(done.score for done in games), best.score),
        simulated=sum(done.simulated for done in games) + simulated,
    )
