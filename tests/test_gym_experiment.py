"""`python -m experiments.gym`: its folder, resuming, demonstrations, failures, comparisons."""

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import av
import gymnasium
import numpy as np
import pytest
from gym_probes import Failing
from run_sinks import Noting, StopAt
from scipy import stats

import bqfd_jax
from bqfd_jax import demos, load_policy
from bqfd_jax.demos import DemonstrationError
from bqfd_jax.demos.making import scripts
from bqfd_jax.envs.host import HostEnvironmentError
from bqfd_jax.runs import host_run, lockstep
from bqfd_jax.runs.errors import RunError, Stopped, UsageError
from bqfd_jax.runs.gym import GymConfig
from bqfd_jax.runs.metrics import read_jsonl
from experiments.gym import __main__ as gym
from experiments.gym import compare_demos as comparing
from experiments.gym import training

ROOT = Path(__file__).parent.parent


def tiny(out, **changes):
    """A run that takes seconds."""
    base = GymConfig.of(240)
    settings = {
        "env": "gym_probes:bqfd-Probe-v0",
        "demo_quality": "bad",
        "demo_steps": 30,
        "steps": 240,
        "envs": 4,
        "update_period": 4,
        "learning_starts": 40,
        "log_period": 40,
        "eval_period": 120,
        "eval_episodes": 2,
        "final_steps": 120,
        "checkpoint_period": 120,
        "hidden": 8,
        "out": out,
        "bqfd": dataclasses.replace(base.bqfd, batch_size=8, pretrain_updates=5),
    }
    return dataclasses.replace(base, **settings | changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("gym") / "whole"
    return out, training.train(tiny(out), Noting())


def check_metrics(out):
    rows = read_jsonl(out / "metrics.jsonl")
    training = [row for row in rows if "eval_mean" not in row]
    assert [row["step"] for row in training] == list(range(0, 241, 40))
    # One in four from step 40 on, and five before all.
    assert [row["updates"] for row in training] == [5, 5, 15, 25, 35, 45, 55]
    assert [row["step"] for row in rows if "eval_mean" in row] == [0, 120, 240]


def test_the_folder_is_as_ataris(whole):
    out, summary = whole
    check_metrics(out)
    assert json.loads((out / "summary.json").read_text())["final"] == summary["final"]
    assert (summary["game"], summary["agent"], summary["updates"]) == (
        "gym_probes:bqfd-Probe-v0",
        "bqfd",
        55,
    )
    made = demos.load(out / "demonstration.npz")
    assert summary["demo"]["steps"] == len(made.actions) >= 30
    assert np.mean(made.actions == 0) > 0.7
    assert (out / "learning_curve.png").stat().st_size > 5000
    with av.open(str(out / "episode.mp4")) as film:
        assert (film.streams.video[0].width, film.streams.video[0].height) == (40, 8)
        assert film.streams.video[0].frames > 4
        # As the environment says.
        assert film.streams.video[0].average_rate == 5
    rows = [row for row in read_jsonl(out / "metrics.jsonl") if row.get("loss")]
    assert all(np.isfinite(row["demo/bad/visit_weight"]) for row in rows)
    policy = load_policy(out / "policy.npz")
    assert policy.act(np.eye(5, dtype=np.float32)).shape == (5,)


def test_a_stopped_run_goes_on_and_a_finished_one_can_be_played(tmp_path, monkeypatch):
    out = tmp_path / "stopped"
    monkeypatch.setattr(lockstep, "_CHUNK", 1)
    with pytest.raises(Stopped, match=r"in the evaluation at step 0.*bqfd resume"):
        training.train(tiny(out), StopAt(updates=5))
    assert not (out / "summary.json").exists()
    first = demos.load(out / "demonstration.npz").checksum
    training.train(tiny(out, resume=True), Noting())
    check_metrics(out)
    assert demos.load(out / "demonstration.npz").checksum == first
    with pytest.raises(UsageError, match="steps: was 240, now 300"):
        training.train(tiny(out, resume=True, steps=300), Noting())
    evaluate = ["evaluate", "--run", str(out), "--episodes", "3", "--no-video"]
    with pytest.raises(UsageError, match=r"asks to import gym_probes.*--trust-config"):
        gym.main(evaluate)
    gym.main([*evaluate, "--trust-config"])
    played = json.loads((out / "evaluation.json").read_text())
    assert (played["step"], played["episodes"]) == (240, 3)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "the pole fell off"),
        pytest.param("nan", "not finite", marks=pytest.mark.slow),
    ],
)
def test_an_environment_that_fails_leaves_a_checkpoint(tmp_path, how, message):
    name = f"bqfd-{how}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, lambda: Failing(at=30, how=how), max_episode_steps=30)
    config = tiny(
        tmp_path / "run", env=name, agent="dqn", demo=("none",), video=False, eval_period=0
    )
    with pytest.raises(RunError, match=f"(?s){message}.*Last good checkpoint: step 1.*bqfd resume"):
        training.train(config, Noting())
    checkpoints = list((tmp_path / "run" / "checkpoints").glob("0*"))
    assert checkpoints
    assert max(int(path.name.split("-")[-1]) for path in checkpoints) < 240


