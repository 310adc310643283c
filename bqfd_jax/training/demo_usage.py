"""How often each of several demonstrations is drawn, and how much its expert still counts."""

from collections.abc import Mapping

import jax
import numpy as np

from bqfd_jax.agents import AnyAgentConfig, BqfdConfig
from bqfd_jax.agents.bqfd import visit_weight
from bqfd_jax.replay import ReplayState

_visit_weight = jax.jit(visit_weight, static_argnums=0)


def visits(replay_state: ReplayState) -> np.ndarray:
    """Visits of each demonstration row so far, `[E]` int64."""
    # On the host: over a long run their sum outgrows 32 bits.
    return np.asarray(replay_state.visit_count, np.int64)


def usage(
    sizes: Mapping[str, int], config: AnyAgentConfig, replay_state: ReplayState, since: np.ndarray
) -> dict[str, float]:
    """Metrics of each demonstration, in a replay where they lie one after the other.

    Args:
      sizes: name of each demonstration -> its rows, in their order; they sum to E.
      config: the agent's, of which BQfD's has a visit weight.
      replay_state: of now.
      since: the `visits` from which on draws count, `[E]`.

    Returns:
      `demo/<name>/share`, its share of the demonstration samples that were drawn since then, if
      there were any (pre-training does not count), and for BQfD `demo/<name>/visit_weight`, the
      mean over its transitions.
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
    drawn = sums(visits(replay_state) - since)
    if drawn.sum() > 0:
        for name, share in zip(sizes, drawn / drawn.sum(), strict=True):
            metrics[f"demo/{name}/share"] = float(share)
    if isinstance(config, BqfdConfig):
        starts = ~np.asarray(replay_state.rows.is_last[: len(since)])
        weight = np.where(starts, _visit_weight(config, replay_state.visit_count), 0.0)
        for name, mean in zip(sizes, sums(weight) / sums(starts), strict=True):
            metrics[f"demo/{name}/visit_weight"] = float(mean)
    return metrics
