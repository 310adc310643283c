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
    with pytest.raises(UsageError, match="--set eval_period is given twice"):
        parse_options(["eval-period=1", "eval_period=2"])


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


# --- Agents with options of their own ---


def test_an_agent_may_have_options_of_its_own():
    agents = ["bqfd", "dqn", "dqn:demo=none", "clone"]
    found = grid(["A", "B"], agents, [0, 1])
    assert [str(cell.folder) for cell in found if cell.title == "A" and cell.seed == 0] == [
        "A/bqfd/0",
        "A/dqn/0",
        "A/dqn/0-demo=none",
        "A/clone/0",
    ]
    # Added to a sweep that was done without it, it leaves the others where they are.
    fewer = grid(["A", "B"], ["bqfd", "dqn", "clone"], [0, 1])
    assert {cell.folder for cell in fewer} < {cell.folder for cell in found}
    (shown_nothing,) = grid(["A"], ["dqn:demo=none,dqn.n-step=3"], [0])
    assert shown_nothing.name == "A, dqn, seed 0, demo=none, dqn.n_step=3"


def test_what_an_agent_sets_itself_is_not_varied():
    options = {"hidden": ("8", "9"), "bqfd.eta": ("1", "3")}
    found = grid(["A"], ["bqfd:hidden=4", "dqn"], [0], options)
    assert [cell.options for cell in found] == [
        (("hidden", "4"), ("bqfd.eta", "1")),
        (("hidden", "4"), ("bqfd.eta", "3")),
        (("hidden", "8"),),
        (("hidden", "9"),),
    ]


def test_what_a_clone_has_no_use_for_leaves_it_alone():
    options = {"update-period": ("2", "4"), "steps": ("100",), "hidden": ("8",)}
    found = grid(["A"], ["dqn", "clone"], [0], options)
    assert [str(cell.folder) for cell in found] == [
        "A/dqn/0-update_period=2-steps=100-hidden=8",
        "A/dqn/0-update_period=4-steps=100-hidden=8",
        "A/clone/0-hidden=8",
    ]


@pytest.mark.parametrize(
    ("agents", "options", "message"),
    [
        (["dqn:demo"], {}, "--agents dqn:demo: give names and single values"),
        (["dqn:"], {}, "give names and single values"),
        (["dqn:hidden=8,9"], {}, "give names and single values"),
        (["dqn:hidden=8,hidden=9"], {}, "hidden is given twice"),
        (["dqn:bqfd.eta=3"], {}, r"dqn has no use for bqfd\.eta"),
        (["clone:steps=100"], {}, "clone has no use for steps"),
        (["dqn", "dqn:demo=none"], {"demo": ("default", "none")}, "asked for twice"),
        (["dqn:a=1,b=2", "dqn:b=2,a=1"], {}, "A, dqn, seed 0, b=2, a=1 is asked for twice"),
    ],
)
def test_agents_that_cannot_be_meant_are_refused(agents, options, message):
    with pytest.raises(UsageError, match=message):
        grid(["A"], agents, [0], options)


def test_an_agents_own_options_have_the_last_word():
    given = (
        "--game Breakout --agents bqfd dqn dqn:demo=none,demo-starts=0 clone --seeds 1 "
        "--steps 5000 --envs 32 --demo-starts 0.2"
    )
    config, rest = parse(given.split())
    runs = [run_config(config, cell, rest) for cell in config.cells()]
    assert [run.agent for run in runs] == ["bqfd", "dqn", "dqn", "clone"]
    assert [run.demo for run in runs] == [("default",), ("default",), ("none",), ("default",)]
    assert [run.demo_starts for run in runs] == [0.2, 0.2, 0.0, 0.2]
    assert [run.steps for run in runs] == [5000, 5000, 5000, 0]
    for run in runs:
        run.check()
