"""Algorithm 2: updates by hand, fixed points, and what it is known for on DeepSea."""

import functools
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax import tabular
from bqfd_jax.checks import OptionError
from bqfd_jax.runs.sinks import Sink
from experiments.tabular.__main__ import start
from experiments.tabular.config import Config
from experiments.tabular.tables import (
    deep_sea_problem,
    resting_value,
    right_all_the_way,
    settled_after,
)

ETA, BETA, VARIANCE = 3.0, 4.0, 0.6


def weight(n):
    return VARIANCE * (BETA**2 + 4 * n) / (BETA + n) ** 2


def softmax(q):
    e = np.exp(ETA * (np.asarray(q) - np.max(q)))
    return e / e.sum()


def bandit(rewards, *, start=(1.0,)):
    """One step, as many states as `start` has, the same rewards in all."""
    states = len(start)
    rewards = np.tile(np.asarray(rewards, float), (1, states, 1))
    transitions = np.zeros((*rewards.shape, states))
    transitions[..., 0] = 1
    return tabular.Problem(rewards, transitions, np.array(start))


def shown(*trajectories):
    """Demonstrations from lists of (state, action)."""
    array = np.array(trajectories)
    return tabular.Demonstrations(array[..., 0], array[..., 1])


run = functools.partial(tabular.run, jax.random.key(0))


# ------------------------------------------------------------------------------------- by hand


def test_one_episode_of_q_learning_by_hand():
    # Two steps: action 1 leads to state 1, and all else is absurd.
    rewards = np.full((2, 2, 2), -1000.0)
    rewards[0, 0, 1], rewards[1, 1, 0] = 0.5, 2.0
    transitions = np.zeros((2, 2, 2, 2))
    transitions[..., 0, 0] = transitions[..., 1, 1] = 1
    problem = tabular.Problem(rewards, transitions, np.array([1.0, 0.0]))
    result = run(
        problem,
        shown([(0, 1), (1, 0)]),
        episodes=1,
        gamma=0.9,
        correction="none",
        replay_demonstrations=True,
    )
    # The demonstration is learnt backwards, so its last reward is in the first target.
    last = 2.0 / (BETA + 1)
    first = (0.5 + 0.9 * last) / (BETA + 1)
    # Then the episode does the same again.
    last = (1 - 1 / (BETA + 2)) * last + 2.0 / (BETA + 2)
    first = (1 - 1 / (BETA + 2)) * first + (0.5 + 0.9 * last) / (BETA + 2)
    np.testing.assert_allclose(
        result.state.q, [[[0, first], [0, 0]], [[0, 0], [last, 0]]], rtol=1e-5
    )
    np.testing.assert_array_equal(result.state.visits, [[[0, 2], [0, 0]], [[0, 0], [2, 0]]])
    assert float(result.returns[0]) == 2.5
    assert result.states.tolist() == [[0, 1]]
    assert result.actions.tolist() == [[1, 0]]
    np.testing.assert_allclose(result.values, [[first, last]], rtol=1e-5)


@pytest.mark.parametrize("correction", ["target", "posterior"])
def test_one_update_by_hand(correction):
    problem = bandit([0.2, 0.2, 0.2])
    result = run(problem, shown([(0, 1)]), episodes=1, correction=correction)
    (action,) = result.actions[0].tolist()
    alpha = 1 / (BETA + 1)
    if correction == "target":
        value = alpha * (0.2 + ETA * weight(1) * ((action == 1) - 1 / 3))
    else:
        value = alpha * 0.2
        q = np.zeros(3)
        q[action] = value
        value += ETA * weight(1) * ((action == 1) - softmax(q)[action])
    expected = np.zeros(3)
    expected[action] = value
    np.testing.assert_allclose(result.state.q[0, 0], expected, rtol=1e-5)


def test_states_without_expert_are_plain_q_learning():
    problem = bandit([0.2, 0.3], start=(0.0, 1.0))
    demonstrations = shown([(0, 1)])
    for correction in ("target", "posterior"):
        result = run(problem, demonstrations, episodes=30, correction=correction)
        plain = run(problem, None, episodes=30, correction="none")
        chex.assert_trees_all_equal(result, plain)


