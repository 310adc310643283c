"""One page about many runs, finished or not: a sweep, folders of runs, other commands' pictures.

    python -m experiments.report runs/sweep --out report
    python -m experiments.report runs/a runs/b runs/compare-demos --out report

Writes `index.html`, which holds its pictures and films and needs no network, and the table as
`table.md` and `table.tex`; `results.csv` has a line per run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from bqfd_jax import console
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.page import tables
from bqfd_jax.runs.page.write import write

from .. import commands


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    out: Path = Path("report"),
    title: str = "",
    films: bool = True,
) -> None:
    """Writes a report.

    Args:
      runs: Sweeps, runs, folders of runs, or what other commands have made.
      out: Folder of the report.
      title: Of the page; made from the games and agents unless given.
      films: Put films into the page; without them it is smaller.
    """
    if not runs:
        raise UsageError("name a sweep, or folders of runs")
    found = write(runs, out, title=title, films=films)
    if found.entries:
        print(tables.markdown(found.entries))
    print(f"the page is {out / 'index.html'}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes a report, as the command line says."""
    commands.parse(report, arguments, __package__, description=__doc__)


if __name__ == "__main__":
    console.run_main(main)
