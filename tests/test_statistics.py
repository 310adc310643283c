"""Statistics against numbers worked out by hand, and against scipy's trimmed mean."""

import numpy as np
import pytest
from scipy import stats

from bqfd_jax.runs.statistics import (
    bootstrap_interval,
    interquartile_mean,
    is_best,
    mean_interval,
    share_best,
)


class FixedDraws:
    """Stands in for a random generator."""

    def __init__(self, draws):
        self.draws = np.array(draws)

    def integers(self, high, size):
        assert self.draws.shape == size
        assert self.draws.max() < high
        return self.draws


def test_the_interquartile_mean_by_hand():
    # Eight values, two off at each end: (3 + 4 + 5 + 6) / 4, whatever the ends are.
    assert interquartile_mean([[5, -1000, 4, 7], [3, 6, 2, 1000]]) == pytest.approx(4.5)
    # Of five, one off at each end; of three, none.
    assert interquartile_mean([[9, 1, 2, 3, -9]]) == pytest.approx(2.0)
    assert interquartile_mean([[0, 0, 3]]) == pytest.approx(1.0)


@pytest.mark.parametrize("shape", [(1, 5), (7, 3), (12, 10)])
def test_the_interquartile_mean_is_scipys_trimmed_mean(shape):
    scores = np.random.default_rng(0).normal(size=shape)
    expected = stats.trim_mean(scores, 0.25, axis=None)
    assert interquartile_mean(scores) == pytest.approx(expected)


def test_leading_axes_are_kept_apart():
    scores = np.random.default_rng(0).normal(size=(4, 3, 5))
    one_by_one = [interquartile_mean(part) for part in scores]
    np.testing.assert_allclose(interquartile_mean(scores), one_by_one)


def test_the_interval_by_hand_with_given_draws():
    scores = [[1.0, 2.0, 3.0, 5.0], [10.0, 20.0, 30.0, 50.0]]
    draws = [
        [[0, 0, 0, 0], [0, 0, 0, 0]],  # 1 1 | 1 1 10 10 | 10 10 -> 5.5
        [[3, 3, 3, 3], [1, 1, 1, 1]],  # 5 5 | 5 5 20 20 | 20 20 -> 12.5
        [[0, 1, 2, 3], [0, 1, 2, 3]],  # 1 2 | 3 5 10 20 | 30 50 -> 9.5
    ]
    # Quantiles 1/4 and 3/4 of three values lie half way between them.
    interval = bootstrap_interval(scores, FixedDraws(draws), samples=3, level=0.5)
    assert interval.value == pytest.approx(9.5)
    assert interval.low == pytest.approx((5.5 + 9.5) / 2)
    assert interval.high == pytest.approx((9.5 + 12.5) / 2)


def test_the_interval_of_two_seeds_is_that_of_two_coins():
    # Means of two draws from 0 and 1 are 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4.
    scores = [[0.0, 1.0]]
    wide = bootstrap_interval(scores, np.random.default_rng(0), level=0.95)
    narrow = bootstrap_interval(scores, np.random.default_rng(0), level=0.4)
    assert wide == (0.5, 0.0, 1.0)
    assert narrow == (0.5, 0.5, 0.5)


def test_one_seed_gives_an_estimate_and_no_interval():
    value, low, high = bootstrap_interval([[0.1], [0.3], [0.2]], np.random.default_rng(0))
    assert value == pytest.approx(0.2)
    assert np.isnan([low, high]).all()
    assert np.isnan(mean_interval(np.array([3.0])))


def test_the_interval_of_a_mean_is_students():
    # 0 and 2: deviation sqrt(2), over sqrt(2) seeds; t of one degree of freedom is 12.706.
    half = mean_interval(np.array([[0.0, 1.0], [2.0, 1.0]]))
    np.testing.assert_allclose(half, [12.7062, 0.0], rtol=1e-5)


def test_seeds_are_drawn_within_their_task():
    # 0 0 | 0 1 1 1 5 | 5 5 at every draw; drawn across tasks it would vary widely.
    scores = [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [5.0, 5.0, 5.0]]
    assert bootstrap_interval(scores, np.random.default_rng(0)) == pytest.approx((1.6, 1.6, 1.6))


def test_every_task_is_drawn_on_its_own():
    # If one draw served both tasks, their sum would not vary.
    scores = [[0.0, 1.0], [1.0, 0.0]]
    interval = bootstrap_interval(scores, np.random.default_rng(0))
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_the_interval_narrows_with_the_root_of_the_seeds():
    random = np.random.default_rng(0)
    widths = []
    for seeds in (20, 320):
        interval = bootstrap_interval(random.normal(size=(10, seeds)), random)
        widths.append(interval.high - interval.low)
    assert widths[0] / widths[1] == pytest.approx(4.0, rel=0.2)


def test_copies_have_their_weight_but_are_no_evidence():
    # 0 0 0 1 1 1 8 8 8 without its two ends on each side; by itself 0 1 8, all of it.
    scores = [[0.0, 1.0, 8.0]]
    tripled = bootstrap_interval(scores, np.random.default_rng(0), copies=3)
    assert tripled.value == pytest.approx((0 + 1 + 1 + 1 + 8) / 5)
    assert bootstrap_interval(scores, np.random.default_rng(0)).value == pytest.approx(3.0)
    # Three equal draws happen once in nine: the interval spans all, which nine draws would not.
    assert (tripled.low, tripled.high) == (0.0, 8.0)


def test_the_same_generator_gives_the_same_interval():
    scores = np.random.default_rng(1).normal(size=(3, 5))
    first, second, other = (
        bootstrap_interval(scores, np.random.default_rng(seed)) for seed in (2, 2, 3)
    )
    assert first == second
    assert first != other


def test_shares_by_hand():
    losses = [[0.0, 0.2, 0.9, 0.3], [0.0, 0.1, 0.5, 0.3], [0.0, 0.9, 0.1, 0.305]]
    assert is_best(losses).tolist() == [
        [True, False, False, True],
        [True, True, False, True],
        [True, False, True, False],
    ]
    # A third of the first task each, half of the last for two of them.
    np.testing.assert_allclose(share_best(losses), [5 / 24, 11 / 24, 8 / 24])
    # 0.305 is 0.3 now, and 0.2 is still not 0.1.
    near = share_best(losses, tolerance=0.01)
    np.testing.assert_allclose(near, [1 / 6, 5 / 12, 5 / 12])


@pytest.mark.parametrize("function", [interquartile_mean, is_best, share_best])
def test_what_cannot_be_averaged_is_refused(function):
    with pytest.raises(ValueError, match="two axes"):
        function(np.zeros(3))
    with pytest.raises(ValueError, match="none of it 0"):
        function(np.zeros((2, 0)))
    with pytest.raises(ValueError, match="finite"):
        function([[1.0, np.nan]])


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        (np.zeros((1, 2, 3)), {}, "must be \\[tasks, seeds\\]"),
        (np.zeros((1, 2)), {"samples": 0}, "samples is 0"),
        (np.zeros((1, 2)), {"level": 1.0}, "level is 1.0"),
        (np.zeros((1, 2)), {"copies": 0}, "copies is 0"),
    ],
)
def test_bad_options_of_the_interval_are_refused(scores, options, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(scores, np.random.default_rng(0), **options)
