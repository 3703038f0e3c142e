"""The exponents of the theory, read off data: each with an interval, or with the reason why it is undecided.

- capacity, gamma:  N(alpha) grows like alpha^-gamma;
- compatibility:    N_infinity(alpha) grows like alpha^-compatibility;
- source, r:        f* has energy like mu^(2r) around the eigenfunctions of eigenvalue mu.

An exponent describes a limit, and data show a stretch of the way there. Intervals therefore contain two errors: the
sampling error, from leaving out groups of rows and of features (jackknife), and how much the slope changes within the
stretch that was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student

from quernel.losses import Pinball
from quernel.problem import Problem
from quernel.rows import ArrayRows, LiftedRows
from quernel.solvers import SOLVERS
from quernel.theory.dimensions import effective_dimension, leverage_scores, spectrum

Array = NDArray[np.floating]
Index = NDArray[np.intp]

MIN_ROWS = 200
GROUPS = 10
N_ALPHAS = 16
# Slopes are read where the dimension lies between the first number and this share of the rows and features.
LEAST_DIMENSION, MOST_DIMENSION = 4.0, 0.05
# Ridge weights below this share of the largest eigenvalue meet rounding errors instead of eigenvalues.
FLOOR = 1e-12
# So many features stand for the one of largest leverage.
TOP = 8
# The source exponent: eigenfunctions looked at per row, growth of the bins, and what counts as seen.
LEADING = 0.1
BIN_GROWTH = 1.5
DETECTED = 2.5
MIN_BINS = 4
# The log energy of a single function scatters this much around its power law.
IRREGULARITY = 0.3
# A wider interval than this tells nothing about r.
WIDEST = 0.8


@dataclass(frozen=True)
class Exponent:
    """An estimate, its interval and, where the data do not decide, why (value and interval are then NaN)."""

    name: str
    value: float
    interval: tuple[float, float]
    confidence: float
    reason: str = ""

    @property
    def decided(self) -> bool:
        """Whether the data speak for a value."""
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
    """gamma, the slope of log N(alpha) against log(1/alpha).

    Parameters
    ----------
    features, gram : features (n, M) or a Gram matrix (n, n), one of the two, of at least 200 rows
    alphas : ridge weights between which to read the slope, two or more; None chooses them where N lies between 4 and
        a twentieth of the rows (and features), the part that such a sample shows reliably
    confidence : of the interval

    Examples
    --------
    >>> print(capacity_exponent(gram=kernel.gram(X, X)))  # doctest: +SKIP
    capacity gamma = 0.251 (95% interval 0.243 to 0.259)
    """
    Phi, K = _matrices(features, gram)
    if Phi is not None and K is not None:
        raise ValueError("Give either features (n, M) or gram=(n, n), one of the two.")

    def curve(rows: Index, columns: Index, alpha: Array) -> Array:
        return np.asarray(effective_dimension(*_part(Phi, rows, columns), gram=_corner(K, rows), alpha=alpha))

    return _slope("capacity gamma", curve, Phi, K, alphas, confidence)


def compatibility_exponent(
    features: ArrayLike,
    *,
    gram: ArrayLike | None = None,
    alphas: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Exponent:
    """The slope of log N_infinity(alpha) against log(1/alpha), from features and, better, the Gram matrix too.

    The largest of many noisy leverage scores is too large. So features are chosen on one half of the rows, a few of the
    largest together for steadiness, and their leverage is taken on the other half. Without a Gram matrix two thirds of
    the features stand in for the kernel, one for each half. Parameters are those of `capacity_exponent`, but features
    are always needed: it is their leverage that counts.
    """
    Phi, K = _matrices(features, gram)
    assert Phi is not None

    def curve(rows: Index, columns: Index, alpha: Array) -> Array:
        return _honest_maximum(Phi, K, rows, columns, alpha)

    return _slope("compatibility", curve, Phi, K, alphas, confidence)


def _honest_maximum(Phi: Array, K: Array | None, rows: Index, columns: Index, alpha: Array) -> Array:
    """The leverage, on one half of the rows, of the features that have the largest on the other; one per alpha."""
    row_half, column_third = rows // GROUPS % 2, columns // GROUPS % 3
    candidates = columns if K is not None else columns[column_third == 2]
    scores = []
    for half in (0, 1):
        part = rows[row_half == half]
        stand_in = _part(Phi, part, columns[column_third == half])[0]
        gram = K[np.ix_(part, part)] if K is not None else stand_in @ stand_in.T
        scores.append(leverage_scores(_part(Phi, part, candidates)[0], gram=gram, alpha=alpha))
    # A few of the largest: a single one changes with every row left out, and the error of its slope says little.
    count = min(TOP, len(candidates))
    top = [np.argpartition(-score, count - 1, axis=1)[:, :count] for score in scores]
    logs = [np.log(np.take_along_axis(scores[1 - half], top[half], axis=1)).mean(axis=1) for half in (0, 1)]
    return np.exp((logs[0] + logs[1]) / 2)


def source_exponent(
    y: ArrayLike,
    features: ArrayLike | None = None,
    *,
    gram: ArrayLike | None = None,
    level: float = 0.5,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = 0,
) -> Exponent:
    """r, from how the fitted quantile's coefficients in the eigenbasis of the kernel decay.

    The quantile is fitted twice, on two halves of the rows, by the leading eigenfunctions. The product of a coefficient
    with its twin estimates its square without bias from the noise. Summed over bins of eigenfunctions of growing size,
    such energies fall like mu^(2r) (a source condition that holds for r and hardly more), until they sink in the noise.
    Where fewer than 4 bins rise above it, or the slope remains too uncertain, the exponent is undecided.

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
    Phi, K = _matrices(features, gram)
    if (Phi is None) == (K is None):
        raise ValueError("Give either features (n, M) or gram=(n, n), one of the two.")
    n = len(Phi if Phi is not None else K)  # type: ignore[arg-type]
    target = np.asarray(y, dtype=float)
    if target.shape != (n,) or not np.isfinite(target).all():
        raise ValueError(f"y must hold {n} finite numbers, one per row; got shape {target.shape}.")
    loss = Pinball(np.array([level]))
    mu, basis = _eigenbasis(Phi, K, int(LEADING * n))
    halves = np.array_split(np.random.default_rng(random_state).permutation(n), 2)
    first, second = (_coefficients(basis[half], target[half], loss) for half in halves)
    noise = _noise(first, second)
    position, energy, error = _binned(mu, first, second, noise)
    seen = int(np.argmin(np.append(energy > DETECTED * error, False)))  # bins before the first that is not seen
    name = f"source r at level {level:g}"
    if seen < MIN_BINS:
        return _undecided(
            name,
            confidence,
            f"only {seen} bins of the {len(mu)} leading eigenfunctions rise above the noise, {MIN_BINS} are needed",
        )
    value, half_width = _power(position[:seen], energy[:seen], error[:seen], confidence)
    if not half_width <= WIDEST / 2:
        return _undecided(name, confidence, f"{value:.2f} give or take {half_width:.2f} is too vague")
    return Exponent(name, value, (value - half_width, value + half_width), confidence)


