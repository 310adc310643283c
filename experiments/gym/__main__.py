"""Your own environment: anything of gymnasium's with discrete actions, and flawed demonstrations.

    python -m experiments.gym
    python -m experiments.gym --env LunarLander-v3 --agent dqfd --demo mine.npz --out runs/mine
    python -m experiments.gym evaluate --run runs/mine
    python -m experiments.gym compare-demos --envs CartPole-v1 --seeds 5

Without --demo it first makes a mediocre demonstration, and says how.  A run that was stopped or
killed goes on with the same options and --out FOLDER --resume.  Writes a folder with
`summary.json`, `metrics.jsonl`, `policy.npz`, a learning curve, a film and checkpoints.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from bqfd_jax import api as learning
from bqfd_jax import demos
from bqfd_jax.demos import FrameDemonstration
from bqfd_jax.policy import save_policy
from bqfd_jax.runs import folder as run_folder
from bqfd_jax.runs import loop as host_run
from bqfd_jax.runs.folder import UsageError
from bqfd_jax.runs.job import Job
from bqfd_jax.types import LearnerState
from experiments.gym.__main__ import compare_demos as gym_compare
from experiments.gym.__main__ import config as gym_config
from experiments.gym.config import Config
from experiments.gym.job import TRAIN_STREAM, make_env, prepare

# A demonstration that is made for a run stays with it.
MADE = "demonstration.npz"


def announce(
    config: Config, demonstrations: Sequence[FrameDemonstration], job: Job, out: Path
) -> None:
    """Says what will happen, before it does."""
    device = jax.devices()[0]
    shown = "none"
    if demonstrations:
        shown = "\n                 ".join(
            f"{demonstration.name}, {len(demonstration.scores)} episodes, "
            f"{len(demonstration.actions)} steps, mean return {np.mean(demonstration.scores):.1f}"
            for demonstration in demonstrations
        )
    replay = job.replay
    print(
        f"{config.env}, {config.agent}, seed {config.seed}: "
        f"{config.steps:,} agent steps in {config.envs} environments\n"
        f"  demonstration: {shown}\n"
        f"  replay: {replay.layout.num_rows:,} rows, {replay.num_bytes / 1e9:.2f} GB\n"
        f"  device: {device.device_kind} ({device.platform}); run folder: {out}",
        flush=True,
    )


def train(config: Config) -> dict[str, Any]:
    """A whole run, or the rest of one; returns its summary."""
    gym_config.check(config)
    stored = gym_config.stored(config)
    if config.resume or config.out is not None:
        run_folder.check(config.out, stored, resume=config.resume)
    job, demonstrations = prepare(config, config.out / MADE if config.resume else None)
    job = dataclasses.replace(job, config=_without_film_if_blind(config))
    name = f"gym-{config.env.replace('/', '-').replace(':', '-')}"
    out = run_folder.prepare(config.out, stored, name=name, resume=config.resume)
    if demonstrations and config.demo == ("make",) and not (out / MADE).exists():
        demos.save(demonstrations[0], out / MADE)
    announce(config, demonstrations, job, out)
    return host_run.run(job, out, demonstrations, and_write={"policy.npz": _save_policy})


def _save_policy(job: Job, learner: LearnerState, path: Path) -> None:
    """The policy alone, for `bqfd_jax.load_policy`."""
    config = job.config
    env = make_env(config, 1, TRAIN_STREAM)
    network, made_with = learning.make_network(env, stack=config.stack, hidden=config.hidden)
    policy = learning.make_policy(
        env,
        network,
        made_with,
        config.agent_config,
        config.played_params(learner),
        stack=config.stack,
    )
    save_policy(policy, path)


def _without_film_if_blind(config: Config) -> Config:
    """Some environments cannot be rendered, which is no reason to fail in the end."""
    if not config.video:
        return config
    try:
        env = make_env(config, 1, TRAIN_STREAM, render=True)
        env.reset()
        env.render()
        env.close()
    except Exception as error:
        print(f"note: there will be no film, for {config.env} cannot be rendered: {error}")
        return dataclasses.replace(config, video=False)
    return config


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Plays episodes with the network of a run's last checkpoint, and films one."""

    run: Path
    """Folder of the run."""
    episodes: int = 30
    """Episodes to play, side by side."""
    epsilon: float | None = None
    """Probability of a random action; the run's own unless given."""
    video: bool = True
    """Film one episode."""


def evaluate_run(options: EvaluateConfig) -> None:
    """The command `evaluate`."""
    run_folder.require_at_least(1, options, "episodes")
    path = options.run / "config.json"
    try:
        config = gym_config.from_stored(json.loads(path.read_text()))
    except FileNotFoundError:
        raise UsageError(f"{options.run} is no run folder: it has no config.json") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no gym run's: {error}") from error
    epsilon = config.eval_epsilon if options.epsilon is None else options.epsilon
    config = dataclasses.replace(config, eval_episodes=options.episodes, eval_epsilon=epsilon)
    gym_config.check(config)
    job, _ = prepare(config, options.run / MADE)
    wanted = dataclasses.replace(config, video=options.video)
    host_run.play_run(options.run, job, with_film=_without_film_if_blind(wanted).video)


def main() -> None:
    """Trains, evaluates or compares, as the command line says."""
    command, *arguments = sys.argv[1:] or [""]
    prog = f"python -m experiments.gym {command}"
    if command == "evaluate":
        evaluate_run(tyro.cli(EvaluateConfig, args=arguments, prog=prog))
    elif command == "compare-demos":
        gym_compare.compare_demos(
            tyro.cli(gym_compare.CompareDemosConfig, args=arguments, prog=prog), train
        )
    else:
        train(gym_config.parse(sys.argv[1:], __doc__))


if __name__ == "__main__":
    run_folder.run_main(main)
