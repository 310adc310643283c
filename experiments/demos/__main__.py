"""Demonstrations: play one yourself, have one made, bring your own, look at one.

python -m experiments.demos record --game Seaquest
python -m experiments.demos plan --game Breakout --skill 0.5 --out breakout.npz
python -m experiments.demos import --from atari-head PATH --game Breakout --out breakout.npz
python -m experiments.demos show breakout.npz --check
"""

from collections.abc import Sequence

import tyro

from bqfd_jax.console import run_main

from .import_files import import_demonstration
from .plan import plan
from .record import record
from .show import show

COMMANDS = {"record": record, "plan": plan, "import": import_demonstration, "show": show}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command that the arguments name; those of the command line unless given."""
    tyro.extras.subcommand_cli_from_dict(
        COMMANDS, args=arguments, description=__doc__, prog="python -m experiments.demos"
    )


if __name__ == "__main__":
    run_main(main)
