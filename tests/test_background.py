"""Evaluations beside training: the rows are the same, and no death loses or doubles one."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_sinks import Noting

from bqfd_jax.envs.host import HostEnvironmentError
from bqfd_jax.files import read_json
from bqfd_jax.runs import background, host_run
from bqfd_jax.runs.background import Background, steps_of
from bqfd_jax.runs.errors import RunError, Stopped, UsageError
from bqfd_jax.runs.gym import GymConfig
from bqfd_jax.runs.metrics import read_jsonl
from bqfd_jax.runs.run import Run, load_job, start

ROOT = Path(__file__).parent.parent


def tiny(out, **changes):
    base = GymConfig.of(240)
    settings = {
        "env": "gym_probes:bqfd-Probe-v0",
        "demo": ("none",),
        "agent": "dqn",
        "steps": 240,
        "envs": 4,
        "update_period": 4,
        "learning_starts": 40,
        "log_period": 40,
        "eval_period": 80,
        "eval_episodes": 2,
        "checkpoint_period": 80,
        "hidden": 8,
        "video": False,
        "out": out,
        "dqn": dataclasses.replace(base.dqn, batch_size=8),
    }
    return dataclasses.replace(base, **settings | changes)


def evaluations(out):
    rows = [row for row in read_jsonl(out / "metrics.jsonl") if "eval_mean" in row]
    return sorted((row["step"], row["eval_mean"], row["episodes"]) for row in rows)


def training_steps(out):
    return [row["step"] for row in read_jsonl(out / "metrics.jsonl") if "eval_mean" not in row]


class Process:
    """Stands for the other process; whoever tests answers in its place."""

    def __init__(self):
        self.code = None

    def poll(self):
        return self.code

    def terminate(self):
        self.code = -15

    def wait(self):
        return self.code


@pytest.fixture
def processes(monkeypatch):
    """No process is started; those that would have been are listed."""
    started = []

    def start(*args, **kwargs):
        started.append(Process())
        return started[-1]

    monkeypatch.setattr(background.subprocess, "Popen", start)
    monkeypatch.setattr(background, "_WAIT_SECONDS", 0.001)
    return started


@pytest.fixture(scope="module")
def job():
    return load_job(tiny(None))


@pytest.fixture
def make(job, tmp_path):
    def new(resumed_at=None):
        sink = Noting()
        return Background(job, tmp_path, resumed_at, sink), sink

    return new


def answer(folder, step, score=1.0, **others):
    row = {"step": step, "eval_mean": score, "eval_std": 0.0, "episodes": 2} | others
    (folder / "evaluations" / f"{step}.json").write_text(json.dumps(row))


@pytest.fixture
def policy(job):
    return job.policy(job.init().learner.params)


def test_what_is_asked_is_answered_once_known(make, policy, tmp_path, processes):
    there, _ = make()
    assert processes == []
    there.ask(80, policy)
    there.ask(160, policy)
    assert (there.asked, len(processes)) == ([80, 160], 1)
    assert there.answers(()) == []
    answer(tmp_path, 80, 7.0)
    (row,) = there.answers(())
    assert (row["step"], row["eval_mean"]) == (80, 7.0)
    assert there.policy(80).num_actions == policy.num_actions
    there.close_file(80)
    with pytest.raises(FileNotFoundError):
        there.policy(80)
    # The answer stays, for a run that goes back to an earlier checkpoint; known ones are no news.
    assert there.answers({80}) == []
    assert steps_of(tmp_path / "evaluations", "json") == [80]
    assert there.asked == [160]


def test_who_goes_on_takes_what_is_of_its_own_way(make, policy, tmp_path, processes):
    there, _ = make()
    for step in (80, 160, 240):
        there.ask(step, policy)
    answer(tmp_path, 80, 7.0)
    answer(tmp_path, 240, 1e9)
    there, _ = make(resumed_at=160)
    # Asked before: somebody is started for it without being asked again.
    assert len(processes) == 2
    assert [row["step"] for row in there.answers(())] == [80]
    assert there.asked == [80, 160]
    there, _ = make()
    assert (there.asked, there.answers(())) == ([], [])


def test_a_dead_process_is_replaced_and_in_the_end_given_up(make, policy, tmp_path, processes):
    there, sink = make()
    there.ask(80, policy)
    for deaths in range(1, 4):
        assert there.hopeless is None
        processes[-1].code = -9
        there.wait()
        assert len(sink.warnings) == deaths
    assert (there.hopeless, len(processes)) == (80, 3)
    assert there.policy(80).params.keys() == policy.params.keys()


def test_what_goes_wrong_in_a_game_is_told_and_tried_again(make, policy, tmp_path, processes):
    there, _ = make()
    there.ask(80, policy)
    answer(tmp_path, 80, error="the pole fell off")
    with pytest.raises(HostEnvironmentError, match="the pole fell off"):
        there.answers(())
    assert there.asked == [80]
    assert there.answers(()) == []
    # Nobody was left to be told.
    answer(tmp_path, 80, error="the pole fell off")
    there, _ = make(resumed_at=80)
    assert there.answers(()) == []
    assert (there.asked, len(processes)) == ([80], 2)


def test_what_cannot_be_started_does_not_end_a_run(make, policy, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError("the disk is full")

    monkeypatch.setattr(background.subprocess, "Popen", full)
    there, sink = make()
    for _ in range(3):
        there.ask(80, policy)
    assert there.hopeless == 80
    assert sink.warnings[0].endswith("80 cannot be started: the disk is full")


def test_it_takes_a_folder_and_things_that_can_be_made_again(job, tmp_path):
    with pytest.raises(UsageError, match="leave out eval_in_background"):
        Background(job, None, None, Noting())
    given = dataclasses.replace(job, made=job.made._replace(given=object()))
    with pytest.raises(UsageError, match="leave out eval_in_background"):
        Background(given, tmp_path, None, Noting())
    with pytest.raises(ValueError, match="seeds_per_program is 2, but must be 1"):
        tiny(None, eval_in_background=True, seeds_per_program=2).check()


def test_training_takes_late_answers_and_waits_for_the_last(tmp_path, processes, monkeypatch):
    out = tmp_path / "run"
    log, seen = host_run.HostRun.log, []

    def answering(self, *args, **kwargs):
        # A row later than it was asked.
        if self.loop.step == 120:
            answer(out, 80, 5.0)
        seen.append((self.loop.step, [row["step"] for row in self.journal.evaluations]))
        return log(self, *args, **kwargs)

    def wait(self):
        for step, score in ((160, 9.0), (240, 3.0)):
            answer(out, step, score)

    monkeypatch.setattr(host_run.HostRun, "log", answering)
    monkeypatch.setattr(Background, "wait", wait)
    summary = start(load_job(tiny(out, eval_in_background=True)), Noting())
    assert seen[-4:] == [(120, []), (160, [80]), (200, [80]), (240, [80])]
    assert evaluations(out) == [(80, 5.0, 2), (160, 9.0, 2), (240, 3.0, 2)]
    assert [e["step"] for e in summary["evaluations"]] == [80, 160, 240]
    assert steps_of(out / "evaluations", "npz") == []
    assert processes[0].code == -15
    # The best is the second one's network.
    assert (out / "policy-best.npz").read_bytes() != (out / "policy.npz").read_bytes()


def test_who_stops_while_waiting_makes_up_for_it(tmp_path, processes, monkeypatch):
    out = tmp_path / "run"

    class Impatient(Noting):
        def stop_asked(self):
            return (out / "evaluations" / "240.npz").exists()

    with pytest.raises(Stopped, match="in the evaluation at step 240"):
        start(load_job(tiny(out, eval_in_background=True)), Impatient())
    assert evaluations(out) == []
    assert not (out / "summary.json").exists()

    def wait(self):
        for step in (80, 160, 240):
            answer(out, step, step / 10)

    monkeypatch.setattr(Background, "wait", wait)
    # Also without the option: what was asked for is not forgotten.
    Run.load(out, trust_config=True).resume()
    assert evaluations(out) == [(80, 8.0, 2), (160, 16.0, 2), (240, 24.0, 2)]
    assert training_steps(out) == list(range(40, 241, 40))


def test_where_the_process_always_dies_training_plays_itself(tmp_path, processes, monkeypatch):
    out, sink = tmp_path / "run", Noting()

    def wait(self):
        processes[-1].code = -9
        self._watch()

    monkeypatch.setattr(Background, "wait", wait)
    start(load_job(tiny(out, eval_in_background=True)), sink)
    assert [step for step, _, _ in evaluations(out)] == [80, 160, 240]
    assert "evaluations in the background die at step 80" in "".join(sink.warnings)
    assert steps_of(out / "evaluations", "npz") == []


def test_the_rows_are_those_of_a_run_that_evaluates_itself(tmp_path):
    here, beside = tmp_path / "here", tmp_path / "beside"
    start(load_job(tiny(here)), Noting())
    start(load_job(tiny(beside, eval_in_background=True)), Noting())
    assert evaluations(here) == evaluations(beside)
    assert [step for step, _, _ in evaluations(here)] == [80, 160, 240]
    assert training_steps(here) == training_steps(beside)
    assert (beside / "evaluations" / "log.txt").read_text().strip() == ""


def test_where_it_dies_early_nobody_waits_for_a_score_until_the_end(
    tmp_path, processes, monkeypatch
):
    out, log, seen = tmp_path / "run", host_run.HostRun.log, {}

    def die(self=None):
        for process in processes:
            process.code = -9
        if self is not None:
            self._watch()

    def dying(self, *args, **kwargs):
        die()
        seen[self.loop.step] = [row["step"] for row in self.journal.evaluations]
        return log(self, *args, **kwargs)

    monkeypatch.setattr(background, "_MAX_DEATHS", 1)
    monkeypatch.setattr(host_run.HostRun, "log", dying)
    monkeypatch.setattr(Background, "wait", die)
    start(load_job(tiny(out, eval_in_background=True)), Noting())
    # Asked at 80, dead at 120, so that at 160 training plays both.
    assert (seen[160], seen[200]) == ([], [80, 160])
    assert [step for step, _, _ in evaluations(out)] == [80, 160, 240]


def test_where_no_network_can_be_left_training_plays_itself(tmp_path, processes, monkeypatch):
    out, sink, ask = tmp_path / "run", Noting(), Background.ask

    def fail(self, step, policy):
        if step != 80:
            raise OSError("the disk is full")
        ask(self, step, policy)

    monkeypatch.setattr(Background, "ask", fail)
    monkeypatch.setattr(Background, "wait", lambda self: answer(out, 80, 5.0))
    start(load_job(tiny(out, eval_in_background=True)), sink)
    assert [step for step, _, _ in evaluations(out)] == [80, 160, 240]
    assert sum("the disk is full" in text for text in sink.warnings) == 2


def test_an_evaluation_that_went_wrong_is_made_up_for_though_later_ones_are_there(
    tmp_path, processes, monkeypatch
):
    out = tmp_path / "run"

    def wait(self):
        answer(out, 80, 1.0)
        answer(out, 160, error="the pole fell off")
        answer(out, 240, 3.0)

    monkeypatch.setattr(Background, "wait", wait)
    with pytest.raises(RunError, match="the pole fell off"):
        start(load_job(tiny(out, eval_in_background=True)), Noting())
    monkeypatch.setattr(Background, "wait", lambda self: answer(out, 160, 2.0))
    Run.load(out, trust_config=True).resume()
    assert evaluations(out) == [(80, 1.0, 2), (160, 2.0, 2), (240, 3.0, 2)]
    assert [e["step"] for e in read_json(out / "summary.json")["evaluations"]] == [80, 160, 240]


@pytest.mark.slow
def test_killed_at_any_time_no_row_is_lost_or_doubled(tmp_path):
    out = tmp_path / "run"
    options = (
        "--env CartPole-v1 --agent dqn --demo none --steps 3000 --log-period 100 --eval-period 300 "
        "--eval-episodes 20 --checkpoint-period 400 --hidden 8 --no-video --eval-in-background"
    )
    command = [sys.executable, "-m", "experiments.gym", *options.split(), "--out", str(out)]
    logged = out / "metrics.jsonl"

    def run(until, *again):
        process = subprocess.Popen([*command, *again], cwd=ROOT, stderr=subprocess.DEVNULL)
        while process.poll() is None and not until():
            time.sleep(0.02)
        return process

    def children(pid):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def rows_from(count):
        return lambda: logged.exists() and len(read_jsonl(logged)) >= count

    training = run(rows_from(8))
    # The one that evaluates, then the one that trains.
    for pid in children(training.pid):
        os.kill(pid, signal.SIGKILL)
    limit = time.monotonic() + 60
    while not rows_from(14)() and time.monotonic() < limit:
        time.sleep(0.02)
    (orphan,) = children(training.pid) or [None]
    training.kill()
    training.wait()
    assert not (out / "summary.json").exists()
    assert run(lambda: False, "--resume").wait() == 0
    steps = [step for step, _, _ in evaluations(out)]
    assert len(steps) == len(set(steps)) == 10
    assert training_steps(out) == sorted(set(training_steps(out)))
    assert len(training_steps(out)) == 30
    # Whoever lost its parent has left.
    limit = time.monotonic() + 60
    while orphan is not None and Path(f"/proc/{orphan}").exists():
        assert time.monotonic() < limit
        time.sleep(0.1)
