"""Many runs side by side: games times agents times seeds times options.

    python -m experiments.sweep --env CartPole-v1 --agents bqfd dqn --seeds 3 --workers 2
    python -m experiments.sweep --game Breakout Freeway --set bqfd.eta=1,3,10 --out runs/eta
    python -m experiments.sweep --game Breakout --agents bqfd dqn dqn:demo=none clone
    python -m experiments.sweep ... --list          # what there is to do
    python -m experiments.sweep ... --index 4       # one run, without Ray
    python -m experiments.report runs/eta

Each run is the very run of `experiments.gym` or `experiments.atari`, in OUT/GAME/AGENT/SEED, and
takes all their options; what is given here holds for every run.  The same command again does what
is missing and nothing else, so that more seeds or agents can be added to a finished sweep.
"""

import dataclasses
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tyro

from bqfd_jax import console
from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.errors import FolderBusyError, RunError, Stopped, UsageError
from bqfd_jax.runs.machine import cores
from bqfd_jax.runs.sweep import needs, on_ray
from bqfd_jax.runs.sweep.cell import (
    Task,
    config_to_go_on,
    forget_failure,
    is_finished,
    logs_of,
    note_failure,
)
from bqfd_jax.runs.sweep.grid import Cell, command, write_cells
from bqfd_jax.runs.sweep.status import Status, status, with_outcomes

from .. import commands
from .config import SweepConfig, run_arguments, run_config
from .live import LiveTable
from .worker import work

_REFRESH_SECONDS = 2.0


def parse(arguments: Sequence[str]) -> tuple[SweepConfig, list[str]]:
    """The sweep of a command line, and options that it hands to every run."""
    return tyro.cli(
        SweepConfig,
        args=list(arguments),
        prog=commands.prog(__package__),
        description=__doc__,
        return_unknown_args=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Lists a sweep's runs, does one of them, or all."""
    config, rest = parse(sys.argv[1:] if arguments is None else arguments)
    cells = config.cells()
    if config.index is not None and not 0 <= config.index < len(cells):
        raise UsageError(f"--index is {config.index}, but must be in [0, {len(cells) - 1}]")
    runs = {cell: run_config(config, cell, rest) for cell in cells}
    if config.list:
        # Only what holds on every machine: it may be listed on one and run on others.
        for run in runs.values():
            run.check_options()
        _print_list(config, cells, rest)
        return
    write_cells(config.out, cells)
    if config.index is not None:
        _run_one(config, runs)
        return
    _run_all(config, runs)


def _print_list(config: SweepConfig, cells: Sequence[Cell], rest: Sequence[str]) -> None:
    package = ".".join([*__package__.split(".")[:-1], config.kind])
    for number, cell in enumerate(cells):
        line = command(run_arguments(config, cell, rest))
        print(f"{number:>4}  {_status(config, cell).state:<8} {commands.prog(package)} {line}")


def _status(config: SweepConfig, cell: Cell, steps: int = 0, sweep: str | None = None) -> Status:
    logs = logs_of(config.out, cell.folder)
    return status(cell, steps, config.out / cell.folder, logs, sweep)


def _run_one(config: SweepConfig, runs: Mapping[Cell, RunConfig]) -> None:
    cell = list(runs)[config.index]
    run, logs = runs[cell], logs_of(config.out, cell.folder)
    if is_finished(run):
        print(f"{run.out} is finished already")
        return
    forget_failure(logs)
    console.keep_compiled()
    try:
        with console.terminal() as sink:
            commands.train(config_to_go_on(run), sink)
    except (Stopped, FolderBusyError):
        raise
    except Exception as error:
        note_failure(logs, str(error) or type(error).__name__)
        raise


def _run_all(config: SweepConfig, runs: Mapping[Cell, RunConfig]) -> None:
    missing = {cell: run for cell, run in runs.items() if not _is_done(run)}
    if not missing:
        print(f"all {len(runs)} runs are finished: `bqfd report {config.out}` tells of them")
        return
    resources = _resources(config)
    sweep, out = uuid.uuid4().hex[:12], config.out.absolute()
    stop_file = out / "logs" / f"stop-{sweep}"
    tasks = {
        cell.name: Task(_anywhere(run), logs_of(out, cell.folder), sweep, stop_file)
        for cell, run in missing.items()
    }
    memory = _memory(missing)
    print(f"{len(missing)} of {len(runs)} runs to do in {config.out}; starting Ray ...", flush=True)
    with on_ray.cluster(resources) as ray:
        resources = on_ray.settled(ray, resources)
        on_ray.check_fits(ray, resources, memory)
        # After Ray, which would take the signals otherwise.
        with console.terminal("all runs, after a checkpoint of each") as sink:
            driver = on_ray.Driver(ray, work, tasks, memory, resources)
            _watch(config, runs, driver, sweep, sink.stop_asked)
    stop_file.unlink(missing_ok=True)
    _conclude(config, driver)


def _anywhere(run: RunConfig) -> RunConfig:
    """The same with whole paths, because a worker may begin elsewhere."""
    return dataclasses.replace(run, out=run.out.absolute(), demo=tuple(run.stored()["demo"]))


def _is_done(run: RunConfig) -> bool:
    try:
        return is_finished(run)
    except UsageError:
        # Another run lies there, or too little of this one: its worker says so, others go on.
        return False


def _memory(runs: Mapping[Cell, RunConfig]) -> dict[str, int]:
    """Bytes of each run by name; seeds need as much as each other."""
    alike: dict[tuple[str, ...], int] = {}
    for cell, run in runs.items():
        key = (cell.title, cell.agent, str(cell.options))
        if key not in alike:
            alike[key] = needs.memory(run)
    return {cell.name: alike[cell.title, cell.agent, str(cell.options)] for cell in runs}


def _resources(config: SweepConfig) -> on_ray.Resources:
    address = config.address or os.environ.get("RAY_ADDRESS")
    share = 1 if address else max(1, cores() // config.workers)
    return on_ray.Resources(
        workers=config.workers,
        address=address,
        cpus=config.cpus or share,
        gpus=config.gpus,
        dashboard=config.dashboard,
    )


def _watch(
    config: SweepConfig,
    runs: Mapping[Cell, RunConfig],
    driver: on_ray.Driver,
    sweep: str,
    stop_asked: Callable[[], bool],
) -> None:
    """Shows how the runs stand, until all have ended; a wish to stop is handed on."""
    live, is_asked = LiveTable(), False

    def statuses() -> list[Status]:
        found = [_status(config, cell, run.steps, sweep) for cell, run in runs.items()]
        return with_outcomes(found, driver.outcomes)

    while not driver.is_over:
        live.show(statuses())
        driver.advance(_REFRESH_SECONDS)
        if stop_asked() and not is_asked:
            is_asked = True
            driver.stop()
    live.close(statuses())


def _conclude(config: SweepConfig, driver: on_ray.Driver) -> None:
    states = [outcome.state for outcome in driver.outcomes.values()]
    where = f"`bqfd report {config.out}` tells of the runs"
    if (failed := states.count("failed")) > 0:
        logs = Path(config.out, "logs")
        raise RunError(f"{failed} of {len(states)} runs failed, see {logs}; {where}")
    if "stopped" in states or "busy" in states:
        raise Stopped("stopped; the same command goes on with what is missing")
    print(where)


if __name__ == "__main__":
    console.run_main(main)
