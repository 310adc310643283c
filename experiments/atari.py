"""The paper's second experiment: an Atari game, a flawed demonstration, and an agent.

    python -m experiments.atari
    python -m experiments.atari --game Breakout --agent dqfd --seed 1 --out runs/mine
    python -m experiments.atari evaluate --run runs/mine
    python -m experiments.atari compare runs/mine runs/another

All steps are agent steps (4 emulator frames).  A run that was stopped or killed goes on if the same
command is given with --resume at its end.  Writes a folder with `summary.json`, `metrics.jsonl`, a
learning curve, a film of one evaluation episode and checkpoints.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from tqdm import tqdm

from bqfd_jax import demos, networks
from bqfd_jax.agents import Agent, make_agent
from bqfd_jax.checkpoint import Checkpointer, CheckpointError
from bqfd_jax.envs import atari
from bqfd_jax.metrics import MetricsWriter, read_jsonl, write_json_atomic
from bqfd_jax.replay import Replay, make_replay
from bqfd_jax.training import on_host
from bqfd_jax.training.evaluate import Evaluation, make_evaluate
from bqfd_jax.types import Row
from experiments import atari_config, run_folder
from experiments import atari_report as report
from experiments.atari_config import Config
from experiments.run_folder import RunError, StopRequested, UsageError

STACK = 4
# Pools of one run must not share their games' random starts.
_TRAIN, _EVALUATE, _FILM = 0, 1, 2
# How often the progress bar moves and Ctrl-C is looked at, in steps of all games.
_CHUNK = 8


class Job(NamedTuple):
    """All that a config makes, before anything has happened."""

    config: Config
    agent: Agent
    replay: Replay
    trainer: on_host.HostTrainer
    demonstrations: Row | None  # fields [E, ...]

    def init(self) -> on_host.HostTrainState:
        """The state at the beginning of the run."""
        return self.trainer.init(jax.random.key(self.config.seed), self.demonstrations)

    def make_env(self) -> atari.Atari:
        """The games that are trained on."""
        config = self.config
        return atari.Atari(
            config.game,
            num_lanes=config.envs,
            seed=config.seed,
            stream=_TRAIN,
            log_rewards=config.log_rewards,
            life_loss_is_terminal=config.life_loss_is_terminal,
        )

    def make_loop(self, state: on_host.HostTrainState) -> on_host.HostLoop:
        """Training that goes on from a state."""
        config = self.config
        return on_host.HostLoop(
            self.make_env(),
            self.trainer,
            state,
            updates_per_step=1 / Fraction(config.update_period).limit_denominator(10**6),
            learning_starts=config.learning_starts,
        )


def load_demonstration(config: Config) -> demos.Demonstration | None:
    """The demonstration that `--demo` names."""
    if config.demo == "none":
        return None
    try:
        if config.demo in ("default", "strong"):
            return demos.load_named(config.game, config.demo)
        return demos.load(config.demo, game=config.game)
    except FileNotFoundError as error:
        raise UsageError(
            f"--demo {config.demo}: {error}; it must be default, strong, none or a file"
        ) from error
    except demos.DemonstrationError as error:
        raise UsageError(f"--demo {config.demo}: {error}") from error


def replay_demonstration(config: Config, demonstration: demos.Demonstration | None) -> Row | None:
    """Its rows, checked against what the demonstration says of itself."""
    if demonstration is None:
        return None
    try:
        return demos.replay_cached(
            demonstration,
            gamma=config.agent_config.gamma,
            log_rewards=config.log_rewards,
            life_loss_is_terminal=config.life_loss_is_terminal,
        )
    except demos.DemonstrationError as error:
        raise UsageError(f"--demo {config.demo}: {error}") from error


def make_job(
    config: Config, num_actions: int, demonstrations: Row | None, **network_options: Any
) -> Job:
    """Binds network, replay and agent; compiled when first called."""
    agent_config = config.agent_config
    replay = make_replay(
        frame_shape=atari.FRAME_SHAPE,
        frame_dtype=jnp.uint8,
        rows_per_lane=config.rows_per_lane,
        num_lanes=config.envs,
        num_demo_rows=0 if demonstrations is None else len(demonstrations.action),
        stack=STACK,
        **agent_config.replay_options(),
    )
    network = networks.atari_network(num_actions, hidden=config.hidden, **network_options)
    agent = make_agent(network, replay, agent_config)
    trainer = on_host.make_host_trainer(
        agent,
        replay,
        frame_shape=atari.FRAME_SHAPE,
        frame_dtype=jnp.uint8,
        gamma=agent_config.gamma,
        stack=STACK,
    )
    return Job(config, agent, replay, trainer, demonstrations)


def checkpoint_template(job: Job) -> dict[str, Any]:
    """Shapes of all that a checkpoint holds."""
    shapes = jax.eval_shape(job.init)
    return {
        "train": on_host.to_checkpoint(shapes, with_replay=job.config.checkpoint_replay),
        "metrics_position": 0,
        "seconds": 0.0,
    }


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
        self.metrics = _open_metrics(config, out, saved["metrics_position"])
        self.env_for_evaluation: atari.Atari | None = None

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
        with self.metrics:
            self._pretrain(stop_asked)
            self._train(stop_asked)
            self.metrics.flush()

    def _pretrain(self, stop_asked: Callable[[], bool]) -> None:
        wanted = self.config.pretrain_updates
        if self.loop.step or self.updates >= wanted:
            return
        with tqdm(total=wanted, initial=self.updates, unit="update", desc="pre-training") as bar:
            for done in range(self.updates + 1, wanted + 1):
                self.loop.state = self.job.trainer.pretrain(self.loop.state)
                if done % _CHUNK == 0 or done == wanted:
                    # Else the bar would run ahead of the device.
                    jax.block_until_ready(self.loop.state.num_totals)
                    bar.update(done - bar.n)
                    if stop_asked():
                        self._stop("during pre-training")
        self._log(0.0, [])
        self._evaluate()
        self._save()

    def _train(self, stop_asked: Callable[[], bool]) -> None:
        config, loop = self.config, self.loop
        with tqdm(
            total=config.steps, initial=loop.step, unit="step", desc=f"{config.game} {config.agent}"
        ) as bar:
            bar.set_postfix_str(self._postfix({}))
            while loop.step < config.steps:
                started, first_step, scores = time.perf_counter(), loop.step, []
                log_at = min(_next_multiple(loop.step, config.log_period), config.steps)
                while loop.step < log_at:
                    scores += loop.run(min(_CHUNK * config.envs, log_at - loop.step))
                    bar.update(loop.step - bar.n)
                    if stop_asked():
                        self._stop(f"at step {loop.step}")
                jax.block_until_ready(loop.state.step)
                speed = (loop.step - first_step) / (time.perf_counter() - started)
                row = self._log(speed, scores)
                ended = loop.step >= config.steps
                if ended or self._crossed(config.eval_period, first_step):
                    self._evaluate()
                if ended or self._crossed(config.checkpoint_period, first_step):
                    self._save()
                bar.set_postfix_str(self._postfix(row))

    def _crossed(self, period: int, since: int) -> bool:
        return period > 0 and self.loop.step // period > since // period

    def _log(self, steps_per_second: float, scores: list[float]) -> dict[str, Any]:
        """A row of metrics.jsonl about the updates since the last one."""
        self.loop.state, count, means = self.job.trainer.read(self.loop.state)
        values = {name: float(value) for name, value in means.items()} if int(count) else {}
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
        """Stops before anything spoilt is saved."""
        for name in ("loss", "gradient_norm"):
            if np.isfinite(values.get(name, 0.0)):
                continue
            saved = self.checkpointer.steps()
            raise RunError(
                f"the {name.replace('_', ' ')} became {values[name]} before step "
                f"{self.loop.step}. Last good checkpoint: "
                f"{f'step {saved[-1]} in {self.out}' if saved else 'none yet'}. A smaller "
                f"--{self.config.agent}.learning-rate than "
                f"{self.config.agent_config.learning_rate} usually helps."
            )

    def _evaluate(self) -> None:
        config = self.config
        if self.env_for_evaluation is None:
            self.env_for_evaluation = evaluation_env(config, lanes=config.eval_episodes)
            self.evaluate = make_evaluate(
                self.job.agent.evaluate,
                self.env_for_evaluation,
                stack=STACK,
                epsilon=config.eval_epsilon,
            )
        started = time.perf_counter()
        result = self.evaluate(
            self.loop.state.learner.params, evaluation_key(config, self.loop.step)
        )
        self.metrics.write(
            {
                "step": self.loop.step,
                "eval_mean": float(result.scores.mean()),
                "eval_std": float(result.scores.std()),
                "episodes": len(result.scores),
                "eval_truncated": int(result.truncated.sum()),
                "eval_seconds": time.perf_counter() - started,
            }
        )

    def _save(self) -> None:
        """A checkpoint; if it cannot be written, training goes on."""
        started = time.perf_counter()
        try:
            position = self.metrics.position()
            with_replay = self.config.checkpoint_replay
            state = {
                "train": on_host.to_checkpoint(self.loop.state, with_replay=with_replay),
                "metrics_position": position,
                "seconds": self.seconds,
            }
            path = self.checkpointer.save(self.loop.step, state)
        except (CheckpointError, OSError) as error:
            tqdm.write(f"\nWARNING: NO CHECKPOINT at step {self.loop.step}: {error}\n")
            return
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        tqdm.write(
            f"checkpoint at step {self.loop.step}: {size / 1e6:.0f} MB in "
            f"{time.perf_counter() - started:.1f} s"
        )

    def _stop(self, when: str) -> None:
        self._save()
        raise StopRequested(
            f"stopped {when}; continue with the same options and --out {self.out} --resume"
        )

    def _postfix(self, row: dict[str, Any]) -> str:
        done = self.evaluations
        shown = [f"score {done[-1]['eval_mean']:.1f}" if done else "score -"]
        for name, label in (
            ("loss", "loss"),
            ("visit_weight", "visit weight"),
            ("expert_share", "demo share"),
        ):
            if name in row:
                shown.append(f"{label} {row[name]:.3g}")
        return ", ".join(shown)


def evaluation_env(config: Config, *, lanes: int, film: bool = False) -> atari.Atari:
    """Games that nobody learns from."""
    return atari.Atari(
        config.game,
        num_lanes=lanes,
        seed=config.seed,
        stream=_FILM if film else _EVALUATE,
        # Episodes are whole games here.
        life_loss_is_terminal=False,
        max_episode_steps=config.eval_max_steps,
        render=film,
    )


def evaluation_key(config: Config, step: int) -> jax.Array:
    """Decides the random actions of the evaluation at that step."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), 3), step)


