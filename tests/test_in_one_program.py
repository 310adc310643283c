"""States, calls and pools of several runs: what leads with the runs is what each would be alone."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    DEMONSTRATIONS,
    CountingEnvironment,
    configure,
    filled_replay,
    looking_network,
    make_rows,
)

from bqfd_jax.agents import PddDqnConfig, make_agent
from bqfd_jax.envs.atari import Atari
from bqfd_jax.envs.pools import GroupScores, Pool, RunsOfPool
from bqfd_jax.replay import check_demonstrations, make_replay, with_room
from bqfd_jax.training import host_checkpoint, on_device, on_host
from bqfd_jax.training.group import join, make_group_trainer, of_run


def test_runs_that_are_joined_come_apart_again():
    members = [
        {"a": jnp.arange(3) + 10 * k, "key": jax.random.key(k), "step": jnp.int32(k)}
        for k in range(3)
    ]
    asked = []

    def one_by_one():
        for number, member in enumerate(members):
            asked.append(number)
            yield member

    joined = join(one_by_one(), 3)
    assert asked == [0, 1, 2]
    assert joined["a"].shape == (3, 3)
    assert joined["a"].sharding.is_equivalent_to(on_device.runs_sharding(3), 2)
    for number, member in enumerate(members):
        back = of_run(joined, number)
        assert back["a"].tolist() == member["a"].tolist()
        assert back["key"] == member["key"]
        assert int(back["step"]) == number
    with pytest.raises(IndexError, match="no run 3 among 3"):
        of_run(joined, 3)


def test_runs_are_spread_over_devices():
    code = (
        "import jax, jax.numpy as jnp\n"
        "jax.config.update('jax_num_cpu_devices', 2)\n"
        "from bqfd_jax.training.group import join, of_run\n"
        "joined = join(({'x': jnp.full(3, k), 'key': jax.random.key(k)} for k in range(4)), 4)\n"
        "print([shard.data.shape for shard in joined['x'].addressable_shards])\n"
        "print([of_run(joined, k)['x'].tolist()[0] for k in range(4)])\n"
        "print(all(bool(of_run(joined, k)['key'] == jax.random.key(k)) for k in range(4)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[(2, 3), (2, 3)]", "[0, 1, 2, 3]", "True"]


def test_a_shared_argument_has_no_axis_of_runs():
    def times(state, count):
        return jax.lax.fori_loop(0, count, lambda _, x: x + 1, state)

    mapped = on_device.over_runs(times, 2, shared_argnums=(1,))
    assert mapped(jnp.array([10, 20]), np.int32(3)).tolist() == [13, 23]
    # One loop for all, and so no selection between old and new states.
    assert "select" not in mapped.lower(jnp.array([10, 20]), np.int32(3)).as_text()


def test_a_pool_is_its_parts_in_their_order():
    parts = [CountingEnvironment(2), CountingEnvironment(2)]
    pool = RunsOfPool(Pool(parts), 2)
    assert pool.num_lanes == 2
    first = pool.reset()
    assert first.frame.shape == (2, 2, 3)
    assert first.is_first.all()
    seen = pool.step(np.array([[1, 2], [3, 4]]))
    assert [part.actions[0].tolist() for part in parts] == [[1, 2], [3, 4]]
    for number, part in enumerate(parts):
        for ours, theirs in zip(seen, part.history[1], strict=True):
            # These environments do what they are asked to, and say nothing of it.
            assert (ours is None) == (theirs is None)
            if theirs is not None:
                np.testing.assert_array_equal(ours[number], theirs)


def test_scores_say_whose_they_are():
    pool = RunsOfPool(Pool([CountingEnvironment(2), CountingEnvironment(2)]), 2)
    scores, single = GroupScores(2, 2), on_host.host.Scores(2)
    alone, actions = CountingEnvironment(2), np.ones(2, np.int64)
    found, expected = scores.see(pool.reset()), single.see(alone.reset())
    for _ in range(12):
        found += scores.see(pool.step(np.stack([actions, actions])))
        expected += single.see(alone.step(actions))
    assert expected
    for number in range(2):
        assert [score for run, score in found if run == number] == expected


def test_the_loop_of_a_group_is_that_of_each_run():
    """Replays, networks and metrics after learning; the counting environment forgives nothing."""
    config = configure(PddDqnConfig, gamma=0.5, batch_size=4, epsilon_values=(0.5,))
    env = CountingEnvironment(2)
    replay = make_replay(
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        rows_per_lane=60,
        num_lanes=2,
        stack=3,
        **config.replay_options(),
    )
    agent = make_agent(looking_network(env.num_actions), config, replay)
    trainer = on_host.make_host_trainer(agent, replay)

    def states():
        return (trainer.init(jax.random.key(seed)) for seed in (5, 6))

    options = {"update_period": 2, "learning_starts": 20}
    pool = RunsOfPool(Pool([CountingEnvironment(2), CountingEnvironment(2)]), 2)
    together = make_group_trainer(agent, replay, 2)
    loop = on_host.HostLoop(pool, together, join(states(), 2), **options)
    loop.scores = GroupScores(2, 2)
    finished = loop.run(80)
    loop.state, counts, means = together.read(loop.state)
    assert counts.tolist() == [30, 30]
    for number, state in enumerate(states()):
        alone = on_host.HostLoop(CountingEnvironment(2), trainer, state, **options)
        assert [score for run, score in finished if run == number] == alone.run(80)
        alone.state, _, expected = trainer.read(alone.state)
        for name, value in expected.items():
            assert float(means[name][number]) == pytest.approx(float(value), rel=1e-5), name
        ours = of_run(loop.state, number)
        jax.tree.map(np.testing.assert_array_equal, ours.replay.rows, alone.state.replay.rows)
        for a, b in zip(
            jax.tree.leaves(ours.learner), jax.tree.leaves(alone.state.learner), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_mean_visits_are_of_each_run():
    replay, state = filled_replay()
    visited = replay.count_visits(state, jnp.array([0, 1, 1, 1, 3, 5]))
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), state, visited)
    # Of five transitions, one visit each to begin with; row 5 starts none.
    assert host_checkpoint._mean_visits(both).tolist() == pytest.approx([1.0, 2.0])
    assert float(host_checkpoint._mean_visits(visited)) == pytest.approx(2.0)


def test_room_behind_demonstrations_is_never_drawn():
    rows = jax.tree.map(np.asarray, make_rows(DEMONSTRATIONS))
    roomy = with_room(rows, 9)
    check_demonstrations(roomy)
    assert len(roomy.action) == 9
    jax.tree.map(np.testing.assert_array_equal, with_room(rows, 2), rows)

    def drawn(rows):
        replay = make_replay(
            frame_shape=(), frame_dtype=jnp.int32, rows_per_lane=8, num_demo_rows=len(rows.action)
        )
        state = replay.init(rows)
        sample = jax.jit(
            lambda key: (
                replay.sample(key, state, 64),
                replay.sample_demonstrations(key, state, 64),
            )
        )
        return sample(jax.random.key(0))

    for ours, theirs in zip(drawn(roomy), drawn(rows), strict=True):
        assert set(np.asarray(theirs.index).tolist()) == {0, 1, 2, 3, 4}
        for name in ("index", "action", "reward", "discount", "importance_weight", "is_expert"):
            np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.parametrize("resumed_at", [0, 700])
def test_games_of_several_seeds_are_those_of_each_alone(resumed_at):
    options = {"resumed_at": resumed_at, "stream": 1, "num_threads": 1}
    pool = Atari("Breakout", num_lanes=4, seed=(7, 2), **options)
    alone = [Atari("Breakout", num_lanes=2, seed=seed, **options) for seed in (7, 2)]
    shown, expected = pool.reset(), [env.reset() for env in alone]
    for step in range(40):
        np.testing.assert_array_equal(shown.frame, np.concatenate([one.frame for one in expected]))
        actions = np.full(2, step % 4)
        shown = pool.step(np.concatenate([actions, actions]))
        expected = [env.step(actions) for env in alone]
    # No-ops at random have made them differ.
    assert (shown.frame[:2] != shown.frame[2:]).any()
