"""Levels that must not cross, as one problem: its objective, its duals, and the gap that they prove.

    minimise  sum_k F_k(u_k, b_k)   subject to   f_ik <= f_i,k+1   for every row i and neighbouring levels k, k + 1

Each constraint has a multiplier m_ik >= 0 and enters the Lagrangian as  share_i m_ik (f_ik - f_i,k+1).  A level then
feels the duals  e_k = v_k - m_k + m_(k-1)  in iterate of v_k. For all v in the loss's box and all m >= 0, with the e_k
balanced (mean e_k = 0) where there are intercepts,

    gap = sum_k [mean(loss(r_k) - v_k r_k) + alpha |u_k - Phi'(w e_k) / (2 alpha W)|^2 + mean m_k (f_k+1 - f_k)]

is at least  sum_k F_k - minimum.  Intercepts are first moved apart, by next to nothing, until no levels cross.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Index = NDArray[np.intp]

# What levels without intercepts, which cannot be moved apart, may cross by, relative to the spread of y.
CROSSING_TOLERANCE = 1e-7
# Curves computed again differ in their last digits: levels are moved so much farther apart, in units of their size.
ROUNDING = 1e-13


def crossing_tolerance(y: Array, share: Array) -> float:
    """By how much levels without intercepts may cross."""
    return CROSSING_TOLERANCE * float(np.sqrt(share @ (y - share @ y) ** 2))


@dataclass(frozen=True, eq=False)
class Duals:
    """v (N, q) of the residuals and m (N, q - 1) of the constraints."""

    v: Array
    m: Array

    def take(self, run: slice) -> Duals:
        """Those of some neighbouring levels."""
        return Duals(self.v[:, run], self.m[:, run.start : run.stop - 1])

    def at(self, rows: Index | slice) -> Duals:
        """Those of some rows."""
        return Duals(self.v[rows], self.m[rows])


@dataclass(frozen=True, eq=False)
class NoncrossingProblem:
    """Levels in ascending order (q,) over N rows: features (N, M), y, share and constraint_weight (N,); alpha and null F0 (q,).

    `constraint_weight` is the weight of a row's constraints, a multiple of its share. Points without a target have no
    share, and the constraint_weight of an average row. `screened_gradient` (M + 1, q) is what the rows that are left
    out add to the gradient.
    """

    features: Array
    y: Array
    share: Array
    constraint_weight: Array
    levels: Array
    alpha: Array
    null: Array
    fit_intercept: bool
    screened_gradient: Array | float = 0.0

    def take(self, run: slice) -> NoncrossingProblem:
        """Some neighbouring levels."""
        return replace(self, levels=self.levels[run], alpha=self.alpha[run], null=self.null[run])

    def within(self, basis: Array | None) -> NoncrossingProblem:
        """The same in the coordinates z of u = B z."""
        return self if basis is None else replace(self, features=self.features @ basis)

    def at(self, rows: Index) -> NoncrossingProblem:
        """Some rows, as if there were no others."""
        features, y, share, constraint_weight = (
            part[rows] for part in (self.features, self.y, self.share, self.constraint_weight)
        )
        return replace(
            self, features=features, y=y, share=share, constraint_weight=constraint_weight, screened_gradient=0.0
        )

    def curves(self, coef: Array, intercept: Array) -> Array:
        """f (N, q)."""
        return self.features @ coef + intercept

    def loss(self, curves: Array) -> Array:
        """Mean pinball loss of every level."""
        residual = self.y[:, None] - curves
        return self.share @ np.maximum(self.levels * residual, (self.levels - 1) * residual)

    def objective(self, coef: Array, curves: Array) -> Array:
        """F of every level."""
        return self.loss(curves) + self.alpha * np.sum(coef**2, axis=0)

    def scale(self, objective: Array) -> Array:
        """max(F, F0 / 1000), by which gaps are judged."""
        return np.maximum(objective, self.null / 1000)

    def duals(self, curves: Array, anchors: Duals, width: float) -> Duals:
        """v+ and m+."""
        v = np.clip((self.y[:, None] - curves) / width + anchors.v, self.levels - 1, self.levels)
        return Duals(v, np.maximum(crossing(curves) / width + anchors.m, 0))

    def weighted_dual(self, duals: Duals) -> Array:
        """share e_k = share v_k - constraint_weight m_k + constraint_weight m_(k-1):  what pulls each level up, (N, q)."""
        weighted_dual, pushed = self.share[:, None] * duals.v, self.constraint_weight[:, None] * duals.m
        weighted_dual[:, :-1] -= pushed
        weighted_dual[:, 1:] += pushed
        return weighted_dual

    def fenchel_gap(self, curves: Array, duals: Duals) -> tuple[float, float]:
        """sum_k mean(loss(r_k) - v_k r_k)  and  sum_k mean m_k (f_k+1 - f_k),  negative where levels cross."""
        fitted = np.sum(self.share @ (duals.v * (self.y[:, None] - curves)))
        return float(self.loss(curves).sum() - fitted), -float(
            np.sum(self.constraint_weight @ (duals.m * crossing(curves)))
        )

    def smoothed_gradient(self, weighted_dual: Array) -> Array:
        """Phi'weighted_dual, with the intercepts' part in the last row: (M + 1, q)."""
        mean_dual = weighted_dual.sum(axis=0) if self.fit_intercept else np.zeros(len(self.levels))
        return np.vstack([self.features.T @ weighted_dual, mean_dual])

    def gradient(self, coef: Array, duals: Duals) -> Array:
        """Of the sum, with the intercepts' part in the last row: (M + 1, q)."""
        gradient = self.screened_gradient - self.smoothed_gradient(self.weighted_dual(duals))
        gradient[:-1] += 2 * self.alpha * coef
        return gradient

    def dual_residual(self, gradient: Array) -> float:
        """sum_k alpha |u_k - Phi'(w e_k) / (2 alpha W)|^2."""
        return float(np.sum(gradient[:-1] ** 2 / (4 * self.alpha)))

    def crossing_tolerance(self) -> float:
        """By how much levels may cross: not at all, where intercepts can move them apart."""
        return 0.0 if self.fit_intercept else crossing_tolerance(self.y, self.share)


