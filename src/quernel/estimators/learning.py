"""bandwidth="learned": a bandwidth for every column, from how steeply the fitted curves rise along it.

On a sample of the rows, starting from the automatic bandwidths h, a round is

1. a pilot fit by least squares, which is closed at once for all ridge weights: of y, and, for quantile levels, of the
   absolute residuals too, so that the pilot curve of level tau is  mean + normal score(tau) * spread;
2. the mean squared slope of the pilot curves along every column,  g_j = mean of (df/dx_j)^2,  taken over half a
   bandwidth to either side;
3. new bandwidths  h_j = c / sqrt(g_j):  a step of that length changes the curves as much in one column as in any other,
   and the constant c puts the median distance between rows where the automatic bandwidth has it.

The automatic bandwidths and the rounds are judged by the loss itself, that of the pilot curves on held-out rows; each
fold by bandwidths that its held-out rows had no part in. With the best of them the ridge weight is chosen by real fits,
judged on the same rows, because its best value changes with the bandwidth.

Sample and folds depend on the values and weights of rows, never on their order or repetition, and none of the steps
depends on the units of columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from quernel import paths
from quernel._threads import right_sized
from quernel.estimators.defaults import bandwidth_from
from quernel.estimators.overview import Overview
from quernel.estimators.sample import distinct_sample
from quernel.features import RandomFeatures
from quernel.features.slopes import squared_slopes
from quernel.kernels import Kernel
from quernel.losses import Loss, Pinball
from quernel.problem import Problem
from quernel.rows import ArrayRows, LiftedRows

Array = NDArray[np.floating]
Index = NDArray[np.intp]

# Different rows that are looked at, and fewer than these say too little.
ROWS, FEW = 4000, 30
# Below so many rows one part held out would be too few to judge by: then every row is, once.
ROTATE_BELOW, FOLDS, HELD_OUT = 2000, 3, 0.25
ROUNDS = 5
# Slopes are taken over so many bandwidths to either side.
STEP = 0.5
COMPONENTS = 400
# Common factors tried in every round: how far all columns together should see is not in the slopes.
FACTORS = (0.7, 1.0, 1.4)
# No column's bandwidth is more than this many times that of the steepest, in standard deviations.
LARGEST = 100.0
PILOT_RIDGES = 10.0 ** np.arange(-7, -0.4, 0.5)
# Ridge weights of the fit, in units of alpha="auto": first these, then smaller ones for as long as the least is the
# best, because small ones take the longest.
ALPHAS = (10.0, 3.16, 1.0, 0.316, 0.1), (0.0316, 0.01), (0.00316, 0.001)
# Levels that stand for all in the real fits.
MOST_LEVELS = 3
# Held-out losses are wanted to a fraction of their standard error, which is some percent of them.
TOL = 3e-3
# Ridge weights so small that more steps would be needed follow single rows.
MAX_ITER = 40


@dataclass(frozen=True)
class Round:
    """Held-out loss of the pilot curves at some bandwidths, one per column, in standard deviations of the columns."""

    loss: float
    bandwidth: tuple[float, ...]


@dataclass(frozen=True)
class BandwidthChoice:
    """The bandwidths that were learned, one per column, the ridge weight that goes with them, and how; print it.

    rounds[0] are the automatic bandwidths and rounds[best] those chosen; alphas are pairs of a ridge weight and the
    held-out loss of real fits with it, empty where the ridge weight was given.
    """

    bandwidth: tuple[float, ...]
    alpha: float
    reason: str
    rounds: tuple[Round, ...] = ()
    best: int = 0
    alphas: tuple[tuple[float, float], ...] = ()
    n_rows: int = 0

    def __str__(self) -> str:
        lines = []
        if self.rounds:
            lines.append("round  held-out loss  bandwidths in standard deviations")
            for k, one in enumerate(self.rounds):
                widths = "  ".join(f"{width:.3g}" for width in one.bandwidth)
                lines.append(f"{'auto' if k == 0 else k!s:>5}  {one.loss:>13.4g}  {widths}")
        if self.alphas:
            tried = ", ".join(f"{loss:.4g} at {alpha:.1e}" for alpha, loss in self.alphas)
            lines.append(f"Held-out loss of fits by ridge weight: {tried}.")
        return "\n".join([*lines, f"{self.reason}; alpha = {self.alpha:.2g}."])


def learn_bandwidth(
    view: Overview,
    kernel: Kernel,
    loss: Loss,
    alpha: float,
    *,
    alpha_is_open: bool,
    fit_intercept: bool,
    seed: int,
) -> BandwidthChoice:
    """Bandwidths for the columns of the rows and, if it is open, a ridge weight that goes with them."""
    usual, unit = view.bandwidth, view.scales
    sample = distinct_sample(view.sample, ROWS)
    if sample.n_rows < FEW:
        reason = f"The automatic bandwidths: too few different rows to learn from (below {FEW})"
        return BandwidthChoice(tuple(usual.tolist()), alpha, reason)
    with right_sized(0, 0):
        folds = [_Fold(*parts, kernel, _some_columns(loss), fit_intercept, seed) for parts in _folds(sample)]
        weight = np.array([np.sum(fold.held_out.weight) for fold in folds])
        weight /= weight.sum()
        tracks = [_rounds(fold, usual, unit) for fold in folds]
        losses = weight @ [[one.loss for one in track] for track in tracks]
        best = int(np.argmin(losses))
        # Each fold by its own bandwidths: those of the others know its held-out rows.
        own = [track[best].bandwidth for track in tracks]
        tried = _try_alphas(folds, weight, own, alpha) if alpha_is_open else {}
    bandwidths = np.exp(np.mean([[np.log(one.bandwidth) for one in track] for track in tracks], axis=0))
    return BandwidthChoice(
        tuple(bandwidths[best].tolist()),
        min(tried, key=lambda one: tried[one]) if tried else alpha,
        f"Round {best}, from {sample.n_rows:,} rows" if best else "The automatic bandwidths, which no round beat",
        tuple(Round(float(one), tuple((h / unit).tolist())) for one, h in zip(losses, bandwidths, strict=True)),
        best,
        tuple(sorted(tried.items())),
        sample.n_rows,
    )


def _try_alphas(folds: list[_Fold], weight: Array, bandwidths: list[Array], alpha: float) -> dict[float, float]:
    """Held-out loss of real fits at several ridge weights."""
    tried: dict[float, float] = {}
    for factors in ALPHAS:
        some = alpha * np.array(factors)
        losses = weight @ [fold.fitted_losses(h, some) for fold, h in zip(folds, bandwidths, strict=True)]
        tried.update(zip(some.tolist(), losses.tolist(), strict=True))
        if min(tried, key=lambda one: tried[one]) > some.min():
            break
    return tried


@dataclass(frozen=True, eq=False)
class _Try:
    """Bandwidths (d,), the pilot curves with them, and their held-out loss."""

    bandwidth: Array
    loss: float
    features: RandomFeatures
    coef: Array


@dataclass(frozen=True, eq=False)
class _Fold:
    """Rows to fit, rows to judge by, and what is fitted."""

    train: ArrayRows
    held_out: ArrayRows
    kernel: Kernel
    loss: Loss
    fit_intercept: bool
    seed: int

    def features(self, bandwidth: Array) -> RandomFeatures:
        """The same draw whatever the bandwidth."""
        center = self.train.share() @ self.train.X
        kernel = self.kernel.with_bandwidth(bandwidth)
        return RandomFeatures(kernel, COMPONENTS, center=center, random_state=self.seed).fit(self.train.X)

    def pilot(self, bandwidth: Array) -> _Try:
        """Least squares, as curves of the loss."""
        features = self.features(bandwidth)
        here, there = features.transform(self.train.X), features.transform(self.held_out.X)
        ridge = _Ridge(here, self.train.share(), there, self.held_out.share())
        y, y_new = _columns(self.train.y), _columns(self.held_out.y)
        coef, intercept = ridge.solve(y, y_new)
        if isinstance(self.loss, Pinball):
            off, off_new = (np.abs(a - p @ coef - intercept) for a, p in ((y, here), (y_new, there)))
            spread = ridge.solve(off, off_new)
            score = ndtri(self.loss.levels) * np.sqrt(np.pi / 2)  # a normal law's mean absolute deviation is not 1
            coef, intercept = coef + spread[0] * score, intercept + spread[1] * score
        return _Try(bandwidth, self.held_out_loss(there @ coef + intercept), features, coef)

    def fitted_losses(self, bandwidth: Array, alphas: Array) -> Array:
        """Held-out loss of the real fit at every ridge weight."""
        features = self.features(bandwidth)
        rows = LiftedRows(self.train, features=features.transform(self.train.X))
        problem = Problem(rows, self.loss, 1.0, fit_intercept=self.fit_intercept)
        grid = paths.solve(problem, alphas, tol=TOL, max_iter=MAX_ITER)
        return np.array([self.held_out_loss(f) for f in grid.predict(features.transform(self.held_out.X))])

    def held_out_loss(self, fitted: Array) -> float:
        offset, sign = self.loss.frame(_columns(self.held_out.y))
        return float(self.held_out.share() @ self.loss.value(offset - sign * fitted).mean(axis=1))


def _rounds(fold: _Fold, usual: Array, unit: Array) -> list[_Try]:
    """The automatic bandwidths, then every round's best."""
    tries, reach = [fold.pilot(usual)], 1.0
    for _ in range(ROUNDS):
        last = tries[-1]
        slopes = squared_slopes(last.features, fold.train.X, last.coef, fold.train.share(), STEP * last.bandwidth)
        lengths = _lengths(slopes, unit)
        bandwidth = reach * bandwidth_from(lengths, fold.train.X, fold.train.share())
        found = [fold.pilot(factor * bandwidth) for factor in FACTORS]
        best = int(np.argmin([one.loss for one in found]))
        tries.append(found[best])
        reach *= FACTORS[best]
    return tries


