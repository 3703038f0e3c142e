"""Coverage of confidence bands for quantile curves, in simulations whose quantile function is known.

    python -m benchmarks.bands             # all figures of bands.json and the page; resumes where it was stopped
    python -m benchmarks.bands --page      # tables and picture of docs/bands.md from bands.json

Every repetition draws rows, fits three levels with the settings that `fit` chooses from these rows, and asks whether
the 95 % bands contain the true curves at 200 fixed points: at each (pointwise) and at all of them (simultaneous). Two
negative controls share the fits: bands without the correction of the ridge's shrinkage, and bands whose density comes
from residuals of the training rows themselves.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from quernel import KernelQuantileRegressor
from quernel._files import write_atomically
from quernel.datasets import make_heteroscedastic, make_homoscedastic, make_spline
from quernel.estimators.inference import OPTIONS, CurveInference, InferenceOptions, confidence_bounds
from quernel.kernels import PeriodicSpline

RESULTS = Path(__file__).with_name("bands.json")
LEVELS, CONFIDENCE, POINTS, FEW_DRAWS = (0.1, 0.5, 0.9), 0.95, 200, 200
CONTROLS = {
    "no correction": replace(OPTIONS, corrections=0),
    "in-sample density": replace(OPTIONS, rounds=0),
}


class Recorded(KernelQuantileRegressor):
    """A model that computes its inference with several options, as `found`."""

    variants: dict[str, InferenceOptions]
    found: dict[str, CurveInference | None]

    def _estimate_inference(self, *fitted: Any) -> None:  # type: ignore[override]
        estimate = super()._estimate_inference
        self.found = {name: estimate(*fitted, options=options) for name, options in self.variants.items()}


@dataclass(frozen=True)
class Cell:
    """A design at one sample size; `r` and `gamma` of the spline design."""

    design: str
    n: int
    repetitions: int
    r: float = 0.0
    gamma: float = 0.0

    @property
    def name(self) -> str:
        return f"spline({self.r:g}, {self.gamma:g})" if self.design == "spline" else self.design

    def draw(self, seed: int) -> Any:
        if self.design == "spline":
            return make_spline(self.n, self.r, self.gamma, random_state=seed)
        make = {"homoscedastic": make_homoscedastic, "heteroscedastic": make_heteroscedastic}[self.design]
        return make(self.n, random_state=seed)

    def model(self, seed: int) -> Recorded:
        shared: dict[str, Any] = {"recalibrate": False, "noncrossing": None, "inference": True, "random_state": seed}
        if self.design == "spline":
            return Recorded(LEVELS, kernel=PeriodicSpline(1 / self.gamma), n_components=100, **shared)
        return Recorded(LEVELS, kernel="gaussian", bandwidth="auto", n_components=200, **shared)


SIZES = {500: 600, 2_000: 600, 10_000: 800}
CONTROLLED = 4  # every fourth repetition has the negative controls, too, but for the largest size
CELLS = [
    *(Cell(design, n, SIZES[n]) for n in SIZES for design in ("homoscedastic", "heteroscedastic")),
    *(Cell("spline", n, SIZES[n], *pair) for n in SIZES for pair in ((0.5, 0.1), (0.8, 0.2))),
    *(Cell("spline", n, 20, 0.2, 0.1) for n in SIZES),  # far from the truth: a few repetitions show it
]
STEPS = 20  # the repetitions of all cells grow together, in so many steps, so that a stopped run is balanced


def repeat(cell: Cell, seed: int, controls: dict[str, InferenceOptions]) -> dict[str, list[list[float]]]:
    """Of the band and the controls, per level: share of points covered, whether all are, mean width."""
    X, y, quantile = cell.draw(seed)
    model = cell.model(seed)
    model.variants = {"band": OPTIONS, **controls}
    model.fit(X, y)
    points = np.random.default_rng(0).random((POINTS, X.shape[1]))
    truth, Phi = quantile(points, LEVELS), model.feature_map_.transform(points)
    found = {}
    for name, fit in model.found.items():
        each, every = (confidence_bounds(fit, Phi, CONFIDENCE, simultaneous=both) for both in (False, True))
        inside, all_inside = ((b[..., 0] <= truth) & (truth <= b[..., 1]) for b in (each, every))
        width = (each[..., 1] - each[..., 0]).mean(axis=0)
        rows = zip(inside.mean(axis=0), all_inside.all(axis=0), width, strict=True)
        found[name] = [[round(float(a), 4), float(b), round(float(c), 5)] for a, b, c in rows]
    return found


def measure_coverage(results: dict[str, Any]) -> Iterator[str]:
    """Add the repetitions that are missing; yields what a cell has after each step."""
    for step in range(1, STEPS + 1):
        for cell in CELLS:
            key = f"{cell.name} n={cell.n}"
            record = results.setdefault(key, {"cell": asdict(cell), "repetitions": 0, "seconds": 0.0, "sums": {}})
            start = time.process_time()
            while record["repetitions"] < cell.repetitions * step // STEPS:
                seed = record["repetitions"]
                controlled = seed % CONTROLLED == 0 and cell.n < max(SIZES)
                for name, values in repeat(cell, seed, CONTROLS if controlled else {}).items():
                    old = record["sums"].setdefault(
                        name, {"repetitions": 0, "sum": np.zeros((len(LEVELS), 3)).tolist()}
                    )
                    old["sum"] = np.round(np.add(old["sum"], values), 5).tolist()
                    old["repetitions"] += 1
                record["repetitions"] += 1
            record["seconds"] = round(record["seconds"] + time.process_time() - start, 1)
            yield f"{key}: {record['repetitions']} repetitions, {record['seconds']} s"


def draw_groups(n: int, seed: int, shift: float, slope: float) -> tuple[Any, Any]:
    """y = sin(x1) + slope x2 + shift + (0.3 + 0.05 x1) e: two columns, of which the second may not matter."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 10, (n, 2))
    noise = (0.3 + 0.05 * X[:, 0]) * rng.standard_normal(n)
    return X, np.sin(X[:, 0]) + slope * X[:, 1] + shift + noise


