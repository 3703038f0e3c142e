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
from quernel.losses import Loss
from quernel.problem import Problem
from quernel.rows import ArrayRows, LiftedRows
from quernel.selection.splits import Split

Array = NDArray[np.floating]

# Held-out losses are wanted to a fraction of their standard error, which is some percent of them.
TOL = 1e-3
MAX_ITER = 300


@dataclass(frozen=True, eq=False)
class Search:
    """Held-out losses (bandwidths, alphas, splits, columns), and the weight of each split's held-out rows (splits,)."""

    losses: Array
    weight: Array

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
        """The standard deviation between splits, (bandwidths, alphas)."""
        return np.sqrt((self.by_split - self.mean[..., None]) ** 2 @ self.weight)

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
    lifts: Sequence[Callable[[], Array]],
    loss: Loss,
    alphas: Array,
    splits: Sequence[Split],
    *,
    fit_intercept: bool = True,
) -> Search:
    """Held-out losses over the grid.

    Parameters
    ----------
    source : ArrayRows
    lifts : for every bandwidth, a function that gives the features of all rows, (n, M)
    loss, alphas, fit_intercept : as in `quernel.paths.solve`
    splits : pairs of index arrays, the rows to fit and those to judge by
    """
    share = source.share()
    losses = np.empty((len(lifts), len(alphas), len(splits), loss.n_columns))
    for b, lift in enumerate(lifts):
        features = lift()
        whole = Problem(LiftedRows(source, features=features), loss, 1.0, fit_intercept=fit_intercept)
        folds = [train for train, _ in splits]
        grids = paths.solve_folds(whole, alphas, None, folds, tol=TOL, max_iter=MAX_ITER)
        for k, (grid, (_, test)) in enumerate(zip(grids, splits, strict=True)):
            offset, sign = loss.frame(source.y[test] if source.y.ndim == 2 else source.y[test, None])
            residual = offset - sign * grid.predict(features[test])
            losses[b, :, k] = np.einsum("n,anq->aq", share[test] / share[test].sum(), loss.value(residual))
    weight = np.array([share[test].sum() for _, test in splits])
    return Search(losses, weight / weight.sum())
