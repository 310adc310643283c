"""A run on host environments: pre-training, training, evaluations, checkpoints."""

import time
from typing import Any

import jax
import numpy as np
import optax

from bqfd_jax import demos
from bqfd_jax.envs.host import HostEnvironmentError
from bqfd_jax.policy import Policy, load_policy, save_policy
from bqfd_jax.runs import text
from bqfd_jax.runs.errors import RunError, Stopped
from bqfd_jax.runs.job import Evaluator, Job
from bqfd_jax.runs.journal import Journal
from bqfd_jax.runs.loop import follow
from bqfd_jax.runs.pretraining import CHUNK, Pretraining
from bqfd_jax.runs.sinks import Sink
from bqfd_jax.training import demo_usage, on_host
from bqfd_jax.types import HostStep, Params

# Losses, Q-values and scores beyond this are no game's.
_HUGE = 1e9


class HostRun:
    """A run's way from its last checkpoint, or from the beginning, to its last step.

    Args:
      job: what is run.
      journal: where rows and checkpoints go.
      sink: what is told of progress, and asked whether to stop.
      resume: go on from the journal's last checkpoint, if there is one.
    """

    def __init__(self, job: Job, journal: Journal, sink: Sink, *, resume: bool = False):
        self.job, self.config, self.journal, self.sink = job, job.config, journal, sink
        restored = journal.restore(self._templates()) if resume else None
        self.resumed_at = restored[0] if restored else None
        if restored:
            state = on_host.from_checkpoint(restored[1], job.trainer, job.fresh_replay)
        else:
            state = job.init()
        self.loop = job.make_loop(state)
        self._visits = demo_usage.visits(self.loop.state.replay)
        journal.open()
        self._evaluator: Evaluator | None = None
        self._warned_of_scale = False
        self.is_saved = restored is not None  # the newest state that was to be saved
        # Of the best evaluation since the run was begun here.
        self._best_policy: Policy | None = None

    def _templates(self) -> dict[str, Any]:
        """Shapes of all that a checkpoint holds."""
        with_replay = self.config.checkpoint_replay
        return jax.eval_shape(
            lambda: on_host.to_checkpoint(self.job.init(), with_replay=with_replay)
        )

    @property
    def updates(self) -> int:
        """Updates made, pre-training included."""
        return int(self.loop.state.learner.updates)

    @property
    def best_policy(self) -> Policy | None:
        """Acts by the network of the highest evaluation, which may be of an earlier sitting."""
        out = self.journal.folder
        if self._best_policy is None and out is not None and (out / "policy-best.npz").exists():
            # Of somebody's own network only the parameters are in the file.
            return load_policy(out / "policy-best.npz", network=self.job.made.given)
        return self._best_policy

    @property
    def played_params(self) -> Params:
        """Of the network that plays evaluations."""
        return self.config.played_params(self.loop.state.learner)

    def run(self) -> None:
        """Pre-trains and trains to the end; raises `Stopped` or `RunError`, all being saved."""
        try:
            if not self.loop.step and self.updates < self.config.pretrain_updates:
                follow(Pretraining(self), self.sink)
            self._make_up_for_evaluation()
            if not self.config.only_copies:
                follow(_Training(self), self.sink)
        except HostEnvironmentError as error:
            # What was learnt is sound: nothing of the step that failed has been learnt from.
            self.save()
            raise RunError(f"{error}\n{self._last_checkpoint}; {self._how_to_go_on}") from error

    # --- Rows ---

    def log(self, steps_per_second: float, scores: list[float]) -> dict[str, Any]:
        """Writes a row about the updates since the last one."""
        self.loop.state, count, means = self.job.trainer.read(self.loop.state)
        # Before learning starts there is nothing to take means of, but every row has all names.
        unknown = () if int(count) else self.loop.state.totals
        values = {name: float(value) for name, value in means.items() if name not in unknown}
        values |= self._demo_usage()
        self._check_finite(values)
        row = {
            "step": self.loop.step,
            "updates": self.updates,
            "steps_per_second": steps_per_second,
            **dict.fromkeys(unknown),
            **values,
            "train_episodes": len(scores),
            "train_score": float(np.mean(scores)) if scores else None,
        }
        self.journal.write(row)
        self._warn_of_scale(row)
        return row

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
        replay, since = self.loop.state.replay, self._visits
        self._visits = demo_usage.visits(replay)
        sizes = demos.sizes(self.job.demonstrations)
        return demo_usage.usage(sizes, self.config.agent_config, replay, since)

    def _check_finite(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            if not np.isfinite(value):
                raise RunError(
                    f"the {name.replace('_', ' ')} became {value} before step {self.loop.step}. "
                    f"{self._last_checkpoint}. A smaller --{self.config.agent}.learning-rate than "
                    f"{self.config.agent_config.learning_rate} usually helps."
                )

    # --- Evaluations ---

    def evaluate(self) -> None:
        """Plays with the network of now, and writes a row of it."""
        if self._evaluator is None:
            env = self.job.world.evaluation()
            if env is None:
                return
            self._evaluator = Evaluator(self.job, env)
        started = time.perf_counter()
        params, cut_short = self.played_params, False

        def stop(_: HostStep) -> bool:
            nonlocal cut_short
            cut_short = self.sink.stop_asked()
            return cut_short

        # Whole games may take minutes, and whoever asks to stop should not wait that long.
        result = self._evaluator(params, self.loop.step, stop)
        if cut_short:
            raise self.stopped(
                f"in the evaluation at step {self.loop.step}, which will be made up for"
            )
        score = float(result.scores.mean())
        self._keep_best(score, params)
        self.journal.write(
            {
                "step": self.loop.step,
                "eval_mean": score,
                "eval_std": float(result.scores.std()),
                "episodes": len(result.scores),
                "eval_truncated": int(result.truncated.sum()),
                "eval_seconds": time.perf_counter() - started,
            }
        )

    def _keep_best(self, score: float, params: Params) -> None:
        """Keeps the network of the highest score; of equals the last, which has learnt most."""
        if score < max((row["eval_mean"] for row in self.journal.evaluations), default=score):
            return
        # A copy: training takes over the memory of its state.
        self._best_policy = self.job.policy(jax.tree.map(np.array, params))
        self._save_policy(self._best_policy, "policy-best.npz")

    def _save_policy(self, policy: Policy, name: str) -> None:
        if self.journal.folder is None:
            return
        try:
            save_policy(policy, self.journal.folder / name)
        except OSError as error:
            self.sink.warn(f"{name} could not be written: {error}")

    def _make_up_for_evaluation(self) -> None:
        if self._evaluation_is_missing():
            self.evaluate()
            self.save()

    def _evaluation_is_missing(self) -> bool:
        """Whether one failed or was stopped, so that the run goes on from just before it."""
        config, step = self.config, self.loop.step
        done = [row["step"] for row in self.journal.evaluations]
        if step >= config.steps:
            return step not in done
        if not config.eval_period:
            return False
        if step == 0:
            return bool(config.pretrain_updates) and not done
        last_row = step // config.log_period * config.log_period
        return last_row // config.eval_period > max(done, default=0) // config.eval_period

    # --- Saving and stopping ---

    def save(self) -> bool:
        """A checkpoint, if the run is sound and one can be written."""
        # Nothing spoilt is saved: neither by the updates since the last row, nor by the very last.
        state = self.loop.state
        self._check_finite({name: float(total) for name, total in state.totals.items()})
        size = float(optax.tree.norm(state.learner.params))
        self._check_finite({"size of the network": size})
        started = time.perf_counter()
        items = on_host.to_checkpoint(state, with_replay=self.config.checkpoint_replay)
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

    def stopped(self, when: str) -> Stopped:
        """Saves; gives the exception that says how to go on."""
        lost = "" if self.save() else ", and what came after the last checkpoint is lost"
        self._save_policy(self.job.policy(self.played_params), "policy.npz")
        return Stopped(f"stopped {when}{lost}; {self._how_to_go_on}")

    @property
    def _last_checkpoint(self) -> str:
        saved = self.journal.saved_steps
        where = f"step {saved[-1]} in {self.journal.folder}" if saved else "none"
        return f"Last good checkpoint: {where}"

    @property
    def _how_to_go_on(self) -> str:
        if self.journal.folder is None:
            return "nothing was saved, as there is no run folder"
        return f"continue with `bqfd resume {self.journal.folder}`"


class _Training:
    """Steps in the environments, and the updates that are due with them."""

    unit = "step"

    def __init__(self, run: HostRun):
        self._run, self.total = run, run.config.steps
        self.title = f"{run.config.title} {run.config.agent}"
        self._begin_row()

    def _begin_row(self) -> None:
        # A run that was stopped between two rows goes on with the second.
        period = self._run.config.log_period
        self._last_row = self.position // period * period
        self._row_began = time.perf_counter(), self.position
        self._scores: list[float] = []

    @property
    def position(self) -> int:
        return self._run.loop.step

    def advance(self) -> str | None:
        run, config = self._run, self._run.config
        row_at = min(self._last_row + config.log_period, config.steps)
        self._scores += run.loop.run(min(CHUNK * config.envs, row_at - self.position))
        if self.position < row_at:
            return None
        jax.block_until_ready(run.loop.state.step)
        began, first_step = self._row_began
        speed = (self.position - first_step) / (time.perf_counter() - began)
        row = run.log(speed, self._scores)
        ended = self.position >= config.steps
        if ended or self._crossed(config.eval_period):
            run.evaluate()
        if ended or self._crossed(config.checkpoint_period):
            run.save()
        self._begin_row()
        return self._note(row)

    def _crossed(self, period: int) -> bool:
        return period > 0 and self.position // period > self._last_row // period

    def put_down(self) -> Stopped:
        return self._run.stopped(f"at step {self.position}")

    def _note(self, row: dict[str, Any]) -> str:
        evaluations = self._run.journal.evaluations
        score = text.score(evaluations[-1]["eval_mean"]) if evaluations else "-"
        shown = [f"score {score}"]
        for name, label in (
            ("loss", "loss"),
            ("visit_weight", "visit weight"),
            ("expert_share", "demo share"),
        ):
            if row.get(name) is not None:
                shown.append(f"{label} {row[name]:.3g}")
        return ", ".join(shown)
