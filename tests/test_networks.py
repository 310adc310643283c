import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from bqfd_jax import networks
from bqfd_jax.networks.impala import ImpalaTorso

KEY = jax.random.key(0)


def count(params):
    return sum(x.size for x in jax.tree.leaves(params))


def shapes(params):
    return jax.tree.map(lambda x: x.shape, params)


def normal(shape):
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)


def make_params(network, observation):
    """Random parameters; fresh biases are 0, which would hide their part."""
    rng = np.random.default_rng(0)
    expected = jax.eval_shape(network.init, KEY, observation)
    return jax.tree.map(lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape), x.dtype), expected)


def dense(layer, x):
    return x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)


def test_mlp_torso_is_dense_layers_with_relu():
    torso = networks.MLPTorso((5, 4))
    observation = normal((3, 2, 6))
    params = make_params(torso, observation)
    assert shapes(params["params"]) == {
        "Dense_0": {"kernel": (12, 5), "bias": (5,)},
        "Dense_1": {"kernel": (5, 4), "bias": (4,)},
    }
    x = np.asarray(observation, np.float64).reshape(3, 12)
    for name in ("Dense_0", "Dense_1"):
        x = np.maximum(dense(params["params"][name], x), 0)
    assert 0 < np.sum(x == 0) < x.size
    features = jax.jit(torso.apply)(params, observation)
    chex.assert_type(features, jnp.float32)
    np.testing.assert_allclose(features, x, atol=1e-5)


def test_mlp_torso_takes_integers_and_an_initializer_for_biases():
    torso = networks.MLPTorso((3,), bias_init=nn.initializers.constant(0.5))
    params = torso.init(KEY, jnp.zeros((1, 1, 2), jnp.int32))
    features = torso.apply(params, jnp.zeros((4, 1, 2), jnp.int32))
    chex.assert_trees_all_equal(features, jnp.full((4, 3), 0.5))


def test_mlp_torso_encodes_what_it_sees():
    def one_hot(observation):
        return jax.nn.one_hot(observation, 5)

    torso = networks.MLPTorso((6,), encode=one_hot)
    observation = jnp.array([[[0, 4]], [[3, 1]]])  # [B, S, 2] positions
    params = make_params(torso, observation)
    # Two positions of five cells each.
    chex.assert_shape(params["params"]["Dense_0"]["kernel"], (10, 6))
    encoded = jnp.array([[1, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 0, 0, 1, 0, 0, 0]])
    features = torso.apply(params, observation)
    chex.assert_trees_all_close(features, networks.MLPTorso((6,)).apply(params, encoded))
    assert np.any(features[0] != features[1])


def test_nature_torso_has_the_published_shapes():
    observation = jax.ShapeDtypeStruct((2, 4, 84, 84), jnp.uint8)
    torso = networks.NatureTorso()
    params = jax.eval_shape(torso.init, KEY, observation)
    assert shapes(params["params"]) == {
        "Conv_0": {"kernel": (8, 8, 4, 32), "bias": (32,)},
        "Conv_1": {"kernel": (4, 4, 32, 64), "bias": (64,)},
        "Conv_2": {"kernel": (3, 3, 64, 64), "bias": (64,)},
    }
    # 8192 + 32, 32768 + 64 and 36864 + 64
    assert count(params) == 8224 + 32832 + 36928
    # Without padding 84 becomes 20, 9 and 7.
    features = jax.eval_shape(torso.apply, params, observation)
    chex.assert_shape(features, (2, 7 * 7 * 64))
    assert features.dtype == jnp.float32


nature_apply = jax.jit(networks.NatureTorso().apply)
PIXELS = np.random.default_rng(0).integers(256, size=(2, 4, 84, 84)).astype(np.uint8)
PIXELS[:, :, 0, 0] = 255


@pytest.mark.parametrize("frame", [0, 1, 2, 3])
def test_nature_torso_strides_over_scaled_frames(frame):
    # Feature 0 of every layer looks at the upper left corner of its window in one channel, so the
    # torso reads every eighth pixel of one frame: strides 4, 2 and 1.
    def corner(shape, channel):
        return jnp.zeros(shape).at[0, 0, channel, 0].set(1.0)

    params = {
        "Conv_0": {"kernel": corner((8, 8, 4, 32), frame), "bias": jnp.zeros(32)},
        "Conv_1": {"kernel": corner((4, 4, 32, 64), 0), "bias": jnp.zeros(64)},
        "Conv_2": {"kernel": corner((3, 3, 64, 64), 0), "bias": jnp.zeros(64)},
    }
    features = nature_apply({"params": params}, PIXELS)
    features = np.asarray(features).reshape(2, 7, 7, 64)
    np.testing.assert_allclose(features[..., 0], PIXELS[:, frame, 0:56:8, 0:56:8] / 255, rtol=1e-6)
    np.testing.assert_array_equal(features[..., 1:], 0)
    np.testing.assert_array_equal(features[:, 0, 0, 0], 1)


