"""Kernel location and scale: Y = m(x) + s(x) Z, each a certified kernel ridge regression, with out-of-fold values.

1. Bandwidths, one per column, minimise the leave-one-out error of kernel ridge regression on a sample
   (`tuning.leave_one_out`); the kernel is one of those of `tuning.plan`.
2. On Nystroem features of all rows, m minimises the squared error of y, and log s that of log(|residual| + floor),
   where the residuals are *out of fold*: in-sample ones are too small, most of all on small tables.
3. A fold of ridge regression is the normal equations without its rows, so that out-of-fold values, the choice of the
   ridge and the final coefficients with their duality gap cost a few Cholesky factors rather than as many fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, solve_triangular

from quernel._machine import parallel_map, single_threaded_blas
from quernel.data import ArrayRows, Piece, blocks
from quernel.estimators.solve import evaluate_outputs
from quernel.features import LandmarkPredictor, Nystroem
from quernel.kernels import Kernel
from quernel.losses import Squared, weighted_quantiles
from quernel.solvers.progress import stop_requested
from quernel.tuning.bandwidth import auto_bandwidth
from quernel.tuning.data_summary import DataSummary, deduplicated_sample, take_rows
from quernel.tuning.leave_one_out import Pilot, fit_bandwidths, winsorize
from quernel.tuning.plan import LEARNED_KERNELS, choose_landmarks

Array = NDArray[np.floating]
Index = NDArray[np.integer]
Smooth = tuple[Array, Array]  # m and s of rows, (n,) each


@dataclass(frozen=True)
class LocationScaleOptions:
    """Constants of the kernel part; pairs are for tables below and above `large` rows."""

    min_rows: int = 30  # with fewer distinct rows there is no kernel part
    large: int = 5000
    pilot_rows: tuple[int, int] = (700, 800)  # rows from which bandwidths are learned: a step costs their number cubed
    landmarks: tuple[int, int] = (1000, 1000)  # Nystroem features
    folds: tuple[int, int] = (8, 5)
    left_out: tuple[int, int] = (200, 5000)  # of so many rows, residuals are those without the row, not without a fold
    rows_per_column: int = 40  # with fewer rows, bandwidths are learned again without each fold
    wide_folds: tuple[int, int] = (3, 10)  # folds of those, fewer for more rows, about `wide_rows` / n
    wide_rows: int = 1500
    search_folds: int = 2  # the first folds, which choose the ridge
    # Tried from the first on, then in the direction in which errors fall; the diagonal of the kernel is 1.
    ridge: float = 10.0**-0.5
    ridge_step: float = 10.0**0.5
    ridge_range: tuple[float, float] = (1e-6, 10.0**1.5)
    strip: int = 4096  # rows whose features are in memory at a time, where not all are
    intercept: float = 10.0  # the constant column, penalised like the features: large, so that this hardly matters
    floor: float = 0.3  # of the median |residual|, added before the logarithm
    # m and log s leave their range at the training rows by at most these shares of it: a kernel knows nothing outside
    # of the training inputs, and an exponential makes much of that.
    margins: tuple[float, float] = (0.25, 0.1)


OPTIONS = LocationScaleOptions()


@dataclass(frozen=True, eq=False)
class LocationScale:
    """Fitted m(x) and s(x).

    Attributes
    ----------
    feature_map : LandmarkPredictor; k(x, landmarks) of the kernel with its bandwidths
    coef, intercept : ndarrays of shape (M, 2) and (2,); columns m, in units of y, and log s
    limits : ndarray of shape (2, 2); the least and the largest m and log s that are predicted
    ridge, duality_gap : ndarrays of shape (2,); the gaps are relative
    """

    feature_map: LandmarkPredictor
    coef: Array
    intercept: Array
    limits: Array
    ridge: Array
    duality_gap: Array

    def predict(self, X: Array) -> tuple[Array, Array]:
        """m and s of the rows of X, each of shape (n,).

        log s is limited before the exponential: far from the training inputs a kernel returns to its intercept, but on
        the way there it may overshoot.
        """
        outputs = evaluate_outputs(self.feature_map, self.coef, self.intercept, len(self.coef), X)
        m, log_s = np.clip(outputs, *self.limits).T
        return m, np.exp(log_s)


def learn_kernel(summary: DataSummary) -> Kernel:
    """Kernel with one bandwidth per column, learned from a sample of the rows.

    Repeated rows are left out: beside a copy of itself a row that is left out is known, and bandwidths would shrink.
    """
    many_rows = summary.n_rows >= OPTIONS.large
    sample = deduplicated_sample(summary.sample, OPTIONS.pilot_rows[int(many_rows)])
    sample = take_rows(sample, np.random.default_rng(0).permutation(sample.n_rows))
    with single_threaded_blas(0, 0):
        pilot = Pilot(sample, Squared(), auto_bandwidth(summary))
        best, (found,) = fit_bandwidths([pilot], LEARNED_KERNELS, summary.scales, many_rows=many_rows)
    return LEARNED_KERNELS[best].with_bandwidth(found.bandwidth)


def fit_location_scale(
    summary: DataSummary,
    n_components: int | None,
    groups: Index | None,
    rng: np.random.Generator,
    everything: AllRows | None = None,
) -> tuple[LocationScale, Smooth, Smooth]:
    """Fit m and s; return them, and twice their values at the training rows, (n,) each, of fits without these rows.

    The first are to judge by: of small tables they are without the row alone, since without a whole fold errors are
    larger than those at new rows. The second are to learn from, and without a fold: without the row alone, m lies the
    lower the higher y is, which gives y away to trees that compare m at neighbouring rows.

    Rows with the same entry of `groups` (n,) are in one fold. `n_components` None is the automatic number of landmarks.
    With `everything`, of which the rows of the summary are a sample, kernel and landmarks are those of the sample, and
    the coefficients those of all rows. Bandwidths of many columns, learned from few rows, are learned again without
    each fold: rows that had a say in them would look better than new ones.
    """
    rows = summary.source
    weighted = ArrayRows(rows.X, rows.y, rows.share())
    model, values, columns = _fit_shared_kernel(summary, n_components, groups, rng, everything)
    if len(rows.y) < OPTIONS.rows_per_column * rows.X.shape[1]:
        n_folds = int(np.clip(OPTIONS.wide_rows // len(rows.y), *OPTIONS.wide_folds))
        folds = draw_folds(len(rows.y), n_folds, groups, rng)
        for fold in range(n_folds):
            test, train = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            if len(test) > 0 and len(train) > 0 and not stop_requested():
                others = None if groups is None else np.unique(groups[train], return_inverse=True)[1]
                part = _fit_shared_kernel(DataSummary(take_rows(weighted, train)), n_components, others, rng)[0]
                found = part.predict(rows.X[test])
                for one, new in zip((*values, *columns), (*found, *found), strict=True):
                    one[test] = new
    return model, values, columns


def _fit_shared_kernel(
    summary: DataSummary,
    n_components: int | None,
    groups: Index | None,
    rng: np.random.Generator,
    everything: AllRows | None = None,
) -> tuple[LocationScale, Smooth, Smooth]:
    """As `fit_location_scale`, where all folds share the kernel and the landmarks."""
    rows, share = summary.source, summary.source.share()
    large = int(summary.n_rows >= OPTIONS.large)
    kernel, size = learn_kernel(summary), n_components or OPTIONS.landmarks[large]
    landmarks = Nystroem(kernel, size, landmarks=choose_landmarks(kernel, summary.n_distinct, size))
    landmarks.fit(rows.X, sample_weight=share)
    folds = draw_folds(len(share), OPTIONS.folds[large], groups, rng)
    order = np.argsort(folds, kind="stable")  # so that the rows of a fold are a slice
    X, y, share = rows.X[order], rows.y[order], share[order]
    Phi = np.empty((len(X), landmarks.n_components_ + 1))

    landmarks.prepare(len(X) if everything is None else everything.n_rows)

    def fill(block: slice) -> None:
        Phi[block] = _add_constant(landmarks.transform(X[block]))

    with single_threaded_blas(*Phi.shape) as threads:
        parallel_map(fill, blocks(*Phi.shape, threads), threads)
        few, many = OPTIONS.left_out
        leave_one_out = groups is None and everything is None and few <= len(share) <= many
        ridge = FoldRidge(Phi, share, folds[order], leave_one_out=leave_one_out)
        kept = winsorize(y[:, None], share)[:, 0]
        location = ridge.fit(kept)
        size = np.abs(y - location.held_out)
        middle = float(weighted_quantiles(size, share, np.array([0.5]))[0]) or float(share @ size) or 1.0
        scale = ridge.fit(np.log(size + OPTIONS.floor * middle))
    if everything is not None:
        limits = float(kept.min()), float(kept.max())
        everything = replace(everything, index=everything.index[order])
        location, scale = _fit_all_rows(everything, landmarks, Phi, (location, scale), limits, middle, rng)
    both = (location, scale)
    feature_map, coef = LandmarkPredictor.from_nystroem(landmarks, np.column_stack([fit.coef for fit in both]))
    intercept, ridges, gaps = np.array([(fit.intercept, fit.ridge, fit.duality_gap) for fit in both]).T
    pairs = zip(both, OPTIONS.margins, strict=True)
    ends = np.array([_output_limits(Phi, fit, margin) for fit, margin in pairs]).T
    found = np.empty((4, len(X)))
    for k, (m, log_s) in enumerate([[fit.held_out for fit in both], [fit.out_of_fold for fit in both]]):
        found[2 * k : 2 * k + 2, order] = np.clip(m, *ends[:, 0]), np.exp(np.clip(log_s, *ends[:, 1]))
    model = LocationScale(feature_map, coef, intercept, ends, ridges, gaps)
    return model, (found[0], found[1]), (found[2], found[3])


def _output_limits(Phi: Array, fit: _Ridge, margin: float) -> tuple[float, float]:
    """Least and largest output for new rows: the range at the rows of Phi (n, M + 1), and this share of it beyond.

    Values in the sample, as `predict` gives them at these rows.
    """
    values = Phi[:, :-1] @ fit.coef + fit.intercept
    low, high = float(values.min()), float(values.max())
    return low - margin * (high - low), high + margin * (high - low)


def _add_constant(Phi: Array) -> Array:
    """Features with the constant as last column, (n, M + 1): one more feature, whose coefficient is the intercept."""
    return np.column_stack([Phi, np.full(len(Phi), OPTIONS.intercept)])


def draw_folds(n_rows: int, n_folds: int, groups: Index | None, rng: np.random.Generator) -> Index:
    """Fold of each row, shape (n_rows,), the same for all rows of a group.

    Groups are permuted rather than drawn, so that folds hold equally many of them, up to one.
    """
    labels = np.arange(n_rows) if groups is None else groups
    n_labels = int(labels.max()) + 1
    return (rng.permutation(n_labels) % n_folds)[labels]


@dataclass(frozen=True, eq=False)
class _Ridge:
    """One ridge regression: coefficients in units of its target, out-of-fold values (n,), ridge, relative gap.

    `middle` and `unit` standardise the target. `held_out` (n,) are values without the row alone, or out of fold.
    """

    coef: Array
    intercept: float
    out_of_fold: Array
    held_out: Array
    ridge: float
    duality_gap: float
    middle: float
    unit: float

    @classmethod
    def from_solution(
        cls, found: FoldSolution, out_of_fold: Array, middle: float, unit: float, held_out: Array | None = None
    ) -> _Ridge:
        """From the solution for the standardised target."""
        intercept = middle + unit * OPTIONS.intercept * float(found.solution[-1])
        out_of_fold = middle + unit * out_of_fold
        held_out = out_of_fold if held_out is None else middle + unit * held_out
        coef, gap = unit * found.solution[:-1], found.duality_gap
        return cls(coef, intercept, out_of_fold, held_out, found.ridge, gap, middle, unit)


@dataclass(frozen=True, eq=False)
class FoldSolution:
    """Ridge regression on all rows, (M + 1,) with the constant's last, and without each of K folds, (K, M + 1)."""

    ridge: float
    without_fold: Array
    solution: Array
    duality_gap: float


