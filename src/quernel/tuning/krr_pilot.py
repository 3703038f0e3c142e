"""Kernel ridge regression on some rows: what bandwidths and ridge weights are found by before the fit itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyr2k, dsyrk
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.optimize import minimize
from scipy.special import ndtri

from quernel.data import ArrayRows
from quernel.kernels import Kernel
from quernel.losses import Loss, Pinball, weighted_quantiles
from quernel.tuning.defaults import spread

Array = NDArray[np.floating]

# Bandwidths stay between these, in scales of the columns; ridges between these, the diagonal of K being 1.
NARROWEST, WIDEST = 0.02, 1000.0
LEAST_RIDGE, FIRST_RIDGE, MOST_RIDGE = 1e-4, 0.1, 1e3
# Descent begins where the kernel of two rows is this in the median, as with the Gaussian and its automatic bandwidth.
TYPICAL = 0.25
# What is added to the diagonal of K at least: with less, rounding could make it singular.
LEAST = 1e-10
# Rows by which the beginning is found.
FEW = 300
# Ridges to choose from where bandwidths stay as they are.
RIDGES = 10.0 ** np.arange(-4, 3.5, 0.5)
# What bandwidths cost that are apart from each other by a factor of e, against the gain by one row in n.
APART = 1.0


@dataclass(frozen=True, eq=False)
class Target:
    """Columns y (n, k) to be predicted, and what their mean squared error counts."""

    y: Array
    importance: float = 1.0


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Mean squared leave-one-out error at rows X of mean weight 1, as a function of bandwidths and ridges."""

    kernel: Kernel
    X: Array
    weight: Array
    targets: tuple[Target, ...]
    usual: Array

    def descend(self, bandwidth: Array, unit: Array, ridges: Array | None = None, *, steps: int) -> LooResult:
        """The least error that some steps from these bandwidths find."""
        d = len(bandwidth)
        start = np.log(np.r_[bandwidth, np.full(len(self.targets), FIRST_RIDGE) if ridges is None else ridges])
        low, high = np.log(NARROWEST * unit), np.log(WIDEST * unit)
        start[:d] = np.clip(start[:d], low, high)
        bounds = [*zip(low, high, strict=True), *[(np.log(LEAST_RIDGE), np.log(MOST_RIDGE))] * len(self.targets)]
        best = minimize(self._log_error, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps})
        return LooResult(np.exp(best.x[:d]), np.exp(best.x[d:]), float(best.fun))

    def select_ridge(self) -> LooResult:
        """The usual bandwidths with the ridge of the least mean square error of the first target.

        One eigendecomposition serves all ridges.
        """
        K, root = self._gram(self.usual), np.sqrt(self.weight)[:, None]
        values, vectors = np.linalg.eigh(root * K * root.T)
        across, errors = vectors.T @ (root * self.targets[0].y), []
        for ridge in RIDGES:
            inverse = 1 / (np.maximum(values, 0) + ridge)
            error = vectors @ (inverse[:, None] * across) / ((vectors**2 @ inverse)[:, None] * root)
            errors.append(float(np.mean(self.weight[:, None] * error**2)))
        best = int(np.argmin(errors))
        return LooResult(self.usual, RIDGES[[best]], errors[best])

    def errors(self, found: LooResult) -> list[Array]:
        """Every target's leave-one-out errors, shape (n, k)."""
        K = self._gram(found.bandwidth)
        return [
            product / np.diag(inverse)[:, None]
            for target, ridge in zip(self.targets, found.ridges, strict=True)
            for inverse, product in [self._solve(K, ridge, target.y)]
        ]

    def predict(self, found: LooResult, X_new: Array) -> list[Array]:
        """Every target at other rows."""
        K, across = self._gram(found.bandwidth), self.kernel.with_bandwidth(found.bandwidth).gram(X_new, self.X) + 1
        pairs = zip(self.targets, found.ridges, strict=True)
        return [across @ self._solve(K, ridge, target.y)[1] for target, ridge in pairs]

    def _gram(self, bandwidth: Array) -> Array:
        return self.kernel.with_bandwidth(bandwidth).gram(self.X, self.X) + 1

    def _solve(self, K: Array, ridge: float, y: Array) -> tuple[Array, Array]:
        """B and B y."""
        regular = K.T.copy(order="F")
        regular[np.diag_indices_from(regular)] += np.maximum(ridge / self.weight, LEAST)
        factor, failed = dpotrf(regular, lower=1, overwrite_a=1)
        assert not failed
        inverse = _symmetrize(dpotri(factor, lower=1, overwrite_c=1)[0])
        return inverse, inverse @ y

    def _log_error(self, logarithms: Array) -> tuple[float, Array]:
        """log of the error, and its derivatives by the logarithms of bandwidths and ridges."""
        d, n = self.X.shape[1], len(self.X)
        bandwidth, ridges = np.exp(logarithms[:d]), np.exp(logarithms[d:])
        K, by_kernel, by_ridge, total = self._gram(bandwidth), np.zeros((n, n), order="F"), np.zeros(len(ridges)), 0.0
        for t, (target, ridge) in enumerate(zip(self.targets, ridges, strict=True)):
            inverse, product = self._solve(K, ridge, target.y)
            diagonal = np.diag(inverse)[:, None]
            error = product / diagonal
            share = target.importance * self.weight[:, None] / error.size
            total += np.sum(share * error**2)
            by_product, by_diagonal = 2 * share * error / diagonal, np.sum(-2 * share * error**2 / diagonal, axis=1)
            # dB = -B dK B: the derivative by K is  -B diag(by_diagonal) B - B by_product (B y)',  made symmetric;
            # the first is a square. Lower triangles only.
            before = np.diag(by_kernel).copy()
            by_kernel = dsyrk(1.0, inverse * np.sqrt(-by_diagonal), 1.0, by_kernel, lower=1, overwrite_c=1)
            by_kernel = dsyr2k(-0.5, inverse @ by_product, product, 1.0, by_kernel, lower=1, overwrite_c=1)
            by_ridge[t] = (np.diag(by_kernel) - before) @ (ridge / self.weight)
        by_kernel = _symmetrize(by_kernel)
        by_bandwidth = np.sum(
            [c * part.with_bandwidth(bandwidth).bandwidth_gradient(self.X, by_kernel) for c, part in self._free_parts],
            axis=0,
        )
        if total <= 0:  # targets that are constant
            return 0.0, np.zeros_like(logarithms)
        apart = logarithms[:d] - np.log(self.usual)
        apart -= apart.mean()
        cost, by_apart = APART / n * apart @ apart, 2 * APART / n * apart
        return float(np.log(total)) + cost, np.r_[by_bandwidth / total + by_apart, by_ridge / total]

    @property
    def _free_parts(self) -> list[tuple[float, Kernel]]:
        return [(c, part) for c, part in self.kernel.parts if part.has_free_bandwidth]


