"""The paper's second experiment: an Atari game, a flawed demonstration, and an agent.

    python -m experiments.atari
    python -m experiments.atari --game Breakout --agent dqfd --seed 1 --out runs/mine
    python -m experiments.atari evaluate --run runs/mine
    python -m experiments.atari compare runs/mine runs/another

All steps are agent steps (4 emulator frames).  A run that was stopped or killed goes on with
`bqfd resume FOLDER`, or with the same options and --out FOLDER --resume.  Writes a folder with
`summary.json`, `metrics.jsonl`, `policy.npz`, a learning curve, a film of one evaluation episode
and checkpoints.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Literal

import tyro

from bqfd_jax import console
from bqfd_jax.agents.presets import AgentName
from bqfd_jax.runs import group
from bqfd_jax.runs.atari import AtariConfig
from bqfd_jax.runs.run import load_job, start
from bqfd_jax.runs.sinks import Sink

from .. import commands


@dataclasses.dataclass(frozen=True)
class _Choice:
    """What other options' defaults depend on."""

    preset: Literal["laptop", "100k", "paper", "accelerator"] = AtariConfig.preset
    game: str = AtariConfig.game
    agent: AgentName = AtariConfig.agent


def parse(arguments: Sequence[str]) -> AtariConfig:
    """The config of a command line."""
    choice, _ = tyro.cli(_Choice, args=list(arguments), return_unknown_args=True, add_help=False)
    default = AtariConfig.of(choice.preset, choice.game, choice.agent)
    return commands.parse(AtariConfig, arguments, __package__, default=default, description=__doc__)


def train(config: AtariConfig, sink: Sink) -> None:
    """A whole run, or the rest of one."""
    if config.shows_demonstrations:
        sink.say("playing the demonstration back ...")
    if config.seeds_per_program > 1:
        console.use_all_cores()
        group.start(group.load_jobs(config), sink)
    else:
        start(load_job(config), sink)


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, evaluates or compares, as the command line says."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in ("evaluate", "compare"):
        name, *rest = arguments
        commands.parse(commands.FOR_RUNS[name], rest, __package__, name)
    else:
        config = parse(arguments)
        with console.terminal() as sink:
            train(config, sink)


if __name__ == "__main__":
    console.run_main(main)
