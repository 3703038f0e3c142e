"""The bracket around min F: by the interior point method, and by Clarabel as a second opinion.

Both only give candidates for coefficients and duals. The bracket is what F and its dual are there, on the problem as it
was given and in extended precision (`attack_losses.Sample`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.attack_interior import Program, Psi, interior_points
from benchmarks.attack_losses import GRAM_ROUNDING, ROUNDING, Extended, LossByHand, Sample, multiply

Array = NDArray[np.floating]
# Rows x columns up to which Clarabel is asked, if the bracket is too wide: it takes seconds beyond.
CLARABEL_SIZE = 60_000


def clarabel_point(program: Program) -> Array | None:
    """Duals z (N,) by Clarabel, for losses of lines and parabolas; None where it fails."""
    import clarabel
    from scipy import sparse

    double = program.as_type(float)
    n, (up, down) = len(double.offset), (np.isfinite(double.high), np.isfinite(double.low))
    if double.design is None:
        values, vectors = np.linalg.eigh(double.gram)
        design = vectors * np.sqrt(np.maximum(values, 0))
    else:
        design = double.design
    d, e = design.shape[1], double.ends.shape[1]
    zero = np.zeros(n)
    psi = double.psi(zero, zero, zero)[1]
    curved = np.flatnonzero(psi > 0)
    ups, downs = np.flatnonzero(up), np.flatnonzero(down)
    share = double.share / double.share.max()
    pick = sparse.identity(n, format="csc")
    rows = sparse.hstack(
        [sparse.csc_matrix(np.hstack([design, double.ends])), pick[:, curved], pick[:, ups], -pick[:, downs]]
    )
    n_signs = len(ups) + len(downs)
    signs = sparse.hstack([sparse.csc_matrix((n_signs, d + e + len(curved))), -sparse.identity(n_signs)])
    quadratic = np.concatenate(
        [np.full(d, double.ridge / double.share.max()), np.zeros(e), share[curved] / psi[curved], np.zeros(n_signs)]
    )
    linear = np.concatenate(
        [np.zeros(d + e + len(curved)), share[ups] * double.high[ups], -share[downs] * double.low[downs]]
    )
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_iter = False, 300
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    settings.tol_ktratio = 1e-10
    solver = clarabel.DefaultSolver(
        sparse.diags(quadratic, format="csc"),
        linear,
        sparse.vstack([rows, signs], format="csc"),
        np.concatenate([double.offset, np.zeros(n_signs)]),
        [clarabel.ZeroConeT(n), clarabel.NonnegativeConeT(n_signs)],
        settings,
    )
    z = -np.array(solver.solve().z)[:n] / share
    return z.astype(Extended) if np.isfinite(z).all() else None


def _psi(loss: LossByHand, dual_unit: Array, unit: Array) -> Psi:
    """The derivative of the conjugate and its derivative, in units of the program."""
    length = Extended(loss.length)
    if loss.name == "logistic":
        return lambda z, s, t: (1 + np.log(s / t), 1 / (s * t))  # noqa: ARG005
    if loss.name == "logcosh":
        factor = length / (2 * unit)
        return lambda z, s, t: (_as(factor, z) * np.log(s / t), _as(factor, z) * (1 / s + 1 / t))
    below, above = (length * dual_unit / unit for length in loss.lengths)

    def piecewise(z: Array, s: Array, t: Array) -> tuple[Array, Array]:  # noqa: ARG001
        slope = np.where(z < 0, _as(below, z), _as(above, z))
        return slope * z, slope

    return piecewise


def _as(number: Array, like: Array) -> Array:
    return like.dtype.type(number)


def build_program(sample: Sample, loss: LossByHand) -> tuple[Program, bool, Array, Array]:
    """The program of one loss, whether its rows come in pairs z = z+ - z-, and the units of duals and residuals."""
    offset, sign = sample.offsets(loss)
    low, high = loss.box
    unit = sample.share @ np.abs(offset)
    unit = unit if unit > 0 else Extended(1)
    below, above = loss.lengths
    dual_unit = high - low if np.isfinite(high - low) else unit / max(above, below)
    pairs = bool(loss.tube > 0)
    gram, design = sample.gram, None
    if sample.features is not None:
        design = sign[:, None] * sample.centred()
        if len(design) * (1 + pairs) <= design.shape[1]:
            gram, design = design @ design.T, None
    elif gram is not None:
        gram = sign[:, None] * gram * sign
    ends = sign[:, None] if sample.intercept else np.zeros((len(sign), 0), dtype=Extended)
    n, share, scaled = len(sign), sample.share, offset / unit
    psi = _psi(loss, dual_unit, unit)
    lows, highs = np.full(n, low / dual_unit), np.full(n, high / dual_unit)
    if pairs:
        if gram is not None:
            gram = np.block([[gram, -gram], [-gram, gram]])
        if design is not None:
            design = np.vstack([design, -design])
        ends, share = np.vstack([ends, -ends]), np.tile(share, 2)
        tube = loss.tube / unit
        scaled = np.append(scaled - tube, -scaled - tube)
        lows, highs = np.zeros(2 * n, dtype=Extended), np.append(highs, -lows)
    ridge = 2 * Extended(sample.alpha) * unit / dual_unit
    return Program(design, gram, ends, scaled, share, lows, highs, ridge, psi), pairs, dual_unit, unit


@dataclass(frozen=True)
class Bracket:
    """low <= min F <= high."""

    low: Array
    high: Array

    def narrow(self, low: Array, high: Array) -> Bracket:
        low, high = (bound if np.isfinite(bound) else None for bound in (low, high))
        return Bracket(
            self.low if low is None else max(self.low, low), self.high if high is None else min(self.high, high)
        )


def bracket_optimum(sample: Sample, loss: LossByHand, settled: Callable[[Bracket], bool]) -> Bracket:
    """The bracket around min F by as many attempts as it takes for `settled(bracket)`."""
    null, _ = sample.null_objective(loss)
    bracket = Bracket(Extended(0), null)
    program, pairs, dual_unit, unit = build_program(sample, loss)

    def join(part: Array) -> Array:
        return part[: len(part) // 2] - part[len(part) // 2 :] if pairs else part

    def tighten(bracket: Bracket, z: Array, coef: Array | None) -> Bracket:
        dual = join(z) * dual_unit
        if coef is not None:
            coef = unit * (join(coef) * sample.offsets(loss)[1] if program.by_rows else coef)
            if program.by_rows and sample.features is not None:
                coef = sample.centred().T @ coef
        for _ in range(3):
            low, high, slope = evaluate(sample, loss, dual, coef)
            bracket = bracket.narrow(low, high)
            if slope is None or settled(bracket):
                return bracket
            dual, coef = slope, None
        return bracket

    for at in interior_points(program):
        bracket = tighten(bracket, at.z, at.coef)
        if settled(bracket):
            return bracket
    plain = loss.name not in ("logistic", "logcosh", "expectile")
    size = len(program.offset) * (len(program.offset) if program.design is None else program.design.shape[1])
    if plain and size <= CLARABEL_SIZE:
        z = clarabel_point(program)
        if z is not None:
            bracket = tighten(bracket, z, None)
    return bracket


def evaluate(sample: Sample, loss: LossByHand, dual: Array, coef: Array | None) -> tuple[Array, Array, Array | None]:
    """(a bound from below, a value of F, slopes of a smooth loss there), of candidates for duals and coefficients.

    With a kernel matrix, coefficients are those of its columns.
    """
    dual = sample.balance(loss, dual)
    low, force = sample.dual_value(loss, dual)
    offset, sign = sample.offsets(loss)
    alpha = Extended(sample.alpha)
    own = (force if sample.gram is None else sample.share * sign * dual) / (2 * alpha)
    best, slopes = Extended(np.inf), None
    for u in [own] if coef is None else [own, coef]:
        if sample.gram is None:
            shift = [] if sample.centre is None else [-part[0] for part in multiply(sample.centre[None], u)]
            residual, penalty = sample.residuals(loss, u, [sample.middle, *shift]), alpha * np.sum(u**2)
            error = Extended(0)
        else:
            output, size = np.sum(sample.gram * u, axis=1), np.abs(sample.gram) @ np.abs(u)
            residual, penalty = offset - sign * output, alpha * np.sum(u * output)
            error, penalty = GRAM_ROUNDING * size, penalty + GRAM_ROUNDING * alpha * np.sum(np.abs(u) * size)
        b = sample.best_constant(loss, residual)[0] if sample.intercept else Extended(0)
        residual = residual - sign * b
        value = sample.mean(np.maximum(loss.value(residual + error), loss.value(residual - error))) + penalty
        if value < best:
            best, slopes = value, None if loss.kinked else loss.slope(residual)
    return low, best * (1 + ROUNDING), slopes
