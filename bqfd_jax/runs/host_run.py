"""What a run on host environments keeps of its way: rows, evaluations, checkpoints."""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
import optax

from bqfd_jax import demos
from bqfd_jax.policy import Policy, save_policy
from bqfd_jax.replay import spread
from bqfd_jax.runs import background
from bqfd_jax.runs.background import Background, played_row
from bqfd_jax.runs.best import Best
from bqfd_jax.runs.errors import RunError
from bqfd_jax.runs.job import Evaluator, Job
from bqfd_jax.runs.journal import Journal
from bqfd_jax.runs.sinks import Sink
from bqfd_jax.training import demo_usage, group, host_checkpoint, on_host
from bqfd_jax.types import Array, HostStep, Params

Part = TypeVar("Part")

# Losses, Q-values and scores beyond this are no game's.
_HUGE = 1e9


class Share:
    """What one run sees of the loop that steps it, alone or among others in a group.

    Args:
      loop: of the run, or of the group.
      number: which run of the group it is; None if it is alone.
    """

    def __init__(self, loop: on_host.HostLoop, number: int | None = None):
        self.loop, self._number = loop, number
        self.is_alone = number is None

    @property
    def step(self) -> int:
        """Agent steps of the run."""
        return self.loop.step

    @property
    def tallies(self) -> dict[str, int]:
        """What was counted in this sitting, by what rows of metrics call it."""
        counts = dict(getattr(self.loop.env, "tallies", {}))
        if self.loop.guarded is not None:
            counts["guarded"] = self.loop.guarded
        own = counts.items() if self.is_alone else [(k, v[self._number]) for k, v in counts.items()]
        return {name: int(np.sum(count)) for name, count in own}

    def take(self, select: Callable[[on_host.HostTrainState], Part]) -> Part:
        """A part of the run's state; of a group's state only that part is copied."""
        part = select(self.loop.state)
        return part if self.is_alone else group.of_run(part, self._number)

    @property
    def state(self) -> on_host.HostTrainState:
        """All of it."""
        return self.take(lambda state: state)


