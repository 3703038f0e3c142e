"""Newton systems: of one column, in its primal or dual form, and of levels that are coupled with their neighbours.

One column (`NewtonSystem`). With A (a, M) the features of the active rows and h_i their Hessian weights, the direction
(x, z) for a gradient (g, s) solves

    2 alpha x + A' h (A x + z) = -g,        sum h (A x + z) = -s        (the second line with an intercept only).

If a > M this is a system of size M + 1 (feature side). Otherwise put  e = -h (A x + z), so that x = (A'e - g) / (2
alpha), and solve (row side; the Woodbury identity)

    (A A' + 2 alpha diag(1/h)) e + 2 alpha z = A g,      sum e = s,

which has size a + 1 and keeps its digits when alpha is tiny.

Coupled levels (`BlockTridiagonal`). With L_k the weighted features of the active rows of level k, and T_k those of its
active constraints with level k + 1, the Hessian has the blocks

    2 alpha I + L_k'L_k + T_k'T_k + T_(k-1)'T_(k-1)     on the diagonal,     -T_k'T_k     beside it.

Block elimination from the first level on replaces the last term by  T' (I - T A^-1 T') T,  where A is the eliminated
block before. With I - T A^-1 T' = C C' that is (C'T)'(C'T): further rows, as many as there are active constraints,
which are few. So no block is ever a difference, which would lose digits, and each is factorized once.

Second moments of the active rows (`ActiveGram`). Where a fit has few rows per feature, forming the Hessian is most of
the work of a Newton step. For a loss of two lines all active rows have the same curvature, 1 / width, so that the sum
over them of w phi phi' / W depends on nothing but the set; and once the smoothing width is small, that changes by few
rows from one step to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk, dtrmm, dtrsm, dtrsv, ssyrk, strsm, strsv
from scipy.linalg.lapack import dgetrf, dgetrs, dpotrf, dpotrs, spotrf

from quernel._machine import parallel_map
from quernel.data import InMemoryDesign
from quernel.objective import Curvature

Array = NDArray[np.floating]
Index = NDArray[np.intp]


# What is added to the unit diagonal of damped systems: it costs steps, and saves those that rounding would spoil.
DAMPING = 1e-12
# Rows that are gathered at a time: enough for BLAS, and few beside all rows.
GATHERED = 2048
# Sums over active rows are made and factorized in single precision, at half the cost, where the ridge 2 alpha is at
# least this share of the trace of the rest, so that directions are still those of Newton (the gradient, and with it the
# solution and its certificate, stays in double precision), ...
SINGLE_RIDGE = 3e-7
# ... and rows x features and features are so many that this pays.
SINGLE_SIZE, SINGLE_FEATURES = 2_000_000, 300


class NewtonSystem:
    """The Newton system of one column, factorized once for any number of right-hand sides.

    Where the ridge is too weak to be seen beside the features, the feature side is `damped`: scaled to a unit diagonal,
    to which a little is added (Levenberg and Marquardt), so that few active rows leave it invertible.
    """

    def __init__(self, curvature: Curvature, alpha: float, fit_intercept: bool, *, damped: bool = False) -> None:
        self._curvature = curvature
        self._alpha = alpha
        self._fit_intercept = fit_intercept
        if curvature.gram is None:
            self._solve = _factorize(self._row_side())
        elif damped:
            self._solve = _factorize_damped(self._feature_side())
        else:
            self._solve = _factorize_positive(self._feature_side)

    @property
    def factored_at(self) -> float:
        """`Curvature.scale` of a feature-side system that `corrected` can start from; 0 for others."""
        positive = isinstance(self._solve, _CholeskySolver | _CorrectedSolver)
        return self._curvature.scale if positive else 0.0

    def corrected(self, rows: Array, h: Array, surplus: Array) -> NewtonSystem:
        """The system as it was factorized with the rows (m, M) of weights h (m,) more, or fewer where h < 0.

        Corrections are all of the same factor, and none of another correction: rounding errors do not add up.
        """
        solve = self._solve
        assert isinstance(solve, _CholeskySolver | _CorrectedSolver)
        if self._fit_intercept:
            rows = np.column_stack([rows, np.ones(len(rows))])
        system = copy(self)
        system._curvature = replace(self._curvature, surplus=surplus)
        system._solve = _CorrectedSolver.from_rows(solve.factor, rows, h) if len(h) else _CholeskySolver(solve.factor)
        return system

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
        """The primal system, of size M + 1; above its diagonal as meaningful as `Curvature.gram`."""
        gram, cross = self._curvature.gram, self._curvature.cross
        assert gram is not None
        assert cross is not None
        size, scale = len(gram), self._curvature.scale
        shape = (size + self._fit_intercept, size + self._fit_intercept)
        matrix: Array = np.empty(shape, dtype=gram.dtype, order="F")
        np.multiply(gram, gram.dtype.type(scale), out=matrix[:size, :size])
        matrix[np.diag_indices(size)] += 2 * self._alpha
        if self._fit_intercept:
            matrix[size, :size] = matrix[:size, size] = scale * cross
            matrix[size, size] = scale * self._curvature.total
        return matrix

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
    """The symmetric matrix [[matrix, border], [border', corner]]; the border is that of the constraint sum e = s."""
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


def _factorize_positive(build: Callable[[], Array]) -> Callable[[Array], Array]:
    """The same for a positive definite matrix, of which the lower triangle is read, by Cholesky.

    It is built again where rounding has made it indefinite; in single precision that raises a LinAlgError.
    """
    matrix = build()
    single = matrix.dtype == np.float32
    factor, failed = (spotrf if single else dpotrf)(matrix, lower=1, overwrite_a=1, clean=0)
    if not failed:
        return _CholeskySolver(factor)
    if single:
        raise np.linalg.LinAlgError("Single precision has made the matrix indefinite.")
    lower = np.tril(build())
    return _factorize(lower + np.tril(lower, -1).T)


def _factorize_damped(matrix: Array) -> Callable[[Array], Array]:
    """The same for a positive semidefinite matrix, scaled to a unit diagonal and damped.

    Scaled first, so that damping is as small beside the features of one unit as beside those of another.
    """
    diagonal = np.diag(matrix)
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1))
    scaled = matrix * np.outer(scale, scale)
    scaled.flat[:: len(scaled) + 1] += DAMPING
    return _ScaledSolver(_factorize(scaled), scale)


