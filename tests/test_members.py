"""Ensembles with priors: whole networks of small inputs, heads on one torso for images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import quick_jit

from bqfd_jax import networks
from bqfd_jax.networks import members

KEY = jax.random.key(0)
VECTOR = jax.random.normal(jax.random.key(1), (5, 1, 4))
SCREEN = jax.random.randint(jax.random.key(2), (3, 4, 84, 84), 0, 256, jnp.uint8)


def vector_ensemble(size=3):
    network = networks.for_observation((4,), np.float32, 2, hidden=64)
    return networks.prior_ensemble(network, size)


def screen_ensemble(size=3):
    return networks.prior_ensemble(networks.atari_network(2, hidden=96, torso="patch"), size)


def test_pooling_is_the_mean_of_squares_with_zeros_beyond_the_edge():
    image = jnp.arange(2 * 3 * 4, dtype=jnp.uint8).reshape(1, 2, 3, 4)
    pooled = networks.PooledTorso(scale=2.0, sides=2).apply({}, image)[0]
    first, second = np.arange(24).reshape(2, 3, 4)
    expected = []
    for plane in (first, second):
        padded = np.zeros((4, 4))
        padded[:3] = plane
        expected += [padded[:2, :2], padded[:2, 2:], padded[2:, :2], padded[2:, 2:]]
    np.testing.assert_allclose(pooled, [square.mean() / 2 for square in expected], rtol=1e-6)


def test_heads_side_by_side_are_dueling_heads_each():
    heads = networks.DuelingHeads(num_actions=3, size=2, hidden=5)
    features = jax.random.normal(KEY, (4, 6))
    params = quick_jit(heads.init)(KEY, features)["params"]
    noise = jax.random.split(KEY, len(jax.tree.leaves(params)))
    params = jax.tree.unflatten(
        jax.tree.structure(params),
        [
            leaf + jax.random.normal(key, leaf.shape)
            for leaf, key in zip(jax.tree.leaves(params), noise, strict=True)
        ],
    )
    q = quick_jit(heads.apply)({"params": params}, features)
    assert q.shape == (4, 2, 3)
    single = networks.DuelingHead(num_actions=3, hidden=5)
    for k in range(2):
        own = slice(10 * k, 10 * (k + 1))
        alone = {
            "streams": {name: array[..., own] for name, array in params["streams"].items()},
            **{
                name: {"kernel": params[f"{name}_kernel"][k], "bias": params[f"{name}_bias"][k]}
                for name in ("value", "advantage")
            },
        }
        expected = single.apply({"params": alone}, features)
        np.testing.assert_allclose(q[:, k], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [2, 5])
def test_the_torso_learns_from_the_mean_of_the_heads(size):
    heads = networks.DuelingHeads(num_actions=3, size=size, hidden=5)
    features = jax.random.normal(KEY, (4, 6))
    params = quick_jit(heads.init)(KEY, features)

    def gradient(scale):
        scaled = networks.DuelingHeads(3, size, 5, torso_gradient_scale=scale)
        return quick_jit(jax.grad(lambda x: scaled.apply(params, x)[:, 0].sum()))(features)

    def raw(x):
        # Without the scaling, which only gradients feel.
        h = jax.nn.relu(x @ params["params"]["streams"]["kernel"]).reshape(4, size, 10)
        value = jnp.einsum("bh,ho->bo", h[:, 0, :5], params["params"]["value_kernel"][0])
        return 3 * value.sum()  # advantages cancel in the sum over actions

    np.testing.assert_allclose(
        gradient(1.0) * size, quick_jit(jax.grad(raw))(features), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("ensemble", "seen"), [(vector_ensemble, VECTOR), (screen_ensemble, SCREEN)]
)
def test_the_prior_is_added_by_its_scale_and_learns_nothing(ensemble, seen):
    network = ensemble()
    params, apply = quick_jit(network.init)(KEY, seen), quick_jit(network.apply)
    assert params["prior_scale"] == 1.0
    q = {scale: apply(params | {"prior_scale": jnp.float32(scale)}, seen) for scale in (0, 1, 3)}
    assert q[0].shape == (len(seen), 3, 2)
    np.testing.assert_allclose(q[3] - q[0], 3 * (q[1] - q[0]), rtol=1e-3, atol=1e-4)
    # Members differ, and so do priors.
    for values in (q[0], q[1] - q[0]):
        assert float(jnp.var(values, axis=1).min()) > 0
    square = jax.grad(lambda params: jnp.sum(network.apply(params, seen) ** 2))
    gradient = quick_jit(square)(params)
    for part in ("prior", "prior_scale"):
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient[part]))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient["members"]))


def test_images_share_a_torso_and_vectors_do_not():
    vector = jax.eval_shape(vector_ensemble().init, KEY, VECTOR)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(vector["members"])} == {3}
    screen = jax.eval_shape(screen_ensemble().init, KEY, SCREEN)["members"]["params"]
    single = networks.atari_network(2, hidden=96, torso="patch")
    torso = jax.eval_shape(single.init, KEY, SCREEN)["params"]["torso"]
    assert jax.tree.map(lambda x: x.shape, screen["torso"]) == jax.tree.map(
        lambda x: x.shape, torso
    )
    # Three heads of 32 are as wide as the single one of 96.
    assert screen["DuelingHeads_0"]["streams"]["kernel"].shape[1] == 2 * 96


@pytest.mark.parametrize(
    ("hidden", "size", "width"), [(256, 6, 42), (512, 2, 256), (64, 6, 32), (8, 3, 8)]
)
def test_heads_share_the_width_of_one(hidden, size, width):
    assert members._head_width(hidden, size) == width


def test_a_network_without_a_way_of_its_own_is_repeated_whole():
    single = networks.Network(
        init=lambda key, seen: {"w": jax.random.normal(key, (4, 2))},
        apply=lambda params, seen: seen[:, 0] @ params["w"],
    )
    network = networks.as_ensemble(single, {"size": 3, "prior": "scaled"})
    params = network.init(KEY, VECTOR)
    q = network.apply(params, VECTOR)
    for k in range(3):
        own = VECTOR[:, 0] @ (params["members"]["w"][k] + params["prior"]["w"][k])
        np.testing.assert_allclose(q[:, k], own, rtol=1e-5, atol=1e-6)
