"""What commands share: their names, and what --help tells."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import commands
from experiments.atari.__main__ import main as atari
from experiments.gym.__main__ import main as gym

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("started", "package", "expected"),
    [
        ("/usr/bin/bqfd", "bqfd_jax.experiments.deep_sea", "bqfd deep-sea"),
        ("bqfd", "experiments", "bqfd"),
        ("/x/deep_sea/__main__.py", "experiments.deep_sea", "python -m experiments.deep_sea"),
    ],
)
def test_a_command_knows_how_it_was_called(monkeypatch, started, package, expected):
    monkeypatch.setattr(sys, "argv", [started])
    assert commands.prog(package) == expected


@pytest.mark.parametrize("command", [[], ["evaluate"], ["compare-demos"]])
def test_the_help_says_the_name_that_was_called(monkeypatch, capsys, command):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/bqfd"])
    with pytest.raises(SystemExit, match="0"):
        gym([*command, "--help"])
    assert capsys.readouterr().out.startswith(" ".join(["usage: bqfd gym", *command]))


def test_help_tells_of_the_chosen_agent_alone(run_here):
    for options, agent in (([], "bqfd"), (["--agent", "dqn"], "dqn")):
        code, text = run_here(atari, *options, "--help")
        assert code == 0
        assert f"--{agent}.learning-rate" in text
        assert text.count(".learning-rate") == 1
        assert "--help-all" in text
        assert len(text.splitlines()) < 220
        assert "priority-epsilon" not in text
    code, text = run_here(atari, "--help-all")
    assert code == 0
    shown = [name.replace("_", "-") for name in commands._FINE_PRINT]
    assert all(f".{name}" in text or f"--{name}" in text for name in shown)
    assert text.count(".learning-rate") == 6


def test_what_help_hides_can_be_given():
    from experiments.atari.__main__ import parse

    assert parse(["--dqn.learning-rate", "0.5"]).dqn.learning_rate == 0.5


def test_pygame_does_not_speak_in_our_name():
    code = "import bqfd_jax.console as c\ndef f():\n    import pygame\nc.run_main(f)\n"
    environment = {k: v for k, v in os.environ.items() if k != "PYGAME_HIDE_SUPPORT_PROMPT"}
    pytest.importorskip("pygame")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment,
        cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (atari, ["--game", "Pong"], "`bqfd demos plan --game Pong`, or train without: --demo none"),
        (
            gym,
            ["--env", "nowhere:It-v0"],
            "there is no module 'nowhere'; install its package (often: pip install nowhere)",
        ),
        (
            gym,
            ["--wrappers", "nowhere.wrappers:It"],
            "--wrappers nowhere.wrappers:It: there is no module 'nowhere'; install",
        ),
    ],
)
def test_what_is_missing_is_named_with_what_to_do(command, options, message, run_here, tmp_path):
    code, text = run_here(command, *options, "--out", str(tmp_path / "run"))
    assert code == 2
    assert message in " ".join(text.split())
