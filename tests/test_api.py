"""Learning in a few lines: training, playing, recording, and policies in files."""

import dataclasses
import functools
import json
import os
import signal
import threading

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gym_probes import Chain, Failing, Telling, telling_vector
from gymnasium.vector import SyncVectorEnv
from helpers import CountingEnvironment, configure

import bqfd_jax
from bqfd_jax import Policy, agent_config, api, evaluate, load_policy, record, save_policy
from bqfd_jax.agents import (
    BootstrappedConfig,
    BqfdConfig,
    DqfdConfig,
    EnsembleBqfdConfig,
    PddDqnConfig,
)
from bqfd_jax.demos import DemonstrationError, load, rows_for, save
from bqfd_jax.envs.gymnasium import GymVector
from bqfd_jax.files import write_npz
from bqfd_jax.networks import Network, own_network
from bqfd_jax.policy import PolicyError, make_policy, seen_shape
from bqfd_jax.runs import machine
from bqfd_jax.runs.errors import RunError, UsageError


def chain(num_lanes=4):
    return SyncVectorEnv([Chain] * num_lanes)


def right(observations):
    return np.ones(len(observations), int)


def train(*arguments, **options):
    """Without a bar."""
    return bqfd_jax.train(*arguments, progress=False, **options)


QUICK = {"batch_size": 16, "learning_rate": 3e-3, "pretrain_updates": 30}


@functools.cache
def trained():
    """BQfD on the chain, with a demonstration that errs in a third of its steps."""
    demonstration = record(chain(1), right, 3, epsilon=0.4)
    config = configure(BqfdConfig, **QUICK, epsilon_values=(0.2,))
    rows = []
    result = train(
        chain(), demonstration, config, steps=800, log_period=200, learning_starts=0,
        callbacks=rows.append,
    )  # fmt: skip
    return demonstration, result, rows


# --- Training ---


def test_an_agent_learns_from_a_flawed_demonstration():
    demonstration, result, rows = trained()
    scores = evaluate(chain(), result.policy, 4)
    np.testing.assert_array_equal(scores, [1, 1, 1, 1])
    # As short as can be, which the demonstration was not.
    best = record(chain(1), result.policy, 1)
    assert best.episode_lengths.tolist() == [Chain.length]
    assert demonstration.episode_lengths.max() > Chain.length
    # The first row tells of the pre-training; of evaluations there are none without `eval_env`.
    assert [row["step"] for row in rows] == [0, 200, 400, 600, 800]
    assert rows == result.metrics
    # One update per two steps, and the pre-training.
    assert [row["updates"] for row in rows] == [30, 130, 230, 330, 430]
    assert int(result.state.learner.updates) == 430
    assert np.isfinite(rows[-1]["loss"])
    assert rows[-1]["train_episodes"] > 0
    assert rows[-1]["train_score"] > 0.9


def test_the_same_seed_gives_the_same_network_and_another_does_not():
    config = configure(PddDqnConfig, batch_size=4)

    def params(seed):
        result = train(chain(2), None, config, steps=40, seed=seed, learning_starts=10)
        return jax.tree.leaves(result.state.learner.params)

    first, again, other = params(0), params(0), params(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first[-1:], other[-1:], strict=True))


def test_a_loss_that_is_not_finite_is_named():
    config = configure(PddDqnConfig, batch_size=4, learning_rate=1e38)
    with pytest.raises(RunError, match=r"the .* became (nan|inf) before step \d+\. .*smaller"):
        train(chain(2), None, config, steps=40, learning_starts=10, log_period=20)


