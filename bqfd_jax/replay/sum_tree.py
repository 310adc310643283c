"""A sum tree over non-negative weights: draw leaves in proportion, change a few at a time.

The tree is a tuple of levels, `levels[0]` the root `[1]` and `levels[-1]` the leaves.  A node has
up to 16 children, which lie side by side: few levels, so few gathers and scatters.  They are
summed in pairs, then pairs of pairs, and descents follow the same halves.  So every sum and every
draw is, to the last bit, that of a binary tree of which only each fourth level is stored.

Parents are always recomputed from their children and never changed by differences, which drift in
float32 until leaves of weight zero are drawn.  The tree knows nothing of reinforcement learning.
"""

import chex
import jax
import jax.numpy as jnp

from bqfd_jax.types import Array

SumTree = tuple[Array, ...]  # from the last level: [2 ** D], [2 ** (D - 4)], ..., [1] float32

_CHILDREN = 16
# Narrow levels are recomputed whole: one vectorised sum beats scattered writes there.
_DENSE_WIDTH = 256
# A float32 uniform has 23 bits, so after this many halvings a descent goes on with fresh ones.
_HALVINGS_PER_UNIFORM = 12


def init(leaves: Array) -> SumTree:
    """A tree over `leaves` (`[capacity]`), padded with zeros to a power of two."""
    chex.assert_rank(leaves, 1)
    capacity = leaves.shape[0]
    levels = [jnp.pad(leaves.astype(jnp.float32), (0, _num_leaves(capacity) - capacity))]
    while levels[0].shape[0] > 1:
        levels.insert(0, _sums(_families(levels[0])))
    return tuple(levels)


def num_bytes(capacity: int) -> int:
    """Memory of a tree of so many leaves."""
    width, nodes = _num_leaves(capacity), 0
    while width > 1:
        nodes, width = nodes + width, max(1, width // _CHILDREN)
    return 4 * (nodes + 1)


def total(tree: SumTree) -> Array:
    """The sum of all leaves, `[]`."""
    return tree[0][0]


def get(tree: SumTree, index: Array) -> Array:
    """Leaves at `index`, of its shape."""
    return tree[-1][index]


def update(tree: SumTree, index: Array, value: Array) -> SumTree:
    """Sets leaves at `index` (`[B]`) to `value` (`[B]`) and recomputes what stands above them.

    An index given twice takes one of its values.
    """
    chex.assert_rank([index, value], 1)
    levels = [tree[-1].at[index].set(value)]
    for level in reversed(tree[:-1]):
        families = _families(levels[0])
        if level.shape[0] <= _DENSE_WIDTH:
            parents = _sums(families)
        else:
            index = index // families.shape[1]
            parents = level.at[index].set(_sums(families[index]))
        levels.insert(0, parents)
    return tuple(levels)


def find(tree: SumTree, fraction: Array) -> Array:
    """Leaves at given fractions of the total weight; never one of weight zero if any is positive.

    Args:
      tree: the tree.
      fraction: `[U, B]` uniforms in [0, 1).  Row 0 leads down the first halvings; deep trees go on
        with the next row every few halvings, see `num_uniforms`.

    Returns:
      Leaf indices, `[B]` int32.
    """
    chex.assert_shape(fraction, (num_uniforms(tree), None))
    index = jnp.zeros(fraction.shape[1:], jnp.int32)
    mass = jnp.zeros(fraction.shape[1:], jnp.float32)
    halvings = 0
    for children in tree[1:]:
        families = _families(children)
        # A family is a list of `[B]` arrays, not one `[B, 16]`: then all its halvings are one loop.
        family = list(families.at[index].get(mode="promise_in_bounds").T)
        sums = [family]
        while len(sums[0]) > 1:
            sums.insert(0, _pair_sums(sums[0]))
        for _ in range(len(sums) - 1):
            [node], (left, right) = sums[:2]
            if halvings % _HALVINGS_PER_UNIFORM == 0:
                # Given that a descent comes by this node, its remaining mass is uniform in it.
                mass = fraction[halvings // _HALVINGS_PER_UNIFORM] * node
            # Rounding may leave more mass than there is on the right: nothing empty is entered.
            go_right = (mass >= left) & (right > 0)
            mass = jnp.where(go_right, mass - left, mass)
            index = 2 * index + go_right
            sums = [_half(go_right, level) for level in sums[1:]]
            halvings += 1
    return index


def num_uniforms(tree: SumTree) -> int:
    """How many uniforms one descent takes."""
    depth = tree[-1].shape[0].bit_length() - 1
    return max(1, -(-depth // _HALVINGS_PER_UNIFORM))


def sample(key: Array, tree: SumTree, batch_size: int) -> Array:
    """Stratified draw: leaf `b` lies in the b-th of `batch_size` equal parts of the total weight.

    (In deep trees only up to the node where a fresh uniform takes over.)  The batch taken together
    is proportional to the leaves; the key is consumed.

    Returns:
      Leaf indices, `[batch_size]` int32.
    """
    uniforms = jax.random.uniform(key, (num_uniforms(tree), batch_size))
    strata = (jnp.arange(batch_size) + uniforms[0]) / batch_size
    return find(tree, uniforms.at[0].set(strata))


def _num_leaves(capacity: int) -> int:
    return 2 ** max(capacity - 1, 0).bit_length()


def _families(level: Array) -> Array:
    """The nodes of a level by their parents, `[parents, children]`."""
    return level.reshape(-1, min(_CHILDREN, level.shape[0]))


def _sums(families: Array) -> Array:
    """Of `[N, children]`, in pairs: `[N]`."""
    while families.shape[1] > 1:
        families = families[:, 0::2] + families[:, 1::2]
    return families[:, 0]


def _pair_sums(nodes: list[Array]) -> list[Array]:
    return [left + right for left, right in zip(nodes[0::2], nodes[1::2], strict=True)]


def _half(is_right: Array, nodes: list[Array]) -> list[Array]:
    middle = len(nodes) // 2
    halves = zip(nodes[:middle], nodes[middle:], strict=True)
    return [jnp.where(is_right, right, left) for left, right in halves]
