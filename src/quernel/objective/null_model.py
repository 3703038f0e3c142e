"""The null model, F0 = F at the best constant, and with it what rounding can change in sums over these rows.

Relative gaps are relative to F0, no fit is worse than the null model, and the pass that computes it also measures how
large targets and features are (`RowSizes`): rounding errors of F and of its duality gap are bounded by these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState, InMemoryDesign, sum_tuples
from quernel.losses import Loss
from quernel.objective import piecewise
from quernel.objective.problem import Problem, take_columns

Array = NDArray[np.floating]


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
    if not loss.margin and piecewise.applies(loss, block):
        return *piecewise.constant_loss(block, loss, constant), np.full(len(constant), np.inf)
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
