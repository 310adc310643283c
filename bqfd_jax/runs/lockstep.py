"""Leads runs to their last step: one alone, or several seeds that one program steps together."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bqfd_jax.envs.host import HostEnvironmentError
from bqfd_jax.runs import text
from bqfd_jax.runs.errors import RunError, Stopped
from bqfd_jax.runs.host_run import HostRun
from bqfd_jax.runs.loop import follow
from bqfd_jax.runs.sinks import Sink

# How often the bar moves and the sink is asked whether to stop, in steps of all environments.
_CHUNK = 8


def train(runs: Sequence[HostRun], sink: Sink) -> None:
    """Pre-trains and trains to the end; raises `Stopped` or `RunError`, all being saved.

    Args:
      runs: that share a loop, all at the same step; or one alone.
      sink: what is told of progress, and asked whether to stop.
    """
    first, config = runs[0], runs[0].config
    try:
        if not first.loop.step and first.updates < config.pretrain_updates:
            follow(_Pretraining(runs), sink)
        missing = [run for run in runs if run.evaluation_is_missing()]
        _evaluate(runs, missing)
        for run in missing:
            run.save()
        if not config.only_copies:
            follow(_Training(runs), sink)
    except HostEnvironmentError as error:
        # What was learnt is sound: nothing of the step that failed has been learnt from.
        for run in runs:
            run.save()
        message = f"{error}\n{first.last_checkpoint}; {_how_to_go_on(runs)}"
        raise RunError(message) from error
    except RunError as error:
        if len(runs) == 1:
            raise
        saved = [run for run in runs if _can_be_saved(run)]
        others = ", ".join(f"`bqfd resume {run.journal.folder}`" for run in saved)
        advice = f"The other seeds are saved and can go on alone: {others}" if others else ""
        raise RunError(f"{error} {advice}".rstrip()) from error


def _can_be_saved(run: HostRun) -> bool:
    try:
        return run.save()
    except RunError:
        return False


def _evaluate(runs: Sequence[HostRun], wanting: Sequence[HostRun] | None = None) -> None:
    """Plays with the networks of all, or of those that are wanting; one after the other."""
    # Whole games may take minutes, and whoever asks to stop should not wait that long.
    if not all(run.evaluate() for run in (runs if wanting is None else wanting)):
        step = runs[0].loop.step
        raise _stopped(runs, f"in the evaluation at step {step}, which will be made up for")


def _stopped(runs: Sequence[HostRun], when: str) -> Stopped:
    """Saves; gives the exception that says how to go on."""
    saved = [run.put_down() for run in runs]
    lost = "" if all(saved) else ", and what came after the last checkpoint is lost"
    return Stopped(f"stopped {when}{lost}; {_how_to_go_on(runs)}")


def _how_to_go_on(runs: Sequence[HostRun]) -> str:
    folder = runs[0].journal.folder
    if folder is None:
        return "nothing was saved, as there is no run folder"
    return f"continue with `bqfd resume {folder if runs[0].loop.is_alone else folder.parent}`"


class _Course:
    """What all runs do together."""

    def __init__(self, runs: Sequence[HostRun]):
        self._runs, self._config = runs, runs[0].config
        self._loop, self._is_alone = runs[0].loop.loop, runs[0].loop.is_alone

    def _read(self) -> list[tuple[Any, dict[str, Any]]]:
        """Of each run, how many updates there were since the last time, and their means."""
        self._loop.state, counts, means = self._loop.trainer.read(self._loop.state)
        if self._is_alone:
            return [(counts, means)]
        counts, means = jax.tree.map(np.asarray, (counts, means))
        return [
            (count, {name: values[number] for name, values in means.items()})
            for number, count in enumerate(counts)
        ]

    def _log(
        self, speed: float = 0.0, scores: Sequence[Sequence[float]] | None = None
    ) -> list[dict[str, Any]]:
        """Writes a row of each run, and raises `RunError` only after that of the last one."""
        rows, errors = [], []
        for run, read, own in zip(
            self._runs, self._read(), scores or [()] * len(self._runs), strict=True
        ):
            try:
                rows.append(run.log(read, speed, own))
            except RunError as error:
                errors.append(str(error) if self._is_alone else f"seed {run.config.seed}: {error}")
        if errors:
            raise RunError("\n".join(errors))
        return rows


class _Pretraining(_Course):
    """Updates from demonstrations alone, before the first step; all there is of a clone's run."""

    unit = "update"

    def __init__(self, runs: Sequence[HostRun]):
        super().__init__(runs)
        config = self._config
        self.title = f"{config.title} clone" if config.only_copies else "pre-training"
        self.total = config.pretrain_updates
        steps_per_update = 1 if config.only_copies else config.update_period
        self._save_period = max(1, int(config.checkpoint_period / steps_per_update))

    @property
    def position(self) -> int:
        """Updates made, or all of them once more would be of no use."""
        finished = self._runs[0].job.agent.finished
        done = finished is not None and finished(self._loop.state.learner)
        return self.total if done else self._runs[0].updates

    def advance(self) -> str | None:
        loop, before = self._loop, self.position
        # What is due at the end of pre-training comes with its last update, or not at all.
        for _ in range(max(1, min(_CHUNK, self.total - 1 - before))):
            loop.state = loop.trainer.pretrain(loop.state)
        note = self._note(before) if self._config.only_copies else None
        if self.position == self.total:
            self._log()
            if self._config.eval_period:
                _evaluate(self._runs)
        if self.position == self.total or self._crossed(self._save_period, before):
            for run in self._runs:
                run.save()
        return note

    def _crossed(self, period: int, before: int) -> bool:
        return self.position // period > before // period

    def _note(self, before: int) -> str | None:
        """Of a clone, all of whose learning is here: a row now and then."""
        if self.position == self.total or not self._crossed(self._config.log_period, before):
            return None
        (row,) = self._log()
        note = f"loss {row['loss']:.3g}"
        held_out = row.get("held_out_loss")
        return note if held_out is None else f"{note}, on held-out rows {held_out:.3g}"

    def put_down(self) -> Stopped:
        return _stopped(self._runs, "during pre-training")


