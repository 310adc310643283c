"""What becomes of a cell of a sweep: begun, gone on with, finished, or why not.

A worker's own notes lie in `logs/` below the sweep's folder, in a folder that has the name of the
run's: `log.txt`, what it says; `attempts.jsonl`, when it began and how it ended; `failed.json`, why
it cannot work.  Everything else is in the run folder, where a single command would write it.
"""

import dataclasses
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from bqfd_jax import files
from bqfd_jax.runs import folder
from bqfd_jax.runs.checkpoint import Checkpointer
from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.errors import FolderBusyError, Stopped, UsageError
from bqfd_jax.runs.metrics import MetricsWriter, readable_rows
from bqfd_jax.runs.sinks import Bar, Sink, stop_signals

# A run whose process dies so often without coming further will not do so the next time either.
MAX_DEATHS = 10
# How often a worker looks whether the sweep is to stop.
_LOOK_SECONDS = 0.5

State = Literal["done", "failed", "busy", "stopped"]
Train = Callable[[RunConfig, Sink], Any]


class Outcome(NamedTuple):
    """How an attempt has ended."""

    state: State
    why: str = ""


class Task(NamedTuple):
    """All that a worker needs to know of a cell."""

    config: RunConfig  # `out` is the run's folder
    logs: Path  # of this cell
    sweep: str  # tells the attempts of one command from those of an earlier one
    stop_file: Path  # exists once all are to stop


def logs_of(out: Path, run: Path) -> Path:
    """Where a worker's notes on a run are, given the sweep's folder and the run's below it."""
    return out / "logs" / run


def is_finished(config: RunConfig) -> bool:
    """Whether the run is there already, whole.

    Raises:
      UsageError: it is another one, or what is left of it can be neither told of nor gone on with.
    """
    if not (config.out / "config.json").exists():
        return False
    shown = folder.read_config(config.out).get("demonstrations")
    fields = config.stored() | {"demonstrations": shown}
    folder.check(config.out, fields, resume=True, complete=config.completed)
    if (why := folder.what_is_lost(config.out)) is not None:
        raise UsageError(why)
    return folder.is_finished(config.out)


def attempt(task: Task, train: Train) -> Outcome:
    """Begins a run, or goes on with it; whatever goes wrong is in what it returns.

    Args:
      task: which run.
      train: a whole run, or the rest of one, as the single command does it.
    """
    task.logs.mkdir(parents=True, exist_ok=True)
    with (
        open(task.logs / "log.txt", "a", encoding="utf-8") as log,
        closing(MetricsWriter(task.logs / "attempts.jsonl")) as attempts,
        stop_signals() as signalled,
    ):
        sink = LogSink(log, _StopFile(task.stop_file, signalled))
        with _noted(task, attempts) as ended:
            ended.append(_attempt(task, train, sink))
        return ended[0]


@contextmanager
def _noted(task: Task, attempts: MetricsWriter) -> Iterator[list[Outcome]]:
    """Writes down that an attempt begins and how it ends; one that dies leaves the first alone."""
    step = last_step(task.config.out)
    who = {"pid": os.getpid(), "node": platform.node()}
    attempts.write({"sweep": task.sweep, "began": time.time(), "step": step, **who})
    ended: list[Outcome] = []
    yield ended
    (outcome,) = ended
    # A full disk does not undo what has come of the run.
    with suppress(OSError):
        if outcome.state == "failed":
            note_failure(task.logs, outcome.why)
        attempts.write({"sweep": task.sweep, "ended": time.time(), "state": outcome.state})


