"""Torsos that compute in bfloat16, between parameters and heads of float32."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import quick_jit
from jax.flatten_util import ravel_pytree

from bqfd_jax import networks
from bqfd_jax.runs.gym import GymWorld
from experiments.gym.__main__ import parse

KEY = jax.random.key(0)
MAKERS = {
    "nature": lambda **options: networks.atari_network(3, hidden=8, **options),
    "patch": lambda **options: networks.atari_network(3, hidden=8, torso="patch", **options),
    "vector": lambda **options: networks.for_observation((6,), np.float32, 3, hidden=8, **options),
    "image": lambda **options: networks.for_observation((9, 9), np.uint8, 3, hidden=8, **options),
}
SHAPES = {"nature": (4, 84, 84), "patch": (4, 84, 84), "vector": (1, 6), "image": (1, 9, 9)}


def observations(kind):
    rng = np.random.default_rng(0)
    if kind == "vector":
        return jnp.asarray(rng.normal(size=(5, *SHAPES[kind])), jnp.float32)
    return jnp.asarray(rng.integers(0, 256, (5, *SHAPES[kind])), jnp.uint8)


@pytest.mark.parametrize("kind", ["patch", "vector", "image"])
def test_a_torso_of_bfloat16_has_parameters_and_values_of_float32(kind):
    network, seen = MAKERS[kind](torso_dtype="bfloat16"), observations(kind)
    plain = MAKERS[kind]()
    params = quick_jit(network.init)(KEY, seen)
    chex.assert_trees_all_equal(params, quick_jit(plain.init)(KEY, seen))
    chex.assert_tree_all_finite(params)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}

    def q_and_gradients(network):
        def total(params):
            q = network.apply(params, seen)
            return jnp.sum(jnp.square(q)), q

        return quick_jit(jax.grad(total, has_aux=True))(params)

    (gradients, q), (exact_gradients, exact_q) = map(q_and_gradients, (network, plain))
    assert q.dtype == jnp.float32
    chex.assert_trees_all_equal_shapes_and_dtypes(gradients, params)
    # Eight bits are kept of each number: close, but not the same.
    largest = float(jnp.max(jnp.abs(exact_q)))
    assert 0 < float(jnp.max(jnp.abs(q - exact_q))) < 0.03 * largest
    # The streams are float32, so Q-values have more bits than eight.
    assert (q != q.astype(jnp.bfloat16).astype(jnp.float32)).any()
    # Where a unit is nearly 0 its gradient may be all or nothing, but few are.
    one, exact = (ravel_pytree(tree)[0] for tree in (gradients, exact_gradients))
    cosine = one @ exact / jnp.linalg.norm(one) / jnp.linalg.norm(exact)
    assert 0.95 < float(cosine) < 1


@pytest.mark.parametrize("kind", MAKERS)
def test_products_of_a_torso_are_of_bfloat16_and_those_of_the_head_of_float32(kind):
    network, seen = MAKERS[kind](torso_dtype="bfloat16"), observations(kind)
    params = jax.eval_shape(network.init, KEY, seen)
    program = jax.jit(network.apply).lower(params, seen).as_text()
    products = [
        line.rsplit("->", 1)[1]
        for line in program.splitlines()
        if "stablehlo.convolution" in line or "stablehlo.dot_general" in line
    ]
    head = [product for product in products if "bf16" not in product]
    # Streams, value and advantage.
    assert len(head) == 3
    assert len(products) > len(head)


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match="torso_dtype is 'float16', but must be one of float32, b"):
        networks.atari_network(3, torso_dtype="float16")


def test_a_policy_file_tells_of_the_dtype():
    made_with = {"hidden": 8, "torso_dtype": "bfloat16"}
    shape = {"num_actions": 3, "frame_shape": (6,), "frame_dtype": np.float32, "stack": 1}
    network, seen = networks.described_network(made_with, **shape), observations("vector")
    params = network.init(KEY, seen)
    expected = MAKERS["vector"](torso_dtype="bfloat16").apply(params, seen)
    chex.assert_trees_all_equal(network.apply(params, seen), expected)
    assert (MAKERS["vector"]().apply(params, seen) != expected).any()


def test_a_run_asks_for_it_by_an_option():
    config = parse(["--torso-dtype", "bfloat16", "--hidden", "8"])
    config.check()
    world = GymWorld(config)
    made = world.make_network(world.example())
    assert made.made_with == {"hidden": 8, "torso_dtype": "bfloat16"}
    seen = jnp.ones((1, 1, 4))
    params = made.network.init(KEY, seen)
    plain = networks.for_observation((4,), np.float32, 2, hidden=8)
    assert (made.network.apply(params, seen) != plain.apply(params, seen)).any()
    with pytest.raises(ValueError, match="torso_dtype is 'float16'"):
        dataclasses.replace(config, torso_dtype="float16").check()
