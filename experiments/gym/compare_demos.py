"""Demonstrations of different quality, several agents and seeds: learning curves and a table."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from bqfd_jax import checks, demos
from bqfd_jax.agents.presets import ActingAgentName
from bqfd_jax.files import plain, read_json, write_json, write_text
from bqfd_jax.runs import text
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.gym import GymConfig
from bqfd_jax.runs.report import Summary, draw_curves
from bqfd_jax.runs.sinks import Sink
from bqfd_jax.runs.statistics import mean_interval

from .training import make_demonstration, train

Quality = Literal["mediocre", "bad"]


@dataclasses.dataclass(frozen=True)
class CompareDemosConfig:
    """Agents with demonstrations, and DQN without: the same budget, several seeds.

    Runs that are finished are not repeated, and one that was stopped goes on, if the command is
    given again.
    """

    envs: tuple[str, ...] = ("CartPole-v1", "LunarLander-v3")
    """Environments."""
    agents: tuple[ActingAgentName, ...] = ("bqfd", "ensemble_bqfd", "dqfd", "dqn")
    """Agents that get demonstrations (DQN has them in its replay); DQN without is always there."""
    qualities: tuple[Quality, ...] = ("mediocre", "bad")
    """Demonstrations."""
    seeds: int = 5
    """Seeds, from 0 on."""
    steps: int = 50_000
    """Agent steps of each run."""
    demo_steps: int = 2_000
    """Agent steps of each demonstration, at least."""
    eval_period: int = 2_500
    """Agent steps between evaluations."""
    eval_episodes: int = 10
    """Episodes per evaluation."""
    out: Path = Path("runs/compare-demos")
    """Folder for all runs, comparison.png, comparison.md and comparison.json."""


class Case(NamedTuple):
    """An environment, an agent and a quality of demonstrations; DQN without has none."""

    env: str
    agent: str
    quality: str | None

    @property
    def folder(self) -> str:
        """Below the comparison's."""
        name = self.env.replace("/", "-").replace(":", "-")
        return f"{name}/{self.agent}-{self.quality or 'none'}"


def cases(config: CompareDemosConfig) -> Iterator[Case]:
    """All of them, each environment's together."""
    for env in dict.fromkeys(config.envs):
        yield Case(env, "dqn", None)
        for quality in config.qualities:
            for agent in config.agents:
                yield Case(env, agent, quality)


def compare_demos(config: CompareDemosConfig, sink: Sink) -> None:
    """The command `compare-demos`."""
    checks.at_least(1, seeds=config.seeds, steps=config.steps, demo_steps=config.demo_steps)
    checks.at_least(1, eval_period=config.eval_period, eval_episodes=config.eval_episodes)
    config.out.mkdir(parents=True, exist_ok=True)
    # Runs that differ by their seed only need not be compiled again.
    jax.config.update("jax_compilation_cache_dir", str((config.out / "compiled").absolute()))
    results = {
        case: [_run(config, case, seed, sink) for seed in range(config.seeds)]
        for case in cases(config)
    }
    rows = [row_of(case, results) for case in results]
    told = table(rows)
    draw(config.out / "comparison.png", results)
    write_json(config.out / "comparison.json", rows)
    write_text(config.out / "comparison.md", told + "\n")
    sink.say(f"\n{told}\n\nfigure and table in {config.out}")


