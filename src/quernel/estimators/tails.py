"""tails="pareto": generalised Pareto laws of what exceeds an outer quantile curve, with a scale that depends on x.

Above a high threshold, exceedances of nearly any distribution follow a generalised Pareto law (Balkema and de Haan
1974, Pickands 1975). The threshold is the curve of a fitted level, and a tail is fitted in four steps:

1. *Exceedances out of fold.* A fit is closer to its own rows than to new ones, so the level is fitted anew on three
   quarters of the rows at a time, and residuals are those of the rows left out. A constant is added to the curve, such
   that it is exceeded with the probability that the level says.
2. *Scale.* log scale(x) is a constant, or in proportion to the spread between fitted curves, plus a function of a
   kernel's RKHS or nothing: whichever has the highest likelihood on exceedances left out in turn. With the shape given,
   the likelihood is convex in the log scale, and a Lipschitz loss (`GeneralizedPareto`): one more certified fit.
3. *Shape.* A constant xi, by maximum likelihood of the exceedances over their held-out scales, together with a factor
   of all scales; penalised, since few exceedances say little of it. Steps 2 and 3 are repeated once.
4. *Is the shape constant?* A score test against the columns of x and the log scale: `shape_p_value`.

The lower tail is the upper one of -y.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import chi2, norm

from quernel import paths
from quernel.data import ArrayRows, InMemoryDesign
from quernel.estimators.levels import SAME, ParetoLaw, QuantileFunction
from quernel.estimators.regressor import KernelRegressor
from quernel.features.sampling import row_hash
from quernel.kernels import Kernel, Linear
from quernel.losses import GeneralizedPareto, Pinball, weighted_quantiles
from quernel.objective import Problem
from quernel.tuning.alpha import has_gram
from quernel.tuning.plan import FitPlan

Array = NDArray[np.floating]
Index = NDArray[np.intp]


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
    bounded: float = -0.15  # a tail is called bounded if its shape is surely below: a normal's, at usual levels, is not
    confidence: float = 0.9  # of the interval of the shape
    smallest: float = 1e-9  # exceedances are at least this share of the largest
    smallest_spread: float = 0.02  # spreads are at least this share of their median
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
    shape_error : float
        Standard error of the shape.
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
    shape_error: float
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
        """ "heavy", "light" or "bounded", as far as a 90 % confidence interval of the shape says."""
        reach = norm.ppf((1 + OPTIONS.confidence) / 2) * self.shape_error
        if self.shape - reach > 0:
            return "heavy"
        return "bounded" if self.shape + reach < OPTIONS.bounded else "light"

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
        side, scale = "Above" if self.level > 0.5 else "Below", []
        if self.inner_level is not None:
            scale.append(f"in proportion to the spread from level {self.inner_level:g}")
        if self.log_scale_model is not None:
            gap = self.log_scale_model.duality_gap_[0]
            scale.append(f"smooth in x (relative duality gap {gap:.1e})")
        return (
            f"{side} level {self.level:g}: {self.kind} tail, shape {self.shape:.2f} +- {self.shape_error:.2f} "
            f"({self.n_exceedances:,} exceedances); scale {', times a factor '.join(scale) or 'constant'}; "
            f"constant shape: p = {self.shape_p_value:.2g}"
        )


def choose_tail_levels(levels: Array, n_rows: int, given: float | None) -> tuple[float | None, float | None]:
    """Fitted levels at which the lower and the upper tail begin, None for no tail on that side.

    The outermost level with enough exceedances or, if there is none, the innermost that has the least number.
    `given` is `tail_level`, or None. Raises ValueError, with the number of rows needed, if there is none on either
    side.
    """

    def choose(mirrored: Array) -> float | None:
        """The level of the upper tail."""
        outer = np.sort(mirrored[mirrored >= OPTIONS.outer - 1e-9])
        if given is not None:
            outer = outer[np.abs(outer - max(given, 1 - given)) < 1e-9]
        counts = np.round(min(n_rows, OPTIONS.max_rows) * (1 - outer))
        if not np.any(counts >= OPTIONS.min_exceedances):
            return None
        return float(outer[max(int(np.sum(counts >= OPTIONS.enough)) - 1, 0)])

    lower, upper = choose(1 - levels), choose(levels)
    if lower is None and upper is None:
        outer = np.maximum(levels, 1 - levels)
        if given is None:
            outer = outer[outer >= OPTIONS.outer - 1e-9]
        else:
            outer = outer[np.abs(outer - max(given, 1 - given)) < 1e-9]
        if not len(outer):
            wanted = "at least 0.8, or at most 0.2, such as 0.9" if given is None else f"{given:g}"
            raise ValueError(
                f"tails='pareto' begins at a fitted quantile level of {wanted}; got quantiles={levels.tolist()}. "
                "Add such a level to quantiles."
            )
        mass, counted = 1 - outer.min(), min(n_rows, OPTIONS.max_rows)
        needed = int(np.ceil(OPTIONS.min_exceedances / mass - 1e-6))
        raise ValueError(
            f"tails='pareto' needs {OPTIONS.min_exceedances} exceedances of a fitted level; {counted:,} rows have "
            f"about {counted * mass:.0f} beyond the level {outer.min():g}, for which {needed:,} rows are needed. Fit "
            "a level closer to the median, such as 0.9 or 0.8, or leave tails at None."
        )
    return None if lower is None else float(levels[np.argmin(np.abs(levels - (1 - lower)))]), upper


def check_tail_level(level: Any) -> None:
    """Raise ValueError unless `tail_level` is "auto" or an outer level."""
    if isinstance(level, str) and level == "auto":
        return
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not OPTIONS.outer <= level < 1:
        raise ValueError(f'tail_level must be "auto" or a quantile level from {OPTIONS.outer} to 1; got {level!r}.')


def attach_tails(
    fitted: QuantileFunction, X: Array, lower: ParetoTail | None, upper: ParetoTail | None
) -> QuantileFunction:
    """The quantile functions of rows X, with tails in place of the levels beyond those at which the tails begin."""
    low = fitted.levels[0] if lower is None else lower.level
    high = fitted.levels[-1] if upper is None else upper.level
    kept = (fitted.levels >= low - SAME) & (fitted.levels <= high + SAME)
    return replace(
        fitted,
        levels=fitted.levels[kept],
        curves=fitted.curves[:, kept],
        lower=None if lower is None else lower.law(X, fitted),
        upper=None if upper is None else upper.law(X, fitted),
    )


def fit_tails(
    source: ArrayRows,
    levels: Array,
    tail_levels: tuple[float | None, float | None],
    feature_map: Any,
    plan: FitPlan,
    fit_intercept: bool,
    tol: float,
) -> tuple[ParetoTail | None, ParetoTail | None]:
    """Fit the lower and the upper tail of a quantile fit to these rows; None where none is wanted.

    `feature_map` and `plan` are those of the quantile fit, `levels` (q,) its levels.
    """
    rows, share = _subsample(source)
    inner_levels = {level: _choose_inner(levels, level) for level in tail_levels if level is not None}
    needed = np.array(sorted({one for pair in inner_levels.items() for one in pair if one is not None}))
    curves = _OutOfFold(rows, needed, feature_map.transform(rows.X), plan.alpha, fit_intercept)
    tails: list[ParetoTail | None] = []
    for level in tail_levels:
        if level is None:
            tails.append(None)
            continue
        sign = 1.0 if level > 0.5 else -1.0
        inner = inner_levels[level]
        excess = sign * (rows.y - curves.at(level))
        shift = weighted_quantiles(excess, share, np.array([max(level, 1 - level)]))[0]
        excess -= shift
        above = excess > 0
        if above.sum() < OPTIONS.min_exceedances:  # the rest are ties with a point mass of y
            raise ValueError(
                f"tails='pareto' needs {OPTIONS.min_exceedances} exceedances of a level; beyond the level {level:g} "
                f"there are {above.sum()}, the other rows being at or inside of it. Leave tails at None."
            )
        spread = None if inner is None else sign * (curves.at(level) - curves.at(inner))[above] + shift
        rows_above = _Exceedances.from_rows(rows.X[above], excess[above], share[above], spread)
        tails.append(_fit_tail(rows_above, level, inner, plan.kernel, tol))
    return tails[0], tails[1]


def _choose_inner(levels: Array, level: float) -> float | None:
    """The level closest to the median, inside of a tail's, from which the spread is measured; None if there is none."""
    inside = levels[(level - levels) * np.sign(level - 0.5) > SAME]
    return float(inside[np.argmin(np.abs(inside - 0.5))]) if len(inside) else None


