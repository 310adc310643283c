"""Demonstrations: what they are, their files, those that come along, and playing them."""

from bqfd_jax.demos.demonstration import (
    ActionDemonstration,
    Demonstration,
    load,
    save,
)
from bqfd_jax.demos.errors import DemonstrationError
from bqfd_jax.demos.fitting import as_list, rows_for, sizes, with_unique_names
from bqfd_jax.demos.frames import FrameDemonstration, frame_rows
from bqfd_jax.demos.named import available, load_named
from bqfd_jax.demos.playback import default_cache_dir, frame_hash, play, play_cached, to_rows

__all__ = [
    "ActionDemonstration",
    "Demonstration",
    "DemonstrationError",
    "FrameDemonstration",
    "as_list",
    "available",
    "default_cache_dir",
    "frame_hash",
    "frame_rows",
    "load",
    "load_named",
    "play",
    "play_cached",
    "rows_for",
    "save",
    "sizes",
    "to_rows",
    "with_unique_names",
]
