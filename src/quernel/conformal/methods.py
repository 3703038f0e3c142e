"""Conformal methods: how rows are divided, the conformity scores of calibration rows, and the interval they give.

`METHODS` is the registry. An entry says which rows train and which calibrate, and in which unit the distance of a
target from its interval is measured; the parameter `method`, model files and ONNX export follow it.

The conformity score of a calibration row is the signed distance of its target from the predicted interval
[low, high]: low - y below it, y - high above it, negative inside (conformalized quantile regression: Romano, Patterson
and Candes 2019). If the n calibration rows and a new row are exchangeable, the new row's score takes each of the n + 1
ranks with the same probability. So an interval that is widened by the score of rank ceil(level (n + 1)) contains the
new target with probability `level` or more, whatever the model is.

Two extensions are in here:

- weighted conformal prediction for covariate shift (Tibshirani, Barber, Candes and Ramdas 2019): ranks become
  cumulative sums of weights, with the new row's own weight in the total;
- CV+ (Barber, Candes, Ramdas and Tibshirani 2021): each score is added to the bound predicted by the model that did not
  see the row of that score, so that every new row has its own list of candidate bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, KFold, check_cv

from quernel.estimators.splits import drop_zero_weight

Array = NDArray[np.floating]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
# Rows that train one model, as positions or as a mask, and the positions of those that calibrate it.
Split = tuple[Index | Mask, Index]
# Unit of the conformity scores, from the lower and upper bounds of intervals.
Scale = Callable[[Any, Any], Any]

# Relative tolerance of ranks: 0.95 * 20 must be 19, and in floating point it may be a little more.
ROUNDING = 1e-12
# CV+ sorts a matrix of (new rows, calibration rows); new rows are batched so that it has at most so many entries.
MAX_ENTRIES = 2_000_000


@dataclass(frozen=True, eq=False)
class SplitRequest:
    """What a method may use to divide N rows, of which n have a positive weight.

    Parameters
    ----------
    X, y, groups : all N rows and their group labels, as splitters of scikit-learn take them
        None where there are none; X and y also for rows that are out of core.
    units : labels of repeated units of all N rows, or None
        Rows of a unit are never divided between training and calibration.
    positive : bool array of shape (N,)
        The n rows of positive weight. Splits are positions among these.
    calibration_size, time_ordered, cv : the parameters of the estimator
    max_calibration : int or None
        Most calibration rows that a share stands for.
    rng : Generator
    """

    X: Any
    y: Any
    groups: NDArray[Any] | None
    units: NDArray[Any] | None
    positive: Mask
    calibration_size: float
    time_ordered: bool
    cv: Any
    max_calibration: int | None
    rng: np.random.Generator

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight."""
        return int(self.positive.sum())


def use_all_rows(request: SplitRequest) -> list[Split]:
    """Return the split of a prefit model: all rows calibrate, none train."""
    return [(np.arange(0), np.arange(request.n_rows))]


