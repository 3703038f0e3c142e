"""Capacity and compatibility exponent estimated from data, each with an interval or the reason why it is undecided.

- capacity, gamma:  N(alpha) grows like alpha^-gamma;
- compatibility:    N_infinity(alpha) grows like alpha^-compatibility.

Each is the slope of log dimension against log(1/alpha). Exponents describe the limit alpha -> 0, while data show a
finite range of alpha. Intervals therefore add two errors: the sampling error, by a delete-a-group jackknife over rows
and over features, and the drift, the difference between the slopes of the two halves of the range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student

from quernel.theory.dimensions import check_alpha, effective_dimension, leverage_scores, spectrum

Array = NDArray[np.floating]
Index = NDArray[np.intp]

# Fewest rows from which an exponent is estimated.
MIN_ROWS = 200
# Eigenvalues and ridge weights below this fraction of the largest eigenvalue are rounding errors.
FLOOR = 1e-12


@dataclass(frozen=True)
class SlopeOptions:
    """Constants of the slopes of log dimension against log(1/alpha)."""

    # Groups of the delete-a-group jackknife.
    n_groups: int = 10
    # Ridge weights at which the dimension is evaluated.
    n_alphas: int = 16
    # Range of the dimension in which slopes are read: a number, and a fraction of the smaller of rows and features:
    # the part of the curve that a sample shows reliably.
    min_dimension: float = 4.0
    max_dimension_share: float = 0.05
    # The largest leverage is the geometric mean over this many features of largest leverage: one alone is too unstable.
    n_top: int = 8


OPTIONS = SlopeOptions()


@dataclass(frozen=True)
class Exponent:
    """An estimated exponent with its interval; if undecided, `reason` says why, and both are NaN."""

    name: str
    value: float
    interval: tuple[float, float]
    confidence: float
    reason: str = ""

    @property
    def decided(self) -> bool:
        """Whether the data determine a value."""
        return not self.reason

    def __str__(self) -> str:
        if not self.decided:
            return f"{self.name}: undecided ({self.reason})"
        low, high = self.interval
        return f"{self.name} = {self.value:.3f} ({self.confidence:.0%} interval {low:.3f} to {high:.3f})"


def capacity_exponent(
    features: ArrayLike | None = None,
    *,
    gram: ArrayLike | None = None,
    alphas: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Exponent:
    """Capacity exponent gamma, the slope of log N(alpha) against log(1/alpha).

    Parameters
    ----------
    features, gram : features (n, M) or a Gram matrix (n, n), one of the two, of at least 200 rows
    alphas : ridge weights over which the slope is fitted, two or more; None chooses them where N lies between 4 and a
        twentieth of the rows (and features), the part that such a sample shows reliably
    confidence : of the interval

    Examples
    --------
    >>> print(capacity_exponent(gram=kernel.gram(X, X)))  # doctest: +SKIP
    capacity gamma = 0.251 (95% interval 0.243 to 0.259)
    """
    Phi, K = check_matrices(features, gram)
    if Phi is not None and K is not None:
        raise ValueError("Give either features (n, M) or gram=(n, n), one of the two.")

    def curve(rows: Index, columns: Index, alpha: Array) -> Array:
        return np.asarray(
            effective_dimension(*_subset_features(Phi, rows, columns), gram=_subset_gram(K, rows), alpha=alpha)
        )

    return _estimate_slope("capacity gamma", curve, Phi, K, alphas, confidence)


def compatibility_exponent(
    features: ArrayLike,
    *,
    gram: ArrayLike | None = None,
    alphas: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Exponent:
    """Compatibility exponent, the slope of log N_infinity(alpha) against log(1/alpha).

    The maximum of many noisy leverage scores is biased upwards. It is therefore cross-fitted: features are selected on
    one half of the rows, a few of the largest for stability, and their leverage is evaluated on the other half. Without
    a Gram matrix two thirds of the features stand in for the kernel, one for each half.

    Parameters are those of `capacity_exponent`, but features are always needed: it is their leverage that counts. Give
    the Gram matrix too where it can be had.
    """
    Phi, K = check_matrices(features, gram)
    assert Phi is not None

    def curve(rows: Index, columns: Index, alpha: Array) -> Array:
        return _cross_fitted_max_leverage(Phi, K, rows, columns, alpha)

    return _estimate_slope("compatibility", curve, Phi, K, alphas, confidence)


def _cross_fitted_max_leverage(Phi: Array, K: Array | None, rows: Index, columns: Index, alpha: Array) -> Array:
    """Leverage, on one half of the rows, of the features with the largest on the other; per alpha."""
    row_half, column_third = rows // OPTIONS.n_groups % 2, columns // OPTIONS.n_groups % 3
    candidates = columns if K is not None else columns[column_third == 2]
    scores = []
    for half in (0, 1):
        half_rows = rows[row_half == half]
        stand_in = _subset_features(Phi, half_rows, columns[column_third == half])[0]
        gram = K[np.ix_(half_rows, half_rows)] if K is not None else stand_in @ stand_in.T
        scores.append(leverage_scores(_subset_features(Phi, half_rows, candidates)[0], gram=gram, alpha=alpha))
    # Mean over a few of the largest: a single one changes with every group left out, and so does its slope.
    count = min(OPTIONS.n_top, len(candidates))
    top = [np.argpartition(-score, count - 1, axis=1)[:, :count] for score in scores]
    logs = [np.log(np.take_along_axis(scores[1 - half], top[half], axis=1)).mean(axis=1) for half in (0, 1)]
    return np.exp((logs[0] + logs[1]) / 2)


def undecided(name: str, confidence: float, reason: str) -> Exponent:
    """An exponent without a value."""
    return Exponent(name, np.nan, (np.nan, np.nan), confidence, reason)


def _estimate_slope(
    name: str,
    curve: Callable[[Index, Index, Array], Array],
    Phi: Array | None,
    K: Array | None,
    alphas: ArrayLike | None,
    confidence: float,
) -> Exponent:
    """Slope of log `curve` against log(1/alpha), with an interval: jackknife over rows and columns, plus drift.

    `curve` maps indices of rows and of columns, and ridge weights (k,), to dimensions (k,). Exponents lie in [0, 1] by
    definition, and are clipped to it.
    """
    rows = np.arange(len(Phi if Phi is not None else K))  # type: ignore[arg-type]
    columns = np.arange(Phi.shape[1] if Phi is not None else 0)
    check_confidence(confidence)
    alpha = _choose_alphas(Phi, K) if alphas is None else np.unique(check_alpha(alphas))[::-1]
    if alphas is not None and len(alpha) < 2:
        raise ValueError(f"alphas must hold two different ridge weights or more; got {alphas!r}.")
    if len(alpha) < 2:
        return undecided(name, confidence, "the eigenvalues fall too fast, or the rows are too few, to read a slope")
    whole = np.log(curve(rows, columns, alpha))
    value = _fit_slope(alpha, whole)
    middle = (len(alpha) + 1) // 2
    drift = abs(_fit_slope(alpha[:middle], whole[:middle]) - _fit_slope(alpha[-middle:], whole[-middle:]))
    variance = _jackknife_variance(
        [_fit_slope(alpha, np.log(curve(r, columns, alpha))) for r in _leave_groups_out(rows)]
    )
    if len(columns) >= 2 * OPTIONS.n_groups:
        without_columns = [_fit_slope(alpha, np.log(curve(rows, c, alpha))) for c in _leave_groups_out(columns)]
        variance += _jackknife_variance(without_columns)
    half_width = student.ppf((1 + confidence) / 2, OPTIONS.n_groups - 1) * np.sqrt(variance) + drift
    low, value, high = np.clip([value - half_width, value, value + half_width], 0, 1).tolist()  # by definition
    return Exponent(name, value, (low, high), confidence)


def _choose_alphas(Phi: Array | None, K: Array | None) -> Array:
    """Log-spaced ridge weights at which N is in the range of `SlopeOptions`; empty if that range is too short."""
    mu = spectrum(Phi if K is None else None, gram=K)
    side = min(Phi.shape) if Phi is not None else len(mu)
    grid = np.geomspace(mu[0], FLOOR * mu[0], 400)
    dimension = (mu / (mu + grid[:, None])).sum(axis=1)
    inside = grid[(dimension >= OPTIONS.min_dimension) & (dimension <= OPTIONS.max_dimension_share * side)]
    return np.geomspace(inside[0], inside[-1], OPTIONS.n_alphas) if len(inside) > OPTIONS.n_alphas else np.empty(0)


def _fit_slope(alpha: Array, log_curve: Array) -> float:
    """Least-squares slope of the log curve against log(1/alpha), NaN for a single point."""
    return float(-np.polyfit(np.log(alpha), log_curve, 1)[0]) if len(alpha) > 1 else np.nan


def _leave_groups_out(index: Index) -> list[Index]:
    """Index sets of the jackknife, each without every tenth index from another start."""
    return [index[np.arange(len(index)) % OPTIONS.n_groups != g] for g in range(OPTIONS.n_groups)]


def _jackknife_variance(values: list[float]) -> float:
    """Delete-a-group jackknife variance, (G - 1)/G times the sum of squared deviations."""
    return (len(values) - 1) * float(np.var(values))


def check_confidence(confidence: float) -> None:
    """ValueError unless strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie strictly between 0 and 1; got {confidence!r}.")


