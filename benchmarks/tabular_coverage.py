"""`python -m benchmarks.tabular_coverage`: coverage of intervals on new rows, simulated.

Shares of new rows inside 50, 80 and 90 % intervals of methods with their defaults, over sizes and numbers of columns,
of which five at most matter; standard normal columns, errors whose scale varies. The mark "off" is at more than four
points. Results are kept in benchmarks/tabular_coverage.json: means over repetitions and, where they were kept, their
standard errors. What is there is not measured again, and docs/accuracy.md shows it (`python -m benchmarks.tables`).
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

from quernel import KernelQuantileRegressor, TabularQuantileRegressor

FILE = Path(__file__).with_suffix(".json")
COVERAGES = (0.5, 0.8, 0.9)
SIZES = {100: 20, 300: 8, 1000: 3, 5000: 1}  # and repetitions
KERNEL_SIZES = {100: 10, 300: 6, 1000: 2, 5000: 1}  # its fits take longer
COLUMNS = (1, 5, 20, 100)
Results = dict[str, dict[str, list[float]]]  # by rows, columns and method
NEW_ROWS = 2000


def simulate(n: int, d: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, d))
    some = X[:, : min(d, 5)]
    mean = some[:, 0] + np.sin(2 * some[:, -1]) + some.sum(axis=1) / np.sqrt(5)
    return X, mean + (0.5 + 0.5 * np.abs(some[:, 0])) * rng.standard_normal(n)


def tabular(X, y, X_new, seed):
    model = TabularQuantileRegressor(random_state=seed).fit(X, y)
    return [model.predict_interval(X_new, coverage) for coverage in COVERAGES]


def kernel(X, y, X_new, seed):
    levels = sorted({level for one in COVERAGES for level in ((1 - one) / 2, (1 + one) / 2)})
    model = KernelQuantileRegressor(levels, random_state=seed).fit(X, y)
    return [model.predict_interval(X_new, coverage) for coverage in COVERAGES]


def forest(X, y, X_new, seed):
    from quantile_forest import RandomForestQuantileRegressor

    model = RandomForestQuantileRegressor(random_state=seed, n_jobs=1).fit(X, y)
    return [model.predict(X_new, quantiles=[(1 - one) / 2, (1 + one) / 2]) for one in COVERAGES]


def lightgbm(X, y, X_new, seed):
    from lightgbm import LGBMRegressor

    settings = {"objective": "quantile", "verbose": -1, "n_jobs": 1, "random_state": seed}

    def level(tau: float) -> np.ndarray:
        return LGBMRegressor(alpha=tau, **settings).fit(X, y).predict(X_new)

    return [np.column_stack([level((1 - one) / 2), level((1 + one) / 2)]) for one in COVERAGES]


METHODS = {"tabular": tabular, "kernel": kernel, "quantile forest": forest, "LightGBM": lightgbm}


def measure(n: int, d: int, method: str) -> dict[str, list[float]]:
    """Shares of new rows inside the intervals, means over repetitions, and the standard errors of these.

    With one repetition the error is that of the new rows alone.
    """
    shares = []
    for seed in range((KERNEL_SIZES if method == "kernel" else SIZES)[n]):
        rng = np.random.default_rng([seed, n, d])
        (X, y), (X_new, y_new) = simulate(n, d, rng), simulate(NEW_ROWS, d, rng)
        bounds = METHODS[method](X, y, X_new, seed)
        shares.append([np.mean((low <= y_new) & (y_new <= high)) for low, high in (one.T for one in bounds)])
    mean, alone = np.mean(shares, axis=0), len(shares) == 1
    variance = mean * (1 - mean) / NEW_ROWS if alone else np.var(shares, axis=0, ddof=1) / len(shares)
    return {"inside": mean.tolist(), "error": np.sqrt(variance).tolist()}


def render_table(results: Results) -> str:
    """What was measured, in Markdown."""
    lines = [f"| rows | columns | {' | '.join(METHODS)} |", f"|---:|---:|{'---:|' * len(METHODS)}"]
    for n in SIZES:
        for d in COLUMNS:
            cells = [_render_cell(results.get(f"{n}, {d}, {method}", {})) for method in METHODS]
            if any(cells):
                lines.append(f"| {n:,} | {d} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _render_cell(found: dict[str, list[float]]) -> str:
    """Shares in percent, the largest of their standard errors, and a dagger if one is more than four points away."""
    shares = found.get("inside", [])
    error = f" ± {100 * max(found['error']):.1f}" if "error" in found else ""
    off = any(abs(one - aim) > 0.04 for one, aim in zip(shares, COVERAGES, strict=False))
    return " / ".join(f"{100 * one:.0f}" for one in shares) + error + (" †" if off else "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tabular_coverage", description=__doc__)
    parser.add_argument("--method", action="append", choices=list(METHODS), help="only this method; may be repeated")
    parser.add_argument("--rows", type=int, action="append", choices=list(SIZES), help="only this size; repeatable")
    options = parser.parse_args()
    results = read_results()
    warnings.simplefilter("ignore")  # normal columns: some new rows are always outside the range
    for n in options.rows or SIZES:
        for d in COLUMNS:
            for method in options.method or METHODS:
                if f"{n}, {d}, {method}" not in results:
                    results[f"{n}, {d}, {method}"] = measure(n, d, method)
                    FILE.write_text(json.dumps(results, indent=1) + "\n")
    print(render_table(results))


def read_results() -> Results:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


if __name__ == "__main__":
    main()
