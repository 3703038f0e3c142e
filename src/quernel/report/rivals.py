"""What a model must beat: unconditional quantiles, linear quantile regression, and LightGBM where it is installed."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from quernel.estimators import KernelQuantileRegressor
from quernel.estimators.defaults import column_scales

Array = NDArray[np.floating]
Index = NDArray[np.intp]
# (X, y) to fit, X to predict, levels ascending -> curves (n, q)
Rival = Callable[[Array, Array, Array, Array], Array]

TREES = 200
# Rivals are fitted to at most so many rows, so that a page does not take longer than the fit.
MOST_ROWS = 100_000


def unconditional(_: Array, y: Array, X_new: Array, levels: Array) -> Array:
    """The quantiles of the target, the same for every row."""
    return np.tile(np.quantile(y, levels), (len(X_new), 1))


def linear(X: Array, y: Array, X_new: Array, levels: Array) -> Array:
    """Linear quantile regression on the same numbers, standardised, with a ridge weight too small to matter."""
    mean, scale = X.mean(axis=0), column_scales(X, np.full(len(X), 1 / len(X)))
    model = KernelQuantileRegressor(levels, kernel="linear", tol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit((X - mean) / scale, y).predict((X_new - mean) / scale)


def boosted(X: Array, y: Array, X_new: Array, levels: Array) -> Array:
    """LightGBM as it comes, one model for each level, the levels sorted in each row."""
    import lightgbm

    settings = {"objective": "quantile", "n_estimators": TREES, "verbose": -1, "random_state": 0, "n_jobs": 1}
    curves = [lightgbm.LGBMRegressor(alpha=level, **settings).fit(X, y).predict(X_new) for level in levels.tolist()]
    return np.sort(np.column_stack(curves), axis=1)


def rivals() -> dict[str, Rival]:
    """The rivals that this installation has, by name."""
    found: dict[str, Rival] = {"Unconditional quantiles": unconditional, "Linear quantile regression": linear}
    if importlib.util.find_spec("lightgbm") is not None:
        found[f"LightGBM, {TREES} trees, not tuned"] = boosted
    return found


def predicted_by(rival: Rival, X: Array, y: Array, levels: Array, splits: Sequence[tuple[Index, Index]]) -> Array:
    """Curves of the rows that the splits (rows to fit, rows to predict) predict, in the order of the splits.

    Of more than `MOST_ROWS` rows to fit, some are chosen at random.
    """
    some = [(np.random.default_rng(0).permutation(train)[:MOST_ROWS], test) for train, test in splits]
    return np.concatenate([rival(X[train], y[train], X[test], levels) for train, test in some])
