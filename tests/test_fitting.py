"""Demonstrations of either kind become rows of the environments that they fit, and of no others."""

import dataclasses

import numpy as np
import pytest
from gym_probes import Chain, Telling

from bqfd_jax import demos
from bqfd_jax.demos import DemonstrationError, FrameDemonstration
from bqfd_jax.envs import atari
from bqfd_jax.envs.gymnasium import GymVector


def chain(**changes):
    """One episode of two steps in `Chain`, then one of a single step."""
    fields = {
        "game": "Chain",
        "frames": np.eye(5, dtype=np.float32)[[0, 1, 2, 0, 1]],
        "actions": np.array([1, 1, 0], np.int32),
        "rewards": np.array([0, 4, -2], np.float32),
        "episode_lengths": np.array([2, 1], np.int32),
        "terminated": (True, False),
        "num_actions": 2,
        "name": "mine",
    }
    return FrameDemonstration(**fields | changes)


def breakout():
    """The first steps of a list of actions, with a reward."""
    whole = demos.load_named("Breakout", "search")
    return dataclasses.replace(
        whole,
        actions=whole.actions[:60],
        episode_lengths=np.array([60], np.int32),
        scores=(1.0,),
        game_over=(False,),
        frame_hash=None,
        name="actions",
    )


def as_frames(demonstration):
    rows = demos.play(demonstration, gamma=1.0, log_rewards=False, life_loss_is_terminal=False)
    return FrameDemonstration(
        game=demonstration.game,
        frames=rows.frame,
        actions=rows.action[:-1],
        rewards=rows.reward[:-1],
        episode_lengths=demonstration.episode_lengths,
        terminated=(False,),
        num_actions=4,
        action_meaning=demonstration.action_meaning,
        name="frames",
    )


def assert_same(rows, others):
    for field in dataclasses.fields(rows):
        mine, other = getattr(rows, field.name), getattr(others, field.name)
        assert (field.name, mine.dtype) == (field.name, other.dtype)
        np.testing.assert_array_equal(mine, other, field.name)


def test_none_one_and_several():
    env = GymVector(Chain)
    assert demos.rows_for(env, None, gamma=0.5) is None
    assert demos.rows_for(env, [], gamma=0.5) is None
    one = demos.rows_for(env, chain(), gamma=0.5)
    np.testing.assert_array_equal(one.reward, [0, 4, 0, -2, 0])
    np.testing.assert_array_equal(one.discount, [0.5, 0, 0, 0.5, 0])
    both = demos.rows_for(env, (chain(), chain(rewards=np.float32([7, 8, 9]))), gamma=0.5)
    np.testing.assert_array_equal(both.reward, [0, 4, 0, -2, 0, 7, 8, 0, 9, 0])
    assert_same(demos.rows_for(env, iter([chain()]), gamma=0.5), one)


def test_rewards_are_those_of_the_environment():
    env = GymVector(Chain, transform_reward=lambda reward: reward.astype(np.float64) / 4)
    rows = demos.rows_for(env, chain(), gamma=1.0)
    np.testing.assert_array_equal(rows.reward, [0, 1, 0, -0.5, 0])
    assert rows.reward.dtype == np.float32
    logarithmic = GymVector(Chain, transform_reward=atari.log_reward)
    rows = demos.rows_for(logarithmic, chain(), gamma=1.0)
    np.testing.assert_allclose(rows.reward, [0, np.log(5), 0, -np.log(3), 0], 1e-6)


def test_lost_lives_count_as_in_the_environment():
    lives = np.array([3, 2, 2, 1, 1], np.int32)
    shown = chain(lives=lives, terminated=(False, False))
    env = GymVector(Chain)
    np.testing.assert_array_equal(demos.rows_for(env, shown, gamma=1.0).discount, [0, 1, 0, 1, 0])
    env.life_loss_is_terminal = False
    np.testing.assert_array_equal(demos.rows_for(env, shown, gamma=1.0).discount, [1, 1, 0, 1, 0])


def test_wide_frames_become_those_of_the_environment():
    wide = chain(frames=np.eye(5)[[0, 1, 2, 0, 1]])
    assert wide.frames.dtype == np.float64
    assert_same(
        demos.rows_for(GymVector(Chain), wide, gamma=0.9),
        demos.rows_for(GymVector(Chain), chain(), gamma=0.9),
    )


