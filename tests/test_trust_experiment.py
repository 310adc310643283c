"""`python -m experiments.trust`: what it watches and what it writes."""

import dataclasses
import json

import numpy as np
import pytest

from bqfd_jax.agents import BqfdConfig
from bqfd_jax.checks import OptionError
from bqfd_jax.runs.sinks import Sink
from experiments.trust.__main__ import main, over_seeds, start, table
from experiments.trust.config import Config
from experiments.trust.training import SCENES, expert, watch

TINY = Config(size=4, episodes=3, seeds=2, trajectories=3, torso=(8,), hidden=8)


def test_experts_are_what_they_are_called():
    right, wrong = expert(4, "always right"), expert(4, "always wrong")
    np.testing.assert_array_equal(np.asarray(right) + np.asarray(wrong), np.ones((4, 4)))
    assert np.asarray(right)[np.arange(4), np.arange(4)].tolist() == [1.0] * 4
    assert np.asarray(expert(4, "errs 20 %"))[0, 0] == pytest.approx(0.8)
    np.testing.assert_array_equal(expert(4, "any action"), np.full((4, 4), 0.5))


@pytest.mark.slow
def test_two_experts_have_an_eta_each():
    options = dataclasses.replace(TINY.bqfd, eta_step_size=1.0)
    found = watch(TINY, options, SCENES["two that contradict each other"])
    assert found.eta.shape == (2, 2, 3)
    assert found.returns.shape == (2, 3)
    assert not np.allclose(found.eta[:, 0, -1], found.eta[:, 1, -1])
    assert (found.eta >= 0.0099).all()
    assert (found.eta <= 30.001).all()


@pytest.mark.slow
def test_a_whole_run_writes_its_picture_and_numbers(tmp_path):
    config = dataclasses.replace(TINY, out=tmp_path / "run")
    start(config, Sink())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert list(summary["results"]) == ["bqfd", "ensemble_bqfd"]
    for scenes in summary["results"].values():
        assert {name: tuple(told["eta"]) for name, told in scenes.items()} == SCENES
    assert (tmp_path / "run" / "eta.png").stat().st_size > 0
    assert len(table(summary).splitlines()) == 1 + 2 * 6


def test_the_middle_of_the_seeds_is_drawn():
    line = over_seeds(np.array([[1.0, 5.0], [2.0, 6.0], [30.0, 7.0]]))
    assert line.y.tolist() == [2.0, 6.0]
    assert line.x.tolist() == [1, 2]


def test_what_cannot_be_meant_is_named(run_here):
    code, text = run_here(main, "--trajectories", "0")
    assert code == 2
    assert "--trajectories is 0, but must be at least 1" in text
    with pytest.raises(OptionError, match=r"bqfd\.learn_eta is False, but must be True"):
        dataclasses.replace(TINY, bqfd=BqfdConfig()).check()
    code, text = run_here(main, "--bqfd.reset-period", "5")
    assert (code, "--bqfd.reset-period is 5, but must be 0 here" in text) == (2, True)
