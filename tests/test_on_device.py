"""Training in one scan: probe environments, one bug class each, and what a run must keep."""

import functools
import subprocess
import sys
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    RecordedKeys,
    configure,
    graph_environment,
    graph_params,
    make_rows,
    quick_jit,
    table_network,
)

from bqfd_jax.agents import BqfdConfig, PddDqnConfig, make_agent
from bqfd_jax.replay import make_replay
from bqfd_jax.streams import KeyStream
from bqfd_jax.training import on_device
from experiments.expert_quality import cells as map_cells
from experiments.expert_quality.cells import Cell, make_inputs
from experiments.expert_quality.config import Config

GAMMA = 0.8
ENV = graph_environment()
SHARED = {"batch_size": 16, "gamma": GAMMA, "epsilon_values": (1.0,)}


def make(config, *, num_lanes=1, stack=1, rows_per_lane=400, num_demo_rows=0, **trainer):
    replay = make_replay(
        frame_shape=ENV.frame_shape,
        frame_dtype=ENV.frame_dtype,
        rows_per_lane=rows_per_lane,
        num_lanes=num_lanes,
        num_demo_rows=num_demo_rows,
        stack=stack,
        **config.replay_options(),
    )
    agent = make_agent(table_network(4, 2, stack=stack), config, replay)
    return agent, replay, on_device.make_trainer(ENV, agent, replay, **trainer)


def leaves(tree):
    """All arrays, keys as their bits."""
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(tree)
    ]


def assert_bit_equal(one, other):
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------------------------------ probes

WARM_UP = 10
# Frames come in stacks of two: Q tables are indexed by (frame before, frame); the first frame of
# an episode is its own predecessor.
PROBES = {
    "one step that pays 1": graph_params({(0, None): (None, 1.0)}),
    "the observation decides": graph_params(
        {(0, None): (None, 1.0), (1, None): (None, -1.0)}, starts=(0, 1)
    ),
    "two steps": graph_params({(0, None): (1, 0.0), (1, None): (None, 1.0)}),
    "the action decides": graph_params({(0, 0): (None, -1.0), (0, 1): (None, 1.0)}),
    "endless, cut off": graph_params({(0, None): (0, 1.0)}, time_limit=4),
    "endless, terminated": graph_params({(0, None): (0, 1.0)}, time_limit=4, limit_terminates=True),
    # 0 and 1 both lead to a state that looks like 2, and only one of the two pays.
    "the frame before decides": graph_params(
        {(0, None): (2, 0.0), (1, None): (3, 0.0), (2, None): (None, 1.0), (3, None): (None, -1.0)},
        starts=(0, 1),
        shown=(0, 1, 2, 2),
    ),
}


@functools.cache
def train_probes():
    """State at the beginning and the end, and trace, of all probes; no demonstrations."""
    config = configure(PddDqnConfig, **SHARED, learning_rate=0.05, target_step_size=0.2)
    _, _, trainer = make(config, stack=2, num_lanes=2)
    params = jax.tree.map(lambda *x: jnp.stack(x), *PROBES.values())

    def train(key, params):
        begin = trainer.init(key, params)
        state, _ = trainer.run(begin, params, WARM_UP, updates=False)
        return begin, *trainer.run(state, params, 350)

    return quick_jit(jax.vmap(train))(jax.random.split(jax.random.key(0), len(PROBES)), params)


def probe_values(name):
    """Q-values `[before, frame, action]` after training."""
    _, state, _ = train_probes()
    return np.asarray(state.learner.params["table"][list(PROBES).index(name)]).reshape(4, 4, 2)


def test_learning_goes_on_after_a_warm_up_without_demonstrations():
    begin, state, trace = train_probes()
    np.testing.assert_array_equal(state.learner.updates, [350] * len(PROBES))
    np.testing.assert_array_equal(state.replay.num_added, [WARM_UP + 350] * len(PROBES))
    assert np.isfinite(trace.metrics["loss"]).all()
    assert not np.any(trace.metrics["expert_share"])
    changed = state.learner.params["table"] != begin.learner.params["table"]
    assert np.any(changed, axis=(1, 2)).all()


