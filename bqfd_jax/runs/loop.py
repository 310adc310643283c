"""What runs on host environments share: training with checkpoints, evaluation, films, the end.

An experiment makes a `host_job.Job` of its config; all else is here.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from tqdm import tqdm

from bqfd_jax import demos
from bqfd_jax.runs import video
from bqfd_jax.runs.checkpoint import Checkpointer, CheckpointError
from bqfd_jax.envs.host import HostEnvironmentError
from bqfd_jax.files import write_json
from bqfd_jax.runs.metrics import read_jsonl
from bqfd_jax.training import on_host
from bqfd_jax.training.evaluate import Evaluation, make_evaluate
from bqfd_jax.types import HostStep, LearnerState, Params
from bqfd_jax.runs import report
from bqfd_jax.runs import folder as run_folder
from bqfd_jax.runs.job import Job, RunConfig, checkpoint_template
from bqfd_jax.runs.folder import PatientWriter, RunError, StopRequested, UsageError


class Evaluator:
    """Environments that nobody learns from, ready to be played again and again."""

    def __init__(self, job: Job, *, film: bool = False):
        self._config = job.config
        self.env = job.make_eval_env(film)
        self._evaluate = make_evaluate(
            job.agent.evaluate, self.env, stack=job.stack, epsilon=job.config.eval_epsilon
        )

    def __call__(self, params: Params, step: int, on_step: Any = None) -> Evaluation:
        """One episode in every environment, with the network of that agent step."""
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self._config.seed), 3), step)
        return self._evaluate(params, key, on_step)


def film(job: Job, params: Params, out: Path, step: int) -> None:
    """Plays one episode and writes `episode.mp4`, at the speed that people play."""
    play = Evaluator(job, film=True)
    with video.Mp4(out / "episode.mp4", fps=job.fps, scale=job.film_scale) as film:
        play(params, step, lambda _: film.add(play.env.render()))


# How often the progress bar moves and Ctrl-C is looked at, in steps of all games.
_CHUNK = 8


class Training:
    """A run's way from its last checkpoint, or from the beginning, to its last step."""

    def __init__(self, job: Job, out: Path, *, resume: bool):
        config = job.config
        self.job, self.config, self.out = job, config, out
        self.checkpointer = Checkpointer(
            out / "checkpoints", keep=config.keep_checkpoints, on_skip=tqdm.write
        )
        template = {"state": checkpoint_template(job)}
        restored = self.checkpointer.restore(template) if resume else None
        saved = restored[1]["state"] if restored else {"metrics_position": 0, "seconds": 0.0}
        self.resumed_at = restored[0] if restored else None
        self.earlier_seconds = saved["seconds"]
        self.started = time.perf_counter()
        if restored:
            state = on_host.from_checkpoint(saved["train"], job.trainer, self._fresh_replay)
        else:
            state = job.init()
        self.loop = job.make_loop(state)
        job.usage.begin(self.loop.state.replay)
        self.metrics = _open_metrics(config, out, saved["metrics_position"])
        self.evaluator: Evaluator | None = None
        self.last_score = self.evaluations[-1]["eval_mean"] if self.evaluations else None

    def _fresh_replay(self) -> Any:
        return self.job.setup.fresh_replay()

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Rows of all evaluations so far."""
        rows = read_jsonl(self.out / "metrics.jsonl") + self.metrics.pending
        return [row for row in rows if "eval_mean" in row]

    @property
    def seconds(self) -> float:
        """Time spent on the run, in earlier sittings too."""
        return self.earlier_seconds + time.perf_counter() - self.started

    @property
    def updates(self) -> int:
        """Updates made, pre-training included."""
        return int(self.loop.state.learner.updates)

    def run(self, stop_asked: Callable[[], bool]) -> None:
        """Pre-trains, trains to the end; saves now and then, and when asked to stop."""
        try:
            self._pretrain(stop_asked)
            self._train(stop_asked)
        except HostEnvironmentError as error:
            # What was learnt is sound: nothing of the step that failed has been learnt from.
            self._save()
            saved = self.checkpointer.steps()
            kept = f"step {saved[-1]}" if saved else "none"
            raise RunError(
                f"{error}\nLast checkpoint: {kept}, in {self.out}; continue with the same options "
                f"and --out {self.out} --resume"
            ) from error

    def _pretrain(self, stop_asked: Callable[[], bool]) -> None:
        wanted = self.config.pretrain_updates
        if self.loop.step or self.updates >= wanted:
            return
        save_period = max(1, int(self.config.checkpoint_period / self.config.update_period))
        with tqdm(total=wanted, initial=self.updates, unit="update", desc="pre-training") as bar:
            for done in range(self.updates + 1, wanted):
                self.loop.state = self.job.trainer.pretrain(self.loop.state)
                if done % _CHUNK == 0:
                    # Else the bar would run ahead of the device.
                    jax.block_until_ready(self.loop.state.num_totals)
                    bar.update(done - bar.n)
                    if stop_asked():
                        self._stop("during pre-training")
                if done % save_period == 0:
                    self._save()
            # What is due at the end of pre-training comes with its last update, or not at all.
            self.loop.state = self.job.trainer.pretrain(self.loop.state)
            bar.update(wanted - bar.n)
            self._log(0.0, [])
        if self.config.eval_period:
            self._evaluate(stop_asked)
        self._save()

    def _train(self, stop_asked: Callable[[], bool]) -> None:
        config, loop = self.config, self.loop
        with tqdm(
            total=config.steps, initial=loop.step, unit="step", desc=f"{config.game} {config.agent}"
        ) as bar:
            if self._evaluation_is_missing():
                self._evaluate(stop_asked)
                self._save()
            bar.set_postfix_str(self._postfix({}))
            while loop.step < config.steps:
                # A run that was stopped between two rows goes on with the second.
                last_row = loop.step // config.log_period * config.log_period
                row = self._train_until(
                    min(last_row + config.log_period, config.steps), bar, stop_asked
                )
                ended = loop.step >= config.steps
                if ended or self._crossed(config.eval_period, last_row):
                    self._evaluate(stop_asked)
                if ended or self._crossed(config.checkpoint_period, last_row):
                    self._save()
                bar.set_postfix_str(self._postfix(row))

    def _train_until(
        self, log_at: int, bar: tqdm, stop_asked: Callable[[], bool]
    ) -> dict[str, Any]:
        """Goes on to the step of the next row, and writes it."""
        loop, started, first_step = self.loop, time.perf_counter(), self.loop.step
        scores: list[float] = []
        while loop.step < log_at:
            # Not once a row is due: it would be missing from the run that is resumed.
            if stop_asked():
                self._stop(f"at step {loop.step}")
            scores += loop.run(min(_CHUNK * self.config.envs, log_at - loop.step))
            bar.update(loop.step - bar.n)
        jax.block_until_ready(loop.state.step)
        speed = (loop.step - first_step) / (time.perf_counter() - started)
        return self._log(speed, scores)

    def _evaluation_is_missing(self) -> bool:
        """Whether one failed or was stopped, so that the run goes on from just before it."""
        config, step = self.config, self.loop.step
        done = [row["step"] for row in self.evaluations]
        if step >= config.steps:
            return step not in done
        if not config.eval_period:
            return False
        if step == 0:
            return bool(config.pretrain_updates) and not done
        last_row = step // config.log_period * config.log_period
        return last_row // config.eval_period > max(done, default=0) // config.eval_period

    def _crossed(self, period: int, last_row: int) -> bool:
        return period > 0 and self.loop.step // period > last_row // period

    def _log(self, steps_per_second: float, scores: list[float]) -> dict[str, Any]:
        """A row of metrics.jsonl about the updates since the last one."""
        self.loop.state, count, means = self.job.trainer.read(self.loop.state)
        # Before learning starts there is nothing to take means of, but every row has all names.
        unknown = () if int(count) else self.loop.state.totals
        values = {name: float(value) for name, value in means.items() if name not in unknown}
        values |= self.job.usage.read(self.loop.state.replay)
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
        self.metrics.write(row)
        return row

    def _check_finite(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            if np.isfinite(value):
                continue
            saved = self.checkpointer.steps()
            raise RunError(
                f"the {name.replace('_', ' ')} became {value} before step {self.loop.step}. "
                f"Last good checkpoint: "
                f"{f'step {saved[-1]} in {self.out}' if saved else 'none yet'}. A smaller "
                f"--{self.config.agent}.learning-rate than "
                f"{self.config.agent_config.learning_rate} usually helps."
            )

    def _evaluate(self, stop_asked: Callable[[], bool]) -> None:
        if self.evaluator is None:
            self.evaluator = Evaluator(self.job)
        started = time.perf_counter()
        params = self.config.played_params(self.loop.state.learner)
        cut_short = False

        def stop(_: HostStep) -> bool:
            nonlocal cut_short
            cut_short = stop_asked()
            return cut_short

        # Whole games may take minutes, and who asks to stop may not wait so long.
        result = self.evaluator(params, self.loop.step, stop)
        if cut_short:
            self._stop(f"in the evaluation at step {self.loop.step}, which will be made up for")
        self.last_score = float(result.scores.mean())
        self.metrics.write(
            {
                "step": self.loop.step,
                "eval_mean": self.last_score,
                "eval_std": float(result.scores.std()),
                "episodes": len(result.scores),
                "eval_truncated": int(result.truncated.sum()),
                "eval_seconds": time.perf_counter() - started,
            }
        )

    def _save(self) -> bool:
        """A checkpoint; if it cannot be written, training goes on."""
        # Nothing spoilt is saved: neither by the updates since the last row, nor by the very last.
        learner = self.loop.state.learner
        self._check_finite({name: float(total) for name, total in self.loop.state.totals.items()})
        self._check_finite({"size of the network": float(optax.global_norm(learner.params))})
        started = time.perf_counter()
        try:
            state = {
                "metrics_position": self.metrics.position(),
                "seconds": self.seconds,
                "train": on_host.to_checkpoint(
                    self.loop.state, with_replay=self.config.checkpoint_replay
                ),
            }
            path = self.checkpointer.save(self.loop.step, {"state": state})
        except (CheckpointError, OSError) as error:
            tqdm.write(f"\nWARNING: NO CHECKPOINT at step {self.loop.step}: {error}\n")
            return False
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        tqdm.write(
            f"checkpoint at step {self.loop.step}: {size / 1e6:.0f} MB in "
            f"{time.perf_counter() - started:.1f} s"
        )
        return True

    def _stop(self, when: str) -> None:
        lost = "" if self._save() else ", and what came after the last checkpoint is lost"
        raise StopRequested(
            f"stopped {when}{lost}; continue with the same options and --out {self.out} --resume"
        )

    def _postfix(self, row: dict[str, Any]) -> str:
        shown = ["score -" if self.last_score is None else f"score {self.last_score:.1f}"]
        for name, label in (
            ("loss", "loss"),
            ("visit_weight", "visit weight"),
            ("expert_share", "demo share"),
        ):
            if row.get(name) is not None:
                shown.append(f"{label} {row[name]:.3g}")
        return ", ".join(shown)


def _open_metrics(config: RunConfig, out: Path, position: int) -> PatientWriter:
    try:
        writer = PatientWriter(
            out / "metrics.jsonl",
            position=position,
            tensorboard_dir=out / "tensorboard" if config.tensorboard else None,
        )
        # Damage is told of now and not in the end.
        read_jsonl(out / "metrics.jsonl")
        return writer
    except ValueError as error:
        raise RunError(f"{error}. Put the file back, or start anew in another --out.") from error


class Pace(NamedTuple):
    """How long things take, in seconds."""

    update: float
    interaction: float  # one step of all games

    def of_rest(self, training: Training) -> float:
        """Time that the rest of a run will take, evaluations apart."""
        config, step = training.config, training.loop.step
        learning = max(config.steps - config.learning_starts, 0)
        all_updates = config.pretrain_updates + learning / config.update_period
        interactions = (config.steps - step) / config.envs
        updates = max(all_updates - training.updates, 0)
        return updates * self.update + interactions * self.interaction


def measure_pace(job: Job) -> Pace:
    """Tries updates and steps, which also compiles them; none of it is kept."""
    loop = job.make_loop(job.init())
    if job.one_call:
        return _measure_one_call(job, loop)
    loop.run(2 * job.config.envs)
    seen = on_host.to_device(loop.env.reset())

    def update() -> None:
        loop.state = job.trainer.update(loop.state)

    def interact() -> None:
        loop.state, actions = job.trainer.interact(loop.state, seen)
        loop.env.step(np.asarray(actions))

    def timed(function: Callable[[], None], count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            function()
        jax.block_until_ready(loop.state)
        return (time.perf_counter() - started) / count

    timed(update, 1)
    timed(interact, 1)
    return Pace(update=timed(update, 3), interaction=timed(interact, 3))


def _measure_one_call(job: Job, loop: on_host.HostLoop) -> Pace:
    """Where acting and learning are one call, all time is told as that of its updates."""
    count = max(1, round(job.config.envs / job.config.update_period))
    seen = on_host.to_device(loop.env.reset())
    state, actions = job.trainer.begin(loop.state, seen)
    started, repeats = 0.0, 10
    for repeat in range(repeats + 1):
        if repeat == 1:
            # The first one compiles.
            started = time.perf_counter()
        state, actions = job.trainer.iterate(state, seen, np.int32(count))
        loop.env.step(np.asarray(actions))
    seconds = (time.perf_counter() - started) / repeats
    return Pace(update=seconds / count, interaction=0.0)


def run(
    job: Job,
    out: Path,
    demonstrations: Sequence[demos.Demonstration],
    *,
    and_write: Mapping[str, Callable[[Job, LearnerState, Path], None]] | None = None,
) -> dict[str, Any]:
    """Trains to the end and tells what came of it.

    Args:
      job: what is run.
      out: the run folder.
      demonstrations: that it learns from.
      and_write: name of a file -> what writes it in the end.

    Returns:
      The summary.
    """
    with run_folder.sole_use(out):
        print("compiling ...", flush=True)
        pace = measure_pace(job)
        with run_folder.stop_signals("soon, after a checkpoint") as stop_asked:
            training = Training(job, out, resume=job.config.resume)
            expected = run_folder.duration(pace.of_rest(training))
            print(f"expected time: {expected}, and the evaluations", flush=True)
            if training.resumed_at is not None:
                print(f"resumed at step {training.resumed_at}", flush=True)
            training.run(stop_asked)
        return finish(training, demonstrations, and_write or {})


def finish(
    training: Training,
    demonstrations: Sequence[demos.Demonstration],
    and_write: Mapping[str, Callable[[Job, LearnerState, Path], None]],
) -> dict[str, Any]:
    """Tells what came of a run, and writes it; what cannot be written does not hinder the rest."""
    config, out = training.config, training.out
    summary = report.summarise(
        config,
        demonstrations,
        training.evaluations,
        updates=training.updates,
        seconds=training.seconds,
    )
    print(f"\n{report.table(summary)}\n")
    params = config.played_params(training.loop.state.learner)
    step = training.loop.step
    failed = []
    for name, write in (
        ("metrics.jsonl", training.metrics.flush),
        ("summary.json", lambda: write_json(out / "summary.json", summary)),
        ("learning_curve.png", lambda: report.draw(out, summary)),
        ("episode.mp4", lambda: config.video and film(training.job, params, out, step)),
        *(
            (name, functools.partial(write, training.job, training.loop.state.learner, out / name))
            for name, write in and_write.items()
        ),
    ):
        try:
            write()
        except (OSError, ImportError, ValueError, HostEnvironmentError) as error:
            failed.append(f"{name}: {error}")
    training.metrics.close()
    if failed:
        raise RunError(f"not all of {out} could be written: {'; '.join(failed)}")
    print(f"summary, curve and film in {out}")
    return summary


def play_run(run: Path, job: Job, *, with_film: bool) -> dict[str, Any]:
    """Plays with a run's last checkpoint and writes `evaluation.json`, and a film."""
    step, params = read_params(run, job)
    evaluate = Evaluator(job)
    with tqdm(unit="step", desc=f"evaluating step {step}") as bar:
        result = evaluate(params, step, lambda _: bar.update(1) and False)
    row = {
        "step": step,
        "mean": float(result.scores.mean()),
        "std": float(result.scores.std()),
        "episodes": len(result.scores),
        "truncated": int(result.truncated.sum()),
        "scores": result.scores,
    }
    write_json(run / "evaluation.json", row)
    print(
        f"{job.config.game}, {job.config.agent}, step {step}: {row['mean']:.1f} +- "
        f"{row['std']:.1f} over {row['episodes']} episodes ({row['truncated']} cut by a "
        f"time limit); written to {run / 'evaluation.json'}"
    )
    if with_film:
        try:
            film(job, params, run, step)
        except ImportError as error:
            raise UsageError(f"{error}, or add --no-video") from error
    return row


def read_params(run: Path, job: Job) -> tuple[int, Params]:
    """Step and parameters of a run's last checkpoint."""
    checkpointer = Checkpointer(run / "checkpoints", on_skip=tqdm.write)
    restored = checkpointer.restore({"state": checkpoint_template(job)})
    if restored is None:
        raise UsageError(f"{run} has no checkpoint yet")
    # The replay, which may take gigabytes, goes.
    return restored[0], job.config.played_params(restored[1]["state"]["train"]["learner"])
