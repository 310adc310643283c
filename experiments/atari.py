"""The paper's second experiment: an Atari game, a flawed demonstration, and an agent.

    python -m experiments.atari
    python -m experiments.atari --game Breakout --agent dqfd --seed 1 --out runs/mine
    python -m experiments.atari evaluate --run runs/mine
    python -m experiments.atari compare runs/mine runs/another

All steps are agent steps (4 emulator frames).  A run that was stopped or killed goes on with the
same options and --out FOLDER --resume.  Writes a folder with `summary.json`, `metrics.jsonl`, a
learning curve, a film of one evaluation episode and checkpoints.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import tyro
from tqdm import tqdm

from bqfd_jax import demos
from bqfd_jax.checkpoint import Checkpointer, CheckpointError
from bqfd_jax.metrics import read_jsonl, write_json_atomic
from bqfd_jax.training import on_host
from experiments import atari_config, run_folder
from experiments import atari_report as report
from experiments.atari_config import Config
from experiments.atari_evaluate import EvaluateConfig, Evaluator, evaluate_run, film
from experiments.atari_job import Job, checkpoint_template, prepare
from experiments.run_folder import PatientWriter, RunError, StopRequested

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
        restored = self.checkpointer.restore(checkpoint_template(job)) if resume else None
        saved = restored[1] if restored else {"metrics_position": 0, "seconds": 0.0}
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
        return self.job.replay.init(self.job.demonstrations)

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
        self._pretrain(stop_asked)
        self._train(stop_asked)

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
            self._evaluate()
        self._save()

    def _train(self, stop_asked: Callable[[], bool]) -> None:
        config, loop = self.config, self.loop
        with tqdm(
            total=config.steps, initial=loop.step, unit="step", desc=f"{config.game} {config.agent}"
        ) as bar:
            bar.set_postfix_str(self._postfix({}))
            while loop.step < config.steps:
                # A run that was stopped between two rows goes on with the second.
                last_row = loop.step // config.log_period * config.log_period
                row = self._train_until(
                    min(last_row + config.log_period, config.steps), bar, stop_asked
                )
                ended = loop.step >= config.steps
                if ended or self._crossed(config.eval_period, last_row):
                    self._evaluate()
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

    def _crossed(self, period: int, last_row: int) -> bool:
        return period > 0 and self.loop.step // period > last_row // period

    def _log(self, steps_per_second: float, scores: list[float]) -> dict[str, Any]:
        """A row of metrics.jsonl about the updates since the last one."""
        self.loop.state, count, means = self.job.trainer.read(self.loop.state)
        values = {name: float(value) for name, value in means.items()} if int(count) else {}
        values |= self.job.usage.read(self.loop.state.replay)
        self._check_finite(values)
        row = {
            "step": self.loop.step,
            "updates": self.updates,
            "steps_per_second": steps_per_second,
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

    def _evaluate(self) -> None:
        if self.evaluator is None:
            self.evaluator = Evaluator(self.job)
        started = time.perf_counter()
        params = self.config.played_params(self.loop.state.learner)
        result = self.evaluator(params, self.loop.step)
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
            path = self.checkpointer.save(self.loop.step, state)
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
            if name in row:
                shown.append(f"{label} {row[name]:.3g}")
        return ", ".join(shown)


def _open_metrics(config: Config, out: Path, position: int) -> PatientWriter:
    try:
        return PatientWriter(
            out / "metrics.jsonl",
            position=position,
            tensorboard_dir=out / "tensorboard" if config.tensorboard else None,
        )
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


def announce(
    config: Config, demonstrations: Sequence[demos.AnyDemonstration], job: Job, out: Path
) -> None:
    """Says what will happen, before it does."""
    device = jax.devices()[0]
    shown = "none"
    if demonstrations:
        shown = "\n                 ".join(
            f"{demo}, {len(demonstration.actions)} steps, score "
            + _some([f"{score:g}" for score in demonstration.scores])
            for demo, demonstration in zip(config.demo, demonstrations, strict=True)
        )
    replay = job.replay
    print(
        f"{config.game}, {config.agent}, seed {config.seed}, preset {config.preset}: "
        f"{config.steps:,} agent steps in {config.envs} games\n"
        f"  demonstration: {shown}\n"
        f"  replay: {replay.layout.num_rows:,} rows, {replay.num_bytes / 1e9:.2f} GB\n"
        f"  device: {device.device_kind} ({device.platform}); run folder: {out}",
        flush=True,
    )


def _some(words: Sequence[str], most: int = 10) -> str:
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")


def train(config: Config) -> None:
    """A whole run, or the rest of one."""
    atari_config.check(config)
    stored = atari_config.stored(config)
    if config.resume or config.out is not None:
        run_folder.check(config.out, stored, resume=config.resume)
    job, demonstrations = prepare(config)
    out = run_folder.prepare(config.out, stored, name=f"atari-{config.game}", resume=config.resume)
    announce(config, demonstrations, job, out)
    print("compiling ...", flush=True)
    pace = measure_pace(job)
    with run_folder.stop_signals("soon, after a checkpoint") as stop_asked:
        training = Training(job, out, resume=config.resume)
        expected = run_folder.duration(pace.of_rest(training))
        print(f"expected time: {expected}, and the evaluations", flush=True)
        if training.resumed_at is not None:
            print(f"resumed at step {training.resumed_at}", flush=True)
        training.run(stop_asked)
    finish(training, demonstrations)


def finish(training: Training, demonstrations: Sequence[demos.AnyDemonstration]) -> None:
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
        ("summary.json", lambda: write_json_atomic(out / "summary.json", summary)),
        ("learning_curve.png", lambda: report.draw(out, summary)),
        ("episode.mp4", lambda: config.video and film(training.job, params, out, step)),
    ):
        try:
            write()
        except (OSError, ImportError, ValueError) as error:
            failed.append(f"{name}: {error}")
    training.metrics.close()
    if failed:
        raise RunError(f"not all of {out} could be written: {'; '.join(failed)}")
    print(f"summary, curve and film in {out}")


def main() -> None:
    """Trains, evaluates or compares, as the command line says."""
    command, *arguments = sys.argv[1:] or [""]
    prog = f"python -m experiments.atari {command}"
    if command == "evaluate":
        evaluate_run(tyro.cli(EvaluateConfig, args=arguments, prog=prog))
    elif command == "compare":
        report.compare(tyro.cli(report.CompareConfig, args=arguments, prog=prog))
    else:
        train(atari_config.parse(sys.argv[1:], __doc__))


if __name__ == "__main__":
    run_folder.run_main(main)
