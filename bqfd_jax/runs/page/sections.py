"""The sections of a report's page."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bqfd_jax.files import MAX_TEXT, read_bytes
from bqfd_jax.runs import text
from bqfd_jax.runs.machine import duration
from bqfd_jax.runs.page import figures, numbers, tables
from bqfd_jax.runs.page.collect import Entry, Other, different, is_own, said
from bqfd_jax.runs.page.markup import (
    Html,
    address,
    image,
    joined,
    link,
    markdown_table,
    scale,
    table,
    tag,
)
from bqfd_jax.runs.statistics import Interval

# Films in the page itself, so that it can be sent; larger ones are only linked.
_MOST_FILM_BYTES = 3 * 10**6
_FILES = {
    "summary": "summary.json",
    "metrics": "metrics.jsonl",
    "config": "config.json",
    "curve": "learning_curve.png",
    "film": "episode.mp4",
    "policy": "policy.npz",
}


def troubles(entries: Sequence[Entry]) -> Html:
    """What failed, is missing or not finished, said plainly; nothing if all is well."""
    parts = []
    for state, head in (
        ("failed", "failed"),
        ("missing", "not begun yet"),
        ("unfinished", "begun, but not finished; they count in the curves, not in the tables"),
    ):
        own = [entry for entry in entries if entry.state == state]
        if own:
            listed = [tag("li", _named(entry), _because(entry)) for entry in numbers.ordered(own)]
            told = tag("ul", *listed)
            if len(own) > 8:
                told = tag("details", tag("summary", f"all {len(own)}"), told)
            count = f"{len(own)} run{'s' if len(own) > 1 else ''} {head}"
            kind = "alarm" if state == "failed" else "alarm waits"
            parts.append(tag("section", tag("h2", count), told, class_=kind))
    return joined(parts)


def _named(entry: Entry) -> str:
    return f"{entry.title}, {tables.shown(entry.label)}, seed {entry.seed}"


def _because(entry: Entry) -> str:
    if entry.state == "unfinished":
        return f": at step {entry.step:,} of {entry.steps:,}"
    return f": {entry.why}" if entry.why else ""


def score_table(entries: Sequence[Entry]) -> Html:
    """Games below each other, agents side by side; the paper's own score below ours."""
    found, columns = numbers.scores(entries), numbers.labels(entries)
    rows = []
    for title in numbers.titles(entries):
        own = [found.get((title, label)) for label in columns]
        best = tables.best_of([score for score in own if score is not None])
        cells = []
        for score in own:
            small = [tables.seeds_said(score)] if score is not None else []
            if score is not None and score.paper:
                small.append(f"paper {tables.paper_said(score)}")
            told = tables.said(score)
            strong = tag("span", told, class_="best") if score and score is best else told
            cells.append(joined([strong, *(tag("small", one) for one in small if one)]))
        rows.append([title, *cells])
    head = ["game", *map(tables.shown, columns)]
    note = (
        "Mean score of the evaluations in the last part of the training, over seeds, ± the mean "
        "of the seeds' own deviations over episodes, as in the paper's Table 1. Bold: the highest."
    )
    files = tag("p", "As files: ", *_commas(
        Html(f'<a href="./{name}">{name}</a>') for name in ("table.md", "table.tex", "results.csv")
    ), class_="note")  # fmt: skip
    body = table(head, rows, numbers=len(columns))
    heading = tag("h2", "Final scores")
    return tag("section", heading, body, tag("p", note, class_="note"), files, id="scores")


def _commas(parts: "Sequence[Html] | object") -> list[object]:
    found: list[object] = []
    for part in parts:
        found += [", ", part] if found else [part]
    return found


