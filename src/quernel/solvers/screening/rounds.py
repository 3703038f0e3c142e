"""Rounds of screening, active-set solve and KKT check, from an approximate fit to a certified solution.

Each round

1. splits the rows by their residuals: rows within `band` of a kink are active, the duals of the others are fixed;
2. solves the active-set problem of each column by semismooth Newton (`solvers.newton`), in which the screened rows are
   one linear term;
3. checks all rows at the new fit (`active_set.verify`), which gives F and the duality gap;
4. makes the rows that violate their assumed segment active, with those near the new fit, and repeats if the gap is too
   large.

Subsampled Newton steps may improve the fit before the first round, which leaves fewer rows active. A checked fit whose
gap is only slightly too large may merely lack good duals: those of the next active-set solve are tried on it first,
which costs no pass over the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import RowStateLike
from quernel.objective import InMemoryProblem, Problem, ScreenedRows
from quernel.objective.duality_gap import (
    Certificate,
    GapSums,
    NullModel,
    balanced,
    bound_gap,
    certify,
    dual_sides,
    null_model,
    relative,
    residual_bound,
)
from quernel.solvers import newton
from quernel.solvers.progress import Progress, report, stop_requested
from quernel.solvers.result import BestIterate, Limits, Result, certify_point
from quernel.solvers.screening.active_set import (
    ActiveRows,
    ActiveSet,
    KktCheck,
    active_problem,
    expand_active,
    recheck_changed,
    scatter_duals,
    screen,
    verify,
)
from quernel.solvers.screening.subsampled_newton import NewtonSteps, ScreenedFit, take_steps

Array = NDArray[np.floating]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
# Called with coefficients, intercepts and, where it is known, a band for a warm start.
RoundCallback = Callable[..., None]


@dataclass(frozen=True)
class RoundOptions:
    """What the rounds trade against each other."""

    # With a larger share of active rows than this, plain Newton on all rows is cheaper.
    max_active_share: float = 0.5
    # Smoothing width at which Newton starts, as a share of the band: in the first round, and in later ones.
    first_width: float = 0.25
    next_width: float = 0.1
    # Rounds before falling back to plain Newton on all rows.
    max_rounds: int = 5
    # Relative gap of the first active-set solve where no low-rank basis makes it cheap: another round follows anyway.
    first_goal: float = 1e-4
    # Newton steps of an active-set solve; more would mean that it does not converge.
    max_steps: int = 60
    # Up to this multiple of the tolerance the gap may be due to the duals alone, so better duals are tried first.
    recheck_factor: float = 8
    # Duals with a weighted mean below this count as balanced.
    rounding: float = 1e-12


OPTIONS = RoundOptions()
# A band that contains no row except those that violate their segment.
TOUCHING = np.finfo(float).tiny


def central_duals(problem: Problem) -> Array:
    """Initial duals (q,) of active rows: the midpoint of the box or, where it is unbounded, its point nearest to 0."""
    low, high = problem.loss.domain
    with np.errstate(invalid="ignore"):  # inf - inf of an unbounded box
        half = (low + high) / 2
    return np.where(np.isfinite(half), half, np.clip(0.0, low, high))


@dataclass(frozen=True, eq=False)
class RoundStart:
    """An approximate fit, from which rounds of screening start.

    Attributes
    ----------
    coef, intercept : arrays of shape (M, q) and (q,)
    band : array of shape (q,)
        Rows with a residual within this distance of a kink are active at first.
    basis : array of shape (M, k) or None
        Low-rank basis in which active-set problems are solved; dropped where the certificate shows that it is too
        small.
    solved : bool
        Whether the fit may already be the solution: where a pass is what costs time, the first duals are tried on it
        before all rows are read again.
    steps : NewtonSteps or None
        Newton steps to take before the first round.
    null : callable or None
        Returns the null model, if its computation has been started.
    is_sample : bool
        Whether the rows are a sample, whose null model, with many residuals at a kink, would say nothing about the fit
        to all rows: it is not returned, even if no other fit is better.
    """

    coef: Array
    intercept: Array
    band: Array
    basis: Array | None = None
    solved: bool = False
    steps: NewtonSteps | None = None
    null: Callable[[], NullModel] | None = None
    is_sample: bool = False


def solve_in_rounds(
    problem: Problem, start: RoundStart, limits: Limits, callback: RoundCallback | None = None
) -> Result:
    """Solve all columns from an approximate fit; `callback` gets (coef, intercept, band) after every round."""
    rounds = _Rounds(problem, start, limits, callback)
    for number in range(OPTIONS.max_rounds):
        if stop_requested() or not rounds.activate_enough() or rounds.run(first=number == 0):
            break
    if stop_requested():
        rounds.certify_unknown()
    elif len(rounds.unfinished):
        rounds.solve_unscreened()
    best = rounds.best
    return replace(best.result(), sweeps=best.sweeps + rounds.state.sweeps, active_rows=tuple(best.n_active.tolist()))


class _Rounds:
    """State of the rounds.

    Attributes
    ----------
    coef, intercept, before : arrays of shape (M, q), (q,) and (q,)
        The fit that was checked last, at first the given one, and F there.
    fit : ScreenedFit
        Where the next active-set solve starts: the same fit, or that after Newton steps; with band and active set.
    unfinished : array of int
        Columns that have not converged.
    last_check : KktCheck or None
        The check of (coef, intercept), if other duals may be tried on it.
    """

    def __init__(self, problem: Problem, start: RoundStart, limits: Limits, callback: RoundCallback | None) -> None:
        self.problem, self.start, self.limits, self.callback = problem, start, limits, callback
        self.state, self.basis, steps = problem.rows.new_state(), start.basis, start.steps
        self.coef, self.intercept = start.coef, problem.round_intercept(start.coef, start.intercept)
        first_band = start.band if steps is None else steps.wide_band
        self.before, rest, active = screen(problem, self.state, self.coef, self.intercept, first_band, self.basis)
        self.fit, hessian_rows = ScreenedFit(self.coef, self.intercept, start.band, rest, active), 0
        if steps is not None:
            counted = steps.newton.hessian_rows
            self.fit = take_steps(problem, self.state, self.fit, steps, self.basis)
            hessian_rows = steps.newton.hessian_rows - counted
        self.stepped = not np.array_equal(self.fit.coef, start.coef)
        self.width = OPTIONS.first_width * self.fit.band
        self.null = null_model(problem) if start.null is None else start.null()
        self.best = _BestRound(problem, self.null, limits.tol, from_null=not start.is_sample)
        self.best.hessian_rows += hessian_rows
        self.unfinished: Index = np.arange(problem.n_columns)
        self.last_check: KktCheck | None = None

    def activate_enough(self) -> bool:
        """1. Widen the bands until the active-set problems have solutions; False where too many rows are active."""
        while (too_few := _too_few_active(self.problem, self.fit, self.unfinished)).any():
            if _too_many_active(self.problem, self.fit.active_set):
                break
            band = np.where(too_few, 2 * self.fit.band, self.fit.band)
            screened, active_set = self._expand(np.where(too_few, band, -1.0))
            self.fit = replace(self.fit, band=band, screened=screened, active_set=active_set)
        return not _too_many_active(self.problem, self.fit.active_set)

    def run(self, *, first: bool) -> bool:
        """One round; returns whether it was the last: all columns have converged, or a stop is requested."""
        problem, fit, coef, intercept = self.problem, self.fit, self.coef, self.intercept
        # 2. Newton on the active rows.
        rough = first and self.basis is None and not self.start.solved and not self.stepped
        goal = max(self.limits.tol / 2, OPTIONS.first_goal) if rough else self.limits.tol / 2
        point = _ActiveStart(fit.coef, fit.intercept, self.width, self.null, fit.screened, self.basis)
        limits = Limits(goal, min(OPTIONS.max_steps, self.limits.max_iter))
        rows, answer = problem.run_at(_solve_active, fit.active_set.rows, point, self.unfinished, limits)
        self.fit = replace(fit, active_set=replace(fit.active_set, rows=rows))
        move, shift = fit.coef + answer.move - coef, fit.intercept + answer.shift - intercept
        self.best.count(answer)
        if first and self.start.solved and not problem.rows.returns_rows and self._try_on_given_fit(point):
            return True
        duals, _ = problem.rows.run_at(_scatter, rows, np.array([span.start for span in problem.rows.spans]))
        if self.last_check is not None and self.best.is_close(self.unfinished):
            # Try the new duals on the last fit.
            check = recheck_changed(problem, self.state, self.last_check, duals)
            self._record(coef, intercept, self.before, *self._gap(check, coef, intercept, self.before))
            if len(self.unfinished) == 0:
                return True
        return self._check(coef + move, intercept + shift, duals)

    def _try_on_given_fit(self, point: _ActiveStart) -> bool:
        """Certify the given fit with the new duals, from the active rows alone; returns whether that was enough."""
        active_set = self.fit.active_set
        _, (gap, error) = self.problem.run_at(_proof, active_set.rows, point, self.unfinished)
        self.best.sweeps += active_set.count[self.unfinished].sum() / self.problem.rows.n_rows
        self._record(self.coef, self.intercept, self.before, gap, error)
        return len(self.unfinished) == 0

    def _check(self, coef: Array, intercept: Array, duals: Any) -> bool:
        """3. KKT check of a new fit over all rows; returns whether the rounds end, and prepares the next one if not."""
        problem, screened, tol = self.problem, self.fit.screened, self.limits.tol
        intercept = problem.round_intercept(coef, intercept)
        check = verify(problem, self.state, coef, intercept, duals)
        after = check.loss + problem.alpha * np.einsum("ij,ij->j", coef, coef)
        phi_t_dual = screened.phi_t_dual + check.phi_t_dual
        dual_residuals = residual_bound(problem, self.null, coef, phi_t_dual, after)
        done = self._record(coef, intercept, after, *self._gap(check, coef, intercept, after))
        if len(self.unfinished) == 0 or stop_requested():
            return True
        worse = ~done & (after > self.before)
        basis_too_small = ~done & ~worse & (relative(dual_residuals, after, self.null.objective) > tol / 4)
        # 4. Where F has increased, wrongly screened rows led the step astray: return to the fit before, with those rows
        # active. (After Newton steps F at that fit is not known, but F at the initial fit serves in its place.)
        self.coef = np.where(worse, self.fit.coef, coef)
        self.intercept = np.where(worse, self.fit.intercept, intercept)
        self.before = np.where(worse, self.before, after)
        self._renew_active_set(check, worse, done, self.basis is not None and bool(np.any(basis_too_small)))
        return False

    def _renew_active_set(self, check: KktCheck, worse: Mask, done: Mask, drop_basis: bool) -> None:
        """The active set of the next round: with the rows that the check found off their segments, or screened anew."""
        problem, band = self.problem, self.fit.band
        if self.callback is not None:
            self.callback(
                self.coef, self.intercept, np.clip(2 * check.worst_violation, OPTIONS.next_width * band, band)
            )
        # Duals can be rechecked only at the fit that was checked, and where single rows can be read.
        self.last_check = check if problem.rows.random_access and not (drop_basis or worse.any()) else None
        if drop_basis:  # the low-rank basis is too small: screen again, with all features
            self.basis, band = None, np.where(worse, 2, 1) * self.start.band
            self.before, screened, active_set = screen(problem, self.state, self.coef, self.intercept, band, None)
            self.width = OPTIONS.first_width * band
        else:
            more = np.where(worse, TOUCHING, np.minimum(2 * check.worst_violation, band))
            screened, active_set = self._expand(np.where(done, -1.0, more))
            self.width = np.where(worse, OPTIONS.first_width, OPTIONS.next_width) * band
        self.fit = ScreenedFit(self.coef, self.intercept, band, screened, active_set)

    def _expand(self, band: Array) -> tuple[ScreenedRows, ActiveSet]:
        """The screened rows and the active set after rows within `band` (q,) have become active."""
        return expand_active(self.problem, self.state, self.fit.screened, self.fit.active_set, band, self.basis)

    def _gap(self, check: KktCheck, coef: Array, intercept: Array, objective: Array) -> tuple[Array, Array]:
        """The duality gap (q,) that a check proves, infinite where duals are not balanced; the rounding error of F.

        A dual point is feasible only if mean v = 0 with an intercept, whose coefficient has no penalty to pay for it.
        """
        problem, screened, ones = self.problem, self.fit.screened, np.ones(self.problem.n_columns)
        mean_dual = screened.mean_dual + check.mean_dual
        sums = GapSums(check.fenchel_gap, screened.phi_t_dual + check.phi_t_dual, mean_dual)
        sides = dual_sides(problem, self.state) if problem.fit_intercept else (ones, ones)
        gap, error = bound_gap(problem, self.null, (coef, intercept), objective, sums, sides)
        balanced_enough = (np.abs(mean_dual) <= OPTIONS.rounding) | (not problem.fit_intercept)
        return np.where(balanced_enough, gap, np.inf), error

    def _record(self, coef: Array, intercept: Array, objective: Array, gap: Array, error: Array) -> Mask:
        """Record what has improved; returns which columns have converged."""
        found = (coef, intercept, objective, gap, error)
        done = self.best.add_round(self.unfinished, found, self.state, self.fit.active_set)
        self.unfinished = np.flatnonzero(~done)
        return done

    def certify_unknown(self) -> None:
        """Certify the present fit, in one pass, in columns of which nothing is certified yet.

        A fit that is stopped early still returns a gap that holds, if a large one.
        """
        unknown = np.flatnonzero(~self.best.certified)
        if len(unknown):
            coef, intercept, null = self.fit.coef[:, unknown], self.fit.intercept[unknown], self.null.take(unknown)
            self.best.merge(unknown, certify_point(self.problem.take(unknown), coef, intercept, null, self.limits.tol))

    def solve_unscreened(self) -> None:
        """Solve the unfinished columns by Newton over all rows, from where the rounds left them.

        Screening is a guess that may not pay; this is what makes the solver converge for every problem.
        """
        anchor = self.best.dual if len(self.best.dual) else central_duals(self.problem)
        start = newton.Start(self.fit.coef, self.fit.intercept, anchor, self.width, self.null).take(self.unfinished)
        few = self.problem.take(self.unfinished)
        self.best.merge(self.unfinished, newton.solve_in_basis(few, self.basis, start, self.limits))


@dataclass(frozen=True, eq=False)
class _ActiveStart:
    """Where an active-set solve starts: a fit, smoothing widths, the screened rows' linear term and the basis."""

    coef: Array
    intercept: Array
    width: Array
    null: NullModel
    screened: ScreenedRows
    basis: Array | None


