"""alpha="auto": the default ridge weight and, for small data, cross-validation near it.

With many rows the default, a constant divided by the scale of y (`auto_alpha`), is about right. With few rows the best
alpha depends on how much of y the columns explain: a thousand times the default if they explain nothing, a hundredth of
it without noise. So alphas on a grid  default * step^power  are compared by three-fold cross-validation. Among those
that are not worse than the best by more than one standard error of the paired difference, the one closest to the
default is chosen.

Folds depend on the values and weights of rows, not on their order or repetition nor on the sign of y, and the grid
depends on y only through its scale: fit(a y) = a fit(y) holds for any a != 0 (levels mirrored for a < 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel._machine import single_threaded_blas
from quernel.kernels import Kernel, Linear
from quernel.losses import LOSSES, Loss, weighted_quantiles
from quernel.solvers.progress import stop_requested
from quernel.tuning.data_summary import DataSummary, deduplicated_sample, robust_scale
from quernel.tuning.holdout import (
    ROTATE_BELOW,
    TOL,
    Fold,
    iter_folds,
    representative_levels,
    sign_symmetric_groups,
)

Array = NDArray[np.floating]


@dataclass(frozen=True)
class AlphaOptions:
    """Constants of the default alpha and of the search near it.

    The default is a compromise: on eleven public data sets held-out loss was lowest around 1e-5 on average, but small
    noisy ones need ten times as much. The best alpha falls with n, in theory as n^(-1 / (2 r + gamma)); n^(-1/2), the
    slowest of these rates, never makes it too small.
    """

    default: float = 5e-5  # alpha for y of scale 1 and up to `default_rows` rows
    default_rows: int = 1000
    min_rows: int = 30  # with fewer distinct rows held-out loss says too little
    max_rows: int = ROTATE_BELOW  # with so many the default will do
    min_effective_rows: float = 10  # 1 / sum(share^2): otherwise a few heavy rows would decide alone
    step: float = 4.0  # the grid: the default times step^power ...
    min_power: int = -4  # ... for powers from here ...
    max_power: int = 5  # ... to here
    n_landmarks: int = 250  # of the Nystroem features of the fits


OPTIONS = AlphaOptions()


@dataclass(frozen=True)
class AlphaChoice:
    """Result of the search for alpha; print it.

    Attributes
    ----------
    alpha : float
        The value chosen.
    usual : float
        The default for this number of rows.
    tried : tuple of (alpha, held-out loss)
    n_rows : int
        Distinct rows that were used.
    """

    alpha: float
    usual: float
    tried: tuple[tuple[float, float], ...]
    n_rows: int

    def __str__(self) -> str:
        lines = ["     alpha  held-out loss"]
        for alpha, loss in self.tried:
            remarks = ["chosen"] * (alpha == self.alpha) + ["default for so many rows"] * (alpha == self.usual)
            lines.append(f"{alpha:>10.2g}  {loss:>13.4g}  {', '.join(remarks)}".rstrip())
        landmarks = f"with at most {OPTIONS.n_landmarks} landmarks"
        lines.append(f"Held-out loss of {self.n_rows:,} rows by cross-validation, {landmarks}.")
        lines.append(
            "Chosen: the closest to the default that is not worse than the best by more than one standard error."
        )
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
    """Choose alpha for a kernel with given bandwidths by cross-validation around the default `usual`.

    Returns None, to keep the default, if there are too few or too many distinct rows, for class labels (margins have a
    natural scale), for the linear kernel, for kernels known only through their random features, and if there is no
    time for it. `larger_only`
    restricts the grid to values not below the default.
    """
    if not OPTIONS.min_rows <= summary.n_distinct < OPTIONS.max_rows:
        return None
    if loss.margin or isinstance(kernel, Linear) or not has_gram(kernel):
        return None
    sample = deduplicated_sample(summary.sample, OPTIONS.max_rows)
    share = sample.share()
    if sample.n_rows < OPTIONS.min_rows or OPTIONS.min_effective_rows * share @ share > 1:
        return None
    # Heavy tails inflate the loss, but not the differences between fits: solve more accurately in proportion.
    median = weighted_quantiles(sample.y, share, np.array([0.5]))[0]
    outliers = float(share @ np.abs(sample.y - median)) / robust_scale(sample.y, share)
    n_landmarks, tol = min(OPTIONS.n_landmarks, most_components), TOL / max(outliers, 1.0)
    with single_threaded_blas(0, 0):
        folds = [
            Fold(train, held_out, representative_levels(loss), fit_intercept, n_landmarks, tol)
            for train, held_out in iter_folds(sample, sign_symmetric_groups(sample))
        ]
        trials = _AlphaSearch(folds, kernel, usual, 0 if larger_only else OPTIONS.min_power)
        trials.run()
    if not trials.losses:
        return None
    means = {power: trials.mean(power) for power in sorted(trials.losses)}
    tried = tuple((usual * OPTIONS.step**power, mean) for power, mean in means.items())
    return AlphaChoice(usual * OPTIONS.step ** trials.select(), usual, tried, sample.n_rows)


def has_gram(kernel: Kernel) -> bool:
    """Whether k(x, z) can be evaluated, as Nystroem features need; some kernels have random features only."""
    try:
        kernel.check_diagonal()
    except ValueError:
        return False
    return True


class _AlphaSearch:
    """Cross-validated losses by row, `losses[power]` of shape (n,), of fits with alpha = usual * step^power."""

    def __init__(self, folds: list[Fold], kernel: Kernel, usual: float, least: int) -> None:
        self.folds, self.usual, self.least = [fold.map_rows(kernel) for fold in folds], usual, least
        weight = np.concatenate([np.asarray(fold.held_out.weight) for fold in folds])
        self.share = weight / weight.sum()
        self.losses: dict[int, Array] = {}

    def run(self) -> None:
        """Extend the grid up or down for as long as the best power is at its end, and time is left."""
        self._evaluate([power for power in (1, 0, -1) if power >= self.least])
        while self.losses and not stop_requested():
            best, low, high = self.best(), min(self.losses), max(self.losses)
            if best == low > self.least:
                self._evaluate([power for power in (low - 1, low - 2) if power >= self.least])
            elif best == high < OPTIONS.max_power:
                self._evaluate([power for power in (high + 2, high + 1) if power <= OPTIONS.max_power])
            else:
                return

    def _evaluate(self, powers: list[int]) -> None:
        """Fit every fold at these powers and record the losses of its held-out rows."""
        alphas = self.usual * OPTIONS.step ** np.array(powers, dtype=float)
        losses = np.hstack([fold.losses(alphas) for fold in self.folds])
        if not stop_requested():  # otherwise the solver was cut short
            self.losses.update(zip(powers, losses, strict=True))

    def mean(self, power: int) -> float:
        """Held-out loss at this power, the weighted mean over all rows."""
        return float(self.share @ self.losses[power])

    def best(self) -> int:
        """The power of lowest held-out loss; ties go to the larger alpha."""
        return min(self.losses, key=lambda power: (self.mean(power), -power))

    def select(self) -> int:
        """The power closest to 0, the default, that is not significantly worse than the best."""
        best = self.losses[self.best()]
        return min((power for power, one in self.losses.items() if not self._is_worse(one - best)), key=abs)

    def _is_worse(self, difference: Array) -> bool:
        """Whether the weighted mean of paired differences (n,) exceeds its standard error.

        sqrt(sum_i share_i^2 (d_i - mean)^2 / (1 - sum_i share_i^2));  differences are scaled first, against overflow.
        """
        difference = difference / (np.abs(difference).max() or 1.0)
        mean, part = self.share @ difference, self.share**2
        return bool(mean > np.sqrt(part @ (difference - mean) ** 2 / (1 - part.sum())))


def scaled_loss(name: str, scale: float) -> Loss:
    """Loss of this name; its length parameter, if any, is relative to the scale of y, so that fit(a y) = a fit(y)."""
    kind = LOSSES[name]
    params: dict[str, Any] = {kind.length_parameter: kind.relative_length * scale} if kind.length_parameter else {}
    return kind(**params)


def alpha_unit(loss: Loss, scale: float) -> float:
    """Unit of alpha, for which fit(a y) = a fit(y):  2 mean(loss(+-scale)) / scale^2.

    This is 2 for the squared loss r^2, and 1 / scale for the pinball loss at any level. If the loss is 0 at +-scale
    (epsilon-insensitive), its Lipschitz constant times the scale takes its place.
    """
    size = float(np.mean(loss.value(np.full((2, loss.n_columns), [[-scale], [scale]]))))
    return 2 * (size if size > 0 else scale * float(np.mean(loss.lipschitz()))) / scale**2


def alpha_for(loss: Loss, scale: float, n_rows: int = OPTIONS.default_rows) -> float:
    """Default alpha for any loss: `OPTIONS.default` in units of `alpha_unit`, divided by the sample-size factor."""
    return OPTIONS.default * alpha_unit(loss, scale) / _sample_size_factor(n_rows)


def alpha_equivalent_to_krr(ridge: float, n_rows: int, loss: Loss, scale: float) -> float:
    """Convert the ridge of kernel ridge regression to alpha:  ridge / (2 n) * alpha_unit.

    Kernel ridge regression minimises  sum r^2 / 2 + ridge u'u / 2;  dividing by n, the penalty is ridge / (2 n) against
    the mean of r^2 / 2, a loss whose `alpha_unit` is 1.
    """
    return ridge / (2 * n_rows) * alpha_unit(loss, scale)


def auto_alpha(scale: float, n_rows: int) -> float:
    """Default alpha for the pinball loss, for which fit(a y) = a fit(y); n_rows counts distinct rows."""
    return OPTIONS.default / scale / _sample_size_factor(n_rows)


def _sample_size_factor(n_rows: int) -> float:
    """sqrt(n / default_rows) rounded to a power of 2, at least 1: rounded because n_distinct is an estimate."""
    return 2.0 ** max(0, int(np.log2(n_rows / OPTIONS.default_rows) / 2 + 0.5))
