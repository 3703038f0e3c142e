"""The fan chart shows every level once, whatever the levels, and leaves no trace outside its axes."""

import subprocess
import sys

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")

from matplotlib.collections import PathCollection, PolyCollection  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from quernel.plots import fan_chart, house_style, save_figure  # noqa: E402

GRID = np.linspace(0, 1, 20)


def curves_for(levels):
    return GRID[:, None] + np.asarray(levels)


def draw(levels, **options):
    rng = np.random.default_rng(0)
    x = rng.random(200)
    return fan_chart(x, x + rng.random(200), GRID, curves_for(levels), levels, **options)


def bands(ax):
    return [artist for artist in ax.collections if isinstance(artist, PolyCollection)]


def points(ax):
    return [artist for artist in ax.collections if isinstance(artist, PathCollection)]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


CASES = {
    "bands and median": (
        [0.05, 0.25, 0.5, 0.75, 0.95],
        ["data", "median", "middle 50 %", "middle 90 %"],
    ),
    "no median": ([0.1, 0.9], ["data", "middle 80 %"]),
    "median alone": ([0.5], ["data", "median"]),
    "no pair at all": ([0.1, 0.3], ["data", "10 % quantile", "30 % quantile"]),
    "pair and single": ([0.025, 0.5, 0.9, 0.975], ["data", "median", "middle 95 %", "90 % quantile"]),
    "pairs despite rounding": ([0.1, 1 - 0.1 - 0.1, 0.9], ["data", "middle 80 %", "80 % quantile"]),
}


@pytest.mark.parametrize("case", CASES)
def test_every_level_is_drawn_and_named(case):
    levels, names = CASES[case]
    assert legend(draw(levels)) == names


def test_wider_bands_are_paler_and_drawn_first():
    levels = [0.01, 0.1, 0.25, 0.75, 0.9, 0.99]
    drawn = bands(draw(levels))
    heights = [np.ptp(band.get_paths()[0].vertices[:, 1]) for band in drawn]
    lightness = [sum(to_rgb(band.get_facecolor()[0][:3])) for band in drawn]
    assert len(drawn) == 3
    assert heights == sorted(heights, reverse=True)
    assert lightness == sorted(lightness, reverse=True)
    assert len(set(lightness)) == 3


def test_many_levels_keep_a_short_legend():
    ax = draw(np.arange(1, 100) / 100)
    assert len(bands(ax)) == 49
    assert legend(ax) == ["data", "median", *(f"middle {share} %" for share in (2, 26, 50, 74, 98))]


@pytest.mark.parametrize(("max_points", "shown"), [(50, 50), (200, 200), (4000, 200)])
def test_at_most_max_points_rows_are_shown(max_points, shown):
    (scatter,) = points(draw([0.5], max_points=max_points))
    assert len(scatter.get_offsets()) == shown


def test_no_points_no_scatter():
    ax = draw([0.5], max_points=0)
    assert not points(ax)
    assert legend(ax) == ["median"]


def test_the_same_data_give_the_same_points():
    one, two = (points(draw([0.5], max_points=50))[0].get_offsets() for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert len(np.unique(one[:, 0])) == 50


def test_a_grid_in_any_order_gives_the_same_picture():
    order = np.random.default_rng(1).permutation(len(GRID))
    curves = curves_for([0.5])
    straight, shuffled = (
        fan_chart([0.5], [1.0], GRID[rows], curves[rows], [0.5]).lines[0].get_xydata() for rows in (slice(None), order)
    )
    np.testing.assert_array_equal(straight, shuffled)


def test_scalar_level_and_dates_are_welcome():
    days = np.datetime64("2024-01-01") + np.arange(20)
    ax = fan_chart(days, GRID, days, GRID, 0.5)
    ax.figure.canvas.draw()
    assert legend(ax) == ["data", "median"]


def test_given_axes_are_used_and_texts_are_set():
    figure = Figure()
    ax = figure.add_subplot()
    assert draw([0.1, 0.9], ax=ax, x_label="speed", y_label="power", title="Wind") is ax
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title(loc="left")) == ("speed", "power", "Wind")


def test_pyplot_and_the_users_settings_are_left_alone():
    before = dict(matplotlib.rcParams)
    draw([0.1, 0.5, 0.9], title="Wind")
    assert dict(matplotlib.rcParams) == before
    with house_style():
        assert dict(matplotlib.rcParams) != before  # the style does change something, inside
    code = (
        "import sys, quernel.plots as plots; assert 'matplotlib' not in sys.modules\n"
        "plots.fan_chart([0, 1], [0, 1], [0, 1], [[0, 1], [1, 2]], [0.1, 0.9])\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib"):
        draw([0.5])


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_figures_are_written_whole(tmp_path, ending, magic):
    path = tmp_path / f"fan.{ending}"
    assert save_figure(draw([0.1, 0.5, 0.9], title="Wind").figure, path) == path
    assert path.read_bytes().startswith(magic)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "fan.png"
    path.write_text("old")
    figure = draw([0.5]).figure

    def half(draft, **_):
        draft.write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(figure, "savefig", half)
    with pytest.raises(OSError, match="disk full"):
        save_figure(figure, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_save_figure_refuses_missing_folders_and_unknown_endings(tmp_path):
    figure = draw([0.5]).figure
    with pytest.raises(FileNotFoundError, match="Create it first"):
        save_figure(figure, tmp_path / "absent" / "fan.png")
    with pytest.raises(ValueError, match=r"must end in one of .*png.*got 'fan.xyz'"):
        save_figure(figure, tmp_path / "fan.xyz")


BAD = {
    "levels descend": ({"quantiles": [0.9, 0.1]}, "strictly ascending"),
    "level 1": ({"quantiles": [0.5, 1.0]}, "strictly between 0 and 1"),
    "columns": ({"quantiles": [0.1, 0.5, 0.9]}, r"curves must have shape .* \(20, 3\)"),
    "grid": ({"grid": GRID[:5]}, r"= \(5, 2\)"),
    "x and y": ({"x": [0.0]}, "x and y must both have shape"),
    "max_points": ({"max_points": -1}, "max_points must be 0 or more"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_by_name(case):
    change, message = BAD[case]
    good = {"x": GRID, "y": GRID, "grid": GRID, "curves": curves_for([0.1, 0.9]), "quantiles": [0.1, 0.9]}
    fan_chart(**good)
    with pytest.raises(ValueError, match=message):
        fan_chart(**(good | change))
