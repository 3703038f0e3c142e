"""Leave-one-out error of kernel ridge regression, and the bandwidths that minimise it.

The leave-one-out error is that on a subsample. Kernel ridge regression with kernel matrix K + 1 (the 1 stands for an
intercept), ridge r and weights w has, with

    B = (K + 1 + r diag(1/w))^-1,

the leave-one-out residuals  e_i = (B y)_i / B_ii,  hence their weighted mean square in closed form (PRESS), and its
gradient with respect to log bandwidths and log ridges from one Cholesky factorisation, at O(n^3) per evaluation, in
single precision where n is large and r is not tiny.
`LeaveOneOut` minimises it by L-BFGS; `Pilot` chooses targets, subsamples and starting points. The squared error serves
as a cheap proxy of the loss: only the bandwidths, and a scale for alpha, are taken from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs, get_lapack_funcs
from scipy.optimize import minimize
from scipy.special import ndtri

from quernel.data import ArrayRows
from quernel.kernels import Kernel, ShiftInvariantKernel
from quernel.losses import Loss, Pinball, weighted_quantiles
from quernel.solvers.progress import stop_requested
from quernel.tuning.alpha import as_2d
from quernel.tuning.data_summary import robust_scale

Array = NDArray[np.floating]


@dataclass(frozen=True)
class LeaveOneOutOptions:
    """Constants of the search for bandwidths."""

    # Bounds of the bandwidths, in scales of the columns; bounds and starting value of the ridges (K has diagonal 1).
    narrowest: float = 0.02
    widest: float = 1000.0
    ridge_range: tuple[float, float] = (1e-4, 1e3)
    first_ridge: float = 0.1
    # The starting bandwidths make this the median of k(x, z) over pairs of the first rows, as the Gaussian with
    # automatic ones does.
    typical: float = 0.25
    typical_rows: int = 300
    # Smallest number added to the diagonal of K; with less, rounding error could make it singular.
    least: float = 1e-10
    # With more rows than this, matrices whose condition number is below that bound are inverted in single precision, in
    # half of the time: gradients then have two digits or more, and a few steps of descent need no more.
    single_from: int = 1000
    single_condition: float = 1e6
    # Penalty apart / n * sum_j (log h_j / usual_j - mean)^2 on unequal bandwidths, added to the log error: a factor of
    # e between columns must pay for itself by about one row in n.
    apart: float = 1.0
    # Stages: iterations on a few rows, which are cheap, then on all rows, then with the absolute residuals as a second
    # target. The ridge of automatic bandwidths is chosen on `usual_rows`: it hardly depends on how many.
    coarse_rows: int = 350
    coarse_steps: int = 12
    steps: int = 5
    spread_steps: int = 6
    usual_rows: int = 700
    # Log errors of the last candidate kernels but two, but one, and of the last are raised by this before the lowest
    # wins: a smooth kernel has to be clearly better than rough ones, which are wrong less often, and on tables of many
    # rows a less rough one has to be better than the roughest.
    handicaps: tuple[float, ...] = (0.05, 0.0, 0.05)
    handicaps_of_many: tuple[float, ...] = (0.05, 0.02, 0.0)
    # Winsorize targets at this many robust scales from the median: squared error is sensitive to outliers.
    winsorize_at: float = 8.0


OPTIONS = LeaveOneOutOptions()
# Grid of ridges for fixed bandwidths.
RIDGES = 10.0 ** np.arange(-4, 3.5, 0.5)


@dataclass(frozen=True, eq=False)
class Target:
    """Targets y of shape (n, k) and the weight of their mean squared error in the sum."""

    y: Array
    importance: float = 1.0


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Mean squared leave-one-out error of kernel ridge regression, as a function of bandwidths and ridges.

    Attributes
    ----------
    kernel : Kernel without bandwidth
    X : ndarray of shape (n, d)
    weight : ndarray of shape (n,), of mean 1
    targets : tuple of Target, each with its own ridge
    usual : ndarray of shape (d,), the automatic bandwidths
    """

    kernel: Kernel
    X: Array
    weight: Array
    targets: tuple[Target, ...]
    usual: Array

    def descend(self, bandwidth: Array, unit: Array, ridges: Array | None = None, *, steps: int) -> LooResult:
        """Minimise the penalised log error by `steps` L-BFGS iterations in log bandwidths and log ridges.

        `unit` of shape (d,) are the scales of the columns, in which the bounds are given.
        """
        d = len(bandwidth)
        start = np.log(np.r_[bandwidth, np.full(len(self.targets), OPTIONS.first_ridge) if ridges is None else ridges])
        low, high = np.log(OPTIONS.narrowest * unit), np.log(OPTIONS.widest * unit)
        start[:d] = np.clip(start[:d], low, high)
        bounds = [*zip(low, high, strict=True), *[np.log(OPTIONS.ridge_range)] * len(self.targets)]
        kwargs = {"method": "L-BFGS-B", "bounds": bounds, "options": {"maxiter": steps}, "callback": _stop_descent}
        best = minimize(self._log_error, start, jac=True, **kwargs)
        return LooResult(np.exp(best.x[:d]), np.exp(best.x[d:]), float(best.fun))

    def select_ridge(self) -> LooResult:
        """Best ridge of a grid for the automatic bandwidths, by the error of the first target.

        With W = diag(w) and  W^(1/2) K W^(1/2) = V D V',  B = W^(1/2) V (D + r)^-1 V' W^(1/2):  one eigendecomposition
        serves all ridges r.
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
        """Leave-one-out residuals of each target, shape (n, k)."""
        K = self._gram(found.bandwidth)
        return [
            product / np.diag(inverse)[:, None]
            for target, ridge in zip(self.targets, found.ridges, strict=True)
            for inverse, product in [self._solve(K, ridge, target.y)]
        ]

    def predict(self, found: LooResult, X_new: Array) -> list[Array]:
        """Predictions of each target at new rows, shape (m, k)."""
        K, across = self._gram(found.bandwidth), self.kernel.with_bandwidth(found.bandwidth).gram(X_new, self.X) + 1
        pairs = zip(self.targets, found.ridges, strict=True)
        return [across @ self._solve(K, ridge, target.y)[1] for target, ridge in pairs]

    def _gram(self, bandwidth: Array) -> Array:
        """Kernel matrix plus 1, shape (n, n)."""
        K = self.kernel.with_bandwidth(bandwidth).gram(self.X, self.X)
        return np.add(K, 1, out=K)

    def _solve(self, K: Array, ridge: float, y: Array) -> tuple[Array, Array]:
        """B = (K + ridge diag(1/w))^-1 and B y, by Cholesky, in single precision where that has digits enough."""
        condition = np.trace(K) * self.weight.max() / ridge  # about a bound of the condition number of the matrix
        single = len(K) > OPTIONS.single_from and condition < OPTIONS.single_condition
        regular: Array = K.T.astype(np.float32 if single else np.float64, order="F")
        regular[np.diag_indices_from(regular)] += np.maximum(ridge / self.weight, OPTIONS.least)
        potrf, potri = get_lapack_funcs(("potrf", "potri"), (regular,))
        factor, failed = potrf(regular, lower=1, overwrite_a=1)
        assert not failed
        inverse = _symmetrize(potri(factor, lower=1, overwrite_c=1)[0])
        return inverse, inverse @ y.astype(regular.dtype)

    def _log_error(self, logarithms: Array) -> tuple[float, Array]:
        """Penalised log error and its gradient with respect to log bandwidths (d,) and log ridges."""
        d, n = self.X.shape[1], len(self.X)
        bandwidth, ridges = np.exp(logarithms[:d]), np.exp(logarithms[d:])
        K, total = self._gram(bandwidth), 0.0
        grad_kernel, grad_ridge = [], np.zeros(len(ridges))
        for t, (target, ridge) in enumerate(zip(self.targets, ridges, strict=True)):
            inverse, product = self._solve(K, ridge, target.y)
            diagonal = np.diag(inverse)[:, None].astype(float)
            error = product / diagonal
            share = target.importance * self.weight[:, None] / error.size
            total += np.sum(share * error**2)
            grad_product, grad_diagonal = 2 * share * error / diagonal, np.sum(-2 * share * error**2 / diagonal, axis=1)
            # From dB = -B dK B, the derivative with respect to K is the symmetric part of
            # -B diag(grad_diagonal) B - B grad_product (B y)'.  As grad_diagonal <= 0, the first term is a symmetric
            # product (syrk); the second is a symmetric rank-2k update (syr2k). Only lower triangles are filled.
            syrk, syr2k = get_blas_funcs(("syrk", "syr2k"), (inverse,))
            grad_product, scale = grad_product.astype(inverse.dtype), np.sqrt(-grad_diagonal).astype(inverse.dtype)
            lower = syrk(1.0, inverse * scale, lower=1)
            lower = syr2k(-0.5, inverse @ grad_product, product, 1.0, lower, lower=1, overwrite_c=1)
            grad_ridge[t] = np.diag(lower) @ (ridge / self.weight)
            grad_kernel.append(lower)
        # Twice the lower triangle stands for both: on the diagonal K is 1, whatever the bandwidths.
        parts, lower = self._free_parts, sum(grad_kernel)
        grad_bandwidth = np.sum(
            [2 * c * part.with_bandwidth(bandwidth).bandwidth_gradient(self.X, lower) for c, part in parts], axis=0
        )
        if total <= 0:  # constant targets
            return 0.0, np.zeros_like(logarithms)
        # Penalty on bandwidths whose ratios differ from those of the automatic ones.
        apart = logarithms[:d] - np.log(self.usual)
        apart -= apart.mean()
        penalty, grad_penalty = float(OPTIONS.apart / n * apart @ apart), 2 * OPTIONS.apart / n * apart
        return float(np.log(total)) + penalty, np.r_[grad_bandwidth / total + grad_penalty, grad_ridge / total]

    @property
    def _free_parts(self) -> list[tuple[float, ShiftInvariantKernel]]:
        """Coefficients and summands of the kernel whose bandwidth is to be learned."""
        return [(c, cast(ShiftInvariantKernel, part)) for c, part in self.kernel.summands if part.has_free_bandwidth]


def _round(values: Array) -> Array:
    """Values rounded to single precision."""
    return values.astype(np.float32).astype(float)


def _symmetrize(lower: Array) -> Array:
    """Symmetric matrix with this lower triangle; entries above it must be 0."""
    diagonal = np.diag(lower).copy()
    whole = lower + lower.T
    np.fill_diagonal(whole, diagonal)
    return whole


@dataclass(frozen=True, eq=False)
class LooResult:
    """Bandwidths (d,), one ridge per target, and the value of the criterion.

    The criterion is the penalised log error in `LeaveOneOut.descend`, the mean squared error in `select_ridge`.
    """

    bandwidth: Array
    ridges: Array
    error: float


def first_bandwidth(kernel: Kernel, bandwidth: Array, X: Array) -> Array:
    """Scale these bandwidths such that the median of k(x, z) over pairs of rows is `typical`, by bisection."""
    some = X[: OPTIONS.typical_rows]
    pairs = np.triu_indices(len(some), 1)
    low, high = -10.0, 10.0
    for _ in range(20):
        middle = (low + high) / 2
        median = np.median(kernel.with_bandwidth(np.exp(middle) * bandwidth).gram(some, some)[pairs])
        low, high = (middle, high) if median < OPTIONS.typical else (low, middle)
    return np.exp((low + high) / 2) * bandwidth


class Pilot:
    """Kernel ridge regression of standardised targets on a subsample, to find bandwidths.

    Parameters
    ----------
    rows : ArrayRows, in random order, so that the first m are a random subsample
    loss : Loss of the fit to come; quantile levels decide how much the spread of y counts
    usual : ndarray of shape (d,), the automatic bandwidths
    """

    def __init__(self, rows: ArrayRows, loss: Loss, usual: Array) -> None:
        share, y = rows.share(), as_2d(rows.y)
        if not loss.margin:
            y = winsorize(y, share)
        middle = share @ y
        deviation = np.sqrt(share @ (y - middle) ** 2)
        self.X, self.share, self.usual = rows.X, share, usual
        self.y = (y - middle) / np.where(deviation > 0, deviation, 1.0)
        # In a location-scale model the quantile at tau is  mean + ndtri(tau) * sigma,  so an error in sigma counts
        # ndtri(tau)^2. Absolute residuals have mean sigma * sqrt(2 / pi) for normal errors, hence the factor pi / 2.
        self.spread_weight = np.pi / 2 * float(np.mean(ndtri(loss.levels) ** 2)) if isinstance(loss, Pinball) else 0.0

    def fit_default(self, kernel: Kernel) -> LooResult:
        """Automatic bandwidths with the best ridge for them, found on the first rows."""
        return self._loo(kernel, OPTIONS.usual_rows).select_ridge()

    def fit_coarse_bandwidths(self, kernel: Kernel, unit: Array) -> LooResult:
        """Bandwidths learned from y on the first few rows; enough to compare kernels."""
        start = first_bandwidth(kernel, self.usual, self.X)
        return self._loo(kernel, OPTIONS.coarse_rows).descend(start, unit, steps=OPTIONS.coarse_steps)

    def refine_bandwidths(self, kernel: Kernel, unit: Array, found: LooResult) -> LooResult:
        """Better bandwidths than `found`, from all rows.

        In single precision the last digits of the numbers that it begins from would show in the result. So these are
        rounded, without units: then they are the same for rows in another order, repeated or in other units.
        """
        loo = self._loo(kernel)
        if len(self.X) <= OPTIONS.single_from:
            return self._descend(loo, unit, found)
        X, targets = _round((self.X - self.share @ self.X) / unit), (Target(_round(self.y)),)
        loo = LeaveOneOut(kernel, X, _round(loo.weight), targets, _round(self.usual / unit))
        start, ridges = (np.exp(np.round(np.log(one), 3)) for one in (found.bandwidth / unit, found.ridges))
        found = replace(found, bandwidth=start, ridges=ridges)
        found = self._descend(loo, np.ones(len(unit)), found)
        return replace(found, bandwidth=found.bandwidth * unit)

    def _descend(self, loo: LeaveOneOut, unit: Array, found: LooResult) -> LooResult:
        """Bandwidths for y and, for quantile levels, then for y and the absolute residuals."""
        found = loo.descend(found.bandwidth, unit, found.ridges, steps=OPTIONS.steps)
        if not self.spread_weight:
            return found
        size = np.abs(loo.errors(found)[0])
        spread = Target(size - np.average(size, axis=0, weights=loo.weight), self.spread_weight)
        both = replace(loo, targets=(*loo.targets, spread))
        return both.descend(found.bandwidth, unit, np.r_[found.ridges, OPTIONS.first_ridge], steps=OPTIONS.spread_steps)

    def error(self, kernel: Kernel, found: LooResult) -> float:
        """Weighted mean squared leave-one-out error of y, whose standard deviation is 1, with these bandwidths."""
        of_y = replace(found, ridges=found.ridges[:1])
        return float(np.mean(self.share @ self._loo(kernel).errors(of_y)[0] ** 2))

    def _loo(self, kernel: Kernel, most: int | None = None) -> LeaveOneOut:
        """Leave-one-out error of y on the first `most` rows, or on all."""
        weight = self.share[:most]
        return LeaveOneOut(kernel, self.X[:most], weight / weight.mean(), (Target(self.y[:most]),), self.usual)


# Log errors of kernels that have their bandwidths.
Compare = Callable[[list[Kernel]], list[float]]


def fit_bandwidths(
    pilots: Sequence[Pilot], kernels: Sequence[Kernel], unit: Array, compare: Compare | None = None, *, many_rows: bool
) -> tuple[int, list[LooResult]]:
    """Choose one of the kernels, which are ever rougher, by its error, and learn its bandwidths in each pilot.

    Bandwidths of every kernel are learned from a few rows. Those of the chosen one are refined on all rows of the
    pilots: from y first, then, for quantile levels, from |residual| along with it. `unit` of shape (d,) are the scales
    of the columns; `many_rows` says whether the table has many, and `compare` gives the log errors of kernels with
    bandwidths on more rows, if there are any.
    """
    found = [[pilot.fit_coarse_bandwidths(kernel, unit) for pilot in pilots] for kernel in kernels]
    errors = [float(np.mean([one.error for one in each])) for each in found]
    if compare is not None and len(kernels) > 1:
        errors = compare([kernel.with_bandwidth(one[0].bandwidth) for kernel, one in zip(kernels, found, strict=True)])
    handicaps = OPTIONS.handicaps_of_many if many_rows else OPTIONS.handicaps
    best = int(np.argmin(np.array(errors) + handicaps[-len(kernels) :]))
    pairs = zip(pilots, found[best], strict=True)
    return best, [pilot.refine_bandwidths(kernels[best], unit, one) for pilot, one in pairs]


def winsorize(y: Array, share: Array) -> Array:
    """Winsorize each column of y at `winsorize_at` robust scales from its median."""
    sides = [
        (weighted_quantiles(one, share, np.array([0.5]))[0], OPTIONS.winsorize_at * robust_scale(one, share))
        for one in y.T
    ]
    center, reach = np.array(sides).T
    return np.clip(y, center - reach, center + reach)


def _stop_descent(_: Array) -> None:
    """Callback of scipy after every step: ends the descent where it is if there is no more time."""
    if stop_requested():
        raise StopIteration
