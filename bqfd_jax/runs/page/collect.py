"""Finds runs, finished or not, and reads what there is to tell of them."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bqfd_jax import files
from bqfd_jax.runs import folder
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.metrics import read_jsonl
from bqfd_jax.runs.run import KINDS
from bqfd_jax.runs.sweep.cell import attempts_of, logs_of
from bqfd_jax.runs.sweep.grid import SWEEP_FILE, Cell, read_cells
from bqfd_jax.runs.sweep.status import failure

# What is told of a finished run.
_SUMMARY = {
    "evaluations": list,
    "final": dict,
    "seconds": (int, float),
    "peak_memory_gb": (int, float),
}
# What tells no two kinds of runs apart.
_NO_OPTIONS = ("seed", "experiment", "demonstrations", "game", "env", "agent")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A run, or one that should be there."""

    title: str  # the game or environment
    agent: str
    seed: int
    folder: Path
    state: str  # done, failed, unfinished, missing
    why: str = ""
    variant: str = ""  # options in which it differs from others of its game and agent
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # by their dotted names
    rows: tuple[dict[str, Any], ...] = ()  # of metrics, all with a step
    summary: dict[str, Any] | None = None  # of a finished run
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    logs: Path | None = None  # of a sweep's worker
    chosen: tuple[tuple[str, str], ...] = ()  # options that a sweep has set

    @property
    def label(self) -> str:
        """The agent, and what is special about it."""
        return f"{self.agent}, {self.variant}" if self.variant else self.agent

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Steps and mean scores, finished or not; without those that were not finite."""
        if self.summary is not None:
            found = self.summary["evaluations"]
        else:
            found = [{"step": row["step"], "mean": row.get("eval_mean")} for row in self.rows]
        known = [one for one in found if type(one["mean"]) in (int, float)]
        # Those of a process beside the training may come late.
        return sorted(known, key=lambda one: one["step"])

    @property
    def step(self) -> int:
        """How far it has come."""
        return max((row["step"] for row in self.rows), default=0)

    @property
    def steps(self) -> int:
        """How long it is to be."""
        return self.options.get("steps") or 0

    @property
    def final(self) -> dict[str, Any] | None:
        """Final score, if the run is finished and has one."""
        if self.summary is None or self.summary["final"].get("mean") is None:
            return None
        return self.summary["final"]


@dataclasses.dataclass(frozen=True)
class Other:
    """A folder of pictures and tables that another command has made."""

    title: str
    folder: Path
    pictures: tuple[Path, ...]
    tables: tuple[str, ...]  # Markdown


@dataclasses.dataclass(frozen=True)
class Found:
    """All that a report tells of."""

    entries: list[Entry]
    others: list[Other]


def collect(paths: Sequence[Path]) -> Found:
    """Reads sweeps, runs, folders of runs, and what other commands have made.

    Raises:
      UsageError: there is nothing in one of them.
    """
    entries: dict[Path, Entry] = {}
    others: dict[Path, Other] = {}
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path} is no folder; name sweeps, runs or folders of runs")
        before = len(entries) + len(others)
        known = {*entries, *others}
        entries |= {entry.folder.resolve(): entry for entry in _entries(path)}
        others |= {other.folder.resolve(): other for other in _others(path)}
        if len(entries) + len(others) == before and path.resolve() not in known:
            raise UsageError(f"there is nothing to tell of in {path}: no sweep, no run, no picture")
    return Found(_with_variants(list(entries.values())), list(others.values()))


def _entries(path: Path) -> Iterator[Entry]:
    cells = {sweep.parent: read_cells(sweep.parent) for sweep in path.rglob(SWEEP_FILE)}
    seen = set()
    for out, own in cells.items():
        for cell in own:
            seen.add(out / cell.folder)
            yield _of_cell(out, cell)
    for config in sorted(path.rglob("config.json")):
        if config.parent not in seen and _kind(config.parent) in KINDS:
            yield _of_run(config.parent)


def _kind(run: Path) -> Any:
    try:
        return folder.read_config(run).get("experiment")
    except UsageError:
        return None


def _of_cell(out: Path, cell: Cell) -> Entry:
    run, logs = out / cell.folder, logs_of(out, cell.folder)
    why = failure(logs)
    if (run / "config.json").exists():
        entry = dataclasses.replace(_of_run(run), logs=logs, chosen=cell.options)
    else:
        variant = ", ".join(_told(name, value) for name, value in cell.options)
        named = (cell.title, cell.agent, cell.seed, run)
        entry = Entry(*named, "missing", variant=variant, logs=logs, chosen=cell.options)
    if entry.state != "done" and why is not None:
        return dataclasses.replace(entry, state="failed", why=why)
    last = attempts_of(logs)[-1:] if entry.state == "missing" else []
    if last and "ended" not in last[0]:
        return dataclasses.replace(entry, why="a worker prepares it, unless it has died")
    return entry


def _of_run(run: Path) -> Entry:
    try:
        config = folder.read_config(run)
        title = str(config.get("game") or config.get("env"))
        options = dict(_flat(config))
        named = (title, str(config["agent"]), int(config["seed"]), run)
    except (UsageError, KeyError, TypeError, ValueError) as error:
        return Entry(str(run.name), "?", 0, run, "failed", f"config.json cannot be read: {error}")
    if (why := folder.what_is_lost(run)) is not None:
        return Entry(*named, "failed", why, options=options)
    try:
        rows = tuple(read_jsonl(run / "metrics.jsonl"))
        if not all(isinstance(row, dict) for row in rows):
            raise files.FileError(f"{run / 'metrics.jsonl'} has rows that are none")
        rows = tuple(row for row in rows if _has_numbers(row, "step"))
        summary = _read(run / "summary.json", _SUMMARY) if folder.is_finished(run) else None
        machine = _read(run / "machine.json", {}) or {}
        if summary is not None:
            _check_scores(summary, run / "summary.json")
    except FileNotFoundError:
        return Entry(*named, "unfinished", options=options)
    except files.FileError as error:
        return Entry(*named, "failed", str(error), options=options)
    state = "unfinished" if summary is None else "done"
    found = {"options": options, "rows": rows, "summary": summary, "machine": machine}
    return Entry(*named, state, **found)


def _read(path: Path, needed: dict[str, type | tuple[type, ...]]) -> dict[str, Any] | None:
    """What a file holds, if it is there; raises `FileError` if it lacks what is told of."""
    if not path.exists():
        return None
    found = files.read_json(path)
    wrong = not isinstance(found, dict) or [
        name for name, kind in needed.items() if not isinstance(found.get(name), kind)
    ]
    if wrong:
        raise files.FileError(f"{path} is not what a run writes")
    return found


def _check_scores(summary: dict[str, Any], path: Path) -> None:
    """Raises `FileError` unless scores are numbers, or null where they were not finite."""
    final, demo = summary["final"], summary.get("demo")
    sound = all(
        _has_numbers(one, "step") and _has_numbers(one, "mean", or_null=True)
        for one in summary["evaluations"]
    )
    sound &= final.get("mean") is None or _has_numbers(final, "mean", "std")
    if not sound or not (demo is None or _has_numbers(demo, "score")):
        raise files.FileError(f"{path} has scores that are no numbers")


def _has_numbers(row: Any, *names: str, or_null: bool = False) -> bool:
    kinds = (int, float, type(None)) if or_null else (int, float)
    return isinstance(row, dict) and all(name in row and type(row[name]) in kinds for name in names)


def is_own(path: Path) -> bool:
    """Whether a file may go into the page: one that leads elsewhere may be nobody's to send."""
    return path.is_file() and not path.is_symlink()


