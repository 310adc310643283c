"""How much a demonstration's actions say: by hand, of made-up experts, where little is known."""

import dataclasses

import numpy as np
import pytest

import bqfd_jax
from bqfd_jax import demos
from bqfd_jax.agents import CloneConfig
from bqfd_jax.demos import guesses, informativeness
from experiments.demos import show

QUICK = CloneConfig(
    updates=400, patience=150, check_period=25, batch_size=64, learning_rate=0.01, weight_decay=0.0
)
A = 3


def demonstration(observations, actions, lengths=None, num_actions=A):
    """Of observations `[T, ...]`, each episode's last one repeated; one episode unless told."""
    lengths = [len(actions)] if lengths is None else lengths
    ends = np.cumsum(lengths) - 1
    return demos.FrameDemonstration(
        game="made up",
        frames=np.insert(observations, ends + 1, observations[ends], axis=0),
        actions=np.asarray(actions, np.int32),
        rewards=np.zeros(len(actions), np.float32),
        episode_lengths=np.asarray(lengths, np.int32),
        terminated=(True,) * len(lengths),
        num_actions=num_actions,
        name="made up",
    )


def measured(shown, **options):
    rows = demos.to_rows(shown, gamma=1.0)
    return demos.measure(rows, demos.num_actions_of(shown), **{"config": QUICK, **options})


def held_at_random(rng, steps, *, stay=0.8):
    """Random actions, each held for a while and then left for another."""
    actions = [0]
    for _ in range(steps - 1):
        moves = rng.random() > stay
        actions.append((actions[-1] + moves * rng.integers(1, A)) % A)
    return np.array(actions)


def one_hot(actions):
    # Of the same shape as the others, so that it need not be compiled anew.
    return np.eye(A, 4, dtype=np.float32)[actions]


# --------------------------------------------------------------------------- by hand


def test_entropy_and_holds_by_hand():
    # Half, a quarter, a quarter: 1.5 bits.  Four holds in the first episode, one in the second,
    # which begins with what the first ended with.
    actions = [0, 0, 1, 2, 2, 0, 0, 1]
    found = measured(demonstration(np.zeros((8, 2), np.float32), actions, [7, 1]))
    np.testing.assert_allclose(found.entropy, 1.5)
    np.testing.assert_allclose(found.most_entropy, np.log2(3))
    np.testing.assert_allclose(found.mean_hold, 8 / 5)
    assert (found.most_frequent, found.most_frequent_share) == (0, 0.5)
    # The last quarter of eight steps: 0 (as before it) and 1 (where an episode begins).
    assert (found.num_seen, found.num_foretold, found.num_changes) == (6, 2, 0)


def test_the_guesses_by_hand():
    guess = np.log([[0.5, 0.25, 0.25], [0.5, 0.125, 0.375], [0.5, 0.25, 0.25]])
    # The first step of an episode has no last action; then 0 again; then 2 after 0.
    found = guesses.judge(guess[[0, 1, 1]], np.array([0, 0, 2]), np.array([3, 0, 0]))
    np.testing.assert_allclose(found.accuracy, 2 / 3)
    np.testing.assert_allclose(found.bits, (1 + 1 - np.log2(0.375)) / 3)
    assert found.changes == 1.0  # without 0, action 2 is the likeliest
    found = guesses.judge(guess[[1]], np.array([1]), np.array([0]))
    assert (found.accuracy, found.changes) == (0.0, 0.0)
    assert guesses.judge(guess[[1]], np.array([1]), np.array([1])).changes is None


def test_what_follows_upon_an_action():
    # Upon 0 came 0, 0 and 1; the prior (a half, a quarter, a quarter) counts as one more.
    log = guesses.following(np.array([0, 0, 1]), np.array([0, 0, 0]), np.log([0.5, 0.25, 0.25]))
    np.testing.assert_allclose(np.exp(log[0]), [2.5 / 4, 1.25 / 4, 0.25 / 4])
    np.testing.assert_allclose(np.exp(log[1:]), [[0.5, 0.25, 0.25]] * 3)


def test_fitted_weights_by_hand():
    # One feature of two choices, 0 and 1; the second is chosen in three of four: log 3.
    features = np.tile([[[0.0], [1.0]]], (4000, 1, 1))
    chosen = np.arange(4000) % 4 > 0
    found = guesses._fitted(features, chosen.astype(int), np.zeros(1))
    np.testing.assert_allclose(found, np.log(3), atol=5e-3)
    # Of two examples the pull back to the start leaves little.
    few = guesses._fitted(features[:2], np.array([1, 1]), np.zeros(1))
    assert 0 < few < 0.8
    np.testing.assert_array_equal(guesses._fitted(features[:0], chosen[:0], np.ones(1)), 1)


