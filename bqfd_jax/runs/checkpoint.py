"""Checkpoints of a run: named pytrees in, the same out, bit for bit, or a clear refusal.

A checkpoint has items, such as the learner and the replay.  Each can be read without the others, so
that whoever wants a network only never waits for gigabytes of replay.  A directory holds the last
few checkpoints:

    000007-step-50000/
      manifest.json             step, and of each item its paths, shapes, dtypes and checksums
      learner.zip               an item's arrays, compressed
      replay.zip

A checkpoint is written as `tmp-000007-step-50000`, manifest last, and renamed once it is all on
disk; so whatever has a proper name was whole when it got it.  Loading parses JSON and array bytes
and runs no code from the files.  One process at a time may save into a directory.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from bqfd_jax import checks, files
from bqfd_jax.runs.checkpoint_items import (
    CheckpointError,
    DamagedError,
    Description,
    check_description,
    differences,
    flatten,
    read_item,
    write_item,
)

_FORMAT = 4
_MANIFEST = "manifest.json"
_ITEM = re.compile(r"[a-z][a-z0-9_]*")
_NAME = re.compile(r"(\d{6,})-step-(\d+)")


class Checkpointer:
    """Saves and restores pytrees, each by its name, in a directory.

    Leaves may be jax arrays, typed PRNG keys, numpy arrays and python bools, ints and floats.

    Args:
      directory: where the checkpoints are; made at the first save.
      keep: how many whole checkpoints stay after a save, at least 1.
      on_skip: told in one sentence about anything found damaged; `warnings.warn` by default.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int = 2,
        on_skip: Callable[[str], None] | None = None,
    ):
        checks.at_least(1, keep=keep)
        self._directory = Path(directory)
        self._keep = keep
        self._on_skip = on_skip or functools.partial(warnings.warn, stacklevel=3)
        self._damaged: set[Path] = set()

    def steps(self) -> list[int]:
        """Steps of the checkpoints present, in the order they were saved; none is opened."""
        return list(dict.fromkeys(_step_of(path) for path in self._checkpoints()))

    def save(self, step: int, items: Mapping[str, Any]) -> Path:
        """Writes a checkpoint's folder, and only then deletes what is older than the last `keep`.

        Items are pytrees by names that are lower-case words.  Saving the same step again replaces
        it.

        Raises:
          CheckpointError: it could not be written; earlier checkpoints are untouched.
        """
        step = int(step)
        checks.at_least(0, step=step)
        leaves = {name: flatten(_checked_name(name), tree) for name, tree in items.items()}
        for path in self._leftovers():
            shutil.rmtree(path, ignore_errors=True)
        previous = self._checkpoints()
        number = _number_of(previous[-1]) + 1 if previous else 0
        final = self._directory / f"{number:06d}-step-{step}"
        temporary = self._directory / f"tmp-{final.name}"
        try:
            temporary.mkdir(parents=True)
            self._write(temporary, step, leaves)
            os.rename(temporary, final)
            files.sync(self._directory)
        except Exception as error:
            raise CheckpointError(
                f"could not save step {step} to {final} ({type(error).__name__}: {error}); "
                f"earlier checkpoints are untouched: steps {self.steps()}"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._prune(final)
        return final

    def restore(
        self, templates: Mapping[str, Any], *, step: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """Reads items of the newest checkpoint in which they are whole, going back past damage.

        Items that are not asked for are neither read nor checked.

        Args:
          templates: name -> pytree of the structure, shapes and dtypes wanted, as arrays or as
            `jax.ShapeDtypeStruct`s from `jax.eval_shape`, so that a large state need not be in
            memory twice.  Leaves come back as the template has them: numpy for numpy, python
            numbers for python numbers, otherwise jax arrays (weakly typed where it is).
          step: only a checkpoint of this step will do.

        Returns:
          `(step, items)`, or None if nothing was ever saved here (at that step).

        Raises:
          CheckpointError: there are checkpoints but none is whole; or the newest whole one lacks
            an item, or does not fit the templates.
        """
        wanted = {name: flatten(name, template) for name, template in templates.items()}
        skipped = [(path, "its writing was never finished") for path in self._leftovers()]
        checkpoints = [p for p in self._checkpoints() if step is None or _step_of(p) == step]
        for path in reversed(checkpoints):
            try:
                manifest = _read_manifest(path)
                if manifest["step"] != _step_of(path):
                    raise DamagedError(f"{_MANIFEST} is of step {manifest['step']}")
                described = _asked_for(path, manifest["items"], wanted)
                _check_fits(path, described, wanted)
                leaves = {
                    name: read_item(path / f"{name}.zip", description, wanted[name])
                    for name, description in described.items()
                }
            except (DamagedError, OSError) as error:
                skipped.append((path, str(error)))
                continue
            self._report(skipped, f"using {path} instead")
            return manifest["step"], {
                name: jax.tree_util.tree_structure(template).unflatten(leaves[name])
                for name, template in templates.items()
            }
        if checkpoints:
            # Whoever asked for one step may go on from another.
            self._damaged.update(path for path, _ in skipped)
            listed = "".join(f"\n  {path}: {wrong}" for path, wrong in skipped)
            raise CheckpointError(f"no checkpoint in {self._directory} is whole:{listed}")
        self._report(skipped, "there is no earlier one, starting anew")
        return None

    def _report(self, skipped: list[tuple[Path, str]], consequence: str) -> None:
        for path, wrong in skipped:
            self._damaged.add(path)
            self._on_skip(f"skipped checkpoint {path}: {wrong}; {consequence}")

    def _checkpoints(self) -> list[Path]:
        found = self._directory.glob("*-step-*")
        return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_number_of)

    def _leftovers(self) -> list[Path]:
        return sorted(self._directory.glob("tmp-*-step-*"))

    def _write(self, folder: Path, step: int, leaves: Mapping[str, Mapping[str, Any]]) -> None:
        body = {
            "format": _FORMAT,
            "step": step,
            "items": {
                name: write_item(folder / f"{name}.zip", flat) for name, flat in leaves.items()
            },
        }
        files.write_json(folder / _MANIFEST, {"body": body, "sha256": _digest(body)})

    def _prune(self, newest: Path) -> None:
        step = _step_of(newest)
        others = [path for path in self._checkpoints() if path != newest]
        # Known damage must not take the place of a checkpoint that could be fallen back to.
        sound = [p for p in others if p not in self._damaged and _step_of(p) != step]
        kept = sound[-(self._keep - 1) :] if self._keep > 1 else []
        for path in others:
            if path in kept:
                continue
            # Renamed first: a deletion cut short must not look like a damaged checkpoint.
            doomed = path.with_name(f"tmp-{path.name}")
            try:
                os.rename(path, doomed)
                shutil.rmtree(doomed)
            except OSError as error:
                self._on_skip(f"could not delete the old checkpoint {path}: {error}")


def _number_of(path: Path) -> int:
    return int(_NAME.fullmatch(path.name)[1])


def _step_of(path: Path) -> int:
    return int(_NAME.fullmatch(path.name)[2])


def _checked_name(name: str) -> str:
    checks.require(_ITEM.fullmatch(name), "an item's name", name, "a lower-case word")
    return name


def _digest(body: Mapping[str, Any]) -> str:
    """sha256 of a manifest's body, in which are the checksums of all files."""
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = files.read_json(path / _MANIFEST)
        files.check_fields(manifest, body=dict, sha256=str)
        body = manifest["body"]
        if manifest["sha256"] != _digest(body):
            raise DamagedError(f"{_MANIFEST} does not match its checksum")
        files.check_fields(body, format=int)
        if body["format"] != _FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {body['format']}, this version reads {_FORMAT}; "
                "resume with the version that wrote it"
            )
        files.check_fields(body, step=int, items=dict)
        for description in body["items"].values():
            check_description(description)
    except FileNotFoundError:
        raise DamagedError(f"{_MANIFEST} is missing") from None
    except files.FileError as error:
        raise DamagedError(f"{_MANIFEST} cannot be used ({error})") from error
    return body


def _asked_for(
    path: Path, there: Mapping[str, Description], wanted: Mapping[str, Any]
) -> dict[str, Description]:
    missing = [name for name in wanted if name not in there]
    if missing:
        raise CheckpointError(
            f"checkpoint {path} has no item {', '.join(missing)}, only {', '.join(there)}"
        )
    return {name: there[name] for name in wanted}


def _check_fits(
    path: Path, described: Mapping[str, Description], wanted: Mapping[str, Mapping[str, Any]]
) -> None:
    found = [
        line
        for name, description in described.items()
        for line in differences(description["leaves"], wanted[name])
    ]
    if found:
        more = f"\n  and {len(found) - 8} more" if len(found) > 8 else ""
        listed = "".join(f"\n  {line}" for line in found[:8])
        raise CheckpointError(
            f"checkpoint {path} is whole but was made with another configuration:{listed}{more}\n"
            "Resume with the configuration the run was started with, or use another directory."
        )
