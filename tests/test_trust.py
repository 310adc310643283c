"""What ensemble BQfD and a learnt eta make of demonstrations."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    ABSURD,
    NUM_ACTIONS,
    NUM_STATES,
    configure,
    filled_replay,
    make_batch,
    make_rows,
    mlp_network,
    quick_jit,
    table_network,
)

from bqfd_jax import networks
from bqfd_jax.agents import BqfdConfig, EnsembleBqfdConfig, make_agent, trust
from bqfd_jax.agents.bootstrapped import bootstrap_mask
from bqfd_jax.agents.bqfd import expert_weight, make_loss
from bqfd_jax.checks import OptionError
from bqfd_jax.replay import make_replay
from bqfd_jax.replay.demonstrations import with_room

KEY = jax.random.key(0)
OBSERVATION = jnp.zeros((1, 1), jnp.int32)
NETWORK = mlp_network(NUM_STATES, NUM_ACTIONS)


def known(*ends, eta=1.0, initial=1.0, step_worth=None):
    size = len(ends)
    return trust.Trust(
        ends=jnp.array(ends, jnp.int32),
        log_eta=jnp.full(size, jnp.log(eta)),
        weight=jnp.full(size, 0.6),
        initial=jnp.float32(initial),
        step_worth=None if step_worth is None else jnp.float32(step_worth),
    )


# ------------------------------------------------------------------------- the scale of the prior


def test_what_a_demonstrated_step_is_worth():
    rows = make_rows(
        [
            (0, 0, 1.0, 0.5, "first"),  # 1 + 0.5 x 8, in 1 + 0.5 steps
            (0, 0, 8.0, 0.0, ""),
            (0, 0, 3.0, 0.5, "first"),  # what follows is unknown
            (0, 0, ABSURD, 0.5, "last"),
            (0, 0, ABSURD, 0.5, "first"),  # no demonstration's
        ]
    )
    returns, steps = 5.0**2 + 8.0**2 + 3.0**2, 1.5**2 + 1.0**2 + 1.0**2
    found = trust.step_worth(BqfdConfig(), rows, 4)
    assert found == pytest.approx(np.sqrt(returns / steps), rel=1e-6)
    small = rows.replace(reward=0.01 * rows.reward)
    found = trust.step_worth(BqfdConfig(), small, 4)
    assert found == pytest.approx(np.sqrt(3 / steps), rel=1e-6)


def test_room_that_is_never_filled_is_worth_nothing():
    rows = make_rows([(0, 0, 5.0, 0.5, "first"), (0, 0, 3.0, 0.5, ""), (0, 0, ABSURD, 0.5, "last")])
    alone = trust.step_worth(BqfdConfig(), rows, 3)
    roomy = jax.tree.map(jnp.asarray, with_room(rows, 8))
    assert trust.step_worth(BqfdConfig(), roomy, 8) == alone


def test_a_step_adds_less_to_squashed_values():
    # Returns of 8: h'(8) = 1 / (2 sqrt(8 + 1)) + 1 / 100.
    rows = make_rows([(0, 0, 8.0, 0.0, "first"), (0, 0, 8.0, 0.0, "first")])
    assert trust.step_worth(BqfdConfig(), rows, 2) == pytest.approx(8.0, rel=1e-6)
    squashed = trust.step_worth(BqfdConfig(squash_values=True), rows, 2)
    assert squashed == pytest.approx(8.0 * (1 / 6 + 0.01), rel=1e-5)


@pytest.mark.parametrize(("size", "expected"), [(10, 0.2001), (20, 0.1075), (50, 0.04887)])
def test_the_longer_the_way_to_a_reward_the_smaller_the_prior(size, expected):
    # One reward of 1 at the end, discounted by 0.99: the return stays and the steps grow.
    discount = [0.99] * (size - 1) + [0.0]
    steps = [sum(0.99**k for k in range(left)) for left in range(size, 0, -1)]
    rows = make_rows(
        [(0, 0, float(t == size - 1), discount[t], "" if t else "first") for t in range(size)]
    )
    found = 1.2 * trust.step_worth(BqfdConfig(), rows, size)
    assert found == pytest.approx(1.2 / np.sqrt(np.mean(np.square(steps))), rel=1e-5)
    assert found == pytest.approx(expected, rel=1e-3)


def prepared(rewards=1.0, **changes):
    """A learner that was shown the demonstrations, their rewards multiplied."""
    replay, state = filled_replay()
    state = state.replace(rows=state.rows.replace(reward=rewards * state.rows.reward))
    config = configure(EnsembleBqfdConfig, **changes)
    agent = make_agent(NETWORK, config, replay)
    return quick_jit(lambda: agent.prepare(agent.init(KEY, OBSERVATION), state))()


def disagreement(params, *states):
    """The mean variance of the priors alone."""
    network = networks.prior_ensemble(NETWORK, 3)
    seen = jnp.array(states)[:, None]
    q = network.apply(params, seen) - network.apply(params | {"prior_scale": 0.0}, seen)
    return float(jnp.mean(jnp.var(q, axis=1)))


def test_priors_disagree_in_the_demonstrations_as_much_as_they_should():
    found = prepared(prior_scale=0.5)
    # Every state that the demonstrations start from, equally often but for chance; the root mean
    # square of their returns is 1.378, and that of their steps 1.820.
    expected = (0.5 * 1.378 / 1.820) ** 2
    assert disagreement(found.params, 0, 1, 2, 3, 4) == pytest.approx(expected, rel=0.15)
    scale = {factor: float(prepared(factor).params["prior_scale"]) for factor in (0.01, 1.0, 100.0)}
    assert scale[100.0] == pytest.approx(100 * scale[1.0], rel=1e-4)
    assert 0.5 * scale[1.0] < scale[0.01] < scale[1.0]
    np.testing.assert_array_equal(found.target_params["prior_scale"], found.params["prior_scale"])


@pytest.mark.parametrize("rewards", [0.01, 1.0, 100.0])
def test_the_weight_begins_at_the_priors_variance_whatever_the_scale(rewards):
    learner = prepared(rewards)
    batch = make_batch(
        observation=[0, 1, 2, 3, 4], action=[1, 2, 0, 1, 1], is_expert=np.ones(5, bool)
    )
    config = configure(EnsembleBqfdConfig)
    q = networks.prior_ensemble(NETWORK, 3).apply(learner.params, batch.observation)
    weight = np.asarray(expert_weight(config, batch, q[:, None], *learner.extra))
    # No more than 0.6 anywhere, and 0.6 where members differ at least as much as on the average.
    assert weight.max() == pytest.approx(0.6)
    assert 0.2 < weight.mean() <= 0.6


@pytest.mark.parametrize(
    ("weight", "expected"),
    [("visits", [0.48, 0.12]), ("ensemble", [0.15, 0.6]), ("smaller", [0.15, 0.12])],
)
def test_the_smaller_weight_is_each_rows_own(weight, expected):
    # Visits: 0.6 (16 + 4 n) / (4 + n)^2 for n = 1 and 16.  Members: 0.6 of a variance of 1 and 4,
    # by an initial one of 4; other actions would give other variances.
    batch = make_batch(action=[0, 1], path_visit_count=np.array([[1], [16]]))
    q = jnp.array([[[0.0, 9.0, 9.0], [2.0, -9.0, 5.0]], [[9.0, 0.0, 9.0], [9.0, 4.0, 5.0]]])
    config = configure(EnsembleBqfdConfig, weight=weight)
    found = expert_weight(config, batch, q[:, None], known(20, initial=4.0))
    np.testing.assert_allclose(found, np.array(expected)[:, None], rtol=1e-6)


def test_without_demonstrations_nothing_is_set():
    replay, state = filled_replay(demonstrations=False)
    agent = make_agent(NETWORK, configure(EnsembleBqfdConfig), replay)
    learner = agent.prepare(agent.init(KEY, OBSERVATION), state)
    assert learner.params["prior_scale"] == 1.0


# -------------------------------------------------------------------- which rows are whose


def test_rows_belong_to_the_demonstration_that_they_lie_in():
    found = trust.owner(known(3, 5), jnp.array([0, 2, 3, 4, 5, 99]))
    assert found.tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(("size", "longest"), [(20, 1), (200, 1), (4000, 10)])
def test_a_tenth_of_each_demonstration_is_held_out(size, longest):
    held = np.asarray(trust.is_held_out(known(size, 2 * size), jnp.arange(2 * size)))
    for part in (held[:size], held[size:]):
        assert part.sum() == size / 10
    runs = np.diff(np.flatnonzero(np.diff(np.concatenate([[0], held, [0]]))))[::2]
    assert runs.max() in (longest, 2 * longest)
    # Not always at the same place of ten.
    if size > 20:
        assert len(set(np.flatnonzero(held)[::longest] // longest % 10)) > 4


def test_held_out_rows_have_no_weight():
    one = known(20)
    index = jnp.arange(20)
    batch = make_batch(action=np.zeros(20, int), index=index, path_visit_count=np.ones((20, 1)))
    config = configure(BqfdConfig, learn_eta=True)
    weight = np.asarray(expert_weight(config, batch, jnp.zeros((20, 1, 3)), one))[:, 0]
    held = np.asarray(trust.is_held_out(one, index))
    assert (weight[held] == 0).all()
    assert (weight[~held] > 0).all()


def test_what_lies_on_a_path_is_held_out_by_its_own_row():
    one = known(20)
    first = int(np.flatnonzero(np.asarray(trust.is_held_out(one, jnp.arange(20))))[0])
    batch = make_batch(
        action=[0, 0],
        index=[first - 1, first],
        path_action=np.zeros((2, 3), int),
        path_visit_count=np.ones((2, 3)),
    )
    config = configure(BqfdConfig, learn_eta=True)
    weight = np.asarray(expert_weight(config, batch, jnp.zeros((2, 3, 3)), one))
    assert (weight > 0).tolist() == [[True, False, True], [False, True, True]]


def test_each_row_is_corrected_by_its_own_demonstrations_eta():
    network = table_network(NUM_STATES, NUM_ACTIONS)
    tables = network.init(KEY, OBSERVATION), network.init(jax.random.key(1), OBSERVATION)
    one = known(20, 40).replace(log_eta=jnp.log(jnp.array([0.5, 4.0])))
    batch = make_batch(
        observation=[0, 1],
        action=[1, 2],
        reward=[1.0, -1.0],
        discount=[0.9, 0.9],
        next_observation=[2, 3],
        index=[0, 20],
        is_expert=[True, True],
        path_visit_count=np.ones((2, 1)),
    )

    def loss(row, *extra, **changes):
        alone = batch.replace(importance_weight=jnp.eye(2)[row])
        config = configure(BqfdConfig, n_step_weight=0.0, **changes)
        total, output = make_loss(network, config)(*tables, alone, *extra)
        return float(total), float(output.td_error[row])

    for row, eta, other in ((0, 0.5, 4.0), (1, 4.0, 0.5)):
        assert loss(row, one, learn_eta=True) == pytest.approx(loss(row, eta=eta), rel=1e-5)
        assert loss(row, eta=eta) != pytest.approx(loss(row, eta=other), rel=1e-2)


@pytest.mark.parametrize("all_actions", [True, False])
def test_values_counted_in_steps(all_actions):
    # Where a step is worth 4, an eta of 2 per step is 1/2 per reward, and a variance of 0.6
    # squared steps is 9.6 squared rewards.
    network = table_network(2, 3)
    params = {"table": jnp.array([[1.0, 3.0, 2.0], [0.5, 0.25, 0.75]])}
    batch = make_batch(observation=[0, 1], action=[1, 2], is_expert=np.array([True, False]))
    options = {"correct_all_actions": all_actions, "n_step_weight": 0.0}

    def loss(config, *told):
        return jax.value_and_grad(make_loss(network, config), has_aux=True)(
            params, params, batch, *told
        )

    (plain, _), gradient = loss(BqfdConfig(eta=0.5, variance=9.6, **options))
    config = BqfdConfig(eta=2.0, variance=0.6, in_steps=True, **options)
    (counted, _), counted_gradient = loss(config, known(20, eta=2.0, step_worth=4.0))
    assert counted == pytest.approx(float(plain), rel=1e-5)
    chex.assert_trees_all_close(counted_gradient, gradient, rtol=1e-5)
    # Counted in rewards, it is another loss.
    assert abs(loss(BqfdConfig(eta=2.0, variance=0.6, **options))[0][0] - plain) > 0.01


def test_what_a_step_is_worth_comes_from_the_demonstrations():
    replay, state = filled_replay()
    config = configure(BqfdConfig, in_steps=True)
    agent = make_agent(NETWORK, config, replay)
    (found,) = agent.prepare(agent.init(KEY, OBSERVATION), state).extra
    # As in the test of the priors' scale.
    assert found.step_worth == pytest.approx(1.378 / 1.820, rel=1e-3)


@pytest.mark.parametrize("changes", [{}, {"learn_eta": True}])
def test_who_does_not_count_in_steps_has_what_checkpoints_have_always_had(changes):
    (found,) = prepared(**changes).extra
    names = [path[-1].name for path, _ in jax.tree.leaves_with_path(found)]
    assert sorted(names) == ["ends", "initial", "log_eta", "weight"]


def test_members_learn_from_their_share_of_own_rows_and_from_every_demonstration():
    network = networks.prior_ensemble(table_network(NUM_STATES, NUM_ACTIONS), 3)
    params = network.init(KEY, OBSERVATION)
    # Six own rows; the demonstration's would not be shown to all members if it were one of them.
    all_masks = np.asarray(bootstrap_mask(jnp.arange(26), size=3, probability=0.5))
    shown = np.flatnonzero(~all_masks[:20].all(axis=1))[0]
    index = np.array([20, 21, 22, 23, 24, 25, shown])
    mask, is_expert = all_masks[index], index < 20
    batch = make_batch(
        observation=np.arange(7),
        action=np.zeros(7),
        reward=np.full(7, 50.0),
        discount=np.zeros(7),
        index=index,
        is_expert=is_expert,
    )
    loss = make_loss(network, configure(EnsembleBqfdConfig, n_step_weight=0.0))
    gradient = jax.grad(lambda params: loss(params, params, batch, known(20))[0])(params)
    learns = np.any(np.asarray(gradient["members"]["table"])[:, :7], axis=2).T
    np.testing.assert_array_equal(learns, mask | is_expert[:, None])
    assert 0 < mask[:-1].mean() < 1


def test_the_weight_that_is_told_is_a_running_mean_of_each_demonstrations_rows():
    batch = make_batch(action=[0, 0, 0], index=[0, 2, 99], is_expert=[True, True, False])
    found = trust.remember_weight(known(3, 5), jnp.array([0.1, 0.3, ABSURD]), batch).weight
    # From 0.6 a hundredth of the way to 0.2; of the other none was drawn.
    np.testing.assert_allclose(found, [0.596, 0.6], rtol=1e-6)


# -------------------------------------------------------------------------------- learning eta


def held_out_batch(one, action, *, index=None):
    rows = np.flatnonzero(np.asarray(trust.is_held_out(one, jnp.arange(int(one.ends[-1])))))
    rows = rows if index is None else index
    return make_batch(
        action=np.resize(action, len(rows)), index=rows, is_expert=np.ones(len(rows), bool)
    )


@pytest.mark.parametrize(("eta", "worth"), [(2.0, None), (8.0, 4.0)])
def test_one_step_by_hand(eta, worth):
    # Where a step is worth 4, an eta of 8 per step is 2 per reward.
    one = known(20, eta=eta, step_worth=worth)
    config = configure(BqfdConfig, learn_eta=True, eta_step_size=0.1)
    q = jnp.broadcast_to(jnp.array([np.log(2) / 2, 0.0]), (2, 1, 2))
    # pi(0) = 2/3 and d log pi / d log eta = eta (q(a) - sum_b pi(b) q(b)).
    rise = np.log(2) * (1 - 2 / 3)
    fall = np.log(2) * (0 - 2 / 3)
    for action, slope in (([0, 0], rise), ([1, 1], fall), ([0, 1], (rise + fall) / 2)):
        found = trust.learn_eta(config, one, q, held_out_batch(one, action))
        assert found.log_eta[0] == pytest.approx(np.log(eta) + 0.1 * slope, rel=1e-5)


def test_only_held_out_rows_of_experts_count_and_each_for_its_demonstration():
    one = known(20, 40)
    config = configure(BqfdConfig, learn_eta=True)
    held = np.flatnonzero(np.asarray(trust.is_held_out(one, jnp.arange(40))))
    mine, others = held[held < 20], np.setdiff1d(np.arange(40), held)
    q = jnp.broadcast_to(jnp.array([1.0, 0.0]), (len(mine), 1, 2))
    moved = trust.learn_eta(config, one, q, held_out_batch(one, [0], index=mine)).log_eta
    assert moved[0] > 0.001
    assert moved[1] == 0.0
    q = jnp.broadcast_to(jnp.array([ABSURD, 0.0]), (len(others), 1, 2))
    batch = held_out_batch(one, [1], index=others)
    assert not trust.learn_eta(config, one, q, batch).log_eta.any()
    own = held_out_batch(one, [1], index=mine).replace(is_expert=jnp.zeros(len(mine), bool))
    assert not trust.learn_eta(config, one, q[: len(mine)], own).log_eta.any()


def test_eta_stays_in_its_bounds():
    one = known(20, eta=1.0)
    config = configure(
        BqfdConfig, learn_eta=True, eta=1.0, eta_step_size=100.0, eta_bounds=(0.5, 2.0)
    )
    q = jnp.broadcast_to(jnp.array([1.0, 0.0]), (2, 1, 2))
    for action, bound in ((0, 2.0), (1, 0.5)):
        found = trust.learn_eta(config, one, q, held_out_batch(one, [action]))
        assert np.exp(found.log_eta[0]) == pytest.approx(bound)


def test_eta_begins_within_its_bounds():
    for eta in (0.0, 40.0):
        with pytest.raises(OptionError, match=rf"eta is {eta}, but must be in \[0\.01, 30\.0\]"):
            configure(BqfdConfig, learn_eta=True, eta=eta)
        configure(BqfdConfig, eta=eta)


def learn_from(labels, kind=BqfdConfig, updates=400, **changes):
    """Etas while training on two demonstrations of 98 rows, episodes of seven states.

    The action that is as good as its state's number pays, the others do not.
    """
    E = len(labels)
    table = [
        (s % 7, int(a), 0.3 * (a == s % 7 % NUM_ACTIONS), 0.9 * (s % 7 < 6), "first" * (s % 7 == 0))
        for s, a in enumerate(labels)
    ]
    config = configure(
        kind, learn_eta=True, learning_rate=0.01, n_step=1, eta=3.0, priority_epsilon=0.1, **changes
    )
    replay = make_replay(
        frame_shape=(), frame_dtype=jnp.int32, rows_per_lane=8, num_demo_rows=E,
        **config.replay_options(),
    )  # fmt: skip
    agent = make_agent(NETWORK, config, replay)

    def run(key):
        state = replay.init(make_rows(table))
        learner = agent.prepare(agent.init(key, OBSERVATION), state, jnp.array([98, 98]))

        def update(carry, key):
            learner, state, _ = agent.update(key, *carry, jnp.int32(0))
            return (learner, state), learner.extra[0].log_eta

        return jax.lax.scan(update, (learner, state), jax.random.split(key, updates))[1]

    return np.exp(np.asarray(quick_jit(run)(KEY)))


@pytest.mark.parametrize(
    "kind", [BqfdConfig, pytest.param(EnsembleBqfdConfig, marks=pytest.mark.slow)]
)
def test_labels_without_information_lose_trust_and_consistent_ones_keep_it(kind):
    consistent = np.arange(98) % 7 % NUM_ACTIONS
    random = np.random.default_rng(0).integers(0, NUM_ACTIONS, 98)
    # Visits that hardly lower the weight: the worst case for labels that explain themselves.
    changes = {"beta": 1e6} if kind is BqfdConfig else {}
    good, bad = learn_from(np.concatenate([consistent, random]), kind, **changes).T
    assert good[-1] > 4.0
    assert bad[-1] < 1.5
    assert good.max() < 30.01


def test_a_config_without_trust_remembers_nothing():
    replay, _ = filled_replay()
    for config in (configure(BqfdConfig), dataclasses.replace(configure(BqfdConfig), eta=1.0)):
        assert make_agent(NETWORK, config, replay).init(KEY, OBSERVATION).extra == ()
