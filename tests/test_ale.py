"""Games on ale-py: the same as envpool plays, from the first step to the last."""

import numpy as np
import pytest

from bqfd_jax import demos
from bqfd_jax.envs import ale, atari

SHIPPED = [(game, name) for game, names in demos.available().items() for name in names]


def play(emulator, actions):
    """Score of a list of actions from the reset, and whether the game is over just then."""
    emulator.reset()
    score = 0.0
    for action in actions[:-1]:
        step = emulator.step(int(action))
        assert not step.is_over
        score += step.reward
    step = emulator.step(int(actions[-1]))
    return score + step.reward, step.is_over


# The later resets of Freeway's emulator are those that begin differently.
@pytest.mark.parametrize(
    ("game", "name"),
    [
        pytest.param(*shipped, marks=[] if shipped == ("Freeway", "default") else pytest.mark.slow)
        for shipped in SHIPPED
    ],
)
def test_every_episode_of_a_shipped_demonstration_scores_what_it_should(game, name):
    demonstration = demos.load_named(game, name)
    emulator = ale.Ale(game)
    assert emulator.action_meaning == demonstration.action_meaning
    episodes = np.split(demonstration.actions, np.cumsum(demonstration.episode_lengths)[:-1])
    found = [play(emulator, actions) for actions in episodes]
    expected = list(zip(demonstration.scores, demonstration.game_over, strict=True))
    assert found == expected


def test_states_are_kept_while_the_game_goes_on():
    emulator = ale.Ale("Breakout")
    actions = demos.load_named("Breakout", "search").actions
    for action in actions[:50]:
        emulator.step(int(action))
    state = emulator.save_state()

    def go_on():
        emulator.load_state(state)
        steps = [emulator.step(int(action)) for action in actions[50:150]]
        return steps, emulator.ram().tolist()

    first = go_on()
    assert sum(step.reward for step in first[0]) > 0
    emulator.reset()
    emulator.step(0)
    assert go_on() == first


def test_games_are_spelt_as_envpool_spells_them():
    assert set(atari.games()) <= set(ale.games())
    assert ale.Ale("TicTacToe3d").num_actions == atari.Atari("TicTacToe3d").num_actions


def test_a_game_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"no game 'Brakout'; did you mean Breakout"):
        ale.Ale("Brakout")


def test_without_ale_py_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ale_py", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[demos\]'"):
        ale.Ale("Breakout")
