"""What the machine has to give: memory, and a time in words."""

import importlib.metadata
import os
import platform
import resource
import sys
from pathlib import Path

import jax

from bqfd_jax import limits
from bqfd_jax.replay import Replay
from bqfd_jax.runs.errors import UsageError

# What a run needs beside its replay: the network, its gradients, the environments.
AROUND_THE_REPLAY = 1.0e9


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
    return limits.free_memory()


def check_memory(replay: Replay, copies: int = 1) -> None:
    """Raises `UsageError` for a replay that will not fit, or not so many times."""
    # Devices of an accelerator have memory of their own, and the others hold as much as the first.
    share = 1 if replay.mesh is None or jax.default_backend() == "cpu" else replay.mesh.size
    needed = copies * replay.num_bytes / share + AROUND_THE_REPLAY
    available = available_memory()
    if available is None or needed <= available:
        return
    room = (available - AROUND_THE_REPLAY) * share / (copies * replay.num_bytes)
    rows = int(room * replay.layout.num_rows) // 1000 * 1000
    advice = f"set replay_rows to {rows} or less" if rows > 0 else "free some memory"
    what = f"the replay of {replay.layout.num_rows:,} rows needs"
    if copies > 1:
        what = f"{copies} replays of {replay.layout.num_rows:,} rows (one to join or save) need"
        advice = f"take fewer seeds per program, or {advice}"
    raise UsageError(
        f"{what} {needed / 1e9:.1f} GB with all around it, but only {available / 1e9:.1f} GB are "
        f"free; {advice}"
    )


def describe() -> dict[str, str | int]:
    """Versions and hardware, for whoever wants to repeat a run; nothing that tells whose it is."""
    device = jax.devices()[0]
    packages = {name: version(name) for name in ("bqfd-jax", "jax", "jaxlib")}
    return packages | {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": cores(),
        "device": f"{jax.device_count()} x {device.device_kind} ({device.platform})",
    }


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def version(package: str) -> str:
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(unknown)"


def processor() -> str:
    """The kind of processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