def _symmetrize(lower: Array) -> Array:
    """The symmetric matrix of this lower triangle; what is above it must be 0."""
    diagonal = np.diag(lower).copy()
    whole = lower + lower.T
    np.fill_diagonal(whole, diagonal)
    return whole


@dataclass(frozen=True, eq=False)
class LooResult:
    """Bandwidths (d,), a ridge for every target, and what was made least by them."""

    bandwidth: Array
    ridges: Array
    error: float


def first_bandwidth(kernel: Kernel, bandwidth: Array, X: Array) -> Array:
    """These bandwidths times a number with which the kernel of two rows is TYPICAL in the median."""
    some = X[:FEW]
    pairs = np.triu_indices(len(some), 1)
    low, high = -10.0, 10.0
    for _ in range(20):
        middle = (low + high) / 2
        median = np.median(kernel.with_bandwidth(np.exp(middle) * bandwidth).gram(some, some)[pairs])
        low, high = (middle, high) if median < TYPICAL else (low, middle)
    return np.exp((low + high) / 2) * bandwidth


# Steps of descent: on few rows, which costs little, then on all, and then by the spread along with y.
COARSE, COARSE_STEPS, STEPS, SPREAD_STEPS = 350, 12, 5, 6
# Targets further than this from the median, in units of their spread, are drawn in: squares follow them too far.
FARTHEST = 8.0


class Pilot:
    """Some rows, in random order, and the usual bandwidths of their columns."""

    def __init__(self, rows: ArrayRows, loss: Loss, usual: Array) -> None:
        share, y = rows.share(), as_2d(rows.y)
        if not loss.margin:
            y = _winsorize(y, share)
        middle = share @ y
        deviation = np.sqrt(share @ (y - middle) ** 2)
        self.X, self.share, self.usual = rows.X, share, usual
        self.y = (y - middle) / np.where(deviation > 0, deviation, 1.0)
        # The curve of a level is  mean + normal score * spread,  and a normal law's mean absolute deviation is not 1.
        self.spread_counts = np.pi / 2 * float(np.mean(ndtri(loss.levels) ** 2)) if isinstance(loss, Pinball) else 0.0

    def fit_default(self, kernel: Kernel) -> LooResult:
        """The usual bandwidths, and a ridge for them."""
        return self._loo(kernel).select_ridge()

    def fit_bandwidths(self, kernel: Kernel, unit: Array) -> LooResult:
        """A bandwidth for every column, measured in these units: by y first, and then by the spread along with it."""
        start = first_bandwidth(kernel, self.usual, self.X)
        found = self._loo(kernel, COARSE).descend(start, unit, steps=COARSE_STEPS)
        by = self._loo(kernel)
        found = by.descend(found.bandwidth, unit, found.ridges, steps=STEPS)
        if not self.spread_counts:
            return found
        size = np.abs(by.errors(found)[0])
        both = replace(by, targets=(*by.targets, Target(size - self.share @ size, self.spread_counts)))
        return both.descend(found.bandwidth, unit, np.r_[found.ridges, FIRST_RIDGE], steps=SPREAD_STEPS)

    def _loo(self, kernel: Kernel, most: int | None = None) -> LeaveOneOut:
        """Errors of y, on all rows or on so many."""
        weight = self.share[:most]
        return LeaveOneOut(kernel, self.X[:most], weight / weight.mean(), (Target(self.y[:most]),), self.usual)


def as_2d(y: Array) -> Array:
    """y with a column for every target."""
    return y if y.ndim == 2 else y[:, None]


def _winsorize(y: Array, share: Array) -> Array:
    """y, what is far from the median brought nearer."""
    sides = [(weighted_quantiles(one, share, np.array([0.5]))[0], FARTHEST * spread(one, share)) for one in y.T]
    middle, far = np.array(sides).T
    return np.clip(y, middle - far, middle + far)
