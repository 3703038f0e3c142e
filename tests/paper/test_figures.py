"""Figures of the reproduction: points near their place, and labels that do not touch."""

import pytest

pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg

from quernel.paper.output import (
    SERIES,
    label_decades,
    label_ticks,
    make_panels,
    plot_errorbars,
    set_log_log,
    thin_ticks,
)


@pytest.mark.parametrize("x", [[1000, 2000, 10_000], [100, 150], [2, 150]])
def test_points_stand_within_three_percent_of_their_place(x):
    _, axes = make_panels(1, 1, size=(4, 3))
    for series in range(len(SERIES)):
        plot_errorbars(axes[0, 0], x, [1.0] * len(x), [0.1] * len(x), series=series)
    drawn = [container.lines[0].get_xdata() for container in axes[0, 0].containers]
    assert list(drawn[0]) == x
    assert all(abs(there / here - 1) < 0.03 for line in drawn for here, there in zip(x, line, strict=True))
    assert min(line[0] for line in drawn) < x[0] < max(line[0] for line in drawn)
    assert len({line[0] for line in drawn}) == len(SERIES)


def test_close_ticks_give_way_to_the_ends():
    assert thin_ticks([2, 5, 10, 50, 100, 150], (2, 150), min_distance=0.1) == [2, 5, 10, 50, 150]
    assert thin_ticks([10, 20, 40], (10, 40), min_distance=0.1) == [10, 20, 40]
    assert thin_ticks([10, 10.5], (1, 100), min_distance=0.1) == [10.5]


def labels_touch(ax, which):
    renderer = FigureCanvasAgg(ax.figure).get_renderer()
    ax.figure.draw(renderer)
    axis = ax.xaxis if which == "x" else ax.yaxis
    boxes = [text.get_window_extent(renderer) for text in axis.get_ticklabels() if text.get_text()]
    assert len(boxes) >= 2
    return any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])


@pytest.mark.parametrize("x", [[2, 5, 10, 50, 100, 150], [10, 12, 15, 20, 1000], list(range(1000, 10_001, 1000))])
def test_the_labels_of_a_narrow_panel_do_not_touch(x):
    _, axes = make_panels(1, 1, size=(2.6, 3))
    ax = axes[0, 0]
    ax.loglog(x, x)
    ax.set_xticks(x, [f"{tick:,}" for tick in x])
    assert labels_touch(ax, "x")
    label_ticks(ax, x, min_distance=0.22)
    assert not labels_touch(ax, "x")
    assert len(ax.get_xticks()) == len(x)  # the ticks stay
    set_log_log(ax, x, max_ticks=4)
    assert not labels_touch(ax, "y")


def test_the_labels_of_a_long_axis_of_decades_do_not_touch():
    _, axes = make_panels(1, 1, size=(3, 3))
    ax = axes[0, 0]
    ax.loglog([1e-30, 1.0], [1e-30, 1.0])
    label_decades(ax)
    assert not labels_touch(ax, "y")
