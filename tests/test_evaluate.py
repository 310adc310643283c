"""Evaluation: one whole episode per lane, counted once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CountingEnvironment, looking_network

from bqfd_jax.training.evaluate import make_evaluate, play


def evaluate(num_lanes, *, on_step=None, **options):
    env = CountingEnvironment(num_lanes)
    network = looking_network(env.num_actions)
    player = make_evaluate(network.apply, env, **{"stack": 2, "epsilon": 0.0} | options)
    params = network.init(jax.random.key(0), None)
    return env, player(jax.random.key(1), params, on_step=on_step)


def test_each_lane_counts_its_first_episode():
    env, result = evaluate(3)
    # Lane l has 2 + l steps; the action at time t is t + (t - 1) modulo 5.
    expected = []
    for lane in range(3):
        actions = [(t + max(t - 1, 0)) % 5 for t in range(2 + lane)]
        expected.append(sum(2 * (1000 * lane + 10 * t + a) for t, a in enumerate(actions)))
    assert result.scores.tolist() == expected
    assert result.lengths.tolist() == [2, 3, 4]
    assert len(env.actions) == 4
    assert not result.truncated.any()


def test_a_second_evaluation_starts_anew():
    env = CountingEnvironment(2)
    network = looking_network(env.num_actions)
    player = make_evaluate(network.apply, env, stack=2, epsilon=0.0)
    params = network.init(jax.random.key(0), None)
    first = player(jax.random.key(1), params)
    second = player(jax.random.key(2), params)
    assert first.scores.tolist() == second.scores.tolist()


def test_truncated_episodes_are_told_apart(monkeypatch):
    env = CountingEnvironment(2)
    reset = env.reset

    def second_episode():
        step = reset()
        # Odd episodes are truncated.
        env.frame = env.frame + np.array([[0, 0, 0], [0, 1, 0]], np.int32)
        return step._replace(frame=env.frame)

    monkeypatch.setattr(env, "reset", second_episode)
    network = looking_network(env.num_actions)
    player = make_evaluate(network.apply, env, stack=2, epsilon=0.0)
    result = player(jax.random.key(1), network.init(jax.random.key(0), None))
    assert result.truncated.tolist() == [False, True]


def test_epsilon_is_the_share_of_random_actions():
    env = CountingEnvironment(1000)
    # 2 + l steps: long enough in total for the shares to settle.
    network = looking_network(env.num_actions)
    player = make_evaluate(network.apply, env, stack=2, epsilon=0.5)
    player(
        jax.random.key(1),
        network.init(jax.random.key(0), None),
        on_step=lambda step: len(env.actions) == 2,
    )
    # At time 0 action 0 is preferred, so it has probability 1/2 + 1/10.
    share = (env.actions[0] == 0).mean()
    assert share == pytest.approx(0.6, abs=0.06)
    assert len(env.actions) == 2


@pytest.mark.parametrize(("epsilon", "expected"), [(0.0, 0.75), (0.5, 0.5 * 0.75 + 0.5 / 5)])
def test_with_a_temperature_actions_are_drawn(epsilon, expected):
    env = CountingEnvironment(2000)
    # Values whose softmax at the temperature 1/2 is 1/4 and 3/4, and nothing for the others.
    values = jnp.array([0.0, np.log(3.0), -1e3, -1e3, -1e3]) / 2
    player = make_evaluate(
        lambda params, observation: jnp.tile(values, (len(observation), 1)),
        env,
        stack=2,
        epsilon=epsilon,
        temperature=0.5,
    )
    player(jax.random.key(1), None, on_step=lambda step: len(env.actions) == 2)
    assert np.mean(np.array(env.actions) == 1) == pytest.approx(expected, abs=0.04)


def test_a_watcher_sees_every_step_and_may_stop():
    seen = []
    env, result = evaluate(2, on_step=lambda step: seen.append(step))
    assert len(seen) == len(env.history) == 4
    env, result = evaluate(2, on_step=lambda step: True)
    assert len(env.actions) == 0
    assert result.lengths.tolist() == [0, 0]


def test_episodes_are_cut_after_so_many_steps():
    env, result = evaluate(3, max_steps=3)
    # Lanes have 2, 3 and 4 steps: what ends with the last of them is not cut.
    assert result.truncated.tolist() == [False, False, True]
    assert result.lengths.tolist() == [2, 3, 3]
    assert len(env.actions) == 3


def test_anything_that_chooses_can_play():
    env = CountingEnvironment(2)
    result = play(env, lambda step: step.frame[:, 2] + 1)
    # Twice what the steps pay: 10 t + action, and a thousand for the lane.
    assert result.scores.tolist() == [2 * (1 + 12), 2 * (3000 + 1 + 12 + 23)]


def test_epsilon_must_be_a_probability():
    with pytest.raises(ValueError, match=r"epsilon is 1.5"):
        evaluate(1, epsilon=1.5)
    with pytest.raises(ValueError, match=r"temperature is -1"):
        evaluate(1, temperature=-1)
