"""Multinomial logistic regression: its objective as map-reduce sums over row blocks, and Newton-CG to minimise it.

    F(U, b) = (1/W) sum_i w_i [log sum_k exp f_ik - f_i,class(i)] + alpha |U|^2,      f_i = U'phi_i + b,  K classes

The gradient of a row's loss in f_i is -v_i, with v_i = e_class(i) - p_i and p = softmax(f). Every p in the simplex
gives a bound, because  log sum exp f + sum p log p - p'f >= 0  (Fenchel-Young, with equality at the softmax).

Newton-CG is damped Newton with an exact line search, each direction by preconditioned conjugate gradients.
The Hessian couples all classes, so it is never formed: a Hessian-vector product takes two products with the features,
for all classes at once. The preconditioner is one Cholesky factor for every class, of the Gram matrix in place of the
Hessian. Large problems are first solved in a low-rank basis of the features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrs
from scipy.special import softmax, xlogy

from quernel.data import Block, BlockState, InMemoryDesign, RowState, discard, sum_tuples
from quernel.losses import Logistic
from quernel.objective import Problem
from quernel.objective.duality_gap import null_model, relative
from quernel.solvers.linear_system import cholesky
from quernel.solvers.newton import exact_step
from quernel.solvers.progress import Progress, report, stop_requested
from quernel.solvers.result import Result, or_null, statuses
from quernel.solvers.screening.sampling import principal_basis

Array = NDArray[np.floating]
Point = tuple[Array, Array]


@dataclass(frozen=True)
class MultinomialOptions:
    """What Newton-CG trades: products against steps, and digits against both."""

    # Rows per feature of the sample for the low-rank basis, and the problem size (rows x features) from which one is
    # used.
    rows_per_feature: int = 8
    small: int = 2_000_000
    # Relative residual at which conjugate gradients stop; smaller close to the optimum, for superlinear convergence.
    cg_tolerance: float = 0.1
    # Hessian-vector products of one direction.
    max_products: int = 500
    # The line search ends at this share of the first derivative.
    slope_tolerance: float = 1e-2
    # Further steps of small problems after convergence, which are cheap and gain digits fast.
    polish_steps: int = 3


OPTIONS = MultinomialOptions()


def solve(problem: Problem, *, tol: float = 1e-6, max_iter: int = 1000) -> Result:
    """Minimise F to a relative duality gap of at most `tol`: one problem, whose columns are the classes."""
    if not isinstance(problem.loss, Logistic):
        raise ValueError(f"The multinomial solver needs the Logistic loss; got {type(problem.loss).__name__}.")
    problem = problem.in_memory("The multinomial solver needs rows in memory", instead="multiclass='ovr'")
    rows, K, basis = problem.rows, problem.n_columns, None
    size = OPTIONS.rows_per_feature * rows.n_features
    if rows.n_rows * rows.n_features > OPTIONS.small and rows.n_rows > 2 * size and rows.cached:
        sample = problem.on(rows.sample(size, np.random.default_rng(0)))
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
    return or_null(result, found.constant, tol)


class _Descent:
    """Newton steps until the relative gap is within the tolerance; the fit and its gap are the attributes."""

    def __init__(self, problem: MultinomialProblem, start: Point, tol: float, max_iter: int) -> None:
        self.problem, (self.coef, self.intercept) = problem, start
        self.state: RowState = problem.rows.new_state()
        shares = problem.shares()
        self.null = float(-shares @ _log_shares(shares)) if problem.fit_intercept else float(np.log(len(shares)))
        self.constant = _log_shares(shares) if problem.fit_intercept else np.zeros(len(shares))
        small = problem.rows.n_rows * self.coef.size <= OPTIONS.small
        steps, left, solver = 0, OPTIONS.polish_steps if small else 0, None
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
        """max(F, F0 / 1000), the scale of relative gaps, as for every other loss."""
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
        self.gap = self._bound_gap(sums)

    def _bound_gap(self, sums: MultinomialSums) -> float:
        """The gap with what rounding can have hidden in it: see `objective.duality_gap.bound_gap`.

        Scores change a row's loss, and its Fenchel gap, by at most twice their largest error; the duals of a row are
        at most 2 in the sum over classes.
        """
        problem, eps = self.problem, np.finfo(float).eps
        rows, features = (eps * (np.sqrt(size) + 2) for size in (problem.rows.n_rows, problem.rows.n_features))
        rms = float(np.sqrt(problem.rows.kernel_scale()))
        size = (
            rms * float(np.linalg.norm(self.coef)) + float(np.max(np.abs(self.intercept))) + np.log(len(sums.mean_dual))
        )
        unbalanced = 0.0
        if problem.fit_intercept:
            shares = problem.shares()
            seen = shares > 0  # every class relative to itself: its duals add up to twice its share at most
            unbalanced = min(float(np.max(np.abs(sums.mean_dual[seen]) / shares[seen])) + 4 * rows, 1.0)
        gradient = 2 * problem.alpha * self.coef - sums.phi_t_dual
        residual = float(np.linalg.norm(gradient)) + 2 * (rows + unbalanced) * rms
        residual += eps * problem.alpha * float(np.linalg.norm(self.coef))
        hidden = 4 * (rows + features + unbalanced) * size
        return max(sums.fenchel_gap, 0.0) + hidden + residual**2 / (4 * problem.alpha)

    def _step(self, sums: MultinomialSums, solver: Callable[[Point], Point]) -> None:
        """One Newton step with exact line search.

        Full steps may overshoot far from the solution, where the softmax saturates. Scores change linearly along the
        direction, so that a probe costs O(n K), and no product with the features.
        """
        problem, state = self.problem, self.state
        slope = _center(sums.mean_dual) * problem.fit_intercept
        descent = (sums.phi_t_dual - 2 * problem.alpha * self.coef, slope)  # minus the gradient
        move, shift = _direction(problem, state, descent, solver)
        problem.set_direction(state, move, shift)
        along, square = float(np.sum(self.coef * move)), float(np.sum(move**2))

        def derivatives(step: Array) -> tuple[Array, Array]:
            slope, curvature = problem.eval_along_direction(state, float(step[0]))
            ridge = 2 * problem.alpha * (along + step * square)
            return slope + ridge, curvature + 2 * problem.alpha * square + np.zeros(1)

        first_slope = np.array([abs(_dot(descent, (move, shift)))])
        step = float(exact_step(derivatives, first_slope, OPTIONS.slope_tolerance)[0])
        self.coef, self.intercept = self.coef + step * move, self.intercept + step * shift


def _preconditioner(gram: Array, curvature: float, problem: MultinomialProblem) -> Callable[[Point], Point]:
    """A function that solves (2 alpha I + curvature gram) X = right for every class, by one Cholesky factor.

    Bohning (1992) bounds the Hessian by such a product of a Gram matrix, with 1/2 for the curvature; the mean of p (1 -
    p) comes closer, and conjugate gradients need no bound. The last diagonal entry is kept from 0 for the intercepts.
    """
    M = len(gram) - 1
    matrix = curvature * gram
    matrix.flat[:: M + 2] += np.append(np.full(M, 2 * problem.alpha), 1e-12 * curvature)
    if not problem.fit_intercept:
        matrix[M, :M] = matrix[:M, M] = 0
    factor = cholesky(matrix)

    def solve(right: Point) -> Point:
        answer = dpotrs(factor, np.vstack(right), lower=1)[0]
        return answer[:M], _center(answer[M]) * problem.fit_intercept

    return solve


def _center(intercept: Array) -> Array:
    """The same up to a constant for all classes, which changes no probability: rounding must not add it up."""
    return intercept - intercept.mean()


def _direction(problem: MultinomialProblem, state: RowState, descent: Point, solver: Callable[[Point], Point]) -> Point:
    """The Newton direction, by preconditioned conjugate gradients.

    Inexact (Dembo, Eisenstat and Steihaug 1982): the tolerance falls with the gradient's norm, so that few products are
    spent far from the solution, and convergence is superlinear near it.
    """
    x: Point = (np.zeros_like(descent[0]), np.zeros_like(descent[1]))
    r, z = descent, solver(descent)
    p, first = z, _dot(descent, z)
    size = first
    enough = min(OPTIONS.cg_tolerance, np.sqrt(first)) ** 2 * first
    for _ in range(OPTIONS.max_products):
        if not size > enough:
            break
        product, slope = problem.product(state, *p)
        image = product, _center(slope) * problem.fit_intercept
        if not (curved := _dot(p, image)) > 0:  # nothing left to gain
            break
        length = size / curved
        x, r = _add(x, p, length), _add(r, image, -length)
        z = solver(r)
        before, size = size, _dot(r, z)
        p = _add(z, p, size / before)
    return x


def _dot(a: Point, b: Point) -> float:
    """Inner product of two points (coef, intercept), over all classes."""
    return float(np.sum(a[0] * b[0]) + a[1] @ b[1])


def _add(a: Point, b: Point, factor: float) -> Point:
    """a + factor b."""
    return a[0] + factor * b[0], a[1] + factor * b[1]


@dataclass(frozen=True, eq=False)
class MultinomialSums:
    """Sums at the current scores f and probabilities p.

    phi_t_dual (M, K) is Phi'(w v)/W, mean_dual (K,) the mean of v, loss the mean loss, and fenchel_gap the mean of
    log sum exp f + sum p log p - p'f.
    """

    phi_t_dual: Array
    mean_dual: Array
    loss: float
    fenchel_gap: float


@dataclass(frozen=True, eq=False)
class MultinomialProblem:
    """The multinomial problem of rows with targets (n, K): +1 at the row's class, -1 elsewhere."""

    rows: InMemoryDesign
    alpha: float
    fit_intercept: bool

    def set_coefficients(self, state: RowState, coef: Array, intercept: Array) -> None:
        """Set scores and probabilities of all rows to those of (coef, intercept)."""
        self.rows.map_reduce(_set_scores, state, (coef, intercept), reduce=discard)

    def shares(self) -> Array:
        """Weighted class frequencies, (K,)."""
        (shares,) = self.rows.map_rows(_class_shares_block, self.rows.new_state(), reduce=sum_tuples)
        return shares

    def gradient_sums(self, state: RowState, mix: tuple[float, Array] | None = None) -> MultinomialSums:
        """Sums at p or, with mix = (e, g), at (1 - e) p + e g for a constant distribution g (K,)."""
        phi_t_dual, mean_dual, loss, fenchel_gap = self.rows.map_reduce(_gradient_block, state, mix, reduce=sum_tuples)
        return MultinomialSums(phi_t_dual, mean_dual, float(loss), float(fenchel_gap))

    def objective(self, sums: MultinomialSums, coef: Array) -> float:
        """F at coef, from the sums of `gradient_sums` there."""
        return sums.loss + self.alpha * float(np.sum(coef**2))

    def curvature(self, state: RowState) -> tuple[Array, float]:
        """Gram matrix of (phi, 1), shape (M + 1, M + 1), and mean p (1 - p).

        Their product approximates the Hessian of every class.
        """
        gram, curvature = self.rows.map_reduce(_gram_block, state, reduce=sum_tuples)
        return gram, float(curvature)

    def product(self, state: RowState, coef: Array, intercept: Array) -> tuple[Array, Array]:
        """Hessian-vector product of F with a direction."""
        phi_t_dual, mean_dual = self.rows.map_reduce(
            _hessian_product_block, state, (coef, intercept), reduce=sum_tuples
        )
        return 2 * self.alpha * coef + phi_t_dual, mean_dual

    def set_direction(self, state: RowState, coef: Array, intercept: Array) -> None:
        """Store the change of each row's scores along a direction, for the line search."""
        self.rows.map_reduce(_set_direction_block, state, (coef, intercept), reduce=discard)

    def eval_along_direction(self, state: RowState, step: float) -> tuple[float, float]:
        """First and second derivative of the mean loss along the direction."""
        slope, curvature = self.rows.map_rows(_eval_along_direction_block, state, step, reduce=sum_tuples)
        return float(slope), float(curvature)


