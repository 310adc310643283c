import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax import exploration, schedules

KEY = jax.random.key(0)
SAMPLES = 20_000


def assert_follows(samples, probabilities):
    """Pearson's chi-square of integer samples, five deviations above its mean at most."""
    probabilities = np.asarray(probabilities)
    counts = np.bincount(np.asarray(samples).ravel(), minlength=len(probabilities))
    assert len(counts) == len(probabilities)
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = counts.sum() * probabilities[possible]
    statistic = np.sum((counts[possible] - expected) ** 2 / expected)
    freedom = possible.sum() - 1
    assert statistic <= freedom + 5 * np.sqrt(2 * freedom)


KEYS = jax.random.split(KEY, SAMPLES)
greedy = jax.jit(jax.vmap(exploration.greedy, in_axes=(0, None)))
epsilon_greedy = jax.jit(jax.vmap(exploration.epsilon_greedy, in_axes=(0, None, None)))


boltzmann = jax.jit(jax.vmap(exploration.boltzmann, in_axes=(0, None, None)))


@functools.partial(jax.jit, static_argnames=("exponent", "max_repeat"))
def zeta_duration(keys, exponent, max_repeat):
    draw = functools.partial(exploration.zeta_duration, exponent=exponent, max_repeat=max_repeat)
    return jax.vmap(draw)(keys)


def zeta_probabilities(exponent, max_repeat):
    weights = [n**-exponent for n in range(1, max_repeat + 1)]
    return np.array(weights) / sum(weights)


@pytest.mark.parametrize(
    ("temperature", "probabilities"),
    # Of exp(q) 1, 2, 4 and 0; at half the temperature their squares.
    [(1.0, [1 / 7, 2 / 7, 4 / 7, 0]), (0.5, [1 / 21, 4 / 21, 16 / 21, 0])],
)
def test_boltzmann_follows_the_softmax(temperature, probabilities):
    q = jnp.array([0.0, np.log(2.0), np.log(4.0), -1e3])
    actions = boltzmann(KEYS, q, temperature)
    chex.assert_type(actions, jnp.int32)
    assert_follows(actions, probabilities)


