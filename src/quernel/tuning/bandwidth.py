"""Bandwidths: the median heuristic of bandwidth="auto", and bandwidth="learned".

Learned are one bandwidth per column, a matching alpha and, if kernel="auto", the kernel. On samples of distinct rows:

1. For each candidate kernel, bandwidths minimise the leave-one-out error of kernel ridge regression (`Pilot`), by
   L-BFGS with gradients. The last kernel that is not clearly worse than the best is chosen, on large tables by the
   error of ridge regression on landmarks of many more rows. Its bandwidths are refined, on more rows of large tables;
   targets are then y and, for quantile levels, also the absolute residuals, so that columns that affect only the spread
   of y count.
2. The automatic bandwidths are kept if their leave-one-out error is not worse.
3. Alphas are compared by the held-out loss of actual fits with the chosen bandwidths.

The chosen alpha is in units of the full data: alpha * n_rows is kept constant between a fold and all rows, since a
penalty on the mean loss that suits few rows is too strong for many.

Sample and folds depend on the values and weights of rows, not on their order or repetition, and no step depends on the
units of the columns.

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
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs, get_lapack_funcs
from scipy.optimize import minimize
from scipy.spatial.distance import pdist
from scipy.special import ndtri

from quernel._machine import single_threaded_blas
from quernel.data import ArrayRows
from quernel.features import Nystroem
from quernel.features.landmarks import distinct_rows
from quernel.kernels import Kernel, ShiftInvariantKernel
from quernel.losses import Loss, Pinball, weighted_quantiles
from quernel.solvers.progress import stop_requested
from quernel.tuning.alpha import Fold, MappedFold, alpha_equivalent_to_krr, as_2d, iter_folds, representative_levels
from quernel.tuning.data_summary import DataSummary, deduplicated_sample, robust_scale, take_rows

Array = NDArray[np.floating]


@dataclass(frozen=True)
class BandwidthOptions:
    """Constants of the automatic bandwidths and of learning better ones."""

    factor: float = 0.6  # automatic bandwidths: so many times the median distance of standardised rows
    distance_rows: int = 1000  # distinct rows whose pairwise distances give that median
    max_rows: int = 3000  # distinct rows in the sample from which bandwidths are learned
    min_rows: int = 30  # with fewer the automatic bandwidths are kept
    few_rows: int = 1000  # with fewer, bandwidths are learned in every fold
    pilot_rows: int = 700  # rows of the descent, whose steps cost their number cubed
    # From so many distinct rows on, the chosen kernel is refined on `refined_rows`: bandwidths of few rows are too wide
    # for many, some columns more than others. And kernels are compared on up to `compared_rows`, of which this fraction
    # is held out, with so many landmarks.
    large: int = 5000
    refined_rows: int = 1600
    compared_rows: int = 8000
    compared_held_out: float = 0.25
    compared_landmarks: int = 400
    # Learned bandwidths win if their log leave-one-out error is lower than that of the automatic ones by this, times
    # the number of columns per row.
    parameter_cost: float = 2.0
    n_landmarks: int = 500  # of the Nystroem features of the fits whose held-out loss is compared
    # Alphas of these fits, as multiples of the one equivalent to the ridge found by leave-one-out: the first two, then
    # smaller or larger ones for as long as the last is the best. Most are above 1, because outer quantiles need more
    # regularisation than the mean.
    first_factors: tuple[float, ...] = (10.0, 3.16)
    smaller_factors: tuple[float, ...] = (1.0, 0.316, 0.1, 0.0316)
    larger_factors: tuple[float, ...] = (31.6, 100.0, 316.0)


OPTIONS = BandwidthOptions()


@dataclass(frozen=True)
class Round:
    """A candidate: mean squared leave-one-out error of kernel ridge regression, in variances of y; bandwidths; kernel.

    Bandwidths are relative to the scales of their columns: standard deviations or, for binary columns, the distance
    between the two values.
    """

    error: float
    bandwidth: tuple[float, ...]
    kernel: str = ""


@dataclass(frozen=True)
class BandwidthChoice:
    """Result of learning bandwidths; print it.

    Attributes
    ----------
    bandwidth : tuple of d floats
        The bandwidths chosen, in units of the columns.
    alpha : float
        The ridge weight chosen with them, or as given.
    reason : str
        The choice in words.
    rounds : tuple of Round
        The candidates: rounds[0] automatic bandwidths, rounds[1] learned ones; empty for very small data.
    best : int
        Index of the chosen candidate in `rounds`.
    alphas : tuple of (alpha, held-out loss)
        Of the chosen candidate; empty if alpha was given.
    n_rows : int
        Distinct rows that were used.
    kernel : int
        Index of the chosen kernel among the candidates.
    """

    bandwidth: tuple[float, ...]
    alpha: float
    reason: str
    rounds: tuple[Round, ...] = ()
    best: int = 0
    alphas: tuple[tuple[float, float], ...] = ()
    n_rows: int = 0
    kernel: int = 0

    def __str__(self) -> str:
        lines = []
        if self.rounds:
            wide = max(len("kernel"), *(len(one.kernel) for one in self.rounds))
            lines.append(
                f"bandwidths  {'kernel':<{wide}}  leave-one-out error  "
                "in standard deviations (of two values: their distance)"
            )
            for k, one in enumerate(self.rounds):
                widths = "  ".join(f"{width:.3g}" for width in one.bandwidth)
                lines.append(f"{'learned' if k else 'auto':<10}  {one.kernel:<{wide}}  {one.error:>19.4g}  {widths}")
        if self.alphas:
            tried = ", ".join(f"{loss:.4g} at {alpha:.1e}" for alpha, loss in self.alphas)
            lines.append(f"Held-out loss of fits by ridge weight: {tried}.")
        return "\n".join([*lines, f"{self.reason}; alpha = {self.alpha:.2g}."])


def learn_bandwidth(
    summary: DataSummary,
    kernels: Sequence[Kernel],
    loss: Loss,
    alpha: float,
    *,
    alpha_is_open: bool,
    fit_intercept: bool,
) -> BandwidthChoice:
    """Choose between automatic bandwidths for kernels[0] and learned ones for any of the kernels.

    `alpha` is the default or given ridge weight; `alpha_is_open` says whether to choose it, too.
    """
    automatic, unit = auto_bandwidth(summary), summary.scales
    sample = deduplicated_sample(summary.sample, OPTIONS.max_rows)
    if sample.n_rows < OPTIONS.min_rows:
        reason = f"The automatic bandwidths: too few different rows to learn from (below {OPTIONS.min_rows})"
        return BandwidthChoice(tuple(automatic.tolist()), alpha, reason)
    with single_threaded_blas(0, 0):
        few_levels = representative_levels(loss)
        folds = [Fold(*parts, few_levels, fit_intercept, OPTIONS.n_landmarks) for parts in iter_folds(sample)]
        # Bandwidths of few rows vary: the mean over the folds. The rows that a fold holds out judge what was learned
        # without them.
        n_pilots = len(folds) if sample.n_rows < OPTIONS.few_rows else 1
        n_rows = OPTIONS.refined_rows if summary.n_distinct >= OPTIONS.large else OPTIONS.pilot_rows
        pilots = [Pilot(_take_first(fold.train, n_rows), few_levels, automatic) for fold in folds[:n_pilots]]
        compare = None
        if summary.n_distinct >= OPTIONS.large:
            rows = deduplicated_sample(summary.sample, OPTIONS.compared_rows)
            compare = partial(nystroem_errors, rows, few_levels)
        best, found = fit_bandwidths(pilots, kernels, unit, compare)
        usual = [pilot.fit_default(kernels[0]) for pilot in pilots]
        learned, default = _mean_result(found), _mean_result(usual)
        errors = [
            float(np.mean([pilot.error(kernel, one) for pilot, one in zip(pilots, each, strict=True)]))
            for kernel, each in ((kernels[0], usual), (kernels[best], found))
        ]
        # Each bandwidth is a parameter that was fitted to these errors.
        is_better = errors[1] * np.exp(OPTIONS.parameter_cost * summary.n_columns / len(pilots[0].X)) <= errors[0]
        chosen = _Candidate(
            folds, *((kernels[best], learned) if is_better else (kernels[0], default)), summary.n_distinct
        )
        if alpha_is_open and not stop_requested():
            chosen.search_alphas()
    if alpha_is_open and not chosen.tried:
        reason = "The automatic bandwidths: the time limit ended the search for better ones"
        return BandwidthChoice(tuple(automatic.tolist()), alpha, reason)
    return BandwidthChoice(
        tuple(chosen.bandwidth.tolist()),
        chosen.alpha if alpha_is_open else alpha,
        f"{'Learned' if is_better else 'Automatic'} bandwidths for the {chosen.kernel.full_name} kernel, "
        f"from {sample.n_rows:,} rows",
        (
            Round(errors[0], tuple((automatic / unit).tolist()), kernels[0].full_name),
            Round(errors[1], tuple((learned.bandwidth / unit).tolist()), kernels[best].full_name),
        ),
        int(is_better),
        tuple(sorted(chosen.tried.items())) if alpha_is_open else (),
        sample.n_rows,
        best if is_better else 0,
    )


def _take_first(rows: ArrayRows, size: int) -> ArrayRows:
    """At most so many of the rows, which are in random order."""
    return take_rows(rows, np.arange(min(size, rows.n_rows)))


def _mean_result(found: list[LooResult]) -> LooResult:
    """Geometric means of bandwidths and ridges over several pilots."""
    bandwidth, ridges = (
        np.exp(np.mean(np.log([getattr(one, name) for one in found]), axis=0)) for name in ("bandwidth", "ridges")
    )
    return LooResult(bandwidth, ridges, float(np.mean([one.error for one in found])))


def nystroem_errors(rows: ArrayRows, loss: Loss, kernels: list[Kernel]) -> list[float]:
    """Log held-out squared error of ridge regression on landmarks of each kernel, with the best ridge, on many rows.

    Leave-one-out on the rows of a pilot favours smooth kernels: the detail that rough ones can use takes more rows.
    """
    y, share = as_2d(rows.y), rows.share()
    y = y if loss.margin else winsorize(y, share)
    test = np.random.default_rng(0).permutation(rows.n_rows) < OPTIONS.compared_held_out * rows.n_rows
    middle = share[~test] @ y[~test] / share[~test].sum()
    errors = []
    for kernel in kernels:
        landmarks = Nystroem(kernel, OPTIONS.compared_landmarks, landmarks="distinct").fit(rows.X[~test])
        Phi = landmarks.transform(rows.X)
        values, vectors = np.linalg.eigh(Phi[~test].T @ (share[~test, None] * Phi[~test]))
        across = vectors.T @ (Phi[~test].T @ (share[~test, None] * (y[~test] - middle)))
        on_test = Phi[test] @ vectors
        residuals = (
            y[test] - middle - on_test @ (across / (np.maximum(values, 0) + ridge / rows.n_rows)[:, None])
            for ridge in RIDGES
        )
        errors.append(np.log(min(float(share[test] @ np.sum(one**2, axis=1)) for one in residuals) + 1e-300))
    return errors


class _Candidate:
    """A kernel with its bandwidths, and held-out losses `tried[alpha]` of fits with it.

    Alphas refer to all `n_rows` rows; a fold of m training rows is fitted with alpha * n_rows / m.
    """

    def __init__(self, folds: list[Fold], kernel: Kernel, found: LooResult, n_rows: int) -> None:
        self.folds, self.kernel, self.found, self.n_rows = folds, kernel, found, n_rows
        weight = np.array([np.sum(np.asarray(fold.held_out.weight)) for fold in folds])
        self.weight = weight / weight.sum()
        self.bandwidth = found.bandwidth
        self.mapped: list[MappedFold] = []
        self.tried: dict[float, float] = {}

    @property
    def alpha(self) -> float:
        """The best alpha so far."""
        return min(self.tried, key=lambda one: self.tried[one])

    def search_alphas(self) -> None:
        """Evaluate smaller or larger alphas than the first, until they are no better."""
        self.mapped = [fold.map_rows(self.kernel.with_bandwidth(self.bandwidth)) for fold in self.folds]
        suggested = [_equivalent_alpha(fold, self.found) * fold.train.n_rows for fold in self.folds]
        middle = float(np.exp(self.weight @ np.log(suggested))) / self.n_rows
        self.evaluate([middle * factor for factor in OPTIONS.first_factors])
        for factors, end in ((OPTIONS.smaller_factors, min), (OPTIONS.larger_factors, max)):
            for factor in factors:
                if stop_requested() or self.alpha != end(self.tried):
                    break
                self.evaluate([middle * factor])

    def evaluate(self, alphas: list[float]) -> None:
        """Fit every fold at these alphas and record the mean held-out losses."""
        losses = self.weight @ [
            mapped.mean_losses(np.array(alphas) * self.n_rows / mapped.fold.train.n_rows) for mapped in self.mapped
        ]
        if not stop_requested():  # otherwise the solver was cut short
            self.tried.update(zip(alphas, losses.tolist(), strict=True))


def _equivalent_alpha(fold: Fold, found: LooResult) -> float:
    """Alpha equivalent to the ridge that leave-one-out found for y in this fold."""
    scale = 1.0 if fold.loss.margin else robust_scale(fold.train.y, fold.train.share())
    return alpha_equivalent_to_krr(float(found.ridges[0]), fold.train.n_rows, fold.loss, scale)


def auto_bandwidth(summary: DataSummary) -> Array:
    """Automatic bandwidths by the median heuristic, shape (d,): see `bandwidth_from`."""
    return bandwidth_from(summary.scales, summary.sample.X, summary.sample.share())


def bandwidth_from(lengths: Array, X: Array, share: Array) -> Array:
    """Median heuristic for given column scales, shape (d,): `lengths` times 0.6 median |x/lengths - z/lengths|."""
    rows, weight = distinct_rows(X, share, OPTIONS.distance_rows)
    if len(rows) < 2:
        return lengths
    first, second = np.triu_indices(len(rows), 1)
    distances = pdist(rows / lengths)
    median = weighted_quantiles(distances, weight[first] * weight[second], np.array([0.5]))[0]
    return OPTIONS.factor * median * lengths


# Bounds of the bandwidths, in scales of the columns, and bounds and starting value of the ridges (K has diagonal 1).
NARROWEST, WIDEST = 0.02, 1000.0
LEAST_RIDGE, FIRST_RIDGE, MOST_RIDGE = 1e-4, 0.1, 1e3
# The starting bandwidths make this the median of k(x, z) over pairs of rows, as the Gaussian with automatic ones does.
TYPICAL = 0.25
# Smallest number added to the diagonal of K; with less, rounding error could make it singular.
LEAST = 1e-10
# With more rows than this, matrices whose condition number is below that bound are inverted in single precision, in
# half of the time: gradients then have two digits or more, and a few steps of descent need no more.
SINGLE_FROM, SINGLE_CONDITION = 1000, 1e6
# Rows from which the starting bandwidths are computed.
FEW = 300
# Grid of ridges for fixed (automatic) bandwidths.
RIDGES = 10.0 ** np.arange(-4, 3.5, 0.5)
# Penalty APART / n * sum_j (log h_j / usual_j - mean)^2 on unequal bandwidths, added to the log error: a factor of e
# between columns must pay for itself by about one row in n.
APART = 1.0


# Stages of `fit_bandwidths`: COARSE_STEPS iterations on COARSE rows, which are cheap, then STEPS on all rows,
# then SPREAD_STEPS with the absolute residuals as a second target.
COARSE, COARSE_STEPS, STEPS, SPREAD_STEPS = 350, 12, 5, 6
# The last kernel whose log error is within this of the lowest is chosen.
KERNEL_TIE = 0.05
# Winsorize targets at this many robust scales from the median: squared error is sensitive to outliers.
WINSORIZE_AT = 8.0


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
        start = np.log(np.r_[bandwidth, np.full(len(self.targets), FIRST_RIDGE) if ridges is None else ridges])
        low, high = np.log(NARROWEST * unit), np.log(WIDEST * unit)
        start[:d] = np.clip(start[:d], low, high)
        bounds = [*zip(low, high, strict=True), *[(np.log(LEAST_RIDGE), np.log(MOST_RIDGE))] * len(self.targets)]
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
        single = len(K) > SINGLE_FROM and condition < SINGLE_CONDITION
        regular: Array = K.T.astype(np.float32 if single else np.float64, order="F")
        regular[np.diag_indices_from(regular)] += np.maximum(ridge / self.weight, LEAST)
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
        penalty, grad_penalty = float(APART / n * apart @ apart), 2 * APART / n * apart
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
    """Scale these bandwidths such that the median of k(x, z) over pairs of rows is TYPICAL, by bisection."""
    some = X[:FEW]
    pairs = np.triu_indices(len(some), 1)
    low, high = -10.0, 10.0
    for _ in range(20):
        middle = (low + high) / 2
        median = np.median(kernel.with_bandwidth(np.exp(middle) * bandwidth).gram(some, some)[pairs])
        low, high = (middle, high) if median < TYPICAL else (low, middle)
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
        """Automatic bandwidths with the best ridge for them, found on the first rows: it hardly depends on how many."""
        return self._loo(kernel, OPTIONS.pilot_rows).select_ridge()

    def fit_coarse_bandwidths(self, kernel: Kernel, unit: Array) -> LooResult:
        """Bandwidths learned from y on the first few rows; enough to compare kernels."""
        start = first_bandwidth(kernel, self.usual, self.X)
        return self._loo(kernel, COARSE).descend(start, unit, steps=COARSE_STEPS)

    def refine_bandwidths(self, kernel: Kernel, unit: Array, found: LooResult) -> LooResult:
        """Better bandwidths than `found`, from all rows.

        In single precision the last digits of the numbers that it begins from would show in the result. So these are
        rounded, without units: then they are the same for rows in another order, repeated or in other units.
        """
        loo = self._loo(kernel)
        if len(self.X) <= SINGLE_FROM:
            return self._descend(loo, unit, found)
        X, targets = _round((self.X - self.share @ self.X) / unit), (Target(_round(self.y)),)
        loo = LeaveOneOut(kernel, X, _round(loo.weight), targets, _round(self.usual / unit))
        start, ridges = (np.exp(np.round(np.log(one), 3)) for one in (found.bandwidth / unit, found.ridges))
        found = replace(found, bandwidth=start, ridges=ridges)
        found = self._descend(loo, np.ones(len(unit)), found)
        return replace(found, bandwidth=found.bandwidth * unit)

    def _descend(self, loo: LeaveOneOut, unit: Array, found: LooResult) -> LooResult:
        """Bandwidths for y and, for quantile levels, then for y and the absolute residuals."""
        found = loo.descend(found.bandwidth, unit, found.ridges, steps=STEPS)
        if not self.spread_weight:
            return found
        size = np.abs(loo.errors(found)[0])
        spread = Target(size - np.average(size, axis=0, weights=loo.weight), self.spread_weight)
        both = replace(loo, targets=(*loo.targets, spread))
        return both.descend(found.bandwidth, unit, np.r_[found.ridges, FIRST_RIDGE], steps=SPREAD_STEPS)

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
    pilots: Sequence[Pilot], kernels: Sequence[Kernel], unit: Array, compare: Compare | None = None
) -> tuple[int, list[LooResult]]:
    """Choose one of the kernels, the last whose error is about the lowest, and learn its bandwidths in each pilot.

    Bandwidths of every kernel are learned from a few rows. Those of the chosen one are refined on all rows of the
    pilots: from y first, then, for quantile levels, from |residual| along with it. `unit` of shape (d,) are the scales
    of the columns; `compare` gives the log errors of kernels with bandwidths on more rows, if there are any.
    """
    found = [[pilot.fit_coarse_bandwidths(kernel, unit) for pilot in pilots] for kernel in kernels]
    errors = [float(np.mean([one.error for one in each])) for each in found]
    if compare is not None and len(kernels) > 1:
        errors = compare([kernel.with_bandwidth(one[0].bandwidth) for kernel, one in zip(kernels, found, strict=True)])
    best = int(np.flatnonzero(np.array(errors) <= min(errors) + KERNEL_TIE)[-1])
    pairs = zip(pilots, found[best], strict=True)
    return best, [pilot.refine_bandwidths(kernels[best], unit, one) for pilot, one in pairs]


def winsorize(y: Array, share: Array) -> Array:
    """Winsorize each column of y at WINSORIZE_AT robust scales from its median."""
    sides = [
        (weighted_quantiles(one, share, np.array([0.5]))[0], WINSORIZE_AT * robust_scale(one, share)) for one in y.T
    ]
    center, reach = np.array(sides).T
    return np.clip(y, center - reach, center + reach)


def _stop_descent(_: Array) -> None:
    """Callback of scipy after every step: ends the descent where it is if there is no more time."""
    if stop_requested():
        raise StopIteration