class FoldSums:
    """Ridge regression, without each fold and on all rows, from sums over the folds alone.

    Minimises  sum_i w_i (y_i - p_i'v)^2 + r |v|^2,  with weights w of mean 1 and features p whose last is a constant.
    Rows in memory and rows that are read block by block have the same sums.

    Parameters
    ----------
    grams : list of K ndarrays of shape (M + 1, M + 1), sums of w_i p_i p_i'
    n_rows : int
    """

    def __init__(self, grams: list[Array], n_rows: int) -> None:
        self.grams, self.gram, self.n_rows = grams, np.sum(grams, axis=0), n_rows

    def solve(self, moments: list[Array], square: float) -> FoldSolution:
        """Choose the ridge by out-of-fold error, from the sums of w_i p_i y_i in each fold and of w_i y_i^2.

        A fit without fold k has the normal equations  (G - G_k + r I) v = h - h_k:  K Cholesky factors per ridge, and
        only the first folds choose, so that the others are factorized once.
        """
        total, few = np.sum(moments, axis=0), min(OPTIONS.search_folds, len(self.grams))

        def without(ridge: float, k: int) -> Array:
            return _solve_ridge(self.gram - self.grams[k], total - moments[k], ridge)

        def error(ridge: float) -> float:
            """Squared error of the first folds, up to a constant.

            sum w (y - p'v)^2 = sum w y^2 - 2 v'h + v'G v  with the fold's own sums h and G: no row is needed for it.
            """
            try:
                solutions = [without(ridge, k) for k in range(few)]
            except LinAlgError:  # singular to working precision
                return np.inf
            return sum(float(v @ (self.grams[k] @ v - 2 * moments[k])) for k, v in enumerate(solutions))

        ridge = _descend_grid(error)
        folds = np.array([without(ridge, k) for k in range(len(self.grams))])
        return FoldSolution(ridge, folds, *self._solve_all(ridge, total, square))

    def _solve_all(self, ridge: float, moment: Array, square: float) -> tuple[Array, float]:
        """Solution for all rows, with an intercept that has no penalty, and its relative duality gap.

        With alpha = r / n and the dual 2 (y - p'v), which is balanced as the intercept is optimal, the gap of the mean
        loss is  alpha |u - Phi'W(y - p'v) / r|^2;  it is relative to the objective, as in `duality_gap`. The second
        solve is a step of iterative refinement, which brings the gap to rounding error.
        """
        penalty = np.full(len(moment), ridge)
        penalty[-1] = 0.0
        v = _solve_ridge(self.gram, moment, penalty)
        v += _solve_ridge(self.gram, moment - self.gram @ v - penalty * v, penalty)
        rest = (moment - self.gram @ v - penalty * v)[:-1]
        objective = (square - float(v @ (2 * moment - self.gram @ v)) + ridge * float(v[:-1] @ v[:-1])) / self.n_rows
        gap = float(rest @ rest) / (ridge * self.n_rows)
        return v, gap / max(objective, 1e-3 * square / self.n_rows, 1e-300)


