"""How often each of several demonstrations is drawn, and how much its expert still counts."""

import functools
from collections.abc import Mapping

import jax
import numpy as np

from bqfd_jax import posterior
from bqfd_jax.agents import AgentConfig, BqfdConfig
from bqfd_jax.replay import ReplayState


class DemoUsage:
    """Reads the visit counts of a replay whose demonstrations lie one after the other.

    Args:
      sizes: name of each demonstration -> its rows, in their order; they sum to E.
      is_last: `[E]` bool, rows that start no transition; None if there are no demonstrations.
      config: the agent's, of which BQfD's has a visit weight.
    """

    def __init__(self, sizes: Mapping[str, int], is_last: np.ndarray | None, config: AgentConfig):
        if is_last is not None and sizes and sum(sizes.values()) != len(is_last):
            raise ValueError(f"the demonstrations {dict(sizes)} do not have {len(is_last)} rows")
        self._names = tuple(sizes)
        self._is_last = is_last
        self._ends = np.cumsum(list(sizes.values()), dtype=np.int64)
        self._weight = None
        if isinstance(config, BqfdConfig):
            self._weight = jax.jit(
                functools.partial(
                    posterior.visit_weight,
                    beta=config.beta,
                    variance=config.variance,
                    noise_ratio=config.noise_ratio,
                )
            )
        self._seen: np.ndarray | None = None

    def begin(self, replay_state: ReplayState) -> None:
        """Shares count what is drawn from here on."""
        self._seen = self._visits(replay_state)

    def read(self, replay_state: ReplayState) -> dict[str, float]:
        """Metrics of each demonstration.

        Returns:
          `demo/<name>/share`, its share of the demonstration samples that were drawn since the last
          call, if there were any (pre-training does not count), and for BQfD
          `demo/<name>/visit_weight`, the mean over its transitions.
        """
        if not self._names:
            return {}
        metrics = {}
        visits = self._visits(replay_state)
        drawn = visits - (visits if self._seen is None else self._seen)
        self._seen = visits
        if drawn.sum() > 0:
            for name, count in zip(self._names, drawn, strict=True):
                metrics[f"demo/{name}/share"] = float(count / drawn.sum())
        if self._weight is not None:
            weight = np.where(self._is_last, 0.0, self._weight(replay_state.visit_count))
            starts = self._per_demonstration(~self._is_last)
            for name, mean in zip(
                self._names, self._per_demonstration(weight) / starts, strict=True
            ):
                metrics[f"demo/{name}/visit_weight"] = float(mean)
        return metrics

    def _visits(self, replay_state: ReplayState) -> np.ndarray:
        # On the host: over a long run their sum outgrows 32 bits.
        return self._per_demonstration(np.asarray(replay_state.visit_count, np.int64))

    def _per_demonstration(self, values: np.ndarray) -> np.ndarray:
        """Sums, `[E]` -> one for each."""
        return np.array([part.sum() for part in np.split(values, self._ends[:-1])])
