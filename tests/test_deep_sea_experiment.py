"""`python -m experiments.deep_sea` from the outside: files, repeatability, resuming, bad input."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bqfd_jax.envs.deep_sea_values import is_optimal
from bqfd_jax.runs import folder
from bqfd_jax.runs.checkpoint import Checkpointer, CheckpointError
from bqfd_jax.runs.errors import RunError, Stopped
from bqfd_jax.runs.loop import follow
from bqfd_jax.runs.metrics import read_jsonl
from bqfd_jax.runs.sinks import Sink
from experiments.deep_sea import report
from experiments.deep_sea.__main__ import main
from experiments.deep_sea.config import Config
from experiments.deep_sea.training import AgentTraining

ROOT = Path(__file__).parent.parent
TINY = ["--size", "4", "--seeds", "2", "--torso", "8", "8", "--hidden", "8"]
# One agent is enough for what happens around an agent.
ONE = [*TINY, "--agents", "bqfd", "--checkpoint-period", "4"]


class StopsAfter(Sink):
    """Asks to stop once so many pieces of work are done."""

    def __init__(self, pieces: int):
        self._asked = itertools.chain([False] * pieces, itertools.repeat(True))

    def stop_asked(self) -> bool:
        return next(self._asked)


def start(*options, command: str = "experiments.deep_sea") -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", command, *map(str, options)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*options, **command) -> tuple[int, str]:
    process = start(*options, **command)
    out, err = process.communicate(timeout=300)
    return process.returncode, out + err


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run of one agent that was never stopped."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    code, text = run(*ONE, "--episodes", "12", "--out", out)
    assert code == 0, text
    return out


def summary_of(out: Path) -> dict:
    return json.loads((out / "summary.json").read_text())


def returns_of(out: Path) -> dict:
    return {case: r["bqfd"]["returns"] for case, r in summary_of(out)["results"].items()}


def test_the_folder_has_what_the_readme_promises(whole):
    for name in ("config.json", "metrics.jsonl", "returns.png", "learnt.png", "visit_weight.png"):
        assert (whole / name).stat().st_size > 0, name
    summary = summary_of(whole)
    assert next(iter(json.loads((whole / "config.json").read_text()).items())) == (
        "experiment", "deep_sea",
    )  # fmt: skip
    assert (summary["size"], summary["episodes"], summary["seeds"]) == (4, 12, 2)
    assert summary["optimal_return"]["treasure"] == pytest.approx(1 - 0.01 * 3 / 4, abs=1e-6)
    assert summary["optimal_return"]["bomb"] == 0.0
    assert summary["seconds"] > 0
    steps = 2 * 2 * 4 * 12
    assert summary["steps_per_second"] == pytest.approx(steps / summary["seconds"], rel=0.02)
    for case in ("treasure", "bomb"):
        result = summary["results"][case]["bqfd"]
        assert np.shape(result["returns"]) == (2, 12)
        assert len(result["first_optimal_episode"]) == len(result["share_optimal_after_10"]) == 2


def test_metrics_have_one_row_per_episode_and_agree_with_the_summary(whole):
    rows = read_jsonl(whole / "metrics.jsonl")
    assert [row["episode"] for row in rows] == list(range(1, 13))
    assert [row["step"] for row in rows] == list(range(4, 49, 4))
    for case, returns in returns_of(whole).items():
        logged = [row[f"{case}/return"] for row in rows]
        np.testing.assert_allclose(logged, np.mean(returns, axis=0), atol=1e-6)
    weights = [row["treasure/visit_weight"] for row in rows]
    assert all(later < earlier for earlier, later in itertools.pairwise(weights))


@pytest.mark.slow  # a run that was killed is compared, too
def test_the_same_seeds_give_the_same_returns_to_the_bit(whole, tmp_path):
    code, text = run(*ONE, "--episodes", "12", "--out", tmp_path / "again")
    assert code == 0, text
    assert returns_of(tmp_path / "again") == returns_of(whole)


def test_a_killed_run_resumes_to_the_same_returns_and_metrics(whole, tmp_path):
    out = tmp_path / "killed"
    process = start(*ONE, "--episodes", "12", "--out", out)
    checkpoints = out / "checkpoints" / "bqfd"
    deadline = time.monotonic() + 120
    while not list(checkpoints.glob("0*-step-4")):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (out / "summary.json").exists()

    code, text = run(*ONE, "--episodes", "12", "--out", out, "--resume")
    assert code == 0, text
    assert returns_of(out) == returns_of(whole)
    assert (out / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_ctrl_c_saves_and_the_folder_knows_how_to_go_on(whole, tmp_path):
    out = tmp_path / "stopped"
    process = start(*ONE, "--episodes", "12", "--out", out)
    while not (out / "metrics.jsonl").exists() or not read_jsonl(out / "metrics.jsonl"):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    text = "".join(process.communicate(timeout=60))
    assert process.returncode == 130
    assert f"continue with `bqfd resume {out}`" in text
    assert "Traceback" not in text
    code, text = run("resume", out, command="experiments")
    assert code == 0, text
    assert returns_of(out) == returns_of(whole)
    assert (out / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


SHOWS = ["--size", "10", "--seeds", "2", "--episodes", "14"]
THREE = [*SHOWS, "--agents", "bqfd", "dqfd", "dqn"]


@pytest.mark.parametrize("agent", ["bqfd", pytest.param("dqfd", marks=pytest.mark.slow)])
def test_agents_do_what_they_are_known_for(agent, tmp_path, run_here):
    code, text = run_here(main, *SHOWS, "--agents", agent, "--out", tmp_path / "run")
    assert code == 0, text
    summary = summary_of(tmp_path / "run")
    late = {c: np.array(r[agent]["returns"])[:, 4:] for c, r in summary["results"].items()}
    np.testing.assert_allclose(late["treasure"], summary["optimal_return"]["treasure"], atol=1e-4)
    if agent == "bqfd":
        assert late["bomb"].min() >= -0.0101
    else:
        assert late["bomb"].max() < -0.9


@pytest.fixture(scope="module")
def three_agents(tmp_path_factory) -> Path:
    """A run of three agents."""
    out = tmp_path_factory.mktemp("runs") / "three"
    code, text = run(*THREE, "--out", out)
    assert code == 0, text
    return out


@pytest.mark.slow
def test_dqn_is_random_at_first(three_agents):
    summary = summary_of(three_agents)
    returns = np.array(summary["results"]["treasure"]["dqn"]["returns"])
    # On its own: no two seeds alike.
    assert (returns[0] != returns[1]).any()
    assert returns.max() <= summary["optimal_return"]["treasure"] + 1e-6
    assert np.max(summary["results"]["bomb"]["dqn"]["returns"]) <= 0.0


@pytest.mark.slow
def test_resuming_a_finished_run_changes_nothing(whole):
    metrics = (whole / "metrics.jsonl").read_bytes()
    summary = summary_of(whole)
    code, text = run(*ONE, "--episodes", "12", "--out", whole, "--resume")
    assert code == 0, text
    assert (whole / "metrics.jsonl").read_bytes() == metrics
    assert summary_of(whole)["results"] == summary["results"]


@pytest.mark.slow
def test_an_earlier_agent_that_must_go_back_keeps_the_rows_in_order(three_agents, tmp_path):
    out = tmp_path / "back"
    subprocess.run(["cp", "-r", three_agents, out], check=True)
    for path in (out / "checkpoints" / "dqfd").iterdir():
        subprocess.run(["rm", "-r", path], check=True)
    code, text = run(*THREE, "--out", out, "--resume")
    assert code == 0, text
    assert (out / "metrics.jsonl").read_bytes() == (three_agents / "metrics.jsonl").read_bytes()


def test_metrics_that_were_lost_come_back_with_the_checkpoint(whole, tmp_path, run_here):
    out = tmp_path / "lost"
    subprocess.run(["cp", "-r", whole, out], check=True)
    newest = max((out / "checkpoints" / "bqfd").glob("0*"))
    subprocess.run(["rm", "-r", newest], check=True)
    places = [(row["agent"], row["episode"]) for row in read_jsonl(out / "metrics.jsonl")]
    (out / "metrics.jsonl").unlink()
    code, text = run_here(main, *ONE, "--episodes", "12", "--out", out, "--resume")
    assert code == 0, text
    assert "it is put back as it was at the last checkpoint" in text
    rows = read_jsonl(out / "metrics.jsonl")
    assert [(row["agent"], row["episode"]) for row in rows] == places


@pytest.mark.slow
def test_a_resumed_state_lies_where_it_did(tmp_path):
    """Else every resume would compile the episode twice."""
    config = Config(
        size=3, seeds=2, episodes=2, agents=("dqn",), torso=(4,), hidden=4, out=tmp_path / "run"
    )
    folder.write_config(tmp_path, config.stored())
    begun = AgentTraining(config, "dqn", tmp_path, Sink())
    with pytest.raises(Stopped, match="after episode 1 of dqn, all saved"):
        follow(begun, StopsAfter(1))
    resumed = AgentTraining(config, "dqn", tmp_path, Sink(), resume=True)
    assert resumed.position == 1
    follow(resumed, Sink())
    assert [course.run_episode._cache_size() for course in (begun, resumed)] == [1, 1]


def test_the_last_good_checkpoint_outlives_a_spoilt_episode(tmp_path):
    config = Config(
        size=3, seeds=1, episodes=3, agents=("dqn",), torso=(4,), hidden=4, checkpoint_period=1
    )
    folder.write_config(tmp_path, config.stored())
    course = AgentTraining(config, "dqn", tmp_path, Sink())
    run_episode = course.run_episode

    def spoil_third(state, params):
        state, trace, described = run_episode(state, params)
        if course.position == 2:
            loss = trace.metrics["loss"].at[1, 2].set(np.nan)
            trace = trace.replace(metrics=trace.metrics | {"loss": loss})
        return state, trace, described

    course.run_episode = spoil_third
    expected = r"loss of dqn became nan at agent step 9 \(bomb, seed 0\)\. .*: episode 2 in"
    with pytest.raises(RunError, match=expected):
        follow(course, Sink())
    assert AgentTraining(config, "dqn", tmp_path, Sink(), resume=True).position == 2


def test_who_stops_before_an_agent_has_begun_loses_nothing(tmp_path):
    config = Config(size=3, seeds=1, episodes=3, torso=(4,), hidden=4)
    folder.write_config(tmp_path, config.stored())
    with pytest.raises(Stopped, match="before the first episode of dqn"):
        follow(AgentTraining(config, "dqn", tmp_path, Sink()), StopsAfter(0))
    assert not (tmp_path / "checkpoints").exists()


def test_a_damaged_checkpoint_falls_back_to_the_one_before(whole, tmp_path):
    out = tmp_path / "damaged"
    subprocess.run(["cp", "-r", whole, out], check=True)
    newest = max((out / "checkpoints" / "bqfd").glob("0*"))
    victim = max(newest.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    content = bytearray(victim.read_bytes())
    # Long enough to hit more than the fields of an archive that nobody reads.
    middle = len(content) // 2
    content[middle : middle + 200] = bytes(byte ^ 0xFF for byte in content[middle : middle + 200])
    victim.write_bytes(content)
    code, text = run(*ONE, "--episodes", "12", "--out", out, "--resume")
    assert code == 0, text
    assert "skipped checkpoint" in text
    assert newest.name in text
    assert returns_of(out) == returns_of(whole)
    assert (out / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_two_cannot_work_in_one_folder(whole, run_here):
    # Locks are those of an open file, so that one process is refused as another would be.
    with folder.sole_use(whole):
        code, text = run_here(main, *ONE, "--episodes", "12", "--out", whole, "--resume")
    assert code == 2
    assert f"another process is at work in {whole}" in text


def test_a_folder_that_holds_a_run_is_left_alone(whole, run_here):
    before = sorted((path, path.stat().st_mtime_ns) for path in whole.rglob("*"))
    code, text = run_here(main, *ONE, "--episodes", "12", "--out", whole)
    assert code == 2
    assert "--resume" in text
    assert sorted((path, path.stat().st_mtime_ns) for path in whole.rglob("*")) == before


def test_resuming_with_other_options_shows_the_difference(whole, run_here):
    code, text = run_here(
        main, *ONE, "--episodes", "13", "--bqfd.eta", "1", "--out", whole, "--resume"
    )
    assert code == 2
    assert "episodes: was 12, now 13" in text
    assert "bqfd.eta: was 3.0, now 1.0" in text


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path, run_here):
    options = [*TINY, "--agents", "dqn", "--dqn.learning-rate", "1e38", "--episodes", "6"]
    code, text = run_here(main, *options, "--out", tmp_path / "nan", "--checkpoint-period", "1")
    assert code == 1
    assert re.search(
        r"loss of dqn became (nan|inf) at agent step \d+ \((treasure|bomb), seed", text
    )
    assert "--dqn.learning-rate" in text
    assert "Traceback" not in text
    assert not (tmp_path / "nan" / "summary.json").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--agents", "sarsa"], "sarsa"),
        (["--cases", "trap"], "trap"),
        (["--observation", "pixels"], "pixels"),
        (["--size", "1"], "--size is 1"),
        (["--seeds", "0"], "--seeds is 0"),
        (["--episodes", "0"], "--episodes is 0"),
        (["--torso", "8", "0"], "--torso is (8, 0)"),
        (["--hidden", "0"], "--hidden is 0"),
        (
            ["--agents", "bqfd", "bqfd"],
            "--agents is 'bqfd bqfd', but must be",
        ),
        (["--bqfd.gamma", "1.5"], "gamma is 1.5"),
        (["--bqfd.reset-period", "5"], "--bqfd.reset-period is 5, but must be 0 here"),
        (["--resume"], "--out"),
        (
            ["--resume", "--out", "runs/there-is-no-such-run"],
            "there is no run in runs/there-is-no-such-run",
        ),
        (["--out", "pyproject.toml"], "is a file"),
    ],
)
def test_bad_input_is_named(options, named, run_here, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, text = run_here(main, *options)
    assert code == 2
    assert named in re.sub(r"\s+", " ", text)


@pytest.mark.slow
def test_all_agents_run_with_one_hot_and_pretraining(tmp_path, capsys):
    options = ["--size", "3", "--seeds", "1", "--episodes", "2", "--observation", "onehot"]
    options += ["--torso", "4", "--hidden", "4", "--bootstrapped.ensemble-size", "2"]
    options += ["--bootstrapped.prior-scale", "1", "--bqfd.correction-steps", "2"]
    options += ["--bqfd.pretrain-updates", "3", "--tensorboard", "--cases", "bomb"]
    agents = ["bqfd", "dqfd", "dqn", "bootstrapped"]
    code, text = run(*options, "--agents", *agents, "--out", tmp_path / "all")
    assert code == 0, text
    assert list(summary_of(tmp_path / "all")["results"]["bomb"]) == agents
    for name in agents:
        assert name in text
        assert os.listdir(tmp_path / "all" / "tensorboard" / name)
    rows = read_jsonl(tmp_path / "all" / "metrics.jsonl")
    assert [row["agent"] for row in rows] == [name for name in agents for _ in range(2)]


def test_what_counts_as_optimal():
    best = 1 - 0.01 * 49 / 50
    returns = np.array([best, best - 0.9e-4, best - 1.1e-4, 1.0, 0.0])
    expected = [True, True, False, True, False]
    assert is_optimal(returns, "treasure", best).tolist() == expected
    returns = np.array([0.0, -0.01, -0.0102, -1.0])
    assert is_optimal(returns, "bomb", 0.0).tolist() == [True, True, False, False]


def test_shares_and_first_episodes_by_hand():
    returns = np.full((2, 14), -1.0)
    returns[0, 3:] = 0.0
    returns[1, 11] = 0.0
    result = report._case_summary(returns, "bomb", 0.0)
    assert result["first_optimal_episode"] == [4, 12]
    assert result["share_optimal_after_10"] == [1.0, 0.25]
    never = report._case_summary(np.full((1, 5), -1.0), "bomb", 0.0)
    assert never["first_optimal_episode"] == [None]
    assert never["share_optimal_after_10"] == [None]


def test_greedy_paths_by_hand():
    q = np.zeros((1, 3, 3, 2))
    q[0, 0, 0, 1] = 1.0  # right from the start, to column 1
    q[0, 1, 1, 0] = 1.0  # then left, to column 0
    q[0, 1, 0, 1] = 1e3  # never visited
    assert report.paths(q).tolist() == [[0, 1, 0]]


def test_a_last_state_that_cannot_be_saved_is_an_error_after_the_results(
    tmp_path, monkeypatch, capsys
):
    def no_space(self, step, items):
        raise CheckpointError("could not save: no space left on device")

    monkeypatch.setattr(Checkpointer, "save", no_space)
    with pytest.raises(RunError, match="NOT SAVED: the last checkpoint of bqfd"):
        main([*ONE, "--episodes", "2", "--out", str(tmp_path / "run")])
    # It was tried a second time.
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count("NO CHECKPOINT at step 2") == 2
    assert (tmp_path / "run" / "summary.json").exists()