def test_dueling_head_by_hand():
    head = networks.DuelingHead(num_actions=3, hidden=5)
    features = normal((4, 6))
    params = make_params(head, features)
    layers = params["params"]
    assert shapes(layers) == {
        "streams": {"kernel": (6, 10), "bias": (10,)},
        "value": {"kernel": (5, 1), "bias": (1,)},
        "advantage": {"kernel": (5, 3), "bias": (3,)},
    }
    q = jax.jit(head.apply)(params, features)
    chex.assert_shape(q, (4, 3))
    chex.assert_type(q, jnp.float32)
    streams = np.maximum(dense(layers["streams"], np.asarray(features, np.float64)), 0)
    value = dense(layers["value"], streams[:, :5])
    advantage = dense(layers["advantage"], streams[:, 5:])
    np.testing.assert_allclose(q, value + advantage - advantage.mean(1, keepdims=True), atol=1e-5)
    # The mean over actions is the value.
    np.testing.assert_allclose(np.mean(q, axis=1), value[:, 0], atol=1e-5)


def test_streams_are_standardised_each_on_its_own():
    head = networks.DuelingHead(num_actions=3, hidden=5, layer_norm=True)
    features = normal((4, 6))
    params = make_params(head, features)
    layers = params["params"]
    plain = networks.DuelingHead(num_actions=3, hidden=5)
    assert shapes(layers) == shapes(make_params(plain, features)["params"])
    both = dense(layers["streams"], np.asarray(features, np.float64)).reshape(4, 2, 5)
    mean, std = both.mean(-1, keepdims=True), both.std(-1, keepdims=True)
    streams = np.maximum((both - mean) / std, 0)
    value = dense(layers["value"], streams[:, 0])
    advantage = dense(layers["advantage"], streams[:, 1])
    q = head.apply(params, features)
    np.testing.assert_allclose(q, value + advantage - advantage.mean(1, keepdims=True), atol=1e-4)


@pytest.mark.parametrize("size", [None, 3])
def test_values_of_a_new_network_can_begin_at_zero(size):
    seen = jax.random.randint(jax.random.key(1), (2, 4, 84, 84), 0, 255).astype(jnp.uint8)

    def q_of(**options):
        network = networks.atari_network(5, torso="patch", hidden=8, **options)
        if size:
            network = networks.prior_ensemble(network, size)
        params = network.init(jax.random.key(0), seen)
        own = params | ({"prior_scale": 0.0} if size else {})
        return network.apply(own, seen), network.apply(params, seen), params

    own, both, params = q_of(zero_values=True)
    np.testing.assert_array_equal(own, 0.0)
    drawn, _, drawn_params = q_of()
    assert np.abs(drawn).min() > 0
    # Members still differ, by their priors.
    assert (np.std(both) > 0) == bool(size)
    # Two kernels differ, those of the last layers.
    same = jax.tree.map(lambda x, y: bool(np.all(x == y)), params, drawn_params)
    assert jax.tree.leaves(same).count(False) == 2


def test_dueling_head_does_not_see_a_constant_in_the_advantages():
    head = networks.DuelingHead(num_actions=3, hidden=5)
    features = normal((4, 6))
    params = make_params(head, features)

    def q_with(layer, constant):
        moved = jax.tree.map(lambda x: x, params)
        moved["params"][layer]["bias"] += constant
        return head.apply(moved, features)

    q = head.apply(params, features)
    chex.assert_trees_all_close(q_with("advantage", 2.0), q, atol=1e-5)
    chex.assert_trees_all_close(q_with("value", 2.0), q + 2.0, atol=1e-5)
    uneven = q_with("advantage", jnp.array([3.0, 0.0, 0.0])) - q
    chex.assert_trees_all_close(uneven, jnp.tile(jnp.array([2.0, -1.0, -1.0]), (4, 1)), atol=1e-5)


