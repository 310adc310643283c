"""Several seeds in one program: each as a run alone, in a run folder of its own below one of all.

    jobs = group.load_jobs(dataclasses.replace(config, seeds_per_program=4, out=Path("runs/four")))
    summaries = group.start(jobs, sink)

`runs/four/seed-0` and the others are like the folders of runs alone, and every command that takes
one takes them.  What one program computes for all differs by rounding from a run alone, as it does
between two machines.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import jax

from bqfd_jax.demos import Demonstration
from bqfd_jax.envs.pools import GroupScores, RunsOfPool
from bqfd_jax.runs import folder, host_run, lockstep, report
from bqfd_jax.runs.checkpoint import Checkpointer, CheckpointError
from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.errors import RunError, UsageError
from bqfd_jax.runs.host_run import HostRun, Share
from bqfd_jax.runs.job import Job
from bqfd_jax.runs.journal import Journal
from bqfd_jax.runs.machine import check_memory
from bqfd_jax.runs.run import KINDS, Run, describe, load_job, prepared
from bqfd_jax.runs.sinks import Prefixed, Sink
from bqfd_jax.training.group import join, make_group_trainer
from bqfd_jax.training.host_checkpoint import network_of
from bqfd_jax.training.on_device import runs_sharding
from bqfd_jax.training.on_host import HostLoop, HostTrainState

# What is shown to a seed; None: what its config names.
Shown = Callable[[RunConfig], Sequence[Demonstration] | None]


def load_jobs(config: RunConfig, shown: Shown = lambda config: None) -> list[Job]:
    """The jobs of `config.seeds_per_program` seeds, from `config.seed` on.

    Args:
      config: `out` is the folder that those of the seeds lie in.
      shown: the demonstrations of one seed, given its config.

    Raises:
      UsageError: they cannot begin or go on there, or do not fit into memory.
    """
    config.check()
    configs = _of_seeds(config)
    given = [shown(one) for one in configs]
    if not config.resume:
        given = [
            KINDS[one.experiment][1](one).load_demonstrations(None) if own is None else own
            for one, own in zip(configs, given, strict=True)
        ]
        longest = max(sum(demo.num_rows for demo in own) for own in given)
        # The replays of all must have one shape.
        if any(sum(demo.num_rows for demo in own) < longest for own in given):
            configs = [
                dataclasses.replace(one, demo_rows=max(one.demo_rows, longest)) for one in configs
            ]
    jobs = [load_job(one, own, allocates=False) for one, own in zip(configs, given, strict=True)]
    first, num_runs = jobs[0], len(jobs)
    # Every CPU device has the same memory; other devices have their own.
    shares = 1 if jax.devices()[0].platform == "cpu" else runs_sharding(num_runs).mesh.size
    check_memory(first.replay, num_runs // shares + 1)
    # What is compiled is compiled once.
    return [
        dataclasses.replace(job, agent=first.agent, replay=first.replay, trainer=first.trainer)
        for job in jobs
    ]


def _of_seeds(config: RunConfig) -> list[RunConfig]:
    """A config of each seed, in a folder below the one of all."""
    seeds = range(config.seed, config.seed + config.seeds_per_program)
    out = config.out
    if out is None and not config.resume:
        out = folder.new_path(config.folder_name)
    if out is not None and config.resume:
        _check_seeds(out, list(seeds))
    else:
        folder.check(out, {}, resume=False)
    configs = [
        dataclasses.replace(config, seed=seed, out=out / f"seed-{seed}", seeds_per_program=1)
        for seed in seeds
    ]
    if not config.resume:
        return configs
    stored = [folder.read_config(one.out).get("demo_rows", 0) for one in configs]
    return [
        dataclasses.replace(one, demo_rows=one.demo_rows or rows)
        for one, rows in zip(configs, stored, strict=True)
    ]


def _check_seeds(out: Path, wanted: list[int]) -> None:
    """Raises `UsageError` unless these seeds, and no others, were trained together in a folder."""
    if (out / "config.json").exists():
        raise UsageError(
            f"{out} holds a single run; resume it without --seeds-per-program (`bqfd resume {out}`)"
        )
    there = list(folder.seed_folders(out))
    if there != wanted:
        held = f"the seeds {', '.join(map(str, there))}" if there else "no seeds"
        raise UsageError(
            f"{out} holds {held}, but {', '.join(map(str, wanted))} were asked for; go on with "
            f"those that are there (`bqfd resume {out}`), or choose another folder (--out)"
        )


def start(jobs: Sequence[Job], sink: Sink) -> list[report.Summary]:
    """Whole runs in the jobs' folders, or the rest of them; the summary of each."""
    with opened(jobs, sink) as runs:
        lockstep.train(runs, sink)
        summaries, failed = [], []
        for run in runs:
            try:
                summaries.append(report.finish(run))
            except RunError as error:
                failed.append(str(error))
        if failed:
            raise RunError("\n".join(failed))
        return summaries


