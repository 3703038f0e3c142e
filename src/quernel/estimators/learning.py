"""bandwidth="learned": a bandwidth for every column, the ridge weight that goes with them and, if open, the kernel.

On a sample of the rows:

1. For each kernel that may be used, bandwidths are found by descent on the leave-one-out error of kernel ridge
   regression (`leave_one_out`): of y and, for quantile levels, of the size of the residuals too, since the curve of
   level tau is  mean + normal score(tau) * spread.
2. These and the automatic bandwidths are judged by the loss itself, on rows that had no part in them.
3. With the best of them the ridge weight is chosen by real fits, judged on the same rows.

The ridge weight is then divided by how many times more rows the table has than these fits had: a penalty on the mean
loss that is right for few rows is too heavy for many.

Sample and folds depend on the values and weights of rows, never on their order or repetition, and none of the steps
depends on the units of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from quernel import paths
from quernel._threads import right_sized
from quernel.estimators.defaults import alpha_unit, auto_bandwidth, column_scales, spread
from quernel.estimators.leave_one_out import FIRST_RIDGE, Found, LeaveOneOut, Target, first_bandwidth
from quernel.estimators.sample import count_distinct, distinct_sample
from quernel.features import Nystroem
from quernel.kernels import Kernel
from quernel.losses import Loss, Pinball, weighted_quantiles
from quernel.problem import Problem
from quernel.rows import ArrayRows, LiftedRows

Array = NDArray[np.floating]

# Different rows that are looked at, and fewer than these say too little.
ROWS, FEW = 3000, 30
# Below so many rows one part held out would be too few to judge by: then every row is, once.
ROTATE_BELOW, FOLDS, HELD_OUT = 2000, 3, 0.25
# Rows of the only fold, and of each of several, by which bandwidths are learned: a step takes the cube of their number.
LEARNED_FROM, LEARNED_FROM_EACH = 800, 500
# Steps of descent: by y, and then by the spread along with it.
STEPS, SPREAD_STEPS = 20, 6
# Of kernels whose losses are within this of the best the last is taken: the rough one, and what was learned.
TIE = 0.02
# Targets further than this from the median, in units of their spread, are drawn in: squares follow them too far.
FARTHEST = 8.0
# Landmarks of the real fits.
COMPONENTS = 500
# Ridge weights of the fit, in units of what leave-one-out errors suggest: first these, then smaller ones for as long as
# the least is the best, because small ones take the longest. Outer levels want more than the mean.
ALPHAS = (1000.0, 316.0, 100.0, 31.6), (10.0, 3.16), (1.0, 0.316), (0.1, 0.0316)
# Levels that stand for all in the real fits.
MOST_LEVELS = 3
# Held-out losses are wanted to a fraction of their standard error, which is some percent of them.
TOL = 3e-3
# Ridge weights so small that more steps would be needed follow single rows.
MAX_ITER = 150


@dataclass(frozen=True)
class Round:
    """Held-out loss of the pilot curves with some kernel and bandwidths, in standard deviations of the columns."""

    loss: float
    bandwidth: tuple[float, ...]
    kernel: str = ""


@dataclass(frozen=True)
class BandwidthChoice:
    """The bandwidths that were learned, one per column, the kernel and the ridge weight that go with them; print it.

    rounds[0] are the automatic bandwidths, the others what was learned with each kernel, and rounds[best] is what was
    chosen; alphas are pairs of a ridge weight and the held-out loss of real fits with it, empty where the ridge weight
    was given.
    """

    bandwidth: tuple[float, ...]
    alpha: float
    reason: str
    rounds: tuple[Round, ...] = ()
    best: int = 0
    alphas: tuple[tuple[float, float], ...] = ()
    n_rows: int = 0
    kernel: str = ""

    def __str__(self) -> str:
        lines = []
        if self.rounds:
            lines.append("bandwidths  kernel     held-out loss  in standard deviations")
            for k, one in enumerate(self.rounds):
                widths = "  ".join(f"{width:.3g}" for width in one.bandwidth)
                lines.append(f"{'learned' if k else 'auto':<10}  {one.kernel:<9}  {one.loss:>13.4g}  {widths}")
        if self.alphas:
            tried = ", ".join(f"{loss:.4g} at {alpha:.1e}" for alpha, loss in self.alphas)
            lines.append(f"Held-out loss of fits by ridge weight: {tried}.")
        return "\n".join([*lines, f"{self.reason}; alpha = {self.alpha:.2g}."])


def learn_bandwidth(
    source: ArrayRows,
    kernels: Sequence[Kernel],
    loss: Loss,
    alpha: float,
    *,
    alpha_is_open: bool,
    fit_intercept: bool,
) -> BandwidthChoice:
    """One of these kernels, bandwidths for the columns of the source and, if it is open, a ridge weight."""
    share = source.share()
    usual, unit = auto_bandwidth(source.X, share), column_scales(source.X, share)
    sample = distinct_sample(source, ROWS)
    if sample.n_rows < FEW:
        reason = f"The automatic bandwidths: too few different rows to learn from (below {FEW})"
        return BandwidthChoice(tuple(usual.tolist()), alpha, reason, kernel=kernels[0].name)
    with right_sized(0, 0):
        folds = [_Fold(*parts, _some_columns(loss), fit_intercept) for parts in _folds(sample)]
        size = LEARNED_FROM if len(folds) == 1 else LEARNED_FROM_EACH
        weight = np.array([np.sum(fold.held_out.weight) for fold in folds])
        weight /= weight.sum()
        tries = [fold.tries(kernels, usual, unit, size) for fold in folds]
        losses = weight @ [[one.loss for one in some] for some in tries]
        best = int(np.flatnonzero(losses <= (1 + TIE) * losses.min())[-1])
        # Each fold by its own bandwidths: those of the others know its held-out rows.
        own = [some[best] for some in tries]
        tried = _try_alphas(folds, weight, own, count_distinct(source)) if alpha_is_open else {}
    bandwidths = np.exp(np.mean([[np.log(one.found.bandwidth) for one in some] for some in tries], axis=0))
    names = [one.kernel.name for one in tries[0]]
    return BandwidthChoice(
        tuple(bandwidths[best].tolist()),
        min(tried, key=lambda one: tried[one]) if tried else alpha,
        f"The {names[best]} kernel, its bandwidths {'learned' if best else 'automatic'}, from {sample.n_rows:,} rows",
        tuple(
            Round(float(one), tuple((h / unit).tolist()), name)
            for one, h, name in zip(losses, bandwidths, names, strict=True)
        ),
        best,
        tuple(sorted(tried.items())),
        sample.n_rows,
        names[best],
    )


def _try_alphas(folds: list[_Fold], weight: Array, tries: list[_Try], n_rows: int) -> dict[float, float]:
    """Held-out loss of real fits at several ridge weights, these as they are for so many rows."""
    suggested = np.array([fold.suggested(one.found) for fold, one in zip(folds, tries, strict=True)])
    middle = float(np.exp(weight @ np.log(suggested * [fold.train.n_rows for fold in folds]))) / n_rows
    tried: dict[float, float] = {}
    for factors in ALPHAS:
        each = zip(folds, tries, suggested, strict=True)
        losses = weight @ [fold.fitted_losses(one, np.array(factors) * alpha) for fold, one, alpha in each]
        tried.update(zip((middle * np.array(factors)).tolist(), losses.tolist(), strict=True))
        if min(tried, key=lambda one: tried[one]) > min(tried):
            break
    return tried


@dataclass(frozen=True, eq=False)
class _Try:
    """A kernel with bandwidths and ridges that were found, and the held-out loss of the pilot curves with them."""

    kernel: Kernel
    found: Found
    loss: float


@dataclass(frozen=True, eq=False)
class _Fold:
    """Rows to fit, in random order, rows to judge by, and the loss of both."""

    train: ArrayRows
    held_out: ArrayRows
    loss: Loss
    fit_intercept: bool

    def tries(self, kernels: Sequence[Kernel], usual: Array, unit: Array, size: int) -> list[_Try]:
        """The first kernel with the automatic bandwidths, and every kernel with those learned from `size` rows."""
        pilot = _Pilot(_take(self.train, np.arange(min(size, self.train.n_rows))), self.loss)
        learned = [pilot.learn(kernel, first_bandwidth(kernel, usual, pilot.rows.X), unit) for kernel in kernels]
        return [
            _Try(kernel, found, self.held_out_loss(curves(self.held_out.X)))
            for kernel, (found, curves) in zip(
                (kernels[0], *kernels), (pilot.learn(kernels[0], usual, unit, free=False), *learned), strict=True
            )
        ]

    def suggested(self, found: Found) -> float:
        """The ridge weight whose weight against the loss is that of the ridge found against squares."""
        scale = 1.0 if self.loss.margin else spread(self.train.y, self.train.share())
        return float(found.ridges[0]) / (2 * self.train.n_rows) * alpha_unit(self.loss, scale)

    def fitted_losses(self, one: _Try, alphas: Array) -> Array:
        """Held-out loss of the real fit at every ridge weight."""
        features = Nystroem(one.kernel.with_bandwidth(one.found.bandwidth), COMPONENTS, landmarks="distinct")
        rows = LiftedRows(self.train, features=features.fit_transform(self.train.X))
        problem = Problem(rows, self.loss, 1.0, fit_intercept=self.fit_intercept)
        grid = paths.solve(problem, alphas, tol=TOL, max_iter=MAX_ITER)
        return np.array([self.held_out_loss(f) for f in grid.predict(features.transform(self.held_out.X))])

    def held_out_loss(self, fitted: Array) -> float:
        offset, sign = self.loss.frame(_columns(self.held_out.y))
        return float(self.held_out.share() @ self.loss.value(offset - sign * fitted).mean(axis=1))


class _Pilot:
    """Curves of the loss by kernel ridge regression: for quantile levels, mean + normal score * spread."""

    def __init__(self, rows: ArrayRows, loss: Loss) -> None:
        share, y = rows.share(), _columns(rows.y)
        self.rows, self.loss, self.weight = rows, loss, share * rows.n_rows
        if not loss.margin:
            y = _drawn_in(y, share)
        self.middle = share @ y
        deviation = np.sqrt(share @ (y - self.middle) ** 2)
        self.scale = np.where(deviation > 0, deviation, 1.0)
        self.y = Target((y - self.middle) / self.scale)
        # A normal law's mean absolute deviation is not 1.
        self.score = ndtri(loss.levels) * np.sqrt(np.pi / 2) if isinstance(loss, Pinball) else np.zeros(1)

    def learn(
        self, kernel: Kernel, start: Array, unit: Array, *, free: bool = True
    ) -> tuple[Found, Callable[[Array], Array]]:
        """Bandwidths and ridges, of y first and then of the spread along with it; and the curves, at any rows."""
        by = LeaveOneOut(kernel, self.rows.X, self.weight, (self.y,))
        found = by.descend(start, unit, steps=STEPS, free=free)
        if not np.any(self.score):
            return found, lambda X: self.middle + self.scale * by.predict(found, X)[0]
        size = np.abs(by.errors(found)[0])
        typical = self.rows.share() @ size
        both = LeaveOneOut(
            kernel, self.rows.X, self.weight, (self.y, Target(size - typical, float(np.mean(self.score**2))))
        )
        ridges = np.r_[found.ridges, FIRST_RIDGE]
        found = both.descend(found.bandwidth, unit, ridges, steps=SPREAD_STEPS, free=free)

        def curves(X: Array) -> Array:
            mean, off = both.predict(found, X)
            return self.middle + self.scale * (mean + self.score * (typical + off))

        return found, curves


def _folds(sample: ArrayRows) -> Iterator[tuple[ArrayRows, ArrayRows]]:
    """Rows to fit and rows to judge by: every row is judged once where they are few, a part of them otherwise."""
    order = np.random.default_rng(1).permutation(sample.n_rows)
    few = sample.n_rows < ROTATE_BELOW
    parts = [order[k::FOLDS] for k in range(FOLDS)] if few else [order[: round(HELD_OUT * len(order))]]
    for part in parts:
        yield _take(sample, order[~np.isin(order, part)]), _take(sample, part)


def _take(rows: ArrayRows, index: NDArray[np.intp]) -> ArrayRows:
    assert rows.weight is not None
    return ArrayRows(rows.X[index], rows.y[index], rows.weight[index])


def _drawn_in(y: Array, share: Array) -> Array:
    """y, what is far from the median brought nearer."""
    columns = [(weighted_quantiles(one, share, np.array([0.5]))[0], FARTHEST * spread(one, share)) for one in y.T]
    middle, far = np.array(columns).T
    return np.clip(y, middle - far, middle + far)


def _some_columns(loss: Loss) -> Loss:
    """A few of many quantile levels, spread over them; other losses as they are."""
    if not isinstance(loss, Pinball) or loss.n_columns <= MOST_LEVELS:
        return loss
    some = np.linspace(0, loss.n_columns - 1, MOST_LEVELS).round().astype(np.intp)
    return loss.take(np.argsort(loss.levels, kind="stable")[some])


def _columns(y: Array) -> Array:
    return y if y.ndim == 2 else y[:, None]
