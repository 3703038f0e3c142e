"""Newton's method on all rows with the curvature of a sample.

The Hessian of a smooth mean loss is a mean over the rows. That of m of them, with p directions that matter, is off by a
part of about sqrt(p / m), and by so much a step with it falls short: each takes a digit or two off the distance to the
optimum. A step then needs the gradient alone, one sweep over all features, which also gives the certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quernel.certificate import NullModel, certify_survey, null_model
from quernel.problem import Problem
from quernel.problem.survey import survey
from quernel.rows import LiftedRows
from quernel.solvers import newton
from quernel.solvers.result import Ledger, Result
from quernel.solvers.system import NewtonSystem

Array = NDArray[np.floating]

# The sample has so many rows per feature, and at least this share of all; beyond that share, it is no sample.
ROWS_PER_FEATURE, LEAST, MOST = 32, 1 / 8, 1 / 4
# It is solved to this share of its own statistical error.
ACCURACY = 0.02
# A step that leaves more than this part of the gap shows that the sample's curvature is not that of all rows.
SLOW = 0.4


def sample_size(problem: Problem) -> int | None:
    """How many rows give the curvature; None where that would be too large a part of all to save much."""
    n = problem.rows.n_rows
    size = max(ROWS_PER_FEATURE * problem.rows.n_features, min(int(LEAST * n), problem.rows.most_stored))
    return size if size <= MOST * n else None


def solve(
    problem: Problem,
    basis: Array | None,
    coef: Array,
    intercept: Array,
    size: int,
    rng: np.random.Generator,
    null: NullModel,
    tol: float,
    max_iter: int,
    keep: Callable[[Array, Array], None] | None = None,
) -> Result:
    """All rows from a guess, as far as steps with the curvature of a sample lead; `keep` is told of every step."""
    q, goal = problem.n_columns, max(tol, ACCURACY / size)
    guess = coef if basis is None else basis.T @ coef
    sample = problem.rows.sample(size, rng, basis)
    _, (near, systems) = problem.call(_solve_sample, sample, guess, intercept, goal, max_iter)
    coef, intercept = near.coef if basis is None else basis @ near.coef, near.intercept.copy()
    memory, ledger = problem.rows.new_memory(), Ledger(problem, null, tol)
    share = size * len(guess) / (problem.rows.n_rows * problem.rows.n_features)
    ledger.hessian_rows = near.hessian_rows
    for iteration in range(max_iter):
        found = survey(problem, memory, coef, intercept)
        certificate = certify_survey(problem, memory, found, coef, null)
        before = ledger.relative_gap.copy()
        ledger.enter(np.arange(q), coef, intercept, memory, certificate, int(near.iterations.max()) + iteration)
        if keep is not None:
            keep(coef, intercept)
        if np.all((ledger.relative_gap <= tol) | (ledger.relative_gap > SLOW * before)):
            break
        gradient = 2 * problem.alpha * coef - found.force
        inner = gradient if basis is None else basis.T @ gradient
        steps = [system.direction(inner[:, k], -found.balance[k]) for k, system in enumerate(systems)]
        move = np.column_stack([x for x, _ in steps])
        coef = coef + (move if basis is None else basis @ move)
        intercept = intercept + np.array([z for _, z in steps])
    result = ledger.result()
    return replace(result, sweeps=share * near.sweeps + memory.sweeps)


def _solve_sample(
    problem: Problem, rows: LiftedRows, coef: Array, intercept: Array, tol: float, max_iter: int
) -> tuple[None, tuple[Result, list[NewtonSystem]]]:
    """A sample's own solution, and the Newton systems of its columns there: these go to where the rows are."""
    sample, still = problem.on(rows), np.zeros(problem.n_columns)
    start = newton.Start(coef, intercept, still, still, null_model(sample))
    near = newton.solve(sample, tol=tol, max_iter=max_iter, start=start, polish=False)
    return None, (replace(near, dual=near.dual[:0]), _systems(sample, near))


def _systems(sample: Problem, at: Result) -> list[NewtonSystem]:
    """The Newton systems of a sample's columns at a fit."""
    memory, still, no = sample.rows.new_memory(), np.zeros(sample.n_columns), np.zeros(sample.n_columns, dtype=bool)
    sample.place(memory, at.coef, at.intercept)
    curvatures = sample.curvature(memory, still, no, no)
    return [
        NewtonSystem(curvature, alpha, sample.fit_intercept)
        for curvature, alpha in zip(curvatures, sample.alpha, strict=True)
    ]
