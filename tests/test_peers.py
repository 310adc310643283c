"""The benchmark beside others: turns, who is left out, the table; the peers themselves are slow."""

import functools
import importlib
import os
import sys

import jax
import numpy as np
import pytest
import turn_fakes

from bqfd_jax import extras
from bqfd_jax.checks import OptionError
from experiments.benchmark import learning_loops, peers, replay_loops
from experiments.benchmark.__main__ import main
from experiments.benchmark.peers import Contender
from experiments.benchmark.timing import Times
from experiments.benchmark.turns import Contestant, LeftOutError, take_turns, use_threads

ALL_CORES = use_threads(1024)


def test_contestants_take_turns_in_processes_of_their_own(tmp_path):
    path = tmp_path / "turns"
    builds = {name: functools.partial(turn_fakes.writer, path, name) for name in "ab"}
    seconds = take_turns(builds, 7, rounds=2, warm_up=1, cores=ALL_CORES[:1])
    rows = [line.split() for line in path.read_text().splitlines()]
    assert [(name, amount) for name, amount, *_ in rows] == [
        ("a", "1"), ("b", "1"), ("a", "7"), ("b", "7"), ("a", "7"), ("b", "7"),
    ]  # fmt: skip
    processes = [process for *_, process, _ in rows]
    assert processes == processes[:2] * 3
    assert len({*processes, str(os.getpid())}) == 3
    assert {cores for *_, cores in rows} == {"1"}
    assert {name: times.wall.shape for name, times in seconds.items()} == {"a": (2,), "b": (2,)}
    assert all((times.wall > 0).all() and (times.cpu >= 0).all() for times in seconds.values())


def test_who_fails_is_named_and_the_others_go_on(tmp_path):
    said = []
    builds = {
        "broken": turn_fakes.broken_build,
        "fine": functools.partial(turn_fakes.writer, tmp_path / "turns", "fine"),
        "stops": turn_fakes.broken_run,
        "dies": turn_fakes.dying_run,
    }
    seconds = take_turns(builds, 2, rounds=1, warm_up=1, cores=ALL_CORES, say=said.append)
    assert list(seconds) == ["fine"]
    assert said == [
        "broken is left out: ImportError: no such library",
        "dies is left out: its process ended with 3",
        "stops is left out: ValueError: 2 is too much",
    ]


def test_who_dies_between_two_turns_is_left_out():
    contestant = Contestant(turn_fakes.dying_at_rest, ALL_CORES)
    contestant.run(1)
    contestant._process.join(timeout=30)
    with pytest.raises(LeftOutError, match="its process ended with 4"):
        contestant.run(1)
    contestant.close()


def test_cores_are_as_many_as_threads():
    assert use_threads(1) == ALL_CORES[:1]
    assert set(ALL_CORES) == os.sched_getaffinity(0)


def test_who_is_not_installed_is_left_out_with_a_hint(capsys):
    there = Contender(None, "", modules=("numpy",))
    absent = Contender(None, "", modules=("numpy", "no_such_package"))
    found = peers.present({"there": there, "absent": absent}, ())
    assert found == {"there": there}
    assert capsys.readouterr().out == (
        f"absent is left out, because no_such_package is missing: {extras.hint('peers')}\n"
    )


def test_only_those_who_are_named(run_here):
    contenders = {"a": Contender(None, ""), peers.OURS: Contender(None, "")}
    assert list(peers.present(contenders, (peers.OURS,))) == [peers.OURS]
    code, text = run_here(main, "peers", "--only", "tianshou")
    assert code == 2
    assert "--only names tianshou; there are bqfd-jax, CleanRL's loop," in text


