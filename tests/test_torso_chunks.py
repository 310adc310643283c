"""The Atari torsos beside the flax layers whose names, parameters and values they have."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bqfd_jax import networks

KEY = jax.random.key(0)


def scaled(observation):
    return jnp.moveaxis(observation, 1, -1).astype(jnp.float32) / 255


class PlainNature(nn.Module):
    @nn.compact
    def __call__(self, observation):
        x = scaled(observation)
        for features, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = nn.relu(nn.Conv(features, (kernel,) * 2, (stride,) * 2, padding="VALID")(x))
        return x.reshape(len(x), -1)


class PlainPatch(nn.Module):
    @nn.compact
    def __call__(self, observation):
        x = nn.relu(nn.Conv(32, (5, 5), (5, 5), padding="SAME")(scaled(observation)))
        x = jnp.pad(x, ((0, 0), (0, 3), (0, 3), (0, 0))).reshape(len(x), 4, 5, 4, 5, 32)
        x = nn.relu(nn.Dense(64)(jnp.moveaxis(x, 3, 2).reshape(len(x), 4, 4, -1)))
        return x.reshape(len(x), -1)


class StandardConv(nn.Module):
    """A bias would be standardised away, so it is added afterwards."""

    shape: tuple[int, ...]
    stride: int

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", nn.initializers.lecun_normal(), self.shape)
        convolve = nn.Conv(self.shape[-1], self.shape[:2], self.stride, "VALID", use_bias=False)
        x = convolve.apply({"params": {"kernel": kernel}}, x)
        x = nn.LayerNorm(use_scale=False, use_bias=False)(x)
        return x + self.param("bias", nn.initializers.zeros, self.shape[-1:])[None, None, None]


class PlainOverlap(nn.Module):
    @nn.compact
    def __call__(self, observation):
        x = nn.relu(StandardConv((8, 8, 4, 16), 4, name="Conv_0")(scaled(observation)))
        x = nn.relu(StandardConv((4, 4, 16, 32), 2, name="Conv_1")(x))
        x = nn.relu(StandardConv((3, 3, 32, 32), 1, name="Conv_2")(x))
        return x.reshape(len(x), -1)


TORSOS = {"nature": (networks.NatureTorso(), PlainNature()),
          "patch": (networks.PatchTorso(), PlainPatch()),
          "overlap": (networks.OverlapTorso(), PlainOverlap())}  # fmt: skip


def pixels(batch):
    return np.random.default_rng(0).integers(256, size=(batch, 4, 84, 84)).astype(np.uint8)


# Two chunks of unequal size; four chunks, where there would be a fifth.
@pytest.mark.parametrize(
    ("name", "batch"), [("nature", 17), ("nature", 41), ("patch", 17), ("overlap", 17)]
)
def test_values_and_gradients_are_those_of_flax_layers(name, batch):
    torso, plain = TORSOS[name]
    observation = pixels(batch)
    params = plain.init(KEY, observation)
    # Zeros, as fresh biases are, would hide their part.
    params = jax.tree.map(lambda x: x + 0.01 if x.ndim == 1 else x, params)
    weights = np.random.default_rng(1).normal(size=batch).astype(np.float32)

    def loss_of(module):
        def loss(params):
            features = module.apply(params, observation)
            # Every row counts differently, so that none can take another's place.
            return jnp.mean(weights @ jnp.square(features)), features

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    (_, features), gradient = loss_of(torso)
    (_, expected), expected_gradient = loss_of(plain)
    assert np.ptp(expected) > 0.1
    chex.assert_trees_all_close(features, expected, rtol=1e-4, atol=1e-5)
    for leaf, wanted in zip(*map(jax.tree.leaves, (gradient, expected_gradient)), strict=True):
        np.testing.assert_allclose(leaf, wanted, atol=1e-5 * np.abs(wanted).max(), rtol=1e-4)


@pytest.mark.parametrize("name", TORSOS)
def test_parameters_begin_as_those_of_flax_layers(name):
    torso, plain = TORSOS[name]
    observation = pixels(1)
    chex.assert_trees_all_equal(torso.init(KEY, observation), plain.init(KEY, observation))


def convolutions(platform, batch):
    torso = networks.NatureTorso()
    observation = jax.ShapeDtypeStruct((batch, 4, 84, 84), jnp.uint8)
    params = jax.eval_shape(torso.init, KEY, observation)
    lowered = jax.jit(torso.apply).trace(params, observation).lower(lowering_platforms=(platform,))
    return lowered.as_text().count("stablehlo.convolution")


def test_only_a_cpu_takes_a_batch_in_chunks():
    assert [convolutions("cpu", batch) for batch in (1, 15, 16, 32, 64)] == [3, 3, 6, 12, 12]
    assert [convolutions(platform, 32) for platform in ("cuda", "tpu")] == [3, 3]
