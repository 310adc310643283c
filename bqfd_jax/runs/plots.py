"""Pictures of a run: each function draws one figure and writes it, whole or not at all."""

import collections
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from bqfd_jax.files import replacing_path

# An agent has the same colour in every picture; the first text that a label holds decides.
_AGENT_COLOURS = {
    "tabular": "#56b4e9",
    "bootstrapped": "#e69f00",
    "dqn alone": "#cc79a7",
    "dqn, none": "#cc79a7",
    "dqn (none": "#cc79a7",
    "ensemble": "#000000",
    "bqfd": "#0072b2",
    "dqfd": "#d55e00",
    "dqn": "#009e73",
}
_OTHER_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Curves of one colour stay apart by their style.
_STYLES = ("-", "--", "-.", ":")


class Line(NamedTuple):
    """A curve, with a band around it where `low` and `high` are given."""

    x: np.ndarray  # [points]
    y: np.ndarray  # [points]
    low: np.ndarray | None = None  # [points]
    high: np.ndarray | None = None  # [points]


def over_seeds(values: np.ndarray) -> Line:
    """The mean of `[seeds, points]` with the middle half of the seeds; points count from 1."""
    low, high = np.quantile(values, (0.25, 0.75), axis=0)
    return Line(np.arange(1, values.shape[1] + 1), values.mean(0), low, high)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes a figure, whole or not at all; the ending of `path` chooses the format."""
    with replacing_path(path) as temporary:
        figure.savefig(temporary, dpi=130, bbox_inches="tight")
    return Path(path)


def lines(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, Line]],
    *,
    x_label: str,
    y_label: str,
    references: Mapping[str, Mapping[str, float]] | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> Path:
    """Curves, at most three panels in a row.

    Args:
      path: of the picture.
      panels: panel title -> label -> curve.
      x_label: of every panel.
      y_label: of the first panel of a row.
      references: panel title -> label -> height of a dashed line.
      log_x: logarithmic x axis.
      log_y: logarithmic y axis.
    """
    figure, axes = _panels(len(panels))
    for axis, (title, labelled) in zip(axes.flat, panels.items(), strict=False):
        _draw_references(axis, (references or {}).get(title, {}))
        looks = zip(labelled.items(), _looks(labelled), strict=True)
        for number, ((label, line), (colour, style)) in enumerate(looks):
            if line.low is not None:
                axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, lw=0)
            axis.plot(
                line.x,
                line.y,
                style,
                label=label,
                color=colour,
                marker="o" if len(line.x) <= 60 else None,
                ms=3,
                # Of curves that lie upon each other the later ones show at both sides.
                lw=1.6 + 0.7 * number,
                zorder=3 - 0.1 * number,
            )
        axis.set(title=title, xlabel=x_label)
        axis.legend(frameon=False, fontsize=8)
        if log_y:
            axis.set_yscale("log")
        if log_x:
            axis.set_xscale("log")
        elif max((line.x.max(initial=0) for line in labelled.values()), default=0) >= 1000:
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    for axis in axes[:, 0]:
        axis.set_ylabel(y_label)
    return save_figure(figure, path)


def intervals(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, Line]],
    *,
    x_names: Sequence[str],
    x_label: str,
    y_label: str,
) -> Path:
    """Estimates with their intervals at named places, which no line joins: they have no order.

    Args:
      path: of the picture.
      panels: panel title -> label -> estimates, one per place, or a single one that holds for all
        of them; `x` is not looked at.
      x_names: names of the places.
      x_label: below the last panel.
      y_label: of all of them.
    """
    size = (max(6.0, 0.75 * len(x_names)) + 1.8, 2.1 * len(panels) + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    places = np.arange(len(x_names))
    for axis, (title, labelled) in zip(axes, panels.items(), strict=True):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        looks = dict(zip(labelled, _looks(labelled), strict=True))
        single = {label: line for label, line in labelled.items() if len(line.y) == 1}
        for label, line in single.items():
            colour, _ = looks[label]
            axis.axhline(line.y[0], color=colour, lw=1.2, ls="--", label=label)
            axis.axhspan(line.low[0], line.high[0], color=colour, alpha=0.12, lw=0)
        several = {label: line for label, line in labelled.items() if label not in single}
        shifts = np.linspace(-0.27, 0.27, len(several)) if len(several) > 1 else [0.0]
        for shift, (label, line) in zip(shifts, several.items(), strict=True):
            around = np.stack([line.y - line.low, line.high - line.y])
            colour, _ = looks[label]
            axis.errorbar(
                places + shift, line.y, around, fmt="o", color=colour, ms=4, lw=1.4, label=label
            )
        axis.set_title(title, fontsize=10)
    axes[-1].set_xticks(places, x_names, rotation=30, ha="right", fontsize=9)
    axes[-1].set_xlabel(x_label)
    figure.supylabel(y_label, fontsize=10)
    # Beside the panels, because it belongs to all of them.
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, fontsize=9, loc="outside right upper", frameon=False)
    return save_figure(figure, path)


def _panels(count: int, *, width: float = 5.4) -> tuple[Figure, np.ndarray]:
    rows = math.ceil(count / 3)
    columns = math.ceil(count / rows)
    figure = Figure(figsize=(width * columns, 3.9 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    for unused in axes.flat[count:]:
        unused.set_visible(False)
    return figure, axes


def _draw_references(axis: Axes, references: Mapping[str, float]) -> None:
    shades = itertools.cycle(("0.5", "0.75"))
    for (name, height), shade in zip(references.items(), shades, strict=False):
        axis.axhline(height, color=shade, lw=1, ls="--", label=name)


def _looks(labels: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Colour and style of each label."""
    seen: collections.Counter[str] = collections.Counter()
    for number, label in enumerate(labels):
        named = (colour for text, colour in _AGENT_COLOURS.items() if text in label.lower())
        colour = next(named, _OTHER_COLOURS[number % len(_OTHER_COLOURS)])
        yield colour, _STYLES[seen[colour] % len(_STYLES)]
        seen[colour] += 1


