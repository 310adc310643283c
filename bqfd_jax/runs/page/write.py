"""Writes a report: one page that needs no network, and its tables as files."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bqfd_jax import files
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.page import numbers, sections, tables
from bqfd_jax.runs.page.collect import Entry, Found, collect
from bqfd_jax.runs.page.markup import Html, joined, tag
from bqfd_jax.runs.page.style import STYLE

# Nothing is fetched and nothing runs: pictures and films are in the page, or files beside it.
_POLICY = (
    "default-src 'none'; img-src data:; media-src data: file: 'self'; style-src 'unsafe-inline'"
)


def write(paths: Sequence[Path], out: Path, *, title: str = "", films: bool = True) -> Found:
    """Writes `index.html`, `table.md`, `table.tex` and `results.csv` about runs.

    Args:
      paths: sweeps, runs, folders of runs, or what other commands have made; finished or not.
      out: the report's folder.
      title: of the page; made from the games unless given.
      films: put films into the page.

    Returns:
      What was told of.
    """
    found = collect(paths)
    try:
        out.mkdir(parents=True, exist_ok=True)
        files.write_text(out / "index.html", page(found, out, title=title, films=films))
        if found.entries:
            files.write_text(out / "table.md", tables.markdown(found.entries))
            files.write_text(out / "table.tex", tables.latex(found.entries))
            files.write_text(out / "results.csv", tables.results(found.entries, out))
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error}") from error
    return found


def page(found: Found, out: Path, *, title: str = "", films: bool = True) -> Html:
    """The whole page."""
    entries = found.entries
    title = title or _title(found)
    statistics = sections.statistics(entries)
    nav = _nav(found, compared=bool(statistics))
    parts = [tag("header", tag("h1", title), tag("p", _lead(entries), class_="lead"), nav)]
    if entries:
        parts += [
            sections.troubles(entries),
            sections.score_table(entries),
            statistics,
            sections.games(entries, out, films=films),
        ]
    parts += [sections.other(one) for one in found.others]
    if entries:
        parts += [sections.what_was_run(entries), sections.run_list(entries, out)]
    head = joined(
        [
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            tag("title", title),
            Html(f"<style>{STYLE}</style>"),
        ]
    )
    body = tag("body", tag("main", *parts))
    return Html(f'<!doctype html>\n<html lang="en"><head>{head}</head>{body}</html>\n')


def _title(found: Found) -> str:
    named = numbers.titles(found.entries) or [one.title for one in found.others]
    shown = ", ".join(named[:3])
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    agents = ", ".join(map(tables.shown, dict.fromkeys(e.agent for e in found.entries)))
    return f"{shown}{more}: {agents}" if agents else f"{shown}{more}"


def _lead(entries: Sequence[Entry]) -> str:
    made = f"Made on {time.strftime('%Y-%m-%d at %H:%M')}"
    if not entries:
        return f"{made}."
    states = Counter(entry.state for entry in entries)
    seeds = len({entry.seed for entry in entries})
    told = ", ".join(
        f"{states[s]} {s}" for s in ("done", "unfinished", "failed", "missing") if states[s]
    )
    return f"{len(entries)} runs with {seeds} seed{'s' if seeds > 1 else ''}: {told}. {made}."


def _nav(found: Found, *, compared: bool) -> Html:
    if not found.entries:
        return Html("")
    places = {"scores": "Final scores"}
    places |= {"statistics": "Which agent is better?"} if compared else {}
    places |= {"games": "Curves", "what": "What was run", "runs": "All runs"}
    return tag("nav", *(tag("a", told, href=f"#{place}") for place, told in places.items()))
