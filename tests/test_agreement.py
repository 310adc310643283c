"""What a policy thinks of a demonstration, by hand, and as `demos show --policy` tells it."""

import dataclasses

import numpy as np
import pytest

from bqfd_jax import demos, networks
from bqfd_jax.policy import Policy, save_policy
from experiments.demos import __main__ as command
from experiments.demos import show

# What a policy says where it sees a number.  Rows that no step starts from must not be asked about:
# 99 there would change every figure.
VALUES = {
    0: [0.0, 1.0, 3.0],  # prefers 2
    1: [5.0, 4.0, 1.0],  # prefers 0
    2: [2.0, 2.0, 2.0],  # all alike: the first
    3: [-1.0, 0.0, -5.0],  # prefers 1
    99: [1e6, -1e6, 0.0],
}


def made_up(numbers, actions, lengths):
    """A demonstration that shows these numbers; each episode's last observation is 99."""
    ends = np.cumsum(lengths)
    return demos.FrameDemonstration(
        game="made up",
        frames=np.insert(np.array(numbers, np.float32), ends, 99)[:, None],
        actions=np.array(actions, np.int32),
        rewards=np.zeros(len(actions), np.float32),
        episode_lengths=np.array(lengths, np.int32),
        terminated=(True,) * len(lengths),
        num_actions=3,
        name="made up",
    )


def say(observations):
    return np.array([VALUES[int(number)] for number in observations[..., -1]])


def test_by_hand():
    shown = made_up([0, 1, 2, 3, 1], [2, 1, 1, 2, 0], [3, 2])
    found = demos.ask_policy(demos.to_rows(shown, gamma=1.0), say)
    np.testing.assert_array_equal(found.action, [2, 1, 1, 2, 0])
    np.testing.assert_array_equal(found.preferred, [2, 0, 0, 1, 0])
    np.testing.assert_array_equal(found.behind, [0, 1, 0, 5, 0])
    np.testing.assert_array_equal(found.span, [3, 4, 0, 5, 4])
    np.testing.assert_array_equal(found.same, [True, False, False, False, True])
    # Action 0: 1/5 x 3/5, action 1: 2/5 x 1/5, action 2: 2/5 x 1/5.
    assert found.by_chance == pytest.approx((3 + 2 + 2) / 25)
    # Of 1/4, 0 (all alike) and 5/5 the one in the middle.
    assert found.way_down == pytest.approx(0.25)


def test_nothing_apart():
    shown = made_up([0, 1], [2, 0], [2])
    found = demos.ask_policy(demos.to_rows(shown, gamma=1.0), say)
    assert found.same.all()
    assert np.isnan(found.way_down)
    text = show.describe_agreement(found, ["a", "b", "c"], [2])
    assert text.splitlines()[0] == "would do the same in 100.0% of them (50.0% by chance)"
    assert "where it would not" not in text


def test_of_two_actions_the_other_is_no_news():
    shown = made_up([0, 1], [0, 1], [2])
    found = demos.ask_policy(demos.to_rows(shown, gamma=1.0), lambda seen: say(seen)[:, :2])
    # In 0 the policy would take 1, and in 1 it would take 0.
    assert found.way_down == 1.0
    lines = show.describe_agreement(found, ["a", "b"], [2]).splitlines()
    assert lines[0] == "would do the same in 0.0% of them (50.0% by chance)"
    assert "of the way down" not in lines[1]


def test_an_action_that_the_policy_does_not_know():
    shown = made_up([0, 1], [0, 2], [2])
    with pytest.raises(ValueError, match="a demonstrated action is 2, but must be less than 2"):
        demos.ask_policy(demos.to_rows(shown, gamma=1.0), lambda seen: say(seen)[:, :2])


def test_frames_are_stacked_within_an_episode():
    asked = []

    def remember(observations):
        asked.append(observations[..., 0])
        return np.zeros((len(observations), 3))

    shown = made_up([10, 11, 12, 20, 21], [0, 0, 0, 0, 0], [3, 2])
    demos.ask_policy(demos.to_rows(shown, gamma=1.0), remember, stack=3)
    (stacks,) = asked
    expected = [[10, 10, 10], [10, 10, 11], [10, 11, 12], [20, 20, 20], [20, 20, 21]]
    np.testing.assert_array_equal(stacks[:5], expected)


