"""Demonstrations: what they are, their files, those that come along, and playing them."""

from bqfd_jax.demos.agreement import Agreement, ask_policy
from bqfd_jax.demos.demonstration import ActionDemonstration, Demonstration, load, save
from bqfd_jax.demos.fitting import as_list, num_actions_of, rows_for, sizes, with_unique_names
from bqfd_jax.demos.frames import FrameDemonstration, frame_rows
from bqfd_jax.demos.informativeness import Measure, measure
from bqfd_jax.demos.named import NAMES, available, load_named
from bqfd_jax.demos.paper_scores import PAPER_PLAYER
from bqfd_jax.demos.playback import default_cache_dir, frame_hash, play, to_rows, verified
from bqfd_jax.demos.schema import DemonstrationError

__all__ = [
    "NAMES",
    "PAPER_PLAYER",
    "ActionDemonstration",
    "Agreement",
    "Demonstration",
    "DemonstrationError",
    "FrameDemonstration",
    "Measure",
    "as_list",
    "ask_policy",
    "available",
    "default_cache_dir",
    "frame_hash",
    "frame_rows",
    "load",
    "load_named",
    "measure",
    "num_actions_of",
    "play",
    "rows_for",
    "save",
    "sizes",
    "to_rows",
    "verified",
    "with_unique_names",
]
