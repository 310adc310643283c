"""Prioritized replay of single observations, demonstrations included."""

from bqfd_jax.replay.demonstrations import check_demonstrations, check_discounts, with_room
from bqfd_jax.replay.prioritized import Replay, ReplayState, make_replay
from bqfd_jax.replay.spread import make_mesh, spread_over

__all__ = [
    "Replay",
    "ReplayState",
    "check_demonstrations",
    "check_discounts",
    "make_mesh",
    "make_replay",
    "spread_over",
    "with_room",
]
