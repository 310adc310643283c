"""What the data of a demonstration may be like: bounds by hand, whatever the type."""

import numpy as np
import pytest

from bqfd_jax.demos.schema import MAX_REWARD, DemonstrationError, check_array


def check(values, dtype, **bounds):
    check_array("x", np.array(values, dtype), "iuf", (len(values),), **bounds)


REWARDS = {"low": -MAX_REWARD, "high": MAX_REWARD}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_bounds_that_a_type_cannot_hold_are_bounds(dtype):
    # The largest number of half precision is 65504: 1e12 would be infinite.
    check([-65504, 0, 65504], dtype, **REWARDS)
    for wrong, shown in ((np.inf, "inf"), (-np.inf, "-inf"), (np.nan, "nan")):
        with pytest.raises(DemonstrationError) as caught:
            check([0, 65504, wrong, wrong], dtype, **REWARDS)
        assert str(caught.value) == f"x[2] is {shown}, but must be finite in -1e+12 .. 1e+12"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int16, np.uint64])
def test_bounds_are_not_rounded(dtype):
    # Half precision has 2050 and 2052 and nothing between, so that 2051 would become 2052.
    check([1, 2050], dtype, low=1, high=2051)
    with pytest.raises(DemonstrationError, match=r"^x\[1\] is 2052(\.0)?, but must be finite in 1"):
        check([1, 2052, 2054], dtype, low=1, high=2051)


def test_the_first_that_is_out_of_bounds_is_named():
    with pytest.raises(DemonstrationError, match=r"^x\[1\] is 1000000000001, but"):
        check([10**12, 10**12 + 1, 2**62], np.int64, **REWARDS)
    with pytest.raises(DemonstrationError, match=r"^x\[0\] is -1, but must be finite in 0 .. 1$"):
        check([-1, 3], np.int8, low=0, high=1)
    # Without bounds only what is finite counts.
    check([1e308], np.float64)
    with pytest.raises(DemonstrationError, match=r"^x\[0\] is inf, but must be finite$"):
        check([np.inf], np.float16)
