"""Grid search over alpha and bandwidth by held-out loss.

For each bandwidth the features of all rows are computed once, and folds index into them. Within a fold one
regularisation path with warm starts covers all alphas and outputs (`quernel.paths`).
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
from quernel.solvers.progress import stop_requested

Array = NDArray[np.floating]

# Relative duality gap of the fits: a fraction of the standard error of held-out losses, which is some percent.
TOL = 1e-3
MAX_ITER = 200
# Early stopping of a path: alphas are tried from large to small in groups of GROUP, until the best loss of a group is
# MUCH_WORSE times the best so far. Smaller alphas would overfit, and take longest.
GROUP, MUCH_WORSE = 4, 1.1
Index = NDArray[np.intp]
# (train, test): row numbers to fit and to evaluate.
Split = tuple[Index, Index]


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
    grids = paths.solve_folds(problem, alphas, None, folds, tol=TOL, max_iter=MAX_ITER)
    for grid, (_, test) in zip(grids, splits, strict=True):
        target, share = rows.target[test], rows.share[test]
        offset, sign = loss.margin_transform(target if target.ndim == 2 else target[:, None])
        residual = offset - sign * grid.predict(rows.take_rows(test))
        losses.append(np.einsum("n,anq->aq", share / share.sum(), loss.value(residual)))
        gaps.append(grid.relative_gap.max(axis=1))
    return np.stack(losses, axis=1), np.max(gaps, axis=0)
