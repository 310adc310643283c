"""A run as one object: begin it, go on with it, look at it, play what it has learnt."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bqfd_jax import checks, files
from bqfd_jax.demos import Demonstration
from bqfd_jax.policy import Policy, load_policy
from bqfd_jax.runs import folder, lockstep, machine, report, stored, text
from bqfd_jax.runs.atari import AtariConfig, AtariWorld
from bqfd_jax.runs.best import FILE
from bqfd_jax.runs.checkpoint import Checkpointer
from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.errors import Stopped, UsageError
from bqfd_jax.runs.gym import GymConfig, GymWorld
from bqfd_jax.runs.host_run import HostRun, begin
from bqfd_jax.runs.job import Evaluator, Job, make_job
from bqfd_jax.runs.journal import Journal
from bqfd_jax.runs.metrics import read_jsonl
from bqfd_jax.runs.sinks import Sink
from bqfd_jax.runs.worlds import World, keep_demonstrations
from bqfd_jax.training import on_host
from bqfd_jax.training.evaluate import Evaluation
from bqfd_jax.training.host_checkpoint import network_of
from bqfd_jax.types import Params

# What kinds of runs there are, by what `config.json` calls them.
KINDS: dict[str, tuple[type[RunConfig], type[World]]] = {
    "atari": (AtariConfig, AtariWorld),
    "gym": (GymConfig, GymWorld),
}


@contextmanager
def opened(job: Job, sink: Sink, *, in_memory: bool = False) -> Iterator[HostRun]:
    """A run in the config's folder, which nobody else may use meanwhile; or in memory alone."""
    config = job.config
    if in_memory:
        yield begin(job, Journal(None, sink), sink)
        return
    with prepared(job, sink) as journal:
        sink.say(describe(job, journal.folder))
        run = begin(job, journal, sink, resume=config.resume)
        if run.resumed_at is not None:
            sink.say(f"resumed at step {run.resumed_at}")
        try:
            yield run
        finally:
            run.close()


@contextmanager
def prepared(job: Job, sink: Sink) -> Iterator[Journal]:
    """The journal of a run in the config's folder, which is made unless the run goes on there."""
    config = job.config
    shown = {demo.name: demo.checksum for demo in job.demonstrations}
    kept = job.demonstrations if config.demo in (("make",), ("given",)) else ()
    out = folder.prepare(
        config.out,
        config.stored() | {"demonstrations": shown},
        name=config.folder_name,
        resume=config.resume,
        complete=config.completed,
        fill=functools.partial(keep_demonstrations, demonstrations=kept),
    )
    with folder.sole_use(out):
        folder.check_goes_on(out)
        files.write_json(out / "machine.json", machine.describe())
        journal = Journal(
            out,
            sink,
            keep=config.keep_checkpoints,
            tensorboard=config.tensorboard,
            wandb=config.wandb,
        )
        try:
            yield journal
        finally:
            journal.close()


def start(job: Job, sink: Sink) -> report.Summary:
    """A whole run in the config's folder, or the rest of one."""
    with opened(job, sink) as run:
        lockstep.train([run], sink)
        return report.finish(run)


def describe(job: Job, out: Path, num_seeds: int = 1) -> str:
    """What will happen, in words; of several seeds in one program by the first one's job."""
    config, replay, device = job.config, job.replay, jax.devices()[0]
    seeds, times = f"seed {config.seed}", ""
    devices = f"{config.devices} x " if config.devices > 1 else ""
    if num_seeds > 1:
        seeds, times = f"{num_seeds} seeds from {config.seed} on", f"{num_seeds} x "
    shown = "none"
    if job.demonstrations:
        shown = "\n                 ".join(map(_describe_demonstration, job.demonstrations))
    return (
        f"{config.title}, {config.agent}, {seeds}, preset {config.preset_name}: "
        f"{_length(config, times)}\n"
        f"  demonstration: {shown}\n"
        f"  replay: {times}{replay.layout.num_rows:,} rows, {replay.num_bytes / 1e9:.2f} GB\n"
        f"{_describe_resets(config)}"
        f"  device: {devices}{device.device_kind} ({device.platform}); run folder: {out}"
    )


def _length(config: RunConfig, times: str) -> str:
    if config.only_copies:
        return f"at most {config.pretrain_updates:,} updates, and no steps"
    return f"{config.steps:,} agent steps in {times}{config.envs} environments"


