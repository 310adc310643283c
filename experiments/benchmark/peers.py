"""This project beside others, on the same work, in one run."""

import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from bqfd_jax import checks, extras
from bqfd_jax.runs import machine
from bqfd_jax.runs.errors import UsageError

from . import learning_loops, replay_loops
from .timing import Times
from .turns import Build, take_turns, use_threads

What = Literal["learning", "replay"]


class Contender(NamedTuple):
    """Somebody whose speed is measured."""

    build: Callable[..., Callable[[int], None]]  # (work, **options) -> run(amount)
    does: str  # how its work differs from that of others
    options: Mapping[str, Any] = {}
    packages: tuple[str, ...] = ()  # from a package index; of the first the version is shown
    modules: tuple[str, ...] = ()  # by which they are imported
    install: str = extras.hint("peers")


OURS = "bqfd-jax"
_CYCLES = 50  # of the replay per round

LEARNING = {
    OURS: Contender(learning_loops.ours, "double, prioritized", packages=("jax",)),
    "CleanRL's loop": Contender(
        learning_loops.cleanrl, "max, uniform", packages=("torch",), modules=("torch",)
    ),
    "CleanRL's loop, double": Contender(
        learning_loops.cleanrl, "double, uniform", {"double": True}, ("torch",), ("torch",)
    ),
    "stable-baselines3": Contender(
        learning_loops.stable_baselines3,
        "max, uniform",
        packages=("stable-baselines3", "torch"),
        modules=("stable_baselines3", "torch"),
    ),
    "Dopamine (JAX)": Contender(
        learning_loops.dopamine,
        "max, uniform, one game",
        packages=("dopamine-rl", "jax"),
        modules=("dopamine",),
        install="pip install dopamine-rl",
    ),
}
_FLASHBAX = {"packages": ("flashbax", "jax"), "modules": ("flashbax",)}
REPLAY = {
    OURS: Contender(replay_loops.ours, "one call, indices", packages=("jax",)),
    f"{OURS}, rows": Contender(
        replay_loops.ours, "one call, rows", {"draw": "rows"}, packages=("jax",)
    ),
    f"{OURS}, three calls": Contender(
        replay_loops.ours, "three calls, indices", {"calls": "three"}, packages=("jax",)
    ),
    "cpprb": Contender(
        replay_loops.cpprb, "three calls, rows", packages=("cpprb",), modules=("cpprb",)
    ),
    "flashbax": Contender(replay_loops.flashbax, "one call, rows", **_FLASHBAX),
    "flashbax, three calls": Contender(
        replay_loops.flashbax, "three calls, rows", {"calls": "three"}, **_FLASHBAX
    ),
}


