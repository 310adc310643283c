import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax import posterior

# exp(q) is 1, 2, 4: eta = 1 makes it 1/7, 2/7, 4/7, and eta = 2 squares the odds to 1, 4, 16 of 21.
Q = jnp.log(jnp.array([1.0, 2.0, 4.0]))
PI_1 = np.array([1, 2, 4]) / 7
PI_2 = np.array([1, 4, 16]) / 21


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


def action(a):
    return jnp.int32(a)


@pytest.mark.parametrize(
    ("eta", "expected"), [(1.0, PI_1), (2.0, PI_2), (0.0, [1 / 3] * 3), (-1.0, PI_1[::-1])]
)
def test_boltzmann_policy_by_hand(eta, expected):
    pi = in_batch(bind(posterior.boltzmann_policy, eta=eta))(Q)
    chex.assert_trees_all_close(pi, jnp.array(expected, jnp.float32), rtol=1e-6)


def test_boltzmann_policy_depends_on_differences_only_and_does_not_overflow():
    policy = bind(posterior.boltzmann_policy, eta=3.0)
    chex.assert_trees_all_close(policy(Q + 10.0), policy(Q), rtol=1e-5)
    # 3e4 is far beyond the logarithm of the largest float32.
    chex.assert_trees_all_close(policy(jnp.array([1e4, -1e4, 1e4])), jnp.array([0.5, 0.0, 0.5]))


@pytest.mark.parametrize("expert_a", [0, 1, 2])
@pytest.mark.parametrize(("eta", "pi"), [(1.0, PI_1), (2.0, PI_2)])
def test_log_likelihood_and_its_gradient_by_hand(eta, pi, expert_a):
    f = bind(posterior.expert_log_likelihood, eta=eta)
    value, gradient = in_batch(value_and_grad(f))(Q, action(expert_a))
    assert value == pytest.approx(math.log(pi[expert_a]), rel=1e-5)
    chex.assert_trees_all_close(
        gradient, jnp.array(eta * (np.eye(3)[expert_a] - pi), jnp.float32), atol=1e-6
    )


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, 0.6),  # nothing seen yet: the prior
        (1, 0.6 * 20 / 25),  # 16 + 4 over 5^2
        (4, 0.6 * 32 / 64),  # 16 + 16 over 8^2
        (10, 0.6 * 56 / 196),  # 16 + 40 over 14^2
        (2.5, 0.6 * 26 / 42.25),  # 16 + 10 over 6.5^2
    ],
)
def test_visit_weight_by_hand(count, expected):
    f = bind(posterior.visit_weight, beta=4.0, variance=0.6)
    weight = in_batch(f)(jnp.asarray(count))
    chex.assert_shape(weight, ())
    chex.assert_type(weight, jnp.float32)
    assert weight == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("noise_ratio", "expected"),
    [(4.0, 2.0 * 32 / 64), (1.0, 2.0 * 20 / 64), (0.0, 2.0 * 16 / 64), (9.0, 2.0 * 52 / 64)],
)
def test_noise_ratio_scales_only_the_targets(noise_ratio, expected):
    weight = posterior.visit_weight(4, beta=4.0, variance=2.0, noise_ratio=noise_ratio)
    assert weight == pytest.approx(expected, rel=1e-6)
    unseen = posterior.visit_weight(0, beta=4.0, variance=2.0, noise_ratio=noise_ratio)
    assert unseen == 2.0


def test_visit_weight_keeps_the_shape_of_the_counts():
    counts = np.array([[0, 1, 4], [10, 0, 1]])
    weights = posterior.visit_weight(counts, beta=4.0, variance=0.6)
    expected = [[0.6, 0.48, 0.3], [0.6 * 56 / 196, 0.6, 0.48]]
    chex.assert_trees_all_close(weights, jnp.array(expected), rtol=1e-6)


@pytest.mark.parametrize("beta", [2.0, 4.0, 30.0])
def test_visit_weight_only_falls_if_the_prior_counts_for_two_visits(beta):
    # d w / d n < 0 wherever n > beta (1 - 2 beta / noise_ratio): everywhere once beta >= 2.
    weights = posterior.visit_weight(np.arange(1000), beta=beta, variance=0.6)
    assert np.all(np.diff(weights) < 0)


