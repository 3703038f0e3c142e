"""Estimation of generalised Pareto tails from curves at rows that these curves have not seen.

1. *Exceedances.* A constant is added to the curve of the level at which the tail begins, such that it is exceeded with
   the probability that the level says. `TabularQuantileRegressor` has curves out of fold and out of bag; for a kernel
   the level is fitted anew on three quarters of the rows at a time.
2. *Scale.* log scale(x) is a constant, or in proportion to the spread between curves, plus a function of a kernel's
   RKHS or nothing: whichever has the highest likelihood on exceedances left out in turn. With the shape given, the
   likelihood is convex in the log scale, and a Lipschitz loss (`GeneralizedPareto`): one more certified fit.
3. *Shape.* A constant xi, by maximum likelihood of the exceedances over their held-out scales, together with a factor
   of all scales; penalised, since few exceedances say little of it. Steps 2 and 3 are repeated once.
4. *Is the shape constant?* A score test against the columns of x and the log scale: `shape_p_value`.

The lower tail is the upper one of -y. Once a stop is requested (`max_seconds`), step 2 ends at the best scale so far.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.stats import chi2, norm

from quernel import paths
from quernel.data import ArrayRows, InMemoryDesign
from quernel.estimators.levels import SAME
from quernel.estimators.regressor import KernelRegressor
from quernel.estimators.solve import Solution
from quernel.estimators.tails import OPTIONS, ParetoTail, TailLevels, name_side
from quernel.estimators.warnings import convergence_not_warned, stacklevel_of_caller
from quernel.features.landmarks import row_hash
from quernel.kernels import Kernel, Linear
from quernel.losses import GeneralizedPareto, Pinball, weighted_quantiles
from quernel.objective import Problem
from quernel.solvers.progress import stop_requested
from quernel.tuning.alpha import has_gram
from quernel.tuning.plan import FitPlan

Array = NDArray[np.floating]
Index = NDArray[np.intp]


def fit_kernel_tails(
    source: ArrayRows,
    levels: Array,
    tail_levels: TailLevels,
    plan: FitPlan,
    solution: Solution,
    fit_intercept: bool,
    tol: float,
) -> tuple[ParetoTail | None, ParetoTail | None]:
    """Fit the lower and the upper tail of a quantile fit to these rows; None where none is wanted.

    `levels` (q,) are those of the fit, `plan` and `solution` its own. If a stop is requested before the curves are
    known out of fold, those of the fit itself take their place.
    """
    rows = _subsample(source)
    pairs = [(level, _choose_inner(levels, level)) for level in tail_levels if level is not None]
    needed = np.unique([one for pair in pairs for one in pair if one is not None])
    features = solution.feature_map.transform(rows.X)
    curves = _predict_out_of_fold(rows, needed, features, plan.alpha, fit_intercept)
    if curves is None:
        fitted = features @ solution.result.coef + solution.result.intercept
        curves = fitted[:, np.argmin(np.abs(levels - needed[:, None]), axis=1)]
    return fit_tails(rows, needed, curves, tail_levels, plan.kernel, tol)


def fit_tails(
    rows: ArrayRows, levels: Array, curves: Array, tail_levels: TailLevels, kernel: Kernel | None, tol: float
) -> tuple[ParetoTail | None, ParetoTail | None]:
    """Fit the lower and the upper tail; None where none is wanted, or with a warning where there cannot be one.

    `curves` (n, q) are quantiles of the rows at ascending `levels` (q,), of fits that have not seen the row. `kernel`
    is tried for the scale, besides a Gaussian one. Raises ValueError if there can be no tail on any side.
    """
    tails: list[ParetoTail | None] = [None, None]
    refused = {}
    for side, level in enumerate(tail_levels):
        if level is None:
            continue
        inner = _choose_inner(levels, level)
        try:
            exceedances = _find_exceedances(rows, levels, curves, level, inner)
        except NoTailError as error:
            refused[name_side(level)] = str(error)
            continue
        tails[side] = _fit_tail(exceedances, level, inner, kernel, tol)
    if refused and tails == [None, None]:
        raise ValueError(f"tails='pareto' cannot be fitted: {'; '.join(refused.values())}. Leave tails at None.")
    for side_name, reason in refused.items():
        warnings.warn(
            f"There is no {side_name} tail: {reason}. Levels beyond are as with tails=None.",
            UserWarning,
            stacklevel=stacklevel_of_caller(),
        )
    return tails[0], tails[1]


def _choose_inner(levels: Array, level: float) -> float | None:
    """The level closest to the median, inside of a tail's, from which the spread is measured; None if there is none."""
    inside = levels[(level - levels) * np.sign(level - 0.5) > SAME]
    return float(inside[np.argmin(np.abs(inside - 0.5))]) if len(inside) else None