def peers(
    what: tuple[What, ...] = ("learning", "replay"),
    game: str = "Breakout",
    envs: int = 8,
    update_period: int = 4,
    steps: int = 400,
    rows: int = 1_000_000,
    rounds: int = 8,
    threads: int = 0,
    only: tuple[str, ...] = (),
    quick: bool = False,
) -> dict[str, dict[str, float]]:
    """This project, its peers, the same work: agent steps per second, and cycles of the replay.

    Learning is DQN with Nature's network on games of envpool, 32 transitions per update.  CleanRL
    is no package; its loop is written anew here.  A cycle of the replay adds a row per environment,
    draws 32 and sets their priorities.  Everybody has a process of its own, the same cores and as
    many threads, and only one works at a time.  Peers that are not installed are left out.

    Args:
      what: What to measure.
      game: Which game.
      envs: Games side by side (Dopamine plays one), and rows added at a time.
      update_period: Agent steps, over all games, per update; must divide --envs.
      steps: Agent steps per round; a multiple of --envs.
      rows: Rows of the replay that is measured alone.
      rounds: Everybody works once per round; medians count.  Rounds of the replay are short, and
        20 times as many.
      threads: Cores and threads for everybody; 0 takes all.
      only: Names of those to measure; all unless given.
      quick: Little work and few rounds, to see that everything runs.

    Returns:
      Milliseconds, per agent step and per cycle, by name.
    """
    checks.at_least(1, envs=envs, update_period=update_period, rounds=rounds)
    checks.at_least(0, threads=threads)
    divides = envs % update_period == 0
    checks.require(divides, "update_period", update_period, f"a divisor of --envs ({envs})")
    if quick:
        steps, rows, rounds = 4 * envs, 2_000 * envs, 2
    checks.at_least(envs, steps=steps)
    checks.require(steps % envs == 0, "steps", steps, f"a multiple of --envs ({envs})")
    checks.at_least(1000 * envs, rows=rows)
    cores = use_threads(threads or 1024)
    checks.at_most(len(cores), threads=threads)

    learning_work = learning_loops.Work(game, envs, update_period, threads=len(cores))
    replay_work = replay_loops.Work(rows, envs)
    batch_size = replay_work.batch_size
    figures = {}
    on = f"{machine.processor()}, {len(cores)} thread(s) each"
    if "learning" in what:
        title = (
            f"{game}, Nature's network, {envs} games, an update of {learning_work.batch_size} per "
            f"{update_period} steps; {on}"
        )
        seconds = _measure(LEARNING, learning_work, steps, 10 * envs, rounds, cores, only)
        figures["learning"] = _report(title, "step", LEARNING, seconds, steps)
    if "replay" in what:
        title = f"replay of {rows:,} rows: add {envs}, draw {batch_size}, set {batch_size}; {on}"
        seconds = _measure(REPLAY, replay_work, _CYCLES, _CYCLES, 20 * rounds, cores, only)
        figures["replay"] = _report(title, "cycle", REPLAY, seconds, _CYCLES)
    return figures


def present(contenders: Mapping[str, Contender], only: Sequence[str]) -> dict[str, Contender]:
    """Those who are wanted and installed; for the others it says what to install."""
    unknown = set(only) - {*LEARNING, *REPLAY}
    if unknown:
        known = ", ".join(dict.fromkeys([*LEARNING, *REPLAY]))
        raise UsageError(f"--only names {', '.join(sorted(unknown))}; there are {known}")
    found = {}
    for name, contender in contenders.items():
        if only and name not in only:
            continue
        missing = [module for module in contender.modules if not importlib.util.find_spec(module)]
        if missing:
            print(f"{name} is left out, because {missing[0]} is missing: {contender.install}")
        else:
            found[name] = contender
    return found


def _measure(
    contenders: Mapping[str, Contender],
    work: Any,
    amount: int,
    warm_up: int,
    rounds: int,
    cores: tuple[int, ...],
    only: Sequence[str],
) -> dict[str, Times]:
    builds: dict[str, Build] = {
        name: functools.partial(contender.build, work=work, **contender.options)
        for name, contender in present(contenders, only).items()
    }
    return take_turns(builds, amount, rounds=rounds, warm_up=warm_up, cores=cores)


def _report(
    title: str,
    unit: str,
    contenders: Mapping[str, Contender],
    seconds: Mapping[str, Times],
    amount: int,
) -> dict[str, float]:
    """Prints a table; ratios are taken within rounds, because noise strikes neighbours alike."""
    milliseconds = {name: 1e3 * np.median(s, axis=1) / amount for name, s in seconds.items()}
    columns = f"what it does | versions | ms per {unit} | of CPU | its time / ours (quartiles)"
    print(f"\n{title}\n\n| | {columns} |\n|---|---|---|---|---|---|")
    for name, (wall, cpu) in milliseconds.items():
        ratio = "-"
        if OURS in seconds:
            ratios = seconds[name].wall / seconds[OURS].wall
            low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75))
            ratio = f"{median:.2f} ({low:.2f} to {high:.2f})"
        versions = ", ".join(f"{p} {machine.version(p)}" for p in contenders[name].packages)
        cells = (name, contenders[name].does, versions, f"{wall:.3g}", f"{cpu:.3g}", ratio)
        print(f"| {' | '.join(cells)} |")
    return {name: float(wall) for name, (wall, _) in milliseconds.items()}
