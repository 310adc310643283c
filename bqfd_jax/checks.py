"""Bounds of options: each function takes options by name and refuses the first that is out of them.

An option that was not given (None) passes, and so does one that jax is tracing.  An array passes if
all of it does; the error names the first value that does not.  NaN and infinities are never within
bounds.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np


class OptionError(ValueError):
    """An option has a value that it cannot have; whoever knows it by another name can say so."""

    def __init__(self, name: str, value: Any, expected: str):
        shown = repr(value) if isinstance(value, str) else value
        # As the only argument, because that is what tyro shows.
        super().__init__(f"{name} is {shown}, but must be {expected}")
        self.name = name
        self.value = value
        self.expected = expected  # what follows "must be"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.value, self.expected)


def require(holds: Any, name: str, value: Any, expected: str) -> None:
    """Raises `OptionError` unless something holds, for all of an array."""
    if not np.all(holds):
        raise OptionError(name, value, expected)


def finite(**values: Any) -> None:
    """Neither NaN nor infinite."""
    _check(values, lambda x: (-np.inf < x) & (x < np.inf), "a finite number")


def at_least(least: float, **values: Any) -> None:
    """`least` or more."""
    _check(values, lambda x: (least <= x) & (x < np.inf), f"at least {least}")


def at_most(most: float, **values: Any) -> None:
    """`most` or less."""
    _check(values, lambda x: (-np.inf < x) & (x <= most), f"at most {most}")


def above(bound: float, **values: Any) -> None:
    """More than `bound`."""
    _check(values, lambda x: (bound < x) & (x < np.inf), f"greater than {bound}")


def within(low: float, high: float, **values: Any) -> None:
    """Between two numbers, or one of them."""
    _check(values, lambda x: (low <= x) & (x <= high), f"in [{low}, {high}]")


def above_up_to(low: float, high: float, **values: Any) -> None:
    """Greater than one number, and at most the other."""
    _check(values, lambda x: (low < x) & (x <= high), f"in ({low}, {high}]")


def integers(least: int, most: int, **arrays: Any) -> None:
    """Arrays of integers between two numbers, or one of them."""
    for name, array in arrays.items():
        require(array.dtype.kind in "iu", f"the dtype of {name}", array.dtype, "integer")
    within(least, most, **arrays)


def shape(expected: Sequence[int | str], **arrays: Any) -> None:
    """Arrays, even traced ones, of a shape; an axis that has a name may be of any length."""
    for name, array in arrays.items():
        axes = zip(array.shape, expected, strict=False)
        fits = all(isinstance(wanted, str) or length == wanted for length, wanted in axes)
        right = f"[{', '.join(map(str, expected))}]"
        require(fits and array.ndim == len(expected), f"the shape of {name}", array.shape, right)


def one_of(choices: Iterable[Any], **values: Any) -> None:
    """One of several."""
    choices = tuple(choices)
    for name, value in values.items():
        known = value is None or value in choices
        require(known, name, value, f"one of {', '.join(map(str, choices))}")


def distinct(**values: Sequence[str]) -> None:
    """Lists of names: at least one, and none twice."""
    for name, value in values.items():
        once = 0 < len(value) == len(set(value))
        require(once, name, " ".join(value), "one or more names, none of them twice")


def as_array(values: Any) -> Any:
    """An array of numpy, or of jax if it is being traced."""
    return values if is_traced(values) else np.asarray(values)


def is_traced(value: Any) -> bool:
    """Whether jax is tracing a value, or a part of it, so that nobody knows it yet."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def _check(values: dict[str, Any], holds: Callable[[np.ndarray], Any], expected: str) -> None:
    for name, value in values.items():
        if value is None or is_traced(value):
            continue
        right = np.asarray(holds(np.asarray(value)))
        if isinstance(value, np.ndarray | jax.Array) and not right.all():
            value = np.asarray(value)[~right][0]
        require(right, name, value, expected)
