import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bsuite.environments import deep_sea as bsuite_deep_sea

from bqfd_jax.envs import deep_sea, deep_sea_values
from bqfd_jax.envs.auto_reset import auto_reset
from bqfd_jax.types import Environment, EnvStep

KEY = jax.random.key(0)


def bsuite_environment(size, **kwargs):
    if not kwargs.get("randomize_actions", True):
        with pytest.warns(UserWarning, match="debug mode"):
            return bsuite_deep_sea.DeepSea(size, **kwargs)
    return bsuite_deep_sea.DeepSea(size, **kwargs)


demonstrate = jax.jit(deep_sea.demonstrate, static_argnames=("env", "rule", "size"))


@functools.partial(jax.jit, static_argnames="size")
def play_from(state, params, actions, key, size):
    """The raw steps [T] of an action sequence [T]."""
    env = deep_sea.make(size)
    inputs = (jax.random.split(key, len(actions)), actions)
    return jax.lax.scan(lambda state, xs: env.step(xs[0], params, state, xs[1]), state, inputs)[1]


def play(size, params, actions, key=KEY):
    start = deep_sea.State(row=jnp.int32(0), column=jnp.int32(0))
    return play_from(start, params, jnp.asarray(actions, jnp.int32), key, size)


@functools.partial(jax.jit, static_argnames="size")
def step_many(state, params, action, keys, size):
    """One raw step [n] from the same state with each of the keys [n]."""
    return jax.vmap(lambda key: deep_sea.make(size).step(key, params, state, action)[1])(keys)


def stack(*params):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)


@pytest.mark.parametrize("randomize_actions", [True, False])
@pytest.mark.parametrize("size", [2, 5, 10])
def test_agrees_with_bsuite_step_by_step(size, randomize_actions):
    theirs = bsuite_environment(size, randomize_actions=randomize_actions, mapping_seed=size)
    table = theirs._action_mapping.astype(np.int32)
    params = deep_sea.bsuite(size, right_action=table)
    if randomize_actions:
        assert 0 < table.mean() < 1
    on_diagonal = np.diag(table)
    rng = np.random.default_rng(size)
    sequences = [on_diagonal, *rng.integers(0, 2, (20, size))]
    # Mostly along the diagonal, so that the right edge is met with both actions.
    sequences += list(np.where(rng.random((10, size)) < 0.1, 1 - on_diagonal, on_diagonal))
    sequences.append(np.append(on_diagonal[:-1], 1 - on_diagonal[-1]))

    ours = jax.vmap(lambda actions: play(size, params, actions))(np.stack(sequences))
    images = deep_sea.encode_one_hot(size)(ours.observation).reshape(-1, size, size, size)

    assert ours.reward[0].sum() == pytest.approx(0.99)
    for episode, actions in enumerate(sequences):
        theirs.reset()
        for t, action in enumerate(actions):
            step = theirs.step(action)
            np.testing.assert_array_equal(images[episode, t], step.observation)
            np.testing.assert_allclose(ours.reward[episode, t], step.reward, atol=1e-6)
            assert bool(ours.terminated[episode, t]) == step.last()
            assert not ours.truncated[episode, t]


# Cell and action (1 is right); then the column of a move that goes well, of one that slips (a fifth
# of right moves does), the mean reward and its variance.
STOCHASTIC_CASES = {
    "start, right": (0, 0, 1, 1, 0, -0.002, 0),
    "left edge above the bottom, left": (3, 0, 0, 0, 0, 0.0, 0),
    "diagonal above the bottom, right": (3, 3, 1, 4, 3, -0.002, 0),
    "middle of the bottom, left": (4, 2, 0, 1, 1, 0.0, 0),
    "middle of the bottom, right": (4, 2, 1, 3, 2, -0.002, 0),
    "bottom left, left": (4, 0, 0, 0, 0, 0.0, 1),
    "bottom left, right": (4, 0, 1, 1, 0, -0.002, 1),
    "bottom right, left": (4, 4, 0, 3, 3, 0.0, 1),
    "bottom right, right": (4, 4, 1, 4, 4, 0.998, 1),
}