def statistics(entries: Sequence[Entry]) -> Html:
    """What the scores say of the agents over all games."""
    parts = []
    if human := numbers.human_normalised(entries):
        ends = _ends([one.interval for one in human], 0.0, 1.0)
        rows = [
            (
                tables.shown(one.label),
                _interval(one.interval),
                scale(*one.interval, ends=ends, mark=1.0),
            )
            for one in human
        ]
        count = human[0].games
        parts += [
            tag("h3", "Human-normalised score, interquartile mean"),
            table(("agent", "IQM [95 %]", "0 is random play, the line is a person's 1"), rows),
            tag("p", f"Over {count} game{'s' if count > 1 else ''} in which every agent has a "
                "finished run. Intervals: stratified bootstrap over seeds.", class_="note"),
        ]  # fmt: skip
    if pairs := numbers.improvements(entries):
        rows = [
            (
                f"{tables.shown(one.label)} over {tables.shown(one.other)}",
                _interval(one.interval),
                scale(*one.interval, ends=(0.0, 1.0), mark=0.5),
            )
            for one in pairs
        ]
        count = max(one.games for one in pairs)
        where = f"at most {count} games" if count > 1 else "one game"
        parts += [
            tag("h3", "Probability of improvement"),
            table(("", "P [95 %]", "the line is one half: no difference"), rows),
            tag("p", "How likely a run of the first agent scores higher than one of the second in "
                f"the same game; {where}, ties count half.", class_="note"),
        ]  # fmt: skip
    if not parts:
        return Html("")
    return tag("section", tag("h2", "Which agent is better?"), *parts, id="statistics")


def _ends(intervals: Sequence[Interval], low: float, high: float) -> tuple[float, float]:
    known = [n for interval in intervals for n in interval if not math.isnan(n)]
    return min(low, *known), max(high, *known) * 1.05


def _interval(interval: Interval) -> str:
    if math.isnan(interval.low):
        return f"{interval.value:.2f} (no interval: a single seed)"
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def games(entries: Sequence[Entry], out: Path, *, films: bool) -> Html:
    """A part per game: learning curves, how demonstrations were used, films."""
    parts = []
    for title in numbers.titles(entries):
        runs = [entry for entry in entries if entry.title == title]
        pictures = []
        if curve := figures.learning_curve(runs):
            shown = tag("figcaption", "Evaluation score: mean over seeds, and their deviation")
            pictures.append(tag("figure", shown, image(curve, f"Learning curves of {title}")))
        pictures += [
            tag("figure", tag("figcaption", name.capitalize()), image(drawn, f"{name}, {title}"))
            for name, drawn in figures.usage_curves(runs).items()
        ]
        shown = tag("div", *pictures, class_="game") if pictures else tag("p", "No rows yet.")
        parts.append(tag("section", tag("h2", title), shown, _films(runs, out) if films else ""))
    return tag("div", *parts, id="games")