def test_gradient_into_the_torso_is_scaled():
    torso = networks.MLPTorso((8, 7))
    network = networks.QNetwork(torso, num_actions=3, hidden=5)
    unscaled_head = networks.DuelingHead(num_actions=3, hidden=5, torso_gradient_scale=1.0)
    observation = normal((4, 1, 6))
    params = make_params(network, observation)
    assert set(params["params"]) == {"torso", "DuelingHead_0"}

    def scaled(params):
        return jnp.sum(network.apply(params, observation) ** 2)

    def unscaled(params):
        features = torso.apply({"params": params["params"]["torso"]}, observation)
        head_params = {"params": params["params"]["DuelingHead_0"]}
        return jnp.sum(unscaled_head.apply(head_params, features) ** 2)

    value, gradient = jax.jit(jax.value_and_grad(scaled))(params)
    expected_value, expected = jax.jit(jax.value_and_grad(unscaled))(params)
    assert value == pytest.approx(float(expected_value), rel=1e-5)
    gradient, expected = gradient["params"], expected["params"]
    chex.assert_trees_all_close(
        gradient["DuelingHead_0"], expected["DuelingHead_0"], rtol=1e-4, atol=1e-4
    )
    for leaf, full in zip(
        *map(jax.tree.leaves, (gradient["torso"], expected["torso"])), strict=True
    ):
        assert np.any(full != 0)
        np.testing.assert_allclose(leaf, 2**-0.5 * full, rtol=1e-4, atol=1e-4)


# torso 2-64-64, two streams of 256, one value and two advantages
DEEP_SEA_PARAMETERS = (2 * 64 + 64) + (64 * 64 + 64) + (64 * 512 + 512) + (256 + 1) + (256 * 2 + 2)


def test_deep_sea_network():
    network = networks.deep_sea_network(encode=lambda position: position / 10)
    observation = jnp.array([[[3, 7]], [[0, 1]], [[9, 9]]])  # [B, S, 2]
    params = make_params(network, observation)
    assert count(params) == DEEP_SEA_PARAMETERS
    q = jax.jit(network.apply)(params, observation)
    chex.assert_shape(q, (3, 2))
    chex.assert_type(q, jnp.float32)
    plain = networks.deep_sea_network(encode=lambda position: position)
    tenths = jnp.array([[[0.3, 0.7]], [[0.0, 0.1]], [[0.9, 0.9]]])
    chex.assert_trees_all_close(q, plain.apply(params, tenths), rtol=1e-4)
    assert np.max(np.abs(q - plain.apply(params, observation))) > 1


def test_deep_sea_network_takes_sizes():
    network = networks.deep_sea_network(encode=lambda x: x, torso=[3], hidden=4, num_actions=5)
    params = jax.eval_shape(network.init, KEY, jnp.zeros((1, 1, 2)))
    assert count(params) == (2 * 3 + 3) + (3 * 8 + 8) + (4 + 1) + (4 * 5 + 5)
    chex.assert_shape(jax.eval_shape(network.apply, params, jnp.zeros((7, 1, 2))), (7, 5))


def test_atari_network():
    network = networks.atari_network(num_actions=18)
    observation = jax.ShapeDtypeStruct((2, 4, 84, 84), jnp.uint8)
    params = jax.eval_shape(network.init, KEY, observation)
    torso = 8224 + 32832 + 36928
    assert count(params) == torso + (3136 * 1024 + 1024) + (512 + 1) + (512 * 18 + 18)
    q = jax.eval_shape(network.apply, params, observation)
    chex.assert_shape(q, (2, 18))
    assert q.dtype == jnp.float32


def test_the_small_atari_network():
    network = networks.atari_network(num_actions=3, hidden=8, torso="patch")
    observation = jax.ShapeDtypeStruct((2, 4, 84, 84), jnp.uint8)
    params = jax.eval_shape(network.init, KEY, observation)
    # 84 / 5 and then 17 / 5, rounded up, leave 4 x 4 places.
    torso = (5 * 5 * 4 * 32 + 32) + (5 * 5 * 32 * 64 + 64)
    assert count(params) == torso + (4 * 4 * 64 * 16 + 16) + (8 + 1) + (8 * 3 + 3)
    chex.assert_shape(jax.eval_shape(network.apply, params, observation), (2, 3))
    network = networks.atari_network(num_actions=3, hidden=8, torso="overlap")
    params = jax.eval_shape(network.init, KEY, observation)
    # 7 x 7 places are left.
    torso = (8 * 8 * 4 * 16 + 16) + (4 * 4 * 16 * 32 + 32) + (3 * 3 * 32 * 32 + 32)
    assert count(params) == torso + (7 * 7 * 32 * 16 + 16) + (8 + 1) + (8 * 3 + 3)
    with pytest.raises(ValueError, match="'small', but must be one of nature, patch, overlap"):
        networks.atari_network(num_actions=3, torso="small")