def test_probe_a_value_is_learnt():
    np.testing.assert_allclose(probe_values("one step that pays 1")[0, 0], [1, 1], atol=0.02)


def test_probe_values_follow_the_observation():
    q = probe_values("the observation decides")
    np.testing.assert_allclose([q[0, 0], q[1, 1]], [[1, 1], [-1, -1]], atol=0.02)


def test_probe_values_are_discounted_over_two_steps():
    q = probe_values("two steps")
    np.testing.assert_allclose([q[0, 0], q[0, 1]], [[GAMMA, GAMMA], [1, 1]], atol=0.02)


def test_probe_values_follow_the_action():
    np.testing.assert_allclose(probe_values("the action decides")[0, 0], [-1, 1], atol=0.02)


def test_probe_a_value_goes_on_where_an_episode_is_cut_off():
    np.testing.assert_allclose(
        probe_values("endless, cut off")[0, 0], [1 / (1 - GAMMA)] * 2, rtol=0.05
    )


def test_probe_a_value_ends_where_an_episode_terminates():
    # A quarter of the transitions end: Q = 1 + 3/4 gamma Q = 2.5 if drawn uniformly, not 5.
    q = probe_values("endless, terminated")[0, 0]
    assert (q > 1.5).all()
    assert (q < 3.6).all()


def test_probe_the_frame_before_tells_states_apart():
    q = probe_values("the frame before decides")
    np.testing.assert_allclose([q[0, 2], q[1, 2]], [[1, 1], [-1, -1]], atol=0.02)
    np.testing.assert_allclose([q[0, 0], q[1, 1]], [[GAMMA] * 2, [-GAMMA] * 2], atol=0.04)


# --------------------------------------------------------------------------- a run and its key

# Two actions, four states, ends of both kinds, sometimes both at once; starts at random.
MAZE = {
    (0, 0): (1, 0.5),
    (0, 1): (2, -0.25),
    (1, 0): (0, 1.0),
    (1, 1): (3, 0.125),
    (2, 0): (None, 2.0),
    (2, 1): (0, -1.0),
    (3, 0): (None, -4.0),
    (3, 1): (1, 0.75),
}
RANDOM_MAZE = graph_params(MAZE, starts=(0, 1), time_limit=5)
DEMONSTRATION = ((0, 1, -0.25, GAMMA, "first"), (2, 0, 2.0, 0.0, ""))
RUN_CONFIG = configure(
    BqfdConfig,
    **SHARED | {"epsilon_steps": (0, 40), "epsilon_values": (0.5, 0.1)},
    exploration="ez",
    learning_rate=0.02,
)
LENGTH = 8


class Counted:
    """A trainer whose agent counts how often Python runs its update."""

    def __init__(self, **trainer):
        self.traces = 0
        agent, replay, _ = make(
            RUN_CONFIG, num_lanes=2, rows_per_lane=12, num_demo_rows=2, **trainer
        )

        def update(*args):
            self.traces += 1
            return agent.update(*args)

        self.trainer = on_device.make_trainer(ENV, agent._replace(update=update), replay, **trainer)

    def start(self, key):
        return self.trainer.init(key, RANDOM_MAZE, make_rows(DEMONSTRATION))

    def chunk(self, state, num_iterations=LENGTH):
        return self.trainer.run(state, RANDOM_MAZE, num_iterations)


@pytest.fixture(scope="module")
def counted():
    return Counted()


@pytest.fixture(scope="module")
def start(counted):
    return quick_jit(counted.start)


@pytest.fixture(scope="module")
def chunk(counted):
    return quick_jit(counted.chunk)


