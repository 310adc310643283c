"""What can be set in a run on a gymnasium environment."""

import argparse
import dataclasses
import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import tyro

from bqfd_jax import api as learning
from bqfd_jax.agents import AgentConfig, BootstrappedConfig, BqfdConfig, DqfdConfig, PddDqnConfig
from bqfd_jax.runs import folder as run_folder
from bqfd_jax.runs import job as host_job
from bqfd_jax.runs.folder import UsageError
from bqfd_jax.types import LearnerState, Params

AgentName = Literal["bqfd", "dqfd", "dqn", "bootstrapped"]
AGENTS: tuple[AgentName, ...] = ("bqfd", "dqfd", "dqn", "bootstrapped")
MAX_REPLAY_ROWS = 1_000_000
MAX_LANES = 1_000


@dataclasses.dataclass(frozen=True)
class Config:
    """A gymnasium environment, demonstrations of it, and an agent that learns from both.

    All steps are agent steps, counted over all environments that run side by side.
    """

    env: str = "CartPole-v1"
    """Id of the environment, with the module that registers it if it is not gymnasium's own:
    `minigrid:MiniGrid-Empty-5x5-v0`. Discrete actions; observations that are vectors or images."""
    agent: AgentName = "bqfd"
    """Which agent; its hyper-parameters are below, each agent's under its own name."""
    seed: int = 0
    """Decides all chance: networks, draws, exploration, the environments' beginnings."""
    demo: tuple[str, ...] = ("make",)
    """The demonstrations: files (see `python -m experiments.demos`), `none`, or `make` for one that
    is made here first, of the quality below."""
    demo_quality: Literal["mediocre", "bad", "none"] = "mediocre"
    """What `--demo make` makes: `mediocre` plays about half as well as possible (by a script for
    CartPole, Acrobot, MountainCar and LunarLander, by briefly trained DQN elsewhere); `bad` does
    nearly always the same; `none` is the same as `--demo none`."""
    demo_steps: int = 2_000
    """Agent steps of a demonstration that is made here, at least."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around each environment, innermost first, as module:name, e.g.
    `minigrid.wrappers:ImgObsWrapper`."""
    stack: int = 1
    """Frames per observation."""
    steps: int = 50_000
    """Length of the training, in agent steps."""
    envs: int = 8
    """Environments side by side."""
    update_period: float = 2
    """Agent steps, over all environments, per update; less than 1 for several updates per step."""
    learning_starts: int = 500
    """Agent steps before the first update (pre-training apart)."""
    replay_rows: int = 0
    """Agent steps that the replay remembers; 0: all of them, at most a million."""
    eval_period: int = 2_500
    """Agent steps between evaluations; 0: only one in the end."""
    eval_episodes: int = 10
    """Episodes per evaluation, played side by side."""
    eval_epsilon: float = 0.0
    """Probability of a random action in evaluations."""
    eval_max_steps: int = 10_000
    """Agent steps after which an evaluation episode is cut, unless the environment does so."""
    eval_target: bool = True
    """Play evaluations with the target network, which is an average of the last ones."""
    final_steps: int = 10_000
    """The final score is that of all evaluations in the last so many agent steps."""
    checkpoint_period: int = 10_000
    """Agent steps between checkpoints."""
    checkpoint_replay: bool = True
    """Save the replay too."""
    keep_checkpoints: int = 2
    """How many of the last checkpoints stay."""
    log_period: int = 500
    """Agent steps between rows of metrics.jsonl; the other periods are rounded up to these."""
    hidden: int = 64
    """Width of the network's dense layers."""
    video: bool = True
    """Film one evaluation episode in the end, if the environment can be rendered."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the extra: pip install 'bqfd-jax[tensorboard]')."""
    out: Path | None = None
    """Run folder; a new one below runs/ unless given."""
    resume: bool = False
    """Continue the run in --out where its last checkpoint stands."""
    bqfd: BqfdConfig = dataclasses.field(default_factory=BqfdConfig)
    """Hyper-parameters of BQfD."""
    dqfd: DqfdConfig = dataclasses.field(default_factory=DqfdConfig)
    """Hyper-parameters of DQfD."""
    dqn: PddDqnConfig = dataclasses.field(default_factory=PddDqnConfig)
    """Hyper-parameters of prioritized dueling double DQN; demonstrations are in its replay."""
    bootstrapped: BootstrappedConfig = dataclasses.field(default_factory=BootstrappedConfig)
    """Hyper-parameters of Bootstrapped DQN; demonstrations are in its replay."""

    @property
    def game(self) -> str:
        """By the name that all runs have for it."""
        return self.env

    @property
    def preset(self) -> str:
        """There is one."""
        return "small"

    @property
    def has_demonstrations(self) -> bool:
        """Whether there will be any."""
        made_none = self.demo == ("make",) and self.demo_quality == "none"
        return self.demo != ("none",) and not made_none

    @property
    def agent_config(self) -> AgentConfig:
        """The hyper-parameters of the agent that is trained."""
        return getattr(self, self.agent)

    def played_params(self, learner: LearnerState) -> Params:
        """Of the network that plays evaluations."""
        return learner.target_params if self.eval_target else learner.params

    @property
    def pretrain_updates(self) -> int:
        """Updates before the first step; without a demonstration there is nothing to learn from."""
        return self.agent_config.pretrain_updates if self.has_demonstrations else 0

    @property
    def rows_per_lane(self) -> int:
        """Rows of the replay per environment."""
        wanted = self.replay_rows or min(self.steps, MAX_REPLAY_ROWS)
        least = self.agent_config.n_step + self.stack + 16
        return max(math.ceil(wanted / self.envs), least)