def test_the_impala_network_is_as_wide_as_wanted():
    observation = jax.ShapeDtypeStruct((2, 4, 84, 84), jnp.uint8)
    head = (8 + 1) + (8 * 3 + 3)
    for width, places in ((1, 11 * 11 * 32), (2, 11 * 11 * 64)):
        network = networks.atari_network(num_actions=3, hidden=8, torso="impala", torso_width=width)
        params = jax.eval_shape(network.init, KEY, observation)
        torso, before = 0, 4
        for features in (16 * width, 32 * width, 32 * width):
            # One convolution, then two blocks of two.
            torso += 9 * before * features + features + 4 * (9 * features**2 + features)
            before = features
        assert count(params) == torso + (places * 16 + 16) + head
        chex.assert_shape(jax.eval_shape(network.apply, params, observation), (2, 3))
    with pytest.raises(ValueError, match="torso_width is 0, but must be at least 1"):
        networks.atari_network(num_actions=3, torso="impala", torso_width=0)


def test_impala_blocks_add_to_what_they_see():
    torso = ImpalaTorso(width=1)
    params = make_params(torso, PIXELS)
    # Without the second convolution of any block, what is left are three that are pooled.
    layers = {
        name: jax.tree.map(jnp.zeros_like, layer) if int(name[5:]) % 5 in (2, 4) else layer
        for name, layer in params["params"].items()
    }
    x = jnp.moveaxis(PIXELS, 1, -1).astype(jnp.float32) / 255
    for first in ("Conv_0", "Conv_5", "Conv_10"):
        x = jax.lax.conv_general_dilated(
            x, layers[first]["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = nn.max_pool(x + layers[first]["bias"].reshape(1, 1, 1, -1), (3, 3), (2, 2), "SAME")
    expected = jnp.maximum(x, 0).reshape(len(PIXELS), -1)
    actual = torso.apply({"params": layers}, PIXELS)
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_the_patch_torso_is_two_convolutions():
    params = make_params(networks.PatchTorso(), PIXELS)
    layers = params["params"]

    def convolve(x, kernel, bias):
        # Zeros below and to the right, as far as the last stride needs them.
        beyond = -x.shape[1] % 5
        x = jax.lax.conv_general_dilated(
            x,
            kernel.reshape(5, 5, x.shape[-1], -1),
            window_strides=(5, 5),
            padding=((0, beyond), (0, beyond)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return jnp.maximum(x + bias.reshape(1, 1, 1, -1), 0)

    x = jnp.moveaxis(PIXELS, 1, -1).astype(jnp.float32) / 255
    x = convolve(x, **layers["Conv_0"])
    x = convolve(x, **layers["Dense_0"])
    expected = x.reshape(len(PIXELS), -1)
    actual = networks.PatchTorso().apply(params, PIXELS)
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_the_patch_torso_sees_the_last_row_and_column():
    params = make_params(networks.PatchTorso(), PIXELS)
    apply = jax.jit(networks.PatchTorso().apply)
    before = apply(params, PIXELS)
    pixels = jnp.asarray(PIXELS)
    for changed in (pixels.at[:, :, -1].set(0), pixels.at[:, :, :, -1].set(0)):
        assert np.max(np.abs(apply(params, changed) - before)) > 0


def test_the_order_of_frames_matters_to_the_torso():
    params = make_params(networks.NatureTorso(), PIXELS)
    forward, backward = nature_apply(params, PIXELS), nature_apply(params, PIXELS[:, ::-1])
    assert np.max(np.abs(forward - backward)) > 1e-2 * np.max(np.abs(forward))


class Linear(nn.Module):
    """The smallest thing that maps observations to Q-values."""

    @nn.compact
    def __call__(self, observation):
        bias = nn.initializers.constant(0.5)
        return nn.Dense(3, bias_init=bias)(observation.reshape(observation.shape[0], -1))


K = 4
SINGLE = networks.from_flax(Linear())
OBSERVATION = normal((5, 1, 2))
WITH_PRIOR = networks.ensemble(SINGLE, K, prior_scale=3.0)
WITHOUT_PRIOR = networks.ensemble(SINGLE, K)
init_with_prior = jax.jit(WITH_PRIOR.init)


def member(params, k):
    return jax.tree.map(lambda x: x[k], params)


def test_ensemble_members_and_their_priors_start_differently():
    params = init_with_prior(KEY, OBSERVATION)
    expected = {"params": {"Dense_0": {"kernel": (K, 2, 3), "bias": (K, 3)}}}
    assert shapes(params) == {"members": expected, "prior": expected}
    kernels = [params[part]["params"]["Dense_0"]["kernel"] for part in ("members", "prior")]
    kernels = np.concatenate(kernels).reshape(2 * K, 6)
    assert len(np.unique(kernels)) == 2 * K * 6


def test_ensemble_parameters_depend_on_the_key_alone():
    params, again = init_with_prior(KEY, OBSERVATION), init_with_prior(KEY, OBSERVATION)
    chex.assert_trees_all_equal(params, again)
    other = init_with_prior(jax.random.key(1), OBSERVATION)
    for part in ("members", "prior"):
        kernel, other_kernel = (p[part]["params"]["Dense_0"]["kernel"] for p in (params, other))
        assert np.all(kernel != other_kernel)


def test_ensemble_without_prior_has_no_parameters_for_it():
    params = jax.eval_shape(WITHOUT_PRIOR.init, KEY, OBSERVATION)
    assert set(params) == {"members"}


def test_ensemble_applies_each_member_alone():
    params = make_params(WITHOUT_PRIOR, OBSERVATION)
    q = jax.jit(WITHOUT_PRIOR.apply)(params, OBSERVATION)
    chex.assert_shape(q, (5, K, 3))
    chex.assert_type(q, jnp.float32)
    for k in range(K):
        alone = SINGLE.apply(member(params["members"], k), OBSERVATION)
        chex.assert_trees_all_close(q[:, k], alone, atol=1e-6)
        for other in range(k):
            assert np.max(np.abs(q[:, k] - q[:, other])) > 1e-2


def test_ensemble_of_one_is_the_network():
    network = networks.ensemble(SINGLE, 1)
    params = make_params(network, OBSERVATION)
    q = network.apply(params, OBSERVATION)
    chex.assert_shape(q, (5, 1, 3))
    alone = SINGLE.apply(member(params["members"], 0), OBSERVATION)
    chex.assert_trees_all_close(q[:, 0], alone, atol=1e-6)


def test_ensemble_of_whole_networks():
    network = networks.ensemble(networks.deep_sea_network(encode=lambda x: x), K, prior_scale=5.0)
    params = jax.eval_shape(network.init, KEY, OBSERVATION)
    # Twice K networks of the size that `test_deep_sea_network` counts.
    assert count(params) == 2 * K * DEEP_SEA_PARAMETERS
    chex.assert_shape(jax.eval_shape(network.apply, params, OBSERVATION), (5, K, 2))


@pytest.mark.parametrize("network", [WITHOUT_PRIOR, WITH_PRIOR])
def test_a_member_learns_from_its_own_output_only(network):
    params = make_params(network, OBSERVATION)

    @jax.jit
    @jax.grad
    def gradient(params, k):
        return jnp.sum(network.apply(params, OBSERVATION)[:, k] ** 2)

    for k in (0, 2):
        for leaf in jax.tree.leaves(gradient(params, k)["members"]):
            touched = np.any(np.asarray(leaf).reshape(K, -1) != 0, axis=1)
            np.testing.assert_array_equal(touched, np.arange(K) == k)


def test_prior_is_added_and_scaled():
    params = make_params(WITH_PRIOR, OBSERVATION)
    q = jax.jit(WITH_PRIOR.apply)(params, OBSERVATION)
    for k in range(K):
        learnt = SINGLE.apply(member(params["members"], k), OBSERVATION)
        prior = SINGLE.apply(member(params["prior"], k), OBSERVATION)
        assert np.max(np.abs(prior)) > 1e-2
        chex.assert_trees_all_close(q[:, k], learnt + 3.0 * prior, atol=1e-5)


def test_prior_does_not_learn():
    params = make_params(WITH_PRIOR, OBSERVATION)
    optimizer = optax.adam(0.1)

    @jax.jit
    def update(params):
        gradient = jax.grad(lambda p: jnp.sum(WITH_PRIOR.apply(p, OBSERVATION) ** 2))(params)
        updates, _ = optimizer.update(gradient, optimizer.init(params))
        return gradient, optax.apply_updates(params, updates)

    gradient, new_params = update(params)
    chex.assert_trees_all_equal(gradient["prior"], jax.tree.map(jnp.zeros_like, params["prior"]))
    chex.assert_trees_all_equal(new_params["prior"], params["prior"])
    moved = jax.tree.map(lambda old, new: np.all(old != new), params, new_params)
    assert all(jax.tree.leaves(moved["members"]))


@pytest.mark.parametrize("size", [0, -1])
def test_an_empty_ensemble_is_refused(size):
    with pytest.raises(ValueError, match=f"size is {size}, but must be at least 1"):
        networks.ensemble(SINGLE, size)


def test_the_mean_of_an_ensemble_is_over_its_members():
    q = jnp.array([[[1.0, 2.0], [3.0, 6.0]]])  # one observation, two members
    mean = networks.mean_q(lambda params, observation: params * q, 2.0, None)
    chex.assert_trees_all_equal(mean, jnp.array([[4.0, 8.0]]))
    single = networks.mean_q(lambda params, observation: q[:, 0], None, None)
    chex.assert_trees_all_equal(single, jnp.array([[1.0, 2.0]]))


# --- What a policy file says, and networks of one's own ---

SEEN = {"num_actions": 3, "frame_shape": (4,), "frame_dtype": np.float32, "stack": 1}


def q_shape(network, *shape):
    observation = jnp.zeros(shape, jnp.float32)
    params = jax.eval_shape(network.init, jax.random.key(0), observation)
    return jax.eval_shape(network.apply, params, observation).shape


def test_networks_are_made_as_they_are_described():
    described = networks.described_network
    assert q_shape(described({"hidden": 8}, **SEEN), 2, 1, 4) == (2, 3)
    members = {"hidden": 8, "size": 5, "prior_scale": 1.0}
    assert q_shape(described(members, **SEEN), 2, 1, 4) == (2, 5, 3)
    screens = SEEN | {"frame_shape": (84, 84), "frame_dtype": np.uint8, "stack": 4}
    params = jax.eval_shape(
        described({"torso": "patch", "hidden": 8}, **screens).init,
        jax.random.key(0),
        jnp.zeros((1, 4, 84, 84), jnp.uint8),
    )
    assert list(params["params"]["torso"]) == ["Conv_0", "Dense_0"]


def test_a_network_of_ones_own_knows_of_stacks_only_where_there_are_some():
    class Own(nn.Module):
        ndim: int

        @nn.compact
        def __call__(self, x):
            assert x.ndim == self.ndim
            return nn.Dense(3)(x.reshape(x.shape[0], -1))

    assert q_shape(networks.own_network(Own(2), **SEEN), 2, 1, 4) == (2, 3)
    assert q_shape(networks.own_network(Own(3), **SEEN | {"stack": 2}), 2, 2, 4) == (2, 3)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Dense(2), r"gives float32\[1, 2\] for observations \[1, 4\], but .* \[1, 3\]"),
        ((lambda key, x: {}, lambda params, x: {}), "gives a dict for"),
        ((lambda key, x: {}, lambda params, x: x @ np.ones((9, 3))), "cannot be applied"),
        ("mlp", "flax module or a pair"),
    ],
)
def test_networks_of_ones_own_that_do_not_fit_are_named(network, message):
    with pytest.raises(ValueError, match=message):
        networks.own_network(network, **SEEN)


# --- Networks by observation ---


def chosen(frame_shape, dtype, *, stack=1, **options):
    """Q-values of zeros, and the names of all layers with their shapes."""
    network = networks.for_observation(frame_shape, dtype, 3, stack=stack, **options)
    observation = jnp.zeros((2, stack, *frame_shape), dtype)
    params = jax.eval_shape(network.init, jax.random.key(0), observation)
    q = jax.eval_shape(network.apply, params, observation)
    assert q.shape == (2, 3)
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}