def test_a_run_is_a_function_of_its_key(start, chunk):
    key = jax.random.key(1)
    first, again = chunk(start(key)), chunk(start(key))
    assert_bit_equal(first, again)
    state, _ = chunk(first[0])
    other, _ = chunk(chunk(start(jax.random.key(2)))[0])
    assert np.any(state.learner.params["table"] != other.learner.params["table"])
    assert np.any(state.replay.rows.action[2:] != other.replay.rows.action[2:])
    assert np.any(state.replay.rows.frame[2:] != other.replay.rows.frame[2:])
    assert np.any(leaves(state.key)[0] != leaves(other.key)[0])


def use_keys_in_a_run(keys):
    """A run with two lanes, pre-training and updates."""
    counted = Counted()

    @quick_jit
    def train(key):
        state = counted.start(key)
        state, _ = counted.trainer.pretrain(state, 3)
        return counted.chunk(state)[0].learner.params

    jax.block_until_ready(train(keys.key(1)))
    return 3


def use_keys_in_the_map(keys, agent):
    """Demonstrations by chance and training, as in the map of expert quality."""
    config = Config(
        size=3, seeds=1, episodes=2, qualities=("eta=1",), quantities=("2",), torso=(4,), hidden=4
    )
    training = map_cells.cell_training(config, agent)
    inputs = make_inputs(config, Cell("bomb", "eta=1", "2"), 0)
    train = quick_jit(lambda key, inputs: training.run(training.init(key, inputs), inputs))
    jax.block_until_ready(train(keys.key(1), inputs))
    return 6


KEY_USERS = {
    "a run": use_keys_in_a_run,
    "the map": functools.partial(use_keys_in_the_map, agent="bqfd"),
    "the map, tabular": functools.partial(use_keys_in_the_map, agent="tabular"),
}


@pytest.mark.parametrize("user", KEY_USERS)
def test_keys_are_used_once(user):
    keys = RecordedKeys()
    steps = KEY_USERS[user](keys)
    assert len(keys.used) > 3 * steps  # the record sees into the compiled loop
    assert keys.repeated() == set()


@pytest.mark.parametrize("user", ["the map", "the map, tabular"])
def test_a_stream_within_the_reach_of_a_split_is_found(user, monkeypatch):
    monkeypatch.setattr(map_cells, "KeyStream", types.SimpleNamespace(DEMONSTRATIONS=0))
    keys = RecordedKeys()
    KEY_USERS[user](keys)
    assert keys.repeated()


def test_states_that_differ_in_their_key_alone_go_different_ways(start, chunk):
    state, _ = chunk(start(jax.random.key(1)))
    other, _ = chunk(state.replace(key=jax.random.key(9)))
    assert np.any(other.replay.rows.action != chunk(state)[0].replay.rows.action)


def test_folding_is_splitting():
    """Why streams are numbered as they are."""
    key = jax.random.key(3)
    parts = jax.random.split(key, 5)
    for i in range(5):
        assert jax.random.fold_in(key, i) == parts[i]
    own = jax.random.fold_in(key, KeyStream.DEMONSTRATIONS)
    assert not np.any(parts == own)
    assert own == jax.random.fold_in(key, np.uint32(2**32 - 1))


def test_a_run_in_chunks_is_the_run_in_one(start, chunk, counted):
    begin = start(jax.random.key(1))
    middle, first = chunk(begin)
    end, second = chunk(middle)
    whole, trace = quick_jit(functools.partial(counted.chunk, num_iterations=2 * LENGTH))(begin)
    assert_bit_equal(end, whole)
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, second)
    assert_bit_equal(joined, trace)
    assert int(whole.step) == 2 * LENGTH * 2
    assert int(whole.learner.updates) == 2 * LENGTH


