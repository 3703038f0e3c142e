"""Table and picture of docs/shapes.md, from shapes.json: `python -m benchmarks.shapes --page`."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "shapes.md", ROOT / "docs" / "images" / "shapes.png"
START, END = "<!-- cars -->", "<!-- end -->"


def write_page(results: dict[str, Any]) -> None:
    """Replace what is between the two marks of the page, and draw the picture."""
    before, rest = PAGE.read_text().split(START)
    PAGE.write_text(f"{before}{START}\n{write_tables(results)}\n{END}{rest.split(END)[1]}")
    draw(PICTURE, results["fans"])


def write_tables(results: dict[str, Any]) -> str:
    """What is between the marks, from the figures of shapes.json."""
    cars, full, cost = results["cars"], results["all columns"], results["cost"]
    ratio, n_rows = cost["with shapes"] / cost["free"], np.array([one["rows"] for one in cars["kernel, free"]])
    about = f"""Means over {len(n_rows)} splits of {_range(n_rows[:, 0])} cars to fit and {_range(n_rows[:, 1])} to
        judge; prices in pounds. Settings were chosen on other cars than those that are judged. The loss is the mean
        pinball loss of seven levels from 0.05 to 0.95, coverage that of the 90 % interval. Violations are the share of
        steps in the wrong direction, and the longest way in it, along lines of mileage and year: where the fit checks
        whole lines (250 training cars, the grid), and through 300 new cars at 101 equal steps over the whole range of
        the column, where most combinations do not occur."""
    summary = f"""Shapes change the loss of the tabular estimator by {_changes(cars, "tabular")} in the two splits, and
        that of the kernel estimator, with 300 features here, by {_changes(cars, "kernel")}. With all columns of the
        table (brand, model, transmission and fuel, too) {_losses(full, "tabular")}, and {_losses(full, "kernel")}.
        With 10,000 simulated rows of 5 columns, 300 features and three levels the kernel estimator takes
        {cost["free"]:g} processor seconds, and with two monotone columns {cost["with shapes"]:g}, {ratio:.1f} times as
        long; it is more where many constraints bind, as in the table."""
    head = "| estimator | loss | coverage | below 0 | on the grid | elsewhere | processor seconds |"
    table = [head, "|---|---|---|---|---|---|---|", *(_line(name, runs) for name, runs in cars.items())]
    return "\n".join([_wrap(about), "", *table, "", _wrap(summary)])


def _wrap(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120)


def _mean(runs: list[dict[str, Any]], *keys: str) -> float:
    values: list[Any] = list(runs)
    for key in keys:
        values = [one[key] for one in values]
    return float(np.mean(values))


def _line(name: str, runs: list[dict[str, Any]]) -> str:
    grid, elsewhere = (
        f"{100 * _mean(runs, place, 'share'):.2g} %, {_mean(runs, place, 'largest'):,.0f}"
        for place in ("grid", "elsewhere")
    )
    below, values = sum(one["below bound"] for one in runs), sum(7 * one["rows"][1] for one in runs)
    shares = f"{100 * _mean(runs, 'coverage'):.1f} % | {below} of {values:,}"
    return f"| {name} | {_mean(runs, 'loss'):,.0f} | {shares} | {grid} | {elsewhere} | {_mean(runs, 'seconds'):.0f} |"


def _changes(cars: dict[str, Any], estimator: str) -> str:
    pairs = zip(cars[f"{estimator}, free"], cars[f"{estimator}, with shapes"], strict=True)
    return " and ".join(f"{100 * (shaped['loss'] / free['loss'] - 1):+.1f} %" for free, shaped in pairs)


def _losses(cars: dict[str, Any], estimator: str) -> str:
    free, shaped = (f"{_mean(cars[f'{estimator}, {kind}'], 'loss'):,.0f}" for kind in ("free", "with shapes"))
    return f"the {estimator} one has a loss of {free}, and with shapes of {shaped} ({_changes(cars, estimator)})"


def _range(counts: Any) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,} or {high:,}"


def draw(path: Path, fans: dict[str, Any]) -> None:
    """Fans of both estimators along mileage, before and after."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), sharex=True, sharey=True, layout="constrained")
    for axis, (name, fan) in zip(axes.ravel(), fans.items(), strict=True):
        x, quantiles = np.array(fan["mileage"]) / 1000, np.array(fan["quantiles"]) / 1000
        for low, shade in ((0, 0.2), (1, 0.35)):
            ends = quantiles[:, low], quantiles[:, -1 - low]
            label = "5 to 95 %" if low == 0 else "25 to 75 %"
            axis.fill_between(x, *ends, color="#4477aa", alpha=shade, linewidth=0, label=label)
        axis.plot(x, quantiles[:, 2], color="#223355", linewidth=1.5, label="median")
        axis.set_title(name[0].upper() + name[1:], fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(frameon=False, fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("mileage, 1,000 miles")
    for axis in axes[:, 0]:
        axis.set_ylabel("price, 1,000 pounds")
    axes[0, 0].set(xlim=(0, 100), ylim=(0, None))
    figure.savefig(path, dpi=90)
    plt.close(figure)
