"""Demonstrations from other people's files, one module per layout; all become frames.

A reader finds runs of frames without a gap (`takes.Take`), and `build.Builder` makes agent steps of
them: 4 emulator frames each, rewards added up, the maximum of the last two frames.  What could not
be used is counted, and a file that breaks its own layout is refused with its name, line and field.
"""

import os
from pathlib import Path
from typing import Any

from bqfd_jax import checks
from bqfd_jax.demos.importing.agc import read_agc
from bqfd_jax.demos.importing.arrays import from_arrays, read_arrays
from bqfd_jax.demos.importing.atari_head import read_atari_head
from bqfd_jax.demos.importing.build import Imported, Wanted
from bqfd_jax.demos.importing.minari import read_minari

SOURCES = {
    "atari-head": read_atari_head,
    "agc": read_agc,
    "minari": read_minari,
    "npz": read_arrays,
}

__all__ = ["SOURCES", "Imported", "Wanted", "from_arrays", "read"]


def read(source: str, path: str | os.PathLike[str], **wanted: Any) -> Imported:
    """Makes a demonstration of a file or folder in the layout `source`, one of `SOURCES`.

    Each layout is described in its module; for what may be `wanted` of it see `Wanted`.

    Raises:
      DemonstrationError: a file breaks the layout; the message names file and place.
    """
    options = Wanted(**wanted)
    checks.one_of(SOURCES, source=source)
    checks.at_least(0, max_steps=options.max_steps)
    return SOURCES[source](Path(path), options)