def test_visit_weight_of_a_weak_prior_first_rises():
    # beta = 1: (1, 5, 9, 13) over (1, 4, 9, 16).
    weights = posterior.visit_weight(np.arange(4), beta=1.0, variance=1.0)
    chex.assert_trees_all_close(weights, jnp.array([1.0, 1.25, 1.0, 0.8125]))


@pytest.mark.parametrize("noise_ratio", [4.0, 1.0])
def test_visit_weight_ends_as_the_variance_of_a_mean_of_targets(noise_ratio):
    # n w_n -> noise_ratio * variance; at n = 1e6 the prior still makes 2 beta / n of it.
    n = 1_000_000
    weight = posterior.visit_weight(n, beta=4.0, variance=0.6, noise_ratio=noise_ratio)
    assert n * weight == pytest.approx(0.6 * noise_ratio, rel=1e-4)


@pytest.mark.parametrize(
    ("beta", "variance", "noise_ratio"), [(4.0, 0.6, 4.0), (1.5, 0.6, 4.0), (4.0, 2.0, 1.0)]
)
def test_visit_weight_is_the_variance_of_the_running_estimate(beta, variance, noise_ratio):
    samples, n = 100_000, 6
    rng = np.random.default_rng(0)
    prior = rng.normal(0.0, np.sqrt(variance), samples)
    targets = rng.normal(0.0, np.sqrt(noise_ratio * variance), (n, samples))
    estimate, variances = prior, [prior.var()]
    for k in range(1, n + 1):
        alpha = 1 / (beta + k)
        estimate = (1 - alpha) * estimate + alpha * targets[k - 1]
        variances.append(estimate.var())
    # The recursion is the weighted mean that the formula was derived from.
    np.testing.assert_allclose(estimate, (beta * prior + targets.sum(0)) / (beta + n), atol=1e-9)
    weights = posterior.visit_weight(
        np.arange(n + 1), beta=beta, variance=variance, noise_ratio=noise_ratio
    )
    # A sample variance has relative deviation sqrt(2 / samples) = 0.0045.
    np.testing.assert_allclose(variances, weights, rtol=0.02)


@pytest.mark.parametrize(
    ("a", "expert_a", "expected"),
    [
        # 2 * 0.5 = 1 times the indicator minus (1, 4, 16) / 21.
        (1, 1, 17 / 21),
        (0, 1, -1 / 21),
        (2, 1, -16 / 21),
        (2, 2, 5 / 21),
        (1, 2, -4 / 21),
    ],
)
def test_expert_correction_by_hand(a, expert_a, expected):
    f = bind(posterior.expert_correction, eta=2.0)
    correction = in_batch(f)(Q, action(a), action(expert_a), jnp.float32(0.5))
    chex.assert_shape(correction, ())
    assert correction == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("eta", [0.5, 3.0])
def test_corrections_are_the_weighted_gradient_of_the_log_likelihood(eta):
    q = jnp.array([0.3, -1.2, 0.9, 0.2])
    actions = jnp.arange(4)
    correct = bind(posterior.expert_correction, eta=eta)
    log_likelihood = bind(posterior.expert_log_likelihood, eta=eta)

    def all_corrections(q, expert_a, weight):
        return jax.vmap(correct, in_axes=(None, 0, None, None))(q, actions, expert_a, weight)

    all_corrections, gradients = in_batch(all_corrections), jax.jit(grad(log_likelihood))
    for expert_a in actions:
        corrections, gradient = (
            all_corrections(q, expert_a, np.float32(0.7)),
            gradients(q, expert_a),
        )
        chex.assert_trees_all_close(corrections, 0.7 * gradient, atol=1e-6)
        # Only the expert's own action gains, and what it gains the others lose.
        np.testing.assert_array_equal(corrections > 0, actions == expert_a)
        assert jnp.sum(corrections) == pytest.approx(0, abs=1e-6)


