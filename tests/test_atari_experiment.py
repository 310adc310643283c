"""`python -m experiments.atari` from the outside: folder, crashes, resuming, bad input."""

import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import av
import jax
import numpy as np
import pytest
from run_sinks import Noting, StopAt

import bqfd_jax
from bqfd_jax import demos
from bqfd_jax.agents import make_agent
from bqfd_jax.runs import host_run, lockstep, report
from bqfd_jax.runs.atari import AtariConfig, AtariWorld
from bqfd_jax.runs.checkpoint import Checkpointer, CheckpointError
from bqfd_jax.runs.errors import RunError, Stopped, UsageError
from bqfd_jax.runs.journal import Journal
from bqfd_jax.runs.metrics import read_jsonl
from bqfd_jax.runs.run import load_job, start
from experiments.atari import __main__ as atari

ROOT = Path(__file__).parent.parent
SCRATCH = Path(tempfile.mkdtemp(prefix="bqfd-jax-tests-"))
ENVIRONMENT = {**os.environ, "XDG_CACHE_HOME": str(SCRATCH)}
DEMO_STEPS, DEMO_SCORE = 200, 9


@pytest.fixture(scope="module", autouse=True)
def scratch():
    yield
    shutil.rmtree(SCRATCH)


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """The beginning of Breakout's demonstration: quick to replay."""
    whole = demos.load_named("Breakout", "search")
    path = tmp_path_factory.mktemp("demo") / "beginning.npz"
    demos.save(
        dataclasses.replace(
            whole,
            actions=whole.actions[:DEMO_STEPS],
            episode_lengths=np.array([DEMO_STEPS], np.int32),
            scores=(float(DEMO_SCORE),),
            game_over=(False,),
            frame_hash=None,
            name="beginning",
        ),
        path,
    )
    return path


@pytest.fixture(scope="module")
def tiny(demo) -> list[str]:
    """Options of a run that takes seconds."""
    options = {
        "game": "Breakout",
        "demo": demo,
        "steps": 240,
        "envs": 3,
        "update-period": 6,
        "learning-starts": 60,
        "log-period": 30,
        "eval-period": 120,
        "eval-episodes": 2,
        "eval-max-steps": 40,
        "final-steps": 130,
        "checkpoint-period": 60,
        "hidden": 8,
        "bqfd.batch-size": 4,
        "bqfd.pretrain-updates": 5,
    }
    return [str(part) for name, value in options.items() for part in (f"--{name}", value)]


def begin(*options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.atari", *map(str, options)],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*options) -> tuple[int, str]:
    process = begin(*options)
    out, err = process.communicate(timeout=300)
    return process.returncode, out + err


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory) -> tuple[Path, str]:
    """A run that was never stopped, and what it printed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    code, text = run(*tiny, "--out", out, "--tensorboard")
    assert code == 0, text
    return out, text


@pytest.fixture
def quick(monkeypatch):
    """For runs within this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(SCRATCH))


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    shutil.copytree(whole[0], tmp_path / "copy")
    return tmp_path / "copy"


def check_metrics(out: Path) -> None:
    """Every log period once and in order, evaluations where they are due."""
    rows = read_jsonl(out / "metrics.jsonl")
    training = [row for row in rows if "eval_mean" not in row]
    assert [row["step"] for row in training] == list(range(0, 241, 30))
    # One in six from step 60 on, and five before all.
    assert [row["updates"] for row in training] == [5, 5, 5, *range(10, 36, 5)]
    evaluations = [row for row in rows if "eval_mean" in row]
    assert [row["step"] for row in evaluations] == [0, 120, 240]
    assert all(a["step"] <= b["step"] for a, b in itertools.pairwise(rows))