def assert_distribution(columns, rewards, case):
    _, _, _, moved, slipped, mean, variance = case
    n = len(columns)
    assert set(columns.tolist()) == {moved, slipped}
    if moved != slipped:
        assert np.mean(columns == slipped) == pytest.approx(0.2, abs=5 * np.sqrt(0.16 / n))
    if variance == 0:
        np.testing.assert_allclose(rewards, mean, atol=1e-6)
        return
    assert np.mean(rewards) == pytest.approx(mean, abs=5 / np.sqrt(n))
    assert np.var(rewards) == pytest.approx(1.0, abs=5 * np.sqrt(2 / n))
    if moved != slipped:
        assert abs(np.corrcoef(columns, rewards)[0, 1]) < 5 / np.sqrt(n)


@pytest.mark.parametrize("case", STOCHASTIC_CASES.values(), ids=STOCHASTIC_CASES.keys())
def test_stochastic_variant_has_the_distribution_of_bsuite(case):
    size, (row, column, action) = 5, case[:3]

    theirs = bsuite_environment(size, deterministic=False, randomize_actions=False, seed=1)
    samples = []
    for _ in range(4_000):
        theirs._row, theirs._column = row, column
        reward = theirs._step(action).reward
        samples.append((theirs._column, reward))
    columns, rewards = np.array(samples).T
    assert_distribution(columns, rewards, case)

    params = deep_sea.bsuite(size, stochastic=True)
    state = deep_sea.State(row=jnp.int32(row), column=jnp.int32(column))
    keys = jax.random.split(KEY, 40_000)
    step = step_many(state, params, jnp.int32(action), keys, size=size)
    assert_distribution(np.asarray(step.observation[:, 1]), np.asarray(step.reward), case)


@pytest.mark.parametrize(
    ("params", "corner"), [(deep_sea.treasure(3), 1.0), (deep_sea.bomb(3), -1.0)]
)
def test_rewards_of_the_paper(params, corner):
    cost = 0.01 / 3
    for actions, rewards in [
        ([1, 1, 1], [-cost, -cost, corner]),
        ([1, 1, 0], [-cost, -cost, 0.0]),
        ([0, 1, 1], [0.0, -cost, -cost]),
        ([0, 0, 0], [0.0, 0.0, 0.0]),
    ]:
        np.testing.assert_allclose(play(3, params, actions).reward, rewards, rtol=1e-6)


def test_episode_terminates_below_the_grid_and_stays_there():
    steps = play(3, deep_sea.treasure(3), [1, 1, 1, 0, 1])
    np.testing.assert_array_equal(steps.observation, [[1, 1], [2, 2], [3, 2], [3, 2], [3, 2]])
    np.testing.assert_array_equal(steps.terminated, [False, False, True, True, True])
    np.testing.assert_array_equal(steps.truncated, [False] * 5)
    np.testing.assert_array_equal(steps.reward[3:], [0.0, 0.0])
    noisy = play(3, deep_sea.bsuite(3, stochastic=True), [0, 0, 0, 0, 0])
    assert noisy.reward[2] != 0.0
    np.testing.assert_array_equal(noisy.reward[3:], [0.0, 0.0])


def test_environment_describes_its_frames():
    env = deep_sea.make(4)
    state, observation = env.reset(KEY, deep_sea.treasure(4))
    assert env.num_actions == 2
    chex.assert_shape(observation, env.frame_shape)
    chex.assert_type(observation, env.frame_dtype)
    np.testing.assert_array_equal(observation, [0, 0])
    next_state, step = jax.jit(env.step)(KEY, deep_sea.treasure(4), state, jnp.int32(1))
    chex.assert_trees_all_equal_shapes_and_dtypes(state, next_state)
    chex.assert_shape(step.observation, env.frame_shape)
    chex.assert_type([step.observation, step.reward], [env.frame_dtype, jnp.float32])
    chex.assert_type([step.terminated, step.truncated], bool)


def test_auto_reset_starts_anew_and_keeps_the_last_observation():
    env = deep_sea.make(2)
    params = deep_sea.treasure(2)
    step = jax.jit(auto_reset(env))
    state, _ = env.reset(KEY, params)
    expected = [  # action, real observation, next observation, reward, terminated
        (1, [1, 1], [1, 1], -0.005, False),
        (1, [2, 1], [0, 0], 1.0, True),
        (0, [1, 0], [1, 0], 0.0, False),
        (1, [2, 1], [0, 0], -0.005, True),
    ]
    for action, observation, next_observation, reward, terminated in expected:
        state, env_step, acting_on = step(KEY, params, state, jnp.int32(action))
        np.testing.assert_array_equal(env_step.observation, observation)
        np.testing.assert_array_equal(acting_on, next_observation)
        np.testing.assert_array_equal([state.row, state.column], next_observation)
        assert env_step.reward == pytest.approx(reward)
        assert bool(env_step.terminated) == terminated