def _run(config: CompareDemosConfig, case: Case, seed: int, sink: Sink) -> Summary:
    """One run; what is finished is read, what was begun goes on."""
    out = config.out / case.folder / f"seed-{seed}"
    base = GymConfig.of(config.steps)
    demo = ("none",) if case.quality is None else (str(_demonstration(config, case, sink)),)
    run = dataclasses.replace(
        base,
        env=case.env,
        agent=case.agent,
        seed=seed,
        demo=demo,
        # What was made to other measure is another run, though its file has the same name.
        demo_steps=base.demo_steps if case.quality is None else config.demo_steps,
        eval_period=config.eval_period,
        eval_episodes=config.eval_episodes,
        final_steps=max(config.steps // 5, 1),
        checkpoint_period=max(config.steps // 4, 1),
        video=False,
        out=out,
        resume=(out / "config.json").exists(),
    )
    summary = out / "summary.json"
    if summary.exists():
        there = read_json(out / "config.json")
        # The file of a demonstration is compared, what is in it when a run goes on.
        there.pop("demonstrations", None)
        # An earlier version may have had fewer options.
        if plain(GymConfig.completed(there)) != plain(run.stored()):
            raise UsageError(f"{out} holds another run; choose another --out")
        return read_json(summary)
    sink.say(f"\n--- {out} ---")
    return train(run, sink)


def _demonstration(config: CompareDemosConfig, case: Case, sink: Sink) -> Path:
    """The file of a demonstration that all agents and seeds share."""
    path = config.out / Path(case.folder).parent / f"{case.quality}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = dataclasses.replace(
            GymConfig.of(config.steps),
            env=case.env,
            demo_quality=case.quality,
            demo_steps=config.demo_steps,
        )
        demos.save(make_demonstration(settings, sink), path)
    return path


# --- What came of it ---


def steps_to_reach(summary: Summary, score: float) -> int | None:
    """The step of the first evaluation that is at least as good; None: there is none."""
    for evaluation in summary["evaluations"]:
        if evaluation["mean"] >= score:
            return evaluation["step"]
    return None


def row_of(case: Case, results: dict[Case, list[Summary]]) -> dict[str, Any]:
    """What a case came to; DQN's is compared with each demonstration of its environment."""
    runs = results[case]
    final = np.array([run["final"]["mean"] for run in runs])
    row = {
        "env": case.env,
        "agent": case.agent,
        "demonstration": case.quality,
        "demonstration_return": runs[0]["demo"]["score"] if runs[0]["demo"] else None,
        "final": final.tolist(),
        "final_mean": float(final.mean()),
        "final_interval": float(mean_interval(final)),
        "reached": None,
        "reached_without": None,
        "sooner": None,
    }
    if case.quality is not None:
        score = row["demonstration_return"]
        without = results[_without(case)]
        row["reached"] = [steps_to_reach(run, score) for run in runs]
        row["reached_without"] = [steps_to_reach(run, score) for run in without]
        pairs = zip(row["reached"], row["reached_without"], strict=True)
        row["sooner"] = sum(_number(own) < _number(other) for own, other in pairs)
    return row


def _without(case: Case) -> Case:
    return Case(case.env, "dqn", None)


def _number(step: int | None) -> float:
    return np.inf if step is None else step


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    head = ("environment", "demonstration (its return)", "agent", "final return")
    lines = [(*head, "steps to its return", "DQN's", "sooner than DQN")]
    for row in rows:
        demo, sooner = "none", "-"
        if row["demonstration"]:
            demo = f"{row['demonstration']} ({text.score(row['demonstration_return'])})"
            sooner = f"{row['sooner']} of {len(row['final'])} seeds"
        final = text.score(row["final_mean"])
        if len(row["final"]) > 1:
            final += f" ± {text.score(row['final_interval'], row['final_mean'])}"
        reached = [_steps(row[name]) for name in ("reached", "reached_without")]
        lines.append((row["env"], demo, row["agent"], final, *reached, sooner))
    return text.markdown(lines)


def _steps(steps: list[int | None] | None) -> str:
    return "-" if steps is None else " ".join("never" if s is None else f"{s:,}" for s in steps)


def draw(path: Path, results: dict[Case, list[Summary]]) -> None:
    """A panel per environment and demonstration: the mean over seeds and its 95 % interval."""
    panels: dict[str, dict[str, list[Summary]]] = {}
    for case, runs in results.items():
        if case.quality is None:
            continue
        panel = panels.setdefault(f"{case.env}, {case.quality} demonstration", {})
        panel[case.agent] = runs
        panel["dqn, none shown"] = results[_without(case)]
    if panels:
        draw_curves(path, panels, spread=mean_interval)
