"""Several Atari runs side by side, and beside the paper's."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from bqfd_jax.files import write_json, write_text
from bqfd_jax.runs import plots
from bqfd_jax.runs.folder import UsageError
from bqfd_jax.runs.report import curve, references
from experiments.atari.config import PAPER_SCORES, PAPER_STEPS

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
        panels[summary["game"]][_label(summary, summaries)].append(curve(summary))
    rows = list(_comparison_rows(summaries))
    text = comparison_table(rows)
    try:
        config.out.mkdir(parents=True, exist_ok=True)
        plots.learning_curves(
            config.out / "comparison.png", panels, references=references(summaries)
        )
        write_json(config.out / "comparison.json", rows)
        write_text(config.out / "comparison.md", text + "\n")
    except OSError as error:
        raise UsageError(f"cannot write to {config.out}: {error}") from error
    print(f"{text}\n\nfigure and table in {config.out}")


def _demo_name(summary: dict[str, Any]) -> str:
    return summary["demo"]["name"] if summary.get("demo") else "none"


def _label(summary: dict[str, Any], summaries: list[dict[str, Any]]) -> str:
    label = f"{summary['agent']} ({_demo_name(summary)})"
    kinds = {(s["preset"], s["steps"]) for s in summaries if s["game"] == summary["game"]}
    # Only seeds share a colour, as only they share a row of the table.
    return f"{label}, {summary['preset']}, {summary['steps']:,}" if len(kinds) > 1 else label


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
