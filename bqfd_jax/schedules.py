"""Values that change with the agent step; optax has none through points that are given."""

import itertools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from bqfd_jax.types import Array


def piecewise_linear(steps: Sequence[int], values: Sequence[float]) -> Callable[[Array], Array]:
    """Straight lines between `(step, value)` points, constant before the first and after the last.

    Args:
      steps: agent steps, increasing.
      values: one for each of them.

    Returns:
      A function of the agent step.
    """
    if len(steps) != len(values) or not steps:
        raise ValueError(f"{len(steps)} steps need as many values, got {len(values)}")
    if any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        raise ValueError(f"the steps of a schedule must increase, got {list(steps)}")
    points, heights = np.asarray(steps, np.float32), np.asarray(values, np.float32)
    return lambda step: jnp.interp(jnp.asarray(step, jnp.float32), points, heights)
