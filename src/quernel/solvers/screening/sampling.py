"""What a random sample of rows tells about all of them: a low-rank basis, and the error of its fit.

Low-rank basis (`principal_basis`), a pivoted Cholesky decomposition that keeps the directions that matter. Features of
a smooth kernel are nearly collinear, and a direction in which they vary little can gain little. Let E be what a
projection misses of the features. With duals v, leaving E out costs at most |E'v / n|^2 / (4 alpha) of the objective;
at the optimum v is noise to every direction that is not worth fitting, so this is about var(v) trace(E'E / n) / (4
alpha n). Hence for many rows, most directions with eigenvalues below alpha can go. Their actual cost is part of the
certificate, which is always taken over all features.

Sampling error (`SamplingError`), and so which rows to screen. By the usual expansion of an M-estimator, the
coefficients of a fit to m rows are off by H^-1 times the sampling noise of their gradient, with H = c S + 2 alpha I: S
is the mean of phi phi', and c the curvature of the mean loss, which for a piecewise linear loss is the density of
residuals at its kinks times the jumps of its slope there. So the prediction of row i has the standard error s_i,

    s_i^2 = (var v / m) phi_i' H^-1 S H^-1 phi_i,        and the fit has about trace(c S H^-1) degrees of freedom.

In the eigenvectors of S all of this is diagonal, and costs little beside a solve. Rows with a residual farther than a
band b from a kink are screened. With normal errors, those that end up on the wrong side all the same add to the duality
gap about

    2 c mean_i s_i^2 h(b / s_i),        h(t) = integral of E(Z - x)+ over x > t  =  ((1 + t^2) P(Z > t) - t p(t)) / 2,

where Z is standard normal with density p. The band is chosen such that this is a set share of the tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpstrf
from scipy.special import ndtr

from quernel._machine import blocks, parallel_map
from quernel.losses import Loss
from quernel.objective import InMemoryProblem, Problem
from quernel.objective.duality_gap import dual_variance

Array = NDArray[np.floating]


@dataclass(frozen=True)
class _BasisOptions:
    """Which directions a low-rank basis keeps."""

    # Expected cost of the directions left out, as a share of the tolerance.
    cost: float = 0.05
    # Floor on the assumed correlation of duals with a direction left out, which is noise only up to a point.
    signal: float = 0.002
    # The same for margin losses with a kink: their population minimiser is a step function, and duals correlate with
    # what sharpens it.
    signal_of_steps: float = 0.016
    # A basis of more than this share of the features does not pay.
    max_share: float = 0.8


@dataclass(frozen=True)
class _BandOptions:
    """How wide the band around kinks is within which rows are active."""

    # Rows of the sample from which feature moments are estimated.
    moment_rows: int = 512
    # Share of rows, those nearest to a kink but not on it, from which the density of residuals there is estimated.
    near_share: float = 0.1
    # Expected gap due to wrongly screened rows, as a share of the tolerance, over all columns together: if one column
    # fails its check, all rows are read again. The expectation is above the typical value, so a whole tolerance is
    # affordable.
    cost: float = 1.0
    # Active rows cost time: at most this share of all rows is active, in one column and over all columns together ...
    max_active_share: float = 0.18
    max_total_share: float = 0.9
    # ... but the band is at least this many typical standard errors.
    min_errors: float = 1.6
    # The wide band, whose rows are only screened again, may hold this many times as many rows, for this share of cost.
    wide_factor: int = 2
    wide_cost: float = 0.1
    # Largest b / s_i, where h is below rounding, and steps of the bisection for b.
    max_t: float = 8.0
    bisections: int = 12


BASIS, BAND = _BasisOptions(), _BandOptions()
ROOT = np.sqrt(2 * np.pi)


@dataclass(frozen=True, eq=False)
class Directions:
    """Orthonormal directions `basis` (M, r) in order of importance.

    After projection on the first k of them, the largest residual mean square of a feature is left[k - 1].
    """

    basis: Array
    left: Array

    def needed(self, problem: Problem, n_rows: int, tol: float, null_objective: Array) -> int:
        """Number of directions that suffice for `n_rows` rows like these and a relative gap of `tol`."""
        variance = np.maximum(dual_variance(problem), np.finfo(float).tiny)
        is_step = problem.loss.margin and not np.all(problem.loss.smoothing_width > 0)
        signal = BASIS.signal_of_steps if is_step else BASIS.signal
        smallest = float(np.min(problem.alpha * null_objective / variance))
        spare = BASIS.cost * 4 * tol * min(n_rows, signal**-2) * smallest
        return min(int(np.count_nonzero(self.left > spare / len(self.basis))) + 1, len(self.left))


def directions(features: Array, share: Array, threads: int = 1) -> Directions:
    """Directions of these features (n, M) by pivoted Cholesky of their weighted Gram matrix, cheaper than eigenvectors.

    gram[pivots, pivots] = R'R, with pivots in order of the largest residual; the columns of R' are orthonormalised.
    """
    gram = _second_moments(features, share, threads)
    factor, pivots, rank, _ = dpstrf(gram, tol=np.finfo(float).eps * max(np.trace(gram), np.finfo(float).tiny))
    R = np.triu(factor[: max(rank, 1)])
    R[:, pivots - 1] = R.copy()
    # The square of the next pivot is the largest residual mean square.
    left = np.append(np.diag(factor)[1 : len(R)] ** 2, 0.0)
    return Directions(np.linalg.qr(R.T)[0], left)


def _second_moments(features: Array, share: Array, threads: int) -> Array:
    """Phi' diag(share) Phi."""

    def moments(part: slice) -> Array:
        scaled = features[part] * np.sqrt(share[part])[:, None]
        return scaled.T @ scaled  # BLAS syrk: half the work of a general product

    n_rows, n_features = features.shape
    return np.sum(parallel_map(moments, blocks(n_rows, n_features, threads), threads), axis=0)


