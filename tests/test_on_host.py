"""Training beside host environments: what reaches the replay, when it learns, what is saved."""

import chex
import jax
import numpy as np
import pytest
from helpers import CountingEnvironment, configure, looking_network

from bqfd_jax import networks
from bqfd_jax.agents import (
    BootstrappedConfig,
    BqfdConfig,
    DqfdConfig,
    EnsembleBqfdConfig,
    PddDqnConfig,
    make_agent,
)
from bqfd_jax.envs import host
from bqfd_jax.replay import make_replay
from bqfd_jax.training import host_checkpoint, on_host
from bqfd_jax.types import Row

GAMMA = 0.5
STACK = 3


def make(config=None, *, num_lanes=2, rows_per_lane=100, num_demo_rows=0, env=None, network=None):
    config = config or configure(PddDqnConfig, gamma=GAMMA, batch_size=4)
    env = env or CountingEnvironment(num_lanes)
    replay = make_replay(
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        rows_per_lane=rows_per_lane,
        num_lanes=num_lanes,
        num_demo_rows=num_demo_rows,
        stack=STACK,
        **config.replay_options(),
    )
    agent = make_agent(network or looking_network(env.num_actions), config, replay)
    return env, replay, on_host.make_host_trainer(agent, replay)


def make_loop(trainer, env, state=None, **options):
    """Only acts unless it is told how often to learn."""
    state = trainer.init(jax.random.key(0)) if state is None else state
    learning = options or {"update_period": 1, "learning_starts": 10**9}
    return on_host.HostLoop(env, trainer, state, **learning)


def demonstration(num_rows):
    """One episode that was cut off."""
    frame = np.stack([np.array([9, 9, t], np.int32) for t in range(num_rows)])
    return Row(
        frame=frame,
        action=np.arange(num_rows, dtype=np.int32) % 5,
        reward=np.ones(num_rows, np.float32),
        discount=np.full(num_rows, GAMMA, np.float32),
        is_first=np.arange(num_rows) == 0,
        is_last=np.arange(num_rows) == num_rows - 1,
    )


# ------------------------------------------------------------------------- what is seen and kept


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_rows_are_what_the_environment_showed(num_lanes):
    env, replay, trainer = make(num_lanes=num_lanes)
    loop = make_loop(trainer, env)
    loop.run(40 * num_lanes)
    rows = loop.state.replay.rows
    # The last observation's outcome is known, but not yet told to the device.
    assert int(loop.state.replay.num_added) == 39
    for lane in range(num_lanes):
        start = lane * replay.layout.rows_per_lane
        for t in range(39):
            row = jax.tree.map(lambda x, i=start + t: np.asarray(x[i]), rows)
            expected = jax.tree.map(
                lambda x, lane=lane: x[lane],
                host.to_row(env.history[t], env.actions[t], env.history[t + 1], GAMMA),
            )
            chex.assert_trees_all_equal(row, expected)


def test_rows_hold_what_was_done_and_not_what_was_chosen():
    class Disobedient(CountingEnvironment):
        def step(self, actions):
            done = np.where(self.frame[:, 0] == 1, 4, actions)
            return super().step(done)._replace(action=done)

    env, replay, trainer = make(num_lanes=2, env=Disobedient(2))
    loop = make_loop(trainer, env)
    loop.run(2 * 9)
    stored = np.asarray(loop.state.replay.rows.action)[[*range(8), *range(100, 108)]]
    assert replay.layout.rows_per_lane == 100
    assert stored.tolist() == [int(a[0]) for a in env.actions[:8]] + [4] * 8
    # What lane 1 would have done: it sees no more than lane 0, so not always 4.
    assert 0 < int(loop.guarded) <= 9


def test_actions_follow_the_stack_that_the_replay_would_gather():
    env, _, trainer = make(num_lanes=2)
    loop = make_loop(trainer, env)
    loop.run(60)
    for t, actions in enumerate(env.actions):
        for lane in range(2):
            time = env.history[t].frame[lane, 2]
            times = [max(time - back, 0) for back in range(STACK)]
            assert actions[lane] == sum(times) % env.num_actions


