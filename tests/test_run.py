"""A run as one object and one command: the same numbers by every way, resumed, extended, played."""

import dataclasses
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from gym_probes import PROBE as ENV
from run_sinks import StopAt

import bqfd_jax
from bqfd_jax import Run, agent_config, demos
from bqfd_jax.checks import OptionError
from bqfd_jax.runs import folder
from bqfd_jax.runs.checkpoint import CheckpointError
from bqfd_jax.runs.errors import FolderBusyError, Stopped, UsageError
from bqfd_jax.runs.metrics import read_jsonl
from bqfd_jax.runs.run import load_job
from experiments import __main__ as bqfd
from experiments.gym import __main__ as gym

ROOT = Path(__file__).parent.parent
OPTIONS = {
    "envs": 4,
    "update_period": 4,
    "learning_starts": 40,
    "log_period": 40,
    "eval_period": 120,
    "eval_episodes": 2,
    "final_steps": 120,
    "checkpoint_period": 120,
    "hidden": 8,
}
CONFIG = dataclasses.replace(
    agent_config("small", "bqfd", steps=240), batch_size=8, pretrain_updates=5
)


@pytest.fixture(scope="module")
def demonstration():
    def right(observations):
        return np.ones(len(observations), int)

    return bqfd_jax.record(ENV, right, 2, epsilon=0.3, name="flawed")


def train(demonstration, **options):
    return bqfd_jax.train(
        ENV, demonstration, CONFIG, steps=240, progress=False, **OPTIONS, **options
    )


@pytest.fixture(scope="module")
def whole(demonstration, tmp_path_factory):
    """A run that was never stopped, and what `train` gave."""
    out = tmp_path_factory.mktemp("run") / "whole"
    return out, train(demonstration, out=out)


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole[0], tmp_path / "copy")


def untimed(rows):
    return [
        {k: v for k, v in row.items() if k not in ("steps_per_second", "eval_seconds")}
        for row in rows
    ]