def grids(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]],
    *,
    colour_label: str,
    goals: Mapping[str, str],
) -> Path:
    """Triangular grids with paths on them: one row of pictures per key of `panels`.

    Args:
      path: of the picture.
      panels: row title -> column title -> (values `[N, N]`, paths `[seeds, steps]`).  Values
        above the diagonal are not shown; a path gives the column at each row.  Every grid has a
        scale of its own: where one agent's values are large, another's would all look alike.
      colour_label: what the colours mean.
      goals: row title -> what lies in the last corner.
    """
    num_columns = max(len(row) for row in panels.values())
    figure = Figure(figsize=(3.9 * num_columns, 3.3 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), num_columns, squeeze=False)
    for axis in axes.flat:
        axis.set_visible(False)
    for axis_row, (row_title, row) in zip(axes, panels.items(), strict=True):
        for axis, (title, (values, paths)) in zip(axis_row, row.items(), strict=False):
            axis.set_visible(True)
            shown = np.ma.masked_array(values, np.triu(np.ones(values.shape, bool), 1))
            limit = max(np.ma.abs(shown).max(), 1e-12)
            image = axis.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit)
            for seed_path in paths:
                axis.plot(seed_path, np.arange(len(seed_path)), color="k", lw=0.9, alpha=0.45)
            size = len(values)
            if row_title in goals:
                axis.annotate(
                    goals[row_title],
                    xy=(size - 1, size - 1),
                    xytext=(size - 1, 0.72 * size),
                    ha="right",
                    fontsize=9,
                    arrowprops={"arrowstyle": "->"},
                )
            axis.set_title(f"{row_title}: {title}", fontsize=10)
            axis.set(xticks=[], yticks=[], xlabel="column", ylabel="row", facecolor="0.8")
            axis.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5))
            figure.colorbar(image, ax=axis, shrink=0.85)
    figure.suptitle(colour_label, fontsize=10)
    return save_figure(figure, path)


def heat_maps(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, np.ndarray]],
    *,
    row_names: Sequence[str],
    column_names: Sequence[str],
    x_label: str,
    y_label: str,
    colour_label: str,
    limits: tuple[float, float],
    numbers: bool = True,
    note: str = "",
) -> Path:
    """Tables of numbers as colours, all on one scale: one row of pictures per key of `panels`.

    Args:
      path: of the picture.
      panels: row title -> column title -> values `[rows, columns]`.
      row_names: of every table.
      column_names: of every table.
      x_label: what its columns are.
      y_label: what its rows are.
      colour_label: what the numbers are.
      limits: numbers that take the ends of the scale; those beyond look like them.  If they lie on
        both sides of 0, so does the scale.
      numbers: write them, too; without them the cells are smaller.
      note: below all.
    """
    num_panels = max(len(row) for row in panels.values())
    width, height = (0.46, 0.25) if numbers else (0.36, 0.19)
    shape = (width * len(column_names) + 0.2, height * len(row_names) + 0.45)
    size = (shape[0] * num_panels + 2.1, shape[1] * len(panels) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(panels), num_panels, squeeze=False, sharex=True, sharey=True)
    colours = "RdBu" if limits[0] < 0 < limits[1] else "viridis_r"
    for axis_row, (row_title, row) in zip(axes, panels.items(), strict=True):
        for axis, (title, values) in zip(axis_row, row.items(), strict=False):
            image = axis.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
            for (i, j), value in np.ndenumerate(values) if numbers else ():
                # Dark where the scale is light, light where it is dark.
                red, green, blue, _ = image.cmap(image.norm(value))
                shade = "w" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "k"
                text = f"{round(value, 2) + 0.0:.2f}"
                axis.text(j, i, text, ha="center", va="center", fontsize=7, color=shade)
            axis.set_title(": ".join(filter(None, (row_title, title))), fontsize=9)
            axis.set_xticks(range(len(column_names)), column_names, fontsize=7.5)
            axis.set_yticks(range(len(row_names)), row_names, fontsize=7.5)
        axis_row[0].set_ylabel(y_label, fontsize=8.5)
        for axis in axis_row[len(row) :]:
            axis.set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel(x_label, fontsize=8.5)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30)
    bar.set_label(colour_label, fontsize=8.5)
    figure.supxlabel(note, fontsize=8)
    return save_figure(figure, path)


def contact_sheet(
    path: str | os.PathLike[str],
    frames: np.ndarray,
    labels: Sequence[str],
    *,
    title: str = "",
    columns: int = 6,
) -> Path:
    """Frames `[n, H, W]` or `[n, H, W, 3]` uint8 like a photographer's contact sheet, n labels."""
    rows = math.ceil(len(frames) / columns)
    figure = Figure(figsize=(1.6 * columns, 1.8 * rows))
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for axis in axes:
        axis.set_axis_off()
    for axis, frame, label in zip(axes, frames, labels, strict=False):
        axis.imshow(frame, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axis.set_title(label, fontsize=7)
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, path)


def observation_lines(
    path: str | os.PathLike[str], observations: np.ndarray, *, title: str = ""
) -> Path:
    """Observations that are no pictures, `[steps, numbers]`: each number over time."""
    figure, axes = _panels(1, width=9)
    axes[0, 0].plot(observations, lw=1)
    axes[0, 0].set(title=title, xlabel="step", ylabel="observation")
    return save_figure(figure, path)
