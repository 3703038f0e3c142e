"""How far the fit to a sample may be from the fit to all rows.

The coefficients of a fit to m rows are off by H^-1 times the noise of their gradient, H = c S + 2 alpha I: S is the
mean of phi phi', and c the curvature of the mean loss, the density of residuals at its knots times the jumps of its
slope there. So the prediction of row i has the standard error s_i,

    s_i^2 = (var v / m) phi_i' H^-1 S H^-1 phi_i,        and about trace(c S H^-1) parameters are in use.

In the eigenvectors of S all of this is diagonal, and costs nothing beside a solve. Rows farther than a band b from the
fit are settled. With normal errors those that end up on the wrong side all the same cost about

    2 c mean_i s_i^2 h(b / s_i),        h(t) = integral of E(Z - x)+ over x > t  =  ((1 + t^2) P(Z > t) - t p(t)) / 2,

which says how wide_band the band has to be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from quernel.losses import Loss
from quernel.objective import Problem

Array = NDArray[np.floating]

# So many rows of a sample tell what rows are like.
MOMENT_ROWS = 512
# The share of rows, those nearest to a knot but not on it, that tell the density there.
NEAR_SHARE = 0.1
# What settled rows on the wrong side may be expected to cost, as a share of the tolerance: of one column, for where one
# fails all are swept again. Expected is more than what they mostly do cost.
COST = 1.0
# Active rows cost, too: no more than this share of all is doubted, by one column and by all together, unless it is
# within so many typical errors. Where they are only looked at again, they may be so many times as many, and settled
# rows may cost this active_share of it.
MAX_ACTIVE_SHARE, MAX_TOTAL_SHARE, MIN_BAND, WIDE_FACTOR, WIDE_COST = 0.18, 0.9, 1.6, 2, 0.1
# Of standard errors: farther away nothing is left of h but rounding.
MAX_T, BISECTIONS, ROOT = 8.0, 12, np.sqrt(2 * np.pi)


@dataclass(frozen=True, eq=False)
class FeatureMoments:
    """Second moments (k,) of features along their principal axes, and the squared coordinates (m, k) of some rows.

    With an intercept rows are seen from their mean.
    """

    moments: Array
    squares: Array
    intercept: bool

    @classmethod
    def from_sample(cls, sample: Problem) -> FeatureMoments:
        """Of the features in which the sample is solved."""
        features = sample.rows.as_array("A sample is kept")
        features = features[:: -(-len(features) // MOMENT_ROWS)]
        if sample.fit_intercept:
            features = features - features.mean(axis=0)
        moments, axes = np.linalg.eigh(features.T @ features / len(features))
        return cls(np.maximum(moments, 0), (features @ axes) ** 2, sample.fit_intercept)

    def errors(self, curvature: Array, alpha: Array, variance: Array) -> Array:
        """The standard errors of the rows for duals with this variance of their mean, (m, q)."""
        hessian = np.multiply.outer(self.moments, curvature) + 2 * alpha
        of_intercept = curvature**-2 if self.intercept else 0
        return np.sqrt(variance * (self.squares @ (self.moments[:, None] / hessian**2) + of_intercept))

    def parameters(self, curvature: Array, alpha: Array) -> Array:
        """How many of them a fit really uses, (q,)."""
        steep = np.multiply.outer(self.moments, curvature)
        return np.sum(steep / (steep + 2 * alpha), axis=0) + self.intercept


@dataclass(frozen=True, eq=False)
class SamplingError:
    """The size of residual up to which rows are active, the share of rows that are, and the parameters in use; (q,).

    `wide_band` is the band where active rows cost little, and `covers_all` tells whether it holds all that could matter. A
    sample that tells nothing, such as one in which y is constant, has no band.
    """

    band: Array
    wide_band: Array
    covers_all: bool
    active_share: Array
    parameters: Array

    @classmethod
    def unknown(cls, sample: Problem) -> SamplingError:
        """Where no row can be settled anyway."""
        ones: Array = np.ones(sample.n_columns)
        return cls(ones, ones, False, ones, sample.rows.n_features * ones)

    @classmethod
    def estimate(
        cls, sample: Problem, residual: Array, dual: Array, n_rows: int, geometry: FeatureMoments, tol: float
    ) -> SamplingError:
        """Of a fit to `n_rows` rows, by residuals and duals of a sample at it, where all are to be solved to `tol`."""
        size, interpolated = sample.loss.distance_to_knot(residual), np.mean(sample.loss.strictly_inside(dual), axis=0)
        # Rows on the fit, because it bends to them, tell nothing of the density.
        most = min(MAX_ACTIVE_SHARE, MAX_TOTAL_SHARE / sample.n_columns)
        near, affordable, looked_at, half = np.transpose(
            [
                np.quantile(size[:, k], [min(interpolated[k] + NEAR_SHARE, 1), most, WIDE_FACTOR * most, 0.5])
                for k in range(sample.n_columns)
            ]
        )
        told = np.where(near > 0, near, 1.0)
        curvature = _curvature(sample.loss, told)
        errors = geometry.errors(curvature, sample.alpha, sample.rows.share @ dual**2 / n_rows)
        cost = COST / sample.n_columns * tol * (sample.rows.share @ sample.loss.value(residual))
        least = MIN_BAND * np.sqrt(np.mean(errors**2, axis=0))

        def within(most: Array, enough: Array) -> Array:
            return np.where(near > 0, np.minimum(np.maximum(np.minimum(enough, most), least), half), 0.0)

        band = within(affordable, _solve_for_band(errors, cost / (2 * curvature)))
        covers_all = _solve_for_band(errors, WIDE_COST * cost / (2 * curvature))
        wide_band = within(looked_at, covers_all)
        return cls(
            band,
            wide_band,
            bool(np.all(wide_band >= covers_all)),
            np.minimum(NEAR_SHARE * band / told, 0.5),
            geometry.parameters(curvature, sample.alpha),
        )


def _curvature(loss: Loss, near: Array) -> Array:
    """Of the mean loss, where a share `NEAR_SHARE` of the rows is so near to a knot, (q,)."""
    (low, high), (knots, _) = loss.domain, loss.segments
    apart = np.ptp(knots, axis=1) > near  # seen from afar, knots that are close are one
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
