"""Prioritized replay of single observations, demonstrations included."""

from bqfd_jax.replay.demonstrations import check_demonstrations, check_discounts, with_room
from bqfd_jax.replay.prioritized import Replay, ReplayState, make_replay

__all__ = [
    "Replay",
    "ReplayState",
    "check_demonstrations",
    "check_discounts",
    "make_replay",
    "with_room",
]