def _flat(config: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if not above and name in _NO_OPTIONS:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _with_variants(entries: Sequence[Entry]) -> list[Entry]:
    """Says of each run in which options it differs from others of its game and agent."""
    begun = [entry for entry in entries if entry.options]
    alike: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in begun:
        alike[entry.title, entry.agent].append(entry)
    several = {agent for (_, agent), runs in alike.items() if len(_shown(runs)) > 1}
    told = {
        entry.folder: {
            name: _told(name, said(value), one_demo=entry.agent not in several)
            for name, value in entry.options.items()
        }
        for entry in begun
    }
    # What tells an agent's runs apart in one game is said of their like in all games, so that they
    # share a column even where the others have not begun yet.
    special: dict[str, dict[str, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    for (_, agent), runs in alike.items():
        for name in different(runs):
            special[agent][name] |= {told[entry.folder].get(name) for entry in runs} - {None}
    variants = {
        entry.folder: ", ".join(
            told[entry.folder][name]
            for name, known in special[entry.agent].items()
            if told[entry.folder].get(name) in known
        )
        for entry in begun
    }
    # What is missing belongs to those for which its sweep has set the same, best in its own game.
    swept = [entry for entry in begun if entry.logs is not None]
    like = {(entry.title, *_setting(entry)): variants[entry.folder] for entry in swept}
    elsewhere = {_setting(entry): variants[entry.folder] for entry in swept}
    found = []
    for entry in entries:
        missing = elsewhere.get(_setting(entry), entry.variant)
        missing = like.get((entry.title, *_setting(entry)), missing)
        found.append(dataclasses.replace(entry, variant=variants.get(entry.folder, missing)))
    return found


def _shown(runs: Sequence[Entry]) -> set[str]:
    """Demonstrations, each a choice of its own."""
    return {said(entry.options["demo"]) for entry in runs if "demo" in entry.options} - {"none"}


def _told(name: str, value: str, *, one_demo: bool = False) -> str:
    """An option in a label; whether a demonstration was shown is said in words."""
    if name == "demo" and value == "none":
        return "shown nothing"
    if name == "demo" and one_demo:
        return "with the demonstration"
    return f"{name}={value}"


def _setting(entry: Entry) -> tuple[object, ...]:
    # The sweep's folder, above GAME/AGENT/SEED: another sweep may have other options.
    return entry.folder.parent.parent.parent, entry.agent, entry.chosen


def different(runs: Sequence[Entry]) -> list[str]:
    """Options that have not the same value in all runs that have them: agents have their own."""
    values: dict[str, set[str]] = defaultdict(set)
    for entry in runs:
        for name, value in entry.options.items():
            values[name].add(said(value))
    return [name for name, found in values.items() if len(found) > 1]


def said(value: Any) -> str:
    """An option's value for people."""
    if isinstance(value, list):
        return " ".join(map(said, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _others(path: Path) -> Iterator[Other]:
    """Pictures and tables that lie in the folder itself and belong to no single run."""
    if _kind(path) in KINDS:
        return
    pictures = tuple(sorted(filter(is_own, path.glob("*.png"))))
    written = sorted(filter(is_own, path.glob("*.md")))
    tables = tuple(files.read_bytes(one).decode(errors="replace") for one in written)
    if pictures or tables:
        yield Other(str(_kind(path) or path.name).replace("_", " "), path, pictures, tables)