class FoldRidge:
    """Ridge regressions on features Phi (n, M + 1) in memory, of which the last is a constant; see `FoldSums`.

    `share` (n,) are weights of sum 1, `folds` (n,) ascending numbers of folds; `leave_one_out` asks for values without
    each row, too.
    """

    def __init__(self, Phi: Array, share: Array, folds: Index, *, leave_one_out: bool = False) -> None:
        self.Phi, self.share, self.weight = Phi, share, share * len(share)
        starts = np.flatnonzero(np.r_[True, np.diff(folds) > 0])
        self.folds = [slice(*ends) for ends in zip(starts, [*starts[1:], len(folds)], strict=True)]
        self.sums = FoldSums([_weighted_gram(Phi[rows], self.weight[rows]) for rows in self.folds], len(share))
        self.leave_one_out = leave_one_out

    def fit(self, target: Array) -> _Ridge:
        """Choose the ridge by out-of-fold error, and solve for it; the target (n,) may have any unit and origin."""
        middle = float(self.share @ target)
        unit = float(np.sqrt(self.share @ (target - middle) ** 2)) or 1.0
        y = (target - middle) / unit
        moments = [self.Phi[rows].T @ (self.weight[rows] * y[rows]) for rows in self.folds]
        found = self.sums.solve(moments, float(self.weight @ y**2))
        pairs = zip(self.folds, found.without_fold, strict=True)
        out_of_fold = np.concatenate([self.Phi[rows] @ v for rows, v in pairs])
        held_out = self._without_row(y, np.sum(moments, axis=0), found.ridge) if self.leave_one_out else None
        return _Ridge.from_solution(found, out_of_fold, middle, unit, held_out)

    def _without_row(self, y: Array, moment: Array, ridge: float) -> Array:
        """Values at every row (n,) of the regression without it:  (p'v - h y) / (1 - h),  h the row's leverage.

        By the formula of Sherman and Morrison, h = w p'(G + r I)^-1 p: one factor serves all rows. A leverage of 1 is a
        row that the regression passes through whatever its y, of which the others say nothing.
        """
        regular = self.sums.gram.copy()
        regular[np.diag_indices_from(regular)] += ridge
        half = solve_triangular(cholesky(regular, lower=True, overwrite_a=True), self.Phi.T, lower=True)
        leverage = np.minimum(self.weight * np.einsum("ij,ij->j", half, half), 1 - 1e-12)
        return (self.Phi @ _solve_ridge(self.sums.gram, moment, ridge) - leverage * y) / (1 - leverage)


