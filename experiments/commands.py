"""What commands share: how they are parsed, and those for runs of every kind."""

import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from bqfd_jax import console, files
from bqfd_jax.agents.presets import AGENTS
from bqfd_jax.runs import folder, group, stored, text
from bqfd_jax.runs.compare import compare as compare_runs
from bqfd_jax.runs.config import NOT_FOR_CLONES, RunConfig
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.run import KINDS, Run
from bqfd_jax.runs.sinks import Sink

Result = TypeVar("Result")
# What hardly anybody changes: of all that there is, help would be too long.
_FINE_PRINT = (
    *("importance_exponent", "priority_epsilon", "ez_exponent", "ez_max_repeat", "noise_ratio"),
    *("weight_from_target", "stop_correction_gradient", "correction_steps", "n_step_zeta"),
    *("mask_probability", "eta_step_size", "eta_bounds", "max_gradient_norm", "demo_rows"),
    *("visits_per_draw", "act_with_target", "squash_values", "layer_norm"),
    *("zero_values", "in_steps"),
    *("n_step_final", "n_step_updates", "reset_period", "reset_share"),
    *("torso_dtype", "torso_width", "keep_checkpoints"),
)


def prog(package: str) -> str:
    """How a package's command was called: `bqfd deep-sea` or `python -m experiments.deep_sea`."""
    if Path(sys.argv[0]).stem != "bqfd":
        return f"python -m {package}"
    _, *names = package.split("experiments")[-1].split(".")
    return " ".join(["bqfd", *names]).replace("_", "-")


def parse(
    kind: Callable[..., Result],
    arguments: Sequence[str] | None,
    package: str,
    command: str = "",
    **options: Any,
) -> Result:
    """Calls what the arguments of a package's command are for, be it a config or a function."""
    called = f"{prog(package)} {command}".rstrip()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--help-all" in arguments:
        arguments = ["--help"]
    elif {"-h", "--help"} & {*arguments} and "bqfd" in getattr(kind, "__dataclass_fields__", ()):
        kind, options["default"] = _shown_in_help(options.get("default") or kind(), arguments)
        options["description"] += "\n--help-all tells of all agents, and of the fine print, too."
    return tyro.cli(kind, args=arguments, prog=called, **options)


def _shown_in_help(config: Any, arguments: Sequence[str]) -> tuple[type, Any]:
    """A config's type and itself, with what matters of the named agents, or of its own."""
    named = {name for name in AGENTS if name in arguments}
    chosen = named or {getattr(config, "agent", None), *getattr(config, "agents", ())}
    fields = {field.name: field for field in dataclasses.fields(config)}
    useless = NOT_FOR_CLONES if chosen == {"clone"} else ()
    hidden = [
        name
        for name in dict.fromkeys((*AGENTS, *useless, *_FINE_PRINT))
        if name in fields and name not in chosen
    ]
    shorter = {
        name: _without(getattr(config, name), _FINE_PRINT)
        for name in AGENTS
        if name in fields and name in chosen
    }
    return _without(config, hidden, shorter)


def _without(
    config: Any, hidden: Sequence[str], others: Mapping[str, tuple[type, Any]] | None = None
) -> tuple[type, Any]:
    """A config's type and itself, without what is hidden and with `others` for some fields."""
    fields = {field.name: field for field in dataclasses.fields(config)}
    values = {name: getattr(config, name) for name in fields}
    changed = [
        (name, tyro.conf.Suppress[fields[name].type], values[name])
        for name in hidden
        if name in fields
    ]
    for name, (kind, value) in (others or {}).items():
        changed.append((name, kind, value))
        values[name] = value
    kind = dataclasses.make_dataclass(
        type(config).__name__, changed, bases=(type(config),), frozen=True
    )
    return kind, kind(**values)


def parse_run(kind: str, arguments: Sequence[str]) -> RunConfig:
    """The config of a single run, as its command would read it; a key of `KINDS`."""
    return importlib.import_module(f"{__package__}.{kind}.__main__").parse(arguments)


