"""Bandwidths: the median heuristic of bandwidth="auto", and bandwidth="learned".

Learned are one bandwidth per column, a matching alpha and, if kernel="auto", the kernel. On samples of distinct rows:

1. For each candidate kernel, bandwidths minimise the leave-one-out error of kernel ridge regression
   (`leave_one_out`). The kernel of the lowest error is chosen, of about equal ones a rough one; on large tables by the
   error of ridge regression on landmarks of many more rows. Its bandwidths are refined, on more rows of large tables;
   targets are then y and, for quantile levels, also the absolute residuals, so that columns that affect only the spread
   of y count.
2. The automatic bandwidths are kept if their leave-one-out error is not worse.
3. Alphas are compared by the held-out loss of actual fits with the chosen bandwidths.

The chosen alpha is in units of the full data: alpha * n_rows is kept constant between a fold and all rows, since a
penalty on the mean loss that suits few rows is too strong for many.

Sample and folds depend on the values and weights of rows, not on their order or repetition, and no step depends on the
units of the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from quernel._machine import single_threaded_blas
from quernel.data import ArrayRows
from quernel.features import Nystroem
from quernel.features.landmarks import distinct_rows
from quernel.kernels import Kernel
from quernel.losses import Loss, weighted_quantiles
from quernel.solvers.progress import stop_requested
from quernel.tuning.alpha import Fold, MappedFold, alpha_equivalent_to_krr, as_2d, iter_folds, representative_levels
from quernel.tuning.data_summary import DataSummary, deduplicated_sample, robust_scale, take_rows
from quernel.tuning.leave_one_out import RIDGES, LooResult, Pilot, fit_bandwidths, winsorize

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
    # The chosen kernel is refined on this share of the distinct rows, between `pilot_rows` and `refined_rows`:
    # bandwidths of few rows are too wide for many, some columns more than others.
    refined_share: float = 0.25
    refined_rows: int = 1600
    # From so many distinct rows on, kernels are compared on up to `compared_rows`, of which this fraction is held out,
    # with so many landmarks.
    large: int = 5000
    compared_rows: int = 8000
    compared_held_out: float = 0.25
    compared_landmarks: int = 800
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
        n_rows = count_pilot_rows(summary.n_distinct)
        pilots = [Pilot(_take_first(fold.train, n_rows), few_levels, automatic) for fold in folds[:n_pilots]]
        compare, many_rows = None, summary.n_distinct >= OPTIONS.large
        if many_rows:
            rows = deduplicated_sample(summary.sample, OPTIONS.compared_rows)
            compare = partial(nystroem_errors, rows, few_levels)
        best, found = fit_bandwidths(pilots, kernels, unit, compare, many_rows=many_rows)
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


def count_pilot_rows(n_distinct: int) -> int:
    """How many rows bandwidths are learned from, at most, of so many distinct ones."""
    return int(np.clip(OPTIONS.refined_share * n_distinct, OPTIONS.pilot_rows, OPTIONS.refined_rows))


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
    y = y - share[~test] @ y[~test] / share[~test].sum()
    root, errors = np.sqrt(share[~test]).astype(np.float32), []
    for kernel in kernels:
        landmarks = Nystroem(kernel, OPTIONS.compared_landmarks, landmarks="distinct").fit(rows.X[~test])
        Phi = landmarks.transform(rows.X, dtype=np.float32)  # to compare kernels, digits enough
        weighted = Phi[~test] * root[:, None]
        values, vectors = np.linalg.eigh(weighted.T @ weighted)
        on_test, across = Phi[test] @ vectors, vectors.T @ (weighted.T @ (root[:, None] * y[~test]))
        residuals = (
            y[test] - on_test @ (across / (np.maximum(values, 0) + ridge / rows.n_rows)[:, None]) for ridge in RIDGES
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
