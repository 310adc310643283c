"""Several runs side by side: one figure, one table, and the paper's results where it has them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax import files
from bqfd_jax.agents.presets import PAPER_STEPS
from bqfd_jax.runs import text
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.report import Summary, draw_curves

# Table 1 of the paper: mean and standard deviation of the evaluation scores over the last 2M agent
# steps, three seeds.
PAPER_SCORES = {
    "Breakout": {"dqn": (221, 75), "dqfd": (291, 119), "bqfd": (354, 132)},
    "ChopperCommand": {"dqn": (4493, 1295), "dqfd": (7067, 2403), "bqfd": (7377, 2801)},
    "Freeway": {"dqn": (30.4, 0.4), "dqfd": (28.2, 0.8), "bqfd": (29.8, 0.8)},
    "MsPacman": {"dqn": (3628, 725), "dqfd": (4927, 993), "bqfd": (3550, 613)},
    "Seaquest": {"dqn": (20595, 8248), "dqfd": (22388, 6294), "bqfd": (28546, 11613)},
    "VideoPinball": {"dqn": (8619, 12582), "dqfd": (17235, 15906), "bqfd": (30668, 18772)},
}
# What random play and a professional tester reach, by which scores are human-normalised (Wang et
# al.: "Dueling Network Architectures for Deep Reinforcement Learning", 2016).
HUMAN_SCORES = {
    "Breakout": (1.7, 30.5),
    "ChopperCommand": (811.0, 7387.8),
    "Freeway": (0.0, 29.6),
    "MsPacman": (307.3, 6951.6),
    "Seaquest": (68.4, 42054.7),
    "VideoPinball": (16256.9, 17667.9),
}
_NEEDED = {"game", "agent", "seed", "preset", "steps", "evaluations", "final", "demo"}


def compare(runs: Sequence[Path], out: Path) -> str:
    """Writes `comparison.png`, `.md` and `.json` about finished runs; returns the table."""
    if not runs:
        raise UsageError("name the folders of the runs to compare")
    summaries = [read_summary(run) for run in runs]
    panels: dict[str, dict[str, list[Summary]]] = defaultdict(lambda: defaultdict(list))
    for summary in summaries:
        panels[summary["game"]][_label(summary, summaries)].append(summary)
    rows = list(comparison_rows(summaries))
    table = comparison_table(rows)
    try:
        out.mkdir(parents=True, exist_ok=True)
        draw_curves(out / "comparison.png", panels)
        files.write_json(out / "comparison.json", rows)
        files.write_text(out / "comparison.md", table + "\n")
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error}") from error
    return table


def read_summary(run: Path) -> Summary:
    """A finished run's `summary.json`; raises `UsageError` if it cannot be compared."""
    path = run / "summary.json"
    try:
        summary = files.read_json(path)
    except FileNotFoundError:
        raise UsageError(
            f"{run} has no summary.json: it is no run folder, or not finished"
        ) from None
    except files.FileError as error:
        raise UsageError(str(error)) from error
    missing = _NEEDED - set(summary)
    if missing:
        raise UsageError(f"{path} is no training run's: it has no {', '.join(sorted(missing))}")
    if summary["final"]["mean"] is None:
        raise UsageError(f"{path} has no final score: no evaluation lies in its last part")
    return summary


def _demo_name(summary: Summary) -> str:
    return summary["demo"]["name"] if summary.get("demo") else "none"


def _label(summary: Summary, summaries: list[Summary]) -> str:
    label = f"{summary['agent']} ({_demo_name(summary)})"
    kinds = {(s["preset"], s["steps"]) for s in summaries if s["game"] == summary["game"]}
    # Only seeds share a colour, as only they share a row of the table.
    return f"{label}, {summary['preset']}, {summary['steps']:,}" if len(kinds) > 1 else label


def comparison_rows(summaries: list[Summary]) -> Iterator[dict[str, Any]]:
    """One row per game, agent, preset, length and demonstration; runs in it differ by seed."""
    groups: dict[tuple[Any, ...], list[Summary]] = defaultdict(list)
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
    head = ("game", "agent", "preset", "steps", "seeds", "final score", "demonstration", "paper")
    lines = [head]
    for row in rows:
        paper, demo = "-", row["demo"]
        if row["paper"]:
            mean, std = row["paper"]
            paper = f"{mean:g} ± {std:g} after {row['paper_steps'] // 10**6}M"
        if row["demo_score"] is not None:
            demo += f", {text.score(row['demo_score'])}"
        seeds = " ".join(map(str, row["seeds"]))
        final = f"{text.score(row['mean'])} ± {text.score(row['std'], row['mean'])}"
        run = (row["game"], row["agent"], row["preset"], f"{row['steps']:,}", seeds)
        lines.append((*run, final, demo, paper))
    return text.markdown(lines)