def _lengths(slopes: Array, unit: Array) -> Array:
    """1 / sqrt(g_j), but no more than LARGEST times the least of them, in units of the columns."""
    relevance = np.sqrt(slopes) * unit
    top = relevance.max()
    return unit / np.maximum(relevance / top, 1 / LARGEST) if top > 0 else unit


class _Ridge:
    """Least squares with every ridge weight at once, the best one chosen on held-out rows, for any targets."""

    def __init__(self, features: Array, share: Array, held_out: Array, held_out_share: Array) -> None:
        self.mean = share @ features
        self.centred, self.share = features - self.mean, share
        covariance = self.centred.T @ (share[:, None] * self.centred)
        values, self.vectors = np.linalg.eigh(covariance)
        self.damped = np.maximum(values, 0)[:, None] + PILOT_RIDGES * max(np.trace(covariance), np.finfo(float).tiny)
        self.turned, self.held_out_share = (held_out - self.mean) @ self.vectors, held_out_share

    def solve(self, target: Array, held_out: Array) -> tuple[Array, Array]:
        """Coefficients (M, k) and intercepts (k,) of targets (n, k)."""
        middle = self.share @ target
        product = self.vectors.T @ (self.centred.T @ (self.share[:, None] * (target - middle)))
        path = product[:, None, :] / self.damped[:, :, None]  # (M, ridges, k)
        fitted = np.einsum("nm,mrk->nrk", self.turned, path, optimize=True) + middle
        error = np.einsum("n,nrk->rk", self.held_out_share, (held_out[:, None, :] - fitted) ** 2, optimize=True)
        best = path[:, np.argmin(error, axis=0), np.arange(target.shape[1])]
        coef = self.vectors @ best
        return coef, middle - self.mean @ coef


def _folds(sample: ArrayRows) -> Iterator[tuple[ArrayRows, ArrayRows]]:
    """Rows to fit and rows to judge by: every row is judged once where they are few, a part of them otherwise."""
    assert sample.weight is not None
    order = np.random.default_rng(1).permutation(sample.n_rows)
    few = sample.n_rows < ROTATE_BELOW
    parts = [order[k::FOLDS] for k in range(FOLDS)] if few else [order[: round(HELD_OUT * len(order))]]
    for part in parts:
        held_out = np.zeros(sample.n_rows, dtype=bool)
        held_out[part] = True
        yield tuple(ArrayRows(sample.X[of], sample.y[of], sample.weight[of]) for of in (~held_out, held_out))


def _some_columns(loss: Loss) -> Loss:
    """A few of many quantile levels, spread over them; other losses as they are."""
    if not isinstance(loss, Pinball) or loss.n_columns <= MOST_LEVELS:
        return loss
    some = np.linspace(0, loss.n_columns - 1, MOST_LEVELS).round().astype(np.intp)
    return loss.take(np.argsort(loss.levels, kind="stable")[some])


def _columns(y: Array) -> Array:
    return y if y.ndim == 2 else y[:, None]
