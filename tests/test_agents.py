"""Losses by hand on Q tables, the shared update step by step, acting, and the configs."""

import dataclasses
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import (
    ABSURD,
    DEMONSTRATIONS,
    NUM_ACTIONS,
    NUM_STATES,
    PLAIN,
    configure,
    filled_replay,
    make_batch,
    make_rows,
    quick_jit,
    softmax,
    table_network,
)

from bqfd_jax import agents, losses, networks
from bqfd_jax.agents import (
    AgentConfig,
    BootstrappedConfig,
    BqfdConfig,
    CloneConfig,
    DqfdConfig,
    EnsembleBqfdConfig,
    PddDqnConfig,
    acting,
    bootstrapped,
    bqfd,
    clone,
    dqfd,
    learner,
    pdd_dqn,
    td,
)
from bqfd_jax.replay import make_replay

KEY = jax.random.key(0)
DEMO_ROWS = len(DEMONSTRATIONS)
NETWORK = table_network(NUM_STATES, NUM_ACTIONS)

# States: 0, 1, 2 are sample 0's own, next and n-step state, 3, 4, 5 sample 1's; 6, 7 are absurd.
# Online values of actions not taken do not matter to TD errors; the selected action of a next
# state is where the online network is absurd and the target network is not.
ONLINE = np.array(
    [
        [0.5, 2.0, -1.0],
        [ABSURD, -ABSURD, 0.0],
        [0.0, 0.0, ABSURD],
        [1.0, -0.5, 1.5],
        [0.0, ABSURD, -ABSURD],
        [ABSURD, 0.0, 0.0],
        [ABSURD, ABSURD, ABSURD],
        [ABSURD, ABSURD, ABSURD],
    ]
)
TARGET = np.array(
    [
        [ABSURD, ABSURD, ABSURD],
        [3.0, ABSURD, ABSURD],
        [ABSURD, ABSURD, -2.0],
        [ABSURD, ABSURD, ABSURD],
        [-ABSURD, 4.0, ABSURD],
        [8.0, ABSURD, -ABSURD],
        [ABSURD, ABSURD, ABSURD],
        [ABSURD, ABSURD, ABSURD],
    ]
)
ONE_STEP = {
    "observation": [0, 3],
    "action": [1, 2],
    "reward": [1.0, -1.0],
    "discount": [0.5, 0.25],
    "next_observation": [1, 4],
}
N_STEP = {
    "observation": [0, 3],
    "action": [1, 2],
    "n_step_return": [4.0, 2.0],
    "n_step_discount": [0.25, 0.125],
    "n_step_observation": [2, 5],
}
WEIGHTED = {"importance_weight": [1.0, 0.5]}
# 1 + 0.5 * 3 - 2 and -1 + 0.25 * 4 - 1.5; 4 + 0.25 * -2 - 2 and 2 + 0.125 * 8 - 1.5
ONE_STEP_TD = np.array([0.5, -1.5])
N_STEP_TD = np.array([1.5, 1.5])


def params_of(table):
    return {"table": jnp.asarray(table, jnp.float32)}


def run_loss(make_loss, config, batch, *, online=ONLINE, target=TARGET, network=NETWORK):
    """Loss, its output, and the gradient in the online table."""
    loss = quick_jit(jax.value_and_grad(make_loss(network, config), has_aux=True))
    (value, output), gradient = loss(params_of(online), params_of(target), batch)
    return float(value), output, np.asarray(gradient["table"])


def table_gradient(*entries):
    """A table of zeros but for `(state, action, value)`."""
    gradient = np.zeros((NUM_STATES, NUM_ACTIONS))
    for state, action, value in entries:
        gradient[state, action] = value
    return gradient


# --------------------------------------------------------------------------------- PDD DQN


def test_pdd_dqn_one_step():
    value, output, gradient = run_loss(
        pdd_dqn.make_loss, configure(PddDqnConfig), make_batch(**ONE_STEP, **WEIGHTED)
    )
    np.testing.assert_allclose(output.td_error, ONE_STEP_TD)
    assert value == pytest.approx((0.5 * 0.25 + 0.5 * 0.5 * 2.25) / 2)
    # d loss / d q(s, a) = -weight td / B, and nothing else: no gradient enters a target.
    np.testing.assert_allclose(gradient, table_gradient((0, 1, -0.25), (3, 2, 0.375)))
    assert float(output.metrics["mean_q"]) == pytest.approx(ONLINE[[0, 3]].mean())


def test_pdd_dqn_n_step():
    config = configure(PddDqnConfig, one_step_weight=0.0, n_step_weight=2.0)
    value, output, gradient = run_loss(pdd_dqn.make_loss, config, make_batch(**N_STEP, **WEIGHTED))
    np.testing.assert_allclose(output.td_error, N_STEP_TD)
    assert value == pytest.approx(2.0 * (0.5 * 2.25 + 0.5 * 0.5 * 2.25) / 2)
    np.testing.assert_allclose(gradient, table_gradient((0, 1, -1.5), (3, 2, -0.75)))


def test_pdd_dqn_both_lookaheads_add_up_and_priorities_look_one_step_ahead():
    config = configure(PddDqnConfig, one_step_weight=3.0, n_step_weight=2.0)
    value, output, gradient = run_loss(
        pdd_dqn.make_loss, config, make_batch(**(ONE_STEP | N_STEP), **WEIGHTED)
    )
    one_step = (0.5 * 0.25 + 0.5 * 0.5 * 2.25) / 2
    n_step = (0.5 * 2.25 + 0.5 * 0.5 * 2.25) / 2
    assert value == pytest.approx(3.0 * one_step + 2.0 * n_step)
    np.testing.assert_allclose(output.td_error, ONE_STEP_TD)
    np.testing.assert_allclose(
        gradient, table_gradient((0, 1, -0.75 - 1.5), (3, 2, 1.125 - 0.75)), rtol=1e-6
    )


def test_huber_turns_linear_at_its_delta():
    value, output, gradient = run_loss(
        pdd_dqn.make_loss, configure(PddDqnConfig, huber_delta=1.0), make_batch(**ONE_STEP)
    )
    assert value == pytest.approx((0.5 * 0.25 + (1.5 - 0.5)) / 2)
    np.testing.assert_allclose(output.td_error, ONE_STEP_TD)  # priorities see the whole error
    np.testing.assert_allclose(gradient, table_gradient((0, 1, -0.25), (3, 2, 0.5)))
    errors = jnp.array([-3.0, -0.25, 0.0, 0.5, 2.0])
    np.testing.assert_allclose(
        td.td_loss(errors, huber_delta=0.5), [1.375, 0.03125, 0.0, 0.125, 0.875]
    )
    np.testing.assert_allclose(td.td_loss(errors, huber_delta=0.0), [4.5, 0.03125, 0.0, 0.125, 2.0])


