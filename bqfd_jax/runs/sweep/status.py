"""How the runs of a sweep stand, read from their own files, and a table of it."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bqfd_jax.files import FileError, read_json
from bqfd_jax.runs import folder, text
from bqfd_jax.runs.machine import duration
from bqfd_jax.runs.metrics import readable_rows
from bqfd_jax.runs.sweep.cell import Outcome, attempts_of
from bqfd_jax.runs.sweep.grid import Cell

# In this order in the table; of `done` and `waiting` only so many as there is room for.
STATES = ("failed", "running", "busy", "done", "stopped", "waiting")
# Enough for some rows of metrics and an evaluation among them.
_TAIL_BYTES = 2**17


@dataclasses.dataclass(frozen=True)
class Status:
    """How a run stands."""

    name: str
    state: str  # one of STATES
    step: int = 0
    steps: int = 0  # in all
    score: float | None = None  # of the last evaluation
    speed: float = 0.0  # agent steps per second
    why: str = ""

    @property
    def seconds_left(self) -> float | None:
        """By the speed of the last row; None if that cannot be known."""
        if self.state != "running" or not self.speed:
            return None
        return max(self.steps - self.step, 0) / self.speed


def status(cell: Cell, steps: int, run: Path, logs: Path, sweep: str | None = None) -> Status:
    """How a cell's run stands.

    Args:
      cell: of the sweep.
      steps: length of its run.
      run: the run's folder.
      logs: of its worker.
      sweep: whose attempts count as running now; None: nobody is at work.
    """
    step, score, speed = progress(run)
    state, why = "waiting", ""
    if folder.is_finished(run):
        state = "done"
    elif (found := failure(logs) or folder.what_is_lost(run)) is not None:
        state, why = "failed", found
    last = attempts_of(logs, sweep)[-1:] if sweep is not None else []
    if last and "ended" not in last[0]:
        state, why = "running", ""
    elif state == "waiting" and step:
        state = "stopped"
    return Status(cell.name, state, step, steps, score, speed, why)


def failure(logs: Path) -> str | None:
    """Why a run has failed for good; None if it has not."""
    try:
        return str(read_json(logs / "failed.json")["why"])
    except (FileNotFoundError, FileError, KeyError, TypeError):
        return None


def progress(run: Path) -> tuple[int, float | None, float]:
    """Step, score of the last evaluation and speed, by the last rows of a run's metrics."""
    step, score, speed = 0, None, 0.0
    for row in _last_rows(run / "metrics.jsonl"):
        step = max(step, row.get("step") or 0)
        score = row.get("eval_mean", score)
        speed = row.get("steps_per_second", speed) or speed
    return step, score, speed


def _last_rows(path: Path) -> list[dict[str, Any]]:
    """Whole rows at the end of a file that may be growing, or may not be there."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            # The first line of a piece is cut short, and so it is no JSON.
            return readable_rows(file.read())
    except OSError:
        return []


def count(statuses: Sequence[Status]) -> str:
    """How many runs there are of each state, in words."""
    found = Counter(one.state for one in statuses)
    return ", ".join(f"{found[state]} {state}" for state in STATES if found[state])


def table(statuses: Sequence[Status], *, most: int | None = None) -> str:
    """How all runs stand, those that matter most first.

    Args:
      statuses: of all runs.
      most: lines of runs; what has no room is only counted.
    """
    ranked = sorted(statuses, key=lambda one: STATES.index(one.state))
    shown = ranked if most is None else ranked[:most]
    rows = [("run", "state", "step", "score", "steps/s", "left"), *map(_row, shown)]
    lines = [text.columns(rows)]
    if len(shown) < len(ranked):
        lines.append(f"... and {count(ranked[len(shown) :])}")
    lines += [f"  {one.name}: {one.why}" for one in statuses if one.why and one.state == "failed"]
    return "\n".join([*lines, count(statuses)])


def _row(one: Status) -> tuple[str, ...]:
    left = one.seconds_left
    moving = one.state == "running"
    return (
        one.name,
        one.state,
        f"{one.step:,} of {one.steps:,}" if one.step else "-",
        "-" if one.score is None else text.score(one.score),
        f"{one.speed:.0f}" if moving and one.speed else "-",
        "-" if left is None else duration(left),
    )


def with_outcomes(statuses: Sequence[Status], outcomes: Mapping[str, Outcome]) -> list[Status]:
    """What is read from files, corrected by what an engine knows; names are the keys."""
    # What was stopped before it began, and so without a word, is as it was before.
    known = {name: one for name, one in outcomes.items() if one != Outcome("stopped")}
    return [
        dataclasses.replace(one, state=known[one.name].state, why=known[one.name].why)
        if one.name in known
        else one
        for one in statuses
    ]
