"""Multinomial logistic regression by Newton-CG: damped Newton, each direction by preconditioned conjugate gradients.

The Hessian couples all classes, so it is never formed: a Hessian-vector product takes two products with the features,
for all classes at once. The preconditioner is one Cholesky factor for every class, of the Gram matrix in place of the
Hessian. Large problems are first solved in a low-rank basis of the features.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from quernel.data import RowState
from quernel.losses import Logistic
from quernel.objective import Problem
from quernel.objective.duality_gap import NullModel, null_model, relative
from quernel.objective.multinomial import MultinomialProblem, MultinomialSums
from quernel.solvers.progress import Progress, report, stop_requested
from quernel.solvers.result import Result, or_null, statuses
from quernel.solvers.screening.low_rank import principal_basis

Array = NDArray[np.floating]
Point = tuple[Array, Array]

# Rows per feature of the sample for the low-rank basis, and the problem size (rows x features) from which one is used.
ROWS_PER_FEATURE, SMALL = 8, 2_000_000
# Relative residual at which conjugate gradients stop; smaller close to the optimum, for superlinear convergence.
CG_TOLERANCE = 0.1
# Hessian-vector products of one direction.
MAX_PRODUCTS = 500
# The line search ends at this share of the first derivative, or after so many probes.
SLOPE_TOLERANCE, MAX_PROBES = 1e-2, 60
# Further steps of small problems after convergence, which are cheap and gain digits fast.
POLISH_STEPS = 3


def solve(problem: Problem, *, tol: float = 1e-6, max_iter: int = 1000) -> Result:
    """Minimise F to a relative duality gap of at most `tol`: one problem, whose columns are the classes."""
    if not isinstance(problem.loss, Logistic):
        raise ValueError(f"The multinomial solver needs the Logistic loss; got {type(problem.loss).__name__}.")
    problem = problem.in_memory("The multinomial solver needs rows in memory", instead="multiclass='ovr'")
    rows, K = problem.rows, problem.n_columns
    basis = None
    if rows.n_rows * rows.n_features > SMALL and rows.n_rows > 2 * ROWS_PER_FEATURE * rows.n_features and rows.cached:
        sample = problem.on(rows.sample(ROWS_PER_FEATURE * rows.n_features, np.random.default_rng(0)))
        basis = principal_basis(sample, rows.n_rows, tol, null_model(sample).objective)
    # First within the low-rank basis; then certified, and continued where need be, with all features.
    whole = MultinomialProblem(rows, float(problem.alpha[0]), problem.fit_intercept)
    start: Point = np.zeros((rows.n_features, K)), np.zeros(K)
    work = np.zeros(2, dtype=int)
    if basis is not None:
        inner = MultinomialProblem(rows.project(basis), whole.alpha, whole.fit_intercept)
        found = _Descent(inner, (basis.T @ start[0], start[1]), tol / 2, max_iter)
        start, work = (basis @ found.coef, found.intercept), work + found.work
    found = _Descent(whole, start, tol, max_iter)
    iterations, sweeps = work + found.work
    null = np.array([found.null])
    gap, objective = np.array([found.gap]), np.array([found.objective])
    rel = relative(gap, objective, null)
    result = Result(
        found.coef, found.intercept, found.state.collect("dual"), objective, gap, rel, null, statuses(rel, tol),
        np.array([iterations]), float(sweeps), 0,
    )  # fmt: skip
    return or_null(result, NullModel(found.constant, null), tol)


class _Descent:
    """Newton steps until the relative gap is within the tolerance; the fit and its gap are the attributes."""

    def __init__(self, problem: MultinomialProblem, start: Point, tol: float, max_iter: int) -> None:
        self.problem, (self.coef, self.intercept) = problem, start
        self.state: RowState = problem.rows.new_state()
        shares = problem.shares()
        self.null = float(-shares @ np.log(shares)) if problem.fit_intercept else float(np.log(len(shares)))
        self.constant = np.log(shares) if problem.fit_intercept else np.zeros(len(shares))
        small = problem.rows.n_rows * self.coef.size <= SMALL
        steps, left, solver = 0, POLISH_STEPS if small else 0, None
        for steps in range(max_iter + 1):
            problem.set_coefficients(self.state, self.coef, self.intercept)
            sums = problem.gradient_sums(self.state)
            last = steps == max_iter or stop_requested()
            if self._dual_residual(sums) <= 0.9 * tol * self._scale(sums) or last:
                self._certify(sums)
                report(Progress(steps, len(shares), self.gap / self._scale(sums)))
                left -= int(self.gap <= tol * self._scale(sums))
                if left < 0 or last:
                    break
            solver = solver or _preconditioner(*problem.curvature(self.state), problem)
            self._step(sums, solver)
        self.work = np.array([steps, self.state.sweeps])

    def _scale(self, sums: MultinomialSums) -> float:
        """max(F, F0 / 1000), the scale of relative gaps."""
        return max(self.problem.objective(sums, self.coef), self.null / 1000)

    def _dual_residual(self, sums: MultinomialSums) -> float:
        """alpha |U - phi_t_dual / (2 alpha)|^2, the second part of the duality gap."""
        gradient = 2 * self.problem.alpha * self.coef - sums.phi_t_dual
        return float(np.sum(gradient**2)) / (4 * self.problem.alpha)

    def _certify(self, sums: MultinomialSums) -> None:
        """The duality gap; with an intercept it needs probabilities whose means are the class frequencies.

        They are mixed with as little as possible of a constant: (1 - e) p + e g with g = mean p + mean_dual / e >= 0.
        """
        self.objective = self.problem.objective(sums, self.coef)
        if self.problem.fit_intercept:
            mean = self.problem.shares() - sums.mean_dual
            part = float(np.max(-sums.mean_dual / np.maximum(mean, np.finfo(float).tiny)))
            if part > 0:
                part = min(part * (1 + 1e-12), 1.0)
                sums = self.problem.gradient_sums(self.state, (part, np.maximum(mean + sums.mean_dual / part, 0)))
        self.gap = max(sums.fenchel_gap, 0.0) + self._dual_residual(sums) + np.finfo(float).eps * self.objective

    def _step(self, sums: MultinomialSums, solver: Callable[[Point], Point]) -> None:
        """One Newton step with exact line search."""
        problem, state = self.problem, self.state
        slope = sums.mean_dual if problem.fit_intercept else np.zeros_like(sums.mean_dual)
        descent = (sums.phi_t_dual - 2 * problem.alpha * self.coef, slope)  # minus the gradient
        move, shift = _direction(problem, state, descent, solver)
        shift = shift - shift.mean()  # softmax is invariant to a constant added to all scores
        problem.set_direction(state, move, shift)
        step = _exact_step(problem, state, self.coef, move, _dot(descent, (move, shift)))
        self.coef, self.intercept = self.coef + step * move, self.intercept + step * shift


def _preconditioner(gram: Array, curvature: float, problem: MultinomialProblem) -> Callable[[Point], Point]:
    """A function that solves (2 alpha I + curvature gram) X = right for every class, by one Cholesky factor."""
    M = len(gram) - 1
    matrix = curvature * gram
    matrix.flat[:: M + 2] += np.append(np.full(M, 2 * problem.alpha), 1e-12 * curvature)
    if not problem.fit_intercept:
        matrix[M, :M] = matrix[:M, M] = 0
    factor = cho_factor(matrix)

    def solve(right: Point) -> Point:
        answer = cho_solve(factor, np.vstack(right))
        return answer[:M], answer[M] * problem.fit_intercept

    return solve


def _direction(problem: MultinomialProblem, state: RowState, descent: Point, solver: Callable[[Point], Point]) -> Point:
    """The Newton direction, by preconditioned conjugate gradients."""
    x: Point = (np.zeros_like(descent[0]), np.zeros_like(descent[1]))
    r, z = descent, solver(descent)
    p, first = z, _dot(descent, z)
    size = first
    enough = min(CG_TOLERANCE, np.sqrt(first)) ** 2 * first
    for _ in range(MAX_PRODUCTS):
        if not size > enough:
            break
        product, slope = problem.product(state, *p)
        image = product, slope * problem.fit_intercept
        length = size / _dot(p, image)
        x, r = _add(x, p, length), _add(r, image, -length)
        z = solver(r)
        before, size = size, _dot(r, z)
        p = _add(z, p, size / before)
    return x


def _exact_step(problem: MultinomialProblem, state: RowState, coef: Array, move: Array, first: float) -> float:
    """Exact line search: the root of the derivative of F along the direction, by safeguarded Newton."""
    along, square = float(np.sum(coef * move)), float(np.sum(move**2))
    low, high, step = 0.0, np.inf, 1.0
    for _ in range(MAX_PROBES):
        slope, curvature = problem.eval_along_direction(state, step)
        slope += 2 * problem.alpha * (along + step * square)
        if abs(slope) <= SLOPE_TOLERANCE * abs(first):
            break
        low, high = (step, high) if slope < 0 else (low, step)
        newton = step - slope / (curvature + 2 * problem.alpha * square)
        step = newton if low < newton < high else (low + high) / 2 if np.isfinite(high) else 2 * step
    return step


def _dot(a: Point, b: Point) -> float:
    """Inner product of two points (coef, intercept)."""
    return float(np.sum(a[0] * b[0]) + a[1] @ b[1])


def _add(a: Point, b: Point, factor: float) -> Point:
    """a + factor b."""
    return a[0] + factor * b[0], a[1] + factor * b[1]