def test_without_demonstrations_it_is_dqn_and_configs_choose_the_agent():
    def chosen(*arguments):
        config = api._run_config("CartPole-v1", *arguments, {"steps": 1000}, {})
        return config.agent, config.agent_config

    dqn = agent_config("small", "dqn", steps=1000)
    assert (dqn.epsilon_steps, dqn.epsilon_values[0]) == ((0, 200), 1.0)
    assert chosen(None, "dqn") == ("dqn", dqn)
    for kind, name in (
        (BqfdConfig, "bqfd"),
        (EnsembleBqfdConfig, "ensemble_bqfd"),
        (DqfdConfig, "dqfd"),
        (PddDqnConfig, "dqn"),
        (BootstrappedConfig, "bootstrapped"),
    ):
        assert chosen(None, name) == (name, agent_config("small", name, steps=1000))
        # The config decides, whatever else is said.
        assert chosen(configure(kind), "bqfd") == (name, configure(kind))
    with pytest.raises(ValueError, match="agent is 'ppo'"):
        train("CartPole-v1", agent="ppo")
    with pytest.raises(ValueError, match="no agent is made from a dict"):
        train("CartPole-v1", None, {})
    # A class is a function that makes one.
    result = train(Chain, envs=2, steps=16, learning_starts=8, hidden=4)
    assert (result.summary["agent"], result.summary["game"]) == ("dqn", "<Chain>")