def _subsample(source: ArrayRows) -> ArrayRows:
    """At most `max_rows` rows, the same ones in whatever order they were given."""
    X, rows = np.asarray(source.X, dtype=float), np.arange(source.n_rows)
    if source.n_rows > OPTIONS.max_rows:
        rows = np.sort(np.argsort(row_hash(np.column_stack([X, source.y])), kind="stable")[: OPTIONS.max_rows])
    return ArrayRows(X[rows], source.y[rows], None if source.weight is None else source.weight[rows])


def _fold_of(X: Array) -> Index:
    """Fold (n,) of each row, by a hash of its values: copies of a row stay together, and the order does not matter."""
    return np.unique(row_hash(X), return_inverse=True)[1].reshape(-1) % OPTIONS.folds


def _predict_out_of_fold(
    rows: ArrayRows, levels: Array, features: Array, alpha: float, fit_intercept: bool
) -> Array | None:
    """Curves (n, q) of these levels at rows left out of their fits; None if a stop was requested before all are known.

    Features (n, M) and ridge weight are the same in all folds.
    """
    curves = np.empty((rows.n_rows, len(levels)))
    design = InMemoryDesign(ArrayRows(features, rows.y, rows.weight), features=features)
    problem = Problem(design, Pinball(levels), alpha, fit_intercept=fit_intercept)
    fold = _fold_of(rows.X)
    train = [np.flatnonzero(fold != k) for k in range(OPTIONS.folds)]
    if stop_requested():
        return None
    for k, grid in enumerate(paths.solve_folds(problem, [alpha], None, train, tol=OPTIONS.tol)):
        if stop_requested():
            return None
        curves[fold == k] = grid.predict(features[fold == k])[0]
    return curves


class NoTailError(ValueError):
    """There cannot be a tail on this side; the message says why."""


@dataclass(frozen=True, eq=False)
class Exceedances:
    """Rows beyond a curve: columns, logarithms of the distances, shares that sum to 1, log of the spread or None."""

    X: Array
    log_excess: Array
    share: Array
    log_spread: Array | None = None
    smallest_spread: float = 0.0

    @classmethod
    def from_rows(cls, X: Array, excess: Array, share: Array, spread: Array | None = None) -> Exceedances:
        """The same with distances instead of their logarithms; those too close to 0 are moved away from it."""
        log_excess, share = np.log(np.maximum(excess, OPTIONS.smallest * excess.max())), share / share.sum()
        if spread is None or not np.median(spread) > 0:
            return cls(X, log_excess, share)
        smallest = OPTIONS.smallest_spread * float(np.median(spread))
        return cls(X, log_excess, share, np.log(np.maximum(spread, smallest)), smallest)

    @property
    def size(self) -> float:
        """Effective number of rows (Kish): that of equal weights whose mean would vary as much."""
        return float(1 / np.sum(self.share**2))

    def target(self, by_spread: bool) -> Array:
        """Logarithms (n,) of the distances, over the spread or not: where curves are far apart, tails are long, too."""
        return self.log_excess - self.log_spread if by_spread and self.log_spread is not None else self.log_excess