@dataclass(frozen=True, eq=False)
class _ActiveSolution:
    """Solution of the active-set problems: changes of coef (M, q) and intercept (q,), and the work done."""

    move: Array
    shift: Array
    iterations: NDArray[np.intp]
    entries: float
    hessian_rows: int


def _solve_active(
    problem: InMemoryProblem, active_rows: list[ActiveRows], point: _ActiveStart, columns: Index, limits: Limits
) -> tuple[list[ActiveRows], _ActiveSolution]:
    """Solve the active-set problem of each of these columns by Newton, and store the new duals with the active rows.

    With an intercept the duals are shrunk such that they balance those of the screened rows.
    """
    active_rows, basis, screened = list(active_rows), point.basis, point.screened
    move, shift = np.zeros_like(point.coef), np.zeros_like(point.intercept)
    iterations, entries, hessian_rows = np.zeros(problem.n_columns, dtype=np.intp), 0.0, 0
    for k in columns.tolist():
        column, rows = np.array([k]), active_rows[k]
        start = newton.Start(
            point.coef[:, column], point.intercept[column], rows.anchor[:, None], point.width[column],
            point.null.take(column),
        )  # fmt: skip
        small = active_problem(problem, column, screened, rows, basis)
        answer = newton.solve(small, tol=limits.tol, max_iter=limits.max_iter, start=start.project(basis), polish=False)
        found = answer.coef if basis is None else basis @ answer.coef
        move[:, k], shift[k] = found[:, 0] - point.coef[:, k], answer.intercept[0] - point.intercept[k]
        dual = answer.dual[:, 0]
        if problem.fit_intercept:
            _, sign = problem.loss.margin_transform(rows.target)
            dual = balanced(dual, rows.share * sign, screened.mean_dual[k])
        kept = rows.features
        if (
            basis is not None and problem.rows.returns_rows
        ):  # features in the basis are worth keeping for the next round
            kept = [small.rows.as_array("Active rows are in memory")]
        active_rows[k] = replace(rows, anchor=dual, features=kept)
        iterations[k], hessian_rows = answer.iterations[0], hessian_rows + answer.hessian_rows
        entries += answer.sweeps * small.rows.n_rows * small.rows.n_features
    return active_rows, _ActiveSolution(move, shift, iterations, entries, hessian_rows)