def test_options_are_checked():
    for wrong, message in (
        ({"steps": 0}, "steps is 0"),
        ({"steps": 10, "stack": 0}, "stack is 0"),
        ({"steps": 10, "seed": -1}, "seed is -1"),
        ({"steps": 10, "update_period": 0}, "update_period is 0"),
        ({"steps": 10, "envs": 3}, "envs is 3, but must be the 2 that there are"),
        ({"steps": 10, "seed": 2**32}, "seed is 4294967296, but must be at most 4294967295"),
        ({"steps": 10, "resume": True}, "resume needs the folder"),
        ({"steps": 10, "demo": ("make",)}, "there is no option demo"),
        ({"steps": 10, "speed": 3}, "there is no option speed; a run has agent, bootstrapped, "),
        ({"steps": 10, "replay_rows": -5}, "replay_rows is -5"),
        ({"steps": 10, "learning_starts": -1}, "learning_starts is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            train(GymVector(chain(2)), **wrong)
    with pytest.raises(ValueError, match="envs is 0"):
        train("CartPole-v1", steps=10, envs=0)
    with pytest.raises(ValueError, match="eval_env is for environments that are made already"):
        train("CartPole-v1", steps=10, eval_env="CartPole-v1")


def test_a_replay_that_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: int(1.1e9))
    with pytest.raises(UsageError, match=r"but only 1.1 GB are free; set replay_rows to \d+000"):
        train("CartPole-v1", steps=10, replay_rows=50_000_000)


# --- What may be called an environment, and how training may end ---

FEW = {"steps": 24, "learning_starts": 8, "log_period": 8, "hidden": 4, "eval_period": 0}


@pytest.mark.parametrize(
    ("env", "lanes", "options"),
    [
        (lambda: Chain(), 3, {"envs": 3, "eval_max_steps": 7}),
        (Chain(), 1, {"eval_env": Chain(), "eval_max_steps": 7}),
        (GymVector(SyncVectorEnv([Chain] * 2)), 2, {}),
        (CountingEnvironment(2), 2, {"eval_env": CountingEnvironment(3)}),
    ],
    ids=["function", "single", "vector", "host"],
)
def test_environments_of_every_kind(env, lanes, options):
    result = train(env, config=configure(PddDqnConfig, batch_size=4), **FEW, **options)
    assert int(result.state.step) == 24
    assert result.state.lanes.is_first.shape == (lanes,)
    assert not result.stopped
    # What is made already is not evaluated unless there is another to do it with.
    rows = [row for row in result.metrics if "eval_mean" in row]
    assert len(rows) == len(result.summary["evaluations"]) == (lanes != 2 or "eval_env" in options)
    assert (result.best_policy is None) == (not rows)
    for shown in (result, result.policy):
        assert len(repr(shown)) < 200
    assert "24 steps" in repr(result)


def test_a_callback_stops():
    rows = []

    def enough(row):
        rows.append(row)
        return row["step"] >= 16

    config = configure(PddDqnConfig, batch_size=4)
    result = train(chain(2), None, config, **FEW, callbacks=[enough, lambda row: None])
    assert result.stopped
    assert int(result.state.step) == rows[-1]["step"] == 16
    assert result.metrics == rows
    assert "stopped early" in repr(result)
    assert result.policy.act(np.eye(5, dtype=np.float32)).shape == (5,)


def test_ctrl_c_returns_what_was_learnt_so_far():
    before = signal.getsignal(signal.SIGINT)
    config = configure(PddDqnConfig, batch_size=4)
    result = train(
        chain(2), None, config, **FEW, callbacks=lambda row: os.kill(os.getpid(), signal.SIGINT)
    )
    assert result.stopped
    assert int(result.state.step) == 8
    assert signal.getsignal(signal.SIGINT) is before


def test_training_in_a_thread_needs_no_signals(capfd):
    config, results = configure(PddDqnConfig, batch_size=4), []
    thread = threading.Thread(target=lambda: results.append(train(chain(2), None, config, **FEW)))
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join()
    (result,) = results
    assert (int(result.state.step), result.stopped) == (24, False)
    assert signal.getsignal(signal.SIGINT) is before
    # Without a bar there is nothing to see.
    assert capfd.readouterr() == ("", "")


# --- Networks of one's own ---


class Own(nn.Module):
    @nn.compact
    def __call__(self, x):
        assert x.ndim == 2, "no axis of stacks where there are none"
        return nn.Dense(2)(nn.tanh(nn.Dense(7)(x)))


def linear():
    """A pair of plain functions."""
    return (
        lambda key, x: {"w": 0.1 * jax.random.normal(key, (x.shape[-1], 2))},
        lambda params, x: x @ params["w"],
    )


@pytest.mark.parametrize("network", [Own(), linear()], ids=["flax", "functions"])
def test_a_network_of_ones_own(network, tmp_path):
    config = configure(PddDqnConfig, batch_size=4)
    result = train(chain(2), None, config, steps=20, learning_starts=10, network=network)
    assert result.policy.act(np.eye(5, dtype=np.float32)).shape == (5,)
    save_policy(result.policy, tmp_path / "own.npz")
    with pytest.raises(PolicyError, match="network of one's own: give it"):
        load_policy(tmp_path / "own.npz")
    again = load_policy(tmp_path / "own.npz", network=network)
    np.testing.assert_array_equal(again.q_values(np.eye(5)), result.policy.q_values(np.eye(5)))


def test_networks_that_do_not_fit_are_named():
    for network, message in (
        (nn.Dense(3), r"gives float32\[1, 3\] .* must give Q-values \[1, 2\]"),
        ((lambda k, x: {}, lambda p, x: x @ np.ones((9, 2))), "cannot be applied"),
        ("mlp", "flax module or a pair"),
    ):
        with pytest.raises(ValueError, match=message):
            train(chain(2), steps=10, network=network)


# --- Demonstrations ---


def test_recorded_episodes_are_whole_and_in_order(tmp_path):
    made = record(telling_vector(2), lambda o: o[:, 2].astype(int), 5, name="told")
    # Lanes in turn, the first episode of each after every reset.
    begins = np.cumsum(made.episode_lengths + 1) - made.episode_lengths - 1
    assert made.frames[begins][:, 0].tolist() == [0, 1, 0, 1, 0]
    assert (made.frames[begins][:, 2] == 0).all()
    steps = np.diff(made.frames[:, 2])
    assert (np.delete(steps, begins[1:] - 1) == 1).all()
    # Actions are the times, and rewards say lane, episode, time and action.
    frames = np.delete(made.frames, begins[1:] - 1, axis=0)[:-1]
    np.testing.assert_array_equal(made.actions, frames[:, 2])
    np.testing.assert_array_equal(
        made.rewards, 1000 * frames[:, 0] + 100 * frames[:, 1] + 11 * frames[:, 2]
    )
    ends = begins + made.episode_lengths
    assert made.terminated == tuple((made.frames[ends][:, 1] % 4 < 2).tolist())
    save(made, tmp_path / "told.npz")
    assert load(tmp_path / "told.npz").checksum == made.checksum


def test_epsilon_is_the_share_of_random_actions():
    made = record("CartPole-v1", lambda o: np.zeros(len(o), int), 60, epsilon=0.5)
    assert np.mean(made.actions == 1) == pytest.approx(0.25, abs=0.07)
    assert record(chain(1), right, 1, max_steps=3).terminated == (False,)
    with pytest.raises(ValueError, match="epsilon is 2"):
        record(chain(1), right, 1, epsilon=2)
    with pytest.raises(ValueError, match="episodes is 0"):
        evaluate(chain(1), right, 0)
    with pytest.raises(ValueError, match="episodes is 0"):
        record("CartPole-v1", right, 0)
    with pytest.raises(ValueError, match="max_steps is 0"):
        record(chain(1), right, 1, max_steps=0)


def test_a_policy_with_a_temperature_is_played_by_drawing():
    # exp(ln 3 / (1/2)) = 9: one push in ten is to the right.
    network = Network(
        init=lambda key, seen: {},
        apply=lambda params, seen: jnp.tile(jnp.log(jnp.array([3.0, 1.0])), (len(seen), 1)),
    )
    shape = {"num_actions": 2, "frame_shape": (4,), "frame_dtype": np.dtype(np.float32)}
    drawn = Policy(network=network, params={}, temperature=0.5, **shape)
    made = record("CartPole-v1", drawn, 60)
    assert np.mean(made.actions == 1) == pytest.approx(0.1, abs=0.04)
    np.testing.assert_array_equal(made.actions, record("CartPole-v1", drawn, 60).actions)
    assert not np.array_equal(made.actions, record("CartPole-v1", drawn, 60, seed=1).actions)
    greedy = dataclasses.replace(drawn, temperature=0.0)
    assert not record("CartPole-v1", greedy, 5).actions.any()
    assert evaluate("CartPole-v1", drawn, 20).mean() > evaluate("CartPole-v1", greedy, 20).mean()


def test_a_policy_is_not_played_where_its_actions_mean_something_else():
    shape = {"num_actions": 3, "frame_shape": (4,), "frame_dtype": np.dtype(np.float32)}
    other = Policy(network=None, params={}, environment="Acrobot-v1", **shape)
    message = r"knows 3 actions \(it was trained in Acrobot-v1\), but .* CartPole-v1 has 2"
    for play in (evaluate, record):
        with pytest.raises(PolicyError, match=message):
            play("CartPole-v1", other, 1)
    with pytest.raises(PolicyError, match=r"knows 3 actions, but the environment .* has 2"):
        evaluate("CartPole-v1", dataclasses.replace(other, environment=""), 1)


def test_arrays_become_the_same_demonstration_as_recording():
    made = record(chain(1), right, 2, epsilon=0.3)
    T = len(made.actions)
    ends = np.cumsum(made.episode_lengths) - 1
    terminated = np.zeros(T, bool)
    terminated[ends] = made.terminated
    truncated = np.zeros(T, bool)
    truncated[ends] = ~np.array(made.terminated)
    again = bqfd_jax.demonstration_from_arrays(
        made.frames, made.actions, made.rewards, terminated, truncated, num_actions=2,
        env=made.game,
    )  # fmt: skip
    assert again.checksum == made.checksum
    with pytest.raises(DemonstrationError, match=r"rewards is float32\[1\]"):
        bqfd_jax.demonstration_from_arrays(
            made.frames, made.actions, made.rewards[:1], terminated, truncated, num_actions=2
        )


def test_demonstrations_that_do_not_fit_the_environment():
    made = record(telling_vector(1), lambda o: o[:, 2].astype(int), 1, name="told")
    with pytest.raises(DemonstrationError, match=r"'told' knows 5 actions, .* has 2"):
        train(chain(2), made, steps=10)
    made = record("CartPole-v1", lambda o: 0, 1)
    with pytest.raises(DemonstrationError, match=r"float32\[4\], .* shows float32\[5\]"):
        train(chain(2), made, steps=10)
    with pytest.raises(DemonstrationError, match="not a str"):
        train(chain(2), ["file.npz"], steps=10)


def test_doubles_become_floats_and_rewards_are_transformed_alike():
    made = record(telling_vector(1, dtype=np.float64), lambda o: 1, 2)
    assert made.frames.dtype == np.float32
    doubles = dataclasses.replace(made, frames=made.frames.astype(np.float64))
    env = GymVector(telling_vector(1), transform_reward=lambda r: r / 2)
    rows = rows_for(env, [doubles], gamma=0.9)
    assert rows.frame.dtype == np.float32
    assert rows.reward.sum() == made.rewards.sum() / 2


def test_an_environment_that_fails_says_where():
    env = SyncVectorEnv([Telling, lambda: Failing(1, at=3)])
    with pytest.raises(RunError, match=r"(?s)step number 3.*nothing was saved"):
        train(env, None, configure(PddDqnConfig), steps=100)


# --- Policies ---


def test_a_policy_alone_is_saved_and_loaded(tmp_path):
    _, result, _ = trained()
    path = tmp_path / "policy.npz"
    save_policy(result.policy, path)
    again = load_policy(path)
    observations = np.eye(5, dtype=np.float32)
    np.testing.assert_array_equal(
        again.q_values(observations), result.policy.q_values(observations)
    )
    actions = again.act(observations)
    assert actions.dtype == np.int32
    np.testing.assert_array_equal(actions, np.argmax(again.q_values(observations), axis=1))
    assert again.act(observations[2]) == actions[2]
    with pytest.raises(PolicyError, match=r"\[5, 4\], but must be \[5\] or \[L, 5\]"):
        again.act(np.zeros((5, 4)))
    # Nothing in the file could be executed.
    with np.load(path, allow_pickle=False) as file:
        assert {file[name].dtype.kind for name in file.files} <= {"f", "U"}


@pytest.mark.slow
def test_an_ensembles_policy_acts_on_the_mean(tmp_path):
    config = configure(BootstrappedConfig, batch_size=4, ensemble_size=3, prior_scale=1.0)
    result = train(chain(2), None, config, steps=20, learning_starts=10)
    save_policy(result.policy, tmp_path / "p.npz")
    again = load_policy(tmp_path / "p.npz")
    members = again.network.apply(again.params, jnp.eye(5)[:, None])
    assert members.shape == (5, 3, 2)
    np.testing.assert_allclose(again.q_values(np.eye(5)), members.mean(axis=1), rtol=1e-5)


def test_an_ensemble_of_networks_of_ones_own_is_loaded(tmp_path):
    env = GymVector(chain(1))
    network = own_network(Own(), **seen_shape(env, 1))
    config = configure(BootstrappedConfig, ensemble_size=3, prior_scale=1.0)
    untrained = make_policy(env, network, None, config, None)
    shapes = jax.eval_shape(untrained.network.init, jax.random.key(0), jnp.zeros((1, 1, 5)))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), shapes)
    policy = dataclasses.replace(untrained, params=params)
    save_policy(policy, tmp_path / "p.npz")
    with pytest.raises(PolicyError, match="network of one's own: give it"):
        load_policy(tmp_path / "p.npz")
    again = load_policy(tmp_path / "p.npz", network=Own())
    np.testing.assert_array_equal(again.q_values(np.eye(5)), policy.q_values(np.eye(5)))


