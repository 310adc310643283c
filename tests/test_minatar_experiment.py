"""`compare-demos minatar`: demonstrations, what is stored and read again, tables."""

import dataclasses
import json

import numpy as np
import pytest
from run_sinks import Noting

from bqfd_jax.checks import OptionError
from bqfd_jax.demos import FrameDemonstration
from bqfd_jax.runs.errors import Stopped, UsageError
from bqfd_jax.training.episodes import Played
from experiments.gym import minatar, minatar_report, minatar_teacher
from experiments.gym.minatar_teacher import Teacher


def small(out, **changes):
    settings = {
        "games": ("Breakout",),
        "agents": ("bqfd",),
        "qualities": ("bad",),
        "seeds": 2,
        "steps": 80,
        "evaluations": 2,
        "eval_episodes": 2,
        "demo_steps": 100,
        "width": 8,
        "out": out,
    }
    return minatar.MinatarConfig(**settings | changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"games": ("Pong",)}, "games is 'Pong'"),
        ({"steps": 81}, "steps is 81.*multiple of evaluations times update_period"),
        ({"demo_steps": 10}, "demo_steps is 10"),
        ({"seeds": 0}, "seeds is 0"),
    ],
)
def test_options_that_cannot_be_meant(tmp_path, changes, told):
    with pytest.raises(OptionError, match=told):
        small(tmp_path, **changes).check()


# --- Demonstrations ---


def test_who_is_nearest_to_a_share_of_the_way_demonstrates():
    scores = np.array([-1.0, 2.0, 5.0, 4.0, 11.0])
    # From 2 to 11: two thirds of the way is 8, a quarter 4.25.
    assert minatar_teacher.choose(scores, 2.0, 2 / 3) == 2
    assert minatar_teacher.choose(scores, 2.0, 1 / 4) == 3


def test_typical_episodes_come_first():
    running = np.array([[1, 1, 1, 1], [1, 1, 0, 1]], bool)
    reward = np.array([[0.0, 4.0, 8.0, 0.0], [0.0, 2.0, 99.0, 4.0]])
    played = Played(
        frame=None,
        action=None,
        reward=reward,
        terminated=None,
        running=running,
        next_frame=None,
    )
    # Returns are 0, 6, 8 and 4, and their mean 4.5.
    assert minatar_teacher.typical_first(played) == [3, 1, 2, 0]


def test_an_episode_is_cut_where_it_ends_or_where_there_is_enough():
    running = np.array([[1, 1], [1, 1], [1, 0], [0, 0]], bool)
    lanes = np.arange(8).reshape(4, 2)
    played = Played(
        frame=np.broadcast_to(lanes[..., None, None, None], (4, 2, 10, 10, 4)).astype(np.uint8),
        action=lanes % 3,
        reward=np.where(running, 1.0, 99.0),
        terminated=np.array([[0, 0], [0, 1], [1, 1], [1, 1]], bool),
        running=running,
        next_frame=np.broadcast_to(100 + lanes[..., None, None, None], (4, 2, 10, 10, 4)).astype(
            np.uint8
        ),
    )
    whole = minatar_teacher.episode(played, 0, 50, "Breakout", 3)
    assert whole.frames[:, 0, 0, 0].tolist() == [0, 2, 4, 104]
    assert whole.actions.tolist() == [0, 2, 1]
    assert (whole.terminated, whole.scores) == ((True,), (3.0,))
    cut = minatar_teacher.episode(played, 0, 2, "Breakout", 3)
    assert cut.frames[:, 0, 0, 0].tolist() == [0, 2, 102]
    assert (cut.terminated, cut.scores) == ((False,), (2.0,))
    assert minatar_teacher.episode(played, 1, 50, "Breakout", 3).terminated == (True,)


def test_a_bad_policy_prefers_the_first_action():
    params = {
        "params": {"DuelingHead_0": {"advantage": {"bias": np.full(3, 7.0)}}, "x": np.ones(2)}
    }
    zeros = minatar_teacher.always_first(params)["params"]
    np.testing.assert_array_equal(zeros["DuelingHead_0"]["advantage"]["bias"], [1, 0, 0])
    np.testing.assert_array_equal(zeros["x"], [0, 0])
    np.testing.assert_array_equal(params["params"]["x"], [1, 1])


# --- Tables ---


def row(env, agent, demonstration, final):
    return {"env": env, "agent": agent, "demonstration": demonstration, "final": final}


