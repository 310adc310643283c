"""What can be set when the reliability of experts is learnt."""

import dataclasses
from typing import ClassVar, Literal

from bqfd_jax import checks
from bqfd_jax.agents import BqfdConfig, EnsembleBqfdConfig
from bqfd_jax.runs.deep_sea import PRESET, GridConfig
from bqfd_jax.training import on_device

_LEARNING = {
    name: dataclasses.replace(config, learn_eta=True)
    for name, config in PRESET.items()
    if isinstance(config, BqfdConfig)
}


@dataclasses.dataclass(frozen=True)
class Config(GridConfig):
    """Experts of DeepSea's treasure, and what an agent that learns eta comes to think of them."""

    experiment: ClassVar[str] = "trust"

    size: int = 20
    """Rows and columns of the grid, and steps of an episode; at least 2."""
    seeds: int = 5
    """How many seeds, 0 up to this number less one."""
    trajectories: int = 10
    """How many each expert shows."""
    agents: tuple[Literal["bqfd", "ensemble_bqfd"], ...] = ("bqfd", "ensemble_bqfd")
    """Whose weight: that of visits, or that of an ensemble."""
    torso: tuple[int, ...] = (64, 64)
    """Widths of the network's first layers."""
    hidden: int = 256
    """Width of its value and advantage streams."""
    bqfd: BqfdConfig = _LEARNING["bqfd"]
    """Hyper-parameters of BQfD."""
    ensemble_bqfd: EnsembleBqfdConfig = _LEARNING["ensemble_bqfd"]
    """Hyper-parameters of ensemble BQfD."""

    def check(self) -> None:
        """Raises `OptionError` for values that cannot be meant."""
        super().check()
        checks.at_least(1, trajectories=self.trajectories, hidden=self.hidden)
        checks.require(min(self.torso, default=0) >= 1, "torso", self.torso, "widths of at least 1")
        checks.distinct(agents=self.agents)
        for name in self.agents:
            options = getattr(self, name)
            checks.require(options.learn_eta, f"{name}.learn_eta", False, "True: it is the subject")
            on_device.check_no_resets(options.reset_period, f"{name}.reset_period")
