"""Demonstrations: what they are, their files, those that come along, and playing them."""

from bqfd_jax.demos.demonstration import Demonstration, DemonstrationError, load, save
from bqfd_jax.demos.named import available, load_named
from bqfd_jax.demos.replaying import default_cache_dir, frame_hash, replay, replay_cached

__all__ = [
    "Demonstration",
    "DemonstrationError",
    "available",
    "default_cache_dir",
    "frame_hash",
    "load",
    "load_named",
    "replay",
    "replay_cached",
    "save",
]
