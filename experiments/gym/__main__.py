"""Your own environment: anything of gymnasium's with discrete actions, and flawed demonstrations.

    python -m experiments.gym
    python -m experiments.gym --env LunarLander-v3 --agent dqfd --demo mine.npz --out runs/mine
    python -m experiments.gym evaluate --run runs/mine
    python -m experiments.gym compare-demos --envs CartPole-v1 --seeds 5

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
from bqfd_jax.runs.gym import GymConfig

from .. import commands
from .compare_demos import CompareDemosConfig, compare_demos
from .training import train

_PROG = "python -m experiments.gym"


@dataclasses.dataclass(frozen=True)
class _Choice:
    """What other options' defaults depend on."""

    steps: int = GymConfig.steps


def parse(arguments: Sequence[str]) -> GymConfig:
    """The config of a command line."""
    choice, _ = tyro.cli(_Choice, args=list(arguments), return_unknown_args=True, add_help=False)
    return tyro.cli(
        GymConfig,
        args=list(arguments),
        default=GymConfig.of(max(choice.steps, 1)),
        description=__doc__,
        prog=_PROG,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, evaluates or compares, as the command line says."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command, rest = arguments[:1], arguments[1:]
    if command in (["evaluate"], ["compare"]):
        commands.parse_and_run(command[0], rest, _PROG)
        return
    with console.terminal() as sink:
        if command == ["compare-demos"]:
            options = tyro.cli(CompareDemosConfig, args=rest, prog=f"{_PROG} compare-demos")
            compare_demos(options, sink)
        else:
            train(parse(arguments), sink)


if __name__ == "__main__":
    console.run_main(main)