def test_no_batch_crosses_the_end_of_an_episode():
    config = configure(
        PddDqnConfig, gamma=GAMMA, batch_size=64, n_step=3, n_step_weight=1.0, priority_exponent=0.0
    )
    env, replay, trainer = make(config, num_lanes=3, rows_per_lane=40)
    loop = make_loop(trainer, env)
    seen_ends = set()
    sample = jax.jit(lambda state, key: replay.sample(key, state, 64))
    for chunk in range(12):
        loop.run(3 * 9)
        batch = sample(loop.state.replay, jax.random.key(chunk))
        for i in range(64):
            if batch.importance_weight[i] == 0:
                continue
            frames = np.asarray(batch.observation[i])
            lane, episode, time = frames[-1]
            assert (frames[:, :2] == frames[-1, :2]).all()
            assert frames[:, 2].tolist() == [max(time - back, 0) for back in (2, 1, 0)]
            last = 2 + lane + episode
            assert time < last, "a transition began at an episode's end"
            terminates = time + 1 == last and episode % 2 == 0
            assert batch.discount[i] == (0.0 if terminates else GAMMA)
            if not terminates:
                assert np.asarray(batch.next_observation[i][-1]).tolist() == [
                    lane,
                    episode,
                    time + 1,
                ]
            # The return along the episode, and not a step more.
            steps = min(3, last - time)
            rewards, at = [], time
            for _ in range(steps):
                past = max(at - 1, 0) + max(at - 2, 0)
                action = (at + past) % env.num_actions
                rewards.append(1000 * lane + 100 * episode + 10 * at + action)
                at += 1
            expected = sum(GAMMA**k * r for k, r in enumerate(rewards))
            np.testing.assert_allclose(batch.n_step_return[i], expected, rtol=1e-6)
            ends = at == last and episode % 2 == 0
            np.testing.assert_allclose(batch.n_step_discount[i], 0 if ends else GAMMA**steps)
            if not ends:
                assert np.asarray(batch.n_step_observation[i][-1]).tolist() == [lane, episode, at]
            seen_ends.add((bool(terminates), time + 1 == last))
    assert seen_ends == {(True, True), (False, True), (False, False)}


def test_scores_of_finished_episodes():
    env, _, trainer = make(num_lanes=2)
    loop = make_loop(trainer, env)
    finished = [score for _ in range(10) for score in loop.run(8)]
    expected = []
    running = [0.0, 0.0]
    for step in env.history[1:]:
        for lane in range(2):
            running[lane] = 0.0 if step.is_first[lane] else running[lane]
            running[lane] += step.score_reward[lane]
            if step.is_last[lane]:
                expected.append(running[lane])
    assert finished == expected
    assert len(finished) > 5


# ----------------------------------------------------------------------------------- when it learns


@pytest.mark.parametrize(
    ("step", "period", "starts", "due"),
    [
        (0, 4, 0, 0),
        (3, 4, 0, 0),
        (4, 4, 0, 1),
        (11, 4, 0, 2),
        (11, 4, 4, 1),
        (10, 4, 11, 0),
        (7, 2 / 3, 0, 10),
        (7, 1e6, 0, 0),
    ],
)
def test_updates_due_by_hand(step, period, starts, due):
    assert on_host.updates_due(step, update_period=period, learning_starts=starts) == due


@pytest.mark.parametrize(("num_lanes", "period"), [(1, 0.4), (3, 4), (8, 1)])
def test_any_period_of_updates(num_lanes, period):
    env, _, trainer = make(num_lanes=num_lanes)
    loop = make_loop(trainer, env, update_period=period, learning_starts=5)
    for _ in range(3):
        loop.run(13)
    assert loop.step == int(loop.state.step)
    assert loop.step % num_lanes == 0
    assert int(loop.state.learner.updates) == int((loop.step - 5) / period)


@pytest.mark.parametrize(
    ("updates", "period", "total", "due"),
    [
        (1000, 0, None, 0),  # never
        (9, 10, None, 0),
        (10, 10, None, 1),
        (39, 10, None, 3),
        (20, 10, 25, 2),  # half a period is left
        (20, 10, 24, 1),  # less than that
        (24, 10, 24, 1),
        (3, 10, 4, 0),
        (30, 10, 24, 1),  # beyond the end
    ],
)
def test_resets_due_by_hand(updates, period, total, due):
    assert on_host.resets_due(updates, period=period, total=total) == due


