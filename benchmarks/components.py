"""`python -m benchmarks.components`: n_components="auto" beside 2,000 features, in held-out pinball loss.

Prints a table: for each data set and number of rows, the numbers of features that were chosen, the mean held-out loss,
and its difference from that of 2,000 features, on the same rows but from a draw of their own, with its standard error
over repetitions. The difference between draws is part of that error: it is larger than that between held-out rows.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quernel import KernelQuantileRegressor
from quernel.datasets import load_wind, make_heteroscedastic, make_homoscedastic

LEVELS = [0.1, 0.5, 0.9]
MANY = 2000
TEST_ROWS = 5000


@dataclass(frozen=True, eq=False)
class Comparison:
    """Losses of every held-out row under "auto" and under 2,000 features (repetitions, rows); M chosen; seconds."""

    auto: np.ndarray
    many: np.ndarray
    chosen: list[int]
    seconds: np.ndarray

    @property
    def differences(self) -> np.ndarray:
        """How much more "auto" loses, in every repetition."""
        return np.mean(self.auto - self.many, axis=1)

    @property
    def excess(self) -> float:
        """The mean difference."""
        return float(self.differences.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean difference, from the repetitions."""
        return float(self.differences.std(ddof=1) / np.sqrt(len(self.differences)))


def wind(n: int, seed: int) -> tuple[np.ndarray, ...]:
    data = load_wind()
    order = np.random.default_rng(seed).permutation(len(data.y))
    train, test = order[:n], order[n : n + TEST_ROWS]
    return data.X[train], data.y[train], data.X[test], data.y[test]


def simulated(make: Callable, n: int, seed: int) -> tuple[np.ndarray, ...]:
    X, y, _ = make(n + TEST_ROWS, random_state=seed)
    return X[:n], y[:n], X[n:], y[n:]


DATA = {
    "wind": wind,
    "homoscedastic": lambda n, seed: simulated(make_homoscedastic, n, seed),
    "heteroscedastic": lambda n, seed: simulated(make_heteroscedastic, n, seed),
}


def fitted(settings: dict, levels, X, y, X_new, y_new) -> tuple[np.ndarray, int, float]:
    """The loss of every held-out row, mean over the levels; number of features; seconds of the fit."""
    model = KernelQuantileRegressor(levels, **({"bandwidth": "auto"} | settings))
    start = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - start
    residual = y_new[:, None] - model.predict(X_new)
    loss = np.maximum(np.multiply(levels, residual), np.subtract(levels, 1) * residual)
    return loss.mean(axis=1), model.n_components_, seconds


def compare(name: str, n: int, repetitions: int, levels=LEVELS, numbers=("auto", MANY), tol=1e-6) -> Comparison:
    """Two numbers of features on the same rows, repeatedly."""
    runs = []
    for seed in range(repetitions):
        rows = DATA[name](n, seed)
        settings = [
            {"n_components": number, "random_state": seed + 1000 * k, "tol": tol} for k, number in enumerate(numbers)
        ]
        runs.append([fitted(one, levels, *rows) for one in settings])
    auto, many = (np.array([run[k][0] for run in runs]) for k in (0, 1))
    return Comparison(auto, many, [run[0][1] for run in runs], np.array([[one[2] for one in run] for run in runs]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.components", description=__doc__)
    parser.add_argument("data", nargs="*", help=f"some of {', '.join(DATA)}; all, if none is named")
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--repetitions", type=int, default=6)
    parser.add_argument("--number", default="auto", help="a number of features to stand in the place of auto")
    options = parser.parse_args()
    number = int(options.number) if options.number.isdigit() else options.number
    head = ("data", "rows", "M (times)", "held-out loss of 2,000", f"{number} - 2,000", "(se)", "seconds")
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for name in options.data or DATA:
        found = compare(name, options.rows, options.repetitions, numbers=(number, MANY))
        chosen = ", ".join(f"{M:,} ({times})" for M, times in sorted(Counter(found.chosen).items()))
        level = found.many.mean()
        differences = [f"{value / level:+.2%}" for value in (found.excess, found.error)]
        auto, many = found.seconds.mean(axis=0)
        cells = (name, f"{options.rows:,}", chosen, f"{level:.4g}", *differences, f"{auto:.2g} against {many:.2g}")
        print(f"| {' | '.join(cells)} |".replace("+0.00%", "0.00%"), flush=True)


if __name__ == "__main__":
    main()
