"""The command `plan`: has the planner make a demonstration and checks that it plays back."""

import dataclasses
import os
import time
from pathlib import Path
from typing import Annotated

import tyro
from tqdm import tqdm

from bqfd_jax import demos
from bqfd_jax.demos.making import planning
from bqfd_jax.envs import atari
from bqfd_jax.runs.folder import RunError, StopRequested, UsageError, duration, stop_signals

# Simulated agent steps per second of one core, about; only for the forecast.
_SPEED = 2_000


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """What to plan, and where to put it."""

    game: str
    """Which game, such as Breakout or MsPacman. A few have hints in
    `bqfd_jax/demos/making/shaping.py`; all others are planned by score and lives alone."""
    skill: float = planning.DEFAULT_SKILL
    """From 0 (clumsy, little better than random) to 1 (superhuman). Time grows with it."""
    steps: int = 6_000
    """Agent steps (4 emulator frames) of all episodes together, at most. When a game is over
    another begins; the last one is cut where the steps end."""
    seed: int = 0
    """Of the search; another seed makes another demonstration."""
    episodes: int | None = None
    """Games at most; as many as fit unless given."""
    out: Path | None = None
    """File to write, .npz; named after game, skill and seed unless given."""
    overwrite: bool = False
    """Replace the file if it exists."""


def plan(config: Annotated[PlanConfig, tyro.conf.arg(name="")]) -> None:
    """Has a planner make a demonstration of a game, checks and saves it.

    The planner plays many copies of the game side by side with random actions; again and again
    copies that fare badly are replaced by copies that fare well. So it sees the future, which no
    player does: what comes out is not human play. It needs no network, no learning and no files.

        python -m experiments.demos plan --game Breakout
        python -m experiments.demos plan --game Pong --skill 0.2 --seed 3 --out clumsy.npz
        python -m experiments.atari --game Breakout --demo Breakout-skill0.5-seed0.npz

    The same options make the same demonstration. Ctrl-C keeps the steps that are planned by then.
    """
    out = config.out or Path(f"{config.game}-skill{config.skill:g}-seed{config.seed}.npz")
    _check(config, out)
    try:
        _announce(config, out)
        demonstration = _search(config)
    except KeyboardInterrupt:
        raise StopRequested(f"stopped; nothing was saved to {out}") from None
    try:
        demonstration = _verify(demonstration)
    except KeyboardInterrupt:
        # The search took minutes, and this is but the check.
        _save(demonstration, out)
        raise StopRequested(f"stopped; {out} was not checked") from None
    _save(demonstration, out)
    if demonstration.origin["stopped_early"]:
        raise StopRequested(
            f"stopped early: {out} holds the first {len(demonstration.actions):,} of "
            f"{config.steps:,} steps"
        )


def _check(config: PlanConfig, out: Path) -> None:
    try:
        planning.check(
            config.game,
            skill=config.skill,
            steps=config.steps,
            seed=config.seed,
            episodes=config.episodes,
        )
        # What only ale-py has could not be played back.
        if _has_envpool():
            atari.check_game(config.game)
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from error
    if out.suffix != ".npz":
        raise UsageError(f"--out is {out}, but demonstrations are files that end in .npz")
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder; name a file")
    if out.exists() and not config.overwrite:
        raise UsageError(f"{out} exists already; add --overwrite, or choose another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {out.parent}: {error.strerror or error}") from error
    if not os.access(out.parent, os.W_OK):
        raise UsageError(f"cannot write to {out.parent}: it is read-only")


def _announce(config: PlanConfig, out: Path) -> None:
    how = planning.settings(config.game, skill=config.skill)
    least = config.steps * how.population
    needed = f"some {duration(least / _SPEED)} on one core"
    if how.retries:
        needed += f", and more where lives are lost (up to {how.retries} retries each)"
    print(
        f"Planning {config.steps:,} steps of {config.game} with skill {config.skill:g}: "
        f"{how.population} copies of the game, {least:,} simulated steps. That takes {needed}.\n"
        f"Then the result is played back and written to {out}. Ctrl-C keeps what there is."
    )


def _search(config: PlanConfig) -> demos.ActionDemonstration:
    started = time.perf_counter()
    with (
        tqdm(total=config.steps, unit="step", desc=config.game) as bar,
        stop_signals("after this generation; what is planned will be saved") as asked_to_stop,
    ):

        def show(progress: planning.Progress) -> bool:
            # A retry goes back; the bar waits for it.
            bar.update(max(0, progress.steps - bar.n))
            bar.set_postfix_str(f"score {_listed(progress.scores)}", refresh=False)
            return asked_to_stop()

        demonstration = planning.plan(
            config.game,
            skill=config.skill,
            steps=config.steps,
            seed=config.seed,
            episodes=config.episodes,
            on_progress=show,
        )
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
            "Not played back: envpool is not installed (pip install 'bqfd-jax[atari]'). The file "
            "gets no hash of its frames, and is checked by its scores when it is used."
        )
        return demonstration
    print("Playing it back ...", flush=True)
    try:
        rows = demos.play(demonstration, gamma=1.0)
    except demos.DemonstrationError as error:
        raise RunError(f"{error}. Nothing was saved.") from error
    print(f"It plays back in envpool {atari.envpool_version()} with the same scores.")
    return dataclasses.replace(
        demonstration, frame_hash=demos.frame_hash(rows), envpool=atari.envpool_version()
    )


def _save(demonstration: demos.ActionDemonstration, out: Path) -> None:
    try:
        demos.save(demonstration, out)
    except OSError as error:
        raise RunError(f"cannot write {out}: {error.strerror or error}") from error
    print(f"Saved to {out}. It was made by a planner that sees the future: not human play.")


def _has_envpool() -> bool:
    try:
        atari.envpool_version()
    except ImportError:
        return False
    return True


def _listed(scores: tuple[float, ...]) -> str:
    return ", ".join(f"{score:,g}" for score in scores)