def test_scaled_images_are_not_taken_for_bytes():
    policy = Policy(
        network=Network(init=lambda k, o: {}, apply=lambda p, o: o[:, 0, 0, :]),
        params={},
        num_actions=2,
        frame_shape=(2, 2),
        frame_dtype=np.dtype(np.uint8),
    )
    # Half of the brightest would be 0, like the darkest.
    with pytest.raises(PolicyError, match="float64, but must be uint8"):
        policy.act(np.full((2, 2), 0.5))
    assert policy.act([[0, 9], [0, 0]]) == 1


def test_stacks_are_the_frames_that_came_before(tmp_path):
    seen = []

    def apply(params, observation):
        # Prefers the oldest frame's time.
        return params["w"] * jax.nn.one_hot(observation[:, 0, 2].astype(int) % 5, 5)

    policy = Policy(
        network=Network(init=lambda k, o: {"w": jnp.ones(())}, apply=apply),
        params={"w": jnp.ones(())},
        num_actions=5,
        frame_shape=(3,),
        frame_dtype=np.dtype(np.float32),
        stack=2,
    )
    made = record(telling_vector(1), policy, 2)
    for length, first in zip(made.episode_lengths, [0, made.episode_lengths[0]], strict=True):
        seen = made.actions[first : first + length].tolist()
        assert seen == [0, *range(length - 1)]
    with pytest.raises(PolicyError, match=r"must be \[2, 3\]"):
        policy.act(np.zeros((4, 3)))