def kernels(layers):
    return [shape for name, shape in layers.items() if "Conv" in name and "kernel" in name]


def test_vectors_get_dense_layers():
    layers = chosen((4,), jnp.float32, stack=2, hidden=8)
    assert kernels(layers) == []
    assert (8, 8) in layers.values()
    assert layers["['params']['torso']['Dense_0']['kernel']"] == (8, 8)  # 2 x 4 numbers


@pytest.mark.parametrize(
    ("shape", "stack", "channels"),
    [((84, 84), 4, 4), ((4, 84, 84), 1, 4), ((84, 84, 3), 2, 6)],
)
def test_images_of_84_bytes_get_natures_convolutions(shape, stack, channels):
    assert kernels(chosen(shape, jnp.uint8, stack=stack)) == [
        (8, 8, channels, 32), (4, 4, 32, 64), (3, 3, 64, 64)
    ]  # fmt: skip


def test_other_images_get_small_convolutions():
    small = chosen((10, 10, 4), jnp.int8)
    assert kernels(small) == [(3, 3, 4, 16), (3, 3, 16, 32)]
    # No cell is lost ...
    assert (10 * 10 * 32, 256) in small.values()
    # ... but large images are halved until they are small, and colours may come first.
    large = chosen((3, 96, 64), jnp.uint8)
    assert kernels(large) == [(3, 3, 3, 16), (3, 3, 16, 32), (3, 3, 32, 32)]
    assert (12 * 16 * 32, 256) in large.values()
    assert kernels(chosen((7, 7), jnp.float32, stack=2)) == [(3, 3, 2, 16), (3, 3, 16, 32)]


