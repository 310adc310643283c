"""The paper's second experiment: an Atari game, a flawed demonstration, and an agent.

    python -m experiments.atari
    python -m experiments.atari --game Breakout --agent dqfd --seed 1 --out runs/mine
    python -m experiments.atari evaluate --run runs/mine
    python -m experiments.atari compare runs/mine runs/another

All steps are agent steps (4 emulator frames).  A run that was stopped or killed goes on with the
same options and --out FOLDER --resume.  Writes a folder with `summary.json`, `metrics.jsonl`, a
learning curve, a film of one evaluation episode and checkpoints.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import tyro

from bqfd_jax import demos
from bqfd_jax.runs import folder as run_folder
from bqfd_jax.runs import loop as host_run
from experiments.atari.__main__ import compare as report
from experiments.atari.__main__ import config as atari_config
from experiments.atari.config import Config
from experiments.atari.evaluate import EvaluateConfig, evaluate_run
from experiments.atari.job import Job, prepare


def announce(
    config: Config, demonstrations: Sequence[demos.Demonstration], job: Job, out: Path
) -> None:
    """Says what will happen, before it does."""
    device = jax.devices()[0]
    shown = "none"
    if demonstrations:
        shown = "\n                 ".join(
            f"{demo}, {len(demonstration.actions)} steps, score "
            + _some([f"{score:g}" for score in demonstration.scores])
            for demo, demonstration in zip(config.demo, demonstrations, strict=True)
        )
    replay = job.replay
    print(
        f"{config.game}, {config.agent}, seed {config.seed}, preset {config.preset}: "
        f"{config.steps:,} agent steps in {config.envs} games\n"
        f"  demonstration: {shown}\n"
        f"  replay: {replay.layout.num_rows:,} rows, {replay.num_bytes / 1e9:.2f} GB\n"
        f"  device: {device.device_kind} ({device.platform}); run folder: {out}",
        flush=True,
    )


def _some(words: Sequence[str], most: int = 10) -> str:
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")


def train(config: Config) -> None:
    """A whole run, or the rest of one."""
    atari_config.check(config)
    stored = atari_config.stored(config)
    if config.resume or config.out is not None:
        run_folder.check(config.out, stored, resume=config.resume)
    job, demonstrations = prepare(config)
    out = run_folder.prepare(config.out, stored, name=f"atari-{config.game}", resume=config.resume)
    announce(config, demonstrations, job, out)
    host_run.run(job, out, demonstrations)


def main() -> None:
    """Trains, evaluates or compares, as the command line says."""
    command, *arguments = sys.argv[1:] or [""]
    prog = f"python -m experiments.atari {command}"
    if command == "evaluate":
        evaluate_run(tyro.cli(EvaluateConfig, args=arguments, prog=prog))
    elif command == "compare":
        report.compare(tyro.cli(report.CompareConfig, args=arguments, prog=prog))
    else:
        train(atari_config.parse(sys.argv[1:], __doc__))


if __name__ == "__main__":
    run_folder.run_main(main)