def test_more_steps_than_are_asked_about_at_once():
    rng = np.random.default_rng(0)
    numbers, actions = rng.integers(0, 4, 600), rng.integers(0, 3, 600)
    shown = made_up(numbers, actions, [600])
    found = demos.ask_policy(demos.to_rows(shown, gamma=1.0), say)
    values = np.array([VALUES[number] for number in numbers])
    np.testing.assert_array_equal(found.preferred, values.argmax(axis=1))
    np.testing.assert_array_equal(found.behind, values.max(axis=1) - values[range(600), actions])


def test_as_text():
    shown = made_up([0, 1, 2, 3, 1], [2, 1, 1, 2, 0], [3, 2])
    found = demos.ask_policy(demos.to_rows(shown, gamma=1.0), say)
    lines = show.describe_agreement(found, ["LEFT", "UP", "WAIT"], [3, 2]).splitlines()
    assert lines == [
        "would do the same in 40.0% of them (28.0% by chance)",
        "where it would not, its values have what was done 25% of the way down from the best "
        "action to the worst (median)",
        " episode  the same  over its time",
        "       1       33%  █  ",
        "       2       50%   █",
        "           done   steps  the same  and else mostly",
        "           LEFT       1      100%",
        "             UP       2        0%  LEFT (100%)",
        "           WAIT       2       50%  UP (50%)",
    ]


@pytest.fixture
def saved(tmp_path):
    """A demonstration of `made up`, and a policy of it in a run's folder."""
    network = networks.for_observation((1,), np.float32, 3, hidden=4)
    params = network.init(np.uint32([0, 0]), np.zeros((1, 1, 1), np.float32))
    policy = Policy(network, params, 3, (1,), np.dtype(np.float32), made_with={"hidden": 4})
    shown = made_up([0, 1, 2, 3, 1], [2, 1, 1, 2, 0], [3, 2])
    demos.save(shown, tmp_path / "shown.npz")
    return tmp_path, policy, shown


def test_the_command(saved, run_here):
    folder, policy, shown = saved
    save_policy(policy, folder / "policy.npz")
    same = policy.act(shown.frames[[0, 1, 2, 4, 5]]) == shown.actions
    quiet = ("--no-measure", "--no-sheet", "--no-film")
    code, text = run_here(command.main, "show", folder / "shown.npz", "--policy", folder, *quiet)
    assert code == 0, text
    assert f"asked about every step, the policy of {folder}\n" in text
    assert f"would do the same in {same.mean():.1%} of them" in text


def test_a_policy_of_another_game(saved, run_here):
    folder, policy, _ = saved
    save_policy(dataclasses.replace(policy, environment="Pong"), folder / "policy.npz")
    quiet = ("--no-measure", "--no-sheet", "--no-film")
    code, text = run_here(command.main, "show", folder / "shown.npz", "--policy", folder, *quiet)
    assert code == 0, text
    assert "(trained in Pong, whose actions may mean other things)" in text


def test_policies_that_cannot_be_asked(saved, run_here, monkeypatch):
    folder, policy, _ = saved
    quiet = ("--no-measure", "--no-sheet", "--no-film")

    def refused(path):
        code, text = run_here(command.main, "show", folder / "shown.npz", "--policy", path, *quiet)
        assert code == 2, text
        assert "Traceback" not in text
        assert text.count(str(path)) == 1
        return text

    assert "policy.npz" in refused(folder)
    assert "nothing.npz" in refused(folder / "nothing.npz")
    assert "shown.npz" in refused(folder / "shown.npz")
    other = Policy(policy.network, policy.params, 7, (1,), np.dtype(np.float32), environment="Pong")
    monkeypatch.setattr(show, "load_policy", lambda path: other)
    assert "it knows 7 actions (of Pong), but those of made up are 3" in refused(folder)
    wide = Policy(policy.network, policy.params, 3, (5,), np.dtype(np.float32))
    monkeypatch.setattr(show, "load_policy", lambda path: wide)
    assert "observations are [256, 1], but must be [5]" in refused(folder)
