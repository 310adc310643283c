"""Your own environment: anything of gymnasium's with discrete actions, and flawed demonstrations.

    python -m experiments.gym
    python -m experiments.gym --env LunarLander-v3 --agent dqfd --demo mine.npz --out runs/mine
    python -m experiments.gym evaluate --run runs/mine
    python -m experiments.gym compare-demos --envs CartPole-v1 --seeds 5
    python -m experiments.gym compare-demos minatar

Without --demo it first makes a mediocre demonstration, and says how.  A run that was stopped or
killed goes on with `bqfd resume FOLDER`, or with the same options and --out FOLDER --resume.
Writes a folder with `summary.json`, `metrics.jsonl`, `policy.npz`, a learning curve, a film and
checkpoints.
"""

import dataclasses
import sys
from collections.abc import Sequence

import tyro

from bqfd_jax import console
from bqfd_jax.agents.presets import AgentName
from bqfd_jax.runs.gym import GymConfig

from .. import commands
from . import minatar
from .compare_demos import CompareDemosConfig, compare_demos
from .minatar import MinatarConfig
from .training import train, train_seeds


@dataclasses.dataclass(frozen=True)
class _Choice:
    """What other options' defaults depend on."""

    steps: int = GymConfig.steps
    agent: AgentName = GymConfig.agent


def parse(arguments: Sequence[str]) -> GymConfig:
    """The config of a command line."""
    choice, _ = tyro.cli(_Choice, args=list(arguments), return_unknown_args=True, add_help=False)
    default = GymConfig.of(choice.steps, choice.agent)
    return commands.parse(GymConfig, arguments, __package__, default=default, description=__doc__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, evaluates or compares, as the command line says."""
    arguments = sys.argv[1:] if arguments is None else arguments
    name, *rest = arguments or [""]
    if name in ("evaluate", "compare"):
        commands.parse(commands.FOR_RUNS[name], rest, __package__, name)
        return
    with console.terminal() as sink:
        if name == "compare-demos" and rest[:1] == ["minatar"]:
            config = commands.parse(
                MinatarConfig,
                rest[1:],
                __package__,
                f"{name} minatar",
                description=minatar.__doc__,
            )
            minatar.compare(config, sink)
            return
        if name == "compare-demos":
            compare_demos(commands.parse(CompareDemosConfig, rest, __package__, name), sink)
            return
        config = parse(arguments)
        if config.seeds_per_program > 1:
            train_seeds(config, sink)
        else:
            train(config, sink)


if __name__ == "__main__":
    console.run_main(main)
