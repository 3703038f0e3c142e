"""Bandwidths: the median heuristic of bandwidth="auto", and bandwidth="learned".

Learned are one bandwidth per column, a matching alpha and, if kernel="auto", the kernel. On a sample of distinct rows:

1. For each candidate kernel, bandwidths minimise the leave-one-out error of kernel ridge regression (`krr_pilot`), by
   L-BFGS with gradients. Its targets are y and, for quantile levels, also the absolute residuals, so that columns that
   affect only the spread of y count. The last kernel that is not clearly worse than the best is chosen.
2. These and the automatic bandwidths are compared by the held-out loss of actual fits, at several alphas, on rows used
   by neither. A few more alphas are tried with the better of the two.

The chosen alpha is in units of the full data: alpha * n_rows is kept constant between a fold and all rows, since a
penalty on the mean loss that suits few rows is too strong for many.

Sample and folds depend on the values and weights of rows, not on their order or repetition, and no step depends on the
units of the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from quernel._threads import single_threaded_blas
from quernel.features.sampling import distinct_rows
from quernel.kernels import Kernel
from quernel.losses import Loss, weighted_quantiles
from quernel.solvers.progress import stop_requested
from quernel.tuning.alpha import alpha_equivalent_to_krr
from quernel.tuning.data_summary import DataSummary, deduplicated_sample, robust_scale, take_rows
from quernel.tuning.holdout import Fold, iter_folds, representative_levels
from quernel.tuning.krr_pilot import LooResult, Pilot

Array = NDArray[np.floating]


@dataclass(frozen=True)
class BandwidthOptions:
    """Constants of the automatic bandwidths and of learning better ones."""

    factor: float = 0.6  # automatic bandwidths: so many times the median distance of standardised rows
    distance_rows: int = 1000  # distinct rows whose pairwise distances give that median
    max_rows: int = 3000  # distinct rows in the sample from which bandwidths are learned
    min_rows: int = 30  # with fewer the automatic bandwidths are kept
    pilot_rows: int = 1000  # training rows of the descent, whose steps cost their number cubed, of a single split ...
    pilot_rows_per_fold: int = 700  # ... and for each of several folds
    kernel_tie: float = 0.05  # the last kernel whose log leave-one-out error is within this of the lowest is chosen
    tie: float = 0.01  # learned bandwidths win unless their held-out loss is worse by this fraction
    n_landmarks: int = 500  # of the Nystroem features of the fits whose held-out loss is compared
    # Alphas of these fits, as multiples of the one equivalent to the ridge found by leave-one-out: the first group,
    # then smaller ones for as long as the smallest is the best, since small alphas take longest. Most are above 1,
    # because outer quantiles need more regularisation than the mean.
    alpha_factors: tuple[tuple[float, ...], ...] = ((316.0, 31.6, 3.16), (0.316,), (0.0316,))
    neighbour_factors: tuple[float, ...] = (3.16, 0.316)  # tried last, as multiples of the best alpha


OPTIONS = BandwidthOptions()


@dataclass(frozen=True)
class Round:
    """A candidate: kernel name, bandwidths and held-out loss.

    Bandwidths are relative to the scales of their columns: standard deviations or, for binary columns, the distance
    between the two values.
    """

    loss: float
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
                f"bandwidths  {'kernel':<{wide}}  held-out loss  in standard deviations (of two values: their distance)"
            )
            for k, one in enumerate(self.rounds):
                widths = "  ".join(f"{width:.3g}" for width in one.bandwidth)
                lines.append(f"{'learned' if k else 'auto':<10}  {one.kernel:<{wide}}  {one.loss:>13.4g}  {widths}")
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
        size = OPTIONS.pilot_rows if len(folds) == 1 else OPTIONS.pilot_rows_per_fold
        pilots = [
            Pilot(take_rows(fold.train, np.arange(min(size, fold.train.n_rows))), fold.loss, automatic)
            for fold in folds
        ]
        # For each kernel one result per fold: bandwidths learned on another fold would have seen the held-out rows.
        learned = [[pilot.fit_bandwidths(kernel, unit) for pilot in pilots] for kernel in kernels]
        errors = np.array([np.mean([found.error for found in each]) for each in learned])
        kernel_index = int(np.flatnonzero(errors <= errors.min() + OPTIONS.kernel_tie)[-1])
        candidates = [
            _Candidate(folds, kernels[0], [pilot.fit_default(kernels[0]) for pilot in pilots], summary.n_distinct),
            _Candidate(folds, kernels[kernel_index], learned[kernel_index], summary.n_distinct),
        ]
        for candidate in candidates:
            if alpha_is_open:
                candidate.search_alphas()
            else:
                candidate.evaluate([alpha])
        if not all(candidate.tried for candidate in candidates):
            reason = "The automatic bandwidths: the time limit ended the search for better ones"
            return BandwidthChoice(tuple(automatic.tolist()), alpha, reason)
        best = int(candidates[1].loss <= (1 + OPTIONS.tie) * candidates[0].loss)
        if alpha_is_open:
            candidates[best].evaluate([factor * candidates[best].alpha for factor in OPTIONS.neighbour_factors])
    chosen = candidates[best]
    return BandwidthChoice(
        tuple(chosen.bandwidth.tolist()),
        chosen.alpha,
        f"{'Learned' if best else 'Automatic'} bandwidths for the {chosen.kernel.full_name} kernel, "
        f"from {sample.n_rows:,} rows",
        tuple(Round(one.loss, tuple((one.bandwidth / unit).tolist()), one.kernel.full_name) for one in candidates),
        best,
        tuple(sorted(chosen.tried.items())) if alpha_is_open else (),
        sample.n_rows,
        kernel_index if best else 0,
    )


class _Candidate:
    """A kernel with the bandwidths found in each fold, and held-out losses `tried[alpha]`.

    Alphas refer to all `n_rows` rows; a fold of m training rows is fitted with alpha * n_rows / m. `bandwidth` is the
    geometric mean over the folds.
    """

    def __init__(self, folds: list[Fold], kernel: Kernel, found: list[LooResult], n_rows: int) -> None:
        self.folds, self.kernel, self.found, self.n_rows = folds, kernel, found, n_rows
        weight = np.array([np.sum(np.asarray(fold.held_out.weight)) for fold in folds])
        self.weight = weight / weight.sum()
        self.bandwidth = np.exp(np.mean([np.log(one.bandwidth) for one in found], axis=0))
        self.tried: dict[float, float] = {}

    @property
    def alpha(self) -> float:
        """The best alpha so far."""
        return min(self.tried, key=lambda one: self.tried[one])

    @property
    def loss(self) -> float:
        """Held-out loss at the best alpha so far."""
        return self.tried[self.alpha]

    def search_alphas(self) -> None:
        """Evaluate alphas from large to small, until smaller ones are no better."""
        suggested = [
            _equivalent_alpha(fold, one) * fold.train.n_rows for fold, one in zip(self.folds, self.found, strict=True)
        ]
        middle = float(np.exp(self.weight @ np.log(suggested))) / self.n_rows
        for factors in OPTIONS.alpha_factors:
            self.evaluate([middle * factor for factor in factors])
            if stop_requested() or self.alpha > min(self.tried):
                break

    def evaluate(self, alphas: list[float]) -> None:
        """Fit every fold at these alphas and record the mean held-out losses."""
        losses = self.weight @ [
            fold.mean_losses(
                self.kernel.with_bandwidth(one.bandwidth), np.array(alphas) * self.n_rows / fold.train.n_rows
            )
            for fold, one in zip(self.folds, self.found, strict=True)
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