@pytest.mark.parametrize(
    ("q", "probabilities"),
    [
        ([1.0, 3.0, 2.0, 0.0], [0, 1, 0, 0]),
        ([-5.0, -3.0, -9.0, -3.0], [0, 1 / 2, 0, 1 / 2]),
        ([2.0, 2.0, -1e3, 2.0], [1 / 3, 1 / 3, 0, 1 / 3]),
        ([0.0, 0.0, 0.0, 0.0], [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        # the smallest lead decides
        ([1.0, 1.0 + 1e-6, 1.0, 1.0], [0, 1, 0, 0]),
    ],
)
def test_greedy_breaks_ties_evenly_and_takes_nothing_else(q, probabilities):
    actions = greedy(KEYS, jnp.array(q))
    chex.assert_type(actions, jnp.int32)
    assert_follows(actions, probabilities)


@pytest.mark.parametrize(
    ("epsilon", "q", "probabilities"),
    [
        # epsilon / A everywhere, and the rest for the greedy actions
        (0.4, [0.0, 1e3, 0.0, 0.0], [0.1, 0.7, 0.1, 0.1]),
        (0.2, [5.0, 0.0, 5.0, 0.0], [0.45, 0.05, 0.45, 0.05]),
        (1.0, [0.0, 1e3, 0.0, 0.0], [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        (0.0, [0.0, 1e3, 0.0, 0.0], [0, 1, 0, 0]),
    ],
)
def test_epsilon_greedy_frequencies(epsilon, q, probabilities):
    actions = epsilon_greedy(KEYS, jnp.array(q), jnp.float32(epsilon))
    chex.assert_type(actions, jnp.int32)
    assert_follows(actions, probabilities)


def test_epsilon_may_differ_between_lanes():
    q = jnp.tile(jnp.array([0.0, 1.0]), (SAMPLES, 1))
    epsilon = jnp.arange(SAMPLES) % 2
    actions = jax.jit(jax.vmap(exploration.epsilon_greedy))(KEYS, q, epsilon.astype(float))
    assert_follows(actions[0::2], [0, 1])
    assert_follows(actions[1::2], [1 / 2, 1 / 2])


def test_a_batch_of_states_is_refused():
    q = jnp.zeros((2, 3))
    with pytest.raises(AssertionError):
        exploration.greedy(KEY, q)
    with pytest.raises(AssertionError):
        exploration.epsilon_greedy(KEY, q, 0.1)
    with pytest.raises(AssertionError):
        exploration.ez_greedy(KEY, q, exploration.ez_greedy_init(), jnp.bool_(False), 0.1)


@pytest.mark.parametrize(("exponent", "max_repeat"), [(2.0, 6), (1.5, 4), (2.0, 1)])
def test_durations_follow_the_truncated_zeta_distribution(exponent, max_repeat):
    lengths = zeta_duration(KEYS, exponent, max_repeat)
    chex.assert_type(lengths, jnp.int32)
    assert_follows(lengths, [0, *zeta_probabilities(exponent, max_repeat)])


def test_long_durations_have_the_right_mean():
    lengths = zeta_duration(KEYS, 2.0, 100)
    assert lengths.min() == 1
    assert 50 < lengths.max() <= 100
    # E[n] is the sum of 1 / n over that of 1 / n^2, 5.187 / 1.635.
    mean = sum(1 / n for n in range(1, 101)) / sum(1 / n**2 for n in range(1, 101))
    error = np.std(lengths) / np.sqrt(SAMPLES)
    assert error < 0.1
    assert abs(np.mean(lengths) - mean) < 4 * error


# Every walk has the same shape, so that one compilation serves all tests.
LANES, STEPS, MAX_REPEAT, A = 4000, 40, 5, 4
PREFERS_1 = jnp.array([0.0, 1e3, 0.0, 0.0])
NEVER, ALWAYS = jnp.zeros(STEPS), jnp.ones(STEPS)
NO_FIRST = jnp.zeros(STEPS, bool)


def ez_state(action, remaining):
    return exploration.EzGreedyState(action=jnp.int32(action), remaining=jnp.int32(remaining))


@jax.jit
def ez_scan(key, q, state, is_first, epsilon):
    def step(state, inputs):
        key, is_first, epsilon = inputs
        action, state = exploration.ez_greedy(
            key, q, state, is_first, epsilon, max_repeat=MAX_REPEAT
        )
        return state, (action, state)

    def walk(key):
        return jax.lax.scan(step, state, (jax.random.split(key, STEPS), is_first, epsilon))[1]

    return jax.vmap(walk)(jax.random.split(key, LANES))


def ez_walk(q, state, is_first, epsilon, key=KEY):
    """Actions [L, T], and what remained of them, of lanes that all start from `state`."""
    actions, states = ez_scan(key, q, state, is_first, epsilon)
    chex.assert_type([actions, states.action, states.remaining], jnp.int32)
    return np.asarray(actions), np.asarray(states.remaining)


@pytest.mark.parametrize("held", [0, 1, 3])
def test_ez_greedy_repeats_for_as_long_as_remains(held):
    # Epsilon is 0: nothing new starts, what is under way goes on, and then comes the greedy 1.
    actions, remaining = ez_walk(PREFERS_1, ez_state(2, held), NO_FIRST, NEVER)
    expected = [2] * held + [1] * (STEPS - held)
    np.testing.assert_array_equal(actions, np.tile(expected, (LANES, 1)))
    expected = [max(held - 1 - t, 0) for t in range(STEPS)]
    np.testing.assert_array_equal(remaining, np.tile(expected, (LANES, 1)))


def test_ez_greedy_starts_nothing_while_it_repeats():
    actions, remaining = ez_walk(PREFERS_1, ez_state(2, 4), NO_FIRST, ALWAYS)
    np.testing.assert_array_equal(actions[:, :4], 2)
    np.testing.assert_array_equal(remaining[:, :4], np.tile([3, 2, 1, 0], (LANES, 1)))
    assert_follows(actions[:, 4], [1 / 4] * 4)


def test_ez_greedy_ends_the_repetition_with_the_episode():
    is_first = NO_FIRST.at[2].set(True)
    actions, remaining = ez_walk(PREFERS_1, ez_state(2, 9), is_first, NEVER)
    np.testing.assert_array_equal(actions[:, :4], np.tile([2, 2, 1, 1], (LANES, 1)))
    np.testing.assert_array_equal(remaining[:, :4], np.tile([8, 7, 0, 0], (LANES, 1)))


def test_ez_greedy_may_explore_from_the_first_step_of_an_episode():
    # A length is drawn anew as well: 9 further steps are more than there can be.
    actions, remaining = ez_walk(PREFERS_1, ez_state(2, 9), NO_FIRST.at[0].set(True), ALWAYS)
    assert_follows(actions[:, 0], [1 / 4] * 4)
    assert_follows(remaining[:, 0], zeta_probabilities(2.0, MAX_REPEAT))


def test_ez_greedy_begins_with_nothing_to_repeat():
    state = exploration.ez_greedy_init()
    chex.assert_trees_all_equal(state, ez_state(0, 0))
    actions, _ = ez_walk(PREFERS_1, state, NO_FIRST, NEVER)
    np.testing.assert_array_equal(actions, 1)


def test_ez_greedy_holds_a_random_action_for_exactly_its_length():
    # Only the first decision explores, and the greedy action is put off until that is over.
    actions, remaining = ez_walk(
        PREFERS_1, exploration.ez_greedy_init(), NO_FIRST, NEVER.at[0].set(1.0)
    )
    first, length = actions[:, 0], 1 + remaining[:, 0]
    expected = np.where(np.arange(STEPS)[None] < length[:, None], first[:, None], 1)
    np.testing.assert_array_equal(actions, expected)
    # The action and its length are independent: uniform times zeta, all pairs of them.
    probabilities = np.tile(zeta_probabilities(2.0, MAX_REPEAT), A) / A
    assert_follows(first * MAX_REPEAT + length - 1, probabilities)


def test_ez_greedy_always_explores_if_epsilon_is_1():
    actions, _ = ez_walk(PREFERS_1, exploration.ez_greedy_init(), NO_FIRST, ALWAYS)
    for t in (0, 1, STEPS - 1):
        assert_follows(actions[:, t], [1 / 4] * 4)


def test_ez_greedy_decision_frequencies():
    # The first step is a decision: epsilon / A everywhere, and the rest for the greedy action.
    actions, _ = ez_walk(PREFERS_1, exploration.ez_greedy_init(), NO_FIRST, 0.4 * ALWAYS)
    assert_follows(actions[:, 0], [0.1, 0.7, 0.1, 0.1])


def test_ez_greedy_share_of_random_steps():
    # Decisions renew the process: with probability epsilon one lasts m = E[n] steps on average,
    # otherwise one greedy step.  So a share epsilon m / (epsilon m + 1 - epsilon) of all steps is
    # random, and 1 - 1 / A of these differ from the greedy action.
    epsilon, start_up = 0.3, 15
    actions, _ = ez_walk(PREFERS_1, exploration.ez_greedy_init(), NO_FIRST, epsilon * ALWAYS)
    m = sum(n * p for n, p in enumerate(zeta_probabilities(2.0, MAX_REPEAT), start=1))
    share = epsilon * m / (epsilon * m + 1 - epsilon) * (1 - 1 / A)
    by_lane = np.mean(actions[:, start_up:] != 1, axis=1)
    error = np.std(by_lane) / np.sqrt(LANES)
    assert error < 0.005
    assert abs(np.mean(by_lane) - share) < 4 * error


def test_ez_greedy_breaks_ties_at_random():
    q = jnp.array([1.0, 0.0, 1.0, 0.0])
    actions, _ = ez_walk(q, exploration.ez_greedy_init(), NO_FIRST, NEVER)
    assert_follows(actions, [1 / 2, 0, 1 / 2, 0])


@pytest.mark.parametrize(
    "f",
    [
        lambda key: greedy(jax.random.split(key, SAMPLES), jnp.zeros(4)),
        lambda key: epsilon_greedy(jax.random.split(key, SAMPLES), PREFERS_1, jnp.float32(0.5)),
        lambda key: zeta_duration(jax.random.split(key, SAMPLES), 2.0, 6),
        lambda key: ez_walk(PREFERS_1, ez_state(0, 0), NO_FIRST, 0.5 * ALWAYS, key)[0],
    ],
    ids=["greedy", "epsilon_greedy", "zeta_duration", "ez_greedy"],
)
def test_the_same_key_repeats_and_another_differs(f):
    chex.assert_trees_all_equal(f(KEY), f(KEY))
    assert np.any(f(KEY) != f(jax.random.key(1)))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 1.0),  # constant before the first point
        (10, 1.0),
        (15, 0.75),
        (20, 0.5),
        (30, 0.3),  # half-way from 0.5 to 0.1
        (35, 0.2),
        (40, 0.1),
        (1000, 0.1),  # and after the last
    ],
)
def test_piecewise_linear_by_hand(step, expected):
    schedule = schedules.piecewise_linear((10, 20, 40), (1.0, 0.5, 0.1))
    value = schedule(step)
    chex.assert_shape(value, ())
    chex.assert_type(value, jnp.float32)
    assert value == pytest.approx(expected, rel=1e-6)


def test_piecewise_linear_takes_arrays_and_traced_steps():
    schedule = schedules.piecewise_linear([0, 4], [0.0, 1.0])
    expected = jnp.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.0])
    chex.assert_trees_all_close(schedule(jnp.arange(6)), expected)
    chex.assert_trees_all_close(jax.jit(jax.vmap(schedule))(jnp.arange(6)), expected)


