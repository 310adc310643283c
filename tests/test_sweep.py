"""What becomes of a sweep's cells, and the command without Ray."""

import dataclasses
import json
import os
import shlex
import shutil
import signal
import sys
import time

import pytest

from bqfd_jax.checks import OptionError
from bqfd_jax.runs import folder
from bqfd_jax.runs.errors import RunError, Stopped, UsageError
from bqfd_jax.runs.gym import GymConfig
from bqfd_jax.runs.sweep import cell as cells
from bqfd_jax.runs.sweep import needs, on_ray
from bqfd_jax.runs.sweep.cell import Outcome, Task, attempt, attempts_of, is_finished
from bqfd_jax.runs.sweep.grid import Cell
from bqfd_jax.runs.sweep.status import Status, status, table, with_outcomes
from experiments.gym.__main__ import main as single
from experiments.report.__main__ import main as report
from experiments.sweep import __main__ as command
from experiments.sweep.__main__ import main as sweep
from experiments.sweep.config import SweepConfig

# --- Attempts ---


@pytest.fixture
def task(tmp_path):
    config = dataclasses.replace(GymConfig.of(100), out=tmp_path / "CartPole-v1" / "bqfd" / "0")
    return Task(config, tmp_path / "logs", "this", tmp_path / "stop")


def begin(config):
    config.out.mkdir(parents=True, exist_ok=True)
    folder.write_config(config.out, config.stored() | {"demonstrations": {"made": "digest"}})


def finish(config, sink):
    assert not config.resume
    begin(config)
    sink.say("trained")
    (config.out / "metrics.jsonl").write_text('{"step": 100}\n')
    (config.out / "summary.json").write_text("{}")


def test_an_attempt_is_done_once_and_leaves_a_log(task):
    assert attempt(task, finish) == Outcome("done")
    assert "trained" in (task.logs / "log.txt").read_text()
    # What is finished is not begun again.
    assert attempt(task, lambda *_: pytest.fail("again")) == Outcome("done")
    assert [row.get("state") for row in attempts_of(task.logs)] == [None, "done", None, "done"]
    assert is_finished(task.config)


def test_what_lies_there_must_be_the_same_run(task):
    begin(dataclasses.replace(task.config, hidden=9))
    (task.config.out / "summary.json").write_text("{}")
    outcome = attempt(task, lambda *_: pytest.fail("begun"))
    assert outcome.state == "failed"
    assert "hidden: was 9, now 64" in outcome.why


def lose_metrics(task):
    attempt(task, finish)
    (task.config.out / "metrics.jsonl").unlink()


def test_lost_metrics_come_back_from_a_checkpoint(task):
    lose_metrics(task)
    (task.config.out / "checkpoints" / "000000-step-100").mkdir(parents=True)
    assert not is_finished(task.config)

    def go_on(config, sink):
        assert config.resume
        (config.out / "metrics.jsonl").write_text('{"step": 100}\n')

    assert attempt(task, go_on) == Outcome("done")
    assert is_finished(task.config)


def test_what_is_left_of_a_run_is_not_trained_over(task):
    lose_metrics(task)
    before = {path.name: path.read_bytes() for path in task.config.out.iterdir()}
    for _ in range(2):
        outcome = attempt(task, lambda *_: pytest.fail("trained over it"))
        # Neither busy nor stopped, which would be tried again and again.
        assert outcome.state == "failed"
        assert "without its metrics.jsonl" in outcome.why
        assert "put the file back, or move the folder away" in outcome.why
    assert {path.name: path.read_bytes() for path in task.config.out.iterdir()} == before
    (task.config.out / "metrics.jsonl").write_text('{"step": 100}\n')
    assert attempt(task, lambda *_: pytest.fail("again")) == Outcome("done")


def test_what_was_begun_is_resumed(task):
    begin(task.config)
    assert attempt(task, lambda config, _: None if config.resume else 1 / 0).state == "done"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (OptionError("hidden", 0, "at least 1"), "failed"),
        (RunError("the loss became nan"), "failed"),
        (ZeroDivisionError(), "failed"),
        (SystemExit("no display"), "failed"),
        (Stopped("saved"), "stopped"),
    ],
)
def test_no_error_leaves_an_attempt(task, error, state):
    def fail(config, sink):
        raise error

    outcome = attempt(task, fail)
    assert outcome == Outcome(state, str(error) or "ZeroDivisionError")
    assert (task.logs / "failed.json").exists() == (state == "failed")
    # The next one that works leaves no trace of it.
    assert attempt(task, finish).state == "done"
    assert not (task.logs / "failed.json").exists()