def _proof(
    problem: InMemoryProblem, active_rows: list[ActiveRows], point: _ActiveStart, columns: Index
) -> tuple[None, tuple[Array, Array]]:
    """The duality gap of these columns at the starting point, with the new duals of the active rows; error of F.

    The screened rows are on their segments there and add nothing to the gap, so no other row need be read.
    """
    gap, error = np.full(problem.n_columns, np.inf), np.zeros(problem.n_columns)
    for k in columns.tolist():
        column, rows = np.array([k]), active_rows[k]
        small = active_problem(problem, column, point.screened, rows, None)
        state = small.rows.new_state(anchor=rows.anchor[:, None])
        coef, intercept = point.coef[:, column], point.intercept[column]
        small.set_coefficients(state, coef, intercept)
        found = certify(small, state, coef, intercept, point.null.take(column))
        gap[k], error[k] = found.gap[0], found.error[0]
    return None, (gap, error)


def _scatter(active_rows: list[ActiveRows], starts: Index) -> tuple[list[Any], None]:
    """`scatter_duals` for `run_at`: the duals stay where the rows are."""
    return scatter_duals(active_rows, starts), None


class _BestRound(BestIterate):
    """The best certified fit of every column over all rounds, and the work done."""

    def __init__(self, problem: Problem, null: NullModel, tol: float, *, from_null: bool) -> None:
        super().__init__(problem, null, tol, from_null=from_null)
        self.entries = problem.rows.n_rows * problem.rows.n_features
        self.certified = np.zeros(problem.n_columns, dtype=bool)
        self.n_active = np.zeros(problem.n_columns, dtype=np.intp)

    def count(self, answer: _ActiveSolution) -> None:
        """Add the work of one active-set solve."""
        self.iterations += answer.iterations
        self.hessian_rows += answer.hessian_rows
        self.sweeps += answer.entries / self.entries

    def add_round(self, columns: Index, found: tuple[Array, ...], state: RowStateLike, active_set: ActiveSet) -> Mask:
        """Record `found` = (coef, intercept, objective, gap, rounding error) of all columns for these.

        Returns which have converged.
        """
        coef, intercept, objective, gap, error = (part[..., columns] for part in found)

        def copy_duals(positions: Index, out: Array, places: Index) -> None:
            state.copy_columns("dual", columns[positions], out, places)

        certificate = Certificate(objective, gap, error)
        better = self.record(columns, (coef, intercept), certificate, copy_duals)
        self.certified[columns] |= np.isfinite(gap)
        self.n_active[columns[better]] = active_set.count[columns[better]]
        report(Progress(int(self.iterations.max()), len(columns), float(self.relative_gap.max())))
        return self.relative_gap <= self.tol

    def merge(self, columns: Index, answer: Result) -> None:
        """Record a result of these columns on all rows, and add its work."""

        def copy_duals(positions: Index, out: Array, places: Index) -> None:
            out[:, places] = answer.dual[:, positions]

        certificate = Certificate(answer.objective, answer.gap, self.error[columns])
        self.record(columns, (answer.coef, answer.intercept), certificate, copy_duals)
        self.iterations[columns] += answer.iterations
        self.hessian_rows += answer.hessian_rows
        self.sweeps += answer.sweeps

    def is_close(self, columns: Index) -> bool:
        """Whether the gaps of all of these columns are within a small multiple of the tolerance."""
        return bool(np.all(self.relative_gap[columns] <= OPTIONS.recheck_factor * self.tol))


def _too_many_active(problem: Problem, active_set: ActiveSet) -> bool:
    """Whether so many rows are active that screening costs more than it saves: they are copied, and checked again."""
    return bool(active_set.count.max() > OPTIONS.max_active_share * problem.rows.n_rows)


def _too_few_active(problem: Problem, fit: ScreenedFit, columns: Index) -> Mask:
    """Columns without active rows or, with an intercept, with too few to balance the duals of the screened ones.

    With an intercept mean v = 0 must be reachable: otherwise the active-set problem is unbounded below in the
    intercept. Without one a large alpha may leave all rows far on one side of the fit.
    """
    too_few, active_set = np.zeros(problem.n_columns, dtype=bool), fit.active_set
    too_few[columns] = active_set.count[columns] == 0
    if problem.fit_intercept:
        ends = fit.screened.mean_dual + 0.9 * np.array([active_set.min_dual, active_set.max_dual])
        too_few[columns] |= (ends[0] > 0)[columns] | (ends[1] < 0)[columns]
    return too_few