def test_the_folder_has_what_the_readme_promises(whole):
    out, _ = whole
    check_metrics(out)
    for row in read_jsonl(out / "metrics.jsonl"):
        if "eval_mean" in row:
            assert {"step", "eval_mean", "eval_std", "episodes"} <= set(row)
        elif row["step"] > 60:
            names = {"loss", "steps_per_second", "mean_q", "expert_share", "visit_weight"}
            assert all(np.isfinite(row[name]) for name in names)
        elif row["step"] > 0:
            # Learning has not begun.
            assert row["loss"] is row["mean_q"] is row["expert_share"] is None
            assert np.isfinite(row["visit_weight"])
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["game"], summary["agent"], summary["seed"]) == ("Breakout", "bqfd", 0)
    assert (summary["preset"], summary["steps"], summary["updates"]) == ("laptop", 240, 35)
    assert (summary["demo"]["score"], summary["demo"]["steps"]) == (DEMO_SCORE, DEMO_STEPS)
    assert [e["step"] for e in summary["evaluations"]] == [0, 120, 240]
    # Of so short a run the last fifth counts: its last evaluation alone.
    assert summary["final"]["mean"] == summary["evaluations"][-1]["mean"]
    assert summary["final"]["evaluations"] == 1
    assert summary["seconds"] > 0
    assert summary["steps_per_second"] == pytest.approx(240 / summary["seconds"], rel=0.02)
    assert summary["peak_memory_gb"] > 0.1
    assert (out / "learning_curve.png").stat().st_size > 5000
    assert os.listdir(out / "tensorboard")
    with av.open(str(out / "episode.mp4")) as film:
        assert film.streams.video[0].frames == 41
        assert (film.streams.video[0].width, film.streams.video[0].height) == (320, 420)


def test_a_single_demonstration_is_told_of_by_name(whole):
    out, _ = whole
    (named,) = json.loads((out / "config.json").read_text())["demo"]
    assert named.endswith("beginning.npz")
    rows = [row for row in read_jsonl(out / "metrics.jsonl") if row["step"] > 60]
    rows = [row for row in rows if "eval_mean" not in row]
    assert all(row["demo/beginning/share"] == 1.0 for row in rows)
    for row in rows:
        assert row["demo/beginning/visit_weight"] == pytest.approx(row["visit_weight"], rel=1e-4)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["demos"] == [{"name": "beginning", "score": DEMO_SCORE, "steps": DEMO_STEPS}]


def test_what_will_happen_is_said_before_it_does(whole):
    text = whole[1]
    before = text[: text.index("checkpoint at step 0")]
    assert "Breakout, bqfd, seed 0, preset laptop: 240 agent steps in 3 environments" in before
    assert f"{DEMO_STEPS} steps, score {DEMO_SCORE}" in before
    assert re.search(r"replay: \d+ rows, 0\.\d\d GB", before)
    assert "cpu" in before
    assert re.search(r"checkpoint at step 240: \d+ MB in", text)
    assert "final score" in text
    # The bar shows how it goes.
    assert re.search(r"step/s, score \d", text)
    assert "demo share" in text
    assert "visit weight" in text