class HostRun:
    """What a run keeps of its way: rows, evaluations, checkpoints.  `lockstep.train` leads it on.

    Args:
      job: what is run.
      journal: where rows and checkpoints go; restored, if there was something to restore.
      sink: what is told of progress, and asked whether to stop.
      share: of the loop that steps it.
      resumed_at: the step from which it goes on; None if it begins.
    """

    def __init__(
        self, job: Job, journal: Journal, sink: Sink, share: Share, resumed_at: int | None = None
    ):
        self.job, self.config, self.journal, self.sink = job, job.config, journal, sink
        self.loop, self.resumed_at = share, resumed_at
        self._visits = demo_usage.visits(self._demo_rows())
        journal.open()
        self.best = Best(journal.folder, sink, job.made.given)
        self._evaluator: Evaluator | None = None
        self._background: Background | None = None
        if job.config.eval_in_background or background.was_used(journal.folder):
            self._background = Background(job, journal.folder, resumed_at, sink)
            self._take_answers()
        self._warned_of_scale = self._is_spoilt = False
        self._tallies: dict[str, int] = {}  # as of the last row
        self.is_saved = resumed_at is not None  # the newest state that was to be saved

    def _demo_rows(self) -> demo_usage.DemoRows:
        num_rows = sum(demos.sizes(self.job.demonstrations).values())
        return self.loop.take(
            lambda state: demo_usage.demo_rows(state.learner, state.replay, num_rows)
        )

    @property
    def etas(self) -> dict[str, float]:
        """What was learnt of how far each demonstration's expert can be trusted, by its name."""
        sizes = demos.sizes(self.job.demonstrations)
        return demo_usage.etas(sizes, self.config.agent_config, self._demo_rows())

    @property
    def updates(self) -> int:
        """Updates made, pre-training included."""
        return int(self.loop.take(lambda state: state.learner.updates))

    @property
    def played_params(self) -> Params:
        """Of the network that plays evaluations."""
        return self.loop.take(lambda state: self.config.played_params(state.learner))

    # --- Rows ---

    def log(
        self, read: tuple[Array, dict[str, Array]], speed: float = 0.0, scores: Sequence[float] = ()
    ) -> dict[str, Any]:
        """Writes a row about the updates since the last one, after those of evaluations beside it.

        Args:
          read: how many those were, and means of their metrics; see `on_host.read`.
          speed: agent steps per second.
          scores: of training episodes that have ended.
        """
        self._take_answers()
        count, means = read
        # Before learning starts there is nothing to take means of, but every row has all names.
        unknown = () if int(count) else self.loop.take(lambda state: state.totals)
        values = {name: float(value) for name, value in means.items() if name not in unknown}
        values |= self._demo_usage()
        self._check_finite(values)
        row = {
            "step": self.loop.step,
            "updates": self.updates,
            "steps_per_second": speed,
            **dict.fromkeys(unknown),
            **values,
            "train_episodes": len(scores),
            "train_score": float(np.mean(scores)) if scores else None,
        } | self._new_tallies()
        self.journal.write(row)
        self._warn_of_scale(row)
        return row

    def _new_tallies(self) -> dict[str, int]:
        """What was counted since the last row."""
        before, self._tallies = self._tallies, self.loop.tallies
        return {name: count - before.get(name, 0) for name, count in self._tallies.items()}

    def _warn_of_scale(self, row: dict[str, Any]) -> None:
        """Says once that rewards are so large that nothing good can be learnt from them."""
        names = ("loss", "mean_q", "train_score")
        largest = max(abs(row.get(name) or 0.0) for name in names)
        if largest > _HUGE and not self._warned_of_scale:
            self._warned_of_scale = True
            self.sink.warn(
                f"values of {largest:.3g} at step {row['step']}: rewards are very large; scale "
                "them to about 1, by a wrapper or `transform_reward`"
            )

    def _demo_usage(self) -> dict[str, float]:
        """Of the draws since the last row."""
        rows, since = self._demo_rows(), self._visits
        self._visits = demo_usage.visits(rows)
        sizes = demos.sizes(self.job.demonstrations)
        return demo_usage.usage(sizes, self.config.agent_config, rows, since)

    def _check_finite(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            if not np.isfinite(value):
                self._is_spoilt = True
                raise RunError(
                    f"the {name.replace('_', ' ')} became {value} before step {self.loop.step}. "
                    f"{self.last_checkpoint}. A smaller --{self.config.agent}.learning-rate than "
                    f"{self.config.agent_config.learning_rate} usually helps."
                )

    # --- Evaluations ---

    def evaluate(self) -> bool:
        """Plays with the network of now, and writes a row of it; False if it was cut short.

        In the background the row comes later, and only that of the last step is waited for.
        """
        params = self.played_params
        if self._background is None:
            return self._play(params, self.loop.step)
        try:
            self._background.ask(self.loop.step, self.job.policy(params))
        except OSError as error:
            self.sink.warn(f"no network can be left for another process, it plays here: {error}")
            if not self._play(params, self.loop.step):
                return False
        # Whose process always dies is not left without a score until the end.
        if self.loop.step < self.config.steps and self._background.hopeless is None:
            return True
        return self._wait_for_answers()

    def _play(self, params: Params, step: int) -> bool:
        """Plays here and now."""
        if self._evaluator is None:
            env = self.job.world.evaluation()
            if env is None:
                return True
            self._evaluator = Evaluator(self.job, env)
        cut_short = False

        def stop(_: HostStep) -> bool:
            nonlocal cut_short
            cut_short = self.sink.stop_asked()
            return cut_short

        # Whole games may take minutes, and whoever asks to stop should not wait that long.
        row = played_row(self._evaluator, params, step, stop)
        if cut_short:
            return False
        if self.best.is_reached(row, self.journal.evaluations):
            # A copy: training takes over the memory of its state.
            self.best.keep(row, self.job.policy(jax.tree.map(np.array, params)))
        self.journal.write(row)
        return True

    def _take_answers(self) -> None:
        """Writes rows of evaluations that have ended in the background."""
        if self._background is None:
            return
        known = {row["step"] for row in self.journal.evaluations}
        for row in self._background.answers(known):
            if self.best.is_reached(row, self.journal.evaluations):
                # Of an answer that is read again the network is there no more, but kept already.
                with contextlib.suppress(FileNotFoundError):
                    self.best.keep(row, self._background.policy(row["step"]))
            self.journal.write(row)
            self._background.close_file(row["step"])

    def _wait_for_answers(self) -> bool:
        """Waits for all of them; False if it was asked to stop."""
        self._take_answers()
        while self._background.asked:
            if self.sink.stop_asked():
                return False
            if (step := self._background.hopeless) is not None:
                self.sink.warn(f"evaluations in the background die at step {step}: it is done here")
                if not self._play(self._background.policy(step).params, step):
                    return False
                self._background.close_file(step)
            self._background.wait()
            self._take_answers()
        return True

    def close(self) -> None:
        """Ends what runs beside the training; nothing is lost by it."""
        if self._background is not None:
            self._background.close()

    def _save_policy(self, policy: Policy, name: str) -> None:
        if self.journal.folder is None:
            return
        try:
            save_policy(policy, self.journal.folder / name)
        except OSError as error:
            self.sink.warn(f"{name} could not be written: {error}")

    def evaluation_is_missing(self) -> bool:
        """Whether one failed or was stopped, so that the run goes on from just before it."""
        config, step = self.config, self.loop.step
        done = [row["step"] for row in self.journal.evaluations]
        asked = [] if self._background is None else self._background.asked
        if step >= config.steps:
            # The last may have been answered while an earlier one went wrong.
            return step not in done or bool(asked)
        done += asked
        if not config.eval_period:
            return False
        if step == 0:
            return bool(config.pretrain_updates) and not done
        last_row = step // config.log_period * config.log_period
        return last_row // config.eval_period > max(done, default=0) // config.eval_period

    # --- Saving and stopping ---

    def save(self) -> bool:
        """A checkpoint, if the run is sound and one can be written."""
        if self._is_spoilt:
            return False
        # Nothing spoilt is saved: neither by the updates since the last row, nor by the very last.
        totals = self.loop.take(lambda state: state.totals)
        self._check_finite({name: float(total) for name, total in totals.items()})
        size = float(optax.tree.norm(self.loop.take(lambda state: state.learner.params)))
        self._check_finite({"size of the network": size})
        started = time.perf_counter()
        with_replay = self.config.checkpoint_replay
        items = self.loop.take(
            functools.partial(host_checkpoint.to_checkpoint, with_replay=with_replay)
        )
        path = self.journal.save(self.loop.step, items)
        self.is_saved = path is not None
        if path is None:
            return False
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        self.sink.say(
            f"checkpoint at step {self.loop.step}: {size / 1e6:.0f} MB in "
            f"{time.perf_counter() - started:.1f} s"
        )
        return True

    def put_down(self) -> bool:
        """Saves all, and the policy; whether there is a checkpoint now."""
        saved = self.save()
        self._save_policy(self.job.policy(self.played_params), "policy.npz")
        return saved

    @property
    def last_checkpoint(self) -> str:
        """Where the last one is, in words."""
        saved = self.journal.saved_steps
        where = f"step {saved[-1]} in {self.journal.folder}" if saved else "none"
        return f"Last good checkpoint: {where}"


def restore(
    job: Job, journal: Journal, *, step: int | None = None
) -> tuple[int, on_host.HostTrainState] | None:
    """Step and state of the journal's last checkpoint (of that step), if there is one."""
    with_replay = job.config.checkpoint_replay
    start = jax.eval_shape(job.init)
    templates = jax.eval_shape(
        functools.partial(host_checkpoint.to_checkpoint, with_replay=with_replay), start
    )
    found = journal.restore(spread.shapes(job.replay.mesh, templates), step=step)
    if found is None:
        return None
    step, items = found
    state = host_checkpoint.from_checkpoint(items, job.trainer, job.fresh_replay, start.totals)
    return step, state


def begin(job: Job, journal: Journal, sink: Sink, *, resume: bool = False) -> HostRun:
    """A run alone, from its beginning or, to resume it, from the journal's last checkpoint."""
    restored = restore(job, journal) if resume else None
    resumed_at, state = restored or (None, job.init())
    return HostRun(job, journal, sink, Share(job.make_loop(state)), resumed_at)