@pytest.mark.parametrize("one_call", [False, True])
def test_networks_are_reset_between_updates_and_not_near_the_end(one_call):
    env, _, trainer = make(num_lanes=2)
    resets = []

    def watched(state):
        resets.append(int(state.learner.updates))
        return trainer.reset(state)

    state = trainer.init(jax.random.key(0))
    for _ in range(3):
        state = trainer.update(state)  # as if pre-trained, which does not count
    options = {"update_period": 1, "learning_starts": 4, "one_call": one_call}
    loop = make_loop(
        trainer._replace(reset=watched), env, state, reset_period=5, steps=24, **options
    )
    loop.run(12)
    # Two updates at a time: the fifth comes with the sixth.  A new loop goes on where it was.
    again = make_loop(
        trainer._replace(reset=watched), env, loop.state, reset_period=5, steps=24, **options
    )
    again.run(12)
    # The total of 20 is no time to reset, and neither is any beyond 17.5.
    assert resets == [3 + 6, 3 + 10, 3 + 16]
    assert int(again.state.learner.updates) == 3 + 20
    assert trainer.reset._cache_size() == 1


def test_a_reset_depends_on_the_seed_and_the_updates_and_leaves_the_rest():
    env, _, trainer = make(num_lanes=2)
    loop = make_loop(trainer, env, update_period=1)
    loop.run(20)

    def reset(updates=20, seed=0):
        state = jax.tree.map(np.array, loop.state.replace(key=None))
        learner = state.learner.replace(updates=np.int32(updates))
        return trainer.reset(state.replace(learner=learner, key=jax.random.key(seed)))

    first, again = reset(), reset()
    chex.assert_trees_all_equal(first.learner, again.learner)
    for name in ("replay", "lanes", "totals", "step"):
        chex.assert_trees_all_equal(getattr(first, name), getattr(loop.state, name))
    for other in (reset(updates=21), reset(seed=1)):
        assert float(other.learner.params["scale"]) != float(first.learner.params["scale"])


def test_each_phase_is_compiled_once_and_takes_over_its_memory():
    env, _, trainer = make(num_lanes=2)
    loop = make_loop(trainer, env, update_period=1)
    before = loop.state
    for _ in range(3):
        loop.run(20)
        loop.state, _, _ = trainer.read(loop.state)
    for function in (trainer.begin, trainer.interact, trainer.update, trainer.read):
        assert function._cache_size() == 1
    for name in ("learner", "replay"):
        for leaf in jax.tree.leaves(getattr(before, name)):
            assert leaf.is_deleted(), name


def test_learning_comes_after_the_choice_and_before_the_next():
    """The actions of a step must not wait for the updates that are dispatched with it."""
    env, _, trainer = make(num_lanes=2)
    calls = []

    def tell(name):
        function = getattr(trainer, name)

        def told(*arguments):
            calls.append(name)
            return function(*arguments)

        return told

    watched = trainer._replace(
        begin=tell("begin"), interact=tell("interact"), update=tell("update")
    )
    step_env = env.step
    env.step = lambda actions: calls.append("step") or step_env(actions)
    make_loop(watched, env, trainer.init(jax.random.key(0)), update_period=2).run(4)
    assert calls == ["begin", "update", "step", "interact", "update", "step"]


def test_metrics_are_means_since_they_were_last_read():
    env, _, trainer = make(num_lanes=2)
    loop = make_loop(trainer, env)
    loop.run(40)
    single = []
    for _ in range(3):
        loop.state = trainer.update(loop.state)
        single.append({n: float(t) for n, t in loop.state.totals.items()})
    losses = np.diff([0.0, *[s["loss"] for s in single]])
    loop.state, count, means = trainer.read(loop.state)
    assert int(count) == 3
    np.testing.assert_allclose(float(means["loss"]), losses.mean(), rtol=1e-5)
    assert losses.std() > 0
    loop.state, count, _ = trainer.read(loop.state)
    assert int(count) == 0