def _subsample(source: ArrayRows) -> tuple[ArrayRows, Array]:
    """At most `max_rows` rows, the same ones in whatever order they were given, and their shares."""
    X, rows = np.asarray(source.X, dtype=float), np.arange(source.n_rows)
    if source.n_rows > OPTIONS.max_rows:
        rows = np.sort(np.argsort(row_hash(np.column_stack([X, source.y])), kind="stable")[: OPTIONS.max_rows])
    weight = None if source.weight is None else source.weight[rows]
    taken = ArrayRows(X[rows], source.y[rows], weight)
    return taken, taken.share()


def _fold_of(X: Array) -> Index:
    """Fold (n,) of each row, by a hash of its values: copies of a row stay together, and the order does not matter."""
    return np.unique(row_hash(X), return_inverse=True)[1].reshape(-1) % OPTIONS.folds


class _OutOfFold:
    """Curves of quantile levels at rows that were left out of their fits: the same features and ridge weight."""

    def __init__(self, rows: ArrayRows, levels: Array, features: Array, alpha: float, fit_intercept: bool) -> None:
        self.rows, self.levels, self.curves = rows, levels, np.empty((rows.n_rows, len(levels)))
        design = InMemoryDesign(ArrayRows(features, rows.y, rows.weight), features=features)
        problem = Problem(design, Pinball(levels), alpha, fit_intercept=fit_intercept)
        fold = _fold_of(rows.X)
        train = [np.flatnonzero(fold != k) for k in range(OPTIONS.folds)]
        for k, grid in enumerate(paths.solve_folds(problem, [alpha], None, train, tol=OPTIONS.tol)):
            self.curves[fold == k] = grid.predict(features[fold == k])[0]

    def at(self, level: float) -> Array:
        """The curve of one of the levels, (n,)."""
        return self.curves[:, np.argmin(np.abs(self.levels - level))]


