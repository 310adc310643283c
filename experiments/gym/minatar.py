"""MinAtar's games with demonstrations of different quality, all of it on the device.

    python -m experiments.gym compare-demos minatar
    python -m experiments.gym compare-demos minatar --games Breakout --seeds 10 --out runs/breakout

The demonstrations come from DQN that is trained six times as long as anybody in the comparison: a
good one from when it had come two thirds of its way from random play to its best, a mediocre one
from a quarter of the way.  A bad one does nearly always the first action.
"""

import dataclasses
from pathlib import Path
from typing import Literal

import jax

from bqfd_jax import checks
from bqfd_jax.agents.presets import ActingAgentName
from bqfd_jax.envs import minatar
from bqfd_jax.files import FileError, plain, read_json, write_json, write_text
from bqfd_jax.runs import folder
from bqfd_jax.runs.errors import Stopped, UsageError
from bqfd_jax.runs.loop import follow
from bqfd_jax.runs.report import Summary
from bqfd_jax.runs.sinks import Sink

from . import compare_demos as comparing
from . import minatar_report as report
from .minatar_teacher import Teacher, load_teacher
from .minatar_training import Programs, agent_options, make_programs, train

Quality = Literal["good", "mediocre", "bad"]


@dataclasses.dataclass(frozen=True)
class MinatarConfig:
    """Agents with demonstrations of MinAtar's games, and DQN without: the same budget and seeds.

    Runs that are finished are not repeated if the command is given again.
    """

    games: tuple[str, ...] = minatar.GAMES
    """Games."""
    agents: tuple[ActingAgentName, ...] = comparing.CompareDemosConfig.agents
    """Agents that get demonstrations (DQN has them in its replay); DQN without is always there."""
    qualities: tuple[Quality, ...] = ("good", "mediocre", "bad")
    """Demonstrations."""
    seeds: int = 5
    """Seeds."""
    first_seed: int = 0
    """The first of them."""
    steps: int = 50_000
    """Agent steps of each run."""
    lanes: int = 8
    """Games side by side."""
    update_period: int = 8
    """Agent steps between updates, over all lanes."""
    evaluations: int = 5
    """Evaluations of a run, evenly spaced; one more comes before the first step."""
    eval_episodes: int = 16
    """Episodes per evaluation, without exploration."""
    demo_steps: int = 2_500
    """Agent steps of each demonstration."""
    width: int = 64
    """Width of the network's dense layers."""
    out: Path = Path("runs/compare-demos-minatar")
    """Folder for all results, comparison.png, comparison.md and comparison.json."""

    def check(self) -> None:
        """Raises `OptionError` for values that cannot be meant."""
        for game in self.games:
            checks.one_of(minatar.GAMES, games=game)
        checks.at_least(1, seeds=self.seeds, lanes=self.lanes, evaluations=self.evaluations)
        checks.at_least(1, eval_episodes=self.eval_episodes, width=self.width)
        # A demonstration of less has no room for the looks ahead.
        checks.at_least(100, demo_steps=self.demo_steps)
        checks.at_least(0, first_seed=self.first_seed)
        piece = self.evaluations * self.update_period
        expected = f"a multiple of evaluations times update_period ({piece})"
        checks.require(
            self.steps >= piece and not self.steps % piece, "steps", self.steps, expected
        )


class Comparison:
    """All runs, one after the other; what is finished lies in files.

    Args:
      config: of the comparison.
      sink: told of demonstrations that are made.
    """

    title, unit = "MinAtar", "run"

    def __init__(self, config: MinatarConfig, sink: Sink):
        self._config, self._sink = config, sink
        self._programs: dict[tuple[str, str], Programs] = {}
        self._teachers: dict[str, Teacher] = {}
        cases = comparing.cases(
            comparing.CompareDemosConfig(config.games, config.agents, config.qualities)
        )
        seeds = range(config.first_seed, config.first_seed + config.seeds)
        self._todo = [(case, seed) for case in cases for seed in seeds]
        self.results: dict[comparing.Case, list[Summary]] = {case: [] for case, _ in self._todo}
        self.position, self.total = 0, len(self._todo)

    def advance(self) -> str:
        """The next run, from its file if an earlier sitting has left it."""
        case, seed = self._todo[self.position]
        self.results[case].append(self._result(case, seed))
        self.position += 1
        return f"{case.folder} seed {seed}"

    def put_down(self) -> Stopped:
        """Every finished run is in its file already."""
        return Stopped(
            f"stopped after {self.position} runs, all saved; the same command goes on with "
            f"{self._config.out}"
        )

    def teacher(self, game: str) -> Teacher:
        """Who demonstrates a game; made at the first call of all sittings."""
        if game not in self._teachers:
            programs = self._of(game, "dqn")
            place = self._config.out / game
            self._teachers[game] = load_teacher(self._config, programs, place, self._sink)
        return self._teachers[game]

    def _of(self, game: str, agent: str) -> Programs:
        if (game, agent) not in self._programs:
            self._programs[game, agent] = make_programs(self._config, game, agent)
        return self._programs[game, agent]

    def _result(self, case: comparing.Case, seed: int) -> Summary:
        """One run; what is finished is read."""
        path = self._config.out / case.folder / f"seed-{seed}.json"
        demo = None if case.quality is None else self.teacher(case.env).demos[case.quality]
        made_with = plain(
            dataclasses.asdict(agent_options(self._config, case.agent))
            | {name: getattr(self._config, name) for name in _OF_A_RUN}
            | {"agent": case.agent, "demo": None if demo is None else demo.checksum}
        )
        try:
            there = read_json(path)
        except (FileNotFoundError, FileError):
            there = None
        if there is not None:
            if there["made_with"] != made_with:
                raise UsageError(f"{path} is of another run; choose another --out")
            return there["summary"]
        summary = train(self._config, self._of(case.env, case.agent), seed, demo)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"made_with": made_with, "summary": summary})
        return summary


_OF_A_RUN = ("steps", "lanes", "update_period", "evaluations", "eval_episodes", "width")


def compare(config: MinatarConfig, sink: Sink) -> None:
    """The command `compare-demos minatar`."""
    config.check()
    try:
        config.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {config.out}: {error.strerror or error}") from error
    # A comparison that goes on need not compile again.
    jax.config.update("jax_compilation_cache_dir", str((config.out / "compiled").absolute()))
    with folder.sole_use(config.out):
        try:
            comparison = Comparison(config, sink)
            follow(comparison, sink)
        except ImportError as error:
            raise UsageError(str(error)) from error
        finish(config, comparison, sink)


def finish(config: MinatarConfig, comparison: Comparison, sink: Sink) -> None:
    """Tables and a picture of all that has been run."""
    results = comparison.results
    rows = [comparing.row_of(case, results) for case in results]
    scales = {game: comparison.teacher(game).scale for game in config.games}
    aggregates = report.aggregate(rows, scales)
    told = f"{comparing.table(rows)}\n\n{report.table(aggregates, scales)}"
    comparing.draw(config.out / "comparison.png", results)
    write_json(
        config.out / "comparison.json",
        {"rows": rows, "scales": scales, "aggregates": aggregates},
    )
    write_text(config.out / "comparison.md", told + "\n")
    sink.say(f"\n{told}\n\nfigure and tables in {config.out}")
