"""Logarithmic axes with the sizes that were run on one of them, and labelled ticks on the other however short it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MINUS = "\u2212"
# Multiples of a decade that are named, coarse before fine.
STEPS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), tuple(np.arange(10, 100) / 10))


def log_log(ax: Any, sizes: Sequence[float], *, most: int = 6) -> None:
    """Both axes logarithmic; at most so many of the sizes are named, the ends among them."""
    ax.set_xscale("log")
    ax.set_yscale("log")
    named = np.geomspace(sizes[0], sizes[-1], min(most, len(sizes)))
    ticks = sorted({min(sizes, key=lambda size: abs(np.log(size / at))) for at in named})
    label_ticks(ax, ticks)
    label_decades(ax)


def label_ticks(ax: Any, ticks: Sequence[float], *, least: float = 0.1, **text: Any) -> None:
    """Ticks on the logarithmic axis of x; those whose labels would collide with others stay without.

    It looks at the limits of the axis: call it when all is drawn.

    Parameters
    ----------
    least : the least distance of two labels, as a share of the axis
    text : how the labels are written, such as rotation=45
    """
    labelled = far_apart(ticks, ax.get_xlim(), least=least)
    ax.set_xticks(list(ticks), [f"{tick:,.10g}" if tick in labelled else "" for tick in ticks], **text)
    ax.xaxis.minorticks_off()


def far_apart(ticks: Sequence[float], limits: Sequence[float], *, least: float) -> list[float]:
    """Of ascending ticks the two ends, and in between those that keep the distance: a share of a logarithmic axis.

    Ends that are too close to each other leave the last one.
    """
    gap = least * abs(np.log(limits[1] / limits[0]))
    kept: list[float] = []
    for tick in ticks[:-1]:
        before = not kept or np.log(tick / kept[-1]) >= gap
        if before and np.log(ticks[-1] / tick) >= gap:
            kept.append(tick)
    return [*kept, *ticks[-1:]]


def label_decades(ax: Any, which: str = "y") -> None:
    """Whole decades on a long axis, and finer steps on one that would have a single label otherwise.

    It looks at the limits of the axis: call it when all is drawn.
    """
    axis = ax.yaxis if which == "y" else ax.xaxis
    low, high = sorted(axis.get_view_interval())
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for steps in STEPS:
        ticks = np.outer(decades, steps).ravel()
        ticks = ticks[(ticks >= low) & (ticks <= high)]
        if len(ticks) >= 2:
            break
    ticks = far_apart(ticks, (low, high), least=0.08 if which == "y" else 0.1)
    axis.set_ticks(ticks, labels=[_power(tick) if which == "y" else f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


def _power(value: float) -> str:
    exponent = int(np.floor(np.log10(value) + 1e-9))
    factor = f"{value / 10.0**exponent:.2g}"
    return rf"$10^{{{exponent}}}$" if factor == "1" else rf"${factor} \cdot 10^{{{exponent}}}$"
