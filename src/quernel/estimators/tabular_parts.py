"""The parts of `TabularQuantileRegressor`: quantile functions from a kernel and from forests, fitted and judged.

- "kernel":           m(x) + s(x) Q(tau),           Q the quantiles of all standardised out-of-fold residuals z;
- "residual_forest":  m(x) + s(x) Q(tau | x, m, s), Q those of z under the weights of a forest grown on z;
- "forest":           Q(tau | x),                   those of y under the weights of a forest grown on y.

Leaf sizes, the weights of the parts and the calibration of levels are chosen on rows that were held out: out of fold
for the kernel, out of bag for the forests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quernel.data import ArrayRows
from quernel.estimators.forest_weights import Forest, SortedValues, grow_forest
from quernel.estimators.location_scale import OPTIONS as KERNEL
from quernel.estimators.location_scale import AllRows, LocationScale, fit_location_scale
from quernel.estimators.stacking import GRID, Calibration, choose_weights, mean_pinball, randomized_pit
from quernel.estimators.stacking import OPTIONS as STACKING
from quernel.solvers.progress import report_stage
from quernel.tuning.data_summary import DataSummary
from quernel.tuning.krr_pilot import winsorize

Array = NDArray[np.floating]
Index = NDArray[np.integer]
Smooth = tuple[Array, Array]

PARTS = ("kernel", "residual_forest", "forest")
# Shares of the time of a fit of 1,000 to 20,000 rows, after the kernel and after each of the forests.
STAGES = (0.7, 0.8, 0.87)


@dataclass(frozen=True)
class PartsOptions:
    """Constants of choosing between parts."""

    judged: int = 4000  # rows that choose weights and calibration, at most
    leaf_judged: int = 1500  # those of them that choose leaf sizes
    leaves: tuple[int, ...] = (1, 2, 5, 15, 50)  # leaf sizes among which the held-out loss chooses
    z_limit: float = 1e6  # |z| is clipped here: residuals of an exact fit, divided by a tiny scale


OPTIONS = PartsOptions()


@dataclass(frozen=True, eq=False)
class Parts:
    """Fitted parts with their weights; those of weight 0 are left out.

    Attributes
    ----------
    shares : dict from the names of the parts to weights that sum to 1
    calibration : Calibration of the levels
    targets : SortedValues of y, or None
    forest : Forest or None
    location_scale : LocationScale or None
    residuals : SortedValues of z = (y - m) / s, or None
    residual_forest : Forest or None
    """

    shares: dict[str, float]
    calibration: Calibration
    targets: SortedValues | None = None
    forest: Forest | None = None
    location_scale: LocationScale | None = None
    residuals: SortedValues | None = None
    residual_forest: Forest | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless forests and values are of the same rows."""
        for forest, values in ((self.forest, self.targets), (self.residual_forest, self.residuals)):
            if forest is not None and (values is None or forest.order.max() >= len(values.rank)):
                raise ValueError("a forest and the values of its rows do not fit together")

    def with_leaves(self, name: str, min_leaf: int) -> Parts:
        """The same parts with leaves of this size in one of the forests."""
        if name == "forest" and self.forest is not None:
            return replace(self, forest=self.forest.with_leaves(min_leaf))
        assert self.residual_forest is not None
        return replace(self, residual_forest=self.residual_forest.with_leaves(min_leaf))

    def keep(self, shares: dict[str, float]) -> Parts:
        """These weights, and only what the parts with a weight need."""
        smooth = bool(shares.keys() & {"kernel", "residual_forest"})
        return replace(
            self,
            shares=shares,
            targets=self.targets if "forest" in shares else None,
            forest=self.forest.prune() if "forest" in shares and self.forest is not None else None,
            location_scale=self.location_scale if smooth else None,
            residuals=self.residuals if smooth else None,
            residual_forest=(
                self.residual_forest.prune()
                if "residual_forest" in shares and self.residual_forest is not None
                else None
            ),
        )

    def predict(self, X: Array, levels: Array) -> Array:
        """Quantiles of the rows of X, shape (n, q), at ascending levels (q,)."""
        smooth = None if self.location_scale is None else self.location_scale.predict(X)
        raw, total = self.calibration(levels), np.zeros((len(X), len(levels)))
        for name, share in self.shares.items():
            total += share * self.quantiles(name, X, smooth, raw)
        return total

    def quantiles(
        self, name: str, X: Array, smooth: Smooth | None, levels: Array, skip: NDArray[np.bool_] | None = None
    ) -> Array:
        """Quantiles of one part, uncalibrated, (n, q); `smooth` are m and s of the rows, `skip` as in `Forest`."""
        if name == "forest":
            assert self.forest is not None
            assert self.targets is not None
            return self.forest.quantiles(X, self.targets, levels, skip)
        assert smooth is not None
        assert self.residuals is not None
        m, s = smooth
        if name == "kernel":
            return m[:, None] + s[:, None] * self.residuals.quantiles(levels)
        assert self.residual_forest is not None
        inputs = np.column_stack([X, m, s])
        return m[:, None] + s[:, None] * self.residual_forest.quantiles(inputs, self.residuals, levels, skip)