def _find_exceedances(rows: ArrayRows, levels: Array, curves: Array, level: float, inner: float | None) -> Exceedances:
    """Rows beyond the curve of a level, and their distances; the spread is that from the level `inner`.

    Raises NoTailError if there are too few, or if many of them share one value of y.
    """
    sign, share = 1.0 if level > 0.5 else -1.0, rows.share()
    curve = curves[:, np.argmin(np.abs(levels - level))]
    excess = sign * (rows.y - curve)
    shift = weighted_quantiles(excess, share, np.array([max(level, 1 - level)]))[0]
    excess -= shift
    above = excess > 0
    if above.sum() < OPTIONS.min_exceedances:  # the rest are ties with a point mass of y
        raise NoTailError(
            f"a tail needs {OPTIONS.min_exceedances} exceedances, and beyond the level {level:g} there are "
            f"{above.sum()}, the other rows being at or inside of it"
        )
    X, y = rows.X[above], rows.y[above]
    # Copies of a row, in place of which it could have a weight, are no ties.
    different = np.unique(row_hash(np.column_stack([X, y])), return_index=True)[1]
    values, counts = np.unique(y[different], return_counts=True)
    if counts.max() > OPTIONS.max_tie_share * len(different):
        raise NoTailError(
            f"{counts.max()} of {len(different)} values of y beyond the level {level:g} are "
            f"{values[np.argmax(counts)]:g}, and grades, counts and capped values have no Pareto law"
        )
    spread = None
    if inner is not None:
        spread = (sign * (curve - curves[:, np.argmin(np.abs(levels - inner))]))[above] + shift
    return Exceedances.from_rows(X, excess[above], share[above], spread)


@dataclass(frozen=True, eq=False)
class _Scale:
    """A way to model the log scale: whether over the spread, and with which features and alpha, if any."""

    by_spread: bool
    features: Array | None = None
    kernel: Kernel | None = None
    alpha: float = np.inf


def _fit_tail(rows: Exceedances, level: float, inner: float | None, kernel: Kernel | None, tol: float) -> ParetoTail:
    """Scale and shape of one tail."""
    scale, residual = _choose_scale(rows, kernel)
    target, shape, model = rows.target(scale.by_spread), _fit_shape(residual, rows)[0], None
    if scale.features is not None:
        loss = GeneralizedPareto(shape)
        residual = _hold_out(rows, scale.by_spread, scale.features, np.array([scale.alpha]), loss)[0]
        model = _scale_model(scale.kernel, loss, scale.alpha, tol).fit(rows.X, target, sample_weight=rows.share)
    if model is None or stop_requested():  # fits that were stopped say less than a constant
        model, residual = None, target
    estimated = scale.by_spread or model is not None
    shape, interval = _fit_shape(residual, rows, OPTIONS.scale_shift if estimated else 0.0)
    # Of a smooth scale, what it lacks on exceedances that were left out.
    log_scale = float(GeneralizedPareto(shape).fit_constant(residual, rows.share)[0])
    return ParetoTail(
        level,
        shape,
        interval,
        _test_constant_shape(rows, residual - log_scale, shape),
        len(rows.X),
        log_scale,
        inner if scale.by_spread else None,
        rows.smallest_spread,
        model,
    )


def _choose_scale(rows: Exceedances, kernel: Kernel | None) -> tuple[_Scale, Array]:
    """The scale of highest held-out likelihood, the simpler one if that is not clearly higher; its residuals (n,)."""
    spreads = [False] if rows.log_spread is None else [False, True]
    tried: list[tuple[_Scale, Array]] = []
    shapes = []
    for by_spread in spreads:
        target = rows.target(by_spread)
        shapes.append(_fit_shape(target, rows)[0])
        constants = _hold_out(rows, by_spread, np.zeros((len(rows.X), 1)), np.ones(1), GeneralizedPareto(shapes[-1]))
        tried.append((_Scale(by_spread), constants[0]))
    # A shape that is too large makes up for a constant scale: the smallest is closest to the truth.
    loss = GeneralizedPareto(min(shapes))
    alphas = 1 / (2 * rows.size * np.square(OPTIONS.deviations))
    for candidate in _list_kernels(kernel):
        if stop_requested():
            break
        with convergence_not_warned():  # for its features only
            model = _scale_model(candidate, loss, float(alphas[0]), OPTIONS.tol).fit(rows.X, rows.log_excess)
        features = model.feature_map_.transform(rows.X)
        for by_spread in spreads:
            residuals = _hold_out(rows, by_spread, features, alphas, loss)
            if not stop_requested():  # fits that were stopped are no evidence
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