def resume(
    out: Path, *, sink: Sink, steps: int | None = None, trust_config: bool = False
) -> list[report.Summary]:
    """Goes on with all seeds in a folder; see `Run.resume`."""
    folders = folder.seed_folders(out)
    paths = list(folders.values())
    if not folders:
        raise UsageError(f"there are no seeds in {out} (no seed-*/config.json)")
    if steps is not None:
        each = _each(paths, f" --steps {steps}")
        raise UsageError(f"--steps can be given for one seed at a time only: {each}")
    if missing := set(range(min(folders), max(folders))) - set(folders):
        raise UsageError(
            f"{out} lacks {', '.join(f'seed-{seed}' for seed in sorted(missing))}, and one program "
            f"trains seeds that follow each other; each goes on alone: {_each(paths)}"
        )
    runs = [Run.load(path, trust_config=trust_config) for path in paths]
    for run in runs:
        run.check_trust()
    first = runs[0].config
    if any(dataclasses.replace(run.config, seed=first.seed) != first for run in runs):
        raise UsageError(
            f"the seeds in {out} no longer have the same options (another length, say), so that "
            f"one program cannot go on with all; each goes on alone: {_each(paths)}"
        )
    config = dataclasses.replace(first, out=out, resume=True, seeds_per_program=len(runs))
    return start(load_jobs(config), sink)


def _each(folders: Iterable[Path], options: str = "") -> str:
    """How to go on with each alone, in words."""
    return ", ".join(f"`bqfd resume {path}{options}`" for path in folders)


@contextmanager
def opened(jobs: Sequence[Job], sink: Sink) -> Iterator[list[HostRun]]:
    """Runs in the folders of their configs that share a loop, all at the same step."""
    first, num_runs = jobs[0], len(jobs)
    sinks = [Prefixed(sink, f"seed {job.config.seed}") for job in jobs]
    with ExitStack() as stack:
        journals = [
            stack.enter_context(prepared(job, own)) for job, own in zip(jobs, sinks, strict=True)
        ]
        sink.say(describe(first, journals[0].folder.parent, num_runs))
        resumed_at, state = _restore(jobs, journals, sink) if first.config.resume else (None, None)
        if resumed_at is not None:
            sink.say(f"all resumed at step {resumed_at}")
        loop = make_loop(jobs, state, resumed_at or 0)
        yield [
            HostRun(job, journal, own, Share(loop, number), resumed_at)
            for number, (job, journal, own) in enumerate(zip(jobs, journals, sinks, strict=True))
        ]


def make_loop(
    jobs: Sequence[Job], state: HostTrainState | None = None, resumed_at: int = 0
) -> HostLoop:
    """The loop of all jobs, from their beginning or from a state that leads with the runs."""
    first, num_runs = jobs[0], len(jobs)
    if state is None:
        state = join((job.init() for job in jobs), num_runs)
    seeds = [job.config.seed for job in jobs]
    pool = first.world.training(resumed_at, seeds, first.demonstrations)
    env = RunsOfPool(pool, num_runs)
    loop = first.make_loop(state, env, make_group_trainer(first.agent, first.replay, num_runs))
    loop.scores = GroupScores(num_runs, env.num_lanes)
    return loop


def _restore(
    jobs: Sequence[Job], journals: Sequence[Journal], sink: Sink
) -> tuple[int | None, HostTrainState | None]:
    """The newest step that all have saved whole, and the state there; None if all begin anew."""
    steps = _common_steps({journal.folder: journal.saved_steps for journal in journals}, sink)
    if steps == [0] and not _pretrained_alike(jobs, journals):
        sink.say("some seeds are ahead in their pre-training; all begin anew")
        return None, None
    for step in steps:
        try:
            members = (
                host_run.restore(job, journal, step=step)[1]
                for job, journal in zip(jobs, journals, strict=True)
            )
            return step, join(members, len(jobs))
        except CheckpointError as error:
            if step == steps[-1]:
                raise
            sink.say(f"{error}; all go back further")
    return None, None


def _common_steps(saved: Mapping[Path, Sequence[int]], sink: Sink) -> list[int]:
    """Steps that all folders have checkpoints of, the newest first; none: all begin anew.

    Raises:
      UsageError: there is none, though more was saved than what a program that is killed leaves.
    """
    first, *others = saved.values()
    # As they were saved: after a way back, a checkpoint of a later step may be an older one.
    common = [step for step in reversed(first) if all(step in steps for steps in others)]
    stands = {path: f"step {steps[-1]}" if steps else "no step" for path, steps in saved.items()}
    listed = ", ".join(f"{path.name} at {where}" for path, where in stands.items())
    if common:
        if any(steps[-1] != common[0] for steps in saved.values()):
            sink.say(f"the seeds stand at different steps ({listed}); all go on from {common[0]}")
    elif all(saved.values()) or any(len(steps) > 1 for steps in saved.values()):
        raise UsageError(
            f"the seeds have no step in common ({listed}), so that one program cannot go on with "
            f"all; each goes on alone: {_each(saved)}"
        )
    elif any(saved.values()):
        sink.say(f"not every seed has a checkpoint ({listed}); all begin anew")
    return common


def _pretrained_alike(jobs: Sequence[Job], journals: Sequence[Journal]) -> bool:
    """Whether checkpoints before the first step have seen as many updates."""
    template = {"learner": jax.eval_shape(lambda: network_of(jobs[0].init().learner))}
    updates = set()
    for journal in journals:
        restored = Checkpointer(journal.folder / "checkpoints").restore(template, step=0)
        updates.add(int(restored[1]["learner"].updates))
    return len(updates) == 1