@dataclass(frozen=True, eq=False)
class AllRows:
    """Rows of which a sample is in memory.

    Attributes
    ----------
    pieces : function that iterates over all rows, the same in every call
    n_rows : int
    index : ndarray of shape (m,), the positions of the sample's rows
    groups : ndarray of shape (n_rows,) or None, groups of rows that are in one fold
    """

    pieces: Callable[[], Iterator[Piece]]
    n_rows: int
    index: Index
    groups: Index | None = None


def _fit_all_rows(
    everything: AllRows,
    landmarks: Nystroem,
    Phi: Array,
    sample_fits: tuple[_Ridge, _Ridge],
    limits: tuple[float, float],
    middle: float,
    rng: np.random.Generator,
) -> list[_Ridge]:
    """Location and scale fitted to all rows, in two passes; their out-of-fold values are those of the sample's rows.

    Phi (m, M + 1) are features of the sample, in the order of `everything.index`; standardisations, limits of y and the
    floor of residuals are those of the sample.
    """
    location, scale = sample_fits
    folds = draw_folds(everything.n_rows, OPTIONS.folds[1], everything.groups, rng).astype(np.int8)
    sample_folds, floor = folds[everything.index], OPTIONS.floor * middle

    def location_target(y: Array, Phi: Array, fold: Index) -> Array:  # noqa: ARG001
        return (np.clip(y, *limits) - location.middle) / location.unit

    grams, moments, square = _sum_folds(everything, landmarks, folds, location_target, with_grams=True)
    sums = FoldSums(grams, everything.n_rows)
    found = sums.solve(moments, square)

    # The second pass needs no sums of products: kernel values do, without their projection onto features.
    predictor, without_fold = LandmarkPredictor.from_nystroem(landmarks, found.without_fold[:, :-1].T)
    without_fold = np.vstack([without_fold, found.without_fold[:, -1]])

    def scale_target(y: Array, values: Array, fold: Index) -> Array:
        predicted = np.take_along_axis(values @ without_fold, fold[:, None].astype(np.int64), axis=1)[:, 0]
        size = np.abs(y - location.middle - location.unit * predicted)
        return (np.log(size + floor) - scale.middle) / scale.unit

    _, sums_of_values, scale_square = _sum_folds(everything, predictor, folds, scale_target, with_grams=False)
    scale_moments = [np.append(landmarks.projection_.T @ one[:-1], one[-1]) for one in sums_of_values]
    fits = []
    for one, before in ((found, location), (sums.solve(scale_moments, scale_square), scale)):
        held_out = np.empty(len(Phi))
        for k, v in enumerate(one.without_fold):
            held_out[sample_folds == k] = Phi[sample_folds == k] @ v
        fits.append(_Ridge.from_solution(one, held_out, before.middle, before.unit))
    return fits


