"""Held-out losses of quantile (or other) fits on small samples, by which hyperparameters are chosen.

`deduplicated_sample` -> `iter_folds` -> `Fold.losses`. Sample and folds depend only on the values and weights of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel import paths
from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import Nystroem
from quernel.features.sampling import sample_of_rows
from quernel.kernels import Kernel
from quernel.losses import Loss, Pinball
from quernel.objective import Problem
from quernel.tuning.krr_pilot import as_2d

Array = NDArray[np.floating]
Index = NDArray[np.intp]

# Below ROTATE_BELOW rows, cross-validation with FOLDS folds; from there on, one split that holds out this fraction.
ROTATE_BELOW, FOLDS, HELD_OUT = 2000, 3, 0.25
# With more quantile levels than this, a few representative ones are fitted.
MOST_LEVELS = 3
# Relative duality gap of the fits: a fraction of the standard error of held-out losses, which is some percent.
TOL = 3e-3
# Newton steps; an alpha so small that it needs more overfits anyway.
MAX_ITER = 150


def deduplicated_sample(source: ArrayRows, limit: int) -> ArrayRows:
    """Up to `limit` distinct rows (x, y), sorted by their values, each with the total weight of its copies.

    Rows are picked by a hash of x, hence independently of their order and repetition.
    """
    picked, _ = sample_of_rows(source.X, limit)
    X, y = np.asarray(source.X[picked], dtype=float), source.y[picked]
    both = np.column_stack([X, y])
    order = np.lexsort(both.T[::-1])
    new = np.r_[True, np.any(both[order][1:] != both[order][:-1], axis=1)]
    weight = np.add.reduceat(source.share()[picked][order], np.flatnonzero(new))
    some = np.sort(np.random.default_rng(0).permutation(len(weight))[:limit])  # more than limit if few x have many y
    chosen = order[new][some]
    return ArrayRows(X[chosen], y[chosen], weight[some])


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

    def losses(self, kernel: Kernel, alphas: Array) -> Array:
        """Loss of every held-out row, averaged over outputs, for each alpha: shape (n_alphas, n_held_out)."""
        features = Nystroem(kernel, self.n_components, landmarks="distinct")
        rows = InMemoryDesign(self.train, features=features.fit_transform(self.train.X))
        problem = Problem(rows, self.loss, 1.0, fit_intercept=self.fit_intercept)
        grid = paths.solve(problem, alphas, tol=self.tol, max_iter=MAX_ITER)
        offset, sign = self.loss.margin_transform(as_2d(self.held_out.y))
        residuals = (offset - sign * f for f in grid.predict(features.transform(self.held_out.X)))
        return np.array([self.loss.value(one).mean(axis=1) for one in residuals])

    def mean_losses(self, kernel: Kernel, alphas: Array) -> Array:
        """Weighted mean held-out loss for each alpha, shape (n_alphas,)."""
        return self.losses(kernel, alphas) @ self.held_out.share()


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


def take_rows(rows: ArrayRows, index: Index) -> ArrayRows:
    """Subset of the rows with their weights."""
    assert rows.weight is not None
    return ArrayRows(rows.X[index], rows.y[index], rows.weight[index])


def representative_levels(loss: Loss) -> Loss:
    """Pinball loss of the outermost and middle levels if there are many; any other loss unchanged."""
    if not isinstance(loss, Pinball) or loss.n_columns <= MOST_LEVELS:
        return loss
    levels = loss.levels
    return Pinball(np.unique([levels.min(), *middle_levels(levels), levels.max()]))


def middle_levels(levels: Array) -> Array:
    """The median of the levels, or the two middle ones: symmetric under tau -> 1 - tau."""
    ordered = np.sort(levels)
    return np.unique(ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]])
