"""Tables and picture of docs/bands.md, from bands.json: `python -m benchmarks.bands --page`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from quernel import KernelQuantileRegressor

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "bands.md", ROOT / "docs" / "images" / "bands.png"
ROUGH = "spline(0.2, 0.1)"
START, END = "<!-- coverage -->", "<!-- end -->"


def write_page(results: dict[str, Any]) -> None:
    """Replace what is between the two marks of the page, and draw the picture."""
    before, rest = PAGE.read_text().split(START)
    PAGE.write_text(f"{before}{START}\n{write_tables(results)}\n{END}{rest.split(END)[1]}")
    draw(PICTURE)


def write_tables(results: dict[str, Any]) -> str:
    """Tables of the page, from the figures of bands.json."""
    cells = list(results["coverage"].values())
    return "\n".join(
        [
            "Percent of 200 points (pointwise) and of repetitions (simultaneous, all points at once) in which 95 %",
            "bands contain the true curve, at the levels 0.1 / 0.5 / 0.9; `python -m benchmarks.bands` repeats it.",
            f"The standard error of a simultaneous coverage of 95 % is {_standard_error(cells, max):.1f} points with",
            f"the most repetitions of the table, and {_standard_error(cells, min):.1f} with the fewest.",
            "",
            *_table([one for one in cells if not _rough(one)], "band"),
            "",
            "Where the curve is far rougher than the functions of the kernel, no correction of the ridge helps, and",
            f"bands miss it: the design {ROUGH} has a sharp peak at integers, which a kernel of order 10 smooths away.",
            "",
            *_table([one for one in cells if _rough(one)], "band"),
            "",
            "Negative controls, from the same fits: without the correction, and with the density of residuals of the",
            "rows that were fitted; every fourth repetition, sample sizes up to 2,000.",
            "",
            *_table(cells, "no correction"),
            "",
            *_table(cells, "in-sample density"),
            "",
            "## Size, power and cost",
            "",
            "Percent of 200 repetitions with 500 rows in which a test rejects at 5 %, at the levels 0.1 / 0.5 / 0.9:",
            "",
            "| hypothesis tested where the truth is | rejected |",
            "|---|---|",
            *(
                f"| {name} | {' / '.join(f'{100 * share:.0f}' for share in shares)} |"
                for name, shares in results["tests"].items()
            ),
            "",
            _describe_cost(results["cost"]),
        ]
    )


def _describe_cost(cost: dict[str, float]) -> str:
    inference = cost["fit with inference"] - cost["fit"]
    many, few = ((inference + cost[name]) / cost["fit"] for name in ("band", "band of few draws"))
    return (
        f"20,000 rows, 500 features, three levels: the fit takes {cost['fit']:g} processor seconds, with\n"
        f"`inference=True` {cost['fit with inference']:g}, and simultaneous bands at all 20,000 rows, by 2,000 draws, "
        f"{cost['band']:g} more:\na band costs {many:.1f} fits, and {few:.1f} by 200 draws."
    )


def _standard_error(records: list[dict[str, Any]], choose: Any) -> float:
    """Of a share of 95 %, in points, with the most or fewest repetitions of the smooth designs."""
    return 100 * float(np.sqrt(0.95 * 0.05 / choose(one["repetitions"] for one in records if not _rough(one))))


def _rough(record: dict[str, Any]) -> bool:
    return record["cell"]["design"] == "spline" and record["cell"]["r"] == 0.2


def _table(records: list[dict[str, Any]], variant: str) -> list[str]:
    lines = [f"| {variant}: design | n | repetitions | pointwise | simultaneous |", "|---|---|---|---|---|"]
    for record in records:
        if variant not in record["sums"] or (variant != "band" and _rough(record)):
            continue
        cell, repetitions = record["cell"], record["sums"][variant]["repetitions"]
        mean = np.array(record["sums"][variant]["sum"]) / repetitions
        name = f"spline({cell['r']:g}, {cell['gamma']:g})" if cell["design"] == "spline" else cell["design"]
        each, every = (" / ".join(f"{100 * value:.1f}" for value in mean[:, k]) for k in (0, 1))
        lines.append(f"| {name} | {cell['n']:,} | {repetitions} | {each} | {every} |")
    return lines


def draw(path: Path) -> None:
    """Bands of three levels over one column, beside the true curves, for 300 and 3,000 rows."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    grid = np.linspace(0, 10, 200)[:, None]
    for axis, n in zip(axes, (300, 3_000), strict=True):
        rng = np.random.default_rng(1)
        X = rng.uniform(0, 10, (n, 1))
        y = np.sin(X[:, 0]) + (0.2 + 0.06 * X[:, 0]) * rng.standard_normal(n)
        model = KernelQuantileRegressor([0.1, 0.5, 0.9], bandwidth="auto", inference=True, random_state=0).fit(X, y)
        every, each = (model.predict_band(grid, simultaneous=both) for both in (True, False))
        axis.plot(X[:, 0], y, ".", color="0.75", markersize=3 if n < 1_000 else 1, zorder=0)
        for k, (colour, z) in enumerate((("#4477aa", -1.2816), ("#228833", 0.0), ("#cc6677", 1.2816))):
            axis.fill_between(grid[:, 0], every[:, k, 0], every[:, k, 1], color=colour, alpha=0.2, linewidth=0)
            axis.fill_between(grid[:, 0], each[:, k, 0], each[:, k, 1], color=colour, alpha=0.35, linewidth=0)
            truth = np.sin(grid[:, 0]) + (0.2 + 0.06 * grid[:, 0]) * z
            axis.plot(grid[:, 0], truth, color=colour, linewidth=1.3, label=f"true {(0.1, 0.5, 0.9)[k]:g} quantile")
        axis.set(title=f"{n:,} rows", xlabel="x", ylim=(-3, 3), xlim=(0, 10))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("y")
    axes[0].legend(fontsize=8, loc="lower left", frameon=False)
    figure.savefig(path, dpi=90)
    plt.close(figure)