@dataclass(frozen=True, eq=False)
class _ScaledSolver:
    """Solves A x = right by a solver of S A S: x = S (S A S)^-1 S right."""

    solve: Callable[[Array], Array]
    scale: Array

    def __call__(self, right: Array) -> Array:
        return self.scale * self.solve(self.scale * right)


@dataclass(frozen=True, eq=False)
class _LuSolver:
    """Solves with LU factors. A class, because workers send it back and a closure could not be pickled."""

    factor: Array
    pivots: NDArray[np.intc]

    def __call__(self, right: Array) -> Array:
        return dgetrs(self.factor, self.pivots, right)[0]


@dataclass(frozen=True, eq=False)
class _CholeskySolver:
    """Solves with a Cholesky factor. (LAPACK's own solver takes ten times as long for one right-hand side.)"""

    factor: Array

    def __call__(self, right: Array) -> Array:
        return _solve_lower(self.factor, _solve_lower(self.factor, right), transposed=True)


def _solve_lower(factor: Array, right: Array, *, transposed: bool = False) -> Array:
    """L^-1 right or L'^-1 right, (size,), for a lower triangular factor of either precision."""
    if factor.dtype != np.float32:
        return dtrsv(factor, right, lower=1, trans=transposed)
    size = np.abs(right).max(initial=0.0)  # single precision has a small range
    if size == 0:
        return right
    return size * strsv(factor, (right / size).astype(np.float32), lower=1, trans=transposed).astype(float)


@dataclass(frozen=True, eq=False)
class _CorrectedSolver:
    """Solves with L L' + C' diag(h) C, by the Woodbury identity: half = L^-1 C', small = diag(1/h) + half'half."""

    factor: Array
    half: Array
    small: Callable[[Array], Array]

    @classmethod
    def from_rows(cls, factor: Array, rows: Array, h: Array) -> _CorrectedSolver:
        """With the rows C of shape (m, size)."""
        half = (strsm if factor.dtype == np.float32 else dtrsm)(1.0, factor, rows.T, lower=1).astype(float, copy=False)
        small = half.T @ half
        small.flat[:: len(h) + 1] += 1 / h
        return cls(factor, half, _factorize(small))

    def __call__(self, right: Array) -> Array:
        x = _solve_lower(self.factor, right)
        return _solve_lower(self.factor, x - self.half @ self.small(self.half.T @ x), transposed=True)


