"""Brackets around the minima of problems whose columns are coupled: non-crossing levels, and multinomial classes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.attack_interior import Factor, Program, interior_points, orthogonalise, weighted_gram
from benchmarks.attack_losses import ROUNDING, Extended, LossByHand, Sample, add_up, halves, multiply
from benchmarks.attack_optimum import Bracket

Array = NDArray[np.floating]
Settled = Callable[[Bracket], bool]
# Crossing of the oracle's levels without intercepts, which nothing can repair, relative to the mean of |y|.
NO_CROSSING = 1e-15
# Multiplications per step of Newton's method up to which it is done in 80-bit numbers: half a second.
NEWTON_WORK = 1e8


def _joint_program(sample: Sample, features: Array, levels: Array, unit: Array) -> Program:
    """Rows of the losses, level by level, then those of the constraints f_k - f_(k+1) <= 0."""
    n, q = len(features), len(levels)
    step = np.eye(q, dtype=Extended)[:-1] - np.eye(q, dtype=Extended)[1:]
    blocks = np.vstack([np.eye(q, dtype=Extended), -step])
    design = np.kron(blocks, features)
    ends = np.kron(blocks, np.ones((n, 1), dtype=Extended)) if sample.intercept else np.zeros((len(design), 0))
    offset = np.append(np.tile((sample.y.astype(Extended) - sample.middle) / unit, q), np.zeros((q - 1) * n))
    low = np.append(np.repeat(levels - 1, n), np.zeros((q - 1) * n))
    high = np.append(np.repeat(levels, n), np.full((q - 1) * n, np.inf))
    # A constraint may press on a row whose own weight is next to nothing: all constraints have the same.
    share = np.append(np.tile(sample.share, q), np.full((q - 1) * n, Extended(1) / n))
    ridge = 2 * Extended(sample.alpha) * unit
    # By columns in any case: so many rows depend on one another that the duals alone would not give the coefficients.
    return Program(design, None, ends, offset, share, low, high, ridge, lambda z, s, t: (0 * z, 0 * z))  # noqa: ARG005


def _balance_levels(sample: Sample, v: Array, m: Array, levels: Array) -> tuple[Array, Array]:
    """(v, e) with e_k = v_k - m_k + m_(k-1), where v is moved towards an end of its box until sum share e_k = 0."""

    def effective(v: Array) -> Array:
        e = v.copy()
        e[:, :-1] -= m
        e[:, 1:] += m
        return e

    if sample.intercept:
        for _ in range(3):
            surplus = sample.share @ effective(v)
            end = np.where(surplus > 0, levels - 1, levels)
            room = sample.share @ (v - end)
            part = np.where(room != 0, surplus / np.where(room != 0, room, 1), 0)
            v = v + np.clip(part, 0, 1) * (end - v)
    return v, effective(v)


def bracket_joint(sample: Sample, laws: list[LossByHand], settled: Settled) -> Bracket:
    """The bracket around the smallest sum of F over levels that do not cross on any row."""
    n, q = len(sample.y), len(laws)
    levels, alpha = np.array([law.level for law in laws], dtype=Extended), Extended(sample.alpha)
    offset = sample.y.astype(Extended) - sample.middle
    unit = sample.share @ np.abs(offset)
    unit = unit if unit > 0 else Extended(1)
    bracket = Bracket(Extended(0), sum(sample.null_objective(law)[0] for law in laws))
    centred = sample.centred()
    features, basis = orthogonalise(centred) if n < centred.shape[1] else (centred, None)
    for at in interior_points(_joint_program(sample, features, levels, unit)):
        z = at.z.reshape(2 * q - 1, n).T
        m = np.maximum(z[:, q:], 0) / (n * sample.share[:, None])
        v, e = _balance_levels(sample, np.clip(z[:, :q], levels - 1, levels), m, levels)
        force = np.column_stack([sample.apply_phi_t(sample.share * level) for level in e.T])
        balanced = not sample.intercept or np.abs(sample.share @ e).max() < 1e-17
        linear, square = sample.share[:, None] * v * offset[:, None], np.sum(force**2) / (4 * alpha)
        low = linear.sum() - square - ROUNDING * (np.abs(linear).sum() + square)
        bracket = bracket.narrow(low if balanced else Extended(-np.inf), Extended(np.inf))
        own = unit * at.coef.reshape(q, -1)
        for coef in (force / (2 * alpha), (own if basis is None else own @ basis).T):
            bracket = bracket.narrow(bracket.low, _joint_value(sample, laws, coef, unit * at.intercept, unit))
        if settled(bracket):
            break
    return bracket


def _joint_value(sample: Sample, laws: list[LossByHand], coef: Array, intercept: Array, unit: Array) -> Array:
    """The sum of F, with intercepts moved apart until nothing crosses; infinite where that cannot be done."""
    q = len(laws)
    b = intercept if sample.intercept else np.zeros(q, dtype=Extended)
    shift: list[Array] = [np.zeros(q)]
    if sample.centre is not None:
        parts = [multiply(sample.centre[None], coef[:, k]) for k in range(q)]
        shift = [-np.array([part[j][0] for part in parts]) for j in range(2)]
    residuals = [
        sample.residuals(law, coef[:, k], [sample.middle, b[k], *(part[k] for part in shift)])
        for k, law in enumerate(laws)
    ]
    crossing = np.array([(residuals[k + 1] - residuals[k]).max() for k in range(q - 1)])
    if sample.intercept:
        apart = np.append(Extended(0), np.cumsum(np.maximum(crossing, 0)))
        apart -= apart.mean()
        residuals = [r - move for r, move in zip(residuals, apart, strict=True)]
    elif crossing.max() > NO_CROSSING * unit:
        return Extended(np.inf)
    loss = sum(sample.mean(law.value(r)) for law, r in zip(laws, residuals, strict=True))
    return (loss + Extended(sample.alpha) * np.sum(coef**2)) * (1 + ROUNDING)


def multinomial_objective(sample: Sample, coef: Array, intercept: Array) -> Array:
    """F of coefficients (M, K) and intercepts (K,), or (parts, K) of which the sum is meant; y holds class codes."""
    assert sample.features is not None
    coef, intercept = np.asarray(coef, dtype=Extended), np.atleast_2d(intercept)
    codes, scores = sample.y.astype(int), []
    for k in range(coef.shape[1]):
        high, low = multiply(sample.features, coef[:, k])
        numbers = [half for number in intercept[:, k] for half in halves(Extended(number))]
        scores.append(add_up(high, [np.full(len(codes), number) for number in numbers] + [low]))
    score = np.column_stack(scores)
    score = score - score[np.arange(len(codes)), codes][:, None]
    return sample.mean(_excess(score, codes)) + Extended(sample.alpha) * np.sum(coef**2)


def _excess(score: Array, codes: NDArray[np.intp]) -> Array:
    """log sum exp of scores (n, K) that are 0 for the row's own class."""
    others = np.where(np.arange(score.shape[1]) == codes[:, None], -Extended(np.inf), score)
    top = np.maximum(others.max(axis=1), 0)
    return top + np.where(
        top > 0, np.log(np.exp(-top) + np.exp(others - top[:, None]).sum(axis=1)), np.log1p(np.exp(others).sum(axis=1))
    )


