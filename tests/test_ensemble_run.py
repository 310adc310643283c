"""A run of ensemble BQfD that learns eta, like any other: resumed, played, several in a program."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from gym_probes import PROBE as ENV

import bqfd_jax
from bqfd_jax import Run, agent_config
from bqfd_jax.runs import group
from bqfd_jax.runs.gym import GymConfig
from bqfd_jax.runs.sinks import Sink

OPTIONS = {
    "envs": 4,
    "update_period": 4,
    "learning_starts": 40,
    "log_period": 40,
    "eval_period": 80,
    "eval_episodes": 2,
    "final_steps": 80,
    "checkpoint_period": 80,
    "hidden": 8,
}
CONFIG = dataclasses.replace(
    agent_config("small", "ensemble_bqfd", steps=160),
    batch_size=8,
    pretrain_updates=40,
    ensemble_size=2,
    learn_eta=True,
)


def right(observations):
    return np.ones(len(observations), int)


@pytest.fixture(scope="module")
def demonstrations():
    return [
        bqfd_jax.record(ENV, right, 6, epsilon=0.0, name="steady"),
        bqfd_jax.record(ENV, right, 6, epsilon=1.0, name="random"),
    ]


def train(demonstrations, **options):
    return bqfd_jax.train(
        ENV, demonstrations, CONFIG, steps=160, progress=False, **OPTIONS, **options
    )


@pytest.fixture(scope="module")
def whole(demonstrations, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "whole"
    return out, train(demonstrations, out=out)


def test_each_demonstration_has_its_own_eta_in_rows_and_summary(whole):
    out, result = whole
    told = {demo["name"]: demo["eta"] for demo in result.summary["demos"]}
    assert set(told) == {"steady", "random"}
    assert told["steady"] != told["random"]
    assert json.loads((out / "summary.json").read_text())["demos"] == result.summary["demos"]
    last = [row for row in result.metrics if "loss" in row][-1]
    for name, eta in told.items():
        assert last[f"demo/{name}/eta"] == pytest.approx(eta, rel=1e-5)
        assert 0 <= last[f"demo/{name}/expert_weight"] <= CONFIG.variance
        assert f"demo/{name}/visit_weight" not in last
    assert 0 <= last["expert_weight"] <= CONFIG.variance
    # It is not the ensemble's alone.
    assert CONFIG.weight == "smaller"
    assert "ensemble_weight" not in last
    assert CONFIG.eta_bounds[0] <= last["eta"] <= CONFIG.eta_bounds[1]


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_what_it_had_learnt(whole, demonstrations, tmp_path):
    out = tmp_path / "stopped"
    train(demonstrations, out=out, callbacks=lambda row: row["step"] >= 80)
    again = train(demonstrations, out=out, resume=True)
    state, expected = again.state.learner, whole[1].state.learner
    # Episodes begin anew, so only what does not depend on them is the same; that it goes on is.
    assert int(state.updates) == int(expected.updates)
    assert state.extra[0].ends.tolist() == expected.extra[0].ends.tolist()
    assert np.asarray(state.extra[0].initial) == np.asarray(expected.extra[0].initial)
    assert not np.allclose(state.extra[0].log_eta, np.log(CONFIG.eta), atol=1e-4)


def test_its_policy_is_played_from_the_folder_and_from_the_file(whole):
    out, result = whole
    seen = np.random.default_rng(0).normal(size=(3, *result.policy.frame_shape))
    for policy in (Run.load(out).policy, bqfd_jax.load_policy(out / "policy.npz")):
        np.testing.assert_allclose(policy.q_values(seen), result.policy.q_values(seen), rtol=1e-5)
    assert len(Run.load(out).evaluate(2).scores) == 2


@pytest.mark.slow
def test_seeds_in_one_program_learn_as_alone(demonstrations, tmp_path):
    base = GymConfig.of(160, "ensemble_bqfd")
    config = dataclasses.replace(
        base, env=ENV, steps=160, video=False, seeds_per_program=2, out=tmp_path / "two",
        demo=("given",), ensemble_bqfd=CONFIG, **OPTIONS
    )  # fmt: skip
    jobs = group.load_jobs(config, lambda one: demonstrations)
    two = group.start(jobs, Sink())
    for summary in two:
        assert len({demo["eta"] for demo in summary["demos"]}) == 2
    alone = bqfd_jax.train(
        ENV, demonstrations, CONFIG, steps=160, seed=1, progress=False, **OPTIONS
    )
    for one, other in zip(two[1]["demos"], alone.summary["demos"], strict=True):
        assert one["eta"] == pytest.approx(other["eta"], rel=1e-2)
    assert jax.tree.leaves(alone.state.learner.extra)
