"""The parts of `TabularQuantileRegressor`: quantile functions from a kernel and from forests, fitted and combined.

- "kernel":           m(x) + s(x) Q(tau),           Q the quantiles of all standardised out-of-fold residuals z;
- "residual_forest":  m(x) + s(x) Q(tau | x, m, s), Q those of z under the weights of a forest grown on z;
- "forest":           Q(tau | x),                   those of y under the weights of a forest grown on y.

Averages of quantile functions (Vincent 1912) with weights >= 0 never cross, and neither do levels that are mapped
monotonely: the combination  Q(tau | x) = sum_k w_k Q_k(g(tau) | x)  is a quantile function by construction.

Leaf sizes, the weights of the parts and the calibration of levels are chosen on rows that were held out: out of fold
for the kernel, out of bag for the forests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from quernel.data import ArrayRows
from quernel.estimators.forest_weights import Forest, QuantileForest, SortedValues, grow_forest
from quernel.estimators.levels import QuantileFunction
from quernel.estimators.location_scale import OPTIONS as KERNEL
from quernel.estimators.location_scale import AllRows, LocationScale, fit_location_scale
from quernel.estimators.tail_fit import fit_tails
from quernel.estimators.tails import OPTIONS as TAILS
from quernel.estimators.tails import ParetoTail, TailLevels
from quernel.kernels import resolve
from quernel.losses import weighted_quantiles
from quernel.solvers.progress import enter_stage
from quernel.tuning.cost import estimate_tabular_stages
from quernel.tuning.data_summary import DataSummary
from quernel.tuning.leave_one_out import winsorize

Array = NDArray[np.floating]
Tails = tuple[ParetoTail | None, ParetoTail | None]

# Levels at which distribution functions are tabulated, and between which samples are interpolated.
GRID = np.r_[0.0005, 0.002, 0.005, np.arange(1, 100) / 100, 0.995, 0.998, 0.9995]


@dataclass(frozen=True)
class StackingOptions:
    """Constants of weights and calibration."""

    levels: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)  # whose mean pinball loss the weights minimise
    steps: int = 20  # weights are multiples of 1 / steps
    knots: tuple[float, ...] = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)  # levels that are calibrated
    prior_rows: float = 30.0  # calibration is shrunk towards none, as if so many more rows had shown no need of it


STACKING = StackingOptions()


def mean_pinball(y: Array, curves: Array, levels: Array, weight: Array) -> float:
    """Mean pinball loss over rows (weighted) and levels; curves (n, q)."""
    residual = y[:, None] - curves
    return float(weight @ np.maximum(levels * residual, (levels - 1) * residual).mean(axis=1) / weight.sum())


def choose_weights(y: Array, curves: list[Array], weight: Array) -> Array:
    """Weights (k,) >= 0 of sum 1 that minimise the loss of  sum_k w_k curves_k,  each (n, q) at `STACKING.levels`.

    All multiples of 1 / steps are tried: the loss is piecewise linear, three parts are few, and ties go to the first.
    """
    levels, steps = np.array(STACKING.levels), STACKING.steps
    shares = [np.array(one) / steps for one in product(range(steps + 1), repeat=len(curves)) if sum(one) == steps]
    losses = [mean_pinball(y, np.tensordot(share, curves, axes=1), levels, weight) for share in shares]
    return shares[int(np.argmin(losses))]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Monotone map g of levels: linear between knots in normal scores, and beyond them by the outer shifts."""

    nominal: Array  # normal scores, ascending
    actual: Array  # normal scores of the levels to ask for, ascending

    @classmethod
    def identity(cls) -> Calibration:
        """The map that changes nothing."""
        return cls(np.array([0.0]), np.array([0.0]))

    @classmethod
    def from_pit(cls, pit: Array, weight: Array) -> Calibration:
        """g(tau) = quantile of the PIT values P(Y <= y_i | x_i) at tau: the level that holds the share tau of rows."""
        knots = np.array(STACKING.knots)
        # Knots with fewer than five rows beyond them would be noise.
        n = weight.sum() ** 2 / (weight @ weight)
        knots = knots[np.minimum(knots, 1 - knots) * n >= 5]
        if len(knots) == 0:
            return cls.identity()
        found = np.clip(weighted_quantiles(pit, weight, knots), GRID[0], GRID[-1])
        nominal, trust = ndtri(knots), n / (n + STACKING.prior_rows)
        return cls(nominal, np.maximum.accumulate(nominal + trust * (ndtri(found) - nominal)))

    def __call__(self, levels: Array) -> Array:
        """Levels to ask the parts for, within the grid, (q,) as given."""
        score = ndtri(levels)
        inside = np.interp(score, self.nominal, self.actual)
        beyond = np.minimum(score - self.nominal[0], 0) + np.maximum(score - self.nominal[-1], 0)
        return np.clip(ndtr(inside + beyond), GRID[0], GRID[-1])


def randomized_pit(y: Array, curves: Array, rng: np.random.Generator) -> Array:
    """P(Y < y) + U P(Y = y) of each row (n,), from quantiles (n, len(GRID)): uniform if the quantiles are right."""
    function = QuantileFunction(GRID, curves)
    below, up_to = function.cdf(np.nextafter(y, -np.inf)), function.cdf(y)
    return below + rng.random(len(y)) * (up_to - below)


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

    held_out: int = 4000  # rows that choose weights and calibration, at most
    leaf_held_out: int = 1500  # those of them that choose leaf sizes
    leaves: tuple[int, ...] = (1, 2, 5, 15, 50)  # leaf sizes among which the held-out loss chooses
    tail_tol: float = 1e-6  # relative duality gap of the scale of the tails
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

    @property
    def kernel_size(self) -> int | None:
        """Number of landmarks of the kernel, None without one."""
        return None if self.location_scale is None else len(self.location_scale.coef)

    @property
    def duality_gap(self) -> Array | None:
        """Relative duality gaps of the kernel, (2,), None without one."""
        return None if self.location_scale is None else self.location_scale.duality_gap

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


