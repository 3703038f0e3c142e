"""`python -m benchmarks.sampling`: how features are drawn, and what it is worth.

Prints the page that it writes to docs/sampling.md. Results are kept in benchmarks/sampling.json, so that some of the
tables can be made anew: `python -m benchmarks.sampling errors norms`.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from scipy.special import ndtr, ndtri

from quernel import KernelQuantileRegressor
from quernel.datasets import make_heteroscedastic, make_homoscedastic
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian, Kernel, Laplacian, Matern, PeriodicSpline

PAGE = Path(__file__).parents[1] / "docs" / "sampling.md"
RESULTS = Path(__file__).with_suffix(".json")
SIMULATIONS = {"homoscedastic": make_homoscedastic, "heteroscedastic": make_heteroscedastic}


def features(kernel: Kernel, M: int, sampling: str, seed: int, X: np.ndarray, **settings) -> np.ndarray:
    return RandomFeatures(kernel, M, sampling=sampling, random_state=seed, **settings).fit(X).transform(X)


# The kernel itself


def kernel_errors() -> list[list]:
    """Mean squared error of Phi Phi' as a share of that of uniform sampling."""
    table = []
    for d in (5, 20):
        X, kernel = np.random.default_rng(0).standard_normal((60, d)), Gaussian(np.sqrt(d))
        K = kernel.gram(X, X)
        for M in (2 * d, 4 * d, 10 * d):
            error = {
                way: np.mean(
                    [np.mean((P @ P.T - K) ** 2) for P in (features(kernel, M, way, s, X) for s in range(150))]
                )
                for way in ("uniform", "orthogonal", "qmc")
            }
            table.append([d, M, error["uniform"], *(error[way] / error["uniform"] for way in ("orthogonal", "qmc"))])
    return table


def operator_norms(n: int = 300, draws: int = 30) -> list[list]:
    """|(K/n + alpha)^-1/2 (K_M - K)/n (K/n + alpha)^-1/2|, mean and standard error over draws."""
    table = []
    for name, make in SIMULATIONS.items():
        X, kernel = make(n, random_state=len(name)).X, Gaussian(1.0)
        K = kernel.gram(X, X) / n
        value, vector = np.linalg.eigh(K)
        for alpha in (1e-2, 1e-3, 1e-4):
            root = vector / np.sqrt(value.clip(0) + alpha)
            variants = {
                "uniform": {"sampling": "uniform"},
                "leverage": {"sampling": "leverage", "leverage_alpha": alpha},
                "no replacement": {"sampling": "leverage", "leverage_alpha": alpha, "replacement": False},
            }
            for M in (20, 50, 100, 200):
                row = [name, alpha, M]
                for settings in variants.values():
                    norms = []
                    for seed in range(draws):
                        Phi = features(kernel, M, seed=seed, X=X, **settings)
                        norms.append(np.abs(np.linalg.eigvalsh(root.T @ (Phi @ Phi.T / n - K) @ root)).max())
                    row += [np.mean(norms), np.std(norms, ddof=1) / np.sqrt(draws)]
                table.append(row)
    return table


# Risk


@dataclass
class Data:
    """Training rows, and the law of y at test rows: normal with this location and scale."""

    X: np.ndarray
    y: np.ndarray
    test: np.ndarray
    location: np.ndarray
    scale: np.ndarray


def simulated(make: Callable, tau: float, n: int, seed: int, n_test: int = 2000) -> Data:
    settings = {"tau": tau} if make is make_heteroscedastic else {}
    X, y, quantile = make(n + n_test, random_state=seed, **settings)
    test = X[n:]
    location = quantile(test, 0.5)
    return Data(X[:n], y[:n], test, location, quantile(test, float(ndtr(1.0))) - location)


def excess_risk(prediction: np.ndarray, data: Data, tau: float) -> float:
    """E rho(y - f) - min, in closed form: for normal noise  E rho_tau(e - u) = phi(u) + u (Phi(u) - tau)."""
    u = (prediction - data.location) / data.scale

    def risk(u):
        return np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi) + u * (ndtr(u) - tau)

    return float(np.mean(data.scale * (risk(u) - risk(ndtri(tau)))))