class _PatientWriter(MetricsWriter):
    """Keeps rows that could not be written (a full disk) and tries again with the next."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.pending: list[dict[str, Any]] = []

    def write(self, row: dict[str, Any]) -> None:
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
        self.flush()
        return super().position()


def _open_metrics(config: Config, out: Path, position: int) -> _PatientWriter:
    try:
        return _PatientWriter(
            out / "metrics.jsonl",
            position=position,
            tensorboard_dir=out / "tensorboard" if config.tensorboard else None,
        )
    except ValueError as error:
        raise RunError(f"{error}. Put the file back, or start anew in another --out.") from error


def _next_multiple(step: int, period: int) -> int:
    return (step // period + 1) * period


def film(job: Job, params: Any, path: Path, step: int) -> Evaluation:
    """Plays one evaluation episode and writes it as mp4, at the speed that people play."""
    env = evaluation_env(job.config, lanes=1, film=True)
    evaluate = make_evaluate(job.agent.evaluate, env, stack=STACK, epsilon=job.config.eval_epsilon)
    return report.film(
        path, env, lambda on_step: evaluate(params, evaluation_key(job.config, step + 1), on_step)
    )


def expected_seconds(job: Job) -> float:
    """Time that training will take, evaluations apart, by trying it; nothing of it is kept."""
    config = job.config
    loop = job.make_loop(job.init())
    loop.run(2 * config.envs)

    def timed(function: Callable[[], Any], count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            function()
        jax.block_until_ready(loop.state)
        return (time.perf_counter() - started) / count

    def update() -> None:
        loop.state = job.trainer.update(loop.state)

    def iterate() -> None:
        loop.state, actions = job.trainer.interact(loop.state, on_host.to_device(seen))
        loop.env.step(np.asarray(actions))

    seen = loop.env.reset()
    timed(update, 1)
    timed(iterate, 1)
    per_update, per_iteration = timed(update, 3), timed(iterate, 3)
    updates = config.pretrain_updates + config.steps / config.update_period
    return updates * per_update + config.steps / config.envs * per_iteration


def announce(
    config: Config, demonstration: demos.Demonstration | None, job: Job, out: Path
) -> None:
    """Says what will happen, before it does."""
    device = jax.devices()[0]
    if demonstration is None:
        shown = "none"
    else:
        scores = ", ".join(f"{score:g}" for score in demonstration.scores)
        shown = f"{config.demo}, {len(demonstration.actions)} steps, score {scores}"
    replay = job.replay
    print(
        f"{config.game}, {config.agent}, seed {config.seed}, preset {config.preset}: "
        f"{config.steps:,} agent steps in {config.envs} games\n"
        f"  demonstration: {shown}\n"
        f"  replay: {replay.layout.num_rows:,} rows, {replay.num_bytes / 1e9:.2f} GB\n"
        f"  device: {device.device_kind} ({device.platform}); run folder: {out}",
        flush=True,
    )


def check_memory(replay: Replay) -> None:
    """Refuses a replay that will not fit."""
    # The network, its gradients and what the emulators need.
    needed = replay.num_bytes + 1.0e9
    available = run_folder.available_memory()
    if available is not None and needed > available:
        rows = int((available - 1.0e9) / replay.num_bytes * replay.layout.num_rows)
        raise UsageError(
            f"the replay of {replay.layout.num_rows:,} rows needs {needed / 1e9:.1f} GB with all "
            f"around it, but only {available / 1e9:.1f} GB are free; use --replay-rows "
            f"{max(rows, 0) // 1000 * 1000} or less"
        )


def prepare(config: Config) -> tuple[Job, demos.Demonstration | None]:
    """From a checked config to a job that fits into memory."""
    demonstration = load_demonstration(config)
    env = atari.Atari(config.game, num_lanes=1)
    if demonstration is not None:
        print("replaying the demonstration ...", end=" ", flush=True)
    rows = replay_demonstration(config, demonstration)
    if demonstration is not None:
        print("it plays as it should")
    job = make_job(config, env.num_actions, rows)
    check_memory(job.replay)
    return job, demonstration


def train(config: Config) -> None:
    """A whole run, or the rest of one."""
    atari_config.check(config)
    job, demonstration = prepare(config)
    out = run_folder.prepare(
        config.out, atari_config.stored(config), name=f"atari-{config.game}", resume=config.resume
    )
    announce(config, demonstration, job, out)
    print("compiling ...", end=" ", flush=True)
    seconds = expected_seconds(job)
    print(f"expected time: {run_folder.duration(seconds)}, and the evaluations", flush=True)
    with run_folder.stop_signals("soon, after a checkpoint") as stop_asked:
        training = Training(job, out, resume=config.resume)
        if training.resumed_at is not None:
            print(f"resumed at step {training.resumed_at}")
        training.run(stop_asked)
    summary = report.summarise(
        config,
        demonstration,
        training.evaluations,
        updates=training.updates,
        seconds=training.seconds,
    )
    write_json_atomic(out / "summary.json", summary)
    report.draw(out, summary)
    if config.video:
        _try_film(job, training.loop.state.learner.params, out, training.loop.step)
    print(f"\n{report.table(summary)}\n\ncurve, film and summary in {out}")


def _try_film(job: Job, params: Any, out: Path, step: int) -> None:
    try:
        film(job, params, out / "episode.mp4", step)
    except ImportError as error:
        print(f"no film: {error}", file=sys.stderr)


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Plays episodes with the network of a run's last checkpoint, and films one."""

    run: Path
    """Folder of the run."""
    episodes: int = 30
    """Episodes to play, side by side."""
    epsilon: float | None = None
    """Probability of a random action; the run's own unless given."""
    max_steps: int | None = None
    """Agent steps after which an episode is cut; the run's own unless given."""
    video: bool = True
    """Film one episode."""


