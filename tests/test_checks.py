"""Bounds of options: what passes, what does not, and what is said then."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax import checks
from bqfd_jax.checks import OptionError


@pytest.mark.parametrize(
    ("check", "bounds", "good", "bad", "expected"),
    [
        (checks.finite, (), (0, -1e30, 2**70), (np.nan, np.inf, -np.inf), "a finite number"),
        (checks.at_least, (1,), (1, 1.0, 2**70), (0, 0.999, np.nan, np.inf), "at least 1"),
        (checks.at_most, (5,), (5, -7), (6, 5.001, np.nan, -np.inf), "at most 5"),
        (checks.above, (0,), (1e-30, 1), (0, 0.0, -1, np.nan, np.inf), "greater than 0"),
        (checks.within, (0, 1), (0, 1, 0.5), (-1e-9, 1.001, np.nan), r"in \[0, 1\]"),
        (checks.above_up_to, (0, 1), (1, 1e-9), (0, 1.001, np.nan), r"in \(0, 1\]"),
    ],
)
def test_bounds(check, bounds, good, bad, expected):
    for value in good:
        check(*bounds, option=value)
        check(*bounds, option=np.full(3, value))
    for value in bad:
        with pytest.raises(OptionError, match=rf"^option is {value}, but must be {expected}$"):
            check(*bounds, option=value)
        with pytest.raises(OptionError, match=r"^option is"):
            check(*bounds, option=np.array([good[0], value]))
        with pytest.raises(OptionError, match=r"^option is"):
            check(*bounds, option=[good[0], value])


def test_choices():
    checks.one_of(("a", "b"), one="a", other="b")
    with pytest.raises(OptionError, match=r"^one is 'c', but must be one of a, b$"):
        checks.one_of(("a", "b"), one="c")


def test_the_first_that_is_wrong_is_named():
    with pytest.raises(OptionError, match=r"^second is 0") as caught:
        checks.at_least(1, first=1, second=0, third=0)
    error = caught.value
    assert (error.name, error.value, error.expected) == ("second", 0, "at least 1")
    # tyro shows the first argument of a config's error, and nothing else.
    assert error.args == ("second is 0, but must be at least 1",)


def test_what_was_not_given_passes():
    checks.at_least(1, option=None)
    checks.one_of("ab", option=None)


def test_what_is_traced_passes():
    def f(x):
        checks.at_least(1, option=x)
        return x

    assert jax.jit(f)(jnp.float32(0)) == 0
    assert checks.is_traced(1) is False


def test_the_error_survives_the_way_from_a_worker_process():
    error = pickle.loads(pickle.dumps(OptionError("steps", 0, "at least 1")))
    assert str(error) == "steps is 0, but must be at least 1"
    assert error.name == "steps"


def test_any_condition():
    checks.require(True, "width", 3, "odd")
    with pytest.raises(OptionError, match=r"^width is 4, but must be odd$"):
        checks.require(4 % 2 == 1, "width", 4, "odd")


def test_names_are_distinct_and_there_is_one():
    checks.distinct(cases=("treasure", "bomb"), agents=["bqfd"])
    with pytest.raises(checks.OptionError, match="cases is 'a b a', but must be one or more names"):
        checks.distinct(cases=("a", "b", "a"))
    with pytest.raises(checks.OptionError, match="agents is ''"):
        checks.distinct(agents=())


def test_of_an_array_the_first_wrong_value_is_named():
    with pytest.raises(OptionError, match=r"^option is -3, but must be at least 0$"):
        checks.at_least(0, option=np.array([[1, -3], [-4, 2]]))
    with pytest.raises(OptionError, match=r"^option is 7, but must be in \[0, 1\]$"):
        checks.within(0, 1, option=jnp.array([0, 7]))
    # What a user wrote as a list is shown whole.
    with pytest.raises(OptionError, match=r"^option is \(1, -3\), but must be at least 0$"):
        checks.at_least(0, option=(1, -3))


def test_integers():
    checks.integers(-1, 2, option=np.array([-1, 2]))
    checks.integers(0, 1, option=np.zeros((0, 3), int))
    with pytest.raises(OptionError, match=r"^option is 3, but must be in \[-1, 2\]$"):
        checks.integers(-1, 2, option=np.array([0, 3]))
    with pytest.raises(OptionError, match=r"^the dtype of option is float64, but must be integer$"):
        checks.integers(-1, 2, option=np.zeros(2))


def test_shapes():
    checks.shape(("N", 3), option=np.zeros((0, 3)), other=np.zeros((5, 3)))
    checks.shape((), option=np.float32(1))
    for shape in ((3,), (5, 2), (1, 5, 3)):
        with pytest.raises(
            OptionError, match=r"^the shape of option is \(.*, but must be \[N, 3\]$"
        ):
            checks.shape(("N", 3), option=np.zeros(shape))


def test_shapes_are_known_even_of_what_is_traced():
    def f(x):
        checks.shape((2,), option=checks.as_array(x))
        checks.integers(0, 1, option=x)
        return x

    jax.jit(f)(jnp.array([5, 5]))
    with pytest.raises(OptionError, match=r"is \(1,\), but must be \[2\]"):
        jax.jit(f)(jnp.array([1]))
    assert isinstance(checks.as_array([1, 2]), np.ndarray)