def _class_shares_block(block: Block, state: BlockState, args: None) -> tuple[Array]:  # noqa: ARG001
    """Weight of each class in one block."""
    return (block.share @ (block.target > 0),)


def _log_shares(shares: Array) -> Array:
    """Logarithms of class frequencies, with all digits of one that is close to 1."""
    logs, largest = np.log(shares), int(np.argmax(shares))
    logs[largest] = np.log1p(-np.delete(shares, largest).sum())
    return logs


def _log_sum_exp(score: Array) -> tuple[Array, Array]:
    """log sum exp of each row of (m, K) in two parts: its largest score, and what the others add, with all digits.

    The loss of a row that is fitted well is the second part alone, which the sum of both would round away.
    """
    highest = score.argmax(axis=1)[:, None]
    top = np.take_along_axis(score, highest, axis=1)
    others = np.exp(score - top)
    np.put_along_axis(others, highest, 0.0, axis=1)
    return top[:, 0], np.log1p(others.sum(axis=1))


def _scores(block: Block, args: tuple[Array, Array]) -> Array:
    """f = Phi U + b, (m, K)."""
    coef, intercept = args
    return block.features @ coef + intercept


def _set_scores(block: Block, state: BlockState, args: tuple[Array, Array]) -> None:
    """Store scores and their softmax, of which gradient and Hessian-vector products are made."""
    state["score"] = _scores(block, args)
    state["probability"] = softmax(state["score"], axis=1)


