"""Where rows of metrics go besides `metrics.jsonl`: trackers that people already use.

A mirror never ends a run: what cannot be written there is given up with a warning.
"""

import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from bqfd_jax import extras
from bqfd_jax.runs.errors import RunError, UsageError

_TENSORBOARD = ("tensorboardX", "tensorboard", "--tensorboard")
_WANDB = ("wandb", "wandb", "--wandb")

WandbMode = Literal["off", "offline", "online"]


class Mirror(Protocol):
    """Takes rows that have a step."""

    name: str

    def write(self, row: Mapping[str, Any]) -> None:
        """A row, as it stands in the file."""

    def close(self) -> None:
        """Nothing more will come."""


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """What can be drawn of a row, without its step."""
    found = {name: value for name, value in row.items() if type(value) in (int, float)}
    found.pop("step", None)
    return found


class TensorBoard:
    """TensorBoard files, by tensorboardX.

    Args:
      folder: where they go.
      first_step: what was written for this step and later ones is forgotten.
    """

    name = "TensorBoard files"

    def __init__(self, folder: str | os.PathLike[str], first_step: int):
        tensorboard = extras.load(*_TENSORBOARD)
        self._writer = tensorboard.SummaryWriter(str(folder), purge_step=first_step)

    def write(self, row: Mapping[str, Any]) -> None:
        """All numbers of a row."""
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, row["step"])
        # tensorboardX writes from a thread, which dies of a full disk and then lets us wait.
        self._writer.flush()

    def close(self) -> None:
        """Closes the files."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, on their server or, offline, in files for `wandb sync`.

    Args:
      folder: of the run; the files lie in `wandb/` there, and the run goes on with it.
      config: the run's options, as `config.json` has them.
      mode: `offline` or `online`.
    """

    name = "Weights & Biases"

    def __init__(self, folder: Path, config: Mapping[str, Any], mode: WandbMode):
        wandb = extras.load(*_WANDB)
        title, agent = config.get("game") or config.get("env"), config.get("agent")
        try:
            self._run = wandb.init(
                project="bqfd-jax",
                # The same for every sitting of a run, so that they are one there, too.
                id=hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16],
                resume="allow",
                name=f"{title} {agent} {config.get('seed')}",
                group=f"{title} {agent}",
                config=dict(config),
                dir=str(folder),
                mode=mode,
                # Rows and options are what it is told, and nothing that it finds on the machine.
                settings=wandb.Settings(
                    host="",
                    console="off",
                    silent=True,
                    disable_git=True,
                    save_code=False,
                    x_disable_meta=True,
                    x_disable_stats=True,
                    x_disable_machine_info=True,
                    x_save_requirements=False,
                ),
            )
        except Exception as error:  # whatever a network or an account may be lacking
            advice = "--wandb offline takes neither an account nor a network"
            raise RunError(f"--wandb {mode}: {error}; {advice}") from error
        # Rows of evaluations may come late, which its own count of steps does not allow.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, row: Mapping[str, Any]) -> None:
        """All numbers of a row, with its step."""
        self._run.log(numbers(row) | {"step": row["step"]})

    def close(self) -> None:
        """Ends the run, as far as this sitting goes."""
        self._run.finish()


class Mirrors:
    """All of a run's mirrors; one that fails is left out from then on."""

    def __init__(self, mirrors: list[Mirror]):
        self._mirrors = mirrors

    def write(self, row: Mapping[str, Any]) -> None:
        """Hands a row to all, if it has a step."""
        if row.get("step") is None:
            return
        for mirror in list(self._mirrors):
            try:
                mirror.write(row)
            except Exception as error:
                warnings.warn(f"{mirror.name} are given up: {error}", stacklevel=3)
                self._mirrors.remove(mirror)

    def close(self) -> None:
        """Closes all; safe to call twice."""
        while self._mirrors:
            mirror = self._mirrors.pop()
            try:
                mirror.close()
            except Exception as error:
                warnings.warn(f"{mirror.name} could not be closed: {error}", stacklevel=3)


def load_tensorboard() -> None:
    """Raises `ImportError` that says what to install, if tensorboardX is missing."""
    extras.load(*_TENSORBOARD)


def check_trackers(*, tensorboard: bool = False, wandb: WandbMode = "off") -> None:
    """Raises `UsageError` if a tracker is wanted and cannot be used."""
    try:
        if tensorboard:
            extras.load(*_TENSORBOARD)
        if wandb != "off":
            extras.load(*_WANDB)
    except ImportError as error:
        raise UsageError(str(error)) from error
