"""`python -m benchmarks.residuals`: residuals of qpbenchmark beside our certificate, into benchmarks/residuals.json.

qpbenchmark (Caron and others) judges solvers of

    min x'P x / 2 + c'x   subject to   G x <= h,  A x = b      with multipliers z >= 0 of G and v of A

by three numbers, in the units of the problem:

    primal residual   max(|A x - b|, max(G x - h, 0)), entries of largest size
    dual residual     |P x + c + A'v + G'z|, the same
    duality gap       |x'P x + c'x + b'v + h'z|

Quantile regression is such a program in x = (u, b, p, m): residuals y - Phi u - b = p - m with p, m >= 0, of which a
mean of tau p + (1 - tau) m is paid. Its multipliers are v = -theta / n, theta the duals of our certificate.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from scipy import sparse

from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.solvers import admm, newton
from quernel.solvers.result import Result

RESULTS = Path(__file__).parent / "residuals.json"
N, M, LEVEL = 2_000, 100, 0.9
ALPHAS = (1e-2, 1e-6)
Point = tuple[np.ndarray, np.ndarray]


def draw_rows() -> tuple[np.ndarray, np.ndarray]:
    """Features (N, M) and targets (N,) of the design of docs/benchmarks.md."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(N, 3))
    y = np.exp(-X[:, 0] + X[:, 1]) - X[:, 1] * X[:, 2] + X.mean(axis=1) + rng.standard_normal(N)
    return RandomFeatures(Gaussian(1.0), M, random_state=0).fit(X).transform(X), y


def residuals_of(Phi: np.ndarray, y: np.ndarray, alpha: float, x: np.ndarray, theta: np.ndarray) -> dict[str, float]:
    """The three numbers of qpbenchmark at x = (u, b, p, m) and duals theta, by their definitions."""
    n, n_features = Phi.shape
    u, b, p, m = np.split(x, [n_features, n_features + 1, n_features + 1 + n])
    z = np.maximum(np.r_[LEVEL - theta, 1 - LEVEL + theta], 0) / n  # of p >= 0 and of m >= 0
    cost = np.r_[np.full(n, LEVEL), np.full(n, 1 - LEVEL)] / n
    stationarity = np.r_[2 * alpha * u - Phi.T @ theta / n, -theta.mean(), cost + np.r_[-theta, theta] / n - z]
    return {
        "primal": float(max(np.abs(Phi @ u + b + p - m - y).max(), np.maximum(-np.r_[p, m], 0).max())),
        "dual": float(np.abs(stationarity).max()),
        "gap": float(abs(2 * alpha * u @ u + cost @ np.r_[p, m] - y @ theta / n)),
    }


def certificate(Phi: np.ndarray, y: np.ndarray, alpha: float, x: np.ndarray, theta: np.ndarray) -> float:
    """Our gap at the same point, as a share of the objective: theta is put into its box and balanced first."""
    n, n_features = Phi.shape
    u, b = x[:n_features], x[n_features]
    theta = np.clip(theta, LEVEL - 1, LEVEL)
    signed = np.maximum(theta, 0).sum(), np.maximum(-theta, 0).sum()
    theta = np.where(theta > 0, theta * min(1, signed[1] / signed[0]), theta * min(1, signed[0] / signed[1]))
    r = y - Phi @ u - b
    loss = np.maximum(LEVEL * r, (LEVEL - 1) * r)
    gap = np.mean(loss - theta * r) + alpha * np.sum((u - Phi.T @ theta / (2 * alpha * n)) ** 2)
    return float(gap / (np.mean(loss) + alpha * u @ u))


def fit_quernel(solve: Callable[..., Result], Phi: np.ndarray, y: np.ndarray, alpha: float, tol: float) -> Point:
    """x and theta of one of our solvers."""
    rows = InMemoryDesign(ArrayRows(Phi, y), features=Phi)
    found = solve(Problem(rows, Pinball([LEVEL]), alpha, fit_intercept=True), tol=tol, max_iter=30_000)
    r = y - Phi @ found.coef[:, 0] - found.intercept[0]
    return np.r_[found.coef[:, 0], found.intercept, np.maximum(r, 0), np.maximum(-r, 0)], found.dual[:, 0]


def fit_clarabel(Phi: np.ndarray, y: np.ndarray, alpha: float, tol: float) -> Point:
    """x and theta of Clarabel on the quadratic program itself."""
    import clarabel

    n, n_features = Phi.shape
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tol
    P = sparse.diags(np.r_[np.full(n_features, 2 * alpha), np.zeros(1 + 2 * n)], format="csc")
    c = np.r_[np.zeros(n_features + 1), np.full(n, LEVEL), np.full(n, 1 - LEVEL)]
    c[n_features + 1 :] /= n
    equal = sparse.hstack([sparse.csc_matrix(np.c_[Phi, np.ones(n)]), sparse.eye(n), -sparse.eye(n)])
    positive = sparse.hstack([sparse.csc_matrix((2 * n, n_features + 1)), -sparse.eye(2 * n)])
    A = sparse.vstack([equal, positive]).tocsc()
    cones = [clarabel.ZeroConeT(n), clarabel.NonnegativeConeT(2 * n)]
    found = clarabel.DefaultSolver(P, c, A, np.r_[y, np.zeros(2 * n)], cones, settings).solve()
    return np.array(found.x), -n * np.array(found.z)[:n]


SYSTEMS: list[tuple[str, Callable[..., Point], float]] = [
    ("quernel, newton", partial(fit_quernel, newton.solve), 1e-6),
    ("quernel, admm", partial(fit_quernel, admm.solve), 1e-4),
    ("Clarabel", fit_clarabel, 1e-6),
    ("Clarabel", fit_clarabel, 1e-9),
]


def measure() -> list[dict]:
    """A row for each alpha, system and tolerance."""
    Phi, y = draw_rows()
    rows = []
    for alpha in ALPHAS:
        for name, fit, tol in SYSTEMS:
            x, theta = fit(Phi, y, alpha, tol)
            found = residuals_of(Phi, y, alpha, x, theta) | {"certificate": certificate(Phi, y, alpha, x, theta)}
            rows.append({"alpha": alpha, "system": name, "tol": tol, **found})
    return rows


def main() -> None:
    """Measure, print and write."""
    rows = measure()
    print(*rows, sep="\n")
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