def test_killed_during_a_checkpoint_or_after_it_goes_on(tiny, tmp_path, run_here, quick):
    out = tmp_path / "killed"
    checkpoints = out / "checkpoints"
    process = begin(*tiny, "--out", out)
    deadline = time.monotonic() + 200
    # While the second of the training's checkpoints is being written.
    while not any(checkpoints.glob("tmp-*-step-120")) and not any(checkpoints.glob("0*-step-120")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (out / "summary.json").exists()
    code, text = run_here(atari.main, *tiny, "--out", out, "--resume")
    assert code == 0, text
    assert re.search(r"resumed at step (60|120)", text)
    check_metrics(out)
    assert (out / "summary.json").exists()


def test_ctrl_c_saves_and_says_how_to_go_on(tiny, tmp_path):
    out = tmp_path / "stopped"
    # As large a replay as the other runs have, so that nothing is compiled anew.
    process = begin(*tiny, "--out", out, "--steps", "100000", "--replay-rows", "240")
    while not (out / "metrics.jsonl").exists() or len(read_jsonl(out / "metrics.jsonl")) < 4:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    text = "".join(process.communicate(timeout=60))
    assert process.returncode == 130
    assert f"continue with `bqfd resume {out}`" in text
    assert "Traceback" not in text
    steps = [int(path.name.split("-")[-1]) for path in (out / "checkpoints").glob("0*")]
    logged = read_jsonl(out / "metrics.jsonl")[-1]["step"]
    assert logged <= max(steps) < logged + 30


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tiny, copy, run_here, quick):
    newest = max((copy / "checkpoints").glob("0*"))
    victim = max(newest.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0xFF
    victim.write_bytes(content)
    code, text = run_here(atari.main, *tiny, "--out", copy, "--resume", "--no-video")
    assert code == 0, text
    assert f"skipped checkpoint {newest}" in text
    assert "resumed at step 180" in text
    check_metrics(copy)


def test_evaluate_and_compare(copy, tmp_path, run_here, quick):
    (copy / "episode.mp4").unlink()
    code, text = run_here(
        atari.main, "evaluate", "--run", copy, "--episodes", "3", "--max-steps", "30"
    )
    assert code == 0, text
    assert "step 240" in text
    result = json.loads((copy / "evaluation.json").read_text())
    assert (result["step"], result["episodes"], len(result["scores"])) == (240, 3, 3)
    assert (copy / "episode.mp4").stat().st_size > 1000
    code, text = run_here(atari.main, "compare", copy, "--out", tmp_path / "compared")
    assert code == 0, text
    assert "| Breakout | bqfd | laptop | 240 | 0 |" in text


# ------------------------------------------------------------- within this process, for speed


@pytest.fixture
def config(tiny, tmp_path, quick) -> AtariConfig:
    return atari.parse([*tiny, "--out", str(tmp_path / "run"), "--no-video"])


def train(config, sink=None) -> report.Summary:
    return start(load_job(config), sink or Noting())


@pytest.mark.slow
def test_other_agents_and_no_demonstration(config):
    sink = Noting()
    for agent, changes in (
        ("dqn", {"demo": ("none",)}),
        ("dqfd", {}),
        ("bootstrapped", {"envs": 1, "update_period": 0.5, "learning_starts": 230}),
    ):
        agent_config = dataclasses.replace(getattr(config, agent), batch_size=2, pretrain_updates=2)
        if agent == "bootstrapped":
            agent_config = dataclasses.replace(agent_config, ensemble_size=2)
        out = config.out.with_name(agent)
        changes = changes | {"agent": agent, agent: agent_config, "out": out}
        summary = train(dataclasses.replace(config, **changes), sink)
        pretrained = 0 if agent == "dqn" else 2
        trained = 20 if agent == "bootstrapped" else 30
        assert summary["updates"] == pretrained + trained
        assert (summary["demo"] is None) == (agent == "dqn")
    assert not any("visit weight" in note for note in sink.notes)


@pytest.mark.slow
def test_without_the_replay_checkpoints_are_small_and_counts_resume_at_their_mean(config):
    config = dataclasses.replace(
        config, checkpoint_replay=False, bqfd=dataclasses.replace(config.bqfd, batch_size=64)
    )
    train(config)
    checkpoint = max((config.out / "checkpoints").glob("0*"))
    size = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    # Learner, target and Adam's two moments: no frames.
    assert size < 4_000_000
    job, sink = load_job(dataclasses.replace(config, resume=True)), Noting()
    state = host_run.begin(job, Journal(config.out, sink), sink, resume=True).loop.state
    visits = np.asarray(state.replay.visit_count)
    assert (visits == visits[0]).all()
    assert visits[0] > 1
    assert int(state.replay.num_added) == 0
    assert int(state.step) == 240


def test_training_goes_on_without_disk_space(config, monkeypatch):
    def no_space(self, step, items):
        raise CheckpointError("could not save: no space left on device")

    monkeypatch.setattr(Checkpointer, "save", no_space)
    sink = Noting()
    # But that nothing was saved in the end is an error.
    message = "NOT SAVED: the network of step 240.*, and train anew in another folder: there is no"
    with pytest.raises(RunError, match=message):
        train(config, sink)
    message = "NO CHECKPOINT at step 60: could not save: no space left on device"
    assert message in sink.warnings
    check_metrics(config.out)
    with pytest.raises(UsageError, match="no checkpoint that it could go on from"):
        train(dataclasses.replace(config, resume=True))


def test_a_loss_that_is_not_finite_stops_the_run_before_it_is_saved(config):
    config = dataclasses.replace(
        config, bqfd=dataclasses.replace(config.bqfd, learning_rate=1e38, pretrain_updates=1)
    )
    message = r"became (nan|inf) before step \d+.* none.*--bqfd.learning-rate"
    with pytest.raises(RunError, match=message):
        train(config)
    assert not (config.out / "checkpoints").exists()
    assert not (config.out / "summary.json").exists()


@pytest.mark.parametrize(
    "where",
    [
        {"updates": 3},
        pytest.param({"updates": 5}, marks=pytest.mark.slow),
        pytest.param({"step": 30}, marks=pytest.mark.slow),
        pytest.param({"step": 120}, marks=pytest.mark.slow),  # in an evaluation
        pytest.param({"step": 237}, marks=pytest.mark.slow),
        pytest.param({"step": 240}, marks=pytest.mark.slow),  # in the last one
    ],
)
def test_wherever_a_run_is_stopped_nothing_is_missing_when_it_goes_on(config, monkeypatch, where):
    monkeypatch.setattr(lockstep, "_CHUNK", 1)
    with pytest.raises(Stopped, match="bqfd resume"):
        train(config, StopAt(**where))
    summary = train(dataclasses.replace(config, resume=True))
    check_metrics(config.out)
    assert summary["final"]["mean"] is not None
    # And once more, when there is nothing left to do.
    metrics = (config.out / "metrics.jsonl").read_bytes()
    train(dataclasses.replace(config, resume=True))
    assert (config.out / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.slow
def test_odd_lengths(config):
    """Fewer steps than games, no evaluation on the way, a log period that is never reached."""
    odd = dataclasses.replace(config, steps=2, eval_period=0, log_period=1000, final_steps=1)
    summary = train(odd)
    rows = read_jsonl(config.out / "metrics.jsonl")
    assert [(row["step"], "eval_mean" in row) for row in rows] == [
        (0, False),
        (3, False),
        (3, True),
    ]
    assert summary["final"]["mean"] is not None


def test_a_full_disk_at_the_end_still_leaves_the_table(config, monkeypatch):
    write = report.files.write_json

    def no_space(path, content):
        if path.name == "summary.json":
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(report.files, "write_json", no_space)
    sink = Noting()
    with pytest.raises(RunError, match=r"summary.json: .*No space left"):
        train(config, sink)
    assert any("final score" in line for line in sink.lines)
    assert (config.out / "learning_curve.png").exists()


def test_resuming_with_other_options_shows_the_difference(whole, config):
    changed = dataclasses.replace(
        config, out=whole[0], resume=True, seed=1, bqfd=dataclasses.replace(config.bqfd, eta=1.0)
    )
    with pytest.raises(UsageError) as error:
        train(changed)
    assert "seed: was 0, now 1" in str(error.value)
    assert "bqfd.eta: was 0.12, now 1.0" in str(error.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--game", "Breakot"], "did you mean Breakout"),
        (["--agent", "sarsa"], "sarsa"),
        (["--game", "Pong"], "no demonstration of Pong"),
        (["--demo", "runs/nothing.npz"], "no file runs/nothing.npz"),
        (["--demo", "none", "--replay-rows", "100000000"], "set replay_rows to"),
        (["--demo", "none", "--replay-rows", "3000000000"], "do not fit into int32"),
        (["--resume"], "--out"),
        (["--bqfd.gamma", "1.5"], "gamma is 1.5"),
        (["evaluate", "--run", "runs/nothing"], "no config.json"),
        (["compare", "runs/nothing"], "no summary.json"),
        (["compare"], "name the folders"),
    ],
)
def test_bad_input_is_named(options, named, run_here, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(SCRATCH))
    monkeypatch.chdir(ROOT)
    code, text = run_here(atari.main, *options)
    assert code == 2
    assert named in re.sub(r"\s+", " ", text)


def test_evaluations_that_cannot_be_meant(whole, run_here, quick):
    for option, value in (("episodes", 0), ("epsilon", 2), ("max-steps", 0)):
        code, text = run_here(atari.main, "evaluate", "--run", whole[0], f"--{option}", value)
        assert code == 2
        assert f"--{option} is {value}" in text


@pytest.fixture
def human(tmp_path) -> Path:
    """A demonstration of frames, as an import leaves it."""
    path = tmp_path / "human.npz"
    rng = np.random.default_rng(0)
    demos.save(
        demos.FrameDemonstration(
            game="Breakout",
            frames=rng.integers(0, 255, (62, 84, 84), dtype=np.uint8),
            actions=rng.integers(0, 4, 60, dtype=np.int32),
            rewards=np.full(60, 2, np.float32),
            episode_lengths=np.array([40, 20], np.int32),
            terminated=(True, False),
            num_actions=4,
            action_meaning=(0, 1, 3, 4),
            name="beginning",
        ),
        path,
    )
    return path


def test_rows_of_several_demonstrations_lie_one_after_the_other(demo, human, config):
    job = load_job(dataclasses.replace(config, demo=(str(demo), str(human))))
    assert [shown.name for shown in job.demonstrations] == ["beginning", "beginning-2"]
    rows = job.demo_rows
    assert rows.frame.shape == (201 + 62, 84, 84)
    np.testing.assert_array_equal(np.flatnonzero(rows.is_first), [0, 201, 201 + 41])
    np.testing.assert_array_equal(rows.frame[201:], demos.load(human).frames)
    np.testing.assert_allclose(rows.reward[201:241], np.log(3), rtol=1e-6)
    assert job.replay.layout.num_demo_rows == 263


@pytest.mark.slow
def test_several_demonstrations_of_both_kinds(demo, human, config):
    config = dataclasses.replace(config, demo=(str(demo), str(human)))
    sink = Noting()
    summary = train(config, sink)
    text = "\n".join(sink.lines)
    assert "beginning, 200 steps, score 9" in text
    assert "beginning-2, 60 steps, score 80, 40" in text
    # Both call themselves the same.
    assert summary["demos"] == [
        {"name": "beginning", "score": 9, "steps": 200},
        {"name": "beginning-2", "score": 60, "steps": 60},
    ]
    assert (summary["demo"]["score"], summary["demo"]["steps"]) == (43, 260)
    assert summary["demo"]["name"] == "beginning + beginning-2"
    rows = [row for row in read_jsonl(config.out / "metrics.jsonl") if row["step"] > 60]
    shared = [row for row in rows if "demo/beginning/share" in row]
    assert shared
    for row in shared:
        assert row["demo/beginning/share"] + row["demo/beginning-2/share"] == pytest.approx(1)
        assert 0 < row["demo/beginning-2/visit_weight"] <= 1
    # Read back, evaluated, and gone on with.
    stored = json.loads((config.out / "config.json").read_text())
    assert stored["demo"] == [str(demo), str(human)]
    assert AtariConfig.from_stored(stored).demo == config.demo
    train(dataclasses.replace(config, resume=True))


def test_demonstrations_are_stored_as_a_list(config, demo):
    stored = config.stored()
    assert stored["demo"] == [str(demo)]
    assert AtariConfig.from_stored(stored | {"demo": ["default"]}).demo == ("default",)
    assert dataclasses.replace(config, demo=("none",)).pretrain_updates == 0
    both = atari.parse(["--demo", "default", "strong"])
    assert both.demo == ("default", "strong")
    assert both.pretrain_updates > 0


def test_demonstrations_that_do_not_fit(config, human, tmp_path):
    def save(name, **changes):
        demos.save(dataclasses.replace(demos.load(human), **changes), tmp_path / name)
        return str(tmp_path / name)

    wrong = save("wrong.npz", num_actions=5, action_meaning=None)
    large = save("large.npz", frames=np.zeros((62, 8, 8), np.uint8))
    other = save("other.npz", action_meaning=(0, 1, 4, 3))
    pong = save("pong.npz", game="Pong")
    for demo, message in (
        (("none", "default"), "demo is 'none default'"),
        ((), "demo is 'empty'"),
        ((wrong,), "'beginning' knows 5 actions, but the environment has 4"),
        ((large,), r"has observations uint8\[8, 8\], but the environment shows uint8\[84, 84\]"),
        ((str(human), other), "mean different things"),
        ((str(human), pong), "of Pong, not of Breakout"),
        ((str(human), "runs/nothing.npz"), "--demo runs/nothing.npz: there is no file"),
    ):
        with pytest.raises(ValueError, match=message):
            train(dataclasses.replace(config, demo=demo))
    assert not config.out.exists()


def test_a_demonstration_of_another_game_or_a_tampered_one(demo, config, tmp_path):
    with pytest.raises(UsageError, match="of Breakout, not of Freeway"):
        train(dataclasses.replace(config, game="Freeway"))
    cut = tmp_path / "cut.npz"
    cut.write_bytes(demo.read_bytes()[:200])
    with pytest.raises(UsageError, match="damaged"):
        train(dataclasses.replace(config, demo=(str(cut),)))
    assert not config.out.exists()


# --- The same run as an object, and by a call ---


def test_a_run_is_played_from_its_folder_and_its_policy_files(whole, quick):
    out, _ = whole
    run = bqfd_jax.Run.load(out)
    assert (run.config.game, run.last_step) == ("Breakout", 240)
    assert run.summary == json.loads((out / "summary.json").read_text())
    assert run.metrics == read_jsonl(out / "metrics.jsonl")
    assert run.evaluate(2, max_steps=10).lengths.tolist() == [10, 10]
    frames = np.random.default_rng(0).integers(0, 255, (3, 4, 84, 84), dtype=np.uint8)
    policy = bqfd_jax.load_policy(out / "policy.npz")
    np.testing.assert_array_equal(policy.q_values(frames), run.policy.q_values(frames))
    best = bqfd_jax.load_policy(out / "policy-best.npz")
    np.testing.assert_array_equal(best.q_values(frames), run.best_policy.q_values(frames))
    made_with = {"torso": "patch", "hidden": 8, "torso_dtype": "float32", "layer_norm": True}
    assert (policy.environment, policy.made_with) == ("Breakout", made_with)
    assert policy.preprocessing
    for shown in (run, policy):
        assert len(repr(shown)) < 200
    for env in ("atari:Breakout", "ALE/Breakout-v5"):
        scores = bqfd_jax.evaluate(env, best, 2, max_steps=10)
        assert scores.shape == (2,)


def test_a_call_gives_the_numbers_of_the_command(whole, demo, quick):
    config = dataclasses.replace(
        bqfd_jax.agent_config("laptop", "bqfd", game="Breakout"), batch_size=4, pretrain_updates=5
    )
    result = bqfd_jax.train(
        "ALE/Breakout-v5", demos.load(demo), config, steps=240, envs=3, update_period=6,
        learning_starts=60, log_period=30, eval_period=120, eval_episodes=2, eval_max_steps=40,
        final_steps=130, hidden=8, progress=False,
    )  # fmt: skip
    times = ("steps_per_second", "eval_seconds")
    rows = [
        [{name: value for name, value in row.items() if name not in times} for row in found]
        for found in (result.metrics, read_jsonl(whole[0] / "metrics.jsonl"))
    ]
    assert rows[0] == rows[1]
    assert "Breakout, 240 steps, final score" in repr(result)


def short(base, demo, out, **changes):
    """The first 304 steps of a preset, with small batches and everything else as it is."""
    return dataclasses.replace(
        base,
        demo=(str(demo),),
        steps=304,
        learning_starts=200,
        eval_episodes=1,
        eval_max_steps=20,
        log_period=100,
        video=False,
        out=out,
        bqfd=dataclasses.replace(
            base.bqfd, batch_size=4, pretrain_updates=5, n_step_updates=20, reset_period=50
        ),
        **changes,
    )


def test_the_preset_for_100k_steps_runs(demo, tmp_path):
    base = AtariConfig.of("100k", "Breakout")
    assert (base.torso, base.envs, base.steps) == ("overlap", 8, 100_000)
    assert (base.bqfd.n_step, base.bqfd.n_step_final, base.bqfd.reset_period) == (10, 3, 20_000)
    summary = start(load_job(short(base, demo, tmp_path / "run")), Noting())
    # Two updates per step after the first 200, and five before.
    assert summary["updates"] == 2 * 104 + 5
    rows = [row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "n_step" in row]
    # Nothing is learnt before step 200.  After that n falls four times: 16 updates come at once, so
    # 64, 112 and 160 of them are followed by a reset.
    assert [row["step"] for row in rows] == [0, 104, 200, 304]
    first, *unknown, last = [row["n_step"] for row in rows]
    assert (first, last) == pytest.approx((44 / 5, 831 / 208))
    assert unknown == [None, None]


@pytest.mark.slow
def test_the_preset_for_accelerators_runs(demo, tmp_path):
    base = AtariConfig.of("accelerator", "Breakout")
    assert (base.torso, base.torso_width, base.steps) == ("impala", 4, 100_000)
    assert (base.bqfd.n_step_final, base.bqfd.reset_period) == (3, 20_000)
    summary = start(load_job(short(base, demo, tmp_path / "run", torso_width=1)), Noting())
    # Two updates per step after the first 200, and five before.
    assert summary["updates"] == 2 * 104 + 5
    policy = bqfd_jax.load_policy(tmp_path / "run" / "policy.npz")
    assert policy.made_with["torso_width"] == 1
    assert np.isfinite(policy.q_values(np.zeros((4, 84, 84), np.uint8))).all()


@pytest.mark.parametrize(
    ("agent", "preset", "is_zero"),
    [("dqn", "laptop", True), ("bootstrapped", "laptop", False), ("dqn", "paper", False)],
)
def test_values_begin_at_zero_where_networks_need_not_differ(agent, preset, is_zero):
    config = dataclasses.replace(AtariConfig.of(preset, agent=agent), torso="patch", hidden=8)
    made = AtariWorld(config).make_network(types.SimpleNamespace(num_actions=3))
    agent = make_agent(made.network, config.agent_config)
    seen = np.random.default_rng(0).integers(0, 255, (2, 4, 84, 84), np.uint8)
    q = agent.q_values(agent.init(jax.random.key(0), seen).params, seen)
    assert np.all(q == 0) == is_zero
    # What a policy file tells: a network that has learnt is like any other.
    assert "zero_values" not in made.made_with