def test_a_busy_folder_is_another_matter(task):
    begin(task.config)

    def train(config, sink):
        with folder.sole_use(config.out):
            pass

    with folder.sole_use(task.config.out):
        outcome = attempt(task, train)
    assert outcome.state == "busy"
    assert not (task.logs / "failed.json").exists()
    assert attempt(task, train).state == "done"


def test_who_is_overtaken_while_it_prepares_comes_back_later(task):
    def overtaken(config, sink):
        # A worker that was presumed dead begins the run meanwhile.
        begin(config)
        (config.out / "metrics.jsonl").touch()
        folder.prepare(config.out, config.stored(), name="x", resume=config.resume)

    assert not task.config.resume
    outcome = attempt(task, overtaken)
    assert (outcome.state, "exists already" in outcome.why) == ("busy", True)
    assert not (task.logs / "failed.json").exists()


def test_notes_that_cannot_be_written_do_not_undo_a_run(task, monkeypatch):
    write = cells.MetricsWriter.write

    def full(self, row):
        if "ended" in row:
            raise OSError("the disk is full")
        write(self, row)

    monkeypatch.setattr(cells.MetricsWriter, "write", full)
    assert attempt(task, finish) == Outcome("done")


def test_a_process_that_dies_again_and_again_is_given_up(task, monkeypatch):
    monkeypatch.setattr(cells, "MAX_DEATHS", 3)

    def died(step, sweep="this"):
        with open(task.logs / "attempts.jsonl", "a") as file:
            file.write(json.dumps({"sweep": sweep, "began": 0.0, "step": step}) + "\n")

    def come_to(step):
        monkeypatch.setattr(cells, "last_step", lambda run: step)

    task.logs.mkdir()
    for step in (None, None, 500, 500, 500):
        died(step)
    for _ in range(5):
        died(700, sweep="an earlier one")
    # It has come further since the last of them ...
    come_to(700)
    assert cells.deaths_without_progress(task) == 2
    assert attempt(task, lambda *_: None).state == "done"
    # ... and now it does not any more.
    for _ in range(3):
        died(700)
    outcome = attempt(task, lambda *_: pytest.fail("again"))
    assert outcome == Outcome("failed", "its process died 3 times without coming further")


def test_a_file_or_a_signal_asks_to_stop(task, monkeypatch):
    monkeypatch.setattr(cells, "_LOOK_SECONDS", 0.0)

    def train(ask):
        def stop(config, sink):
            assert not sink.stop_asked()
            ask()
            assert sink.stop_asked()
            raise Stopped("saved")

        return stop

    for ask in (lambda: os.kill(os.getpid(), signal.SIGTERM), task.stop_file.touch):
        assert attempt(task, train(ask)).state == "stopped"
    # What has not begun does not begin.
    assert attempt(task, lambda *_: pytest.fail("begun")).state == "stopped"


# --- How runs stand ---


def test_a_status_is_read_from_the_runs_own_files(tmp_path):
    one, run, logs = Cell("A", "dqn", 0), tmp_path / "run", tmp_path / "logs"

    def now(sweep="this"):
        return status(one, 1000, run, logs, sweep)

    assert now() == Status("A, dqn, seed 0", "waiting", steps=1000)
    run.mkdir()
    logs.mkdir()
    (logs / "attempts.jsonl").write_text('{"sweep": "this", "began": 1, "step": null}\n')
    assert now().state == "running"
    assert now("another").state == "waiting"
    with open(logs / "attempts.jsonl", "a") as file:
        file.write('{"swe{"sweep": "this"\n')
    assert now().state == "running"
    rows = [
        {"step": 300, "steps_per_second": 50.0},
        {"step": 200, "eval_mean": 7.0},
        {"step": 400, "steps_per_second": 20.0},
    ]
    text = '[]\n{"st' + "".join(json.dumps(row) + "\n" for row in [{}, *rows]) + '{"step": 999'
    (run / "metrics.jsonl").write_text(text)
    found = now()
    assert (found.step, found.score, found.speed, found.seconds_left) == (400, 7.0, 20.0, 30.0)
    assert now("another").state == "stopped"
    (logs / "failed.json").write_text('{"why": "a reason"}')
    assert (now("another").state, now("another").why) == ("failed", "a reason")
    (run / "summary.json").write_text("{}")
    # What a run is, its config says.
    assert now("another").state == "failed"
    (run / "config.json").write_text("{}")
    assert now("another").state == "done"
    (logs / "failed.json").unlink()
    (run / "metrics.jsonl").unlink()
    assert now("another").state == "failed"
    assert "put the file back" in now("another").why


