"""alpha="auto" for small tables: the ridge weight by held-out loss.

A constant over the spread of y is about right where rows are many. On few rows the best ridge weight depends on how
much of y the columns explain: a thousand times that constant where they explain nothing, a hundredth of it where there
is no noise. So fits at several ridge weights are judged on rows that they have not seen. Of those that these rows
cannot tell from the best, by one standard error of the difference, the one nearest to the constant is taken.

Folds depend on the values and weights of rows, never on their order or repetition nor on the sign of y, and ridge
weights on the spread of y alone: fit(a y) = a fit(y) holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel._threads import single_threaded_blas
from quernel.kernels import Kernel, Linear
from quernel.losses import Loss, weighted_quantiles
from quernel.tuning.data_summary import DataSummary
from quernel.tuning.defaults import spread
from quernel.tuning.holdout import (
    ROTATE_BELOW,
    TOL,
    Fold,
    deduplicated_sample,
    iter_folds,
    representative_levels,
    sign_symmetric_groups,
)

Array = NDArray[np.floating]

# Fewer different rows than these say too little, and with more the constant does.
FEW, MANY = 30, ROTATE_BELOW
# So many rows of equal weight must be worth as much: one that has nearly all the weight judges by itself.
WORTH = 10
# Ridge weights are the constant times powers of this, from the least to the largest.
STEP, LEAST, LARGEST = 4.0, -4, 5
# Landmarks of the fits.
COMPONENTS = 250


@dataclass(frozen=True)
class AlphaChoice:
    """The ridge weight that was chosen, what was tried, pairs of a ridge weight and its held-out loss; print it."""

    alpha: float
    usual: float
    tried: tuple[tuple[float, float], ...]
    n_rows: int

    def __str__(self) -> str:
        lines = ["     alpha  held-out loss"]
        for alpha, loss in self.tried:
            remarks = ["chosen"] * (alpha == self.alpha) + ["usual for so many rows"] * (alpha == self.usual)
            lines.append(f"{alpha:>10.2g}  {loss:>13.4g}  {', '.join(remarks)}".rstrip())
        lines.append(
            f"Every one of {self.n_rows:,} rows was judged by fits to others, with at most {COMPONENTS} landmarks."
        )
        lines.append("Chosen: the nearest to the usual one that is not worse than the best by more than chance.")
        return "\n".join(lines)


def choose_alpha(
    summary: DataSummary,
    kernel: Kernel,
    loss: Loss,
    usual: float,
    *,
    fit_intercept: bool,
    most_components: int,
    larger_only: bool = False,
) -> AlphaChoice | None:
    """The ridge weight for a kernel with bandwidths, near the usual one, or no smaller (`larger_only`).

    None where rows are too few or many, for labels, whose margins have a scale of their own, for ready-made features,
    and for a kernel that is no more than its random features.
    """
    if not FEW <= summary.n_distinct < MANY or loss.margin or isinstance(kernel, Linear) or not _has_gram(kernel):
        return None
    sample = deduplicated_sample(summary.sample, MANY)
    share = sample.share()
    if sample.n_rows < FEW or WORTH * share @ share > 1:
        return None
    # Where outliers make up most of the loss, fits are judged by the small rest of it.
    median = weighted_quantiles(sample.y, share, np.array([0.5]))[0]
    outliers = float(share @ np.abs(sample.y - median)) / spread(sample.y, share)
    fold_args = representative_levels(loss), fit_intercept, min(COMPONENTS, most_components), TOL / max(outliers, 1.0)
    with single_threaded_blas(0, 0):
        folds = [Fold(*parts, *fold_args) for parts in iter_folds(sample, sign_symmetric_groups(sample))]
        trials = _AlphaSearch(folds, kernel, usual, 0 if larger_only else LEAST)
        trials.run()
    means = {power: trials.mean(power) for power in sorted(trials.losses)}
    tried = tuple((usual * STEP**power, mean) for power, mean in means.items())
    return AlphaChoice(usual * STEP ** trials.select(), usual, tried, sample.n_rows)


def _has_gram(kernel: Kernel) -> bool:
    try:
        kernel.check_diagonal()
    except ValueError:
        return False
    return True


class _AlphaSearch:
    """Held-out losses, by row, of fits whose ridge weights are the usual one times powers of STEP."""

    def __init__(self, folds: list[Fold], kernel: Kernel, usual: float, least: int) -> None:
        self.folds, self.kernel, self.usual, self.least = folds, kernel, usual, least
        weight = np.concatenate([np.asarray(fold.held_out.weight) for fold in folds])
        self.share = weight / weight.sum()
        self.losses: dict[int, Array] = {}

    def run(self) -> None:
        """Go on, up or down, for as long as the end is the best."""
        self._evaluate([power for power in (1, 0, -1) if power >= self.least])
        while True:
            best, low, high = self.best(), min(self.losses), max(self.losses)
            if best == low > self.least:
                self._evaluate([power for power in (low - 1, low - 2) if power >= self.least])
            elif best == high < LARGEST:
                self._evaluate([power for power in (high + 2, high + 1) if power <= LARGEST])
            else:
                return

    def _evaluate(self, powers: list[int]) -> None:
        alphas = self.usual * STEP ** np.array(powers, dtype=float)
        losses = np.hstack([fold.losses(self.kernel, alphas) for fold in self.folds])
        self.losses.update(zip(powers, losses, strict=True))

    def mean(self, power: int) -> float:
        """The held-out loss of a ridge weight."""
        return float(self.share @ self.losses[power])

    def best(self) -> int:
        """The least held-out loss; of equal ones, that of the smoothest fit."""
        return min(self.losses, key=lambda power: (self.mean(power), -power))

    def select(self) -> int:
        """The power nearest to 0 that the rows cannot tell from the best."""
        best = self.losses[self.best()]
        return min((power for power, one in self.losses.items() if not self._is_worse(one - best)), key=abs)

    def _is_worse(self, difference: Array) -> bool:
        """Whether a mean of differences is more than its standard error; in units in which squares are no larger."""
        difference = difference / (np.abs(difference).max() or 1.0)
        mean, part = self.share @ difference, self.share**2
        return bool(mean > np.sqrt(part @ (difference - mean) ** 2 / (1 - part.sum())))
