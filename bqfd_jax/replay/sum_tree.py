"""A sum tree over non-negative weights: draw leaves in proportion, change a few at a time.

The tree is a tuple of levels, `levels[0]` the root `[1]` and `levels[-1]` the leaves.  Parents are
always recomputed as left + right and never changed by differences, which drift in float32 until
leaves of weight zero are drawn.  It knows nothing of reinforcement learning.
"""

import itertools

import chex
import jax
import jax.numpy as jnp

from bqfd_jax.types import Array

SumTree = tuple[Array, ...]  # level d: [2 ** d] float32

# Narrow levels are recomputed whole: one vectorised sum beats scattered writes there.
_DENSE_WIDTH = 4096
# A float32 uniform has 23 bits, so after this many levels a descent goes on with fresh ones.
_LEVELS_PER_UNIFORM = 12


def init(leaves: Array) -> SumTree:
    """A tree over `leaves` (`[capacity]`), padded with zeros to a power of two."""
    chex.assert_rank(leaves, 1)
    capacity = leaves.shape[0]
    depth = max(capacity - 1, 0).bit_length()
    levels = [jnp.pad(leaves.astype(jnp.float32), (0, 2**depth - capacity))]
    while levels[0].shape[0] > 1:
        levels.insert(0, _pair_sums(levels[0]))
    return tuple(levels)


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
        children = levels[0]
        if level.shape[0] <= _DENSE_WIDTH:
            parents = _pair_sums(children)
        else:
            index = index // 2
            parents = level.at[index].set(children[2 * index] + children[2 * index + 1])
        levels.insert(0, parents)
    return tuple(levels)


def find(tree: SumTree, fraction: Array) -> Array:
    """Leaves at given fractions of the total weight; never one of weight zero if any is positive.

    Args:
      tree: the tree.
      fraction: `[U, B]` uniforms in [0, 1).  Row 0 leads down the first levels; deep trees go on
        with the next row every few levels, see `num_uniforms`.

    Returns:
      Leaf indices, `[B]` int32.
    """
    chex.assert_shape(fraction, (num_uniforms(tree), None))
    index = jnp.zeros(fraction.shape[1:], jnp.int32)
    mass = jnp.zeros(fraction.shape[1:], jnp.float32)
    for depth, (level, children) in enumerate(itertools.pairwise(tree)):
        if depth % _LEVELS_PER_UNIFORM == 0:
            # Given that a descent comes by this node, its remaining mass is uniform in it.
            mass = fraction[depth // _LEVELS_PER_UNIFORM] * level[index]
        pair = children.reshape(-1, 2)[index]
        left, right = pair[..., 0], pair[..., 1]
        # Rounding may leave more mass than there is to the right: an empty child is never entered.
        go_right = (mass >= left) & (right > 0)
        mass = jnp.where(go_right, mass - left, mass)
        index = 2 * index + go_right
    return index


def num_uniforms(tree: SumTree) -> int:
    """How many uniforms one descent takes."""
    return max(1, -(-(len(tree) - 1) // _LEVELS_PER_UNIFORM))


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


def _pair_sums(level: Array) -> Array:
    return level[0::2] + level[1::2]
