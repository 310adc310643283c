"""The best network of a run: which it is, what its file says, and what is said when it is lost."""

import jax
import numpy as np
import pytest
from run_sinks import Noting
from test_background import answer, tiny

import bqfd_jax
from bqfd_jax import networks
from bqfd_jax.policy import Policy
from bqfd_jax.runs import background, best, host_run
from bqfd_jax.runs.background import Background
from bqfd_jax.runs.best import Best
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.run import Run, load_job, start

SHAPE = {"num_actions": 3, "frame_shape": (4,), "frame_dtype": np.dtype(np.float32), "stack": 1}


def policy(seed):
    network = networks.described_network({"hidden": 8}, **SHAPE)
    params = network.init(jax.random.key(seed), np.zeros((1, 1, 4), np.float32))
    return Policy(network=network, params=params, made_with={"hidden": 8}, **SHAPE)


def row(step, mean):
    return {"step": step, "eval_mean": mean, "episodes": 10, "eval_std": -99.0}


def told(step, mean):
    return {"step": step, "mean": mean, "episodes": 10, "std": -99.0}


def test_of_equals_the_last_is_the_best():
    kept = Best(None, Noting())
    assert kept.is_reached(row(1, -5.0), [])
    assert kept.is_reached(row(2, 3.0), [row(0, 2.0), row(1, 3.0)])
    assert not kept.is_reached(row(2, 2.5), [row(0, 2.0), row(1, 3.0)])


def test_the_file_says_that_it_was_chosen_and_by_what(tmp_path):
    Best(tmp_path, Noting()).keep(row(40, 7.0), policy(0))
    chosen = {"by": "evaluation", "step": 40, "mean": 7.0, "episodes": 10}
    assert bqfd_jax.load_policy(tmp_path / "policy-best.npz").chosen == chosen
    bqfd_jax.save_policy(policy(0), tmp_path / "policy.npz")
    assert bqfd_jax.load_policy(tmp_path / "policy.npz").chosen is None


def test_what_a_kill_cost_metrics_is_still_known_from_the_file(tmp_path):
    Best(tmp_path, Noting()).keep(row(40, 7.0), policy(0))
    again = Best(tmp_path, Noting())
    # The rows of the last sitting are gone; its best network must not be.
    assert not again.is_reached(row(60, 5.0), [row(20, 1.0)])
    assert again.is_reached(row(60, 7.5), [row(20, 1.0)])
    assert again.policy.chosen["step"] == 40


@pytest.mark.parametrize("content", [None, b"no policy"])
def test_without_a_file_that_can_be_read_metrics_decide(tmp_path, content):
    if content is not None:
        (tmp_path / "policy-best.npz").write_bytes(content)
    kept = Best(tmp_path, Noting())
    assert kept.chosen is None
    assert not kept.is_reached(row(60, 5.0), [row(20, 6.0)])


def test_a_full_disk_is_told_of_and_the_network_stays_in_memory(tmp_path, monkeypatch):
    def full(*args):
        raise OSError("the disk is full")

    monkeypatch.setattr(best, "save_policy", full)
    sink = Noting()
    kept = Best(tmp_path, sink)
    kept.keep(row(40, 7.0), policy(0))
    assert sink.warnings == ["policy-best.npz could not be written: the disk is full"]
    assert kept.policy.chosen["mean"] == 7.0


def test_a_summary_tells_best_and_last_and_warns_below_half():
    # By hand: 541 / 1176 = 0.46003.
    fallen = [told(0, 108.0), told(20, 1176.0), told(40, 541.0)]
    summary = {"evaluations": fallen} | best.beside_last(fallen, None)
    assert summary["best"] == {"step": 20, "mean": 1176.0, "episodes": 10}
    assert summary["last_to_best"] == pytest.approx(0.4600, abs=1e-4)
    words = best.fall(summary)
    assert "(541" in words
    assert "at step 20)" in words
    assert "chosen by evaluation" in words
    fallen[-1] = told(40, 588.0)
    assert best.fall({"evaluations": fallen} | best.beside_last(fallen, None)) is None


def test_losses_have_no_half():
    evaluations = [told(20, -5.0), told(40, -20.0)]
    summary = {"evaluations": evaluations} | best.beside_last(evaluations, None)
    assert (summary["best"]["step"], summary["last_to_best"]) == (20, None)
    assert best.fall(summary) is None
    assert best.beside_last([], None) == {"best": None, "last_to_best": None}


def test_a_best_whose_row_is_lost_counts():
    chosen = {"by": "evaluation", "step": 30, "mean": 50.0, "episodes": 10}
    found = best.beside_last([told(20, 10.0), told(40, 20.0)], chosen)
    assert (found["best"]["step"], found["last_to_best"]) == (30, 0.4)


def test_a_run_in_the_background_marks_its_best_and_says_that_it_fell(tmp_path, monkeypatch):
    out, sink = tmp_path / "run", Noting()
    monkeypatch.setattr(Background, "_start", lambda self: None)
    monkeypatch.setattr(background, "_WAIT_SECONDS", 0.001)

    def wait(self):
        for step, score in ((80, 5.0), (160, 9.0), (240, 3.0)):
            answer(out, step, score)

    monkeypatch.setattr(Background, "wait", wait)
    summary = start(load_job(tiny(out, eval_in_background=True)), sink)
    assert summary["best"] == {"step": 160, "mean": 9.0, "episodes": 2}
    assert summary["last_to_best"] == pytest.approx(1 / 3)
    run = Run.load(out, trust_config=True)
    assert run.best_policy.chosen["step"] == 160
    assert "fell below half of the best" in "".join(map(str, sink.lines))
    # Both networks can be played, each by its own name.
    assert (run.step_of_network(), run.step_of_network(best=True)) == (240, 160)
    assert run.evaluate(1, best=True).scores.shape == (1,)
    (out / "policy-best.npz").unlink()
    with pytest.raises(UsageError, match=r"has no policy-best\.npz"):
        run.evaluate(1, best=True)


def test_a_run_that_goes_on_keeps_its_best(tmp_path, monkeypatch):
    out, scores = tmp_path / "run", iter([9.0, 3.0, 4.0, 5.0])
    played = host_run.played_row

    def scored(*args):
        return played(*args) | {"eval_mean": next(scores)}

    monkeypatch.setattr(host_run, "played_row", scored)
    config = tiny(out, steps=160)
    assert start(load_job(config), Noting())["best"]["step"] == 80
    before = (out / "policy-best.npz").read_bytes()
    summary = Run.load(out, trust_config=True).resume(steps=320)
    assert (out / "policy-best.npz").read_bytes() == before
    assert (summary["best"]["step"], summary["last_to_best"]) == (80, pytest.approx(5 / 9))
