"""Comparing agents by few seeds: interquartile means, bootstrap intervals, who is best where.

Agarwal et al.: "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021), whose
library rliable defines the first two.  A task is whatever was repeated with several seeds.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

from bqfd_jax import checks


class Interval(NamedTuple):
    """An estimate and how sure it is."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """The mean of the middle half of all runs of all tasks.

    Of n values, the `floor(n / 4)` smallest and as many largest are left out.

    Args:
      scores: `[..., tasks, seeds]`.

    Returns:
      The means, `[...]`.
    """
    scores = _check(scores)
    return scipy.stats.trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1)


def bootstrap_interval(
    scores: np.ndarray,
    random: np.random.Generator,
    *,
    samples: int = 2000,
    level: float = 0.95,
    copies: int = 1,
) -> Interval:
    """The interquartile mean and its stratified bootstrap interval, by percentiles.

    Seeds are drawn again with replacement within each task, so that every task keeps its weight.

    Args:
      scores: `[tasks, seeds]`.
      random: where chance comes from; it is advanced.
      samples: how often all is drawn again.
      level: share of the samples that lies within the interval.
      copies: how many tasks each row stands for, if the very same runs count for several: they
        have that weight, but are drawn together.

    Returns:
      The estimate from `scores` themselves, and the interval; one seed gives none (NaN).
    """
    scores = _check(scores)
    if scores.ndim != 2:
        raise ValueError(f"scores have shape {scores.shape}, but must be [tasks, seeds]")
    checks.at_least(1, samples=samples, copies=copies)
    checks.require(0 < level < 1, "level", level, "between 0 and 1")
    value = float(interquartile_mean(np.repeat(scores, copies, axis=1)))
    if scores.shape[1] == 1:
        return Interval(value, math.nan, math.nan)
    seed = random.integers(scores.shape[1], size=(samples, *scores.shape))
    drawn = np.take_along_axis(scores[None], seed, axis=2)
    means = interquartile_mean(np.repeat(drawn, copies, axis=2))
    tail = (1 - level) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    return Interval(value, float(low), float(high))


def stratified_interval(
    statistic: Callable[[Sequence[np.ndarray]], np.ndarray],
    groups: Sequence[np.ndarray],
    random: np.random.Generator,
    *,
    samples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Any statistic of runs and its stratified bootstrap interval, by percentiles.

    For tasks that have not all the same number of runs, as while some are still running.

    Args:
      statistic: from groups `[..., runs]` to `[...]`.
      groups: runs of each task, or of each task and agent; drawn again within each.
      random: where chance comes from; it is advanced.
      samples: how often all is drawn again.
      level: share of the samples that lies within the interval.

    Returns:
      The estimate, and the interval; a group of a single run gives none (NaN).
    """
    groups = [_check(np.asarray(group)[None])[0] for group in groups]
    value = float(statistic(groups))
    if min(map(len, groups)) == 1:
        return Interval(value, math.nan, math.nan)
    drawn = [group[random.integers(len(group), size=(samples, len(group)))] for group in groups]
    tail = (1 - level) / 2
    low, high = np.quantile(statistic(drawn), (tail, 1 - tail))
    return Interval(value, float(low), float(high))


def pooled_interquartile_mean(groups: Sequence[np.ndarray]) -> np.ndarray:
    """`interquartile_mean` of groups `[..., runs]` that need not be of one size."""
    return scipy.stats.trim_mean(np.concatenate(groups, axis=-1), 0.25, axis=-1)


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """How likely a run of ours is better than one of theirs on the same task; a tie counts half.

    Args:
      ours: `[..., runs]`.
      theirs: `[..., other_runs]`.

    Returns:
      The shares of all pairs, `[...]`.
    """
    difference = np.sign(ours[..., :, None] - theirs[..., None, :])
    return (difference.mean(axis=(-2, -1)) + 1) / 2


def mean_interval(values: np.ndarray) -> np.ndarray:
    """Half the width of the 95 % interval of the mean over the first axis, by Student's t.

    NaN where there is one value alone.
    """
    n = len(values)
    if n < 2:
        return np.full(values.shape[1:], np.nan)
    return scipy.stats.t.ppf(0.975, n - 1) * values.std(axis=0, ddof=1) / np.sqrt(n)


def is_best(losses: np.ndarray, *, tolerance: float = 0.0) -> np.ndarray:
    """Who is best where: all whose loss exceeds the least by no more than `tolerance`.

    Args:
      losses: `[agents, tasks]`, less is better.
      tolerance: differences up to this are none.

    Returns:
      `[agents, tasks]` bool, at least one per task.
    """
    losses = _check(losses)
    return losses <= losses.min(axis=0, keepdims=True) + tolerance


def share_best(losses: np.ndarray, *, tolerance: float = 0.0) -> np.ndarray:
    """In what share of the tasks each agent is best; where several are, they share the task.

    Args:
      losses: `[agents, tasks]`, less is better.
      tolerance: as for `is_best`.

    Returns:
      `[agents]`, adding up to 1.
    """
    best = is_best(losses, tolerance=tolerance)
    return (best / best.sum(axis=0, keepdims=True)).mean(axis=1)


def _check(scores: np.ndarray) -> np.ndarray:
    scores = np.asarray(scores, float)
    if scores.ndim < 2 or 0 in scores.shape:
        raise ValueError(
            f"scores have shape {scores.shape}, but must have two axes at least, none of it 0"
        )
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite; leave out the runs that failed, and say so")
    return scores