@pytest.mark.parametrize(
    "kind",
    [
        BqfdConfig,
        BootstrappedConfig,
        EnsembleBqfdConfig,
        pytest.param(PddDqnConfig, marks=pytest.mark.slow),
        pytest.param(DqfdConfig, marks=pytest.mark.slow),
    ],
)
def test_every_agent_pretrains_and_trains(kind):
    config = configure(kind, gamma=GAMMA, batch_size=4, epsilon_values=(0.5,))
    env, _, trainer = make(config, num_lanes=2, num_demo_rows=12)
    state = trainer.init(jax.random.key(0), demonstration(12))
    before = jax.tree.map(np.array, state.learner.params)
    for _ in range(3):
        state = trainer.pretrain(state)
    assert int(state.learner.updates) == 3
    assert np.asarray(state.replay.visit_count).tolist() == [1] * 12
    loop = make_loop(trainer, env, state, update_period=2)
    loop.run(40)
    assert int(loop.state.learner.updates) == 23
    assert np.asarray(loop.state.replay.visit_count).sum() > 12
    after = jax.tree.map(np.array, loop.state.learner.params)
    assert not jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), before, after))


# ------------------------------------------------------------------------------------ checkpoints


def state_and_trainer(num_steps=60, kind=BqfdConfig, **changes):
    config = configure(kind, gamma=GAMMA, batch_size=4, **changes)
    env, replay, trainer = make(config, num_lanes=2, num_demo_rows=12)
    loop = make_loop(
        trainer,
        env,
        trainer.init(jax.random.key(0), demonstration(12)),
        update_period=2,
    )
    loop.run(num_steps)
    return loop.state, trainer, replay


@pytest.mark.parametrize("kind", [BqfdConfig, EnsembleBqfdConfig])
def test_what_is_saved_comes_back_but_for_the_running_episodes(kind):
    state, trainer, _ = state_and_trainer(kind=kind)
    assert len(state.learner.extra) == (kind is EnsembleBqfdConfig)
    saved = host_checkpoint.to_checkpoint(state)

    def never():
        raise AssertionError("the replay was saved")

    back = host_checkpoint.from_checkpoint(saved, trainer, never, state.totals)
    for name in ("learner", "replay", "step", "totals", "num_totals"):
        chex.assert_trees_all_equal(getattr(back, name), getattr(state, name))
    assert (jax.random.key_data(back.key) == jax.random.key_data(state.key)).all()
    chex.assert_trees_all_equal(back.lanes, trainer.init_lanes())


def test_checkpoints_keep_the_names_that_metrics_had():
    state, trainer, _ = state_and_trainer(kind=EnsembleBqfdConfig, weight="smaller")
    assert "expert_weight" in state.totals
    saved = host_checkpoint.to_checkpoint(state)
    # As when both weights had one name: what was saved then still fits.
    assert "ensemble_weight" in saved["run"]["totals"]
    assert "expert_weight" not in saved["run"]["totals"]
    back = host_checkpoint.from_checkpoint(saved, trainer, lambda: None, state.totals)
    chex.assert_trees_all_equal(back.totals, state.totals)


def test_without_the_replay_visit_counts_go_on_from_their_mean():
    state, trainer, replay = state_and_trainer()
    saved = host_checkpoint.to_checkpoint(state, with_replay=False)
    assert "replay" not in saved
    # The last row starts no transition, and is never visited.
    visits = np.asarray(state.replay.visit_count)[:-1]
    assert visits.std() > 0
    assert float(saved["run"]["mean_visits"]) == pytest.approx(visits.mean())
    back = host_checkpoint.from_checkpoint(
        saved, trainer, lambda: replay.init(demonstration(12)), state.totals
    )
    assert np.asarray(back.replay.visit_count).tolist() == [round(visits.mean())] * 12
    assert int(back.replay.num_added) == 0
    chex.assert_trees_all_equal(back.learner, state.learner)


@pytest.mark.parametrize("with_replay", [True, False])
def test_the_shape_of_a_checkpoint_is_known_beforehand(with_replay):
    state, trainer, _ = state_and_trainer()
    template = jax.eval_shape(
        lambda: host_checkpoint.to_checkpoint(
            trainer.init(jax.random.key(0), demonstration(12)), with_replay=with_replay
        )
    )
    saved = host_checkpoint.to_checkpoint(state, with_replay=with_replay)
    chex.assert_trees_all_equal_shapes_and_dtypes(template, saved)


