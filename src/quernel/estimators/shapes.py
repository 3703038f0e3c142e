"""Shapes of quantile curves: monotone or convex in a column, bounded; which constraints that takes, and what is left.

A curve is monotone or convex along lines: rows that differ in one column only. Where it is checked, and holds exactly:

- at every training row, between its own value of the column and the next lower and higher value of a *grid*;
- along the whole grid at some *anchor* rows, spread over the training rows.

Both are differences of curve values at given points, hence linear in the coefficients for every feature map, smooth or
not: first differences for monotone curves, distances from a chord for convex ones, values themselves for bounds.
`measure_violation` tells what is left between grid values and at rows that were no anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator

from quernel.estimators.inputs import FitData
from quernel.estimators.levels import rearrange
from quernel.estimators.solve import Solution, evaluate_outputs
from quernel.features import Nystroem, TrendFeatures
from quernel.features.landmarks import sample_by_rank
from quernel.kernels import Linear
from quernel.objective.problem import Centring
from quernel.tables import TableEncoder
from quernel.tables.columns import NumericColumn
from quernel.tuning.alpha import has_gram

Array = NDArray[np.floating]
Index = NDArray[np.intp]

PARAMETERS = ("monotone", "convex", "lower", "upper")


@dataclass(frozen=True)
class GridOptions:
    """Where shapes are checked, and what helps a kernel to have them."""

    n_values: int = 16  # grid values at quantiles of a column, and as many at equal distances
    n_anchors: int = 250  # rows at which the whole grid is checked
    n_bound_points: int = 20_000  # of the grids of all columns, where only bounds are asked for
    # Landmarks, at most, for functions of the columns without a shape; their kernel, products with trends included, has
    # this share of the kernel's trace. With a nugget rounding errors of predictions do not show in differences.
    n_others: int = 100
    share_of_others: float = 0.1
    nugget: float = 1e-6
    # Elsewhere: rows, half of them with columns of other rows, and values between two neighbours of the grid.
    n_measured: int = 200
    n_between: int = 3
    binding: float = 3e-4  # of the largest slack: constraints with less hold the fit when a row is left out
    held: float = 1e-10  # of the largest eigenvalue: directions with less are free
    max_stored: int = 500_000_000  # bytes for the features of points; more are computed again when they are needed


OPTIONS = GridOptions()


@dataclass(frozen=True, eq=False)
class Shapes:
    """What is asked of the curves, by position of the columns of the encoded rows.

    Attributes
    ----------
    monotone, convex : dict from positions to 1 (increasing, convex) or -1 (decreasing, concave)
    lower, upper : float or None
    names : dict from positions to how users call the column
    missing : dict from positions to those of a missing-value indicator
    """

    monotone: dict[int, int]
    convex: dict[int, int]
    lower: float | None
    upper: float | None
    names: dict[int, str]
    missing: dict[int, int]

    @property
    def columns(self) -> list[int]:
        """The columns along which curves are constrained."""
        return sorted({*self.monotone, *self.convex})

    def describe(self) -> tuple[str, ...]:
        """Sentences on what holds."""
        sentences = [f"{self.names[j]}: quantiles {MONOTONE[sign]} with it." for j, sign in self.monotone.items()]
        sentences += [f"{self.names[j]}: quantiles are {CONVEX[sign]} in it." for j, sign in self.convex.items()]
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            if bound is not None:
                sentences.append(f"The {name} bound of quantiles is {bound:g}.")
        if self.columns:
            sentences.append(
                "Shapes hold on the training rows and on a grid; shape_violation_ tells what is elsewhere."
            )
        return tuple(sentences)


MONOTONE = {1: "do not fall", -1: "do not rise"}
CONVEX = {1: "convex", -1: "concave"}


def has_shapes(model: BaseEstimator) -> bool:
    """Whether an estimator is given any shape."""
    signs = [sign for name in PARAMETERS[:2] for sign in (getattr(model, name, None) or {}).values()]
    return any(signs) or any(getattr(model, name, None) is not None for name in PARAMETERS[2:])


def check_shapes(model: BaseEstimator) -> None:
    """Raise ValueError if the parameters of shapes are not valid, or do not go with the others."""
    for name in ("monotone", "convex"):
        given = getattr(model, name, None)
        if given is None:
            continue
        if not isinstance(given, Mapping):
            raise ValueError(f'{name} must be a dict such as {{"mileage": -1}}, or None; got {given!r}.')
        for column, sign in given.items():
            if isinstance(column, bool) or not isinstance(column, str | Integral):
                raise ValueError(f"{name} must name columns, or give their positions; got {column!r}.")
            if isinstance(sign, bool) or not isinstance(sign, Real) or sign not in (-1, 0, 1):
                raise ValueError(f"{name}[{column!r}] must be 1, -1, or 0 for no constraint; got {sign!r}.")
    bounds = [getattr(model, name, None) for name in ("lower", "upper")]
    for name, bound in zip(("lower", "upper"), bounds, strict=True):
        if bound is not None and (
            isinstance(bound, bool) or not isinstance(bound, Real) or not np.isfinite(float(bound))
        ):
            raise ValueError(f"{name} must be a finite number or None; got {bound!r}.")
    low, high = bounds
    _check_combination(model)
    if low is not None and high is not None and not low < high:
        raise ValueError(f"lower must be below upper; got lower={low!r} and upper={high!r}.")


def _check_combination(model: BaseEstimator) -> None:
    """Raise ValueError if shapes do not go with the other parameters."""
    if not has_shapes(model):
        return
    what = f"Shapes ({', '.join(name for name in PARAMETERS if getattr(model, name, None) is not None)})"
    for name, able, remedy in (
        ("solver", ("newton",), "solver='newton'"),
        ("dtype", ("float64",), "dtype='float64'"),
        ("fit_intercept", (True,), "fit_intercept=True"),
    ):
        if getattr(model, name, able[0]) not in able:
            raise ValueError(f"{what} need {remedy}; got {name}={getattr(model, name)!r}.")
    if getattr(model, "tails", None) is not None:
        raise ValueError(
            f"{what} cannot be combined with tails={model.tails!r}: tails do not respect them. Leave tails at None."
        )
    if getattr(model, "inference", False):
        raise ValueError(
            f"{what} cannot be combined with inference=True: bands ignore constraints. Leave inference at False."
        )
    if model.n_components == "exact":
        raise ValueError(f"{what} are for features, not for n_components='exact'. Use sampling='landmarks' instead.")
    several = np.ndim(model.quantiles) and np.size(model.quantiles) > 1
    if model.convex and several and getattr(model, "noncrossing", None) == "rearrange":
        raise ValueError(
            "convex keeps its shape only if levels are not sorted. Use noncrossing='joint' with several levels (or "
            "None); got noncrossing='rearrange'."
        )


def read_shapes(model: BaseEstimator, data: FitData) -> tuple[FitData, Shapes | None]:
    """The data, with sentences on the shapes among their notes, and the shapes, None if there are none."""
    if not has_shapes(model):
        return data, None
    shapes = resolve_shapes(model, data)
    return replace(data, notes=(*data.notes, *shapes.describe())), shapes


def clip_to_bounds(model: BaseEstimator, curves: Array) -> Array:
    """Curves (n, q) within `lower` and `upper`: at new rows they may leave bounds that hold where they were checked."""
    lower, upper = getattr(model, "lower", None), getattr(model, "upper", None)
    return curves if lower is None and upper is None else np.clip(curves, lower, upper)


def describe_shapes(
    shapes: Shapes, X: Array, levels: Array, noncrossing: str | None, solution: Solution, own: dict[str, Any]
) -> dict[str, Any]:
    """The fitted attribute `shape_violation_`; `own` are the others of quantiles."""
    result, feature_map, shift = solution.result, solution.feature_map, own["level_shift_"]

    def curves(rows: Array) -> Array:
        values = evaluate_outputs(feature_map, result.coef, result.intercept, feature_map.n_components_, rows) + shift
        return values if noncrossing is None else rearrange(values, levels)

    return {"shape_violation_": measure_violation(shapes, X, curves)}


def resolve_shapes(model: BaseEstimator, data: FitData) -> Shapes:
    """The shapes of an estimator, whose columns are found in the data; ValueError where one cannot be constrained."""
    found: dict[str, dict[int, int]] = {}
    names: dict[int, str] = {}
    missing: dict[int, int] = {}
    for parameter in ("monotone", "convex"):
        found[parameter] = {}
        for key, sign in (getattr(model, parameter, None) or {}).items():
            position, flag = _find_column(parameter, key, data)
            if found[parameter].get(position, sign) != sign:
                raise ValueError(f"{parameter} asks for both directions in column {key!r}. Give one of them.")
            if sign:
                found[parameter][position] = int(sign)
                names[position] = f"Column {key!r}"
                if flag is not None:
                    missing[position] = flag
    given = (getattr(model, name, None) for name in PARAMETERS[2:])
    lower, upper = (None if bound is None else float(bound) for bound in given)
    _check_target(np.asarray(data.in_memory.y), lower, upper)
    return Shapes(found["monotone"], found["convex"], lower, upper, names, missing)


def _find_column(parameter: str, key: str | int, data: FitData) -> tuple[int, int | None]:
    """Position of a column in the encoded rows, and that of its missing-value indicator, if there is one."""
    names = None if data.names is None else list(data.names)
    n_columns = data.in_memory.X.shape[1] if data.encoder is None else data.encoder.n_features_in_
    if isinstance(key, str):
        if names is None:
            raise ValueError(f"{parameter} names the column {key!r}, but X has no names. Give positions, 0, 1, ...")
        if key not in names:
            raise ValueError(f"{parameter} names the column {key!r}, which X does not have. It has {names[:20]}.")
        place = names.index(key)
    else:
        place = int(key)
        if not 0 <= place < n_columns:
            raise ValueError(f"{parameter} has position {key!r}, but X has {n_columns} columns, from 0 on.")
    if data.encoder is None:
        return place, None
    return find_encoded_column(parameter, names[place] if names is not None else f"x{place}", data.encoder)


def find_encoded_column(parameter: str, name: str, encoder: TableEncoder) -> tuple[int, int | None]:
    """Position of a column among the encoded ones, and that of its missing-value indicator, if there is one.

    ValueError if it is no column of numbers, or none that is used.
    """
    if name in encoder.dropped_:
        raise ValueError(f"{parameter}: column {name!r} is left out of the fit, since it {encoder.dropped_[name]}.")
    if name not in encoder.inputs:
        raise ValueError(f"{parameter} names the column {name!r}, which is no input. Inputs are {encoder.inputs[:20]}.")
    column = encoder.columns_[encoder.inputs.index(name)]
    start = sum(len(before.names) for before in encoder.columns_[: encoder.inputs.index(name)])
    if not isinstance(column, NumericColumn) or column.cycles:
        what = "a time" if isinstance(column, NumericColumn) else "text"
        raise ValueError(
            f"{parameter}: column {name!r} is {what}, which is encoded by {len(column.names)} columns of numbers. Only "
            "columns of numbers have a shape; encode it as one number first."
        )
    return start, start + len(column.names) - 1 if column.flagged else None


def _check_target(y: Array, lower: float | None, upper: float | None) -> None:
    """Raise ValueError if targets are beyond the bounds: no constant curve would then be within them."""
    for name, bound, outside in (
        ("lower", lower, y < (-np.inf if lower is None else lower)),
        ("upper", upper, y > (np.inf if upper is None else upper)),
    ):
        if outside.any():
            worst = y[outside].min() if name == "lower" else y[outside].max()
            raise ValueError(
                f"y has {int(outside.sum())} values beyond {name}={bound:g}, such as {worst:g}. Leave these rows out, "
                "or move the bound."
            )


@dataclass(frozen=True, eq=False)
class ShapeConstraints:
    """R constraints  sum_p a_rp f(x_p) >= e_r  on curves f, at points x_p.

    Attributes
    ----------
    points : array of shape (P, d)
    combination : sparse matrix of shape (R, P), a
    target : array of shape (R,), e
    shapes : Shapes, whose trends are the last features
    feature_map : fitted transformer, None until it is known
    centring : Centring, the coordinates of coefficients and curves
    """

    points: Array
    combination: sparse.csr_matrix
    target: Array
    shapes: Shapes
    feature_map: Any = None
    centring: Centring = field(default_factory=Centring)
    _computed: dict[str, Any] = field(default_factory=dict, repr=False)  # shared with what `replace` makes of this

    @property
    def _constant(self) -> Array:
        """d = sum_p a_rp, which is 0, 1 or -1, (R,)."""
        return np.round(np.asarray(self.combination.sum(axis=1)).ravel())

    @property
    def _features(self) -> Array | None:
        """Features of the points (P, M), computed once for a map; None if they would take too much memory."""
        if self._computed.get("map") is not self.feature_map:
            size = 8 * len(self.points) * self.feature_map.n_components_
            features = self.feature_map.transform(self.points) if size <= OPTIONS.max_stored else None
            self._computed.update(map=self.feature_map, features=features)
        return self._computed["features"]

    def _curves(self, coef: Array, intercept: Array) -> Array:
        """Curves at the points, (P, q)."""
        coef, intercept = self.centring.restore(coef, intercept)
        if self._features is not None:
            return self._features @ coef + intercept
        return evaluate_outputs(self.feature_map, coef, intercept, self.feature_map.n_components_, self.points)

    def use(self, feature_map: Any) -> ShapeConstraints:
        """The constraints on curves of this feature map, to which functions that have the shapes are added.

        A trend of every constrained column has its shape strictly, everywhere; features of the other columns have it,
        too, and so have their products with trends, if the factor is not negative. Functions of a kernel that decays
        away from the rows have the shapes only where they are nearly constant: alone they are held back by constraints
        where there are no rows.
        """
        if columns := self.shapes.columns:
            monotone, convex = (
                [int(one.get(j, 0)) for j in columns] for one in (self.shapes.monotone, self.shapes.convex)
            )
            others, weight = self._choose_others(feature_map), np.sqrt(OPTIONS.share_of_others / (1 + len(columns)))
            feature_map = TrendFeatures(feature_map, columns, monotone, convex, others, float(weight)).fit(self.points)
        return replace(self, feature_map=feature_map)

    def _choose_others(self, feature_map: Any) -> Nystroem | None:
        """Landmarks of the feature map's kernel for the other columns; None if there are none, or it has no kernel.

        Functions of the other columns alone have every shape, without being held back by any constraint.
        """
        kernel, columns = getattr(feature_map, "kernel", None), self.shapes.columns
        if kernel is None or isinstance(kernel, Linear) or not has_gram(kernel):
            return None
        n_landmarks = min(feature_map.n_components_ // (1 + len(columns)), OPTIONS.n_others)
        if not n_landmarks or len(columns) == self.points.shape[1]:
            return None
        return Nystroem(kernel, n_landmarks, landmarks="distinct", nugget=OPTIONS.nugget)

    def slack(self, coef: Array, intercept: Array) -> Array:
        """a f - e, (R, q), in units of y."""
        return self.combination @ self._curves(coef, intercept) - self.target[:, None]

    def held_directions(self, fit: Solution) -> list[Array]:
        """Orthonormal bases (M, k) of the coefficients that binding differences hold, for each of q curves."""
        fitted, differences = replace(self, feature_map=fit.feature_map), np.flatnonzero(self._constant == 0)
        slack = fitted.slack(fit.result.coef, fit.result.intercept)[differences]
        binds = slack <= OPTIONS.binding * np.abs(slack).max(axis=0, initial=0.0)
        bases = []
        for one in binds.T:
            rows = fitted._combine(differences[one])
            square, basis = np.linalg.eigh(rows.T @ rows)
            bases.append(basis[:, square > OPTIONS.held * square[-1]])
        return bases

    def rows(self, index: Index) -> tuple[Array, Array]:
        """(C, d) of shape (c, M + 1), and e (c,); rows that are differences have length 1.

        Differences of neighbouring values may be tiny, and their multipliers then huge: of unit length all of them
        weigh the same in the augmented Lagrangian.
        """
        rows, constant = self._combine(index), self._constant[index]
        target = self.target[index] - constant * self.centring.target
        length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        scale = np.where((constant == 0) & (length > 0), 1 / np.maximum(length, 1e-300), 1.0)
        return np.column_stack([rows * scale[:, None], constant]), target * scale

    def _combine(self, index: Index) -> Array:
        """C of some constraints, (c, M), in the coordinates of the coefficients."""
        combination = self.combination[index]
        used = np.unique(combination.indices)
        features = self.feature_map.transform(self.points[used]) if self._features is None else self._features[used]
        return combination[:, used] @ self.centring.transform_features(features)

    def interior(self, constants: Array, scale: float) -> tuple[Array, Array]:
        """Curves with slack in all constraints, if features allow it: coef (M, q) and intercept (q,).

        Constants (q,), within the bounds, plus a multiple of the trends, in units of `scale`. Trends have every shape
        strictly, and with one multiple for all levels the curves are parallel, so that they do not cross.
        """
        coef = np.zeros(self.feature_map.n_components_)
        coef[len(coef) - len(self.shapes.columns) :] = 1.0
        values = self._curves(coef[:, None], np.zeros(1))[:, 0] - self.centring.target
        low, high = np.min(values, initial=0.0), np.max(values, initial=0.0)
        sides = [np.max(self.target[self._constant == side], initial=-np.inf) for side in (1, -1)]
        lower, upper = sides[0] - self.centring.target, -sides[1] - self.centring.target
        size = min(scale, (upper - lower) / 4)
        part = size / max(high - low, 1e-300) if high > low else 0.0
        middle = np.clip(constants, lower + size, upper - size)
        return np.outer(part * coef, np.ones(len(constants))), middle - part * (low + high) / 2


class _Builder:
    """Collects points, and constraints as sums over points."""

    def __init__(self, X: Array) -> None:
        self.points, self.n_points = [X], len(X)
        self.parts: list[tuple[list[Index], list[Array], Array]] = []

    def add_points(self, X: Array) -> Index:
        """Numbers of further points."""
        self.points.append(X)
        self.n_points += len(X)
        return np.arange(self.n_points - len(X), self.n_points)

    def add(self, points: list[Index], factors: Sequence[ArrayLike], target: float = 0.0) -> None:
        """Constraints  sum_t factors[t] f(points[t]) >= target,  one for every entry of the arrays (r,)."""
        sizes = [np.broadcast_to(np.asarray(factor, dtype=float), points[0].shape) for factor in factors]
        self.parts.append((points, sizes, np.full(len(points[0]), target)))

    def add_chords(self, low: Index, own: Index, high: Index, part: Array, sign: int) -> None:
        """Constraints  sign ((1 - part) f(low) + part f(high) - f(own)) >= 0:  the chord is above a convex curve.

        `part` is where `own` lies between `low` and `high`, at whatever distances.
        """
        self.add([low, high, own], [sign * (1 - part), sign * part, -sign])

    def build(self, shapes: Shapes) -> ShapeConstraints:
        """All constraints."""
        starts = np.cumsum([0, *(len(target) for _, _, target in self.parts)])
        rows = [
            np.arange(start, start + len(target))
            for start, (points, _, target) in zip(starts, self.parts, strict=False)
            for _ in points
        ]
        columns = [one for points, _, _ in self.parts for one in points]
        sizes = [one for _, factors, _ in self.parts for one in factors]
        shape = (int(starts[-1]), self.n_points)
        entries = (np.concatenate(sizes), (np.concatenate(rows), np.concatenate(columns)))
        matrix = sparse.csr_matrix(entries, shape=shape)
        points, target = np.concatenate(self.points), np.concatenate([one[2] for one in self.parts])
        return ShapeConstraints(points, matrix, target, shapes)


def build_constraints(shapes: Shapes, X: Array) -> ShapeConstraints:
    """The constraints on curves at these training rows (n, d) and on the grids."""
    X = np.asarray(X, dtype=float)
    builder, inside = _Builder(X), [np.arange(len(X))]
    anchors, _ = sample_by_rank(X, np.ones(len(X)), OPTIONS.n_anchors)
    for j in shapes.columns:
        grid, present = choose_grid(X[:, j]), _present(shapes, X, j)
        inside.append(_add_grid(builder, X[anchors[present[anchors]]], grid, j, shapes))
        _add_rows(builder, X, np.flatnonzero(present), grid, j, shapes)
    bounds = [bound for bound in ((1, shapes.lower), (-1, shapes.upper)) if bound[1] is not None]
    if bounds and not shapes.columns:
        for j in range(X.shape[1]):
            grid = choose_grid(X[:, j])
            some = anchors[: max(OPTIONS.n_bound_points // (len(grid) * X.shape[1]), 1)]
            inside.append(_add_grid(builder, X[some], grid, j, shapes))
    for sign, bound in bounds:
        assert bound is not None
        builder.add([np.concatenate(inside)], [sign], sign * bound)
    return builder.build(shapes)


def choose_grid(x: Array) -> Array:
    """Ascending values (g,) of a column: all if there are few, else at its quantiles and at equal distances."""
    values = np.unique(x)
    if len(values) <= 2 * OPTIONS.n_values:
        return values
    at_quantiles = np.quantile(x, np.linspace(0, 1, OPTIONS.n_values), method="nearest")
    # Values of the data: those next to equal distances. So the grid of -x or of 2 x is that of x.
    wanted = np.linspace(values[0], values[-1], OPTIONS.n_values)
    right = np.clip(np.searchsorted(values, wanted), 1, len(values) - 1)
    nearest = np.where(wanted - values[right - 1] < values[right] - wanted, values[right - 1], values[right])
    return np.unique(np.concatenate([at_quantiles, nearest]))


def _present(shapes: Shapes, X: Array, j: int) -> NDArray[np.bool_]:
    """Which rows have a value of column j, and not what stands for a missing one: that has no place on its axis."""
    return X[:, shapes.missing[j]] == 0 if j in shapes.missing else np.ones(len(X), dtype=bool)


def along_grid(rows: Array, grid: Array, j: int) -> Array:
    """Every row with every value of the grid in column j, (len(rows) * len(grid), d)."""
    points = np.repeat(rows, len(grid), axis=0)
    points[:, j] = np.tile(grid, len(rows))
    return points


def _add_grid(builder: _Builder, rows: Array, grid: Array, j: int, shapes: Shapes) -> Index:
    """Constrain neighbours on the grid of column j at these rows; returns the numbers of the points.

    A curve that does not fall from one grid value to the next does not fall between any two of them: g - 1 constraints
    stand for all pairs. Chords over two intervals do the same for convexity.
    """
    points = builder.add_points(along_grid(rows, grid, j))
    lines = points.reshape(len(rows), len(grid))
    if (sign := shapes.monotone.get(j)) is not None and len(grid) > 1:
        builder.add([lines[:, 1:].ravel(), lines[:, :-1].ravel()], [sign, -sign])
    if (bend := shapes.convex.get(j)) is not None and len(grid) > 2:
        part = np.tile((grid[1:-1] - grid[:-2]) / (grid[2:] - grid[:-2]), len(rows))
        low, own, high = lines[:, :-2].ravel(), lines[:, 1:-1].ravel(), lines[:, 2:].ravel()
        builder.add_chords(low, own, high, part, bend)
    return points


def _add_rows(builder: _Builder, X: Array, present: Index, grid: Array, j: int, shapes: Shapes) -> None:
    """Constrain training rows, by their numbers, with the next lower and higher grid values of column j.

    Two points per row rather than the whole grid, along which only anchors are checked: there may be many rows.
    """
    value = X[present, j]
    low, high = np.searchsorted(grid, value, side="left") - 1, np.searchsorted(grid, value, side="right")
    has_low, has_high = low >= 0, high < len(grid)
    sign, bend = shapes.monotone.get(j), shapes.convex.get(j)
    numbers = []
    for place, has in ((low, has_low), (high, has_high)):
        moved = X[present[has]].copy()
        moved[:, j] = grid[place[has]]
        number = np.full(len(present), -1)
        number[has] = builder.add_points(moved)
        numbers.append(number)
    if sign is not None:
        builder.add([present[has_low], numbers[0][has_low]], [sign, -sign])
        builder.add([numbers[1][has_high], present[has_high]], [sign, -sign])
    if bend is not None:
        both = has_low & has_high
        part = (value[both] - grid[low[both]]) / (grid[high[both]] - grid[low[both]])
        builder.add_chords(numbers[0][both], present[both], numbers[1][both], part, bend)


def measure_violation(shapes: Shapes, X: Array, curves: Callable[[Array], Array]) -> dict[str, float]:
    """The largest violation of every shape away from the grid and its anchors, in units of y; 0 if there is none.

    Of monotone curves it is the largest move in the wrong direction between any two values of the column; of convex
    ones the largest distance on the wrong side of a chord between neighbouring values; of bounds the largest excess.

    Parameters
    ----------
    X : array of shape (n, d), the training rows
    curves : function of rows (m, d) -> curves (m, q)
    """
    X = np.asarray(X, dtype=float)
    order = np.random.default_rng(0).permutation(len(X))[: OPTIONS.n_measured]
    rows = X[order].copy()
    half = len(rows) // 2
    for k in range(X.shape[1]):  # columns of other rows: off the beaten track
        rows[:half, k] = rows[np.random.default_rng(k + 1).permutation(half), k]
    found: dict[str, float] = {}
    values = [curves(rows)]
    for j in shapes.columns:
        grid = choose_grid(X[:, j])
        steps = np.linspace(0, 1, OPTIONS.n_between + 1)[:-1]
        fine = np.append((grid[:-1, None] + np.diff(grid)[:, None] * steps).ravel(), grid[-1])
        lines = curves(along_grid(rows[_present(shapes, rows, j)], fine, j))
        values.append(lines)
        lines = lines.reshape(-1, len(fine), lines.shape[1])
        if j in shapes.monotone:
            wrong = np.maximum.accumulate(shapes.monotone[j] * lines, axis=1) - shapes.monotone[j] * lines
            found[f"monotone in {shapes.names[j].lower()}"] = float(wrong.max(initial=0.0))
        if j in shapes.convex and len(fine) > 2:
            part = ((fine[1:-1] - fine[:-2]) / (fine[2:] - fine[:-2]))[:, None]
            above = lines[:, 1:-1] - (1 - part) * lines[:, :-2] - part * lines[:, 2:]
            found[f"convex in {shapes.names[j].lower()}"] = float((shapes.convex[j] * above).max(initial=0.0))
    everywhere = np.concatenate(values)
    if shapes.lower is not None:
        found["lower"] = float(np.max(shapes.lower - everywhere, initial=0.0))
    if shapes.upper is not None:
        found["upper"] = float(np.max(everywhere - shapes.upper, initial=0.0))
    return found
