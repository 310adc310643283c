"""Experts of DeepSea by hand, and what a replay makes of their demonstrations."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax.envs import deep_sea, deep_sea_experts, deep_sea_values
from bqfd_jax.replay import check_demonstrations, make_replay
from bqfd_jax.types import Row

SIZE, SLOTS, GAMMA = 4, 3, 0.9
ENV = deep_sea.make(SIZE)
TREASURE = deep_sea.treasure(SIZE)
Q = deep_sea_values.optimal_q(TREASURE, SIZE, gamma=1.0)


@jax.jit
def show(experts, key, first, trajectories, rows) -> Row:
    return deep_sea_experts.show(
        key,
        ENV,
        TREASURE,
        experts,
        first=first,
        trajectories=trajectories,
        rows=rows,
        max_trajectories=SLOTS,
        size=SIZE,
        gamma=GAMMA,
    )


def reachable(expert) -> np.ndarray:
    """The lower triangle; other cells are never visited."""
    return np.asarray(expert)[np.tril_indices(SIZE)]


# By rows: the corner's path is the last cell of each; elsewhere left costs nothing.
RIGHT = np.array([1, 0, 1, 0, 0, 1, 0, 0, 0, 1], np.float32)


def test_infinite_eta_is_the_best_or_the_worst_action():
    np.testing.assert_array_equal(reachable(deep_sea_experts.boltzmann(Q, np.inf)), RIGHT)
    np.testing.assert_array_equal(reachable(deep_sea_experts.boltzmann(Q, -np.inf)), 1 - RIGHT)


def test_finite_eta_by_hand():
    expert = deep_sea_experts.boltzmann(Q, 2.0)
    # In the corner right pays 1; a step before 1 less the cost of a move; left of it a move costs.
    odds = np.exp(2.0 * np.array([1.0, 1.0 - 0.01 / 4, -0.01 / 4]))
    got = [expert[3, 3], expert[2, 2], expert[3, 0]]
    np.testing.assert_allclose(got, odds / (1 + odds), rtol=1e-5)
    np.testing.assert_array_equal(deep_sea_experts.boltzmann(Q, 0.0), np.full((SIZE, SIZE), 0.5))
    np.testing.assert_allclose(deep_sea_experts.boltzmann(Q, -2.0), 1 - expert, atol=1e-6)


def test_errors_come_with_their_probability_everywhere():
    np.testing.assert_allclose(
        reachable(deep_sea_experts.erring(Q, 0.25)), np.where(RIGHT == 1, 0.75, 0.25)
    )


def test_right_until_a_row():
    expert = reachable(deep_sea_experts.right_until(Q, 2))
    np.testing.assert_array_equal(expert, np.concatenate([RIGHT[:3], 1 - RIGHT[3:]]))


def test_a_whole_trajectory_is_the_papers_demonstration():
    experts = deep_sea_experts.boltzmann(Q, np.inf)[None]
    shown = show(experts, jax.random.key(0), 0, 1, SIZE)
    expected = deep_sea.demonstrate(
        jax.random.key(1), ENV, TREASURE, deep_sea.always_right, size=SIZE, gamma=GAMMA
    )
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[:SIZE], shown), expected)
    assert shown.is_last[SIZE:].all()
    check_demonstrations(shown)


def test_experts_take_turns_and_fewer_are_the_first_of_more():
    experts = jnp.stack([deep_sea_experts.boltzmann(Q, eta) for eta in (np.inf, -np.inf)])
    first_moves = {
        first: show(experts, jax.random.key(0), first, 3, SIZE).action[::SIZE].tolist()
        for first in (0, 1)
    }
    assert first_moves == {0: [1, 0, 1], 1: [0, 1, 0]}
    chance = jnp.full((1, SIZE, SIZE), 0.5)
    two, three = (show(chance, jax.random.key(0), 0, count, SIZE) for count in (2, 3))
    chex.assert_trees_all_equal(
        jax.tree.map(lambda x: x[: 2 * SIZE], two), jax.tree.map(lambda x: x[: 2 * SIZE], three)
    )
    actions = three.action.reshape(3, SIZE).tolist()
    assert len({tuple(row) for row in actions}) > 1


def test_a_trajectory_cut_off_keeps_the_frame_it_was_cut_at():
    experts = deep_sea_experts.boltzmann(Q, np.inf)[None]
    shown = show(experts, jax.random.key(0), 0, 2, 2)
    check_demonstrations(shown)
    slot = jax.tree.map(lambda x: x[SIZE : 2 * SIZE], shown)
    assert slot.frame.tolist() == [[0, 0], [1, 1], [2, 2], [0, 0]]
    assert slot.is_last.tolist() == [False, False, True, True]
    assert slot.is_first.tolist() == [True, False, False, True]
    np.testing.assert_allclose(slot.discount, [GAMMA, GAMMA, 0, 0])
    assert shown.is_last[2 * SIZE :].all()


@pytest.mark.parametrize(("trajectories", "rows"), [(1, SIZE), (2, 2), (3, 1)])
def test_a_replay_draws_what_was_shown_and_nothing_else(trajectories, rows):
    replay = make_replay(
        frame_shape=(2,),
        frame_dtype=jnp.int32,
        rows_per_lane=10,
        num_demo_rows=SLOTS * SIZE,
        n_step=3,
        priority_exponent=0.4,
    )
    experts = deep_sea_experts.boltzmann(Q, np.inf)[None]
    state = replay.init(show(experts, jax.random.key(0), 0, trajectories, rows))
    shown = {slot * SIZE + row for slot in range(trajectories) for row in range(rows)}
    draw = jax.jit(functools.partial(replay.sample, batch_size=256))
    batch = draw(jax.random.key(1), state)
    uniform = replay.sample_demonstrations(jax.random.key(2), state, 256)
    assert set(batch.index.tolist()) == set(uniform.index.tolist()) == shown
    assert batch.is_expert.all()
    # Three steps on, or where the trajectory ended or was cut; never another trajectory.
    start = batch.observation[:, 0, 0]
    end = jnp.minimum(start + 3, rows)
    whole = end == SIZE
    np.testing.assert_array_equal(
        jnp.where(whole, end, batch.n_step_observation[:, 0, 0]), np.asarray(end)
    )
    np.testing.assert_allclose(
        batch.n_step_discount, jnp.where(whole, 0.0, GAMMA ** (end - start)), rtol=1e-6
    )
    # Priorities set for what cannot be drawn leave it so.
    everything = jnp.arange(SLOTS * SIZE)
    state = replay.set_priorities(state, everything, jnp.ones(SLOTS * SIZE))
    assert set(draw(jax.random.key(3), state).index.tolist()) == shown


def test_numbers_that_make_no_expert_are_refused():
    with pytest.raises(ValueError, match="eta is nan"):
        deep_sea_experts.boltzmann(Q, np.nan)
    with pytest.raises(ValueError, match=r"probability is 1\.5"):
        deep_sea_experts.erring(Q, 1.5)
