"""The last pass over a played game: only what makes no difference is replaced."""

import numpy as np
import pytest

from bqfd_jax.demos.making import calming
from bqfd_jax.envs import ale

REST, LEFT, RIGHT = 0, 1, 2  # places in `action_meaning`


class Walled:
    """A line from 0 to 4 that pays at 4; whoever pushes against a wall stays where he is.

    `bumps` are counted without being shown, and `flashes` are shown without being counted.
    """

    action_meaning = (0, 4, 3)

    def __init__(self, *, bumps=False, flashes=False):
        self._bumps, self._flashes = bumps, flashes
        self.reset()

    def reset(self):
        self._state, self._flash = (0, 0), False
        return 0

    def step(self, action):
        place, bumps = self._state
        there = min(max(place + (0, -1, 1)[action], 0), 4)
        pushes = there == place and action != REST
        self._state = (there, bumps + (pushes and self._bumps))
        self._flash = pushes and self._flashes
        return ale.AleStep(float(there == 4 and place == 3), 0, False)

    def ram(self):
        return np.array([self._state[0]], np.uint8)

    def screen(self):
        return np.array([self._state[0], self._flash], np.uint8)

    def save_state(self):
        return self._state

    def load_state(self, state):
        self._state = state


def calm(actions, *, rest=REST, shown=lambda before, after: None, **game):
    return calming.calm(Walled(**game), actions, shown=shown, rest=rest).tolist()


def test_pushing_against_a_wall_becomes_rest():
    assert calm([LEFT, LEFT, RIGHT, LEFT, LEFT]) == [REST, REST, RIGHT, LEFT, REST]


def test_without_rest_what_is_held_is_held():
    played = [RIGHT, RIGHT, RIGHT, RIGHT, REST, REST]
    assert calm(played, rest=None) == [RIGHT] * 6
    assert calm(played) == played
    # The first action has none before it.
    assert calm([LEFT, REST, RIGHT], rest=None) == [LEFT, LEFT, RIGHT]


def test_what_a_step_looks_like_goes_before_rest():
    def still(before, after):
        return 3 if before[0] == after[0] == 4 else None

    assert calm([RIGHT] * 4 + [REST, REST], shown=still) == [RIGHT] * 6


def test_what_makes_a_difference_stays():
    played = [RIGHT, LEFT, RIGHT, RIGHT, RIGHT, RIGHT]
    assert calm(played) == played


@pytest.mark.parametrize("hidden", ["bumps", "flashes"])
def test_a_difference_may_be_hidden_or_seen_only(hidden):
    played = [LEFT, LEFT, RIGHT, RIGHT]
    assert calm(played) == [REST, REST, RIGHT, RIGHT]
    assert calm(played, **{hidden: True}) == played


@pytest.mark.parametrize("game", ["Breakout", "MsPacman"])
def test_a_calmer_game_is_the_same_game(game):
    emulator = ale.Ale(game)
    rng = np.random.default_rng(0)
    actions = rng.integers(0, emulator.num_actions, 150).repeat(2).tolist()

    def frames(actions):
        emulator.reset()
        return [(emulator.step(action), emulator.screen().tobytes()) for action in actions]

    calmer = calming.calm(emulator, actions, shown=lambda before, after: None, rest=0)
    assert np.count_nonzero(calmer != actions) > 0
    assert frames(calmer.tolist()) == frames(actions)