def test_correction_vanishes_without_weight_or_without_preferences():
    arguments = Q, action(1), action(1)
    assert posterior.expert_correction(*arguments, jnp.float32(0.0), eta=2.0) == 0
    assert posterior.expert_correction(*arguments, jnp.float32(0.5), eta=0.0) == 0
    # The expert's choice no longer surprises anyone: 1 - pi is 0.
    certain = jnp.array([-1e3, 1e3, -1e3])
    assert posterior.expert_correction(certain, *arguments[1:], jnp.float32(0.5), eta=2.0) == 0


def test_correction_carries_gradients():
    # d/dq(b) of eta w (1 - pi(a)) is -eta^2 w pi(a) (1[a = b] - pi(b)); here eta^2 w = 2.
    f = grad(bind(posterior.expert_correction, eta=2.0), argnums=(0, 3))
    q_gradient, weight_gradient = in_batch(f)(Q, action(1), action(1), jnp.float32(0.5))
    expected = -2 * 4 / 21 * (np.array([0, 1, 0]) - PI_2)
    chex.assert_trees_all_close(q_gradient, jnp.array(expected, jnp.float32), atol=1e-6)
    assert weight_gradient == pytest.approx(2 * 17 / 21, rel=1e-5)


@pytest.mark.parametrize("a", [0, 1, 2])
def test_path_of_one_step_is_the_expert_correction(a):
    weight = jnp.float32(0.48)
    f = bind(posterior.path_correction, eta=2.0)
    along_path = in_batch(f)(Q[None], action(a)[None], jnp.ones(1), weight[None])
    chex.assert_shape(along_path, ())
    alone = posterior.expert_correction(Q, action(a), action(a), weight, eta=2.0)
    chex.assert_trees_all_close(along_path, alone, rtol=1e-6)


def test_path_correction_by_hand():
    # With eta = 1: step 0 takes action 2 (pi 4/7), step 1 action 0 (4/7), step 2 action 1 (1/3).
    q = jnp.stack([Q, Q[::-1], jnp.zeros(3)])
    a = jnp.array([2, 0, 1])
    discount = jnp.array([1.0, 0.9, 0.9 * 0.8])
    weight = jnp.array([0.6, 0.5, 0.25])
    correction = in_batch(bind(posterior.path_correction, eta=1.0))(q, a, discount, weight)
    expected = 1.0 * 0.6 * 3 / 7 + 0.9 * 0.5 * 3 / 7 + 0.72 * 0.25 * 2 / 3
    assert correction == pytest.approx(expected, rel=1e-5)


def test_path_past_the_end_counts_for_nothing():
    # The episode ended at step 0: what the later entries hold is left over from elsewhere.
    q = jnp.stack([Q, jnp.array([1e3, -1e3, 0.0]), jnp.full(3, 1e3)])
    a = jnp.array([1, 1, 0])
    f = value_and_grad(bind(posterior.path_correction, eta=2.0))
    correction, gradient = in_batch(f)(q, a, jnp.array([1.0, 0.0, 0.0]), jnp.array([0.5, 1e3, 1e3]))
    assert correction == pytest.approx(17 / 21, rel=1e-5)
    assert np.all(gradient[0] != 0)
    np.testing.assert_array_equal(gradient[1:], 0)


@pytest.mark.parametrize(
    ("zeta", "expected"),
    [(1.0, 4 / 21), (0.5, (4 / 21) ** 0.5), (0.2, (4 / 21) ** 0.2), (0.0, 1.0)],
)
def test_off_policy_weight_by_hand(zeta, expected):
    f = bind(posterior.off_policy_weight, eta=2.0, zeta=zeta)
    weight = in_batch(f)(Q, action(1))
    chex.assert_shape(weight, ())
    assert weight == pytest.approx(expected, rel=1e-5)


def test_off_policy_weight_without_zeta_is_one_and_constant():
    weight, gradient = value_and_grad(posterior.off_policy_weight)(
        jnp.array([-1e4, 1e4]), action(0), eta=3.0, zeta=0.0
    )
    assert weight == 1
    np.testing.assert_array_equal(gradient, 0)


