"""The README's promises: its code runs, its commands are the ones that CI runs."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.S)
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", README, flags=re.S)
    for line in block.splitlines()
]


def test_there_are_snippets_to_run():
    assert len(SNIPPETS) == 3


def test_the_environment_snippet_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Fewer steps than the README has, for time.
    assert "steps=4_000" in SNIPPETS[0]
    short = SNIPPETS[0].replace("4_000", "600").replace("episodes=10", "episodes=4")
    scope = {}
    exec(compile(short.replace(" / 10", " / 4"), "README", "exec"), scope)
    assert len(scope["demonstration"].scores) == 4
    assert scope["action"] in (0, 1)
    assert (tmp_path / "policy.npz").exists()
    assert scope["result"].metrics[-1]["step"] == 600


def test_the_loss_snippet_gives_what_the_formula_gives():
    scope = {}
    exec(compile(SNIPPETS[1], "README", "exec"), scope)
    weight = 0.6 * (4.0**2 + 4 * 1) / (4.0 + 1) ** 2
    probability = np.exp(3 * 0.2) / (np.exp(3 * 0.1) + np.exp(3 * 0.2))
    expert = 0.99 * 0.5 + 3 * weight * (1 - probability) - 0.2
    np.testing.assert_allclose(scope["errors"], [expert, 1.0 - 0.3], rtol=1e-5)


def test_the_agent_snippet_trains():
    scope = {}
    exec(compile(SNIPPETS[2], "README", "exec"), scope)
    returns = scope["trace"].episode_return[scope["trace"].episode_ended]
    assert returns.shape == (20,)
    best = 1 - 0.01 * 9 / 10
    assert jnp.max(returns) == pytest.approx(best, abs=1e-4)


def test_ci_runs_the_readmes_test_command():
    ci = (ROOT / ".ci" / "run").read_text()
    pattern = re.search(r"grep -E '(.*)' README.md", ci)[1]
    assert len([line for line in README.splitlines() if re.search(pattern, line)]) == 1


def test_every_command_names_a_module_that_exists():
    modules = [m for line in COMMANDS for m in re.findall(r"-m (experiments[.\w]*)", line)]
    assert modules
    for module in modules:
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module
