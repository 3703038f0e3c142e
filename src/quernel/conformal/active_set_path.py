"""Quantile fits along lines of problems, by an active-set method: the cutoffs of conditional conformal prediction.

For scores s_i of n calibration rows with features phi_i and unpenalised columns z_i, and a new row (phi, z), let

    V(c) = min over (u, b) of  sum_i pinball(s_i - phi_i'u - z_i'b)  -  c (phi'u + z'b)  +  kappa/2 |u|^2.

The fit to all n + 1 rows, in which the new row has the score S, is the minimiser for c = the dual of the new row. That
dual is nondecreasing in S, and while it is strictly between level - 1 and level, the fit passes through S. So the
largest S whose dual is at most c is the prediction of the new row at c: one fit for each new row, and no search over S.

Fits are piecewise linear in c. Rows on the curve (active) have residual 0 and a free dual; all others have their dual
at an end of [level - 1, level], and a residual of its sign. The fit moves linearly until a dual reaches an end (the row
leaves the active set) or a residual reaches 0 (the row enters), as on the path of the support vector machine (Hastie,
Rosset, Tibshirani and Zhu 2004). From the fit without the new row, at c = 0, it takes some ten to fifty such steps.
They are taken for a block of new rows at a time, so that residuals come from products of matrices, and on the rows
nearest to the curve; whether others would have entered is checked at the end, and if so, more rows are taken.

The compiled steps, `find_directions` and `take_steps`, are called in turn for a block of independent problems; products
of matrices between them are left to BLAS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from quernel._compile import compiled
from quernel._machine import parallel_map, single_threaded_blas

# What became of a path: it goes on, has reached its end, would have to go on for ever, or has no room for more rows.
RUNNING, DONE, UNBOUNDED, FULL = 0, 1, 2, 3


Array = NDArray[np.floating]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]


@compiled(error_model="numpy")
def _multiply(matrix: Array, vector: Array) -> Array:
    """The product of the leading part of a symmetric matrix with a vector: by its rows, which are contiguous."""
    product = np.zeros(len(vector))
    for a in range(len(vector)):
        product += vector[a] * matrix[a, : len(vector)]
    return product


@compiled(error_model="numpy")
def find_directions(
    status: Index, held: Index, active: Index, n_active: Index, inverse: Array, dual: Array, kernel_new: Array,
    columns_new: Array, score_move: Array, features: Array, columns: Array, middle: float, kappa: float, d_dual: Array,
    d_intercept: Array, moved: Array,
) -> None:  # fmt: skip
    """How duals (B, cap) and b (B, p) move along the lines, and the sum `moved` (B, M) of active rows' features.

    Stationarity in u says  kappa u = sum_j v_j phi_j + c phi,  that in b  sum_j v_j z_j + c z = 0.  Active rows have
    the residual 0:  s_i - phi_i'u - z_i'b = 0.  Differentiated along the line, with u put into the third,

        [ 0   Z'             ] [ db ]   [ -z                       ]
        [ Z   Phi Phi'/kappa ] [ dv ] = [ ds_i - phi_i'phi / kappa ]      over the active rows i,

    whose matrix has the inverse that paths carry along.
    """
    p = columns_new.shape[1]
    for j in range(len(status)):
        moved[j] = 0.0
        d_intercept[j] = 0.0
        if status[j] != RUNNING:
            continue
        m = n_active[j]
        if held[j] >= 0:
            # Only b moves, as far as the other rows leave it free: the held row's residual to its dual's side.
            row = active[j, held[j]]
            free = np.linalg.eigh(_gram(columns, active[j, :m], held[j]))[1][:, 0].copy()
            d_intercept[j] = free / np.dot(free, columns[row]) * (-1.0 if dual[j, row] > middle else 1.0)
            d_dual[j] = 0.0
            continue
        right = np.zeros(p + m)
        right[:p] = -columns_new[j]
        for k in range(m):
            row = active[j, k]
            right[p + k] = score_move[j, row] - kernel_new[j, row] / kappa
        solution = _multiply(inverse[j], right)
        d_intercept[j] = solution[:p]
        for k in range(m):
            d_dual[j, k] = solution[p + k]
            moved[j] += solution[p + k] * features[active[j, k]]


@compiled(error_model="numpy")
def take_steps(
    status: Index, held: Index, last: Index, active: Index, n_active: Index, inverse: Array, dual: Array,
    residual: Array, intercept: Array, position: Array, end: Array, d_dual: Array, d_residual: Array,
    d_intercept: Array, features: Array, columns: Array, level: float, nugget: float, kappa: float, undetermined: float,
) -> None:  # fmt: skip
    """Move each problem to the next change of its active set, or to the end of its line, and make the change.

    A row may reach the end of its dual although b would not be determined without it. It is then `held`: all duals
    rest, and b slides along the line that the other active rows leave it, until a row enters in its place.
    """
    p, cap = columns.shape[1], active.shape[1]
    for j in range(len(status)):
        if status[j] != RUNNING:
            continue
        m, slides = n_active[j], held[j] >= 0
        if slides:  # rows on which the part of b that moves has no influence stay where they are
            still = np.abs(d_residual[j]) <= undetermined * np.abs(d_residual[j]).max()
            d_residual[j] = np.where(still, 0.0, d_residual[j])
        step, leaving, entering = _find_step(
            np.inf if slides else end[j] - position[j], held[j], last[j], active[j, :m], dual[j], residual[j],
            d_dual[j], d_residual[j], level,
        )  # fmt: skip
        if step == np.inf:
            status[j] = UNBOUNDED
            continue
        position[j] += 0.0 if slides else step
        residual[j] += step * d_residual[j]
        for k in range(m):
            row = active[j, k]
            dual[j, row] += step * d_dual[j, k]
            if not (slides and k == held[j]):
                residual[j, row] = 0.0
        intercept[j] += step * d_intercept[j]
        if leaving >= 0:
            row = active[j, leaving]
            dual[j, row] = level if d_dual[j, leaving] > 0 else level - 1.0
            last[j] = row
            gram = _gram(columns, active[j, :m], leaving)
            if np.linalg.eigh(gram)[0][0] <= undetermined * np.trace(gram):  # b would not be determined
                status[j] = UNBOUNDED if slides else RUNNING
                held[j] = leaving
            else:
                _remove(inverse[j], active[j], m, p, leaving)
                held[j] = leaving if held[j] == m - 1 else held[j]
                n_active[j] = m - 1
        elif entering >= 0 and m == cap:
            status[j] = FULL
        elif entering >= 0:
            residual[j, entering] = 0.0
            _insert(inverse[j], active[j], m, entering, features, columns, nugget, kappa)
            last[j] = entering
            n_active[j] = m + 1
            if slides:
                _remove(inverse[j], active[j], m + 1, p, held[j])
                n_active[j], held[j] = m, -1
        else:
            status[j] = DONE


@compiled(error_model="numpy")
def _find_step(
    longest: float, held: int, last: int, active: Index, dual: Array, residual: Array, d_dual: Array, d_residual: Array,
    level: float,
) -> tuple[float, int, int]:  # fmt: skip
    """The step to the first change of one active set, and the place of the row that leaves or the row that enters.

    The row that changed last cannot change back at once, other than by a rounding error: that is ignored.
    """
    step, leaving, entering = longest, -1, -1
    is_active = np.zeros(len(dual), dtype=np.bool_)
    for k in range(len(active)):
        row, speed = active[k], d_dual[k]
        is_active[row] = True
        if k != held and speed != 0.0:
            room = ((level if speed > 0 else level - 1.0) - dual[row]) / speed
            if room < step and not (row == last and room <= 0):
                step, leaving = max(room, 0.0), k
    for i in range(len(dual)):
        speed = d_residual[i]
        if not is_active[i] and speed != 0.0 and (speed < 0) == (dual[i] > level - 0.5):
            room = -residual[i] / speed
            if room < step and not (i == last and room <= 0):
                step, leaving, entering = max(room, 0.0), -1, i
    return step, leaving, entering


@compiled(error_model="numpy")
def _gram(columns: Array, active: Index, without: int) -> Array:
    """The sum of z z' (p, p) over all active rows but one; b is determined while it has full rank."""
    p = columns.shape[1]
    gram = np.zeros((p, p))
    for k in range(len(active)):
        if k != without:
            z = columns[active[k]]
            for a in range(p):
                gram[a] += z[a] * z
    return gram


@compiled(error_model="numpy")
def _remove(inverse: Array, active: Index, n_active: int, p: int, place: int) -> None:
    """Take an active row out of the inverse; the last one moves to its place.

    Without row and column k of a matrix with inverse P, the inverse is what  P - P_k P_k' / P_kk  leaves of P.
    """
    size, at = p + n_active, p + place
    column = inverse[:size, at].copy()
    for a in range(size):
        inverse[a, :size] -= column[a] / column[at] * column
    inverse[:size, at] = inverse[:size, size - 1]
    inverse[at, :size] = inverse[size - 1, :size]
    active[place] = active[n_active - 1]


@compiled(error_model="numpy")
def _insert(
    inverse: Array, active: Index, n_active: int, row: int, features: Array, columns: Array, nugget: float, kappa: float
) -> None:
    """Put a row into the active set, as the last one.

    Bordering: with the new column b, its diagonal entry d and the Schur complement  s = d - b'P b,  the inverse P gains
    P b b'P / s,  the new column is  -P b / s  and the new diagonal entry  1 / s.
    """
    p = columns.shape[1]
    size = p + n_active
    border = np.empty(size)
    border[:p] = columns[row]
    for k in range(n_active):
        border[p + k] = np.dot(features[active[k]], features[row]) / kappa
    solved = _multiply(inverse, border)
    schur = (np.dot(features[row], features[row]) + nugget) / kappa - np.dot(border, solved)
    for a in range(size):
        inverse[a, :size] += solved[a] / schur * solved
    inverse[:size, size] = -solved / schur
    inverse[size, :size] = -solved / schur
    inverse[size, size] = 1.0 / schur
    active[n_active] = row


@dataclass(frozen=True)
class PathOptions:
    """Constants of the active-set method."""

    # Weight of a feature that each row has for itself, relative to the mean |phi|^2: repeated rows stay independent.
    nugget: float = 1e-10
    # Duals nearer than this to an end are taken to be at it, in the fit from which paths start.
    at_end: float = 1e-6
    # Rows that may enter an active set before its path is followed again, with room for more.
    spare_rows: int = 48
    # Most steps of one path, in multiples of the rows that it has room for.
    max_steps: int = 6
    # Steps after which inverses are computed anew.
    refresh: int = 24
    # Rows nearest to the curve on which paths are followed: so many, so many per active row, and a share of all.
    near_rows: int = 400
    near_per_active: int = 8
    near_share: float = 0.08
    # How often a fit is computed anew from itself, which removes what rounding errors have added up to.
    corrections: int = 2
    # Error bounds, relative to the mean deviation of scores from their median, above which a cutoff is computed anew.
    accuracy: float = 1e-5
    # How often paths are followed, each time with 4 times as many rows and room for twice as many active ones.
    max_tries: int = 5
    # New rows of one block, and the memory (floats) that it may take.
    block_rows: int = 64
    block_floats: int = 20_000_000
    # Smallest eigenvalue of the active rows' columns, relative to the sum of all, below which b is not determined.
    undetermined: float = 1e-10
    # Thresholds are taken to be so much smaller. (n + 1) level is often a whole number: at the level itself a row would
    # then leave or not by a rounding error, and of two scores, both with the coverage asked for, the smaller is meant.
    below: float = 1e-8
    # Duals may be out of their range, and of balance per row, by so much.
    infeasible: float = 1e-9


OPTIONS = PathOptions()


@dataclass(eq=False)
class Paths:
    """Fits of a block of B problems, each with an active set of its own.

    Attributes
    ----------
    active, n_active : int arrays of shape (B, cap) and (B,)
        Active rows, of which there can be cap.
    inverse : array of shape (B, p + cap, p + cap)
        Of the matrix of the stationarity conditions, unpenalised columns first.
    dual, residual : arrays of shape (B, n)
    intercept : array of shape (B, p)
        Coefficients b of the unpenalised columns.
    position : array of shape (B,)
        How far along its line each problem is.
    status : int array of shape (B,)
    held : int array of shape (B,)
        Place of the active row whose dual is at an end, but which cannot leave before another one enters, or -1.
    last : int array of shape (B,)
        The row that entered or left last.
    """

    active: Index
    n_active: Index
    inverse: Array
    dual: Array
    residual: Array
    intercept: Array
    position: Array
    status: Index
    held: Index
    last: Index

    @classmethod
    def start(cls, active: Index, inverse: Array, fit: tuple[Array, Array, Array], n_paths: int, cap: int) -> Paths:
        """The same fit (dual, residual, intercept), so many times, with room for `cap` active rows."""
        m, size, p = len(active), len(inverse), len(fit[2])
        rows, matrix = np.zeros((n_paths, cap), dtype=np.intp), np.zeros((n_paths, p + cap, p + cap))
        rows[:, :m], matrix[:, :size, :size] = active, inverse
        none, zero = np.full(n_paths, -1, dtype=np.intp), np.zeros(n_paths, dtype=np.intp)
        dual, residual, intercept = (np.repeat(one[None], n_paths, axis=0) for one in fit)
        return cls(
            rows, zero + m, matrix, dual, residual, intercept, np.zeros(n_paths), zero, none, none.copy()
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Lines:
    """Where problems move: new rows (features (B, M), columns (B, p)) gain weight or scores (B, n) move, to `end`."""

    features: Array
    columns: Array
    score_move: Array
    end: Array


@dataclass(frozen=True, eq=False)
class CutoffProblem:
    """Calibration scores and their features: what V is made of, without the new row.

    Parameters
    ----------
    features, columns : arrays of shape (n, M) and (n, p)
        Penalised features, and unpenalised columns of full column rank.
    score : array of shape (n,)
    level : float in (0, 1)
    kappa : float
        Weight of the ridge penalty kappa/2 |u|^2 beside the sum over rows.
    nugget : float
        Weight of the feature that each row has for itself, as a part of the kernel.
    """

    features: Array
    columns: Array
    score: Array
    level: float
    kappa: float
    nugget: float

    def take(self, rows: Index) -> CutoffProblem:
        """The problem of some of the rows."""
        return replace(self, features=self.features[rows], columns=self.columns[rows], score=self.score[rows])

    def matrix(self, active: Index) -> Array:
        """The matrix (p + m, p + m) of the stationarity conditions of m active rows."""
        p, features, columns = self.columns.shape[1], self.features[active], self.columns[active]
        gram = (features @ features.T + self.nugget * np.eye(len(active))) / self.kappa
        return np.block([[np.zeros((p, p)), columns.T], [columns, gram]])

    def residuals(self, dual: Array, intercept: Array, tilt: tuple[Array, Array]) -> Array:
        """Residuals (n,) of the fit with these duals, and those of a new row times its features and columns (tilt)."""
        fitted = self.features @ (self.features.T @ dual + tilt[0]) + self.nugget * dual
        return self.score - fitted / self.kappa - self.columns @ intercept

    def correct(self, dual: Array, intercept: Array, tilt: tuple[Array, Array]) -> tuple[Index, Array, Array, Array]:
        """The exact fit (active rows, dual, residual, intercept) from approximate duals (n,) and b (p,).

        These are exact for other scores, and for other sums of the duals times the unpenalised columns: a line of
        problems leads to those that are given. So a correction is a homotopy, and takes few steps where little is off;
        Newton steps on an active set that is slightly wrong need not converge.
        """
        low, middle, high = self.level - 1, self.level - 0.5, self.level
        inside = np.minimum(dual - low, high - dual) > OPTIONS.at_end
        distance = np.abs(self.residuals(dual, intercept, tilt)) + np.where(inside, 0, np.ptp(self.score))
        active = _choose_active(self, np.argsort(distance, kind="stable"), int(inside.sum()))
        dual_of_active = np.clip(dual[active], low, high)
        dual = np.where(dual > middle, high, low)
        dual[active] = dual_of_active
        residual = self.residuals(dual, intercept, tilt)
        assumed = np.where((residual > 0) == (dual > middle), residual, 0.0)
        assumed[active] = 0.0
        none, imbalance = np.zeros((1, self.features.shape[1])), self.columns.T @ dual + tilt[1]
        inverse, cap = invert(self.matrix(active)), len(active) + OPTIONS.spare_rows
        for _ in range(OPTIONS.max_tries):
            paths = Paths.start(active, inverse, (dual, assumed, intercept), 1, cap)
            self.follow(paths, Lines(none, imbalance[None], (residual - assumed)[None], np.ones(1)))
            if paths.status[0] != FULL:
                break
            cap *= 2
        return paths.active[0, : paths.n_active[0]], paths.dual[0], paths.residual[0], paths.intercept[0]

    def follow(self, paths: Paths, lines: Lines) -> None:
        """Follow each problem of a block along its line, from where it is to the end."""
        kernel_new, middle = lines.features @ self.features.T, self.level - 0.5
        d_dual, moved, d_intercept = (np.zeros(a.shape) for a in (paths.active, lines.features, lines.columns))
        for step in range(OPTIONS.max_steps * paths.active.shape[1]):
            if not np.any(paths.status == RUNNING):
                return
            if step % OPTIONS.refresh == OPTIONS.refresh - 1:
                self._refresh(paths)
            find_directions(
                paths.status, paths.held, paths.active, paths.n_active, paths.inverse, paths.dual, kernel_new,
                lines.columns, lines.score_move, self.features, self.columns, middle, self.kappa, d_dual, d_intercept,
                moved,
            )  # fmt: skip
            free = ((paths.held < 0) & (paths.status == RUNNING))[:, None]
            fitted = (moved + free * lines.features) @ self.features.T / self.kappa + d_intercept @ self.columns.T
            take_steps(
                paths.status, paths.held, paths.last, paths.active, paths.n_active, paths.inverse, paths.dual,
                paths.residual, paths.intercept, paths.position, lines.end, d_dual, free * lines.score_move - fitted,
                d_intercept, self.features, self.columns, self.level, self.nugget, self.kappa, OPTIONS.undetermined,
            )  # fmt: skip

    def _refresh(self, paths: Paths) -> None:
        """Compute the inverses of running paths anew: each update adds rounding errors to those of the ones before."""
        p = self.columns.shape[1]
        for j in np.flatnonzero(paths.status == RUNNING):
            m = paths.n_active[j]
            paths.inverse[j, : p + m, : p + m] = invert(self.matrix(paths.active[j, :m]))


@dataclass(frozen=True, eq=False)
class CutoffFit:
    """The fit of the calibration scores alone, at c = 0, from which the paths of all new rows start."""

    problem: CutoffProblem
    active: Index
    dual: Array
    residual: Array
    intercept: Array

    @classmethod
    def from_approximate(cls, problem: CutoffProblem, dual: Array, intercept: Array) -> CutoffFit:
        """The exact fit, from approximate duals (n,) and b (p,)."""
        none = np.zeros(problem.features.shape[1]), np.zeros(problem.columns.shape[1])
        for _ in range(OPTIONS.corrections):
            active, dual, residual, intercept = problem.correct(dual, intercept, none)
        return cls(problem, active, dual, residual, intercept)

    def cutoffs(self, features: Array, columns: Array, threshold: Array, own: Array) -> tuple[Array, Array]:
        """Predictions (m,) of new rows at c = their thresholds, and bounds (m,) of their errors.

        A cutoff is infinite where every score conforms: a new row of that weight cannot be balanced.

        Parameters
        ----------
        features, columns : arrays of shape (m, M) and (m, p)
        threshold : array of shape (m,), in [level - 1, level]
        own : array of shape (m,)
            The part of K(x, x) that the features do not have; 0 for random features.
        """
        n, cap, threshold = len(self.dual), len(self.active) + OPTIONS.spare_rows, threshold - OPTIONS.below
        near = max(OPTIONS.near_rows, OPTIONS.near_per_active * len(self.active), int(OPTIONS.near_share * n))
        order = np.argsort(np.abs(self.residual), kind="stable")
        cutoff, error, todo = np.full(len(features), np.inf), np.zeros(len(features)), np.arange(len(features))
        for _ in range(OPTIONS.max_tries):
            rows = np.union1d(order[:near], self.active)
            size = (cap + columns.shape[1]) ** 2 + 4 * n
            block = int(np.clip(OPTIONS.block_floats // size, 1, OPTIONS.block_rows))
            parts = [todo[start : start + block] for start in range(0, len(todo), block)]
            blocks = [(features[part], columns[part], threshold[part], own[part]) for part in parts]
            with single_threaded_blas(len(todo) * n, features.shape[1]) as threads:
                found = parallel_map(partial(self._solve_block, rows, cap), blocks, threads)
            cutoff[todo], error[todo], short = (np.concatenate(side) for side in zip(*found, strict=True))
            todo = todo[short]
            if not len(todo) or (near >= n and not np.any(error[todo] == np.inf)):
                break
            near, cap = 4 * near, 2 * cap
        return cutoff, error

    def _solve_block(
        self, rows: Index, cap: int, block: tuple[Array, Array, Array, Array]
    ) -> tuple[Array, Array, Mask]:
        """Cutoffs of one block and their errors from paths on some of the rows, and which need more rows or room."""
        features, columns, threshold, own = block
        sign = np.where(threshold < 0, -1.0, 1.0)  # lines start at c = 0 and lead to positive weights of a row
        features, columns, threshold = sign[:, None] * features, sign[:, None] * columns, np.abs(threshold)
        problem, active = self.problem.take(rows), np.searchsorted(rows, self.active)
        start = self.dual[rows], self.residual[rows], self.intercept
        paths = Paths.start(active, self._inverse, start, len(features), cap)
        lines = Lines(features, columns, np.zeros((len(features), len(rows))), threshold)
        problem.follow(paths, lines)
        dual = np.repeat(self.dual[None], len(features), axis=0)
        dual[:, rows] = paths.dual
        far = np.ones(len(self.dual), dtype=bool)
        far[rows] = False
        cutoff, error, is_complete = self._certify(problem, paths, lines, dual, own, far)
        for j in np.flatnonzero((paths.status == DONE) & is_complete & (error > OPTIONS.accuracy * self._scale)):
            tilt = threshold[j] * features[j], threshold[j] * columns[j]
            one = Lines(features[[j]], columns[[j]], np.zeros((1, len(self.dual))), threshold[[j]])
            cutoff[j], error[j] = self._solve_anew(dual[j], paths.intercept[j], tilt, one, own[[j]])
        is_short = (paths.status == FULL) | (paths.status == RUNNING) | ~np.isfinite(cutoff) | (error == np.inf)
        cutoff = np.where((paths.status == UNBOUNDED) | is_short, np.inf, sign * cutoff)
        return cutoff, np.where(is_short, np.inf, error), is_short | ~is_complete | (paths.status == UNBOUNDED)

    def _solve_anew(
        self, dual: Array, intercept: Array, tilt: tuple[Array, Array], line: Lines, own: Array
    ) -> tuple[float, float]:
        """The cutoff of one new row and its error, from its fit without what rounding errors have added up to."""
        problem = self.problem
        active, dual, residual, intercept = problem.correct(dual, intercept, tilt)
        inverse = invert(problem.matrix(active))
        path = Paths.start(active, inverse, (dual, residual, intercept), 1, len(active))
        cutoff, error, _ = self._certify(problem, path, line, dual[None], own, np.zeros(len(dual), dtype=bool))
        return float(cutoff[0]), float(error[0])

    @cached_property
    def _scale(self) -> float:
        """Mean deviation of the scores from their median."""
        return float(np.mean(np.abs(self.problem.score - np.median(self.problem.score))))

    @cached_property
    def _inverse(self) -> Array:
        """The inverse of the stationarity conditions' matrix for the active rows."""
        return invert(self.problem.matrix(self.active))

    def _certify(
        self, near: CutoffProblem, paths: Paths, lines: Lines, dual: Array, own: Array, far: Mask
    ) -> tuple[Array, Array, Mask]:
        """Cutoffs (m,) at the ends of paths, bounds of their errors, and whether far rows are on their duals' side.

        V is concave and has the slope -cutoff, so that the cutoff is at most (V(c) - V(c + h)) / h and at least
        (V(c - h) - V(c)) / h. The fit bounds V(c) from above; its duals, moved by h along the path, bound V(c + h) from
        below. Together the error is at most  gap / h + h slope / 2  with the slope of the cutoff in c.
        """
        problem, level, kappa, c = self.problem, self.problem.level, self.problem.kappa, lines.end[:, None]
        coef = (dual @ problem.features + c * lines.features) / kappa
        fitted = coef @ problem.features.T + dual * (problem.nugget / kappa) + paths.intercept @ problem.columns.T
        residual = problem.score - fitted
        losses = np.maximum(level * residual, (level - 1) * residual)
        gap = np.sum(losses - dual * residual, axis=1) + np.finfo(float).eps * np.sum(losses, axis=1)
        excess = np.maximum(dual - level, level - 1 - dual).max(axis=1)
        imbalance = np.abs(dual @ problem.columns + c * lines.columns) / np.abs(problem.columns).sum(axis=0)
        gap[np.maximum(excess, imbalance.max(axis=1)) > OPTIONS.infeasible] = np.inf
        cutoff = np.einsum("ij,ij->i", lines.features, coef) + (own + problem.nugget) * lines.end / kappa
        cutoff += np.einsum("ij,ij->i", lines.columns, paths.intercept)
        is_complete = np.all((residual[:, far] > 0) == (dual[:, far] > level - 0.5), axis=1)
        return cutoff, self._bound_errors(near, paths, lines, gap, own), is_complete

    def _bound_errors(self, near: CutoffProblem, paths: Paths, lines: Lines, gap: Array, own: Array) -> Array:
        """The smallest  gap / h + h slope / 2  (m,), with h so small that the duals stay in their range.

        Without that limit it is at h = sqrt(2 gap / slope). Either side of c proves one of the two bounds, so that the
        larger of both errors counts.
        """
        low, high = near.level - 1, near.level
        status, kernel_new = np.zeros_like(paths.status), lines.features @ near.features.T
        d_dual, moved, d_intercept = (np.zeros(a.shape) for a in (paths.active, lines.features, lines.columns))
        find_directions(
            status, np.full_like(paths.held, -1), paths.active, paths.n_active, paths.inverse, paths.dual, kernel_new,
            lines.columns, lines.score_move, near.features, near.columns, low + 0.5, near.kappa, d_dual, d_intercept,
            moved,
        )  # fmt: skip
        slope = np.einsum("ij,ij->i", lines.features, moved + lines.features) + own + near.nugget
        slope = np.maximum(slope / near.kappa + np.einsum("ij,ij->i", lines.columns, d_intercept), 0)
        is_active = np.arange(paths.active.shape[1]) < paths.n_active[:, None]
        dual = np.take_along_axis(paths.dual, paths.active, axis=1)
        errors = []
        for speed in (d_dual, -d_dual):
            with np.errstate(divide="ignore", invalid="ignore"):
                room = np.where(speed > 0, high - dual, low - dual) / speed
                room = np.min(np.where(is_active & (speed != 0), room, np.inf), axis=1)
                h = np.minimum(room, np.sqrt(2 * gap / slope))
                errors.append(np.where(h > 0, gap / h + h * slope / 2, np.where(gap < np.inf, 0.0, np.inf)))
        return np.maximum(*errors)


def invert(matrix: Array) -> Array:
    """The inverse; of a singular matrix NaN, with which nothing is proved: comparisons with it fail, bounds are NaN."""
    try:
        return np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        return np.full_like(matrix, np.nan)


def _choose_active(problem: CutoffProblem, order: Index, count: int) -> Index:
    """About `count` rows in this order: as many as are independent, and enough to determine b.

    The first p rows are chosen greedily, such that each adds to the rank of the unpenalised columns. More than p + M
    rows would make the matrix of the stationarity conditions singular, but for the nugget.
    """
    p = problem.columns.shape[1]
    first: list[int] = []
    for row in order:
        if len(first) == p:
            break
        if np.linalg.matrix_rank(problem.columns[[*first, row]]) > len(first):
            first.append(int(row))
    count = max(p, min(count, p + problem.features.shape[1]))
    rest = order[:count][~np.isin(order[:count], first)]
    return np.concatenate([first, rest[: count - p]]).astype(np.intp)