def test_the_table_by_hand(capsys):
    contenders = {
        peers.OURS: Contender(None, "double", packages=("numpy",)),
        "other": Contender(None, "max", packages=("no-such-package",)),
    }
    cpu = np.array([5.0, 6.0, 9.0])
    seconds = {
        peers.OURS: Times(np.array([1.0, 2.0, 4.0]), cpu),
        "other": Times(np.array([3.0, 4.0, 2.0]), 2 * cpu),
    }
    figures = peers._report("title", "step", contenders, seconds, 1000)
    assert figures == {peers.OURS: pytest.approx(2.0), "other": pytest.approx(3.0)}
    ours, other = capsys.readouterr().out.splitlines()[-2:]
    version = f"numpy {np.__version__}"
    assert ours == f"| bqfd-jax | double | {version} | 2 | 6 | 1.00 (1.00 to 1.00) |"
    # 3 / 1, 4 / 2 and 2 / 4: the median of ratios, not the ratio of medians, and its quartiles.
    assert other.endswith("| 3 | 12 | 2.00 (1.25 to 2.50) |")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update_period": 3}, "update_period is 3"),
        ({"steps": 404}, "steps is 404"),
        ({"rows": 100}, "rows is 100"),
        ({"threads": 4096}, "threads is 4096"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        peers.peers(**options)


@pytest.mark.parametrize("calls", ["one", "three"])
@pytest.mark.parametrize("draw", ["indices", "rows"])
def test_a_cycle_of_our_replay_adds_draws_and_sets(calls, draw, monkeypatch):
    seen = []
    wait = jax.block_until_ready
    monkeypatch.setattr(
        jax, "block_until_ready", lambda x: seen.append(jax.device_get(x)) or wait(x)
    )
    run = replay_loops.ours(replay_loops.Work(rows=64, lanes=2, batch_size=4), calls, draw)
    [full] = seen
    assert int(full.num_added) == 32
    assert set(full.tree[-1]) == {0.0, 1.0}
    run(3)
    states = [state for state, _ in seen[1:]]
    before = int(full.position)
    assert [int(state.position) for state in states] == [(before + i) % 32 for i in (1, 2, 3)]
    # Priorities of 0.1 to 1 took the place of those that new rows get.
    assert all(set(states[i].tree[-1]) - {0.0, 1.0} for i in range(3))
    assert all((batch is None) == (draw == "indices") for _, batch in seen[1:])


def test_the_uniform_replay_draws_what_was_added():
    work = learning_loops.Work(rows=6, batch_size=64)
    replay = learning_loops._UniformReplay(work)
    shape = (4, 84, 84)
    for number in range(3):  # the third overwrites half of the first
        value = np.full(4, 10 * number) + np.arange(4)
        stacks = np.broadcast_to(value[:, None, None, None], (4, *shape)).astype(np.uint8)
        replay.add(stacks, value, value, value % 2, stacks + 1)
    seen, action, reward, ended, seen_next = replay.draw(np.random.default_rng(0))
    assert set(action) == {12, 13, 20, 21, 22, 23}
    np.testing.assert_array_equal(seen[:, 3, 83, 83], action)
    np.testing.assert_array_equal(seen_next[:, 0, 0, 0], action + 1)
    np.testing.assert_array_equal(reward, action)
    np.testing.assert_array_equal(ended, action % 2)


def test_modules_stand_in_only_for_what_is_missing(monkeypatch):
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    learning_loops._stand_in("no_such_package", "no_such_package.part", "no_such_package.part.leaf")
    part = importlib.import_module("no_such_package.part")
    assert part.leaf is sys.modules["no_such_package.part.leaf"]
    learning_loops._stand_in("numpy", "numpy.no_such_part")
    assert "numpy.no_such_part" not in sys.modules


@pytest.mark.slow
def test_our_side_alone_quickly(capsys):
    figures = peers.peers(quick=True, only=(peers.OURS,))
    assert set(figures) == {"learning", "replay"}
    assert all(figures[what][peers.OURS] > 0 for what in figures)
    assert "16,000 rows: add 8, draw 32, set 32" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CleanRL's loop, double", "stable-baselines3", "Dopamine (JAX)"])
def test_peers_that_learn(name):
    for module in peers.LEARNING[name].modules:
        pytest.importorskip(module)
    assert name in peers.peers(("learning",), quick=True, only=(name,))["learning"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpprb", "flashbax", "flashbax, three calls"])
def test_peers_that_replay(name):
    pytest.importorskip(peers.REPLAY[name].modules[0])
    assert name in peers.peers(("replay",), quick=True, only=(name,))["replay"]
