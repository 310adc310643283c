"""Pictures of a run: each function draws one figure and writes it, whole or not at all."""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from bqfd_jax.files import replacing_path

# Curves that lie upon each other stay visible if they differ in more than colour.
_STYLES = ("-", "--", "-.", ":")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes a figure, whole or not at all; the ending of `path` chooses the format."""
    with replacing_path(path) as temporary:
        figure.savefig(temporary, dpi=130, bbox_inches="tight")
    return Path(path)


def curves(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, np.ndarray]],
    *,
    x_label: str,
    y_label: str,
    references: Mapping[str, float] | None = None,
) -> Path:
    """Curves side by side: the mean over seeds, the middle half of the seeds shaded.

    Args:
      path: where to write the picture; its ending chooses the format.
      panels: panel title -> label -> values `[seeds, points]`.
      x_label: of every panel; points are numbered from 1.
      y_label: of the first panel.
      references: panel title -> height of a dashed line, e.g. the best possible value.

    Returns:
      The path.
    """
    figure = Figure(figsize=(5.2 * len(panels), 3.8))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, labelled) in zip(axes, panels.items(), strict=True):
        if references and title in references:
            axis.axhline(references[title], color="0.5", lw=1, ls="--", label="best possible")
        looks = zip(itertools.cycle(_COLOURS), itertools.cycle(_STYLES), strict=False)
        for (label, values), (colour, style) in zip(labelled.items(), looks, strict=False):
            x = np.arange(1, values.shape[1] + 1)
            low, high = np.quantile(values, (0.25, 0.75), axis=0)
            axis.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
            marker = "o" if values.shape[1] == 1 else None
            axis.plot(x, values.mean(0), style, color=colour, lw=1.8, label=label, marker=marker)
        axis.set(title=title, xlabel=x_label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel(y_label)
    return save_figure(figure, path)


def grids(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]],
    *,
    colour_label: str,
) -> Path:
    """Triangular grids with paths on them: one row of pictures per key of `panels`.

    Args:
      path: where to write the picture.
      panels: row title -> column title -> (values `[N, N]`, paths `[seeds, steps]`).  Values
        above the diagonal are not shown; a path gives the column at each row.
      colour_label: what the colours mean.

    Returns:
      The path.
    """
    num_columns = max(len(row) for row in panels.values())
    figure = Figure(figsize=(3.4 * num_columns + 0.8, 3.3 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), num_columns, squeeze=False)
    for axis_row, (row_title, row) in zip(axes, panels.items(), strict=True):
        shown = [_lower_triangle(values) for values, _ in row.values()]
        limit = max(max(np.ma.abs(values).max() for values in shown), 1e-12)
        for axis, values, (title, (_, paths)) in zip(axis_row, shown, row.items(), strict=False):
            image = axis.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit)
            for seed_path in paths:
                axis.plot(seed_path, np.arange(len(seed_path)), color="k", lw=0.9, alpha=0.45)
            axis.set_title(f"{row_title}: {title}", fontsize=10)
            axis.set(xticks=[], yticks=[], xlabel="column", ylabel="row", facecolor="0.8")
            axis.set_xlim(-0.5, values.shape[1] - 0.5)
            axis.set_ylim(values.shape[0] - 0.5, -0.5)
        figure.colorbar(image, ax=list(axis_row), label=colour_label, shrink=0.85)
        for axis in axis_row[len(row) :]:
            axis.set_visible(False)
    return save_figure(figure, path)


def _lower_triangle(values: np.ndarray) -> np.ma.MaskedArray:
    row, column = np.indices(values.shape)
    return np.ma.masked_where(column > row, values)


def learning_curves(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]]],
    *,
    references: Mapping[str, Mapping[str, float]] | None = None,
    x_label: str = "agent steps",
    y_label: str = "evaluation score",
) -> Path:
    """Evaluation scores over training, a panel per game, at most three in a row.

    Args:
      path: where to write the picture; its ending chooses the format.
      panels: panel title -> label -> runs, each `(steps, means, deviations)` of shape `[points]`.
        Runs of one label share a colour, and each has its own line.
      references: panel title -> label -> height of a dashed line.
      x_label: of every panel.
      y_label: of the first panel of a row.

    Returns:
      The path.
    """
    rows = math.ceil(len(panels) / 3)
    columns = math.ceil(len(panels) / rows)
    figure = Figure(figsize=(5.6 * columns, 3.9 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for unused in axes.flat[len(panels) :]:
        unused.set_visible(False)
    for axis, (title, labelled) in zip(axes.flat, panels.items(), strict=False):
        for name, height in (references or {}).get(title, {}).items():
            axis.axhline(height, color="0.5", lw=1, ls="--", label=name)
        looks = zip(itertools.cycle(_COLOURS), itertools.cycle(_STYLES), strict=False)
        for (label, runs), (colour, style) in zip(labelled.items(), looks, strict=False):
            for number, (steps, means, deviations) in enumerate(runs):
                axis.fill_between(
                    steps, means - deviations, means + deviations, color=colour, alpha=0.15, lw=0
                )
                name = label if number == 0 else None
                axis.plot(steps, means, style, color=colour, lw=1.8, marker="o", ms=3, label=name)
        axis.set(title=title, xlabel=x_label)
        axis.legend(fontsize=8)
        axis.grid(alpha=0.25)
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    for axis in axes[:, 0]:
        axis.set_ylabel(y_label)
    return save_figure(figure, path)


def lines(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]],
    *,
    x_label: str,
    y_label: str,
    references: Mapping[str, float] | None = None,
    log_x: bool = False,
) -> Path:
    """Plain curves side by side.

    Args:
      path: where to write the picture; its ending chooses the format.
      panels: panel title -> label -> `(x, y)`, each `[points]`.
      x_label: of every panel.
      y_label: of the first panel.
      references: label -> height of a dashed line in every panel.
      log_x: logarithmic x axis.

    Returns:
      The path.
    """
    figure = Figure(figsize=(5.2 * len(panels), 3.8))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, labelled) in zip(axes, panels.items(), strict=True):
        for (name, height), shade in zip(
            (references or {}).items(), itertools.cycle(("0.5", "0.75")), strict=False
        ):
            axis.axhline(height, color=shade, lw=1, ls="--", label=name)
        looks = zip(itertools.cycle(_COLOURS), itertools.cycle(_STYLES), strict=False)
        for (label, (x, y)), (colour, style) in zip(labelled.items(), looks, strict=False):
            axis.plot(x, y, style, color=colour, lw=1.8, marker="o", ms=3, label=label)
        axis.set(title=title, xlabel=x_label)
        if log_x:
            axis.set_xscale("log")
        axis.legend(fontsize=8)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel(y_label)
    return save_figure(figure, path)


def contact_sheet(
    path: str | os.PathLike[str],
    frames: np.ndarray,
    labels: Sequence[str],
    *,
    title: str = "",
    columns: int = 6,
) -> Path:
    """Frames beside and below each other, like a photographer's contact sheet.

    Args:
      path: where to write the picture; its ending chooses the format.
      frames: `[n, H, W]` or `[n, H, W, 3]` uint8.
      labels: n, written above each.
      title: written above all.
      columns: frames in a row.

    Returns:
      The path.
    """
    rows = -(-len(frames) // columns)
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
    figure = Figure(figsize=(9, 3.8))
    axis = figure.subplots()
    axis.plot(observations, lw=1)
    axis.set(title=title, xlabel="step", ylabel="observation")
    axis.grid(alpha=0.25)
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
) -> Path:
    """Tables of numbers as colours, all on one scale: one row of pictures per key of `panels`.

    Args:
      path: where to write the picture.
      panels: row title -> column title -> values `[rows, columns]`.
      row_names: of every table.
      column_names: of every table.
      x_label: what its columns are.
      y_label: what its rows are.
      colour_label: what the numbers are.
      limits: numbers that take the ends of the scale; those beyond look like them.  If they lie on
        both sides of 0, so does the scale.

    Returns:
      The path.
    """
    num_panels = max(len(row) for row in panels.values())
    shape = (0.55 * len(column_names) + 0.6, 0.26 * len(row_names) + 0.75)
    size = (shape[0] * num_panels + 2.0, shape[1] * len(panels) + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(panels), num_panels, squeeze=False, sharex=True, sharey=True)
    colours = "RdBu" if limits[0] < 0 < limits[1] else "viridis_r"
    for axis_row, (row_title, row) in zip(axes, panels.items(), strict=True):
        for axis, (title, values) in zip(axis_row, row.items(), strict=False):
            image = axis.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
            for (i, j), value in np.ndenumerate(values):
                # Dark where the scale is light, light where it is dark.
                red, green, blue, _ = image.cmap(image.norm(value))
                is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
                axis.text(
                    j, i, f"{round(value, 2) + 0.0:.2f}", ha="center", va="center", fontsize=6.5,
                    color="w" if is_dark else "k",
                )  # fmt: skip
            axis.set_title(f"{row_title}: {title}", fontsize=9)
            axis.set_xticks(range(len(column_names)), column_names, fontsize=7)
            axis.set_yticks(range(len(row_names)), row_names, fontsize=7)
        for axis in axis_row[len(row) :]:
            axis.set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel(x_label, fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel(y_label, fontsize=8)
    figure.colorbar(image, ax=axes, label=colour_label, shrink=0.8)
    return save_figure(figure, path)


def intervals(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]],
    *,
    x_names: Sequence[str],
    x_label: str,
    y_label: str,
) -> Path:
    """Estimates with their intervals over named places, side by side.

    Args:
      path: where to write the picture.
      panels: panel title -> label -> `(estimate, low, high)`, each `[places]`.
      x_names: names of the places.
      x_label: of every panel.
      y_label: of the first panel.

    Returns:
      The path.
    """
    figure = Figure(figsize=(max(4.2, 0.45 * len(x_names)) * len(panels), 3.8))
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    x = np.arange(len(x_names))
    for axis, (title, labelled) in zip(axes, panels.items(), strict=True):
        looks = zip(itertools.cycle(_COLOURS), itertools.cycle(_STYLES), strict=False)
        for (label, (estimate, low, high)), (colour, style) in zip(
            labelled.items(), looks, strict=False
        ):
            axis.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
            axis.plot(x, estimate, style, color=colour, lw=1.8, marker="o", ms=3, label=label)
        axis.set(title=title, xlabel=x_label)
        axis.set_xticks(x, x_names, rotation=45, ha="right", fontsize=8)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel(y_label)
    # Beside the panels, because it belongs to all of them.
    axes[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return save_figure(figure, path)
