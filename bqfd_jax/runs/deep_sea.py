"""What experiments on DeepSea share: their options, their folder, what is trained and compared."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import jax
import jax.numpy as jnp

from bqfd_jax import checks, networks
from bqfd_jax.agents import (
    BootstrappedConfig,
    BqfdConfig,
    DqfdConfig,
    EnsembleBqfdConfig,
    PddDqnConfig,
    make_agent,
)
from bqfd_jax.agents.config import AgentConfig
from bqfd_jax.agents.learner import Agent
from bqfd_jax.agents.presets import ActingAgentName, agent_config
from bqfd_jax.envs import deep_sea, deep_sea_values
from bqfd_jax.replay import make_replay
from bqfd_jax.runs import folder, stored
from bqfd_jax.runs.sinks import Sink
from bqfd_jax.training import on_device
from bqfd_jax.types import Array, Environment

CASES = {"treasure": deep_sea.treasure, "bomb": deep_sea.bomb, "decoy": deep_sea.decoy}
PRESET = {name: agent_config("deep_sea", name) for name in get_args(ActingAgentName)}


@dataclasses.dataclass(frozen=True)
class GridConfig:
    """A grid, seeds that are trained side by side on it, and a folder."""

    experiment: ClassVar[str]  # what `config.json` says the folder is of
    # What may differ between a run and its continuation.
    not_result: ClassVar[tuple[str, ...]] = ("out", "resume")
    resume: ClassVar[bool | None] = None  # an option of those that can go on

    size: int = 50
    """Rows and columns of the grid, and steps of an episode; at least 2."""
    seeds: int = 10
    """How many seeds, 0 up to this number less one."""
    episodes: int = 100
    """Episodes per seed."""
    out: Path | None = None
    """Run folder; a new one below runs/ unless given."""

    def check(self) -> None:
        """Raises `OptionError` or `UsageError` for values that cannot be meant."""
        checks.at_least(2, size=self.size)
        checks.at_least(1, seeds=self.seeds, episodes=self.episodes)

    def stored(self) -> dict[str, Any]:
        """What `config.json` holds: all that the result depends on."""
        return stored.to_fields(self, self.experiment, without=self.not_result)

    @classmethod
    def from_stored(cls, fields: dict[str, Any]) -> Self:
        """The config of a run folder's `config.json`."""
        return stored.from_fields(cls(), fields)

    @contextmanager
    def opened(self, sink: Sink, what: str) -> Iterator[Path]:
        """The run folder, which nobody else may use meanwhile; says what is done there."""
        out = folder.prepare(
            self.out,
            self.stored(),
            name=self.experiment,
            resume=self.resume is True,
            can_resume=self.resume is not None,
        )
        with folder.sole_use(out):
            sink.say(
                f"DeepSea {self.size} x {self.size}, {self.episodes} episodes, {self.seeds} seeds; "
                f"{what}\non {jax.device_count()} {jax.devices()[0].platform} device(s); writing "
                f"to {out}"
            )
            yield out


@dataclasses.dataclass(frozen=True)
class AgentsConfig(GridConfig):
    """Agents with networks on DeepSea, by default with the preset `deep_sea`."""

    resume: bool = False
    """Continue the run in --out where it stands."""
    torso: tuple[int, ...] = (64, 64)
    """Widths of the network's first layers."""
    hidden: int = 256
    """Width of its value and advantage streams."""
    bqfd: BqfdConfig = PRESET["bqfd"]
    """Hyper-parameters of BQfD."""
    ensemble_bqfd: EnsembleBqfdConfig = PRESET["ensemble_bqfd"]
    """Hyper-parameters of ensemble BQfD: an expert weighs as much as its members disagree."""
    dqfd: DqfdConfig = PRESET["dqfd"]
    """Hyper-parameters of DQfD."""
    dqn: PddDqnConfig = PRESET["dqn"]
    """Hyper-parameters of prioritized dueling double DQN with ez-greedy exploration."""
    bootstrapped: BootstrappedConfig = PRESET["bootstrapped"]
    """Hyper-parameters of Bootstrapped DQN."""

    def check(self) -> None:
        """Raises `OptionError` or `UsageError` for values that cannot be meant."""
        super().check()
        checks.at_least(1, hidden=self.hidden)
        checks.require(min(self.torso, default=0) >= 1, "torso", self.torso, "widths of at least 1")
        for name in PRESET:
            on_device.check_no_resets(getattr(self, name).reset_period, f"{name}.reset_period")


def make_training(
    config: AgentsConfig,
    options: AgentConfig,
    *,
    num_demo_rows: int,
    encode: Callable[[int], Any] = deep_sea.encode_position,
) -> tuple[Environment, Agent, on_device.Trainer]:
    """Binds environment, network and replay to an agent and its training; nothing is forgotten.

    Args:
      config: of the experiment.
      options: hyper-parameters of the agent.
      num_demo_rows: rows of demonstrations that the replay has room for.
      encode: from the grid's size to what the network sees of a cell.
    """
    env = deep_sea.make(config.size)
    replay = make_replay(
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        num_demo_rows=num_demo_rows,
        rows_per_lane=config.size * config.episodes + options.n_step + 2,
        **options.replay_options(),
    )
    network = networks.deep_sea_network(
        encode=encode(config.size), torso=config.torso, hidden=config.hidden
    )
    agent = make_agent(network, options, replay)
    return env, agent, on_device.make_trainer(env, agent, replay)


def seed_keys(seeds: int, repeats: int) -> Array:
    """The keys of all seeds, and that so many times over, `[repeats * seeds]`."""
    return jax.vmap(jax.random.key)(jnp.tile(jnp.arange(seeds), repeats))


def optimal_returns(cases: Iterable[str], size: int) -> dict[str, float]:
    """The best possible return of each case."""
    return {case: float(deep_sea_values.optimal_return(CASES[case](size), size)) for case in cases}