def test_files_that_are_no_policy(tmp_path):
    path = tmp_path / "x.npz"
    with pytest.raises(FileNotFoundError):
        load_policy(path)
    path.write_bytes(b"nothing")
    with pytest.raises(PolicyError, match="no policy"):
        load_policy(path)
    _, result, _ = trained()
    save_policy(result.policy, path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(str(arrays["meta"][()]))
    write_npz(path, **arrays | {"meta": np.array(json.dumps(meta | {"num_actions": 3}))})
    with pytest.raises(PolicyError, match="changed after it was saved"):
        load_policy(path)
    # As if it had been saved so.
    save_policy(dataclasses.replace(result.policy, num_actions=3), path)
    with pytest.raises(PolicyError, match=r"does not fit the network: .*advantage"):
        load_policy(path)
    write_npz(path, **arrays | {"meta": np.array(json.dumps(meta | {"kind": "frames"}))})
    with pytest.raises(PolicyError, match="is a frames"):
        load_policy(path)


def test_a_run_in_a_given_environment_says_how_to_go_on(tmp_path):
    options = {"steps": 40, "learning_starts": 10, "log_period": 20, "out": tmp_path / "run"}
    config = configure(PddDqnConfig, batch_size=4)
    train = functools.partial(bqfd_jax.train, Chain, None, config, progress=False, **options)
    first = train(eval_period=20, eval_episodes=1, callbacks=lambda row: row["step"] >= 20)
    assert first.stopped
    for use in (bqfd_jax.Run.resume, bqfd_jax.Run.evaluate):
        with pytest.raises(ValueError, match=r"in <Chain>, which was given .* resume=True"):
            use(bqfd_jax.Run.load(tmp_path / "run"))
    # The best network may be of the first sitting.
    assert train(eval_period=20, eval_episodes=1, resume=True).best_policy is not None


def test_rewards_that_are_far_too_large_are_told_of(tmp_path, capsys):
    env = GymVector(SyncVectorEnv([Chain] * 2), transform_reward=lambda reward: 1e30 * reward)
    config = configure(PddDqnConfig, batch_size=4, huber_delta=1.0, epsilon_values=(1.0,))
    bqfd_jax.train(env, None, config, steps=200, learning_starts=10, log_period=50, hidden=4)
    assert capsys.readouterr().out.count("rewards are very large") == 1
