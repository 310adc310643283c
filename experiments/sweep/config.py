"""What can be set in a sweep, and the configs of its runs."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from bqfd_jax import checks
from bqfd_jax.agents.config import CloneConfig
from bqfd_jax.agents.presets import AGENTS
from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.sweep.grid import Cell, arguments, grid, parse_options

from .. import commands

# What the sweep decides for each run.
_SETTLED = {"--agent", "--seed", "--resume", "--seeds-per-program"}
# What cannot be set either, because it names the runs.
_NAMES = {"--game", "--env", "--out"}


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """Games or environments, agents and seeds; and where their runs go."""

    game: tuple[str, ...] = ()
    """Atari games; or environments:"""
    env: tuple[str, ...] = ()
    """Ids of gymnasium environments."""
    agents: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="AGENT[:NAME=VALUE,...]")
    ] = ("bqfd", "dqfd", "dqn")  # fmt: skip
    """Agents: bqfd, ensemble_bqfd, dqfd, dqn, bootstrapped, clone. One can have options of its own
    and be there with and without them: dqn dqn:demo=none."""
    seeds: int = 3
    """How many seeds."""
    first_seed: int = 0
    """The first of them."""
    steps: int | None = None
    """Length of each run in agent steps; the preset's unless given. Clones take no steps."""
    options: Annotated[
        tuple[str, ...], tyro.conf.arg(name="set", metavar="NAME=VALUE,..."),
        tyro.conf.UseAppendAction,
    ] = ()  # fmt: skip
    """An option of the runs and all its values, as in --set bqfd.eta=1,3,10. Can be repeated."""
    workers: int = 1
    """Runs side by side on this machine."""
    address: str | None = None
    """Of a Ray cluster (RAY_ADDRESS otherwise), which then decides how many runs there are at once;
    its nodes must have this package and see --out."""
    cpus: float | None = None
    """Cores of each run; the machine's divided by the workers unless given, on a cluster 1."""
    gpus: float | None = None
    """GPUs of each run, 0.5 puts two runs on one; unless given, the machine's divided by the
    workers, on a cluster one if it has any."""
    eval_in_background: bool = True
    """Play evaluations in a process beside each run's training."""
    dashboard: bool = False
    """Ray's dashboard, on this machine only."""
    list: bool = False
    """Print all runs with their numbers, their state and their commands, and do nothing."""
    index: int | None = None
    """Do only the run with this number, in this process and without Ray: for SLURM arrays."""
    out: Path = Path("runs/sweep")
    """Folder of all runs, each in GAME/AGENT/SEED below it."""

    @property
    def kind(self) -> str:
        """Of the runs."""
        if bool(self.game) == bool(self.env):
            raise UsageError("name Atari games (--game) or environments (--env), one of both")
        return "atari" if self.game else "gym"

    def cells(self) -> "list[Cell]":
        """All runs, in the order of their numbers."""
        checks.at_least(1, seeds=self.seeds, workers=self.workers)
        checks.at_least(0, first_seed=self.first_seed, gpus=self.gpus)
        checks.above(0, cpus=self.cpus)
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        titles = self.game if self.kind == "atari" else self.env
        return grid(titles, self.agents, seeds, parse_options(self.options))


def run_arguments(config: SweepConfig, cell: Cell, rest: Sequence[str]) -> "list[str]":
    """What the single command would take for a cell, `rest` being what all cells share."""
    given = {part.partition("=")[0].replace("_", "-") for part in rest}
    own = {f"--{name.replace('_', '-')}" for name, _ in cell.options}
    if named := sorted(_SETTLED & (given | own) | _NAMES & own):
        raise UsageError(f"{', '.join(named)}: the sweep decides that for each run")
    shared = [*rest, f"--{'' if config.eval_in_background else 'no-'}eval-in-background"]
    if config.steps is not None and AGENTS[cell.agent].config is not CloneConfig:
        shared = ["--steps", str(config.steps), *shared]
    return arguments(cell, config.kind, shared, config.out)


def run_config(config: SweepConfig, cell: Cell, rest: Sequence[str]) -> RunConfig:
    """The config of a cell's run."""
    return commands.parse_run(config.kind, run_arguments(config, cell, rest))
