"""A whole DeepSea run in its folder, begun or gone on with."""

import dataclasses
import shutil
from contextlib import closing
from pathlib import Path

from bqfd_jax import files
from bqfd_jax.envs import deep_sea_values
from bqfd_jax.runs import folder, stored
from bqfd_jax.runs.loop import follow
from bqfd_jax.runs.sinks import Sink
from bqfd_jax.training import on_device

from . import report
from .config import CASES, Config
from .training import AgentTraining


def resume(path: Path, sink: Sink) -> None:
    """Goes on with the run in a folder; all options are in its `config.json`."""
    config = stored.load(path, Config.from_stored)
    start(dataclasses.replace(config, out=path, resume=True), sink)


def start(config: Config, sink: Sink) -> None:
    """Trains every agent and writes the run folder."""
    config.check()
    out = folder.prepare(config.out, config.stored(), name="deep_sea", resume=config.resume)
    with folder.sole_use(out):
        sink.say(_describe(config, out))
        results = _train(config, out, sink)
        best = {
            case: float(deep_sea_values.optimal_return(CASES[case](config.size), config.size))
            for case in config.cases
        }
        summary = report.summarise(config, best, results)
        report.draw(config, best, results, out)
        files.write_json(out / "summary.json", summary)
    sink.say(
        f"\n{report.table(summary)}\n\n{summary['seconds']:.0f} s; curves and summary in {out}"
    )


def _train(config: Config, out: Path, sink: Sink) -> dict[str, report.Result]:
    results: dict[str, report.Result] = {}
    position, resume = 0, config.resume
    for name in config.agents:
        if not resume:
            # Of an earlier sitting whose rows have been cut off: not to be gone on from later.
            shutil.rmtree(out / "checkpoints" / name, ignore_errors=True)
        training = AgentTraining(config, name, out, sink, position=position, resume=resume)
        with closing(training.journal):
            follow(training, sink)
            results[name] = training.result()
            position = training.journal.position()
        # What follows in metrics.jsonl was cut off if this agent had episodes to do.
        resume = resume and training.was_finished
    return results


def _describe(config: Config, out: Path) -> str:
    devices = on_device.runs_sharding(config.num_runs).mesh.devices
    return (
        f"DeepSea {config.size} x {config.size}, {config.episodes} episodes, {config.seeds} seeds; "
        f"{' '.join(config.cases)}; {' '.join(config.agents)}\n"
        f"on {devices.size} {devices[0].platform} device(s); writing to {out}"
    )
