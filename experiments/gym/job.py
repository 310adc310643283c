"""From a config to all that a run on a gymnasium environment is made of."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax import api as learning
from bqfd_jax import demos
from bqfd_jax.demos import DemonstrationError, FrameDemonstration
from bqfd_jax.envs.gym_making import time_limit
from bqfd_jax.envs.gymnasium import GymVector
from bqfd_jax.runs.folder import UsageError
from bqfd_jax.runs.job import Job, check_memory, unique_names
from bqfd_jax.training.setup import make_setup
from experiments.gym.__main__ import scripts as gym_scripts
from experiments.gym.config import Config, load_wrappers

# Environments of one run must not share their episodes' beginnings.
TRAIN_STREAM, EVALUATION_STREAM, FILM_STREAM, DEMO_STREAM = 0, 1, 2, 3
# A script needs no training; elsewhere DQN is trained for so many steps.
BRIEF_STEPS = 10_000
BRIEF_EPSILON = 0.3


def make_env(config: Config, num_lanes: int, stream: int, **options: Any) -> GymVector:
    """Environments of a run; raises `UsageError` if they cannot be made or learnt."""
    try:
        return GymVector(
            config.env,
            num_lanes,
            seed=config.seed,
            stream=stream,
            wrappers=load_wrappers(config.wrappers),
            **options,
        )
    except (ValueError, ImportError) as error:
        raise UsageError(f"--env {config.env}: {error}") from error


def _make_eval_env(config: Config, film: bool) -> GymVector:
    """Environments that nobody learns from; episodes without a limit get one."""
    limit = None if time_limit(config.env) else config.eval_max_steps
    return make_env(
        config,
        1 if film else config.eval_episodes,
        FILM_STREAM if film else EVALUATION_STREAM,
        max_episode_steps=limit,
        render=film,
    )


# --- Demonstrations ---


def make_demonstration(config: Config, env: GymVector) -> FrameDemonstration:
    """Plays episodes by a script or a briefly trained policy, and says so."""
    script = gym_scripts.find(config.env)
    if config.demo_quality == "bad":
        act, epsilon = gym_scripts.always(0), gym_scripts.BAD_EPSILON
        how = f"nearly always action 0 ({epsilon:.0%} at random)"
    elif script is not None:
        act, epsilon = script.act, script.mediocre_epsilon
        how = f"by a script, {epsilon:.0%} of the actions at random"
    else:
        print(f"training DQN for {BRIEF_STEPS:,} steps to demonstrate with ...", flush=True)
        act = learning.train(
            make_env(config, config.envs, DEMO_STREAM), steps=BRIEF_STEPS, seed=config.seed
        ).policy
        epsilon = BRIEF_EPSILON
        how = f"by DQN after {BRIEF_STEPS:,} steps, {epsilon:.0%} of the actions at random"
    print(f"making a {config.demo_quality} demonstration {how} ...", end=" ", flush=True)
    parts, steps = [], 0
    while steps < config.demo_steps:
        part = learning.record(
            env, act, 1, epsilon=epsilon, seed=config.seed + 1000 * len(parts), max_steps=5_000
        )
        parts.append(part)
        steps += len(part.actions)
    made = join(parts, name=config.demo_quality, origin={"made": how, "seed": config.seed})
    print(f"{len(made.scores)} episodes, {steps} steps, mean return {np.mean(made.scores):.1f}")
    return made


def join(parts: Sequence[FrameDemonstration], *, name: str, origin: Any) -> FrameDemonstration:
    """One demonstration of the episodes of several."""
    return dataclasses.replace(
        parts[0],
        frames=np.concatenate([part.frames for part in parts]),
        actions=np.concatenate([part.actions for part in parts]),
        rewards=np.concatenate([part.rewards for part in parts]),
        episode_lengths=np.concatenate([part.episode_lengths for part in parts]),
        terminated=sum((part.terminated for part in parts), ()),
        name=name,
        origin=origin,
    )


def load_demonstrations(config: Config, made: Path | None = None) -> tuple[FrameDemonstration, ...]:
    """What `--demo` names, each with a name of its own.

    Args:
      config: of the run.
      made: where an earlier part of the run has put the demonstration that it made, if it has.
    """
    if not config.has_demonstrations:
        return ()
    if config.demo == ("make",):
        if made is not None and made.exists():
            return (_load(config, str(made)),)
        return (make_demonstration(config, make_env(config, 1, DEMO_STREAM)),)
    found = [_load(config, demo) for demo in config.demo]
    names = unique_names([demonstration.name for demonstration in found])
    return tuple(
        dataclasses.replace(demonstration, name=name)
        for demonstration, name in zip(found, names, strict=True)
    )


def _load(config: Config, demo: str) -> FrameDemonstration:
    try:
        found = demos.load(demo)
    except FileNotFoundError as error:
        raise UsageError(f"--demo {demo}: {error}; it must be make, none or a file") from error
    except DemonstrationError as error:
        raise UsageError(f"--demo {demo}: {error}") from error
    if not isinstance(found, FrameDemonstration):
        raise UsageError(
            f"--demo {demo}: it is a list of an Atari game's actions; use experiments.atari"
        )
    if found.game != config.env:
        print(f"note: {demo} was recorded in {found.game}")
    return found


# --- The job ---


def prepare(config: Config, made: Path | None = None) -> tuple[Job, tuple[FrameDemonstration, ...]]:
    """From a checked config to a job that fits into memory."""
    env = make_env(config, 1, TRAIN_STREAM)
    demonstrations = load_demonstrations(config, made)
    try:
        rows = learning.demonstration_rows(env, demonstrations, gamma=config.agent_config.gamma)
        network, _ = learning.make_network(env, stack=config.stack, hidden=config.hidden)
        setup = make_setup(
            network,
            config.agent_config,
            frame_shape=env.frame_shape,
            frame_dtype=env.frame_dtype,
            num_lanes=config.envs,
            rows_per_lane=config.rows_per_lane,
            stack=config.stack,
            demonstrations=rows,
            sizes={demonstration.name: demonstration.num_rows for demonstration in demonstrations},
        )
    except DemonstrationError as error:
        raise UsageError(f"--demo {' '.join(config.demo)}: {error}") from error
    except ValueError as error:
        raise UsageError(f"no such run can be made: {error}") from error
    check_memory(setup.replay)
    job = Job(
        config=config,
        setup=setup,
        stack=config.stack,
        make_env=functools.partial(make_env, config, config.envs, TRAIN_STREAM),
        make_eval_env=functools.partial(_make_eval_env, config),
        fps=30,
        one_call=len(env.frame_shape) == 1,
    )
    return job, demonstrations