def make_model(n_components: int, alpha: float, inference: bool = True) -> KernelQuantileRegressor:
    settings = {"kernel": "gaussian", "bandwidth": "auto", "random_state": 0}
    return KernelQuantileRegressor(LEVELS, n_components=n_components, alpha=alpha, inference=inference, **settings)


def measure_tests(n: int = 500, repetitions: int = 200) -> dict[str, list[float]]:
    """Share of repetitions in which each hypothesis is rejected at 5 %, per level."""
    rejected: dict[str, list[Any]] = {}
    grid = draw_groups(50, 0, 0, 0)[0]
    for seed in range(repetitions):
        plain, again, shifted, sloped = (
            make_model(100, 2e-4).fit(*draw_groups(n, 10 * seed + k, shift, slope))
            for k, (shift, slope) in enumerate(((0, 0), (0, 0), (0.3, 0), (0, 0.06)))
        )
        for name, test in {
            "column that does not matter": plain.test_column(grid, 1),
            "column with a weak slope (0.6 from end to end)": sloped.test_column(grid, 1),
            "equal curves": plain.test_equal(again, grid),
            "curves 0.3 apart": plain.test_equal(shifted, grid),
        }.items():
            rejected.setdefault(name, []).append(test.pvalue < 0.05)
    return {name: np.mean(values, axis=0).round(3).tolist() for name, values in rejected.items()}


def measure_cost() -> dict[str, float]:
    """CPU seconds at n = 20,000 and M = 500, best of three: fit, fit with inference, bands at all rows."""
    X, y, _ = make_heteroscedastic(20_000, random_state=0)
    bands = {"band": OPTIONS.draws, "band of few draws": FEW_DRAWS}
    seconds: dict[str, list[float]] = {name: [] for name in ("fit", "fit with inference", *bands)}
    for _ in range(3):
        for name, inference in (("fit", False), ("fit with inference", True)):
            start = time.process_time()
            model = make_model(500, 1e-5, inference).fit(X, y)
            seconds[name].append(time.process_time() - start)
        for name, draws in bands.items():
            with patch("quernel.estimators.inference.OPTIONS", replace(OPTIONS, draws=draws)):
                start = time.process_time()
                model.predict_band(X)
                seconds[name].append(time.process_time() - start)
    return {name: round(min(values), 2) for name, values in seconds.items()}


def main() -> None:
    """Measure what is missing in bands.json, then write the page."""
    from benchmarks.bands_page import write_page

    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"coverage": {}}
    if "--page" not in sys.argv:
        for name, measure in (("tests", measure_tests), ("cost", measure_cost)):
            if name not in results:
                results[name] = measure()
                save(results)
        for line in measure_coverage(results["coverage"]):
            save(results)
            print(line, flush=True)
    write_page(results)


def save(results: dict[str, Any]) -> None:
    with write_atomically(RESULTS, overwrite=True) as part:
        part.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