def fit_parts(
    rows: ArrayRows,
    groups: Index | None,
    names: Sequence[str],
    *,
    n_trees: int,
    n_components: int | None,
    calibrate: bool,
    rng: np.random.Generator,
    everything: AllRows | None = None,
) -> Parts:
    """Fit the parts of these names, weigh them and calibrate their levels; the rows may be a sample of `everything`."""
    weight = rows.share()
    draft = Parts({}, Calibration.identity(), targets=SortedValues.from_values(rows.y, weight))
    smooth = None
    if any(name != "forest" for name in names) and _has_distinct_rows(rows.X, KERNEL.min_rows):
        report_stage("fitting the kernel", 0.0)
        location_scale, m, s = fit_location_scale(DataSummary(rows), n_components, groups, rng, everything)
        z = np.clip((rows.y - m) / s, -OPTIONS.z_limit, OPTIONS.z_limit)
        draft = replace(draft, location_scale=location_scale, residuals=SortedValues.from_values(z, weight))
        smooth = m, s
    # With too few different rows for a kernel there is always a forest.
    fitted = [name for name in PARTS if name in names and (smooth is not None or name == "forest")] or ["forest"]
    if "residual_forest" in fitted and smooth is not None:
        report_stage("growing the forest of residuals", STAGES[0])
        inputs = np.column_stack([rows.X, *smooth])
        grown = grow_forest(inputs, _standardize(z, weight), weight, n_trees, rng, groups)
        draft = replace(draft, residual_forest=grown)
    if "forest" in fitted:
        report_stage("growing the forest", STAGES[1])
        draft = replace(draft, forest=grow_forest(rows.X, _standardize(rows.y, weight), weight, n_trees, rng, groups))
    report_stage("weighing the parts on held-out rows", STAGES[2])
    return _combine(draft, _HeldOut(rows, smooth, draft, rng), fitted, calibrate, rng)


class _HeldOut:
    """Training rows on which parts are judged: out of fold m and s, and trees that have not seen a row."""

    def __init__(self, rows: ArrayRows, smooth: Smooth | None, draft: Parts, rng: np.random.Generator) -> None:
        index = rng.permutation(len(rows.y))[: OPTIONS.judged]
        self.X, self.y, self.weight = rows.X[index], rows.y[index], rows.share()[index]
        self.smooth = None if smooth is None else (smooth[0][index], smooth[1][index])
        forests = {"forest": draft.forest, "residual_forest": draft.residual_forest}
        self.seen = {name: one.bags(len(rows.y))[index] for name, one in forests.items() if one is not None}

    def quantiles(self, parts: Parts, name: str, levels: Array, rows: slice = slice(None)) -> Array:
        """Quantiles of a part for these rows, (m, q); NaN for rows that all trees have seen."""
        smooth = None if self.smooth is None else (self.smooth[0][rows], self.smooth[1][rows])
        skip = self.seen[name][rows] if name in self.seen else None
        return parts.quantiles(name, self.X[rows], smooth, levels, skip)

    def loss(self, parts: Parts, name: str) -> float:
        """Mean pinball loss of one part, on some of the rows."""
        levels, some = np.array(STACKING.levels), slice(OPTIONS.leaf_judged)
        curves = self.quantiles(parts, name, levels, some)
        known = np.isfinite(curves[:, 0])
        if not known.any():
            return np.inf
        return mean_pinball(self.y[some][known], curves[known], levels, self.weight[some][known])


def _combine(draft: Parts, held_out: _HeldOut, names: list[str], calibrate: bool, rng: np.random.Generator) -> Parts:
    """Choose leaf sizes, then weights, then the calibration; leave out what has no weight."""
    for name in names:
        if name != "kernel":
            draft = _choose_leaves(draft, held_out, name)
    curves = [held_out.quantiles(draft, name, GRID) for name in names]
    known = np.all([np.isfinite(one[:, 0]) for one in curves], axis=0)
    shares = np.full(len(names), 1 / len(names))
    if known.any():
        y, weight, curves = held_out.y[known], held_out.weight[known], [one[known] for one in curves]
        at = np.searchsorted(GRID, np.array(STACKING.levels) - 1e-9)
        shares = choose_weights(y, [one[:, at] for one in curves], weight)
        if calibrate:
            pit = randomized_pit(y, np.tensordot(shares, curves, axes=1), rng)
            draft = replace(draft, calibration=Calibration.from_pit(pit, weight))
    return draft.keep({name: float(share) for name, share in zip(names, shares, strict=True) if share > 0})


def _choose_leaves(draft: Parts, held_out: _HeldOut, name: str) -> Parts:
    """The leaf size of a forest, from the middle one in the direction in which the held-out loss falls."""
    sizes = OPTIONS.leaves
    middle = len(sizes) // 2
    chosen = draft.with_leaves(name, sizes[middle])
    best = first = held_out.loss(chosen, name)
    for direction in (sizes[:middle][::-1], sizes[middle + 1 :]):
        for size in direction:
            trial = draft.with_leaves(name, size)
            loss = held_out.loss(trial, name)
            if loss >= best:
                break
            chosen, best = trial, loss
        if best < first:
            break
    return chosen


def _has_distinct_rows(X: Array, least: int) -> bool:
    """Whether X has at least so many distinct rows."""
    return len(np.unique(X[: 20 * least], axis=0)) >= least or len(np.unique(X, axis=0)) >= least


def _standardize(values: Array, share: Array) -> Array:
    """Values without outliers, mean 0 and standard deviation 1, shape (n,): what trees are grown on.

    Rounded, so that rounding error, as from another unit of y, does not decide between equally good cuts.
    """
    kept = winsorize(values[:, None], share)[:, 0]
    kept = kept - share @ kept
    return np.round(kept / (float(np.sqrt(share @ kept**2)) or 1.0), 6)
