"""Trackers beside `metrics.jsonl`: what they are told, and that none of them ends a run."""

import sys
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from bqfd_jax.runs.errors import RunError, UsageError
from bqfd_jax.runs.gym import GymConfig
from bqfd_jax.runs.metrics import MetricsWriter, read_jsonl
from bqfd_jax.runs.mirrors import Mirrors, WeightsAndBiases, check_trackers, numbers

CONFIG = {"env": "CartPole-v1", "agent": "dqn", "seed": 3, "hidden": 8}


class FakeWandb:
    """Remembers what it is told."""

    Settings = SimpleNamespace

    def __init__(self, trouble=None):
        self.trouble, self.begun, self.rows, self.metrics, self.ended = trouble, [], [], [], 0

    def init(self, **options):
        if self.trouble is not None:
            raise self.trouble
        self.begun.append(options)
        return self

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def log(self, row):
        self.rows.append(row)

    def finish(self):
        self.ended += 1


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_only_numbers_are_drawn():
    row = {"step": 3, "loss": 0.5, "n": 2, "name": "x", "none": None, "flag": True, "list": [1]}
    assert numbers(row) == {"loss": 0.5, "n": 2}


def test_wandb_is_told_of_options_and_rows_and_sittings_are_one_run(tmp_path, wandb):
    for _ in range(2):
        mirror = WeightsAndBiases(tmp_path, CONFIG, "offline")
        mirror.write({"step": 500, "loss": 0.5, "train_score": None})
        # An evaluation that comes late.
        mirror.write({"step": 250, "eval_mean": 7.0})
        mirror.close()
    assert wandb.rows[:2] == [{"loss": 0.5, "step": 500}, {"eval_mean": 7.0, "step": 250}]
    assert wandb.metrics[:2] == [("step", None), ("*", "step")]
    first, second = wandb.begun
    assert (first["mode"], first["resume"], first["config"]) == ("offline", "allow", CONFIG)
    assert first["id"] == second["id"]
    assert (first["name"], first["group"]) == ("CartPole-v1 dqn 3", "CartPole-v1 dqn")
    assert first["settings"].save_code is False
    assert (first["settings"].x_save_requirements, first["settings"].host) == (False, "")
    assert wandb.ended == 2
    WeightsAndBiases(tmp_path / "other", CONFIG, "offline")
    assert wandb.begun[2]["id"] != first["id"]


def test_rows_are_mirrored_as_they_are_written(tmp_path, wandb):
    path = tmp_path / "metrics.jsonl"
    new = lambda: WeightsAndBiases(tmp_path, CONFIG, "offline")  # noqa: E731
    with closing(MetricsWriter(path, mirror=new)) as writer:
        writer.write({"step": 1, "loss": 2.0})
        writer.write({"agent": "no step", "loss": 9.0})
    assert wandb.rows == [{"loss": 2.0, "step": 1}]
    assert wandb.ended == 1
    assert len(read_jsonl(path)) == 2


def test_a_mirror_that_breaks_is_given_up_and_the_others_are_not():
    class Broken:
        name = "the broken"

        def write(self, row):
            raise OSError("full")

        def close(self):
            raise AssertionError("it is not there any more")

    class Whole:
        name, rows = "the whole", []

        def write(self, row):
            self.rows.append(row)

        def close(self):
            raise OSError("full")

    mirrors = Mirrors([Broken(), Whole()])
    with pytest.warns(UserWarning, match="the broken are given up: full"):
        mirrors.write({"step": 1})
    mirrors.write({"step": 2})
    assert Whole.rows == [{"step": 1}, {"step": 2}]
    with pytest.warns(UserWarning, match="the whole could not be closed"):
        mirrors.close()
    mirrors.close()


def test_what_is_missing_is_said_before_anything_begins(tmp_path, monkeypatch, wandb):
    config = GymConfig.of(100)
    check_trackers(wandb="online")
    wandb.trouble = ValueError("no account")
    with pytest.raises(RunError, match="no account; --wandb offline takes neither"):
        WeightsAndBiases(tmp_path, CONFIG, "online")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"--wandb needs wandb.*pip install -e '\.\[wandb\]'"):
        check_trackers(wandb="offline")
    # Whoever does not want it does not need it.
    check_trackers()
    assert config.wandb == "off"
    assert "wandb" not in config.stored()


def test_the_real_one_works_offline(tmp_path):
    pytest.importorskip("wandb")
    mirror = WeightsAndBiases(tmp_path, CONFIG, "offline")
    mirror.write({"step": 500, "loss": 0.5})
    mirror.write({"step": 250, "eval_mean": 7.0})
    mirror.close()
    (written,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    # A process of its own writes the file, and may do so a moment after it was told to close it.
    until = time.monotonic() + 30
    while written.stat().st_size <= 100 and time.monotonic() < until:
        time.sleep(0.01)
    assert written.stat().st_size > 100
    assert not list(tmp_path.rglob("requirements.txt"))
    assert b"eval_mean" in written.read_bytes()