@dataclass(frozen=True, eq=False)
class _Exceedances:
    """Rows beyond a curve: columns, logarithms of the distances, shares that sum to 1, log of the spread or None."""

    X: Array
    log_excess: Array
    share: Array
    log_spread: Array | None
    smallest_spread: float

    @classmethod
    def from_rows(cls, X: Array, excess: Array, share: Array, spread: Array | None) -> _Exceedances:
        """The same with distances instead of their logarithms; those too close to 0 are moved away from it."""
        log_excess, smallest = np.log(np.maximum(excess, OPTIONS.smallest * excess.max())), 0.0
        if spread is not None and np.median(spread) > 0:
            smallest = OPTIONS.smallest_spread * float(np.median(spread))
            return cls(X, log_excess, share / share.sum(), np.log(np.maximum(spread, smallest)), smallest)
        return cls(X, log_excess, share / share.sum(), None, smallest)

    @property
    def size(self) -> float:
        """Effective number of rows."""
        return float(1 / np.sum(self.share**2))

    def target(self, by_spread: bool) -> Array:
        """Logarithms (n,) of the distances, over the spread or not."""
        return self.log_excess - self.log_spread if by_spread and self.log_spread is not None else self.log_excess


@dataclass(frozen=True, eq=False)
class _Scale:
    """A way to model the log scale: whether over the spread, and with which features and alpha, if any."""

    by_spread: bool
    features: Array | None = None
    kernel: Kernel | None = None
    alpha: float = np.inf


