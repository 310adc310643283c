"""A whole map in its folder, begun or gone on with."""

import dataclasses
from pathlib import Path

import jax
import numpy as np

from bqfd_jax import files
from bqfd_jax.envs import deep_sea_values
from bqfd_jax.runs import folder, stored
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.loop import follow
from bqfd_jax.runs.sinks import Sink

from . import report
from .config import CASES, Config
from .map_training import MapTraining


def resume(path: Path, sink: Sink) -> None:
    """Goes on with the map in a folder; all options are in its `config.json`."""
    config = stored.load(path, Config.from_stored)
    start(dataclasses.replace(config, out=path, resume=True), sink)


def start(config: Config, sink: Sink) -> None:
    """Trains every agent in every cell and writes the run folder."""
    config = config.resolved()
    out = folder.prepare(config.out, config.stored(), name="expert_quality", resume=config.resume)
    with folder.sole_use(out):
        sink.say(_describe(config, out))
        returns, seconds = train_all(config, out, sink)
        maps = report.make_maps(config, optimal_returns(config), returns)
        summary = report.summarise(config, maps, seconds)
        report.draw(config, maps, summary, out)
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


def optimal_returns(config: Config) -> dict[str, float]:
    """The best possible return of each case."""
    return {
        case: float(deep_sea_values.optimal_return(CASES[case](config.size), config.size))
        for case in config.cases
    }


def _describe(config: Config, out: Path) -> str:
    shape = f"{len(config.cases)} cases x {len(config.qualities)} x {len(config.quantities)} cells"
    return (
        f"DeepSea {config.size} x {config.size}, {config.episodes} episodes, {config.seeds} seeds; "
        f"{shape}; {' '.join(config.agents)}\n"
        f"on {jax.device_count()} {jax.devices()[0].platform} device(s); writing to {out}"
    )
