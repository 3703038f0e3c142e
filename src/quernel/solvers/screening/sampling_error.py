"""Sampling error of a fit: how far the fit to a sample may be from the fit to all rows, and so which rows to screen.

By the usual expansion of an M-estimator, the coefficients of a fit to m rows are off by H^-1 times the sampling noise
of their gradient, with H = c S + 2 alpha I: S is the mean of phi phi', and c the curvature of the mean loss, which for
a piecewise linear loss is the density of residuals at its kinks times the jumps of its slope there. So the prediction
of row i has the standard error s_i,

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
from scipy.special import ndtr

from quernel.losses import Loss
from quernel.objective import InMemoryProblem

Array = NDArray[np.floating]

# Rows of the sample from which feature moments are estimated.
MOMENT_ROWS = 512
# Share of rows, those nearest to a kink but not on it, from which the density of residuals there is estimated.
NEAR_SHARE = 0.1
# Expected gap due to wrongly screened rows, as a share of the tolerance, over all columns together: if one column fails
# its check, all rows are read again. The expectation is above the typical value, so a whole tolerance is affordable.
COST = 1.0
# Active rows cost time: at most this share of all rows is active, in one column and over all columns together ...
MAX_ACTIVE_SHARE, MAX_TOTAL_SHARE = 0.18, 0.9
# ... but the band is at least this many typical standard errors.
MIN_BAND = 1.6
# The wide band, whose rows are only screened again: it may hold this many times as many rows, for this share of COST.
WIDE_FACTOR, WIDE_COST = 2, 0.1
# Largest b / s_i, where h is below rounding; steps of the bisection for b; sqrt(2 pi).
MAX_T, BISECTIONS, ROOT = 8.0, 12, np.sqrt(2 * np.pi)


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
        features = features[:: -(-len(features) // MOMENT_ROWS)]
        if sample.fit_intercept:
            features = features - features.mean(axis=0)
        moments, axes = np.linalg.eigh(features.T @ features / len(features))
        return cls(np.maximum(moments, 0), (features @ axes) ** 2, sample.fit_intercept)

    def errors(self, curvature: Array, alpha: Array, variance: Array) -> Array:
        """Standard errors s_i (m, q) of predictions; `variance` (q,) is var v / n_rows, and `curvature` (q,) is c."""
        hessian = np.multiply.outer(self.moments, curvature) + 2 * alpha
        of_intercept = curvature**-2 if self.intercept else 0
        return np.sqrt(variance * (self.squares @ (self.moments[:, None] / hessian**2) + of_intercept))

    def parameters(self, curvature: Array, alpha: Array) -> Array:
        """Effective degrees of freedom trace(c S H^-1) of a fit, (q,); the intercept counts as one."""
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
        most = min(MAX_ACTIVE_SHARE, MAX_TOTAL_SHARE / sample.n_columns)
        near, max_band, max_wide_band, median = np.transpose(
            [
                np.quantile(size[:, k], [min(interpolated[k] + NEAR_SHARE, 1), most, WIDE_FACTOR * most, 0.5])
                for k in range(sample.n_columns)
            ]
        )
        distance = np.where(near > 0, near, 1.0)
        curvature = _curvature(sample.loss, distance)
        errors = moments.errors(curvature, sample.alpha, sample.rows.share @ dual**2 / n_rows)
        cost = COST / sample.n_columns * tol * (sample.rows.share @ sample.loss.value(residual))
        min_band = MIN_BAND * np.sqrt(np.mean(errors**2, axis=0))

        def limit(needed: Array, most: Array) -> Array:
            return np.where(near > 0, np.minimum(np.maximum(np.minimum(needed, most), min_band), median), 0.0)

        band = limit(_solve_for_band(errors, cost / (2 * curvature)), max_band)
        needed = _solve_for_band(errors, WIDE_COST * cost / (2 * curvature))
        wide_band = limit(needed, max_wide_band)
        return cls(
            band,
            wide_band,
            bool(np.all(wide_band >= needed)),
            np.minimum(NEAR_SHARE * band / distance, 0.5),
            moments.parameters(curvature, sample.alpha),
        )


def _curvature(loss: Loss, near: Array) -> Array:
    """Curvature c (q,) of the mean loss, where a share NEAR_SHARE of the rows is within `near` (q,) of a kink."""
    (low, high), (knots, _) = loss.domain, loss.segments
    apart = np.ptp(knots, axis=1) > near  # kinks closer than that act as one
    return (high - low) * NEAR_SHARE / (2 * near * np.where(apart, knots.shape[1], 1))


def _solve_for_band(errors: Array, cost: Array) -> Array:
    """The band b with  mean_i s_i^2 h(b / s_i) = cost,  by bisection, (q,)."""
    low, high = np.zeros(errors.shape[1]), MAX_T * errors.max(axis=0)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        t = np.divide(middle, errors, out=np.full(errors.shape, MAX_T), where=errors > 0)
        enough = np.mean(errors**2 * ((1 + t**2) * ndtr(-t) - t * np.exp(-(t**2) / 2) / ROOT) / 2, axis=0) <= cost
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high
