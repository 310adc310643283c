"""How fast, and how large: measurements that print their figures.

python -m experiments.benchmark replay
python -m experiments.benchmark replay --rows 100000
python -m experiments.benchmark atari
python -m experiments.benchmark memory
python -m experiments.benchmark gym
python -m experiments.benchmark peers
python -m experiments.benchmark seeds
python -m experiments.benchmark updates
"""

from collections.abc import Sequence

import tyro

from bqfd_jax import console

from .. import commands
from .atari import atari
from .gym import gym
from .peers import peers
from .replay import memory, replay
from .seeds import seeds
from .updates import updates


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark that the command line names."""
    tyro.extras.subcommand_cli_from_dict(
        {
            "replay": replay,
            "atari": atari,
            "memory": memory,
            "gym": gym,
            "peers": peers,
            "seeds": seeds,
            "updates": updates,
        },
        args=arguments,
        description=__doc__,
        prog=commands.prog(__package__),
    )


if __name__ == "__main__":
    console.run_main(main)
