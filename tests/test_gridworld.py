"""The second jnp environment, and that the loop on the device takes any such pair of functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import configure, quick_jit

from bqfd_jax import networks
from bqfd_jax.agents import BqfdConfig, make_agent
from bqfd_jax.envs import gridworld
from bqfd_jax.envs.gridworld import DOWN, LEFT, RIGHT, UP
from bqfd_jax.replay import make_replay
from bqfd_jax.training.on_device import make_trainer
from bqfd_jax.types import Row

MAP = ("S.#G", "..#.", "P...")


def walk(actions, rows=MAP, **options):
    env, params = gridworld.make(len(rows), len(rows[0])), gridworld.parse(rows, **options)
    step = quick_jit(env.step)
    state, observation = env.reset(jax.random.key(0), params)
    shown = [(observation, None)]
    for action in actions:
        state, outcome = step(jax.random.key(len(shown)), params, state, action)
        shown.append((outcome.observation, outcome))
    scale = np.array([len(rows) - 1, len(rows[0]) - 1])
    places = [tuple(np.round(np.asarray(o) * scale).astype(int).tolist()) for o, _ in shown]
    return places, [outcome for _, outcome in shown[1:]]


def test_walls_and_borders_stop_and_goals_and_pits_end():
    places, outcomes = walk([UP, LEFT, RIGHT, RIGHT, DOWN, DOWN, LEFT], step_cost=0.1)
    assert places == [(0, 0), (0, 0), (0, 0), (0, 1), (0, 1), (1, 1), (2, 1), (2, 0)]
    assert [bool(o.terminated) for o in outcomes] == [False] * 6 + [True]
    np.testing.assert_allclose([o.reward for o in outcomes], [-0.1] * 6 + [-1.1], rtol=1e-6)
    places, outcomes = walk([DOWN, RIGHT, DOWN, RIGHT, RIGHT, UP, UP], step_cost=0.0)
    assert places[-1] == (0, 3)
    assert outcomes[-1].reward == 1
    assert outcomes[-1].terminated
    assert not outcomes[-2].terminated


def test_a_map_of_another_size_is_refused():
    with pytest.raises(ValueError, match="a map of 3 x 4 does not fit an environment of 5 x 5"):
        gridworld.make(5, 5).reset(jax.random.key(0), gridworld.parse(MAP))


def test_a_time_limit_truncates():
    _, outcomes = walk([UP, UP, UP], time_limit=3)
    assert [bool(o.truncated) for o in outcomes] == [False, False, True]
    assert not outcomes[-1].terminated


def test_slipping_goes_aside_as_often_as_said():
    env = gridworld.make(3, 3)
    params = gridworld.parse(("...", ".S.", "..."), slip=0.4)
    state, _ = env.reset(jax.random.key(0), params)
    step = quick_jit(jax.vmap(env.step, in_axes=(0, None, None, None)))
    ends, _ = step(jax.random.split(jax.random.key(1), 4000), params, state, UP)
    shares = {
        place: float(np.mean((np.asarray(ends.place) == place).all(axis=1)))
        for place in ((0, 1), (1, 0), (1, 2))
    }
    assert shares[0, 1] == pytest.approx(0.6, abs=0.04)
    assert shares[1, 0] == pytest.approx(0.2, abs=0.03)
    assert shares[1, 2] == pytest.approx(0.2, abs=0.03)


def test_maps_are_checked():
    for rows, message in (
        ((), "equally long"),
        (("S.", "."), "equally long"),
        (("Sx",), "may have only"),
        (("..",), "one start"),
        (("SS",), "one start"),
    ):
        with pytest.raises(ValueError, match=message):
            gridworld.parse(rows)
    with pytest.raises(ValueError, match="slip is 2"):
        gridworld.parse(("S.",), slip=2)
    with pytest.raises(ValueError, match="no room"):
        gridworld.make(1, 1)


def test_an_agent_learns_it_in_the_loop_on_the_device():
    rows = ("S..", ".#.", "..G")
    env, params = gridworld.make(3, 3), gridworld.parse(rows, time_limit=30, slip=0.1)
    # One demonstration, which goes a long way round: there and back, and then to the goal.
    actions = np.array([RIGHT, LEFT, DOWN, DOWN, RIGHT, RIGHT])
    places = np.array([[0, 0], [0, 1], [0, 0], [1, 0], [2, 0], [2, 1]])
    demonstration = Row(
        frame=jnp.asarray(places / 2, jnp.float32),
        action=jnp.asarray(actions, jnp.int32),
        reward=jnp.asarray([-0.01] * 5 + [0.99], jnp.float32),
        discount=jnp.asarray([0.9] * 5 + [0.0], jnp.float32),
        is_first=jnp.arange(6) == 0,
        is_last=jnp.zeros(6, bool),
    )
    config = configure(
        BqfdConfig, learning_rate=3e-3, batch_size=32, epsilon_steps=(0,), epsilon_values=(0.1,)
    )
    replay = make_replay(
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        rows_per_lane=300,
        num_lanes=2,
        num_demo_rows=6,
        **config.replay_options(),
    )
    network = networks.for_observation(env.frame_shape, env.frame_dtype, 4, hidden=16)
    agent = make_agent(network, config, replay)
    trainer = make_trainer(env, agent, replay)
    state = quick_jit(trainer.init)(jax.random.key(0), params, demonstration)
    run = jax.jit(
        trainer.run,
        static_argnums=2,
        donate_argnums=0,
        compiler_options={"xla_backend_optimization_level": 0},
    )
    state, trace = run(state, params, 600)
    returns = np.asarray(trace.episode_return)[np.asarray(trace.episode_ended)]
    # Four steps are the least; the demonstration took six.
    assert len(returns) > 40
    assert np.median(returns[-20:]) >= 1 - 0.01 * 6
    assert int(state.learner.updates) == 600
