"""What can be set in the tabular experiment."""

import dataclasses
from typing import ClassVar

from bqfd_jax import checks
from bqfd_jax.runs.deep_sea import GridConfig


@dataclasses.dataclass(frozen=True)
class Config(GridConfig):
    """Tabular BQfD on DeepSea, with the correction in the target and as the paper prints it."""

    experiment: ClassVar[str] = "tabular"

    episodes: int = 3000
    """Episodes per seed."""
    eta: float = 3.0
    """How sharply the expert is taken to prefer better actions."""
    beta: float = 4.0
    """Pseudo-count of the prior: how many visits the expert is listened to."""
    variance: float = 0.6
    """Prior variance of a Q-value."""
    gamma: float = 1.0
    """Discount per step."""
    filter_size: int = 6
    """Size of the DeepSea that Algorithm 1 is run on; its covariances have 4 N^3 entries."""

    def check(self) -> None:
        """Raises `OptionError` for values that cannot be meant."""
        super().check()
        # Every step of the exact filter solves systems of 2 N equations.
        checks.within(2, 100, filter_size=self.filter_size)
        checks.at_least(0, eta=self.eta, beta=self.beta)
        checks.above(0, variance=self.variance)
        checks.within(0, 1, gamma=self.gamma)
