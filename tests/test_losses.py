import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax import losses, posterior

ABSURD = 1e3

# The greedy action of the selector is 2, worth 3 in the other network; the target is 0.5 + 0.9 * 3.
# Everything that another index or another network would pick is absurd.
Q_TM1 = jnp.array([ABSURD, 2.0, ABSURD])
A_TM1 = jnp.int32(1)
R_T = jnp.float32(0.5)
DISCOUNT_T = jnp.float32(0.9)
Q_VALUE = jnp.array([ABSURD, -ABSURD, 3.0])
Q_SELECTOR = jnp.array([-ABSURD, 0.0, 0.5 * ABSURD])
TRANSITION = (Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_VALUE, Q_SELECTOR)
TARGET = 0.5 + 0.9 * 3

# exp(2 q) is 1, 4, 16, so with eta = 2 the expert's action 1 has probability 4/21.
Q_EXPERT = jnp.log(jnp.array([1.0, 2.0, 4.0]))
PI = np.array([1, 4, 16]) / 21
BQFD = {"eta": 2.0, "beta": 4.0, "variance": 0.6}
# After one visit w = 0.6 * (16 + 4 * 1) / (4 + 1)^2.
WEIGHT = 0.48


# Equal functions are compiled once.
bind, grad, value_and_grad = map(functools.cache, (functools.partial, jax.grad, jax.value_and_grad))


@functools.cache
def in_batch(f):
    """`f` under jit and vmap, in row 1 of a batch of zeros, so that a wrong axis shows."""
    f = jax.jit(jax.vmap(f))

    def call(*args):
        args = [np.stack([np.zeros_like(x), x, np.zeros_like(x)]) for x in args]
        return jax.tree.map(lambda x: np.asarray(x)[1], f(*args))

    return call


def weighted_td_error(*arguments, beta, variance, noise_ratio=4.0, **options):
    """`bqfd_td_error` with the weight of a visit count, as the agent calls it."""
    *transition, is_expert, visit_count = arguments
    weight = posterior.visit_weight(
        visit_count, beta=beta, variance=variance, noise_ratio=noise_ratio
    )
    return losses.bqfd_td_error(*transition, is_expert, weight, **options)


def bqfd(**changes):
    return bind(weighted_td_error, **(BQFD | changes))


def expert_transition(is_expert=True, visit_count=1):
    return (Q_EXPERT, *TRANSITION[1:], jnp.bool_(is_expert), jnp.int32(visit_count))


def random_transitions(batch, num_actions=4):
    rng = np.random.default_rng(0)
    q_tm1, q_value, q_selector = rng.normal(size=(3, batch, num_actions)).astype(np.float32)
    reward, discount = rng.uniform(size=(2, batch)).astype(np.float32)
    a = rng.integers(num_actions, size=batch).astype(np.int32)
    return tuple(map(jnp.asarray, (q_tm1, a, reward, discount, q_value, q_selector)))


def test_double_q_by_hand():
    td_error = in_batch(losses.double_q_td_error)(*TRANSITION)
    chex.assert_shape(td_error, ())
    assert td_error == pytest.approx(TARGET - 2.0, rel=1e-5)


def test_double_q_does_not_bootstrap_from_a_terminal_state():
    absurd = jnp.full(3, ABSURD)
    td_error = in_batch(losses.double_q_td_error)(*TRANSITION[:3], jnp.float32(0.0), absurd, absurd)
    assert td_error == pytest.approx(0.5 - 2.0)


def test_double_q_agrees_with_numpy_row_by_row():
    batch = random_transitions(64)
    td_errors = jax.jit(jax.vmap(losses.double_q_td_error))(*batch)
    expected = [
        reward + discount * value[np.argmax(selector)] - q[a]
        for q, a, reward, discount, value, selector in zip(*map(np.asarray, batch), strict=True)
    ]
    np.testing.assert_allclose(td_errors, expected, atol=1e-6)


def test_double_q_is_differentiable_in_the_taken_action_only():
    argnums = (0, 2, 3, 4, 5)
    gradient = in_batch(grad(losses.double_q_td_error, argnums))(*TRANSITION)
    zeros = jnp.zeros(3)
    expected = (jnp.array([0.0, -1.0, 0.0]), jnp.float32(0), jnp.float32(0), zeros, zeros)
    chex.assert_trees_all_equal(gradient, expected)


@pytest.mark.parametrize(
    ("visit_count", "weight"), [(0, 0.6), (1, 0.6 * 20 / 25), (4, 0.6 * 32 / 64)]
)
def test_bqfd_by_hand(visit_count, weight):
    td_error = in_batch(bqfd())(*expert_transition(visit_count=visit_count))
    chex.assert_shape(td_error, ())
    expected = TARGET + 2 * weight * (1 - 4 / 21) - math.log(2)
    assert td_error == pytest.approx(expected, rel=1e-5)


