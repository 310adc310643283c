"""What can be set in the DeepSea experiment."""

import dataclasses
from pathlib import Path
from typing import Any, Literal, Self

from bqfd_jax import checks
from bqfd_jax.agents import BootstrappedConfig, BqfdConfig, DqfdConfig, PddDqnConfig
from bqfd_jax.agents.presets import AGENTS, AgentName, agent_config
from bqfd_jax.envs import deep_sea
from bqfd_jax.runs import stored
from bqfd_jax.runs.metrics import check_tensorboard

CASES = {"treasure": deep_sea.treasure, "bomb": deep_sea.bomb}
ENCODERS = {"position": deep_sea.encode_position, "onehot": deep_sea.encode_one_hot}
# What may differ between a run and its continuation.
_NOT_RESULT = ("out", "resume", "checkpoint_period", "tensorboard")
_PRESET = {name: agent_config("deep_sea", name) for name in AGENTS}


@dataclasses.dataclass(frozen=True)
class Config:
    """DeepSea with a treasure or a bomb at the end of the expert's path.

    Every agent gets one demonstration that goes right all the way.  With the treasure that is the
    best path, with the bomb the worst.  All cases and seeds of an agent are trained side by side.
    """

    size: int = 50
    """Rows and columns of the grid, and steps of an episode; at least 2."""
    cases: tuple[Literal["treasure", "bomb"], ...] = ("treasure", "bomb")
    """What the expert leads to."""
    agents: tuple[AgentName, ...] = ("bqfd", "dqfd", "dqn")
    """Which agents to train, one after the other."""
    seeds: int = 10
    """How many seeds, 0 up to this number less one."""
    episodes: int = 100
    """Episodes per seed."""
    observation: Literal["position", "onehot"] = "position"
    """What the network sees: two coordinates, or one of N x N cells."""
    out: Path | None = None
    """Run folder; a new one below runs/ unless given."""
    resume: bool = False
    """Continue the run in --out where its last checkpoint stands."""
    checkpoint_period: int = 20
    """Episodes between checkpoints."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the extra: pip install 'bqfd-jax[tensorboard]')."""
    torso: tuple[int, ...] = (64, 64)
    """Widths of the network's first layers."""
    hidden: int = 256
    """Width of its value and advantage streams."""
    bqfd: BqfdConfig = _PRESET["bqfd"]
    """Hyper-parameters of BQfD."""
    dqfd: DqfdConfig = _PRESET["dqfd"]
    """Hyper-parameters of DQfD."""
    dqn: PddDqnConfig = _PRESET["dqn"]
    """Hyper-parameters of prioritized dueling double DQN with ez-greedy exploration."""
    bootstrapped: BootstrappedConfig = _PRESET["bootstrapped"]
    """Hyper-parameters of Bootstrapped DQN."""

    @property
    def num_runs(self) -> int:
        """Cases and seeds, which are trained side by side."""
        return len(self.cases) * self.seeds

    def check(self) -> None:
        """Raises `OptionError` or `UsageError` for values that cannot be meant."""
        checks.at_least(2, size=self.size)
        checks.at_least(
            1,
            seeds=self.seeds,
            episodes=self.episodes,
            checkpoint_period=self.checkpoint_period,
            hidden=self.hidden,
        )
        checks.distinct(cases=self.cases, agents=self.agents)
        checks.require(min(self.torso, default=0) >= 1, "torso", self.torso, "widths of at least 1")
        check_tensorboard(self.tensorboard)

    def stored(self) -> dict[str, Any]:
        """What `config.json` holds: all that the result depends on."""
        return stored.to_fields(self, "deep_sea", without=_NOT_RESULT)

    @classmethod
    def from_stored(cls, fields: dict[str, Any]) -> Self:
        """The config of a run folder's `config.json`."""
        return stored.from_fields(cls(), fields)
