"""`TabularQuantileRegressor` with shapes: a kernel that has them, a forest that moves levels only, an ordered forest.

    Q(tau | x) = (1 - w) K(U(tau | x_free) | x) + w T(tau | x)

- K(u | x), the smooth part: quantile curves of a `KernelQuantileRegressor` under the shape constraints, at some levels.
  Between two levels it is their weighted mean; beyond the outer ones a constant is added or, on the side of a bound,
  the mean with the bound is taken. Weights and constants depend on u alone, hence K(u | x) has the shapes at every
  level u, wherever the fitted curves have them.
- U(tau | x_free), the local part: levels between 0 and 1, the conditional quantiles of F(y | x), F being the
  distribution function of K out of fold. A forest finds them from the columns without a shape: it is the local part
  projected onto functions that do not depend on the constrained columns. Where all others are equal U is constant.
- T(tau | x): quantiles of y by a forest whose leaves are stochastically ordered along monotone columns (`grow_forest`),
  and which does not see convex ones.

All increase, K in u, U and T in tau, so that levels never cross. Levels are blended and calibrated as normal scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from sklearn.base import clone

from quernel.data import ArrayRows
from quernel.estimators.forest_weights import QuantileForest, SortedValues, grow_forest
from quernel.estimators.levels import rearrange
from quernel.estimators.location_scale import OPTIONS as KERNEL
from quernel.estimators.location_scale import LocationScale, draw_folds
from quernel.estimators.quantile import KernelQuantileRegressor
from quernel.estimators.shapes import Shapes, clip_to_bounds, measure_violation
from quernel.estimators.tabular_parts import (
    FOREST_STAGE,
    GRID,
    KERNEL_STAGE,
    LAST_STAGE,
    RESIDUAL_STAGE,
    STACKING,
    Calibration,
    PartSettings,
    has_distinct_rows,
    mean_pinball,
    randomized_pit,
    standardize,
)
from quernel.estimators.tabular_parts import OPTIONS as PARTS_OPTIONS
from quernel.estimators.warnings import convergence_not_warned
from quernel.losses import weighted_quantiles
from quernel.solvers.progress import enter_stage, stop_requested
from quernel.tuning.cost import estimate_shaped_seconds, estimate_tabular_stages

Array = NDArray[np.floating]
Index = NDArray[np.integer]


@dataclass(frozen=True)
class ShapedOptions:
    """Constants of the fit with shapes."""

    levels: tuple[float, ...] = (0.02, 0.2, 0.5, 0.8, 0.98)  # of the kernel's curves
    n_components: int = 300  # landmarks of the kernel
    max_rows: int = 10_000  # to which the kernel is fitted, at most
    folds: int = 5
    # Beside the kernel that is best on its own a smoother one is tried, with automatic bandwidths and this ridge, in
    # units that do not depend on those of y: a forest finds what is local, and smooth curves hardly leave their shape
    # between rows and grid values. It is taken unless its loss on held-out rows is higher by more than a share.
    alpha: float = 1e-3
    tolerated: float = 0.05
    pilot_rows: int = 1500
    pilot_components: int = 150
    pilot_trees: int = 30


OPTIONS = ShapedOptions()
SCORES = ndtri(np.array(OPTIONS.levels))


@dataclass(frozen=True, eq=False)
class SmoothQuantiles:
    """K(u | x): quantile curves with shapes, and what is beyond the outer ones.

    Attributes
    ----------
    model : KernelQuantileRegressor, fitted at `OPTIONS.levels`
    below, above : ndarrays of shape (k,), non-decreasing away from the outer level, where they are 0: distances from
        the outer curve at the levels of `GRID` beyond it or, with a bound, shares of the distance to the bound
    """

    model: KernelQuantileRegressor
    below: Array
    above: Array

    def __post_init__(self) -> None:
        """Raise ValueError unless there is a distance for every level."""
        if self.below.shape != BELOW.shape or self.above.shape != ABOVE.shape:
            raise ValueError("the outer levels of a smooth part are not those of fits")

    def curves(self, X: Array) -> Array:
        """Curves of the kernel at these rows, (n, 5), sorted."""
        return predict_curves(self.model, X)

    def at(self, curves: Array, scores: Array) -> Array:
        """Quantiles at levels given as ascending normal scores (n, q) of rows with these curves (n, 5); shape (n, q).

        All operations are monotone in the curves, rounding included, for given scores.
        """
        right = np.clip(np.searchsorted(SCORES, scores), 1, len(SCORES) - 1)
        part = np.clip((scores - SCORES[right - 1]) / (SCORES[right] - SCORES[right - 1]), 0.0, 1.0)
        low, high = (np.take_along_axis(curves, one, axis=1) for one in (right - 1, right))
        values = np.clip((1 - part) * low + part * high, low, high)
        lower, upper = self.model.lower, self.model.upper
        values = move_outwards(values, np.interp(scores, BELOW, self.below), lower, -1.0)
        values = move_outwards(values, np.interp(scores, ABOVE, self.above), upper, 1.0)
        return np.maximum.accumulate(clip_to_bounds(self.model, values), axis=1)


# Normal scores of the grid's levels beyond the outer curves, with these.
BELOW = np.append(ndtri(GRID[OPTIONS.levels[0] - GRID > 1e-9]), SCORES[0])
ABOVE = np.append(SCORES[-1], ndtri(GRID[GRID - OPTIONS.levels[-1] > 1e-9]))


def move_outwards(values: Array, far: Array, bound: float | None, sign: float) -> Array:
    """Values moved by a distance in the direction of `sign`, or by a share of what is left to the bound."""
    return values + sign * far if bound is None else (1 - far) * values + far * bound


def predict_curves(model: KernelQuantileRegressor, X: Array) -> Array:
    """Curves of a kernel fit (n, q), uncrossed and within its bounds, without warnings of rows that extrapolate.

    Sorting keeps curves monotone. The larger of two convex curves is convex, the smaller of two concave ones concave.
    """
    curves, bends = model._decision_function(X), {sign for sign in (model.convex or {}).values() if sign}
    if bends == {1}:
        return np.maximum.accumulate(curves, axis=1)
    if bends == {-1}:
        return np.minimum.accumulate(curves[:, ::-1], axis=1)[:, ::-1]
    return rearrange(curves, model.quantiles_)


@dataclass(frozen=True, eq=False)
class ShapedParts:
    """Fitted parts of a model with shapes.

    Attributes
    ----------
    shares : dict of the weights of "kernel", for levels as they are, of "residual_forest", for those of the forest of
        scores, and of "forest"
    calibration : Calibration of the levels
    smooth : SmoothQuantiles
    free : ndarray of int, positions of the columns without a shape, which the forest sees
    notes : sentences on what holds
    residual_forest : QuantileForest of normal scores of F(y | x), or None
    forest : QuantileForest of y, ordered, or None
    seen : ndarray of int, positions of the columns that this forest sees, or None
    location_scale : None, as in `Parts` without it
    """

    shares: dict[str, float]
    calibration: Calibration
    smooth: SmoothQuantiles
    free: Index
    notes: tuple[str, ...]
    residual_forest: QuantileForest | None = None
    forest: QuantileForest | None = None
    seen: Index | None = None
    location_scale: ClassVar[LocationScale | None] = None

    @property
    def kernel_size(self) -> int:
        """Number of landmarks of the kernel and of trends."""
        return int(self.smooth.model.n_components_)

    @property
    def duality_gap(self) -> Array:
        """Relative duality gaps of the kernel's levels, (5,)."""
        return self.smooth.model.duality_gap_

    def describe(self) -> list[str]:
        """Lines on the kernel and on the shapes."""
        kernel, gap = self.smooth.model.kernel_, self.duality_gap.max()
        name = getattr(kernel, "full_name", kernel)
        return [
            f"kernel: {name}, {self.kernel_size:,} landmarks and trends; relative duality gap {gap:.1e}",
            *self.notes,
        ]

    def predict(self, X: Array, levels: Array) -> Array:
        """Quantiles of the rows of X, shape (n, q), at ascending levels (q,)."""
        raw, weight = self.calibration(levels), self.shares.get("forest", 0.0)
        scores = np.broadcast_to(ndtri(raw), (len(X), len(levels)))
        if self.residual_forest is not None:
            local = self.residual_forest.quantiles(X[:, self.free], raw)
            scores = blend(scores, local, self.shares["residual_forest"] / (1 - weight))
        curves = self.smooth.at(self.smooth.curves(X), scores)
        if self.forest is None:
            return curves
        values = blend(curves, self.forest.quantiles(X[:, self.seen], raw), weight)
        return np.maximum.accumulate(clip_to_bounds(self.smooth.model, values), axis=1)