def paired(draw: Callable[[int], Data], kernel: Kernel, tau: float, M: int, alpha: float, repetitions: int) -> list:
    """Mean excess risk of uniform sampling; mean difference of leverage from it, and its standard error."""
    risks = {"uniform": [], "leverage": []}
    for seed in range(repetitions):
        data = draw(seed)
        for way, values in risks.items():
            model = KernelQuantileRegressor(
                tau, kernel=kernel, n_components=M, sampling=way, alpha=alpha, fit_intercept=False, random_state=seed
            )
            values.append(excess_risk(model.fit(data.X, data.y).predict(data.test), data, tau))
    difference = np.subtract(risks["leverage"], risks["uniform"])
    return [np.mean(risks["uniform"]), difference.mean(), difference.std(ddof=1) / np.sqrt(repetitions)]


def simulation_risks(name: str, n: int = 1000, alpha: float = 1e-4, repetitions: int = 50) -> list[list]:
    return [
        [
            name,
            tau,
            M,
            *paired(partial(simulated, SIMULATIONS[name], tau, n), Gaussian(1.0), tau, M, alpha, repetitions),
        ]
        for tau in (0.1, 0.5, 0.9)
        for M in (5, 10, 20, 50, 100)
    ]


# Where leverage might win


def clusters(rng: np.random.Generator, n: int) -> np.ndarray:
    """Nine rows in ten in one small cluster, the others spread over a square."""
    X = rng.uniform(-3, 3, (n, 2))
    inside = rng.random(n) < 0.9
    X[inside] = 0.1 * rng.standard_normal((inside.sum(), 2))
    return X


def heavy_directions(rng: np.random.Generator, n: int) -> np.ndarray:
    """Ten columns, of which two vary and eight hardly do."""
    return rng.standard_normal((n, 10)) * np.r_[2.0, 1.0, np.full(8, 0.05)]


