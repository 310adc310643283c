"""The file that a command writes a demonstration to."""

import os
from pathlib import Path

from bqfd_jax import demos
from bqfd_jax.runs.errors import RunError, UsageError


def check_out(out: Path, *, overwrite: bool) -> None:
    """Refuses a file that cannot be written, before anything long begins; makes its folder."""
    if out.suffix != ".npz":
        raise UsageError(f"--out is {out}, but demonstrations are files that end in .npz")
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder; name a file")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists already; add --overwrite, or choose another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {out.parent}: {error.strerror or error}") from error
    if not os.access(out.parent, os.W_OK):
        raise UsageError(f"cannot write to {out.parent}: it is read-only")


def save(demonstration: demos.Demonstration, out: Path) -> None:
    """Writes a demonstration, or says why not."""
    try:
        demos.save(demonstration, out)
    except OSError as error:
        raise RunError(f"cannot write {out}: {error.strerror or error}") from error