def blend(one: Array, other: Array, share: float) -> Array:
    """The first moved towards the second; monotone in both, rounding included."""
    return (1 - share) * one + share * other


def fit_shaped_parts(rows: ArrayRows, groups: Index | None, settings: PartSettings, shapes: Shapes) -> ShapedParts:
    """Fit the kernel with its shapes, the forest of levels, their weights and the calibration."""
    names, n_trees, rng = settings.names, settings.n_trees, settings.rng
    free = np.setdiff1d(np.arange(rows.X.shape[1]), shapes.columns)
    local = set(names) != {"kernel"} and len(free) > 0 and has_distinct_rows(rows.X, KERNEL.min_rows)
    enter_stage(KERNEL_STAGE)
    kernel = _make_kernel(shapes, settings.n_components, rng)
    if local:
        kernel = _choose_kernel(kernel, rows, groups, free, rng)
    model, (known, curves) = _fit_kernel(kernel, rows, groups, rng)
    notes = shapes.describe()
    if len(known) == 0:  # no time for any fold
        smooth = SmoothQuantiles(model, np.zeros_like(BELOW), np.zeros_like(ABOVE))
        return ShapedParts({"kernel": 1.0}, Calibration.identity(), smooth, free, notes)
    held_out = _HeldOut(rows, curves, known, model, rng)
    enter_stage(RESIDUAL_STAGE)
    share, weight, forest, ordered = 0.0, 0.0, None, None
    seen = np.setdiff1d(np.arange(rows.X.shape[1]), list(shapes.convex))
    labels = None if groups is None else np.unique(groups[known], return_inverse=True)[1]
    if local and "residual_forest" in names:
        _, share, forest = held_out.fit_forest(free, n_trees, labels, rng)
    enter_stage(FOREST_STAGE)
    if local and "forest" in names:
        weight, ordered = held_out.fit_ordered(forest, share, seen, shapes, n_trees, labels, rng)
    enter_stage(LAST_STAGE)
    found = (forest, share, ordered, weight)
    calibration = held_out.calibrate(*found, rng) if settings.calibrate else Calibration.identity()
    shares = {"kernel": (1 - weight) * (1 - share), "residual_forest": (1 - weight) * share, "forest": weight}
    kept = {name: float(one) for name, one in shares.items() if one > 0}
    local_cut, ordered_cut = (None if one is None else one.cut for one in (forest, ordered))
    return ShapedParts(kept, calibration, held_out.smooth, free, notes, local_cut, ordered_cut, seen)


