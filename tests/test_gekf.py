"""Algorithm 1 beside Newton steps, numerical minimisers and backward induction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from bqfd_jax import gekf

ETA, NOISE, GAMMA = 2.0, 0.7, 0.9
correct = jax.jit(gekf.correct, static_argnames=("correction", "iterations"))
backward_filter = jax.jit(gekf.backward_filter, static_argnames=("correction", "iterations"))


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def random_problem(seed, *, horizon=3, states=3, actions=2, known=0.7):
    rng = np.random.default_rng(seed)
    shape = (horizon, states, actions)
    expert = rng.integers(0, actions, shape[:2])
    expert[rng.uniform(size=expert.shape) > known] = gekf.NO_EXPERT
    return rng.normal(size=shape), rng.integers(0, states, shape), expert


def random_belief(seed, *, states=3, actions=2):
    rng = np.random.default_rng(seed)
    size = states * actions
    root = rng.normal(size=(size, size))
    mean = jnp.asarray(rng.normal(size=(states, actions)))
    return gekf.Belief(mean, jnp.asarray(root @ root.T / size + 0.1 * np.eye(size)))


def energy(belief, expert, eta=ETA):
    """The negative log posterior of one step, but for a constant."""
    precision = np.linalg.inv(belief.covariance)
    mean = belief.mean.reshape(-1)

    @jax.jit
    def function(q):
        log_pi = jax.nn.log_softmax(eta * q.reshape(belief.mean.shape))
        chosen = jnp.take_along_axis(log_pi, jnp.maximum(expert, 0)[:, None], axis=1)[:, 0]
        fit = jnp.sum(jnp.where(expert >= 0, chosen, 0.0))
        return 0.5 * (q - mean) @ precision @ (q - mean) - fit

    return function


# ------------------------------------------------------------------------------------ one step


def test_prediction_by_hand():
    # Two states, two actions; from (0, 1) and (1, 0) one comes to state 1, else to state 0.
    mean = jnp.array([[1.0, 3.0], [5.0, -1000.0]])
    covariance = jnp.diag(jnp.array([1000.0, 2.0, 4.0, 1000.0])).at[1, 2].set(0.5).at[2, 1].set(0.5)
    reward = jnp.array([[0.1, 0.2], [0.3, 0.4]])
    next_state = jnp.array([[0, 1], [1, 0]])
    predicted = gekf.predict(
        gekf.Belief(mean, covariance), reward, next_state, gamma=0.5, noise=0.25
    )
    np.testing.assert_allclose(predicted.mean, [[0.1 + 1.5, 0.2 + 2.5], [0.3 + 2.5, 0.4 + 1.5]])
    # Best are (0, 1) with variance 2 and (1, 0) with variance 4, covariance 0.5.
    pairs = np.array([[2, 0.5, 0.5, 2], [0.5, 4, 4, 0.5], [0.5, 4, 4, 0.5], [2, 0.5, 0.5, 2]])
    np.testing.assert_allclose(predicted.covariance, 0.25 * pairs + 0.25 * np.eye(4))


@pytest.mark.parametrize("seed", range(5))
def test_the_full_correction_is_one_newton_step(seed):
    belief = random_belief(seed)
    expert = jnp.array([1, gekf.NO_EXPERT, 0])
    corrected = correct(belief, expert, eta=ETA, correction="full")
    function = energy(belief, expert)
    start = belief.mean.reshape(-1)
    hessian = jax.hessian(function)(start)
    step = start - jnp.linalg.solve(hessian, jax.grad(function)(start))
    np.testing.assert_allclose(corrected.mean.reshape(-1), step, atol=1e-10)
    np.testing.assert_allclose(corrected.covariance, np.linalg.inv(hessian), atol=1e-10)


@pytest.mark.parametrize(("seed", "eta"), [(0, 1.0), (1, 3.0), (2, 10.0), (4, 30.0)])
def test_iterated_corrections_reach_the_mode(seed, eta):
    belief = random_belief(seed)
    expert = jnp.array([1, 0, gekf.NO_EXPERT])
    corrected = correct(belief, expert, eta=eta, correction="full", iterations=30)
    function = energy(belief, expert, eta)
    found = scipy.optimize.minimize(
        function,
        np.zeros(6),
        jac=jax.jit(jax.grad(function)),
        method="BFGS",
        options={"gtol": 1e-9},
    )
    np.testing.assert_allclose(corrected.mean.reshape(-1), found.x, atol=1e-5)
    once = correct(belief, expert, eta=eta, correction="full")
    assert np.abs(once.mean.reshape(-1) - found.x).max() > 1e-4


def test_the_diagonal_correction_by_hand():
    belief = gekf.Belief(jnp.log(jnp.array([[1.0, 2.0, 4.0]])) / ETA, 0.5 * jnp.eye(3))
    corrected = correct(belief, jnp.array([1]), eta=ETA)
    pi = np.array([1, 2, 4]) / 7
    curvature = ETA**2 * (np.diag(pi) - np.outer(pi, pi))
    covariance = np.linalg.inv(2 * np.eye(3) + curvature)
    np.testing.assert_allclose(corrected.covariance, covariance, atol=1e-12)
    expected = belief.mean[0] + np.diag(covariance) * ETA * (np.array([0, 1, 0]) - pi)
    np.testing.assert_allclose(corrected.mean[0], expected, atol=1e-12)


@pytest.mark.parametrize("correction", ["diagonal", "full"])
def test_states_without_expert_and_uncorrelated_are_left_alone(correction):
    belief = gekf.Belief(jnp.ones((2, 2)), jnp.diag(jnp.array([1.0, 2.0, 3.0, 4.0])))
    corrected = correct(belief, jnp.array([gekf.NO_EXPERT, 1]), eta=ETA, correction=correction)
    np.testing.assert_array_equal(corrected.mean[0], [1.0, 1.0])
    np.testing.assert_allclose(corrected.covariance[:2, :2], np.diag([1.0, 2.0]), atol=1e-12)
    assert corrected.mean[1, 1] > 1 > corrected.mean[1, 0]
    assert corrected.covariance[2, 2] < 3


def test_a_singular_covariance_is_no_obstacle():
    # Two values that are known to be equal.
    belief = gekf.Belief(jnp.zeros((1, 2)), jnp.ones((2, 2)))
    corrected = correct(belief, jnp.array([0]), eta=ETA, correction="full", iterations=5)
    np.testing.assert_allclose(corrected.mean, np.zeros((1, 2)), atol=1e-12)
    nothing = gekf.Belief(jnp.zeros((1, 2)), jnp.zeros((2, 2)))
    corrected = correct(nothing, jnp.array([0]), eta=ETA, correction="full")
    np.testing.assert_array_equal(corrected.mean, np.zeros((1, 2)))


# ----------------------------------------------------------------------------------- all steps


def backward_induction(rewards, next_states, gamma):
    value, q = np.zeros(rewards.shape[1]), []
    for reward, next_state in zip(rewards[::-1], next_states[::-1], strict=True):
        q.append(reward + gamma * value[next_state])
        value = q[-1].max(1)
    return np.stack(q[::-1])


@pytest.mark.parametrize("correction", ["diagonal", "full"])
@pytest.mark.parametrize("without", ["expert", "eta"])
def test_without_an_expert_it_is_backward_induction(correction, without):
    rewards, next_states, expert = random_problem(0, horizon=5)
    eta = 0.0 if without == "eta" else ETA
    if without == "expert":
        expert = np.full_like(expert, gekf.NO_EXPERT)
    beliefs = backward_filter(
        rewards, next_states, expert, eta=eta, gamma=GAMMA, noise=NOISE, correction=correction
    )
    expected = backward_induction(rewards, next_states, GAMMA)
    np.testing.assert_allclose(beliefs.mean, expected, atol=1e-12)
    # Nothing is learnt, so variances add up along the way.
    depth = np.cumsum(GAMMA ** (2 * np.arange(5)))[::-1]
    variances = np.diagonal(beliefs.covariance, axis1=1, axis2=2)
    np.testing.assert_allclose(variances, NOISE * np.repeat(depth[:, None], 6, axis=1))


def test_the_scan_is_the_steps_one_after_the_other():
    rewards, next_states, expert = random_problem(1, horizon=4)
    options = {"eta": ETA, "correction": "full", "iterations": 3}
    beliefs = backward_filter(rewards, next_states, expert, gamma=GAMMA, noise=NOISE, **options)
    belief = gekf.Belief(jnp.zeros((3, 2)), jnp.zeros((6, 6)))
    for h in range(3, -1, -1):
        belief = gekf.predict(belief, rewards[h], next_states[h], gamma=GAMMA, noise=NOISE)
        belief = correct(belief, expert[h], **options)
        np.testing.assert_allclose(beliefs.mean[h], belief.mean, atol=1e-12)
        np.testing.assert_allclose(beliefs.covariance[h], belief.covariance, atol=1e-12)


@pytest.mark.parametrize("correction", ["diagonal", "full"])
@pytest.mark.parametrize("eta", [0.5, 3.0, 50.0])
def test_covariances_stay_symmetric_and_positive_in_single_precision(correction, eta):
    with jax.enable_x64(False):
        rewards, next_states, expert = random_problem(2, horizon=40, states=5, actions=3)
        covariance = backward_filter(
            rewards, next_states, expert, eta=eta, gamma=1.0, noise=10.0, correction=correction
        ).covariance
    covariance = np.asarray(covariance, np.float64)
    np.testing.assert_array_equal(covariance, covariance.transpose(0, 2, 1))
    lowest = np.linalg.eigvalsh(covariance).min(1)
    assert (lowest >= -1e-5 * np.abs(covariance).max((1, 2))).all()


@pytest.mark.parametrize("seed", range(4))
def test_how_far_the_filter_is_from_the_whole_objective(seed, record_property):
    """At the last step of the backward pass the filter knows all; before it, later steps only."""
    rewards, next_states, expert = random_problem(seed)
    options = {"eta": ETA, "gamma": GAMMA, "noise": NOISE}
    problem = (rewards, next_states, expert)
    beliefs = backward_filter(*problem, correction="full", iterations=30, **options)

    @jax.jit
    def objective(q):
        return gekf.objective(q.reshape(rewards.shape), *problem, **options)

    # The maximum makes it piecewise: start from where the filter ended.
    start = np.asarray(beliefs.mean).reshape(-1)
    found = scipy.optimize.minimize(
        objective, start, jac=jax.jit(jax.grad(objective)), method="BFGS"
    )
    best = found.x.reshape(rewards.shape)
    error = np.abs(beliefs.mean[0] - best[0]).max()
    none = backward_induction(rewards, next_states, GAMMA)
    correction = np.abs(none[0] - best[0]).max()
    record_property("filter_error", float(error))
    record_property("size_of_correction", float(correction))
    # Linearising the maximum and the likelihood costs something, but less than it brings.
    assert error < 0.5 * correction
    assert objective(start) < objective(none.reshape(-1))


def test_the_objective_by_hand():
    q = jnp.array([[[1.0, 2.0]], [[3.0, 5.0]]])
    rewards = jnp.array([[[0.5, 1.0]], [[2.0, 4.0]]])
    next_states = jnp.zeros((2, 1, 2), int)
    expert = jnp.array([[0], [gekf.NO_EXPERT]])
    value = gekf.objective(q, rewards, next_states, expert, eta=2.0, gamma=0.5, noise=0.25)
    # Residuals: 1 - (0.5 + 2.5), 2 - (1 + 2.5); 3 - 2, 5 - 4.
    squares = 4 + 2.25 + 1 + 1
    log_p = -np.log(1 + np.exp(2.0))
    assert float(value) == pytest.approx(0.5 * squares / 0.25 - log_p)


# ---------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": np.zeros((3, 3))}, r"shape of rewards is \(3, 3\)"),
        ({"next_states": np.zeros((2, 3, 2), int)}, r"shape of next_states is \(2, 3, 2\)"),
        ({"expert_actions": np.zeros((2, 3), int)}, r"shape of expert_actions is \(2, 3\)"),
        ({"next_states": np.full((3, 3, 2), 3)}, "next_states is 3, but must be in"),
        ({"expert_actions": np.full((3, 3), 2)}, "expert_actions is 2"),
        ({"expert_actions": np.zeros((3, 3))}, "float64, but must be integer"),
        ({"rewards": np.full((3, 3, 2), np.nan)}, "finite"),
        ({"eta": -1.0}, "eta is -1"),
        ({"gamma": 1.5}, "gamma is 1.5"),
        ({"noise": 0.0}, "noise is 0"),
        ({"correction": "half"}, "'half'"),
        ({"iterations": 0}, "iterations is 0"),
        ({"iterations": 2}, "iterations is 2"),
    ],
)
def test_bad_input_is_named(changes, message):
    rewards, next_states, expert = random_problem(0)
    arguments = {
        "rewards": rewards,
        "next_states": next_states,
        "expert_actions": expert,
        "eta": ETA,
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        gekf.backward_filter(**arguments)


def test_checks_that_need_no_values_hold_under_jit():
    rewards, next_states, expert = random_problem(0)
    with pytest.raises(ValueError, match=r"shape of next_states is \(2, 3, 2\)"):
        backward_filter(rewards, next_states[:2], expert, eta=ETA)
    with pytest.raises(ValueError, match="expert_actions is 9"):
        jax.jit(lambda r: gekf.backward_filter(r, next_states, np.full_like(expert, 9), eta=ETA))(
            rewards
        )
    with pytest.raises(ValueError, match="'Diagonal'"):
        gekf.correct(random_belief(0), jnp.zeros(3, int), eta=ETA, correction="Diagonal")


def test_narrow_integers_do_not_overflow():
    rewards, next_states, expert = random_problem(0, horizon=2, states=100)
    wide = backward_filter(rewards, next_states, expert, eta=ETA)
    narrow = backward_filter(rewards, next_states.astype(np.int8), expert.astype(np.int8), eta=ETA)
    np.testing.assert_array_equal(wide.mean, narrow.mean)


def test_a_covariance_of_lower_rank_is_the_limit_of_full_ones():
    root = np.random.default_rng(0).normal(size=(4, 2))
    mean, expert = jnp.array([[0.1, 0.2], [0.3, 0.0]]), jnp.array([0, 1])
    exact = correct(gekf.Belief(mean, root @ root.T), expert, eta=ETA, correction="full")
    near = correct(
        gekf.Belief(mean, root @ root.T + 1e-9 * np.eye(4)), expert, eta=ETA, correction="full"
    )
    np.testing.assert_allclose(exact.mean, near.mean, atol=1e-6)
    np.testing.assert_allclose(exact.covariance, near.covariance, atol=1e-6)
    assert np.abs(exact.mean - mean).max() > 0.1