class _Training(_Course):
    """Steps in the environments, and the updates that are due with them."""

    unit = "step"

    def __init__(self, runs: Sequence[HostRun]):
        super().__init__(runs)
        self.total = self._config.steps
        self.title = f"{self._config.title} {self._config.agent}"
        self._begin_row()

    def _begin_row(self) -> None:
        # A run that was stopped between two rows goes on with the second.
        period = self._config.log_period
        self._last_row = self.position // period * period
        self._row_began = time.perf_counter(), self.position
        self._scores: list[list[float]] = [[] for _ in self._runs]

    @property
    def position(self) -> int:
        return self._loop.step

    def advance(self) -> str | None:
        runs, config = self._runs, self._config
        row_at = min(self._last_row + config.log_period, config.steps)
        self._go_on(min(_CHUNK * config.envs, row_at - self.position))
        if self.position < row_at:
            return None
        jax.block_until_ready(self._loop.state.step)
        began, first_step = self._row_began
        speed = (self.position - first_step) / (time.perf_counter() - began)
        rows = self._log(speed, self._scores)
        ended = self.position >= config.steps
        if ended or self._crossed(config.eval_period):
            _evaluate(runs)
        if ended or self._crossed(config.checkpoint_period):
            for run in runs:
                run.save()
        self._begin_row()
        return self._note(rows)

    def _go_on(self, num_steps: int) -> None:
        finished = self._loop.run(num_steps)
        if self._is_alone:
            self._scores[0] += finished
        else:
            for number, score in finished:
                self._scores[number].append(score)

    def _crossed(self, period: int) -> bool:
        return period > 0 and self.position // period > self._last_row // period

    def put_down(self) -> Stopped:
        return _stopped(self._runs, f"at step {self.position}")

    def _note(self, rows: list[dict[str, Any]]) -> str:
        """A few words, of several runs their means."""
        scores = [run.journal.evaluations[-1:] for run in self._runs]
        known = [own["eval_mean"] for last in scores for own in last]
        shown = [f"score {text.score(np.mean(known)) if known else '-'}"]
        for name, label in (
            ("loss", "loss"),
            ("visit_weight", "visit weight"),
            ("ensemble_weight", "ensemble weight"),
            ("expert_weight", "expert weight"),
            ("expert_share", "demo share"),
        ):
            if rows[0].get(name) is not None:
                shown.append(f"{label} {np.mean([row[name] for row in rows]):.3g}")
        return ", ".join(shown)
