"""Prioritized replay of single observations, demonstrations included."""

from bqfd_jax.replay.prioritized import Replay, ReplayState, check_demonstrations, make_replay

__all__ = ["Replay", "ReplayState", "check_demonstrations", "make_replay"]
