"""Demonstrations: what they are, their files, those that come along, and playing them."""

from bqfd_jax.demos.demonstration import (
    AnyDemonstration,
    Demonstration,
    load,
    save,
)
from bqfd_jax.demos.errors import DemonstrationError
from bqfd_jax.demos.frames import FrameDemonstration, frame_rows
from bqfd_jax.demos.named import available, load_named
from bqfd_jax.demos.playback import default_cache_dir, frame_hash, replay, replay_cached, to_rows

__all__ = [
    "AnyDemonstration",
    "Demonstration",
    "DemonstrationError",
    "FrameDemonstration",
    "available",
    "default_cache_dir",
    "frame_hash",
    "frame_rows",
    "load",
    "load_named",
    "replay",
    "replay_cached",
    "save",
    "to_rows",
]
