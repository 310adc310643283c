"""The numbers of a report: scores by game and agent, and what they say of the agents in all."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bqfd_jax.agents.presets import AGENTS
from bqfd_jax.runs.compare import HUMAN_SCORES, PAPER_SCORES
from bqfd_jax.runs.page.collect import Entry
from bqfd_jax.runs.statistics import (
    Interval,
    pooled_interquartile_mean,
    probability_of_improvement,
    stratified_interval,
)

# The same runs give the same page.
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Score:
    """What an agent came to in a game, over seeds."""

    title: str
    label: str
    finals: np.ndarray  # [seeds], mean scores of finished runs
    deviations: np.ndarray  # [seeds], of the episodes of each
    runs: int  # asked for, finished or not
    paper: tuple[float, float] | None  # mean and deviation in the paper's Table 1

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(self.finals.mean())

    @property
    def std(self) -> float:
        """As in the paper: the mean over seeds of each run's own deviation."""
        return float(self.deviations.mean())


class Aggregate(NamedTuple):
    """An agent in all games: scores are 0 for random play and 1 for a person."""

    label: str
    games: int
    interval: Interval


class Improvement(NamedTuple):
    """How likely one agent is better than another on a game that both have played."""

    label: str
    other: str
    games: int
    interval: Interval


def titles(entries: Sequence[Entry]) -> list[str]:
    """Games or environments, in alphabetical order."""
    return sorted({entry.title for entry in entries})


def labels(entries: Sequence[Entry]) -> list[str]:
    """Agents and what is special about them, in the order of the one table of agents."""
    order = {name: number for number, name in enumerate(AGENTS)}
    found = {(order.get(entry.agent, len(order)), entry.label) for entry in entries}
    return [label for _, label in sorted(found)]


def ordered(entries: Sequence[Entry]) -> list[Entry]:
    """By game, agent and seed."""
    order = {label: number for number, label in enumerate(labels(entries))}
    return sorted(entries, key=lambda one: (one.title, order[one.label], one.seed))


def scores(entries: Sequence[Entry]) -> dict[tuple[str, str], Score]:
    """What came of each game and agent that was asked for, by (title, label)."""
    found = {}
    for title, label in itertools.product(titles(entries), labels(entries)):
        runs = [entry for entry in entries if (entry.title, entry.label) == (title, label)]
        if not runs:
            continue
        finals = [entry.final for entry in runs if entry.final is not None]
        found[title, label] = Score(
            title,
            label,
            np.array([final["mean"] for final in finals]),
            np.array([final["std"] for final in finals]),
            len(runs),
            PAPER_SCORES.get(title, {}).get(runs[0].agent),
        )
    return found


def human_normalised(entries: Sequence[Entry]) -> list[Aggregate]:
    """Interquartile means of the agents over the games whose human scores are known.

    Only games in which every agent has a finished run count, so that all are measured alike; an
    agent that has finished nothing yet is left out.
    """
    table = scores(entries)
    known = [title for title in titles(entries) if title in HUMAN_SCORES]
    agents = [
        label for label in labels(entries) if any(_is_there(table, title, label) for title in known)
    ]
    shared = [title for title in known if all(_is_there(table, title, own) for own in agents)]
    if not shared:
        return []
    random = np.random.default_rng(_SEED)
    found = []
    for label in agents:
        tasks = [_normalised(title, table[title, label].finals) for title in shared]
        interval = stratified_interval(pooled_interquartile_mean, tasks, random)
        found.append(Aggregate(label, len(shared), interval))
    return found


def _is_there(table: dict[tuple[str, str], Score], title: str, label: str) -> bool:
    return (title, label) in table and len(table[title, label].finals) > 0


def _normalised(title: str, finals: np.ndarray) -> np.ndarray:
    at_random, human = HUMAN_SCORES[title]
    return (finals - at_random) / (human - at_random)


def improvements(entries: Sequence[Entry]) -> list[Improvement]:
    """Of all pairs of agents, each once, over the games that both have finished."""
    table, random = scores(entries), np.random.default_rng(_SEED)
    found = []
    for label, other in itertools.combinations(labels(entries), 2):
        shared = [
            title
            for title in titles(entries)
            if _is_there(table, title, label) and _is_there(table, title, other)
        ]
        if not shared:
            continue
        runs = [table[title, own].finals for own in (label, other) for title in shared]
        interval = stratified_interval(_mean_improvement, runs, random)
        found.append(Improvement(label, other, len(shared), interval))
    return found


def _mean_improvement(groups: Sequence[np.ndarray]) -> np.ndarray:
    """Of games: the first half of the groups are ours, the second theirs."""
    half = len(groups) // 2
    pairs = zip(groups[:half], groups[half:], strict=True)
    return np.mean([probability_of_improvement(ours, theirs) for ours, theirs in pairs], axis=0)
