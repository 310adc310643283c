"""Agents that must be one another when what sets them apart is switched off."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import (
    NUM_ACTIONS,
    NUM_STATES,
    configure,
    filled_replay,
    make_batch,
    mlp_network,
    quick_jit,
    table_network,
)

from bqfd_jax import losses, posterior
from bqfd_jax.agents import (
    BootstrappedConfig,
    BqfdConfig,
    DqfdConfig,
    EnsembleBqfdConfig,
    PddDqnConfig,
    acting,
    bqfd,
    make_agent,
    pdd_dqn,
)

NETWORK = mlp_network(NUM_STATES, NUM_ACTIONS)
UPDATES = 6
# A large step and a moving target, so that a difference would soon show.
SHARED = {
    "batch_size": 12,
    "learning_rate": 0.03,
    "priority_epsilon": 0.02,
    "target_step_size": 0.3,
    "n_step": 3,
    "n_step_weight": 0.5,
    "huber_delta": 0.7,
}


def start_params():
    return NETWORK.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))


def train(config, *, params=None, demonstrations=True, n_step=3, path_steps=1):
    """Some updates in a row, from a target network that is not the online one."""
    replay, replay_state = filled_replay(
        demonstrations=demonstrations, n_step=n_step, path_steps=path_steps
    )
    agent = make_agent(NETWORK, config, replay)
    params = start_params() if params is None else params
    state = agent.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32)).replace(
        params=params, target_params=jax.tree.map(lambda x: 0.5 * x, params)
    )

    def update(carry, key):
        state, replay_state, step = carry
        state, replay_state, metrics = agent.update(key, state, replay_state, step)
        return (state, replay_state, step + 1), metrics

    keys = jax.random.split(jax.random.key(3), UPDATES)
    (state, replay_state, _), metrics = quick_jit(
        lambda state, replay_state: jax.lax.scan(update, (state, replay_state, jnp.int32(0)), keys)
    )(state, replay_state)
    return state, replay_state, metrics


@functools.cache
def train_pdd_dqn(*, demonstrations=True, **changes):
    config = dataclasses.replace(configure(PddDqnConfig, **SHARED), **changes)
    return train(config, demonstrations=demonstrations, n_step=config.n_step)


def distance(one, other):
    return max(
        float(np.max(np.abs(np.asarray(a) - np.asarray(b))))
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def assert_same_run(one, other, unwrap=lambda params: params):
    (state, replay_state, metrics), (expected, expected_replay, expected_metrics) = one, other
    for name in ("params", "target_params"):
        found = unwrap(getattr(state, name))
        assert distance(found, getattr(expected, name)) <= 1e-6
        # The comparison means something only if the updates went somewhere.
        assert distance(found, start_params()) > 0.05
    assert distance(replay_state.tree, expected_replay.tree) <= 1e-5
    assert distance(replay_state.tree[-1], expected_replay.tree[-1]) <= 1e-6
    assert distance(replay_state.max_priority, expected_replay.max_priority) <= 1e-6
    np.testing.assert_array_equal(replay_state.visit_count, expected_replay.visit_count)
    for name in ("loss", "gradient_norm", "expert_share", "mean_q"):
        np.testing.assert_allclose(metrics[name], expected_metrics[name], rtol=1e-4, atol=1e-6)


def test_bqfd_that_ignores_the_expert_is_pdd_dqn():
    assert_same_run(train(configure(BqfdConfig, **SHARED, variance=0.0, zeta=0.0)), train_pdd_dqn())


def test_bqfd_that_ignores_the_expert_on_a_path_is_pdd_dqn():
    config = configure(
        BqfdConfig, **SHARED, variance=0.0, zeta=0.0, n_step_zeta=0.0, correction_steps=3
    )
    assert_same_run(train(config, path_steps=3), train_pdd_dqn())


def test_bqfd_without_demonstrations_is_pdd_dqn():
    found = train(configure(BqfdConfig, **SHARED), demonstrations=False)
    assert float(found[2]["expert_share"].max()) == 0.0
    assert_same_run(found, train_pdd_dqn(demonstrations=False))


def test_dqfd_without_margin_l2_and_bonus_is_pdd_dqn():
    config = configure(
        DqfdConfig,
        **SHARED,
        margin_weight=0.0,
        l2_weight=0.0,
        demo_priority_bonus=SHARED["priority_epsilon"],
    )
    assert_same_run(train(config), train_pdd_dqn())


def test_bootstrapped_with_one_member_is_pdd_dqn():
    params = {"members": jax.tree.map(lambda x: x[None], start_params())}
    found = train(
        configure(BootstrappedConfig, **SHARED, ensemble_size=1, mask_probability=1.0),
        params=params,
    )
    assert_same_run(found, train_pdd_dqn(), lambda p: jax.tree.map(lambda x: x[0], p["members"]))


def equal_members(size):
    """Parameters of an ensemble whose members are all alike, and whose priors say nothing."""
    params = jax.tree.map(lambda x: jnp.stack([x] * size), start_params())
    nothing = jnp.zeros(())
    return {"members": params, "prior": jax.tree.map(jnp.copy, params), "prior_scale": nothing}


def first_member(params):
    return jax.tree.map(lambda x: x[0], params["members"])


def assert_members_are(found, expected):
    """The gradient norm of K members is larger, and so is the sum of their losses."""
    state, replay_state, metrics = found
    size = len(jax.tree.leaves(state.params["members"])[0])
    metrics = metrics | {
        "loss": metrics["loss"] / size,
        "gradient_norm": metrics["gradient_norm"] / size**0.5,
    }
    assert_same_run((state, replay_state, metrics), expected, first_member)
    for k in range(1, size):
        other = jax.tree.map(lambda x, k=k: x[k], state.params["members"])
        assert distance(other, first_member(state.params)) == 0.0


def test_members_that_never_disagree_are_plain_double_q_learning():
    """Whatever the expert does: nobody is uncertain."""
    config = configure(EnsembleBqfdConfig, **SHARED, zeta=0.0, mask_probability=1.0, eta=50.0)
    assert_members_are(train(config, params=equal_members(3)), train_pdd_dqn())


@pytest.mark.parametrize("all_actions", [False, True])
def test_equal_members_with_visit_weights_are_bqfd_each(all_actions):
    options = SHARED | {"correct_all_actions": all_actions}
    config = configure(BqfdConfig, **options, ensemble_size=2, mask_probability=1.0)
    found = train(config, params=equal_members(2))
    assert_members_are(found, train(configure(BqfdConfig, **options)))


def test_one_member_with_visit_weights_is_bqfd_to_the_bit():
    alone = configure(EnsembleBqfdConfig, **SHARED, weight="visits", ensemble_size=1)
    found, expected = train(alone), train(configure(BqfdConfig, **SHARED))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def test_n_steps_of_one_are_one_step():
    n_step = train_pdd_dqn(one_step_weight=0.0, n_step_weight=1.0, n_step=1)
    one_step = train_pdd_dqn(one_step_weight=1.0, n_step_weight=0.0, n_step=1)
    assert_same_run(n_step, one_step)


def test_a_target_copied_at_every_update_is_the_network_itself():
    config = configure(PddDqnConfig, **SHARED | {"target_step_size": 1.0, "target_period": 1})
    replay, replay_state = filled_replay()
    agent = make_agent(NETWORK, config, replay)
    state = agent.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm), optax.adam(config.learning_rate)
    )
    loss = pdd_dqn.make_loss(NETWORK, config)

    @quick_jit
    def without_target(params, opt_state, replay_state, key):
        batch = replay.sample(key, replay_state, config.batch_size, config.importance_exponent)
        gradient, _ = jax.grad(loss, has_aux=True)(params, params, batch)
        step, opt_state = optimizer.update(gradient, opt_state)
        return optax.apply_updates(params, step), opt_state

    update = quick_jit(agent.update)
    params, opt_state = state.params, optimizer.init(state.params)
    for seed in range(3):
        key = jax.random.key(seed)
        params, opt_state = without_target(params, opt_state, replay_state, key)
        state, replay_state, _ = update(key, state, replay_state, jnp.int32(seed))
        assert distance(state.target_params, state.params) == 0.0
        assert distance(state.params, params) <= 1e-6
    assert distance(params, start_params()) > 0.05


def random_expert_batch(path_steps):
    """Eight samples, every other one an expert's, with paths that end after one step."""
    rng = np.random.default_rng(1)
    first_step_only = np.eye(path_steps)[:1].repeat(8, axis=0)
    return make_batch(
        observation=rng.integers(0, 4, 8),
        n_step_observation=rng.integers(4, 8, 8),
        action=(action := rng.integers(0, NUM_ACTIONS, 8)),
        n_step_return=rng.normal(size=8),
        n_step_discount=rng.uniform(0, 1, 8),
        path_action=np.concatenate(
            [action[:, None], rng.integers(0, NUM_ACTIONS, (8, path_steps - 1))], axis=1
        ),
        path_observation=rng.integers(0, 8, (8, path_steps - 1)),
        path_discount=first_step_only,
        path_visit_count=rng.integers(1, 9, (8, path_steps)),
        is_expert=np.arange(8) % 2 == 0,
        importance_weight=rng.uniform(0.2, 1, 8),
    )


