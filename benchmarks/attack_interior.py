"""A primal-dual interior point method in two precisions, for the attack's independent optimum.

The program, with rows r = offset - A u - E b and z_i the dual of row i,

    minimise  sum_i share_i loss_i(r_i) + (ridge / 2) u'u,        low_i <= z_i <= high_i,

has the optimality conditions  ridge u = A'(share z),  E'(share z) = 0,  r = psi(z) + p - m,  p (high - z) = 0,
m (z - low) = 0,  p, m >= 0,  where psi is the derivative of the conjugate inside the box. Mehrotra's method solves
them in doubles and continues in 80-bit numbers, where a problem is small enough for that. Whatever it returns is
only a candidate: the bracket is evaluated on the problem as it was given, by `attack_losses.Sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from benchmarks.attack_losses import Extended

Array = NDArray[np.floating]
Psi = Callable[[Array, Array, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class InteriorOptions:
    """Constants of the interior point method."""

    max_iter: int = 150
    extended_iter: int = 60
    # Multiplications per 80-bit factorisation up to which the method continues there: half a second each.
    extended_work: float = 5e7
    # Share of the way to the boundary.
    fraction: float = 0.995
    cautious_fraction: float = 0.7
    # Steps shorter than this are tried again with these shares of the mean product as the goal of every row.
    short: float = 0.3
    centring: tuple[float, ...] = (0.1, 0.5, 1.0)
    # The method ends after so many iterations in which the error did not fall by this factor.
    progress: float = 0.9
    patience: int = 12


OPTIONS = InteriorOptions()


@dataclass(frozen=True, eq=False)
class Program:
    """Rows of the convex program in the module's docstring, in units in which offsets and boxes are of order one.

    Attributes
    ----------
    design : array (N, d), or None where only `gram` is known
    gram : array (N, N) = A A', needed where N <= d
    ends : array (N, e), the columns of the intercepts
    """

    design: Array | None
    gram: Array | None
    ends: Array
    offset: Array
    share: Array
    low: Array
    high: Array
    ridge: Array
    psi: Psi

    def as_type(self, real: type) -> Program:
        def convert(part: Array | None) -> Array | None:
            return None if part is None else part.astype(real)

        named = ("design", "gram", "ends", "offset", "share", "low", "high")
        return replace(self, ridge=real(self.ridge), **{name: convert(getattr(self, name)) for name in named})

    @property
    def by_rows(self) -> bool:
        return self.gram is not None

    @property
    def work(self) -> float:
        """Multiplications of one factorisation."""
        if self.gram is not None:
            return len(self.gram) ** 3 / 3
        assert self.design is not None
        n, d = self.design.shape
        return n * d * d


@dataclass(frozen=True, eq=False)
class Iterate:
    """A point of the interior point method; `below` = z - low and `above` = high - z are kept for their digits."""

    coef: Array
    intercept: Array
    z: Array
    below: Array
    above: Array
    p: Array
    m: Array

    def extend(self, program: Program) -> Iterate:
        """The iterate in 80-bit numbers, with z from its distance to the nearer bound, which has more digits."""
        at = Iterate(*(np.asarray(part).astype(Extended) for part in vars(self).values()))
        up, down = np.isfinite(program.high), np.isfinite(program.low)
        near_top = up & ~(down & (at.below < at.above))
        z = np.where(near_top, program.high - at.above, np.where(down, program.low + at.below, at.z))
        above, below = np.where(up, program.high - z, 1), np.where(down, z - program.low, 1)
        return replace(at, z=z, above=np.where(near_top, at.above, above), below=np.where(near_top, below, at.below))

    def move(self, step: tuple[Array, ...], length: float) -> Iterate:
        du, db, dz, dp, dm = (length * part for part in step)
        return Iterate(
            self.coef + du, self.intercept + db, self.z + dz, self.below + dz, self.above - dz, self.p + dp, self.m + dm
        )


def _cholesky(matrix: Array) -> Array:
    """Lower factor in 80-bit numbers, column by column."""
    n = len(matrix)
    factor = np.zeros_like(matrix)
    for j in range(n):
        column = matrix[j:, j] - factor[j:, :j] @ factor[j, :j]
        if not column[0] > 0:
            raise np.linalg.LinAlgError
        factor[j:, j] = column / np.sqrt(column[0])
    return factor


def weighted_gram(matrix: Array, weight: Array) -> Array:
    """matrix' diag(weight) matrix; in 80-bit numbers by columns, which is faster than numpy's product."""
    if matrix.dtype == np.float64:
        return matrix.T @ (weight[:, None] * matrix)
    rows = np.ascontiguousarray(matrix.T)
    result = np.empty((len(rows), len(rows)), dtype=matrix.dtype)
    for j in range(len(rows)):
        result[j:, j] = result[j, j:] = rows[j:] @ (weight * rows[j])
    return result


class Factor:
    """Solves with a symmetric positive matrix, scaled to a unit diagonal, with a little more on it if need be."""

    def __init__(self, matrix: Array) -> None:
        diagonal = np.diag(matrix)
        self.scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1))
        scaled = self.scale[:, None] * matrix * self.scale
        more = 0.0
        for _ in range(8):
            try:
                shifted = scaled + more * np.eye(len(matrix), dtype=matrix.dtype)
                self.double = matrix.dtype == np.float64
                if self.double:
                    self.factor = cho_factor(shifted, lower=True, check_finite=False)
                else:
                    self.factor = _cholesky(shifted)
                return
            except (np.linalg.LinAlgError, ValueError):
                more = max(100 * more, 10 * float(np.finfo(matrix.dtype).eps))
        raise np.linalg.LinAlgError

    def solve(self, right: Array) -> Array:
        scale = self.scale if right.ndim == 1 else self.scale[:, None]
        if self.double:
            return scale * cho_solve(self.factor, scale * right, check_finite=False)
        x = np.array(scale * right)
        for j in range(len(x)):
            x[j] = (x[j] - self.factor[j, :j] @ x[:j]) / self.factor[j, j]
        for j in range(len(x) - 1, -1, -1):
            x[j] = (x[j] - self.factor[j + 1 :, j] @ x[j + 1 :]) / self.factor[j, j]
        return scale * x


class _System:
    """D d + A du + E db = g,   ridge du - A'd = -ru,   E'd = -rb:  by rows, or by columns, whichever are fewer.

    By rows, u = A'beta, and beta takes the place of u, the Gram matrix that of A, and the identity that of A'.
    """

    def __init__(self, program: Program, D: Array) -> None:
        self.program, self.D = program, D
        ends = program.ends
        if program.gram is not None:
            self.factor = Factor(program.gram / program.ridge + np.diag(D))
            if ends.shape[1]:
                self.solved_ends = self.factor.solve(ends)
                self.small = Factor(ends.T @ self.solved_ends)
        else:
            assert program.design is not None
            d = program.design.shape[1]
            whole = np.hstack([program.design, ends])
            hessian = weighted_gram(whole, 1 / D)
            hessian[np.arange(d), np.arange(d)] += program.ridge
            self.factor = Factor(hessian)

    def solve(self, g: Array, ru: Array, rb: Array, refine: int = 2) -> tuple[Array, Array, Array]:
        found = self._solve(g, ru, rb)
        for _ in range(refine):
            left = self.residual(found, g, ru, rb)
            # By columns d is what the first equation says, up to rounding that D would only magnify.
            first = left[0] if self.program.by_rows else 0 * left[0]
            more = self._solve(first, -left[1], -left[2])
            found = tuple(a + b for a, b in zip(found, more, strict=True))
        return found

    def residual(self, found: tuple[Array, ...], g: Array, ru: Array, rb: Array) -> tuple[Array, Array, Array]:
        program, (d, du, db) = self.program, found
        third = -rb - program.ends.T @ d
        if program.gram is not None:
            first = g - self.D * d - program.gram @ du - program.ends @ db
            return first, -ru - program.ridge * du + d, third
        first = g - self.D * d - program.design @ du - program.ends @ db
        return first, -ru - program.ridge * du + program.design.T @ d, third

    def _solve(self, g: Array, ru: Array, rb: Array) -> tuple[Array, Array, Array]:
        program = self.program
        ends = program.ends
        if program.gram is not None:
            d = self.factor.solve(g + program.gram @ ru / program.ridge)
            db = np.zeros(ends.shape[1], dtype=g.dtype)
            if ends.shape[1]:
                db = self.small.solve(ends.T @ d + rb)
                d = d - self.solved_ends @ db
            return d, (d - ru) / program.ridge, db
        k = program.design.shape[1]
        right = np.append(program.design.T @ (g / self.D) - ru, ends.T @ (g / self.D) + rb)
        x = self.factor.solve(right)
        return (g - program.design @ x[:k] - ends @ x[k:]) / self.D, x[:k], x[k:]


def _start(program: Program) -> Iterate:
    up, down = np.isfinite(program.high), np.isfinite(program.low)
    inside = np.where(up & down, (np.where(down, program.low, 0) + np.where(up, program.high, 0)) / 2, 0)
    z = np.where(up & ~down, program.high - 1, np.where(down & ~up, program.low + 1, inside))
    above, below = np.where(up, program.high - z, 1), np.where(down, z - program.low, 1)
    # Products share p (high - z) of one size, in spite of weights over many decades.
    size = np.abs(program.offset)
    typical = size + (program.share @ size + 1e-3) / (len(size) * program.share)
    d = len(z) if program.gram is not None else program.design.shape[1]
    return Iterate(
        np.zeros(d),
        np.zeros(program.ends.shape[1]),
        z,
        below,
        above,
        np.where(up, typical, 0),
        np.where(down, typical, 0),
    )


def _outputs(program: Program, at: Iterate) -> Array:
    """A u + E b."""
    if program.gram is not None:
        return program.gram @ at.coef + program.ends @ at.intercept
    return program.design @ at.coef + program.ends @ at.intercept


class _Point:
    """An iterate with its errors, and the next one by Mehrotra's predictor and corrector."""

    def __init__(self, program: Program, at: Iterate) -> None:
        self.program, self.at = program, at
        self.up, self.down = np.isfinite(program.high), np.isfinite(program.low)
        share = program.share
        psi, self.slope = program.psi(at.z, at.below, at.above)
        self.rho = program.offset - _outputs(program, at) - psi - at.p + at.m
        self.rb = program.ends.T @ (share * at.z)
        pull = share * at.z
        self.ru = program.ridge * at.coef - (pull if program.by_rows else program.design.T @ pull)
        self.gap = self._products(at)
        self.merit = self.gap + float(share @ np.abs(self.rho)) + float(np.abs(self.rb).sum())
        if not program.by_rows:
            self.merit += float(np.sqrt(self.ru @ self.ru))

    def _products(self, at: Iterate) -> float:
        return float(self.program.share @ (self.up * at.p * at.above + self.down * at.m * at.below))

    def advance(self, caution: bool) -> Iterate:
        """The next iterate; LinAlgError where its equations cannot be factored."""
        at, share, up, down = self.at, self.program.share, self.up, self.down
        theta = self.slope + up * at.p / at.above + down * at.m / at.below
        self.system = _System(self.program, theta / share)
        mean = self.gap / (max(int(up.sum() + down.sum()), 1) * share)  # per unit of a row's share
        if caution:
            full = self._direction(mean / 10 - at.p * at.above, mean / 10 - at.m * at.below)
            return at.move(full, min(1.0, OPTIONS.cautious_fraction * self._longest(full)))
        affine = self._direction(-at.p * at.above, -at.m * at.below)
        after = self._products(at.move(affine, self._longest(affine)))
        centre = mean * min((max(after, 0) / self.gap) ** 3, 1) if self.gap > 0 else mean
        _, _, dz, dp, dm = affine
        full = self._direction(centre - at.p * at.above + dp * dz, centre - at.m * at.below - dm * dz)
        length = self._longest(full)
        for part in OPTIONS.centring:  # a short step means products that are far apart: bring them together first
            if length >= OPTIONS.short:
                break
            other = self._direction(part * mean - at.p * at.above, part * mean - at.m * at.below)
            longer = self._longest(other)
            full, length = (other, longer) if longer > length else (full, length)
        return at.move(full, min(1.0, OPTIONS.fraction * length))

    def _direction(self, rp: Array, rm: Array) -> tuple[Array, ...]:
        """The Newton direction that changes the products p (high - z) and m (z - low) by rp and rm."""
        at, up, down = self.at, self.up, self.down
        d, du, db = self.system.solve(self.rho - up * rp / at.above + down * rm / at.below, self.ru, self.rb)
        dz = d / self.program.share
        return du, db, dz, up * (rp + at.p * dz) / at.above, down * (rm - at.m * dz) / at.below

    def _longest(self, step: tuple[Array, ...]) -> float:
        """The largest step, up to 1, that keeps everything positive."""
        at, longest, (_, _, dz, dp, dm) = self.at, 1.0, step
        sides = (at.below, dz, self.down), (at.above, -dz, self.up), (at.p, dp, self.up), (at.m, dm, self.down)
        for value, change, mask in sides:
            falling = mask & (change < 0)
            if falling.any():
                longest = min(longest, float(np.min(-value[falling] / change[falling])))
        return longest


