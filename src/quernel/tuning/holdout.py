"""Held-out losses of quantile (or other) fits, by which hyperparameters are chosen: on small samples, and on a grid.

Samples: `data_summary.deduplicated_sample` -> `iter_folds` -> `Fold.map_rows` -> `MappedFold.losses`. Sample and folds
depend only on the values and weights of rows.

Grid over alpha and bandwidth (`search`, of `KernelQuantileRegressorCV`): for each bandwidth the features of all rows
are computed once, and folds index into them. Within a fold one regularisation path with warm starts covers all alphas
and outputs (`quernel.paths`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel import paths
from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import Nystroem
from quernel.kernels import Kernel
from quernel.losses import Loss, Pinball
from quernel.objective import Problem
from quernel.solvers.progress import stop_requested
from quernel.tuning.data_summary import take_rows
from quernel.tuning.krr_pilot import as_2d

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