def test_both_guesses_by_hand():
    after = np.log([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
    network = np.log([[0.2, 0.2, 0.6], [0.8, 0.1, 0.1]])
    last = np.array([0, A])  # at the second an episode begins
    plain = guesses.Weights(np.array([1.0, 0.0, 0.0]), np.array([1.0, 0.0]))
    np.testing.assert_allclose(guesses.combine(after, network, last, plain), after)
    # Whether it changes by the last action (0.6), to what by the network (2 to 6).
    mixed = plain._replace(which=np.array([0.0, 1.0]))
    found = np.exp(guesses.combine(after, network, last, mixed))
    np.testing.assert_allclose(found, [[0.6, 0.1, 0.3], [0.2, 0.3, 0.5]])
    # The other way round: whether by the network (0.2), to what by the last action (3 to 1).
    mixed = plain._replace(when=np.array([0.0, 1.0, 0.0]))
    found = np.exp(guesses.combine(after, network, last, mixed))
    np.testing.assert_allclose(found, [[0.2, 0.6, 0.2], [0.2, 0.3, 0.5]])


def test_weights_go_to_what_says_something():
    rng = np.random.default_rng(0)
    after = np.log(np.array([[0.8, 0.1, 0.1]] * 600))
    action = rng.choice(3, 600, p=[0.8, 0.1, 0.1])
    last = np.zeros(600, int)
    noise = np.log(rng.dirichlet(np.ones(3), 600))
    when, which = guesses.fit_weights(after, noise, action, last)
    assert max(abs(when[1]), abs(which[1])) < 0.3
    # Knows left from right, and not when.
    knows = np.log(np.where(action[:, None] == [0, 1, 2], [0.8, 0.19, 0.19], [0.8, 0.01, 0.01]))
    knows[action == 0] = np.log([0.8, 0.1, 0.1])
    when, which = guesses.fit_weights(after, knows, action, last)
    assert which[1] > 0.5
    gains = guesses.combine(after, knows, last, guesses.Weights(when, which))
    here = np.arange(600), action
    assert (gains - after)[here][action > 0].mean() > 0.4


# --------------------------------------------------------------------------- made-up experts


def test_random_actions_say_little():
    rng = np.random.default_rng(1)
    actions = rng.integers(0, A, 800)
    found = measured(demonstration(rng.normal(size=(800, 4)).astype(np.float32), actions))
    base = max(np.bincount(actions[600:]) / 200)
    assert abs(found.network.accuracy - base) < 0.08
    assert found.network.bits > found.frequent.bits - 0.05
    assert found.gain_share < 0.03
    assert found.in_words() == "its actions say little: expect no help from copying them"


def test_actions_that_are_a_function_of_what_is_seen_say_much():
    rng = np.random.default_rng(2)
    seen = rng.normal(size=(800, 4)).astype(np.float32)
    actions = seen[:, :3].argmax(axis=1)
    found = measured(demonstration(seen, actions))
    assert found.network.accuracy > 0.9
    assert found.network.changes > 0.9 > found.last.changes
    assert found.gain_share > 0.6
    assert found.in_words().startswith("its actions follow from what is seen")


def test_who_shows_its_last_action_says_no_more_by_that():
    # Like a paddle that is seen moving: the network foretells most actions, and knows nothing of
    # why they change.
    rng = np.random.default_rng(3)
    actions = held_at_random(rng, 800)
    seen = one_hot(np.concatenate([[0], actions[:-1]]))
    found = measured(demonstration(seen, actions))
    assert min(found.network.accuracy, found.last.accuracy) > 0.7
    assert found.frequent.accuracy < 0.5
    assert found.gain_share < 0.03
    assert "say little" in found.in_words()


def test_a_reason_to_change_is_found_beneath_the_holds():
    # The observation tells what to do from now on, once; between, there is nothing to see.
    rng = np.random.default_rng(4)
    actions = held_at_random(rng, 800)
    changes = np.concatenate([[True], np.diff(actions) != 0])
    found = measured(demonstration(one_hot(actions) * changes[:, None].astype(np.float32), actions))
    assert found.network.changes > 0.9
    assert found.both.accuracy > found.last.accuracy + 0.1
    assert found.gain_share > 0.3
    assert "follow from what is seen" in found.in_words()


def test_who_says_which_but_not_when():
    # Mostly nothing; now and then one of two, which is shown all the time.
    rng = np.random.default_rng(11)
    side = rng.integers(1, A, 800)
    actions = np.where(rng.random(800) < 0.15, side, 0)
    seen = one_hot(side)
    found = measured(demonstration(seen, actions))
    assert found.change_gain > 0.2
    assert found.both.changes > found.last.changes + 0.2
    # Were there no gain in bits, it would be said so.
    only_which = found._replace(gain=0.0, gain_error=0.1)
    assert (
        "when they change does not follow from what is seen, but to what" in only_which.in_words()
    )
    neither = only_which._replace(change_gain=0.04, change_gain_error=0.01)
    assert "it mostly does one thing" in neither.in_words()


def test_mostly_one_thing():
    rng = np.random.default_rng(5)
    actions = np.where(rng.random(800) < 0.1, rng.integers(0, A, 800), 1)
    found = measured(demonstration(rng.normal(size=(800, 4)).astype(np.float32), actions))
    assert "it mostly does one thing (action 1, 9" in found.in_words()
    assert "it mostly does one thing (UP, 9" in found.in_words(["NOOP", "UP", "DOWN"])


def test_a_few_of_many_actions_are_not_one_thing():
    # Four of 18 actions, equally often: 2 of 4.17 bits.
    found = informativeness.Measure(2.0, np.log2(18), 5.0, 3, 0.25, 600, 200, 40)
    assert found.in_words() == "its actions say little: expect no help from copying them"


def test_wide_numbers_are_seen_as_jax_sees_them():
    rng = np.random.default_rng(10)
    seen = rng.normal(size=(800, 4)).astype(np.float32)
    actions = rng.integers(0, A, 800)
    wide, narrow = (demonstration(seen.astype(kind), actions) for kind in (np.float64, np.float32))
    assert measured(wide) == measured(narrow)


def test_several_episodes_are_held_out_whole():
    rng = np.random.default_rng(6)
    seen = rng.normal(size=(800, 4)).astype(np.float32)
    shown = demonstration(seen, seen[:, :3].argmax(axis=1), [50] * 16)
    found = measured(shown)
    assert (found.num_seen, found.num_foretold) == (600, 200)
    assert found.network.accuracy > 0.85


def test_pictures_and_the_same_seed():
    rng = np.random.default_rng(7)
    actions = rng.integers(0, 2, 60)
    frames = np.zeros((60, 4, 4), np.uint8)
    frames[np.arange(60), :, 1 + actions] = 255
    shown = demonstration(frames, actions, num_actions=2)
    told = []
    config = dataclasses.replace(QUICK, updates=40)
    found = measured(shown, config=config, on_progress=lambda *how_far: told.append(how_far))
    assert found.network.accuracy == 1.0
    assert told[0] == (0, 40)
    assert told[-1] == (40, 40)
    assert measured(shown, config=config) == found


# --------------------------------------------------------------------------- little to go by


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_few_steps(steps):
    actions = np.arange(steps) % A
    found = measured(demonstration(np.ones((steps, 2), np.float32), actions))
    assert found.num_seen + found.num_foretold == steps
    assert (found.network is None) == (steps < 4)
    text = show.describe_measure(found)
    expected = "does the same at every step" if steps == 1 else "too little to say"
    assert expected in text
    assert "nan" not in text


def test_one_action_only():
    rng = np.random.default_rng(8)
    seen = rng.normal(size=(100, 2)).astype(np.float32)
    found = measured(demonstration(seen, np.ones(100, int)))
    assert (found.entropy, found.mean_hold, found.network) == (0.0, 100.0, None)
    text = show.describe_measure(found)
    assert "0.00 of 1.58 bits per step, and one lasts 100.0 steps" in text
    assert "it does the same at every step" in text


def test_one_action_in_an_environment_that_has_no_other():
    found = measured(demonstration(np.ones((9, 2), np.float32), np.zeros(9, int), num_actions=1))
    assert found.most_entropy == found.entropy == 0
    assert "it does the same at every step" in found.in_words()


def test_tiny_episodes():
    rng = np.random.default_rng(9)
    seen = rng.normal(size=(8, 2)).astype(np.float32)
    found = measured(demonstration(seen, np.arange(8) % A, [1] * 8))
    assert (found.num_seen, found.num_foretold) == (6, 2)
    # No step has one before it in its episode.
    assert (found.mean_hold, found.num_changes, found.network.changes) == (1.0, 0, None)
    assert "too little to say" in show.describe_measure(found)


def test_a_single_new_action_among_what_is_foretold():
    # The seen part has one action, the rest another: nothing is impossible, so bits are finite.
    actions = np.repeat([0, 2], [6, 2])
    found = measured(demonstration(np.ones((8, 2), np.float32), actions))
    assert np.isfinite([found.frequent.bits, found.last.bits, found.both.bits]).all()
    assert "too little to say" in found.in_words()


def test_the_papers_player():
    games = ("Breakout", "ChopperCommand", "Freeway", "MsPacman", "Seaquest", "VideoPinball")
    assert tuple(demos.PAPER_PLAYER) == games == tuple(demos.available())
    assert demos.PAPER_PLAYER["ChopperCommand"] == 33_800


def test_it_is_part_of_the_library():
    assert bqfd_jax.demos.measure is informativeness.measure