def test_squashed_values_are_learnt_from_squashed_targets():
    """Values of h(x) = sign(x) (sqrt(|x| + 1) - 1) + x / 100, chosen so that h is a few digits."""
    h = {0.0: 0.0, 3.0: 1.03, 8.0: 2.08, 15.0: 3.15, -3.0: -1.03}
    target = TARGET.copy()
    target[1, 0], target[4, 1] = h[8.0], h[-3.0]
    batch = make_batch(**ONE_STEP | {"reward": [-1.0, 3.75], "discount": [0.5, 0.25]})
    config = configure(PddDqnConfig, squash_values=True)
    _, output, gradient = run_loss(pdd_dqn.make_loss, config, batch, target=target)
    # -1 + 0.5 * 8 = 3 and 3.75 + 0.25 * -3 = 3
    errors = [h[3.0] - 2.0, h[3.0] - 1.5]
    np.testing.assert_allclose(output.td_error, errors, rtol=1e-5)
    expected = table_gradient((0, 1, -errors[0] / 2), (3, 2, -errors[1] / 2))
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_squashed_targets_of_an_ensemble_are_each_members_own():
    q = jnp.array([[[1.03, 0.0], [2.08, -1.03]]])  # [B, K, A]: h of 3, 0, 8, -3
    look = td.Lookahead(
        n_step=False,
        weight=1.0,
        reward=jnp.array([4.0]),
        discount=jnp.array([0.5]),
        q_value=q,
        q_selector=q,
    )
    squashed = td.squashed(look)
    h = lambda x: np.sqrt(x + 1) - 1 + x / 100  # noqa: E731
    expected = [[[h(5.5), h(4.0)], [h(8.0), h(2.5)]]]
    np.testing.assert_allclose(squashed.q_value, expected, rtol=1e-4)
    np.testing.assert_array_equal(squashed.reward, [0.0])
    np.testing.assert_array_equal(squashed.discount, [1.0])


# ------------------------------------------------------------------------------------ DQfD


def test_dqfd_margin_counts_for_expert_samples_only():
    online = ONLINE.copy()
    online[0, [0, 2]] = ABSURD  # the agent's own sample is ABSURD away from any margin
    batch = make_batch(**ONE_STEP, **WEIGHTED, is_expert=[False, True])
    config = configure(DqfdConfig, n_step_weight=0.0, margin=0.8, margin_weight=3.0, l2_weight=0.0)
    value, output, gradient = run_loss(dqfd.make_loss, config, batch, online=online)
    plain, _, plain_gradient = run_loss(
        pdd_dqn.make_loss, configure(PddDqnConfig), batch, online=online
    )
    # max(1 + 0.8, -0.5 + 0.8, 1.5) - 1.5, weighted by importance, over B
    margin = 0.5 * 0.3 / 2
    assert value == pytest.approx(plain + 3.0 * margin)
    assert float(output.metrics["margin_loss"]) == pytest.approx(margin)
    np.testing.assert_allclose(output.td_error, ONE_STEP_TD)
    expected = table_gradient((3, 0, 3.0 * 0.5 / 2), (3, 2, -3.0 * 0.5 / 2))
    np.testing.assert_allclose(gradient - plain_gradient, expected, rtol=1e-6)


def test_dqfd_margin_is_zero_where_the_expert_leads_by_it():
    batch = make_batch(**ONE_STEP, is_expert=[True, False])
    config = configure(DqfdConfig, n_step_weight=0.0, margin=0.8, l2_weight=0.0)
    _, output, _ = run_loss(dqfd.make_loss, config, batch)
    assert float(output.metrics["margin_loss"]) == 0.0


def test_dqfd_l2_takes_every_parameter_and_no_target():
    def apply(params, observation):
        return params["table"][observation[:, -1]] + params["bias"][None, :]

    network = NETWORK._replace(apply=apply)
    online = {"table": jnp.zeros((8, 3)).at[7, 2].set(2.0), "bias": jnp.full(3, 0.5)}
    target = jax.tree.map(lambda x: jnp.full_like(x, ABSURD), online)
    batch = make_batch(observation=[0], action=[0], reward=[0.5], discount=[0.0])
    config = configure(DqfdConfig, n_step_weight=0.0, l2_weight=0.1)
    loss = quick_jit(jax.value_and_grad(dqfd.make_loss(network, config), has_aux=True))
    (value, output), gradient = loss(online, target, batch)
    np.testing.assert_allclose(output.td_error, [0.0])
    assert float(value) == pytest.approx(0.1 * (2.0**2 + 3 * 0.5**2))
    assert float(gradient["table"][7, 2]) == pytest.approx(0.1 * 2 * 2.0)
    np.testing.assert_allclose(gradient["bias"], 0.1 * 2 * 0.5, rtol=1e-6)


# ------------------------------------------------------------------------------------ BQfD

ETA, BETA, VARIANCE, NOISE, ZETA = 1.5, 4.0, 0.6, 3.0, 0.4
CONSTANTS = {"eta": ETA, "beta": BETA, "variance": VARIANCE, "noise_ratio": NOISE}
BQFD = functools.partial(configure, BqfdConfig, **CONSTANTS, zeta=ZETA)
# Own states of the target network when off-policy weights are taken from it.
TARGET_POLICY = TARGET.copy()
TARGET_POLICY[0] = [0.25, 0.0, -0.25]
TARGET_POLICY[3] = [-0.5, 0.0, 0.5]


def probability(q, action):
    return softmax(ETA * np.asarray(q))[action]


def visit_weight(n):
    return VARIANCE * (BETA**2 + NOISE * n) / (BETA + n) ** 2


def correction(q, action, visits):
    return ETA * visit_weight(visits) * (1 - probability(q, action))


