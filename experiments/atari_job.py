"""From a config to all that an Atari run is made of: demonstration, replay, agent, games."""

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


def load_demonstration(config: Config) -> demos.Demonstration | None:
    """The demonstration that `--demo` names."""
    if config.demo == "none":
        return None
    try:
        if config.demo in ("default", "strong"):
            return demos.load_named(config.game, config.demo)
        return demos.load(config.demo, game=config.game)
    except FileNotFoundError as error:
        raise UsageError(
            f"--demo {config.demo}: {error}; it must be default, strong, none or a file"
        ) from error
    except demos.DemonstrationError as error:
        raise UsageError(f"--demo {config.demo}: {error}") from error


def replay_demonstration(config: Config, demonstration: demos.Demonstration | None) -> Row | None:
    """Its rows, checked against what the demonstration says of itself."""
    if demonstration is None:
        return None
    try:
        return demos.replay_cached(
            demonstration,
            gamma=config.agent_config.gamma,
            log_rewards=config.log_rewards,
            life_loss_is_terminal=config.life_loss_is_terminal,
        )
    except demos.DemonstrationError as error:
        raise UsageError(f"--demo {config.demo}: {error}") from error


def make_job(config: Config, num_actions: int, demonstrations: Row | None) -> Job:
    """Binds network, replay and agent; compiled when first called."""
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
    return Job(config, agent, replay, trainer, demonstrations)


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


def prepare(config: Config) -> tuple[Job, demos.Demonstration | None]:
    """From a checked config to a job that fits into memory."""
    demonstration = load_demonstration(config)
    if demonstration is not None:
        print("replaying the demonstration ...", end=" ", flush=True)
    rows = replay_demonstration(config, demonstration)
    if demonstration is not None:
        print("it plays as it should")
    job = make_job(config, _num_actions(config), rows)
    check_memory(job.replay)
    return job, demonstration


def prepare_shape(config: Config) -> Job:
    """A job to read checkpoints with: its demonstration has the right size and no content."""
    demonstration = load_demonstration(config)
    rows = None
    if demonstration is not None:
        num_rows = demonstration.num_rows
        nothing = np.zeros(num_rows, np.float32)
        rows = Row(
            frame=np.zeros((num_rows, *atari.FRAME_SHAPE), np.uint8),
            action=np.zeros(num_rows, np.int32),
            reward=nothing,
            discount=nothing,
            is_first=np.zeros(num_rows, bool),
            is_last=np.zeros(num_rows, bool),
        )
    return make_job(config, _num_actions(config), rows)


def _num_actions(config: Config) -> int:
    return atari.Atari(config.game, num_lanes=1).num_actions
