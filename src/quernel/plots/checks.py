"""Shared by the displays: validation of predicted quantiles, counts of rows below them, and binomial bands."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

Floats = NDArray[np.float64]

# Default probability of binomial bands.
CONFIDENCE = 0.95


def check_predictions(y_true: ArrayLike, y_pred: ArrayLike, quantiles: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Validate predicted quantiles, and return y (n,), curves (n, q) and levels (q,), sorted by level.

    y_pred may have shape (n,) if quantiles is a single number.
    """
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
    """Count the rows strictly below each curve, and those at or below it, (q,) each.

    #{y < f} and #{y <= f} differ where several rows with the same y lie on a curve, as with counts. A quantile of level
    tau satisfies  #{y < f} <= n tau <= #{y <= f},  so that any level between the two shares is then met exactly.
    """
    at_or_below = np.sum(y[:, None] <= curves, axis=0)
    return at_or_below - np.sum(rows_on(y, curves), axis=0), at_or_below


def rows_on(y: Floats, curves: Floats) -> NDArray[np.bool_]:
    """Whether each row lies exactly on each curve, shape (n, q), together with another row of the same y.

    Rows whose y is unique among those do not count: a quantile fit interpolates some of its training rows, and which of
    these compare as equal to the curve is a matter of rounding.
    """
    on = y[:, None] == curves
    rows = np.flatnonzero(on.any(axis=1))
    _, code, count = np.unique(y[rows], return_inverse=True, return_counts=True)
    on[rows[count[code] == 1]] = False
    return on


def binomial_band(share: ArrayLike, n: ArrayLike, confidence: float = CONFIDENCE) -> tuple[Floats, Floats]:
    """Return the central interval, lower and upper, of k / n where k is binomial(n, share).

    It has probability `confidence`, as far as a discrete distribution allows. Arguments broadcast.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie strictly between 0 and 1; got {confidence!r}. Use 0.95 for 95 %.")
    low, high = (binom.ppf(p, n, share) / n for p in ((1 - confidence) / 2, (1 + confidence) / 2))
    return np.asarray(low), np.asarray(high)
