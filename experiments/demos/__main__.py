"""Demonstrations: play one yourself, have one made, bring your own, look at one.

python -m experiments.demos record --game Seaquest
python -m experiments.demos plan --game Breakout --skill 0.5 --out breakout.npz
python -m experiments.demos import --from atari-head PATH --game Breakout --out breakout.npz
python -m experiments.demos show breakout.npz --check
"""

import tyro

from bqfd_jax.runs.folder import run_main
from experiments.demos.bring import import_demonstration
from experiments.demos.plan import plan
from experiments.demos.record import record
from experiments.demos.show import show


def main() -> None:
    """Runs the command that the command line names."""
    tyro.extras.subcommand_cli_from_dict(
        {
            "record": record,
            "plan": plan,
            "import": import_demonstration,
            "show": show,
        },
        description=__doc__,
        prog="python -m experiments.demos",
    )


if __name__ == "__main__":
    run_main(main)
