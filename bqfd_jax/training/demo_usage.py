"""How often each of several demonstrations is drawn, and how much its expert still counts."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from bqfd_jax.agents import AnyAgentConfig, BqfdConfig
from bqfd_jax.agents.bqfd import visit_weight
from bqfd_jax.agents.trust import Trust, weight_name
from bqfd_jax.replay import ReplayState
from bqfd_jax.types import Array, LearnerState

_visit_weight = jax.jit(visit_weight, static_argnums=0)


class DemoRows(NamedTuple):
    """What of a replay tells about its demonstrations."""

    visit_count: Array  # [E] int32, visits of each row
    is_last: Array  # [E] bool, it ends an episode, so that nothing starts there
    trust: tuple[Trust, ...] = ()  # what the learner remembers of the demonstrations, if it does


def demo_rows(learner: LearnerState, replay_state: ReplayState, num_rows: int) -> DemoRows:
    """Of the first `num_rows` of one run's replay, or of several that lead with the runs."""
    own = slice(num_rows)
    rows = replay_state.rows
    return DemoRows(replay_state.visit_count[..., own], rows.is_last[..., own], learner.extra)


def visits(rows: DemoRows) -> np.ndarray:
    """Visits of each demonstration row so far, `[E]` int64."""
    # On the host: over a long run their sum outgrows 32 bits.
    return np.asarray(rows.visit_count, np.int64)


def usage(
    sizes: Mapping[str, int], config: AnyAgentConfig, rows: DemoRows, since: np.ndarray
) -> dict[str, float]:
    """Metrics of each demonstration, in a replay where they lie one after the other.

    Args:
      sizes: name of each demonstration -> its rows, in their order; they sum to E.
      config: the agent's, of which BQfD's has a visit weight.
      rows: of now.
      since: the `visits` from which on draws count, `[E]`.

    Returns:
      `demo/<name>/share`, its share of the demonstration samples that were drawn since then, if
      there were any (pre-training does not count).  For BQfD also `demo/<name>/visit_weight`, the
      mean over its transitions; of an ensemble `demo/<name>/ensemble_weight`, a running mean over
      those drawn, or `demo/<name>/expert_weight` if the smaller of both counts; and
      `demo/<name>/eta` if that is learnt.
    """
    if not sizes:
        return {}
    if sum(sizes.values()) != len(since):
        raise ValueError(f"the demonstrations {dict(sizes)} do not have {len(since)} rows")
    ends = np.cumsum(list(sizes.values()))[:-1]

    def sums(values: np.ndarray) -> np.ndarray:
        """From `[E]` to one of each demonstration."""
        return np.array([part.sum() for part in np.split(values, ends)])

    metrics = {}
    drawn = sums(visits(rows) - since)
    if drawn.sum() > 0:
        for name, share in zip(sizes, drawn / drawn.sum(), strict=True):
            metrics[f"demo/{name}/share"] = float(share)
    if isinstance(config, BqfdConfig) and config.weight == "visits":
        starts = ~np.asarray(rows.is_last)
        weight = np.where(starts, _visit_weight(config, rows.visit_count), 0.0)
        for name, mean in zip(sizes, sums(weight) / sums(starts), strict=True):
            metrics[f"demo/{name}/visit_weight"] = float(mean)
    for trust in rows.trust:
        if (called := weight_name(config)) is not None:
            for name, weight in zip(sizes, np.asarray(trust.weight), strict=True):
                metrics[f"demo/{name}/{called}"] = float(weight)
        for name, eta in etas(sizes, config, rows).items():
            metrics[f"demo/{name}/eta"] = eta
    return metrics


def etas(sizes: Mapping[str, int], config: AnyAgentConfig, rows: DemoRows) -> dict[str, float]:
    """How far each demonstration's expert could be trusted, by its name; empty if not learnt."""
    if not (sizes and rows.trust and config.learn_eta):
        return {}
    found = np.exp(np.asarray(rows.trust[0].log_eta))
    return dict(zip(sizes, found.tolist(), strict=True))
