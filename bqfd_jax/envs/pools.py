"""Environments of several runs as one pool: the lanes of one run after those of another."""

from collections.abc import Sequence

import numpy as np

from bqfd_jax.envs import host
from bqfd_jax.types import HostEnvironment, HostStep


class Pool:
    """Environments of one kind as if they were one; a `HostEnvironment`.

    Args:
      parts: each with as many lanes.
    """

    def __init__(self, parts: Sequence[HostEnvironment]):
        self._parts = list(parts)
        first = self._parts[0]
        self.num_lanes = first.num_lanes * len(self._parts)
        self.num_actions = first.num_actions
        self.frame_shape, self.frame_dtype = first.frame_shape, first.frame_dtype

    @property
    def tallies(self) -> dict[str, np.ndarray]:
        """What its environments count, by name: `[L]`."""
        counts = [getattr(part, "tallies", {}) for part in self._parts]
        return {name: np.concatenate([own[name] for own in counts]) for name in counts[0]}

    def reset(self) -> HostStep:
        """Begins a new episode in every lane."""
        return _concatenate([part.reset() for part in self._parts])

    def step(self, actions: np.ndarray) -> HostStep:
        """Takes one action per lane, `[L]` integers."""
        pieces = np.split(actions, len(self._parts))
        return _concatenate([part.step(own) for part, own in zip(self._parts, pieces, strict=True)])


def _concatenate(steps: Sequence[HostStep]) -> HostStep:
    fields = zip(*steps, strict=True)
    return HostStep(*(None if field[0] is None else np.concatenate(field) for field in fields))


class RunsOfPool:
    """A pool of environments that several runs share: what it shows leads with the runs.

    Args:
      pool: with the lanes of one run after those of another.
      num_runs: whose lanes they are; each has as many.
    """

    def __init__(self, pool: HostEnvironment, num_runs: int):
        self._pool, self._num_runs = pool, num_runs
        self.num_actions = pool.num_actions
        self.frame_shape, self.frame_dtype = pool.frame_shape, pool.frame_dtype
        self.num_lanes = pool.num_lanes // num_runs  # of each run

    @property
    def tallies(self) -> dict[str, np.ndarray]:
        """What its environments count, by name: `[runs, L]`."""
        counts = getattr(self._pool, "tallies", {})
        return {name: count.reshape(self._num_runs, -1) for name, count in counts.items()}

    def reset(self) -> HostStep:
        """Begins a new episode in every lane; fields `[runs, L, ...]`."""
        return self._fold(self._pool.reset())

    def step(self, actions: np.ndarray) -> HostStep:
        """Takes actions `[runs, L]`."""
        return self._fold(self._pool.step(actions.reshape(-1)))

    def _fold(self, step: HostStep) -> HostStep:
        shape = (self._num_runs, self.num_lanes)
        folded = (
            None if field is None else field.reshape(*shape, *field.shape[1:]) for field in step
        )
        return HostStep(*folded)


class GroupScores(host.Scores):
    """`Scores` of steps that lead with the runs."""

    def __init__(self, num_runs: int, num_lanes: int):
        super().__init__(num_lanes)
        self.running = np.zeros((num_runs, num_lanes), np.float64)

    def see(self, step: HostStep) -> list[tuple[int, float]]:
        """Takes the newest step into account; returns run and score of what it ended."""
        runs = np.nonzero(step.is_last)[0].tolist()
        return list(zip(runs, super().see(step), strict=True))
