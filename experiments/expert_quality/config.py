"""What can be set in the map of expert quality, and what its words mean."""

import dataclasses
import math
from typing import ClassVar, Literal, NamedTuple, Self

from bqfd_jax import checks
from bqfd_jax.agents import PddDqnConfig
from bqfd_jax.runs.deep_sea import PRESET, AgentsConfig
from bqfd_jax.runs.errors import UsageError

# What each agent learns with; those that see no demonstrations are the same in all cells of a case.
LEARNERS = {
    "bqfd": "bqfd",
    "ensemble_bqfd": "ensemble_bqfd",
    "dqfd": "dqfd",
    "dqn": "dqn",
    "dqn_alone": "dqn_alone",
    "bootstrapped": "bootstrapped",
    "tabular": "bqfd",
}
AgentName = Literal["bqfd", "ensemble_bqfd", "dqfd", "dqn", "dqn_alone", "bootstrapped", "tabular"]
_FULL = {
    "size": 20,
    "seeds": 5,
    "episodes": 100,
    "qualities": (
        "eta=inf",
        "errs=0.05",
        "errs=0.2",
        "eta=3",
        "eta=1",
        "until=0.9",
        "until=0.5",
        "two",
        "eta=0",
        "eta=-3",
        "eta=-inf",
    ),
    "quantities": ("1", "3", "10x0.5", "10", "30"),
}
_QUICK = {
    "size": 10,
    "seeds": 2,
    "episodes": 60,
    "qualities": ("eta=inf", "errs=0.2", "until=0.5", "two", "eta=0", "eta=-inf"),
    "quantities": ("1", "10"),
}

# Whom demonstrations lead does best without exploring by itself: docs/results/expert_quality.md.
_LED_DQN = dataclasses.replace(
    PRESET["dqn"], exploration="epsilon", epsilon_steps=(0,), epsilon_values=(0.0,)
)


@dataclasses.dataclass(frozen=True)
class Config(AgentsConfig):
    """A map of expert quality and quantity on DeepSea.

    BQfD's hyper-parameters hold for tabular BQfD, too.  With --quick Bootstrapped DQN has at most 5
    networks, and DQN alone explores for 0.3 times as many steps, unless they are given.
    """

    experiment: ClassVar[str] = "expert_quality"

    quick: bool = False
    """A coarse map on a small grid, in less than three minutes."""
    size: int | None = None
    """Rows and columns of the grid, and steps of an episode; 20, or 10 with --quick."""
    cases: tuple[Literal["treasure", "bomb", "decoy"], ...] = ("treasure", "bomb", "decoy")
    """What the expert leads to."""
    qualities: tuple[str, ...] | None = None
    """How good the expert is; see above."""
    quantities: tuple[str, ...] | None = None
    """How much it shows; see above."""
    agents: tuple[AgentName, ...] = tuple(LEARNERS)
    """Which agents to train; `dqn_alone` and `bootstrapped` see no demonstrations."""
    seeds: int | None = None
    """How many seeds, 0 up to this number less one; 5, or 2 with --quick."""
    episodes: int | None = None
    """Episodes per run; 100, or 60 with --quick."""
    dqn: PddDqnConfig = _LED_DQN
    """Hyper-parameters of prioritized dueling double DQN with demonstrations in its replay."""
    dqn_alone: PddDqnConfig = PRESET["dqn"]
    """Hyper-parameters of prioritized dueling double DQN that is shown nothing."""
    bootstrapped_demos: bool = False
    """Give Bootstrapped DQN the demonstrations, too: as many times the work as it has networks."""
    cells_per_call: int = 6
    """Cells trained side by side, and saved together."""

    def resolved(self) -> Self:
        """With all that was not given filled in; raises `OptionError` or `UsageError`."""
        preset = _QUICK if self.quick else _FULL
        missing = {name: value for name, value in preset.items() if getattr(self, name) is None}
        config = dataclasses.replace(self, **missing)
        if self.quick:
            members = min(config.bootstrapped.ensemble_size, 5)
            bootstrapped = dataclasses.replace(config.bootstrapped, ensemble_size=members)
            config = dataclasses.replace(config, bootstrapped=bootstrapped)
            if config.dqn_alone.epsilon_steps == PRESET["dqn"].epsilon_steps:
                # Half of the steps are left when DQN has explored, as on the full map.
                scaled = tuple(math.ceil(0.3 * step) for step in config.dqn_alone.epsilon_steps)
                alone = dataclasses.replace(config.dqn_alone, epsilon_steps=scaled)
                config = dataclasses.replace(config, dqn_alone=alone)
        config.check()
        return config

    def check(self) -> None:
        """Raises `OptionError` or `UsageError` for values that cannot be meant."""
        super().check()
        checks.at_least(3, size=self.size)
        checks.at_least(2, episodes=self.episodes)
        checks.at_least(1, cells_per_call=self.cells_per_call)
        checks.distinct(
            cases=self.cases,
            qualities=self.qualities,
            quantities=self.quantities,
            agents=self.agents,
        )
        for text in self.qualities:
            parse_quality(text)
        for text in self.quantities:
            parse_quantity(text)

    @property
    def max_trajectories(self) -> int:
        """The most that any cell shows; replays have room for them everywhere."""
        return max(parse_quantity(text).trajectories for text in self.quantities)

    def sees_demonstrations(self, agent: str) -> bool:
        """Whether an agent's cells differ in more than the case."""
        if agent == "bootstrapped":
            return self.bootstrapped_demos
        return agent != "dqn_alone"


class Quality(NamedTuple):
    """One of the qualities; `value` is eta, a probability, or a share of the rows."""

    kind: Literal["eta", "errs", "until", "two"]
    value: float


class Quantity(NamedTuple):
    """How many trajectories, and what share of their rows."""

    trajectories: int
    share: float


def parse_quality(text: str) -> Quality:
    """Raises `UsageError` unless `text` names a quality."""
    kind, _, number = text.partition("=")
    if text == "two":
        return Quality("two", math.nan)
    value = _number(number)
    if kind == "eta" and not math.isnan(value):
        return Quality(kind, value)
    if kind in ("errs", "until") and 0 <= value <= 1:
        return Quality(kind, value)
    raise UsageError(
        f"--qualities has {text!r}, but each must be eta=E (a number, inf or -inf), errs=P or "
        "until=F (in 0 .. 1), or two"
    )


def parse_quantity(text: str) -> Quantity:
    """Raises `UsageError` unless `text` names a quantity."""
    count, cut, share = text.partition("x")
    share = _number(share) if cut else 1.0
    if count.isdecimal() and int(count) >= 1 and 0 < share <= 1:
        return Quantity(int(count), share)
    raise UsageError(
        f"--quantities has {text!r}, but each must be K trajectories (at least 1), or KxF with a "
        "share F of their rows in 0 .. 1, like 10x0.5"
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