def _sum_folds(
    everything: AllRows,
    landmarks: Nystroem | LandmarkPredictor,
    folds: Index,
    target: Callable[[Array, Array, Index], Array],
    *,
    with_grams: bool,
) -> tuple[list[Array], list[Array], float]:
    """One pass over all rows: sums of w p p' and w p y of each fold, and of w y^2, for weights of mean 1."""
    size, n_folds = landmarks.n_components_ + 1, OPTIONS.folds[1]
    grams = [np.zeros((size, size)) for _ in range(n_folds if with_grams else 0)]
    moments, square, total, start = [np.zeros(size) for _ in range(n_folds)], 0.0, 0.0, 0
    with single_threaded_blas(everything.n_rows, size) as threads:
        for piece in everything.pieces():
            assert piece.X is not None
            for first in range(0, len(piece.y), OPTIONS.strip):
                rows = slice(first, first + OPTIONS.strip)
                parts = parallel_map(landmarks.transform, np.array_split(piece.X[rows], threads), threads)
                Phi, y = _add_constant(np.concatenate(parts)), piece.y[rows]
                fold = folds[start : start + len(y)]
                start += len(y)
                weight = np.ones(len(y)) if piece.weight is None else piece.weight[rows]
                y = target(y, Phi, fold)
                square, total = square + float(weight @ y**2), total + float(weight.sum())

                def add(k: int, Phi: Array = Phi, y: Array = y, weight: Array = weight, fold: Index = fold) -> None:
                    own = np.flatnonzero(fold == k)
                    moments[k] += Phi[own].T @ (weight[own] * y[own])
                    if with_grams:
                        grams[k] += _weighted_gram(Phi[own], weight[own])

                parallel_map(add, range(n_folds), threads)
    scale = everything.n_rows / total
    return [scale * one for one in grams], [scale * one for one in moments], scale * square