N_STEP_ONLY = {"n_step": 3, "one_step_weight": 0.0, "n_step_weight": 1.0, "zeta": 0.3}


def bqfd_loss_and_gradient(config, batch):
    params = start_params()
    target_params = jax.tree.map(lambda x: 0.5 * x, params)
    loss = quick_jit(jax.value_and_grad(bqfd.make_loss(NETWORK, config), has_aux=True))
    return loss(params, target_params, batch), params, target_params


def test_one_correction_in_the_n_step_target_is_the_first_steps():
    config = configure(BqfdConfig, **N_STEP_ONLY)
    batch = random_expert_batch(1)
    ((value, output), _), params, target_params = bqfd_loss_and_gradient(config, batch)
    constants = {name: getattr(config, name) for name in ("beta", "variance", "noise_ratio")}

    @quick_jit
    def reference(params, target_params):
        error = jax.vmap(functools.partial(losses.bqfd_td_error, eta=config.eta))(
            NETWORK.apply(params, batch.observation),
            batch.action,
            batch.n_step_return,
            batch.n_step_discount,
            NETWORK.apply(target_params, batch.n_step_observation),
            NETWORK.apply(params, batch.n_step_observation),
            batch.is_expert,
            posterior.visit_weight(batch.path_visit_count[:, 0], **constants),
        )
        off_policy = functools.partial(posterior.off_policy_weight, eta=config.eta, zeta=0.3)
        weight = jax.vmap(off_policy)(NETWORK.apply(target_params, batch.observation), batch.action)
        weight = jnp.where(batch.is_expert, weight, 1.0) * batch.importance_weight
        return jnp.mean(weight * 0.5 * error**2), error

    expected, error = reference(params, target_params)
    np.testing.assert_allclose(output.td_error, error, rtol=1e-5)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("from_target", [True, False])
