"""Pictures: what is drawn is what was given, and a file is whole or untouched."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from bqfd_jax.runs import plots


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be saved, in order."""
    figures = []
    save = plots.save_figure

    def keep(figure, path):
        figures.append(figure)
        return save(figure, path)

    monkeypatch.setattr(plots, "save_figure", keep)
    return figures


def test_curves_show_mean_and_middle_half(drawn, tmp_path):
    values = np.array([[0.0, 10.0], [1.0, 20.0], [2.0, 30.0], [3.0, 40.0], [100.0, 50.0]])
    curve, other = plots.over_seeds(values), plots.over_seeds(-values)
    panels = {"one": {"a": curve}, "two": {"a": curve, "b": other}}
    references = {"two": {"best possible": 7.0}}
    path = plots.lines(tmp_path / "c.png", panels, x_label="x", y_label="y", references=references)
    assert path.stat().st_size > 0
    one, two = drawn[0].axes
    (line,) = one.lines
    np.testing.assert_array_equal(line.get_xdata(), [1, 2])
    np.testing.assert_allclose(line.get_ydata(), [21.2, 30.0])
    band = one.collections[0].get_paths()[0].vertices
    assert {1.0, 3.0} <= set(band[band[:, 0] == 1, 1])
    assert {20.0, 40.0} <= set(band[band[:, 0] == 2, 1])
    assert band[:, 1].max() < 100
    assert [text.get_text() for text in two.get_legend().get_texts()] == ["best possible", "a", "b"]
    assert set(two.lines[0].get_ydata()) == {7.0}
    assert (one.get_title(), one.get_xlabel(), one.get_ylabel()) == ("one", "x", "y")


def test_a_single_point_is_visible(drawn, tmp_path):
    panels = {"p": {"a": plots.Line(np.ones(1), np.ones(1))}}
    plots.lines(tmp_path / "c.png", panels, x_label="x", y_label="y")
    assert drawn[0].axes[0].lines[0].get_marker() == "o"


def test_an_agent_has_its_colour_wherever_it_stands(drawn, tmp_path):
    line = plots.Line(np.arange(2), np.arange(2))
    panels = {
        "one": {"dqn": line, "BQfD": line},
        "two": {"bqfd (strong)": line, "DQfD": line, "bqfd (weak)": line, "PDD DQN alone": line},
    }
    plots.lines(tmp_path / "c.png", panels, x_label="x", y_label="y")
    looks = [
        {drawn_line.get_label(): (drawn_line.get_color(), drawn_line.get_linestyle())}
        for axis in drawn[0].axes
        for drawn_line in axis.lines
    ]
    of = {label: look for entry in looks for label, look in entry.items()}
    assert of["BQfD"][0] == of["bqfd (strong)"][0] == of["bqfd (weak)"][0]
    assert of["bqfd (strong)"] != of["bqfd (weak)"]
    assert len({of[name][0] for name in ("dqn", "BQfD", "DQfD", "PDD DQN alone")}) == 4


def test_grids_hide_what_cannot_be_reached_and_have_a_scale_each(drawn, tmp_path):
    values = np.array([[1.0, 1e3], [-2.0, 0.5]])
    paths = np.array([[0, 1], [0, 0]])
    panels = {"case": {"a": (values, paths), "b": (values / 10, paths)}}
    plots.grids(tmp_path / "g.png", panels, colour_label="gap", goals={"case": "X"})
    first, second = drawn[0].axes[:2]
    shown = first.images[0].get_array()
    assert shown.mask.tolist() == [[False, True], [False, False]]
    assert first.images[0].get_clim() == (-2.0, 2.0)
    assert second.images[0].get_clim() == (-0.2, 0.2)
    assert [line.get_xdata().tolist() for line in first.lines] == [[0, 1], [0, 0]]
    assert first.get_title() == "case: a"
    assert [(text.get_text(), text.xy) for text in first.texts] == [("X", (1, 1))]


def test_grids_of_zeros_can_be_drawn(tmp_path):
    panels = {"case": {"a": (np.zeros((2, 2)), np.zeros((1, 2), int))}}
    assert plots.grids(tmp_path / "g.png", panels, colour_label="gap", goals={}).exists()


def test_heat_maps_share_one_scale_and_show_the_numbers(tmp_path, drawn):
    panels = {"bomb": {"a": np.array([[0.0, 0.25]]), "b": np.array([[2.0, 0.5]])}}
    plots.heat_maps(
        tmp_path / "h.png",
        panels,
        row_names=["good"],
        column_names=["1", "30"],
        x_label="x",
        y_label="y",
        colour_label="regret",
        limits=(0.0, 1.0),
        note="below",
    )
    first, second = drawn[0].axes[:2]
    assert first.images[0].get_clim() == second.images[0].get_clim() == (0.0, 1.0)
    assert [text.get_text() for text in second.texts] == ["2.00", "0.50"]
    assert [label.get_text() for label in first.get_xticklabels()] == ["1", "30"]
    assert (second.get_title(), first.get_ylabel()) == ("bomb: b", "y")
    assert drawn[0].get_supxlabel() == "below"


def test_a_label_does_not_touch_the_names_of_the_rows(tmp_path, drawn):
    panels = {"treasure": {"a": np.zeros((2, 2))}}
    plots.heat_maps(
        tmp_path / "h.png",
        panels,
        row_names=["right until 90%", "always wrong"],
        column_names=["1", "30"],
        x_label="x",
        y_label="expert",
        colour_label="regret",
        limits=(0.0, 1.0),
        numbers=False,
    )
    (figure,) = drawn
    figure.draw_without_rendering()
    axis = figure.axes[0]
    names = min(label.get_window_extent().x0 for label in axis.get_yticklabels())
    assert axis.yaxis.label.get_window_extent().x1 < names
    assert not axis.texts


def test_intervals_are_drawn_around_their_estimates_and_nothing_joins_them(tmp_path, drawn):
    estimate, low, high = np.array([1.0, 2.0]), np.array([0.5, 1.0]), np.array([2.0, 4.0])
    line = plots.Line(np.arange(2), estimate, low, high)
    same = plots.Line(*np.array([[0], [3.0], [2.5], [3.5]]))
    panels = {"bomb": {"a": line, "everywhere": same}}
    plots.intervals(tmp_path / "i.png", panels, x_names=["p", "q"], x_label="x", y_label="y")
    (axis,) = drawn[0].axes
    assert set(axis.lines[0].get_ydata()) == {3.0}
    assert axis.lines[0].get_label() == "everywhere"
    (container,) = axis.containers
    points, _, (bars,) = container
    assert points.get_ydata().tolist() == [1.0, 2.0]
    assert points.get_linestyle() == "None"
    assert [bar[:, 1].tolist() for bar in bars.get_segments()] == [[0.5, 2.0], [1.0, 4.0]]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["p", "q"]


def test_a_failed_picture_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "p.png"
    path.write_bytes(b"old")

    def fail(self, target, **options):
        target.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="no space"):
        plots.save_figure(Figure(), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
