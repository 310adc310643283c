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
from pathlib import Path

import numpy as np

from bqfd_jax import console, files
from bqfd_jax.runs.deep_sea import optimal_returns
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.loop import follow
from bqfd_jax.runs.sinks import Sink

from .. import commands
from . import report
from .config import Config
from .training import MapTraining


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains every agent in every cell and writes the run folder."""
    config = commands.parse(Config, arguments, __package__, description=__doc__)
    with console.terminal("after these cells") as sink:
        start(config, sink)


def start(config: Config, sink: Sink) -> None:
    """Trains every agent in every cell and writes the run folder."""
    config = config.resolved()
    shape = f"{len(config.cases)} cases x {len(config.qualities)} x {len(config.quantities)} cells"
    with config.opened(sink, f"{shape}; {' '.join(config.agents)}") as out:
        returns, seconds = train_all(config, out, sink)
        maps = report.make_maps(config, optimal_returns(config.cases, config.size), returns)
        summary = report.summarise(config, maps, seconds)
        report.draw(config, maps, out)
        files.write_json(out / "summary.json", summary)
    total = sum(seconds.values())
    sink.say(f"\n{report.table(summary)}\n\n{total:.0f} s; maps and summary in {out}")


def train_all(
    config: Config, out: Path, sink: Sink
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Returns of every agent, `[cells, seeds, episodes]`, and the seconds that this took."""
    cells = out / "cells"
    try:
        cells.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {cells}: {error.strerror or error}") from error
    returns, seconds = {}, {}
    for agent in config.agents:
        training = MapTraining(config, agent, cells)
        follow(training, sink)
        returns[agent], seconds[agent] = training.result()
    return returns, seconds


if __name__ == "__main__":
    console.use_all_cores()
    console.run_main(main)