def _undecided(name: str, confidence: float, reason: str) -> Exponent:
    return Exponent(name, np.nan, (np.nan, np.nan), confidence, reason)


# Slopes of dimensions.


def _slope(
    name: str,
    curve: Callable[[Index, Index, Array], Array],
    Phi: Array | None,
    K: Array | None,
    alphas: ArrayLike | None,
    confidence: float,
) -> Exponent:
    """Slope of the log of the curve, with jackknife error over rows and columns, and drift."""
    rows = np.arange(len(Phi if Phi is not None else K))  # type: ignore[arg-type]
    columns = np.arange(Phi.shape[1] if Phi is not None else 0)
    alpha = _chosen_alphas(Phi, K) if alphas is None else np.sort(np.asarray(alphas, dtype=float))[::-1]
    if len(alpha) < 2:
        return _undecided(name, confidence, "the eigenvalues fall too fast, or the rows are too few, to read a slope")
    whole = np.log(curve(rows, columns, alpha))
    value = _steepness(alpha, whole)
    middle = (len(alpha) + 1) // 2
    drift = abs(_steepness(alpha[:middle], whole[:middle]) - _steepness(alpha[-middle:], whole[-middle:]))
    variance = _jackknife([_steepness(alpha, np.log(curve(r, columns, alpha))) for r in _without_groups(rows)])
    if len(columns) >= 2 * GROUPS:
        fewer = [_steepness(alpha, np.log(curve(rows, c, alpha))) for c in _without_groups(columns)]
        variance += _jackknife(fewer)
    half_width = student.ppf((1 + confidence) / 2, GROUPS - 1) * np.sqrt(variance) + drift
    low, value, high = np.clip([value - half_width, value, value + half_width], 0, 1).tolist()  # by definition
    return Exponent(name, value, (low, high), confidence)


def _chosen_alphas(Phi: Array | None, K: Array | None) -> Array:
    """Log-spaced ridge weights at which N runs from 4 to a twentieth of the smaller side; none if there is no room."""
    mu = spectrum(Phi if K is None else None, gram=K)
    side = min(Phi.shape) if Phi is not None else len(mu)
    grid = np.geomspace(mu[0], FLOOR * mu[0], 400)
    dimension = (mu / (mu + grid[:, None])).sum(axis=1)
    inside = grid[(dimension >= LEAST_DIMENSION) & (dimension <= MOST_DIMENSION * side)]
    return np.geomspace(inside[0], inside[-1], N_ALPHAS) if len(inside) > N_ALPHAS else np.empty(0)


