"""`kill -9` at random moments, again and again: nothing is lost, doubled or garbled."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bqfd_jax.runs.metrics import read_jsonl

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
KILLS = int(os.environ.get("BQFD_KILLS", "100"))

# What is begun; it goes on by `bqfd resume`.  Each takes seconds, most of them to start.
RUNS = {
    "atari": (
        "--game Breakout --demo none --agent dqn --steps 720 --envs 3 --update-period 6 "
        "--learning-starts 60 --log-period 30 --eval-period 240 --eval-episodes 2 "
        "--eval-max-steps 40 --checkpoint-period 60 --hidden 8 --dqn.batch-size 4 --no-video"
    ),
    "gym": (
        "--env CartPole-v1 --steps 2400 --demo-steps 100 --log-period 100 --eval-period 800 "
        "--eval-episodes 2 --checkpoint-period 200 --hidden 8 --bqfd.batch-size 8 "
        "--bqfd.pretrain-updates 40 --no-video"
    ),
    "deep_sea": (
        "--size 5 --seeds 2 --episodes 60 --agents bqfd dqn --checkpoint-period 3 "
        "--torso 8 --hidden 8 --bqfd.batch-size 8 --dqn.batch-size 8"
    ),
}


def command(kind, out, *, resume):
    if resume:
        return [sys.executable, "-m", "experiments", "resume", str(out)]
    options = RUNS[kind].split()
    return [sys.executable, "-m", f"experiments.{kind}", *options, "--out", str(out)]


def run_and_kill(kind, out, environment, *, after):
    """Whether the run came to its end before it was killed."""
    resume = (out / "config.json").exists()
    process = subprocess.Popen(
        command(kind, out, resume=resume),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        text, _ = process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    assert process.returncode == 0, text
    return True


def rows_of(out):
    times = ("steps_per_second", "eval_seconds")
    rows = read_jsonl(out / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in times} for row in rows]


def places(rows):
    """What must be there once and in order, whatever was learnt."""
    return [(row.get("agent"), row["step"], row.get("updates"), "eval_mean" in row) for row in rows]


def test_killed_at_random_moments_nothing_is_lost(tmp_path):
    rng = random.Random(0)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    whole, seconds = {}, {}
    for kind in RUNS:
        started = time.monotonic()
        assert run_and_kill(kind, tmp_path / kind, environment, after=600)
        # The second time nothing needs to be compiled any more.
        again = time.monotonic()
        assert run_and_kill(kind, tmp_path / f"{kind}-again", environment, after=600)
        seconds[kind] = min(time.monotonic() - again, again - started)
        whole[kind] = rows_of(tmp_path / kind)
    kills, finished = 0, 0
    while kills < KILLS:
        for kind in RUNS:
            out = tmp_path / f"{kind}-{finished}"
            patience, before = seconds[kind], kills
            while not run_and_kill(kind, out, environment, after=rng.uniform(0.2, 1.0) * patience):
                kills += 1
                # On a machine that has become busy the run would otherwise never come to its end.
                patience *= 1.1
            if kills == before:
                # ... and on one that has become quick none would be killed any more.
                seconds[kind] *= 0.7
            print(f"{kind}: {kills} kills so far", flush=True)
            rows = rows_of(out)
            assert places(rows) == places(whole[kind])
            if kind == "deep_sea":
                assert rows == whole[kind]
            assert (out / "summary.json").exists()
        finished += 1
    print(f"{kills} kills, {finished} runs of each kind")
