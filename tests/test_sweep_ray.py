"""A sweep on a cluster of two nodes, of which a worker and then a whole node are killed."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from run_sinks import Noting

from bqfd_jax.files import read_json
from bqfd_jax.runs import folder
from bqfd_jax.runs.gym import GymConfig
from bqfd_jax.runs.metrics import read_jsonl
from bqfd_jax.runs.run import load_job, start
from bqfd_jax.runs.sweep import on_ray
from bqfd_jax.runs.sweep.cell import Task, attempts_of, last_step
from experiments.sweep.worker import work

pytestmark = pytest.mark.slow
pytest.importorskip("ray")

ROOT = Path(__file__).parent.parent
PATIENCE = 600.0  # seconds, for machines that have other things to do


def config(out, seed, **changes):
    base = GymConfig.of(12_000, "dqn")
    settings = {
        "demo": ("none",),
        "seed": seed,
        "log_period": 500,
        "eval_period": 4_000,
        "eval_episodes": 5,
        "checkpoint_period": 1_000,
        "hidden": 8,
        "video": False,
        "eval_in_background": True,
        "out": out,
        "dqn": dataclasses.replace(base.dqn, batch_size=8),
    }
    return dataclasses.replace(base, **settings | changes)


def places(out):
    """What must be there once, whatever was learnt; evaluations may come late."""
    rows = read_jsonl(out / "metrics.jsonl")
    return sorted((row["step"], row.get("updates", -1), "eval_mean" in row) for row in rows)


@pytest.fixture(autouse=True)
def in_earnest(monkeypatch):
    # Ray's workers are as patient as can be, which on a busy machine is for ever.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    # What the tests compile quickly runs slowly, and these runs must be worth killing.
    monkeypatch.delenv("XLA_FLAGS", raising=False)


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    on_ray.load_ray()
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    made.shutdown()


def node_of(cluster, pid):
    """The node whose raylet has started a process."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for node in cluster.list_all_nodes():
        (raylet,) = node.all_processes["raylet"]
        if raylet.process.pid == parent:
            return node
    raise AssertionError(f"process {pid} is of no node")


def began(task):
    return [row for row in attempts_of(task.logs) if "began" in row]


def test_workers_and_nodes_may_die_and_nothing_is_lost(cluster, tmp_path):
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    tasks = {
        name: Task(run, tmp_path / "logs" / name, "this", tmp_path / "stop")
        for name, run in {
            "worker": config(tmp_path / "worker", 1),
            "node": config(tmp_path / "node", 2),
            "hopeless": config(tmp_path / "hopeless", 3, eval_episodes=5_000),
            "busy": config(tmp_path / "busy", 4, steps=1_000),
        }.items()
    }
    memory = dict.fromkeys(tasks, 10**8)
    resources = on_ray.Resources(address=cluster.address, gpus=0, busy_seconds=1.0)
    tasks["busy"].config.out.mkdir()
    killed, until = [], time.monotonic() + PATIENCE
    with on_ray.cluster(resources) as ray, ExitStack() as held:
        held.enter_context(folder.sole_use(tasks["busy"].config.out))
        driver = on_ray.Driver(ray, work, tasks, memory, resources)
        while not driver.is_over and time.monotonic() < until:
            driver.advance(0.05)
            for name in ("worker", "node"):
                task = tasks[name]
                if name in killed or (last_step(task.config.out) or 0) < 2_000:
                    continue
                pid = began(task)[-1]["pid"]
                if name == "worker":
                    os.kill(pid, signal.SIGKILL)
                elif "worker" in killed:
                    cluster.remove_node(node_of(cluster, pid), allow_graceful=False)
                else:
                    continue
                killed.append(name)
            if any(row.get("state") == "busy" for row in attempts_of(tasks["busy"].logs)):
                held.close()
        outcomes = dict(driver.outcomes)
    assert killed == ["worker", "node"]
    assert {name: outcome.state for name, outcome in outcomes.items()} == {
        "worker": "done",
        "node": "done",
        "hopeless": "failed",
        "busy": "done",
    }
    # What can never work is tried once, what was in use until it is free.
    assert len(began(tasks["hopeless"])) == 1
    assert "eval_episodes is 5000, but must be at most 1000" in outcomes["hopeless"].why
    whole = config(tmp_path / "whole", 5)
    unbroken = start(load_job(dataclasses.replace(whole, eval_in_background=False)), Noting())
    for name in ("worker", "node"):
        task = tasks[name]
        resumed = [row["step"] for row in began(task)][1:]
        assert resumed
        assert min(step or 0 for step in resumed) >= 1_000
        assert "resumed at step" in (task.logs / "log.txt").read_text()
        assert places(task.config.out) == places(whole.out)
        summary = read_json(task.config.out / "summary.json")
        assert summary["updates"] == unbroken["updates"]
        assert [e["step"] for e in summary["evaluations"]] == [
            e["step"] for e in unbroken["evaluations"]
        ]


def listeners():
    """Addresses that somebody listens on, of IPv4 and IPv6."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                found.add((fields[1].partition(":")[0], fields[1].partition(":")[2]))
    return found


# 127.0.0.1, ::1 and ::ffff:127.0.0.1, as the kernel writes them.
LOOPBACK = {
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",
}


def test_a_sweep_listens_on_loopback_only_and_does_what_is_missing(tmp_path):
    out = tmp_path / "s"
    options = (
        "--env CartPole-v1 --agents dqn --steps 1000 --demo none --hidden 8 --dqn.batch-size 8 "
        "--eval-period 500 --log-period 100 --no-video --workers 2"
    )
    command = [sys.executable, "-m", "experiments.sweep", *options.split(), "--out", str(out)]
    before = listeners()

    def sweep(seeds):
        process = subprocess.Popen(
            [*command, "--seeds", str(seeds)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        seen = set()
        while process.poll() is None:
            seen |= listeners() - before
            time.sleep(0.1)
        text = process.stdout.read()
        assert process.returncode == 0, text
        return seen

    seen = sweep(1)
    # Ray was there, and nowhere else.
    assert len(seen) > 2
    assert {address for address, _ in seen} <= LOOPBACK
    first = out / "CartPole-v1" / "dqn" / "0" / "metrics.jsonl"
    written = first.stat().st_mtime_ns
    sweep(2)
    assert (out / "CartPole-v1" / "dqn" / "1" / "summary.json").exists()
    assert first.stat().st_mtime_ns == written


def test_ctrl_c_stops_all_with_a_checkpoint_and_the_command_goes_on(tmp_path):
    out = tmp_path / "s"
    options = (
        "--env CartPole-v1 --agents dqn --seeds 3 --steps 200000 --demo none --hidden 8 "
        "--dqn.batch-size 8 --log-period 100 --checkpoint-period 100000 --no-video --workers 2"
    )
    command = [sys.executable, "-m", "experiments.sweep", *options.split(), "--out", str(out)]
    with open(tmp_path / "log.txt", "w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    runs = [out / "CartPole-v1" / "dqn" / str(seed) for seed in range(3)]
    until = time.monotonic() + PATIENCE
    while not all((run / "metrics.jsonl").exists() for run in runs[:2]):
        assert process.poll() is None, (tmp_path / "log.txt").read_text()
        assert time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert "the same command goes on" in (tmp_path / "log.txt").read_text()
    assert all(last_step(run) is not None for run in runs[:2])
    # What waited was never begun.
    assert not runs[2].exists()
