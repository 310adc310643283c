"""Networks that are made partly anew, and an n that falls until they are."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import NUM_ACTIONS, NUM_STATES, configure, filled_replay, quick_jit, table_network

from bqfd_jax import networks
from bqfd_jax.agents import (
    BootstrappedConfig,
    BqfdConfig,
    DqfdConfig,
    EnsembleBqfdConfig,
    PddDqnConfig,
    make_agent,
)
from bqfd_jax.agents import learner as learner_lib
from bqfd_jax.agents.resets import renewed, updates_since

ABSURD = 1e9
OBSERVATION = jnp.zeros((1, 1, 2), jnp.float32)


def learned(leaf):
    """Far from anything that is drawn at the beginning, and every entry another."""
    return 100.0 + jnp.arange(leaf.size, dtype=jnp.float32).reshape(leaf.shape)


def trained(agent):
    """A learner that could not be at its beginning."""
    learner = agent.init(jax.random.key(0), OBSERVATION)
    params = jax.tree.map(learned, learner.params)
    return learner.replace(
        params=params,
        target_params=jax.tree.map(lambda x: -3 * x, params),
        opt_state=jax.tree.map(lambda x: x + 7, learner.opt_state),
        updates=jnp.int32(40),
    )


def dense_network():
    return networks.for_observation((2,), np.float32, NUM_ACTIONS, hidden=4)


def test_the_torso_moves_and_the_head_is_new_by_hand():
    old = {
        "members": {"torso": {"w": jnp.array([2.0, -4.0])}, "head": {"w": jnp.array([ABSURD])}},
        "prior": {"torso": {"w": jnp.array([8.0])}},
    }
    new = {
        "members": {"torso": {"w": jnp.array([10.0, 4.0])}, "head": {"w": jnp.array([5.0])}},
        "prior": {"torso": {"w": jnp.array([ABSURD])}},
    }
    moved = renewed(old, new, share=0.25, kept=("prior",))
    expected = {
        "members": {"torso": {"w": jnp.array([4.0, -2.0])}, "head": {"w": jnp.array([5.0])}},
        "prior": {"torso": {"w": jnp.array([8.0])}},
    }
    chex.assert_trees_all_equal(moved, expected)


def test_of_a_network_without_a_torso_everything_moves():
    old, new = (
        {"in": jnp.array([2.0]), "out": [jnp.array([4.0])]},
        {
            "in": jnp.array([0.0]),
            "out": [jnp.array([8.0])],
        },
    )
    moved = renewed(old, new, share=0.5)
    chex.assert_trees_all_equal(moved, {"in": jnp.array([1.0]), "out": [jnp.array([6.0])]})


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (PddDqnConfig, {}),
        (DqfdConfig, {}),
        (BqfdConfig, {}),
        (EnsembleBqfdConfig, {"ensemble_size": 2}),
        (BootstrappedConfig, {"ensemble_size": 2, "prior_scale": 1.0}),
    ],
)
def test_every_agent_is_reset_alike(kind, changes):
    config = configure(kind, reset_period=20, reset_share=0.25, **changes)
    agent = make_agent(dense_network(), config)
    assert agent.reset_period == 20
    before, key = trained(agent), jax.random.key(1)
    reset, fresh = quick_jit(
        lambda key, learner: (
            agent.reset(key, learner, OBSERVATION),
            agent.init(key, OBSERVATION).params,
        )
    )(key, before)

    def check(path, old, new, found):
        names = jax.tree_util.keystr(path)
        if names.startswith("['prior"):
            expected = old
        elif "torso" in names:
            expected = 0.75 * old + 0.25 * new
        else:
            expected = new
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=names)

    jax.tree.map_with_path(check, before.params, fresh, reset.params)
    jax.tree.map_with_path(check, before.target_params, fresh, reset.target_params)
    # Adam has forgotten its moments, and how many updates there were; the learner has not.
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(reset.opt_state))
    assert int(updates_since(before)) == 7
    assert int(updates_since(reset)) == 0
    assert int(reset.updates) == 40
    chex.assert_trees_all_equal(reset.extra, before.extra)
    chex.assert_trees_all_equal_shapes_and_dtypes(reset, before)


def test_the_key_decides_what_is_new():
    agent = make_agent(dense_network(), configure(PddDqnConfig))
    reset = quick_jit(lambda key: agent.reset(key, trained(agent), OBSERVATION).params)
    first, again, other = (reset(jax.random.key(seed)) for seed in (3, 3, 4))
    chex.assert_trees_all_equal(first, again)
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (first, other)), strict=True))


def test_somebodys_own_network_is_reset():
    class Own(nn.Module):
        @nn.compact
        def __call__(self, observation):
            return nn.Dense(NUM_ACTIONS)(observation[:, 0])

    agent = make_agent(networks.from_flax(Own()), configure(PddDqnConfig, reset_share=1.0))
    before = trained(agent)
    reset = agent.reset(jax.random.key(1), before, OBSERVATION)
    fresh = agent.init(jax.random.key(1), OBSERVATION)
    chex.assert_trees_all_close(reset.params, fresh.params, atol=1e-5)


# --------------------------------------------------------------------------------- n that falls


def falling(**changes):
    return configure(
        PddDqnConfig,
        **{"n_step": 3, "n_step_weight": 1.0, "n_step_final": 1, "n_step_updates": 4} | changes,
    )


def test_n_falls_by_hand_and_begins_anew_after_a_reset():
    # 3 * (1 / 3) ** (k / 4): 3, 2.28, 1.73, 1.32, 1, 1.
    network = table_network(NUM_STATES, NUM_ACTIONS)
    replay, replay_state = filled_replay(n_step=3)
    agent = make_agent(network, falling(), replay)
    observation = jnp.zeros((1, 1), jnp.int32)

    def update(carry, key):
        learner, replay_state, metrics = agent.update(key, *carry, jnp.int32(0))
        return (learner, replay_state), metrics["n_step"]

    @quick_jit
    def train(learner, replay_state):
        keys = jax.random.split(jax.random.key(5), 6)
        (learner, replay_state), before = jax.lax.scan(update, (learner, replay_state), keys)
        learner = agent.reset(jax.random.key(6), learner, observation)
        (learner, _), after = jax.lax.scan(update, (learner, replay_state), keys)
        return learner.updates, before, after

    updates, before, after = train(agent.init(jax.random.key(0), observation), replay_state)
    assert np.asarray(before).tolist() == [3, 2, 2, 1, 1, 1]
    assert np.asarray(after).tolist() == [3, 2, 2, 1, 1, 1]
    assert int(updates) == 12


def test_n_stays_where_it_is_not_asked_to_fall():
    agent = make_agent(table_network(NUM_STATES, NUM_ACTIONS), falling())
    learner = agent.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    # By default, where it falls to itself, and where the n-step loss has no weight.
    for changes in ({"n_step_final": 0}, {"n_step_final": 3}, {"n_step_weight": 0.0}):
        assert learner_lib.n_step_now(falling(**changes), learner) is None


def test_an_n_that_has_fallen_is_that_of_a_smaller_config():
    """Once n is 1, looking n steps ahead is looking one step ahead."""
    network = table_network(NUM_STATES, NUM_ACTIONS)
    replay, replay_state = filled_replay(n_step=3)
    annealed = make_agent(network, falling(one_step_weight=0.0), replay)
    one_step = make_agent(network, falling(n_step_final=0, n_step_weight=0.0), replay)
    learner = annealed.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    learner = learner.replace(
        opt_state=jax.tree.map(lambda x: x + 100 if x.dtype == jnp.int32 else x, learner.opt_state)
    )
    key, step = jax.random.key(9), jnp.int32(0)
    ours, _, _ = quick_jit(annealed.update)(key, learner, replay_state, step)
    theirs, _, _ = quick_jit(one_step.update)(key, learner, replay_state, step)
    chex.assert_trees_all_close(ours.params, theirs.params, rtol=1e-6)
    ours, _, _ = quick_jit(annealed.pretrain)(key, learner, replay_state, step)
    theirs, _, _ = quick_jit(one_step.pretrain)(key, learner, replay_state, step)
    chex.assert_trees_all_close(ours.params, theirs.params, rtol=1e-6)
