"""The commands that runs of every kind share: evaluate, compare, resume."""

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from bqfd_jax import console, files
from bqfd_jax.runs import folder
from bqfd_jax.runs.compare import compare as compare_runs
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.run import KINDS, Run


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
    """Film one more episode."""
    trust_config: bool = False
    """Import the modules that the run's config.json names, which runs their code."""


def evaluate(options: EvaluateConfig) -> None:
    """Plays with a run's last checkpoint and writes `evaluation.json`, and a film."""
    run = Run.load(options.run, trust_config=options.trust_config)
    with console.terminal("after this step") as sink:
        result = run.evaluate(
            options.episodes, epsilon=options.epsilon, max_steps=options.max_steps, sink=sink
        )
        row = {
            "step": run.last_step,
            "mean": float(result.scores.mean()),
            "std": float(result.scores.std()),
            "episodes": len(result.scores),
            "truncated": int(result.truncated.sum()),
            "scores": result.scores,
        }
        files.write_json(options.run / "evaluation.json", row)
        sink.say(
            f"{run.config.title}, {run.config.agent}, step {row['step']}: {row['mean']:.1f} +- "
            f"{row['std']:.1f} over {row['episodes']} episodes ({row['truncated']} cut by a time "
            f"limit); written to {options.run / 'evaluation.json'}"
        )
        if options.video:
            run.film(options.run / "episode.mp4")


@dataclasses.dataclass(frozen=True)
class CompareConfig:
    """Puts runs into one figure and one table, beside the paper's Table 1."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of finished runs."""
    out: Path = Path("runs/comparison")
    """Folder for comparison.png, comparison.md and comparison.json."""


def compare(options: CompareConfig) -> None:
    """Writes the comparison and prints its table."""
    print(f"{compare_runs(options.runs, options.out)}\n\nfigure and table in {options.out}")


@dataclasses.dataclass(frozen=True)
class ResumeConfig:
    """Goes on with a run that was stopped or killed; its options are in its folder."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    steps: int | None = None
    """Another length, in agent steps; extends a finished run."""
    trust_config: bool = False
    """Import the modules that the run's config.json names, which runs their code."""


def resume(options: ResumeConfig) -> None:
    """Continues a run of any kind."""
    kind = folder.read_config(options.run).get("experiment")
    if kind in KINDS:
        run = Run.load(options.run, trust_config=options.trust_config)
        with console.terminal() as sink:
            run.resume(steps=options.steps, sink=sink)
        return
    if kind not in ("deep_sea", "expert_quality"):
        raise UsageError(f"{options.run} holds a run of {kind!r}, which cannot be resumed")
    if options.steps is not None:
        raise UsageError(f"--steps cannot be given for a run of {kind}")
    console.use_all_cores()
    package = importlib.import_module(f"{__package__}.{kind}.run")
    with console.terminal() as sink:
        package.resume(options.run, sink)


def parse_and_run(name: str, arguments: Sequence[str], prog: str) -> None:
    """Runs `evaluate`, `compare` or `resume` as the arguments say."""
    options, command = {
        "evaluate": (EvaluateConfig, evaluate),
        "compare": (CompareConfig, compare),
        "resume": (ResumeConfig, resume),
    }[name]
    command(tyro.cli(options, args=list(arguments), prog=f"{prog} {name}"))
