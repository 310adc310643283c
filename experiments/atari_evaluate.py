"""Evaluation of Atari agents: beside training, of a checkpoint, and on film."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from bqfd_jax import video
from bqfd_jax.checkpoint import Checkpointer
from bqfd_jax.envs import atari
from bqfd_jax.metrics import write_json_atomic
from bqfd_jax.training.evaluate import Evaluation, make_evaluate
from bqfd_jax.types import Params
from experiments import atari_config
from experiments.atari_config import Config
from experiments.atari_job import (
    EVALUATION_STREAM,
    FILM_STREAM,
    STACK,
    Job,
    checkpoint_template,
    prepare_shape,
)
from experiments.run_folder import UsageError


class Evaluator:
    """Games that nobody learns from, ready to be played again and again."""

    def __init__(self, job: Job, *, film: bool = False):
        self._config = config = job.config
        self.env = atari.Atari(
            config.game,
            num_lanes=1 if film else config.eval_episodes,
            seed=config.seed,
            stream=FILM_STREAM if film else EVALUATION_STREAM,
            # Episodes are whole games here.
            life_loss_is_terminal=False,
            max_episode_steps=config.eval_max_steps,
            render=film,
        )
        self._evaluate = make_evaluate(
            job.agent.evaluate, self.env, stack=STACK, epsilon=config.eval_epsilon
        )

    def __call__(self, params: Params, step: int, on_step: Any = None) -> Evaluation:
        """One episode in every game, with the network of that agent step."""
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self._config.seed), 3), step)
        return self._evaluate(params, key, on_step)


def film(job: Job, params: Params, out: Path, step: int) -> None:
    """Plays one episode and writes `episode.mp4`, at the speed that people play."""
    play = Evaluator(job, film=True)
    # 60 frames a second, one of four seen.
    with video.Mp4(out / "episode.mp4", fps=15, scale=2) as film:
        play(params, step, lambda _: film.add(play.env.render()))


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
    for name, value, least in (
        ("episodes", options.episodes, 1),
        ("max-steps", options.max_steps, 1),
        ("epsilon", options.epsilon, 0),
    ):
        if value is not None and value < least:
            raise UsageError(f"--{name} is {value}, but must be at least {least}")
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
    step, params = _read_params(options.run, job)
    evaluate = Evaluator(job)
    with tqdm(unit="step", desc=f"evaluating step {step}") as bar:
        result = evaluate(params, step, lambda _: bar.update(1) and False)
    row = {
        "step": step,
        "mean": float(result.scores.mean()),
        "std": float(result.scores.std()),
        "episodes": len(result.scores),
        "truncated": int(result.truncated.sum()),
        "scores": result.scores,
    }
    write_json_atomic(options.run / "evaluation.json", row)
    print(
        f"{config.game}, {config.agent}, step {step}: {row['mean']:.1f} +- {row['std']:.1f} over "
        f"{row['episodes']} episodes ({row['truncated']} cut at {config.eval_max_steps} steps); "
        f"written to {options.run / 'evaluation.json'}"
    )
    if options.video:
        try:
            film(job, params, options.run, step)
        except ImportError as error:
            raise UsageError(f"{error}, or add --no-video") from error


def _read_params(run: Path, job: Job) -> tuple[int, Params]:
    checkpointer = Checkpointer(run / "checkpoints", on_skip=tqdm.write)
    restored = checkpointer.restore(checkpoint_template(job))
    if restored is None:
        raise UsageError(f"{run} has no checkpoint yet")
    # The replay, which may take gigabytes, goes.
    return restored[0], job.config.played_params(restored[1]["train"]["learner"])
