"""Tables as text."""

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Lines whose columns stand below each other; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; the first row is the head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])