def _class_shares(sample: Sample, n_classes: int) -> Array:
    return np.array([sample.share[sample.y == k].sum() for k in range(n_classes)])


def multinomial_null(sample: Sample, n_classes: int) -> Array:
    """F of the best constant: the entropy of the class shares, or log K without intercepts."""
    if not sample.intercept:
        return np.log(Extended(n_classes))
    shares = np.sort(_class_shares(sample, n_classes))
    shares = shares[shares > 0]
    rest = shares[:-1].sum()  # the largest share is 1 minus this, and has fewer digits where it is nearly 1
    return -np.sum(shares[:-1] * np.log(shares[:-1])) - (1 - rest) * np.log1p(-rest)


def bracket_multinomial(sample: Sample, n_classes: int, settled: Settled) -> Bracket:
    """The bracket around min F by damped Newton: in doubles, then in 80-bit numbers or, if that takes long, with
    gradients in these."""
    centred, share = sample.centred(), np.asarray(sample.share, dtype=float)
    bracket = Bracket(Extended(0), multinomial_null(sample, n_classes))
    features, basis = orthogonalise(centred) if len(centred) < centred.shape[1] else (centred, None)
    exact = np.column_stack([features, np.ones(len(features))]) if sample.intercept else features
    ridge = np.append(np.full(features.shape[1], 2 * sample.alpha), np.zeros(int(sample.intercept)))
    code, design = np.eye(n_classes)[sample.y.astype(int)], np.asarray(exact, dtype=float)
    with np.errstate(all="ignore"):
        point = _newton(design, code, share, ridge, np.zeros((design.shape[1], n_classes))).astype(Extended)
        bracket = _narrow_multinomial(sample, bracket, exact, code, point, basis)
        size = point.size
        if not settled(bracket) and size**3 / 3 + len(design) * size**2 / 2 <= NEWTON_WORK:
            point = _newton(exact, code, sample.share, ridge, point)
        for _ in range(12):
            bracket = _narrow_multinomial(sample, bracket, exact, code, point, basis)
            if settled(bracket):
                break
            p = _softmax(exact @ point)
            gradient = exact.T @ (sample.share[:, None] * (p - code)) + ridge[:, None] * point
            try:
                factor = Factor(_hessian(design, np.asarray(p, dtype=float), share, ridge))
            except np.linalg.LinAlgError:
                break
            point = point - factor.solve(np.asarray(gradient, dtype=float).T.ravel()).reshape(n_classes, -1).T
    return bracket


