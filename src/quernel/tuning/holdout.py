"""Held-out losses of quantile (or other) fits on small samples, by which hyperparameters are chosen.

`data_summary.deduplicated_sample` -> `iter_folds` -> `Fold.map_rows` -> `MappedFold.losses`. Sample and folds depend
only on the values and weights of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel import paths
from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import Nystroem
from quernel.kernels import Kernel
from quernel.losses import Loss, Pinball
from quernel.objective import Problem
from quernel.tuning.data_summary import take_rows
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
