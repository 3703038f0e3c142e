"""`python -m benchmarks.conditional FOLDER`: coverage in regions with `conditional="kernel"`, and what it costs.

Predictions of scikit-learn's gradient boosting, of the mean, become intervals by split conformal and by a kernel, on
simulated rows and on two tables of the folder. Coverage of new rows is counted in the deciles of each column and in
balls around 200 random rows (with a tenth of all rows each, in standard deviations). The picture is
docs/images/conditional_coverage.png. Times are for 10,000 calibration and 10,000 new rows, and beside
`conditionalconformal` for 1,000, where that is installed.
"""

import json
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks.tabular import read
from quernel import ConformalQuantileRegressor

COVERAGE = 0.9
FILE = Path(__file__).with_suffix(".json")
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "conditional_coverage.png"
KINDS = {"split conformal": {}, "by a kernel": {"conditional": "kernel", "randomize": True}}


class PointModel(BaseEstimator):
    """The mean by gradient boosting, as an interval of no width: what users of point models calibrate."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> "PointModel":
        self.model_ = HistGradientBoostingRegressor(random_state=0).fit(X, y)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.repeat(self.model_.predict(X)[:, None], 2, axis=1)


def simulate(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise whose scale depends on the second column, which the model does not see enough of to learn it well."""
    X = rng.uniform(-2, 2, (n, 3))
    return X, np.sin(2 * X[:, 0]) + (0.2 + X[:, 1] ** 2) * rng.standard_t(4, n)


def regions(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Masks (regions, n) of the deciles of each column, and of balls with a tenth of the rows around 200 of them."""
    ranks = np.argsort(np.argsort(X, axis=0), axis=0) * 10 // len(X)
    deciles = [ranks[:, j] == k for j in range(X.shape[1]) for k in range(10) if len(np.unique(X[:, j])) > 10]
    scaled = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1)
    centres = scaled[rng.choice(len(X), 200, replace=False)]
    balls = [np.argsort(np.argsort(((scaled - centre) ** 2).sum(axis=1))) < len(X) // 10 for centre in centres]
    return np.array([*deciles, *balls])


def measure(name: str, X: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> dict:
    """Coverage of both kinds in all regions of one table: half of the rows train, a quarter calibrates."""
    X, order = np.where(np.isnan(X), np.nanmedian(X, axis=0), X), rng.permutation(len(y))[:16_000]
    train, calibrate, new = np.split(order, [len(order) // 2, 3 * len(order) // 4])
    model, where, result = PointModel().fit(X[train], y[train]), regions(X[new], rng), {"table": name}
    for kind, settings in KINDS.items():
        start = time.perf_counter()
        fitted = ConformalQuantileRegressor(model, COVERAGE, method="prefit", random_state=0, **settings)
        low, high = fitted.fit(X[calibrate], y[calibrate]).predict_interval(X[new]).T
        hit = (low <= y[new]) & (y[new] <= high)
        shares = [float(hit[mask].mean()) for mask in where]
        result[kind] = {
            "coverage": float(hit.mean()), "regions": shares, "seconds": time.perf_counter() - start,
            "width": float(np.mean((high - low)[np.isfinite(high - low)])),
        }  # fmt: skip
        spread = np.std(np.array(shares) - COVERAGE)
        print(
            f"{name:12} {kind:16} coverage {hit.mean():.3f}, in regions {min(shares):.2f} to {max(shares):.2f} "
            f"(standard deviation {spread:.3f}), width {result[kind]['width']:.3g}, {result[kind]['seconds']:.1f} s",
            flush=True,
        )
    return result


def time_large(rng: np.random.Generator, n: int = 10_000) -> dict:
    """Seconds to calibrate on n rows and to predict n new ones."""
    (X, y), (X_new, _) = simulate(rng, n), simulate(rng, n)
    model = PointModel().fit(*simulate(rng, 2000))
    fitted = ConformalQuantileRegressor(model, COVERAGE, method="prefit", conditional="kernel", random_state=0)
    fitted.fit(X[:200], y[:200]).predict_interval(X_new[:2])  # compiles
    start = time.perf_counter()
    fitted.fit(X, y)
    between = time.perf_counter()
    _, error = fitted.predict_cutoff(X_new)
    result = {"rows": n, "fit": between - start, "predict": time.perf_counter() - between, "error": float(error.max())}
    print(f"{n:,} calibration and new rows: fit {result['fit']:.1f} s, cutoffs {result['predict']:.1f} s", flush=True)
    return result


def compare(rng: np.random.Generator, n: int = 1000, n_new: int = 3) -> dict | None:
    """Seconds per new row beside conditionalconformal, with the same number of calibration rows."""
    try:
        from conditionalconformal import CondConf
    except ImportError:
        print("conditionalconformal is not installed: not compared")
        return None
    (X, y), (X_new, _) = simulate(rng, 4 * n // 3), simulate(rng, 400)
    score = np.abs(y)
    theirs = CondConf(
        lambda _, y: y, lambda X: np.ones((len(X), 1)), infinite_params={"kernel": "rbf", "gamma": 0.5, "lambda": 0.005}
    )
    theirs.setup_problem(X[:n], score[:n])
    start = time.perf_counter()
    for row in X_new[:n_new]:
        theirs.predict(COVERAGE, row[None], lambda s, _: s, S_min=0.0, S_max=float(2 * score.max()), exact=False)
    other = (time.perf_counter() - start) / n_new
    model = PointModel().fit(*simulate(rng, 500))
    fitted = ConformalQuantileRegressor(model, COVERAGE, method="prefit", conditional="kernel", random_state=0)
    fitted.fit(X, y).predict_cutoff(X_new[:2])
    start = time.perf_counter()
    fitted.predict_cutoff(X_new)
    ours = (time.perf_counter() - start) / len(X_new)
    print(f"n = {n}: {1e3 * ours:.2f} ms for each new row, conditionalconformal {other:.2f} s: {other / ours:.0f} x")
    return {"rows": n, "ours": ours, "conditionalconformal": other}


def draw_picture(results: list[dict]) -> None:
    """Histograms of the coverage of regions, one panel per table."""
    figure, axes = plt.subplots(1, len(results), figsize=(3.6 * len(results), 2.8), sharex=True, layout="constrained")
    for axis, result in zip(axes, results, strict=True):
        for kind, colour in zip(KINDS, ("0.6", "tab:blue"), strict=True):
            axis.hist(result[kind]["regions"], bins=np.linspace(0.6, 1, 41), alpha=0.7, color=colour, label=kind)
        axis.axvline(COVERAGE, color="black", linewidth=1)
        axis.set(title=result["table"], xlabel="coverage of a region", yticks=[], xlim=(0.6, 1))
    axes[0].set_ylabel("regions")
    axes[0].legend(frameon=False, loc="upper left")
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    rng, folder = np.random.default_rng(0), Path(sys.argv[1])
    results = [measure("simulated", *simulate(rng, 12_000), rng)]
    results += [measure(table.name, table.X, table.y, rng) for table in read(folder, ["california", "bike"])]
    draw_picture(results)
    everything = {"tables": results, "large": time_large(rng), "peer": compare(rng)}
    FILE.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
