"""Benchmark tasks, and the systems without extra dependencies that solve them: quernel, ridge, linear programs.

Whatever objective a system minimizes itself, its answer is scored by

    F = mean pinball loss of y - fitted  +  alpha u'u        (u'u = a'Ka where it works with the kernel itself)

which is computed from its fitted values and its penalty. Differences in scaling are converted in the adapters only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.datasets import Simulation, make_homoscedastic
from quernel.estimators import KernelQuantileRegressor
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.metrics import pinball_loss

Array = NDArray[np.floating]

# A fit is not repeated once its runs took this many seconds in total.
LONG = 10.0


@dataclass(frozen=True)
class Task:
    """One fit to time: X uniform on [0,1]^3, the homoscedastic simulation, a Gaussian kernel.

    Parameters
    ----------
    n : int
        Number of rows.
    level, alpha : float
        Quantile level, and ridge weight in quernel's scaling.
    M : int or None
        Number of precomputed random `features`; None for the exact kernel.
    bandwidth : float
        Of the Gaussian kernel.
    fit_intercept : bool
        Whether there is an unpenalized intercept.
    repeats : int
        How often a fit is timed; the best counts.
    """

    n: int
    level: float
    alpha: float
    M: int | None = None
    bandwidth: float = 1.0
    fit_intercept: bool = False
    repeats: int = 3

    def __str__(self) -> str:
        features = "exact kernel" if self.M is None else f"M={self.M}"
        width = "" if self.bandwidth == 1 else f", bandwidth {self.bandwidth:g}"
        intercept = ", intercept" if self.fit_intercept else ""
        return f"n={self.n:,}, {features}, level {self.level:g}, alpha {self.alpha:g}{width}{intercept}"

    @cached_property
    def _data(self) -> Simulation:
        return make_homoscedastic(self.n, random_state=0)

    @property
    def X(self) -> Array:
        """Inputs, (n, 3)."""
        return self._data.X

    @property
    def y(self) -> Array:
        """Target, (n,)."""
        return self._data.y

    @cached_property
    def features(self) -> Array:
        """Random features Phi, (n, M)."""
        assert self.M is not None
        return RandomFeatures(Gaussian(self.bandwidth), self.M, random_state=0).fit(self.X).transform(self.X)

    @cached_property
    def design(self) -> Array:
        """Design matrix: Phi, with a column of ones if there is an intercept."""
        return np.column_stack([self.features, np.ones(self.n)]) if self.fit_intercept else self.features

    def prepare(self) -> None:
        """Generate the data before the clock starts."""
        _ = self.y if self.M is None else self.design

    def gram(self) -> Array:
        """Kernel matrix K, (n, n)."""
        return Gaussian(self.bandwidth).gram(self.X, self.X)

    def objective(self, fitted: Array, penalty: float) -> float:
        """Objective F, from fitted values (n,) and penalty u'u."""
        return float(pinball_loss(self.y, fitted, self.level)) + self.alpha * penalty

    def null_objective(self) -> float:
        """Objective F0 of the null model: the best constant, or 0 without an intercept."""
        constant = np.quantile(self.y, self.level) if self.fit_intercept else 0.0
        return self.objective(np.full(self.n, constant), 0.0)

    def make_answer(self, seconds: float, coef: Array, intercept: float = 0.0, note: str = "") -> Answer:
        """The answer of a system with these coefficients of the features."""
        return Answer(seconds, self.features @ coef + intercept, float(coef @ coef), note=note)


@dataclass(frozen=True, eq=False)
class Answer:
    """The result of one system on a task.

    Attributes
    ----------
    seconds : float
        Time of a fit, the best of several.
    fitted : ndarray of shape (n,) or None
        Fitted values; None for a system with another loss.
    penalty : float or None
        u'u, likewise.
    gap : float or None
        Relative duality gap, from a system that certifies one.
    note, version : str
        A remark for the table, and the version where the package metadata has none.
    """

    seconds: float
    fitted: Array | None = None
    penalty: float | None = None
    gap: float | None = None
    note: str = ""
    version: str = ""


@dataclass(frozen=True)
class System:
    """A system under benchmark: display name, package, and a function that fits a task."""

    name: str
    package: str
    fit: Callable[[Task], Answer]


def time_best(function: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """Time a function: the shortest of several runs in seconds, and its last result; runs stop after LONG seconds."""
    runs: list[float] = []
    while len(runs) < repeats and sum(runs) < LONG:
        start = time.perf_counter()
        answer = function()
        runs.append(time.perf_counter() - start)
    return min(runs), answer


def _quernel(task: Task) -> Answer:
    params: dict[str, Any] = {"alpha": task.alpha, "fit_intercept": task.fit_intercept, "recalibrate": False}
    params |= {"bandwidth": task.bandwidth, "n_components": "exact"} if task.M is None else {"kernel": "linear"}
    model, X = KernelQuantileRegressor(task.level, **params), task.X if task.M is None else task.features
    seconds, model = time_best(lambda: model.fit(X, task.y), task.repeats)
    penalty = float(np.sum(model.coef_**2))
    return Answer(seconds, model.predict(X), penalty, gap=float(model.duality_gap_[0]), note="certified")


def _ridge(task: Task) -> Answer:
    """Least squares on the same features by the normal equations, as a reference for speed."""

    def solve() -> np.ndarray:
        gram = task.features.T @ task.features / task.n
        gram.flat[:: len(gram) + 1] += task.alpha
        return np.linalg.solve(gram, task.features.T @ task.y / task.n)

    seconds, _ = time_best(solve, task.repeats)
    return Answer(seconds, note="another loss: squares")


def _quantile_regressor(solver: str, task: Task) -> Answer:
    """Solve without a penalty, as scikit-learn's is the L1 norm."""
    from sklearn.linear_model import QuantileRegressor  # here, because importing it takes long

    model = QuantileRegressor(quantile=task.level, alpha=0, solver=solver, fit_intercept=task.fit_intercept)
    seconds, model = time_best(lambda: model.fit(task.features, task.y), task.repeats)
    return task.make_answer(seconds, model.coef_, model.intercept_, "solves alpha = 0")


QUERNEL = System("quernel", "quernel", _quernel)
RIDGE = System("ridge, normal equations", "numpy", _ridge)
HIGHS = System("scikit-learn QuantileRegressor, highs", "scikit-learn", partial(_quantile_regressor, "highs"))
HIGHS_IPM = System(
    "scikit-learn QuantileRegressor, highs-ipm", "scikit-learn", partial(_quantile_regressor, "highs-ipm")
)