@pytest.mark.parametrize("log_rewards", [True, False])
def test_both_kinds_of_the_same_play_give_the_same_rows(tmp_path, log_rewards):
    env = atari.Atari("Breakout", log_rewards=log_rewards, life_loss_is_terminal=False)
    actions = breakout()
    rows = demos.rows_for(env, actions, gamma=0.9, cache_dir=tmp_path)
    assert_same(demos.rows_for(env, as_frames(actions), gamma=0.9, cache_dir=tmp_path), rows)
    assert rows.reward.max() == (np.log1p(np.float32(1)) if log_rewards else 1)
    # It was kept, and so read the second time.
    assert len(list(tmp_path.iterdir())) == 1
    both = [as_frames(actions), actions]
    twice = demos.rows_for(env, both, gamma=0.9, cache_dir=tmp_path)
    assert len(twice.action) == 2 * len(rows.action)
    np.testing.assert_array_equal(twice.reward, np.tile(rows.reward, 2))


def test_a_list_of_actions_needs_its_own_game():
    with pytest.raises(DemonstrationError, match=r"'actions' is a list of actions .* needs a demo"):
        demos.rows_for(GymVector(Chain), breakout(), gamma=0.9)
    with pytest.raises(DemonstrationError, match=r"'actions' shows Breakout, not Freeway"):
        demos.rows_for(atari.Atari("Freeway"), breakout(), gamma=0.9)
    few = dataclasses.replace(breakout(), action_meaning=(0, 1, 3), actions=np.zeros(60, np.uint8))
    with pytest.raises(DemonstrationError, match=r"'actions' knows 3 actions, .* has 4"):
        demos.rows_for(atari.Atari("Breakout"), few, gamma=0.9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_actions": 3}, "'mine' knows 3 actions, but the environment has 2"),
        ({"frames": np.zeros((5, 4), np.float32)}, r"float32\[4\], but .* shows float32\[5\]"),
        ({"frames": np.zeros((5, 5), np.uint8)}, r"uint8\[5\], but .* shows float32\[5\]"),
    ],
)
def test_frames_that_do_not_fit(changes, message):
    with pytest.raises(DemonstrationError, match=message):
        demos.rows_for(GymVector(Chain), [chain(), chain(**changes)], gamma=0.9)


def test_frames_of_another_game_do_not_fit_a_game():
    other = dataclasses.replace(as_frames(breakout()), game="Pong")
    with pytest.raises(DemonstrationError, match="'frames' shows Pong, not Breakout"):
        demos.rows_for(atari.Atari("Breakout"), other, gamma=0.9)
    # Environments have many names, so elsewhere shapes decide.
    assert demos.rows_for(GymVector(Chain), chain(game="Other"), gamma=0.9) is not None


def test_actions_must_mean_the_same():
    frames = as_frames(breakout())
    other = dataclasses.replace(frames, action_meaning=(0, 1, 4, 3))
    with pytest.raises(DemonstrationError, match=r"different things: \[0, 1, 3, 4\] and \[0, 1, 4"):
        demos.rows_for(atari.Atari("Breakout"), [frames, other], gamma=0.9)


@pytest.mark.parametrize("thing", ["a.npz", 7, ["a.npz"], [chain(), None]])
def test_what_is_no_demonstration(thing):
    with pytest.raises(DemonstrationError, match=r"demos\.load.* gives, not a (str|int|NoneType)"):
        demos.as_list(thing)


def test_names_become_unique():
    given = [chain(name=name) for name in ("a", "b", "a", "a-2", "a")]
    named = demos.with_unique_names(given)
    assert [one.name for one in named] == ["a", "b", "a-2", "a-2-2", "a-3"]
    assert named[2].frames is given[2].frames
    assert demos.sizes(named[:2]) == {"a": 5, "b": 5}
    assert demos.with_unique_names([]) == ()


def test_environments_say_what_demonstrations_need_to_know():
    env = atari.Atari("Breakout", life_loss_is_terminal=False)
    assert (env.name, env.transform_reward) == ("Breakout", atari.log_reward)
    assert env.life_loss_is_terminal is False
    assert env.fps == 15
    assert GymVector(Telling).name == "Telling"
