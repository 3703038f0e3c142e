"""Compiled passes over the features: predict, screen or check a row, and add it to the sums, while it is in cache.

The loss enters as linear segments (`Loss.segments`): sorted knots, and between them slopes v with offsets conjugate(v),
so that the loss is v r - conjugate(v) there; nan where it is curved. A row has the residual r = offset - sign (phi'u +
b). Farther than `band` from every knot, on a linear segment, it is screened with that slope as its dual; otherwise it
is active. Arrays have one row per column of the problem: coef (q, M), residual, dual and masks (q, m), sums (q, M) or
(q,); sums are added to, and start at zero. `problem.ScreenedRows` and `active_set.ActiveSet` say what they mean.

Functions are compiled by numba on first use and cached on disk. Inner loops are written out, because only plain loops
are vectorised; so is the search for the segment, because a function call there takes a tenth longer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quernel._compile import compiled

Array = NDArray[np.floating]
Mask = NDArray[np.bool_]

FAST = {"contract", "reassoc", "nsz"}  # sums may be reordered; nan and infinity keep their meaning


@compiled(fastmath=FAST)
def predict_row(features: Array, i: int, coef: Array, prediction: Array) -> None:
    """Phi_i'u of one row for all columns, four at a time to share the loads of its features.

    Four running sums are also independent of one another, so that an addition need not wait for the one before.
    """
    n_columns, n_features = coef.shape
    unrolled = n_columns - n_columns % 4
    for k in range(0, unrolled, 4):
        first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
        for j in range(n_features):
            phi = features[i, j]
            first += phi * coef[k, j]
            second += phi * coef[k + 1, j]
            third += phi * coef[k + 2, j]
            fourth += phi * coef[k + 3, j]
        prediction[k], prediction[k + 1], prediction[k + 2], prediction[k + 3] = first, second, third, fourth
    for k in range(unrolled, n_columns):
        first = 0.0
        for j in range(n_features):
            first += features[i, j] * coef[k, j]
        prediction[k] = first


@compiled(fastmath=FAST)
def screen_rows(
    features: Array, offset: Array, sign: Array, share: Array, coef: Array, intercept: Array, knots: Array,
    slopes: Array, offsets: Array, band: Array, residual: Array, dual: Array, active: Mask, phi_t_dual: Array,
    active_phi_t_dual: Array, mean_dual: Array, active_mean_dual: Array, constant: Array, loss: Array,
) -> None:  # fmt: skip
    """Screen all rows of a block at a fit.

    Fills residual, active and dual (0 for active rows). Screened rows are summed into phi_t_dual, mean_dual, constant
    and loss; active rows, with the slope at their residual, into active_phi_t_dual and active_mean_dual.

    With its dual v fixed, a screened row adds  w (v r - conjugate(v))  to the objective, and that is linear in (u, b):
    however many there are, these sums are all that a solver has to know of them.
    """
    n_columns, n_features = coef.shape
    for i in range(len(share)):
        for k in range(n_columns):
            prediction = 0.0
            for j in range(n_features):
                prediction += features[i, j] * coef[k, j]
            s = sign[k, i]
            r = offset[k, i] - s * (prediction + intercept[k])
            piece, nearest = 0, np.inf
            for p in range(knots.shape[1]):
                nearest = min(nearest, abs(r - knots[k, p]))
                if r > knots[k, p]:
                    piece = p + 1
            v = slopes[k, piece]
            is_active = np.isnan(v) or nearest <= band[k]
            w = 0.0 if np.isnan(v) else share[i] * v * s
            if is_active:
                v = 0.0
                active_mean_dual[k] += w
                if w != 0.0:
                    for j in range(n_features):
                        active_phi_t_dual[k, j] += w * features[i, j]
            else:
                const = share[i] * offsets[k, piece]
                constant[k] += share[i] * v * offset[k, i] - const
                loss[k] += share[i] * v * r - const
                mean_dual[k] += w
                if w != 0.0:
                    for j in range(n_features):
                        phi_t_dual[k, j] += w * features[i, j]
            residual[k, i] = r
            dual[k, i] = v
            active[k, i] = is_active


@compiled(fastmath=FAST)
def screen_active_rows(
    features: Array, offset: Array, sign: Array, share: Array, coef: Array, intercept: Array, knots: Array,
    slopes: Array, offsets: Array, widest: Array, narrowest: Array, errors: Array, shifts: Array, residual: Array,
    dual: Array, active: Mask, phi_t_dual: Array, active_phi_t_dual: Array, mean_dual: Array, active_mean_dual: Array,
    constant: Array,
) -> None:  # fmt: skip
    """`screen_rows` for the active rows only, at another fit and with the bands of `active_set.ScreeningBands`.

    Clears `active` for the rows that are screened now; only these are summed into phi_t_dual, mean_dual and constant.

    A row has an error of its own, the root of the sum of squares of (phi, 1)'(error, shift) over simulated errors of
    the fit. It costs as much as a prediction for each of them, and is computed only between the narrowest and the
    widest band, where it decides.
    """
    n_columns, n_features = coef.shape
    for k in range(n_columns):
        for i in range(len(share)):
            if not active[k, i]:
                continue
            prediction = 0.0
            for j in range(n_features):
                prediction += features[i, j] * coef[k, j]
            s = sign[k, i]
            r = offset[k, i] - s * (prediction + intercept[k])
            piece, nearest = 0, np.inf
            for p in range(knots.shape[1]):
                nearest = min(nearest, abs(r - knots[k, p]))
                if r > knots[k, p]:
                    piece = p + 1
            v = slopes[k, piece]
            w = 0.0 if np.isnan(v) else share[i] * v * s
            residual[k, i] = r
            is_active = np.isnan(v) or nearest <= narrowest[k]
            if not is_active and nearest <= widest[k]:
                square = 0.0
                for e in range(errors.shape[1]):
                    off = 0.0
                    for j in range(n_features):
                        off += features[i, j] * errors[k, e, j]
                    off += shifts[k, e]
                    square += off * off
                is_active = nearest * nearest <= square
            if is_active:
                dual[k, i] = 0.0
                active_mean_dual[k] += w
                if w != 0.0:
                    for j in range(n_features):
                        active_phi_t_dual[k, j] += w * features[i, j]
            else:
                dual[k, i], active[k, i] = v, False
                constant[k] += share[i] * (v * offset[k, i] - offsets[k, piece])
                mean_dual[k] += w
                if w != 0.0:
                    for j in range(n_features):
                        phi_t_dual[k, j] += w * features[i, j]


@compiled(fastmath=FAST)
def screen_rows_together(
    features: Array, offset: Array, share: Array, coef: Array, intercept: Array, knots: Array, slopes: Array,
    offsets: Array, band: Array, residual: Array, dual: Array, active: Mask, phi_t_dual: Array,
    active_phi_t_dual: Array, mean_dual: Array, active_mean_dual: Array, constant: Array, loss: Array,
) -> None:  # fmt: skip
    """`screen_rows` for several quantile levels of one target: one knot per column, the same offset, sign 1.

    Where the curves do not cross, a row lies above the first `count` of them. The features of such rows are summed by
    count, once per row instead of once per column; what active rows add that way is subtracted at the end. Rows at
    which curves cross are summed column by column.
    """
    n_columns, n_features = coef.shape
    above = np.zeros((n_columns + 1, n_features))  # weighted features of the rows above the first `count` curves
    piece, prediction = np.empty(n_columns, dtype=np.intp), np.empty(n_columns)
    for i in range(len(share)):
        count, ordered = 0, True
        predict_row(features, i, coef, prediction)
        for k in range(n_columns):
            r = offset[k, i] - (prediction[k] + intercept[k])
            piece[k] = 1 if r > knots[k, 0] else 0
            ordered = ordered and (piece[k] == 0 or count == k)
            count += piece[k]
            v = slopes[k, piece[k]]
            is_active = abs(r - knots[k, 0]) <= band[k]
            w = share[i] * v
            if is_active:
                active_mean_dual[k] += w
            else:
                const = share[i] * offsets[k, piece[k]]
                constant[k] += w * offset[k, i] - const
                loss[k] += w * r - const
                mean_dual[k] += w
            residual[k, i] = r
            dual[k, i] = 0.0 if is_active else v
            active[k, i] = is_active
        if ordered:
            w = share[i]
            for j in range(n_features):
                above[count, j] += w * features[i, j]
        for k in range(n_columns):
            w = share[i] * slopes[k, piece[k]]
            if active[k, i]:
                for j in range(n_features):
                    active_phi_t_dual[k, j] += w * features[i, j]
            if not ordered:
                for j in range(n_features):
                    phi_t_dual[k, j] += w * features[i, j]
    # Column k gives slope slopes[k, 1] to the rows above it, those with k < count, and slopes[k, 0] to the others.
    for k in range(n_columns):
        for j in range(n_features):
            phi_t_dual[k, j] -= active_phi_t_dual[k, j]
        for count in range(n_columns + 1):
            v = slopes[k, 1 if k < count else 0]
            for j in range(n_features):
                phi_t_dual[k, j] += v * above[count, j]


@compiled(fastmath=FAST)
def verify_rows(
    features: Array, offset: Array, sign: Array, share: Array, coef: Array, intercept: Array, knots: Array,
    slopes: Array, offsets: Array, dual: Array, active: Mask, residual: Array, off_segment: Mask, phi_t_dual: Array,
    mean_dual: Array, loss: Array, worst_violation: Array,
) -> None:  # fmt: skip
    """KKT check of all rows of a block at a new fit, with given duals.

    Fills residual and off_segment: screened rows whose residual is off the segment of their dual, and all active rows.
    loss sums the rows on their segment; phi_t_dual and mean_dual sum the active rows; worst_violation is the largest
    distance from a knot of a screened row off its segment.

    A row on the segment of its dual v has v as a subgradient at its residual, so that its Fenchel gap is 0. Only active
    rows, and screened ones off their segment, can keep the duality gap open.
    """
    n_columns, n_features = coef.shape
    prediction = np.empty(n_columns)
    for i in range(len(share)):
        if n_columns >= 4:  # for fewer the plain loop is faster
            predict_row(features, i, coef, prediction)
        for k in range(n_columns):
            if n_columns < 4:
                prediction[k] = 0.0
                for j in range(n_features):
                    prediction[k] += features[i, j] * coef[k, j]
            s = sign[k, i]
            r = offset[k, i] - s * (prediction[k] + intercept[k])
            residual[k, i] = r
            v = dual[k, i]
            if active[k, i]:
                off_segment[k, i] = True
                w = share[i] * v * s
                mean_dual[k] += w
                for j in range(n_features):
                    phi_t_dual[k, j] += w * features[i, j]
                continue
            piece, nearest = 0, np.inf
            for p in range(knots.shape[1]):
                nearest = min(nearest, abs(r - knots[k, p]))
                if r > knots[k, p]:
                    piece = p + 1
            off_segment[k, i] = slopes[k, piece] != v
            if off_segment[k, i]:
                worst_violation[k] = max(worst_violation[k], nearest)
            else:
                loss[k] += share[i] * (v * r - offsets[k, piece])


@compiled(fastmath=FAST)
def phi_t_dual_by_sign(features: Array, weighted: Array, phi_t_positive: Array, phi_t_negative: Array) -> None:
    """Sum weighted (q, m) times features, positive and negative weights apart.

    Duals that have to be balanced are shrunk on one side: the sum of that side is then scaled, without another pass.
    """
    n_columns, n_features = phi_t_positive.shape
    for i in range(weighted.shape[1]):
        for k in range(n_columns):
            w = weighted[k, i]
            if w > 0.0:
                for j in range(n_features):
                    phi_t_positive[k, j] += w * features[i, j]
            else:
                for j in range(n_features):
                    phi_t_negative[k, j] += w * features[i, j]


@compiled(fastmath=FAST)
def smoothed_gradient_column(
    residual: Array,
    anchor: Array,
    share: Array,
    signed_share: Array,
    low: float,
    high: float,
    width: float,
    weighted: Array,
) -> tuple[float, float, float, float, int]:
    """Duals v = clip(r / width + anchor, low, high) of one column of a two-piece loss, and their sums.

    Fills weighted = share sign v; returns mean_dual, positive, loss, fenchel_gap and active of `DualSums`. The
    conjugate of the loss max(low r, high r) is 0 on [low, high], where clipping keeps v: the Fenchel gap is loss - v r.
    """
    mean_dual, positive, loss, fenchel_gap, active = 0.0, 0.0, 0.0, 0.0, 0
    scale = 1 / width
    for i in range(len(residual)):
        r = residual[i]
        line = r * scale + anchor[i]
        v = min(max(line, low), high)
        value = max(low * r, high * r)
        w = signed_share[i] * v
        weighted[i] = w
        mean_dual += w
        positive += max(w, 0.0)
        loss += share[i] * value
        fenchel_gap += share[i] * (value - v * r)
        active += (line > low) & (line < high)  # strictly: a multiplier at an end of its box is clipped
    return mean_dual, positive, loss, fenchel_gap, active


@compiled(fastmath=FAST)
def constant_loss_column(target: Array, share: Array, constant: float, low: float, high: float) -> tuple[float, float]:
    """Mean of a two-piece loss of y - constant, and of |y|, over the rows of one column.

    The second is the size of the numbers whose rounding errors enter the certificate of the best constant.
    """
    loss, size = 0.0, 0.0
    for i in range(len(target)):
        r = target[i] - constant
        loss += share[i] * max(low * r, high * r)
        size += share[i] * abs(target[i])
    return loss, size


@compiled(fastmath=FAST)
def eval_along_direction_column(
    residual: Array, anchor: Array, change: Array, share: Array, low: float, high: float, width: float, step: float
) -> tuple[float, float]:
    """First and second derivative in `step` of one column's smoothed mean loss at residual - step change.

    The smoothed loss is a Moreau envelope: its slope is the clipped dual, its second derivative 1 / width where that is
    not clipped, else 0. So the first derivative is piecewise linear and increasing in the step.
    """
    slope, curvature = 0.0, 0.0
    scale = 1 / width
    for i in range(len(residual)):
        c = change[i]
        line = (residual[i] - step * c) * scale + anchor[i]
        weighted = share[i] * c
        slope -= weighted * min(max(line, low), high)
        curvature += weighted * c if (line > low) & (line < high) else 0.0
    return slope, curvature * scale


@compiled()
def active_rows(at: Array, anchor: Array, low: float, high: float, width: float) -> NDArray[np.intp]:
    """Indices of the rows whose v is not clipped, at residuals `at`.

    Every index is written, and the next one over it if the row is not active: a loop without a branch to mispredict.
    """
    scale = 1 / width
    found, count = np.empty(len(at), np.intp), 0
    for i in range(len(at)):
        line = at[i] * scale + anchor[i]
        found[count] = i
        count += (line > low) & (line < high)
    return found[:count]


@compiled()
def probe_levels(
    y: Array,
    share: Array,
    constraint_weight: Array,
    levels: Array,
    curves: Array,
    change: Array,
    v: Array,
    m: Array,
    width: float,
    length: float,
) -> tuple[float, float]:
    """First and second derivative of the smoothed losses and constraints along a direction, at step `length`.

    curves and change are (N, q), the multipliers v (N, q) and m (N, q - 1). A constraint f_k <= f_k+1 is smoothed as a
    loss is: its multiplier is max((f_k - f_k+1) / width + m, 0), and it is curved where that is positive.
    """
    slope, curvature, q = 0.0, 0.0, len(levels)
    for i in range(len(y)):
        for k in range(q):
            here, moved = curves[i, k] + length * change[i, k], change[i, k]
            line = (y[i] - here) / width + v[i, k]
            if levels[k] - 1 < line < levels[k]:
                curvature += share[i] * moved * moved / width
            slope -= share[i] * min(max(line, levels[k] - 1), levels[k]) * moved
            if k + 1 < q:
                pressure = (here - curves[i, k + 1] - length * change[i, k + 1]) / width + m[i, k]
                if pressure > 0:
                    closing = moved - change[i, k + 1]
                    slope += constraint_weight[i] * pressure * closing
                    curvature += constraint_weight[i] * closing * closing / width
    return slope, curvature