def _list_kernels(kernel: Kernel | None) -> list[Any]:
    """Kernels of the scale that are tried: that of the quantiles, and one that does not depend on y.

    Bandwidths learned for the curves need not suit the scale, of which there are far fewer rows to learn them from.
    """
    if kernel is None:
        return ["gaussian"]
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


def _hold_out(rows: Exceedances, by_spread: bool, features: Array, alphas: Array, loss: GeneralizedPareto) -> Array:
    """Residuals log(z / scale) of exceedances under scales fitted without them, shape (n_alphas, n).

    In-sample scales follow the exceedances, whose residuals would then look lighter-tailed than new ones.
    """
    target = rows.target(by_spread)
    design = InMemoryDesign(ArrayRows(features, target, rows.share), features=features)
    problem = Problem(design, loss, 1.0, fit_intercept=True)
    fold, predicted = _fold_of(rows.X), np.empty((len(alphas), len(target)))
    train = [np.flatnonzero(fold != k) for k in range(OPTIONS.folds)]
    for k, grid in enumerate(paths.solve_folds(problem, alphas, None, train, tol=OPTIONS.tol)):
        predicted[:, fold == k] = grid.predict(features[fold == k])[:, :, 0]
    return target - predicted


def _fit_shape(residual: Array, rows: Exceedances, shift: float = 0.0) -> tuple[float, tuple[float, float]]:
    """Shape of exceedances e^residual, by maximum likelihood in shape and scale with a penalty, and its interval.

    The interval holds the shapes at which the signed root of the likelihood ratio, without penalty and corrected for
    small samples, is an ordinary value of a normal law around `shift`. The likelihood is profiled: for every shape of a
    grid, the scale is the best constant of a convex loss, and a spline interpolates between the shapes.
    """
    low, high = OPTIONS.shapes
    grid = np.linspace(low, high, round((high - low) / OPTIONS.shape_step) + 1)
    loss = GeneralizedPareto(grid)
    constants = loss.fit_constant(residual, rows.share)
    # The loss is the negative log-likelihood, less its smallest value and a term without the parameters.
    smallest = np.where(np.abs(grid) < 1e-9, 1.0, (1 + grid) * np.log1p(grid) / np.where(grid == 0, 1.0, grid))
    profile = rows.share @ loss.value(residual[:, None] - constants) + smallest
    shapes = np.linspace(low, high, 20 * len(grid))
    likelihood = -rows.size * CubicSpline(grid, profile)(shapes)
    best = int(np.argmax(likelihood))
    root = np.sign(shapes[best] - shapes) * np.sqrt(2 * (likelihood[best] - likelihood))
    # Shifts by which each end errs in 5 % of simulated samples of 60 and 200 exceedances, of shapes 0 and -0.2.
    constant, slope, upper = OPTIONS.root_shift
    unit, limit = np.sqrt(rows.size), norm.ppf((1 + OPTIONS.confidence) / 2)
    inside = shapes[
        (root + np.minimum((constant + slope * shapes) / unit - shift, 1.0) <= limit)
        & (root + np.minimum(upper / unit - shift, 1.0) >= -limit)
    ]
    penalised = likelihood - (shapes / OPTIONS.prior) ** 2 / 2
    return float(shapes[np.argmax(penalised)]), (float(inside.min()), float(inside.max()))


def _test_constant_shape(rows: Exceedances, residual: Array, shape: float) -> float:
    """p-value of the score test that the shape depends neither on the columns nor on the scale.

    The score is the derivative of each exceedance's log-likelihood in the shape. Under the hypothesis no column
    explains it, and the explained share of its variance, times the rows, is chi-squared with a degree of freedom for
    each column. It is a test of Rao's kind: nothing is fitted under the alternative.
    """
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