@dataclass(frozen=True, eq=False)
class PartSettings:
    """Parameters of a `TabularQuantileRegressor` on which its parts depend; `n_components` is None for "auto"."""

    names: Sequence[str]
    n_trees: int
    n_components: int | None
    calibrate: bool
    rng: np.random.Generator


def fit_parts(
    rows: ArrayRows,
    groups: Index | None,
    settings: PartSettings,
    *,
    everything: AllRows | None = None,
    tail_levels: TailLevels | None = None,
) -> tuple[Parts, Tails]:
    """Fit the parts of these names, weigh them and calibrate their levels; then their tails, if any.

    The rows may be a sample of `everything`.
    """
    names, n_trees, rng = settings.names, settings.n_trees, settings.rng
    weight = rows.share()
    draft, smooth, grown = Parts({}, Calibration.identity()), None, {}
    if any(name != "forest" for name in names) and has_distinct_rows(rows.X, KERNEL.min_rows):
        enter_stage(KERNEL_STAGE)
        location_scale, (m, s), columns = fit_location_scale(
            DataSummary(rows), settings.n_components, groups, rng, everything
        )
        z = np.clip((rows.y - m) / s, -OPTIONS.z_limit, OPTIONS.z_limit)
        draft = replace(draft, location_scale=location_scale, residuals=SortedValues.from_values(z, weight))
        smooth = np.array([m, s, *columns])
    # With too few different rows for a kernel there is always a forest.
    fitted = [name for name in PARTS if name in names and (smooth is not None or name == "forest")] or ["forest"]
    if "residual_forest" in fitted and smooth is not None:
        enter_stage(RESIDUAL_STAGE)
        inputs = np.column_stack([rows.X, *smooth[2:]])
        grown["residual_forest"] = grow_forest(inputs, standardize(z, weight), weight, n_trees, rng, groups)
    if "forest" in fitted:
        enter_stage(FOREST_STAGE)
        grown["forest"] = grow_forest(rows.X, standardize(rows.y, weight), weight, n_trees, rng, groups)
    enter_stage(LAST_STAGE)
    held_out = _HeldOut(rows, smooth, grown, rng)
    for name, forest in grown.items():
        values = SortedValues.from_values(rows.y, weight) if name == "forest" else draft.residuals
        assert values is not None
        draft = _choose_leaves(draft, held_out, name, forest, values)
    parts = _combine(draft, held_out, fitted, settings.calibrate, rng)
    if tail_levels is None:
        return parts, (None, None)
    return parts, _fit_tails(parts, _HeldOut(rows, smooth, grown, rng, TAILS.max_rows), tail_levels)


def _fit_tails(parts: Parts, held_out: _HeldOut, tail_levels: TailLevels) -> Tails:
    """Tails beyond the calibrated quantiles of the combination at held-out rows."""
    levels = np.array(sorted({0.5, *(level for level in tail_levels if level is not None)}))
    raw = parts.calibration(levels)
    curves = np.sum([share * held_out.quantiles(parts, name, raw) for name, share in parts.shares.items()], axis=0)
    known = np.isfinite(curves[:, 0])
    rows = ArrayRows(held_out.X[known], held_out.y[known], held_out.weight[known])
    smooth = parts.location_scale
    kernel = None if smooth is None else resolve(smooth.feature_map.kernel)
    return fit_tails(rows, levels, curves[known], tail_levels, kernel, OPTIONS.tail_tol)


def estimate_stages(n_rows: int, n_columns: int, names: Sequence[str]) -> dict[str, float]:
    """Stages of a fit of these parts to a table of this size, and the seconds each is expected to take."""
    kernel, forests, last = estimate_tabular_stages(n_rows, n_columns)
    wanted = {KERNEL_STAGE: set(names) != {"forest"}, RESIDUAL_STAGE: "residual_forest" in names}
    wanted |= {FOREST_STAGE: "forest" in names, LAST_STAGE: True}
    seconds = zip(wanted, (kernel, forests / 2, forests / 2, last), strict=True)
    return {stage: one if wanted[stage] else 0.0 for stage, one in seconds}


class _HeldOut:
    """Training rows on which parts are compared: out of fold m and s, and trees that have not seen a row."""

    def __init__(
        self,
        rows: ArrayRows,
        smooth: Array | None,
        grown: dict[str, Forest],
        rng: np.random.Generator,
        n_rows: int = OPTIONS.held_out,
    ) -> None:
        index = rng.permutation(len(rows.y))[:n_rows]
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
        levels, some = np.array(STACKING.levels), slice(OPTIONS.leaf_held_out)
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


def has_distinct_rows(X: Array, least: int) -> bool:
    """Whether X has at least so many distinct rows."""
    return len(np.unique(X[: 20 * least], axis=0)) >= least or len(np.unique(X, axis=0)) >= least


def standardize(values: Array, share: Array) -> Array:
    """Values without outliers, mean 0 and standard deviation 1, shape (n,): what trees are grown on.

    Rounded, so that rounding error, as from another unit of y, does not decide between equally good cuts.
    """
    kept = winsorize(values[:, None], share)[:, 0]
    kept = kept - share @ kept
    return np.round(kept / (float(np.sqrt(share @ kept**2)) or 1.0), 6)
