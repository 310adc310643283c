"""The pages in docs/: their code runs as it stands, and does what the page says."""

import importlib.util
import pkgutil
import re
from pathlib import Path

import griffe
import numpy as np
import pytest

import bqfd_jax
from experiments.__main__ import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "BUILD_NOTES.md", *sorted((ROOT / "docs").rglob("*.md"))]
# How many examples each page has: a new one needs a test.
SNIPPETS = {"contributing": 3, "demonstrations": 2, "environments": 2, "parts": 6}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def snippets(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, flags=re.S)


def run(page, number, scope=None):
    scope = {} if scope is None else scope
    exec(compile(snippets(page)[number], f"docs/{page}.md", "exec"), scope)
    return scope


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_snippet_has_a_test():
    found = {page.stem: len(snippets(page.stem)) for page in (ROOT / "docs").glob("*.md")}
    assert {page: count for page, count in found.items() if count} == SNIPPETS


# --- The parts ---


def test_the_loss_believes_the_expert_and_then_its_own_eyes():
    history = np.array(run("parts", 0)["history"])
    assert history[40, 1] > history[40, 0]
    assert history[-1, 0] == pytest.approx(1.0, abs=0.01)
    assert history[-1, 1] < history[-1, 0]


def test_the_replay_gathers_returns_within_episodes():
    scope = run("parts", 1)
    time = np.asarray(scope["time_in_episode"])
    expected = np.select([time <= 2, time == 3], [1 + 0.9 + 0.81, 1 + 0.9], 1.0)
    np.testing.assert_allclose(scope["batch"].n_step_return, expected, rtol=1e-5)
    assert len(np.unique(time)) > 1


def test_an_agent_learns_from_batches_of_ones_own():
    scope = run("parts", 2)
    history = np.array(scope["history"])
    assert history[20, 0] > history[20, 1]
    np.testing.assert_allclose(history[-1], [0.0, 0.5], atol=0.2)
    assert scope["td_errors"].shape == (4,)


def test_a_clone_balances_the_pole():
    scope = run("parts", 3)
    assert scope["result"].summary["steps"] == 0
    assert scope["result"].summary["final"]["mean"] > 150
    assert scope["expert"].scores == (200.0,) * 8


def test_an_agent_takes_the_treasure_in_a_compiled_loop():
    scope = run("parts", 4)
    returns = scope["trace"].episode_return[scope["trace"].episode_ended]
    assert returns.shape == (20,)
    best = 1 - 0.01 * 9 / 10
    assert np.max(returns) == pytest.approx(best, abs=1e-4)


def test_the_tabular_agent_gains_from_a_flawed_demonstration():
    scope = run("parts", 5)
    guided = np.asarray(scope["guided_returns"])[:, -50:].mean()
    alone = np.asarray(scope["alone_returns"])[:, -50:].mean()
    assert guided >= 2
    assert guided > alone + 1


# --- Demonstrations and environments ---


def test_arrays_become_a_demonstration_and_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    demonstration = run("demonstrations", 0)["demonstration"]
    assert demonstration.scores == (1.0, 0.5)
    assert demonstration.terminated == (True, False)
    assert demonstration.name == "two episodes"


def test_actions_with_a_reason_are_told_from_others():
    found = run("demonstrations", 1)["found"]
    assert found.in_words().startswith("its actions follow from what is seen")


@pytest.mark.slow
def test_an_atari_game_is_learnt_by_its_name():
    few = "steps=64, eval_episodes=2, eval_max_steps=50"
    source = snippets("environments")[0].replace("steps=100_000", few)
    scope = {}
    exec(compile(source, "docs/environments.md", "exec"), scope)
    assert scope["result"].metrics[-1]["step"] >= 64


def test_ones_own_class_is_learnt():
    scope = run("environments", 1)
    np.testing.assert_array_equal(scope["returns"], np.ones(4))


def test_the_corridor_shows_what_a_host_environment_must():
    source = snippets("environments")[1].partition("# An expert")[0]
    scope = {}
    exec(compile(source, "docs/environments.md", "exec"), scope)
    env = scope["Corridor"](2, length=3, time_limit=2)
    first = env.reset()
    assert first.is_first.all()
    assert not first.is_last.any()
    env.step(np.array([1, 0]))
    ended = env.step(np.array([1, 0]))  # lane 0 has arrived, lane 1 is cut off
    assert ended.is_last.all()
    np.testing.assert_array_equal(ended.discount, [0, 1])
    np.testing.assert_array_equal(ended.reward, [1, 0])
    again = env.step(np.array([1, 1]))
    assert again.is_first.all()
    np.testing.assert_array_equal(again.frame, 0)
    np.testing.assert_array_equal(again.reward, 0)


# --- Contributing ---


def test_the_new_agent_learns_in_the_new_environment():
    scope = {}
    for number in range(3):
        run("contributing", number, scope)
    returns = np.asarray(scope["returns"])
    assert returns[-20:].mean() > 0.9
    assert "clone_loss" in scope["trace"].metrics


# --- The pages, and the site that is made of them ---


@every_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@every_page
def test_commands_name_modules_that_exist(page):
    for module in re.findall(r"-m (experiments\.\w+)", page.read_text()):
        path = ROOT / module.replace(".", "/")
        assert (path / "__main__.py").exists(), module


@every_page
def test_bqfd_knows_the_commands(page, capsys):
    main(["--help"])
    known = set(capsys.readouterr().out.split())
    # An agent has the same name.
    named = re.findall(r"(?<!--agents )\bbqfd ([a-z-]+)(?= |`|\n)", page.read_text())
    assert set(named) <= known


def test_build_notes_are_numbered_through():
    numbers = re.findall(r"^(\d+)\. \*\*", (ROOT / "BUILD_NOTES.md").read_text(), flags=re.M)
    assert [int(number) for number in numbers] == list(range(1, len(numbers) + 1))


def test_every_module_has_a_page():
    modules = {
        module.name
        for module in pkgutil.walk_packages(bqfd_jax.__path__, "bqfd_jax.")
        if "._" not in module.name
    }
    site_pages = load(ROOT / "docs" / "site_pages.py")
    pages = {name: site_pages.page_of(name, path) for name, path in site_pages.modules().items()}
    assert set(pages) == modules | {"bqfd_jax"}
    assert len(set(pages.values())) == len(pages)
    assert pages["bqfd_jax"] == "api/index.md"
    assert pages["bqfd_jax.agents"] == "api/agents/index.md"
    assert pages["bqfd_jax.agents.bqfd"] == "api/agents/bqfd.md"


def test_a_fields_comment_is_its_documentation(tmp_path):
    extension = load(ROOT / "docs" / "field_comments.py").FieldComments()
    source = 'class A:\n    x: int  # [B, A], what\n    y: int\n    z: int  # no\n    """Yes."""\n'
    (tmp_path / "sample.py").write_text(source)
    extensions = griffe.Extensions(extension)
    fields = griffe.load("sample", search_paths=[tmp_path], extensions=extensions)["A"].members
    assert fields["x"].docstring.value == "`[B, A]`, what"
    assert fields["y"].docstring is None
    assert fields["z"].docstring.value == "Yes."
