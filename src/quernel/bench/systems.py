"""Systems without extra dependencies: quernel, ridge regression, and scikit-learn's linear programs."""

from __future__ import annotations

from functools import partial

import numpy as np
from sklearn.linear_model import QuantileRegressor

from quernel.bench.task import Answer, System, Task, best
from quernel.estimators import KernelQuantileRegressor


def _quernel(task: Task) -> Answer:
    settings = {"kernel": "linear"} if task.M is not None else {"bandwidth": task.bandwidth, "n_components": "exact"}
    model = KernelQuantileRegressor(task.level, alpha=task.alpha, fit_intercept=task.fit_intercept, **settings)
    X = task.X if task.M is None else task.features
    seconds, model = best(lambda: model.fit(X, task.y), task.repeats)
    penalty = float(np.sum(model.coef_**2))
    return Answer(seconds, model.predict(X), penalty, gap=float(model.duality_gap_[0]), note="certified")


def _ridge(task: Task) -> Answer:
    """Least squares on the same features by the normal equations, as a reference for speed."""

    def solve() -> np.ndarray:
        gram = task.features.T @ task.features / task.n
        gram.flat[:: len(gram) + 1] += task.alpha
        return np.linalg.solve(gram, task.features.T @ task.y / task.n)

    seconds, _ = best(solve, task.repeats)
    return Answer(seconds, note="another loss: squares")


def _quantile_regressor(solver: str, task: Task) -> Answer:
    """Solve without a penalty, as scikit-learn's is the L1 norm."""
    model = QuantileRegressor(quantile=task.level, alpha=0, solver=solver, fit_intercept=task.fit_intercept)
    seconds, model = best(lambda: model.fit(task.features, task.y), task.repeats)
    return task.answer_of(seconds, model.coef_, model.intercept_, "solves alpha = 0")


QUERNEL = System("quernel", "quernel", _quernel)
RIDGE = System("ridge, normal equations", "numpy", _ridge)
HIGHS = System("scikit-learn QuantileRegressor, highs", "scikit-learn", partial(_quantile_regressor, "highs"))
HIGHS_IPM = System(
    "scikit-learn QuantileRegressor, highs-ipm", "scikit-learn", partial(_quantile_regressor, "highs-ipm")
)
