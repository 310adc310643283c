"""Presets, summaries and comparisons of Atari runs, by hand."""

import dataclasses
import json
import sys

import numpy as np
import pytest

from bqfd_jax.agents.presets import AGENTS
from bqfd_jax.checks import OptionError
from bqfd_jax.runs import compare, machine, report
from bqfd_jax.runs.atari import AtariConfig
from bqfd_jax.runs.errors import UsageError
from experiments.atari.__main__ import parse


def evaluation(step, mean, std, episodes=10):
    return {"step": step, "mean": mean, "std": std, "episodes": episodes}


def test_the_final_score_is_that_of_all_late_episodes():
    early = evaluation(80_000, 1e6, 1e6)
    first, second = np.array([1.0, 3.0, 8.0]), np.array([10.0, 14.0])
    late = [
        evaluation(90_000, first.mean(), first.std(), 3),
        evaluation(100_000, second.mean(), second.std(), 2),
    ]
    final = report.final_score([early, *late], 100_000, 20_000)
    together = np.concatenate([first, second])
    assert final["mean"] == pytest.approx(together.mean())
    assert final["std"] == pytest.approx(together.std())
    assert (final["evaluations"], final["episodes"]) == (2, len(together))
    assert report.final_score([early], 100_000, 20_000)["mean"] is None
    # With three games the evaluation due at 80,000 comes at 80,001, and is still not of the last.
    late[0]["step"], early["step"] = 90_000, 80_001
    assert report.final_score([early, *late], 100_000, 20_000, slack=3) == final
    # A short run has a short last part: a fifth of it at most.
    early["step"] = 79_999
    assert report.final_score([early, *late], 100_000, 200_000, slack=8) == final


def summary(agent, seed, mean, **changes):
    return {
        "game": "Freeway",
        "agent": agent,
        "seed": seed,
        "preset": "laptop",
        "steps": 1000,
        "demo": {"score": 26.3, "steps": 6144, "name": "default"},
        "evaluations": [evaluation(0, 1.0, 0.0), evaluation(1000, mean, 2.0)],
        "final": {"mean": mean, "std": 2.0},
        **changes,
    }


def test_runs_are_compared_by_agent_and_beside_the_paper(tmp_path):
    runs = []
    for agent, seed, mean in (("bqfd", 0, 20.0), ("bqfd", 1, 24.0), ("dqn", 0, 5.0)):
        run = tmp_path / f"{agent}-{seed}"
        run.mkdir()
        (run / "summary.json").write_text(json.dumps(summary(agent, seed, mean)))
        runs.append(run)
    out = tmp_path / "out"
    lines = compare.compare(runs, out).splitlines()
    assert lines[2] == (
        "| Freeway | bqfd | laptop | 1,000 | 0 1 | 22.0 ± 2.0 | default, 26.3 "
        "| 29.8 ± 0.8 after 23M |"
    )
    assert lines[3] == (
        "| Freeway | dqn | laptop | 1,000 | 0 | 5.0 ± 2.0 | default, 26.3 | 30.4 ± 0.4 after 23M |"
    )
    assert (out / "comparison.png").stat().st_size > 5000
    assert (out / "comparison.md").read_text().splitlines() == lines
    rows = json.loads((out / "comparison.json").read_text())
    assert [row["mean"] for row in rows] == [22.0, 5.0]