def test_schedule_of_one_point_is_constant():
    schedule = schedules.piecewise_linear([5], [0.3])
    chex.assert_trees_all_close(schedule(jnp.array([0, 5, 9])), jnp.full(3, 0.3))


def test_geometric_by_hand():
    schedule = schedules.geometric(8, 2, 4)
    # By the root of 2 in every step; nothing falls any further.
    expected = jnp.array([8.0, 8 / 2**0.5, 4.0, 4 / 2**0.5, 2.0, 2.0])
    chex.assert_trees_all_close(schedule(jnp.array([0, 1, 2, 3, 4, 1000])), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="last is 0, but must be"):
        schedules.geometric(8, 0, 4)


@pytest.mark.parametrize(
    ("steps", "values", "message"),
    [
        (
            (0, 1, 2),
            (1.0, 0.5),
            r"values is .*, but must be as many values as steps \(0, 1, 2\)",
        ),
        ((0,), (1.0, 0.5), r"values is \(1.0, 0.5\), but must be as many"),
        ((), (), r"steps is \(\), but must be increasing"),
        ((0, 5, 5), (1.0, 0.5, 0.1), r"steps is \(0, 5, 5\), but must be increasing"),
        ((0, 5, 3), (1.0, 0.5, 0.1), "but must be increasing"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(steps, values, message):
    with pytest.raises(ValueError, match=message):
        schedules.piecewise_linear(steps, values)
