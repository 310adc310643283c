"""The cells of a sweep: which there are, what they are called, and how each is run."""

from pathlib import Path

import pytest

from bqfd_jax.checks import OptionError
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.sweep.grid import (
    Cell,
    arguments,
    grid,
    parse_options,
    read_cells,
    write_cells,
)
from experiments.sweep.__main__ import parse
from experiments.sweep.config import run_config


def test_a_grid_is_the_product_and_agents_options_leave_others_alone():
    found = grid(["A", "B"], ["bqfd", "dqn"], [0, 7], {"bqfd.eta": ("1", "3")})
    assert len(found) == 2 * (2 * 2 + 2)
    assert len(set(found)) == len(found)
    assert [str(cell.folder) for cell in found[:6]] == [
        "A/bqfd/0-bqfd.eta=1",
        "A/bqfd/7-bqfd.eta=1",
        "A/bqfd/0-bqfd.eta=3",
        "A/bqfd/7-bqfd.eta=3",
        "A/dqn/0",
        "A/dqn/7",
    ]
    assert {cell.title for cell in found[6:]} == {"B"}
    # More seeds: what was there keeps its folder.
    more = grid(["A", "B"], ["bqfd", "dqn"], [0, 7, 8], {"bqfd.eta": ("1", "3")})
    assert {cell.folder for cell in found} < {cell.folder for cell in more}


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("minigrid:MiniGrid-Empty-5x5-v0", "minigrid-MiniGrid-Empty-5x5-v0"),
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("../../etc", "-..-..-etc"),
        ("<script>", "-script-"),
    ],
)
def test_a_folder_is_one_name_that_needs_no_quotes(title, name):
    assert Cell(title, "dqn", 0).folder == Path(name, "dqn", "0")


def test_cells_that_would_share_a_folder_are_refused():
    with pytest.raises(UsageError, match="a/b, dqn, seed 0 and a:b, dqn, seed 0 would share"):
        grid(["a/b", "a:b"], ["dqn"], [0])
    with pytest.raises(OptionError, match="none of them twice"):
        grid(["a"], ["dqn", "dqn"], [0])
    with pytest.raises(OptionError, match="agents is 'nobody'"):
        grid(["a"], ["nobody"], [0])


def test_options_are_read_and_nonsense_is_refused():
    assert parse_options(["bqfd.eta=1,3,10", "--hidden=8"]) == {
        "bqfd.eta": ("1", "3", "10"),
        "hidden": ("8",),
    }
    for text in ("eta", "=3", "eta=", "eta=1,,2"):
        with pytest.raises(UsageError, match=r"--set bqfd\.eta=1,3,10"):
            parse_options([text])
    with pytest.raises(UsageError, match="twice"):
        parse_options(["a=1", "a=2"])


def test_the_arguments_are_those_of_the_single_command():
    one = Cell("Pong", "bqfd", 3, (("bqfd.eta", "1"),))
    assert " ".join(arguments(one, "atari", ["--hidden", "8"], Path("out"))) == (
        "--game Pong --agent bqfd --seed 3 --hidden 8 --bqfd.eta 1 --out out/Pong/bqfd/3-bqfd.eta=1"
    )


def test_what_is_true_or_false_can_be_set():
    options = ["--set", "bqfd.learn-eta=True,False", "--set", "eval-target=false"]
    given = ["--env", "CartPole-v1", "--agents", "bqfd", "--seeds", "1", *options]
    config, rest = parse(given)
    runs = [run_config(config, cell, rest) for cell in config.cells()]
    assert [run.bqfd.learn_eta for run in runs] == [True, False]
    assert [run.eval_target for run in runs] == [False, False]
    assert runs[0].out.name == "0-bqfd.learn_eta=True-eval_target=false"


def test_the_folder_knows_the_cells_of_all_commands(tmp_path):
    assert read_cells(tmp_path) == []
    first = grid(["A"], ["dqn"], [0, 1], {"hidden": ("8", "9")})
    write_cells(tmp_path / "s", first)
    more = grid(["A"], ["dqn"], [1, 2], {"hidden": ("8", "9")})
    write_cells(tmp_path / "s", more)
    assert set(read_cells(tmp_path / "s")) == {*first, *more}
    assert len(read_cells(tmp_path / "s")) == 6
    (tmp_path / "s" / "sweep.json").write_text("{}")
    with pytest.raises(UsageError, match=r"sweep\.json is damaged"):
        read_cells(tmp_path / "s")
