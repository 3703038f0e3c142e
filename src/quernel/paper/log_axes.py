"""Logarithmic axes with the sizes that were run on one of them, and labelled ticks on the other however short it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MINUS = "\u2212"


def log_log(ax: Any, sizes: Sequence[float], *, most: int = 6) -> None:
    """Both axes logarithmic; at most so many of the sizes are named, the ends among them."""
    ax.set_xscale("log")
    ax.set_yscale("log")
    named = np.geomspace(sizes[0], sizes[-1], min(most, len(sizes)))
    ticks = sorted({min(sizes, key=lambda size: abs(np.log(size / at))) for at in named})
    ax.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    ax.xaxis.minorticks_off()
    label_decades(ax)


def label_decades(ax: Any) -> None:
    """Whole decades on a long vertical axis; 1, 2 and 5 times them on one that would have a single label otherwise."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    low, high = ax.get_ylim()
    steps = (1.0,) if np.floor(np.log10(high)) - np.ceil(np.log10(low)) >= 1 else (1.0, 2.0, 5.0)
    ax.yaxis.set_major_locator(LogLocator(subs=steps))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
    ax.yaxis.minorticks_off()


def _power(value: float) -> str:
    exponent = int(np.floor(np.log10(value) + 1e-9))
    factor = round(value / 10.0**exponent)
    return rf"$10^{{{exponent}}}$" if factor == 1 else rf"${factor} \cdot 10^{{{exponent}}}$"