def test_the_table_puts_what_matters_first_and_counts_the_rest():
    found = [Status(f"w{i}", "waiting", steps=10) for i in range(30)]
    found += [Status("f", "waiting", steps=10), Status("r", "running", 5, 10, 0.25, 2.0)]
    outcomes = {"f": Outcome("failed", "no such game"), "w3": Outcome("stopped")}
    found = with_outcomes(found, outcomes)
    lines = table(found, most=3).splitlines()
    assert lines[1].split() == ["f", "failed", "-", "-", "-", "-"]
    assert " ".join(lines[2].split()) == "r running 5 of 10 0.250 2 2 s"
    assert lines[4:] == [
        "... and 29 waiting",
        "  f: no such game",
        "1 failed, 1 running, 30 waiting",
    ]


# --- Ray's part that needs no Ray ---


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install -e '\.\[sweep\]'"):
        on_ray.load_ray()
    # Whatever Ray is used after this: on loopback alone, and no word to anybody.
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_a_worker_has_as_many_threads_as_cores_and_its_share_of_a_gpu():
    assert on_ray.environment(on_ray.Resources(cpus=2)) == {"NPROC": "2", "OMP_NUM_THREADS": "2"}
    shared = on_ray.environment(on_ray.Resources(cpus=0.5, gpus=0.5))
    assert shared["NPROC"] == "1"
    assert shared["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.450"


class Nodes:
    """A Ray with one node."""

    def __init__(self, **resources):
        self._resources = resources

    def nodes(self):
        dead = {"Alive": False, "Resources": {"CPU": 99.0, "memory": 1e12, "GPU": 9.0}}
        return [dead, {"Alive": True, "Resources": self._resources}]


@pytest.mark.parametrize(
    ("there", "settings", "expected"),
    [
        (0, {"workers": 2}, 0),
        (1, {"workers": 2}, 0.5),
        (4, {"workers": 2}, 1),
        (2, {"workers": 3}, 0.5),
        (8, {"workers": 2, "gpus": 0}, 0),
        (2, {"address": "auto", "workers": 9}, 1),
        (0, {"address": "auto"}, 0),
    ],
)
def test_gpus_are_shared_unless_somebody_says_how(there, settings, expected):
    assert on_ray.settled(Nodes(GPU=there), on_ray.Resources(**settings)).gpus == expected


class FakeRay:
    """Does every task at once, in this process; enough to try what the driver does."""

    class exceptions:  # noqa: N801
        class RayError(Exception):
            pass

        class TaskCancelledError(RayError):
            pass

    def __init__(self):
        self.options_seen, self.cancelled = [], []

    def remote(self, **settings):
        assert settings == {"max_retries": -1, "max_calls": 1}
        outer = self

        def decorate(work):
            class Remote:
                def options(self, **options):
                    outer.options_seen.append(options)
                    return self

                def remote(self, task):
                    return (work, task, object())

            return Remote()

        return decorate

    def wait(self, references, timeout):
        return references[:1], references[1:]

    def get(self, reference):
        if reference in self.cancelled:
            raise self.exceptions.TaskCancelledError
        work, task, _ = reference
        return work(task)

    def cancel(self, reference):
        self.cancelled.append(reference)


def drive(task, answers, **settings):
    ray, asked = FakeRay(), []

    def work(given):
        asked.append(given)
        answer = answers[min(len(asked), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    resources = on_ray.Resources(busy_seconds=0.05, **settings)
    return on_ray.Driver(ray, work, {"a": task}, {"a": 5}, resources), ray, asked


def test_the_driver_tries_again_what_was_busy_and_never_what_failed(task):
    answers = [Outcome("busy"), Outcome("stopped"), Outcome("failed", "NaN")]
    driver, ray, asked = drive(task, answers, cpus=2, gpus=1)
    assert ray.options_seen[0]["memory"] == 5
    assert (ray.options_seen[0]["num_cpus"], ray.options_seen[0]["num_gpus"]) == (2, 1)
    assert ray.options_seen[0]["resources"] == {"bqfd_run": 1}
    until = time.monotonic() + 10
    while not driver.is_over and time.monotonic() < until:
        driver.advance(0.01)
    assert driver.outcomes == {"a": Outcome("failed", "NaN")}
    assert len(asked) == 3


def test_a_worker_that_cannot_begin_has_failed(task):
    driver, _, asked = drive(task, [FakeRay.exceptions.RayError("no such module")])
    driver.advance(0)
    assert driver.is_over
    assert driver.outcomes["a"] == Outcome("failed", "its worker could not begin: no such module")
    assert len(asked) == 1


def test_to_stop_leaves_a_file_and_cancels_what_has_not_begun(task):
    driver, ray, asked = drive(task, [Outcome("done")])
    driver.stop()
    assert task.stop_file.exists()
    assert len(ray.cancelled) == 1
    driver.advance(0)
    assert (driver.is_over, driver.outcomes, asked) == (True, {"a": Outcome("stopped")}, [])


def test_a_run_that_no_node_can_take_is_refused():
    small = Nodes(CPU=4.0, memory=3e9)
    wanted = on_ray.Resources(cpus=4, gpus=0)
    on_ray.check_fits(small, wanted, {"small": int(2e9)})
    with pytest.raises(UsageError, match=r"no node can take large: it needs .* and 4.0 GB"):
        on_ray.check_fits(small, wanted, {"large": int(4e9)})
    with pytest.raises(UsageError, match="1 GPUs"):
        on_ray.check_fits(small, on_ray.Resources(gpus=1), {"small": 0})


def test_a_run_that_cannot_be_made_stops_nobody(monkeypatch):
    def broken(config):
        raise AssertionError("no display")

    monkeypatch.setitem(needs.KINDS, "gym", (GymConfig, broken))
    assert needs.memory(GymConfig.of(100)) == 10**9


def test_who_is_stopped_while_a_folder_is_busy_is_not_done(task):
    driver, _, _ = drive(task, [Outcome("busy")])
    driver.advance(0)
    driver.stop()
    assert driver.is_over
    with pytest.raises(Stopped, match="the same command goes on"):
        command._conclude(SweepConfig(out=task.logs), driver)


# --- The command ---

TINY = shlex.split(
    "--env gym_probes:bqfd-Probe-v0 --steps 80 --demo-quality bad --demo-steps 30 --envs 4 "
    "--update-period 4 --learning-starts 40 --log-period 40 --eval-period 40 --eval-episodes 2 "
    "--hidden 8 --no-video --dqn.batch-size 8 --no-eval-in-background"
)


def keep_results_alone(run):
    for path in run.iterdir():
        if path.name in ("config.json", "metrics.jsonl", "summary.json"):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_one_cell_is_run_by_its_number_and_once(tmp_path, run_here):
    out = tmp_path / "s"
    options = [*TINY, "--agents", "dqn", "bqfd", "--seeds", "2", "--out", str(out)]
    code, text = run_here(lambda: sweep([*options, "--list"]))
    assert code == 0, text
    lines = text.strip().splitlines()
    assert [line.split()[:2] for line in lines] == [[str(i), "waiting"] for i in range(4)]
    assert "experiments.gym --env gym_probes:bqfd-Probe-v0 --agent dqn --seed 1" in lines[1]
    assert not out.exists()
    code, text = run_here(lambda: sweep([*options, "--index", "1"]))
    assert code == 0, text
    run = out / "gym_probes-bqfd-Probe-v0" / "dqn" / "1"
    assert json.loads((run / "summary.json").read_text())["seed"] == 1
    before = (run / "metrics.jsonl").stat().st_mtime_ns
    code, text = run_here(lambda: sweep([*options, "--index", "1"]))
    assert (code, "is finished already" in text) == (0, True)
    assert (run / "metrics.jsonl").stat().st_mtime_ns == before
    code, text = run_here(lambda: sweep([*options, "--list"]))
    states = [line.split()[1] for line in text.strip().splitlines()]
    assert states == ["waiting", "done", "waiting", "waiting"]
    # Nothing but these is needed to know that a run is done, and what came of it.
    keep_results_alone(run)
    code, text = run_here(lambda: sweep([*options, "--index", "1"]))
    assert (code, "is finished already" in text) == (0, True)
    code, text = run_here(lambda: report([str(out), "--out", str(tmp_path / "report")]))
    assert (code, "(1 of 2 seeds)" in text) == (0, True)
    # With less than these it is said of what is left, in words, and it stays as it is.
    kept, summary = (run / "metrics.jsonl").read_bytes(), (run / "summary.json").read_bytes()
    (run / "metrics.jsonl").unlink()
    code, text = run_here(lambda: sweep([*options, "--index", "1"]))
    assert (code, "finished run without its metrics.jsonl" in text) == (2, True)
    code, text = run_here(lambda: sweep([*options, "--list"]))
    assert text.strip().splitlines()[1].split()[:2] == ["1", "failed"]
    assert (run / "summary.json").read_bytes() == summary
    assert not (run / "metrics.jsonl").exists()
    (run / "metrics.jsonl").write_bytes(kept)
    # One that cannot work says so, there and in a report.
    code, text = run_here(lambda: sweep([*options, "--index", "0", "--eval-episodes", "5000"]))
    assert (code, "must be at most 1000" in text) == (2, True)
    code, text = run_here(lambda: sweep([*options, "--list"]))
    assert text.split()[:2] == ["0", "failed"]
    code, text = run_here(lambda: sweep([*options, "--index", "4"]))
    assert (code, "--index is 4, but must be in [0, 3]" in text) == (2, True)
    # All that was asked for is there: Ray is not even looked for.
    done = [*TINY, "--agents", "dqn", "--seeds", "1", "--first-seed", "1", "--out", str(out)]
    code, text = run_here(lambda: sweep(done))
    assert (code, "all 1 runs are finished" in text) == (0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name Atari games (--game) or environments (--env)"),
        (["--env", "CartPole-v1", "--game", "Pong"], "one of both"),
        (["--env", "CartPole-v1", "--agent", "dqn"], "--agent: the sweep decides that"),
        (["--env", "CartPole-v1", "--seeds_per_program", "2"], "the sweep decides that"),
        (["--env", "CartPole-v1", "--set", "seed=1,2"], "--seed: the sweep decides that"),
        (["--env", "CartPole-v1", "--set", "out=x"], "--out: the sweep decides that"),
        (["--env", "CartPole-v1", "--no-such-option", "3"], "--no-such-option"),
        (["--env", "CartPole-v1", "--index", "9"], "--index is 9, but must be in [0, 8]"),
        (["--env", "CartPole-v1", "--seeds", "0"], "--seeds is 0, but must be at least 1"),
        (["--env", "CartPole-v1", "--set", "hidden"], "--set hidden: give a name and values"),
        (["--env", "CartPole-v1", "--agents", "nobody"], "agents is 'nobody', but must be one"),
        (["--env", "CartPole-v1", "--agents", "dqn:seed=3"], "--seed: the sweep decides that"),
        (["--env", "CartPole-v1", "--agents", "dqn:no-such=3"], "--no_such"),
        (["--env", "CartPole-v1", "--set", "hidden=8,0"], "--hidden is 0, but must be at least 1"),
        (["--env", "CartPole-v1", "--agents", "dqn", "clone:demo=none"], "a clone learns from"),
        (["--env", "CartPole-v1", "--wrappers", "nowhere"], "--wrappers nowhere: "),
        (["--game", "Freeway", "Breakot"], "there is no game 'Breakot'; did you mean Breakout"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, message, run_here, tmp_path):
    code, text = run_here(lambda: sweep([*options, "--list", "--out", str(tmp_path / "s")]))
    assert code == 2
    assert message in " ".join(text.split())


def test_a_list_refuses_bad_values_in_the_words_of_the_single_command(run_here, tmp_path):
    options = ["--env", "CartPole-v1", "--eval-episodes", "5000"]
    out = ["--out", str(tmp_path / "s")]
    listed = run_here(lambda: sweep([*options, *out, "--list"]))
    assert listed == run_here(lambda: single([*options, *out]))
    assert listed == (2, "error: --eval-episodes is 5000, but must be at most 1000\n")
    assert not (tmp_path / "s").exists()


def test_a_list_may_be_made_where_the_runs_are_not(run_here, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    options = ["--env", "CartPole-v1", "--seeds", "1", "--agents", "dqn", "--wandb", "offline"]
    options += ["--devices", "32", "--out", str(tmp_path / "s")]
    code, text = run_here(lambda: sweep([*options, "--list"]))
    assert (code, text.split()[:2]) == (0, ["0", "waiting"])
    code, text = run_here(lambda: sweep([*options, "--index", "0"]))
    assert (code, "--devices is 32, but must be at most" in text) == (2, True)