def _describe_resets(config: RunConfig) -> str:
    period = config.agent_config.reset_period
    if not period:
        return ""
    total = on_host.updates_due(
        config.steps, update_period=config.update_period, learning_starts=config.learning_starts
    )
    count = on_host.resets_due(total, period=period, total=total)
    if not count:
        return f"  resets: none, because {total:,} updates are too few for one after {period:,}\n"
    return f"  resets: {count}, one every {period:,} of {total:,} updates\n"


def _describe_demonstration(demonstration: Demonstration) -> str:
    scores = [f"{score:g}" for score in demonstration.scores[:10]]
    more = ", ..." if len(demonstration.scores) > len(scores) else ""
    return (
        f"{demonstration.name}, {len(demonstration.actions)} steps, score "
        f"{', '.join(scores)}{more} (mean {text.score(np.mean(demonstration.scores))})"
    )


class Run:
    """A run folder: what was asked for, what was measured, what was learnt.

    Attributes:
      folder: where it lies.
      config: its options.
    """

    def __init__(self, folder: Path, config: RunConfig, *, trust_config: bool = False):
        self.folder, self.config, self._is_trusted = folder, config, trust_config

    @classmethod
    def load(cls, path: Any, *, trust_config: bool = False) -> "Run":
        """The run in a folder, finished or not; raises `UsageError` if there is none.

        Args:
          path: the folder.
          trust_config: import the modules that its `config.json` names, for an environment or its
            wrappers.  Without it they are named, and nothing is played or trained.
        """
        path = Path(path)
        kind = folder.read_config(path).get("experiment")
        if kind not in KINDS:
            raise UsageError(
                f"{path} holds a run of {kind!r}, but only those of {' and '.join(KINDS)} can be "
                "loaded"
            )
        config = stored.load(path, KINDS[kind][0].from_stored)
        return cls(path, config, trust_config=trust_config)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: {self.config.title}, {self.config.agent})"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All rows of `metrics.jsonl` so far."""
        path = self.folder / "metrics.jsonl"
        return read_jsonl(path) if path.exists() else []

    @property
    def summary(self) -> dict[str, Any] | None:
        """What `summary.json` says; None if the run is not finished."""
        path = self.folder / "summary.json"
        return files.read_json(path) if path.exists() else None

    @functools.cached_property
    def policy(self) -> Policy:
        """Acts by the network of the last checkpoint.

        Of a run in an environment that was given to `train`, by that of `policy.npz`.
        """
        if self.config.title.startswith("<"):
            return load_policy(self.folder / "policy.npz")
        job = self._job(self.config)
        return job.policy(self._last_network(job)[1])

    @property
    def best_policy(self) -> Policy:
        """Acts by the network that had the highest score; chosen by evaluation, so flattered."""
        return load_policy(self.folder / FILE)

    def evaluate(
        self,
        episodes: int = 30,
        *,
        epsilon: float | None = None,
        max_steps: int | None = None,
        best: bool = False,
        sink: Sink | None = None,
    ) -> Evaluation:
        """Plays episodes with the network of the last checkpoint.

        Args:
          episodes: how many, side by side.
          epsilon: probability of a random action; the run's own unless given.
          max_steps: agent steps after which an episode is cut; the run's own unless given.
          best: play with the network that was chosen by evaluation instead.
          sink: what is told of progress, and asked whether to stop.

        Raises:
          Stopped: it was asked to.
        """
        config = dataclasses.replace(
            self.config,
            eval_episodes=episodes,
            eval_epsilon=self.config.eval_epsilon if epsilon is None else epsilon,
            eval_max_steps=self.config.eval_max_steps if max_steps is None else max_steps,
        )
        checks.within(1, config.max_lanes, episodes=episodes)
        checks.within(0, 1, epsilon=config.eval_epsilon)
        checks.at_least(1, max_steps=config.eval_max_steps)
        job = self._job(config)
        step, params = self._network(job, best=best)
        sink, done = sink or Sink(), 0
        with sink.bar(f"evaluating step {step}", unit="step", total=config.eval_max_steps) as bar:

            def on_step(_: Any) -> None:
                nonlocal done
                bar.at(done)
                done += 1
                if sink.stop_asked():
                    raise Stopped("stopped in the evaluation; nothing was written")

            return Evaluator(job, job.world.evaluation())(params, step, on_step)

    def film(self, path: Path, *, best: bool = False) -> None:
        """Plays one episode with the network of the last checkpoint, or the best, and films it."""
        job = self._job(self.config)
        if (trouble := job.world.no_film()) is not None:
            raise UsageError(f"{self.config.title} cannot be rendered: {trouble}")
        step, params = self._network(job, best=best)
        try:
            report.film(job, params, path, step)
        except ImportError as error:
            raise UsageError(f"{error}, or ask for no film") from error

    def resume(self, *, steps: int | None = None, sink: Sink | None = None) -> report.Summary:
        """Goes on where the last checkpoint stands; with `steps` to another length."""
        self.check_trust()
        if steps is not None and steps != self.config.steps:
            if steps < self.last_step:
                raise UsageError(
                    f"steps is {steps}, but the run stands at step {self.last_step} already"
                )
            return self._lengthen(self.config.lengthened(steps), sink or Sink())
        config = dataclasses.replace(self.config, out=self.folder, resume=True)
        return start(load_job(config), sink or Sink())

    def _lengthen(self, config: RunConfig, sink: Sink) -> report.Summary:
        """Another length is kept only if the run can go on with it."""
        config.check()
        before = folder.read_config(self.folder)
        changed = {name: config.stored()[name] for name in ("steps", "replay_rows")}
        with folder.sole_use(self.folder):
            folder.write_config(self.folder, before | changed)
        can_go_on = False
        try:
            job = load_job(dataclasses.replace(config, out=self.folder, resume=True))
            with opened(job, sink) as run:
                can_go_on, self.config = True, config
                lockstep.train([run], sink)
                return report.finish(run)
        finally:
            if not can_go_on:
                folder.write_config(self.folder, before)

    def check_trust(self) -> None:
        """Raises `UsageError` if others' code would run that nobody has said to trust."""
        modules = self.config.foreign_modules
        if modules and not self._is_trusted:
            raise UsageError(
                f"{self.folder / 'config.json'} asks to import {', '.join(modules)}, which runs "
                "their code; if you trust it, add --trust-config (trust_config=True)"
            )

    def playing_job(self) -> Job:
        """What is needed to play with the run's networks, and nothing to learn."""
        return self._job(self.config)

    def _job(self, config: RunConfig) -> Job:
        self.check_trust()
        # Whoever only plays needs no more devices than one.
        config = dataclasses.replace(config, devices=1)
        config.check()
        world = KINDS[config.experiment][1](config)
        # The learner alone is read, so demonstrations and replay do not matter.
        return make_job(config, world, allocates=False)

    @property
    def last_step(self) -> int:
        """The step of the last checkpoint."""
        steps = Checkpointer(self.folder / "checkpoints").steps()
        if not steps:
            raise UsageError(f"{self.folder} has no checkpoint yet")
        return steps[-1]

    def _network(self, job: Job, *, best: bool) -> tuple[int, Params]:
        """Step and parameters, of the last checkpoint or of what evaluation has chosen."""
        if not best:
            return self._last_network(job)
        try:
            policy = self.best_policy
        except FileNotFoundError as error:
            raise UsageError(f"{self.folder} has no {FILE}: nothing was evaluated yet") from error
        return self.step_of_network(best=True), policy.params

    def step_of_network(self, *, best: bool = False) -> int:
        """The step of the last checkpoint; with `best` that of the network that was chosen."""
        chosen = self.best_policy.chosen if best else None
        return self.last_step if chosen is None else chosen["step"]

    def _last_network(self, job: Job) -> tuple[int, Params]:
        """Step and parameters; the replay, which may take gigabytes, is not read."""
        template = {"learner": jax.eval_shape(lambda: network_of(job.init().learner))}
        restored = Journal(self.folder, Sink()).restore(template)
        if restored is None:
            raise UsageError(f"{self.folder} has no checkpoint yet")
        step, items = restored
        return step, job.config.played_params(items["learner"])


def load_job(
    config: RunConfig,
    demonstrations: Sequence[Demonstration] | None = None,
    *,
    allocates: bool = True,
) -> Job:
    """The job of a config: its world, and the demonstrations that it names unless given."""
    config.check()
    if config.resume or config.out is not None:
        # What cannot be begun or resumed is told of before minutes of preparation; what was shown
        # is compared once it has been read.
        fields = config.stored()
        if config.resume and config.out is not None:
            fields["demonstrations"] = folder.read_config(config.out).get("demonstrations")
        folder.check(config.out, fields, resume=config.resume, complete=config.completed)
        folder.check_goes_on(config.out)
    world = KINDS[config.experiment][1](config)
    if demonstrations is None:
        demonstrations = world.load_demonstrations(config.out if config.resume else None)
    return make_job(config, world, demonstrations, allocates=allocates)