def _softmax(score: Array) -> Array:
    p = np.exp(score - score.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def _hessian(design: Array, p: Array, share: Array, ridge: Array) -> Array:
    d, K = design.shape[1], p.shape[1]
    result = np.zeros((K, d, K, d), dtype=design.dtype)
    for k in range(K):
        for j in range(k + 1):
            weight = share * p[:, k] * ((k == j) - p[:, j])
            result[k, :, j] = result[j, :, k] = weighted_gram(design, weight)
        result[k, np.arange(d), k, np.arange(d)] += ridge
    free = np.flatnonzero(ridge == 0)
    for i in free:  # adding one constant to all intercepts changes nothing
        result[:, i, :, i] += 1.0 / K
    return result.reshape(K * d, K * d)


def _newton(design: Array, code: Array, share: Array, ridge: Array, W: Array) -> Array:
    def value(W: Array) -> Array:
        score = design @ W
        score -= score[code == 1][:, None]
        return share @ _excess(score, code.argmax(axis=1)) + (ridge @ W**2).sum() / 2

    K, now, scale = code.shape[1], value(W), value(0 * W)
    for _ in range(100 if design.dtype == np.float64 else 30):
        p = _softmax(design @ W)
        gradient = design.T @ (share[:, None] * (p - code)) + ridge[:, None] * W
        try:
            step = -Factor(_hessian(design, p, share, ridge)).solve(gradient.T.ravel()).reshape(K, -1).T
        except np.linalg.LinAlgError:
            break
        length, slope = 1.0, np.sum(gradient * step)
        if -slope <= np.finfo(design.dtype).eps * max(now, scale / 1000):
            return W + step
        while length > 1e-8 and not (after := value(W + length * step)) <= now + 1e-4 * length * slope:
            length /= 2
        if length <= 1e-8:
            break
        W, now = W + length * step, after
    return W


def _narrow_multinomial(
    sample: Sample, bracket: Bracket, design: Array, code: Array, point: Array, basis: Array | None
) -> Bracket:
    """The bracket with the values of this point and of the softmax there as duals."""
    alpha, K, centred = Extended(sample.alpha), code.shape[1], sample.centred()
    p, t, moved = _softmax(design @ point), Extended(0), np.zeros(K, dtype=Extended)
    others, own = np.where(code == 1, 0, p), p[code == 1]  # each has digits that 1 minus the other has not
    excess = np.where(code == 1, others.sum(axis=1, keepdims=True), -others)
    if sample.intercept:  # classes get exactly their shares, by a mixture with a constant
        shares, lack = _class_shares(sample, K), np.sum(sample.share[:, None] * excess, axis=0)
        t = 2 * max(0, np.max(np.where(shares > 0, -lack / np.where(shares > 0, shares, 1), 0)))
        moved = t * shares + (1 - t) * lack
        others, own = np.where(code == 1, 0, (1 - t) * others + moved), (1 - t) * own + moved[code.argmax(axis=1)]
        excess = np.where(code == 1, others.sum(axis=1, keepdims=True), -others)
    rest, low = others.sum(axis=1), Extended(-np.inf)
    force = np.column_stack([sample.apply_phi_t(sample.share * column) for column in excess.T])
    if (others >= 0).all() and (own >= 0).all() and t < 1:
        last = np.where(rest < 0.5, -(1 - rest) * np.log1p(-rest), -own * np.log(np.where(own > 0, own, 1)))
        entropy = last - np.where(others > 0, others * np.log(np.where(others > 0, others, 1)), 0).sum(axis=1)
        total, square = sample.mean(entropy), np.sum(force**2) / (4 * alpha)
        low = total - square - ROUNDING * (total + square)
    b = point[-1] if sample.intercept else np.zeros(K, dtype=Extended)
    candidates = [force / (2 * alpha)]
    if basis is None:
        candidates.append(point[: centred.shape[1]])
    for coef in candidates:
        shift = np.zeros((1, K))
        if sample.centre is not None:
            parts = [multiply(sample.centre[None], coef[:, k]) for k in range(K)]
            shift = -np.array([[part[j][0] for part in parts] for j in range(2)])
        value = multinomial_objective(sample, coef, np.vstack([b[None], shift]))
        bracket = bracket.narrow(low, value * (1 + ROUNDING))
    return bracket
