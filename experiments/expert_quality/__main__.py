"""How imperfect may the expert be?  DeepSea with demonstrations of graded quality and quantity.

    python -m experiments.expert_quality
    python -m experiments.expert_quality --quick
    python -m experiments.expert_quality --qualities eta=inf errs=0.2 --quantities 1 30 --out runs/m

Every agent is trained in every cell of a map, case x quality x quantity.  The expert heads for the
corner in all three cases, and shows the same; what differs is what it leads to: a treasure, a bomb,
or a small treasure while a large one lies elsewhere.

Qualities: eta=E takes actions in proportion to exp(E q), q being optimal if there is a treasure in
the corner (inf: always the best, 0: any, -inf: always the worst); errs=P takes the worse action
with probability P; until=F is right in the first share F of the rows and wrong in the rest; two are
two experts in turn, one always right and one always wrong.  Quantities: K trajectories; KxF shows
only the first share F of each one's rows.

A run that was stopped or killed goes on if the same command is given with --resume at its end.
Writes a folder with `summary.json`, pictures, and the returns of every cell.
"""

from collections.abc import Sequence

import tyro

from bqfd_jax import console

from .config import Config
from .run import start


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains every agent in every cell and writes the run folder."""
    config = tyro.cli(
        Config, args=arguments, description=__doc__, prog="python -m experiments.expert_quality"
    )
    with console.terminal("after these cells") as sink:
        start(config, sink)


if __name__ == "__main__":
    console.use_all_cores()
    console.run_main(main)
