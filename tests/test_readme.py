"""The README's promises: it is short, its code runs, its commands and links are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.S)


def test_it_fits_on_two_screens():
    assert len(README.splitlines()) <= 170
    assert len(re.findall(r"!\[", README)) == 1
    assert len(SNIPPETS) == 1


def test_the_snippet_trains_and_the_run_can_be_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Fewer steps than the README has, for time.
    assert "steps=4_000" in SNIPPETS[0]
    short = SNIPPETS[0].replace("4_000", "600").replace("episodes=10", "episodes=4")
    short = short.replace(" / 10", " / 4")
    scope = {}
    exec(compile(short, "README", "exec"), scope)
    assert len(scope["demonstration"].scores) == 4
    assert scope["action"] in (0, 1)
    assert scope["result"].metrics[-1]["step"] == 600
    assert (tmp_path / "runs" / "cartpole" / "policy.npz").exists()


def test_ci_runs_the_readmes_test_command():
    ci = (ROOT / ".ci" / "run").read_text()
    pattern = re.search(r"grep -E '(.*)' README.md", ci)[1]
    assert len([line for line in README.splitlines() if re.search(pattern, line)]) == 1


def test_ci_builds_the_site_strictly():
    assert ".venv/bin/mkdocs build --strict" in (ROOT / ".ci" / "run").read_text()
