"""Policies as files: what was changed, or was never a policy, does not play."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bqfd_jax import networks
from bqfd_jax.files import write_record
from bqfd_jax.policy import Policy, PolicyError, _digest, load_policy, save_policy

SHAPE = {
    "num_actions": 3,
    "frame_shape": (4,),
    "frame_dtype": np.dtype(np.float32),
    "stack": 1,
}


@pytest.fixture(scope="module")
def policy():
    network = networks.described_network({"hidden": 8}, **SHAPE)
    params = network.init(jax.random.key(0), np.zeros((1, 1, 4), np.float32))
    return Policy(network=network, params=params, made_with={"hidden": 8}, environment="x", **SHAPE)


def rewritten(path, *, sign=True, arrays=None, without=(), **changes):
    """Changes a file, with a digest that fits it again unless that is to be found out."""
    with np.load(path) as file:
        found = {name: file[name] for name in file.files}
    meta = json.loads(str(found.pop("meta"))) | changes
    meta = {name: value for name, value in meta.items() if name not in without}
    found |= arrays or {}
    if sign:
        meta.pop("digest", None)
        meta["digest"] = _digest(meta, found)
    write_record(path, meta, found)
    return path


def test_what_is_saved_is_loaded(tmp_path, policy):
    save_policy(policy, tmp_path / "p.npz")
    again = load_policy(tmp_path / "p.npz")
    seen = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(again.q_values(seen), policy.q_values(seen))
    rewritten(tmp_path / "p.npz")
    again = load_policy(tmp_path / "p.npz")
    np.testing.assert_array_equal(again.q_values(seen), policy.q_values(seen))


def test_it_remembers_how_it_is_to_be_played(tmp_path, policy):
    path = tmp_path / "p.npz"
    save_policy(dataclasses.replace(policy, temperature=0.5), path)
    assert load_policy(path).temperature == 0.5
    assert load_policy(rewritten(path, temperature=2)).temperature == 2


def test_files_from_before_there_were_temperatures_act_greedily(tmp_path, policy):
    path = tmp_path / "p.npz"
    save_policy(dataclasses.replace(policy, temperature=0.5), path)
    old = load_policy(rewritten(path, without=("temperature",)))
    assert old.temperature == 0
    seen = np.eye(4, dtype=np.float32)
    best = np.argmax(policy.q_values(seen), axis=1)
    np.testing.assert_array_equal(old.act(seen, np.random.default_rng(0)), best)


def saying(*q, temperature):
    """A policy that thinks the same of the actions wherever it is."""
    network = networks.Network(
        init=lambda key, seen: {}, apply=lambda params, seen: np.tile(np.float32(q), (len(seen), 1))
    )
    return Policy(network=network, params={}, temperature=temperature, **SHAPE)


def test_actions_are_drawn_from_the_softmax_at_its_temperature():
    # exp(ln 3 / (1/2)) = 9: nine times in ten the first, and the last never.
    drawn = saying(np.log(3), 0.0, -99.0, temperature=0.5)
    seen = np.zeros((2_000, 4), np.float32)
    actions = drawn.act(seen, np.random.default_rng(0))
    assert actions.dtype == np.int32
    shares = np.bincount(actions, minlength=3) / 2_000
    np.testing.assert_allclose(shares, [0.9, 0.1, 0.0], atol=0.02)
    np.testing.assert_array_equal(actions, drawn.act(seen, np.random.default_rng(0)))
    # Without a generator, and without a temperature, the best.
    assert not drawn.act(seen).any()
    greedy = dataclasses.replace(drawn, temperature=0.0)
    assert not greedy.act(seen, np.random.default_rng(0)).any()
    assert drawn.act(seen[0], np.random.default_rng(0)).shape == ()


def test_the_smallest_temperature_takes_the_best():
    cold = saying(1.0, 2.0, -3.0, temperature=1e-300)
    assert (cold.act(np.zeros((9, 4), np.float32), np.random.default_rng(0)) == 1).all()


@pytest.mark.parametrize("temperature", [-0.1, np.nan, np.inf])
def test_no_policy_has_such_a_temperature(policy, temperature):
    with pytest.raises(ValueError, match=r"temperature is .*, but must be at least 0"):
        dataclasses.replace(policy, temperature=temperature)


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": "y"},
        {"temperature": 0.5},
        {"num_actions": 2},
        {"digest": None},
        {"digest": "0" * 64},
        {"arrays": {"param_0": np.zeros(8, np.float32)}},
    ],
)
def test_any_change_is_found_out_by_the_digest(tmp_path, policy, changes):
    path = tmp_path / "p.npz"
    save_policy(policy, path)
    rewritten(path, sign=False, **changes)
    with pytest.raises(PolicyError, match=r"p\.npz .*was changed after it was saved"):
        load_policy(path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_parameters_that_are_no_numbers_do_not_play(tmp_path, policy, value):
    path = tmp_path / "p.npz"
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, value, leaf.dtype), policy.params)
    save_policy(dataclasses.replace(policy, params=params), path)
    with pytest.raises(PolicyError, match=r"p\.npz .* holds values that are not finite"):
        load_policy(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "frames"}, "is a frames of format 2"),
        ({"format": 1}, "is a policy of format 1"),
        ({"format": "two"}, "format is 'two'"),
        ({"frame_dtype": "O"}, "frame_dtype is 'O', which is no type of numbers"),
        ({"frame_dtype": "U5"}, "no type of numbers"),
        ({"frame_dtype": "datetime64"}, "no type of numbers"),
        ({"frame_dtype": 5}, "frame_dtype is 5, but must be plain text"),
        ({"frame_shape": [10**9, 10**9]}, "cannot be"),
        ({"frame_shape": [-1]}, "cannot be"),
        ({"frame_shape": "4"}, "must be a list of a whole number"),
        ({"num_actions": 10**30}, "cannot be"),
        ({"num_actions": True}, "num_actions is True"),
        ({"stack": 0}, "cannot be"),
        ({"temperature": -1.0}, "temperature is -1.0, but must be at least 0"),
        ({"temperature": float("nan")}, "temperature|NaN"),
        ({"temperature": float("inf")}, "temperature|Infinity"),
        ({"temperature": "hot"}, "temperature is 'hot', but must be"),
        ({"made_with": []}, "made_with is"),
        ({"made_with": {"hidden": "wide"}}, "cannot be played"),
        ({"made_with": {"torso": "x", "hidden": 8}}, "cannot be played"),
        ({"made_with": {"size": -1, "prior_scale": 1.0}}, r"p\.npz"),
        ({"made_with": {"size": 2}}, "cannot be played"),
        ({"made_with": {"hidden": 10**7}}, "does not fit the network"),
        ({"made_with": None}, "network of one's own: give it"),
        ({"params": ["a"] * 99}, "has no array param_"),
        ({"params": []}, "does not fit the network|was changed"),
        ({"environment": "\x1b[2J"}, "environment is .* but must be plain text"),
        ({"arrays": {"param_0": np.array(["text"] * 8)}}, r"param|<U4\[8\]"),
        ({"arrays": {"param_0": np.zeros(8, np.float64)}}, r"is float64\[8\] in the file"),
    ],
)
def test_a_forged_policy_is_refused_in_words(tmp_path, policy, changes, message):
    path = tmp_path / "p.npz"
    save_policy(policy, path)
    rewritten(path, **changes)
    with pytest.raises(PolicyError, match=message) as caught:
        load_policy(path)
    assert "p.npz" in str(caught.value)
