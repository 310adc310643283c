"""Tables as text, by hand."""

from bqfd_jax.runs import text

ROWS = [("case", "n"), ("a", "12"), ("treasure", "3")]


def test_columns_stand_below_each_other():
    assert text.columns(ROWS) == "case      n\na         12\ntreasure  3"


def test_markdown():
    assert text.markdown(ROWS) == "| case | n |\n|---|---|\n| a | 12 |\n| treasure | 3 |"
