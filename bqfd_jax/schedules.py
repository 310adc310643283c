"""Values that change with a count; optax has none through points that are given."""

import itertools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks
from bqfd_jax.types import Array


def piecewise_linear(steps: Sequence[int], values: Sequence[float]) -> Callable[[Array], Array]:
    """Straight lines between `(step, value)` points, constant before the first and after the last.

    Returns a function of the agent step.
    """
    check(steps=steps, values=values)
    points, heights = np.asarray(steps, np.float32), np.asarray(values, np.float32)
    return lambda step: jnp.interp(jnp.asarray(step, jnp.float32), points, heights)


def geometric(first: float, last: float, duration: int) -> Callable[[Array], Array]:
    """From `first` to `last` by the same factor in every step, and `last` after `duration` steps.

    Returns a function of the step.
    """
    checks.above(0, first=first, last=last, duration=duration)
    return lambda step: first * (last / first) ** jnp.minimum(step / duration, 1.0)


def check(**points: Sequence[float]) -> None:
    """Raises `OptionError` unless two options, steps and values, are points of a schedule."""
    (name, steps), (values_name, values) = points.items()
    rises = all(earlier < later for earlier, later in itertools.pairwise(steps))
    checks.require(len(steps) > 0 and rises, name, steps, "increasing agent steps")
    expected = f"as many values as {name} {steps}"
    checks.require(len(values) == len(steps), values_name, values, expected)