def _iterate(
    program: Program, at: Iterate, max_iter: int, goal: float, caution: bool
) -> Iterator[tuple[float, float, Iterate]]:
    """Steps with their errors and gaps, until the gap is below `goal` or nothing improves.

    They are Mehrotra's or, with caution, shorter ones towards products that are a tenth of what they are, all alike.
    """
    least, stalled = np.inf, 0
    for _ in range(max_iter):
        point = _Point(program, at)
        if not np.isfinite(point.merit):
            return
        stalled = 0 if point.merit < OPTIONS.progress * least else stalled + 1
        least = min(least, point.merit)
        yield point.merit, point.gap, at
        if stalled > (2 if 0 < point.gap <= goal else OPTIONS.patience):
            return
        try:
            at = point.advance(caution)
        except np.linalg.LinAlgError:
            return


def orthogonalise(matrix: Array) -> tuple[Array, Array]:
    """(L, Q) with matrix = L Q and orthonormal rows of Q, of which there are as many as the rank; in 80-bit numbers."""
    rows, lower = (
        np.zeros((0, matrix.shape[1]), dtype=Extended),
        np.zeros((len(matrix), min(matrix.shape)), dtype=Extended),
    )
    for i, row in enumerate(matrix):
        rest = np.array(row)
        for _ in range(2):
            part = rows @ rest
            lower[i, : len(part)] += part
            rest -= part @ rows
        size = np.sqrt(rest @ rest)
        if size > 1e-17 * np.sqrt(row @ row) and len(rows) < lower.shape[1]:
            lower[i, len(rows)] = size
            rows = np.vstack([rows, rest / size])
    return lower[:, : len(rows)], rows


def _pick(steps: Iterator[tuple[float, float, Iterate]], start: Iterate) -> tuple[Iterate, list[Iterate]]:
    """(the last iterate whose error is mostly its gap, [the iterate of the least error, the last one]).

    From the first a higher precision continues; rounding may spoil either of the others.
    """
    least, sound, best, last = np.inf, start, start, start
    for error, gap, last in steps:
        if error <= 2 * gap:
            sound = last
        if error <= least:
            least, best = error, last
    return sound, [best] if best is last else [best, last]


def interior_points(program: Program) -> Iterator[Iterate]:
    """Candidates, better and better: in doubles, then in 80-bit numbers where that is affordable; then with caution."""
    double, extended = program.as_type(float), program.as_type(Extended)
    for caution in (False, True):
        with np.errstate(all="ignore"):
            start = _start(double)
            sound, found = _pick(_iterate(double, start, OPTIONS.max_iter, 1e-14, caution), start)
            yield from (at.extend(extended) for at in found)
            if program.work <= OPTIONS.extended_work:
                start = sound.extend(extended)
                _, found = _pick(_iterate(extended, start, OPTIONS.extended_iter, 1e-22, caution), start)
                yield from (at.extend(extended) for at in found)
