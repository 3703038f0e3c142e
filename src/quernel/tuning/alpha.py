"""alpha="auto", the default ridge weight and, for small data, cross-validation near it; held-out losses of fits.

With many rows the default, a constant divided by the scale of y (`auto_alpha`), is about right. With few rows the best
alpha depends on how much of y the columns explain: a thousand times the default if they explain nothing, a hundredth of
it without noise. So alphas on a grid  default * step^power  are compared by three-fold cross-validation. Among those
that are not worse than the best by more than one standard error of the paired difference, the one closest to the
default is chosen.

Folds depend on the values and weights of rows, not on their order or repetition nor on the sign of y, and the grid
depends on y only through its scale: fit(a y) = a fit(y) holds for any a != 0 (levels mirrored for a < 0).

Held-out losses of quantile (or other) fits choose other hyperparameters, too: on small samples, and on a grid.

Samples: `data_summary.deduplicated_sample` -> `iter_folds` -> `Fold.map_rows` -> `MappedFold.losses`. Sample and folds
depend only on the values and weights of rows.

Grid over alpha and bandwidth (`search`, of `KernelQuantileRegressorCV`): for each bandwidth the features of all rows
are computed once, and folds index into them. Within a fold one regularisation path with warm starts covers all alphas
and outputs (`quernel.paths`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel import paths
from quernel._machine import single_threaded_blas
from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import Nystroem
from quernel.kernels import Kernel, Linear
from quernel.losses import LOSSES, Loss, Pinball, weighted_quantiles
from quernel.objective import Problem
from quernel.solvers.progress import stop_requested
from quernel.tuning.data_summary import DataSummary, deduplicated_sample, robust_scale, take_rows

Array = NDArray[np.floating]
Index = NDArray[np.intp]
# (train, test): row numbers to fit and to evaluate.
Split = tuple[Index, Index]

# Below ROTATE_BELOW rows, cross-validation with FOLDS folds; from there on, one split that holds out this fraction.
ROTATE_BELOW, FOLDS, HELD_OUT = 2000, 3, 0.25
# With more quantile levels than this, a few representative ones are fitted.
MOST_LEVELS = 3
# Relative duality gap of the fits, and of those of a grid: a fraction of the standard error of held-out losses, which
# is some percent.
TOL, GRID_TOL = 3e-3, 1e-3
# Newton steps; an alpha so small that it needs more overfits anyway.
MAX_ITER, GRID_MAX_ITER = 150, 200
# Early stopping of a grid: alphas are tried from large to small in groups of GROUP, until the best loss of a group is
# MUCH_WORSE times the best so far. Smaller alphas would overfit, and take longest.
GROUP, MUCH_WORSE = 4, 1.1


@dataclass(frozen=True, eq=False)
class Fold:
    """One train / held-out split, and how it is fitted: loss, Nystroem landmarks and relative duality gap.

    The training rows are in random order, so that the first m of them are a random subsample.
    """

    train: ArrayRows
    held_out: ArrayRows
    loss: Loss
    fit_intercept: bool
    n_components: int
    tol: float = TOL

    def map_rows(self, kernel: Kernel) -> MappedFold:
        """The fold with its features, from which any number of alphas can be fitted."""
        features = Nystroem(kernel, self.n_components, landmarks="distinct")
        return MappedFold(self, features.fit_transform(self.train.X), features.transform(self.held_out.X))


@dataclass(frozen=True, eq=False)
class MappedFold:
    """A fold, and the features (m, M) of its training rows and of those that are held out."""

    fold: Fold
    train: Array
    held_out: Array

    def losses(self, alphas: Array) -> Array:
        """Loss of every held-out row, averaged over outputs, for each alpha: shape (n_alphas, n_held_out)."""
        fold = self.fold
        rows = InMemoryDesign(fold.train, features=self.train)
        problem = Problem(rows, fold.loss, 1.0, fit_intercept=fold.fit_intercept)
        grid = paths.solve(problem, alphas, tol=fold.tol, max_iter=MAX_ITER)
        offset, sign = fold.loss.margin_transform(as_2d(fold.held_out.y))
        residuals = (offset - sign * f for f in grid.predict(self.held_out))
        return np.array([fold.loss.value(one).mean(axis=1) for one in residuals])

    def mean_losses(self, alphas: Array) -> Array:
        """Weighted mean held-out loss for each alpha, shape (n_alphas,)."""
        return self.losses(alphas) @ self.fold.held_out.share()


def iter_folds(sample: ArrayRows, groups: Index | None = None) -> Iterator[tuple[ArrayRows, ArrayRows]]:
    """Yield (train, held_out): cross-validation folds for few rows, a single split for many.

    Rows of one group are not separated; `groups` of shape (n,) holds 0, 1, ..., and None is one group per row.
    """
    unit = np.arange(sample.n_rows) if groups is None else groups
    units = np.random.default_rng(1).permutation(unit.max() + 1)
    order = np.argsort(np.argsort(units)[unit], kind="stable")
    few = sample.n_rows < ROTATE_BELOW
    parts = [units[k::FOLDS] for k in range(FOLDS)] if few else [units[: round(HELD_OUT * len(units))]]
    for part in parts:
        held_out = np.isin(unit[order], part)
        yield take_rows(sample, order[~held_out]), take_rows(sample, order[held_out])


def sign_symmetric_groups(sample: ArrayRows) -> Index:
    """Groups for `iter_folds` that are the same for -y: among rows of equal x, lowest y with highest y, and so on.

    Expects rows sorted by (x, y). The order of rows in a run of equal x is reversed when y changes sign, and pairing
    them from both ends undoes this: the folds stay the same.
    """
    new = np.r_[True, np.any(sample.X[1:] != sample.X[:-1], axis=1)]
    first, run = np.flatnonzero(new), np.cumsum(new) - 1
    last = np.r_[first[1:], sample.n_rows] - 1
    row = np.arange(sample.n_rows)
    return np.unique(np.minimum(row, first[run] + last[run] - row), return_inverse=True)[1]


def representative_levels(loss: Loss) -> Loss:
    """Pinball loss of the outermost and middle levels if there are many; any other loss unchanged."""
    if not isinstance(loss, Pinball) or loss.n_columns <= MOST_LEVELS:
        return loss
    levels = loss.levels
    return Pinball(np.unique([levels.min(), *loss.middle_levels(), levels.max()]))


@dataclass(frozen=True, eq=False)
class GridSearchResult:
    """Held-out losses over the grid.

    Attributes
    ----------
    losses : ndarray of shape (n_bandwidths, n_alphas, n_splits, n_outputs)
        Infinite for cells that were not tried.
    weight : ndarray of shape (n_splits,)
        Total weight of each split's held-out rows, summing to 1.
    gap : ndarray of shape (n_bandwidths, n_alphas)
        Largest relative duality gap of a cell's fits; infinite if not tried.
    """

    losses: Array
    weight: Array
    gap: Array

    @property
    def by_split(self) -> Array:
        """Mean loss over outputs, shape (n_bandwidths, n_alphas, n_splits)."""
        return self.losses.mean(axis=3)

    @property
    def mean(self) -> Array:
        """Mean held-out loss, shape (n_bandwidths, n_alphas); splits are weighted by their held-out rows."""
        return self.by_split @ self.weight

    @property
    def deviation(self) -> Array:
        """Standard deviation between splits, shape (n_bandwidths, n_alphas); infinite where the loss is."""
        middle = self.mean[..., None]
        away = np.where(np.isinf(middle), np.inf, self.by_split - np.where(np.isinf(middle), 0, middle))
        return np.sqrt(away**2 @ self.weight)

    def best(self, alphas: Array, *, one_standard_error: bool = False) -> tuple[int, int]:
        """Indices (bandwidth, alpha) of the lowest loss or, by the one-standard-error rule, the largest alpha."""
        mean, n_splits = self.mean, len(self.weight)
        least = np.unravel_index(np.argmin(mean), mean.shape)
        if not one_standard_error:
            return int(least[0]), int(least[1])
        near = mean <= mean[least] + self.deviation[least] / np.sqrt(n_splits - 1)
        smoothest = near & (alphas == alphas[near.any(axis=0)].max())
        cell = np.unravel_index(np.argmin(np.where(smoothest, mean, np.inf)), mean.shape)
        return int(cell[0]), int(cell[1])


def search(
    source: ArrayRows,
    feature_makers: Sequence[Callable[[], Array]],
    loss: Loss,
    alphas: Array,
    splits: Sequence[Split],
    *,
    fit_intercept: bool = True,
    full_grid: bool = True,
) -> GridSearchResult:
    """Compute held-out losses over the grid.

    Parameters
    ----------
    source : ArrayRows
    feature_makers : sequence of functions () -> ndarray of shape (n, M)
        One for every bandwidth: computes the features of all rows.
    loss, alphas, fit_intercept : as in `quernel.paths.solve`
    splits : (train, test) pairs of index arrays
    full_grid : bool, default=True
        Whether to fit every cell; if not, clearly too small alphas are skipped and their losses stay infinite.
    """
    share = source.share()
    weight = np.array([share[test].sum() for _, test in splits])
    weight /= weight.sum()
    losses = np.full((len(feature_makers), len(alphas), len(splits), loss.n_columns), np.inf)
    gap = np.full(losses.shape[:2], np.inf)
    falling = np.argsort(-alphas, kind="stable")
    groups = [falling] if full_grid else [falling[k : k + GROUP] for k in range(0, len(falling), GROUP)]
    for b, make_features in enumerate(feature_makers):
        rows = InMemoryDesign(source, features=make_features())
        for group in groups:
            found = _held_out_losses(rows, loss, alphas[group], splits, fit_intercept)
            if stop_requested() and np.isfinite(losses).any():  # the solver was cut short
                break
            losses[b, group], gap[b, group] = found
            mean = losses[b].mean(axis=2) @ weight
            if mean[group].min() > MUCH_WORSE * mean.min():
                break
    return GridSearchResult(losses, weight, gap)


def _held_out_losses(
    rows: InMemoryDesign, loss: Loss, alphas: Array, splits: Sequence[Split], fit_intercept: bool
) -> tuple[Array, Array]:
    """Held-out losses (n_alphas, n_splits, n_outputs), and the largest relative gap for each alpha (n_alphas,)."""
    problem = Problem(rows, loss, 1.0, fit_intercept=fit_intercept)
    folds = [train for train, _ in splits]
    losses, gaps = [], []
    grids = paths.solve_folds(problem, alphas, None, folds, tol=GRID_TOL, max_iter=GRID_MAX_ITER)
    for grid, (_, test) in zip(grids, splits, strict=True):
        target, share = rows.target[test], rows.share[test]
        offset, sign = loss.margin_transform(target if target.ndim == 2 else target[:, None])
        residual = offset - sign * grid.predict(rows.take_rows(test))
        losses.append(np.einsum("n,anq->aq", share / share.sum(), loss.value(residual)))
        gaps.append(grid.relative_gap.max(axis=1))
    return np.stack(losses, axis=1), np.max(gaps, axis=0)


def as_2d(y: Array) -> Array:
    """y of shape (n,) or (n, k) as (n, k)."""
    return y if y.ndim == 2 else y[:, None]


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
