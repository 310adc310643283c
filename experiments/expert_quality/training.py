"""One agent on its way over the map, some cells at a time; finished ones are in files."""

import itertools
import time
from pathlib import Path

import jax
import numpy as np

from bqfd_jax.files import FileError, read_npz, write_npz
from bqfd_jax.runs.deep_sea import seed_keys
from bqfd_jax.runs.errors import RunError, Stopped
from bqfd_jax.training import on_device

from .cells import Cell, cell_training, cells_of, make_inputs
from .config import LEARNERS, Config


class MapTraining:
    """Trains an agent where it is missing.

    Args:
      config: of the whole map.
      agent: which one.
      folder: of the files with finished cells.
    """

    unit = "cell"

    def __init__(self, config: Config, agent: str, folder: Path):
        self._config, self._agent, self._folder = config, agent, folder
        cells = cells_of(config, agent)
        self.title, self.total, self.position = agent, len(cells), 0
        # Few cells do not fill a call; they only need to be spread over the devices.
        devices = jax.device_count()
        few = -(-len(cells) // devices) * devices
        self._per_call = min(config.cells_per_call, few)
        self._remaining = iter(
            cells[i : i + self._per_call] for i in range(0, len(cells), self._per_call)
        )
        self._finished: list[dict[str, np.ndarray]] = []
        num_runs = self._per_call * config.seeds
        training = cell_training(config, agent)
        # The first takes longer to compile than to run.
        self._init = on_device.over_runs(training.init, num_runs, called_once=True)
        self._run = on_device.over_runs(training.run, num_runs)

    def advance(self) -> None:
        """The next cells, from their file if an earlier sitting has left it."""
        cells = next(self._remaining)
        path = self._folder / f"{self._agent}-{len(self._finished):04}.npz"
        part = self._read(path, len(cells))
        if part is None:
            started = time.perf_counter()
            part = {"returns": self.train(cells)}
            part["seconds"] = np.float64(time.perf_counter() - started)
            write_npz(path, **part)
        self._finished.append(part)
        self.position += len(cells)

    def put_down(self) -> Stopped:
        """Every finished cell is in its file already."""
        return Stopped(
            f"stopped after {self.position} cells of {self._agent}, all saved; continue with "
            f"`bqfd resume {self._folder.parent}`"
        )

    def result(self) -> tuple[np.ndarray, float]:
        """Returns `[cells, seeds, episodes]`, and seconds, those of earlier sittings included."""
        seconds = sum(float(part["seconds"]) for part in self._finished)
        return np.concatenate([part["returns"] for part in self._finished]), seconds

    def train(self, cells: list[Cell]) -> np.ndarray:
        """Returns of no more cells than fit into a call, `[cells, seeds, episodes]`."""
        config, seeds = self._config, self._config.seeds
        # Each call has one shape: what is missing is filled with what is there, and thrown away.
        filled = list(itertools.islice(itertools.cycle(cells), self._per_call))
        inputs = [make_inputs(config, cell, seed) for cell in filled for seed in range(seeds)]
        inputs = jax.tree.map(lambda *x: np.stack(x), *inputs)
        keys = seed_keys(seeds, len(filled))
        returns, finite = map(np.asarray, self._run(self._init(keys, inputs), inputs))
        self._check_finite(finite.reshape(-1, seeds)[: len(cells)], cells)
        return returns.reshape(-1, seeds, config.episodes)[: len(cells)]

    def _read(self, path: Path, num_cells: int) -> dict[str, np.ndarray] | None:
        """What an earlier sitting has left; nothing if it is not whole."""
        try:
            part = read_npz(path)
        except (FileNotFoundError, FileError):
            return None
        shapes = {name: array.shape for name, array in part.items()}
        shape = (num_cells, self._config.seeds, self._config.episodes)
        return part if shapes == {"returns": shape, "seconds": ()} else None

    def _check_finite(self, finite: np.ndarray, cells: list[Cell]) -> None:
        """`[cells, seeds]`; nothing spoilt is saved."""
        if finite.all():
            return
        cell, seed = np.argwhere(~finite)[0]
        where = " ".join(name for name in cells[cell] if name)
        learner = LEARNERS[self._agent]
        what, option = ("values", "eta") if self._agent == "tabular" else ("loss", "learning_rate")
        raise RunError(
            f"the {what} of {self._agent} became infinite or NaN ({where}, seed {seed}); its cell "
            f"was not saved. A smaller --{learner}.{option.replace('_', '-')} than "
            f"{getattr(getattr(self._config, learner), option)} usually helps."
        )
