"""What every experiment does around its run: the folder, `config.json`, errors people can read."""

import dataclasses
import fcntl
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from bqfd_jax.runs.checkpoint import CheckpointError
from bqfd_jax.envs.host import HostEnvironmentError
from bqfd_jax.files import is_temporary, write_json
from bqfd_jax.runs.metrics import MetricsWriter


class UsageError(Exception):
    """What was asked for cannot be done; the message says what to do instead."""


class RunError(Exception):
    """The run had to stop; what was saved stays."""


class StopRequested(Exception):  # noqa: N818
    """Someone pressed Ctrl-C (or the machine is going down), and the state has been saved."""


def flag(name: str) -> str:
    """`--eval-period` of `eval_period`."""
    return "--" + name.replace("_", "-")


def require_at_least(least: float, config: Any, *names: str) -> None:
    """Raises `UsageError` for an option that is less; those that were not given pass."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise UsageError(f"{flag(name)} is {value}, but must be at least {least}")


def require_choices(config: Any, *names: str) -> None:
    """Raises `UsageError` for a list of names that is empty or has one of them twice."""
    for name in names:
        values = getattr(config, name)
        if not values:
            raise UsageError(f"{flag(name)} is empty; name at least one")
        if len(set(values)) < len(values):
            raise UsageError(f"{flag(name)} names something twice: {' '.join(values)}")


def require_widths(config: Any) -> None:
    """Raises `UsageError` for a network that cannot be made, by its `torso` and `hidden`."""
    require_at_least(1, config, "hidden")
    if not config.torso or min(config.torso) < 1:
        given = " ".join(map(str, config.torso)) or "empty"
        raise UsageError(f"--torso is {given}, but must be widths of at least 1")


def prepare(
    out: Path | None,
    config: dict[str, Any],
    *,
    name: str,
    resume: bool,
    can_resume: bool = True,
) -> Path:
    """Makes the run folder, or checks that an old one can be resumed.

    Args:
      out: the folder, or None for a new one below `runs/`.
      config: what the run depends on; a resumed run must have the same.
      name: of the experiment, for new folders.
      resume: continue what is there.
      can_resume: whether there is such an option.

    Returns:
      The folder; it holds `config.json`.
    """
    if out is None and not resume:
        out = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    config = check(out, config, resume=resume, can_resume=can_resume)
    path = out / "config.json"
    if resume:
        return out
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, config)
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror or error}") from error
    return out


def check(
    out: Path | None, config: dict[str, Any], *, resume: bool, can_resume: bool = True
) -> dict[str, Any]:
    """Raises `UsageError` unless a run can begin or go on there; see `prepare`.

    Returns:
      The config as it will read back from the file, tuples being lists there.
    """
    config = json.loads(json.dumps(config))
    if out is None:
        raise UsageError("--resume needs the folder of the run to continue: add --out FOLDER")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; name a folder")
    if resume:
        _check_same(out / "config.json", config)
    # A run killed while it wrote its config has left nothing worth keeping.
    elif out.exists() and not all(map(is_temporary, out.iterdir())):
        advice = "Continue it with --resume, or choose another --out."
        raise UsageError(
            f"{out} exists already. {advice if can_resume else 'Choose another --out.'}"
        )
    return config


@contextmanager
def sole_use(out: Path) -> Iterator[None]:
    """Raises `UsageError` if another process works in a run folder; two would spoil its files.

    The folder is free again when the process ends, however it does.
    """
    descriptor = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another process is at work in {out}; stop it first, or wait for its end"
            ) from error
        except OSError:
            # Not every file system knows locks, and runs need not be told apart there.
            pass
        yield
    finally:
        os.close(descriptor)


def _check_same(path: Path, config: dict[str, Any]) -> None:
    if not path.exists():
        raise UsageError(
            f"there is no run to resume in {path.parent} (no config.json); "
            "leave out --resume to start one"
        )
    try:
        stored = json.loads(path.read_text())
        if not isinstance(stored, dict):
            raise ValueError("it holds no options")
    except ValueError as error:
        raise UsageError(f"{path} is damaged ({error}); it cannot be resumed safely") from error
    differences = list(_differences(stored, config))
    if differences:
        listed = "\n".join(f"  {line}" for line in differences)
        raise UsageError(
            f"{path.parent} was started with another configuration:\n{listed}\n"
            "Resume with the same options, or start a new run in another --out."
        )


def _differences(stored: Any, given: Any, where: str = "") -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in dict.fromkeys([*stored, *given]):
            nested = f"{where}.{key}" if where else key
            yield from _differences(stored.get(key), given.get(key), nested)
    elif stored != given:
        yield f"{where}: was {json.dumps(stored)}, now {json.dumps(given)}"


def config_dict(config: Any, *, without: tuple[str, ...]) -> dict[str, Any]:
    """A dataclass as JSON-able dicts, less the fields that do not change what is computed."""
    fields = dataclasses.asdict(config)
    return {name: value for name, value in fields.items() if name not in without}


class PatientWriter(MetricsWriter):
    """Keeps rows that could not be written (a full disk) and tries again with the next."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.pending: list[Mapping[str, Any]] = []

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row, now or later."""
        self.pending.append(row)
        try:
            self.flush()
        except OSError as error:
            tqdm.write(f"\nWARNING: metrics.jsonl cannot be written, trying again later: {error}\n")

    def flush(self) -> None:
        """Writes what waits; raises `OSError` if that fails still."""
        while self.pending:
            super().write(self.pending[0])
            self.pending.pop(0)

    def position(self) -> int:
        """Bytes written, once nothing waits any more."""
        self.flush()
        return super().position()


@contextmanager
def stop_signals(when: str) -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C (or SIGTERM) into a wish that the loop can ask for.

    A second one stops at once.

    Args:
      when: what the person who pressed it is told, "stopping ...".
    """
    asked = False

    def ask(signum: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print(f"\nstopping {when}; again to stop at once", file=sys.stderr)

    previous = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def use_all_cores() -> None:
    """Makes every CPU core a device, so that runs are spread over them; call it first of all."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jax.config.update("jax_num_cpu_devices", cores or 1)


def peak_memory_gb() -> float:
    """The most memory that this process ever had, in GB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9


def available_memory() -> int | None:
    """Bytes that may still be taken on the first device; None if that cannot be known."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        if "bytes_limit" not in stats:
            return None
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    limits = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pass
    try:
        # What a container may take, if it is in one.
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Files that are kept in memory give way when it is needed.
        limits.append(limit - used + int(stat["active_file"]) + int(stat["inactive_file"]))
    except (OSError, ValueError, KeyError):
        pass
    return min(limits, default=None)


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def run_main(main: Callable[[], None]) -> None:
    """Runs an experiment and turns expected failures into a message and an exit code."""
    try:
        main()
    except UsageError as error:
        _leave(f"error: {error}", 2)
    except (RunError, CheckpointError, HostEnvironmentError) as error:
        _leave(f"error: {error}", 1)
    except StopRequested as stop:
        _leave(str(stop), 130)
    except KeyboardInterrupt:
        _leave("stopped at once; a checkpoint, if there is one, stays: see --resume", 130)
    except BrokenPipeError:
        # The reader of our output is gone; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _leave(f"error: {error}; what was saved before stays", 1)


def _leave(message: str, code: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(code)
