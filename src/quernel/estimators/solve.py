"""Solve the problem of a plan: rows -> features -> design matrix -> certified solution.

    F(u, b) = sum_i w_i loss(y_i, phi(x_i)'u + b) + alpha u'u,        sum_i w_i = 1.

Features are random, landmarks, or the columns themselves; with n_components="exact" they are a pivoted Cholesky factor
of the kernel matrix, Phi Phi' <= K, of sufficient rank. What its truncation can change in the objective is bounded from
the dual variables and the residual diagonal (`objective.duality_gap.low_rank_bound`), and this bound is added to the
duality gap: the gap then holds for all functions of the kernel's RKHS.

What random features cost beside that is found afterwards, by the kernel matrix of the training rows
(`compute_kernel_gap`); how far they are from the kernel, on a few rows, after every fit (`feature_error`).
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import _safe_indexing

from quernel._machine import parallel_map, single_threaded_blas
from quernel._validation import check_weight
from quernel.data import ArrayRows, DaskRows, InMemoryDesign, blocks, memory_budget
from quernel.data.design_matrix import FeatureMap
from quernel.estimators.inputs import check_lengths, check_target, load_if_fits, source_of
from quernel.estimators.prediction import check_rows
from quernel.estimators.warnings import print_progress
from quernel.features import LandmarkPredictor, PivotedCholesky, PrecomputedFeatures, TrendFeatures
from quernel.features.landmarks import CHOLESKY
from quernel.kernels import Kernel, Linear, ShiftInvariantKernel
from quernel.losses import Loss, Pinball
from quernel.objective import Problem
from quernel.objective.duality_gap import low_rank_bound, relative
from quernel.objective.problem import Centring
from quernel.solvers import Result, Solver, Status
from quernel.solvers.progress import Stop, listening, stopping
from quernel.solvers.result import InitialPoint, after, recertify
from quernel.theory.kernel_gap import KernelGap, kernel_gap
from quernel.tuning.alpha import has_gram
from quernel.tuning.data_summary import FAR, DataSummary

if TYPE_CHECKING:
    from quernel.estimators.quantile import KernelQuantileRegressor


Array = NDArray[np.floating]


@dataclass(frozen=True)
class SolveOptions:
    """Constants of n_components="exact", of the coordinates in which problems are solved, and of checks."""

    largest_tol: float = 1e-10  # of the first Cholesky factor: it assumes dual variables of size 1
    max_trials: int = 5  # factors at most; it is rarely refined twice
    # Problems up to this size (n_rows x n_features) are polished to machine precision: the error of the low-rank factor
    # exceeds rounding error, so that polishing a large problem gains nothing.
    polished_size: int = 100_000
    # Rows on which predictions are compared with what was fitted: more of them cost time.
    compared_rows: int = 24
    # Rows on whose pairs features are compared with the kernel.
    kernel_rows: int = 50
    # Relative difference of the objective above which the data of `kernel_gap` are not the training data.
    same_objective: float = 1e-5
    # Rows from which the coordinates of ready-made features are chosen, and of those that take time to compute.
    centring_rows: int = 256
    scaling_rows: int = 32
    # Mean |phi|^2, or its inverse, up to which features stay as they are.
    usual_scale: float = 1e6


OPTIONS = SolveOptions()
NO_CENTRING = Centring()


@dataclass(frozen=True, eq=False)
class Task:
    """What is minimised, and how.

    Attributes
    ----------
    loss : Loss, one column per output
    alpha : float
    fit_intercept : bool
    solver : Solver
    tol : float, relative duality gap
    max_iter : int
    max_memory : int or None, bytes for stored features
    """

    loss: Loss
    alpha: float
    fit_intercept: bool
    solver: Solver
    tol: float
    max_iter: int
    max_memory: int | None

    def problem(self, design: Any, centring: Centring) -> Problem:
        """What is minimised, on a design matrix in these coordinates."""
        alpha = self.alpha * centring.scale**2
        return Problem(design, self.loss, alpha, fit_intercept=self.fit_intercept, centring=centring)

    def solve(self, design: Any, *, centring: Centring = NO_CENTRING, **kwargs: Any) -> Result:
        """Run the solver on a design matrix.

        The result is in the coordinates of the design, what is handed in and out on the way in the original ones.
        """
        if (initial := kwargs.get("initial")) is not None:
            coef, intercept = centring.enter(initial.coef, initial.intercept)
            kwargs["initial"] = replace(initial, coef=coef, intercept=intercept)
        if (callback := kwargs.get("callback")) is not None:
            kwargs["callback"] = lambda point: callback(_restore(point, centring))
        if "points" in kwargs:
            kwargs["points"] = centring.transform_features(kwargs["points"])
        if "constraints" in kwargs:
            kwargs["constraints"] = replace(kwargs["constraints"], centring=centring)
        with single_threaded_blas(design.n_rows, design.n_features) as threads:
            design.use_threads(threads)
            return self.solver(self.problem(design, centring), tol=self.tol, max_iter=self.max_iter, **kwargs)


Fit = TypeVar("Fit", Result, InitialPoint)


def _restore(fit: Fit, centring: Centring) -> Fit:
    """A fit in the original coordinates, in which it is predicted with and stored."""
    coef, intercept = centring.restore(fit.coef, fit.intercept)
    return replace(fit, coef=coef, intercept=intercept)


class TimeBudget:
    """`max_seconds` of a fit, counted from now: planning gets half, solving what is left, and at least half.

    Parts of planning cannot be stopped; what they take too long is not at the expense of the solution.
    """

    def __init__(self, max_seconds: float | None) -> None:
        self._max_seconds, self._start = max_seconds, time.monotonic()

    def planning(self) -> AbstractContextManager[Stop]:
        """Context of the choices: after half of the time, the best of those tried is taken."""
        return stopping(None if self._max_seconds is None else self._max_seconds / 2)

    def solving(self) -> AbstractContextManager[Stop]:
        """Context of a solver, which the rest of the time limits and Ctrl-C ends."""
        return stopping(self.left(), interruptible=True)

    def finishing(self, solution: Solution) -> AbstractContextManager[Stop]:
        """Context of what is fitted after the solution: in the rest of the time, none if the solver was stopped."""
        left = None if self._max_seconds is None else max(self._start + self._max_seconds - time.monotonic(), 0.0)
        return stopping(left if solution.stopped_by is None else 0.0, interruptible=True)

    def left(self) -> float | None:
        """Seconds until the limit, and at least half of all; None without a limit."""
        if self._max_seconds is None:
            return None
        return max(self._start + self._max_seconds - time.monotonic(), self._max_seconds / 2)


@dataclass(frozen=True, eq=False)
class Solution:
    """Fitted feature map, the certified coefficients on its features, and why the solver was stopped, if it was."""

    feature_map: FeatureMap | PivotedCholesky
    result: Result
    stopped_by: str | None = None

    def explain_stop(self, stop: Stop) -> Solution:
        """The same solution with the reason, if the solver was stopped short of its tolerance."""
        return replace(self, stopped_by=stop.reason) if Status.STOPPED in self.result.status else self


def solve_on_features(
    task: Task, summary: DataSummary, feature_map: FeatureMap, *, float32: bool = False, **kwargs: Any
) -> Solution:
    """Solve on the features of a fitted map; with `float32` they are stored in single precision.

    Predictions use float64 features, so the gap that is reported is always theirs.
    """
    centring = _choose_centring(task, summary, feature_map)
    centred_map = CentredMap(feature_map, centring)
    inner_map: FeatureMap = feature_map if centred_map.is_identity else centred_map
    design = summary.build_design(inner_map, task.max_memory, np.float32 if float32 else float)
    result = task.solve(design, centring=centring, **kwargs)
    if float32 and summary.in_memory:
        del design
        exact = InMemoryDesign(summary.source, inner_map, max_memory=0)
        with single_threaded_blas(exact.n_rows, exact.n_features) as exact.threads:
            result = recertify(task.problem(exact, centring), result, task.tol)
    elif float32 and design.rounded:
        # The dual variables of out-of-core rows were not kept: solve again from this solution with float64 features.
        # One pass recovers the duals, and further steps follow only if the gap exceeds tol.
        coef, intercept = centring.restore(result.coef, result.intercept)
        initial = InitialPoint.solution(coef, intercept, summary.n_rows, result.parameters, task.tol)
        again = task.solve(design.as_float64(), centring=centring, **kwargs | {"initial": initial})
        result = after(result, again)
    return Solution(feature_map, _restore(result, centring))


class CentredMap:
    """Feature map followed by the change of coordinates of a `Centring`.

    Where features are far from zero, their inner products agree in the leading digits, and differences between rows are
    in those that rounding takes.
    """

    def __init__(self, feature_map: FeatureMap, centring: Centring) -> None:
        self.feature_map, self.centring, self.n_components_ = feature_map, centring, feature_map.n_components_

    @property
    def is_identity(self) -> bool:
        """Whether features stay as they are."""
        return self.centring.mean is None and self.centring.scale == 1

    def transform(self, X: Array, **kwargs: Any) -> Array:
        """Centred and scaled features (m, M) of these rows."""
        return self.centring.transform_features(self.feature_map.transform(X, **kwargs))

    def prepare(self, n_rows: int) -> None:
        """Prepare the inner feature map for so many rows, such as by loading compiled code where that pays."""
        if hasattr(self.feature_map, "prepare"):
            self.feature_map.prepare(n_rows)


def _choose_centring(task: Task, summary: DataSummary, feature_map: FeatureMap) -> Centring:
    """Coordinates in which features are neither huge nor tiny nor, if there is an intercept, far from zero.

    From a sample of rows: any centre and scale will do. Only columns that are features themselves are centred; others
    are random functions, and vary. Features for which it makes no difference are left as they are.
    """
    ready = isinstance(getattr(feature_map, "base", feature_map), PrecomputedFeatures)
    if isinstance(getattr(feature_map, "kernel", None), ShiftInvariantKernel):  # |phi|^2 is K(x, x) = 1
        return Centring(summary.centre)
    X = summary.sample.X[:: -(-len(summary.sample.X) // (OPTIONS.centring_rows if ready else OPTIONS.scaling_rows))]
    features, mean = feature_map.transform(np.asarray(X, dtype=float)), None
    with np.errstate(over="ignore", invalid="ignore"):  # the solver tells where numbers are not finite
        if task.fit_intercept and ready:
            centre = features.mean(axis=0)
            if np.any(np.abs(centre) > FAR * (features - centre).std(axis=0)):
                mean, features = centre, features - centre
        return Centring(summary.centre, mean, _power_of_two(np.einsum("ij,ij->i", features, features)))


def _power_of_two(squares: Array) -> float:
    """The factor by which to multiply features, of these squared lengths (m,), to make them about 1; 1 if they are."""
    square = float(np.mean(squares))
    if not (0 < square < np.inf) or 1 / OPTIONS.usual_scale <= square <= OPTIONS.usual_scale:
        return 1.0
    return float(2.0 ** -round(np.log2(square) / 2))


def solve_full_kernel(task: Task, summary: DataSummary, kernel: Kernel) -> Solution:
    """Factor the kernel matrix and solve, each to half of the tolerance; the gap returned holds for the full kernel.

    The admissible truncation depends on the dual variables, so the first tolerance `cut` is a guess. If the truncation
    turns out to matter, the factorisation is repeated with a tolerance derived from the duals just found.
    """
    source: ArrayRows = summary.source
    share, tol, half = source.share(), task.tol, replace(task, tol=task.tol / 2)
    # While it grows, up to three copies of the factor are in memory.
    most = int(memory_budget(task.max_memory) / (3 * 8 * source.n_rows))
    cut = min(OPTIONS.largest_tol, max(task.alpha * tol, CHOLESKY.floor))
    for _ in range(OPTIONS.max_trials):
        feature_map = PivotedCholesky(kernel, tol=cut, max_components=most)
        features = feature_map.fit_transform(source.X, sample_weight=source.weight)
        if feature_map.n_components_ >= most:
            raise ValueError(
                f'n_components="exact" needs more than {most:,} features for {source.n_rows:,} rows with this kernel, '
                "more than memory allows. Use random features (n_components=1000, say), a larger bandwidth, a smoother "
                "kernel, or raise max_memory."
            )
        polish, diagonal = features.size <= OPTIONS.polished_size, kernel.diagonal(source.X)
        centring = Centring(summary.centre, None, _power_of_two(diagonal))
        features = centring.transform_features(features)
        result = half.solve(InMemoryDesign(source, features=features), centring=centring, polish=polish)
        # Kernel values and their factor are rounded; what that hides is bounded like what was left out.
        rounding = np.finfo(float).eps * (np.sqrt(features.shape[1]) + 4) * diagonal
        missed = low_rank_bound(result.dual, share, feature_map.residual_ + rounding, np.asarray(task.alpha))
        missed = missed.reshape(len(result.objective), -1).sum(axis=1)  # several columns may form one problem
        differs = _prediction_error(task.loss, source, feature_map, centring, features, result)
        scale = np.maximum(result.objective, result.null_objective / 1000)
        excess = np.max(np.divide(missed, scale * tol / 2, out=np.zeros_like(missed), where=scale > 0))
        if excess <= 1 or cut <= CHOLESKY.floor:
            break
        cut = max(cut / (2 * excess), CHOLESKY.floor)
        del features
    gap = np.minimum(result.gap + missed, result.gap + result.objective) + differs  # losses are not negative
    relative_gap = relative(gap, result.objective, result.null_objective)
    result = replace(result, gap=gap, relative_gap=relative_gap)
    return Solution(feature_map, _restore(result, centring))


def _prediction_error(
    loss: Loss, source: ArrayRows, feature_map: PivotedCholesky, centring: Centring, features: Array, result: Result
) -> Array:
    """By how much the mean loss (q,) of predictions differs from that of the factor, measured on a few rows.

    Predictions compute features anew, from kernel values with the landmarks; with a nearly singular factor and a tiny
    ridge their rounding errors are no longer negligible.
    """
    some = slice(None, None, -(-source.n_rows // OPTIONS.compared_rows))
    offset, sign = loss.margin_transform(source.y[some] if source.y.ndim == 2 else source.y[some, None])
    with single_threaded_blas(*features[some].shape):  # threads would wait for one another
        anew = centring.transform_features(feature_map.transform(source.X[some]))
        ours, theirs = (
            loss.value(offset - sign * (Phi @ result.coef + result.intercept)) for Phi in (features[some], anew)
        )
    share = source.share()[some]
    error = 2 * (share @ np.abs(ours - theirs)) / share.sum()
    return error if len(error) == len(result.gap) else np.full(len(result.gap), error.sum())


def evaluate_outputs(feature_map: FeatureMap, coef: Array, intercept: Array, n_components: int, X: Array) -> Array:
    """Phi u + b of the rows of X, shape (n, q), in parallel by blocks of a size for `n_components` features."""
    outputs = np.empty((len(X), coef.shape[1]))
    # Some feature maps compute Phi u without forming Phi.
    multiply = getattr(feature_map, "curves", lambda X, coef: feature_map.transform(X) @ coef)

    def fill(block: slice) -> None:
        outputs[block] = multiply(X[block], coef) + intercept

    if hasattr(feature_map, "prepare"):
        feature_map.prepare(len(X))
    with single_threaded_blas(len(X), n_components) as threads:
        parallel_map(fill, blocks(len(X), n_components), threads)
    return outputs


def feature_error(kernel: Kernel, feature_map: FeatureMap, X: Array) -> float:
    """Root mean square of phi(x)'phi(z) - k(x, z) over pairs of some of the rows; NaN if k cannot be evaluated."""
    if isinstance(kernel, Linear):
        return 0.0
    if not has_gram(kernel):
        return float("nan")
    some = np.asarray(X[:: -(-len(X) // OPTIONS.kernel_rows)], dtype=float)
    with single_threaded_blas(*some.shape):  # threads would wait for one another
        Phi = (feature_map.base if isinstance(feature_map, TrendFeatures) else feature_map).transform(some)
        try:
            gram = kernel.gram(some, some)
        except NotImplementedError:  # a kernel of the user's that has random features only
            return float("nan")
        difference = (Phi @ Phi.T - gram)[np.triu_indices(len(some), 1)]
    return float(np.sqrt(np.mean(difference**2))) if len(difference) else 0.0


def compute_kernel_gap(
    model: KernelQuantileRegressor, X: Any, y: Any, sample_weight: ArrayLike | None, *, similarity_only: bool
) -> KernelGap:
    """Check by the objective that these are the training data, and compute the bounds (`theory.kernel_gap`)."""
    if isinstance(model.kernel_, Linear):
        raise ValueError("The linear kernel has its own features, which cost nothing: kernel_gap is for other kernels.")
    if isinstance(model.feature_map_, TrendFeatures):
        raise ValueError("kernel_gap is for fits without monotone or convex columns, whose trends are no kernel's.")
    model.kernel_.check_diagonal()
    rows = _training_rows(model, X, y, sample_weight)
    features = model.feature_map_
    if isinstance(features, LandmarkPredictor):  # a loaded model: its coefficients refer to k(x, landmarks)
        features = features.to_nystroem()
    objective = _objective(model, rows)
    if not np.allclose(objective, model.objective_, rtol=OPTIONS.same_objective, atol=0):
        raise ValueError(
            f"kernel_gap needs the rows, targets and weights that the model was fitted to: on these {rows.n_rows:,} "
            f"rows its objective is {objective.tolist()}, at the end of its fit it was {model.objective_.tolist()}."
        )
    with listening(print_progress) if model.verbose else nullcontext():
        return kernel_gap(
            rows,
            model.kernel_,
            features,
            model.quantiles_,
            model.alpha_,
            objective,
            fit_intercept=model.fit_intercept,
            tol=model.tol,
            max_iter=model.max_iter,
            max_memory=model.max_memory,
            similarity_only=similarity_only,
        )


def _training_rows(model: KernelQuantileRegressor, X: Any, y: Any, sample_weight: ArrayLike | None) -> ArrayRows:
    """Validate the data as `fit` does, in memory and without rows of weight 0, but leave the model unchanged."""
    given = source_of(X, y, sample_weight)
    if given is not None:
        source = load_if_fits(given, model.max_memory)
        if not isinstance(source, ArrayRows):
            where = "stay where Dask has them" if isinstance(source, DaskRows) else "exceed max_memory"
            raise ValueError(
                f"kernel_gap compares every row with every other, in memory, but these {source.n_rows:,} rows {where}. "
                "Give rows that fit in memory, or fit a model to a sample of them and ask that."
            )
        X, y, sample_weight = source.X, source.y, source.weight
    y = check_target(y)
    check_lengths(X, y)
    weight = None if sample_weight is None else check_weight(sample_weight, len(y))
    if weight is not None and not weight.all():
        counts = np.flatnonzero(weight)
        X, y, weight = _safe_indexing(X, counts), y[counts], weight[counts]
    return ArrayRows(check_rows(model, X, training=True), y, weight)


def _objective(model: KernelQuantileRegressor, rows: ArrayRows) -> Array:
    """Objective F = mean pinball loss + alpha u'u of the model on these rows, shape (q,)."""
    coef, features = model.coef_, model.feature_map_
    curves = model._predict_unsnapped(rows.X)
    if isinstance(features, LandmarkPredictor):
        squared_norm = np.einsum("iq,ij,jq->q", coef, features.transform(features.landmarks_), coef)
    else:
        squared_norm = np.einsum("iq,iq->q", coef, coef)
    mean_loss = rows.share() @ Pinball(model.quantiles_).value(rows.y[:, None] - curves)
    return mean_loss + model.alpha_ * squared_norm