def train(config: RunConfig, sink: Sink) -> None:
    """A whole run, or the rest of one, as its command does it."""
    importlib.import_module(f"{__package__}.{config.experiment}.__main__").train(config, sink)


def evaluate(
    run: Path,
    episodes: int = 30,
    epsilon: float | None = None,
    max_steps: int | None = None,
    video: bool = True,
    best: bool = False,
    trust_config: bool = False,
) -> None:
    """Plays episodes with the network of a run's last checkpoint, and films one.

    Args:
      run: Folder of the run.
      episodes: Episodes to play, side by side.
      epsilon: Probability of a random action; the run's own unless given.
      max_steps: Agent steps after which an episode is cut; the run's own unless given.
      video: Film one more episode.
      best: Play with policy-best.npz, the network that scored highest in training. What is written
        has -best in its name.
      trust_config: Import the modules that the run's config.json names, which runs their code.
    """
    loaded = Run.load(run, trust_config=trust_config)
    with console.terminal("after this step") as sink:
        result = loaded.evaluate(
            episodes, epsilon=epsilon, max_steps=max_steps, best=best, sink=sink
        )
        row = {
            "step": loaded.step_of_network(best=best),
            "mean": float(result.scores.mean()),
            "std": float(result.scores.std()),
            "episodes": len(result.scores),
            "truncated": int(result.truncated.sum()),
            "guarded": int(result.guarded.sum()),
            "scores": result.scores,
        }
        suffix = "-best" if best else ""
        written = run / f"evaluation{suffix}.json"
        files.write_json(written, row)
        score = f"{text.score(row['mean'])} +- {text.score(row['std'], row['mean'])}"
        sink.say(
            f"{loaded.config.title}, {loaded.config.agent}, step {row['step']}: {score} "
            f"over {row['episodes']} episodes ({row['truncated']} cut by a "
            f"time limit); written to {written}"
        )
        if video:
            loaded.film(run / f"episode{suffix}.mp4", best=best)


def compare(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional], out: Path = Path("runs/comparison")
) -> None:
    """Puts runs into one figure and one table, beside the paper's Table 1.

    Args:
      runs: Folders of finished runs.
      out: Folder for comparison.png, comparison.md and comparison.json.
    """
    print(f"{compare_runs(runs, out)}\n\nfigure and table in {out}")


def resume(
    run: Annotated[Path, tyro.conf.Positional],
    steps: int | None = None,
    trust_config: bool = False,
) -> None:
    """Goes on with a run that was stopped or killed; its options are in its folder.

    Args:
      run: Folder of the run, or of several seeds in one program.
      steps: Another length, in agent steps; extends a finished run.
      trust_config: Import the modules that the run's config.json names, which runs their code.
    """
    seeds = {} if (run / "config.json").exists() else folder.seed_folders(run)
    if seeds:
        # Small networks are faster on one device, games on as many as there are cores.
        if folder.read_config(min(seeds.values())).get("experiment") == "atari":
            console.use_all_cores()
        with console.terminal() as sink:
            group.resume(run, steps=steps, trust_config=trust_config, sink=sink)
        return
    kind = folder.read_config(run).get("experiment")
    if kind in KINDS:
        with console.terminal() as sink:
            Run.load(run, trust_config=trust_config).resume(steps=steps, sink=sink)
        return
    if kind not in ("deep_sea", "expert_quality"):
        raise UsageError(f"{run} holds a run of {kind!r}, which cannot be resumed")
    if steps is not None:
        raise UsageError(f"--steps cannot be given for a run of {kind}")
    console.use_all_cores()
    package = importlib.import_module(f"{__package__}.{kind}.__main__")
    config = stored.load(run, package.Config.from_stored)
    with console.terminal() as sink:
        package.start(dataclasses.replace(config, out=run, resume=True), sink)


FOR_RUNS = {"evaluate": evaluate, "compare": compare, "resume": resume}
