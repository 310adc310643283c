"""From a config to all that an Atari run is made of: demonstrations, replay, agent, games."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import demos, networks
from bqfd_jax.agents import Agent, make_agent
from bqfd_jax.envs import atari
from bqfd_jax.replay import Replay, make_replay
from bqfd_jax.training import on_host
from bqfd_jax.training.demo_usage import DemoUsage
from bqfd_jax.types import Row
from experiments import run_folder
from experiments.atari_config import Config
from experiments.run_folder import UsageError

STACK = 4
# Pools of one run must not share their games' random starts.
TRAIN_STREAM, EVALUATION_STREAM, FILM_STREAM = 0, 1, 2


class Job(NamedTuple):
    """All that a config makes, before anything has happened."""

    config: Config
    agent: Agent
    replay: Replay
    trainer: on_host.HostTrainer
    demonstrations: Row | None  # fields [E, ...]
    usage: DemoUsage  # which demonstration's rows are drawn how often

    def init(self) -> on_host.HostTrainState:
        """The state at the beginning of the run."""
        return self.trainer.init(jax.random.key(self.config.seed), self.demonstrations)

    def make_env(self) -> atari.Atari:
        """The games that are trained on."""
        config = self.config
        return atari.Atari(
            config.game,
            num_lanes=config.envs,
            seed=config.seed,
            stream=TRAIN_STREAM,
            log_rewards=config.log_rewards,
            life_loss_is_terminal=config.life_loss_is_terminal,
        )

    def make_loop(self, state: on_host.HostTrainState) -> on_host.HostLoop:
        """Training that goes on from a state."""
        config = self.config
        return on_host.HostLoop(
            self.make_env(),
            self.trainer,
            state,
            updates_per_step=1 / Fraction(config.update_period).limit_denominator(10**6),
            learning_starts=config.learning_starts,
        )


def load_demonstrations(config: Config) -> tuple[demos.AnyDemonstration, ...]:
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


def _load_demonstration(config: Config, demo: str) -> demos.AnyDemonstration:
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


def unique_names(names: Sequence[str]) -> list[str]:
    """The second `a` becomes `a-2`, and so on."""
    unique: list[str] = []
    for name in names:
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        unique.append(next(n for n in itertools.chain([name], numbered) if n not in unique))
    return unique


def demonstration_rows(
    config: Config, demonstrations: Sequence[demos.AnyDemonstration]
) -> Row | None:
    """Rows of all, one after the other; lists of actions are checked as they are replayed."""
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
    agent_config = config.agent_config
    try:
        replay = make_replay(
            frame_shape=atari.FRAME_SHAPE,
            frame_dtype=jnp.uint8,
            rows_per_lane=config.rows_per_lane,
            num_lanes=config.envs,
            num_demo_rows=0 if demonstrations is None else len(demonstrations.action),
            stack=STACK,
            **agent_config.replay_options(),
        )
    except ValueError as error:
        raise UsageError(f"no such replay can be made: {error}") from error
    network = networks.atari_network(num_actions, hidden=config.hidden, torso=config.torso)
    agent = make_agent(network, replay, agent_config)
    trainer = on_host.make_host_trainer(
        agent,
        replay,
        frame_shape=atari.FRAME_SHAPE,
        frame_dtype=jnp.uint8,
        gamma=agent_config.gamma,
        stack=STACK,
    )
    is_last = None if demonstrations is None else demonstrations.is_last
    usage = DemoUsage(sizes or {}, is_last, agent_config)
    return Job(config, agent, replay, trainer, demonstrations, usage)


def checkpoint_template(job: Job) -> dict[str, Any]:
    """Shapes of all that a checkpoint holds."""
    with_replay = job.config.checkpoint_replay
    return {
        "train": jax.eval_shape(lambda: on_host.to_checkpoint(job.init(), with_replay=with_replay)),
        "metrics_position": 0,
        "seconds": 0.0,
    }


def check_memory(replay: Replay) -> None:
    """Refuses a replay that will not fit."""
    # The network, its gradients and what the emulators need.
    around = 1.0e9
    needed = replay.num_bytes + around
    available = run_folder.available_memory()
    if available is None or needed <= available:
        return
    rows = int((available - around) / replay.num_bytes * replay.layout.num_rows) // 1000 * 1000
    advice = (
        f"use --replay-rows {rows} or less" if rows > 0 else "free some, or use another machine"
    )
    raise UsageError(
        f"the replay of {replay.layout.num_rows:,} rows needs {needed / 1e9:.1f} GB with all "
        f"around it, but only {available / 1e9:.1f} GB are free; {advice}"
    )


def prepare(config: Config) -> tuple[Job, tuple[demos.AnyDemonstration, ...]]:
    """From a checked config to a job that fits into memory."""
    demonstrations = load_demonstrations(config)
    num_actions = _num_actions(config, demonstrations)
    if demonstrations:
        print("replaying the demonstration ...", end=" ", flush=True)
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


def _sizes(demonstrations: Sequence[demos.AnyDemonstration]) -> dict[str, int]:
    return {demonstration.name: demonstration.num_rows for demonstration in demonstrations}


def _num_actions(config: Config, demonstrations: Sequence[demos.AnyDemonstration]) -> int:
    num_actions = atari.Atari(config.game, num_lanes=1).num_actions
    for demo, demonstration in zip(config.demo, demonstrations, strict=False):
        # A list of actions is compared when it is replayed.
        is_frames = isinstance(demonstration, demos.FrameDemonstration)
        known = demonstration.num_actions if is_frames else num_actions
        if known != num_actions:
            raise UsageError(
                f"--demo {demo}: it knows {known} actions, but {config.game} has {num_actions}"
            )
    return num_actions
