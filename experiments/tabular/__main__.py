"""The paper's first two algorithms on DeepSea: tables, and the exact filter.

    python -m experiments.tabular
    python -m experiments.tabular --size 20 --episodes 500 --out runs/mine

Trains tabular BQfD with both correction rules, and Q-learning beside them, with a treasure and with
a bomb at the end of the expert's path; then compares the visit weight w_n with the exact variances
of Algorithm 1.  Writes a folder with `summary.json` and pictures.
"""

import time
from collections.abc import Sequence

from bqfd_jax import console, files
from bqfd_jax.runs.deep_sea import optimal_returns
from bqfd_jax.runs.sinks import Sink, Terminal

from .. import commands
from . import report
from .config import Config
from .exact_filter import exact_variances, filter_error
from .tables import CASES, VARIANTS, forgetting, train


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs everything and writes the folder."""
    # Without a stop by request: nothing of such a run can be saved, so Ctrl-C ends it at once.
    config = commands.parse(Config, arguments, __package__, description=__doc__)
    start(config, Terminal())


def start(config: Config, sink: Sink) -> None:
    """A whole run in its folder."""
    config.check()
    with config.opened(sink, f"{len(VARIANTS)} variants") as out:
        found = find_out(config, sink)
        summary = report.summarise(config, found)
        report.draw(config, found, out)
        files.write_json(out / "summary.json", summary)
    sink.say(
        f"\n{report.table(summary)}\n\n{found.seconds:.0f} s of training; pictures and summary in "
        f"{out}"
    )


def find_out(config: Config, sink: Sink) -> report.Findings:
    """Trains all variants, and computes what they are compared with."""
    started = time.perf_counter()
    returns = {}
    with sink.bar("training", unit="variant", total=len(VARIANTS)) as bar:
        for name, options in VARIANTS.items():
            returns[name] = train(config, **options)
            bar.at(len(returns))
    return report.Findings(
        returns=returns,
        seconds=time.perf_counter() - started,
        best=optimal_returns(CASES, config.size),
        memory=forgetting(config),
        exact={n: exact_variances(config, n) for n in (1, 10, 100)},
        filter_error=filter_error(),
    )


if __name__ == "__main__":
    console.use_all_cores()
    console.run_main(main)
