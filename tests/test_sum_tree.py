"""The sum tree beside a plain numpy array of leaves."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax.replay import sum_tree

KEY = jax.random.key(0)
JUST_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))
NUM_FOUND = 2048  # fractions per call of `find`: one shape for all tests

init = jax.jit(sum_tree.init)
update = jax.jit(sum_tree.update)
sample = jax.jit(sum_tree.sample, static_argnums=2)
compiled_find = jax.jit(sum_tree.find)


def find(tree, *fraction):
    """Leaves at fractions, given as one array per uniform."""
    fraction = np.stack(fraction).astype(np.float32)
    padding = NUM_FOUND - fraction.shape[1]
    return np.asarray(compiled_find(tree, np.pad(fraction, ((0, 0), (0, padding)))))[
        : fraction.shape[1]
    ]


@jax.jit
def draw_in_fours(tree, keys):
    """Four leaves per key."""
    return jax.vmap(lambda key: sum_tree.sample(key, tree, 4))(keys)


def assert_every_parent_is_the_sum_of_its_children(tree):
    """Bit for bit as in a binary tree, whose levels in between are not stored."""
    for parents, children in itertools.pairwise(tree):
        sums = np.asarray(children)
        while len(sums) > len(parents):
            sums = sums[0::2] + sums[1::2]
        np.testing.assert_array_equal(parents, sums)


def find_in_a_binary_tree(leaves, fraction, levels_per_uniform=12):
    """The same descents in a tree of two children per node, in numpy."""
    levels = [np.asarray(leaves)]
    while len(levels[0]) > 1:
        levels.insert(0, levels[0][0::2] + levels[0][1::2])
    index = np.zeros(fraction.shape[1], int)
    for depth, (level, children) in enumerate(itertools.pairwise(levels)):
        if depth % levels_per_uniform == 0:
            mass = fraction[depth // levels_per_uniform] * level[index]
        left, right = children[2 * index], children[2 * index + 1]
        go_right = (mass >= left) & (right > 0)
        mass = np.where(go_right, mass - left, mass)
        index = 2 * index + go_right
    return index


def assert_shares(counts, weights):
    """Draws in small batches: chi-square, five standard deviations above what chance gives."""
    counts, weights = np.asarray(counts, np.float64), np.asarray(weights, np.float64)
    assert not counts[weights == 0].any()
    counts, weights = counts[weights > 0], weights[weights > 0]
    expected = counts.sum() * weights / weights.sum()
    assert expected.min() > 5, "too few draws for the approximation"
    freedom = len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("capacity", [1, 2, 3, 100])
def test_init_pads_to_a_power_of_two(capacity):
    leaves = np.random.default_rng(capacity).integers(1, 9, capacity).astype(np.float32)
    tree = [np.asarray(level) for level in init(leaves)]
    widths = [len(level) for level in tree]
    assert widths == {1: [1], 2: [1, 2], 3: [1, 4], 100: [1, 8, 128]}[capacity]
    assert sum_tree.num_bytes(capacity) == 4 * sum(widths)
    assert len(tree[-1]) < 2 * capacity
    np.testing.assert_array_equal(tree[-1][:capacity], leaves)
    assert not tree[-1][capacity:].any()
    assert sum_tree.total(tree) == leaves.sum()
    assert_every_parent_is_the_sum_of_its_children(tree)


# The last two have inner levels wider than `_DENSE_WIDTH`, the others none.
@pytest.mark.parametrize("capacity", [1, 3, 100, 10_000, 20_000])
def test_random_updates_beside_a_plain_array(capacity):
    rng = np.random.default_rng(capacity)
    leaves = rng.random(capacity, np.float32)
    tree = init(leaves)
    for _ in range(30):
        index = rng.integers(0, capacity, 48)
        index[:8] = index[8:16]  # duplicates, with values of their own
        index[16:18] = [0, capacity - 1]
        value = (10.0 ** rng.uniform(-5, 5, 48) * (rng.random(48) < 0.7)).astype(np.float32)
        tree = update(tree, index, value)
        now = np.asarray(tree[-1])[:capacity]
        for leaf in np.unique(index):
            assert now[leaf] in value[index == leaf]
        untouched = np.setdiff1d(np.arange(capacity), index)
        np.testing.assert_array_equal(now[untouched], leaves[untouched])
        leaves = now
        assert_every_parent_is_the_sum_of_its_children(tree)
        np.testing.assert_allclose(sum_tree.total(tree), leaves.sum(dtype=np.float64), rtol=1e-5)
    np.testing.assert_array_equal(sum_tree.get(tree, index), leaves[index])
    assert not np.asarray(tree[-1])[capacity:].any()


def test_updates_are_tested_on_both_sides_of_the_dense_width():
    assert 128 // 16 < sum_tree._DENSE_WIDTH < 16_384 // 16


@pytest.mark.parametrize("capacity", [1, 3, 100])
def test_find_agrees_with_searchsorted(capacity):
    weights = np.random.default_rng(capacity).integers(0, 5, capacity)
    weights[-1] = 1
    mass = np.arange(weights.sum()) + 0.5
    found = find(init(weights.astype(np.float32)), mass / weights.sum())
    np.testing.assert_array_equal(found, np.searchsorted(np.cumsum(weights), mass, side="right"))


def test_find_gives_a_boundary_to_the_leaf_that_begins_there():
    leaves = np.zeros(100, np.float32)
    leaves[[10, 41, 43]] = 1, 3, 4
    found = find(init(leaves), [0, 1 / 8, 4 / 8, JUST_BELOW_ONE])
    np.testing.assert_array_equal(found, [10, 41, 43, 43])


@pytest.mark.parametrize(
    ("capacity", "expected"), [(1, 1), (4096, 1), (4097, 2), (2**24, 2), (2**24 + 1, 3)]
)
def test_a_fresh_uniform_every_twelve_levels(capacity, expected):
    tree = jax.eval_shape(sum_tree.init, jax.ShapeDtypeStruct((capacity,), jnp.float32))
    assert sum_tree.num_uniforms(tree) == expected


def test_find_in_a_deep_tree_goes_on_with_the_next_uniform():
    rng = np.random.default_rng(0)
    weights = np.pad(rng.integers(0, 5, 10_000), (0, 2**14 - 10_000))
    # The first uniform chooses one of the 4096 nodes twelve levels down, the second a leaf of it.
    nodes = weights.reshape(4096, 4)
    node_mass = rng.integers(0, weights.sum(), NUM_FOUND) + 0.5
    node = np.searchsorted(np.cumsum(nodes.sum(1)), node_mass, side="right")
    leaf_mass = rng.integers(0, nodes.sum(1)[node]) + 0.5
    leaf = (np.cumsum(nodes[node], axis=1) <= leaf_mass[:, None]).sum(1)
    tree = init(weights[:10_000].astype(np.float32))
    found = find(tree, node_mass / weights.sum(), leaf_mass / nodes.sum(1)[node])
    np.testing.assert_array_equal(found, 4 * node + leaf)


@pytest.mark.parametrize("capacity", [1, 2, 17, 100, 1000, 10_000, 70_000])
def test_draws_are_those_of_a_binary_tree_to_the_last_index(capacity):
    rng = np.random.default_rng(capacity)
    leaves = 10.0 ** rng.uniform(-4, 4, capacity) * (rng.random(capacity) < 0.8)
    tree = init(leaves.astype(np.float32))
    for _ in range(5):
        index = rng.integers(0, capacity, 48)
        tree = update(tree, index, (10.0 ** rng.uniform(-4, 4, 48)).astype(np.float32))
        uniforms = rng.random((sum_tree.num_uniforms(tree), NUM_FOUND), np.float32)
        expected = find_in_a_binary_tree(tree[-1], uniforms)
        np.testing.assert_array_equal(find(tree, *uniforms), expected)


def test_find_wants_one_row_per_uniform():
    with pytest.raises(AssertionError):
        sum_tree.find(init(jnp.zeros(10_000)), jnp.zeros((1, 4)))


@pytest.mark.parametrize("capacity", [100, 10_000])
def test_zero_leaves_are_never_drawn_after_thousands_of_updates(capacity):
    def change(tree, key):
        where, size, zero = jax.random.split(key, 3)
        index = jax.random.randint(where, (32,), 0, capacity)
        value = 10.0 ** jax.random.uniform(size, (32,), minval=-6, maxval=6)
        return sum_tree.update(tree, index, value * jax.random.bernoulli(zero, 0.5, (32,))), None

    tree = init(jnp.zeros(capacity))
    tree, _ = jax.jit(lambda tree, keys: jax.lax.scan(change, tree, keys))(
        tree, jax.random.split(KEY, 2000)
    )
    assert_every_parent_is_the_sum_of_its_children(tree)

    few = np.asarray([1, capacity // 3, capacity // 3 + 1])
    leaves = np.zeros(capacity, np.float32)
    leaves[few] = 1e-6, 3e-7, 1e-6
    tree = update(tree, np.arange(capacity), leaves)
    assert_every_parent_is_the_sum_of_its_children(tree)
    edges = [0, 1e-7, 0.25, 0.5, 0.75, 1 - 1e-6, JUST_BELOW_ONE]
    uniforms = np.meshgrid(*[edges] * sum_tree.num_uniforms(tree))
    assert np.isin(find(tree, *(u.ravel() for u in uniforms)), few).all()


@pytest.mark.parametrize(("capacity", "num_trees"), [(100, 300), (10_000, 10)])
def test_rounding_never_leads_into_an_empty_leaf(capacity, num_trees):
    # A sum that was rounded up leaves more mass than its right child has, just before a boundary.
    rng = np.random.default_rng(capacity)
    for _ in range(num_trees):
        leaves = 10.0 ** rng.uniform(-3, 3, capacity) * (rng.random(capacity) < 0.5)
        boundaries = np.cumsum(leaves)[-600:] / leaves.sum()
        fraction = (boundaries[:, None] * [1 - 1e-7, 1, 1 + 1e-7]).ravel().astype(np.float32)
        fraction = np.minimum(fraction, JUST_BELOW_ONE)
        tree = init(leaves.astype(np.float32))
        rest = [np.full(fraction.shape, JUST_BELOW_ONE)] * (sum_tree.num_uniforms(tree) - 1)
        assert (leaves[find(tree, fraction, *rest)] > 0).all()


def test_the_last_part_of_a_batch_may_round_up_to_the_whole_weight():
    assert np.float32(511) + JUST_BELOW_ONE == 512  # what `sample` may divide by 512
    leaves = np.zeros(100, np.float32)
    leaves[3:50:2] = 0.1
    assert find(init(leaves), [1.0])[0] == 49


def test_all_leaves_zero_still_gives_an_index():
    assert 0 <= find(init(jnp.zeros(100)), [0.5])[0] < 128


def test_draws_are_proportional():
    weights = np.random.default_rng(0).integers(0, 4, 100)
    drawn = draw_in_fours(init(weights.astype(np.float32)), jax.random.split(KEY, 2**14))
    assert_shares(np.bincount(drawn.ravel(), minlength=100), weights)


def test_draws_within_a_part_are_random():
    drawn = np.asarray(draw_in_fours(init(jnp.ones(100)), jax.random.split(KEY, 2**14)))
    for b in range(4):
        assert_shares(np.bincount(drawn[:, b] - 25 * b, minlength=25), np.ones(25))


def test_draws_are_proportional_in_a_deep_tree():
    weights = np.random.default_rng(1).integers(0, 4, 10_000)
    drawn = draw_in_fours(init(weights.astype(np.float32)), jax.random.split(KEY, 2**14))
    drawn = np.asarray(drawn).ravel()
    assert (weights[drawn] > 0).all()
    assert_shares(np.bincount(drawn // 50), weights.reshape(-1, 50).sum(1))  # where it goes first
    assert_shares(np.bincount(drawn % 50), weights.reshape(-1, 50).sum(0))  # and in the end


@pytest.mark.parametrize("dominant", [1, 2**24])
def test_resolution_of_a_deep_tree(dominant):
    """Equal leaves get equal shares even if one leaf holds nearly all the weight.

    With 2 ** 24 before it a mass is an even number: one uniform alone would draw each second leaf.
    """
    leaves = np.ones(2**20, np.float32)
    leaves[0] = dominant
    drawn = np.asarray(sample(KEY, init(leaves), 2**17))
    if dominant == 1:
        # The parts are kept up to one of the 4096 nodes that a uniform leads to, and rounding.
        nodes_off = drawn // 256 - np.arange(2**17) // 32
        assert set(nodes_off) <= {0, 1}
        assert nodes_off.mean() < 1e-3
    drawn = drawn[drawn > 0]
    assert len(drawn) > 5000
    for bits in (2, 16, 256):
        assert_shares(np.bincount(drawn % bits, minlength=bits), np.ones(bits))
    assert_shares(np.bincount(drawn // 2**13, minlength=128), np.ones(128))


def test_draw_b_lies_in_the_bth_part():
    weights = np.random.default_rng(2).multinomial(2048, np.full(100, 1 / 100))
    tree = init(weights.astype(np.float32))
    end = np.cumsum(weights)
    part = 2048 / 256
    for i in range(20):
        drawn = np.asarray(sample(jax.random.fold_in(KEY, i), tree, 256))
        assert drawn.dtype == np.int32
        assert (end[drawn] > np.arange(256) * part).all()
        assert ((end - weights)[drawn] < np.arange(1, 257) * part).all()
        # So no leaf comes up two times more or less than its share.
        assert (np.abs(np.bincount(drawn, minlength=100) - weights / part) < 2).all()


def test_vmap_agrees_with_separate_trees():
    leaves = np.random.default_rng(3).random((3, 5), np.float32)
    index = np.asarray([[0, 3, 4], [2, 2, 1], [2, 3, 4]])
    value = np.asarray([[2, 0, 1], [4, 4, 0], [0, 0, 9]], np.float32)
    inputs = (leaves, index, value, jax.random.split(KEY, 3))

    def run(leaves, index, value, key):
        tree = sum_tree.update(sum_tree.init(leaves), index, value)
        return tree, sum_tree.sample(key, tree, 8)

    together = jax.jit(jax.vmap(run))(*inputs)
    separate = [jax.jit(run)(*(x[i] for x in inputs)) for i in range(3)]
    jax.tree.map(
        lambda many, *each: np.testing.assert_array_equal(many, np.stack(each)),
        together,
        *separate,
    )


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_wrong_ranks_are_refused(shape):
    with pytest.raises(AssertionError):
        sum_tree.init(np.zeros(shape))
    with pytest.raises(AssertionError):
        sum_tree.update(init(jnp.zeros(100)), np.zeros(shape, int), np.zeros(shape))