def default(steps: int) -> Config:
    """All defaults for a run of that length."""
    agents = {name: learning.small_config(name, steps=steps) for name in AGENTS}
    return Config(steps=steps, **agents)


# What may differ between a run and its continuation.
_NOT_RESULT = ("out", "resume", "checkpoint_period", "keep_checkpoints", "tensorboard", "video")


def stored(config: Config) -> dict[str, Any]:
    """What `config.json` holds: all that the result depends on."""
    others = tuple(name for name in AGENTS if name != config.agent)
    fields = run_folder.config_dict(config, without=_NOT_RESULT + others)
    absolute = [d if d in ("none", "make") else str(Path(d).absolute()) for d in config.demo]
    return fields | {"demo": absolute}


def from_stored(fields: dict[str, Any]) -> Config:
    """The config of a run folder's `config.json`."""
    base, agent = default(fields["steps"]), fields["agent"]
    agent_config = dataclasses.replace(getattr(base, agent), **_tuples(fields[agent]))
    plain = {name: value for name, value in fields.items() if name != agent}
    return dataclasses.replace(base, **_tuples(plain), **{agent: agent_config})


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}


def parse(arguments: Sequence[str], description: str) -> Config:
    """The config of a command line; `--steps` decides the schedules' defaults."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--steps", default="")
    known, _ = first.parse_known_args(list(arguments))
    steps = int(known.steps) if known.steps.isdecimal() and int(known.steps) else Config.steps
    return tyro.cli(
        Config,
        args=list(arguments),
        default=default(steps),
        description=description,
        prog="python -m experiments.gym",
    )


def check(config: Config) -> None:
    """Raises `UsageError` for values that cannot be meant."""
    host_job.check_bounds(config, most_lanes=MAX_LANES)
    run_folder.require_at_least(1, config, "stack", "demo_steps")
    if "make" in config.demo and len(config.demo) > 1:
        raise UsageError("--demo make stands alone; name files, or make one")
    load_wrappers(config.wrappers)


def load_wrappers(names: Sequence[str]) -> list[Callable[[Any], Any]]:
    """What `--wrappers` names."""
    found = []
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            wrapper = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(f"--wrappers {name}: {error}; give module:name") from error
        found.append(wrapper)
    return found
