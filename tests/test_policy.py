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


def rewritten(path, *, sign=True, arrays=None, **changes):
    """Changes a file, with a digest that fits it again unless that is to be found out."""
    with np.load(path) as file:
        found = {name: file[name] for name in file.files}
    meta = json.loads(str(found.pop("meta"))) | changes
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


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": "y"},
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