def _weighted_gram(Phi: Array, weight: Array) -> Array:
    """sum_i w_i p_i p_i', as a product of one matrix with its own transpose, of which BLAS computes one half."""
    P = np.sqrt(weight)[:, None] * Phi
    return P.T @ P


def _solve_ridge(gram: Array, moment: Array, ridge: float | Array) -> Array:
    """(G + diag(r))^-1 h; LinAlgError if the matrix is singular to working precision."""
    regular = gram.copy()
    regular[np.diag_indices_from(regular)] += ridge
    return cho_solve(cho_factor(regular, overwrite_a=True, check_finite=False), moment, check_finite=False)


def _descend_grid(error: Callable[[float], float]) -> float:
    """The ridge where steps on the grid, from `OPTIONS.ridge` in the direction in which errors fall, end.

    Out-of-fold errors have one minimum in the ridge as a rule, and a factorization costs too much to try them all.
    """
    chosen, best = OPTIONS.ridge, error(OPTIONS.ridge)
    for factor in (1 / OPTIONS.ridge_step, OPTIONS.ridge_step):
        start = chosen
        while not stop_requested() and OPTIONS.ridge_range[0] <= chosen * factor <= OPTIONS.ridge_range[1]:
            trial = error(chosen * factor)
            if trial >= best:
                break
            chosen, best = chosen * factor, trial
        if chosen != start:
            break
    return chosen