def test_a_resumed_run_is_reset_when_an_unbroken_one_is(tmp_path, monkeypatch):
    monkeypatch.setattr(lockstep, "_CHUNK", 1)
    bqfd = dataclasses.replace(
        tiny(None).bqfd, reset_period=15, n_step=5, n_step_final=1, n_step_updates=10
    )
    of_rows = {}
    for name in ("unbroken", "stopped"):
        config, sink = tiny(tmp_path / name, bqfd=bqfd, video=False), Noting()
        if name == "stopped":
            # With the 30th update, just after its reset.
            with pytest.raises(Stopped, match="at step 160"):
                training.train(config, StopAt(step=160))
            config = dataclasses.replace(config, resume=True)
        training.train(config, sink)
        assert "resets: 2, one every 15 of 50 updates" in "\n".join(sink.lines)
        check_metrics(tmp_path / name)
        rows = read_jsonl(tmp_path / name / "metrics.jsonl")
        of_rows[name] = [row["n_step"] for row in rows if row.get("n_step")]
    # n begins with 5 after each reset, so its means tell when there was one.
    assert of_rows["stopped"] == of_rows["unbroken"]
    assert len(set(of_rows["unbroken"])) > 3


def test_a_run_that_is_too_short_for_a_reset_says_so(tmp_path):
    bqfd, sink = dataclasses.replace(tiny(None).bqfd, reset_period=34), Noting()
    training.train(tiny(tmp_path / "run", bqfd=bqfd, video=False), sink)
    said = "resets: none, because 50 updates are too few for one after 34"
    assert said in "\n".join(sink.lines)


def test_an_evaluation_that_failed_is_made_up_for(tmp_path, monkeypatch):
    play = host_run.Evaluator.__call__
    failing = {0, 120, 240}

    def fails_once(self, params, step, on_step=None):
        if step in failing:
            failing.remove(step)
            raise HostEnvironmentError("the pole fell off")
        return play(self, params, step, on_step)

    monkeypatch.setattr(host_run.Evaluator, "__call__", fails_once)
    for attempt in range(3):
        with pytest.raises(RunError, match="the pole fell off"):
            training.train(tiny(tmp_path / "run", video=False, resume=attempt > 0), Noting())
    summary = training.train(tiny(tmp_path / "run", video=False, resume=True), Noting())
    check_metrics(tmp_path / "run")
    assert summary["final"]["mean"] is not None


