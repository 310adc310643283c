"""Runs of a sweep as plain Ray tasks, on this machine or on a cluster.

Ray knows nothing of a run but whether its process lives.  All state is in the run folders, which
every node must see: a task that Ray starts again, because its worker or its node has died, goes on
from the run's last checkpoint.
"""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from bqfd_jax import extras
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.sweep.cell import Outcome, Task, attempts_of

Work = Callable[[Task], Outcome]
# Nothing but a few words goes through Ray's object store, so that it may be as small as it can.
_OBJECT_STORE = 80 * 2**20
_LOOPBACK = "127.0.0.1"
# A place for a run on this machine: cores alone would let in more runs that take parts of one.
_PLACE = "bqfd_run"
# Read by Ray when it is imported or started.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Else Ray puts the machine's outside address in the place of 127.0.0.1, and listens there.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Its own metrics, which nobody reads here, would have listeners of their own.
    "RAY_enable_metrics_collection": "0",
}


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a run may take, and where runs go."""

    workers: int = 1  # runs side by side on this machine; a cluster decides by itself
    address: str | None = None  # of a cluster; None: a Ray of our own, on loopback only
    cpus: float = 1  # of each run
    gpus: float | None = None  # of each run; None: as many as there are for it, one at most
    dashboard: bool = False  # of a Ray of our own
    busy_seconds: float = 30.0  # after which a folder that was in use is tried again


def load_ray() -> ModuleType:
    """Ray, with settings that it reads when it is loaded; raises `UsageError` if it is missing."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        return extras.load("ray", "sweep", "a sweep (but not --index)")
    except ImportError as error:
        raise UsageError(str(error)) from error


@contextmanager
def cluster(resources: Resources) -> Iterator[ModuleType]:
    """Ray, connected to a cluster, or to one of our own that ends with the block."""
    ray = load_ray()
    options: dict[str, Any] = {"address": resources.address}
    if resources.address is None:
        options = {
            "address": "local",
            "num_cpus": math.ceil(resources.workers * resources.cpus),
            "resources": {_PLACE: resources.workers},
            "include_dashboard": resources.dashboard,
            "dashboard_host": _LOOPBACK,
            "object_store_memory": _OBJECT_STORE,
            "_node_ip_address": _LOOPBACK,
        }
    try:
        # Workers write logs of their own.
        ray.init(**options, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = resources.address or "on this machine"
        raise UsageError(f"Ray cannot be reached or started {where}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def settled(ray: ModuleType, resources: Resources) -> Resources:
    """The same with a number of GPUs, by what the nodes have."""
    if resources.gpus is not None:
        return resources
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = max((node.get("GPU", 0) for node in nodes), default=0)
    if resources.address is None and most:
        # As many runs on each as let all workers in: three on two GPUs take half of one each.
        return dataclasses.replace(resources, gpus=1 / math.ceil(resources.workers / most))
    return dataclasses.replace(resources, gpus=min(most, 1))


def environment(resources: Resources) -> dict[str, str]:
    """Environment variables of a worker: as many threads as it has cores.

    One run uses two cores badly; two runs with a thread each do not wait for each other.
    """
    threads = str(max(1, int(resources.cpus)))
    settings = {"NPROC": threads, "OMP_NUM_THREADS": threads}
    if 0 < (resources.gpus or 0) < 1:
        # Several runs share a device, whose memory the first would take otherwise.
        settings["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * resources.gpus:.3f}"
    return settings


def check_fits(ray: ModuleType, resources: Resources, memory: Mapping[str, int]) -> None:
    """Raises `UsageError` if no node of the cluster could ever take a run: Ray would wait for ever.

    Args:
      ray: connected.
      resources: of each run.
      memory: of each run by its name, in bytes.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, needed in memory.items():
        wanted = {"CPU": resources.cpus, "GPU": resources.gpus or 0, "memory": needed}
        if any(all(node.get(key, 0) >= value for key, value in wanted.items()) for node in nodes):
            continue
        best = {key: max(node.get(key, 0) for node in nodes) for key in wanted}
        raise UsageError(
            f"no node can take {name}: it needs {resources.cpus:g} CPUs, {wanted['GPU']:g} GPUs "
            f"and {needed / 1e9:.1f} GB, and the largest have {best['CPU']:g}, {best['GPU']:g} and "
            f"{best['memory'] / 1e9:.1f} GB; set replay_rows lower, or free some memory"
        )


class Driver:
    """Hands tasks to Ray and takes their outcomes, until none is left.

    Args:
      ray: connected.
      work: what a worker does; must be importable there.
      tasks: by the names of their runs.
      memory: of each run by its name, in bytes.
      resources: of each run.
    """

    def __init__(
        self,
        ray: ModuleType,
        work: Work,
        tasks: Mapping[str, Task],
        memory: Mapping[str, int],
        resources: Resources,
    ):
        self._ray, self._tasks, self._memory, self._resources = ray, tasks, memory, resources
        # A process per attempt, so that jax's settings, devices and the peak of memory are its own.
        # Ray starts a task again when its worker dies, and never because of what the task says.
        self._remote = ray.remote(max_retries=-1, max_calls=1)(work)
        self._running: dict[Any, str] = {}
        self._later: dict[str, float] = {}  # name -> when to try again
        self._stops = False
        self.outcomes: dict[str, Outcome] = {}
        for name in tasks:
            self._submit(name)

    def _submit(self, name: str) -> None:
        self.outcomes.pop(name, None)
        settings = self._remote.options(
            name=name,
            num_cpus=self._resources.cpus,
            num_gpus=self._resources.gpus or 0,
            memory=self._memory[name],
            resources={} if self._resources.address else {_PLACE: 1},
            runtime_env={"env_vars": environment(self._resources)},
        )
        self._running[settings.remote(self._tasks[name])] = name

    @property
    def is_over(self) -> bool:
        """Whether every task has ended for good."""
        return not self._running and not self._later

    def advance(self, seconds: float) -> None:
        """Waits for news, at most so long, and takes them in."""
        if self._running:
            ready, _ = self._ray.wait(list(self._running), timeout=seconds)
        else:
            ready = ()
            time.sleep(seconds)
        for reference in ready:
            self._take(self._running.pop(reference), self._outcome(reference))
        due = [name for name, when in self._later.items() if time.monotonic() >= when]
        for name in due:
            del self._later[name]
            self._submit(name)

    def _outcome(self, reference: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            return Outcome(*self._ray.get(reference))
        except errors.TaskCancelledError:
            return Outcome("stopped")
        except errors.RayError as error:
            # The worker could not even begin: its environment, our code or its arguments.
            return Outcome("failed", f"its worker could not begin: {error}")

    def _take(self, name: str, outcome: Outcome) -> None:
        self.outcomes[name] = outcome
        if outcome.state in ("busy", "stopped") and not self._stops:
            # A worker that is presumed dead may still write, and one may be told to go elsewhere.
            wait = self._resources.busy_seconds if outcome.state == "busy" else 0.0
            self._later[name] = time.monotonic() + wait

    def stop(self) -> None:
        """Asks all runs to save themselves and stop; those that wait are never begun."""
        self._stops = True
        self._later.clear()
        for path in {task.stop_file for task in self._tasks.values()}:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        for reference, name in self._running.items():
            task = self._tasks[name]
            if not attempts_of(task.logs, task.sweep):
                self._ray.cancel(reference)
