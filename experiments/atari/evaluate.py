"""Evaluation of Atari agents from a run's checkpoint."""

import dataclasses
import json
from pathlib import Path

from bqfd_jax.runs.folder import UsageError, require_at_least
from bqfd_jax.runs.loop import play_run
from experiments.atari.__main__ import config as atari_config
from experiments.atari.config import Config
from experiments.atari.job import prepare_shape


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Plays episodes with the network of a run's last checkpoint, and films one."""

    run: Path
    """Folder of the run."""
    episodes: int = 30
    """Episodes to play, side by side."""
    epsilon: float | None = None
    """Probability of a random action; the run's own unless given."""
    max_steps: int | None = None
    """Agent steps after which an episode is cut; the run's own unless given."""
    video: bool = True
    """Film one episode."""


def _read_config(run: Path) -> Config:
    path = run / "config.json"
    try:
        return atari_config.from_stored(json.loads(path.read_text()))
    except FileNotFoundError:
        raise UsageError(f"{run} is no run folder: it has no config.json") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no Atari run's: {error}") from error


def evaluate_run(options: EvaluateConfig) -> None:
    """The command `evaluate`."""
    require_at_least(1, options, "episodes", "max_steps")
    require_at_least(0, options, "epsilon")
    if options.epsilon is not None and options.epsilon > 1:
        raise UsageError(f"--epsilon is {options.epsilon}, but must be at most 1")
    config = _read_config(options.run)
    config = dataclasses.replace(
        config,
        eval_episodes=options.episodes,
        eval_epsilon=config.eval_epsilon if options.epsilon is None else options.epsilon,
        eval_max_steps=options.max_steps or config.eval_max_steps,
    )
    atari_config.check(config)
    job = prepare_shape(config)
    play_run(options.run, job, with_film=options.video)