def _films(runs: Sequence[Entry], out: Path) -> Html:
    """Of each agent the film of the seed in the middle; neither the best nor the worst."""
    found = []
    for label in numbers.labels(runs):
        own = [
            e for e in runs if e.label == label and e.final and is_own(e.folder / _FILES["film"])
        ]
        own.sort(key=lambda entry: entry.final["mean"])
        if not own:
            continue
        entry = own[(len(own) - 1) // 2]
        path = entry.folder / _FILES["film"]
        source = address(path, out)
        if path.stat().st_size <= _MOST_FILM_BYTES:
            source = figures.data_uri(path.read_bytes(), "video/mp4")
        caption = (
            f"{tables.shown(label)}, seed {entry.seed}, score {text.score(entry.final['mean'])}"
        )
        seen = {"controls": "", "playsinline": "", "preload": "none"}
        film = tag("video", src=source, poster=figures.film_still(path), **seen)
        found.append(tag("figure", film, tag("figcaption", caption)))
    if not found:
        return Html("")
    told = "Films: one episode after training, of the seed whose score is in the middle"
    return joined([tag("h3", told), tag("div", *found, class_="films")])


def what_was_run(entries: Sequence[Entry]) -> Html:
    """Options that differ, those that all share, versions, hardware and time."""
    begun = [entry for entry in entries if entry.options]
    if not begun:
        return Html("")
    names = different(begun)
    rows = [(tag("code", name), tag("td", _values(begun, name), class_="loose")) for name in names]
    parts = [tag("h2", "What was run"), _machines(begun)]
    if rows:
        head = ("option", "value: where")
        parts += [tag("h3", "Options that differ"), table(head, rows)]
    shared = {k: v for entry in begun for k, v in entry.options.items() if k not in names}
    same = [
        (tag("code", name), tag("td", said(value), class_="loose"))
        for name, value in shared.items()
    ]
    told = tag("summary", f"{len(same)} options that do not differ")
    parts.append(tag("details", told, table(("option", "value"), same)))
    return tag("section", *parts, id="what")


def _values(runs: Sequence[Entry], name: str) -> Html:
    """Each value and who has it: agents' own options are nobody else's."""
    by_value: dict[str, list[Entry]] = {}
    for entry in runs:
        if name in entry.options:
            by_value.setdefault(said(entry.options[name]), []).append(entry)
    return joined(
        [joined([value, tag("small", _who(own, runs))]) for value, own in by_value.items()]
    )


def _who(own: Sequence[Entry], runs: Sequence[Entry]) -> str:
    """The fewest words that tell them apart: agents, else games, else both."""
    agents = dict.fromkeys(entry.agent for entry in own)
    if {entry.folder for entry in runs if entry.agent in agents} == {e.folder for e in own}:
        return ", ".join(tables.shown(agent) for agent in agents)
    games = dict.fromkeys(entry.title for entry in own)
    if {entry.folder for entry in runs if entry.title in games} == {e.folder for e in own}:
        return ", ".join(games)
    named = dict.fromkeys(f"{entry.title} {tables.shown(entry.label)}" for entry in own)
    return ", ".join(named)


def _machines(entries: Sequence[Entry]) -> Html:
    """Versions, hardware, time."""
    rows = []
    for name in dict.fromkeys(name for entry in entries for name in entry.machine):
        values = Counter(said(entry.machine[name]) for entry in entries if name in entry.machine)
        told = ", ".join(
            value if len(values) == 1 else f"{value} ({count} runs)"
            for value, count in values.items()
        )
        rows.append((name, tag("td", told, class_="loose")))
    done = [entry.summary for entry in entries if entry.summary is not None]
    if done:
        seconds = sum(summary["seconds"] for summary in done)
        mean = duration(seconds / len(done))
        rows.append(("time of the finished runs", f"{duration(seconds)} in all, {mean} each"))
        rows.append(("most memory", f"{max(s['peak_memory_gb'] for s in done):.1f} GB"))
    return table((), rows) if rows else Html("")


def run_list(entries: Sequence[Entry], out: Path) -> Html:
    """Every run with its state, score, time and files."""
    rows = []
    for entry in numbers.ordered(entries):
        last = entry.evaluations[-1]["mean"] if entry.evaluations else None
        shown = entry.final["mean"] if entry.final else last
        seconds = entry.summary["seconds"] if entry.summary else None
        rows.append(
            (
                entry.title,
                tables.shown(entry.label),
                entry.seed,
                tag("span", entry.state, class_=f"chip {entry.state}"),
                joined([*_commas(_links(entry, out))]) or "-",
                "-" if shown is None else text.score(shown),
                f"{entry.step:,}",
                "-" if seconds is None else duration(seconds),
            )
        )
    head = ("game", "agent", "seed", "state", "files", "score", "steps", "time")
    return tag("section", tag("h2", "All runs"), table(head, rows, numbers=3), id="runs")


def _links(entry: Entry, out: Path) -> list[Html]:
    found = [
        link(entry.folder / name, out, told)
        for told, name in _FILES.items()
        if (entry.folder / name).exists()
    ]
    if entry.logs is not None and (entry.logs / "log.txt").exists():
        found.append(link(entry.logs / "log.txt", out, "log"))
    return found


def other(found: Other) -> Html:
    """Pictures and tables of another command."""
    pictures = [
        tag("figure", tag("figcaption", path.stem.replace("_", " ")), image(_png(path), path.stem))
        for path in found.pictures
    ]
    told = [markdown_table(one) for one in found.tables]
    return tag("section", tag("h2", found.title), *told, *pictures)


def _png(path: Path) -> str:
    return figures.data_uri(read_bytes(path, most=MAX_TEXT), "image/png")
