"""From a config to all that an Atari run is made of: demonstrations, replay, agent, games."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import demos, networks
from bqfd_jax.envs import atari
from bqfd_jax.runs.folder import UsageError
from bqfd_jax.runs.job import Job, check_memory, unique_names
from bqfd_jax.training.setup import make_setup
from bqfd_jax.types import Row
from experiments.atari.config import Config

STACK = 4
# Pools of one run must not share their games' random starts.
TRAIN_STREAM, EVALUATION_STREAM, FILM_STREAM = 0, 1, 2


def _make_env(config: Config) -> atari.Atari:
    """The games that are trained on."""
    return atari.Atari(
        config.game,
        num_lanes=config.envs,
        seed=config.seed,
        stream=TRAIN_STREAM,
        log_rewards=config.log_rewards,
        life_loss_is_terminal=config.life_loss_is_terminal,
    )


def _make_eval_env(config: Config, film: bool) -> atari.Atari:
    """Games that nobody learns from."""
    return atari.Atari(
        config.game,
        num_lanes=1 if film else config.eval_episodes,
        seed=config.seed,
        stream=FILM_STREAM if film else EVALUATION_STREAM,
        # Episodes are whole games here.
        life_loss_is_terminal=False,
        max_episode_steps=config.eval_max_steps,
        render=film,
    )


def load_demonstrations(config: Config) -> tuple[demos.Demonstration, ...]:
    """The demonstrations that `--demo` names, each with a name of its own."""
    if config.demo == ("none",):
        return ()
    found = [_load_demonstration(config, demo) for demo in config.demo]
    meanings = {demonstration.action_meaning for demonstration in found} - {None}
    if len(meanings) > 1:
        raise UsageError(
            f"--demo {' '.join(config.demo)}: their actions mean different things, "
            + " and ".join(str(list(meaning)) for meaning in sorted(meanings))
        )
    names = unique_names([demonstration.name for demonstration in found])
    return tuple(
        dataclasses.replace(demonstration, name=name)
        for demonstration, name in zip(found, names, strict=True)
    )


def _load_demonstration(config: Config, demo: str) -> demos.Demonstration:
    try:
        if demo in ("default", "strong"):
            return demos.load_named(config.game, demo)
        found = demos.load(demo, game=config.game)
    except FileNotFoundError as error:
        raise UsageError(
            f"--demo {demo}: {error}; it must be default, strong, none or a file"
        ) from error
    except demos.DemonstrationError as error:
        raise UsageError(f"--demo {demo}: {error}") from error
    if isinstance(found, demos.FrameDemonstration):
        shape, dtype = found.frame_shape, found.frames.dtype
        if shape != atari.FRAME_SHAPE or dtype != np.uint8:
            raise UsageError(
                f"--demo {demo}: its frames are {dtype}{list(shape)}, but must be "
                f"uint8{list(atari.FRAME_SHAPE)}"
            )
    return found


def demonstration_rows(config: Config, demonstrations: Sequence[demos.Demonstration]) -> Row | None:
    """Rows of all, one after the other; lists of actions are checked as they are played back."""
    parts = []
    for demo, demonstration in zip(config.demo, demonstrations, strict=False):
        try:
            parts.append(
                demos.to_rows(
                    demonstration,
                    gamma=config.agent_config.gamma,
                    log_rewards=config.log_rewards,
                    life_loss_is_terminal=config.life_loss_is_terminal,
                )
            )
        except demos.DemonstrationError as error:
            raise UsageError(f"--demo {demo}: {error}") from error
    if not parts:
        return None
    return jax.tree.map(lambda *fields: np.concatenate(fields), *parts)


def make_job(
    config: Config,
    num_actions: int,
    demonstrations: Row | None,
    sizes: Mapping[str, int] | None = None,
) -> Job:
    """Binds network, replay and agent; compiled when first called.

    Args:
      config: of the run.
      num_actions: of the game.
      demonstrations: rows of all.
      sizes: name of each demonstration -> its rows, in their order.
    """
    network = networks.atari_network(num_actions, hidden=config.hidden, torso=config.torso)
    try:
        setup = make_setup(
            network,
            config.agent_config,
            frame_shape=atari.FRAME_SHAPE,
            frame_dtype=jnp.uint8,
            num_lanes=config.envs,
            rows_per_lane=config.rows_per_lane,
            stack=STACK,
            demonstrations=demonstrations,
            sizes=sizes,
        )
    except ValueError as error:
        raise UsageError(f"no such replay can be made: {error}") from error
    return Job(
        config=config,
        setup=setup,
        stack=STACK,
        make_env=functools.partial(_make_env, config),
        make_eval_env=functools.partial(_make_eval_env, config),
        # 60 frames a second, one of four seen.
        fps=15,
        film_scale=2,
    )


def prepare(config: Config) -> tuple[Job, tuple[demos.Demonstration, ...]]:
    """From a checked config to a job that fits into memory."""
    demonstrations = load_demonstrations(config)
    num_actions = _num_actions(config, demonstrations)
    if demonstrations:
        print("playing the demonstration back ...", end=" ", flush=True)
    rows = demonstration_rows(config, demonstrations)
    if demonstrations:
        print("it plays as it should")
    job = make_job(config, num_actions, rows, _sizes(demonstrations))
    check_memory(job.replay)
    return job, demonstrations


def prepare_shape(config: Config) -> Job:
    """A job to read checkpoints with: its demonstrations have the right size and no content."""
    demonstrations = load_demonstrations(config)
    rows = None
    if demonstrations:
        num_rows = sum(demonstration.num_rows for demonstration in demonstrations)
        nothing = np.zeros(num_rows, np.float32)
        rows = Row(
            frame=np.zeros((num_rows, *atari.FRAME_SHAPE), np.uint8),
            action=np.zeros(num_rows, np.int32),
            reward=nothing,
            discount=nothing,
            is_first=np.zeros(num_rows, bool),
            is_last=np.zeros(num_rows, bool),
        )
    return make_job(config, _num_actions(config, demonstrations), rows, _sizes(demonstrations))


def _sizes(demonstrations: Sequence[demos.Demonstration]) -> dict[str, int]:
    return {demonstration.name: demonstration.num_rows for demonstration in demonstrations}


def _num_actions(config: Config, demonstrations: Sequence[demos.Demonstration]) -> int:
    num_actions = atari.Atari(config.game, num_lanes=1).num_actions
    for demo, demonstration in zip(config.demo, demonstrations, strict=False):
        # A list of actions is compared when it is played back.
        is_frames = isinstance(demonstration, demos.FrameDemonstration)
        known = demonstration.num_actions if is_frames else num_actions
        if known != num_actions:
            raise UsageError(
                f"--demo {demo}: it knows {known} actions, but {config.game} has {num_actions}"
            )
    return num_actions