def check_rows(rows, steps=240):
    """Every log period once and in order, with the updates of a run that was never stopped."""
    training = [row for row in rows if "eval_mean" not in row]
    assert [row["step"] for row in training] == list(range(0, steps + 1, 40))
    # One in four from step 40 on, and five before all.
    assert [row["updates"] for row in training] == [5, *range(5, 5 + (steps - 40) // 4 + 1, 10)]
    evaluated = [row["step"] for row in rows if "eval_mean" in row]
    assert evaluated == list(range(0, steps + 1, 120))


def check_same_parameters(one, other):
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_command_and_the_call_give_the_same_numbers(whole, demonstration, tmp_path, run_here):
    out, result = whole
    demos.save(demonstration, tmp_path / "flawed.npz")
    named = {"env": ENV, "demo": tmp_path / "flawed.npz", "steps": 240, "out": tmp_path / "run"}
    named |= {name.replace("_", "-"): value for name, value in OPTIONS.items()}
    named |= {"bqfd.batch-size": 8, "bqfd.pretrain-updates": 5}
    options = [part for name, value in named.items() for part in (f"--{name}", value)]
    code, text = run_here(gym.main, *options, "--no-video")
    assert code == 0, text
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    check_rows(rows)
    assert untimed(rows) == untimed(result.metrics)
    assert rows[-1].keys() == result.metrics[-1].keys()
    check_same_parameters(bqfd_jax.load_policy(tmp_path / "run" / "policy.npz"), result.policy)
    # The folders differ only where they lie and where the demonstration comes from.
    one, other = (
        json.loads((path / "config.json").read_text()) for path in (out, tmp_path / "run")
    )
    assert one | {"demo": None} == other | {"demo": None}
    assert one["demo"] == ["given"]


def test_without_a_folder_the_numbers_are_the_same(whole, demonstration, capfd):
    result = train(demonstration)
    assert capfd.readouterr() == ("", "")
    assert untimed(result.metrics) == untimed(whole[1].metrics)
    check_same_parameters(result.policy, whole[1].policy)
    check_same_parameters(result.best_policy, whole[1].best_policy)
    different = ("seconds", "steps_per_second", "peak_memory_gb")
    for name in result.summary.keys() - different:
        assert result.summary[name] == whole[1].summary[name]


# --- Stopped and resumed ---


@pytest.fixture(scope="module")
def stopped(demonstration, tmp_path_factory):
    """A run that a callback has stopped."""
    out = tmp_path_factory.mktemp("run") / "stopped"
    result = train(demonstration, out=out, callbacks=lambda row: row["step"] >= 80)
    assert result.stopped
    assert int(result.state.step) == result.summary["steps"] == 80
    assert not (out / "summary.json").exists()
    assert (out / "policy.npz").exists()
    return out


def test_a_stopped_run_goes_on_by_the_same_call(stopped, demonstration, tmp_path):
    out = shutil.copytree(stopped, tmp_path / "run")
    result = train(demonstration, out=out, resume=True)
    assert not result.stopped
    check_rows(result.metrics)
    assert read_jsonl(out / "metrics.jsonl") == result.metrics
    assert int(result.state.learner.updates) == 55
    assert json.loads((out / "summary.json").read_text())["updates"] == 55


def test_a_stopped_run_goes_on_by_its_folder_alone(stopped, tmp_path, run_here):
    out = shutil.copytree(stopped, tmp_path / "run")
    run = Run.load(out, trust_config=True)
    assert (run.last_step, run.summary) == (80, None)
    # Nothing but its folder is named.
    code, text = run_here(bqfd.main, "resume", out, "--trust-config")
    assert code == 0, text
    assert "resumed at step 80" in text
    check_rows(run.metrics)
    assert run.summary["updates"] == 55
    # And once more, when there is nothing left to do.
    before = (out / "metrics.jsonl").read_bytes()
    assert run.resume()["updates"] == 55
    assert (out / "metrics.jsonl").read_bytes() == before


def test_a_run_that_is_resumed_with_other_demonstrations_is_refused(
    stopped, demonstration, tmp_path
):
    out = shutil.copytree(stopped, tmp_path / "run")
    other = dataclasses.replace(demonstration, rewards=demonstration.rewards + 1)
    with pytest.raises(UsageError, match=r"demonstrations\.flawed: was .*, now"):
        train(other, out=out, resume=True)
    with pytest.raises(UsageError, match=r'demo: was \["given"\], now \["none"\]'):
        train(None, out=out, resume=True)
    with pytest.raises(UsageError, match="exists already"):
        train(demonstration, out=out)


def test_a_finished_run_is_extended(copy, capfd):
    run = Run.load(copy, trust_config=True)
    before = json.loads((copy / "config.json").read_text())
    summary = run.resume(steps=360)
    # A sink that is not given says nothing.
    assert capfd.readouterr() == ("", "")
    check_rows(run.metrics, steps=360)
    assert (summary["steps"], summary["updates"]) == (360, 85)
    assert run.summary == json.loads((copy / "summary.json").read_text())
    after = json.loads((copy / "config.json").read_text())
    # Schedules and replay are those of the shorter run.
    assert after == before | {"steps": 360, "replay_rows": 240}
    assert run.config.agent_config == CONFIG
    assert run.config.rows_per_lane * 4 == 240
    assert Run.load(copy, trust_config=True).last_step == 360


def test_what_cannot_be_an_extension_leaves_the_folder_as_it_was(copy):
    before = (copy / "config.json").read_bytes()
    for steps, error, message in (
        (200, UsageError, "steps is 200, but the run stands at step 240 already"),
        (2**31, OptionError, "steps is 2147483648"),
    ):
        with pytest.raises(error, match=message):
            Run.load(copy, trust_config=True).resume(steps=steps)
    with folder.sole_use(copy), pytest.raises(FolderBusyError):
        Run.load(copy, trust_config=True).resume(steps=480)
    assert (copy / "config.json").read_bytes() == before


# --- Looked at and played ---


def test_what_a_run_knows(whole):
    out, result = whole
    run = Run.load(str(out), trust_config=True)
    assert run.metrics == result.metrics
    assert run.summary["final"] == result.summary["final"]
    assert (run.config.env, run.config.steps, run.config.bqfd) == (ENV, 240, CONFIG)
    check_same_parameters(run.policy, result.policy)
    check_same_parameters(run.best_policy, result.best_policy)
    check_same_parameters(bqfd_jax.load_policy(out / "policy.npz"), result.policy)
    for shown in (run, run.policy, run.best_policy, result):
        assert len(repr(shown)) < 200
    scores = bqfd_jax.evaluate(ENV, run.policy, 3)
    assert scores.shape == (3,)


def test_a_run_is_evaluated_without_its_replay_and_its_demonstrations(copy):
    first = Run.load(copy, trust_config=True).evaluate(3)
    replays = list((copy / "checkpoints").glob("*/replay.zip"))
    assert replays
    for path in replays:
        path.unlink()
    demonstration = copy / "demonstration.npz"
    aside = demonstration.rename(copy / "aside.npz")
    run = Run.load(copy, trust_config=True)
    again = run.evaluate(3)
    np.testing.assert_array_equal(again.scores, first.scores)
    assert run.evaluate(2, max_steps=3).lengths.tolist() == [3, 3]
    assert run.policy.num_actions == 2
    # But to go on both are needed.
    with pytest.raises(UsageError, match="--demo given: there is none in"):
        run.resume()
    aside.rename(demonstration)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole"):
        run.resume()


def test_an_evaluation_can_be_stopped(whole):
    sink = StopAt(step=3)
    with pytest.raises(Stopped, match="in the evaluation"):
        Run.load(whole[0], trust_config=True).evaluate(2, sink=sink)
    assert sink.position["step"] == 3


def test_what_is_no_run_is_named(whole, tmp_path):
    with pytest.raises(UsageError, match=r"there is no run in .* \(no config.json\)"):
        Run.load(tmp_path)
    folder.write_config(tmp_path, {"experiment": "deep_sea"})
    with pytest.raises(UsageError, match="run of 'deep_sea', but only those of atari and gym"):
        Run.load(tmp_path)
    stored = json.loads((whole[0] / "config.json").read_text())
    folder.write_config(tmp_path, stored | {"speed": 3})
    with pytest.raises(UsageError, match=r"config.json cannot be understood: .* no option speed"):
        Run.load(tmp_path)
    folder.write_config(tmp_path, stored)
    with pytest.raises(UsageError, match="has no checkpoint yet"):
        Run.load(tmp_path, trust_config=True).evaluate()


# --- The command `bqfd` ---


def test_the_command_evaluates_and_compares(copy, tmp_path, run_here):
    code, text = run_here(bqfd.main, "evaluate", "--run", copy, "--episodes", "2", "--trust-config")
    assert code == 0, text
    assert json.loads((copy / "evaluation.json").read_text())["step"] == 240
    assert (copy / "episode.mp4").stat().st_size > 500
    code, text = run_here(bqfd.main, "compare", copy, "--out", tmp_path / "compared")
    assert code == 0, text
    assert f"| {ENV} | bqfd | small | 240 | 0 |" in text
    assert (tmp_path / "compared" / "comparison.png").exists()


def test_commands_are_found_and_others_are_named(run_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text = run_here(bqfd.main, "swim")
    assert code == 2
    assert "there is no command 'swim'" in text
    for options in ([], ["--help"]):
        code, text = run_here(bqfd.main, *options)
        assert code == 0
        for name in ("atari", "gym", "deep-sea", "tabular", "demos", "compare", "resume"):
            assert f"  {name} " in text
    code, text = run_here(bqfd.main, "gym", "--env", "CartPol-v1", "--demo", "none")
    assert code == 2
    assert "did you mean CartPole-v1" in text
    code, text = run_here(bqfd.main, "atari", "--steps", "0")
    assert code == 2
    assert "--steps is 0" in text
    for command in (["resume", tmp_path], ["evaluate", "--run", tmp_path]):
        code, text = run_here(bqfd.main, *command)
        assert code == 2
        assert "no config.json" in text
    folder.write_config(tmp_path, {"experiment": "tabular"})
    code, text = run_here(bqfd.main, "resume", tmp_path)
    assert code == 2
    assert "run of 'tabular', which cannot be resumed" in text


def test_commands_work_under_the_name_that_the_wheel_gives_them(
    copy, tmp_path, run_here, monkeypatch
):
    path = ROOT / "experiments" / "__init__.py"
    name = "bqfd_jax.experiments"
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(path.parent)]
    )
    package = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, package)
    spec.loader.exec_module(package)
    try:
        main = importlib.import_module(f"{name}.__main__").main
        code, text = run_here(main, "resume", copy, "--trust-config")
        assert code == 0, text
        code, text = run_here(main, "gym", "--env", "CartPol-v1", "--demo", "none")
        assert code == 2
        assert "did you mean CartPole-v1" in text
        assert f"{name}.gym.__main__" in sys.modules
    finally:
        for module in [module for module in sys.modules if module.startswith(f"{name}.")]:
            del sys.modules[module]


