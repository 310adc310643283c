"""Random shifts: what moves, how far, and what stays together."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax.augmentation import random_shift, shift_batch
from tests.helpers import make_batch

KEY = jax.random.key(0)


def moved(image, down, right):
    """`image` moved by hand: every pixel shows what lay there, or the nearest that does."""
    height, width = image.shape
    return np.array(
        [
            [
                image[min(max(i + down, 0), height - 1), min(max(j + right, 0), width - 1)]
                for j in range(width)
            ]
            for i in range(height)
        ]
    )


def test_every_shift_comes_up_and_nothing_else():
    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    shifts = {(i, j): moved(image, i, j).tobytes() for i in (-1, 0, 1) for j in (-1, 0, 1)}
    np.testing.assert_array_equal(moved(image, 1, -1)[0], [4, 4, 5, 6])
    images = random_shift(KEY, jnp.tile(image, (900, 1, 1, 1)), pixels=1)
    chex.assert_shape(images, (900, 1, 3, 4))
    chex.assert_type(images, jnp.uint8)
    seen = [np.asarray(one[0]).tobytes() for one in images]
    counts = np.array([seen.count(shift) for shift in shifts.values()])
    assert counts.sum() == 900
    # Nine shifts, each 100 times but for chance: chi-square with 8 degrees of freedom.
    assert np.sum((counts - 100.0) ** 2 / 100) < 26.1


def test_frames_of_a_stack_move_together_and_stacks_do_not():
    frames = jnp.asarray(np.random.default_rng(0).integers(256, size=(1, 2, 9, 9)), jnp.uint8)
    images = np.asarray(random_shift(KEY, jnp.tile(frames, (20, 1, 1, 1)), pixels=3))
    found = [
        {
            (i, j)
            for i in range(-3, 4)
            for j in range(-3, 4)
            if all(np.array_equal(moved(np.asarray(frames[0, s]), i, j), one[s]) for s in (0, 1))
        }
        for one in images
    ]
    assert all(len(shift) == 1 for shift in found)
    assert len(set.union(*found)) > 5


def test_no_pixels_is_no_change():
    images = jnp.arange(2 * 3 * 4.0).reshape(2, 1, 3, 4)
    chex.assert_trees_all_equal(random_shift(KEY, images, pixels=0), images)


def test_a_batch_keeps_all_but_its_images():
    shape = (5, 2, 6, 6)
    images = jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)
    batch = make_batch(action=[0, 1, 0, 1, 0]).replace(
        observation=images,
        next_observation=images,
        n_step_observation=images,
        path_observation=images[:, None],
    )
    shifted = shift_batch(KEY, batch, pixels=2)
    names = ("observation", "next_observation", "n_step_observation", "path_observation")
    views = [np.asarray(getattr(shifted, name)).reshape(shape) for name in names]
    # Each kind of observation has shifts of its own.
    for one, view in enumerate(views):
        assert np.abs(view - images).max() > 0.1
        assert all(np.abs(view - other).max() > 0.1 for other in views[:one])
    same = {name: getattr(batch, name) for name in names}
    chex.assert_trees_all_equal(shifted.replace(**same), batch)


def test_vectors_cannot_be_shifted():
    batch = make_batch(action=[0, 1, 0, 1, 0]).replace(observation=jnp.zeros((5, 2, 6)))
    with pytest.raises(ValueError, match=r"observations are \[5, 2, 6\], but only stacks of im"):
        shift_batch(KEY, batch, pixels=1)