def test_bqfd_uses_the_noise_ratio():
    # 0.6 * (16 + 1) / 25 instead of 0.6 * (16 + 4) / 25
    td_error = in_batch(bqfd(noise_ratio=1.0))(*expert_transition())
    expected = TARGET + 2 * 0.6 * 17 / 25 * (1 - 4 / 21) - math.log(2)
    assert td_error == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("visit_count", [0, 1_000_000])
def test_bqfd_of_an_agent_sample_is_double_q(stop, visit_count):
    arguments = expert_transition(is_expert=False, visit_count=visit_count)
    f = value_and_grad(bqfd(stop_correction_gradient=stop))
    td_error, gradient = in_batch(f)(*arguments)
    assert td_error == losses.double_q_td_error(*arguments[:6])
    np.testing.assert_array_equal(gradient, [0, -1, 0])


def test_bqfd_ignores_the_visit_count_of_an_agent_sample():
    *arguments, _ = expert_transition(is_expert=False)
    td_error, gradient = value_and_grad(bqfd())(*arguments, jnp.float32(jnp.nan))
    assert td_error == losses.double_q_td_error(*arguments[:6])
    np.testing.assert_array_equal(gradient, [0, -1, 0])


@pytest.mark.parametrize("change", [{"variance": 0.0}, {"eta": 0.0}])
@pytest.mark.parametrize("stop", [True, False])
def test_bqfd_without_variance_or_preferences_is_double_q(change, stop):
    arguments = expert_transition()
    f = value_and_grad(bqfd(**change, stop_correction_gradient=stop))
    td_error, gradient = in_batch(f)(*arguments)
    assert td_error == losses.double_q_td_error(*arguments[:6])
    np.testing.assert_array_equal(gradient, [0, -1, 0])


def test_bqfd_mixes_expert_and_agent_samples_in_a_batch():
    batch = random_transitions(6)
    is_expert = jnp.array([True, False, True, False, True, True])
    visit_count = jnp.array([0, 0, 1, 1, 4, 10])
    td_errors = jax.jit(jax.vmap(bqfd()))(*batch, is_expert, visit_count)
    gain = td_errors - jax.vmap(losses.double_q_td_error)(*batch)
    odds = np.exp(2.0 * np.asarray(batch[0], np.float64))
    probability = odds[np.arange(6), batch[1]] / odds.sum(axis=1)
    weight = 0.6 * np.array([1, 0, 20 / 25, 0, 32 / 64, 56 / 196])
    np.testing.assert_allclose(gain, 2.0 * weight * (1 - probability), atol=1e-5)


def test_bqfd_listens_less_with_every_visit():
    counts = jnp.arange(50)
    *arguments, _ = expert_transition()
    td_errors = jax.jit(jax.vmap(bqfd(), in_axes=(*[None] * 7, 0)))(*arguments, counts)
    plain = losses.double_q_td_error(*arguments[:6])
    assert np.all(np.diff(td_errors) < 0)
    assert np.all(td_errors > plain)
    assert bqfd()(*arguments, jnp.int32(10**8)) == pytest.approx(float(plain), rel=1e-5)


def test_bqfd_target_is_a_constant_by_default():
    floats = (0, 2, 3, 4, 5, 7)
    arguments = (*expert_transition()[:7], jnp.float32(1.0))
    gradient = in_batch(grad(bqfd(), floats))(*arguments)
    scalar, zeros = jnp.float32(0), jnp.zeros(3)
    expected = (jnp.array([0.0, -1.0, 0.0]), scalar, scalar, zeros, zeros, scalar)
    chex.assert_trees_all_equal(gradient, expected)


def test_bqfd_correction_carries_gradients_if_asked():
    f = bqfd(stop_correction_gradient=False)
    td_error, gradient = in_batch(value_and_grad(f))(*expert_transition())
    assert td_error == pytest.approx(TARGET + 2 * WEIGHT * 17 / 21 - math.log(2), rel=1e-5)
    # The correction adds -eta^2 w pi(a) (1[a = b] - pi(b)), eta^2 w = 4 * 0.48.
    taken = np.array([0, 1, 0])
    expected = -taken - 4 * WEIGHT * 4 / 21 * (taken - PI)
    chex.assert_trees_all_close(gradient, jnp.array(expected, jnp.float32), atol=1e-6)
    targets = in_batch(grad(f, (2, 3, 4, 5)))(*expert_transition())
    chex.assert_trees_all_equal(targets, jax.tree.map(jnp.zeros_like, targets))


