"""The tables of a report as files: Markdown, LaTeX, and one line per run for other programs."""

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bqfd_jax.agents.presets import AGENTS
from bqfd_jax.runs import text
from bqfd_jax.runs.compare import PAPER_SCORES
from bqfd_jax.runs.page.collect import Entry
from bqfd_jax.runs.page.numbers import Score, labels, scores, titles

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def shown(label: str) -> str:
    """An agent as people call it; what is special about it stays."""
    agent, comma, variant = label.partition(", ")
    return f"{AGENTS[agent].title if agent in AGENTS else agent}{comma}{variant}"


def agent_of(label: str) -> str:
    """The agent, without what is special about it."""
    return label.partition(", ")[0]


def said(score: Score | None, plus_minus: str = "±") -> str:
    """A score as the paper prints it."""
    if score is None or not len(score.finals):
        return "-"
    return f"{text.score(score.mean)} {plus_minus} {text.score(score.std, score.mean)}"


def seeds_said(score: Score | None) -> str:
    """Of how many seeds it is, if not all have finished."""
    if score is None or len(score.finals) == score.runs:
        return ""
    return f"{len(score.finals)} of {score.runs} seeds"


def paper_said(score: Score | None, plus_minus: str = "±") -> str:
    """The paper's own score."""
    if score is None or score.paper is None:
        return "-"
    return f"{score.paper[0]:g} {plus_minus} {score.paper[1]:g}"


def has_paper(entries: Sequence[Entry]) -> bool:
    """Whether there is anything of the paper's to stand beside."""
    return any(score.paper for score in scores(entries).values())


def markdown(entries: Sequence[Entry]) -> str:
    """Games below each other, agents side by side, the paper's beside ours, each agent's once."""
    found, columns = scores(entries), labels(entries)
    agents = dict.fromkeys(map(agent_of, columns)) if has_paper(entries) else {}
    papers = [agent for agent in agents if any(agent in own for own in PAPER_SCORES.values())]
    head = ["game", *(shown(label) for label in columns)]
    rows = [head + [f"{shown(agent)}, paper" for agent in papers]]
    for title in titles(entries):
        own = {label: found.get((title, label)) for label in columns}
        row = [title, *(" ".join(filter(None, (said(s), _bracketed(s)))) for s in own.values())]
        theirs = _by_agent(own)
        rows.append(row + [paper_said(theirs.get(agent)) for agent in papers])
    return text.markdown([[_plain(part) for part in row] for row in rows]) + "\n"


def _by_agent(own: Mapping[str, Score | None]) -> dict[str, Score]:
    """One score of each agent in a game, by whichever of its labels: the paper's is the same."""
    return {agent_of(label): score for label, score in own.items() if score is not None}


def _bracketed(score: Score | None) -> str:
    told = seeds_said(score)
    return f"({told})" if told else ""


def _plain(part: str) -> str:
    """Nothing that Markdown would read as more than text."""
    part = _one_line(part).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([|*_`\[\]\\])", r"\\\1", part)


def latex(entries: Sequence[Entry]) -> str:
    """The same for a paper, with booktabs: the paper's below ours, the best mean of a game bold."""
    found, columns = scores(entries), labels(entries)
    lines = [
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        " & ".join(["Game", *(_escaped(shown(label)) for label in columns)]) + r" \\",
        r"\midrule",
    ]
    for title in titles(entries):
        own = {label: found.get((title, label)) for label in columns}
        best = best_of([score for score in own.values() if score is not None])
        parts = [_formula(said(score, r"\pm")) for score in own.values()]
        bold = [
            f"$\\mathbf{{{part.strip('$')}}}$" if score is not None and score is best else part
            for part, score in zip(parts, own.values(), strict=True)
        ]
        lines.append(" & ".join([_escaped(title), *bold]) + r" \\")
        if any(score and score.paper for score in own.values()):
            lines.append(" & ".join([r"\quad paper", *_paper_parts(own)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _paper_parts(own: Mapping[str, Score | None]) -> list[str]:
    """The paper's scores below ours, each agent's in the first of its columns alone."""
    theirs, parts = _by_agent(own), []
    agents = [agent_of(label) for label in own]
    for column, agent in enumerate(agents):
        is_first = agents.index(agent) == column
        parts.append(_formula(paper_said(theirs.get(agent), r"\pm")) if is_first else "")
    return parts


def best_of(own: Sequence[Score]) -> Score | None:
    """The highest mean, if there are several to choose from."""
    finished = [score for score in own if len(score.finals)]
    return max(finished, key=lambda score: score.mean) if len(finished) > 1 else None


def _formula(told: str) -> str:
    return told if told == "-" else f"${told}$"


def _escaped(part: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in _one_line(part))


def _one_line(part: str) -> str:
    """A text that ends no row of a table, and tells a terminal nothing."""
    return "".join(letter if letter.isprintable() else " " for letter in part)


_COLUMNS = (
    "game", "agent", "variant", "seed", "state", "step", "steps", "final_mean", "final_std",
    "final_episodes", "last_score", "updates", "seconds", "steps_per_second", "peak_memory_gb",
    "folder", "why",
)  # fmt: skip


def results(entries: Sequence[Entry], out: Path) -> str:
    """A line per run; folders as seen from the report's."""
    written = io.StringIO()
    table = csv.DictWriter(written, _COLUMNS, lineterminator="\n")
    table.writeheader()
    for entry in entries:
        table.writerow({name: _inert(value) for name, value in _result(entry, out).items()})
    return written.getvalue()


def _inert(value: object) -> object:
    """A text that no spreadsheet takes for a formula."""
    risky = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if risky else value


def _result(entry: Entry, out: Path) -> dict[str, object]:
    final, summary = entry.final or {}, entry.summary or {}
    names = ("updates", "seconds", "steps_per_second", "peak_memory_gb")
    return {
        "game": entry.title,
        "agent": entry.agent,
        "variant": entry.variant,
        "seed": entry.seed,
        "state": entry.state,
        "step": entry.step,
        "steps": entry.steps,
        "final_mean": final.get("mean"),
        "final_std": final.get("std"),
        "final_episodes": final.get("episodes"),
        "last_score": entry.evaluations[-1]["mean"] if entry.evaluations else None,
        **{name: summary.get(name) for name in names},
        "folder": os.path.relpath(entry.folder, out),
        "why": entry.why,
    }
