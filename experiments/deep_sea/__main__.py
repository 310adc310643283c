"""The paper's first experiment: DeepSea with a treasure or a bomb where the expert leads.

    python -m experiments.deep_sea
    python -m experiments.deep_sea --size 20 --agents bqfd dqfd --bqfd.eta 1 --out runs/mine

A run that was stopped or killed goes on if the same command is given with --resume at its end.
Writes a folder with `summary.json`, `metrics.jsonl`, pictures and checkpoints.
"""

from collections.abc import Sequence

import tyro

from bqfd_jax import console

from .config import Config
from .run import start


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains every agent and writes the run folder."""
    config = tyro.cli(
        Config, args=arguments, description=__doc__, prog="python -m experiments.deep_sea"
    )
    with console.terminal("after this episode") as sink:
        start(config, sink)


if __name__ == "__main__":
    console.use_all_cores()
    console.run_main(main)
