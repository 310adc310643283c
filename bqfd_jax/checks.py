"""Bounds of options: each function takes options by name and refuses the first that is out of them.

An option that was not given (None) passes, and so does one that jax is tracing.  An array passes if
all of it does.  NaN and infinities are never within bounds.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np


class OptionError(ValueError):
    """An option has a value that it cannot have; whoever knows it by another name can say so."""

    def __init__(self, name: str, value: Any, expected: str):
        # All three, so that the error can be pickled.
        super().__init__(name, value, expected)
        self.name = name
        self.value = value
        self.expected = expected  # what follows "must be"

    def __str__(self) -> str:
        value = repr(self.value) if isinstance(self.value, str) else self.value
        return f"{self.name} is {value}, but must be {self.expected}"


def require(holds: Any, name: str, value: Any, expected: str) -> None:
    """Raises `OptionError` unless something holds, for all of an array."""
    if not np.all(holds):
        raise OptionError(name, value, expected)


def finite(**values: Any) -> None:
    """Neither NaN nor infinite."""
    for name, value in _to_check(values):
        require((-np.inf < value) & (value < np.inf), name, value, "a finite number")


def at_least(least: float, **values: Any) -> None:
    """`least` or more."""
    for name, value in _to_check(values):
        require((least <= value) & (value < np.inf), name, value, f"at least {least}")


def at_most(most: float, **values: Any) -> None:
    """`most` or less."""
    for name, value in _to_check(values):
        require((-np.inf < value) & (value <= most), name, value, f"at most {most}")


def above(bound: float, **values: Any) -> None:
    """More than `bound`."""
    for name, value in _to_check(values):
        require((bound < value) & (value < np.inf), name, value, f"greater than {bound}")


def within(low: float, high: float, **values: Any) -> None:
    """Between two numbers, or one of them."""
    for name, value in _to_check(values):
        require((low <= value) & (value <= high), name, value, f"in [{low}, {high}]")


def above_up_to(low: float, high: float, **values: Any) -> None:
    """Greater than one number, and at most the other."""
    for name, value in _to_check(values):
        require((low < value) & (value <= high), name, value, f"in ({low}, {high}]")


def one_of(choices: Iterable[Any], **values: Any) -> None:
    """One of several."""
    choices = tuple(choices)
    for name, value in _to_check(values):
        require(value in choices, name, value, f"one of {', '.join(map(str, choices))}")


def distinct(**values: Sequence[str]) -> None:
    """Lists of names: at least one, and none twice."""
    for name, value in values.items():
        once = 0 < len(value) == len(set(value))
        require(once, name, " ".join(value), "one or more names, none of them twice")


def is_traced(value: Any) -> bool:
    """Whether jax is tracing a value, or a part of it, so that nobody knows it yet."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def _to_check(values: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if value is None or is_traced(value):
            continue
        yield name, np.asarray(value) if isinstance(value, list | tuple) else value