# Steps 1 and 2 of a path; exp(2 q) is 1, 9, 6 and 2, 1, 1, so that pi(a) is 9/16 and 1/2.
LATER = (
    jnp.log(jnp.array([[1.0, 9.0, 6.0], [2.0, 1.0, 1.0]])) / 2,
    jnp.array([1, 0], jnp.int32),
    jnp.array([0.5, 0.25]),
    jnp.array([0.3, 0.8]),
)


def test_a_path_holds_the_corrections_of_all_its_steps_discounted():
    transition = (Q_EXPERT, *TRANSITION[1:], jnp.bool_(True), jnp.float32(WEIGHT))
    td_error = in_batch(bind(losses.bqfd_path_td_error, eta=2.0))(*transition, *LATER)
    chex.assert_shape(td_error, ())
    own = TARGET + 2 * WEIGHT * 17 / 21 - math.log(2)
    later = 0.5 * 2 * 0.3 * 7 / 16 + 0.25 * 2 * 0.8 * 1 / 2
    assert td_error == pytest.approx(own + later, rel=1e-5)


def test_a_path_of_one_step_is_bqfd():
    transition = (Q_EXPERT, *TRANSITION[1:], jnp.bool_(True), jnp.float32(WEIGHT))
    nothing = [x[:0] for x in LATER]
    path = losses.bqfd_path_td_error(*transition, *nothing, eta=2.0)
    assert path == losses.bqfd_td_error(*transition, eta=2.0)


def test_a_path_that_is_not_the_experts_is_double_q():
    transition = (Q_EXPERT, *TRANSITION[1:])
    other = (jnp.bool_(False), jnp.float32(ABSURD))
    path = losses.bqfd_path_td_error(*transition, *other, *LATER, eta=2.0)
    assert path == losses.double_q_td_error(*transition)


@pytest.mark.parametrize("stop", [True, False])
def test_later_steps_of_a_path_carry_gradients_if_asked(stop):
    f = bind(losses.bqfd_path_td_error, eta=2.0, stop_correction_gradient=stop)
    transition = (Q_EXPERT, *TRANSITION[1:], jnp.bool_(True), jnp.float32(WEIGHT))
    gradient = in_batch(grad(f, 8))(*transition, *LATER)
    assert np.any(gradient) != stop
    # Of step 2, -discount eta^2 w pi(a) (1[a = b] - pi(b)): pi is 1/2, 1/4, 1/4.
    expected = -0.25 * 4 * 0.8 * 0.5 * np.array([0.5, -0.25, -0.25])
    np.testing.assert_allclose(gradient[1], 0 * expected if stop else expected, atol=1e-6)


@pytest.mark.parametrize(
    ("q", "expert_a", "margin", "expected"),
    [
        # 1.5 + 0.8 beats the expert's 2: a margin added after the maximum would give 0
        ([2.0, 1.5, 1.0], 0, 0.8, 0.3),
        ([1.0, 1.5, 2.0], 2, 0.8, 0.3),
        # 2 + 0.8 - 1: the margin of the best other action, not that of the nearest
        ([1.0, 2.0, 1.5], 0, 0.8, 1.8),
        ([-ABSURD, 2.0, 1.5], 2, 0.8, 1.3),
        # a lead of at least the margin costs nothing
        ([3.0, 2.0, 1.0], 0, 0.8, 0.0),
        ([2.0, 1.5, 1.0], 0, 0.5, 0.0),
        ([1.0, ABSURD, 1.0], 1, 0.8, 0.0),
        # all alike: exactly the margin
        ([1.0, 1.0, 1.0], 1, 0.8, 0.8),
        # without a margin only a better action costs
        ([2.0, 1.5, 1.0], 1, 0.0, 0.5),
    ],
)
def test_large_margin_by_hand(q, expert_a, margin, expected):
    f = bind(losses.large_margin_loss, margin=margin)
    loss = in_batch(f)(jnp.array(q), jnp.int32(expert_a))
    chex.assert_shape(loss, ())
    assert loss == pytest.approx(expected, abs=1e-6)


