"""What Atari runs tell in the end: summary, table, curve, film, and several runs side by side."""

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from bqfd_jax import plots
from bqfd_jax.demos import AnyDemonstration
from bqfd_jax.metrics import write_json_atomic
from experiments import run_folder
from experiments.atari_config import PAPER_SCORES, PAPER_STEPS, Config
from experiments.run_folder import UsageError


def summarise(
    config: Config,
    demonstrations: Sequence[AnyDemonstration],
    evaluations: list[dict[str, Any]],
    *,
    updates: int,
    seconds: float,
) -> dict[str, Any]:
    """The content of `summary.json`; `evaluations` are rows of `metrics.jsonl`."""
    short = [
        {
            "step": row["step"],
            "mean": row["eval_mean"],
            "std": row["eval_std"],
            "episodes": row["episodes"],
        }
        for row in evaluations
    ]
    demo = None
    if demonstrations:
        scores = [score for demonstration in demonstrations for score in demonstration.scores]
        demo = {
            "score": float(np.mean(scores)),
            "steps": sum(len(demonstration.actions) for demonstration in demonstrations),
            "scores": scores,
            "name": " + ".join(demonstration.name for demonstration in demonstrations),
        }
    return {
        "game": config.game,
        "agent": config.agent,
        "seed": config.seed,
        "preset": config.preset,
        "steps": config.steps,
        "final_steps": config.final_steps,
        "updates": updates,
        "seconds": round(seconds, 1),
        "steps_per_second": round(config.steps / seconds, 2),
        "demo": demo,
        "demos": [
            {
                "name": demonstration.name,
                "score": float(np.mean(demonstration.scores)),
                "steps": len(demonstration.actions),
            }
            for demonstration in demonstrations
        ],
        "evaluations": short,
        "final": final_score(short, config.steps, config.final_steps, slack=config.envs),
        "peak_memory_gb": round(run_folder.peak_memory_gb(), 2),
    }


def final_score(
    evaluations: list[dict[str, Any]], steps: int, final_steps: int, *, slack: int = 1
) -> dict[str, float | None]:
    """Mean and standard deviation of all episodes in evaluations of the last part of training.

    Args:
      evaluations: as in `summary.json`.
      steps: length of the training.
      final_steps: length of its last part.
      slack: steps that an evaluation may be late, so that one due before it does not count.
    """
    # With some numbers of games an evaluation comes a few steps later than its period says.
    first = min(steps - final_steps + slack, steps)
    late = [e for e in evaluations if e["step"] >= first]
    if not late:
        return {"mean": None, "std": None}
    count = np.array([e["episodes"] for e in late], float)
    mean = np.array([e["mean"] for e in late])
    std = np.array([e["std"] for e in late])
    total = float(np.average(mean, weights=count))
    # The variance of all episodes: within evaluations and between them.
    variance = np.average(std**2 + (mean - total) ** 2, weights=count)
    return {"mean": total, "std": math.sqrt(float(variance))}


def table(summary: dict[str, Any]) -> str:
    """A run's evaluations as text."""
    lines = [f"{'step':>10}  {'score':>10}  {'std':>8}  episodes"]
    for e in summary["evaluations"]:
        lines.append(f"{e['step']:>10,}  {e['mean']:>10.1f}  {e['std']:>8.1f}  {e['episodes']}")
    final, demo = summary["final"], summary["demo"]
    score = "none" if final["mean"] is None else f"{final['mean']:.1f} +- {final['std']:.1f}"
    lines.append(
        f"\nfinal score {score}"
        + (f"; the demonstration's {demo['score']:.1f}" if demo else "")
        + f"\n{summary['updates']:,} updates, {run_folder.duration(summary['seconds'])}, "
        f"{summary['steps_per_second']:.0f} steps/s, {summary['peak_memory_gb']:.1f} GB at most"
    )
    return "\n".join(lines)


def draw(out: Path, summary: dict[str, Any]) -> None:
    """The learning curve of one run."""
    plots.learning_curves(
        out / "learning_curve.png",
        {summary["game"]: {f"{summary['agent']}, seed {summary['seed']}": [_curve(summary)]}},
        references=_references([summary]),
    )