def test_games_are_brought_to_one_scale():
    scales = {"A": {"random": 1.0, "best": 5.0}, "B": {"random": 0.0, "best": 10.0}}
    rows = [
        row("A", "dqn", None, [1.0, 1.0]),
        row("B", "dqn", None, [0.0, 0.0]),
        row("A", "bqfd", "good", [3.0, 5.0]),
        row("B", "bqfd", "good", [10.0, 100.0]),
    ]
    found = {
        (one["demonstration"], one["agent"]): one for one in minatar_report.aggregate(rows, scales)
    }
    assert found[None, "dqn"]["value"] == 0
    # Of 0.5, 1, 1 and 10 the least and the greatest are left out.
    assert found["good", "bqfd"]["value"] == pytest.approx(1.0)
    assert found["all three", "bqfd"]["value"] == pytest.approx(1.0)
    assert found["good", "bqfd"]["low"] <= 1.0 <= found["good", "bqfd"]["high"]
    told = minatar_report.table(list(found.values()), scales)
    assert "| none | dqn | 0.00 | 0.00 to 0.00 |" in told
    assert "A 1.000 and 5.0; B 0.000 and 10.0" in told
    with pytest.raises(ValueError, match="has learnt nothing"):
        minatar_report.normalise(np.ones(2), {"random": 3.0, "best": 3.0})


# --- What is stored ---


def demonstration():
    return FrameDemonstration(
        game="minatar:Breakout",
        frames=np.zeros((3, 10, 10, 4), np.uint8),
        actions=np.array([0, 1], np.int32),
        rewards=np.array([0.0, 1.0], np.float32),
        episode_lengths=np.array([2], np.int32),
        terminated=(True,),
        num_actions=3,
        name="bad",
        origin={"made": "by hand", "score": 1.0},
    )


class StopAfter(Noting):
    """Asks to stop after so many runs."""

    def __init__(self, runs):
        super().__init__()
        self._runs = runs

    def stop_asked(self):
        return self.position.get("run", 0) >= self._runs


@pytest.fixture
def ran(monkeypatch):
    """The runs that were made; they cost nothing."""
    made = []

    def train(config, programs, seed, demo):
        made.append((programs, seed, None if demo is None else demo.name))
        mean = seed + (0 if demo is None else 2)
        evaluation = {"step": config.steps, "mean": mean, "std": 0.0, "episodes": 2}
        return {
            "evaluations": [evaluation | {"step": 0}, evaluation],
            "final": {"mean": mean},
            "demo": None if demo is None else {"name": demo.name, "score": 1.0},
        }

    teacher = Teacher({"bad": demonstration()}, {"random": 0.0, "best": 2.0})
    monkeypatch.setattr(minatar, "train", train)
    monkeypatch.setattr(minatar, "make_programs", lambda config, game, agent: agent)
    monkeypatch.setattr(minatar, "load_teacher", lambda *unused: teacher)
    return made


def test_a_comparison_goes_on_where_it_stopped(tmp_path, ran):
    config = small(tmp_path / "all")
    with pytest.raises(Stopped, match="stopped after 3 runs"):
        minatar.compare(config, StopAfter(3))
    assert len(ran) == 3
    minatar.compare(config, Noting())
    assert ran == [("dqn", 0, None), ("dqn", 1, None), ("bqfd", 0, "bad"), ("bqfd", 1, "bad")]
    stored = json.loads((config.out / "comparison.json").read_text())
    assert [one["final"] for one in stored["rows"]] == [[0, 1], [2, 3]]
    assert stored["aggregates"][1]["value"] == pytest.approx(1.25)
    assert "| Breakout | bad (1.000) | bqfd | 2.5" in (config.out / "comparison.md").read_text()
    assert (config.out / "comparison.png").stat().st_size > 5000


def test_a_file_of_another_run_is_not_taken_for_this_one(tmp_path, ran):
    minatar.compare(small(tmp_path), Noting())
    with pytest.raises(UsageError, match=r"seed-0\.json is of another run"):
        minatar.compare(small(tmp_path, steps=160), Noting())


def test_a_spoilt_file_is_made_again(tmp_path, ran):
    config = small(tmp_path)
    minatar.compare(config, Noting())
    (config.out / "Breakout" / "bqfd-bad" / "seed-1.json").write_text("{")
    ran.clear()
    minatar.compare(config, Noting())
    assert ran == [("bqfd", 1, "bad")]


@pytest.mark.slow
def test_the_whole_comparison_of_a_game(tmp_path):
    config = small(tmp_path / "all", agents=("bqfd", "ensemble_bqfd"), seeds=1)
    sink = Noting()
    minatar.compare(config, sink)
    stored = json.loads((config.out / "comparison.json").read_text())
    assert [one["agent"] for one in stored["rows"]] == ["dqn", "bqfd", "ensemble_bqfd"]
    again = dataclasses.replace(config, agents=("bqfd",))
    minatar.compare(again, sink)