def test_auto_reset_follows_truncation_and_draws_the_start_afresh():
    def reset(key, params):
        start = jax.random.uniform(key, (2,))
        return start, start

    def step(key, params, state, action):
        state = state + 1.0
        return state, EnvStep(
            observation=state,
            reward=jnp.float32(0.0),
            terminated=jnp.bool_(False),
            truncated=action == 1,
        )

    env = Environment(reset, step, frame_shape=(2,), frame_dtype=jnp.float32, num_actions=2)
    run = jax.jit(jax.vmap(auto_reset(env), in_axes=(0, None, None, None)))
    keys = jax.random.split(KEY, 2)
    state, env_step, observation = run(keys, None, jnp.full((2,), 5.0), jnp.int32(1))
    np.testing.assert_array_equal(env_step.observation, jnp.full((2, 2), 6.0))
    np.testing.assert_array_equal(state, observation)
    assert jnp.all(observation < 1.0)
    assert jnp.all(observation[0] != observation[1])
    state, _, observation = run(keys, None, jnp.full((2,), 5.0), jnp.int32(0))
    np.testing.assert_array_equal(state, jnp.full((2, 2), 6.0))
    np.testing.assert_array_equal(observation, jnp.full((2, 2), 6.0))


def test_parameters_vary_under_vmap():
    variants = stack(deep_sea.treasure(3), deep_sea.bomb(3), deep_sea.bsuite(3))
    rewards = jax.vmap(lambda params: play(3, params, [1, 1, 1]).reward)(variants)
    cost = 0.01 / 3
    np.testing.assert_allclose(
        rewards, [[-cost, -cost, 1.0], [-cost, -cost, -1.0], [-cost, -cost, 1.0 - cost]], rtol=1e-6
    )
    tables = jnp.stack([jnp.full((3, 3), right) for right in (1, 0, 1)])
    mapped = jax.vmap(lambda table: deep_sea.bsuite(3, right_action=table))(tables)
    steps = jax.vmap(lambda params: play(3, params, [0, 0, 0]))(mapped)
    np.testing.assert_array_equal(steps.observation[:, -1], [[3, 0], [3, 2], [3, 0]])


def test_parameters_vary_without_recompiling():
    step = jax.jit(chex.assert_max_traces(deep_sea.make(3).step, n=1))
    corner = deep_sea.State(row=jnp.int32(2), column=jnp.int32(2))
    other_table = deep_sea.bsuite(3, right_action=jnp.zeros((3, 3), jnp.int32), stochastic=True)
    rewards = [
        step(KEY, params, corner, jnp.int32(1))[1].reward
        for params in (deep_sea.treasure(3), deep_sea.bomb(3), other_table)
    ]
    assert rewards[:2] == [1.0, -1.0]
    assert abs(rewards[2]) not in (0.0, 1.0)


