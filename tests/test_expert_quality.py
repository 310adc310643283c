"""`python -m experiments.expert_quality`: the map, its statistics, repeating and resuming it."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from bqfd_jax.checks import OptionError
from bqfd_jax.envs import deep_sea_experts
from bqfd_jax.runs import folder
from bqfd_jax.runs.deep_sea import CASES, optimal_returns
from bqfd_jax.runs.errors import FolderBusyError, RunError, Stopped, UsageError
from bqfd_jax.runs.sinks import Sink
from experiments.expert_quality import __main__ as run
from experiments.expert_quality import report
from experiments.expert_quality.cells import Cell, cells_of, make_demonstrate, make_inputs
from experiments.expert_quality.config import (
    LEARNERS,
    Config,
    Quality,
    Quantity,
    parse_quality,
    parse_quantity,
)
from experiments.expert_quality.training import MapTraining

ROOT = Path(__file__).parent.parent
TINY = Config(
    size=4,
    seeds=2,
    episodes=6,
    cases=("treasure", "bomb"),
    qualities=("eta=inf", "two"),
    quantities=("1", "3x0.5"),
    agents=("dqn_alone", "tabular"),
    cells_per_call=3,
    torso=(8,),
    hidden=8,
)


def summary_of(out: Path) -> dict:
    return json.loads((out / "summary.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that was never stopped."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    run.start(dataclasses.replace(TINY, out=out), Sink())
    return out


# --- The options ---


@pytest.mark.parametrize(
    ("text", "quality"),
    [
        ("eta=inf", Quality("eta", np.inf)),
        ("eta=-3", Quality("eta", -3.0)),
        ("errs=0.2", Quality("errs", 0.2)),
        ("until=1", Quality("until", 1.0)),
    ],
)
def test_qualities_are_read(text, quality):
    assert parse_quality(text) == quality
    assert parse_quality("two").kind == "two"


@pytest.mark.parametrize("text", ["eta=", "eta=nan", "errs=1.1", "until=-1", "good", "", "two=1"])
def test_what_is_no_quality_is_refused(text):
    with pytest.raises(UsageError, match=f"--qualities has {text!r}"):
        parse_quality(text)


def test_quantities_are_read():
    assert parse_quantity("30") == Quantity(30, 1.0)
    assert parse_quantity("10x0.5") == Quantity(10, 0.5)
    for text in ("0", "-1", "1.5", "3x0", "3x2", "x0.5", "3x", ""):
        with pytest.raises(UsageError, match=f"--quantities has {text!r}"):
            parse_quantity(text)


def test_the_defaults_are_the_map_that_was_asked_for():
    full, quick = (Config(quick=quick).resolved() for quick in (False, True))
    assert (full.size, full.seeds, full.episodes) == (20, 5, 100)
    assert len(full.cases) == 3
    assert len(full.agents) == 7
    assert len(full.qualities) >= 6
    trajectories = {parse_quantity(text).trajectories for text in full.quantities}
    assert trajectories >= {1, 30}
    assert len(trajectories) >= 4
    assert any(parse_quantity(text).share < 1 for text in full.quantities)
    assert {parse_quality(q).kind for q in full.qualities} == {
        "eta", "errs", "until", "two",
    }  # fmt: skip
    assert quick.size == 10
    assert quick.bootstrapped.ensemble_size == 5
    for config in (full, quick):
        assert config.dqn_alone.epsilon_steps[-1] == config.size * config.episodes // 2
        assert config.dqn.epsilon_values == (0.0,)
    # What is given by hand stays.
    assert Config(quick=True, size=7).resolved().size == 7
    alone = dataclasses.replace(Config.dqn_alone, epsilon_steps=(10, 50))
    assert Config(quick=True, dqn_alone=alone).resolved().dqn_alone == alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 2}, "size is 2, but must be at least 3"),
        ({"cells_per_call": 0}, "cells_per_call is 0"),
        ({"hidden": 0}, "hidden is 0, but must be at least 1"),
        ({"torso": (8, -3)}, r"torso is \(8, -3\), but must be widths of at least 1"),
        ({"qualities": ()}, "qualities is '', but must be one or more names"),
        ({"quantities": ("1", "1")}, "quantities is '1 1', .* none of them twice"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        Config(**options).resolved()


def test_the_command_says_what_is_wrong_and_exits_with_2():
    done = subprocess.run(
        [sys.executable, "-m", "experiments.expert_quality", "--qualities", "good"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 2
    assert "error: --qualities has 'good'" in done.stderr
    assert "Traceback" not in done.stderr


# --- The map ---


def test_only_who_sees_demonstrations_is_trained_in_every_cell():
    assert cells_of(TINY, "dqn_alone") == [Cell("treasure"), Cell("bomb")]
    cells = cells_of(TINY, "bqfd")
    assert len(cells) == 8
    assert cells[1] == Cell("treasure", "eta=inf", "3x0.5")
    assert cells[4] == Cell("bomb", "eta=inf", "1")
    assert len(cells_of(TINY, "bootstrapped")) == 2
    with_demos = dataclasses.replace(TINY, bootstrapped_demos=True)
    assert len(cells_of(with_demos, "bootstrapped")) == 8


def test_every_case_is_shown_the_same():
    key = jax.random.key(0)
    demonstrate = jax.jit(make_demonstrate(TINY, 0.99))
    rows = {
        case: demonstrate(key, make_inputs(TINY, Cell(case, "eta=inf", "1"), 0)) for case in CASES
    }
    np.testing.assert_array_equal(rows["treasure"].action[:4], [1, 1, 1, 1])
    for case in ("bomb", "decoy"):
        np.testing.assert_array_equal(rows[case].action, rows["treasure"].action)
    corner = {case: float(shown.reward[3]) for case, shown in rows.items()}
    assert corner == {"treasure": 1.0, "bomb": -1.0, "decoy": 0.5}


def test_of_two_experts_each_begins_with_half_of_the_seeds():
    demonstrate = jax.jit(make_demonstrate(TINY, 0.99))
    cell = Cell("treasure", "two", "3x0.5")
    for seed, first_moves in ((0, [1, 0, 1]), (1, [0, 1, 0])):
        inputs = make_inputs(TINY, cell, seed)
        rows = demonstrate(jax.random.key(seed), inputs)
        assert rows.action[::4].tolist() == first_moves
        assert (~rows.is_last).reshape(3, 4).sum(1).tolist() == [2, 2, 2]


def test_nothing_is_shown_without_demonstrations():
    inputs = make_inputs(TINY, Cell("bomb"), 0)
    demonstrate = jax.jit(make_demonstrate(TINY, 0.99))
    assert demonstrate(jax.random.key(0), inputs).is_last.all()


def test_the_key_of_the_demonstrations_is_no_other_of_the_run(monkeypatch):
    used = []
    monkeypatch.setattr(deep_sea_experts, "show", lambda key, *rest, **options: used.append(key))
    key = jax.random.key(0)
    make_demonstrate(TINY, 0.99)(key, make_inputs(TINY, Cell("bomb"), 0))
    # Training splits the run's key, and the first of a split is what folding a 0 in would give.
    others = jax.random.key_data(jax.random.split(key, 1000)).tolist()
    assert jax.random.key_data(jax.random.fold_in(key, 0)).tolist() in others
    assert jax.random.key_data(used[0]).tolist() not in others


# --- What is made of the returns ---


def made_up_maps() -> report.Maps:
    """Two cases, two qualities, one quantity, two seeds, four episodes."""
    config = dataclasses.replace(TINY, quantities=("1",))
    bqfd = np.zeros((4, 2, 4))
    bqfd[0] = 1.0  # no regret at all
    bqfd[1, :, 2:] = 1.0  # none late
    bqfd[2] = -1.0  # always into the bomb
    alone = np.zeros((2, 2, 4))
    alone[0, 0] = 0.5
    return report.make_maps(
        config, {"treasure": 1.0, "bomb": 0.0}, {"bqfd": bqfd, "dqn_alone": alone}
    )


def test_regrets_by_hand():
    maps = made_up_maps()
    assert maps.whole["bqfd"].shape == (2, 2, 1, 2)
    np.testing.assert_allclose(maps.whole["bqfd"][..., 0, 0], [[0.0, 0.5], [1.0, 0.0]])
    np.testing.assert_allclose(maps.late["bqfd"][..., 0, 0], [[0.0, 0.0], [1.0, 0.0]])
    # The same in both qualities of a case.
    np.testing.assert_allclose(
        maps.whole["dqn_alone"][:, :, 0], [[[0.5, 1.0]] * 2, [[0.0, 0.0]] * 2]
    )
    assert maps.repeated == {"dqn_alone"}


def test_the_summary_by_hand():
    config = dataclasses.replace(TINY, quantities=("1",))
    summary = report.summarise(config, made_up_maps(), {"bqfd": 1.0, "dqn_alone": 2.0})
    assert summary["seconds"] == 3.0
    regret = summary["regret"]
    # 0 0 | 0 0 .5 .5 | 1 1 and 0 0 | 0 0 .5 .5 | 1 1.
    assert regret["iqm"]["all"]["bqfd"]["value"] == pytest.approx(0.25)
    assert regret["iqm"]["all"]["dqn_alone"]["value"] == pytest.approx(0.25)
    assert regret["iqm"]["treasure"]["dqn_alone"] == {"value": 0.75, "low": 0.5, "high": 1.0}
    # Treasure: 0 and .5 against .75 twice; bomb: 1 and 0 against 0 twice, one of them shared.
    assert regret["share_best"]["treasure"] == {"bqfd": 1.0, "dqn_alone": 0.0}
    assert regret["share_best"]["bomb"] == {"bqfd": 0.25, "dqn_alone": 0.75}
    assert regret["share_best"]["all"] == {"bqfd": 0.625, "dqn_alone": 0.375}
    assert regret["share_worse_than_alone"] == {
        "all": {"bqfd": 0.25}, "treasure": {"bqfd": 0.0}, "bomb": {"bqfd": 0.5},
    }  # fmt: skip
    cell = regret["by_cell"]["bomb"]["two"]["1"]
    assert cell == {
        "best": ["bqfd", "dqn_alone"],
        "regret": {"bqfd": [0.0, 0.0], "dqn_alone": [0.0, 0.0]},
    }
    text = report.table(summary)
    assert "PDD DQN alone  0.250 [" in text
    assert "62%" in text


def test_one_seed_has_no_interval():
    config = dataclasses.replace(TINY, quantities=("1",), seeds=1)
    maps = made_up_maps()
    whole, late = ({a: r[..., :1] for a, r in kind.items()} for kind in (maps.whole, maps.late))
    summary = report.summarise(config, maps._replace(whole=whole, late=late), {})
    text = report.table(summary)
    assert "[" not in text
    assert "interval" not in text


def test_names_can_be_read_by_people():
    names = [report.quality_name(q) for q in ("eta=inf", "eta=3", "errs=0.05", "until=0.5", "two")]
    assert names == ["always right", "eta 3", "errs 5%", "right until 50%", "two experts"]
    assert [report.quantity_name(q) for q in ("30", "10x0.5")] == ["30", "10 x 50%"]
    names = [report.quality_name(q) for q in ("errs=0.001", "errs=0.07", "until=0.125")]
    assert names == ["errs 0.1%", "errs 7%", "right until 12.5%"]


# --- The whole run ---


def test_the_folder_has_what_the_readme_promises(whole):
    for name in ("regret", "late_regret"):
        for ending in ("", "_by_quality", "_by_quantity"):
            assert (whole / f"{name}{ending}.png").stat().st_size > 0
    assert sorted(path.name for path in (whole / "cells").iterdir()) == [
        "dqn_alone-0000.npz", "tabular-0000.npz", "tabular-0001.npz", "tabular-0002.npz",
    ]  # fmt: skip
    summary = summary_of(whole)
    assert summary["optimal_return"]["treasure"] == pytest.approx(1 - 0.01 * 3 / 4, abs=1e-6)
    cells = summary["regret"]["by_cell"]
    # Tables that were shown the way take it; those that saw half of it do not know of the end.
    assert cells["treasure"]["eta=inf"]["1"]["regret"]["tabular"] == pytest.approx([0, 0], abs=1e-6)
    assert min(cells["treasure"]["eta=inf"]["3x0.5"]["regret"]["tabular"]) > 0.1


def test_the_same_seeds_give_the_same_numbers(whole, tmp_path):
    returns, _ = run.train_all(TINY, tmp_path, Sink())
    for agent in TINY.agents:
        paths = sorted((whole / "cells").glob(f"{agent}-*.npz"))
        stored = np.concatenate([np.load(path)["returns"] for path in paths])
        np.testing.assert_array_equal(returns[agent], stored)
    # From the same numbers come the same statistics.
    best = optimal_returns(TINY.cases, TINY.size)
    summary = report.summarise(TINY, report.make_maps(TINY, best, returns), {})
    for kind in ("regret", "late_regret"):
        assert summary[kind] == summary_of(whole)[kind]


def test_a_cell_does_not_depend_on_those_beside_it(tmp_path):
    cells = cells_of(TINY, "tabular")
    training = MapTraining(TINY, "tabular", tmp_path)
    together = training.train([cells[0], cells[4], cells[1]])
    np.testing.assert_array_equal(training.train([cells[4]])[0], together[1])
    # The corner's treasure and its bomb would not be told apart by numbers that are all alike.
    assert (together[0] != together[1]).any()


class StopsAfterFirst(Sink):
    """Asks to stop once the first cells are trained."""

    def __init__(self):
        self._asked = iter([False, True])

    def stop_asked(self) -> bool:
        return next(self._asked)


def test_a_resumed_run_makes_only_what_is_missing(whole, tmp_path, monkeypatch):
    out = tmp_path / "resumed"
    config = dataclasses.replace(TINY, agents=("tabular",), out=out)
    trained = []
    train = MapTraining.train

    def count(self, cells):
        trained.append(cells)
        return train(self, cells)

    monkeypatch.setattr(MapTraining, "train", count)
    with pytest.raises(Stopped, match=r"after 3 cells of tabular, .* `bqfd resume .*resumed`"):
        run.start(config, StopsAfterFirst())
    assert len(trained) == 1
    assert not (out / "summary.json").exists()
    # A file that was damaged since is made anew.
    (out / "cells" / "tabular-0001.npz").write_bytes(b"half")
    run.start(dataclasses.replace(config, resume=True), Sink())
    assert [len(cells) for cells in trained] == [3, 3, 2]
    resumed, expected = summary_of(out)["regret"], summary_of(whole)["regret"]
    for part in ("all", "treasure", "bomb"):
        assert resumed["iqm"][part]["tabular"] == expected["iqm"][part]["tabular"]
    for case, quality, quantity in cells_of(TINY, "tabular"):
        pair = (kind["by_cell"][case][quality][quantity] for kind in (resumed, expected))
        first, second = (cell["regret"]["tabular"] for cell in pair)
        assert first == second


def test_two_cannot_work_in_one_folder(whole):
    # Locks are those of an open file, so that one process is refused as another would be.
    with folder.sole_use(whole), pytest.raises(FolderBusyError, match="another process is at work"):
        run.start(dataclasses.replace(TINY, out=whole, resume=True), Sink())


def test_a_resumed_run_must_be_the_same(whole):
    with pytest.raises(UsageError, match="episodes: was 6, now 7"):
        run.start(dataclasses.replace(TINY, episodes=7, out=whole, resume=True), Sink())


def test_what_became_infinite_is_not_saved(tmp_path):
    training = MapTraining(TINY, "dqn_alone", tmp_path)
    finite = np.array([[True, True], [True, False]])
    with pytest.raises(RunError, match=r"dqn_alone became infinite or NaN \(bomb, seed 1\)"):
        training._check_finite(finite, cells_of(TINY, "dqn_alone"))


def test_tables_that_became_nan_are_not_saved(tmp_path):
    # eta times a value overflows; the returns of such tables are finite all the same.
    bqfd = dataclasses.replace(TINY.bqfd, eta=1e38)
    config = dataclasses.replace(TINY, bqfd=bqfd, cells_per_call=1, seeds=1)
    training = MapTraining(config, "tabular", tmp_path)
    with pytest.raises(RunError, match=r"values of tabular .* smaller --bqfd\.eta than 1e\+38"):
        training.train([Cell("treasure", "eta=inf", "1")])


@pytest.mark.slow
def test_every_agent_goes_over_the_map(tmp_path):
    out = tmp_path / "all"
    bootstrapped = dataclasses.replace(TINY.bootstrapped, ensemble_size=2)
    options = {"agents": tuple(LEARNERS), "bootstrapped": bootstrapped, "out": out}
    run.start(dataclasses.replace(TINY, **options), Sink())
    shares = summary_of(out)["regret"]["share_best"]["all"]
    assert set(shares) == set(LEARNERS)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert (out / "regret_lead.png").stat().st_size > 0


@pytest.mark.slow
def test_bqfd_uses_a_good_expert_and_outgrows_a_bad_one():
    """The paper's two points, on the map's own way to them."""
    config = dataclasses.replace(
        TINY, size=10, episodes=30, seeds=4, quantities=("1", "3"), torso=(64, 64), hidden=256
    )
    training = MapTraining(dataclasses.replace(config, cells_per_call=2), "bqfd", Path())
    cells = [Cell("treasure", "eta=inf", "1"), Cell("bomb", "eta=inf", "1")]
    treasure, bomb = training.train(cells)
    assert treasure[:, 10:].mean() > 0.9
    assert bomb[:, 10:].mean() > -0.02