def hold_out_rows(request: SplitRequest) -> list[Split]:
    """Return the split of split conformal: a random sample of the rows, or the last ones, calibrates; the others train.

    With groups the sample is stratified: every group gives the same share of its rows, rounded up.
    """
    n, size, rng = request.n_rows, request.calibration_size, request.rng
    n_wanted = int(size) if isinstance(size, Integral) else max(1, round(size * n))
    if request.max_calibration is not None and not isinstance(size, Integral):
        n_wanted = min(n_wanted, request.max_calibration)
    if n_wanted >= n:
        raise ValueError(
            f"calibration_size={size} of n_samples = {n} leaves no rows to fit the model on. "
            "Give more rows, or calibrate with fewer of them."
        )
    if request.time_ordered:
        rows = np.arange(n - n_wanted, n)
    elif request.units is not None:
        rows = _hold_out_units(request.units[request.positive], n_wanted, rng)
    elif request.groups is None:
        rows = np.sort(rng.choice(n, n_wanted, replace=False, shuffle=False))
    else:
        groups = request.groups[request.positive]
        strata = [np.flatnonzero(groups == label) for label in np.unique(groups)]
        rows = np.sort(np.concatenate([rng.permutation(one)[: -(-len(one) * n_wanted // n)] for one in strata]))
    train = np.ones(n, dtype=bool)  # a mask, because out of core there may be 100 million rows
    train[rows] = False
    return [(train, rows)]


def _hold_out_units(units: NDArray[Any], n_wanted: int, rng: np.random.Generator) -> Index:
    """Return the rows of random units, ascending: the fewest units that have so many rows, but not all of them."""
    counts, unit = np.unique(units, return_counts=True, return_inverse=True)[1:][::-1]
    if len(counts) < 2:
        raise ValueError("units has one label only, so that no other unit can calibrate it. Leave units out.")
    order = rng.permutation(len(counts))
    n_units = min(int(np.searchsorted(np.cumsum(counts[order]), n_wanted)) + 1, len(counts) - 1)
    return np.flatnonzero(np.isin(unit.ravel(), order[:n_units]))


def make_folds(request: SplitRequest) -> list[Split]:
    """Return the folds of CV+: each row calibrates exactly once, because it has one conformity score.

    An integer `cv` is a shuffled KFold of the rows of positive weight, or of their units. Splitters and iterables refer
    to all rows, with their units or groups if there are any; rows of weight 0 are dropped from the folds afterwards.
    """
    n, cv = request.n_rows, request.cv
    if isinstance(cv, int | np.integer):
        if not 2 <= cv <= n:
            raise ValueError(f"cv={cv} folds of n_samples = {n}: give at least 2, and no more than there are rows.")
        seed = int(request.rng.integers(2**31))
        if request.units is not None:
            units = request.units[request.positive]
            return list(GroupKFold(cv, shuffle=True, random_state=seed).split(units, groups=units))
        return list(KFold(cv, shuffle=True, random_state=seed).split(np.arange(n)))
    splitter, labels = check_cv(cv), request.groups if request.units is None else request.units
    pairs = drop_zero_weight(splitter.split(request.X, request.y, labels), request.positive)
    n_tests = np.bincount(np.concatenate([test for _, test in pairs]), minlength=n)
    if np.any(n_tests != 1):
        raise ValueError(
            f"method='cv+' needs folds that test every row once; with {splitter!r} {np.sum(n_tests != 1)} of {n} "
            "rows are tested never or more than once. For rows in time order use method='split' with "
            "time_ordered=True."
        )
    return [*pairs]


@dataclass(frozen=True)
class ConformalMethod:
    """A conformal method: how it divides the rows, and the unit of its conformity scores.

    Parameters
    ----------
    split : function of a SplitRequest
        Returns (training rows, calibration rows) for each model.
    models : {"none", "one", "several"}
        How many models are fitted. "none" calibrates the given model as it is, "several" needs the rows in memory;
        `time_ordered` and `checkpoint` are for "one".
    scale : function of the lower and upper bounds of intervals, or None
        Positive unit, of the shape of the bounds, by which the distances of targets from the interval are divided and
        corrections are multiplied, so that a correction is larger where the unit is. It must not know the target. None
        is a unit of 1: every interval is widened by the same length. ONNX export calls it with tensors, for which
        arithmetic is defined and NumPy's functions are not.
    """

    split: Callable[[SplitRequest], list[Split]]
    models: Literal["none", "one", "several"]
    scale: Scale | None = None


# The conformal methods, by the value of the parameter `method`. To add one, add its line here and describe it in the
# docstring of ConformalQuantileRegressor. Model files refer to methods by name.
METHODS: dict[str, ConformalMethod] = {
    "split": ConformalMethod(hold_out_rows, models="one"),
    "cv+": ConformalMethod(make_folds, models="several"),
    "prefit": ConformalMethod(use_all_rows, models="none"),
}


def interval_width(low: Array, high: Array) -> Array:
    """Unit of the scores of `Scores.per_width`; of a point the smallest one, so that it stays a point."""
    return np.maximum(high - low, np.finfo(float).tiny)


def score_level(coverage: float, symmetric: bool) -> float:
    """Return the level of the conformal quantile at each bound.

    Symmetric scores take both sides at once, so that all misses, 1 - coverage, are theirs. Otherwise each bound has a
    quantile of its own and half of the misses: level = 1 - (1 - coverage) / 2.
    """
    return coverage if symmetric else (1 + coverage) / 2


def min_calibration_rows(level: float) -> int:
    """Return the smallest n with  ceil(level (n + 1)) <= n;  with fewer only an infinite interval has the coverage."""
    return int(np.ceil(level / (1 - level) * (1 - ROUNDING)))


def conformal_quantile(score: Array, weight: Array, own: Array, level: float) -> Array:
    """Return the weighted conformal quantile of the scores, one for each new row, shape (m,).

    The smallest score s with  sum_{i: score_i <= s} weight_i  >=  level (sum_i weight_i + own);  infinite where there
    is none. With all weights 1 it is the score of rank ceil(level (n + 1)).

    Parameters
    ----------
    score, weight : arrays of shape (n,), of the calibration rows
    own : array of shape (m,), the weights of the new rows themselves
    level : float in (0, 1)
    """
    order = np.argsort(score, kind="stable")
    cumulative = np.cumsum(weight[order])
    ranks = np.searchsorted(cumulative, level * (cumulative[-1] + own) * (1 - ROUNDING))
    return np.append(score[order], np.inf)[ranks]


def uncross(low: Array, high: Array) -> Array:
    """Intervals (m, 2) of these bounds; those that have crossed become their midpoints."""
    crossed = low > high
    # Infinite bounds never cross; they are masked here because -inf + inf would warn.
    midpoint = (np.where(crossed, low, 0) + np.where(crossed, high, 0)) / 2
    return np.column_stack([np.where(crossed, midpoint, low), np.where(crossed, midpoint, high)])


@dataclass(frozen=True, eq=False)
class Scores:
    """Conformity scores of n calibration rows.

    Model files store these fields by name.

    Parameters
    ----------
    below, above : arrays of shape (n,)
        Signed distance of y below the lower and above the upper bound, in the unit of the method. Symmetric scores are
        the larger of the two, the same in both arrays: the interval is then widened by the same length at either end.
    model : int array of shape (n,)
        Index of the model that predicted the row, which is its fold for CV+ and 0 otherwise.
    weight : array of shape (n,)
        Density ratio of the row; 1 without covariate shift.
    width : array of shape (n,)
        Width of the interval that was predicted for the row.
    """

    below: Array
    above: Array
    model: Index
    weight: Array
    width: Array

    @classmethod
    def from_predictions(
        cls, bounds: Array, y: Array, model: Index, weight: Array, *, symmetric: bool, scale: Scale | None = None
    ) -> Scores:
        """Compute the scores of targets y (n,) against predicted intervals `bounds` (n, 2)."""
        low, high = bounds.T
        below, above = low - y, y - high
        if scale is not None:
            unit = scale(low, high)
            below, above = below / unit, above / unit
        if symmetric:
            below = above = np.maximum(below, above)
        return cls(below, above, model, weight, high - low)

    def take(self, rows: Index) -> Scores:
        """Select the scores of some of the rows."""
        return Scores(self.below[rows], self.above[rows], self.model[rows], self.weight[rows], self.width[rows])

    def per_width(self) -> Scores:
        """The scores in units of each row's own interval (Sesia and Candes 2020), for scores of unit 1.

        With them intervals of any other coverage are wider or narrower in proportion. No score is below
        -0.5, at which an interval shrinks to its middle. Where the interval is a point, that covers it, and no factor
        covers another target.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            below, above = (
                np.where(self.width > 0, one / self.width, np.where(one > 0, np.inf, -0.5))
                for one in (self.below, self.above)
            )
        return dataclasses.replace(self, below=below, above=above)

    def interval(self, bounds: Array, own: Array, level: float, scale: Scale | None = None) -> Array:
        """Calibrate predicted intervals.

        Scores may be negative, so that calibration may narrow an interval until its bounds cross. Such an interval
        becomes its midpoint, which cannot cover less than the empty set.

        Parameters
        ----------
        bounds : array of shape (K, m, 2), the intervals of m new rows by each of the K models
        own : array of shape (m,), the weights of the new rows
        level : float, as of `score_level`
        scale : that of the method by which the scores were computed

        Returns
        -------
        array of shape (m, 2)
        """
        low, high = bounds[:, :, 0], bounds[:, :, 1]
        unit = None if scale is None else scale(low, high)
        # The lower bound is the upper bound of the mirrored problem, -y.
        low = -self._calibrated_bound(-low, unit, self.below, own, level)
        high = self._calibrated_bound(high, unit, self.above, own, level)
        return uncross(low, high)

    def _calibrated_bound(self, bound: Array, unit: Array | None, score: Array, own: Array, level: float) -> Array:
        """Return the conformal quantile over i of  bound[k, j] + unit[k, j] score_i,  k = model_i, for each new row j.

        `bound` and `unit` have shape (K, m), the result (m,).
        """
        if len(bound) == 1:  # one model: its bound is a constant, and one quantile of the scores serves all new rows
            quantile = conformal_quantile(score, self.weight, own, level)
            return bound[0] + (quantile if unit is None else unit[0] * quantile)
        size = max(1, MAX_ENTRIES // len(score))
        found = []
        for batch in (slice(start, start + size) for start in range(0, bound.shape[1], size)):
            correction = score if unit is None else unit[self.model, batch].T * score
            found.append(self._quantile_per_row(bound[self.model, batch].T + correction, own[batch], level))
        return np.concatenate(found)

    def _quantile_per_row(self, values: Array, own: Array, level: float) -> Array:
        """`conformal_quantile` where every new row has scores of its own: values (m, n), result (m,)."""
        order = np.argsort(values, axis=1)
        cumulative = np.cumsum(self.weight[order], axis=1)
        goal = level * (cumulative[:, -1] + own) * (1 - ROUNDING)
        ranks = np.sum(cumulative < goal[:, None], axis=1)
        index = np.take_along_axis(order, np.minimum(ranks, values.shape[1] - 1)[:, None], axis=1)
        return np.where(ranks < values.shape[1], np.take_along_axis(values, index, axis=1)[:, 0], np.inf)


def nest_intervals(intervals: Array, coverages: list[float]) -> Array:
    """Widen intervals (n, 2, k) where one of a smaller coverage reaches beyond them."""
    nested, order = intervals.copy(), np.argsort(coverages, kind="stable")
    nested[:, 0, order] = np.minimum.accumulate(intervals[:, 0, order], axis=1)
    nested[:, 1, order] = np.maximum.accumulate(intervals[:, 1, order], axis=1)
    return nested


def refuse_few_rows(coverage: float, symmetric: bool, label: object, n_rows: int) -> None:
    """Raise if so many calibration rows, of a group unless its label is None, are too few for the coverage."""
    needed = min_calibration_rows(score_level(coverage, symmetric))
    if n_rows < needed:
        where = "" if label is None else f" of group {label!r}"
        each = "" if symmetric else " with each bound calibrated separately"
        raise ValueError(
            f"A coverage of {coverage:g}{each} needs at least {needed} calibration rows{where}; there are "
            f"{n_rows}. Give more rows, calibrate with more of them (calibration_size, or method='cv+'), "
            "or ask for less coverage."
        )


def check_calibration_size(size: object) -> None:
    """Raise unless `calibration_size` is "auto", a share of the rows in (0, 1), or a positive number of them."""
    is_auto = isinstance(size, str) and size == "auto"
    is_count = isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0
    is_share = isinstance(size, Real) and not isinstance(size, Integral) and 0 < float(size) < 1
    if not (is_auto or is_count or is_share):
        raise ValueError(
            f"calibration_size must be a share between 0 and 1 or a positive number of rows, or 'auto'; got {size!r}."
        )


def unknown_group(label: object, known: Iterable[object]) -> str:
    """The message for a new row of a group that no calibration row has."""
    names = ", ".join(map(repr, known))
    return f"Group {label!r} was not calibrated; known groups are {names}. Fit with rows of it."