def _steepness(alpha: Array, log_curve: Array) -> float:
    return float(-np.polyfit(np.log(alpha), log_curve, 1)[0]) if len(alpha) > 1 else np.nan


def _without_groups(index: Index) -> list[Index]:
    """All but every tenth: ten index sets, each of which leaves another tenth out."""
    return [index[np.arange(len(index)) % GROUPS != g] for g in range(GROUPS)]


def _jackknife(values: list[float]) -> float:
    return (len(values) - 1) * float(np.var(values))


# Coefficients in the eigenbasis.


def _eigenbasis(Phi: Array | None, K: Array | None, count: int) -> tuple[Array, Array]:
    """The leading eigenvalues of K/n and eigenfunctions at the rows, (n, count), scaled to mean square 1."""
    if K is not None:
        n = len(K)
        mu, vectors = np.linalg.eigh(K / n)
    else:
        assert Phi is not None
        n = len(Phi)
        vectors, singular, _ = np.linalg.svd(Phi, full_matrices=False)
        mu, vectors = (singular**2 / n)[::-1], vectors[:, ::-1]
    mu, vectors = mu[::-1][:count], vectors[:, ::-1][:, :count]
    real = mu > FLOOR * mu[0]
    return mu[real], np.sqrt(n) * vectors[:, real]


def _coefficients(basis: Array, y: Array, loss: Pinball) -> Array:
    """The quantile fit by eigenfunctions; the ridge is there for uniqueness only."""
    scale = float(np.mean(np.abs(y - np.median(y)))) or 1.0
    problem = Problem(LiftedRows(ArrayRows(basis, y), features=basis), loss, 1e-6 / scale, fit_intercept=False)
    return SOLVERS["newton"](problem, tol=1e-6, max_iter=1000).coef[:, 0]


def _noise(first: Array, second: Array) -> float:
    """The noise variance of one coefficient, from the differences of twins; the median resists the few that differ."""
    return float(np.median((first - second) ** 2)) / 0.4549 / 2  # 0.4549: median of a squared standard normal


def _binned(mu: Array, first: Array, second: Array, noise: float) -> tuple[Array, Array, Array]:
    """Per bin of eigenfunctions: mean log eigenvalue, energy, and its standard error."""
    edges = _edges(mu)
    starts, size = edges[:-1], np.diff(edges)
    position = np.add.reduceat(np.log(mu), starts) / size
    energy = np.add.reduceat(first * second, starts)
    error = np.sqrt(size * noise**2 + 2 * noise * np.maximum(energy, 0))
    # Bins are not all of the same width on the log scale of the eigenfunctions' numbers.
    width = np.diff(np.log(edges + 0.5))
    return position, energy / width, error / width


def _edges(mu: Array) -> Index:
    """Where bins begin and end: sizes grow, and cuts fall between eigenvalues that differ.

    Eigenfunctions of nearly equal eigenvalues are mixed up by the sample; their energies belong in one bin.
    """
    nominal = np.round(3 * BIN_GROWTH ** np.arange(60)).astype(int)
    drop = np.append(np.log(mu[:-1] / mu[1:]), 0.0)  # drop[i - 1]: from eigenvalue i - 1 to eigenvalue i
    near = [edge + int(np.argmax(drop[edge - 2 : edge + 1])) - 1 for edge in nominal[nominal < len(mu) - 1]]
    return np.unique([0, *near, len(mu)])


def _power(position: Array, energy: Array, error: Array, confidence: float) -> tuple[float, float]:
    """Half the slope of log energy against log eigenvalue, and half the width of its interval."""
    weight = 1 / ((error / energy) ** 2 + IRREGULARITY**2)
    centre = position - np.average(position, weights=weight)
    log_energy = np.log(energy)
    spread = np.sum(weight * centre**2)
    slope = np.sum(weight * centre * log_energy) / spread
    residual = log_energy - np.average(log_energy, weights=weight) - slope * centre
    freedom = len(position) - 2
    misfit = max(1.0, float(np.sum(weight * residual**2)) / freedom)
    return float(slope) / 2, float(student.ppf((1 + confidence) / 2, freedom) * np.sqrt(misfit / spread)) / 2


# Input.


def _matrices(features: ArrayLike | None, gram: ArrayLike | None) -> tuple[Array | None, Array | None]:
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


def _part(Phi: Array | None, rows: Index, columns: Index) -> tuple[Array, ...]:
    """Some rows and columns of the features, rescaled as if there had been only so many."""
    return () if Phi is None else (Phi[np.ix_(rows, columns)] * np.sqrt(Phi.shape[1] / len(columns)),)


def _corner(K: Array | None, rows: Index) -> Array | None:
    return None if K is None else K[np.ix_(rows, rows)]