@dataclass(frozen=True, eq=False)
class Point:
    """Coefficients (M, q), intercepts (q,), duals; F of every level, its part of the gap of their sum, steps (q,)."""

    coef: Array
    intercept: Array
    duals: Duals
    objective: Array
    gap: Array
    steps: Index

    def take(self, run: slice) -> Point:
        """Some neighbouring levels."""
        coef, intercept, duals = self.coef[:, run], self.intercept[run], self.duals.take(run)
        return Point(coef, intercept, duals, self.objective[run], self.gap[run], self.steps[run])


def crossing(curves: Array) -> Array:
    """f_k - f_k+1, (N, q - 1): positive where levels cross."""
    return curves[:, :-1] - curves[:, 1:]


def certify(problem: NoncrossingProblem, coef: Array, intercept: Array, duals: Duals, steps: Index) -> Point:
    """The point, its levels moved apart where intercepts allow it, with the gap that these duals prove.

    The gap is infinite where duals cannot be balanced, and where levels without intercepts cross noticeably.
    """
    curves = problem.curves(coef, intercept)
    if problem.fit_intercept:
        rounding = ROUNDING * np.abs(curves).max()
        apart = np.append(0, np.cumsum(np.maximum(crossing(curves).max(axis=0) + rounding, 0)))
        intercept, curves = intercept + apart - apart.mean(), curves + apart - apart.mean()
        duals = Duals(_balance_duals(problem, duals), duals.m)
    objective, gradient = problem.objective(coef, curves), problem.gradient(coef, duals)
    gap = max(
        sum(problem.fenchel_gap(curves, duals)) + problem.dual_residual(gradient), np.finfo(float).eps * objective.sum()
    )
    if np.any(np.abs(gradient[-1]) > 1e-12) or crossing(curves).max() > problem.crossing_tolerance():
        gap = np.inf
    scale = problem.scale(objective)
    return Point(coef, intercept, duals, objective, gap * scale / scale.sum(), steps)


def _balance_duals(problem: NoncrossingProblem, duals: Duals) -> Array:
    """v moved towards an end of its box until the mean of each e_k is 0."""
    surplus = problem.weighted_dual(duals).sum(axis=0)
    end = np.where(surplus > 0, problem.levels - 1, problem.levels)
    room = problem.share @ duals.v - end * problem.share.sum()
    part = np.divide(surplus, room, out=np.zeros_like(room), where=room != 0)
    return duals.v + np.clip(part, 0, 1) * (end - duals.v)
