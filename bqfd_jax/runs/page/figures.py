"""The pictures of a report, as texts that a page can hold."""

import base64
import io
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.image import imsave

from bqfd_jax.runs import plots, video
from bqfd_jax.runs.page.collect import Entry
from bqfd_jax.runs.page.numbers import labels
from bqfd_jax.runs.page.tables import shown

# Curves of metrics that tell how demonstrations are used: title -> which names of metrics.
_USES: dict[str, Callable[[str], bool]] = {
    "visit weight": lambda name: name == "visit_weight",
    # The second was once the name of both.
    "expert weight": lambda name: name in ("expert_weight", "ensemble_weight"),
    "share of demonstrations in batches": lambda name: name == "expert_share",
    "learnt reliability (eta)": lambda name: name == "eta" or name.endswith("/eta"),
}
# More points than can be seen only make pages large.
_MOST_POINTS = 300


def data_uri(content: bytes, kind: str) -> str:
    """A file as part of a page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def film_still(path: Path) -> str | None:
    """A picture from the middle of a film, to be seen before it plays; None if there is none."""
    frame = video.middle_frame(path)
    if frame is None:
        return None
    written = io.BytesIO()
    imsave(written, frame, format="png")
    return data_uri(written.getvalue(), "image/png")


def learning_curve(runs: Sequence[Entry]) -> str | None:
    """Evaluation scores of a game over training; None if nobody has been evaluated."""
    curves = {}
    for label in labels(runs):
        own = [entry.evaluations for entry in runs if entry.label == label and entry.evaluations]
        points = [([e["step"] for e in one], [e["mean"] for e in one]) for one in own]
        if points:
            curves[shown(label)] = mean_curve(points)
    shown_scores = [e.summary["demo"]["score"] for e in runs if e.summary and e.summary.get("demo")]
    heights = {"demonstrations, mean": float(np.mean(shown_scores))} if shown_scores else {}
    return _drawn(curves, "evaluation score", heights) if curves else None


def usage_curves(runs: Sequence[Entry]) -> dict[str, str]:
    """Title -> picture, of how demonstrations are used in a game, if they are."""
    found = {}
    for title, is_meant in _USES.items():
        curves = {}
        for label in labels(runs):
            own = [entry for entry in runs if entry.label == label]
            names = dict.fromkeys(n for e in own for row in e.rows for n in row if is_meant(n))
            for name in names:
                points = [_points(entry, name) for entry in own]
                points = [one for one in points if one[0]]
                told = shown(label) if len(names) == 1 else f"{shown(label)}: {name}"
                if points:
                    curves[told] = mean_curve(points)
        if curves:
            found[title] = _drawn(curves, title, {})
    return found


def _points(entry: Entry, name: str) -> tuple[list[float], list[float]]:
    rows = [row for row in entry.rows if type(row.get(name)) in (int, float)]
    return [row["step"] for row in rows], [row[name] for row in rows]


def mean_curve(points: Sequence[tuple[Sequence[float], Sequence[float]]]) -> plots.Line:
    """The mean over runs and their deviation, at each step over those that have come so far.

    Args:
      points: of each run its steps, in order, and its values.
    """
    steps = np.unique(np.concatenate([np.asarray(one[0], float) for one in points]))
    if len(steps) > _MOST_POINTS:
        steps = steps[np.linspace(0, len(steps) - 1, _MOST_POINTS).round().astype(int)]
    # A run says nothing about steps before its first value and after its last.
    values = np.stack([np.interp(steps, *one, left=np.nan, right=np.nan) for one in points])
    there = ~np.isnan(values)
    count = there.sum(axis=0)
    mean = np.where(there, values, 0.0).sum(axis=0) / count
    deviation = np.sqrt(np.where(there, (values - mean[None]) ** 2, 0.0).sum(axis=0) / count)
    if len(points) == 1:
        return plots.Line(steps, mean)
    return plots.Line(steps, mean, mean - deviation, mean + deviation)


def _drawn(curves: dict[str, plots.Line], y_label: str, heights: dict[str, float]) -> str:
    """A picture as SVG; names are texts, whatever they hold."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.svg"
        plots.lines(
            path,
            {"": {_text(label): line for label, line in curves.items()}},
            x_label="agent steps",
            y_label=y_label,
            references={"": {_text(label): height for label, height in heights.items()}},
        )
        return data_uri(path.read_bytes(), "image/svg+xml")


def _text(label: str) -> str:
    """A label that matplotlib takes as it stands: no formulas, and not hidden for a leading `_`."""
    label = label.replace("$", r"\$")
    return f" {label}" if label.startswith("_") else label