def test_large_margin_is_never_negative_and_agrees_with_numpy():
    rng = np.random.default_rng(0)
    # Rounded values make many ties.
    q = np.round(rng.normal(size=(500, 4)), 1).astype(np.float32)
    expert_a = rng.integers(4, size=500)
    f = bind(losses.large_margin_loss, margin=0.8)
    loss = jax.jit(jax.vmap(f))(q, expert_a)
    assert np.all(loss >= 0)
    assert 0 < np.sum(loss == 0) < 500
    expected = [
        max(row[b] + (0.8 if b != a else 0.0) for b in range(4)) - row[a]
        for row, a in zip(q, expert_a, strict=True)
    ]
    np.testing.assert_allclose(loss, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("q", "expert_a", "expected"),
    [
        # the strongest rival falls and the expert's action rises
        ([2.0, 1.5, 1.0], 0, [-1.0, 1.0, 0.0]),
        ([1.0, 1.5, 2.0], 1, [0.0, -1.0, 1.0]),
        # satisfied: nothing moves
        ([3.0, 2.0, 1.0], 0, [0.0, 0.0, 0.0]),
    ],
)
def test_large_margin_gradient(q, expert_a, expected):
    f = grad(bind(losses.large_margin_loss, margin=0.8))
    chex.assert_trees_all_equal(in_batch(f)(jnp.array(q), jnp.int32(expert_a)), jnp.array(expected))


@pytest.mark.parametrize(
    "call",
    [
        lambda: losses.double_q_td_error(Q_TM1[None], *TRANSITION[1:]),
        lambda: losses.double_q_td_error(Q_TM1, A_TM1, R_T[None], *TRANSITION[3:]),
        lambda: losses.double_q_td_error(Q_TM1, jnp.float32(1.0), *TRANSITION[2:]),
        lambda: bqfd()(*expert_transition()[:6], jnp.array([True]), jnp.int32(1)),
        lambda: bqfd()(*expert_transition()[:7], jnp.array([1])),
        lambda: losses.large_margin_loss(Q_TM1[None], A_TM1, margin=0.8),
        lambda: losses.large_margin_loss(Q_TM1, A_TM1[None], margin=0.8),
        lambda: losses.large_margin_loss(Q_TM1, jnp.float32(1.0), margin=0.8),
    ],
)
def test_batches_and_wrong_types_are_refused(call):
    with pytest.raises(AssertionError):
        call()


# --- expert_likelihood_loss ---


def test_the_likelihood_loss_by_hand():
    loss = losses.expert_likelihood_loss(
        Q_EXPERT, jnp.int32(1), jnp.bool_(True), jnp.float32(WEIGHT), eta=2.0
    )
    assert float(loss) == pytest.approx(-WEIGHT * math.log(4 / 21), rel=1e-5)


def test_the_likelihood_loss_descends_along_the_correction_of_all_actions():
    gradient = jax.grad(losses.expert_likelihood_loss)(
        Q_EXPERT, jnp.int32(1), jnp.bool_(True), jnp.float32(WEIGHT), eta=2.0
    )
    np.testing.assert_allclose(gradient, -2 * WEIGHT * (np.array([0, 1, 0]) - PI), rtol=1e-5)


def test_samples_that_are_not_the_experts_have_no_likelihood_loss():
    value, gradient = jax.value_and_grad(losses.expert_likelihood_loss)(
        Q_EXPERT, jnp.int32(1), jnp.bool_(False), jnp.float32(ABSURD), eta=2.0
    )
    assert float(value) == 0.0
    np.testing.assert_array_equal(gradient, np.zeros(3))


def test_an_expert_of_two_minds_is_matched_in_frequency_only_if_all_actions_are_corrected():
    frequency = np.array([0.7, 0.2, 0.1])
    one, zeros = jnp.ones(()), jnp.zeros(3)
    expert = (jnp.bool_(True), jnp.float32(WEIGHT))

    def in_target(q, a, target):
        transition = (q, a, target, 0 * one, zeros, zeros)
        return 0.5 * losses.bqfd_td_error(*transition, *expert, eta=2.0) ** 2

    def for_all(q, a, target):
        td_error = losses.double_q_td_error(q, a, target, 0 * one, zeros, zeros)
        return 0.5 * td_error**2 + losses.expert_likelihood_loss(q, a, *expert, eta=2.0)

    def mean_loss(q, target, loss):
        """Of an expert who takes action a with its frequency, `target[a]` coming of it."""
        return sum(frequency[a] * loss(q, jnp.int32(a), target[a]) for a in range(3))

    # Each has its closed form for a fixed point, and does not rest at the other's.
    for loss, other, shift in (
        (for_all, in_target, 1 - PI / frequency),
        (in_target, for_all, 1 - PI),
    ):
        target = jnp.asarray(Q_EXPERT - 2 * WEIGHT * shift, jnp.float32)
        gradient = jax.grad(mean_loss)(Q_EXPERT, target, loss)
        np.testing.assert_allclose(gradient, np.zeros(3), atol=1e-6)
        assert np.abs(jax.grad(mean_loss)(Q_EXPERT, target, other)).max() > 0.01