def test_demonstration_of_the_expert_by_hand():
    env = deep_sea.make(3)
    rows = demonstrate(KEY, env, deep_sea.bomb(3), deep_sea.always_right, size=3, gamma=0.9)
    chex.assert_tree_shape_prefix(rows, (3,))
    chex.assert_type(
        [rows.frame, rows.action, rows.reward, rows.discount], [int, int, float, float]
    )
    np.testing.assert_array_equal(rows.frame, [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(rows.action, [1, 1, 1])
    np.testing.assert_allclose(rows.reward, [-0.01 / 3, -0.01 / 3, -1.0], rtol=1e-6)
    np.testing.assert_allclose(rows.discount, [0.9, 0.9, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(rows.is_first, [True, False, False])
    np.testing.assert_array_equal(rows.is_last, [False, False, False])


def test_rules_read_the_action_table():
    table = jnp.array([[0, 9, 9], [1, 0, 9], [0, 9, 1]]) % 9  # 9: cells neither path enters
    params = deep_sea.bsuite(3, right_action=table)
    env = deep_sea.make(3)
    right = demonstrate(KEY, env, params, deep_sea.always_right, size=3, gamma=1.0)
    np.testing.assert_array_equal(right.action, [0, 0, 1])
    np.testing.assert_array_equal(right.frame, [[0, 0], [1, 1], [2, 2]])

    def always_left(key, frame, params):
        return 1 - deep_sea.always_right(key, frame, params)

    left = demonstrate(KEY, env, params, always_left, size=3, gamma=1.0)
    np.testing.assert_array_equal(left.action, [1, 0, 1])
    np.testing.assert_array_equal(left.frame, [[0, 0], [1, 0], [2, 0]])


def test_demonstrate_passes_rules_fresh_keys():
    def uniform(key, frame, params):
        return jax.random.randint(key, (), 0, 2)

    env, params = deep_sea.make(20), deep_sea.treasure(20)
    first, second = (
        demonstrate(jax.random.key(seed), env, params, uniform, size=20, gamma=1.0)
        for seed in (0, 1)
    )
    assert 0 < first.action.sum() < 20
    assert jnp.any(first.action != second.action)


@pytest.mark.parametrize("size", [2, 7, 50])
def test_optimal_return(size):
    best = jax.jit(lambda params: deep_sea_values.optimal_return(params, size))
    table = np.random.default_rng(0).integers(0, 2, (size, size))
    # Rounding grows with the number of rows, but stays far below one move's cost.
    assert best(deep_sea.treasure(size)) == pytest.approx(1 - 0.01 * (size - 1) / size, abs=1e-5)
    assert best(deep_sea.bomb(size)) == 0.0
    assert best(deep_sea.bsuite(size)) == pytest.approx(0.99, abs=1e-5)
    assert best(deep_sea.bsuite(size, right_action=table)) == pytest.approx(0.99, abs=1e-5)


def test_optimal_q_is_the_best_of_all_action_sequences():
    size, gamma = 4, 0.9
    table = np.random.default_rng(3).integers(0, 2, (size, size))
    sequences = jnp.array(list(itertools.product([0, 1], repeat=size)), jnp.int32)  # [16, N]
    discounts = gamma ** jnp.arange(size)

    def discounted_return(params, row, column, actions):
        state = deep_sea.State(row=row, column=column)
        return jnp.sum(discounts * play_from(state, params, actions, KEY, size).reward)

    over_sequences = jax.vmap(discounted_return, in_axes=(None, None, None, 0))
    over_columns = jax.vmap(over_sequences, in_axes=(None, None, 0, None))
    over_rows = jax.vmap(over_columns, in_axes=(None, 0, None, None))
    returns_of = jax.jit(jax.vmap(over_rows, in_axes=(0, None, None, None)))

    mapped = deep_sea.bsuite(size, right_action=table)
    params = stack(deep_sea.treasure(size), deep_sea.bomb(size), mapped, deep_sea.decoy(size))
    cells = jnp.arange(size)
    returns = returns_of(params, cells, cells, sequences)  # [4, N, N, 16]
    by_first_action = [returns[..., sequences[:, 0] == action].max(-1) for action in (0, 1)]
    q = jax.jit(jax.vmap(lambda params: deep_sea_values.optimal_q(params, size, gamma=gamma)))(
        params
    )
    chex.assert_shape(q, (4, size, size, 2))
    np.testing.assert_allclose(q, jnp.stack(by_first_action, axis=-1), atol=1e-6)


def test_the_decoy_pays_more_beside_the_corner():
    size = 20
    params = deep_sea.decoy(size)
    assert (int(params.side_column), float(params.side_reward)) == (9, 1.0)
    # The expert's path, with or without the N / 4 moves to the left that the large treasure takes.
    to_corner = jnp.ones(size, jnp.int32)
    to_side = to_corner.at[jnp.array([10, 12, 14, 15, 18])].set(0)
    start = deep_sea.State(row=jnp.int32(0), column=jnp.int32(0))
    cost = 0.01 / size
    for actions, expected in ((to_corner, 0.5 - 19 * cost), (to_side, 1.0 - 14 * cost)):
        rewards = play_from(start, params, actions, KEY, size).reward
        assert jnp.sum(rewards) == pytest.approx(expected, abs=1e-6)
    # It is cheapest to wait at the left edge: ten steps down, nine to the right.
    assert deep_sea_values.optimal_return(params, size) == pytest.approx(1 - 9 * cost, abs=1e-5)
    with pytest.raises(ValueError, match="size is 2, but must be at least 3"):
        deep_sea.decoy(2)


@pytest.mark.parametrize("make_params", [deep_sea.treasure, deep_sea.bomb, deep_sea.decoy])
def test_the_reward_table_is_what_steps_pay(make_params):
    size = 5
    table = np.random.default_rng(1).integers(0, 2, (size, size))
    params = make_params(size).replace(right_action=jnp.asarray(table, jnp.int32))
    step = jax.jit(deep_sea.make(size).step)
    rewards = np.zeros((size, size, 2), np.float32)
    for row, column, action in np.ndindex(size, size, 2):
        state = deep_sea.State(row=jnp.int32(row), column=jnp.int32(column))
        rewards[row, column, action] = step(KEY, params, state, jnp.int32(action))[1].reward
    np.testing.assert_array_equal(deep_sea_values.reward_table(params, size), rewards)


def test_optimal_q_takes_expectations_over_slips():
    # N = 2: half of the right moves slip, each costs 0.005, and the corner pays 1 - 0.005.
    q = deep_sea_values.optimal_q(deep_sea.bsuite(2, stochastic=True), 2, gamma=0.8)
    np.testing.assert_allclose(q[1, 0], [0.0, -0.005], atol=1e-6)
    np.testing.assert_allclose(q[1, 1], [0.0, 0.995], atol=1e-6)
    np.testing.assert_allclose(q[0, 0], [0.0, -0.005 + 0.8 * 0.5 * 0.995], atol=1e-6)
    # At the right edge, slipped or not, a right move ends in the corner again.
    np.testing.assert_allclose(q[0, 1], [0.0, 0.995 + 0.8 * 0.995], atol=1e-6)


def test_encoders_by_hand():
    frames = jnp.array([[[0, 0], [1, 0]], [[2, 1], [3, 2]]])
    position = deep_sea.encode_position(3)(frames)
    one_hot = deep_sea.encode_one_hot(3)(frames)
    chex.assert_type([position, one_hot], jnp.float32)
    np.testing.assert_allclose(position, [[[-1, -1], [0, -1]], [[1, 0], [2, 1]]])
    chex.assert_shape(one_hot, (2, 2, 9))
    np.testing.assert_array_equal(one_hot.sum(-1), [[1, 1], [1, 0]])
    np.testing.assert_array_equal(one_hot.argmax(-1)[0], [0, 3])
    assert one_hot[1, 0].argmax() == 7
    np.testing.assert_array_equal(deep_sea.encode_one_hot(2)(jnp.array([1, 0])), [0, 0, 1, 0])


@pytest.mark.parametrize(
    "function",
    [
        deep_sea.make,
        deep_sea.treasure,
        deep_sea.bomb,
        deep_sea.bsuite,
        deep_sea.encode_position,
        deep_sea.encode_one_hot,
    ],
)
def test_sizes_below_two_are_refused(function):
    with pytest.raises(ValueError, match="size is 1, but must be at least 2"):
        function(1)
    function(2)


def test_wrong_tables_are_refused():
    with pytest.raises(ValueError, match=r"shape \(3, 4\), expected \(3, 3\)"):
        deep_sea.bsuite(3, right_action=jnp.ones((3, 4), jnp.int32))
    with pytest.raises(ValueError, match=r"right_action is \[-1 +1\], but must be 0 or 1"):
        deep_sea.bsuite(2, right_action=np.array([[1, -1], [1, 1]]))
    env = deep_sea.make(4)
    with pytest.raises(ValueError, match=r"shape \(3, 3\), expected \(4, 4\)"):
        jax.jit(env.reset)(KEY, deep_sea.treasure(3))
    with pytest.raises(ValueError, match=r"shape \(3, 3\), expected \(4, 4\)"):
        deep_sea_values.optimal_return(deep_sea.treasure(3), 4)


def test_the_dynamics_are_where_steps_lead():
    size = 4
    transitions, start = deep_sea_values.dynamics(size)
    step = jax.jit(deep_sea.make(size).step)
    for row, column, action in np.ndindex(size, size, 2):
        state = deep_sea.State(row=jnp.int32(row), column=jnp.int32(column))
        after, _ = step(KEY, deep_sea.treasure(size), state, jnp.int32(action))
        np.testing.assert_array_equal(
            transitions[row, column, action], np.arange(size) == int(after.column)
        )
    np.testing.assert_array_equal(start, [1, 0, 0, 0])


def test_which_returns_are_optimal():
    returns = np.array([[0.98, 0.9798], [0.9, 0.0]])
    assert deep_sea_values.is_optimal(returns, "treasure", 0.98).tolist() == [
        [True, False],
        [False, False],
    ]
    returns = np.array([0.0, -0.01, -0.02, -1.0])
    assert deep_sea_values.is_optimal(returns, "bomb", 0.0).tolist() == [True, True, False, False]
