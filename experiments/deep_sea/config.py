"""What can be set in the DeepSea experiment."""

import dataclasses
from typing import ClassVar, Literal

from bqfd_jax import checks
from bqfd_jax.agents.presets import ActingAgentName
from bqfd_jax.envs import deep_sea
from bqfd_jax.runs.deep_sea import AgentsConfig
from bqfd_jax.runs.mirrors import check_trackers

ENCODERS = {"position": deep_sea.encode_position, "onehot": deep_sea.encode_one_hot}


@dataclasses.dataclass(frozen=True)
class Config(AgentsConfig):
    """DeepSea with a treasure or a bomb at the end of the expert's path.

    Every agent gets one demonstration that goes right all the way.  With the treasure that is the
    best path, with the bomb the worst.  All cases and seeds of an agent are trained side by side.
    """

    experiment: ClassVar[str] = "deep_sea"
    not_result: ClassVar[tuple[str, ...]] = ("out", "resume", "checkpoint_period", "tensorboard")

    cases: tuple[Literal["treasure", "bomb"], ...] = ("treasure", "bomb")
    """What the expert leads to."""
    agents: tuple[ActingAgentName, ...] = ("bqfd", "dqfd", "dqn")
    """Which agents to train, one after the other."""
    observation: Literal["position", "onehot"] = "position"
    """What the network sees: two coordinates, or one of N x N cells."""
    checkpoint_period: int = 20
    """Episodes between checkpoints."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the extra `tensorboard`)."""

    @property
    def num_runs(self) -> int:
        """Cases and seeds, which are trained side by side."""
        return len(self.cases) * self.seeds

    def check(self) -> None:
        """Raises `OptionError` or `UsageError` for values that cannot be meant."""
        super().check()
        checks.at_least(1, checkpoint_period=self.checkpoint_period)
        checks.distinct(cases=self.cases, agents=self.agents)
        check_trackers(tensorboard=self.tensorboard)