def test_demonstrations_that_do_not_fit(tmp_path):
    path = tmp_path / "other.npz"
    for made, message in (
        (bqfd_jax.record("CartPole-v1", scripts.cart_pole, 1), r"float32\[4\]"),
        (bqfd_jax.record("Acrobot-v1", scripts.acrobot, 1, max_steps=9), "knows 3 actions"),
        (demos.load_named("Breakout", "search"), "Atari"),
    ):
        demos.save(made, path)
        with pytest.raises(DemonstrationError, match=message):
            training.train(tiny(tmp_path / "run", demo=(str(path),)), Noting())
    # What cannot be run leaves no folder.
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--env", "CartPol-v1"], "did you mean"),
        (["--env", "Pendulum-v1"], "only discrete actions"),
        (["--demo", "nothing.npz"], "nothing.npz"),
        (["--demo", "make", "none"], "--demo"),
        (["--steps", "0"], "--steps is 0"),
        (["--wrappers", "nowhere:It"], "--wrappers nowhere:It"),
        (["--resume"], "--out"),
        (["compare-demos", "--seeds", "0"], "--seeds is 0"),
        (["evaluate", "--run", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_named(options, named, run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, text = run_here(gym.main, *options)
    assert code == 2
    assert named in text
    # What cannot be made is not said to be one that only cannot be filmed.
    assert "film" not in text
    assert not (tmp_path / "runs").exists()


# --- Scripts ---


class Trained(NamedTuple):
    """What training gives, as far as it is looked at."""

    policy: Any
    stopped: bool = False


@pytest.mark.parametrize(
    ("env", "best", "bad"), [("CartPole-v1", 500, 9), ("MountainCar-v0", -100, -200)]
)
def test_mediocre_lies_between(env, best, bad):
    script = scripts.find(env)
    good = bqfd_jax.evaluate(env, script.act, 8).mean()
    mediocre = bqfd_jax.evaluate(env, script.act, 16, epsilon=script.mediocre_epsilon).mean()
    worst = bqfd_jax.evaluate(env, scripts.always(0), 8, epsilon=scripts.BAD_EPSILON).mean()
    assert good == pytest.approx(best, rel=0.3)
    assert worst == pytest.approx(bad, rel=0.4)
    assert worst < mediocre < good


@pytest.mark.parametrize(
    ("mean_return", "epsilon"),
    [
        # Half-way at once; only near random play; only near its own.
        (lambda epsilon: 1 - epsilon, 0.5),
        (lambda epsilon: float(epsilon < 0.9) if epsilon != 0.9375 else 0.45, 0.9375),
        (lambda epsilon: (1 - epsilon) ** 10, 0.0625),
    ],
)
def test_mediocre_is_half_way_between_random_play_and_its_own(mean_return, epsilon):
    found = scripts.mediocre(mean_return)
    assert found.epsilon == epsilon
    assert 0.4 < found.share < 0.6
    assert (found.at_random, found.own) == (0.0, 1.0)


def test_where_all_play_alike_nothing_is_mediocre():
    assert np.isnan(scripts.mediocre(lambda epsilon: 7.0).share)


def test_a_policy_that_nearly_always_wins_is_brought_down(monkeypatch):
    """As on MiniGrid: with 30 % of random actions it still does about as well as without."""
    chain = tiny(None, demo_quality="mediocre", demo_steps=400)

    def right(observation):
        return np.ones(len(observation), int)

    monkeypatch.setattr(training.api, "train", lambda *args, **options: Trained(right))
    sink = Noting()
    made = training.make_demonstration(chain, sink)
    at_random, own, shown = map(float, re.findall(r"\d\.\d+", sink.lines[1]))
    assert own == 1.0
    assert at_random + 0.2 * (own - at_random) < shown < own - 0.2 * (own - at_random)
    assert abs(np.mean(made.scores) - shown) < 0.25


def test_scripts_are_found_whatever_the_version():
    assert scripts.find("CartPole-v0") is scripts.find("CartPole-v1")
    assert scripts.find("module:LunarLander-v3").act is scripts.lunar_lander
    assert scripts.find("Taxi-v3") is None


@pytest.mark.slow
def test_without_a_script_a_policy_is_trained_and_said_so(monkeypatch):
    monkeypatch.setattr(training, "BRIEF_STEPS", 40)
    sink = Noting()
    made = training.make_demonstration(tiny(None, demo_quality="mediocre"), sink)
    assert "training DQN for 40 steps to demonstrate with" in sink.lines[0]
    assert "random play has a mean return of" in sink.lines[1]
    assert len(made.actions) >= 30
    assert made.origin["made"].startswith("by DQN after 40 steps")


# --- Comparing ---


def summary(steps, means, demo=None):
    return {
        "evaluations": [
            {"step": s, "mean": m, "std": 0.0, "episodes": 1}
            for s, m in zip(steps, means, strict=True)
        ],
        "final": {"mean": means[-1]},
        "demo": None if demo is None else {"name": "d", "score": demo},
    }


def test_rows_of_the_comparison_by_hand(tmp_path):
    without = comparing.Case("E-v0", "dqn", None)
    case = comparing.Case("E-v0", "bqfd", "mediocre")
    results = {
        without: [summary([10, 20, 30], [0, 6, 9]), summary([10, 20, 30], [0, 1, 2])],
        case: [summary([0, 10, 20], [6, 7, 8], 5), summary([0, 10, 20], [1, 2, 4], 5)],
    }
    row = comparing.row_of(case, results)
    assert row["reached"] == [0, None]
    assert row["reached_without"] == [20, None]
    assert row["sooner"] == 1
    assert row["final_mean"] == 6
    half = stats.t.ppf(0.975, 1) * np.std([8, 4], ddof=1) / np.sqrt(2)
    assert row["final_interval"] == pytest.approx(half)
    text = comparing.table([comparing.row_of(without, results), row])
    assert "| mediocre (5.0) | bqfd | 6.0 ± 25.4 | 0 never | 20 never | 1 of 2 seeds |" in text
    comparing.draw(tmp_path / "c.png", results)
    assert (tmp_path / "c.png").stat().st_size > 5000


def test_finished_runs_of_a_version_with_fewer_options_are_read(tmp_path, monkeypatch):
    config = comparing.CompareDemosConfig(out=tmp_path)
    case = comparing.Case("CartPole-v1", "dqn", None)
    kept = []
    monkeypatch.setattr(comparing, "train", lambda run, sink: kept.append(run.stored()))
    comparing._run(config, case, 0, Noting())
    fields = json.loads(json.dumps(kept[0], default=str))
    del fields["dqn"]["ez_max_repeat"]
    out = tmp_path / case.folder / "seed-0"
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(fields))
    (out / "summary.json").write_text('{"final": 3}')
    assert comparing._run(config, case, 0, Noting()) == {"final": 3}
    fields["dqn"]["n_step"] += 1
    (out / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UsageError, match="holds another run"):
        comparing._run(config, case, 0, Noting())


def test_a_comparison_is_resumed_run_by_run(tmp_path, monkeypatch):
    config = comparing.CompareDemosConfig(
        envs=("gym_probes:bqfd-Probe-v0",), agents=("bqfd",), qualities=("bad",), seeds=2,
        steps=120, demo_steps=30, eval_period=60, eval_episodes=2, out=tmp_path / "all",
    )  # fmt: skip
    ran = []

    def train(run, sink):
        ran.append((run.agent, run.seed))
        if len(ran) == 3:
            raise Stopped
        return training.train(run, sink)

    monkeypatch.setattr(comparing, "train", train)
    sink = Noting()
    with pytest.raises(Stopped):
        comparing.compare_demos(config, sink)
    comparing.compare_demos(config, sink)
    assert ran == [("dqn", 0), ("dqn", 1), ("bqfd", 0), ("bqfd", 0), ("bqfd", 1)]
    rows = json.loads((tmp_path / "all" / "comparison.json").read_text())
    assert [(row["agent"], len(row["final"])) for row in rows] == [("dqn", 2), ("bqfd", 2)]
    assert (tmp_path / "all" / "comparison.png").exists()
    with pytest.raises(UsageError, match="holds another run"):
        comparing.compare_demos(dataclasses.replace(config, steps=160), sink)
    with pytest.raises(UsageError, match="bqfd-bad/seed-0 holds another run"):
        comparing.compare_demos(dataclasses.replace(config, demo_steps=50), sink)


# --- From the outside ---


@pytest.mark.slow
def test_the_command_with_an_environment_alone(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.gym", "--env", "CartPole-v1", "--steps", "300",
         "--log-period", "100", "--eval-period", "0", "--out", str(tmp_path / "run")],
        cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "made a mediocre demonstration by a script" in done.stdout
    assert "final score" in done.stdout
    assert (tmp_path / "run" / "episode.mp4").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "env", "wrappers"),
    [
        ("minatar", "MinAtar/Breakout-v1", ()),
        ("minigrid", "minigrid:MiniGrid-Empty-5x5-v0", ("minigrid.wrappers:ImgObsWrapper",)),
    ],
)
def test_environments_that_the_library_does_not_know(module, env, wrappers, tmp_path, monkeypatch):
    pytest.importorskip(module)
    if module == "minatar" and env not in gymnasium.registry:
        # It is registered by a call, not by its import.
        importlib.import_module("minatar.gym").register_envs()
    monkeypatch.setattr(training, "BRIEF_STEPS", 40)
    settings = tiny(tmp_path / "run", env=env, wrappers=wrappers, video=False)
    summary = training.train(settings, Noting())
    assert summary["updates"] == 55
    # No line of the library or of the experiments names it; MinAtar's own package has a namesake
    # here that runs on the device.
    for folder in () if module == "minatar" else ("bqfd_jax", "experiments"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text().lower().replace("minigrid:minigrid-empty-5x5-v0", "")
            source = source.replace("minigrid.wrappers:imgobswrapper", "")
            assert module not in source, path
