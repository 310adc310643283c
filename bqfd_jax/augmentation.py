"""Changed views of what was seen, so that little data goes further."""

import chex
import jax
import jax.numpy as jnp

from bqfd_jax.types import Array, Batch


def random_shift(key: Array, images: Array, *, pixels: int) -> Array:
    """Moves every stack of images by a random amount; the border repeats its outermost pixels.

    Kostrikov, Yarats, Fergus: "Image Augmentation Is All You Need" (2020), and Yarats et al.

    Args:
      key: consumed.
      images: `[B, ..., H, W]`; all images of one `B` move together, so that motion stays motion.
      pixels: the most that they move up, down, left and right.

    Returns:
      Images of the same shape and dtype.
    """
    *_, height, width = images.shape
    shifts = jax.random.randint(key, (images.shape[0], 2), -pixels, pixels + 1)

    def move(image: Array, shift: Array) -> Array:
        rows = jnp.clip(jnp.arange(height) + shift[0], 0, height - 1)
        columns = jnp.clip(jnp.arange(width) + shift[1], 0, width - 1)
        return jnp.take(jnp.take(image, rows, axis=-2), columns, axis=-1)

    return jax.vmap(move)(images, shifts)


def shift_batch(key: Array, batch: Batch, *, pixels: int) -> Batch:
    """`random_shift` of all that a batch shows, each observation by an amount of its own."""
    if batch.observation.ndim != 4:
        raise ValueError(
            f"observations are {list(batch.observation.shape)}, but only stacks of images, "
            "[B, S, H, W], can be shifted"
        )
    names = ("observation", "next_observation", "n_step_observation", "path_observation")
    keys = jax.random.split(key, len(names))
    moved = {}
    for name, name_key in zip(names, keys, strict=True):
        images = getattr(batch, name)
        # [B, K - 1, S, H, W]: every state of a path moves by itself; there may be none.
        stacks = images.reshape(-1, *batch.observation.shape[1:])
        if stacks.shape[0]:
            moved[name] = random_shift(name_key, stacks, pixels=pixels).reshape(images.shape)
    chex.assert_trees_all_equal_shapes(moved, {name: getattr(batch, name) for name in moved})
    return batch.replace(**moved)