@pytest.mark.parametrize("expert", [0, 1])
@pytest.mark.parametrize("from_target", [True, False])
def test_bqfd_corrects_and_weighs_expert_samples_only(expert, from_target):
    visits = np.full((2, 1), ABSURD)
    visits[expert] = 7
    batch = make_batch(
        **ONE_STEP,
        **WEIGHTED,
        is_expert=[expert == 0, expert == 1],
        path_visit_count=visits,
    )
    config = BQFD(weight_from_target=from_target)
    # The policy that is not asked says something very different of the expert's choice.
    value, output, gradient = run_loss(bqfd.make_loss, config, batch, target=TARGET_POLICY)

    state, action = (0, 3)[expert], (1, 2)[expert]
    errors = ONE_STEP_TD.copy()
    errors[expert] += correction(ONLINE[state], action, 7)
    np.testing.assert_allclose(output.td_error, errors, rtol=1e-5)
    off_policy = np.ones(2)
    policy = TARGET_POLICY if from_target else ONLINE
    off_policy[expert] = probability(policy[state], action) ** ZETA
    weight = np.array([1.0, 0.5]) * off_policy
    assert value == pytest.approx(np.mean(weight * 0.5 * errors**2), rel=1e-5)
    # Neither the correction nor the off-policy weight carries a gradient.
    slopes = -weight * errors / 2
    np.testing.assert_allclose(
        gradient, table_gradient((0, 1, slopes[0]), (3, 2, slopes[1])), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("from_target", [True, False])
def test_bqfd_gradient_through_the_correction(from_target):
    batch = make_batch(**ONE_STEP, is_expert=[True, False], path_visit_count=[[2], [ABSURD]])
    config = BQFD(stop_correction_gradient=False, weight_from_target=from_target)
    _, _, gradient = run_loss(bqfd.make_loss, config, batch, target=TARGET_POLICY)
    error = ONE_STEP_TD[0] + correction(ONLINE[0], 1, 2)
    policy = TARGET_POLICY if from_target else ONLINE
    outer = probability(policy[0], 1) ** ZETA * error / 2
    p, own = softmax(ETA * ONLINE[0]), np.arange(3) == 1
    # d correction / d q(b) = -eta w d pi(a) / d q(b), d pi(a) / d q(b) = eta pi(a) (1[a=b] - pi(b))
    through = -ETA * visit_weight(2) * ETA * p[1] * (own - p)
    expected = table_gradient((3, 2, 0.75))
    expected[0] = outer * (through - own)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("stop", [True, False])
def test_bqfd_agrees_with_the_unbatched_td_error(stop):
    rng = np.random.default_rng(0)
    online, target = rng.normal(size=(2, NUM_STATES, NUM_ACTIONS)).astype(np.float32)
    state, next_state = rng.permutation(NUM_STATES).reshape(2, 4)
    batch = make_batch(
        observation=state,
        next_observation=next_state,
        action=rng.integers(0, 3, 4),
        reward=rng.normal(size=4),
        discount=[0.9, 0.0, 0.5, 0.9],
        is_expert=[True, False, True, False],
        path_visit_count=rng.integers(1, 20, (4, 1)),
        importance_weight=rng.uniform(0.1, 1, 4),
    )
    config = BQFD(zeta=0.0, stop_correction_gradient=stop)
    value, output, gradient = run_loss(bqfd.make_loss, config, batch, online=online, target=target)
    one = functools.partial(losses.bqfd_td_error, eta=ETA, stop_correction_gradient=stop)
    weights = [visit_weight(n) for n in np.asarray(batch.path_visit_count[:, 0])]

    @quick_jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def reference(table):
        errors = jax.vmap(one)(
            table[state],
            batch.action,
            batch.reward,
            batch.discount,
            jnp.asarray(target[next_state]),
            table[next_state],
            batch.is_expert,
            jnp.asarray(weights, jnp.float32),
        )
        return jnp.mean(batch.importance_weight * 0.5 * errors**2), errors

    (expected, errors), expected_gradient = reference(jnp.asarray(online))
    np.testing.assert_allclose(output.td_error, errors, rtol=1e-5)
    assert value == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("huber_delta", [0.0, 0.1])
def test_bqfd_may_correct_all_actions(huber_delta):
    batch = make_batch(**ONE_STEP, is_expert=[True, False], path_visit_count=[[2], [ABSURD]])
    config = BQFD(weight_from_target=False, correct_all_actions=True, huber_delta=huber_delta)
    value, output, gradient = run_loss(bqfd.make_loss, config, batch, target=TARGET_POLICY)
    p = softmax(ETA * ONLINE[0])
    # Priorities are those of the corrected target.
    np.testing.assert_allclose(
        output.td_error, ONE_STEP_TD + np.array([correction(ONLINE[0], 1, 2), 0]), rtol=1e-5
    )
    size = np.abs(ONE_STEP_TD)
    slope = np.minimum(size, huber_delta) if huber_delta else size
    td_loss = slope * size - 0.5 * slope**2
    likelihood = -visit_weight(2) * np.log(p[1])
    weight = p[1] ** ZETA
    expected = (weight * (td_loss[0] + likelihood) + td_loss[1]) / 2
    assert float(value) == pytest.approx(expected, rel=1e-5)
    own = np.arange(3) == 1
    slopes = -np.sign(ONE_STEP_TD) * slope
    expert = slopes[0] * own - ETA * visit_weight(2) * (own - p)
    np.testing.assert_allclose(gradient[0], weight * expert / 2, rtol=1e-4)
    rest = table_gradient((3, 2, slopes[1] / 2))
    np.testing.assert_allclose(gradient[1:], rest[1:], rtol=1e-5, atol=1e-7)


def test_bqfd_with_a_squared_loss_moves_the_action_taken_alike_with_or_without_the_others():
    batch = make_batch(**ONE_STEP, is_expert=[True, False], path_visit_count=[[2], [ABSURD]])
    gradients = [
        run_loss(bqfd.make_loss, BQFD(correct_all_actions=of_all), batch, target=TARGET_POLICY)[2]
        for of_all in (False, True)
    ]
    assert gradients[0][0, 1] == pytest.approx(gradients[1][0, 1], rel=1e-4)
    assert not gradients[0][0, [0, 2]].any()
    assert (gradients[1][0, [0, 2]] > 0).all()


def test_bqfd_corrects_all_actions_along_one_step_only():
    with pytest.raises(ValueError, match="correction_steps is 3, but must be 1"):
        BQFD(correct_all_actions=True, correction_steps=3, n_step_weight=1.0)
    with pytest.raises(ValueError, match="stop_correction_gradient is False, but must be True"):
        BQFD(correct_all_actions=True, stop_correction_gradient=False)


# Sample 0 walks 0 -> 6 -> 7 -> 1 -> ...; sample 1 (an expert too) ends after its second step.
PATH_ONLINE = ONLINE.copy()
PATH_ONLINE[6], PATH_ONLINE[7] = [0.3, -0.2, 0.1], [-0.4, 0.6, 0.2]
PATH_TARGET = TARGET_POLICY.copy()
PATH_TARGET[6], PATH_TARGET[7] = [-0.3, 0.2, 0.4], [0.1, 0.5, -0.5]
# State 2 is only reached by reading on past the end.
PATH = {
    "path_action": [[1, 0, 2], [2, 1, 0]],
    "path_observation": [[6, 7], [7, 2]],
    "path_discount": [[1.0, 0.5, 0.25], [1.0, 0.8, 0.0]],
    "path_visit_count": [[1, 5, 9], [3, 2, ABSURD]],
}
PATH_STATES = [[0, 6, 7], [3, 7]]  # of the steps that exist


@pytest.mark.parametrize("from_target", [True, False])
def test_bqfd_n_step_path_holds_discounted_corrections_up_to_the_end(from_target):
    batch = make_batch(**(ONE_STEP | N_STEP), **PATH, **WEIGHTED, is_expert=[True, True])
    config = BQFD(
        n_step_weight=2.0, correction_steps=3, n_step_zeta=0.7, weight_from_target=from_target
    )
    value, output, gradient = run_loss(
        bqfd.make_loss, config, batch, online=PATH_ONLINE, target=PATH_TARGET
    )
    policy = PATH_TARGET if from_target else PATH_ONLINE
    total, slopes = 0.0, np.zeros(2)
    for b, states in enumerate(PATH_STATES):
        actions, discounts = PATH["path_action"][b], PATH["path_discount"][b]
        corrections = [
            correction(PATH_ONLINE[s], a, n)
            for s, a, n in zip(states, actions, PATH["path_visit_count"][b], strict=False)
        ]
        p = [probability(policy[s], a) for s, a in zip(states, actions, strict=False)]
        one_step = ONE_STEP_TD[b] + corrections[0]
        n_step = N_STEP_TD[b] + sum(d * c for d, c in zip(discounts, corrections, strict=False))
        importance = WEIGHTED["importance_weight"][b]
        weights = 1.0 * p[0] ** ZETA, 2.0 * np.prod(p) ** 0.7
        total += importance * 0.5 * (weights[0] * one_step**2 + weights[1] * n_step**2) / 2
        slopes[b] = -importance * (weights[0] * one_step + weights[1] * n_step) / 2
        assert float(output.td_error[b]) == pytest.approx(one_step, rel=1e-5)
    assert value == pytest.approx(total, rel=1e-5)
    np.testing.assert_allclose(
        gradient, table_gradient((0, 1, slopes[0]), (3, 2, slopes[1])), rtol=1e-5, atol=1e-6
    )


def test_bqfd_n_step_gradient_reaches_the_path_but_not_past_its_end():
    batch = make_batch(**N_STEP, **PATH, is_expert=[False, True])
    config = BQFD(
        one_step_weight=0.0,
        n_step_weight=1.0,
        correction_steps=3,
        stop_correction_gradient=False,
    )
    _, output, gradient = run_loss(
        bqfd.make_loss, config, batch, online=PATH_ONLINE, target=PATH_TARGET
    )
    np.testing.assert_allclose(output.td_error[0], N_STEP_TD[0])
    p = probability(PATH_TARGET[3], 2) * probability(PATH_TARGET[7], 1)
    outer = p**config.n_step_zeta * float(output.td_error[1]) / 2
    # Step 1 of the expert's path, at state 7 with action 1, discounted by 0.8.
    policy = softmax(ETA * PATH_ONLINE[7])
    own = np.arange(3) == 1
    through = -0.8 * ETA * visit_weight(2) * ETA * policy[1] * (own - policy)
    np.testing.assert_allclose(gradient[7], outer * through, rtol=1e-4)
    # The agent's own path (state 6), what lies past the end (2) and the targets have none.
    assert not gradient[[1, 2, 4, 5, 6]].any()


def test_bqfd_with_one_correction_weighs_the_n_step_loss_by_zeta():
    batch = make_batch(**N_STEP, is_expert=[False, True], path_visit_count=[[ABSURD], [3]])
    config = BQFD(one_step_weight=0.0, n_step_weight=2.0, n_step_zeta=ABSURD)
    value, output, _ = run_loss(bqfd.make_loss, config, batch, target=TARGET_POLICY)
    error = N_STEP_TD[1] + correction(ONLINE[3], 2, 3)
    np.testing.assert_allclose(output.td_error, [N_STEP_TD[0], error], rtol=1e-5)
    weight = probability(TARGET_POLICY[3], 2) ** ZETA
    assert value == pytest.approx(2.0 * 0.5 * (N_STEP_TD[0] ** 2 + weight * error**2) / 2, rel=1e-5)


# ------------------------------------------------------------------------------ Bootstrapped


def test_masks_belong_to_the_row():
    mask = quick_jit(functools.partial(bootstrapped.bootstrap_mask, size=20, probability=0.3))
    index = jnp.arange(2000)
    masks = np.asarray(mask(index))
    assert masks.shape == (2000, 20)
    assert masks.dtype == bool
    order = np.random.default_rng(0).permutation(2000)
    np.testing.assert_array_equal(mask(index[order]), masks[order])
    deviation = (0.3 * 0.7 / masks.size) ** 0.5
    assert masks.mean() == pytest.approx(0.3, abs=4 * deviation)
    assert np.abs(masks.mean(axis=0) - 0.3).max() < 4.5 * deviation * 20**0.5
    # Members agree with each other, and rows with the next one, as often as coins do.
    for one, other in ((masks[:, 0], masks[:, 1]), (masks[:-1], masks[1:])):
        assert (one & other).mean() == pytest.approx(0.09, abs=0.03)
    assert np.asarray(bootstrapped.bootstrap_mask(index[:9], size=3, probability=1.0)).all()


def member_tables(key, size):
    return {"members": {"table": jax.random.normal(key, (size, NUM_STATES, NUM_ACTIONS))}}


def test_each_member_learns_from_its_own_rows_with_its_own_targets():
    config = configure(BootstrappedConfig, ensemble_size=4, one_step_weight=3.0, n_step_weight=2.0)
    members = networks.ensemble(NETWORK, 4)
    online, target = member_tables(KEY, 4), member_tables(jax.random.key(1), 4)
    fields = {
        "observation": [0, 1, 2],
        "action": [1, 2, 0],
        "reward": [1.0, -1.0, 0.5],
        "discount": [0.9, 0.0, 0.5],
        "next_observation": [3, 6, 4],
        "n_step_return": [2.0, -2.0, 0.25],
        "n_step_discount": [0.8, 0.1, 0.0],
        "n_step_observation": [4, 5, 6],
        "importance_weight": [1.0, 0.5, 0.25],
        "index": [7, 11, 13],
    }
    batch = make_batch(**fields)
    loss = quick_jit(jax.value_and_grad(bootstrapped.make_loss(members, config), has_aux=True))
    (value, output), gradient = loss(online, target, batch)

    mask = np.asarray(bootstrapped.bootstrap_mask(batch.index, size=4, probability=0.5))
    assert 0 < mask.sum() < mask.size
    assert (mask.any(axis=0) & ~mask.all(axis=0)).any()
    q, q_target = (np.asarray(x["members"]["table"], np.float64) for x in (online, target))

    def td_errors(reward, discount, following):  # [B, K]
        return np.array(
            [
                [r + d * q_target[k, s2, q[k, s2].argmax()] - q[k, s, a] for k in range(4)]
                for s, a, r, d, s2 in zip(
                    fields["observation"],
                    fields["action"],
                    reward,
                    discount,
                    following,
                    strict=True,
                )
            ]
        )

    one = td_errors(fields["reward"], fields["discount"], fields["next_observation"])
    n = td_errors(fields["n_step_return"], fields["n_step_discount"], fields["n_step_observation"])
    weight = np.array(fields["importance_weight"])[:, None] / 3
    assert float(value) == pytest.approx(
        np.sum(weight * mask * 0.5 * (3.0 * one**2 + 2.0 * n**2)), rel=1e-5
    )
    expected = np.zeros_like(q)
    for b in range(3):
        slope = -(weight * mask * (3.0 * one + 2.0 * n))[b]
        expected[:, fields["observation"][b], fields["action"][b]] = slope
    np.testing.assert_allclose(gradient["members"]["table"], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(output.td_error, np.abs(one).mean(axis=1), rtol=1e-5)


def test_an_episode_follows_one_member_and_the_mean_is_evaluated():
    replay, _ = filled_replay()
    agent = agents.make_agent(NETWORK, configure(BootstrappedConfig, ensemble_size=3), replay)
    table = jnp.zeros((3, NUM_STATES, NUM_ACTIONS)).at[jnp.arange(3), :, jnp.arange(3)].set(1.0)
    params = {"members": {"table": table.at[:, 2].multiply(4.0)}}  # member k does action k
    L = 600
    act = quick_jit(agent.act)
    observation = jnp.zeros((L, 1), jnp.int32)
    actor = agent.init_actor(L)
    everyone, nobody = jnp.ones(L, bool), jnp.zeros(L, bool)
    first, actor = act(jax.random.key(1), params, actor, observation, everyone, jnp.int32(0))
    counts = np.bincount(first, minlength=3)
    assert counts.min() > 150  # 200 expected, deviation 11.5
    np.testing.assert_array_equal(actor.member, first)
    for seed in (2, 3):
        action, actor = act(
            jax.random.key(seed), params, actor, observation, nobody, jnp.int32(seed)
        )
        np.testing.assert_array_equal(action, first)
    half = jnp.arange(L) < L // 2
    action, actor = act(jax.random.key(4), params, actor, observation, half, jnp.int32(4))
    np.testing.assert_array_equal(action[L // 2 :], first[L // 2 :])
    changed = np.mean(np.asarray(action != first)[: L // 2])
    assert changed == pytest.approx(2 / 3, abs=0.12)  # drawn anew, 4 deviations

    q = agent.q_values(params, jnp.array([[0], [2]], jnp.int32))
    np.testing.assert_allclose(q, [[1 / 3] * 3, [4 / 3] * 3], rtol=1e-6)


# ------------------------------------------------------------------------------- the update

UPDATE_KEY = jax.random.key(5)
SHARED = {
    "batch_size": 16,
    "learning_rate": 0.02,
    "max_gradient_norm": 0.5,
    "priority_exponent": 0.6,
    "n_step": 3,
    "n_step_weight": 0.5,
}
CONFIGS = {
    "pdd_dqn": configure(PddDqnConfig, **SHARED),
    "dqfd": configure(DqfdConfig, **SHARED, demo_priority_bonus=0.7),
    "bqfd": configure(
        BqfdConfig,
        **SHARED,
        **CONSTANTS,
        demo_priority_steps=(100, 200),
        demo_priority_factors=(3.0, 1.0),
    ),
    "bootstrapped": configure(BootstrappedConfig, **SHARED, ensemble_size=2),
}
each_agent = pytest.mark.parametrize("name", CONFIGS)


@functools.cache
def updating(name, **changes):
    """Config, replay state, learner, and the compiled update and pre-training update."""
    config = dataclasses.replace(CONFIGS[name], **changes)
    replay, replay_state = filled_replay()
    agent = agents.make_agent(NETWORK, config, replay)
    state = agent.init(KEY, jnp.zeros((1, 1), jnp.int32))
    if name == "bootstrapped":
        target = member_tables(jax.random.key(1), 2)
    else:
        target = params_of(jax.random.normal(jax.random.key(1), (NUM_STATES, NUM_ACTIONS)))
    state = state.replace(target_params=target)
    return config, replay_state, state, quick_jit(agent.update), quick_jit(agent.pretrain)


@functools.cache
def drawn_batch():
    """What an update with `UPDATE_KEY` draws."""
    replay, state = filled_replay()
    sample = quick_jit(lambda state: replay.sample(UPDATE_KEY, state, 16, 0.4))
    batch = sample(state)
    assert 0 < int(batch.is_expert.sum()) < 16
    return batch


@functools.cache
def one_update(name):
    """The same single update for all tests that look at it."""
    config, before, state, update, _ = updating(name)
    after_state, after, metrics = update(UPDATE_KEY, state, before, jnp.int32(150))
    return config, before, state, after_state, after, metrics


def loss_of(name, config):
    network = networks.ensemble(NETWORK, 2) if name == "bootstrapped" else NETWORK
    module = {"pdd_dqn": pdd_dqn, "dqfd": dqfd, "bqfd": bqfd, "bootstrapped": bootstrapped}[name]
    return module.make_loss(network, config)


def assert_trees_close(found, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


def test_gradients_are_shortened_by_one_factor():
    gradients = {"a": jnp.array([3.0]), "b": jnp.array([[0.0, 4.0]])}  # of norm 5

    def clipped(max_norm):
        clip = learner.clip_by_norm(max_norm)
        shortened, state = clip.update(gradients, clip.init(gradients), gradients)
        # As optax has it, so that checkpoints fit either.
        assert state == optax.clip_by_global_norm(max_norm).init(gradients)
        return shortened

    expected = {"a": jnp.array([0.6]), "b": jnp.array([[0.0, 0.8]])}
    chex.assert_trees_all_close(clipped(1.0), expected, rtol=1e-6)
    for enough in (5.0, 7.0):
        chex.assert_trees_all_equal(clipped(enough), gradients)


@each_agent
def test_a_step_is_clipped_adam_and_the_target_follows(name):
    config, _, state, after, _, metrics = one_update(name)
    batch = drawn_batch()
    loss = quick_jit(jax.value_and_grad(loss_of(name, config), has_aux=True))
    (value, _), gradient = loss(state.params, state.target_params, batch)
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(gradient)))
    assert norm > config.max_gradient_norm  # so that clipping shows
    clipped = jax.tree.map(lambda g: g * config.max_gradient_norm / norm, gradient)
    adam = optax.adam(0.02, eps=config.adam_epsilon)
    step, opt_state = adam.update(clipped, adam.init(state.params))
    params = optax.apply_updates(state.params, step)
    assert_trees_close(after.params, params, rtol=1e-5, atol=1e-6)
    assert_trees_close(
        jax.tree.leaves(after.opt_state), jax.tree.leaves(opt_state), rtol=1e-5, atol=1e-7
    )
    # Polyak's step towards the new parameters
    expected = jax.tree.map(lambda t, p: 0.95 * t + 0.05 * p, state.target_params, params)
    assert_trees_close(after.target_params, expected, rtol=1e-5, atol=1e-6)
    assert int(after.updates) == 1

    assert float(metrics["loss"]) == pytest.approx(float(value), rel=1e-5)
    assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-5)
    assert float(metrics["expert_share"]) == float(np.mean(batch.is_expert))
    own = {"margin_loss"} if name == "dqfd" else set()
    assert set(metrics) == {"loss", "gradient_norm", "expert_share", "mean_q"} | own
    assert all(np.shape(value) == () for value in metrics.values())


def own_td_sizes(name, state, batch):
    """|TD error| of each sample, in numpy."""
    own, following = (np.asarray(x[:, 0]) for x in (batch.observation, batch.next_observation))
    action, expert = np.asarray(batch.action), np.asarray(batch.is_expert)

    def td_errors(online, target):
        rows = np.arange(action.size)
        best = target[following][rows, online[following].argmax(axis=1)]
        return np.asarray(batch.reward + batch.discount * best) - online[own, action]

    if name == "bootstrapped":
        tables = (state.params["members"]["table"], state.target_params["members"]["table"])
        members = zip(*map(np.asarray, tables), strict=True)
        return np.mean([np.abs(td_errors(*tables)) for tables in members], axis=0)
    online, target = (np.asarray(p["table"]) for p in (state.params, state.target_params))
    errors = td_errors(online, target)
    if name == "bqfd":
        visits = np.asarray(batch.path_visit_count[:, 0])
        for i in np.flatnonzero(expert):
            errors[i] += correction(online[own[i]], action[i], visits[i])
    return np.abs(errors)


@each_agent
def test_priorities_are_written_from_the_td_errors(name):
    _, before, state, _, after, _ = one_update(name)
    batch = drawn_batch()
    sizes, expert = own_td_sizes(name, state, batch), np.asarray(batch.is_expert)
    priority = {
        "pdd_dqn": sizes + 1e-3,
        "dqfd": sizes + np.where(expert, 0.7, 1e-3),
        # half-way from 3 to 1 at step 150
        "bqfd": (sizes + 1e-3) * np.where(expert, 2.0, 1.0),
        "bootstrapped": sizes + 1e-3,
    }[name]
    expected = np.array(before.tree[-1])
    expected[np.asarray(batch.index)] = priority**0.6
    np.testing.assert_allclose(after.tree[-1], expected, rtol=1e-4)
    assert float(after.max_priority) == pytest.approx(max(1.0, priority.max()), rel=1e-5)


@each_agent
def test_visits_count_drawn_demonstration_rows(name):
    _, before, _, _, after, _ = one_update(name)
    index = np.asarray(drawn_batch().index)
    drawn = np.bincount(index[index < DEMO_ROWS], minlength=DEMO_ROWS)
    assert drawn.max() > 1  # drawn twice, counted twice
    np.testing.assert_array_equal(before.visit_count, np.ones(DEMO_ROWS))
    np.testing.assert_array_equal(after.visit_count, 1 + drawn)


def test_demo_priority_factor_follows_its_schedule():
    _, before, state, update, _ = updating("bqfd")
    index = np.asarray(drawn_batch().index)
    leaves = {}
    for step in (0, 100, 200, 10**6):
        _, after, _ = update(UPDATE_KEY, state, before, jnp.int32(step))
        leaves[step] = np.asarray(after.tree[-1])[index]
    expert = index < DEMO_ROWS
    np.testing.assert_allclose(leaves[0], leaves[100])
    np.testing.assert_allclose(leaves[200], leaves[10**6])
    np.testing.assert_allclose(leaves[0][expert] / leaves[200][expert], 3.0**0.6, rtol=1e-5)
    np.testing.assert_allclose(leaves[0][~expert], leaves[200][~expert])


def test_pretraining_draws_demonstrations_and_counts_no_visit():
    _, before, state, _, pretrain = updating("bqfd", target_period=2, target_step_size=1.0)
    replay_state, targets = before, [state.target_params]
    for seed in range(4):
        state, replay_state, metrics = pretrain(
            jax.random.key(seed), state, replay_state, jnp.int32(0)
        )
        assert float(metrics["expert_share"]) == 1.0
        targets.append(state.target_params)
        if seed % 2:
            assert_trees_close(state.target_params, state.params)
        else:
            assert_trees_close(targets[-1], targets[-2])
    np.testing.assert_array_equal(replay_state.visit_count, np.ones(DEMO_ROWS))
    changed = np.asarray(replay_state.tree[-1] != before.tree[-1])
    # 64 draws of 5 rows leave none out; row 5 starts no transition.
    np.testing.assert_array_equal(changed[:DEMO_ROWS], [True] * 5 + [False])
    assert not changed[DEMO_ROWS:].any()


def test_pretraining_needs_demonstrations():
    replay = make_replay(frame_shape=(), frame_dtype=jnp.int32, rows_per_lane=5, n_step=3)
    agent = agents.make_agent(NETWORK, CONFIGS["pdd_dqn"], replay)
    state, replay_state = jax.eval_shape(
        lambda: (agent.init(KEY, jnp.zeros((1, 1), jnp.int32)), replay.init())
    )
    with pytest.raises(ValueError, match="num_demo_rows is 0"):
        jax.eval_shape(agent.pretrain, KEY, state, replay_state, jnp.int32(0))


def test_the_target_moves_every_period_only():
    _, replay_state, state, update, _ = updating("pdd_dqn", target_period=3, target_step_size=0.25)
    for count in range(1, 8):
        before = state.target_params["table"]
        state, replay_state, _ = update(
            jax.random.key(count), state, replay_state, jnp.int32(100 * count)
        )
        assert int(state.updates) == count
        expected = before
        if count in (3, 6):
            expected = 0.75 * before + 0.25 * state.params["table"]
        np.testing.assert_allclose(state.target_params["table"], expected, rtol=1e-5, atol=1e-7)


def test_a_new_learner_has_its_own_copy_of_the_target():
    replay, _ = filled_replay()
    agent = agents.make_agent(NETWORK, CONFIGS["pdd_dqn"], replay)
    state = agent.init(KEY, jnp.zeros((2, 1), jnp.int32))
    assert_trees_close(state.params, state.target_params)
    assert (
        state.params["table"].unsafe_buffer_pointer()
        != state.target_params["table"].unsafe_buffer_pointer()
    )
    assert int(state.updates) == 0
    other = agent.init(jax.random.key(1), jnp.zeros((2, 1), jnp.int32))
    assert np.any(other.params["table"] != state.params["table"])


def test_a_draw_may_count_as_less_than_a_visit():
    counts = jnp.array([1.0, 2.0, 9.0])
    weight = bqfd.visit_weight(configure(BqfdConfig, visits_per_draw=0.25), counts)
    # Of 1, 1.25 and 3 visits, with beta 4, variance 0.6 and noise ratio 4.
    expected = [0.6 * 20 / 25, 0.6 * 21 / 5.25**2, 0.6 * 28 / 49]
    np.testing.assert_allclose(weight, expected, rtol=1e-6)
    np.testing.assert_array_equal(
        bqfd.visit_weight(configure(BqfdConfig), counts),
        losses.posterior.visit_weight(counts, beta=4.0, variance=0.6, noise_ratio=4.0),
    )


def test_bqfd_describes_the_mean_weight_of_rows_that_start_something():
    replay, state = filled_replay()
    agent = agents.make_agent(NETWORK, CONFIGS["bqfd"], replay)
    # Row 5 is an episode's last frame and has no visits to speak of.
    state = state.replace(visit_count=jnp.array([1, 2, 3, 5, 8, 10**6], jnp.int32))
    described = agent.describe(state)
    assert set(described) == {"visit_weight"}
    expected = np.mean([visit_weight(n) for n in (1, 2, 3, 5, 8)])
    assert float(described["visit_weight"]) == pytest.approx(expected, rel=1e-5)
    for name in ("pdd_dqn", "dqfd", "bootstrapped"):
        assert agents.make_agent(NETWORK, CONFIGS[name], replay).describe(state) == {}


def test_bqfd_describes_nothing_without_demonstrations():
    replay = make_replay(frame_shape=(), frame_dtype=jnp.int32, rows_per_lane=5, n_step=3)
    described = agents.make_agent(NETWORK, CONFIGS["bqfd"], replay).describe(replay.init())
    assert float(described["visit_weight"]) == 0.0


# ---------------------------------------------------------------------------------- acting

LANES = 3000
Q_ROW = params_of(np.tile([0.0, 2.0, 1.0], (NUM_STATES, 1)))


def act_with(config):
    act = quick_jit(functools.partial(acting.act, NETWORK.apply, config))
    observation = jnp.zeros((LANES, 1), jnp.int32)

    def step(actor, seed, agent_step, is_first=None):
        is_first = jnp.zeros(LANES, bool) if is_first is None else is_first
        action, actor = act(
            jax.random.key(seed), Q_ROW, actor, observation, is_first, jnp.int32(agent_step)
        )
        return np.asarray(action), actor

    return step, acting.init_actor(LANES)


def test_acting_is_greedy_without_epsilon():
    for kind in ("epsilon", "ez"):
        act, actor = act_with(configure(PddDqnConfig, exploration=kind))
        action, _ = act(actor, 0, 0)
        assert action.dtype == np.int32
        np.testing.assert_array_equal(action, 1)


@pytest.mark.parametrize("kind", [PddDqnConfig, DqfdConfig, BqfdConfig, BootstrappedConfig])
def test_the_target_network_acts_if_asked_to(kind):
    for with_target, expected in ((False, ONLINE), (True, TARGET)):
        agent = agents.make_agent(NETWORK, configure(kind, act_with_target=with_target))
        state = agent.init(KEY, jnp.zeros((1, 1), jnp.int32))
        state = state.replace(params=params_of(ONLINE), target_params=params_of(TARGET))
        np.testing.assert_array_equal(agent.acting_params(state)["table"], expected)


def test_each_lane_acts_on_its_own_observation():
    act = quick_jit(functools.partial(acting.act, NETWORK.apply, configure(PddDqnConfig)))
    observation = jnp.array([[3], [0], [7], [1]], jnp.int32)
    table = np.full((NUM_STATES, NUM_ACTIONS), -1.0)
    for state, best in ((3, 2), (0, 0), (7, 1), (1, 2)):
        table[state, best] = 1.0
    action, _ = act(
        KEY, params_of(table), acting.init_actor(4), observation, jnp.ones(4, bool), jnp.int32(0)
    )
    np.testing.assert_array_equal(action, [2, 0, 1, 2])


@pytest.mark.parametrize("kind", ["epsilon", "ez"])
def test_epsilon_falls_in_agent_steps(kind):
    config = configure(
        PddDqnConfig,
        exploration=kind,
        epsilon_steps=(100, 300),
        epsilon_values=(0.9, 0.3),
        ez_max_repeat=4,
    )
    act, actor = act_with(config)
    shares = []
    for seed, step in enumerate((0, 100, 200, 300, 10**6)):
        # A fresh actor each time: with ez, a decision that is not a repetition.
        action, _ = act(actor, seed, step)
        counts = np.bincount(action, minlength=3) / LANES
        assert counts[0] == pytest.approx(counts[2], abs=0.045)
        shares.append(counts[1])
    epsilon = np.array([0.9, 0.9, 0.6, 0.3, 0.3])
    np.testing.assert_allclose(shares, 1 - epsilon * 2 / 3, atol=0.037)  # 4 deviations


def test_epsilon_actions_last_one_step_and_ez_actions_longer():
    stays = {}
    for kind in ("epsilon", "ez"):
        # Lengths of 1 .. 100, nearly all alike: repetitions almost never stop between two steps.
        config = configure(PddDqnConfig, exploration=kind, epsilon_values=(1.0,), ez_exponent=0.01)
        act, actor = act_with(config)
        first, actor = act(actor, 0, 0)
        second, actor = act(actor, 1, 1)
        new_episode, _ = act(actor, 2, 2, is_first=jnp.ones(LANES, bool))
        stays[kind] = np.mean(second == first)
        assert np.mean(new_episode == second) == pytest.approx(1 / 3, abs=0.035)
    assert stays["epsilon"] == pytest.approx(1 / 3, abs=0.035)
    assert stays["ez"] > 0.95


def test_ez_repeats_no_longer_than_allowed():
    config = configure(
        PddDqnConfig,
        exploration="ez",
        epsilon_values=(1.0,),
        ez_exponent=0.01,
        ez_max_repeat=2,
    )
    act, actor = act_with(config)
    for seed in range(4):
        _, actor = act(actor, seed, seed)
        assert int(actor.ez.remaining.max()) == 1
    assert 0.2 < np.mean(actor.ez.remaining) < 0.5  # a third of all steps have one to come


# ------------------------------------------------------------------- configs and dispatching


@each_agent
def test_make_agent_goes_by_the_config(name, monkeypatch):
    made = []
    for key, kind in list(agents.AGENTS.items()):
        spy = kind._replace(make=lambda *parts, kind=kind: made.append((kind.config, parts)))
        monkeypatch.setitem(agents.AGENTS, key, spy)
    replay, config = object(), CONFIGS[name]
    agents.make_agent(NETWORK, config, replay)
    assert made == [(type(config), (NETWORK, config, replay))]


def test_make_agent_makes_the_agent_of_each_config():
    modules = {
        PddDqnConfig: pdd_dqn,
        DqfdConfig: dqfd,
        BqfdConfig: bqfd,
        EnsembleBqfdConfig: bqfd,
        BootstrappedConfig: bootstrapped,
        CloneConfig: clone,
    }
    makers = {kind.config: kind.make for kind in agents.AGENTS.values()}
    assert {kind: module.make_agent for kind, module in modules.items()} == makers


def test_make_agent_names_what_it_cannot_make():
    replay, _ = filled_replay()
    with pytest.raises(ValueError, match=r"AgentConfig.*BootstrappedConfig, .*PddDqnConfig"):
        agents.make_agent(NETWORK, configure(AgentConfig), replay)


NAN = float("nan")
BAD_VALUES = [
    (PddDqnConfig, "learning_rate", (0.0, -1.0, NAN, float("inf"))),
    (PddDqnConfig, "adam_epsilon", (0.0, -1e-8)),
    (PddDqnConfig, "max_gradient_norm", (0.0, -1.0)),
    (PddDqnConfig, "batch_size", (0, -1)),
    (PddDqnConfig, "gamma", (-0.1, 1.1, NAN)),
    (PddDqnConfig, "target_period", (0, -5)),
    (PddDqnConfig, "target_step_size", (0.0, 1.5, -0.5)),
    (PddDqnConfig, "one_step_weight", (-1.0,)),
    (PddDqnConfig, "n_step_weight", (-1.0,)),
    (PddDqnConfig, "n_step", (0,)),
    (PddDqnConfig, "n_step_final", (-1, 4)),
    (PddDqnConfig, "n_step_updates", (0,)),
    (PddDqnConfig, "huber_delta", (-1.0,)),
    (PddDqnConfig, "priority_exponent", (-0.1, 1.1)),
    (PddDqnConfig, "importance_exponent", (-0.1, 1.1)),
    (PddDqnConfig, "priority_epsilon", (0.0, -1.0)),
    (PddDqnConfig, "exploration", ("eps",)),
    (PddDqnConfig, "epsilon_steps", ((), (5, 5))),
    (PddDqnConfig, "epsilon_values", ((), (-0.1,), (1.1,), (0.0, 0.1))),
    (PddDqnConfig, "ez_exponent", (0.0, -2.0)),
    (PddDqnConfig, "ez_max_repeat", (0,)),
    (PddDqnConfig, "pretrain_updates", (-1,)),
    (PddDqnConfig, "reset_period", (-1,)),
    (PddDqnConfig, "reset_share", (-0.1, 1.1)),
    (DqfdConfig, "margin", (-0.1,)),
    (DqfdConfig, "margin_weight", (-1.0,)),
    (DqfdConfig, "l2_weight", (-1.0,)),
    (DqfdConfig, "demo_priority_bonus", (0.0, -1.0)),
    (BqfdConfig, "eta", (-1.0,)),
    (BqfdConfig, "variance", (-0.1,)),
    (BqfdConfig, "beta", (0.0, -1.0)),
    (BqfdConfig, "visits_per_draw", (0.0, -1.0)),
    (BqfdConfig, "noise_ratio", (-1.0,)),
    (BqfdConfig, "zeta", (-0.1,)),
    (BqfdConfig, "n_step_zeta", (-0.1,)),
    (BqfdConfig, "correction_steps", (0, 4)),
    (BqfdConfig, "demo_priority_steps", ((), (3, 2))),
    (BqfdConfig, "demo_priority_factors", ((), (0.0,), (-1.0,), (1.0, 1.0))),
    (BqfdConfig, "weight", ("uncertainty",)),
    (BqfdConfig, "ensemble_size", (0,)),
    (BqfdConfig, "mask_probability", (0.0, 1.5)),
    (BqfdConfig, "prior_scale", (-1.0,)),
    (BqfdConfig, "eta_step_size", (-0.1,)),
    (BqfdConfig, "eta_bounds", ((0.0, 1.0), (2.0, 1.0))),
    (EnsembleBqfdConfig, "ensemble_size", (1,)),
    (BootstrappedConfig, "ensemble_size", (0,)),
    (BootstrappedConfig, "mask_probability", (0.0, 1.5)),
    (BootstrappedConfig, "prior_scale", (-1.0,)),
]


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [(kind, field, value) for kind, field, values in BAD_VALUES for value in values],
)
def test_a_bad_value_is_named(kind, field, value):
    with pytest.raises(ValueError, match=f"^{field} is {re.escape(repr(value))}, but must be "):
        configure(kind, **{field: value})


@pytest.mark.parametrize("kind", [DqfdConfig, BqfdConfig, BootstrappedConfig])
def test_every_config_checks_what_all_share(kind):
    with pytest.raises(ValueError, match=r"^batch_size is 0, but must be at least 1$"):
        configure(kind, batch_size=0)
    with pytest.raises(ValueError, match="one_step_weight and n_step_weight are both 0"):
        configure(kind, one_step_weight=0.0, n_step_weight=0.0)


def test_bounds_that_depend_on_other_fields_name_them():
    with pytest.raises(ValueError, match=r"epsilon_values is \(1.0,\), .* epsilon_steps \(0, 7\)"):
        configure(PddDqnConfig, epsilon_steps=(0, 7), epsilon_values=(1.0,))
    with pytest.raises(ValueError, match=r"correction_steps is 3, .*n_step \(2\)"):
        configure(BqfdConfig, correction_steps=3, n_step=2)
    with pytest.raises(ValueError, match=r"correction_steps is 3, .*n_step_final \(2\)"):
        configure(BqfdConfig, correction_steps=3, n_step=9, n_step_final=2)
    for weight in ("ensemble", "smaller"):
        with pytest.raises(ValueError, match="ensemble_size is 1, but must be at least 2"):
            configure(BqfdConfig, weight=weight)


def test_an_agent_and_its_replay_must_agree():
    replay, _ = filled_replay(n_step=3, path_steps=1, exponent=0.6)
    network = table_network(NUM_STATES, NUM_ACTIONS)
    agents.make_agent(network, configure(BqfdConfig), replay)
    for changes, named in (
        ({"n_step": 2, "n_step_weight": 1.0}, "n_step=2, .*n_step=3"),
        ({"priority_exponent": 0.4}, "priority_exponent=0.4, .*priority_exponent=0.6"),
        ({"correction_steps": 2, "n_step_weight": 1.0}, "path_steps=2, .*path_steps=1"),
    ):
        with pytest.raises(ValueError, match=named):
            agents.make_agent(network, configure(BqfdConfig, **changes), replay)
    # Where the n-step loss has no weight, how far the replay looks ahead does not matter.
    agents.make_agent(network, configure(BqfdConfig, n_step=2, n_step_weight=0.0), replay)


def test_values_at_their_bounds_are_taken():
    configure(
        PddDqnConfig,
        gamma=0.0,
        target_step_size=1.0,
        priority_exponent=0.0,
        importance_exponent=0.0,
    )
    configure(PddDqnConfig, gamma=1.0, epsilon_values=(1.0,), priority_exponent=1.0, n_step=1)
    configure(PddDqnConfig, one_step_weight=0.0, n_step_weight=1.0, batch_size=1, ez_max_repeat=1)
    configure(DqfdConfig, margin=0.0, margin_weight=0.0, l2_weight=0.0)
    configure(BqfdConfig, eta=0.0, variance=0.0, zeta=0.0, noise_ratio=0.0, n_step_zeta=0.0)
    configure(BqfdConfig, correction_steps=5, n_step=5)
    configure(BqfdConfig, correction_steps=2, n_step=5, n_step_final=2, reset_share=1.0)
    configure(PddDqnConfig, n_step=5, n_step_final=5, reset_share=0.0)
    configure(BootstrappedConfig, ensemble_size=1, mask_probability=1.0, prior_scale=0.0)


def test_every_field_of_the_configs_is_tried_with_a_bad_value():
    tried = {(kind, field) for kind, field, _ in BAD_VALUES}
    switches = {
        "weight_from_target",
        "stop_correction_gradient",
        "correct_all_actions",
        "learn_eta",
        "act_with_target",
        "squash_values",
        "in_steps",
    }
    shared = {field.name for field in dataclasses.fields(AgentConfig)}
    for kind in (PddDqnConfig, DqfdConfig, BqfdConfig, BootstrappedConfig):
        own = {field.name for field in dataclasses.fields(kind)}
        assert own == set(PLAIN[kind])
        own -= set() if kind is PddDqnConfig else shared
        assert own - switches == {field for k, field in tried if k is kind}


def test_the_optimizer_uses_the_configs_epsilon():
    optimizer = learner.make_optimizer(configure(PddDqnConfig, learning_rate=1.0, adam_epsilon=3.0))
    params = {"w": jnp.zeros(1)}
    step, _ = optimizer.update({"w": jnp.ones(1)}, optimizer.init(params))
    np.testing.assert_allclose(step["w"], -1.0 / (1.0 + 3.0), rtol=1e-5)


def test_a_replay_of_demonstrations_alone_can_be_learnt_from():
    replay = make_replay(
        frame_shape=(),
        frame_dtype=jnp.int32,
        rows_per_lane=5,
        num_demo_rows=DEMO_ROWS,
        n_step=3,
    )
    agent = agents.make_agent(NETWORK, CONFIGS["bqfd"], replay)
    state = agent.init(KEY, jnp.zeros((1, 1), jnp.int32))
    replay_state = replay.init(make_rows(DEMONSTRATIONS))
    _, replay_state, metrics = quick_jit(agent.update)(KEY, state, replay_state, jnp.int32(0))
    assert float(metrics["expert_share"]) == 1.0
    assert int(replay_state.visit_count.sum()) == DEMO_ROWS + 16


# ----------------------------------------------------------------- with somebody else's replay


@each_agent
def test_an_update_is_learning_from_the_batch_that_was_drawn(name):
    config, _, state, after, _, metrics = one_update(name)
    agent = agents.make_agent(NETWORK, config)
    found, td_error, found_metrics = quick_jit(agent.learn)(state, drawn_batch())
    assert td_error.shape == (16,)
    np.testing.assert_allclose(
        np.abs(td_error), own_td_sizes(name, state, drawn_batch()), rtol=1e-4, atol=1e-6
    )
    for one, other in ((found, after), (found_metrics, metrics)):
        assert_trees_close(one, other, rtol=1e-6, atol=1e-7)


def test_an_agent_learns_from_a_list_of_arrays():
    """A chain 0 -> 1 -> 2 that pays 1 in the end, drawn uniformly from numpy arrays."""
    config = configure(PddDqnConfig, learning_rate=0.05, target_step_size=0.2, batch_size=8)
    agent = agents.make_agent(NETWORK, config)
    rows = [(0, 1, 0.0, 0.9, 1), (1, 0, 0.0, 0.9, 2), (2, 2, 1.0, 0.0, 7)]
    state, action, reward, discount, next_state = map(np.array, zip(*rows, strict=True))
    random = np.random.default_rng(0)
    learn = quick_jit(agent.learn)
    learner_state = agent.init(KEY, jnp.zeros((1, 1), jnp.int32))
    for _ in range(300):
        drawn = random.integers(0, len(rows), config.batch_size)
        batch = make_batch(
            observation=state[drawn],
            action=action[drawn],
            reward=reward[drawn],
            discount=discount[drawn],
            next_observation=next_state[drawn],
        )
        learner_state, td_error, metrics = learn(learner_state, batch)
    q = np.asarray(agent.q_values(learner_state.params, jnp.array([[0], [1], [2]])))
    best = [max(q[1]) * 0.9, max(q[2]) * 0.9, 1.0]
    np.testing.assert_allclose(q[[0, 1, 2], action], best, atol=0.02)
    np.testing.assert_allclose(td_error, np.zeros(8), atol=0.02)
    assert float(metrics["expert_share"]) == 0.0
    assert agent.gamma == config.gamma
    priority = agent.priority(jnp.abs(td_error), batch.is_expert, jnp.int32(0))
    np.testing.assert_allclose(priority, np.abs(td_error) + config.priority_epsilon)
    actions, _ = agent.act(
        KEY,
        learner_state.params,
        agent.init_actor(3),
        jnp.array([[0], [1], [2]]),
        jnp.ones(3, bool),
        jnp.int32(0),
    )
    np.testing.assert_array_equal(actions, np.argmax(q, axis=1))


def test_without_a_replay_there_is_nothing_to_draw_from():
    agent = agents.make_agent(NETWORK, CONFIGS["bqfd"])
    for function in (agent.update, agent.pretrain):
        with pytest.raises(ValueError, match=r"made without a replay.*Agent\.learn"):
            function(KEY, None, None, 0)