def _make_kernel(shapes: Shapes, n_components: int | None, rng: np.random.Generator) -> KernelQuantileRegressor:
    """The unfitted smooth part."""
    mixed = len(set(shapes.convex.values())) > 1
    asked: dict[str, Any] = {"monotone": dict(shapes.monotone), "convex": dict(shapes.convex)}
    return KernelQuantileRegressor(
        list(OPTIONS.levels),
        **asked,
        lower=shapes.lower,
        upper=shapes.upper,
        noncrossing=("joint" if mixed else None) if shapes.convex else "rearrange",
        n_components=n_components or OPTIONS.n_components,
        sampling="landmarks",
        recalibrate=False,
        random_state=int(rng.integers(2**31)),
    )


def _choose_kernel(
    kernel: KernelQuantileRegressor, rows: ArrayRows, groups: Index | None, free: Index, rng: np.random.Generator
) -> KernelQuantileRegressor:
    """The unfitted kernel, a smooth one or, if that is better, with bandwidths and ridge weight learned from the rows.

    They are compared together with a forest, on some rows, and without shapes, which take much longer.
    """
    plain = clone(kernel).set_params(monotone=None, convex=None, lower=None, upper=None, noncrossing="rearrange")
    smoothing = {"bandwidth": "auto", "alpha": OPTIONS.alpha, "alpha_scale": "relative"}
    some = _draw_rows(len(rows.y), OPTIONS.pilot_rows, rng)
    pilot = ArrayRows(rows.X[some], rows.y[some], None if rows.weight is None else rows.weight[some])
    labels = None if groups is None else np.unique(groups[some], return_inverse=True)[1]
    with convergence_not_warned():
        learned = _fit_some(clone(plain), rows, _draw_rows(len(rows.y), OPTIONS.max_rows, rng))
    plain.set_params(n_components=min(int(kernel.n_components), OPTIONS.pilot_components))
    losses = []
    for one in (clone(plain).set_params(**smoothing), _fix(plain, learned)):
        own = np.random.default_rng(0)  # the same folds and bags
        known, curves = _predict_folds(one, pilot, labels, np.ones(pilot.n_rows, dtype=bool), own)
        if len(known) == 0:  # no time for any fold
            return clone(kernel).set_params(**smoothing)
        losses.append(_HeldOut(pilot, curves, known, one, own).fit_forest(free, OPTIONS.pilot_trees, labels, own)[0])
    if losses[0] <= (1 + OPTIONS.tolerated) * losses[1]:
        return clone(kernel).set_params(**smoothing)
    return _fix(kernel, learned)


