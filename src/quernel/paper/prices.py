"""Histograms of UK used-car prices and of their logarithms, with skewness and kurtosis (`price_fig`)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.stats import kurtosis, skew

from quernel.datasets import load_used_cars
from quernel.paper.experiment import Experiment, Row, Size, Table, Task, repetitions
from quernel.paper.figures import make_panels
from quernel.paper.output import Item, OutputFolder, Section, Verdict
from quernel.plots import house_style
from quernel.plots.style import BAND_DARK, LINE

# Bars of each histogram.
BINS = 50
# Scales, as stored in results, and their axis labels.
RAW, LOG = "price", "log price"
AXES = {RAW: "price (1,000 pounds)", LOG: "natural logarithm of the price (pounds)"}


def tasks(size: Size) -> list[Task]:  # noqa: ARG001
    """A single task: all prices."""
    return repetitions(1)


def measure(task: Task, rng: np.random.Generator) -> list[Row]:  # noqa: ARG001
    """One row per bar of the two histograms, each with the moments of all prices."""
    price = load_used_cars(str(task["used_cars"])).y
    rows: list[Row] = []
    for scale, values in ((RAW, price / 1000), (LOG, np.log(price))):
        counts, edges = np.histogram(values, bins=BINS)
        moments = {"cars": len(values), "skewness": skew(values), "kurtosis": kurtosis(values, fisher=False)}
        rows += [
            {"scale": scale, "low": edges[k], "high": edges[k + 1], "count": counts[k], **moments} for k in range(BINS)
        ]
    return rows


def present(table: Table, output: OutputFolder) -> Section:
    """The two histograms with their moments."""
    return Section(
        reported=[
            "Histograms of the price of 7,632 used cars and of its logarithm, with skewness and kurtosis (in the "
            "picture only, no numbers in the text). The paper reads a notable right skew, partially mitigated by the "
            'logarithm, "there is still a tail dragging on the right".',
            "How we read it: the tail is on the side of the sign of the skewness, and mitigated if the skewness of the "
            "logarithm is smaller in size. The standard error of a skewness is taken as sqrt(6 / n), that of normal "
            "numbers.",
        ],
        items=[_figure(table, output)],
        verdicts=verdicts(table),
    )


def verdicts(table: Table) -> list[Verdict]:
    """Whether prices are skewed to the right, their logarithms less so, and those still to the right."""
    moments = {scale: table.select(scale=scale).rows[0] for scale in (RAW, LOG)}
    raw, log = (float(moments[scale]["skewness"]) for scale in (RAW, LOG))
    cars = int(moments[RAW]["cars"])
    # Standard error of the skewness of n normal numbers.
    error = np.sqrt(6 / cars)
    return [
        Verdict(
            f"The price of {cars:,} cars has its longer tail on {_name_tail(raw, error)} (skewness {raw:.2f}).",
            _is_right_skewed(raw, error),
        ),
        Verdict(
            f"The logarithm has a skewness of {log:.2f}, in size {'less' if abs(log) < abs(raw) else 'no less'} than "
            f"that of the price.",
            abs(log) < abs(raw),
        ),
        Verdict(
            f"The longer tail of the logarithm is on {_name_tail(log, error)} (skewness {log:.2f}, s.e. {error:.2f}; "
            f"kurtosis {float(moments[LOG]['kurtosis']):.2f}, 3 for a normal law).",
            _is_right_skewed(log, error),
        ),
    ]


def _is_right_skewed(skewness: float, error: float) -> bool | Literal["undecided"]:
    """Whether the skewness is positive; undecided within two standard errors of 0."""
    return skewness > 0 if abs(skewness) > 2 * error else "undecided"


def _name_tail(skewness: float, error: float) -> str:
    """The side of the longer tail as text."""
    return {True: "the right", False: "the left", "undecided": "neither side"}[_is_right_skewed(skewness, error)]


def _figure(table: Table, output: OutputFolder) -> Item:
    """The two histograms."""
    with house_style():
        figure, axes = make_panels(1, 2, size=(9.5, 3.6))
        for ax, scale in zip(axes[0], (RAW, LOG), strict=True):
            bars = table.select(scale=scale)
            low, high = bars.column("low"), bars.column("high")
            ax.bar(
                low, bars.column("count"), high - low, align="edge", color=BAND_DARK, edgecolor="white", linewidth=0.3
            )
            moments = bars.rows[0]
            text = f"skewness {moments['skewness']:.2f}\nkurtosis {moments['kurtosis']:.2f}"
            side = {"x": 0.97, "ha": "right"} if scale == RAW else {"x": 0.03, "ha": "left"}
            ax.text(y=0.95, s=text, va="top", transform=ax.transAxes, color=LINE, **side)
            ax.set(xlabel=AXES[scale], ylabel="cars")
            ax.yaxis.set_major_formatter("{x:,.0f}")
            ax.set_title(scale.capitalize(), loc="left")
    caption = "Prices of the used cars and their logarithms. Kurtosis is 3 for a normal law."
    return output.save_figure(figure, "used_car_prices", caption)


PRICES = Experiment(
    name="used_car_prices",
    label="price_fig",
    title="Prices of used cars",
    tasks=tasks,
    measure=measure,
    present=present,
    data="used_cars",
)
