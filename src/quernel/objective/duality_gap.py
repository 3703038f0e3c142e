"""The duality gap: how far a fit can be from the optimum, for any coefficients and any duals.

For duals v in the domain of the conjugate, with mean v = 0 (balanced) if there is an intercept,

    gap = mean(loss(r) + conjugate(v) - v r) + alpha |u - Phi'(w v) / (2 alpha W)|^2  >=  F(u, b) - min F.

The first part is the Fenchel gap, the second the dual residual: how far v is from u = Phi'(w v) / (2 alpha W), the
stationarity condition. Neither u nor v need be optimal; a bad v only makes the bound larger. `certify` takes the
multipliers of the state as v, `certify_gradient` the slopes of the loss at the residuals.

Computed in floating point, the gap must hold for the numbers that are stored, in exact arithmetic: `bound_gap` adds
what rounding can have hidden in it.

The null model is the best constant, with the objective F0. Relative gaps are relative to F0, no fit is worse than the
null model, and the pass that computes it also measures how large targets and features are (`RowSizes`): these bound the
rounding errors of F and of its duality gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState, InMemoryDesign, RowStateLike, sum_tuples
from quernel.losses import Loss
from quernel.objective import DualSums, blocks
from quernel.objective.problem import Problem, require_finite, take_columns

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class FullGradient:
    """Sums over all rows at a fit with the slopes of the loss as duals v, one entry per column.

    phi_t_positive and phi_t_negative (M, q) are the parts of Phi'(w s v)/W from positive and from negative s v, and
    positive and negative (q,) the absolute sums of these duals; kept apart, so that either part can be shrunk.
    """

    loss: Array
    phi_t_positive: Array
    phi_t_negative: Array
    positive: Array
    negative: Array

    @property
    def phi_t_dual(self) -> Array:
        """Phi'(w v)/W."""
        return self.phi_t_positive + self.phi_t_negative

    @property
    def mean_dual(self) -> Array:
        """mean v."""
        return self.positive - self.negative


def full_gradient(problem: Problem, state: RowStateLike, coef: Array, intercept: Array) -> FullGradient:
    """Set residuals to those of (coef, intercept), multipliers to the slopes there, and sum, in one pass."""
    found = FullGradient(
        *problem.rows.map_reduce(_full_gradient_block, state, (problem.loss, coef, intercept), reduce=sum_tuples)
    )
    require_finite(found.loss)
    return found