def evaluate_run(options: EvaluateConfig) -> None:
    """The command `evaluate`."""
    path = options.run / "config.json"
    try:
        config = atari_config.from_stored(json.loads(path.read_text()))
    except FileNotFoundError:
        raise UsageError(f"{options.run} is no run folder: it has no config.json") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no Atari run's: {error}") from error
    config = dataclasses.replace(
        config,
        eval_episodes=options.episodes,
        eval_epsilon=config.eval_epsilon if options.epsilon is None else options.epsilon,
        eval_max_steps=options.max_steps or config.eval_max_steps,
    )
    atari_config.check(config)
    job, _ = prepare(config)
    checkpointer = Checkpointer(options.run / "checkpoints", on_skip=tqdm.write)
    restored = checkpointer.restore(checkpoint_template(job))
    if restored is None:
        raise UsageError(f"{options.run} has no checkpoint yet")
    step, saved = restored
    params = saved["train"]["learner"].params
    del saved
    evaluate = make_evaluate(
        job.agent.evaluate,
        evaluation_env(config, lanes=config.eval_episodes),
        stack=STACK,
        epsilon=config.eval_epsilon,
    )
    with tqdm(unit="step", desc=f"evaluating step {step}") as bar:
        result = evaluate(params, evaluation_key(config, step), lambda _: bar.update(1) and False)
    row = {
        "step": step,
        "mean": float(result.scores.mean()),
        "std": float(result.scores.std()),
        "episodes": len(result.scores),
        "truncated": int(result.truncated.sum()),
        "scores": result.scores,
    }
    write_json_atomic(options.run / "evaluation.json", row)
    print(
        f"{config.game}, {config.agent}, step {step}: {row['mean']:.1f} +- {row['std']:.1f} over "
        f"{row['episodes']} episodes ({row['truncated']} cut at {config.eval_max_steps} steps); "
        f"written to {options.run / 'evaluation.json'}"
    )
    if options.video:
        _try_film(job, params, options.run, step)


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
