"""The files of the recorder: nothing that was saved is ever lost."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from bqfd_jax import demos
from bqfd_jax.demos import ActionDemonstration
from bqfd_jax.demos.making import recording
from bqfd_jax.runs.errors import UsageError

from .journal import Journal, create, fallback_folder


class Files:
    """Where recordings go; what was not saved yet is in a journal."""

    def __init__(self, path: Path, game: str, warn: Callable[[str], None] = print):
        """Checks that the first file can be written, before anybody plays."""
        if path.exists():
            raise UsageError(f"--out {path} exists already; name a new file")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise UsageError(f"--out {path} cannot be written; name a file in a folder of yours")
        self.journal = Journal(path, game, warn)
        self._wanted, self._warn = path, warn
        self.path: Path | None = None  # of the last one saved
        self.saved: ActionDemonstration | None = None

    def save(self, demonstration: ActionDemonstration) -> ActionDemonstration:
        """Writes a demonstration, then plays it back as a check and notes that in the file.

        Written first, because playing takes a while.  Whatever continues the last one saved takes
        its place, anything else gets a new file.

        Raises:
          DemonstrationError: it does not play back; the file is there all the same.
        """
        self.write(demonstration)
        checked = demos.verified(dataclasses.replace(demonstration, name=self.path.stem))
        demos.save(checked, self.path)
        self.saved = checked
        return checked

    def write(self, demonstration: ActionDemonstration) -> None:
        """Writes a demonstration that was not checked yet, elsewhere if it must be."""
        try:
            self._write(demonstration)
        except OSError as error:
            wanted, self._wanted = self._wanted, fallback_folder() / self._wanted.name
            self.saved = None
            try:
                self._write(demonstration)
            except OSError:
                self._wanted = wanted
                raise error from None
            self._warn(f"{wanted} CANNOT BE WRITTEN ({error}): SAVED AS {self.path} INSTEAD")

    def _write(self, demonstration: ActionDemonstration) -> None:
        path = self.path
        if self.saved is None or not recording.continues(demonstration, self.saved):
            # Two recorders may want the same name.
            descriptor, path = create(self._wanted)
            os.close(descriptor)
        try:
            demos.save(dataclasses.replace(demonstration, name=path.stem), path)
        except BaseException:
            if path != self.path:
                path.unlink(missing_ok=True)
            raise
        self.path, self.saved = path, demonstration

    def has(self, demonstration: ActionDemonstration) -> bool:
        """Whether that is what was last saved, and it was checked."""
        return (
            self.saved is not None
            and self.saved.frame_hash is not None
            # Steps that were taken back since do not belong to it.
            and len(self.saved.actions) == len(demonstration.actions)
            and recording.continues(self.saved, demonstration)
        )


def describe(saved: ActionDemonstration, path: Path) -> str:
    """What the player is told about a file that was checked."""
    scores = " + ".join(f"{score:,.0f}" for score in saved.scores)
    return (
        f"Saved as {path}: {len(saved.actions):,} steps, and it plays back to the same score, "
        f"{scores}."
    )
