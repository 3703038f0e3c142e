"""bandwidth="learned": a bandwidth for every column, the ridge weight that goes with them and, if open, the kernel.

On a sample of the rows:

1. For each kernel that may be used, bandwidths are found by descent on the leave-one-out error of kernel ridge
   regression (`leave_one_out`): of y and, for quantile levels, of the size of the residuals too, so that columns that
   move only the spread count. The last kernel that is not clearly worse than another is taken.
2. These and the automatic bandwidths are judged by the loss itself: that of real fits, at several ridge weights, on
   rows that had no part in either. With the better ones more ridge weights are tried.

The ridge weight is then divided by how many times more rows the table has than these fits had: a penalty on the mean
loss that is right for few rows is too heavy for many.

Sample and folds depend on the values and weights of rows, never on their order or repetition, and none of the steps
depends on the units of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel._threads import single_threaded_blas
from quernel.kernels import Kernel
from quernel.losses import Loss
from quernel.tuning.data_summary import DataSummary
from quernel.tuning.defaults import alpha_equivalent_to_krr, spread
from quernel.tuning.holdout import Fold, deduplicated_sample, iter_folds, representative_levels, take_rows
from quernel.tuning.krr_pilot import LooResult, Pilot

Array = NDArray[np.floating]

# Different rows that are looked at, and fewer than these say too little.
ROWS, FEW = 3000, 30
# Rows of the only fold, and of each of several, by which bandwidths are learned: a step takes the cube of their number.
LEARNED_FROM, LEARNED_FROM_EACH = 1000, 700
# A kernel is preferred to those after it if its mean squared error is less by this part: squares are not the loss.
CLEARLY = 0.05
# What was learned is taken unless its loss is worse by more than this part.
TIE = 0.01
# Landmarks of the real fits.
COMPONENTS = 500
# Ridge weights of the fits, in units of what leave-one-out errors suggest: first these, then smaller ones for as long
# as the least is the best, because small ones take the longest; and those beside the best. Outer levels want more than
# the mean.
ALPHAS, BESIDE = ((316.0, 31.6, 3.16), (0.316,), (0.0316,)), (3.16, 0.316)


@dataclass(frozen=True)
class Round:
    """Held-out loss of fits with some kernel and bandwidths.

    Bandwidths are in scales of their columns: standard deviations or, of a column of two values, their distance.
    """

    loss: float
    bandwidth: tuple[float, ...]
    kernel: str = ""


@dataclass(frozen=True)
class BandwidthChoice:
    """The bandwidths that were learned, one per column, and the ridge weight that goes with them; print it.

    rounds[0] are the automatic bandwidths, rounds[1] what was learned, and rounds[best] is what was chosen; alphas are
    pairs of a ridge weight and the held-out loss of real fits with it, empty where the ridge weight was given; kernel
    is the number of the kernel among those that were to choose from.
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
    """Automatic bandwidths for the first kernel or learned ones for any, and, if it is open, a ridge weight."""
    usual, unit = summary.bandwidth, summary.scales
    sample = deduplicated_sample(summary.sample, ROWS)
    if sample.n_rows < FEW:
        reason = f"The automatic bandwidths: too few different rows to learn from (below {FEW})"
        return BandwidthChoice(tuple(usual.tolist()), alpha, reason)
    with single_threaded_blas(0, 0):
        folds = [Fold(*parts, representative_levels(loss), fit_intercept, COMPONENTS) for parts in iter_folds(sample)]
        size = LEARNED_FROM if len(folds) == 1 else LEARNED_FROM_EACH
        pilots = [
            Pilot(take_rows(fold.train, np.arange(min(size, fold.train.n_rows))), fold.loss, usual) for fold in folds
        ]
        # A list over the folds each, because the bandwidths of the others know a fold's held-out rows.
        learned = [[pilot.fit_bandwidths(kernel, unit) for pilot in pilots] for kernel in kernels]
        errors = np.array([np.mean([found.error for found in each]) for each in learned])
        least = int(np.flatnonzero(errors <= errors.min() + CLEARLY)[-1])
        trials = [
            _Candidate(folds, kernels[0], [pilot.fit_default(kernels[0]) for pilot in pilots], summary.n_distinct),
            _Candidate(folds, kernels[least], learned[least], summary.n_distinct),
        ]
        for trial in trials:
            if alpha_is_open:
                trial.search_alphas()
            else:
                trial.evaluate([alpha])
        best = int(trials[1].loss <= (1 + TIE) * trials[0].loss)
        if alpha_is_open:
            trials[best].evaluate([factor * trials[best].alpha for factor in BESIDE])
    chosen = trials[best]
    return BandwidthChoice(
        tuple(chosen.bandwidth.tolist()),
        chosen.alpha,
        f"{'Learned' if best else 'Automatic'} bandwidths for the {chosen.kernel.full_name} kernel, "
        f"from {sample.n_rows:,} rows",
        tuple(Round(one.loss, tuple((one.bandwidth / unit).tolist()), one.kernel.full_name) for one in trials),
        best,
        tuple(sorted(chosen.tried.items())) if alpha_is_open else (),
        sample.n_rows,
        least if best else 0,
    )


class _Candidate:
    """A kernel with bandwidths that were found in every fold, and the held-out losses of fits by ridge weight.

    Ridge weights are as they are for all rows of the table; a fold, which has fewer, is fitted with larger ones.
    """

    def __init__(self, folds: list[Fold], kernel: Kernel, found: list[LooResult], n_rows: int) -> None:
        self.folds, self.kernel, self.found, self.n_rows = folds, kernel, found, n_rows
        weight = np.array([np.sum(fold.held_out.weight) for fold in folds])
        self.weight = weight / weight.sum()
        self.bandwidth = np.exp(np.mean([np.log(one.bandwidth) for one in found], axis=0))
        self.tried: dict[float, float] = {}

    @property
    def alpha(self) -> float:
        """The best ridge weight so far."""
        return min(self.tried, key=lambda one: self.tried[one])

    @property
    def loss(self) -> float:
        """The held-out loss with it."""
        return self.tried[self.alpha]

    def search_alphas(self) -> None:
        """Fits from large ridge weights to small ones, until these are no better."""
        suggested = [
            _equivalent_alpha(fold, one) * fold.train.n_rows for fold, one in zip(self.folds, self.found, strict=True)
        ]
        middle = float(np.exp(self.weight @ np.log(suggested))) / self.n_rows
        for factors in ALPHAS:
            self.evaluate([middle * factor for factor in factors])
            if self.alpha > min(self.tried):
                break

    def evaluate(self, alphas: list[float]) -> None:
        """Fits at these ridge weights."""
        losses = self.weight @ [
            fold.mean_losses(
                self.kernel.with_bandwidth(one.bandwidth), np.array(alphas) * self.n_rows / fold.train.n_rows
            )
            for fold, one in zip(self.folds, self.found, strict=True)
        ]
        self.tried.update(zip(alphas, losses.tolist(), strict=True))


def _equivalent_alpha(fold: Fold, found: LooResult) -> float:
    """The ridge weight whose weight against the loss is that of the ridge found against squares."""
    scale = 1.0 if fold.loss.margin else spread(fold.train.y, fold.train.share())
    return alpha_equivalent_to_krr(float(found.ridges[0]), fold.train.n_rows, fold.loss, scale)
