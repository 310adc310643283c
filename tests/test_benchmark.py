"""The benchmark's own arithmetic, and that it finds the replay in order."""

import numpy as np
import pytest

from bqfd_jax.checks import OptionError
from experiments.benchmark.__main__ import main
from experiments.benchmark.atari import atari
from experiments.benchmark.replay import _chi_square, memory, replay
from experiments.benchmark.seeds import seeds
from experiments.benchmark.timing import measure
from experiments.benchmark.updates import updates


def test_a_small_replay_passes_its_own_benchmark(capsys):
    figures = replay(rows=8000, lanes=8, n_step=2, stack=2, calls=3, draws=64_000)
    assert figures["zero_draws"] == 0
    assert figures["chi_square_priorities"] < 5
    assert 0.7 < figures["chi_square_regions"] < 1.2
    assert figures["milliseconds"] > 0
    assert "peak memory" in capsys.readouterr().out


def test_too_few_rows_are_refused(run_here):
    code, text = run_here(main, "replay", "--rows", "100")
    assert code == 2
    assert "--rows is 100, but must be at least 8000" in text


def test_every_part_is_measured_in_every_round():
    called = []
    times = measure({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, 3)
    assert called == ["a", "b"] * 3
    assert [times[name].wall.shape for name in times] == [(3,), (3,)]
    assert all(0 <= t.cpu.sum() <= 1 for t in times.values())


def test_chi_square_by_hand():
    group = np.array([0, 0, 1, 2])
    leaves = np.array([1.0, 1.0, 2.0, 0.0])  # groups weigh 2, 2 and nothing
    drawn = np.array([0, 1, 0, 2])  # found 3 and 1 where 2 and 2 were expected
    assert _chi_square(group, leaves, drawn) == pytest.approx((1 / 2 + 1 / 2) / 1)


@pytest.mark.slow
def test_the_loop_is_measured_beside_its_parts(capsys):
    figures = atari(envs=2, update_period=2, iterations=2, rounds=2)
    assert figures["ratio"] > 0.3
    assert figures["steps_per_second"] == pytest.approx(2 * figures["updates_per_second"])
    assert figures["loop_ms"] == pytest.approx(1e3 / figures["updates_per_second"])
    assert "updates/s" in capsys.readouterr().out
    with pytest.raises(OptionError, match="rounds is 0"):
        atari(rounds=0)


@pytest.mark.slow
def test_a_small_run_of_full_replay_is_measured(capsys):
    figures = memory(preset="laptop", rows=4000, steps=16)
    # 5,316 steps and 3 last observations.
    assert figures["rows"] == 4000 + 5319
    assert figures["updates"] == 16 / 2  # the preset's, one per two steps
    assert figures["memory_gb"] > figures["replay_gb"]
    assert "full replay of 9,319 rows" in capsys.readouterr().out


@pytest.mark.slow
def test_seeds_are_measured_in_programs_of_their_own(capsys):
    figures = seeds(steps=16, rounds=1)
    names = ["one after the other", "side by side", "one program", "one program, 2 CPU devices"]
    assert list(figures) == names
    assert figures["one after the other"] == 1
    assert all(figure > 0 for figure in figures.values())
    assert "CartPole-v1, bqfd, preset small, 2 seeds" in capsys.readouterr().out


@pytest.mark.slow
def test_updates_are_measured_beside_the_first_agents(capsys):
    figures = updates(count=1, rounds=1)
    for place in ("deep_sea", "atari"):
        assert figures[f"{place}_bqfd_ratio"] == 1
        assert figures[f"{place}_ensemble_bqfd_ratio"] == pytest.approx(
            figures[f"{place}_ensemble_bqfd_ms"] / figures[f"{place}_bqfd_ms"]
        )
    assert "Breakout     ensemble_bqfd" in capsys.readouterr().out
