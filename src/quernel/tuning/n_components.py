"""n_components="auto": as many random features as the rows can tell from more of them.

On a sample of rows the number of features M is doubled until, at the ridge weight of the fit,

1. the effective dimension of the features is resolved: it has grown by no more than a tenth since M/2, and
2. held-out loss has improved by no more than its standard error since M/2, row by row on the same rows.

The first looks at the rows X alone and sees what a large table would still resolve; the second knows y. Fits are made
only where the dimension is resolved, so that most sizes cost one decomposition of a small matrix. Features for M and
2 M come from the same seed: those drawn uniformly are then the same, and M more; other samplings draw them anew. The
loss is the fit's own, the mean over its columns; several classes are judged each against the rest.

Sample and split depend on the values and weights of the rows only, never on their order, on repetition or on units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quernel._threads import single_threaded_blas
from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import RandomFeatures
from quernel.losses import Loss
from quernel.objective import Problem
from quernel.solvers import newton
from quernel.theory import effective_dimension
from quernel.tuning.defaults import N_COMPONENTS, SIZES, alpha_unit, spread
from quernel.tuning.holdout import deduplicated_sample, take_rows

Array = NDArray[np.floating]

# Different rows in the sample; half of them are held out.
ROWS = 2000
# Fewer different rows than this have nothing to say about M, and many features cost them little.
FEW = 1000
# The effective dimension is resolved where doubling M adds at most this share to it.
RESOLVED = 0.1
# Held-out losses are wanted to a fraction of their standard error, which is some percent of them.
TOL = 1e-4


@dataclass(frozen=True)
class Trial:
    """What a number of features M came to: effective dimension, held-out loss, and its gain over M/2 with its error.

    Loss, gain and error are None where no fit was needed.
    """

    n_components: int
    dimension: float
    loss: float | None = None
    gain: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class ComponentsChoice:
    """The number of random features that was chosen, what was tried, and why it ended there; print it."""

    n_components: int
    reason: str
    trials: tuple[Trial, ...] = ()
    n_train: int = 0
    n_held_out: int = 0

    def __str__(self) -> str:
        if not self.trials:
            return f"{self.n_components:,} random features: {self.reason}"
        head = ("features", "effective dimension", "held-out loss", "gain", "(se)")
        cells = [
            (f"{t.n_components:,}", f"{t.dimension:.1f}", *(_shown(v) for v in (t.loss, t.gain, t.error)))
            for t in self.trials
        ]
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *cells)
        ]
        rows = f"Fitted on {self.n_train:,} and judged on {self.n_held_out:,} sampled rows."
        return "\n".join([*lines, rows, f"{self.n_components:,} random features: {self.reason}"])


def choose_components(
    source: ArrayRows,
    features: Callable[[int, ArrayRows], RandomFeatures],
    loss: Loss,
    alpha: float,
    *,
    fit_intercept: bool,
    most: int,
    limited_by: str,
) -> ComponentsChoice:
    """Double M until nothing is gained, or until `most`, a limit that `limited_by` explains.

    features(M, rows) draws M features for these rows, from the same seed whatever M.
    """
    sample = deduplicated_sample(source, ROWS) if source.n_rows >= FEW else source
    if sample.n_rows < FEW:
        M = min(N_COMPONENTS, most)
        return ComponentsChoice(M, f"too few different rows to choose by (below {FEW:,}).")
    train, held_out = _split_half(sample)
    if loss.margin:
        train, held_out, loss = _drop_single_class_columns(train, held_out, loss)
        if loss.n_columns == 0:
            return ComponentsChoice(min(N_COMPONENTS, most), "too few rows of the rarer class to choose by.")
    # The ridge weight in its own unit: what is resolved must not depend on the units of y and of the loss.
    ridge = alpha / alpha_unit(loss, 1.0 if loss.margin else spread(sample.y, sample.share()))
    trials: list[Trial] = []
    last: _MappedRows | None = None
    sizes = [size for size in SIZES if size <= min(most, sample.n_rows)] or [most]
    with single_threaded_blas(0, 0):
        for M in sizes:
            feature_map = features(M, sample)
            here = _MappedRows(feature_map.transform(train.X), feature_map.transform(held_out.X))
            dimension = float(effective_dimension(here.train, alpha=ridge, sample_weight=train.weight))
            trials.append(Trial(M, dimension))
            if last is not None and dimension <= (1 + RESOLVED) * trials[-2].dimension:
                before, after = (_losses(one, train, held_out, loss, alpha, fit_intercept) for one in (last, here))
                gain, error = _mean_and_error(before - after, held_out.share())
                trials[-2] = replace(trials[-2], loss=float(held_out.share() @ before))
                trials[-1] = replace(trials[-1], loss=float(held_out.share() @ after), gain=gain, error=error)
                if gain <= error:
                    return ComponentsChoice(M, _reason_converged(trials), tuple(trials), train.n_rows, held_out.n_rows)
            last = here
    if most > sample.n_rows:
        limited_by = "no more are tried for so few different rows"
    return ComponentsChoice(
        sizes[-1], _reason_not_converged(trials, limited_by), tuple(trials), train.n_rows, held_out.n_rows
    )


@dataclass
class _MappedRows:
    """Features of the rows to fit and of those held out, and the losses of the latter once they are known."""

    train: Array
    held_out: Array
    losses: Array | None = None


def _split_half(sample: ArrayRows) -> tuple[ArrayRows, ArrayRows]:
    """Two random halves, the same for the same values."""
    order = np.random.default_rng(1).permutation(sample.n_rows)
    return take_rows(sample, np.sort(order[::2])), take_rows(sample, np.sort(order[1::2]))


def _drop_single_class_columns(train: ArrayRows, held_out: ArrayRows, loss: Loss) -> tuple[ArrayRows, ArrayRows, Loss]:
    """Rows and loss of the columns in which the rows to fit have both labels."""
    y = train.y.reshape(train.n_rows, -1)
    columns = np.flatnonzero(y.min(axis=0) < y.max(axis=0))
    train, held_out = (
        ArrayRows(rows.X, rows.y.reshape(rows.n_rows, -1)[:, columns], rows.weight) for rows in (train, held_out)
    )
    return train, held_out, loss.take(columns)


def _losses(
    lifted: _MappedRows, train: ArrayRows, held_out: ArrayRows, loss: Loss, alpha: float, fit_intercept: bool
) -> Array:
    """The loss of every held-out row, the mean over the columns, under the fit of the others."""
    if lifted.losses is None:
        rows = InMemoryDesign(train, features=lifted.train)
        found = newton.solve(Problem(rows, loss, alpha, fit_intercept=fit_intercept), tol=TOL, polish=False)
        fitted = lifted.held_out @ found.coef + found.intercept
        offset, sign = loss.margin_transform(held_out.y.reshape(held_out.n_rows, -1))
        lifted.losses = loss.value(offset - sign * fitted).mean(axis=1)
    return lifted.losses


def _mean_and_error(values: Array, share: Array) -> tuple[float, float]:
    """A weighted mean and its standard error."""
    mean = share @ values
    return float(mean), float(np.sqrt(share**2 @ (values - mean) ** 2))


def _reason_converged(trials: list[Trial]) -> str:
    before, last = trials[-2:]
    return (
        f"beyond {before.n_components:,} the effective dimension grew by {last.dimension / before.dimension - 1:.0%} "
        f"(resolved: at most {RESOLVED:.0%}) and held-out loss improved by no more than its standard error."
    )


def _reason_not_converged(trials: list[Trial], limited_by: str) -> str:
    if len(trials) == 1:
        return f"{limited_by}."
    before, last = trials[-2:]
    growth = last.dimension / before.dimension - 1
    still = (
        f"the effective dimension still grew by {growth:.0%} from {before.n_components:,} on"
        if growth > RESOLVED
        else "held-out loss still improved by more than its standard error"
    )
    return f"{limited_by}; {still}, so that more may do better."


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