def _full_gradient_block(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> tuple[Array, ...]:
    """The fields of `FullGradient` over one block; sets residuals and multipliers."""
    from quernel.objective.numba_kernels import phi_t_dual_by_sign

    loss, coef, intercept = args
    residual = blocks.residuals(block, loss, coef, intercept)
    state["residual"], state["anchor"] = residual, loss.slope(residual)
    _, sign = loss.margin_transform(block.targets)
    weighted = (state["anchor"] * sign * block.share[:, None]).T
    phi_t_positive, phi_t_negative = np.zeros((2, *coef.T.shape))
    phi_t_dual_by_sign(np.ascontiguousarray(block.features), weighted, phi_t_positive, phi_t_negative)
    positive = np.maximum(weighted, 0).sum(axis=1)
    return (
        block.share @ loss.value(residual),
        phi_t_positive.T,
        phi_t_negative.T,
        positive,
        positive - weighted.sum(axis=1),
    )


def fenchel_gap(problem: Problem, state: RowStateLike, factors: tuple[Array, Array]) -> Array:
    """mean(loss + conjugate(v) - v r) (q,) for the multipliers, positive and negative ones times these factors."""
    (mean,) = problem.rows.map_rows(_fenchel_gap_block, state, (problem.loss, factors), reduce=sum_tuples)
    return mean


def _fenchel_gap_block(block: Block, state: BlockState, args: tuple[Loss, tuple[Array, Array]]) -> tuple[Array]:
    """Sum of Fenchel gaps over one block."""
    loss, (positive, negative) = args
    residual, anchor = state["residual"], state["anchor"]
    _, sign = loss.margin_transform(block.targets)
    dual = np.where(sign * anchor > 0, positive, negative) * anchor
    return (block.share @ (loss.value(residual) + loss.conjugate(dual) - dual * residual),)


def dual_sides(problem: Problem, state: RowStateLike) -> tuple[Array, Array]:
    """Sums (q,) of the positive and of the negative w s v / W, for the duals v in the row state."""
    positive, negative = problem.rows.map_rows(_dual_sides_block, state, problem.loss, reduce=sum_tuples)
    return positive, negative


def _dual_sides_block(block: Block, state: BlockState, loss: Loss) -> tuple[Array, Array]:
    """The two sums over one block."""
    _, sign = loss.margin_transform(block.targets)
    signed = sign * state["dual"]
    positive = block.share @ np.maximum(signed, 0)
    return positive, positive - block.share @ signed


@dataclass(frozen=True, eq=False)
class Certificate:
    """Objective F, duality gap, and a bound of the rounding error of F (contained in the gap), each (q,)."""

    objective: Array
    gap: Array
    error: Array


def relative(gap: Array, objective: Array, null_objective: Array) -> Array:
    """gap / max(F, F0 / 1000), and 0 where F0 = 0."""
    scale = np.maximum(objective, null_objective / 1000)
    return np.where(null_objective > 0, gap / np.where(scale > 0, scale, 1), 0.0)


def certify(problem: Problem, state: RowStateLike, coef: Array, intercept: Array, null: NullModel) -> Certificate:
    """The duality gap of (coef, intercept), with the residuals and multipliers of the state.

    With an intercept, the multipliers are first shrunk on one side until they are balanced.
    """
    ones = np.ones(problem.n_columns)
    sums = problem.multiplier_gradient(state, (ones, ones))
    if problem.fit_intercept and np.any(sums.mean_dual != 0):
        sums = problem.multiplier_gradient(state, balance_factors(sums))
    objective = problem.objective(sums, coef, intercept)
    positive, negative = sums.positive, sums.negative
    if problem.screened is not None:
        positive = positive + np.maximum(problem.screened.mean_dual, 0)
        negative = negative + np.maximum(-problem.screened.mean_dual, 0)
    gap, error = bound_gap(problem, null, (coef, intercept), objective, sums, (positive, negative))
    if problem.fit_intercept and problem.screened is not None:
        # The duals of screened rows are fixed: where shrinking the others did not balance them, nothing is proved.
        gap = np.where(np.abs(sums.mean_dual) <= 1e-12, gap, np.inf)
    return Certificate(objective, gap, error)


def certify_gradient(
    problem: Problem, state: RowStateLike, found: FullGradient, coef: Array, intercept: Array, null: NullModel
) -> Certificate:
    """The duality gap of the fit (coef, intercept) at which `found` was summed, with the slopes there as duals."""
    ones = np.ones(problem.n_columns)
    factors = balance_factors(found) if problem.fit_intercept else (ones, ones)
    objective = found.loss + problem.alpha * np.einsum("ij,ij->j", coef, coef)
    positive, negative = factors[0] * found.positive, factors[1] * found.negative
    sums = GapSums(
        fenchel_gap(problem, state, factors),
        factors[0] * found.phi_t_positive + factors[1] * found.phi_t_negative,
        positive - negative,
    )
    return Certificate(objective, *bound_gap(problem, null, (coef, intercept), objective, sums, (positive, negative)))


class GapSums(NamedTuple):
    """What the duality gap is made of: Fenchel gap (q,), Phi'(w v)/W (M, q) and mean v (q,)."""

    fenchel_gap: Array
    phi_t_dual: Array
    mean_dual: Array


def bound_gap(
    problem: Problem,
    null: NullModel,
    fit: tuple[Array, Array],
    objective: Array,
    sums: GapSums | DualSums,
    sides: tuple[Array, Array],
) -> tuple[Array, Array]:
    """The duality gap (q,) of a fit (coef, intercept), with all that rounding can have hidden in it; and that of F.

    The sums were computed with rounding errors. What they mean for the gap:

    - A residual has errors of the sizes of what it is the difference of, offset, Phi u and b; they change the Fenchel
      gap by at most their product with |slope - v|. The sum over rows has errors of the size of mean |v r|.
    - Phi'(w v)/W is a sum over rows, whose error is added to the norm of the dual residual.
    - Duals that are balanced up to rounding become exactly so if one side is multiplied by 1 - t, with t = |mean v| /
      side. That changes the Fenchel gap by at most t mean |v r|, and Phi'(w v)/W by t times itself.

    |slope| and |v| are at most the ends of the domain or, in the mean square, for a loss with second derivatives up to
    1 / w, sqrt(2 F / w) and sqrt(2 Fenchel gap / w) more. `sides` are the sums of positive and of negative duals, or
    lower bounds of them.
    """
    (coef, intercept), sizes = fit, null.sizes
    fenchel = np.maximum(sums.fenchel_gap, 0)
    norm = np.sqrt(np.einsum("ij,ij->j", coef, coef))
    prediction = sizes.rms_feature * norm
    if weak_ridge(problem, null):
        prediction = np.einsum("ij,ij->j", sizes.column_scale, np.abs(coef))
    slopes = bound_slopes(problem.loss, objective, fenchel)
    hidden, products = bound_errors(problem.loss, sizes, (objective, fenchel), slopes, (prediction, np.abs(intercept)))
    slope = np.minimum(*slopes)
    unbalanced = np.zeros_like(norm)
    if problem.fit_intercept:
        mean_dual = np.abs(sums.mean_dual)
        with np.errstate(divide="ignore"):
            unbalanced = np.divide(mean_dual, np.maximum(*sides), out=np.zeros_like(norm), where=mean_dual > 0)
        unbalanced = np.minimum(unbalanced + 2 * sizes.row_sum, 1)
    error = slope * sizes.rms_feature * (sizes.row_sum + unbalanced)
    error = error + np.finfo(float).eps * problem.alpha * norm
    relative_error = slope * np.sqrt(len(coef)) * (sizes.row_sum + unbalanced)
    residual = residual_bound(problem, null, coef, sums.phi_t_dual, objective, (error, relative_error))
    return fenchel + hidden + unbalanced * products + residual, hidden


def residual_bound(
    problem: Problem,
    null: NullModel,
    coef: Array,
    phi_t_dual: Array,
    objective: Array,
    errors: tuple[Array | float, Array | float] = (0.0, 0.0),
) -> Array:
    """The dual residual's part of the gap (q,): a bound of  g'(u - u*) - alpha |u - u*|^2,  g = 2 alpha u - phi_t_dual.

    For the minimiser u*, of which only F(u*) <= F(u) is known. In general that is |g|^2 / (4 alpha), but where the
    ridge is so weak that g would have to be smaller than its rounding error, the data bound the distance: both fits
    have a mean |r| of at most (F + conjugate(k)) / k, for any slope k, so that their predictions are at most twice that
    apart, and coefficients that far times `RowSizes.reach`. `errors` are those of |g| and of |g / column_scale|.
    """
    gradient, sizes = 2 * problem.alpha * coef - phi_t_dual, null.sizes
    ridge = (np.sqrt(np.einsum("ij,ij->j", gradient, gradient)) + errors[0]) ** 2 / (4 * problem.alpha)
    if problem.loss.margin or not weak_ridge(problem, null):
        return ridge
    scaled = gradient / sizes.column_scale
    norm = np.sqrt(np.einsum("ij,ij->j", scaled, scaled)) + errors[1]
    low, high = problem.loss.domain
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.minimum(np.minimum(high, -low), np.sqrt(2 * objective / problem.loss.smoothing_width))
        conjugate = np.max(problem.loss.conjugate(np.array([slope, -slope])), axis=0)
        apart = norm * sizes.reach * 2 * (objective + conjugate) / slope
    return np.fmin(ridge, np.where(objective > 0, apart, np.inf))


def balance_factors(sums: DualSums | FullGradient) -> tuple[Array, Array]:
    """Factors in [0, 1] for the positive and the negative duals that make mean v = 0 and keep v in its domain."""
    return _shrink_factor(sums.positive, sums.mean_dual), _shrink_factor(sums.negative, -sums.mean_dual)


def balanced(dual: Array, share: Array, elsewhere: float) -> Array:
    """One column's duals (m,), shrunk on one side such that their weighted sum plus `elsewhere` is zero.

    share (m,) carries the signs of the rows; `elsewhere` is the sum of other rows' weighted duals.
    """
    weighted = share * dual
    positive, mean_dual = np.maximum(weighted, 0).sum(), weighted.sum()
    negative, surplus = positive - mean_dual, mean_dual + elsewhere
    return np.where(weighted > 0, _shrink_factor(positive, surplus), _shrink_factor(negative, -surplus)) * dual


def _shrink_factor(part: Array, surplus: Array) -> Array:
    """The factor (part - surplus) / part in [0, 1], or 1 where there is no surplus."""
    return np.divide(part - surplus, part, out=np.ones_like(part), where=(surplus > 0) & (part > 0)).clip(0, 1)


def low_rank_bound(dual: Array, share: Array, left_out: Array, alpha: Array) -> Array:
    """Bound on what features G miss of the kernel K = G G' + E,  from the diagonal `left_out` (n,) of E.

    Minimising over the kernel's whole space can gain at most  v'E v / (4 alpha) <= (sum |v| sqrt(E_ii))^2 / (4 alpha)
    with v = w dual / W, because E is positive semidefinite.
    """
    return ((share * np.sqrt(left_out)) @ np.abs(dual)) ** 2 / (4 * alpha)


@dataclass(frozen=True)
class NullModelOptions:
    """Constants of the null model and of the sizes that are measured with it."""

    # Rows per chunk where residuals of a constant fit are computed: larger arrays are new pages of memory each time.
    chunk_rows: int = 16_000
    # Rows of the sample from which the best constant is computed out of core.
    constant_sample: int = 10_000
    # Rows x features up to which |phi| is measured on all rows, not on a few.
    measured_size: int = 2_000_000
    # Ratio of alpha to mean |phi|^2 below which few features are measured, so that data bound the dual residual where
    # the ridge does not; up to so many features.
    weak_ridge: float = 1e-14
    max_features: int = 100
    # Rounding error of the eigenvalues of a matrix with a unit diagonal, per row.
    eigenvalue_error: float = 1e-15


OPTIONS = NullModelOptions()


@dataclass(frozen=True, eq=False)
class RowSizes:
    """How large the numbers are whose rounding errors enter the duality gap, one entry per column.

    Attributes
    ----------
    mean_offset, rms_offset : arrays of shape (q,)
        Weighted mean and root mean square of |y|; of 1 for margin losses. The latter is inf for losses that are nowhere
        curved, of which `bound_errors` needs the mean only.
    rms_feature : array of shape (q,)
        Root mean square of |phi_i|.
    row_sum, feature_sum : arrays of shape (q,)
        Relative rounding error of sums over all rows, and over all features.
    column_scale, reach : arrays of shape (M, q) and (q,)
        Where they are known (else column_scale has no rows): root mean square of every feature and, in these units, an
        upper bound of |d| for all coefficients d with mean |phi'd + e| <= 1 for some constant e. See `residual_bound`.
    """

    mean_offset: Array
    rms_offset: Array
    rms_feature: Array
    row_sum: Array
    feature_sum: Array
    column_scale: Array
    reach: Array

    def take(self, columns: NDArray[np.intp]) -> RowSizes:
        """The sizes of some of the columns."""
        return take_columns(self, columns)


@dataclass(frozen=True, eq=False)
class NullModel:
    """The best constant (0 without intercept), its objective F0, the rounding error of F0, and the rows' sizes."""

    constant: Array
    objective: Array
    error: Array
    sizes: RowSizes

    def take(self, columns: NDArray[np.intp]) -> NullModel:
        """The null models of some of the columns."""
        return take_columns(self, columns)


def null_model(problem: Problem, known: NullModel | None = None) -> NullModel:
    """F0 = F at u = 0 with the best constant: the scale of relative gaps.

    `known` is that of the same targets and losses with other ridge weights, or with more features. It is returned if it
    serves here as well: sizes of more features bound those of fewer, unless these are measured one by one.
    """
    if known is not None and len(known.objective) == problem.n_columns:
        weak = _is_weak(problem, float(known.sizes.rms_feature[0] ** 2))
        if len(known.sizes.column_scale) == (problem.rows.n_features if weak else 0):
            return known
    constant = _fit_constant(problem) if problem.fit_intercept else np.zeros(problem.n_columns)
    constant, *others = problem.storable_constants(constant)
    objective, mean_offset, square_offset = _mean_over_rows(problem, _constant_loss_block, constant)
    for other in others:
        found = _mean_over_rows(problem, _constant_loss_block, other)[0]
        constant, objective = np.where(found < objective, other, constant), np.minimum(found, objective)
    sizes = _row_sizes(problem, mean_offset, square_offset)
    zero = np.zeros_like(objective)
    slopes = bound_slopes(problem.loss, objective, zero)
    error, _ = bound_errors(problem.loss, sizes, (objective, zero), slopes, (zero, np.abs(constant)))
    return NullModel(constant, objective, np.where(objective > 0, error, 0), sizes)


def _row_sizes(problem: Problem, mean_offset: Array, square_offset: Array) -> RowSizes:
    """The sizes of a problem's rows; sums of m numbers are taken to have errors of sqrt(m) rounding errors.

    That is the probabilistic bound of Higham and Mary (2019), which sums over a few numbers, plus 2, satisfy in any
    case; each rounding error is half an eps, so that there is a factor of 2 to spare.
    """
    eps, ones = np.finfo(float).eps, np.ones(problem.n_columns)
    row_sum, feature_sum = (eps * (np.sqrt(count) + 2) for count in (problem.rows.n_rows, problem.rows.n_features))
    if problem.rows.n_rows * problem.rows.n_features <= OPTIONS.measured_size:
        (square_feature,) = problem.rows.map_reduce(_square_feature_block, problem.rows.new_state(), reduce=sum_tuples)
    else:
        square_feature = problem.rows.kernel_scale()
    column_scale: Array = np.empty((0, problem.n_columns))
    reach = np.inf
    if _is_weak(problem, square_feature):
        column_scale, reach = _measure_reach(problem)
    return RowSizes(
        mean_offset, np.sqrt(square_offset), np.sqrt(square_feature) * ones, row_sum * ones, feature_sum * ones,
        column_scale, reach * ones,
    )  # fmt: skip


def _is_weak(problem: Problem, square_feature: float) -> bool:
    """Whether few features are measured, because the ridge is too weak to be seen beside them."""
    few = problem.rows.n_features <= OPTIONS.max_features and problem.screened is None
    return few and float(problem.alpha.min()) < OPTIONS.weak_ridge * square_feature


def _square_feature_block(block: Block, state: BlockState, args: None) -> tuple[float]:  # noqa: ARG001
    """Weighted sum of |phi_i|^2 over one block."""
    features = block.features.astype(float, copy=False)
    return (float(block.share @ np.einsum("ij,ij->i", features, features)),)


def _measure_reach(problem: Problem) -> tuple[Array, float]:
    """`column_scale` and `reach` of `RowSizes`, in one pass over the features.

    For rows a_i of unit columns, mean |a_i'd| >= mean (a_i'd)^2 / max |a_i'd| >= s |d| / max |a_i|, with s the smallest
    eigenvalue of their second moments.
    """
    gram, largest = problem.rows.map_reduce(
        _moments_block, problem.rows.new_state(), problem.fit_intercept, reduce=_reduce_moments
    )
    scale = np.sqrt(np.diag(gram))
    scale[scale == 0] = 1
    if not np.isfinite(gram).all():
        return np.empty((0, problem.n_columns)), np.inf
    smallest = np.linalg.eigvalsh(gram / np.outer(scale, scale))[0] - len(gram) * OPTIONS.eigenvalue_error
    reach = np.sqrt(np.sum((largest / scale) ** 2)) / smallest if smallest > OPTIONS.eigenvalue_error else np.inf
    scales = scale[: problem.rows.n_features]
    return np.repeat(scales[:, None], problem.n_columns, axis=1), float(reach)


def _moments_block(block: Block, state: BlockState, intercept: bool) -> tuple[Array, Array]:  # noqa: ARG001
    """Weighted second moments of (phi, 1), or of phi, over one block, and the largest absolute values."""
    rows = np.asarray(block.features[block.share > 0], dtype=float)
    rows = np.column_stack([rows, np.ones(len(rows))]) if intercept else rows
    weighted = rows * np.sqrt(block.share[block.share > 0])[:, None]
    return weighted.T @ weighted, np.abs(rows).max(axis=0, initial=0)


def _reduce_moments(answers: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Reduce step: sums of moments, and maxima."""
    grams, largest = zip(*answers, strict=True)
    return sum(grams[1:], start=grams[0]), np.max(largest, axis=0)


def dual_variance(problem: Problem) -> Array:
    """mean v^2 (q,) of the slopes v at the best constant, or at 0 where that fits exactly: duals before any fit."""
    constant = _fit_constant(problem)
    (variance,) = _mean_over_rows(problem, _mean_square_slope_block, constant)
    if np.all(variance > 0):
        return variance
    return np.where(
        variance > 0, variance, _mean_over_rows(problem, _mean_square_slope_block, np.zeros_like(constant))[0]
    )


def _fit_constant(problem: Problem) -> Array:
    """The constant with the smallest mean loss; out of core, that of a sample."""
    rows = problem.rows.gather(min(OPTIONS.constant_sample, problem.rows.n_rows), np.random.default_rng(0))
    return problem.rows.run_at(_fit_constant_to, problem.loss, rows)[1]


def _fit_constant_to(loss: Loss, rows: InMemoryDesign) -> tuple[None, Array]:
    """For `run_at`: the best constant of rows in memory."""
    return None, loss.fit_constant(rows.target, rows.share)


def _mean_over_rows(problem: Problem, step: Callable[..., tuple[Array, ...]], constant: Array) -> tuple[Array, ...]:
    """Map-reduce of a block function over all rows, at a constant fit."""
    return problem.rows.map_rows(step, problem.rows.new_state(), (problem.loss, constant), reduce=sum_tuples)


def _constant_loss_block(block: Block, state: BlockState, args: tuple[Loss, Array]) -> tuple[Array, ...]:  # noqa: ARG001
    """Over one block: mean loss of a constant, and mean and mean square (inf if not needed) of |offset|, each (q,)."""
    loss, constant = args
    if not loss.margin and blocks.is_compiled(loss, block):
        return *blocks.constant_loss(block, loss, constant), np.full(len(constant), np.inf)
    sums, curved = np.zeros((3, len(constant))), loss.smoothing_width.any()
    for part, offset, sign in _offsets(block, loss):
        share, size = block.share[part], np.abs(np.broadcast_to(offset, block.targets[part].shape))
        square = share @ (size * size) if curved else np.inf
        sums[0] += share @ loss.value(offset - sign * constant)
        sums[1] += share @ size
        sums[2] += square
    return tuple(sums)


def _mean_square_slope_block(block: Block, state: BlockState, args: tuple[Loss, Array]) -> tuple[Array]:  # noqa: ARG001
    """Mean squared slope at a constant over one block."""
    loss, constant = args
    squares = (
        block.share[part] @ loss.slope(offset - sign * constant) ** 2 for part, offset, sign in _offsets(block, loss)
    )
    return (np.asarray(sum(squares)),)


def _offsets(block: Block, loss: Loss) -> Iterator[tuple[slice, Array | float, Array | float]]:
    """What `loss.margin_transform` says of the targets, in chunks of rows: (rows, offset, sign) each."""
    for start in range(0, len(block.share), OPTIONS.chunk_rows):
        part = slice(start, start + OPTIONS.chunk_rows)
        yield part, *loss.margin_transform(block.targets[part])


def bound_slopes(loss: Loss, objective: Array, fenchel_gap: Array) -> tuple[Array, Array]:
    """Bounds (q,) of |slope| and of |v|: of the largest, and in the mean square; inf where there is none."""
    low, high = loss.domain
    largest, width = np.maximum(-low, high), loss.smoothing_width
    if not width.any():
        return largest, np.full_like(largest, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        curved = np.sqrt(2 * np.maximum(objective, 0) / width) + np.sqrt(2 * fenchel_gap / width)
    return largest, np.where(width > 0, curved, np.inf)


def bound_errors(
    loss: Loss,
    sizes: RowSizes,
    parts: tuple[Array, Array],
    slopes: tuple[Array, Array],
    prediction: tuple[Array, Array],
) -> tuple[Array, Array]:
    """Bounds (q,) of the rounding error of F and of the Fenchel gap, and of the mean of loss + conjugate + |v r|.

    Parameters
    ----------
    parts : F and the Fenchel gap, (q,) each
    slopes : what `bound_slopes` returns
    prediction : bounds of the mean |phi'u|, and |b|, (q,) each
    """
    eps, (objective, fenchel), (largest, mean_square) = np.finfo(float).eps, parts, slopes
    linear, whole = prediction[0], prediction[0] + prediction[1]

    def weigh(constant: Array | float, part: Array | float) -> Array:
        """2 |slope| times (constant + part of the offset), in the mean over rows."""
        with np.errstate(invalid="ignore"):  # inf times 0
            sides = largest * (constant + part * sizes.mean_offset), mean_square * (constant + part * sizes.rms_offset)
            return 2 * np.fmin(*sides)

    residuals = weigh(sizes.feature_sum * linear + 2 * eps * whole, 2 * eps)
    # Of lines through 0, |v r| <= loss + Fenchel gap.
    products = 2 * (np.maximum(objective, 0) + fenchel) if loss.is_two_piece else weigh(whole, 1.0)
    return residuals + sizes.row_sum * products + sizes.feature_sum * np.abs(objective), products


def weak_ridge(problem: Problem, null: NullModel) -> bool:
    """Whether the features were measured because the ridge is too weak to be seen beside them."""
    return len(null.sizes.column_scale) == problem.rows.n_features
