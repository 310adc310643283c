"""Scores and tables as text, by hand."""

import pytest

from bqfd_jax.runs import text

ROWS = [("case", "n"), ("a", "12"), ("treasure", "3")]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((0.9151, 0.2), "0.915"),
        ((-0.9948,), "-0.995"),
        ((9.44, 1.0), "9.4"),
        ((0.5, 260.12), "0.5"),
        ((260.12, 0.5), "260.1"),
    ],
)
def test_scores_have_the_digits_that_they_need(values, shown):
    assert text.score(*values) == shown


def test_columns_stand_below_each_other():
    assert text.columns(ROWS) == "case      n\na         12\ntreasure  3"


def test_markdown():
    assert text.markdown(ROWS) == "| case | n |\n|---|---|\n| a | 12 |\n| treasure | 3 |"
