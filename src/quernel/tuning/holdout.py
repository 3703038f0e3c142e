"""Rows to fit and rows to judge by: held-out losses of real fits, by which automatic choices are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel import paths
from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import Nystroem
from quernel.features.hash_sample import sample_of_rows
from quernel.kernels import Kernel
from quernel.losses import Loss, Pinball
from quernel.objective import Problem
from quernel.tuning.krr_pilot import as_2d


def deduplicated_sample(source: ArrayRows, limit: int) -> ArrayRows:
    """Up to `limit` rows whose (x, y) all differ, in the order of their values, each with the weight of its equals."""
    picked, _ = sample_of_rows(source.X, limit)
    X, y = np.asarray(source.X[picked], dtype=float), source.y[picked]
    both = np.column_stack([X, y])
    order = np.lexsort(both.T[::-1])
    new = np.r_[True, np.any(both[order][1:] != both[order][:-1], axis=1)]
    weight = np.add.reduceat(source.share()[picked][order], np.flatnonzero(new))
    some = np.sort(np.random.default_rng(0).permutation(len(weight))[:limit])  # few different x, each with many y
    chosen = order[new][some]
    return ArrayRows(X[chosen], y[chosen], weight[some])


Array = NDArray[np.floating]
Index = NDArray[np.intp]

# Below so many rows one part held out would be too few to judge by: then every row is, once.
ROTATE_BELOW, FOLDS, HELD_OUT = 2000, 3, 0.25
# More levels than these have some that stand for all.
MOST_LEVELS = 3
# Held-out losses are wanted to a fraction of their standard error, which is some percent of them.
TOL = 3e-3
# Ridge weights so small that more steps would be needed follow single rows.
MAX_ITER = 150


@dataclass(frozen=True, eq=False)
class Fold:
    """Rows to fit, in random order, rows to judge by, the loss of both; landmarks and relative gap of the fits."""

    train: ArrayRows
    held_out: ArrayRows
    loss: Loss
    fit_intercept: bool
    n_components: int
    tol: float = TOL

    def losses(self, kernel: Kernel, alphas: Array) -> Array:
        """The loss of every held-out row, the mean over the columns, by ridge weight: (alphas, rows)."""
        features = Nystroem(kernel, self.n_components, landmarks="distinct")
        rows = InMemoryDesign(self.train, features=features.fit_transform(self.train.X))
        problem = Problem(rows, self.loss, 1.0, fit_intercept=self.fit_intercept)
        grid = paths.solve(problem, alphas, tol=self.tol, max_iter=MAX_ITER)
        offset, sign = self.loss.margin_transform(as_2d(self.held_out.y))
        residuals = (offset - sign * f for f in grid.predict(features.transform(self.held_out.X)))
        return np.array([self.loss.value(one).mean(axis=1) for one in residuals])

    def mean_losses(self, kernel: Kernel, alphas: Array) -> Array:
        """Held-out loss of the fit at every ridge weight."""
        return self.losses(kernel, alphas) @ self.held_out.share()


def iter_folds(sample: ArrayRows, together: Index | None = None) -> Iterator[tuple[ArrayRows, ArrayRows]]:
    """Rows to fit and rows to judge by: every row is judged once where they are few, a part of them otherwise.

    Rows with the same number in `together` (n,), 0, 1, ..., are not parted.
    """
    unit = np.arange(sample.n_rows) if together is None else together
    units = np.random.default_rng(1).permutation(unit.max() + 1)
    order = np.argsort(np.argsort(units)[unit], kind="stable")
    few = sample.n_rows < ROTATE_BELOW
    parts = [units[k::FOLDS] for k in range(FOLDS)] if few else [units[: round(HELD_OUT * len(units))]]
    for part in parts:
        held_out = np.isin(unit[order], part)
        yield take_rows(sample, order[~held_out]), take_rows(sample, order[held_out])


def sign_symmetric_groups(sample: ArrayRows) -> Index:
    """Numbers for `together`: of rows that share x, the lowest y with the highest, the next with the next highest.

    The rows are in the order of x and y. Turning y over then leaves the folds as they are.
    """
    new = np.r_[True, np.any(sample.X[1:] != sample.X[:-1], axis=1)]
    first, run = np.flatnonzero(new), np.cumsum(new) - 1
    last = np.r_[first[1:], sample.n_rows] - 1
    row = np.arange(sample.n_rows)
    return np.unique(np.minimum(row, first[run] + last[run] - row), return_inverse=True)[1]


def take_rows(rows: ArrayRows, index: Index) -> ArrayRows:
    """Some of the rows, with their weights."""
    assert rows.weight is not None
    return ArrayRows(rows.X[index], rows.y[index], rows.weight[index])


def representative_levels(loss: Loss) -> Loss:
    """Of many quantile levels the outermost and the one or two in the middle; other losses as they are."""
    if not isinstance(loss, Pinball) or loss.n_columns <= MOST_LEVELS:
        return loss
    levels = loss.levels
    return Pinball(np.unique([levels.min(), *middle_levels(levels), levels.max()]))


def middle_levels(levels: Array) -> Array:
    """The middle level, or the two in the middle: turning the levels over changes nothing."""
    ordered = np.sort(levels)
    return np.unique(ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]])