def test_runs_side_by_side_are_the_runs_alone(start, chunk, counted):
    keys = jax.random.split(jax.random.key(3), 3)
    states = quick_jit(jax.vmap(counted.start))(keys)
    together = quick_jit(jax.vmap(counted.chunk))(states)
    for i, key in enumerate(keys):
        alone = chunk(start(key))
        assert_bit_equal(jax.tree.map(lambda x, i=i: x[i], together), alone)
    tables = together[0].learner.params["table"]
    assert np.any(tables[0] != tables[1])

    traces = counted.traces
    over_runs = on_device.over_runs(counted.chunk, 3, donate_argnums=(0,))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*donated")
        spread = over_runs(states)
    assert counted.traces == traces + 1
    for a, b in zip(leaves(spread), leaves(together), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert all(x.is_deleted() for x in jax.tree.leaves(states))


def test_the_update_is_traced_once_and_donated_buffers_are_used():
    counted = Counted(update_period=4, updates_per_period=3)
    run = jax.jit(counted.chunk, donate_argnums=0)
    state = quick_jit(counted.start)(jax.random.key(0))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*donated")  # in vain, that is
        for _ in range(3):
            before = state
            state, trace = run(before)
            assert all(x.is_deleted() for x in jax.tree.leaves(before))
    assert counted.traces == 1
    assert counted.trainer.steps_per_iteration == 4  # two steps in each of two lanes
    assert int(state.step) == 3 * LENGTH * 4
    assert int(state.learner.updates) == 3 * LENGTH * 3
    assert trace.episode_ended.shape == trace.episode_return.shape == (LENGTH, 2, 2)
    assert set(trace.metrics) == {"loss", "gradient_norm", "expert_share", "mean_q"}
    assert all(x.shape == (LENGTH,) for x in trace.metrics.values())


def test_schedules_see_agent_steps_and_metrics_are_means_of_updates():
    agent, replay, _ = make(configure(PddDqnConfig, **SHARED), num_lanes=2, num_demo_rows=2)
    acted, updated = [], []

    def act(key, params, actor, observation, is_first, step):
        newest = params["table"][0, 0]
        jax.debug.callback(
            lambda *x: acted.append([float(y) for y in x]), step, newest, ordered=True
        )
        return jnp.zeros(2, jnp.int32), actor

    def update(key, learner, replay_state, step):
        jax.debug.callback(lambda s: updated.append(int(s)), step, ordered=True)
        count = learner.updates + 1
        params = jax.tree.map(lambda x: jnp.full_like(x, count), learner.params)
        learner = learner.replace(updates=count, params=params)
        return learner, replay_state, {"count": count.astype(jnp.float32)}

    trainer = on_device.make_trainer(
        ENV,
        agent._replace(act=act, update=update),
        replay,
        update_period=4,
        updates_per_period=3,
    )

    @quick_jit
    def train(key):
        state = trainer.init(key, RANDOM_MAZE, make_rows(DEMONSTRATION))
        return trainer.run(state, RANDOM_MAZE, 3)

    _, trace = train(jax.random.key(0))
    jax.effects_barrier()
    steps, newest = zip(*acted, strict=True)
    assert steps == (0, 2, 4, 6, 8, 10)  # steps of both lanes count
    assert newest[2:] == (3, 3, 6, 6)  # the online network acts
    assert updated == [4, 4, 4, 8, 8, 8, 12, 12, 12]
    np.testing.assert_allclose(trace.metrics["count"], [2, 5, 8])


# ------------------------------------------------------------------- what reaches the replay


def simulate(actions):
    """The maze in plain Python from one lane's actions: rows, returns at ends, and ends."""
    state, time, total = 0, 0, 0.0
    rows, returns = [], []
    for action in actions:
        target, reward = MAZE[state, int(action)]
        terminated, limit = target is None, time + 1 >= 5
        rows.append(
            (
                state,
                action,
                reward,
                0.0 if terminated else GAMMA,
                ("first" if time == 0 else "") + ("last" if limit and not terminated else ""),
            )
        )
        total += reward
        ended = terminated or limit
        returns.append(total if ended else np.nan)
        state, time, total = (0, 0, 0.0) if ended else (target, time + 1, total)
    return rows, np.array(returns)


def test_rows_and_returns_are_what_the_environment_did():
    num_lanes, steps = 3, 60
    params = graph_params(MAZE, starts=(0,), time_limit=5)
    _, replay, trainer = make(
        configure(PddDqnConfig, **SHARED), num_lanes=num_lanes, rows_per_lane=80, update_period=9
    )
    begin = quick_jit(trainer.init)(jax.random.key(4), params)
    state, trace = quick_jit(lambda state: trainer.run(state, params, steps // 3, updates=False))(
        begin
    )

    # Without updates nothing is learnt, whatever was added.
    assert_bit_equal(state.learner, begin.learner)
    assert trace.metrics == {}
    assert float(state.replay.max_priority) == 1.0
    lanes = np.arange(num_lanes)[:, None] * replay.layout.rows_per_lane + np.arange(steps)
    assert int(state.step) == num_lanes * steps
    kinds = set()
    for lane, index in enumerate(lanes):
        stored = jax.tree.map(lambda x, index=index: np.asarray(x)[index], state.replay.rows)
        rows, returns = simulate(stored.action)
        expected = make_rows(rows)
        for name in ("frame", "action", "reward", "discount", "is_first", "is_last"):
            np.testing.assert_array_equal(stored[name], expected[name], err_msg=name)
        ended = np.asarray(trace.episode_ended)[:, :, lane].reshape(-1)
        np.testing.assert_array_equal(ended, ~np.isnan(returns))
        found = np.asarray(trace.episode_return)[:, :, lane].reshape(-1)
        np.testing.assert_allclose(found[ended], returns[ended])
        for first in np.flatnonzero(ended):
            kinds.add((bool(expected.discount[first] == 0), bool(expected.is_last[first])))
    # Every kind of end was seen, and lanes went different ways.
    assert kinds == {(True, False), (False, True)}
    actions = np.asarray(state.replay.rows.action)[lanes]
    assert np.any(actions[0] != actions[1])
    assert np.any(actions[1] != actions[2])


def test_the_actor_sees_the_stacks_that_the_replay_gathers():
    steps, stack = 24, 3
    params = graph_params(MAZE, starts=(0,), time_limit=5)
    agent, replay, _ = make(configure(PddDqnConfig, **SHARED), num_lanes=2, stack=stack)
    seen = []

    def act(key, learner_params, actor, observation, is_first, step):
        jax.debug.callback(
            lambda *x: seen.append([np.array(y) for y in x]), observation, is_first, ordered=True
        )
        return agent.act(key, learner_params, actor, observation, is_first, step)

    trainer = on_device.make_trainer(ENV, agent._replace(act=act), replay)

    @quick_jit
    def collect(key):
        return trainer.run(trainer.init(key, params), params, steps, updates=False)

    state, _ = collect(jax.random.key(6))
    jax.effects_barrier()
    observations, firsts = (np.stack(x) for x in zip(*seen, strict=True))
    for lane in range(2):
        index = lane * replay.layout.rows_per_lane + np.arange(steps)
        rows, _ = simulate(np.asarray(state.replay.rows.action)[index])
        window = []
        for time, (frame, *_, marks) in enumerate(rows):
            window = [frame] * stack if "first" in marks else [*window[1:], frame]
            assert observations[time, lane].tolist() == window
            assert firsts[time, lane] == ("first" in marks)
    assert firsts[1:].any()


def test_an_end_that_is_both_terminates():
    params = graph_params({(0, None): (1, 1.0), (1, None): (None, 1.0)}, time_limit=2)
    _, _, trainer = make(configure(PddDqnConfig, **SHARED))

    @quick_jit
    def collect(key):
        return trainer.run(trainer.init(key, params), params, 4, updates=False)

    state, _ = collect(jax.random.key(0))
    rows = state.replay.rows
    np.testing.assert_allclose(rows.discount[:4], [GAMMA, 0.0, GAMMA, 0.0])
    assert not np.any(rows.is_last)


def test_pretraining_learns_but_takes_no_step(start, counted):
    begin = start(jax.random.key(1))
    pretrain = quick_jit(lambda state: counted.trainer.pretrain(state, 6))
    state, metrics = pretrain(begin)
    np.testing.assert_array_equal(metrics["expert_share"], np.ones(6))
    assert int(state.step) == 0
    np.testing.assert_array_equal(state.replay.visit_count, [1, 1])
    assert_bit_equal(state.replay.rows, begin.replay.rows)
    assert_bit_equal(state.env_state, begin.env_state)
    table, before = (np.asarray(s.learner.params["table"]) for s in (state, begin))
    # What was demonstrated is learnt, and nothing else.
    changed = np.zeros((4, 2), bool)
    changed[0, 1] = changed[2, 0] = True
    np.testing.assert_array_equal(table != before, changed)
    assert np.any(leaves(state.key)[0] != leaves(begin.key)[0])


def test_a_new_run(start, counted):
    state = start(jax.random.key(1))
    assert int(state.step) == 0
    assert np.asarray(state.is_first).all()
    np.testing.assert_array_equal(state.observation[:, 0], state.env_state["state"])
    np.testing.assert_array_equal(state.episode_return, [0, 0])
    np.testing.assert_array_equal(state.replay.rows.action[:2], [1, 0])
    many = quick_jit(jax.vmap(counted.start))(jax.random.split(jax.random.key(0), 40))
    lanes = np.asarray(many.env_state["state"])
    assert set(lanes.ravel()) == {0, 1}
    assert np.any(lanes[:, 0] != lanes[:, 1])  # lanes begin apart


def test_runs_are_spread_over_as_many_devices_as_divide_them():
    code = (
        "import jax\n"
        "jax.config.update('jax_num_cpu_devices', 2)\n"
        "from bqfd_jax.training.on_device import over_runs\n"
        "import jax.numpy as jnp\n"
        "for runs in (4, 3):\n"
        "    out = over_runs(lambda x, y: {'sum': x.sum() + y}, runs, called_once=runs == 3)(\n"
        "        jnp.arange(2.0 * runs).reshape(runs, 2), jnp.ones(runs))['sum']\n"
        "    print(len(out.sharding.device_set), *out.tolist())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["2 2.0 6.0 10.0 14.0", "1 2.0 6.0 10.0"]


# ------------------------------------------------------------------------- one gamma, one unit


def test_updates_are_counted_in_steps_of_all_lanes():
    config = configure(PddDqnConfig, **SHARED)
    for period in (3, 1, 0):
        with pytest.raises(ValueError, match=f"update_period is {period}, .* multiple of the 2"):
            make(config, num_lanes=2, update_period=period)
    assert make(config, num_lanes=2)[2].steps_per_iteration == 2
    assert make(config, num_lanes=2, update_period=6)[2].steps_per_iteration == 6


def test_resets_are_refused():
    with pytest.raises(ValueError, match="reset_period is 9, but must be 0 here: networks are"):
        make(configure(PddDqnConfig, **SHARED, reset_period=9))


def test_demonstrations_must_have_the_agents_gamma():
    _, _, trainer = make(configure(BqfdConfig, **SHARED | {"gamma": 0.99}), num_demo_rows=2)
    with pytest.raises(ValueError, match=r"discount of 0\.8, but the agent's gamma is 0\.99"):
        trainer.init(jax.random.key(0), RANDOM_MAZE, make_rows(DEMONSTRATION))
    _, _, trainer = make(configure(BqfdConfig, **SHARED), num_demo_rows=2)
    trainer.init(jax.random.key(0), RANDOM_MAZE, make_rows(DEMONSTRATION))
