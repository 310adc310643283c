"""What runs on host environments are made of: what a config must have, and what comes of it."""

import dataclasses
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from bqfd_jax.agents import Agent, AgentConfig
from bqfd_jax.replay import Replay
from bqfd_jax.training import on_host
from bqfd_jax.training.demo_usage import DemoUsage
from bqfd_jax.training.setup import HostSetup, make_loop
from bqfd_jax.types import HostEnvironment, LearnerState, Params, Row
from bqfd_jax.runs import folder as run_folder
from bqfd_jax.runs.folder import UsageError


class RunConfig(Protocol):
    """What all runs can be told; every count is in agent steps unless it says otherwise."""

    game: str  # the environment's name
    agent: str
    preset: str  # where the defaults come from
    seed: int
    steps: int
    envs: int
    update_period: float
    learning_starts: int
    eval_period: int
    eval_episodes: int
    eval_epsilon: float
    final_steps: int
    checkpoint_period: int
    checkpoint_replay: bool
    keep_checkpoints: int
    log_period: int
    video: bool
    tensorboard: bool
    resume: bool

    @property
    def agent_config(self) -> AgentConfig:
        """The hyper-parameters of the agent that is trained."""

    @property
    def pretrain_updates(self) -> int:
        """Updates before the first step."""

    def played_params(self, learner: LearnerState) -> Params:
        """Of the network that plays evaluations."""


@dataclasses.dataclass(frozen=True)
class Job:
    """All that a config makes, before anything has happened."""

    config: RunConfig
    setup: HostSetup
    stack: int  # frames per observation
    make_env: Callable[[], HostEnvironment]  # what is trained on
    make_eval_env: Callable[[bool], HostEnvironment]  # nobody learns from; True: one, with pictures
    fps: int  # of films
    film_scale: int = 1  # pixels of a film per pixel of a picture
    one_call: bool = False  # make all updates of a step in one call

    @property
    def agent(self) -> Agent:
        """That learns."""
        return self.setup.agent

    @property
    def replay(self) -> Replay:
        """That it learns from."""
        return self.setup.replay

    @property
    def trainer(self) -> on_host.HostTrainer:
        """Phases of training, compiled."""
        return self.setup.trainer

    @property
    def demonstrations(self) -> Row | None:
        """Fields [E, ...]."""
        return self.setup.demonstrations

    @property
    def usage(self) -> DemoUsage:
        """Which demonstration's rows are drawn how often."""
        return self.setup.usage

    def init(self) -> on_host.HostTrainState:
        """The state at the beginning of the run."""
        return self.setup.init(self.config.seed)

    def make_loop(self, state: on_host.HostTrainState) -> on_host.HostLoop:
        """Training that goes on from a state."""
        return make_loop(
            self.setup,
            self.make_env(),
            state,
            update_period=self.config.update_period,
            learning_starts=self.config.learning_starts,
            one_call=self.one_call,
        )


def checkpoint_template(job: Job) -> dict[str, Any]:
    """Shapes of all that a checkpoint holds."""
    with_replay = job.config.checkpoint_replay
    return {
        "train": jax.eval_shape(lambda: on_host.to_checkpoint(job.init(), with_replay=with_replay)),
        "metrics_position": 0,
        "seconds": 0.0,
    }


def unique_names(names: Sequence[str]) -> list[str]:
    """The second `a` becomes `a-2`, and so on."""
    unique: list[str] = []
    for name in names:
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        unique.append(next(n for n in itertools.chain([name], numbered) if n not in unique))
    return unique


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


def check_bounds(config: RunConfig, *, most_lanes: int) -> None:
    """Raises `UsageError` for values that cannot be meant in any run."""
    run_folder.require_at_least(0, config, "seed", "learning_starts", "replay_rows", "eval_period")
    run_folder.require_at_least(
        1, config, "steps", "envs", "eval_episodes", "eval_max_steps", "final_steps",
        "checkpoint_period", "keep_checkpoints", "log_period", "hidden",
    )  # fmt: skip
    for name, most in (
        ("envs", most_lanes),
        ("eval_episodes", most_lanes),
        # Steps are counted in 32 bits.
        ("steps", 2**31 - 1 - config.envs),
        ("eval_max_steps", 2**31 - 1),
        # Keys are made of 32 bits: beyond them networks and draws would be those of a small seed.
        ("seed", 2**32 - 1),
    ):
        value = getattr(config, name)
        if value > most:
            raise UsageError(f"{run_folder.flag(name)} is {value}, but must be at most {most}")
    if not 0.001 <= config.update_period <= 1e6:
        raise UsageError(
            f"--update-period is {config.update_period}, but must lie in [0.001, 1000000]"
        )
    if not 0 <= config.eval_epsilon <= 1:
        raise UsageError(f"--eval-epsilon is {config.eval_epsilon}, but must lie in [0, 1]")
    if not config.demo or ("none" in config.demo and len(config.demo) > 1):
        raise UsageError(
            f"--demo is {' '.join(config.demo) or 'empty'}, but must be demonstrations, or none"
        )
    if config.tensorboard and importlib.util.find_spec("tensorboardX") is None:
        raise UsageError("--tensorboard needs the extra: pip install 'bqfd-jax[tensorboard]'")