def test_off_policy_weight_survives_a_probability_that_underflows():
    q = jnp.array([0.0, 200.0])
    assert posterior.boltzmann_policy(q, eta=1.0)[0] == 0
    f = bind(posterior.off_policy_weight, eta=1.0, zeta=0.2)
    weight, gradient = in_batch(value_and_grad(f))(q, action(0))
    # (e^-200)^0.2 = e^-40, whose gradient is zeta e^-40 (1, -1).
    assert weight == pytest.approx(math.exp(-40), rel=1e-4)
    expected = 0.2 * math.exp(-40) * np.array([1, -1])
    np.testing.assert_allclose(gradient, expected, rtol=1e-4)


def test_off_policy_gradient_is_finite_where_even_the_weight_underflows():
    f = bind(posterior.off_policy_weight, eta=3.0, zeta=0.2)
    weight, gradient = in_batch(value_and_grad(f))(jnp.array([-1e4, 1e4]), action(0))
    assert weight == 0
    np.testing.assert_array_equal(gradient, 0)


def test_a_path_is_weighed_by_all_of_its_choices_up_to_the_end():
    q = jnp.stack([Q, jnp.zeros(3), jnp.array([-1e4, 1e4, 0.0])])
    f = bind(posterior.path_off_policy_weight, eta=2.0, zeta=0.5)
    # 4/21 and 1/3; the third choice comes after the end, where its probability 0 does not matter.
    weight = in_batch(f)(q, jnp.array([1, 2, 0]), jnp.array([1.0, 0.9, 0.0]))
    chex.assert_shape(weight, ())
    assert weight == pytest.approx((4 / 63) ** 0.5, rel=1e-5)


def test_the_ensemble_weight_is_what_is_left_of_the_disagreement():
    # Of action 1 the variance is (1 + 0 + 1) / 3; the others are absurd.
    q = jnp.array([[-1e3, 1.0, 1e3], [1e3, 2.0, -1e3], [0.0, 3.0, 7e3]])
    weigh = bind(posterior.ensemble_weight, initial=2.0, variance=0.6)
    weight = in_batch(weigh)(q, action(1))
    chex.assert_shape(weight, ())
    assert weight == pytest.approx(0.6 * (2 / 3) / 2, rel=1e-5)
    # More disagreement than at first is no more than the prior's variance.
    assert in_batch(weigh)(q, action(0)) == pytest.approx(0.6)
    assert in_batch(weigh)(q[:1], action(0)) == 0.0


def test_the_predictive_likelihood_is_the_mean_over_members():
    # One member takes action 0 with probability 4/5, the other with 1/2.
    q = jnp.array([[math.log(2), 0.0], [5.0, 5.0]])
    f = bind(posterior.predictive_log_likelihood, eta=2.0)
    assert in_batch(f)(q, action(0)) == pytest.approx(math.log(0.65), rel=1e-5)
    assert in_batch(f)(q, action(1)) == pytest.approx(math.log(0.35), rel=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: posterior.boltzmann_policy(Q[None], eta=1.0),
        lambda: posterior.ensemble_weight(Q, action(0), initial=1.0, variance=1.0),
        lambda: posterior.ensemble_weight(Q[None], Q[0], initial=1.0, variance=1.0),
        lambda: posterior.predictive_log_likelihood(Q, action(0), eta=1.0),
        lambda: posterior.boltzmann_policy(jnp.arange(3), eta=1.0),
        lambda: posterior.expert_log_likelihood(Q, jnp.array([1, 2]), eta=1.0),
        lambda: posterior.expert_log_likelihood(Q, jnp.float32(1.0), eta=1.0),
        lambda: posterior.expert_correction(Q, action(0), action(0), jnp.ones(3), eta=1.0),
        lambda: posterior.expert_correction(Q, action(0), action(0), action(1), eta=1.0),
        lambda: posterior.path_correction(Q, action(0), jnp.ones(1), jnp.ones(1), eta=1.0),
    ],
)
def test_batches_and_wrong_types_are_refused(call):
    with pytest.raises(AssertionError):
        call()