def principal_basis(sample: InMemoryProblem, n_rows: int, tol: float, null_objective: Array) -> Array | None:
    """A basis (M, k) for problems of `n_rows` rows like the sample's, or None where k is close to M."""
    features = sample.rows.as_array("A basis needs the sample's features")
    found = directions(features, sample.rows.share, sample.rows.threads)
    k = found.needed(sample, n_rows, tol, null_objective)
    return None if k > BASIS.max_share * len(found.basis) else np.ascontiguousarray(found.basis[:, :k])


@dataclass(frozen=True, eq=False)
class FeatureMoments:
    """Eigenvalues of the second moments of the features, and squared coordinates of some rows in the eigenvectors.

    Attributes
    ----------
    moments : array of shape (k,)
        Eigenvalues of S; with an intercept, of the covariance.
    squares : array of shape (m, k)
        Squared coordinates of m rows, centred if there is an intercept.
    intercept : bool
    """

    moments: Array
    squares: Array
    intercept: bool

    @classmethod
    def from_sample(cls, sample: InMemoryProblem) -> FeatureMoments:
        """The moments of the features (or of their low-rank projection) in which the sample is solved."""
        features = sample.rows.as_array("A sample is kept")
        features = features[:: -(-len(features) // BAND.moment_rows)]
        if sample.fit_intercept:
            features = features - features.mean(axis=0)
        moments, axes = np.linalg.eigh(features.T @ features / len(features))
        return cls(np.maximum(moments, 0), (features @ axes) ** 2, sample.fit_intercept)

    def errors(self, curvature: Array, alpha: Array, variance: Array) -> Array:
        """Standard errors s_i (m, q) of predictions; `variance` (q,) is var v / n_rows, and `curvature` (q,) is c.

        The sandwich  phi'H^-1 (var v / n S) H^-1 phi  with H = c S + 2 alpha I, in the eigenvectors of S.
        """
        hessian = np.multiply.outer(self.moments, curvature) + 2 * alpha
        of_intercept = curvature**-2 if self.intercept else 0
        return np.sqrt(variance * (self.squares @ (self.moments[:, None] / hessian**2) + of_intercept))

    def parameters(self, curvature: Array, alpha: Array) -> Array:
        """Effective degrees of freedom trace(c S H^-1) of a fit, (q,); the intercept counts as one.

        As many rows as these are interpolated by a quantile curve, about.
        """
        steep = np.multiply.outer(self.moments, curvature)
        return np.sum(steep / (steep + 2 * alpha), axis=0) + self.intercept


@dataclass(frozen=True, eq=False)
class SamplingError:
    """Screening bands that follow from the sampling error of a fit.

    Attributes
    ----------
    band : array of shape (q,)
        Distance from a kink within which rows are active; 0 where the sample is uninformative, e.g. with constant y.
    wide_band : array of shape (q,)
        A wider band, for rows that are only screened again after a Newton step.
    covers_all : bool
        Whether `wide_band` is as wide as its share of the tolerance asks, and not cut to limit the number of rows.
    active_share : array of shape (q,)
        Expected share of active rows.
    parameters : array of shape (q,)
        Effective degrees of freedom of the fit.
    """

    band: Array
    wide_band: Array
    covers_all: bool
    active_share: Array
    parameters: Array

    @classmethod
    def unknown(cls, sample: InMemoryProblem) -> SamplingError:
        """Placeholder where no row can be screened, because the loss is curved."""
        ones: Array = np.ones(sample.n_columns)
        return cls(ones, ones, False, ones, sample.rows.n_features * ones)

    @classmethod
    def estimate(
        cls, sample: InMemoryProblem, residual: Array, dual: Array, n_rows: int, moments: FeatureMoments, tol: float
    ) -> SamplingError:
        """Estimate the sampling error of a fit to `n_rows` rows.

        Parameters
        ----------
        sample : InMemoryProblem
        residual, dual : arrays of shape (m, q)
            Of the sample, at the fit.
        n_rows : int
            Rows to which the fit was made: the sample itself, or others for a given initial point.
        moments : FeatureMoments
        tol : float
            Relative gap to which the problem of all rows will be solved.
        """
        size, interpolated = sample.loss.distance_to_knot(residual), np.mean(sample.loss.strictly_inside(dual), axis=0)
        # Rows that the fit interpolates are not evidence of the density at the kink.
        most = min(BAND.max_active_share, BAND.max_total_share / sample.n_columns)
        near, max_band, max_wide_band, median = np.transpose(
            [
                np.quantile(size[:, k], [min(interpolated[k] + BAND.near_share, 1), most, BAND.wide_factor * most, 0.5])
                for k in range(sample.n_columns)
            ]
        )
        distance = np.where(near > 0, near, 1.0)
        curvature = _curvature(sample.loss, distance)
        errors = moments.errors(curvature, sample.alpha, sample.rows.share @ dual**2 / n_rows)
        cost = BAND.cost / sample.n_columns * tol * (sample.rows.share @ sample.loss.value(residual))
        min_band = BAND.min_errors * np.sqrt(np.mean(errors**2, axis=0))

        def limit(needed: Array, most: Array) -> Array:
            return np.where(near > 0, np.minimum(np.maximum(np.minimum(needed, most), min_band), median), 0.0)

        band = limit(_solve_for_band(errors, cost / (2 * curvature)), max_band)
        needed = _solve_for_band(errors, BAND.wide_cost * cost / (2 * curvature))
        wide_band = limit(needed, max_wide_band)
        return cls(
            band,
            wide_band,
            bool(np.all(wide_band >= needed)),
            np.minimum(BAND.near_share * band / distance, 0.5),
            moments.parameters(curvature, sample.alpha),
        )


def _curvature(loss: Loss, near: Array) -> Array:
    """Curvature c (q,) of the mean loss, where a share `near_share` of the rows is within `near` (q,) of a kink.

    It is the jump of the slope at the kink times the density of residuals there, near_share / (2 near).
    """
    (low, high), (knots, _) = loss.domain, loss.segments
    apart = np.ptp(knots, axis=1) > near  # kinks closer than that act as one
    return (high - low) * BAND.near_share / (2 * near * np.where(apart, knots.shape[1], 1))


def _solve_for_band(errors: Array, cost: Array) -> Array:
    """The band b with  mean_i s_i^2 h(b / s_i) = cost,  by bisection, (q,).

    h(t) = E max(Z - t, 0)^2 / 2 of a standard normal Z: a row whose prediction is off by more than b may lie on the
    wrong side of the kink, and what that costs grows with the square of the excess. A few digits of b are enough.
    """
    low, high = np.zeros(errors.shape[1]), BAND.max_t * errors.max(axis=0)
    for _ in range(BAND.bisections):
        middle = (low + high) / 2
        t = np.divide(middle, errors, out=np.full(errors.shape, BAND.max_t), where=errors > 0)
        h = ((1 + t**2) * ndtr(-t) - t * np.exp(-(t**2) / 2) / ROOT) / 2
        enough = np.mean(errors**2 * h, axis=0) <= cost
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high
