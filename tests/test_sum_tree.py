"""The sum tree beside a plain numpy array of leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax.replay import sum_tree

KEY = jax.random.key(0)
JUST_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))

init = jax.jit(sum_tree.init)
update = jax.jit(sum_tree.update)
find = jax.jit(sum_tree.find)
sample = jax.jit(sum_tree.sample, static_argnums=2)


@jax.jit
def draw_alone(tree, keys):
    """One leaf per key, so that no two draws share their strata."""
    return jax.vmap(lambda key: sum_tree.sample(tree, key, 1)[0])(keys)


@jax.jit
def draw_in_fours(tree, keys):
    return jax.vmap(lambda key: sum_tree.sample(tree, key, 4))(keys)


def assert_every_parent_is_the_sum_of_its_children(tree):
    for parents, children in zip(tree[:-1], tree[1:], strict=True):
        children = np.asarray(children)
        np.testing.assert_array_equal(parents, children[0::2] + children[1::2])


def assert_shares(counts, weights):
    """Independent draws: chi-square, five standard deviations above what chance gives."""
    counts, weights = np.asarray(counts, np.float64), np.asarray(weights, np.float64)
    assert not counts[weights == 0].any()
    counts, weights = counts[weights > 0], weights[weights > 0]
    expected = counts.sum() * weights / weights.sum()
    assert expected.min() > 5, "too few draws for the approximation"
    freedom = len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 64, 100])
def test_init_pads_to_a_power_of_two(capacity):
    leaves = np.random.default_rng(capacity).integers(1, 9, capacity).astype(np.float32)
    tree = init(jnp.asarray(leaves))
    assert [len(level) for level in tree] == [2**depth for depth in range(len(tree))]
    assert len(tree[-1]) < 2 * capacity
    np.testing.assert_array_equal(np.asarray(tree[-1])[:capacity], leaves)
    assert not np.asarray(tree[-1])[capacity:].any()
    assert sum_tree.total(tree) == leaves.sum()
    assert_every_parent_is_the_sum_of_its_children(tree)


# The last two have levels wider than `_DENSE_WIDTH`, the others none.
@pytest.mark.parametrize("capacity", [1, 3, 100, 4097, 10_000, 20_000])
def test_random_updates_beside_a_plain_array(capacity):
    rng = np.random.default_rng(capacity)
    leaves = rng.random(capacity, np.float32)
    tree = init(jnp.asarray(leaves))
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


def test_both_sides_of_the_dense_width_are_tested():
    assert 4097 // 2 < sum_tree._DENSE_WIDTH < 10_000 // 2


@pytest.mark.parametrize("capacity", [1, 2, 3, 50, 1000])
def test_find_agrees_with_searchsorted(capacity):
    rng = np.random.default_rng(capacity)
    weights = rng.integers(0, 5, capacity)
    weights[-1] = 1
    tree = init(jnp.asarray(weights, jnp.float32))
    mass = np.arange(weights.sum()) + 0.5
    found = find(tree, jnp.asarray(mass / weights.sum(), jnp.float32)[None])
    np.testing.assert_array_equal(found, np.searchsorted(np.cumsum(weights), mass, side="right"))


def test_find_gives_a_boundary_to_the_leaf_that_begins_there():
    tree = init(jnp.asarray([1.0, 0, 3, 0, 4]))
    found = find(tree, jnp.asarray([[0, 1 / 8, 4 / 8, JUST_BELOW_ONE]]))
    np.testing.assert_array_equal(found, [0, 2, 4, 4])


@pytest.mark.parametrize("capacity", [4096, 4097, 20_000])
def test_find_in_a_deep_tree_goes_on_with_the_next_uniform(capacity):
    rng = np.random.default_rng(capacity)
    weights = np.zeros(2 ** (capacity - 1).bit_length(), int)
    weights[:capacity] = rng.integers(0, 5, capacity)
    tree = init(jnp.asarray(weights, jnp.float32))
    num_uniforms = 1 if capacity <= 4096 else 2
    assert sum_tree.num_uniforms(tree) == num_uniforms

    # The first uniform chooses one of the 4096 nodes twelve levels down, the second a leaf of it.
    nodes = weights.reshape(4096, -1)
    node_mass = rng.integers(0, weights.sum(), 3000) + 0.5
    node = np.searchsorted(np.cumsum(nodes.sum(1)), node_mass, side="right")
    leaf_mass = rng.integers(0, nodes.sum(1)[node]) + 0.5
    leaf = [np.searchsorted(np.cumsum(nodes[n]), m, "right") for n, m in zip(node, leaf_mass)]  # noqa: B905
    fraction = np.stack([node_mass / weights.sum(), leaf_mass / nodes.sum(1)[node]])
    found = find(tree, jnp.asarray(fraction[:num_uniforms], jnp.float32))
    np.testing.assert_array_equal(found, node * nodes.shape[1] + np.asarray(leaf))


def test_find_wants_one_row_per_uniform():
    tree = init(jnp.ones(5000))
    with pytest.raises(AssertionError):
        sum_tree.find(tree, jnp.zeros((1, 4)))


@pytest.mark.parametrize("capacity", [100, 10_000])
def test_zero_leaves_are_never_drawn_after_thousands_of_updates(capacity):
    def change(tree, key):
        where, size, zero = jax.random.split(key, 3)
        index = jax.random.randint(where, (32,), 0, capacity)
        value = 10.0 ** jax.random.uniform(size, (32,), minval=-6, maxval=6)
        return sum_tree.update(tree, index, value * jax.random.bernoulli(zero, 0.5, (32,))), None

    keys = jax.random.split(KEY, 3000)
    tree = init(jnp.zeros(capacity))
    tree, _ = jax.jit(lambda tree: jax.lax.scan(change, tree, keys))(tree)
    assert_every_parent_is_the_sum_of_its_children(tree)

    few = np.asarray([1, capacity // 3, capacity // 3 + 1])
    gone = np.setdiff1d(np.arange(capacity), few)
    small = np.asarray([1e-6, 3e-7, 1e-6], np.float32)
    tree = update(tree, np.append(gone, few), np.append(np.zeros(len(gone)), small))
    assert_every_parent_is_the_sum_of_its_children(tree)
    edges = np.asarray([0, 1e-7, 0.25, 0.5, 0.75, 1 - 1e-6, JUST_BELOW_ONE], np.float32)
    first, second = np.meshgrid(edges, edges)
    fraction = np.stack([first.ravel(), second.ravel()])[: sum_tree.num_uniforms(tree)]
    assert np.isin(find(tree, fraction), few).all()
    # The last strata of a large batch are rounded up to 1.
    assert np.isin(sample(tree, KEY, 4096), few).all()


def test_rounding_never_leads_into_an_empty_leaf():
    # Sums of 0.1 are inexact at every level, and each positive leaf has an empty one beside it.
    for capacity, shift in [(1000, 0), (1000, 1), (10_000, 0), (10_000, 1)]:
        leaves = np.where(np.arange(capacity) % 2 == shift, np.float32(0.1), 0)
        tree = init(jnp.asarray(leaves))
        fraction = np.nextafter(np.linspace(0, 1, 2001)[1:].astype(np.float32), np.float32(0))
        for last in (0, JUST_BELOW_ONE):
            rows = [fraction, np.full_like(fraction, last)][: sum_tree.num_uniforms(tree)]
            assert (leaves[find(tree, np.stack(rows))] > 0).all()


def test_independent_draws_are_proportional():
    weights = np.random.default_rng(0).integers(0, 4, 100)
    tree = init(jnp.asarray(weights, jnp.float32))
    drawn = draw_alone(tree, jax.random.split(KEY, 2**15))
    assert_shares(np.bincount(drawn, minlength=128)[:100], weights)


def test_independent_draws_are_proportional_in_a_deep_tree():
    weights = np.random.default_rng(1).integers(0, 4, 10_000)
    tree = init(jnp.asarray(weights, jnp.float32))
    drawn = np.asarray(draw_alone(tree, jax.random.split(KEY, 2**17)))
    assert sum_tree.num_uniforms(tree) == 2
    assert (weights[drawn] > 0).all()
    assert_shares(np.bincount(drawn // 50), weights.reshape(-1, 50).sum(1))  # where it goes first
    assert_shares(np.bincount(drawn % 50), weights.reshape(-1, 50).sum(0))  # and in the end


@pytest.mark.parametrize("dominant", [1, 2**24])
def test_resolution_of_a_deep_tree(dominant):
    """Equal leaves get equal shares even if one leaf holds nearly all the weight.

    With 2 ** 24 before it a mass is an even number: one uniform alone would draw each second leaf.
    """
    leaves = jnp.ones(2**20).at[0].set(dominant)
    tree = init(leaves)
    drawn = np.asarray(sample(tree, KEY, 2**17))
    drawn = drawn[drawn > 0]
    assert len(drawn) > 5000
    for bits in (2, 16, 256):
        assert_shares(np.bincount(drawn % bits, minlength=bits), np.ones(bits))
    assert_shares(np.bincount(drawn // 2**13, minlength=128), np.ones(128))


@pytest.mark.parametrize("batch_size", [1, 32, 256])
def test_draw_b_lies_in_the_bth_part(batch_size):
    weights = np.random.default_rng(2).multinomial(1024, np.full(200, 1 / 200))
    tree = init(jnp.asarray(weights, jnp.float32))
    end = np.cumsum(weights)
    part = 1024 // batch_size
    for key in jax.random.split(KEY, 20):
        drawn = np.asarray(sample(tree, key, batch_size))
        assert drawn.dtype == np.int32
        assert (end[drawn] > np.arange(batch_size) * part).all()
        assert ((end - weights)[drawn] < (np.arange(batch_size) + 1) * part).all()
        # So that no leaf is drawn two times more or less often than its share.
        share = weights / part
        assert (np.abs(np.bincount(drawn, minlength=200) - share) < 2).all()


def test_parts_of_a_deep_tree_are_kept_up_to_one_node():
    batch_size, leaves = 64, 2**14
    tree = init(jnp.ones(leaves))
    drawn = np.asarray(sample(tree, KEY, batch_size))
    np.testing.assert_array_equal(drawn // (leaves // batch_size), np.arange(batch_size))


def test_draws_within_a_part_are_random():
    tree = init(jnp.ones(64))
    drawn = np.asarray(draw_in_fours(tree, jax.random.split(KEY, 4000)))
    for b in range(4):
        assert_shares(np.bincount(drawn[:, b] - 16 * b, minlength=16), np.ones(16))


def test_vmap_agrees_with_separate_trees():
    leaves = np.random.default_rng(3).random((3, 20), np.float32)
    index = np.asarray([[0, 5, 19], [7, 7, 1], [2, 3, 4]])
    value = np.asarray([[2, 0, 1], [4, 4, 0], [0, 0, 9]], np.float32)
    keys = jax.random.split(KEY, 3)

    def run(leaves, index, value, key):
        tree = update(init(leaves), index, value)
        return tree, sample(tree, key, 8)

    together = jax.jit(jax.vmap(run))(leaves, index, value, keys)
    for i in range(3):
        alone = run(*(jnp.asarray(x[i]) for x in (leaves, index, value)), keys[i])
        jax.tree.map(lambda many, one: np.testing.assert_array_equal(many[i], one), together, alone)  # noqa: B023


def test_all_leaves_zero_still_gives_an_index():
    assert 0 <= int(sample(init(jnp.zeros(5)), KEY, 1)[0]) < 5


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_wrong_ranks_are_refused(shape):
    with pytest.raises(AssertionError):
        sum_tree.init(jnp.zeros(shape))
    tree = init(jnp.zeros(8))
    with pytest.raises(AssertionError):
        sum_tree.update(tree, jnp.zeros(shape, int), jnp.zeros(shape))
