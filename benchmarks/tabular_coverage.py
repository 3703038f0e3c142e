"""`python -m benchmarks.tabular_coverage`: coverage of intervals on new rows, simulated.

Shares of new rows inside 50, 80 and 90 % intervals of methods with their defaults, over sizes and numbers of columns,
of which five at most matter; standard normal columns, errors whose scale varies. The mark "off" is at more than four
points. Results are kept in benchmarks/tabular_coverage.json, what is there is not measured again, and docs/accuracy.md
shows them (`python -m benchmarks.tables`).
"""

import argparse
import json
from pathlib import Path

import numpy as np

from quernel import TabularQuantileRegressor

FILE = Path(__file__).with_suffix(".json")
COVERAGES = (0.5, 0.8, 0.9)
SIZES = {100: 20, 300: 8, 1000: 3, 5000: 1}  # and repetitions
COLUMNS = (1, 5, 20, 100)
NEW_ROWS = 2000


def simulate(n: int, d: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, d))
    some = X[:, : min(d, 5)]
    mean = some[:, 0] + np.sin(2 * some[:, -1]) + some.sum(axis=1) / np.sqrt(5)
    return X, mean + (0.5 + 0.5 * np.abs(some[:, 0])) * rng.standard_normal(n)


def tabular(X, y, X_new, seed):
    model = TabularQuantileRegressor(random_state=seed).fit(X, y)
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


METHODS = {"tabular": tabular, "quantile forest": forest, "LightGBM": lightgbm}


def measure(n: int, d: int, method: str) -> list[float]:
    """Shares of new rows inside the intervals, all repetitions pooled."""
    shares = []
    for seed in range(SIZES[n]):
        rng = np.random.default_rng([seed, n, d])
        (X, y), (X_new, y_new) = simulate(n, d, rng), simulate(NEW_ROWS, d, rng)
        bounds = METHODS[method](X, y, X_new, seed)
        shares.append([np.mean((low <= y_new) & (y_new <= high)) for low, high in (one.T for one in bounds)])
    return np.mean(shares, axis=0).tolist()


def render_table(results: dict[str, list[float]]) -> str:
    """What was measured, in Markdown."""
    lines = [f"| rows | columns | {' | '.join(METHODS)} |", f"|---:|---:|{'---:|' * len(METHODS)}"]
    for n in SIZES:
        for d in COLUMNS:
            cells = []
            for method in METHODS:
                shares = results.get(f"{n}, {d}, {method}", [])
                off = any(abs(one - aim) > 0.04 for one, aim in zip(shares, COVERAGES, strict=False))
                cells.append(" / ".join(f"{100 * one:.0f}" for one in shares) + (" off" if off else ""))
            if any(cells):
                lines.append(f"| {n:,} | {d} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tabular_coverage", description=__doc__)
    parser.add_argument("--method", action="append", choices=list(METHODS), help="only this method; may be repeated")
    options = parser.parse_args()
    results = read_results()
    for n in SIZES:
        for d in COLUMNS:
            for method in options.method or METHODS:
                if f"{n}, {d}, {method}" not in results:
                    results[f"{n}, {d}, {method}"] = measure(n, d, method)
                    FILE.write_text(json.dumps(results, indent=1) + "\n")
    print(render_table(results))


def read_results() -> dict[str, list[float]]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


if __name__ == "__main__":
    main()
