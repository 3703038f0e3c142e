"""tails="pareto": generalised Pareto laws of what exceeds an outer quantile curve, with a scale that depends on x.

Above a high threshold, exceedances of nearly any distribution follow a generalised Pareto law (Balkema and de Haan
1974, Pickands 1975). The threshold is the curve of a quantile level. Here are what users see of tails, their
parameters and methods; `tail_fit.py` estimates them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_choice, check_share
from quernel.estimators.levels import SAME, DistributionMixin, ParetoLaw, QuantileFunction
from quernel.estimators.prediction import blockwise, check_rows
from quernel.estimators.regressor import KernelRegressor

Array = NDArray[np.floating]
# Levels at which the lower and the upper tail begin, None for no tail on that side.
TailLevels = tuple[float | None, float | None]


@dataclass(frozen=True)
class TailOptions:
    """Constants of the tails."""

    min_exceedances: int = 50  # with fewer, shape and scale are guesses
    enough: int = 200  # a higher level than the one with so many exceedances leaves too few of them
    outer: float = 0.8  # levels from here on may be thresholds: below, the limit law is far
    folds: int = 4  # of the refits for exceedances, and of the comparison of scales
    max_rows: int = 10_000  # rows for out-of-fold exceedances, at most: their features are in memory
    tol: float = 1e-3  # relative duality gap of the fits on folds; that of the scale is the estimator's
    n_components: int = 200  # landmarks of the scale's kernel
    deviations: tuple[float, ...] = (0.2, 0.5, 1.2)  # prior standard deviations of the log scale that are tried
    advantage: float = 1.0  # held-out log-likelihood by which a less simple scale must be better
    prior: float = 0.25  # standard deviation of the shape around 0 by which its likelihood is penalised
    shapes: tuple[float, float] = (-0.8, 0.9)  # range of the shape: below 1 tails have a mean
    shape_step: float = 0.05  # grid of the shape's profile likelihood, which is interpolated
    confidence: float = 0.9  # of the interval of the shape: 5 % on either side
    root_shift: tuple[float, float, float] = (2.0, -5.0, 3.3)  # of the signed root, over sqrt(n): see `_fit_shape`
    scale_shift: float = 0.4  # of the signed root, too, where scales are estimates: their errors make shapes larger
    bounded: float = -0.2  # a tail is called bounded if its shape is surely below: a normal's, at usual levels, is not
    light: tuple[float, float] = (-0.35, 0.2)  # a tail is called light if its shape is surely in between
    smallest: float = 1e-9  # exceedances are at least this share of the largest
    smallest_spread: float = 0.02  # spreads are at least this share of their median
    max_tie_share: float = 0.1  # of exceedances with one value of y, beyond which their law is not continuous
    levels: tuple[float, ...] = (0.8, 0.9, 0.95)  # where tails may begin if any level can be predicted
    max_columns: int = 20  # principal components of the columns by which the shape may vary, in its test


OPTIONS = TailOptions()


@dataclass(frozen=True, eq=False)
class ParetoTail:
    """A fitted tail; print it.

    Attributes
    ----------
    level : float
        Level of the curve above which (or, of the lower tail, below which) the law holds.
    shape : float
        xi, the same at every x: positive for heavy tails, about 0 for exponential ones, negative for bounded ones.
    shape_interval : tuple of two floats
        90 % confidence interval of the shape, by its profile likelihood.
    shape_p_value : float
        Of the test that the shape is constant; small if it varies with x.
    n_exceedances : int
        Rows beyond the curve, out of fold.
    log_scale : float
        Constant part of the logarithm of the scale.
    inner_level : float or None
        The scale is in proportion to the distance between the curves of this level and of `level`; None if it is not.
    log_scale_model : KernelRegressor or None
        The part of the log scale that depends on x, with its certificate; None if there is none.
    """

    level: float
    shape: float
    shape_interval: tuple[float, float]
    shape_p_value: float
    n_exceedances: int
    log_scale: float
    inner_level: float | None = None
    smallest_spread: float = 0.0
    log_scale_model: KernelRegressor | None = None

    def __post_init__(self) -> None:
        if not (0 < self.level < 1 and -1 < self.shape < 1 and np.isfinite(self.log_scale)):
            raise ValueError(f"a tail has level {self.level}, shape {self.shape} and log scale {self.log_scale}")

    @property
    def kind(self) -> str:
        """ "heavy", "light", "bounded" or "undetermined", as the confidence interval of the shape says.

        Nominally 5 % of tails whose shape is 0 are called heavy, fewer of lighter ones, and 5 % of those whose shape is
        -0.2 bounded. Light are those whose interval is within -0.35 and 0.2.
        """
        low, high = self.shape_interval
        if low > 0:
            return "heavy"
        if high < OPTIONS.bounded:
            return "bounded"
        return "light" if OPTIONS.light[0] < low and high < OPTIONS.light[1] else "undetermined"

    def covers(self, levels: Array) -> NDArray[np.bool_]:
        """Mask (q,) of the levels beyond the one at which the tail begins."""
        return (levels - self.level) * np.sign(self.level - 0.5) > SAME

    def law(self, X: Array, inner: QuantileFunction) -> ParetoLaw:
        """Generalised Pareto law of each row of X, given its quantiles at the fitted levels."""
        upper = self.level > 0.5
        log_scale = np.full(len(X), self.log_scale)
        if self.inner_level is not None:
            curves = inner.curves[:, np.searchsorted(inner.levels, np.array([self.inner_level, self.level]) - SAME)]
            log_scale += np.log(np.maximum(np.abs(np.diff(curves, axis=1)[:, 0]), self.smallest_spread))
        if self.log_scale_model is not None:
            if self.log_scale_model.n_features_in_ != X.shape[1]:
                raise ValueError(f"a tail is of {self.log_scale_model.n_features_in_} columns, not {X.shape[1]}")
            log_scale += self.log_scale_model._decision_function(X)[:, 0]
        return ParetoLaw(1.0 if upper else -1.0, 1 - self.level if upper else self.level, np.exp(log_scale), self.shape)

    def __str__(self) -> str:
        low, high = self.shape_interval
        side, scale = "Above" if self.level > 0.5 else "Below", []
        if self.inner_level is not None:
            scale.append(f"in proportion to the spread from level {self.inner_level:g}")
        if self.log_scale_model is not None:
            gap = self.log_scale_model.duality_gap_[0]
            scale.append(f"smooth in x (relative duality gap {gap:.1e})")
        return (
            f"{side} level {self.level:g}: {self.kind} tail, shape {self.shape:.2f} ({low:.2f} to {high:.2f}, of "
            f"{self.n_exceedances:,} exceedances); scale {', times a factor '.join(scale) or 'constant'}; "
            f"constant shape: p = {self.shape_p_value:.2g}"
        )


class TailsMixin(DistributionMixin):
    """Estimators of distributions that may have tails: their parameters `tails` and `tail_level`, and what follows."""

    tails: str | None = None  # so that files of models without them can be read
    tail_level: float | str = "auto"
    lower_tail_: ParetoTail | None = None
    upper_tail_: ParetoTail | None = None

    @blockwise
    def predict_expected_shortfall(self, X: Any, level: float = 0.975) -> Array:
        """Mean of y beyond its quantile at a level, shape (n,): above it for 0.5 or more, below it for less.

        Parameters
        ----------
        X : array-like of shape (n, d), or as in `predict`
        level : float, default=0.975
            Strictly between 0 and 1. It needs ``tails="pareto"``, and a tail on the side of the level.
        """
        check_is_fitted(self)
        check_share("level", level)
        if self.tails is None:
            raise ValueError("The expected shortfall depends on the tails: fit with tails='pareto'.")
        return self._distribution(check_rows(self, X)).mean_beyond(float(level))

    def _check_tails(self) -> None:
        """Raise ValueError if `tails`, which is not None, or `tail_level` is not valid."""
        check_choice("tails", self.tails, (None, "pareto"))
        level = self.tail_level
        if isinstance(level, str) and level == "auto":
            return
        if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not OPTIONS.outer <= level < 1:
            raise ValueError(f'tail_level must be "auto" or a quantile level from {OPTIONS.outer} to 1; got {level!r}.')

    def _choose_tail_levels(self, levels: Array | None, rows: Any) -> TailLevels:
        """Levels at which the tails begin, of the fitted ones or, where `levels` is None, of any.

        Raises ValueError, before any work, if the rows, an `ArrayRows`, are too few, or y has too few different values.
        """
        given = None if isinstance(self.tail_level, str) else float(self.tail_level)
        if levels is None:
            outer = np.array(OPTIONS.levels if given is None else [given])
            levels = np.r_[np.round(1 - outer[::-1], 12), outer]
        n_values = len(np.unique(rows.y))
        if n_values <= 1 / OPTIONS.max_tie_share:
            raise ValueError(
                f"tails='pareto' is for continuous targets; y has {n_values} different values. Leave tails at None."
            )
        return choose_tail_levels(levels, rows.n_rows, given)

    def _attached_tails(self) -> list[ParetoTail]:
        """The tails that predictions use."""
        return [one for one in (self.lower_tail_, self.upper_tail_) if one is not None and self.tails is not None]

    def _attach_tails(self, fitted: QuantileFunction, X: Array) -> QuantileFunction:
        """The quantile functions of rows X, with tails in place of the levels beyond those at which tails begin."""
        tails = self._attached_tails()
        laws = {name_side(tail.level): tail.law(X, fitted) for tail in tails}
        kept = np.ones(len(fitted.levels), dtype=bool)
        for tail in tails:
            kept &= ~tail.covers(fitted.levels)
        return replace(fitted, levels=fitted.levels[kept], curves=fitted.curves[:, kept], **laws)


def choose_tail_levels(levels: Array, n_rows: int, given: float | None) -> TailLevels:
    """Of these levels, those at which the lower and the upper tail begin.

    The outermost level with enough exceedances or, if there is none, the innermost that has the least number.
    `given` is `tail_level`, or None. Raises ValueError, with the number of rows needed, if there is none on either
    side.
    """
    n_rows = min(n_rows, OPTIONS.max_rows)

    def is_allowed(mirrored: Array) -> NDArray[np.bool_]:
        return mirrored >= OPTIONS.outer - SAME if given is None else np.abs(mirrored - max(given, 1 - given)) < 1e-9

    def choose(mirrored: Array) -> float | None:
        """The level of the upper tail, or 1 minus that of the lower one."""
        order = np.argsort(mirrored)
        order = order[is_allowed(mirrored[order])]
        counts = np.round(n_rows * (1 - mirrored[order]))
        if not np.any(counts >= OPTIONS.min_exceedances):
            return None
        return float(levels[order[max(int(np.sum(counts >= OPTIONS.enough)) - 1, 0)]])

    lower, upper = choose(1 - levels), choose(levels)
    if lower is None and upper is None:
        outer = np.maximum(levels, 1 - levels)
        outer = outer[is_allowed(outer)]
        if not len(outer):
            wanted = "at least 0.8, or at most 0.2, such as 0.9" if given is None else f"{given:g}"
            raise ValueError(
                f"tails='pareto' begins at a fitted quantile level of {wanted}; got quantiles={levels.tolist()}. "
                "Add such a level to quantiles."
            )
        level = outer.min()
        needed = int(np.ceil(OPTIONS.min_exceedances / (1 - level) - 1e-6))
        closer = "Begin at a level closer to the median, such as 0.8, or leave" if level > OPTIONS.outer else "Leave"
        raise ValueError(
            f"tails='pareto' needs {OPTIONS.min_exceedances} exceedances of a level; {n_rows:,} rows have about "
            f"{n_rows * (1 - level):.0f} beyond the level {level:g}, for which {needed:,} rows are needed. {closer} "
            "tails at None."
        )
    return lower, upper


def name_side(level: float) -> str:
    """ "upper" or "lower", the side of the tail that begins at a level."""
    return "upper" if level > 0.5 else "lower"
