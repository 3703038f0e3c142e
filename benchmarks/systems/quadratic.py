"""The dual as a quadratic program, as one would write it for a general solver.

Scaled by n, with theta in [level - 1, level]^n and, with an intercept, sum theta = 0:

    the kernel itself:  min  theta'K theta / (4 alpha n) - y'theta,                      f = K theta / (2 alpha n) + b
    features:           min  alpha n u'u - y'theta  subject to  Phi'theta = 2 alpha n u,  f = Phi u + b

b is the multiplier of the sum.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from quernel.bench import Answer, Task


@dataclass(frozen=True, eq=False)
class Dual:
    """min x'P x / 2 + c'x  subject to  A x = 0  and  low <= theta <= high; theta are the first n entries of x."""

    P: np.ndarray | sparse.csc_matrix
    c: np.ndarray
    A: np.ndarray | sparse.csc_matrix
    low: float
    high: float


def dual(task: Task) -> Dual:
    n, alpha, box = task.n, task.alpha, (task.level - 1, task.level)
    if task.M is None:
        A = np.ones((1, n)) if task.fit_intercept else np.zeros((0, n))
        return Dual(task.gram() / (2 * alpha * n), -task.y, A, *box)
    M = task.M
    P = sparse.diags(np.r_[np.zeros(n), np.full(M, 2 * alpha * n)], format="csc")
    A = sparse.hstack([sparse.csc_matrix(task.features.T), -2 * alpha * n * sparse.eye(M)])
    if task.fit_intercept:
        A = sparse.vstack([sparse.csc_matrix(np.r_[np.ones(n), np.zeros(M)]), A])
    return Dual(P, np.r_[-task.y, np.zeros(M)], A.tocsc(), *box)


def answer(task: Task, seconds: float, x: np.ndarray, multipliers: np.ndarray, note: str) -> Answer:
    """The primal answer of x and the multipliers of A x = 0."""
    intercept = float(multipliers[0]) if task.fit_intercept else 0.0
    if task.M is not None:
        return task.make_answer(seconds, x[task.n :], intercept, note)
    weights = x[: task.n] / (2 * task.alpha * task.n)
    K = task.gram()
    return Answer(seconds, K @ weights + intercept, float(weights @ (K @ weights)), note=note)
