"""What displays share: arguments checked, and how far a share of n rows strays by chance."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

Floats = NDArray[np.float64]

CONFIDENCE = 0.95


def check_predictions(y_true: ArrayLike, y_pred: ArrayLike, quantiles: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """y (n,), curves (n, q) and levels (q,) of agreeing shapes, the levels ascending."""
    levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    if levels.ndim != 1 or not np.all((levels > 0) & (levels < 1)) or len(np.unique(levels)) < len(levels):
        raise ValueError(f"quantiles must be different levels strictly between 0 and 1; got {levels.tolist()}.")
    y, curves = np.asarray(y_true, dtype=np.float64), np.asarray(y_pred, dtype=np.float64)
    if curves.ndim == 1 and np.ndim(quantiles) == 0:
        curves = curves[:, None]
    if y.ndim != 1 or len(y) == 0 or curves.shape != (len(y), len(levels)):
        raise ValueError(
            f"y_true must have shape (n,) with n > 0 and y_pred one column per level, ({y.size}, {len(levels)}); got "
            f"{y.shape} and {curves.shape}. Predict all levels for the rows of y_true."
        )
    for name, values in (("y_true", y), ("y_pred", curves)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} contains NaN or infinite values. Drop or fill these rows first.")
    order = np.argsort(levels)
    return y, curves[:, order], levels[order]


def count_rows_below(y: Floats, curves: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """How many rows are below each curve, and how many below or on it, (q,) each.

    They differ where rows with the same y lie on curves, as counts do: a level between the two shares is then kept
    exactly.
    """
    reached = np.sum(y[:, None] <= curves, axis=0)
    return reached - np.sum(rows_on(y, curves), axis=0), reached


def rows_on(y: Floats, curves: Floats) -> NDArray[np.bool_]:
    """Which rows lie on which curves, (n, q), if others with the same y do.

    A row that has its y to itself does not count. A fit goes through some of its own training rows, whatever their y,
    and which of these compare as equal to a curve is rounding.
    """
    on = y[:, None] == curves
    rows = np.flatnonzero(on.any(axis=1))
    _, which, count = np.unique(y[rows], return_inverse=True, return_counts=True)
    on[rows[count[which] == 1]] = False
    return on


def binomial_band(share: ArrayLike, n: ArrayLike, confidence: float = CONFIDENCE) -> tuple[Floats, Floats]:
    """Between which observed shares of n rows do the middle 95 % lie, if each is hit with this probability?"""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie strictly between 0 and 1; got {confidence!r}. Use 0.95 for 95 %.")
    low, high = (binom.ppf(p, n, share) / n for p in ((1 - confidence) / 2, (1 + confidence) / 2))
    return np.asarray(low), np.asarray(high)
