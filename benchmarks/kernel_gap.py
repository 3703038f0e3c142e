"""`kernel_gap`: how long it takes, and how tight its bracket is, as docs/theory.md says.

    python -m benchmarks.kernel_gap                     100,000 rows in a process of its own, then 30 random problems
    python -m benchmarks.kernel_gap --rows 20000

The truth of the random problems is exact kernel quantile regression on a Cholesky factor of the kernel, certified to
1e-9; tests/theory/test_kernel_gap.py takes it from another solver.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import numpy as np

from quernel import KernelQuantileRegressor
from quernel.bench import describe_machine
from quernel.data import ArrayRows, InMemoryDesign
from quernel.kernels import Gaussian, Laplacian, Matern
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.solvers import SOLVERS

LEVELS, COLUMNS, COMPONENTS, PROBLEMS = (0.1, 0.5, 0.9), 5, 300, 30
KERNELS = (Gaussian, Laplacian, Matern)


def time_large(n: int) -> None:
    """One large fit, timed and weighed."""
    rng = np.random.default_rng(0)
    X = rng.random((n, COLUMNS))
    y = np.sin(6 * X[:, 0]) + X.sum(axis=1) + 0.5 * rng.standard_normal(n)
    model = KernelQuantileRegressor(LEVELS, bandwidth="auto", n_components=COMPONENTS, random_state=0).fit(X, y)
    wall, processor = time.perf_counter(), time.process_time()
    gap = model.kernel_gap(X, y)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{n:,} rows, {COLUMNS} columns, M = {COMPONENTS}, {len(LEVELS)} levels:", end=" ")
    print(f"{wall:.0f} s ({processor:.0f} s of processor time), peak memory of the process {peak:.2f} GB")
    print(gap)


def compare(seed: int) -> tuple[float, float, float, float]:
    """(truth, lower end, upper end, upper end by the duals of the fit alone, not scaled) of a random problem."""
    rng = np.random.default_rng(seed)
    n, d, level = int(rng.integers(150, 1501)), int(rng.integers(1, 6)), float(rng.choice([0.1, 0.5, 0.9]))
    kernel, alpha = KERNELS[seed % 3](float(rng.uniform(0.2, 1.5))), float(10 ** rng.uniform(-6, -2))
    X = rng.random((n, d))
    y = np.sin(6 * X[:, 0]) + X.sum(axis=1) + rng.choice([0.05, 0.5, 1.0]) * rng.standard_normal(n)
    M = int(rng.choice([10, 30, 100, 300]))
    model = KernelQuantileRegressor(
        [level], kernel=kernel, bandwidth="auto", n_components=M, alpha=alpha, random_state=seed
    ).fit(X, y)
    (F,), gap = model.objective_, model.kernel_gap(X, y)
    K = kernel.gram(X, X)
    exact = _solve(np.linalg.cholesky(K + 1e-10 * np.eye(n)), X, y, level, alpha)
    dual = _solve(model.feature_map_.transform(X), X, y, level, alpha).dual[:, 0] / n
    alone = F - (dual @ y - dual @ K @ dual / (4 * alpha))
    return (F - exact.objective[0]) / F, gap.lower[0], gap.upper[0], alone / F


def _solve(features, X, y, level, alpha):
    problem = Problem(InMemoryDesign(ArrayRows(X, y), features=features), Pinball(np.array([level])), alpha)
    return SOLVERS["newton"](problem, tol=1e-9, max_iter=2000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--large", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.large:
        time_large(options.rows)
        return
    print(describe_machine())
    command = [sys.executable, "-m", "benchmarks.kernel_gap", "--large", "--rows", str(options.rows)]
    subprocess.run(command, check=True)
    found = np.array([compare(seed) for seed in range(PROBLEMS)])
    truth, lower, upper, alone = found[found[:, 0] > 0.01].T
    inside = np.sum((found[:, 1] <= found[:, 0] + 1e-7) & (found[:, 0] <= found[:, 2] + 1e-7))
    print(f"{PROBLEMS} random problems of 150 to 1,500 rows: the truth is inside in {inside}.")
    print(
        f"Where it exceeds 1 % ({len(truth)} problems), medians: upper / truth {np.median(upper / truth):.4f}", end=", "
    )
    print(
        f"by the duals of the fit alone {np.median(alone / truth):.2f}; lower / truth {np.median(lower / truth):.4f}."
    )


if __name__ == "__main__":
    main()
