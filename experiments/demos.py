"""Demonstrations: have one made, play one yourself, bring your own, look at one.

python -m experiments.demos record --game Seaquest
python -m experiments.demos plan --game Breakout --skill 0.5 --out breakout.npz
python -m experiments.demos import --from atari-head PATH --game Breakout --out breakout.npz
python -m experiments.demos show breakout.npz --check
"""

from typing import Annotated

import tyro

from experiments import demos_plan
from experiments.run_folder import run_main


def main() -> None:
    """Runs the command that the command line names."""
    tyro.extras.subcommand_cli_from_dict(
        {
            "plan": _plan_command,
        },
        description=__doc__,
        prog="python -m experiments.demos",
    )


def _plan_command(config: Annotated[demos_plan.PlanConfig, tyro.conf.arg(name="")]) -> None:
    demos_plan.plan(config)


_plan_command.__doc__ = demos_plan.PlanConfig.__doc__


if __name__ == "__main__":
    run_main(main)
