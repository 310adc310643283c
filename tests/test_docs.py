"""The pages in docs/: their code runs as it stands, and does what the page says."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "reuse.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)


def run(number):
    scope = {}
    exec(compile(SNIPPETS[number], "docs/reuse.md", "exec"), scope)
    return scope


def test_there_are_three():
    assert len(SNIPPETS) == 3


def test_the_loss_believes_the_expert_and_then_its_own_eyes():
    history = np.array(run(0)["history"])
    assert history[40, 1] > history[40, 0]
    assert history[-1, 0] == pytest.approx(1.0, abs=0.01)
    assert history[-1, 1] < history[-1, 0]


def test_the_replay_gathers_returns_within_episodes():
    scope = run(1)
    time = np.asarray(scope["time_in_episode"])
    expected = np.select([time <= 2, time == 3], [1 + 0.9 + 0.81, 1 + 0.9], 1.0)
    np.testing.assert_allclose(scope["batch"].n_step_return, expected, rtol=1e-5)
    assert len(np.unique(time)) > 1


def test_the_tabular_agent_gains_from_a_flawed_demonstration():
    scope = run(2)
    guided = np.asarray(scope["guided_returns"])[:, -50:].mean()
    alone = np.asarray(scope["alone_returns"])[:, -50:].mean()
    assert guided >= 2
    assert guided > alone + 1
