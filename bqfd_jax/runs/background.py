"""Evaluations beside training, in a process of their own.

Training writes the network of a step to `evaluations/STEP.npz` in the run folder, and goes on.  A
second process plays with it and writes `evaluations/STEP.json`.  Training, which alone writes
`metrics.jsonl`, takes the answer as a row.  So nothing is lost when either dies: what was asked is
asked still, and an answer stays where it is, because rows after the last checkpoint are forgotten
when a run goes on.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax

from bqfd_jax import files
from bqfd_jax.envs.host import HostEnvironmentError
from bqfd_jax.policy import Policy, load_policy, save_policy
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.job import Evaluator, Job
from bqfd_jax.runs.sinks import Sink
from bqfd_jax.training.evaluate import OnStep
from bqfd_jax.types import Params

_FOLDER = "evaluations"
_WAIT_SECONDS = 0.2
# Deaths of the process at one step, after which training plays itself.
_MAX_DEATHS = 3


def played_row(
    evaluator: Evaluator, params: Params, step: int, on_step: OnStep | None = None
) -> dict[str, Any]:
    """Plays with the network of a step; the row of metrics about it."""
    started = time.perf_counter()
    result = evaluator(params, step, on_step)
    return {
        "step": step,
        "eval_mean": float(result.scores.mean()),
        "eval_std": float(result.scores.std()),
        "episodes": len(result.scores),
        "eval_truncated": int(result.truncated.sum()),
        "eval_guarded": int(result.guarded.sum()),
        "eval_seconds": time.perf_counter() - started,
    }


def was_used(run: Path | None) -> bool:
    """Whether a run has left evaluations to another process before: it goes on like that."""
    return run is not None and (run / _FOLDER).exists()


class Background:
    """What training sees of the process that evaluates.

    Args:
      job: of the run.
      folder: of the run; None if it is in memory alone, which cannot be.
      resumed_at: the step that the run goes on from, or None: what was asked or answered later
        belongs to a way that was not taken.
      sink: what is told of troubles.
    """

    def __init__(self, job: Job, folder: Path | None, resumed_at: int | None, sink: Sink):
        if folder is None or job.made.given is not None or job.config.title.startswith("<"):
            raise UsageError(
                "another process cannot evaluate a run that has no folder, or an environment or a "
                "network that were made here: leave out eval_in_background"
            )
        self._run, self._folder, self._sink = folder, folder / _FOLDER, sink
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths: Counter[int] = Counter()
        self._folder.mkdir(exist_ok=True)
        for step in {*steps_of(self._folder, "npz"), *steps_of(self._folder, "json")}:
            if resumed_at is None or step > resumed_at:
                self._path(step, "npz").unlink(missing_ok=True)
                self._path(step, "json").unlink(missing_ok=True)
        # What went wrong in an earlier sitting is tried again, also if nobody was left to be told.
        for step in steps_of(self._folder, "json"):
            if "error" in files.read_json(self._path(step, "json")):
                self._path(step, "json").unlink()
        self._watch()

    def _path(self, step: int, ending: str) -> Path:
        return self._folder / f"{step}.{ending}"

    @property
    def asked(self) -> list[int]:
        """Steps whose networks wait to be played, or are; the first comes first."""
        return steps_of(self._folder, "npz")

    @property
    def hopeless(self) -> int | None:
        """The step at which the process dies again and again; None if there is none."""
        dead = [step for step in self.asked if self._deaths[step] >= _MAX_DEATHS]
        return dead[0] if dead else None

    def ask(self, step: int, policy: Policy) -> None:
        """Leaves a network to be played with; raises `OSError` if it cannot be written."""
        if not self._path(step, "json").exists():
            save_policy(policy, self._path(step, "npz"))
        self._watch()

    def policy(self, step: int) -> Policy:
        """Acts by the network that was left; raises `FileNotFoundError` if it is there no more."""
        return load_policy(self._path(step, "npz"))

    def answers(self, known: Collection[int]) -> list[dict[str, Any]]:
        """Rows that have come, but for those of known steps; raises what went wrong in a game."""
        self._watch()
        rows = []
        for step in steps_of(self._folder, "json"):
            if step in known:
                self.close_file(step)
                continue
            row = files.read_json(self._path(step, "json"))
            if "error" in row:
                # The next sitting tries again.
                self._path(step, "json").unlink()
                raise HostEnvironmentError(row["error"])
            rows.append(row)
        return rows

    def close_file(self, step: int) -> None:
        """Removes a network that has been played with."""
        self._path(step, "npz").unlink(missing_ok=True)

    def wait(self) -> None:
        """A little, for answers."""
        time.sleep(_WAIT_SECONDS)
        self._watch()

    def _watch(self) -> None:
        """Starts the process if there is something to do for it."""
        waiting = [step for step in self.asked if not self._path(step, "json").exists()]
        if not waiting or (self._process is not None and self._process.poll() is None):
            return
        if self._process is not None:
            self._note_death(waiting[0], "has died")
            self._process = None
        if self._deaths[waiting[0]] < _MAX_DEATHS:
            try:
                self._start()
            except OSError as error:
                self._note_death(waiting[0], f"cannot be started: {error}")

    def _note_death(self, step: int, what: str) -> None:
        self._deaths[step] += 1
        self._sink.warn(f"the process that evaluates step {step} {what}")

    def _start(self) -> None:
        # With our number: by the time that the other asks for its parent's, we may be gone.
        call = f"background.serve({str(self._run)!r}, {os.getpid()})"
        code = f"from bqfd_jax.runs import background; {call}"
        environment = os.environ | {
            # An accelerator's memory is the training's.
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        if kept := jax.config.jax_compilation_cache_dir:
            environment["JAX_COMPILATION_CACHE_DIR"] = kept
        with open(self._folder / "log.txt", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                # Ctrl-C is for the training, which ends this process when it has saved itself.
                start_new_session=True,
            )

    def close(self) -> None:
        """Ends the process; what it was doing is still asked for."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


def steps_of(folder: Path, ending: str) -> list[int]:
    """Steps that have files with an ending, in order."""
    names = [path.stem for path in folder.glob(f"*.{ending}")]
    return sorted(int(name) for name in names if name.isdecimal())


# --- In the other process ---


class _ParentGoneError(Exception):
    """Whoever wanted to know is not there any more."""


def serve(run: str, parent: int) -> None:
    """Plays with the networks that are left in a run folder, for as long as the parent lives."""
    # Here, because a run knows of its evaluations.
    from bqfd_jax.runs.run import Run

    def check(_: Any = None) -> None:
        if os.getppid() != parent:
            raise _ParentGoneError

    # The training, whose child this is, has been trusted.
    job = Run.load(run, trust_config=True).playing_job()
    evaluator = Evaluator(job, job.world.evaluation())
    folder = Path(run) / _FOLDER
    with contextlib.suppress(_ParentGoneError):
        while True:
            check()
            _serve_next(folder, evaluator, check)


def _serve_next(folder: Path, evaluator: Evaluator, check: OnStep) -> None:
    """The first network that waits; sleeps if there is none."""
    answered = steps_of(folder, "json")
    waiting = [step for step in steps_of(folder, "npz") if step not in answered]
    if not waiting:
        time.sleep(_WAIT_SECONDS)
        return
    step = waiting[0]
    try:
        policy = load_policy(folder / f"{step}.npz")
        row = played_row(evaluator, policy.params, step, check)
    except FileNotFoundError:
        # Training went back to an earlier step meanwhile.
        return
    except HostEnvironmentError as error:
        row = {"step": step, "error": str(error)}
    check()
    files.write_json(folder / f"{step}.json", row)