def test_contradicting_demonstrations_count_by_frequency():
    problem = bandit([0.0, 0.0, 0.0])
    demonstrations = shown([(0, 1)], [(0, 1)], [(0, 2)], [(0, -1)])
    frequency, known = tabular.expert_frequency(problem, demonstrations)
    np.testing.assert_allclose(frequency[0, 0], [0, 2 / 3, 1 / 3], rtol=1e-6)
    assert known.tolist() == [[True]]
    result = run(problem, demonstrations, episodes=1)
    (action,) = result.actions[0].tolist()
    expected = ETA * weight(1) * (float(frequency[0, 0, action]) - 1 / 3) / (BETA + 1)
    assert float(result.state.q[0, 0, action]) == pytest.approx(expected, abs=1e-6)


def test_steps_that_were_not_shown_are_not_learnt_from():
    problem = deep_sea_problem(4, "treasure")
    demonstrations = tabular.Demonstrations(np.array([[0, 1, 2, 3]]), np.array([[1, 1, -1, -1]]))
    result = run(problem, demonstrations, episodes=1, replay_demonstrations=True, correction="none")
    before = np.asarray(result.state.visits).copy()
    for h, (s, a) in enumerate(zip(result.states[0], result.actions[0], strict=True)):
        before[h, s, a] -= 1
    expected = np.zeros_like(before)
    expected[0, 0, 1] = expected[1, 1, 1] = 1
    np.testing.assert_array_equal(before, expected)


def test_another_step_size():
    problem = bandit([1.0])
    result = run(problem, episodes=3, correction="none", step_size=lambda n, beta: 0.5 * n / n)
    assert float(result.state.q[0, 0, 0]) == pytest.approx(1 - 0.5**3)


def test_ties_are_broken_at_random_and_epsilon_is_a_share():
    keys = jax.random.split(jax.random.key(1), 2000)
    problem = bandit([0.0, 0.0, 0.0, 0.0])
    first = jax.vmap(lambda key: tabular.run(key, problem, episodes=1).actions[0, 0])(keys)
    counts = np.bincount(first, minlength=4)
    # Standard deviation 19.4.
    assert (np.abs(counts - 500) < 90).all()
    problem = bandit([1.0, 0.0, 0.0, 0.0])

    def second(key):
        result = tabular.run(
            key, problem, shown([(0, 0)]), episodes=1, epsilon=0.4, replay_demonstrations=True
        )
        return result.actions[0, 0]

    share = (np.asarray(jax.vmap(second)(keys)) == 0).mean()
    assert share == pytest.approx(0.6 + 0.1, abs=0.04)


def test_chance_of_the_problem_is_followed():
    transitions = np.zeros((2, 2, 1, 2))
    transitions[:, :, 0] = [0.3, 0.7]
    problem = tabular.Problem(np.zeros((2, 2, 1)), transitions, np.array([0.8, 0.2]))
    keys = jax.random.split(jax.random.key(1), 4000)
    states = jax.vmap(lambda key: tabular.run(key, problem, episodes=1).states[0])(keys)
    share = np.asarray(states).mean(0)
    assert share[0] == pytest.approx(0.2, abs=0.03)
    assert share[1] == pytest.approx(0.7, abs=0.03)


# -------------------------------------------------------------------------------- fixed points


def test_where_both_rules_come_to_rest():
    """One state, two actions that pay nothing, an expert who takes the second.

    With the correction in the target it is forgotten: values tend to 0.  As printed, step size and
    weight fall alike, `w_n / alpha_n -> 4 variance`: values rest where
    `q = c (1 - pi)` for the expert's action, with `c = 4 variance eta`.
    """
    problem, demonstrations = bandit([0.0, 0.0]), shown([(0, 1)])
    episodes = 30_000
    forgets = run(problem, demonstrations, episodes=episodes, epsilon=1.0)
    np.testing.assert_allclose(forgets.state.q[0, 0], [0, 0], atol=0.02)
    keeps = run(problem, demonstrations, episodes=episodes, epsilon=1.0, correction="posterior")
    c = 4 * VARIANCE * ETA
    low, high = 0.0, c
    for _ in range(60):  # by symmetry q = (-g, g), and g solves g = c (1 - pi(g))
        middle = (low + high) / 2
        pi = 1 / (1 + np.exp(-2 * ETA * middle))
        low, high = (middle, high) if c * (1 - pi) > middle else (low, middle)
    np.testing.assert_allclose(keeps.state.q[0, 0], [-low, low], rtol=0.02)
    assert low > 0.3


# ------------------------------------------------------------------------------------- DeepSea


def returns(case, *, episodes, seeds=10, size=50, **options):
    problem, demonstrations = deep_sea_problem(size, case), right_all_the_way(size)

    @jax.jit
    @jax.vmap
    def many(key):
        return tabular.run(key, problem, demonstrations, episodes=episodes, **options).returns

    return np.asarray(many(jax.vmap(jax.random.key)(jnp.arange(seeds))))