def _curve(summary: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    evaluations = summary["evaluations"]
    return tuple(np.array([e[name] for e in evaluations]) for name in ("step", "mean", "std"))


def _references(summaries: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    return {s["game"]: {"demonstration": s["demo"]["score"]} for s in summaries if s.get("demo")}


# --- Several runs ---


@dataclasses.dataclass(frozen=True)
class CompareConfig:
    """Puts runs into one figure and one table, beside the paper's Table 1."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of finished runs."""
    out: Path = Path("runs/comparison")
    """Folder for comparison.png, comparison.md and comparison.json."""


def compare(config: CompareConfig) -> None:
    """The command `compare`."""
    if not config.runs:
        raise UsageError("name the folders of the runs to compare")
    summaries = [_read_summary(run) for run in config.runs]
    panels: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for summary in summaries:
        panels[summary["game"]][_label(summary)].append(_curve(summary))
    rows = list(_comparison_rows(summaries))
    text = comparison_table(rows)
    try:
        config.out.mkdir(parents=True, exist_ok=True)
        plots.learning_curves(
            config.out / "comparison.png", panels, references=_references(summaries)
        )
        write_json_atomic(config.out / "comparison.json", rows)
        (config.out / "comparison.md").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {config.out}: {error}") from error
    print(f"{text}\n\nfigure and table in {config.out}")


def _demo_name(summary: dict[str, Any]) -> str:
    return summary["demo"]["name"] if summary.get("demo") else "none"


def _label(summary: dict[str, Any]) -> str:
    return f"{summary['agent']} ({_demo_name(summary)})"


def _read_summary(run: Path) -> dict[str, Any]:
    path = run / "summary.json"
    try:
        summary = json.loads(path.read_text())
        missing = {
            "game",
            "agent",
            "seed",
            "preset",
            "steps",
            "evaluations",
            "final",
            "demo",
        } - set(summary)
    except FileNotFoundError:
        raise UsageError(
            f"{run} has no summary.json: it is no run folder, or not finished"
        ) from None
    except ValueError as error:
        raise UsageError(f"{path} is damaged: {error}") from error
    if not missing and summary["final"]["mean"] is None:
        raise UsageError(f"{path} has no final score: no evaluation lies in its last part")
    if missing:
        raise UsageError(f"{path} is no Atari run's: it has no {', '.join(sorted(missing))}")
    return summary


def _comparison_rows(summaries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row per game, agent, preset, length and demonstration; runs in it differ by seed."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for s in summaries:
        groups[s["game"], s["agent"], s["preset"], s["steps"], _demo_name(s)].append(s)
    for (game, agent, preset, steps, demo), runs in sorted(groups.items()):
        seeds = [run["seed"] for run in runs]
        if len(set(seeds)) < len(seeds):
            raise UsageError(f"two runs of {game} with {agent} and {demo} have the same seed")
        paper = PAPER_SCORES.get(game, {}).get(agent)
        yield {
            "game": game,
            "agent": agent,
            "preset": preset,
            "steps": steps,
            "seeds": sorted(seeds),
            "mean": float(np.mean([run["final"]["mean"] for run in runs])),
            # As in the paper: the mean over seeds of each run's own deviation.
            "std": float(np.mean([run["final"]["std"] for run in runs])),
            "demo": demo,
            "demo_score": runs[0]["demo"]["score"] if runs[0]["demo"] else None,
            "paper": paper,
            "paper_steps": PAPER_STEPS[game] if paper else None,
        }


def comparison_table(rows: list[dict[str, Any]]) -> str:
    """Markdown: final scores here, and the paper's where it has them."""
    lines = [
        "| game | agent | preset | steps | seeds | final score | demonstration | paper |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        paper, demo = "-", row["demo"]
        if row["paper"]:
            mean, std = row["paper"]
            paper = f"{mean:g} ± {std:g} after {row['paper_steps'] // 10**6}M"
        if row["demo_score"] is not None:
            demo += f", {row['demo_score']:.1f}"
        lines.append(
            f"| {row['game']} | {row['agent']} | {row['preset']} | {row['steps']:,} "
            f"| {' '.join(map(str, row['seeds']))} | {row['mean']:.1f} ± {row['std']:.1f} "
            f"| {demo} | {paper} |"
        )
    return "\n".join(lines)