def test_a_length_that_cannot_be_gone_on_with_is_not_kept(copy):
    before = (copy / "config.json").read_text()
    for path in (copy / "checkpoints").glob("*-step-*/run.zip"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError):
        Run.load(copy, trust_config=True).resume(steps=480)
    assert (copy / "config.json").read_text() == before


def test_rows_that_are_gone_do_not_hinder_an_extension(copy):
    (copy / "metrics.jsonl").unlink()
    run = Run.load(copy, trust_config=True)
    assert run.metrics == []
    assert run.resume(steps=300)["steps"] == 300


@pytest.mark.parametrize(
    ("steps", "message"),
    [(None, "a finished run, but no checkpoint that it could go on"), (480, "no checkpoint yet")],
)
def test_a_finished_run_without_checkpoints_is_not_trained_over(copy, steps, message):
    shutil.rmtree(copy / "checkpoints")
    before = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()}
    with pytest.raises(UsageError, match=message):
        Run.load(copy).resume(steps=steps)
    assert before == {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()}


def test_that_a_run_cannot_go_on_is_told_before_it_is_prepared(copy, monkeypatch):
    shutil.rmtree(copy / "checkpoints")
    monkeypatch.setattr("bqfd_jax.runs.run.make_job", lambda *_, **__: pytest.fail("prepared"))
    for learnt in ("what it has learnt is in policy.npz, and ", ""):
        with pytest.raises(UsageError, match=f"go on from; {learnt}to train it anew"):
            Run.load(copy).resume()
        (copy / "policy.npz").unlink(missing_ok=True)


def test_a_config_of_an_earlier_version_is_completed(copy):
    """An option that it lacks has its default, and another value is still another run."""
    path = copy / "config.json"
    fields = json.loads(path.read_text())
    del fields["eval_target"]
    path.write_text(json.dumps(fields))
    shutil.rmtree(copy / "checkpoints")  # which know the config that they were made with
    (copy / "summary.json").unlink()  # so it begins anew
    assert Run.load(copy, trust_config=True).resume()["updates"] == 55
    path.write_text(json.dumps(fields | {"hidden": 5}))
    changed = dataclasses.replace(Run.load(copy).config, hidden=4, out=copy, resume=True)
    with pytest.raises(UsageError, match="hidden: was 5, now 4"):
        load_job(changed)
