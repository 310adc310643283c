"""A planner that makes demonstrations, game after game: what a skill means to either method.

`play` looks ahead for a reason to change keys, `search` keeps lucky random actions.  Both clone the
emulator and so see the future, which no player does: what they make is not human play.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bqfd_jax import checks
from bqfd_jax.demos.demonstration import ActionDemonstration
from bqfd_jax.demos.making import hints, playing, search, shaping
from bqfd_jax.demos.making.search import Game
from bqfd_jax.envs import ale, atari

METHODS = ("play", "search")
DEFAULT_SKILL = 0.5
_CLUMSY = 0.25  # with less skill than that, lapses are long and lose the game
_LARGEST_SEED = 2**63 - 1
# No new game for less than this share of the steps: a few opening moves teach nothing.
_LEAST_GAME = 0.1


class Progress(NamedTuple):
    """How far the planner is; after a retry it is less far than before."""

    episode: int  # from 0
    steps: int  # of all episodes, the last one's so far included
    scores: tuple[float, ...]  # of all episodes, the last one's best so far included
    simulated: int  # agent steps simulated in all


def settings(
    game: str, *, method: str = "play", skill: float = DEFAULT_SKILL
) -> playing.Settings | search.Settings:
    """What a skill from 0 (clumsy) to 1 (nothing escapes it) means in a game."""
    checks.one_of(METHODS, method=method)
    checks.within(0, 1, skill=skill)
    if method == "search":
        table = shaping.of(game)
        return search.Settings(
            population=2 + round(60 * skill),
            compare_probability=min(1.0, 0.1 + 1.8 * skill),
            retries=round(4 * skill),
            generation_steps=table.generation_steps,
            change_probability=table.change_probability,
            rollback_generations=table.rollback_generations,
        )
    known = hints.of(game)
    carelessness, is_clumsy = 1 - skill, skill < _CLUMSY
    return playing.Settings(
        pace=known.pace,
        horizon=known.horizon,
        continuations=known.continuations,
        hope=known.hope,
        margin=known.margin,
        # Attention lapses by the second, however often a game asks for a decision.
        lapse_probability=min(1.0, 0.03 * carelessness * known.pace),
        lapse_steps=round(40 * carelessness) * (3 if is_clumsy else 1),
        lets_go=is_clumsy,
        late_steps=round(2 * carelessness**2),
    )


def simulated_steps(game: str, *, method: str, skill: float, steps: int) -> int:
    """Agent steps that `plan` will simulate for a demonstration of so many, about.

    The search's are the least that it takes: a retry plays some of them again.
    """
    how = settings(game, method=method, skill=skill)
    if isinstance(how, search.Settings):
        return steps * how.population
    num_keys = len(hints.of(game).keys) or ale.Ale(game).num_actions
    # Then each step is played, and by the last pass again with at most three other keys.
    return round(steps * (how.simulated(num_keys) + 5))


def check(
    game: str, *, method: str, skill: float, steps: int, seed: int, episodes: int | None
) -> None:
    """Raises `ValueError` if `plan` could not be called so, `ImportError` without ale-py."""
    ale.check_game(game)
    settings(game, method=method, skill=skill)
    checks.within(1, atari.MAX_EPISODE_STEPS, steps=steps)
    checks.within(0, _LARGEST_SEED, seed=seed)
    checks.at_least(1, episodes=episodes)


def plan(
    game: str,
    *,
    method: str = "play",
    skill: float = DEFAULT_SKILL,
    steps: int = 6_000,
    seed: int = 0,
    episodes: int | None = None,
    on_progress: Callable[[Progress], bool | None] = lambda _: None,
) -> ActionDemonstration:
    """Makes a demonstration; the same arguments always make the same one.

    Args:
      game: a name as in `envs.atari.games()`.
      method: `play` plays like a person, `search` keeps lucky random actions.
      skill: see `settings`.
      steps: agent steps of all episodes together, at most; the last episode may be cut there.
      seed: of all that is random.
      episodes: games at most; None plays as many as fit.
      on_progress: called after every decision or generation; returning True stops the planner.

    Returns:
      The demonstration, not yet played back: without a hash of its frames.
    """
    check(game, method=method, skill=skill, steps=steps, seed=seed, episodes=episodes)
    how = settings(game, method=method, skill=skill)
    emulator = ale.Ale(game)
    games: list[Game] = []
    stopped = False
    while not stopped and (episodes is None or len(games) < episodes):
        left = steps - sum(len(done.actions) for done in games)
        if games and left < max(1, _LEAST_GAME * steps):
            break

        def report(so_far: int, score: float, simulated: int) -> bool:
            nonlocal stopped
            stopped = bool(on_progress(_progress(games, so_far, score, simulated)))
            return stopped

        # Episodes must differ, and must not depend on how long the ones before took.
        rng = np.random.default_rng([seed, len(games)])
        games.append(_game(emulator, how, left, rng, report))
    origin = {
        "made_by": "a planner that clones the emulator",
        "planner": dataclasses.asdict(how)
        | {"method": method, "skill": skill, "seed": seed, "steps": steps, "episodes": episodes},
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
        name=f"{'planned' if method == 'play' else method}-skill-{skill:g}-seed-{seed}",
        origin=origin,
    )


def _game(
    emulator: ale.Ale,
    how: playing.Settings | search.Settings,
    steps: int,
    rng: np.random.Generator,
    report: Callable[[int, float, int], bool],
) -> Game:
    if isinstance(how, playing.Settings):
        known = hints.of(emulator.game)
        return playing.play_game(
            emulator, how, hints=known, steps=steps, rng=rng, on_decision=report
        )
    return search.plan_game(
        emulator,
        how,
        shape=shaping.of(emulator.game),
        steps=steps,
        rng=rng,
        on_generation=lambda best, simulated: report(best.steps, best.score, simulated),
    )


def _progress(games: list[Game], so_far: int, score: float, simulated: int) -> Progress:
    return Progress(
        episode=len(games),
        steps=sum(len(done.actions) for done in games) + so_far,
        scores=(*(done.score for done in games), score),
        simulated=sum(done.simulated for done in games) + simulated,
    )
