"""Pieces of HTML.  What is not made here is escaped: a name is a text and nothing else."""

import html
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote


class Html(str):
    """A text that is HTML already, so that nobody escapes it."""

    __slots__ = ()


def text(value: object) -> Html:
    """Whatever it is, as a text; HTML of our own stays."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def tag(name: str, *inside: object, **attributes: object) -> Html:
    """An element; a trailing `_` of an attribute's name falls away, as in `class_`."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{told}>{joined(inside)}</{name}>")


def joined(parts: Iterable[object]) -> Html:
    """One after the other."""
    return Html("".join(map(text, parts)))


def image(source: str, told: str) -> Html:
    """A picture that is in the page itself."""
    return Html(f'<img src="{text(source)}" alt="{text(told)}" loading="lazy">')


def link(path: Path, out: Path, told: str) -> Html:
    """A file as seen from the report's folder."""
    return tag("a", told, href=address(path, out))


def address(path: Path, out: Path) -> str:
    """Of a file, as seen from the report's folder; whatever its name is, it is a relative path."""
    return quote(f"./{os.path.relpath(path, out)}")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], *, numbers: int = 0) -> Html:
    """A table that is scrolled where it is too wide.

    Args:
      head: names of the columns; none: no head.
      rows: their cells; a cell that is a `<td>` stays as it is.
      numbers: how many of the last columns are numbers.
    """
    rows = list(rows)
    first = max(map(len, rows), default=0) - numbers

    def cell(name: str, part: object, column: int) -> Html:
        if isinstance(part, Html) and part.startswith("<td"):
            return part
        return tag(name, part, class_="number" if column >= first else None)

    body = [tag("tr", *(cell("td", part, i) for i, part in enumerate(row))) for row in rows]
    top = tag("tr", *(cell("th", part, i) for i, part in enumerate(head)))
    shown = [tag("thead", top)] if head else []
    return tag("div", tag("table", *shown, tag("tbody", *body)), class_="wide")


def scale(value: float, low: float, high: float, *, ends: tuple[float, float], mark: float) -> Html:
    """An estimate and its interval on a line, with a mark that one looks for."""

    def at(number: float) -> float:
        share = (number - ends[0]) / (ends[1] - ends[0])
        return round(100 * min(max(share, 0.0), 1.0), 2)

    parts = [Html(f'<s style="left:{at(mark)}%"></s>')]
    if not math.isnan(low):
        width = round(at(high) - at(low), 2)
        parts.append(Html(f'<i style="left:{at(low)}%;width:{width}%"></i>'))
    parts.append(Html(f'<b style="left:{at(value)}%"></b>'))
    return tag("div", *parts, class_="scale", role="img", aria_label=f"{value:.2f}")


def markdown_table(told: str) -> Html:
    """Tables of Markdown as tables, other lines as text."""
    parts: list[Html] = []
    rows: list[list[str]] = []
    for line in [*told.splitlines(), ""]:
        if line.strip().startswith("|"):
            cells = [part.strip() for part in line.strip().strip("|").split("|")]
            if not all(set(part) <= {"-", ":"} for part in cells):
                rows.append(cells)
            continue
        if rows:
            parts.append(table(rows[0], rows[1:]))
            rows = []
        if line.strip():
            parts.append(tag("p", line.strip().lstrip("# ")))
    return joined(parts)
