"""Demonstrations from other people's files, one module per layout; all become frames.

A loader reads runs of frames without a gap (`takes.Take`), and `build.Builder` makes agent steps of
them: 4 emulator frames each, rewards added up, the maximum of the last two frames.  What could not
be used is counted, and a file that breaks its own layout is refused with its name, line and field.
"""

from bqfd_jax.demos.importing.agc import import_agc
from bqfd_jax.demos.importing.arrays import from_arrays, import_arrays
from bqfd_jax.demos.importing.atari_head import import_atari_head
from bqfd_jax.demos.importing.build import Imported
from bqfd_jax.demos.importing.minari import import_minari

SOURCES = {
    "atari-head": import_atari_head,
    "agc": import_agc,
    "minari": import_minari,
    "npz": import_arrays,
}

__all__ = [
    "SOURCES",
    "Imported",
    "from_arrays",
    "import_agc",
    "import_arrays",
    "import_atari_head",
    "import_minari",
]
