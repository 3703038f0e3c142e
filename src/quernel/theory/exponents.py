"""Exponents of the theory estimated from data, each with an interval or the reason why it is undecided.

- capacity, gamma:  N(alpha) grows like alpha^-gamma;
- compatibility:    N_infinity(alpha) grows like alpha^-compatibility;
- source, r:        energies of f* in the kernel's eigenbasis decay like mu^(2r).

The first two are slopes of log dimension against log(1/alpha). Exponents describe the limit alpha -> 0, while data show
a finite range of alpha. Intervals therefore add two errors: the sampling error, by a delete-a-group jackknife over rows
and over features, and the drift, the difference between the slopes of the two halves of the range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student

from quernel._validation import check_share
from quernel.losses import Pinball
from quernel.theory.decomposition import fit_on_features
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


SLOPE = SlopeOptions()


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
    Phi, K = check_matrices(features, gram, only_one=True)

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
    row_half, column_third = rows // SLOPE.n_groups % 2, columns // SLOPE.n_groups % 3
    candidates = columns if K is not None else columns[column_third == 2]
    scores = []
    for half in (0, 1):
        half_rows = rows[row_half == half]
        stand_in = _subset_features(Phi, half_rows, columns[column_third == half])[0]
        gram = K[np.ix_(half_rows, half_rows)] if K is not None else stand_in @ stand_in.T
        scores.append(leverage_scores(_subset_features(Phi, half_rows, candidates)[0], gram=gram, alpha=alpha))
    # Mean over a few of the largest: a single one changes with every group left out, and so does its slope.
    count = min(SLOPE.n_top, len(candidates))
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
    rows = np.arange(_n_rows(Phi, K))
    columns = np.arange(Phi.shape[1] if Phi is not None else 0)
    check_share("confidence", confidence)
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
    if len(columns) >= 2 * SLOPE.n_groups:
        without_columns = [_fit_slope(alpha, np.log(curve(rows, c, alpha))) for c in _leave_groups_out(columns)]
        variance += _jackknife_variance(without_columns)
    half_width = student.ppf((1 + confidence) / 2, SLOPE.n_groups - 1) * np.sqrt(variance) + drift
    low, value, high = np.clip([value - half_width, value, value + half_width], 0, 1).tolist()  # by definition
    return Exponent(name, value, (low, high), confidence)


def _choose_alphas(Phi: Array | None, K: Array | None) -> Array:
    """Log-spaced ridge weights at which N is in the range of `SlopeOptions`; empty if that range is too short."""
    mu = spectrum(Phi if K is None else None, gram=K)
    side = min(Phi.shape) if Phi is not None else len(mu)
    grid = np.geomspace(mu[0], FLOOR * mu[0], 400)
    dimension = (mu / (mu + grid[:, None])).sum(axis=1)
    inside = grid[(dimension >= SLOPE.min_dimension) & (dimension <= SLOPE.max_dimension_share * side)]
    return np.geomspace(inside[0], inside[-1], SLOPE.n_alphas) if len(inside) > SLOPE.n_alphas else np.empty(0)


def _fit_slope(alpha: Array, log_curve: Array) -> float:
    """Least-squares slope of the log curve against log(1/alpha), NaN for a single point."""
    return float(-np.polyfit(np.log(alpha), log_curve, 1)[0]) if len(alpha) > 1 else np.nan


def _leave_groups_out(index: Index) -> list[Index]:
    """Index sets of the jackknife, each without every tenth index from another start."""
    return [index[np.arange(len(index)) % SLOPE.n_groups != g] for g in range(SLOPE.n_groups)]


def _jackknife_variance(values: list[float]) -> float:
    """Delete-a-group jackknife variance, (G - 1)/G times the sum of squared deviations."""
    return (len(values) - 1) * float(np.var(values))


def check_matrices(
    features: ArrayLike | None, gram: ArrayLike | None, *, only_one: bool = False
) -> tuple[Array | None, Array | None]:
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
    if only_one and Phi is not None and K is not None:
        raise ValueError("Give either features (n, M) or gram=(n, n), one of the two.")
    return Phi, K


def _subset_features(Phi: Array | None, rows: Index, columns: Index) -> tuple[Array, ...]:
    """Some rows and columns of the features, rescaled from 1/sqrt(M) to the new number of columns."""
    return () if Phi is None else (Phi[np.ix_(rows, columns)] * np.sqrt(Phi.shape[1] / len(columns)),)


def _n_rows(*matrices: Array | None) -> int:
    """Number of rows of the first matrix that is given."""
    return next(len(matrix) for matrix in matrices if matrix is not None)


def _subset_gram(K: Array | None, rows: Index) -> Array | None:
    """Gram matrix of some rows."""
    return None if K is None else K[np.ix_(rows, rows)]


@dataclass(frozen=True)
class SourceOptions:
    """Constants of the estimate of the source exponent."""

    # Leading eigenfunctions used, as a fraction of the rows.
    leading: float = 0.1
    # Each bin of eigenfunctions is this much larger than the one before: bins of equal width on a log scale.
    bin_growth: float = 1.5
    # A bin is detected if its energy exceeds this many standard errors.
    detection: float = 2.5
    # Fewest detected bins from which a slope is fitted.
    min_bins: int = 4
    # Standard deviation of the log energies of one function around its power law, on top of the sampling error.
    irregularity: float = 0.3
    # Intervals wider than this are reported as undecided.
    max_width: float = 0.8


SOURCE = SourceOptions()


def source_exponent(
    y: ArrayLike,
    features: ArrayLike | None = None,
    *,
    gram: ArrayLike | None = None,
    level: float = 0.5,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = 0,
) -> Exponent:
    """Source exponent r, from the decay of the fitted quantile's coefficients in the eigenbasis of the kernel.

    The quantile is fitted twice by the leading eigenfunctions, on two halves of the rows. The product of a
    coefficient's two estimates is an unbiased estimate of its square, free of noise energy. Summed over bins of growing
    size, these energies decay like mu^(2r) (if the source condition holds for r and hardly more) until they sink in the
    noise. r is half the slope of log energy against log eigenvalue, over the bins before the first that is not
    detected. With fewer than 4 such bins, or too wide an interval, the exponent is undecided.

    From features it is the exponent relative to K_M = Phi Phi', whose eigenfunctions are mixtures of the kernel's: with
    few features smooth targets look rougher than they are. Prefer the Gram matrix of a subsample.

    Parameters
    ----------
    y : targets, shape (n,)
    features, gram : features (n, M) or a Gram matrix (n, n), one of the two, of at least 200 rows
    level : the quantile level
    confidence : of the interval
    random_state : decides the two halves
    """
    Phi, K = check_matrices(features, gram, only_one=True)
    target, n = np.asarray(y, dtype=float), _n_rows(Phi, K)
    if target.shape != (n,) or not np.isfinite(target).all():
        raise ValueError(f"y must hold {n} finite numbers, one per row; got shape {target.shape}.")
    check_share("confidence", confidence)
    loss = Pinball(np.array([level]))
    mu, basis = _eigenbasis(Phi, K, int(SOURCE.leading * n))
    halves = np.array_split(np.random.default_rng(random_state).permutation(n), 2)
    first, second = (_fit_coefficients(basis[half], target[half], loss) for half in halves)
    noise = _noise_variance(first, second)
    position, energy, error = _bin_energies(mu, first, second, noise)
    # Bins before the first that is not detected.
    n_detected = int(np.argmin(np.append(energy > SOURCE.detection * error, False)))
    name = f"source r at level {level:g}"
    if n_detected < SOURCE.min_bins:
        seen = f"of the bins of the {len(mu)} leading eigenfunctions {n_detected} rise above the noise"
        return undecided(name, confidence, f"{seen}, {SOURCE.min_bins} are needed")
    value, half_width = _fit_power(position[:n_detected], energy[:n_detected], error[:n_detected], confidence)
    if not half_width <= SOURCE.max_width / 2:
        return undecided(name, confidence, f"{value:.2f} give or take {half_width:.2f} is too vague")
    return Exponent(name, value, (value - half_width, value + half_width), confidence)


def _eigenbasis(Phi: Array | None, K: Array | None, count: int) -> tuple[Array, Array]:
    """Leading eigenvalues of K/n (at most `count`), and eigenfunctions at the rows scaled to mean square 1."""
    if K is not None:
        n = len(K)
        mu, vectors = np.linalg.eigh(K / n)
    else:
        assert Phi is not None
        n = len(Phi)
        vectors, singular, _ = np.linalg.svd(Phi, full_matrices=False)
        mu, vectors = (singular**2 / n)[::-1], vectors[:, ::-1]
    mu, vectors = mu[::-1][:count], vectors[:, ::-1][:, :count]
    positive = mu > FLOOR * mu[0]
    return mu[positive], np.sqrt(n) * vectors[:, positive]


def _fit_coefficients(basis: Array, y: Array, loss: Pinball) -> Array:
    """Quantile regression on the eigenfunctions; the tiny ridge only makes it unique."""
    scale = float(np.mean(np.abs(y - np.median(y)))) or 1.0
    return fit_on_features(basis, y, loss, 1e-6 / scale, tol=1e-6)


def _noise_variance(first: Array, second: Array) -> float:
    """Noise variance of one coefficient, from the differences between its two estimates.

    The median of squared differences resists the few coefficients in which the halves differ for other reasons.
    """
    return float(np.median((first - second) ** 2)) / 0.4549 / 2  # 0.4549: median of a squared standard normal


def _bin_energies(mu: Array, first: Array, second: Array, noise: float) -> tuple[Array, Array, Array]:
    """Per bin of eigenfunctions: mean log eigenvalue, energy, and the standard error of the energy."""
    edges = _bin_edges(mu)
    starts, size = edges[:-1], np.diff(edges)
    position = np.add.reduceat(np.log(mu), starts) / size
    energy = np.add.reduceat(first * second, starts)
    error = np.sqrt(size * noise**2 + 2 * noise * np.maximum(energy, 0))
    # Bins are not all of the same width on the log scale of the eigenfunctions' numbers.
    width = np.diff(np.log(edges + 0.5))
    return position, energy / width, error / width


def _bin_edges(mu: Array) -> Index:
    """Edges of bins of growing size, shifted by at most one to the largest drop between neighbouring eigenvalues.

    Eigenfunctions of nearly equal eigenvalues are mixed by the sample; their energies belong in one bin.
    """
    nominal = np.round(3 * SOURCE.bin_growth ** np.arange(60)).astype(int)
    drop = np.append(np.log(mu[:-1] / mu[1:]), 0.0)  # drop[i - 1]: from eigenvalue i - 1 to eigenvalue i
    shifted = [edge + int(np.argmax(drop[edge - 2 : edge + 1])) - 1 for edge in nominal[nominal < len(mu) - 1]]
    return np.unique([0, *shifted, len(mu)])


def _fit_power(position: Array, energy: Array, error: Array, confidence: float) -> tuple[float, float]:
    """Half the weighted least-squares slope of log energy against log eigenvalue, and half its interval's width.

    Weights combine the sampling error with `irregularity`; a misfit beyond both widens the interval.
    """
    weight = 1 / ((error / energy) ** 2 + SOURCE.irregularity**2)
    centre = position - np.average(position, weights=weight)
    log_energy = np.log(energy)
    sum_of_squares = np.sum(weight * centre**2)
    slope = np.sum(weight * centre * log_energy) / sum_of_squares
    residual = log_energy - np.average(log_energy, weights=weight) - slope * centre
    freedom = len(position) - 2
    misfit = max(1.0, float(np.sum(weight * residual**2)) / freedom)
    return float(slope) / 2, float(student.ppf((1 + confidence) / 2, freedom) * np.sqrt(misfit / sum_of_squares)) / 2