class BlockTridiagonal:
    """The Hessian in the coordinates (u_k, b_k) of the levels, by one Cholesky factor per level.

    Parameters
    ----------
    features : array of shape (N, M)
    alphas : array of shape (q,)
    fit_intercept : bool
    losses, constraints : arrays of shape (N, q) and (N, q - 1)
        Second derivatives of each row's smoothed losses and constraints.
    fallback : float
        Diagonal entry of an intercept without active rows.
    shaped : sequence of arrays of shape (., M + 1), one per level, or empty
        Further rows of a level, whose squares are added to its Hessian.
    """

    def __init__(
        self,
        features: Array,
        alphas: Array,
        fit_intercept: bool,
        losses: Array,
        constraints: Array,
        fallback: float,
        shaped: Sequence[Array] = (),
    ) -> None:
        self._factors: list[Array] = []
        self._couplings: list[Array] = []
        carried = np.empty((0, features.shape[1] + 1))  # C'T of the level before
        for k, alpha in enumerate(alphas):
            rows = [carried, _weighted_rows(features, fit_intercept, losses[:, k]), *shaped[k : k + 1]]
            if k < constraints.shape[1]:
                coupling = _compress_rows(_weighted_rows(features, fit_intercept, constraints[:, k]))
                rows.append(coupling)
                self._couplings.append(coupling)
            self._factors.append(factor := cholesky(_block(np.vstack(rows), alpha, fallback)))
            if k < constraints.shape[1]:
                carried = _eliminate(factor, coupling)

    def solve(self, right: Array) -> Array:
        """Hessian^-1 right, (M + 1, q): forwards over the levels, eliminating each from the next, and back."""
        answer = right.copy()
        for k, factor in enumerate(self._factors):
            if k:
                answer[:, k] += self._couplings[k - 1].T @ (self._couplings[k - 1] @ answer[:, k - 1])
            answer[:, k] = _solve_block(factor, answer[:, k])
        for k in range(len(self._factors) - 2, -1, -1):
            back = self._couplings[k].T @ (self._couplings[k] @ answer[:, k + 1])
            answer[:, k] += _solve_block(self._factors[k], back)
        return answer


def _weighted_rows(features: Array, fit_intercept: bool, weight: Array) -> Array:
    """sqrt(weight_i) (phi_i, 1),  or without intercept (phi_i, 0),  of the rows that have weight."""
    rows = np.flatnonzero(weight)
    root = np.sqrt(weight[rows])
    answer = np.empty((len(rows), features.shape[1] + 1))
    np.multiply(features[rows], root[:, None], out=answer[:, :-1])
    answer[:, -1] = root if fit_intercept else 0
    return answer


def _compress_rows(rows: Array) -> Array:
    """At most M + 1 rows with the same Gram matrix, by QR: constraints that are active may be more than that."""
    return np.asarray(np.linalg.qr(rows, mode="r")) if len(rows) > rows.shape[1] else rows


def _block(rows: Array, alpha: float, fallback: float) -> Array:
    """2 alpha I + rows'rows (lower triangle); no ridge on the intercept, which is not penalised."""
    block = dsyrk(1.0, rows.T, lower=1)
    block[np.diag_indices(len(block) - 1)] += 2 * alpha
    if block[-1, -1] == 0:  # no active row: keep the intercept determined
        block[-1, -1] = fallback
    return block


def _eliminate(factor: Array, coupling: Array) -> Array:
    """C'T, where C C' = I - T A^-1 T' and A = factor factor'.

    A contains T'T, so that T A^-1 T' is below the identity, and the Cholesky factor C exists.
    """
    if len(coupling) == 0:
        return coupling
    inner = dtrsm(1.0, factor, coupling.T, lower=1)
    rest = dsyrk(-1.0, inner, trans=1, lower=1, beta=1.0, c=np.eye(len(coupling)))
    return dtrmm(1.0, cholesky(rest), coupling.T, side=1, lower=1).T


def cholesky(block: Array) -> Array:
    """Cholesky factor, with jitter on the diagonal where rounding has made the block indefinite."""
    more = 0.0
    for _ in range(20):
        factor, failed = dpotrf(block + more * np.eye(len(block)) if more else block, lower=1)
        if not failed:
            return factor
        more = max(10 * more, 1e-15 * float(np.trace(block)) / len(block))
    raise np.linalg.LinAlgError("A Newton system cannot be factored: it has numbers that are not finite.")


def _solve_block(factor: Array, right: Array) -> Array:
    """Solve with the Cholesky factor of one block."""
    return dpotrs(factor, right, lower=1)[0]


