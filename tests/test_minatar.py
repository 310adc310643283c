"""MinAtar's games as environments on the device, and who plays in them without learning."""

import importlib
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import quick_jit

from bqfd_jax.envs import gridworld, minatar
from bqfd_jax.training.episodes import Player

CHANNELS = {"Breakout": (4, 3), "Freeway": (7, 3), "Seaquest": (10, 6)}
PADDLE, LEFT, RIGHT = 0, 1, 2


def paddle(frame):
    (column,) = np.flatnonzero(np.asarray(frame)[9, :, PADDLE])
    return int(column)


def play_breakout(actions, **changes):
    env, params = minatar.make("Breakout"), minatar.default_params("Breakout")
    params = params._replace(**{name: jnp.asarray(value) for name, value in changes.items()})
    step = quick_jit(env.step)
    state, frame = env.reset(jax.random.key(0), params)
    shown, outcomes = [paddle(frame)], []
    for number, action in enumerate(actions):
        state, outcome = step(jax.random.key(number), params, state, action)
        shown.append(paddle(outcome.observation))
        outcomes.append(outcome)
    return shown, outcomes


def test_actions_are_taken_unless_they_stick():
    assert play_breakout([LEFT, LEFT, RIGHT], sticky=0.0)[0] == [4, 3, 2, 3]
    # Before the first action there was none, which is action 0.
    assert play_breakout([LEFT, LEFT, RIGHT], sticky=1.0)[0] == [4, 4, 4, 4]


def test_a_time_limit_truncates_and_a_lost_ball_terminates():
    _, outcomes = play_breakout([LEFT] * 4, sticky=0.0, time_limit=4)
    assert [bool(outcome.truncated) for outcome in outcomes] == [False] * 3 + [True]
    assert not any(outcome.terminated for outcome in outcomes)
    # The ball begins in a corner of row 3, falls along a diagonal and is in row 9 after six steps.
    away = LEFT if paddle_meets_right() else RIGHT
    _, outcomes = play_breakout([away] * 6, sticky=0.0, time_limit=6)
    assert [bool(outcome.terminated) for outcome in outcomes] == [False] * 5 + [True]
    assert not outcomes[-1].truncated


def paddle_meets_right():
    env = minatar.make("Breakout")
    _, frame = env.reset(jax.random.key(0), minatar.default_params("Breakout"))
    return bool(frame[3, 0, 1])


@pytest.mark.parametrize("game", minatar.GAMES)
def test_every_game_can_be_scanned(game):
    env, params = minatar.make(game), minatar.default_params(game)
    channels, actions = CHANNELS[game]
    assert (env.frame_shape, env.num_actions) == ((10, 10, channels), actions)
    key = jax.random.key(0)
    state, frame = jax.eval_shape(env.reset, key, params)
    after, outcome = jax.eval_shape(env.step, key, params, state, jnp.int32(0))
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    chex.assert_trees_all_equal_shapes_and_dtypes(frame, outcome.observation)
    assert frame.dtype == jnp.uint8
    assert outcome.reward.dtype == jnp.float32
    assert outcome.terminated.dtype == outcome.truncated.dtype == bool


def test_freeway_lasts_as_long_as_minatar_says():
    assert minatar.default_params("Freeway").time_limit == 2500
    assert float(minatar.default_params("Freeway").sticky) == pytest.approx(0.1)


def test_compacting_moves_what_is_kept_to_the_front():
    entities = jnp.array([[1, -2], [99, 99], [5, 6], [98, 97]])
    kept, count = minatar.compact(entities, jnp.array([True, False, True, False]))
    np.testing.assert_array_equal(kept, [[1, -2], [5, 6], [0, 0], [0, 0]])
    assert count == 2
    theirs = importlib.import_module("gymnax.environments.minatar.seaquest_helpers").compact
    chex.assert_trees_all_equal((kept, count), theirs(entities, jnp.array([1, 0, 1, 0], bool)))


def test_nothing_of_gymnax_stays_changed():
    helpers = importlib.import_module("gymnax.environments.minatar.seaquest_helpers")
    env = minatar.make("Seaquest")
    room = helpers.MAX_ENTITIES
    state, _ = jax.eval_shape(env.reset, jax.random.key(0), minatar.default_params("Seaquest"))
    assert state.game.e_fish.shape[0] < room
    assert (helpers.MAX_ENTITIES, helpers.compact) != (25, minatar.compact)
    assert room == helpers.MAX_ENTITIES


def test_unknown_games_and_a_missing_package_are_named(monkeypatch):
    with pytest.raises(ValueError, match="Pong"):
        minatar.make("Pong")
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(ImportError, match=r"MinAtar's Breakout needs gymnax.*\.\[minatar\]"):
        minatar.make("Breakout")


# --- Who plays without learning ---


def test_an_episode_per_lane_counts_until_it_ends():
    rows = ("S.G", "...")
    env, params = gridworld.make(2, 3), gridworld.parse(rows, step_cost=0.1)

    def go_right(offset, observation):
        chex.assert_shape(observation, (3, 1, 2))
        return jnp.zeros((3, 4)).at[:, gridworld.RIGHT].set(offset)

    player = Player(env, go_right, lanes=3, piece=5)
    returns = player.returns(jax.random.key(0), jnp.float32(1), params)
    # What comes after the goal, within the same piece, does not count.
    np.testing.assert_allclose(returns, [-0.1 + 0.9] * 3, rtol=1e-6)
    played = player.record(jax.random.key(0), jnp.float32(1), params)
    np.testing.assert_array_equal(played.running[:, 0], [True, True, False, False, False])
    np.testing.assert_array_equal(played.terminated[:2, 0], [False, True])
    np.testing.assert_array_equal(played.frame[:2, 0], [[0, 0], [0, 0.5]])
    np.testing.assert_array_equal(played.next_frame[:2, 0], [[0, 0.5], [0, 1]])


def test_episodes_longer_than_a_piece_go_on_to_their_time_limit():
    env, params = gridworld.make(2, 2), gridworld.parse(("S.", ".G"), step_cost=1.0, time_limit=7)

    def stay(params, observation):
        return jnp.zeros((2, 4)).at[:, gridworld.UP].set(1.0)

    player = Player(env, stay, lanes=2, piece=3)
    np.testing.assert_allclose(player.returns(jax.random.key(0), (), params), [-7, -7])
