"""What a run remembers of itself: rows of metrics, checkpoints, the time that it has taken."""

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax import files
from bqfd_jax.runs import folder as run_folder
from bqfd_jax.runs.checkpoint import Checkpointer, CheckpointError
from bqfd_jax.runs.errors import RunError
from bqfd_jax.runs.metrics import MetricsWriter, read_jsonl
from bqfd_jax.runs.mirrors import Mirror, WandbMode, WeightsAndBiases
from bqfd_jax.runs.sinks import Sink

Row = Mapping[str, Any]


class Journal:
    """Rows and checkpoints in a run folder, or rows in memory alone.

    Rows that cannot be written (a full disk) are kept and tried again with the next.  What was
    deleted while the run goes on is written anew.  Checkpoints know whose they are.

    Args:
      folder: of the run, with its `config.json`; None keeps everything in memory, saves nothing.
      sink: what is told of rows and troubles.
      part: of a run that has several, each with checkpoints of its own, below this name.
      keep: how many checkpoints stay.
      tensorboard: mirror the rows for TensorBoard.
      wandb: mirror them for Weights & Biases: `off`, `offline` or `online`.
      position: where the rows of this part begin in `metrics.jsonl`, in bytes.
    """

    def __init__(
        self,
        folder: Path | None,
        sink: Sink,
        *,
        part: str = "",
        keep: int = 2,
        tensorboard: bool = False,
        wandb: WandbMode = "off",
        position: int = 0,
    ):
        self.folder, self._sink = folder, sink
        self.rows: list[Row] = []
        self._pending: list[Row] = []
        self._writer: MetricsWriter | None = None
        self._checkpointer = None
        self._started = time.perf_counter()
        self._saved: dict[str, Any] = {"metrics_position": position, "seconds": 0.0}
        if folder is None:
            return
        self._config = run_folder.read_config(folder)
        self._saved["identity"] = np.frombuffer(run_folder.identity(self._config), np.uint8)
        self._tensorboard = folder / "tensorboard" / part if tensorboard else None
        self._mirror: Callable[[], Mirror] | None = None
        if wandb != "off":
            self._mirror = functools.partial(WeightsAndBiases, folder, self._config, wandb)
        self._checkpointer = Checkpointer(
            folder / "checkpoints" / part, keep=keep, on_skip=sink.say
        )
        self._path = folder / "metrics.jsonl"
        # The rows as of the last checkpoint, should the file be lost or damaged.
        self._copy = folder / "checkpoints" / part / "metrics.jsonl"

    def restore(
        self, templates: Mapping[str, Any], *, step: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """Step and items of the last checkpoint (of that step), from which rows and time go on too.

        Raises:
          RunError: it is another run's.
        """
        if self._checkpointer is None:
            return None
        restored = self._checkpointer.restore({**templates, "journal": self._saved}, step=step)
        if restored is None:
            return None
        step, items = restored
        own = items.pop("journal")
        if (own["identity"] != self._saved["identity"]).any():
            raise RunError(
                f"the checkpoint of step {step} in {self.folder} was made by another run than its "
                "config.json tells of; put the right one back, or start anew in another folder"
            )
        self._saved = own
        return step, items

    def open(self) -> None:
        """Begins to write, after `restore` if there is something to restore."""
        if self.folder is None:
            return
        try:
            self._open()
        except ValueError as error:
            if not self._copy.exists():
                raise RunError(
                    f"{error}. Put the file back, or start anew in another folder."
                ) from error
            self._sink.warn(f"{error}; it is put back as it was at the last checkpoint")
            with files.replacing(self._path) as file:
                file.write(self._copy.read_bytes())
            self._open()

    def _open(self) -> None:
        self._writer = self._new_writer(self._saved["metrics_position"])
        # Damage is told of now and not in the end.
        self.rows = list(read_jsonl(self._path))

    def _new_writer(self, position: int) -> MetricsWriter:
        return MetricsWriter(
            self._path,
            position=position,
            tensorboard_dir=self._tensorboard,
            mirror=self._mirror,
        )

    @property
    def seconds(self) -> float:
        """Time spent on the run, in earlier sittings too."""
        return self._saved["seconds"] + time.perf_counter() - self._started

    @property
    def evaluations(self) -> list[Row]:
        """Rows of all evaluations so far."""
        return [row for row in self.rows if "eval_mean" in row]

    @property
    def saved_steps(self) -> list[int]:
        """Steps of the checkpoints."""
        return [] if self._checkpointer is None else self._checkpointer.steps()

    def write(self, row: Row) -> None:
        """Appends a row, now or later."""
        self.rows.append(row)
        self._sink.row(row)
        if self._writer is None:
            return
        self._pending.append(row)
        try:
            if not self._writer.is_there():
                self._write_anew()
            self.flush()
        except OSError as error:
            self._sink.warn(f"metrics.jsonl cannot be written, trying again later: {error}")

    def _write_anew(self) -> None:
        """Somebody has deleted the file, or the whole folder, while the run goes on."""
        self._sink.warn(f"{self._path} is gone; what is known is written anew")
        self.folder.mkdir(parents=True, exist_ok=True)
        run_folder.write_config(self.folder, self._config)
        self._writer.close()
        self._writer = self._new_writer(0)
        self._pending = list(self.rows)

    def flush(self) -> None:
        """Writes what waits; raises `OSError` if that still fails."""
        while self._pending:
            self._writer.write(self._pending[0])
            self._pending.pop(0)

    def position(self) -> int:
        """Bytes of `metrics.jsonl`, once nothing waits any more."""
        self.flush()
        return self._saved["metrics_position"] if self._writer is None else self._writer.position()

    def save(self, step: int, items: Mapping[str, Any]) -> Path | None:
        """A checkpoint; None, and a warning, if it cannot be written: training goes on."""
        if self._checkpointer is None:
            return None
        try:
            own = {**self._saved, "metrics_position": self.position(), "seconds": self.seconds}
            saved = self._checkpointer.save(step, {**items, "journal": own})
            with files.replacing(self._copy) as file:
                file.write(self._path.read_bytes())
            return saved
        except (CheckpointError, OSError) as error:
            self._sink.warn(f"NO CHECKPOINT at step {step}: {error}")
            return None

    def close(self) -> None:
        """Closes the files; safe to call twice."""
        if self._writer is not None:
            self._writer.close()