def _fit_tail(rows: _Exceedances, level: float, inner: float | None, kernel: Kernel, tol: float) -> ParetoTail:
    """Scale and shape of one tail."""
    scale, residual = _choose_scale(rows, kernel)
    shape = _fit_shape(residual, rows)
    loss = GeneralizedPareto(shape)
    target = rows.target(scale.by_spread)
    if scale.features is None or scale.kernel is None:
        model, log_scale = None, float(loss.fit_constant(target, rows.share)[0])
        residual = target - log_scale
    else:
        residual = _hold_out(rows, scale.by_spread, scale.features, np.array([scale.alpha]), loss)[0]
        model = _scale_model(scale.kernel, loss, scale.alpha, tol).fit(rows.X, target, sample_weight=rows.share)
        # What the scale lacks on exceedances that were left out.
        log_scale = float(loss.fit_constant(residual, rows.share)[0])
        residual = residual - log_scale
    return ParetoTail(
        level,
        shape,
        _shape_error(shape, rows.size),
        _test_constant_shape(rows, residual, shape),
        len(rows.X),
        log_scale,
        inner if scale.by_spread else None,
        rows.smallest_spread,
        model,
    )


def _choose_scale(rows: _Exceedances, kernel: Kernel) -> tuple[_Scale, Array]:
    """The scale of highest held-out likelihood, the simpler one if that is not clearly higher; its residuals (n,)."""
    spreads = [False] if rows.log_spread is None else [False, True]
    tried: list[tuple[_Scale, Array]] = []
    shapes = []
    for by_spread in spreads:
        target = rows.target(by_spread)
        shapes.append(_fit_shape(target, rows))
        constants = _hold_out(rows, by_spread, np.zeros((len(rows.X), 1)), np.ones(1), GeneralizedPareto(shapes[-1]))
        tried.append((_Scale(by_spread), constants[0]))
    # A shape that is too large makes up for a constant scale: the smallest is closest to the truth.
    loss = GeneralizedPareto(min(shapes))
    alphas = 1 / (2 * rows.size * np.square(OPTIONS.deviations))
    for candidate in _kernels(kernel):
        model = _scale_model(candidate, loss, float(alphas[0]), OPTIONS.tol).fit(rows.X, rows.log_excess)
        features = model.feature_map_.transform(rows.X)
        for by_spread in spreads:
            residuals = _hold_out(rows, by_spread, features, alphas, loss)
            tried += [
                (_Scale(by_spread, features, model.kernel_, float(alpha)), one)
                for alpha, one in zip(alphas, residuals, strict=True)
            ]
    best = tried[0]
    for one in tried[1:]:
        difference = rows.size * rows.share @ (loss.value(best[1][:, None]) - loss.value(one[1][:, None]))[:, 0]
        if difference > OPTIONS.advantage:
            best = one
    return best


def _kernels(kernel: Kernel) -> list[Any]:
    """Kernels of the scale that are tried: that of the quantiles, and one that does not depend on y."""
    return [kernel] if isinstance(kernel, Linear) else [kernel, "gaussian"]


def _scale_model(kernel: Any, loss: GeneralizedPareto, alpha: float, tol: float) -> KernelRegressor:
    """Regression of the log scale on a kernel; random features only where there is no other way."""
    landmarks = not isinstance(kernel, Kernel) or has_gram(kernel)
    return KernelRegressor(
        loss,
        kernel=kernel,
        n_components=OPTIONS.n_components,
        sampling="landmarks" if landmarks else "auto",
        alpha=alpha,
        tol=tol,
        random_state=0,
    )


