"""The cells of a sweep: games times agents times seeds times the values of options."""

import dataclasses
import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bqfd_jax import checks
from bqfd_jax.agents.presets import AGENTS
from bqfd_jax.files import FileError, read_json, write_json
from bqfd_jax.runs.config import NOT_FOR_CLONES
from bqfd_jax.runs.errors import UsageError

SWEEP_FILE = "sweep.json"
_SAFE = re.compile(r"[^\w.=+,-]")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a sweep, told apart from the others by what is written here."""

    title: str  # the game or environment
    agent: str
    seed: int
    options: tuple[tuple[str, str], ...] = ()  # names and values, as the command line has them

    @property
    def folder(self) -> Path:
        """Below the sweep's: game, agent, seed; options that were set follow the seed."""
        chosen = [f"{name}={value}" for name, value in self.options]
        return Path(
            _safe(self.title), _safe(self.agent), _safe("-".join([f"{self.seed}", *chosen]))
        )

    @property
    def name(self) -> str:
        """For people."""
        return ", ".join([self.title, self.agent, f"seed {self.seed}", *self._chosen])

    @property
    def _chosen(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.options]


def _safe(name: str) -> str:
    """A name that is one folder and needs no quotes; never `.` or `..`."""
    safe = _SAFE.sub("-", name)
    return f"-{safe}" if safe.startswith(".") else safe


def grid(
    titles: Sequence[str],
    agents: Sequence[str],
    seeds: Sequence[int],
    options: Mapping[str, Sequence[str]] | None = None,
) -> list[Cell]:
    """All cells, a game's together, each once.

    Args:
      titles: games or environments.
      agents: keys of `AGENTS`, with options of their own if need be: `dqn:demo=none`.
      seeds: the same for all.
      options: name -> values.  One that belongs to an agent (`bqfd.eta`), or that an agent has no
        use for, leaves the others or that one alone; what an agent sets itself stays so.
    """
    checks.distinct(games=titles, agents=agents)
    chosen = {_underscored(name): values for name, values in (options or {}).items()}
    for name, values in chosen.items():
        checks.distinct(**{f"--set {name}": values})
    cells = []
    for title, (agent, own) in itertools.product(titles, map(parse_agent, agents)):
        settings = {name: (value,) for name, value in own.items()}
        settings |= {
            name: values
            for name, values in chosen.items()
            if name not in own and _concerns(name, agent)
        }
        for values in itertools.product(*settings.values()):
            set_to = tuple(zip(settings, values, strict=True))
            cells += [Cell(title, agent, seed, set_to) for seed in seeds]
    _check_apart(cells)
    return cells


def parse_agent(text: str) -> tuple[str, dict[str, str]]:
    """`dqn:demo=none,hidden=128` as an agent and its own options; raises `UsageError`."""
    agent, colon, listed = text.partition(":")
    checks.one_of(AGENTS, agents=agent)
    own: dict[str, str] = {}
    for part in listed.split(",") if colon else ():
        name, equals, value = part.partition("=")
        name = _underscored(name.removeprefix("--"))
        if not (name and equals and value):
            example = f"{agent}:demo=none,hidden=128"
            raise UsageError(f"--agents {text}: give names and single values, as in {example}")
        if name in own:
            raise UsageError(f"--agents {text}: {name} is given twice")
        if not _concerns(name, agent):
            raise UsageError(f"--agents {text}: {agent} has no use for {name}")
        own[name] = value
    return agent, own


def _underscored(option: str) -> str:
    return option.replace("-", "_")


def _concerns(option: str, agent: str) -> bool:
    owner = option.partition(".")[0]
    if agent == "clone" and option in NOT_FOR_CLONES:
        return False
    return owner not in AGENTS or owner == agent


def _check_apart(cells: Sequence[Cell]) -> None:
    runs: set[tuple[object, ...]] = set()
    folders: dict[Path, Cell] = {}
    for cell in cells:
        run = (cell.title, cell.agent, cell.seed, frozenset(cell.options))
        if run in runs:
            raise UsageError(f"{cell.name} is asked for twice, by --agents or --set")
        runs.add(run)
        other = folders.setdefault(cell.folder, cell)
        if other != cell:
            raise UsageError(
                f"{other.name} and {cell.name} would share the folder {cell.folder}; sweep them "
                "apart, with another --out"
            )


def parse_options(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`bqfd.eta=1,3` as a name and its values; raises `UsageError` for what is not like that."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = _underscored(name.removeprefix("--"))
        if not (name and equals and values) or "" in values.split(","):
            raise UsageError(f"--set {text}: give a name and values, as in --set bqfd.eta=1,3,10")
        if name in found:
            raise UsageError(f"--set {name} is given twice; name all its values at once")
        found[name] = tuple(values.split(","))
    return found


def arguments(cell: Cell, kind: str, rest: Sequence[str], out: Path) -> list[str]:
    """What the single command takes to run a cell.

    Args:
      cell: which one.
      kind: `atari` or `gym`.
      rest: options that all cells share.
      out: the sweep's folder.
    """
    chosen = [part for name, value in cell.options for part in _as_arguments(name, value)]
    what = "--game" if kind == "atari" else "--env"
    own = [what, cell.title, "--agent", cell.agent, "--seed", str(cell.seed)]
    return [*own, *rest, *chosen, "--out", str(out / cell.folder)]


def _as_arguments(name: str, value: str) -> tuple[str, ...]:
    """An option with its value; what is true or false is a flag."""
    if value.lower() not in ("true", "false"):
        return f"--{name}", value
    owner, dot, own = name.rpartition(".")
    return (f"--{owner}{dot}{'' if value.lower() == 'true' else 'no-'}{own}",)


def command(parts: Sequence[str]) -> str:
    """Arguments as a line for a shell."""
    return shlex.join(parts)


# --- What a sweep's folder says of its cells, so that a report knows which are missing ---


def write_cells(out: Path, cells: Sequence[Cell]) -> None:
    """Writes `sweep.json`; cells of earlier commands stay in it."""
    known = {cell.folder: cell for cell in [*read_cells(out), *cells]}
    rows = [dataclasses.asdict(cell) for cell in known.values()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / SWEEP_FILE, {"cells": rows})
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror or error}") from error


def read_cells(out: Path) -> list[Cell]:
    """The cells of a sweep's folder; none if it is no sweep's."""
    path = out / SWEEP_FILE
    if not path.exists():
        return []
    try:
        return [_cell(row) for row in read_json(path)["cells"]]
    except (FileError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is damaged ({error}); delete it, and sweep again") from error


def _cell(row: Mapping[str, Any]) -> Cell:
    options = tuple((str(name), str(value)) for name, value in row["options"])
    return Cell(str(row["title"]), str(row["agent"]), int(row["seed"]), options)
