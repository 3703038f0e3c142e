"""Levels beyond the data: tails="pareto" beside a quantile forest, LightGBM and Pareto laws that do not depend on x.

    python -m benchmarks.tails          measure, write benchmarks/tails.json (some 10 minutes), then the page
    python -m benchmarks.tails page     the tables and the picture of docs/tails.md, from the JSON

Simulations have known quantiles: y = sin(4 x_1) + exp(1.5 x_0) e, 2,000 rows of three columns, where x_2 is noise. The
measure is the mean absolute error of the 0.999 quantile at 1,000 new rows, as a share of its mean absolute value.

- "one scale": the same curve of level 0.9, and one Pareto law of what exceeds it, for all x: the negative control.
- "no x": a Pareto law of y beyond its own 0.9 quantile, by pyextremes.

Tables: CRPS on a tenth of the rows, with tails and with the same fit without them.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from quernel import KernelQuantileRegressor

Array = NDArray[np.floating]

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "tails.json", HERE.parent / "docs" / "tails.md"
PICTURE = HERE.parent / "docs" / "images" / "tails.png"
DATA = HERE.parent.parent / "shared" / "data"
LEVEL, N_ROWS, N_NEW, REPETITIONS = 0.999, 2000, 1000, 40
LAWS = {
    "heavy (Student, 3 degrees)": stats.t(3),
    "light (normal)": stats.norm(),
    "light (exponential)": stats.expon(),
    "bounded (beta(2, 2))": stats.beta(2, 2, loc=-1, scale=2),
}
METHODS = ("tails", "one scale", "no x", "forest", "LightGBM")
TABLES = ("concrete", "power_plant", "wine_red", "yacht")
LEVELS = [0.1, 0.2, 0.5, 0.8, 0.9]


def location_scale(X: Array) -> tuple[Array, Array]:
    """Location and scale (n,) of the simulations."""
    return np.sin(4 * X[:, 1]), np.exp(1.5 * X[:, 0])


def fit_pareto(exceedances: Array) -> Any:
    """The generalised Pareto law of exceedances by maximum likelihood, by pyextremes; see `beyond`."""
    import pandas as pd
    from pyextremes.models import get_model

    times = pd.date_range("2000", periods=len(exceedances), freq="D")
    return get_model("MLE", pd.Series(exceedances, times), "genpareto", {"floc": 0.0})


def beyond(law: Any, probability: float) -> float:
    """What exceedances of a pyextremes model exceed with this probability."""
    return float(law.get_return_value(probability, alpha=None)[0])


def predict_all(X: Array, y: Array, new: Array, seed: int) -> tuple[dict[str, Array], Any]:
    """The 0.999 quantile of new rows by each method, and the model with tails."""
    from lightgbm import LGBMRegressor
    from quantile_forest import RandomForestQuantileRegressor

    model = KernelQuantileRegressor([0.1, 0.5, 0.9], tails="pareto", n_components=300, random_state=seed).fit(X, y)
    curve, threshold = model.predict(X, quantiles=0.9), float(np.quantile(y, 0.9))
    part = (1 - LEVEL) / 0.1
    forest = RandomForestQuantileRegressor(n_estimators=200, min_samples_leaf=5, random_state=seed).fit(X, y)
    boosted = LGBMRegressor(objective="quantile", alpha=LEVEL, n_estimators=200, verbose=-1, n_jobs=1).fit(X, y)
    return {
        "tails": model.predict(new, quantiles=LEVEL),
        "one scale": model.predict(new, quantiles=0.9) + beyond(fit_pareto((y - curve)[y > curve]), part),
        "no x": np.full(len(new), threshold + beyond(fit_pareto((y - threshold)[y > threshold]), part)),
        "forest": forest.predict(new, quantiles=LEVEL),
        "LightGBM": boosted.predict(new),
    }, model


def simulate(name: str, seed: int) -> dict[str, Any]:
    """Errors of all methods on one sample, and what the tail is said to be."""
    rng, law = np.random.default_rng(seed), LAWS[name]
    X, new = rng.uniform(0, 1, (N_ROWS, 3)), rng.uniform(0, 1, (N_NEW, 3))
    m, s = location_scale(X)
    predicted, model = predict_all(X, m + s * law.rvs(N_ROWS, random_state=rng), new, seed)
    m, s = location_scale(new)
    truth = m + s * law.ppf(LEVEL)
    errors = {key: float(np.mean(np.abs(one - truth)) / np.mean(np.abs(truth))) for key, one in predicted.items()}
    tail = model.upper_tail_
    return {"design": name, "seed": seed, "kind": tail.kind, "shape": tail.shape, "errors": errors}


def read_table(name: str) -> tuple[Array, Array]:
    """Columns and target of a UCI table; the target is the last column."""
    rows = np.loadtxt(DATA / f"uci_{name}.csv.gz", delimiter=",", skiprows=1)
    return rows[:, :-1], rows[:, -1]


def score_table(name: str, seed: int) -> dict[str, Any]:
    """CRPS with tails and without, on a tenth of the rows; or why there are no tails."""
    X, y = read_table(name)
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = order[: len(y) // 10], order[len(y) // 10 :][:4000]
    model = KernelQuantileRegressor(LEVELS, tails="pareto", n_components=300, random_state=seed)
    try:
        model.fit(X[train], y[train])
    except ValueError as refused:
        return {"table": name, "seed": seed, "refused": str(refused)}
    without = copy(model)
    without.tails = None
    return {
        "table": name,
        "seed": seed,
        "tails": model.crps(X[test], y[test]),
        "none": without.crps(X[test], y[test]),
        "shapes": [tail and round(tail.shape, 2) for tail in (model.lower_tail_, model.upper_tail_)],
    }


def measure() -> None:
    """Run everything and write the JSON after each step."""
    results: dict[str, list[dict[str, Any]]] = {"simulations": [], "tables": []}
    steps = [("tables", score_table, one, seed) for one in TABLES for seed in range(2)]
    steps += [("simulations", simulate, name, seed) for seed in range(REPETITIONS) for name in LAWS]
    for kind, run, name, seed in steps:
        results[kind].append(run(name, seed))
        print(json.dumps(results[kind][-1]), flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def make_tables(results: dict[str, list[dict[str, Any]]]) -> str:
    """The measured part of the page, as Markdown."""
    lines = ["| tail | " + " | ".join(METHODS) + " | shape | recognised |", "|---|" + "---|" * (len(METHODS) + 2)]
    for name in LAWS:
        runs = [one for one in results["simulations"] if one["design"] == name]
        means = [np.mean([one["errors"][method] for one in runs]) for method in METHODS]
        cells = [f"**{mean:.3f}**" if mean == min(means) else f"{mean:.3f}" for mean in means]
        kinds = Counter(one["kind"] for one in runs)
        recognised = f"{kinds.pop(name.split()[0], 0)} of {len(runs)}"
        others = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        shape = np.mean([one["shape"] for one in runs])
        lines.append(f"| {name} | {' | '.join(cells)} | {shape:.2f} | {recognised}{f' ({others})' if others else ''} |")
    lines += ["", "| table | CRPS with tails | without | ratio |", "|---|---|---|---|"]
    for name in TABLES:
        runs = [one for one in results["tables"] if one["table"] == name]
        if "refused" in runs[0]:
            lines.append(f"| {name} | refused: {runs[0]['refused'].split(';')[1].split('.')[0].strip()} | | |")
            continue
        tails, none = (float(np.mean([one[key] for one in runs])) for key in ("tails", "none"))
        lines.append(f"| {name} | {tails:.4g} | {none:.4g} | {tails / none:.3f} |")
    return "\n".join(lines) + "\n"


def draw(path: Path) -> None:
    """The 0.999 quantile along the column on which the scale depends: truth, tails, one scale, forest and LightGBM."""
    import matplotlib.pyplot as plt

    rng, law = np.random.default_rng(0), LAWS["heavy (Student, 3 degrees)"]
    X = rng.uniform(0, 1, (N_ROWS, 3))
    m, s = location_scale(X)
    y = m + s * law.rvs(N_ROWS, random_state=rng)
    line = np.column_stack([np.linspace(0, 1, 200), np.full(200, 0.5), np.full(200, 0.5)])
    predicted, model = predict_all(X, y, line, 0)
    fig, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
    ax.plot(X[:, 0], y, ".", color="0.75", markersize=3, label="2,000 rows")
    colours = {"tails": "C0", "one scale": "C1", "forest": "C2", "LightGBM": "C4"}
    for key, colour in colours.items():
        ax.plot(line[:, 0], predicted[key], color=colour, lw=2 if key == "tails" else 1.2, label=key)
    m, s = location_scale(line)
    ax.plot(line[:, 0], m + s * law.ppf(LEVEL), "k--", lw=1.5, label="truth")
    ax.plot(line[:, 0], model.predict(line, quantiles=0.9), color="C0", lw=1, ls=":", label="fitted level 0.9")
    ax.set(xlabel="$x_0$", ylabel="y", ylim=(-15, 75), title="The 0.999 quantile of a heavy tail whose scale grows")
    ax.legend(ncols=2, frameon=False, loc="upper left")
    ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(path, dpi=130)


def make_page() -> None:
    """Write tables and picture of docs/tails.md."""
    page = PAGE.read_text()
    head, mark, rest = page.partition("<!-- measured -->\n")
    _, end, tail = rest.partition("<!-- end -->\n")
    PAGE.write_text(head + mark + make_tables(json.loads(RESULTS.read_text())) + end + tail)
    draw(PICTURE)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:] != ["page"]:
        measure()
    make_page()
