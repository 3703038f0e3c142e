"""n_components="auto": choose the number of random features M by effective dimension and held-out loss.

On a sample of rows, M is doubled until, at the alpha of the fit,

1. the effective dimension  trace(C (C + alpha I)^-1),  C = Phi'Phi / n,  has grown by at most 10 % since M/2, and
2. held-out loss has improved by no more than one standard error (of the paired difference by row) since M/2.

The first criterion depends on X alone and shows what larger data would still resolve; the second involves y. Models are
fitted only once the first is met, so that most sizes cost only the decomposition of a small matrix. Features for M and
2 M are drawn from the same seed: with uniform sampling the first M of them are the same; other samplings differ. The
loss is that of the fit, averaged over its outputs; several classes are evaluated one-vs-rest.

Sample and split depend on the values and weights of the rows only, not on their order, repetition or units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quernel._machine import single_threaded_blas
from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import RandomFeatures
from quernel.losses import Loss
from quernel.objective import Problem
from quernel.solvers import newton
from quernel.solvers.progress import stop_requested
from quernel.theory import effective_dimension
from quernel.tuning.alpha import alpha_unit
from quernel.tuning.data_summary import deduplicated_sample, robust_scale, take_rows

Array = NDArray[np.floating]


@dataclass(frozen=True)
class ComponentsOptions:
    """Constants of the number of features."""

    default: int = 500  # random features where data are too small for a search
    sizes: tuple[int, ...] = (125, 250, 500, 1000, 2000)  # what the search tries
    max_rows: int = 2000  # distinct rows in the sample; half of them are held out
    min_rows: int = 1000  # with fewer the sample says little about M, and features are cheap
    resolved: float = 0.1  # relative growth of the effective dimension, when M is doubled, that counts as none
    tol: float = 1e-4  # relative gap of the fits: small beside the standard error of held-out loss, some percent
    landmarks: tuple[int, int] = (1000, 2000)  # smallest and largest number of landmarks; in between ...
    landmark_work: float = 8e10  # ... n_rows x n_landmarks^2, the operations of a Newton step, is constant
    clustered_from: float = 10.0  # rows per landmark from which landmarks are centres of clusters


OPTIONS = ComponentsOptions()


@dataclass(frozen=True)
class Trial:
    """One step of the search: M, effective dimension, held-out loss, its gain over M/2 and the gain's standard error.

    Loss, gain and error are None if no model was fitted.
    """

    n_components: int
    dimension: float
    loss: float | None = None
    gain: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class ComponentsChoice:
    """Result of the search: the number of features, why the search stopped, and its steps; print it."""

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
            (f"{t.n_components:,}", f"{t.dimension:.1f}", *(_format_cell(v) for v in (t.loss, t.gain, t.error)))
            for t in self.trials
        ]
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *cells)
        ]
        rows = f"Fitted to {self.n_train:,} and evaluated on {self.n_held_out:,} sampled rows."
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
    """Double M until nothing is gained, or up to `most`.

    Parameters
    ----------
    source : ArrayRows
        Rows to sample from.
    features : callable (M, rows) -> fitted RandomFeatures
        Draws M features for these rows, from the same seed for every M.
    loss, alpha, fit_intercept : the problem to be fitted
    most : int
        Largest M allowed.
    limited_by : str
        Why `most` is the limit, for the message.
    """
    sample = deduplicated_sample(source, OPTIONS.max_rows) if source.n_rows >= OPTIONS.min_rows else source
    if sample.n_rows < OPTIONS.min_rows:
        M = min(OPTIONS.default, most)
        return ComponentsChoice(M, f"too few different rows to choose by (below {OPTIONS.min_rows:,}).")
    train, held_out = _split_half(sample)
    if loss.margin:
        train, held_out, loss = _drop_single_class_columns(train, held_out, loss)
        if loss.n_columns == 0:
            return ComponentsChoice(min(OPTIONS.default, most), "too few rows of the rarer class to choose by.")
    # The effective dimension needs alpha relative to its unit, lest it depend on the units of y and of the loss.
    ridge = alpha / alpha_unit(loss, 1.0 if loss.margin else robust_scale(sample.y, sample.share()))
    trials: list[Trial] = []
    previous: _MappedRows | None = None
    sizes = [size for size in OPTIONS.sizes if size <= min(most, sample.n_rows)] or [most]
    with single_threaded_blas(0, 0):
        for M in sizes:
            if trials and stop_requested():
                limited_by = "the time limit ended the search"
                break
            feature_map = features(M, sample)
            current = _MappedRows(feature_map.transform(train.X), feature_map.transform(held_out.X))
            dimension = float(effective_dimension(current.train, alpha=ridge, sample_weight=train.weight))
            trials.append(Trial(M, dimension))
            if previous is not None and dimension <= (1 + OPTIONS.resolved) * trials[-2].dimension:
                before, after = (
                    _losses(one, train, held_out, loss, alpha, fit_intercept) for one in (previous, current)
                )
                gain, error = _mean_and_error(before - after, held_out.share())
                trials[-2] = replace(trials[-2], loss=float(held_out.share() @ before))
                trials[-1] = replace(trials[-1], loss=float(held_out.share() @ after), gain=gain, error=error)
                if gain <= error:
                    return ComponentsChoice(M, _reason_converged(trials), tuple(trials), train.n_rows, held_out.n_rows)
            previous = current
    if most > sample.n_rows:
        limited_by = "no more are tried for so few different rows"
    return ComponentsChoice(
        trials[-1].n_components, _reason_not_converged(trials, limited_by), tuple(trials), train.n_rows, held_out.n_rows
    )


@dataclass
class _MappedRows:
    """Features of training and held-out rows, (n, M) each, and the held-out losses once they are computed."""

    train: Array
    held_out: Array
    losses: Array | None = None


def _split_half(sample: ArrayRows) -> tuple[ArrayRows, ArrayRows]:
    """Random halves (train, held_out) with a fixed seed; the sample is sorted by values, whatever the order of rows."""
    order = np.random.default_rng(1).permutation(sample.n_rows)
    return take_rows(sample, np.sort(order[::2])), take_rows(sample, np.sort(order[1::2]))


def _drop_single_class_columns(train: ArrayRows, held_out: ArrayRows, loss: Loss) -> tuple[ArrayRows, ArrayRows, Loss]:
    """Drop the one-vs-rest columns in which the training rows have only one label, from rows and loss.

    A constant fits them exactly: their held-out loss would say nothing of the number of features.
    """
    y = train.y.reshape(train.n_rows, -1)
    columns = np.flatnonzero(y.min(axis=0) < y.max(axis=0))
    train, held_out = (
        ArrayRows(rows.X, rows.y.reshape(rows.n_rows, -1)[:, columns], rows.weight) for rows in (train, held_out)
    )
    return train, held_out, loss.take(columns)


def _losses(
    mapped: _MappedRows, train: ArrayRows, held_out: ArrayRows, loss: Loss, alpha: float, fit_intercept: bool
) -> Array:
    """Loss of every held-out row, averaged over outputs, shape (n_held_out,); fitted once and cached in `mapped`."""
    if mapped.losses is None:
        rows = InMemoryDesign(train, features=mapped.train)
        found = newton.solve(Problem(rows, loss, alpha, fit_intercept=fit_intercept), tol=OPTIONS.tol, polish=False)
        fitted = mapped.held_out @ found.coef + found.intercept
        offset, sign = loss.margin_transform(held_out.y.reshape(held_out.n_rows, -1))
        mapped.losses = loss.value(offset - sign * fitted).mean(axis=1)
    return mapped.losses


def _mean_and_error(values: Array, share: Array) -> tuple[float, float]:
    """Weighted mean and its standard error  sqrt(sum_i share_i^2 (v_i - mean)^2).

    Of paired differences, in which most of the noise of single losses cancels.
    """
    mean = share @ values
    return float(mean), float(np.sqrt(share**2 @ (values - mean) ** 2))


def _reason_converged(trials: list[Trial]) -> str:
    """Message for a search that stopped because nothing more was gained."""
    before, last = trials[-2:]
    return (
        f"beyond {before.n_components:,} the effective dimension grew by {last.dimension / before.dimension - 1:.0%} "
        f"(resolved: at most {OPTIONS.resolved:.0%}) and held-out loss improved by no more than its standard error."
    )


def _reason_not_converged(trials: list[Trial], limited_by: str) -> str:
    """Message for a search that stopped at its largest M."""
    if len(trials) == 1:
        return f"{limited_by}."
    before, last = trials[-2:]
    growth = last.dimension / before.dimension - 1
    still = (
        f"the effective dimension still grew by {growth:.0%} from {before.n_components:,} on"
        if growth > OPTIONS.resolved
        else "held-out loss still improved by more than its standard error"
    )
    return f"{limited_by}; {still}, so that more may do better."


def _format_cell(value: float | None) -> str:
    """A number to four digits, or nothing."""
    return "" if value is None else f"{value:.4g}"