def _attempt(task: Task, train: Train, sink: Sink) -> Outcome:
    if sink.stop_asked():
        return Outcome("stopped")
    config, begins = task.config, False
    try:
        # Before the count of deaths: the last of them may have come after the run was whole.
        if is_finished(config):
            return Outcome("done")
        if (deaths := deaths_without_progress(task)) >= MAX_DEATHS:
            return Outcome("failed", f"its process died {deaths} times without coming further")
        forget_failure(task.logs)
        config = config_to_go_on(config)
        begins = not config.resume
        train(config, sink)
        return Outcome("done")
    except FolderBusyError as error:
        sink.say(f"busy: {error}")
        return Outcome("busy", str(error))
    except Stopped as stop:
        sink.say(str(stop))
        return Outcome("stopped", str(stop))
    # One run's trouble must not be the others', not even where an environment ends its process.
    except (Exception, SystemExit) as error:
        why = str(error) or type(error).__name__
        sink.warn(why)
        if begins and isinstance(error, UsageError) and (config.out / "config.json").exists():
            # Somebody else has begun the run while this attempt was preparing to.
            return Outcome("busy", why)
        return Outcome("failed", why)


def note_failure(logs: Path, why: str) -> None:
    """Writes down why a run cannot work, for tables and reports."""
    logs.mkdir(parents=True, exist_ok=True)
    files.write_json(logs / "failed.json", {"why": why, "when": time.time()})


def forget_failure(logs: Path) -> None:
    """The run is tried again."""
    (logs / "failed.json").unlink(missing_ok=True)


def config_to_go_on(config: RunConfig) -> RunConfig:
    """The same, to be resumed if there is something to resume."""
    return dataclasses.replace(config, resume=(config.out / "config.json").exists())


def last_step(run: Path) -> int | None:
    """The step of a run's last checkpoint; None if it has none."""
    steps = Checkpointer(run / "checkpoints").steps() if (run / "checkpoints").exists() else []
    return steps[-1] if steps else None


def attempts_of(logs: Path, sweep: str | None = None) -> list[dict[str, Any]]:
    """When attempts began and ended, in order, of all commands or of one."""
    path = logs / "attempts.jsonl"
    # Two workers may write at once, on network file systems into each other's lines.
    rows = readable_rows(path.read_bytes()) if path.exists() else []
    return [row for row in rows if sweep in (None, row.get("sweep"))]


def deaths_without_progress(task: Task) -> int:
    """How many attempts of this command have ended without a word since the last checkpoint.

    The attempt that asks is among the rows, and does not count.
    """
    deaths, began = 0, None
    for row in attempts_of(task.logs, task.sweep):
        if "ended" in row:
            began = None
            continue
        if began is not None:
            deaths = deaths + 1 if row["step"] == began["step"] else 0
        began = row
    return deaths


class LogSink(Sink):
    """Writes everything into a file, a bar's words as lines.

    Args:
      log: an open text file.
      stop_asked: whether the run should stop.
    """

    def __init__(self, log: IO[str], stop_asked: Callable[[], bool] = lambda: False):
        self._log, self.stop_asked = log, stop_asked

    def say(self, text: str) -> None:
        """A line with the time; what cannot be written is not worth a run."""
        with suppress(OSError):
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            self._log.flush()

    def warn(self, text: str) -> None:
        """The same, and it says so."""
        self.say(f"WARNING: {text}")

    @contextmanager
    def bar(self, title: str, *, unit: str, total: int, position: int = 0) -> Iterator[Bar]:
        """Lines of progress."""
        yield _LogBar(self, title, unit, total, position)


class _LogBar(Bar):
    def __init__(self, sink: LogSink, title: str, unit: str, total: int, position: int):
        self._sink, self._title, self._of = sink, title, f"of {total:,} {unit}s"
        self._position = position

    def at(self, position: int) -> None:
        self._position = position

    def note(self, text: str) -> None:
        self._sink.say(f"{self._title}: {self._position:,} {self._of}, {text}")


class _StopFile:
    """Whether a file has appeared, looked for now and then, or a signal was heard."""

    def __init__(self, path: Path, signalled: Callable[[], bool]):
        self._path, self._signalled = path, signalled
        self._is_there, self._next_look = False, 0.0

    def __call__(self) -> bool:
        if not self._is_there and time.monotonic() >= self._next_look:
            self._is_there = self._path.exists()
            self._next_look = time.monotonic() + _LOOK_SECONDS
        return self._is_there or self._signalled()