def line(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.uniform(0, 1, (n, 1))


def square(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.uniform(0, 1, (n, 2))


DESIGNS: dict[str, tuple[Callable, Kernel, float]] = {
    "one cluster and few others, Gaussian": (clusters, Gaussian(0.7), 1e-4),
    "one cluster and few others, Matern 1/2": (clusters, Matern(1.0, nu=0.5), 1e-4),
    "two heavy directions of ten, Gaussian": (heavy_directions, Gaussian(1.0), 1e-4),
    "two heavy directions of ten, Laplacian": (heavy_directions, Laplacian(2.0), 1e-4),
    "square, wide Gaussian": (square, Gaussian(2.0), 1e-6),
    "square, narrow Gaussian": (square, Gaussian(0.15), 1e-4),
    "square, Matern 1/2": (square, Matern(0.5, nu=0.5), 1e-4),
    "line, Laplacian": (line, Laplacian(0.3), 1e-4),
    "line, wide Gaussian": (line, Gaussian(1.0), 1e-6),
    "line, spline of order 4": (line, PeriodicSpline(4), 1e-4),
    "line, spline of order 1.5": (line, PeriodicSpline(1.5), 1e-4),
}


def designed(make: Callable, seed: int, n: int = 500, n_test: int = 1000) -> Data:
    """y = sin(2 x_1) + cos(3 x_last) + 0.3 e on that design."""
    rng = np.random.default_rng(1000 + seed)
    X = make(rng, n + n_test)
    location = np.sin(2 * X[:, 0]) + np.cos(3 * X[:, min(1, X.shape[1] - 1)])
    if X.shape[1] == 1:  # periodic, so that splines can follow it
        location = np.sin(2 * np.pi * X[:, 0]) + np.cos(6 * np.pi * X[:, 0])
    y = location + 0.3 * rng.standard_normal(n + n_test)
    return Data(X[:n], y[:n], X[n:], location[n:], np.full(n_test, 0.3))


def search(repetitions: int = 30) -> list[list]:
    table = []
    for name, (make, kernel, alpha) in DESIGNS.items():
        for M in (10, 20, 50, 100):
            row = paired(partial(designed, make), kernel, 0.5, M, alpha, repetitions)
            table.append([name, M, *row, row[1] / row[0]])
    return table


# The page


def verdict(rows: list[list], at: int) -> str:
    """How often the difference in this column is clearly below or above 0, at two standard errors."""
    wins = sum(row[at] < -2 * row[at + 1] for row in rows)
    losses = sum(row[at] > 2 * row[at + 1] for row in rows)
    return f"{wins} of {len(rows)} clearly better, {losses} clearly worse, {len(rows) - wins - losses} undecided"


def markdown(head: list[str], rows: list[list]) -> str:
    def cell(value) -> str:
        return value if isinstance(value, str) else f"{value:.3g}"

    lines = [head, ["---"] * len(head), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


TEMPLATE = """# Sampling strategies, measured

Made by `python -m benchmarks.sampling`. The strategies are described in [features.md](features.md).

## The kernel

Mean squared error of the Gaussian kernel (bandwidth sqrt d, 60 normal rows, 150 draws); for `orthogonal` and `qmc` as a
share of that of `uniform`.

{errors}
## The kernel, in the norm of a ridge fit

The norm of (K/n + alpha)^-1/2 (K_M - K)/n (K/n + alpha)^-1/2, which the theory of leverage sampling bounds: mean over
30 draws and its standard error. Gaussian kernel of bandwidth 1, 300 rows of the paper's simulations. Leverage is lower
in {lower} of {cells} cells; without replacement it is lower still in {no_repeat}.

{norms}
## Risk in the paper's simulations

Excess risk over the true quantile, in closed form from the known noise distribution at 2,000 test rows; 1,000 training
rows, Gaussian kernel of bandwidth 1, alpha = 1e-4 (also that of the scores), no intercept, 50 repetitions. The
difference leverage minus uniform is taken on the same data; negative is better. Leverage, at two standard errors:
{risk_verdict}.

{risks}
## Where leverage wins in risk, and where not

500 training rows, y = signal + 0.3 e, tau = 0.5, alpha as given in the script, 30 repetitions. {best}
In all: {verdict}.

{search}"""


def page(results: dict[str, list[list]]) -> str:
    norms, found = results["norms"], results["search"]
    risks = results["homoscedastic"] + results["heteroscedastic"]
    difference = ["uniform", "leverage - uniform", "(se)"]
    return TEMPLATE.format(
        errors=markdown(["d", "M", "uniform", "orthogonal", "qmc"], results["errors"]),
        norms=markdown(
            ["design", "alpha", "M", "uniform", "(se)", "leverage", "(se)", "without replacement", "(se)"], norms
        ),
        lower=sum(row[5] < row[3] for row in norms),
        no_repeat=sum(row[7] < row[5] for row in norms),
        cells=len(norms),
        risks=markdown(["design", "tau", "M", *difference], risks),
        risk_verdict=verdict(risks, 4),
        best=best_design(found),
        verdict=verdict(found, 3),
        search=markdown(["design and kernel", "M", *difference, "relative"], found),
    )


def best_design(found: list[list]) -> str:
    won = [row for row in found if row[3] < -3 * row[4]]
    if not won:
        return "No design was found on which leverage wins by three standard errors."
    name, M, _, gain, error, relative = min(won, key=lambda row: row[5])
    return (
        f"The clearest gain is on *{name}* at M = {M}, where leverage removes {-relative:.0%} of the excess risk "
        f"({gain:.2g}, standard error {error:.1g})."
    )


PARTS: dict[str, Callable[[], list[list]]] = {
    "errors": kernel_errors,
    "norms": operator_norms,
    "homoscedastic": partial(simulation_risks, "homoscedastic"),
    "heteroscedastic": partial(simulation_risks, "heteroscedastic"),
    "search": search,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all, if none is named")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in parser.parse_args().parts or PARTS:
        results[part] = PARTS[part]()
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if results.keys() >= PARTS.keys():
        PAGE.write_text(page(results))
        print(PAGE.read_text())


if __name__ == "__main__":
    main()
