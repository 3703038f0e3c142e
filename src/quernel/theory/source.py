"""Source exponent r estimated from data: energies of f* in the kernel's eigenbasis decay like mu^(2r)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student

from quernel.data import ArrayRows, InMemoryDesign
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.solvers import SOLVERS
from quernel.theory.exponents import FLOOR, Exponent, check_confidence, check_matrices, undecided

Array = NDArray[np.floating]
Index = NDArray[np.intp]


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


OPTIONS = SourceOptions()


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
    Phi, K = check_matrices(features, gram)
    if (Phi is None) == (K is None):
        raise ValueError("Give either features (n, M) or gram=(n, n), one of the two.")
    n = len(Phi if Phi is not None else K)  # type: ignore[arg-type]
    target = np.asarray(y, dtype=float)
    if target.shape != (n,) or not np.isfinite(target).all():
        raise ValueError(f"y must hold {n} finite numbers, one per row; got shape {target.shape}.")
    check_confidence(confidence)
    loss = Pinball(np.array([level]))
    mu, basis = _eigenbasis(Phi, K, int(OPTIONS.leading * n))
    halves = np.array_split(np.random.default_rng(random_state).permutation(n), 2)
    first, second = (_fit_coefficients(basis[half], target[half], loss) for half in halves)
    noise = _noise_variance(first, second)
    position, energy, error = _bin_energies(mu, first, second, noise)
    n_detected = int(
        np.argmin(np.append(energy > OPTIONS.detection * error, False))
    )  # bins before the first that is not seen
    name = f"source r at level {level:g}"
    if n_detected < OPTIONS.min_bins:
        return undecided(
            name,
            confidence,
            f"of the bins of the {len(mu)} leading eigenfunctions {n_detected} rise above the noise, "
            f"{OPTIONS.min_bins} are "
            "needed",
        )
    value, half_width = _fit_power(position[:n_detected], energy[:n_detected], error[:n_detected], confidence)
    if not half_width <= OPTIONS.max_width / 2:
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
    problem = Problem(InMemoryDesign(ArrayRows(basis, y), features=basis), loss, 1e-6 / scale, fit_intercept=False)
    return SOLVERS["newton"](problem, tol=1e-6, max_iter=1000).coef[:, 0]


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
    nominal = np.round(3 * OPTIONS.bin_growth ** np.arange(60)).astype(int)
    drop = np.append(np.log(mu[:-1] / mu[1:]), 0.0)  # drop[i - 1]: from eigenvalue i - 1 to eigenvalue i
    shifted = [edge + int(np.argmax(drop[edge - 2 : edge + 1])) - 1 for edge in nominal[nominal < len(mu) - 1]]
    return np.unique([0, *shifted, len(mu)])


def _fit_power(position: Array, energy: Array, error: Array, confidence: float) -> tuple[float, float]:
    """Half the weighted least-squares slope of log energy against log eigenvalue, and half its interval's width.

    Weights combine the sampling error with `irregularity`; a misfit beyond both widens the interval.
    """
    weight = 1 / ((error / energy) ** 2 + OPTIONS.irregularity**2)
    centre = position - np.average(position, weights=weight)
    log_energy = np.log(energy)
    sum_of_squares = np.sum(weight * centre**2)
    slope = np.sum(weight * centre * log_energy) / sum_of_squares
    residual = log_energy - np.average(log_energy, weights=weight) - slope * centre
    freedom = len(position) - 2
    misfit = max(1.0, float(np.sum(weight * residual**2)) / freedom)
    return float(slope) / 2, float(student.ppf((1 + confidence) / 2, freedom) * np.sqrt(misfit / sum_of_squares)) / 2
