"""The paper's first experiment: DeepSea with a treasure or a bomb where the expert leads.

    python -m experiments.deep_sea
    python -m experiments.deep_sea --size 20 --agents bqfd dqfd --bqfd.eta 1 --out runs/mine

A run that was stopped or killed goes on if the same command is given with --resume at its end.
Writes a folder with `summary.json`, `metrics.jsonl`, pictures and checkpoints.
"""

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from bqfd_jax import console, files
from bqfd_jax.runs.deep_sea import optimal_returns
from bqfd_jax.runs.errors import RunError
from bqfd_jax.runs.loop import follow
from bqfd_jax.runs.sinks import Sink

from .. import commands
from . import report
from .config import Config
from .training import AgentTraining, Result


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains every agent and writes the run folder."""
    config = commands.parse(Config, arguments, __package__, description=__doc__)
    with console.terminal("after this episode") as sink:
        start(config, sink)


def start(config: Config, sink: Sink) -> None:
    """Trains every agent and writes the run folder."""
    config.check()
    with config.opened(sink, f"{' '.join(config.cases)}; {' '.join(config.agents)}") as out:
        results, lost = _train(config, out, sink)
        best = optimal_returns(config.cases, config.size)
        summary = report.summarise(config, best, results)
        report.draw(config, best, results, out)
        files.write_json(out / "summary.json", summary)
    sink.say(
        f"\n{report.table(summary)}\n\n{summary['seconds']:.0f} s; curves and summary in {out}"
    )
    if lost:
        raise RunError(
            f"NOT SAVED: the last checkpoint of {', '.join(lost)}. The results above are written; "
            f"for the networks make room in {out}, then `bqfd resume {out}`"
        )


def _train(config: Config, out: Path, sink: Sink) -> tuple[dict[str, Result], list[str]]:
    """What came of every agent, and the agents whose last state could not be saved."""
    results: dict[str, Result] = {}
    lost: list[str] = []
    position, resume = 0, config.resume
    for name in config.agents:
        if not resume:
            # Of an earlier sitting whose rows have been cut off: not to be gone on from later.
            shutil.rmtree(out / "checkpoints" / name, ignore_errors=True)
        training = AgentTraining(config, name, out, sink, position=position, resume=resume)
        with closing(training.journal):
            follow(training, sink)
            results[name] = training.result()
            if not training.is_kept():
                lost.append(name)
            position = training.journal.position()
        # What follows in metrics.jsonl was cut off if this agent had episodes to do.
        resume = resume and training.was_finished
    return results, lost


if __name__ == "__main__":
    console.use_all_cores()
    console.run_main(main)