def test_paths_that_end_after_one_step_hold_one_correction(from_target):
    short = configure(BqfdConfig, **N_STEP_ONLY, weight_from_target=from_target)
    long = dataclasses.replace(short, correction_steps=3, n_step_zeta=0.3)
    batch = random_expert_batch(3)
    first = batch.replace(
        **{
            name: getattr(batch, name)[:, :1]
            for name in ("path_action", "path_discount", "path_visit_count")
        },
        path_observation=batch.path_observation[:, :0],
    )
    ((value, output), gradient), *_ = bqfd_loss_and_gradient(long, batch)
    ((expected, expected_output), expected_gradient), *_ = bqfd_loss_and_gradient(short, first)
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    np.testing.assert_allclose(output.td_error, expected_output.td_error, rtol=1e-6)
    assert distance(gradient, expected_gradient) <= 1e-6


def test_ez_greedy_that_never_repeats_is_epsilon_greedy():
    """Over lanes, and from one step to the next."""
    L, epsilon = 6000, 0.6
    network = table_network(2, 3)
    params = {"table": jnp.array([[0.0, 1.0, 0.5], [2.0, 0.0, 2.0]])}  # state 1 has a tie
    observation = (jnp.arange(L) % 2)[:, None]
    expected = np.array([[0.2, 0.6, 0.2], [0.4, 0.2, 0.4]])
    for kind in ("epsilon", "ez"):
        config = configure(
            PddDqnConfig,
            exploration=kind,
            epsilon_values=(epsilon,),
            ez_max_repeat=1,
        )
        act = quick_jit(functools.partial(acting.act, network.apply, config))
        actor, actions = acting.init_actor(L), []
        for seed in range(2):
            action, actor = act(
                jax.random.key(seed),
                params,
                actor,
                observation,
                jnp.zeros(L, bool),
                jnp.int32(seed),
            )
            actions.append(np.asarray(action))
        for state in (0, 1):
            first, second = (a[state::2] for a in actions)
            pairs = np.bincount(3 * first + second, minlength=9).reshape(3, 3) / len(first)
            # Independent steps: the product of the closed form; 4 deviations are at most 0.034.
            np.testing.assert_allclose(
                pairs, np.outer(expected[state], expected[state]), atol=0.034
            )
