"""What a run tells in the end: summary, table, curve."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax.runs import plots
from bqfd_jax.demos import Demonstration
from bqfd_jax.runs import folder as run_folder


def summarise(
    config: Any,
    demonstrations: Sequence[Demonstration],
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
    # With some numbers of games an evaluation comes a few steps later than its period says.  That
    # of step 0 never counts, as nothing but pre-training lies before it.
    first = min(max(steps - final_steps, 0) + slack, steps)
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
        {summary["game"]: {f"{summary['agent']}, seed {summary['seed']}": [curve(summary)]}},
        references=references([summary]),
    )


def curve(summary: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, means and deviations of a run's evaluations."""
    evaluations = summary["evaluations"]
    return tuple(np.array([e[name] for e in evaluations]) for name in ("step", "mean", "std"))


def references(summaries: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Scores of the demonstrations, as dashed lines for `plots.learning_curves`."""
    scores: dict[str, dict[str, float]] = {}
    for s in summaries:
        if s.get("demo"):
            scores.setdefault(s["game"], {})[s["demo"]["name"]] = s["demo"]["score"]
    return {
        game: {
            "demonstration" if len(named) == 1 else f"demonstration ({name})": score
            for name, score in named.items()
        }
        for game, named in scores.items()
    }