def _gradient_block(
    block: Block, state: BlockState, mix: tuple[float, Array] | None
) -> tuple[Array, Array, float, float]:
    """The fields of `MultinomialSums` over one block."""
    score, probability = state["score"], state["probability"]
    if mix is not None:
        part, constant = mix
        probability = (1 - part) * probability + part * constant
    own = block.target > 0
    highest, excess = _log_sum_exp(score)
    state["dual"] = own - probability
    weighted = state["dual"] * block.share[:, None]
    fenchel_gap = highest + excess + np.sum(xlogy(probability, probability) - probability * score, axis=1)
    return (
        (weighted.T @ block.features).T,
        weighted.sum(axis=0),
        block.share @ (highest - score[own] + excess),
        block.share @ fenchel_gap,
    )


def _gram_block(block: Block, state: BlockState, args: None) -> tuple[Array, float]:  # noqa: ARG001
    """Weighted Gram matrix of (phi, 1), and the sum of mean p (1 - p), the diagonal of diag(p) - p p'."""
    weighted, probability = block.features * block.share[:, None], state["probability"]
    M = block.features.shape[1]
    gram = np.empty((M + 1, M + 1))
    gram[:M, :M] = weighted.T @ block.features
    gram[:M, M] = gram[M, :M] = weighted.sum(axis=0)
    gram[M, M] = block.share.sum()
    return gram, block.share @ np.mean(probability * (1 - probability), axis=1)


def _hessian_product_block(block: Block, state: BlockState, args: tuple[Array, Array]) -> tuple[Array, Array]:
    """Hessian of the mean loss times (X, z): rows contribute w_i (diag(p) - p p') (X'phi_i + z)."""
    change, probability = _scores(block, args), state["probability"]
    bent = probability * (change - np.sum(probability * change, axis=1, keepdims=True)) * block.share[:, None]
    return (bent.T @ block.features).T, bent.sum(axis=0)


def _set_direction_block(block: Block, state: BlockState, args: tuple[Array, Array]) -> None:
    """Store the change of scores per unit step."""
    state["change"] = _scores(block, args)


def _eval_along_direction_block(block: Block, state: BlockState, step: float) -> tuple[float, float]:
    """First and second derivative of the mean loss at scores f + step change.

    Of log sum exp these are mean and variance of the change under the softmax.
    """
    change = state["change"]
    probability = softmax(state["score"] + step * change, axis=1)
    mean = np.sum(probability * change, axis=1)
    slope = block.share @ (mean - change[block.target > 0])
    return slope, block.share @ (np.sum(probability * change**2, axis=1) - mean**2)
