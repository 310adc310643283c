"""From a config to all that an Atari run is made of: demonstration, replay, agent, games."""

from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

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


def make_job(
    config: Config, num_actions: int, demonstrations: Row | None, **network_options: Any
) -> Job:
    """Binds network, replay and agent; compiled when first called."""
    agent_config = config.agent_config
    replay = make_replay(
        frame_shape=atari.FRAME_SHAPE,
        frame_dtype=jnp.uint8,
        rows_per_lane=config.rows_per_lane,
        num_lanes=config.envs,
        num_demo_rows=0 if demonstrations is None else len(demonstrations.action),
        stack=STACK,
        **agent_config.replay_options(),
    )
    network = networks.atari_network(num_actions, hidden=config.hidden, **network_options)
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
    shapes = jax.eval_shape(job.init)
    return {
        "train": on_host.to_checkpoint(shapes, with_replay=job.config.checkpoint_replay),
        "metrics_position": 0,
        "seconds": 0.0,
    }


def check_memory(replay: Replay) -> None:
    """Refuses a replay that will not fit."""
    # The network, its gradients and what the emulators need.
    needed = replay.num_bytes + 1.0e9
    available = run_folder.available_memory()
    if available is not None and needed > available:
        rows = int((available - 1.0e9) / replay.num_bytes * replay.layout.num_rows)
        raise UsageError(
            f"the replay of {replay.layout.num_rows:,} rows needs {needed / 1e9:.1f} GB with all "
            f"around it, but only {available / 1e9:.1f} GB are free; use --replay-rows "
            f"{max(rows, 0) // 1000 * 1000} or less"
        )


def prepare(config: Config) -> tuple[Job, demos.Demonstration | None]:
    """From a checked config to a job that fits into memory."""
    demonstration = load_demonstration(config)
    env = atari.Atari(config.game, num_lanes=1)
    if demonstration is not None:
        print("replaying the demonstration ...", end=" ", flush=True)
    rows = replay_demonstration(config, demonstration)
    if demonstration is not None:
        print("it plays as it should")
    job = make_job(config, env.num_actions, rows)
    check_memory(job.replay)
    return job, demonstration
