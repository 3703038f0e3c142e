"""Held-out loss at every ridge weight and bandwidth of a grid.

For each bandwidth the features of all rows are made once; folds are some of their rows, and within a fold one path
serves all ridge weights and columns (`quernel.paths`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel import paths
from quernel.data import ArrayRows, InMemoryDesign
from quernel.losses import Loss
from quernel.objective import Problem

Array = NDArray[np.floating]

# Held-out losses are wanted to a fraction of their standard error, which is some percent of them.
TOL = 1e-3
MAX_ITER = 200
# A path that may stop early goes down by so many ridge weights at a time, and ends where the best of them loses so much
# more than the best so far: smaller ones would follow single rows, at great cost.
GROUP, MUCH_WORSE = 4, 1.1
Index = NDArray[np.intp]
# Rows to fit and rows to judge by.
Split = tuple[Index, Index]


@dataclass(frozen=True, eq=False)
class GridSearchResult:
    """Held-out losses (bandwidths, alphas, splits, columns), and the weight of each split's held-out rows (splits,).

    gap (bandwidths, alphas) is the largest relative gap of a cell's fits; where nothing was tried, it is infinite.
    """

    losses: Array
    weight: Array
    gap: Array

    @property
    def by_split(self) -> Array:
        """The mean over the columns, (bandwidths, alphas, splits)."""
        return self.losses.mean(axis=3)

    @property
    def mean(self) -> Array:
        """The loss of a held-out row, (bandwidths, alphas): splits count by the weight of their rows."""
        return self.by_split @ self.weight

    @property
    def deviation(self) -> Array:
        """The standard deviation between splits, (bandwidths, alphas); infinite where the loss is."""
        middle = self.mean[..., None]
        away = np.where(np.isinf(middle), np.inf, self.by_split - np.where(np.isinf(middle), 0, middle))
        return np.sqrt(away**2 @ self.weight)

    def best(self, alphas: Array, *, one_standard_error: bool = False) -> tuple[int, int]:
        """The cell of least loss or, on request, that of the largest alpha within a standard error of it."""
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
    """Held-out losses over the grid.

    Parameters
    ----------
    source : ArrayRows
    feature_makers : for every bandwidth, a function that gives the features of all rows, (n, M)
    loss, alphas, fit_intercept : as in `quernel.paths.solve`
    splits : pairs of index arrays, the rows to fit and those to judge by
    full_grid : whether every cell is wanted; if not, those of ridge weights that are clearly too small remain infinite
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
            losses[b, group], gap[b, group] = _held_out_losses(rows, loss, alphas[group], splits, fit_intercept)
            mean = losses[b].mean(axis=2) @ weight
            if mean[group].min() > MUCH_WORSE * mean.min():
                break
    return GridSearchResult(losses, weight, gap)


def _held_out_losses(
    rows: InMemoryDesign, loss: Loss, alphas: Array, splits: Sequence[Split], fit_intercept: bool
) -> tuple[Array, Array]:
    """Held-out losses (alphas, splits, columns), and the largest relative gap at each weight."""
    problem = Problem(rows, loss, 1.0, fit_intercept=fit_intercept)
    folds = [train for train, _ in splits]
    losses, gaps = [], []
    grids = paths.solve_folds(problem, alphas, None, folds, tol=TOL, max_iter=MAX_ITER)
    for grid, (_, test) in zip(grids, splits, strict=True):
        target, share = rows.target[test], rows.share[test]
        offset, sign = loss.margin_transform(target if target.ndim == 2 else target[:, None])
        residual = offset - sign * grid.predict(rows.pick(test))
        losses.append(np.einsum("n,anq->aq", share / share.sum(), loss.value(residual)))
        gaps.append(grid.relative_gap.max(axis=1))
    return np.stack(losses, axis=1), np.max(gaps, axis=0)
