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
from quernel.estimators.forest_weights import Forest, QuantileForest, SortedValues, grow_forest
from quernel.estimators.location_scale import OPTIONS as KERNEL
from quernel.estimators.location_scale import AllRows, LocationScale, fit_location_scale
from quernel.estimators.stacking import GRID, Calibration, choose_weights, mean_pinball, randomized_pit
from quernel.estimators.stacking import OPTIONS as STACKING
from quernel.solvers.progress import enter_stage
from quernel.tuning.cost import estimate_tabular_stages
from quernel.tuning.data_summary import DataSummary
from quernel.tuning.krr_pilot import winsorize

Array = NDArray[np.floating]
Index = NDArray[np.integer]

PARTS = ("kernel", "residual_forest", "forest")
# What is done, in this order; the names of stages that users see.
KERNEL_STAGE, RESIDUAL_STAGE, FOREST_STAGE, LAST_STAGE = (
    "fitting the kernel",
    "growing the forest of residuals",
    "growing the forest",
    "weighing the parts on held-out rows",
)


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
    forest : QuantileForest of y, or None
    location_scale : LocationScale or None
    residuals : SortedValues z = (y - m) / s, or None
    residual_forest : QuantileForest of z, or None
    """

    shares: dict[str, float]
    calibration: Calibration
    forest: QuantileForest | None = None
    location_scale: LocationScale | None = None
    residuals: SortedValues | None = None
    residual_forest: QuantileForest | None = None

    def keep(self, shares: dict[str, float]) -> Parts:
        """These weights, and only what the parts with a weight need."""
        smooth = bool(shares.keys() & {"kernel", "residual_forest"})
        return replace(
            self,
            shares=shares,
            forest=self.forest if "forest" in shares else None,
            location_scale=self.location_scale if smooth else None,
            residuals=self.residuals if "kernel" in shares else None,
            residual_forest=self.residual_forest if "residual_forest" in shares else None,
        )

    def predict(self, X: Array, levels: Array) -> Array:
        """Quantiles of the rows of X, shape (n, q), at ascending levels (q,)."""
        smooth = None if self.location_scale is None else np.array(self.location_scale.predict(X))
        raw, total = self.calibration(levels), np.zeros((len(X), len(levels)))
        for name, share in self.shares.items():
            total += share * self.quantiles(name, X, smooth, raw)
        return total

    def quantiles(
        self, name: str, X: Array, smooth: Array | None, levels: Array, skip: NDArray[np.bool_] | None = None
    ) -> Array:
        """Quantiles of one part, uncalibrated, (n, q); `skip` as in `QuantileForest`.

        `smooth` are m and s of the rows, (2, n), or with those that the forest of residuals is to see below, (4, n).
        """
        if name == "forest":
            assert self.forest is not None
            return self.forest.quantiles(X, levels, skip)
        assert smooth is not None
        m, s = smooth[:2]
        if name == "kernel":
            assert self.residuals is not None
            return m[:, None] + s[:, None] * self.residuals.quantiles(levels)
        assert self.residual_forest is not None
        return m[:, None] + s[:, None] * self.residual_forest.quantiles(
            np.column_stack([X, *smooth[-2:]]), levels, skip
        )


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
    draft, smooth, grown = Parts({}, Calibration.identity()), None, {}
    if any(name != "forest" for name in names) and _has_distinct_rows(rows.X, KERNEL.min_rows):
        enter_stage(KERNEL_STAGE)
        location_scale, (m, s), columns = fit_location_scale(DataSummary(rows), n_components, groups, rng, everything)
        z = np.clip((rows.y - m) / s, -OPTIONS.z_limit, OPTIONS.z_limit)
        draft = replace(draft, location_scale=location_scale, residuals=SortedValues.from_values(z, weight))
        smooth = np.array([m, s, *columns])
    # With too few different rows for a kernel there is always a forest.
    fitted = [name for name in PARTS if name in names and (smooth is not None or name == "forest")] or ["forest"]
    if "residual_forest" in fitted and smooth is not None:
        enter_stage(RESIDUAL_STAGE)
        inputs = np.column_stack([rows.X, *smooth[2:]])
        grown["residual_forest"] = grow_forest(inputs, _standardize(z, weight), weight, n_trees, rng, groups)
    if "forest" in fitted:
        enter_stage(FOREST_STAGE)
        grown["forest"] = grow_forest(rows.X, _standardize(rows.y, weight), weight, n_trees, rng, groups)
    enter_stage(LAST_STAGE)
    held_out = _HeldOut(rows, smooth, grown, rng)
    for name, forest in grown.items():
        values = SortedValues.from_values(rows.y, weight) if name == "forest" else draft.residuals
        assert values is not None
        draft = _choose_leaves(draft, held_out, name, forest, values)
    return _combine(draft, held_out, fitted, calibrate, rng)


def estimate_stages(n_rows: int, n_columns: int, names: Sequence[str]) -> dict[str, float]:
    """Stages of a fit of these parts to a table of this size, and the seconds each is expected to take."""
    kernel, forests, last = estimate_tabular_stages(n_rows, n_columns)
    wanted = {KERNEL_STAGE: set(names) != {"forest"}, RESIDUAL_STAGE: "residual_forest" in names}
    wanted |= {FOREST_STAGE: "forest" in names, LAST_STAGE: True}
    seconds = zip(wanted, (kernel, forests / 2, forests / 2, last), strict=True)
    return {stage: one if wanted[stage] else 0.0 for stage, one in seconds}


class _HeldOut:
    """Training rows on which parts are judged: out of fold m and s, and trees that have not seen a row."""

    def __init__(
        self, rows: ArrayRows, smooth: Array | None, grown: dict[str, Forest], rng: np.random.Generator
    ) -> None:
        index = rng.permutation(len(rows.y))[: OPTIONS.judged]
        self.X, self.y, self.weight = rows.X[index], rows.y[index], rows.share()[index]
        self.smooth = None if smooth is None else smooth[:, index]
        self.seen = {name: forest.bags(len(rows.y))[index] for name, forest in grown.items()}

    def quantiles(self, parts: Parts, name: str, levels: Array, rows: slice = slice(None)) -> Array:
        """Quantiles of a part for these rows, (m, q); NaN for rows that all trees have seen."""
        smooth = None if self.smooth is None else self.smooth[:, rows]
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
    """Choose weights, then the calibration; leave out what has no weight."""
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


def _choose_leaves(draft: Parts, held_out: _HeldOut, name: str, forest: Forest, values: SortedValues) -> Parts:
    """Parts with the forest of this name, whose leaf size is chosen.

    From the middle one in the direction in which the held-out loss falls.
    """
    sizes = OPTIONS.leaves
    middle = len(sizes) // 2

    def with_leaves(min_leaf: int) -> Parts:
        cut = forest.cut(min_leaf, values)
        return replace(draft, forest=cut) if name == "forest" else replace(draft, residual_forest=cut)

    chosen = with_leaves(sizes[middle])
    best = first = held_out.loss(chosen, name)
    for direction in (sizes[:middle][::-1], sizes[middle + 1 :]):
        for size in direction:
            trial = with_leaves(size)
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