def test_runs_are_not_averaged_over_more_than_seeds(tmp_path):
    other_demo = {"score": 29.0, "steps": 6144, "name": "strong"}
    for name, changes in (
        ("one", {}),
        ("strong", {"demo": other_demo}),
        ("paper", {"preset": "paper"}),
        ("none", {"demo": None}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(
            json.dumps(summary("bqfd", 0, 20.0, **changes))
        )
    runs = tuple(tmp_path / name for name in ("one", "strong", "paper", "none"))
    compare.compare(runs, tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [(row["preset"], row["demo"], row["demo_score"]) for row in rows] == [
        ("laptop", "default", 26.3),
        ("laptop", "none", None),
        ("laptop", "strong", 29.0),
        ("paper", "default", 26.3),
    ]
    with pytest.raises(UsageError, match="the same seed"):
        compare.compare((runs[0], runs[0]), tmp_path / "out")


def test_what_the_figure_of_a_comparison_tells_apart(tmp_path, monkeypatch):
    other_demo = {"score": 29.0, "steps": 6144, "name": "strong"}
    runs = []
    for name, changes in (
        ("one", {}),
        ("strong", {"demo": other_demo}),
        ("long", {"steps": 100_000}),
        ("alone", {"game": "Breakout"}),
        ("none", {"game": "Breakout", "demo": None}),
    ):
        (tmp_path / name).mkdir()
        text = json.dumps(summary("bqfd", 0, 20.0, **changes))
        (tmp_path / name / "summary.json").write_text(text)
        runs.append(tmp_path / name)
    drawn = {}
    monkeypatch.setattr(
        report.plots, "lines", lambda path, panels, **named: drawn.update(named, panels=panels)
    )
    compare.compare(runs, tmp_path / "out")
    assert {game: list(labelled) for game, labelled in drawn["panels"].items()} == {
        "Freeway": [
            "bqfd (default), laptop, 1,000",
            "bqfd (strong), laptop, 1,000",
            "bqfd (default), laptop, 100,000",
        ],
        "Breakout": ["bqfd (default)", "bqfd (none)"],
    }
    assert drawn["references"] == {
        "Freeway": {"demonstration default, 26.3": 26.3, "demonstration strong, 29": 29.0},
        "Breakout": {"demonstration": 26.3},
    }


def test_several_runs_are_one_curve_with_the_spread_of_their_means():
    def run(points):
        return {"evaluations": [{"step": s, "mean": m, "std": 9.0} for s, m in points]}

    runs = [run([(0, 1.0), (10, 2.0), (20, 4.0)]), run([(10, 4.0), (20, 8.0)])]
    line = report.curve(runs, lambda means: means.std(axis=0))
    # The second was not evaluated at step 0: its first value stands there.
    np.testing.assert_allclose(line.x, [0, 10, 20])
    np.testing.assert_allclose(line.y, [2.5, 3.0, 6.0])
    np.testing.assert_allclose(line.high - line.y, [1.5, 1.0, 2.0])
    np.testing.assert_allclose(report.curve(runs[:1], None).high, [10.0, 11.0, 13.0])


def test_what_cannot_be_compared_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"no summary\.json"):
        compare.compare((tmp_path,), tmp_path / "out")
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        compare.compare((tmp_path,), tmp_path / "out")
    (tmp_path / "summary.json").write_text('{"size": 50}')
    with pytest.raises(UsageError, match="no training run's"):
        compare.compare((tmp_path,), tmp_path / "out")
    with pytest.raises(UsageError, match="name the folders"):
        compare.compare((), tmp_path / "out")


def test_the_papers_numbers():
    config = AtariConfig.of("paper", "Breakout")
    assert (config.steps, config.replay_rows, config.update_period) == (91_000_000, 1_000_000, 4)
    assert (config.bqfd.learning_rate, config.bqfd.variance, config.bqfd.beta) == (5.5e-5, 22.0, 4)
    assert (config.bqfd.eta, config.bqfd.zeta, config.bqfd.n_step) == (3.0, 0.2, 10)
    assert config.bqfd.demo_priority_steps == (5_000_000, 120_000_000)
    assert config.bqfd.demo_priority_factors == (2.0, 0.05)
    assert (config.bqfd.pretrain_updates, config.dqfd.pretrain_updates) == (5_000, 750_000)
    # One copy per 10,000 agent steps, at one update in 4.
    assert (config.bqfd.target_period, config.bqfd.target_step_size) == (2_500, 1.0)
    assert (config.dqn.learning_rate, config.dqfd.learning_rate) == (6.25e-5, 6.25e-5)
    assert (config.bqfd.priority_exponent, config.bqfd.importance_exponent) == (0.6, 0.4)
    assert (config.dqfd.priority_exponent, config.dqfd.importance_exponent) == (0.4, 0.6)
    assert (config.bqfd.epsilon_values, config.dqfd.epsilon_values) == ((0.001,), (0.01,))
    assert config.final_steps == 2_000_000
    pacman = AtariConfig.of("paper", "MsPacman")
    assert pacman.bqfd.epsilon_steps == (0, 1_000_000, 50_000_000)
    assert pacman.bqfd.epsilon_values == (1.0, 0.1, 0.01)


def test_the_laptop_preset_is_the_same_for_all_games():
    one, other = (AtariConfig.of("laptop", game) for game in ("Freeway", "Breakout"))
    assert dataclasses.replace(one, game="Breakout") == other


@pytest.mark.parametrize("name", ["laptop", "paper"])
@pytest.mark.parametrize("agent", tuple(AGENTS))
def test_a_stored_config_comes_back(name, agent):
    config = AtariConfig.of(name, "MsPacman", agent)
    config = dataclasses.replace(config, seed=3, demo=("strong",))
    stored = json.loads(json.dumps(config.stored()))
    assert set(AGENTS) & set(stored) == {agent}
    # What the others would have been does not matter.
    others = {name: getattr(config, name) for name in AGENTS if name != agent}
    assert dataclasses.replace(AtariConfig.from_stored(stored), **others) == config


def test_a_stored_config_that_cannot_be_understood_is_named():
    stored = AtariConfig.of().stored()
    for wrong, message in (({"speed": 3}, "no option speed"), ({"bqfd": {"x": 1}}, "no option x")):
        with pytest.raises(ValueError, match=message):
            AtariConfig.from_stored(stored | wrong)


def test_the_preset_gives_the_defaults_and_options_change_them():
    assert parse([]) == AtariConfig.of("laptop", "Freeway")
    config = parse(["--preset=paper", "--game", "MsPacman", "--bqfd.eta", "1", "--steps", "7"])
    expected = AtariConfig.of("paper", "MsPacman")
    assert config.bqfd == dataclasses.replace(expected.bqfd, eta=1.0)
    assert (config.steps, config.eval_period) == (7, expected.eval_period)


def test_the_replay_is_sized_to_the_run():
    config = dataclasses.replace(AtariConfig.of("laptop", "Freeway"), steps=3000, envs=7)
    assert config.rows_per_lane == 429
    assert dataclasses.replace(config, replay_rows=700).rows_per_lane == 100
    assert dataclasses.replace(config, steps=10**8, envs=8).rows_per_lane == 125_000
    # A tiny run still has room for stacks and n-step returns.
    assert dataclasses.replace(config, steps=1).rows_per_lane > 10 + 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "steps is 0, but must be at least 1"),
        (["--envs", "0"], "envs is 0"),
        (["--update-period", "0"], "update_period is 0"),
        (["--eval-epsilon", "2"], "eval_epsilon is 2"),
        (["--game", "Sequest"], "did you mean Seaquest"),
        (["--log-period", "0"], "log_period is 0"),
        (["--update-period", "1e-7"], "update_period is 1e-07"),
        (["--envs", "20000"], "envs is 20000, but must be at most 10007"),
        (["--eval-episodes", "20000"], "eval_episodes is 20000"),
        (["--steps", "3000000000"], "steps is 3000000000"),
        (["--eval-max-steps", "3000000000"], "eval_max_steps is 3000000000"),
        (["--seed", "4294967296"], "seed is 4294967296, but must be at most 4294967295"),
    ],
)
def test_values_that_cannot_be_meant(options, message):
    with pytest.raises((OptionError, UsageError), match=message):
        parse(options).check()


def test_without_envpool_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UsageError, match=r"pip install -e '\.\[atari\]'"):
        parse([]).check()


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (89, "89 s"), (1800, "30 min"), (7200, "2.0 h")]
)
def test_durations(seconds, text):
    assert machine.duration(seconds) == text
    assert machine.duration(86400 * 12) == "12.0 days"


def test_memory_can_be_read():
    assert machine.available_memory() > 1e8
    assert 0.01 < machine.peak_memory_gb() < 1000
