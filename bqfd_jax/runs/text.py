"""Scores and tables as text."""

from collections.abc import Sequence


def score(value: float, *beside: float) -> str:
    """A score with as many digits as it needs, or as those beside it do: returns may be 0 to 1."""
    largest = max(map(abs, (value, *beside)))
    return f"{value:.{3 if largest < 2 else 1}f}"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Lines whose columns stand below each other; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; the first row is the head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])