def test_the_treasure_is_found_and_kept():
    best = 1 - 0.01 * 49 / 50
    np.testing.assert_allclose(returns("treasure", episodes=120)[:, 60:], best, atol=1e-5)
    shown_first = returns("treasure", episodes=40, replay_demonstrations=True)
    np.testing.assert_allclose(shown_first, best, atol=1e-5)
    assert returns("treasure", episodes=120, correction="none").max() <= 0


def test_the_bomb_is_left_for_good_by_our_rule_and_not_by_the_printed_one():
    assert returns("bomb", episodes=300)[:, 100:].min() > -0.5
    assert returns("bomb", episodes=300, correction="posterior")[:, -1].max() < -0.5


def test_the_problem_is_the_environment():
    from bqfd_jax.envs import deep_sea, deep_sea_values

    size = 6
    for case, params in (("treasure", deep_sea.treasure(size)), ("bomb", deep_sea.bomb(size))):
        ours = tabular.optimal_q(deep_sea_problem(size, case), gamma=0.9)
        theirs = deep_sea_values.optimal_q(params, size, gamma=0.9)
        reachable = np.tril(np.ones((size, size), bool))
        np.testing.assert_allclose(
            np.asarray(ours)[reachable], np.asarray(theirs)[reachable], atol=1e-6
        )


def test_hyper_parameters_may_be_vmapped():
    problem, demonstrations = deep_sea_problem(5, "bomb"), right_all_the_way(5)
    etas = jnp.array([0.0, 1.0, 3.0])

    def one(eta):
        return tabular.run(jax.random.key(0), problem, demonstrations, episodes=20, eta=eta)

    together = jax.jit(jax.vmap(one))(etas)
    for i, eta in enumerate(etas):
        chex.assert_trees_all_close(jax.tree.map(lambda x, i=i: x[i], together), one(float(eta)))


def test_without_expert_or_without_eta_it_is_q_learning():
    problem = deep_sea_problem(5, "treasure")
    plain = run(problem, episodes=20, correction="none")
    chex.assert_trees_all_equal(run(problem, episodes=20), plain)
    chex.assert_trees_all_equal(run(problem, right_all_the_way(5), episodes=20, eta=0.0), plain)


# ----------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": np.zeros((2, 2))}, r"shape of rewards is \(2, 2\)"),
        ({"transitions": np.zeros((2, 2, 2, 2))}, r"transitions\[0, 0, 0\] must be prob.*\[0"),
        ({"transitions": np.full((2, 2, 2, 2), np.nan)}, r"transitions\[0, 0, 0\].*nan"),
        ({"transitions": np.ones((3, 2, 2, 2)) / 2}, r"shape of transitions is \(3, 2, 2, 2\)"),
        ({"start": np.array([1.5, -0.5])}, "start.* must be probabilities"),
        ({"start": np.array([1.0])}, r"shape of start is \(1,\)"),
        ({"rewards": np.full((2, 2, 2), np.inf)}, "finite"),
        ({"states": np.zeros((2, 2), int)}, r"shape of actions is \(1, 2\), but must be \[2, 2\]"),
        (
            {"states": np.zeros((1, 3), int), "actions": np.zeros((1, 3), int)},
            r"shape of states is \(1, 3\), but must be \[N, 2\]",
        ),
        ({"actions": np.full((1, 2), 2)}, r"actions is 2, but must be in \[-1, 1\]"),
        ({"states": np.full((1, 2), -1)}, "states is -1"),
        ({"actions": np.zeros((1, 2))}, "float64, but must be integer"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"noise_ratio": float("nan")}, "noise_ratio is nan"),
        ({"eta": -1.0}, "eta is -1.0"),
        ({"gamma": 2.0}, "gamma is 2.0"),
        ({"epsilon": 2.0}, "epsilon is 2.0"),
        ({"episodes": 0}, "episodes is 0"),
        ({"correction": "both"}, "'both'"),
        ({"demonstrations": None, "replay_demonstrations": True}, "needs demonstrations"),
    ],
)
def test_bad_input_is_named(changes, message):
    arrays = {
        "rewards": np.zeros((2, 2, 2)),
        "transitions": np.full((2, 2, 2, 2), 0.5),
        "start": np.array([0.5, 0.5]),
        "states": np.zeros((1, 2), int),
        "actions": np.zeros((1, 2), int),
    }
    arrays |= {name: value for name, value in changes.items() if name in arrays}
    options = {"episodes": 1} | {n: v for n, v in changes.items() if n not in arrays}
    demonstrations = tabular.Demonstrations(arrays["states"], arrays["actions"])
    demonstrations = options.pop("demonstrations", demonstrations)
    problem = tabular.Problem(arrays["rewards"], arrays["transitions"], arrays["start"])
    with pytest.raises(ValueError, match=message):
        run(problem, demonstrations, **options)


