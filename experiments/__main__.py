"""All commands under one name: `bqfd COMMAND ...`, the same as `python -m experiments.COMMAND`."""

import importlib
import sys
from collections.abc import Sequence

from bqfd_jax import console

from . import commands

# Command -> the package that it is, and what it does.
_EXPERIMENTS = {
    "atari": ("atari", "train an agent on an Atari game, with a demonstration of it"),
    "gym": ("gym", "train an agent on any gymnasium environment with discrete actions"),
    "deep-sea": ("deep_sea", "the paper's first experiment: a treasure or a bomb"),
    "tabular": ("tabular", "the paper's tabular algorithms and the exact filter"),
    "expert-quality": ("expert_quality", "a map of how imperfect an expert may be"),
    "trust": ("trust", "how far experts can be trusted, as it is learnt"),
    "sweep": ("sweep", "many runs side by side: games, agents, seeds, options; here or on Ray"),
    "report": ("report", "one page about many runs, finished or not"),
    "demos": ("demos", "record, plan, import or show demonstrations"),
    "benchmark": ("benchmark", "speed and memory"),
}
_RUNS = {
    "evaluate": "play with a run's network",
    "compare": "several runs in one figure and one table",
    "resume": "go on with a run; its options are in its folder",
}
# Many small runs side by side: every core is a device there.
_ALL_CORES = ("deep_sea", "tabular", "expert_quality", "trust")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command that the command line names."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command, rest = (arguments[0], list(arguments[1:])) if arguments else ("--help", [])
    if command in _RUNS:
        commands.parse(commands.FOR_RUNS[command], rest, __package__, command)
    elif command in _EXPERIMENTS:
        package = _EXPERIMENTS[command][0]
        if package in _ALL_CORES:
            console.use_all_cores()
        importlib.import_module(f"{__package__}.{package}.__main__").main(rest)
    else:
        _print_help()
        if command not in ("-h", "--help"):
            print(f"\nerror: there is no command {command!r}", file=sys.stderr)
            sys.exit(2)


def _print_help() -> None:
    print("usage: bqfd COMMAND [options]; bqfd COMMAND --help tells more\n")
    for name, (_, text) in _EXPERIMENTS.items():
        print(f"  {name:<15} {text}")
    for name, text in _RUNS.items():
        print(f"  {name:<15} {text}")


def command_line() -> None:
    """The console script `bqfd`."""
    console.run_main(main)


if __name__ == "__main__":
    command_line()