def _hold_out(rows: _Exceedances, by_spread: bool, features: Array, alphas: Array, loss: GeneralizedPareto) -> Array:
    """Residuals log(z / scale) of exceedances under scales fitted without them, shape (n_alphas, n)."""
    target = rows.target(by_spread)
    design = InMemoryDesign(ArrayRows(features, target, rows.share), features=features)
    problem = Problem(design, loss, 1.0, fit_intercept=True)
    fold, predicted = _fold_of(rows.X), np.empty((len(alphas), len(target)))
    train = [np.flatnonzero(fold != k) for k in range(OPTIONS.folds)]
    for k, grid in enumerate(paths.solve_folds(problem, alphas, None, train, tol=OPTIONS.tol)):
        predicted[:, fold == k] = grid.predict(features[fold == k])[:, :, 0]
    return target - predicted


def _fit_shape(residual: Array, rows: _Exceedances) -> float:
    """Shape of exceedances e^residual, by maximum likelihood in shape and scale with a penalty on the shape."""
    low, high = OPTIONS.shapes
    values = np.exp(residual - np.median(residual))

    def negative_log_likelihood(point: Array) -> float:
        shape, log_scale = point
        relative = values / np.exp(log_scale)
        if not low <= shape <= high or np.min(1 + shape * relative) <= 0:
            return np.inf
        logs = relative if abs(shape) < 1e-6 else np.log1p(shape * relative) / shape
        return float(log_scale + (1 + shape) * rows.share @ logs + (shape / OPTIONS.prior) ** 2 / (2 * rows.size))

    simplex = np.array([[0.0, 0.0], [0.2, 0.0], [0.0, 0.5]])
    return float(
        minimize(
            negative_log_likelihood,
            simplex[0],
            method="Nelder-Mead",
            options={"initial_simplex": simplex, "xatol": 1e-4, "fatol": 1e-8},
        ).x[0]
    )


def _shape_error(shape: float, n: float) -> float:
    """Standard error of the penalised estimate: (1 + shape)^2 / n is the variance of the one without a penalty."""
    return float(1 / np.sqrt(n / (1 + shape) ** 2 + 1 / OPTIONS.prior**2))


def _test_constant_shape(rows: _Exceedances, residual: Array, shape: float) -> float:
    """p-value of the score test that the shape depends neither on the columns nor on the scale."""
    z, step = np.exp(residual), 1e-4

    def likelihood(xi: float) -> Array:
        return (1 + 1 / xi) * np.log1p(np.maximum(xi * z, -1 + 1e-9))

    xi = shape if abs(shape) > 1e-2 else 1e-2
    score = (likelihood(xi + step) - likelihood(xi - step)) / (2 * step)
    limits = np.median(score) + np.array([-6, 6]) * np.median(np.abs(score - np.median(score)))
    score = np.clip(score, *limits)
    of_scale = GeneralizedPareto(shape).slope(residual[:, None])[:, 0]
    weight = rows.share * rows.size
    # Efficient score: what a scale that is off explains of it is taken out.
    base = np.column_stack([np.ones(len(z)), of_scale])
    root = np.sqrt(weight)
    score = score - base @ np.linalg.lstsq(root[:, None] * base, root * score, rcond=None)[0]
    X = (rows.X - rows.X.mean(axis=0)) / np.where(rows.X.std(axis=0) > 0, rows.X.std(axis=0), 1.0)
    u, s, _ = np.linalg.svd(X, full_matrices=False)
    n_columns = min(OPTIONS.max_columns, int(rows.size) // 10, int(np.sum(s > 1e-8 * s[0])))
    columns = np.column_stack([u[:, :n_columns] * np.sqrt(len(z)), rows.log_excess - residual])
    columns = columns - columns.mean(axis=0)
    fitted = columns @ np.linalg.lstsq(root[:, None] * columns, root * score, rcond=None)[0]
    explained = weight @ fitted**2 / (weight @ score**2 or 1.0)
    return float(chi2.sf(rows.size * explained, np.linalg.matrix_rank(columns)))