def test_demonstrations_are_checked_even_where_the_problem_is_traced():
    problem = deep_sea_problem(3, "bomb")
    wrong = tabular.Demonstrations(np.zeros((1, 3), int), np.full((1, 3), 7))
    with pytest.raises(ValueError, match="actions is 7"):
        jax.jit(lambda p: run(p, wrong, episodes=1).returns)(problem)
    with pytest.raises(ValueError, match="shape of transitions is"):
        jax.jit(lambda p: run(p, episodes=1).returns)(problem._replace(transitions=np.ones((1, 1))))


def test_the_smallest_problem_and_no_prior():
    problem = tabular.Problem([[[1.0]]], [[[[1.0]]]], [1.0])
    result = run(problem, shown([(0, 0)], [(0, -1)]), episodes=2, beta=0.0)
    assert float(result.state.q[0, 0, 0]) == 1.0


def test_a_demonstration_that_ends_early_bootstraps_from_where_it_ended():
    rewards = np.zeros((2, 2, 1))
    rewards[1, 1, 0] = 1.0
    transitions = np.zeros((2, 2, 1, 2))
    transitions[..., 1] = 1
    problem = tabular.Problem(rewards, transitions, np.array([1.0, 0.0]))
    both = tabular.Demonstrations(np.array([[0, 1], [0, 1]]), np.array([[0, 0], [0, -1]]))
    result = run(problem, both, episodes=1, correction="none", replay_demonstrations=True)
    last = 1 / (BETA + 1)
    first = last / (BETA + 1)
    first = (1 - 1 / (BETA + 2)) * first + last / (BETA + 2)
    # Then the episode itself.
    last = (1 - 1 / (BETA + 2)) * last + 1 / (BETA + 2)
    first = (1 - 1 / (BETA + 3)) * first + last / (BETA + 3)
    np.testing.assert_allclose(result.values, [[first, last]], rtol=1e-5)


# ---------------------------------------------------------------------------------- experiment


class Said(Sink):
    """Keeps what is said."""

    def __init__(self):
        self.lines = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_the_experiment_writes_what_it_promises(tmp_path):
    config = Config(size=6, seeds=2, episodes=120, filter_size=3, out=tmp_path / "run")
    said = Said()
    start(config, said)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["experiment"] == "tabular"
    for name in ("config.json", "returns.png", "forgetting.png", "variances.png"):
        assert (tmp_path / "run" / name).stat().st_size > 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    bomb = summary["results"]["bomb"]
    assert max(bomb["correction in the target"]["settled_after"]) < 100
    assert bomb["as printed"]["settled_after"] == [None, None]
    treasure = summary["results"]["treasure"]
    assert treasure["in the target, episode 0"]["settled_after"] == [0, 0]
    rest = summary["resting_value_as_printed"]
    assert rest["measured"] == pytest.approx(rest["closed_form"], rel=0.05)
    # On the last row nothing follows, so that only the expert's information differs from w_n.
    assert 0 < summary["variance"]["1"]["exact_by_row"][-1] < summary["variance"]["1"]["w_n"]
    error = summary["filter"]
    assert 0 < error["median_error"] < 0.5 * error["median_size_of_the_correction"]
    assert "never" in said.lines[-1]


@pytest.mark.parametrize("eta", [0.0, 0.5, 3.0, 40.0])
def test_the_resting_value_is_a_fixed_point(eta):
    rest = resting_value(Config(eta=eta))
    share = 1 / (1 + np.exp(-2 * eta * rest))
    assert rest == pytest.approx(4 * 0.6 * eta * (1 - share), abs=1e-9)
    assert rest > 0 or eta == 0


def test_settling_by_hand():
    returns = np.array([[0.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, -1.0]])
    assert settled_after(returns, "bomb", 0.0) == [2, 0, None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 1}, "size is 1"),
        ({"filter_size": 101}, "filter_size is 101, but must be in"),
        ({"variance": 0.0}, "variance is 0"),
        ({"beta": -1.0}, "beta is -1"),
        ({"gamma": 1.5}, "gamma is 1.5"),
    ],
)
def test_bad_options_are_named(changes, message):
    with pytest.raises(OptionError, match=message):
        Config(**changes).check()