def test_a_resumed_run_cuts_the_episodes_that_were_running():
    state, trainer, _ = state_and_trainer(num_steps=24)
    # Lane 0's ring follows the demonstrations, lane 1's a hundred rows on.
    ring = 12 + 100
    last = ring + int(state.replay.num_added) - 1
    assert state.replay.rows.discount[last] > 0
    assert not state.replay.rows.is_last[last]
    back = host_checkpoint.from_checkpoint(
        host_checkpoint.to_checkpoint(state), trainer, lambda: None, state.totals
    )
    loop = make_loop(trainer, CountingEnvironment(2), back)
    assert loop.step == 24
    loop.run(12)
    rows = loop.state.replay.rows
    assert bool(rows.is_last[last])
    assert bool(rows.is_first[last + 1])
    assert np.asarray(rows.frame[last + 1]).tolist() == [1, 0, 0]
    assert float(loop.state.replay.tree[-1][last]) == 0.0


@pytest.mark.parametrize("period", [0, -1])
def test_a_period_that_is_none_is_named(period):
    env, _, trainer = make()
    with pytest.raises(ValueError, match=f"update_period is {period}, but must be greater than 0"):
        make_loop(trainer, env, update_period=period)


def test_randomness_is_a_function_of_the_key_and_the_counters():
    def actions(seed, *, steps):
        config = configure(PddDqnConfig, gamma=GAMMA, batch_size=4, epsilon_values=(1.0,))
        env, _, trainer = make(config, num_lanes=2)
        loop = make_loop(trainer, env, trainer.init(jax.random.key(seed)))
        loop.run(steps)
        return np.array(env.actions)

    chex.assert_trees_all_equal(actions(0, steps=40), actions(0, steps=40))
    assert (actions(0, steps=40) != actions(1, steps=40)).any()
    counts = np.bincount(actions(2, steps=1000).ravel(), minlength=5)
    # 1000 draws of 5 actions: standard deviation 12.6.
    assert (np.abs(counts - 200) < 60).all()


def test_one_call_does_the_same_as_many():
    def run(**options):
        env, _, trainer = make()
        loop = make_loop(trainer, env, update_period=4 / 3, learning_starts=8, **options)
        scores = loop.run(60)
        return loop, scores, np.stack(env.actions)

    many, scores, actions = run()
    one, same_scores, same_actions = run(one_call=True)
    np.testing.assert_array_equal(actions, same_actions)
    assert scores == same_scores
    assert int(one.state.learner.updates) == int(many.state.learner.updates) == 39
    chex.assert_trees_all_close(one.state.learner.params, many.state.learner.params, rtol=1e-5)
    chex.assert_trees_all_close(one.state.replay.tree[-1], many.state.replay.tree[-1], rtol=1e-4)


def test_demonstrations_of_another_gamma_are_refused():
    def init(gamma):
        _, _, trainer = make(configure(BqfdConfig, gamma=gamma), num_demo_rows=4)
        return trainer.init(jax.random.key(0), demonstration(4))

    with pytest.raises(ValueError, match=f"discount of {GAMMA}, but the agent's gamma is 0.99"):
        init(0.99)
    assert int(init(GAMMA).step) == 0


def test_updates_that_are_due_together_are_one_call_with_the_same_numbers():
    def run(*, join):
        config = configure(BqfdConfig, gamma=GAMMA, batch_size=4)
        network = networks.for_observation((3,), np.int32, 5, stack=STACK, hidden=8)
        env, _, trainer = make(config, num_lanes=4, network=network)
        joined = []
        watched = trainer._replace(updates=lambda n: joined.append(n) or trainer.updates(n))
        state = trainer.init(jax.random.key(0))
        loop = make_loop(watched, env, state, update_period=2.5, join_updates=join)
        loop.run(4 * 4)
        return loop.state, joined

    (one, none), (other, joined) = run(join=False), run(join=True)
    # After 4, 8, 12 and 16 steps there should be 1, 3, 4 and 6.
    assert (none, joined) == ([], [2, 2])
    assert int(one.learner.updates) == 6
    chex.assert_trees_all_equal(one.replace(key=0), other.replace(key=0))


def test_updates_are_not_joined_on_a_cpu():
    """In a loop XLA's convolutions take several times as long there."""
    env, _, trainer = make()
    refusing = trainer._replace(updates=None)
    loop = make_loop(refusing, env, trainer.init(jax.random.key(0)), update_period=0.5)
    loop.run(4)
    assert int(loop.state.learner.updates) == 8