def _fix(model: KernelQuantileRegressor, fitted: KernelQuantileRegressor) -> KernelQuantileRegressor:
    """The unfitted model with the kernel, bandwidths and ridge weight of a fitted one."""
    fixed = {"kernel": fitted.kernel_, "bandwidth": "auto", "alpha": fitted.alpha_, "alpha_scale": "absolute"}
    return clone(model).set_params(**fixed)


def _draw_rows(n_rows: int, most: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mask (n_rows,) of all rows, or of some of many."""
    some = np.zeros(n_rows, dtype=bool)
    some[rng.permutation(n_rows)[:most]] = True
    return some


def _fit_kernel(
    kernel: KernelQuantileRegressor, rows: ArrayRows, groups: Index | None, rng: np.random.Generator
) -> tuple[KernelQuantileRegressor, tuple[Index, Array]]:
    """The kernel fitted to the rows, or some of many, and `_predict_folds` of all rows."""
    used = _draw_rows(len(rows.y), OPTIONS.max_rows, rng)
    model = _fit_some(clone(kernel), rows, used)
    return model, _predict_folds(_fix(kernel, model), rows, groups, used, rng)


def _predict_folds(
    kernel: KernelQuantileRegressor,
    rows: ArrayRows,
    groups: Index | None,
    used: NDArray[np.bool_],
    rng: np.random.Generator,
) -> tuple[Index, Array]:
    """Curves (n, 5) at the rows of fits to `used` ones of other folds, and the rows for which there was the time.

    Other curves are NaN.
    """
    folds = draw_folds(len(rows.y), OPTIONS.folds, groups, rng)
    curves = np.full((len(rows.y), len(OPTIONS.levels)), np.nan)
    with convergence_not_warned():
        for fold in range(OPTIONS.folds):
            train, test = used & (folds != fold), folds == fold
            if stop_requested() or not train.any() or not test.any():
                continue
            model = _fit_some(clone(kernel), rows, train)
            if model.stopped_by_ is None:
                curves[test] = predict_curves(model, rows.X[test])
    return np.flatnonzero(np.isfinite(curves[:, 0])), curves


def _fit_some(model: KernelQuantileRegressor, rows: ArrayRows, some: NDArray[np.bool_]) -> KernelQuantileRegressor:
    return model.fit(rows.X[some], rows.y[some], None if rows.weight is None else rows.weight[some])


@dataclass(frozen=True, eq=False)
class _LocalForest:
    """A forest of scores or targets of some rows, at one leaf size, and which trees have seen these rows, (n, T)."""

    cut: QuantileForest
    seen: NDArray[np.bool_]
    inputs: Array  # (n, f)

    def quantiles(self, levels: Array, some: Index) -> Array:
        """Quantiles (m, q) of rows that are out of bag; NaN for those that all trees have seen."""
        return self.cut.quantiles(self.inputs[some], levels, self.seen[some])


class _HeldOut:
    """Rows with curves out of fold: what is beyond the outer curves, the forest, its weight and calibration."""

    def __init__(
        self, rows: ArrayRows, curves: Array, known: Index, model: KernelQuantileRegressor, rng: np.random.Generator
    ) -> None:
        self.X, self.y, self.weight, self.curves = rows.X[known], rows.y[known], rows.share()[known], curves[known]
        below = _measure_beyond(self.y, self.curves[:, 0], self.weight, model.lower, -1.0)
        above = _measure_beyond(self.y, self.curves[:, -1], self.weight, model.upper, 1.0)
        self.smooth = SmoothQuantiles(model, below, above)
        self.order = rng.permutation(len(known))

    def _quantiles(self, forest: _LocalForest | None, share: float, levels: Array, some: Index) -> tuple[Array, Index]:
        """Quantiles (m, q) of some rows, out of fold and out of bag, and their numbers, without those never in it."""
        scores = np.broadcast_to(ndtri(levels), (len(some), len(levels)))
        if forest is not None:
            local = forest.quantiles(levels, some)
            known = np.isfinite(local[:, 0])
            some, scores = some[known], blend(scores[known], local[known], share)
        return self.smooth.at(self.curves[some], scores), some

    def fit_forest(
        self, free: Index, n_trees: int, groups: Index | None, rng: np.random.Generator
    ) -> tuple[float, float, _LocalForest | None]:
        """The lowest held-out loss, the weight of the forest of scores, and this; None if it is best without."""
        pit = np.concatenate([
            randomized_pit(self.y[some], self._quantiles(None, 0.0, GRID, some)[0], rng)
            for some in np.array_split(np.arange(len(self.y)), -(-len(self.y) // PARTS_OPTIONS.held_out))
        ])  # fmt: skip
        scores = ndtri(np.clip(pit, GRID[0], GRID[-1]))
        inputs = self.X[:, free]
        forest = grow_forest(inputs, standardize(scores, self.weight), self.weight, n_trees, rng, groups)
        values, seen = SortedValues.from_values(scores, self.weight), forest.bags(len(self.y))
        cuts = [_LocalForest(forest.cut(size, values), seen, inputs) for size in PARTS_OPTIONS.leaves]
        losses = [self._weigh(cut, PARTS_OPTIONS.leaf_held_out)[0] for cut in cuts]
        chosen = cuts[int(np.argmin(losses))]
        loss, share = self._weigh(chosen, PARTS_OPTIONS.held_out)
        return loss, share, chosen if share > 0 else None

    def _weigh(self, forest: _LocalForest, n_rows: int) -> tuple[float, float]:
        """The lowest loss of some rows over the weights of a forest, and the weight."""
        levels, some = np.array(STACKING.levels), self.order[:n_rows]
        local = forest.quantiles(levels, some)
        known = np.isfinite(local[:, 0])
        if not known.any():
            return np.inf, 0.0
        some, local = some[known], local[known]
        shares = np.arange(STACKING.steps + 1) / STACKING.steps
        curves, y, weight = self.curves[some], self.y[some], self.weight[some]
        losses = [
            mean_pinball(y, self.smooth.at(curves, blend(ndtri(levels), local, share)), levels, weight)
            for share in shares.tolist()
        ]
        return min(losses), float(shares[int(np.argmin(losses))])

    def fit_ordered(
        self,
        forest: _LocalForest | None,
        share: float,
        columns: Index,
        shapes: Shapes,
        n_trees: int,
        groups: Index | None,
        rng: np.random.Generator,
    ) -> tuple[float, _LocalForest | None]:
        """The weight of an ordered forest of y beside the kernel with the forest of scores, and this forest."""
        signs, inputs = np.array([shapes.monotone.get(j, 0) for j in columns.tolist()]), self.X[:, columns]
        grown = grow_forest(inputs, standardize(self.y, self.weight), self.weight, n_trees, rng, groups, signs)
        values, seen = SortedValues.from_values(self.y, self.weight), grown.bags(len(self.y))
        cuts = [_LocalForest(grown.cut(size, values), seen, inputs) for size in PARTS_OPTIONS.leaves]
        losses = [min(self._weigh_ordered(forest, share, cut, PARTS_OPTIONS.leaf_held_out)) for cut in cuts]
        chosen = cuts[int(np.argmin(losses))]
        place = int(np.argmin(self._weigh_ordered(forest, share, chosen, PARTS_OPTIONS.held_out)))
        return place / STACKING.steps, chosen if place > 0 else None

    def _weigh_ordered(
        self, forest: _LocalForest | None, share: float, ordered: _LocalForest, n_rows: int
    ) -> list[float]:
        """Loss of some rows at the weights 0, 1 / steps, ... of an ordered forest, without 1: there is a kernel."""
        levels = np.array(STACKING.levels)
        curves, some = self._quantiles(forest, share, levels, self.order[:n_rows])
        values = ordered.quantiles(levels, some)
        known = np.isfinite(values[:, 0])
        if not known.any():
            return [np.inf]
        some, curves, values = some[known], curves[known], values[known]
        return [
            mean_pinball(self.y[some], blend(curves, values, k / STACKING.steps), levels, self.weight[some])
            for k in range(STACKING.steps)
        ]

    def calibrate(
        self,
        forest: _LocalForest | None,
        share: float,
        ordered: _LocalForest | None,
        weight: float,
        rng: np.random.Generator,
    ) -> Calibration:
        """Calibration of the levels by held-out rows."""
        curves, some = self._quantiles(forest, share, GRID, self.order[: PARTS_OPTIONS.held_out])
        if ordered is not None:
            values = ordered.quantiles(GRID, some)
            known = np.isfinite(values[:, 0])
            curves, some = blend(curves[known], values[known], weight), some[known]
        if len(some) == 0:
            return Calibration.identity()
        return Calibration.from_pit(randomized_pit(self.y[some], curves, rng), self.weight[some])


def _measure_beyond(y: Array, outer: Array, weight: Array, bound: float | None, sign: float) -> Array:
    """How far (k,) targets are beyond an outer curve, at the levels of `BELOW` or `ABOVE`, as `SmoothQuantiles` has it.

    Quantiles of the distances of the rows beyond it, so that it does not matter how many these are.
    """
    scores, level = (BELOW, OPTIONS.levels[0]) if sign < 0 else (ABOVE, 1 - OPTIONS.levels[-1])
    distance = sign * (y - outer)
    beyond = distance > 0
    if not beyond.any():
        return np.zeros_like(scores)
    size = distance[beyond] if bound is None else distance[beyond] / (sign * (bound - outer[beyond]))
    share = 1 - np.minimum(ndtr(-np.abs(scores)) / level, 1.0)  # of the rows beyond the curve that are nearer
    found = weighted_quantiles(np.minimum(size, 1.0) if bound is not None else size, weight[beyond], share)
    return np.where(share > 1e-9, found, 0.0)


def estimate_shaped_stages(n_rows: int, n_columns: int, names: Sequence[str]) -> dict[str, float]:
    """Stages of a fit with shapes, and the seconds each is expected to take."""
    _, forests, last = estimate_tabular_stages(n_rows, n_columns)
    kernel = estimate_shaped_seconds(min(n_rows, OPTIONS.max_rows))
    wanted = {RESIDUAL_STAGE: "residual_forest", FOREST_STAGE: "forest"}
    grown = {stage: forests / 2 if name in names else 0.0 for stage, name in wanted.items()}
    return {KERNEL_STAGE: kernel, **grown, LAST_STAGE: last}


def describe_violation(parts: ShapedParts, shapes: Shapes, X: Array) -> dict[str, float]:
    """The largest violation of every shape by the quantiles at the kernel's levels, elsewhere, in units of y."""
    levels = np.array(OPTIONS.levels)

    def curves(rows: Array) -> Array:
        return parts.predict(rows, levels)

    return measure_violation(shapes, X, curves)
