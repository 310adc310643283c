"""Behavioural cloning: the loss by hand, shifts, what is held out, the best network, whole runs."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gym_probes import Chain
from helpers import (
    DEMONSTRATIONS,
    NUM_ACTIONS,
    NUM_STATES,
    filled_replay,
    make_batch,
    make_rows,
    quick_jit,
    table_network,
)
from run_sinks import Noting, StopAt

import bqfd_jax
from bqfd_jax.agents import CloneConfig, clone, make_agent
from bqfd_jax.replay import make_replay
from bqfd_jax.runs.errors import Stopped, UsageError
from bqfd_jax.runs.gym import GymConfig
from bqfd_jax.runs.metrics import read_jsonl
from bqfd_jax.runs.run import Run, load_job, start
from experiments.atari import __main__ as atari
from experiments.gym import __main__ as gym

KEY = jax.random.key(0)
NETWORK = table_network(NUM_STATES, NUM_ACTIONS)
CONFIG = CloneConfig(
    updates=50,
    patience=20,
    check_period=5,
    held_out_every=3,
    batch_size=8,
    learning_rate=0.1,
    weight_decay=0.0,
)


def clone_of(rows, network=NETWORK, config=CONFIG):
    replay = make_replay(
        frame_shape=rows.frame.shape[1:],
        frame_dtype=rows.frame.dtype,
        rows_per_lane=4,
        num_demo_rows=len(rows.action),
        **config.replay_options(),
    )
    agent = make_agent(network, config, replay)
    return agent, replay.init(rows), agent.init(KEY, rows.frame[:1, None])


# --------------------------------------------------------------------------- the loss


def test_cross_entropy_by_hand():
    # exp of the logits is 1, 2, 5: the second has a quarter of the probability.
    logits = jnp.log(jnp.array([1.0, 2.0, 5.0]))
    np.testing.assert_allclose(clone.cross_entropy(logits, 1), np.log(4.0), rtol=1e-6)
    # A constant added to all logits changes nothing.
    np.testing.assert_allclose(clone.cross_entropy(logits + 7, 1), np.log(4.0), rtol=1e-5)


def test_one_step_down_the_gradient_by_hand():
    agent = make_agent(NETWORK, dataclasses.replace(CONFIG, learning_rate=1e-3))
    learner = agent.init(KEY, jnp.zeros((1, 1), jnp.int32))
    table = np.zeros((NUM_STATES, NUM_ACTIONS), np.float32)
    table[2] = np.log([1.0, 2.0, 5.0])
    learner = learner.replace(params={"table": jnp.asarray(table)})
    # The second row is the agent's own: it counts neither in the mean nor in the gradient.
    batch = make_batch(observation=[2, 5], action=[1, 0], is_expert=[True, False])
    after, each, metrics = agent.learn(learner, batch)
    np.testing.assert_allclose(each, np.log([4.0, 3.0]), rtol=1e-6)
    np.testing.assert_allclose(metrics["loss"], np.log(4.0), rtol=1e-6)
    assert metrics["accuracy"] == 0  # it would have taken action 2
    # Probabilities less what was done: 1/8, 2/8 - 1, 5/8.
    norm = np.sqrt(1 + 36 + 25) / 8
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-6)
    # Adam's first step is as long as the learning rate, against the sign of the gradient.
    moved = np.asarray(after.params["table"]) - table
    np.testing.assert_allclose(moved[2], [-1e-3, 1e-3, -1e-3], rtol=1e-3)
    assert not np.delete(moved, 2, axis=0).any()
    # The network that is played is the best so far, not this one.
    np.testing.assert_array_equal(after.target_params["table"], learner.target_params["table"])
    assert int(after.updates) == 1


def test_a_batch_without_an_expert_teaches_nothing():
    agent = make_agent(NETWORK, CONFIG)
    learner = agent.init(KEY, jnp.zeros((1, 1), jnp.int32))
    batch = make_batch(observation=[2], action=[1], is_expert=[False])
    after = agent.learn(learner, batch)[0]
    np.testing.assert_array_equal(after.params["table"], learner.params["table"])


def test_weight_decay_pulls_parameters_to_zero():
    config = dataclasses.replace(CONFIG, learning_rate=0.01, weight_decay=0.5)
    agent = make_agent(NETWORK, config)
    learner = agent.init(KEY, jnp.zeros((1, 1), jnp.int32))
    batch = make_batch(observation=[2], action=[1], is_expert=[True])
    after = agent.learn(learner, batch)[0]
    before, now = learner.params["table"], after.params["table"]
    np.testing.assert_allclose(now[3], before[3] * (1 - 0.01 * 0.5), rtol=1e-5)


# --------------------------------------------------------------------------- shifts


def test_a_shift_by_hand():
    image = jnp.arange(6).reshape(2, 3)  # 0 1 2 / 3 4 5
    # One up and one to the left: the last row and the last column are repeated.
    np.testing.assert_array_equal(
        clone.shift_image(image, jnp.array([1, 1])), [[4, 5, 5], [4, 5, 5]]
    )
    np.testing.assert_array_equal(
        clone.shift_image(image, jnp.array([0, -2])), [[0, 0, 0], [3, 3, 3]]
    )
    np.testing.assert_array_equal(clone.shift_image(image, jnp.array([0, 0])), image)


def test_it_is_drqs_shift_pad_by_the_edge_and_crop():
    image = np.random.default_rng(0).integers(0, 256, (4, 84, 84)).astype(np.uint8)
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode="edge")
    for y, x in ((-4, 3), (2, -1), (4, 4)):
        cropped = padded[:, 4 + y : 88 + y, 4 + x : 88 + x]
        np.testing.assert_array_equal(clone.shift_image(image, jnp.array([y, x])), cropped)


def test_random_shifts_reach_all_offsets_and_move_a_stack_as_one():
    # Every pixel says where it was; the two frames of a stack differ by a constant.
    place = np.arange(84)[:, None] * 100 + np.arange(84)[None]
    observation = jnp.asarray(np.stack([place, place + 10_000]))[None].repeat(400, axis=0)
    shifted = np.asarray(clone.shift_at_random(KEY, observation, 4))
    np.testing.assert_array_equal(shifted[:, 1], shifted[:, 0] + 10_000)
    offsets = shifted[:, 0, 42, 42] - place[42, 42]
    vertical = np.round(offsets / 100).astype(int)
    horizontal = offsets - 100 * vertical
    assert set(vertical) == set(horizontal) == set(range(-4, 5))
    assert abs(np.corrcoef(vertical, horizontal)[0, 1]) < 0.2


@pytest.mark.parametrize("shape", [(7,), (10, 10), (10, 10, 4), (84, 84)])
def test_what_is_not_shifted(shape):
    observation = jax.random.uniform(KEY, (3, 2, *shape))
    shift = 0 if shape == (84, 84) else 4
    np.testing.assert_array_equal(clone.shift_at_random(KEY, observation, shift), observation)


def test_which_axes_are_shifted():
    assert clone.image_axes((96, 84, 3)) == (-3, -2)
    assert clone.image_axes((3, 96, 84)) == clone.image_axes((96, 84)) == (-2, -1)
    colours = jnp.arange(3)[None, None, None, None] * jnp.ones((5, 1, 84, 84, 1), jnp.int32)
    np.testing.assert_array_equal(clone.shift_at_random(KEY, colours, 4), colours)


# --------------------------------------------------------------------------- what is held out


def episodes(*lengths):
    """Marks of episodes, each of which ends with a row that starts no transition."""
    is_first = np.concatenate([np.arange(length + 1) == 0 for length in lengths])
    is_last = np.concatenate([np.arange(length + 1) == length for length in lengths])
    return is_first, is_last


def test_every_third_episode_or_the_last_third_of_the_steps():
    third = np.asarray(clone.held_out(*episodes(1, 2, 3, 1, 1, 2), 3)).astype(int)
    assert third.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0]
    tail = np.asarray(clone.held_out(*episodes(4, 3), 3)).astype(int)
    assert tail.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 0]
    one = np.asarray(clone.held_out(*episodes(9), 3)).astype(int)
    assert one.tolist() == 6 * [0] + 3 * [1] + [0]
    # Room that is left free is no episode.
    room = [np.concatenate([marks, np.ones(5, bool)]) for marks in episodes(9)]
    assert np.asarray(clone.held_out(*room, 3)).astype(int).tolist() == one.tolist() + 5 * [0]
    # Nothing is left of two steps.
    assert not np.asarray(clone.held_out(*episodes(2), 3)).any()


def test_batches_hold_nothing_that_is_held_out():
    seen = []

    def spy(params, observation):
        jax.debug.callback(lambda x: seen.append(np.asarray(x)), observation, ordered=True)
        return NETWORK.apply(params, observation)

    rows = make_rows([(s % NUM_STATES, 0, 0.0, 0.9, "first" * (s == 0)) for s in range(6)])
    config = dataclasses.replace(CONFIG, patience=1000, check_period=1000)
    agent, state, learner = clone_of(rows, NETWORK._replace(apply=spy), config)
    learner = agent.pretrain(KEY, learner, state, 0)[0]  # with a look at the held-out rows
    seen.clear()
    for i in range(10):
        learner = agent.pretrain(jax.random.key(i), learner, state, 0)[0]
    jax.effects_barrier()
    assert set(np.concatenate(seen).ravel()) == {0, 1, 2, 3}


def test_the_mean_over_chosen_rows_goes_chunk_by_chunk(monkeypatch):
    monkeypatch.setattr(clone, "_CHUNK", 2)
    replay, state = filled_replay()
    params = NETWORK.init(KEY, None)
    chosen = jnp.array([True, False, True, True, True, False])
    found = clone.mean_cross_entropy(NETWORK.apply, replay, params, state, chosen)
    each = [
        optax.softmax_cross_entropy_with_integer_labels(params["table"][row[0]], row[1])
        for row, is_chosen in zip(DEMONSTRATIONS, chosen, strict=True)
        if is_chosen
    ]
    np.testing.assert_allclose(found, np.mean(each), rtol=1e-6)


def test_held_out_pictures_are_seen_as_they_were_however_they_are_stored():
    # 84 x 84 is stored in tiles of another shape; every pixel is another number.
    actions = [0, 1, 2, 1]
    rows = make_rows([(0, a, 0.0, 0.9, "first" * (i == 0)) for i, a in enumerate(actions)])
    frames = np.arange(4 * 84 * 84).reshape(4, 84, 84) % 251
    rows = rows.replace(frame=jnp.asarray(frames, jnp.uint8))

    def corner(params, seen):
        return seen[:, -1, 80, 81:84] / 100

    replay = make_replay(
        frame_shape=(84, 84), frame_dtype=np.uint8, rows_per_lane=4, num_demo_rows=4
    )
    chosen = jnp.array([True, False, True, True])
    found = clone.mean_cross_entropy(corner, replay, None, replay.init(rows), chosen)
    logits = jnp.asarray(frames[[0, 2, 3], 80, 81:84] / 100)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.array([0, 2, 1]))
    np.testing.assert_allclose(found, each.mean(), rtol=1e-5)


# --------------------------------------------------------------------------- the best network


def test_the_network_that_did_best_on_held_out_rows_is_kept():
    # What is learnt in state 0 (action 0) is wrong in the held-out third (action 1): every update
    # makes it worse, so the first is the best.
    actions = [0] * 6 + [1] * 3
    rows = make_rows([(0, a, 0.0, 0.9, "first" * (i == 0)) for i, a in enumerate(actions)])
    agent, state, learner = clone_of(rows)
    step = quick_jit(lambda key, learner: agent.pretrain(key, learner, state, 0))
    looked_at = []
    for i in range(30):
        learner, _, metrics = step(jax.random.key(i), learner)
        if i % CONFIG.check_period == 0:
            held_out = -jax.nn.log_softmax(learner.params["table"][0])[1]
            np.testing.assert_allclose(metrics["held_out_loss"], held_out, rtol=1e-5)
            looked_at.append((float(held_out), np.asarray(learner.params["table"])))
        assert bool(agent.finished(learner)) == (i + 1 - 1 > CONFIG.patience)
    losses = [loss for loss, _ in looked_at]
    assert losses == sorted(losses)
    progress = learner.opt_state
    np.testing.assert_allclose(progress.best_loss, losses[0], rtol=1e-6)
    assert int(progress.best_at) == 1
    np.testing.assert_array_equal(learner.target_params["table"], looked_at[0][1])
    assert not np.array_equal(learner.params["table"], looked_at[0][1])


def test_as_long_as_it_gets_better_it_goes_on():
    rows = make_rows([(i % 3, i % 3, 0.0, 0.9, "first" * (i == 0)) for i in range(12)])
    agent, state, learner = clone_of(rows)
    step = quick_jit(lambda key, learner: agent.pretrain(key, learner, state, 0)[0])
    for i in range(46):
        learner = step(jax.random.key(i), learner)
        assert not agent.finished(learner)
    assert int(learner.opt_state.best_at) == 46
    np.testing.assert_array_equal(learner.target_params["table"], learner.params["table"])
    best = agent.q_values(learner.target_params, jnp.arange(3)[:, None])
    assert best.argmax(axis=1).tolist() == [0, 1, 2]


def test_the_last_update_is_looked_at_too():
    rows = make_rows([(i % 3, i % 3, 0.0, 0.9, "first" * (i == 0)) for i in range(12)])
    agent, state, learner = clone_of(rows, config=dataclasses.replace(CONFIG, updates=3))
    for i in range(3):
        learner = agent.pretrain(jax.random.key(i), learner, state, 0)[0]
    assert int(learner.opt_state.best_at) == 3
    np.testing.assert_array_equal(learner.target_params["table"], learner.params["table"])


def test_without_held_out_rows_all_are_learnt_from_and_the_last_network_is_played():
    is_first, is_last = jnp.array([1, 0, 0, 1, 0], bool), jnp.array([0, 0, 1, 0, 1], bool)
    assert not clone.held_out(is_first, is_last, 0).any()
    config = dataclasses.replace(CONFIG, held_out_every=0, updates=30)
    rows = make_rows([(i % 3, i % 3, 0.0, 0.9, "first" * (i == 0)) for i in range(12)])
    agent, state, learner = clone_of(rows, config=config)
    for update in range(config.updates):
        key = jax.random.fold_in(KEY, update)
        learner, _, metrics = agent.pretrain(key, learner, state, 0)
        assert not agent.finished(learner)
    assert "held_out_loss" not in metrics
    np.testing.assert_array_equal(learner.target_params["table"], learner.params["table"])


def test_the_step_size_falls_along_a_cosine():
    config = dataclasses.replace(CONFIG, updates=2, learning_rate=0.1)
    rows = make_rows([(0, 0, 0.0, 0.9, "first" * (i == 0)) for i in range(12)])
    agent, state, learner = clone_of(rows, config=config)
    tables = [learner.params["table"]]
    for update in range(3):
        learner = agent.pretrain(jax.random.fold_in(KEY, update), learner, state, 0)[0]
        tables.append(learner.params["table"])
    # Adam moves what has a steady gradient by its step size: all, half of it, and a twentieth.
    steps = [float(jnp.abs(new - old).max()) for old, new in itertools.pairwise(tables)]
    np.testing.assert_allclose(steps, [0.1, 0.1 * (0.05 + 0.95 / 2), 0.005], rtol=0.1)


def test_without_a_replay_it_says_so():
    agent = make_agent(NETWORK, CONFIG)
    with pytest.raises(ValueError, match="without a replay"):
        agent.pretrain(KEY, None, None, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("updates", 0), ("patience", 0), ("check_period", 0), ("held_out_every", 1),
        ("batch_size", 0), ("learning_rate", 0.0), ("weight_decay", -1.0), ("shift", -1),
        ("shift", 43), ("max_gradient_norm", 0.0), ("patience", 99),
    ],
)  # fmt: skip
def test_values_that_cannot_be(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        CloneConfig(**{name: value})


# --------------------------------------------------------------------------- whole runs


def always_right(episodes=8):
    return bqfd_jax.record(Chain, lambda seen: np.ones(len(seen), int), episodes)


def there_and_back(episodes=8):
    """Left once at the first place, so that it is no constant, and then right all the way."""

    def act(seen):
        del seen
        steps.append(len(steps))
        return np.array([0 if len(steps) % 6 == 1 else 1])

    steps = []
    return bqfd_jax.record(Chain(), act, episodes)


QUICK = dataclasses.replace(CONFIG, updates=200, patience=100, batch_size=16, learning_rate=0.01)


def test_a_perfect_demonstration_is_matched():
    demonstration = always_right()
    assert set(demonstration.scores) == {1.0}
    result = bqfd_jax.train(Chain, demonstration, agent="clone", hidden=8, progress=False)
    assert result.summary["final"]["mean"] == 1.0
    assert (result.summary["steps"], int(result.state.step)) == (0, 0)
    assert bqfd_jax.evaluate(Chain, result.policy, 3).tolist() == [1.0, 1.0, 1.0]


def test_a_network_for_pictures_learns_with_shifts():
    # A bright column left or right of the middle tells which action is taken.
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, 64)
    frames = np.zeros((65, 42, 42), np.uint8)
    for frame, action in zip(frames, actions, strict=False):
        frame[:, (30 if action else 8) + rng.integers(4)] = 255
    rows = make_rows([(0, a, 0.0, 0.9, "first" * (i == 0)) for i, a in enumerate(actions)])
    rows = rows.replace(frame=jnp.asarray(frames[:64]))
    network = bqfd_jax.networks.for_observation((42, 42), np.uint8, 2, hidden=16)
    agent, state, learner = clone_of(rows, network, dataclasses.replace(QUICK, shift=4))
    step = jax.jit(lambda key, learner: agent.pretrain(key, learner, state, 0))
    for i in range(40):
        learner, _, metrics = step(jax.random.key(i), learner)
    assert metrics["held_out_loss"] < 0.1


def tiny(out, **changes):
    base = dataclasses.replace(
        GymConfig.of(agent="clone"),
        env="gym_probes:bqfd-Probe-v0",
        demo=("given",),
        envs=2,
        eval_episodes=2,
        log_period=16,
        checkpoint_period=16,
        hidden=8,
        out=out,
        clone=dataclasses.replace(QUICK, updates=40),
    )
    return dataclasses.replace(base, **changes)


def test_a_run_folder_resumed_is_the_same_as_one_never_stopped(tmp_path):
    shown = [there_and_back()]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    sink = Noting()
    summary = start(load_job(tiny(whole), shown), sink)
    # After 16, 32 and 40 updates.
    assert sum(line.startswith("checkpoint at") for line in sink.lines) == 3
    assert (summary["updates"], summary["steps"], summary["agent"]) == (40, 0, "clone")
    assert [e["step"] for e in summary["evaluations"]] == [0]
    rows = read_jsonl(whole / "metrics.jsonl")
    learnt = [row for row in rows if "loss" in row]
    assert [row["updates"] for row in learnt] == [16, 32, 40]
    assert all(row["step"] == 0 and row["held_out_loss"] > 0 for row in learnt)
    assert learnt[-1]["loss"] < learnt[0]["loss"]
    names = {"policy.npz", "policy-best.npz", "summary.json", "episode.mp4", "demonstration.npz"}
    names |= {"learning_curve.png"}
    assert names <= {path.name for path in whole.iterdir()}

    with pytest.raises(Stopped, match="during pre-training"):
        start(load_job(tiny(parts), shown), StopAt(updates=16))
    run = Run.load(parts, trust_config=True)
    again = run.resume()
    assert again["evaluations"] == summary["evaluations"]
    resumed = [row for row in run.metrics if "loss" in row]
    for name in ("updates", "loss", "held_out_loss", "gradient_norm"):
        assert [row[name] for row in resumed] == [row[name] for row in learnt]
    for one, other in zip(
        jax.tree.leaves(run.policy.params),
        jax.tree.leaves(Run.load(whole, trust_config=True).policy.params),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    # Finished, it stays as it is, and can be played.
    assert run.resume()["updates"] == 40
    assert run.evaluate(3).scores.shape == (3,)
    assert run.policy.temperature == run.best_policy.temperature == 0
    with pytest.raises(ValueError, match=r"steps is 100, but must be 0 with --agent clone"):
        run.resume(steps=100)


def test_a_policy_is_played_elsewhere_as_the_run_played_it(tmp_path):
    out = tmp_path / "run"
    job = load_job(tiny(out, eval_temperature=0.5, video=False), [there_and_back()])
    start(job, Noting())
    for name in ("policy.npz", "policy-best.npz"):
        assert bqfd_jax.load_policy(out / name).temperature == 0.5
    assert Run.load(out, trust_config=True).policy.temperature == 0.5


class KilledAt(StopAt):
    """Ends a run without a chance to save."""

    def stop_asked(self):
        if super().stop_asked():
            raise RuntimeError("killed")
        return False


def test_a_killed_run_goes_on_from_its_checkpoint_without_losing_a_row(tmp_path):
    options = {"eval_episodes": 1, "video": False}
    with pytest.raises(RuntimeError, match="killed"):
        start(load_job(tiny(tmp_path / "run", **options), [there_and_back()]), KilledAt(updates=24))
    run = Run.load(tmp_path / "run", trust_config=True)
    assert run.resume()["updates"] == 40
    assert [row["updates"] for row in run.metrics if "loss" in row] == [16, 32, 40]


def test_it_stops_early_and_stays_stopped(tmp_path):
    config = dataclasses.replace(QUICK, updates=400, patience=24, check_period=8, learning_rate=1.0)
    job = load_job(tiny(tmp_path / "run", clone=config, video=False), [there_and_back()])
    summary = start(job, Noting())
    assert 24 < summary["updates"] < 200
    again = Run.load(tmp_path / "run", trust_config=True).resume()
    assert again["updates"] == summary["updates"]


def test_without_demonstrations_it_says_what_it_needs(run_here):
    for main in (atari.main, gym.main):
        code, text = run_here(main, "--agent", "clone", "--demo", "none")
        assert code == 2
        assert "a clone learns from demonstrations and from nothing else: name one" in text
    with pytest.raises(UsageError, match="learns from demonstrations and from nothing else"):
        bqfd_jax.train(Chain, agent="clone", progress=False)
    with pytest.raises(ValueError, match="steps is 10, but must be 0"):
        bqfd_jax.train(Chain, always_right(2), agent="clone", steps=10, progress=False)


def test_only_what_makes_sense_for_it_is_offered(run_here):
    for main in (atari.main, gym.main):
        code, text = run_here(main, "--agent", "clone", "--help")
        assert code == 0
        assert "--clone.weight-decay" in text
        for other in ("--clone.gamma", "--clone.epsilon-values", "--bqfd.eta", "--dqn.gamma"):
            assert other not in text
        for useless in ("--steps", "--update-period", "--learning-starts", "--replay-rows"):
            assert useless not in text
        assert run_here(main, "--agent", "clone", "--clone.gamma", "1")[0] == 2
    assert "--steps" in run_here(gym.main, "--help")[1]


def test_the_config_of_a_command_line():
    config = atari.parse(["--agent", "clone", "--game", "Breakout", "--clone.shift", "2"])
    assert (config.steps, config.clone.shift, config.eval_target) == (0, 2, True)
    config.check()
    stored = json.loads(json.dumps(config.stored()))
    assert type(config).from_stored(stored) == config
    assert atari.parse(["--game", "Breakout"]).steps == 400_000
    # The paper plays the online network, but a clone's best one is its target.
    paper = atari.parse(["--agent=clone", "--preset", "paper"])
    assert (paper.steps, paper.eval_target) == (0, False)
    learner = make_agent(NETWORK, CONFIG).init(KEY, jnp.zeros((1, 1), jnp.int32))
    assert paper.played_params(learner) is learner.target_params