def test_bytes_are_scaled_and_other_numbers_are_not():
    def q_of(dtype, value, **options):
        network = networks.for_observation((5, 5), dtype, 2, hidden=4, **options)
        params = network.init(jax.random.key(0), jnp.zeros((1, 1, 5, 5), dtype))
        return network.apply(params, jnp.full((1, 1, 5, 5), value, dtype))

    np.testing.assert_allclose(q_of(jnp.uint8, 255), q_of(jnp.float32, 1.0), rtol=1e-5)
    np.testing.assert_allclose(q_of(jnp.int8, 1), q_of(jnp.float32, 1.0), rtol=1e-5)
    np.testing.assert_allclose(q_of(jnp.uint8, 10, scale=10), q_of(jnp.float32, 1.0), rtol=1e-5)


def test_what_cannot_be_chosen_for():
    for shape, options, message in (
        ((), {}, "give your own"),
        ((2, 2, 2, 2), {}, "give your own"),
        ((4,), {"stack": 0}, "stack is 0"),
        ((4,), {"hidden": -1}, "hidden is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            networks.for_observation(shape, jnp.float32, 2, **options)


def test_the_torso_of_grids_is_one_convolution_and_a_dense_layer():
    torso = networks.GridTorso(features=2, width=3)
    image = jnp.asarray(np.random.default_rng(2).integers(0, 2, (2, 3, 4, 5)), jnp.uint8)
    params = make_params(torso, image)
    assert shapes(params["params"]) == {
        "Conv_0": {"kernel": (27, 2), "bias": (2,)},
        "Dense_0": {"kernel": (12, 3), "bias": (3,)},
    }
    kernel = np.asarray(params["params"]["Conv_0"]["kernel"], np.float64).reshape(3, 3, 3, 2)
    x = np.zeros((2, 2, 3, 2))
    for i, j in np.ndindex(2, 3):
        patch = np.moveaxis(np.asarray(image)[:, :, i : i + 3, j : j + 3], 1, -1)
        x[:, i, j] = np.einsum("bijc,ijcf->bf", patch, kernel)
    x = np.maximum(x + np.asarray(params["params"]["Conv_0"]["bias"]), 0)
    expected = np.maximum(dense(params["params"]["Dense_0"], x.reshape(2, -1)), 0)
    assert 0 < np.sum(expected == 0) < expected.size
    np.testing.assert_allclose(torso.apply(params, image), expected, atol=1e-4)


def test_members_of_a_grid_network_share_its_torso():
    network = networks.prior_ensemble(networks.grid_network(3, width=8), 2)
    observation = jnp.zeros((1, 1, 10, 10, 4), jnp.uint8)
    params = jax.eval_shape(network.init, KEY, observation)
    torso = params["members"]["params"]["torso"]["torso"]
    chex.assert_shape(torso["Dense_0"]["kernel"], (8 * 8 * 16, 8))
    q = jax.eval_shape(network.apply, params, observation)
    chex.assert_shape(q, (1, 2, 3))
