"""Demonstrations from other people's files, one module per layout; all become frames.

A reader finds runs of frames without a gap (`takes.Take`), and `build.Builder` makes agent steps of
them: 4 emulator frames each, rewards added up, the maximum of the last two frames.  What could not
be used is counted, and a file that breaks its own layout is refused with its name, line and field.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

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

__all__ = ["SOURCES", "Imported", "from_arrays", "read"]


def read(
    source: str,
    path: str | os.PathLike[str],
    *,
    game: str | None = None,
    only: Sequence[str] = (),
    max_steps: int = 0,
    name: str = "",
    tell: Callable[[str], None] = lambda progress: None,
) -> Imported:
    """Makes a demonstration of files; what `path`, `game` and `only` mean depends on their layout.

    Args:
      source: the layout, one of `SOURCES`; each is described in its module.
      path: the file or folder.
      game: the game or environment; needed if the files do not tell.
      only: trials, recordings or episodes to use, by their numbers; all unless given.
      max_steps: agent steps after which no more is read; 0: all.
      name: of the demonstration; made of the file's name unless given.
      tell: is called with what is being read, because that may take long.

    Returns:
      The demonstration, and what was left out.

    Raises:
      DemonstrationError: a file breaks the layout; the message names file and place.
    """
    checks.one_of(SOURCES, source=source)
    checks.at_least(0, max_steps=max_steps)
    return SOURCES[source](Path(path), Wanted(game, only, max_steps, name, tell))
