"""The command `plan`: has the planner make a demonstration and checks that it plays back."""

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bqfd_jax import console, demos, extras
from bqfd_jax.demos.making import planning
from bqfd_jax.envs import atari
from bqfd_jax.runs.errors import RunError, Stopped, UsageError
from bqfd_jax.runs.machine import duration

from .output import check_out, save

# Simulated agent steps per second of one core, about: 1,400 in Freeway, 5,100 in Assault.
_SPEED = 2_500


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """What to plan, and where to put it."""

    game: str
    """Which game, such as Breakout or MsPacman. A few have hints in
    `bqfd_jax/demos/making/`; all others are planned by score and lives alone."""
    method: Literal["play", "search"] = "play"
    """How: `play` looks ahead, holds its keys and changes them for a reason, so that its actions
    can be learnt; `search` keeps lucky random actions, of which only the score is worth much."""
    skill: float = planning.DEFAULT_SKILL
    """From 0 (clumsy) to 1 (superhuman). Less skill means lapses of attention and late reactions
    to `play`, and fewer copies of the game to `search`."""
    steps: int = 6_000
    """Agent steps (4 emulator frames) of all episodes together, at most. When a game is over
    another begins; the last one is cut where the steps end."""
    seed: int = 0
    """Of all that is random; another seed makes another demonstration."""
    episodes: int | None = None
    """Games at most; as many as fit unless given."""
    out: Path | None = None
    """File to write, .npz; named after game, skill and seed unless given."""
    overwrite: bool = False
    """Replace the file if it exists."""


def plan(config: Annotated[PlanConfig, tyro.conf.arg(name="")]) -> None:
    """Has a planner make a demonstration of a game, checks and saves it.

    Every few steps the planner tries in a copy of the game what would come of each key, and takes
    another key only for a reason; now and then its attention lapses. It sees the future, which no
    player does: what comes out is not human play. It needs no network, no learning and no files.

        python -m experiments.demos plan --game Breakout
        python -m experiments.demos plan --game Breakout --method search
        python -m experiments.demos plan --game Pong --skill 0.2 --seed 3 --out clumsy.npz
        python -m experiments.atari --game Breakout --demo Breakout-skill0.5-seed0.npz

    The same options make the same demonstration. Ctrl-C keeps the steps that are planned by then.
    """
    out = config.out or Path(f"{config.game}-skill{config.skill:g}-seed{config.seed}.npz")
    _check(config, out)
    try:
        _announce(config, out)
        demonstration = _planned(config)
    except KeyboardInterrupt:
        raise Stopped(f"stopped; nothing was saved to {out}") from None
    try:
        demonstration = _verify(demonstration)
    except KeyboardInterrupt:
        # Planning took minutes, and this is but the check.
        save(demonstration, out)
        raise Stopped(f"stopped; {out} was not checked") from None
    save(demonstration, out)
    print(f"Saved to {out}. It was made by a planner that sees the future: not human play.")
    if demonstration.origin["stopped_early"]:
        raise Stopped(
            f"stopped early: {out} holds the first {len(demonstration.actions):,} of "
            f"{config.steps:,} steps"
        )


def _check(config: PlanConfig, out: Path) -> None:
    try:
        planning.check(**_options(config))
        # What only ale-py has could not be played back.
        if _has_envpool():
            atari.check_game(config.game)
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from error
    check_out(out, overwrite=config.overwrite)


def _options(config: PlanConfig) -> dict[str, Any]:
    """What the planner is told."""
    names = ("game", "method", "skill", "steps", "seed", "episodes")
    return {name: getattr(config, name) for name in names}


def _announce(config: PlanConfig, out: Path) -> None:
    how = planning.settings(config.game, method=config.method, skill=config.skill)
    print(
        f"Planning {config.steps:,} steps of {config.game} with skill {config.skill:g}: "
        f"{_forecast(config, how)}\n"
        f"Then the result is played back and written to {out}. Ctrl-C keeps what there is."
    )


def _forecast(config: PlanConfig, how: planning.playing.Settings | planning.search.Settings) -> str:
    asked = {name: getattr(config, name) for name in ("game", "method", "skill", "steps")}
    simulated = planning.simulated_steps(**asked)
    needed = f"some {duration(max(1, simulated / _SPEED))} on one core"
    if config.method == "play":
        every = "step" if how.pace == 1 else f"{how.pace} steps"
        planned = f"a decision every {every}, looking {how.horizon} steps ahead"
    else:
        planned = f"{how.population} copies of the game"
        if how.retries:
            needed += f", and more where lives are lost (up to {how.retries} retries each)"
    # More digits would be more than anybody knows.
    about = f"about {float(f'{simulated:.3g}'):,.0f} simulated steps"
    return f"{planned}, {about}. That takes {needed}."


def _planned(config: PlanConfig) -> demos.ActionDemonstration:
    started = time.perf_counter()
    with (
        console.terminal("soon; what is planned will be saved") as sink,
        sink.bar(config.game, unit="step", total=config.steps) as bar,
    ):
        furthest = 0

        def show(progress: planning.Progress) -> bool:
            nonlocal furthest
            # A retry goes back; the bar waits for it.
            furthest = max(furthest, progress.steps)
            bar.at(furthest)
            bar.note("score " + ", ".join(f"{score:,g}" for score in progress.scores))
            return sink.stop_asked()

        demonstration = planning.plan(**_options(config), on_progress=show)
    seconds = time.perf_counter() - started
    print(f"{sum(demonstration.origin['simulated']):,} steps simulated in {duration(seconds)}:")
    for score, length, over in zip(
        demonstration.scores,
        demonstration.episode_lengths,
        demonstration.game_over,
        strict=True,
    ):
        print(f"  score {score:,g} in {length:,} steps, {'game over' if over else 'cut off'}")
    return demonstration


def _verify(demonstration: demos.ActionDemonstration) -> demos.ActionDemonstration:
    """Notes the hash of the frames, for whoever plays it back later."""
    if not _has_envpool():
        print(
            f"Not played back: envpool is not installed ({extras.hint('atari')}). The file "
            "gets no hash of its frames, and is checked by its scores when it is used."
        )
        return demonstration
    print("Playing it back ...", flush=True)
    try:
        checked = demos.verified(demonstration)
    except demos.DemonstrationError as error:
        raise RunError(f"{error}. Nothing was saved.") from error
    print(f"It plays back in envpool {checked.envpool} with the same scores.")
    return checked


def _has_envpool() -> bool:
    try:
        atari.envpool_version()
    except ImportError:
        return False
    return True
