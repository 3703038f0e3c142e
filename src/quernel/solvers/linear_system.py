"""The Newton system of one column, solved in its primal or dual form, whichever is smaller.

With A (a, M) the features of the active rows and h_i their Hessian weights, the direction (x, z) for a gradient (g, s)
solves

    2 alpha x + A' h (A x + z) = -g,        sum h (A x + z) = -s        (the second line with an intercept only).

If a > M this is a system of size M + 1 (feature side). Otherwise put  e = -h (A x + z), so that x = (A'e - g) / (2
alpha), and solve (row side; the Woodbury identity)

    (A A' + 2 alpha diag(1/h)) e + 2 alpha z = A g,      sum e = s,

which has size a + 1 and keeps its digits when alpha is tiny.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dgetrf, dgetrs

from quernel.objective import Curvature

Array = NDArray[np.floating]


class NewtonSystem:
    """The Newton system of one column, factorized once for any number of right-hand sides."""

    def __init__(self, curvature: Curvature, alpha: float, fit_intercept: bool) -> None:
        self._curvature = curvature
        self._alpha = alpha
        self._fit_intercept = fit_intercept
        self._solve = _factorize(self._row_side() if curvature.gram is None else self._feature_side())

    def _row_side(self) -> Array:
        """The dual system, of size a + 1."""
        rows, h = self._curvature.rows, self._curvature.h
        assert rows is not None
        assert h is not None
        matrix = rows @ rows.T
        matrix.flat[:: len(h) + 1] += 2 * self._alpha / h
        if not self._fit_intercept or len(h) == 0:
            return matrix
        # The border is scaled like the rest: with a tiny alpha in it, pivoting would take it for zero.
        self._border_scale = np.sqrt(matrix.flat[:: len(h) + 1].sum() / len(h))
        return _bordered(matrix, np.full(len(h), self._border_scale), 0.0)

    def _feature_side(self) -> Array:
        """The primal system, of size M + 1."""
        gram, cross = self._curvature.gram, self._curvature.cross
        assert gram is not None
        assert cross is not None
        matrix = np.array(gram)
        matrix.flat[:: len(matrix) + 1] += 2 * self._alpha
        return _bordered(matrix, cross, self._curvature.total) if self._fit_intercept else matrix

    def surplus(self) -> tuple[Array, float]:
        """What linearising at the multipliers adds to (phi_t_dual, mean_dual): see `Curvature.surplus`."""
        surplus, rows = self._curvature.surplus, self._curvature.rows
        if rows is not None:
            return surplus @ rows, float(surplus.sum())
        return surplus[:-1], float(surplus[-1])

    def direction(self, gradient: Array, slope: float) -> tuple[Array, float]:
        """The Newton direction (x, z) for the gradient (g, s)."""
        rows = self._curvature.rows
        if rows is None:
            if not self._fit_intercept:
                return self._solve(-gradient), 0.0
            solution = self._solve(_append(-gradient, -slope))
            return solution[:-1], float(solution[-1])
        if len(rows) == 0:
            return -gradient / (2 * self._alpha), 0.0
        if not self._fit_intercept:
            e, z = self._solve(rows @ gradient), 0.0
        else:
            solution = self._solve(_append(rows @ gradient, self._border_scale * slope))
            e, z = solution[:-1], float(self._border_scale * solution[-1] / (2 * self._alpha))
        return (e @ rows - gradient) / (2 * self._alpha), z


def _append(values: Array, last: float) -> Array:
    """np.append, which itself takes longer than the solve of a small system."""
    whole = np.empty(len(values) + 1)
    whole[:-1], whole[-1] = values, last
    return whole


def _bordered(matrix: Array, border: Array, corner: float) -> Array:
    """The symmetric matrix [[matrix, border], [border', corner]]."""
    size = len(matrix)
    whole = np.empty((size + 1, size + 1))
    whole[:size, :size] = matrix
    whole[:size, size] = whole[size, :size] = border
    whole[size, size] = corner
    return whole


def _factorize(matrix: Array) -> Callable[[Array], Array]:
    """A function right -> matrix^-1 right, from one LU factorization (the bordered matrix is indefinite)."""
    if len(matrix) == 0:
        return np.zeros_like
    factor, pivots, singular = dgetrf(matrix)
    if singular > 0:  # repeated rows with a ridge lost to rounding: take the least-norm solution
        return partial(np.matmul, np.linalg.pinv(matrix))
    return _LuSolver(factor, pivots)


@dataclass(frozen=True, eq=False)
class _LuSolver:
    """Solves with LU factors. A class, because workers send it back and a closure could not be pickled."""

    factor: Array
    pivots: NDArray[np.intc]

    def __call__(self, right: Array) -> Array:
        return dgetrs(self.factor, self.pivots, right)[0]