class ActiveGram:
    """Sums over a set of rows, at first the empty one.

    Attributes
    ----------
    gram : array of shape (M, M)
        sum w phi phi' / W; only the lower triangle is meaningful.
    cross : array of shape (M,)
        sum w phi / W.
    total : float
        sum w / W.
    """

    def __init__(self, rows: InMemoryDesign) -> None:
        self._features, self._share = rows.as_array("Active rows are summed"), rows.share
        self._counted = np.zeros(rows.n_rows, dtype=bool)
        self.gram: Array = np.zeros((rows.n_features, rows.n_features), order="F")
        self.cross: Array = np.zeros(rows.n_features)
        self.total = 0.0
        self._scale = rows.kernel_scale()
        large = rows.n_rows * rows.n_features > SINGLE_SIZE and rows.n_features >= SINGLE_FEATURES
        self._single = large  # until that fails

    def changes(self, active: Index) -> tuple[Index, Array]:
        """Rows (m,) in which the set `active` differs from that of the sums; their shares, negative if they leave."""
        here = np.zeros_like(self._counted)
        here[active] = True
        come, gone = np.flatnonzero(here & ~self._counted), np.flatnonzero(self._counted & ~here)
        return np.r_[come, gone], np.r_[self._share[come], -self._share[gone]]

    def take(self, active: Index) -> Array:
        """Features of these rows, (a, M)."""
        return self._features[active].astype(float, copy=False)

    def system(
        self, active: Index, width: float, alpha: float, fit_intercept: bool, surplus: Array, threads: int = 1
    ) -> NewtonSystem:
        """The Newton system of the rows `active` (a,), which become those of the sums; h = share / width.

        Its `Curvature.surplus` is the given one, (M + 1,).
        """

        def factorize(dtype: type) -> NewtonSystem:
            self.update(active, threads, dtype)
            cross, total = self.cross, self.total
            curvature = Curvature(surplus, gram=self.gram, cross=cross, total=total, scale=1 / width)
            return NewtonSystem(curvature, alpha, fit_intercept)

        if self._single and 2 * alpha * width >= SINGLE_RIDGE * self._scale * self._share[active].sum():
            try:
                return factorize(np.float32)
            except np.linalg.LinAlgError:
                self._single = False
        return factorize(float)

    def update(self, active: Index, threads: int = 1, dtype: type = float) -> None:
        """Make the sums those of the rows `active` (a,): from the last ones or, where that is less work, anew.

        `dtype` is that of the Gram matrix, float or np.float32, which takes half the time.
        """
        index, share = self.changes(active)
        if len(index) > len(active) or self.gram.dtype != dtype:
            self.gram = self.gram if self.gram.dtype == dtype else np.empty_like(self.gram, dtype=dtype)
            self.gram[:], self.cross[:] = 0, 0
            index, share = active, self._share[active]
        self._add(index[share > 0], 1.0, threads)
        self._add(index[share < 0], -1.0, threads)
        self._counted[:] = False
        self._counted[active] = True
        self.total = float(self._share[active].sum())

    def _add(self, index: Index, sign: float, threads: int) -> None:
        """Add these rows, or subtract them; many of them on several threads, each with sums of its own."""
        parts = np.array_split(index, threads) if len(index) > threads * GATHERED else [index]
        sums = [(self.gram, self.cross), *((np.zeros_like(self.gram), np.zeros_like(self.cross)) for _ in parts[1:])]
        parallel_map(lambda k: self._add_to(*sums[k], parts[k], sign), range(len(parts)), len(parts))
        for gram, cross in sums[1:]:
            self.gram += gram
            self.cross += cross

    def _add_to(self, gram: Array, cross: Array, index: Index, sign: float) -> None:
        """Add the rows at `index` to these sums, in place.

        By symmetric rank-k updates, half the work of general products. Weights are one factor where all rows have the
        same, and go into the rows otherwise, as roots; the sign stays outside of them.
        """
        for start in range(0, len(index), GATHERED):
            some = index[start : start + GATHERED]
            share, rows = self._share[some], self.take(some)
            cross += sign * (share @ rows)
            weight = sign * share[0]
            if np.any(share != share[0]):
                weight = sign
                rows *= np.sqrt(share)[:, None]
            if gram.dtype == np.float32:
                ssyrk(weight, rows.astype(np.float32).T, 1.0, gram, lower=1, overwrite_c=1)
            else:
                dsyrk(weight, rows.T, 1.0, gram, lower=1, overwrite_c=1)