def check_matrices(features: ArrayLike | None, gram: ArrayLike | None) -> tuple[Array | None, Array | None]:
    """Features and Gram matrix as finite arrays with enough rows, at least one of them; or ValueError."""
    Phi = None if features is None else np.asarray(features, dtype=float)
    K = None if gram is None else np.asarray(gram, dtype=float)
    for name, matrix in (("features", Phi), ("gram", K)):
        if matrix is not None and (matrix.ndim != 2 or len(matrix) < MIN_ROWS or not np.isfinite(matrix).all()):
            raise ValueError(
                f"{name} must be a matrix of finite numbers with at least {MIN_ROWS} rows; got {matrix.shape}."
            )
    if Phi is None and K is None:
        raise ValueError("Give features (n, M), or gram=(n, n).")
    return Phi, K


def _subset_features(Phi: Array | None, rows: Index, columns: Index) -> tuple[Array, ...]:
    """Some rows and columns of the features, rescaled from 1/sqrt(M) to the new number of columns."""
    return () if Phi is None else (Phi[np.ix_(rows, columns)] * np.sqrt(Phi.shape[1] / len(columns)),)


def _subset_gram(K: Array | None, rows: Index) -> Array | None:
    """Gram matrix of some rows."""
    return None if K is None else K[np.ix_(rows, rows)]
