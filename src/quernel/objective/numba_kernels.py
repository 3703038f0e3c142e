"""One pass over the features, each row used twice while it is in cache.

The loss enters as lines (`Loss.segments`): sorted knots, and between them slopes v with offsets conjugate(v), so that the
loss is v r - conjugate(v) there; nan where it is curved. A row farther than `band` from every knot, on a line, is
settled: its dual is that slope. Arrays have a row per fit: coef (q, M), residual (q, m); a row's residual is
offset - sign (phi'u + b). Compiled on first use and cached on disk. Loops are written out, for the compiler makes
vector instructions of plain loops only; so is where a residual lies, for a function of its own takes a tenth longer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

FAST = {"contract", "reassoc", "nsz"}  # sums may be taken in any order; nan and infinity keep their meaning


@njit(cache=True, nogil=True, fastmath=FAST)
def predict_row(features: Any, i: int, coef: Any, prediction: Any) -> None:
    """The predictions of one row for many columns: four share what is read of its features."""
    n_columns, n_features = coef.shape
    fours = n_columns - n_columns % 4
    for k in range(0, fours, 4):
        first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
        for j in range(n_features):
            phi = features[i, j]
            first += phi * coef[k, j]
            second += phi * coef[k + 1, j]
            third += phi * coef[k + 2, j]
            fourth += phi * coef[k + 3, j]
        prediction[k], prediction[k + 1], prediction[k + 2], prediction[k + 3] = first, second, third, fourth
    for k in range(fours, n_columns):
        first = 0.0
        for j in range(n_features):
            first += features[i, j] * coef[k, j]
        prediction[k] = first


@njit(cache=True, nogil=True, fastmath=FAST)
def screen_rows(
    features: Any, offset: Any, sign: Any, share: Any, coef: Any, intercept: Any, knots: Any, slopes: Any, offsets: Any,
    band: Any, residual: Any, dual: Any, doubt: Any, force: Any, open_force: Any, balance: Any, open_balance: Any,
    level: Any, loss: Any,
) -> None:  # fmt: skip
    """Fill residual, dual (0 for the doubtful) and doubt; sum the settled rows' force, balance, level and loss.

    The doubtful add to open_force and open_balance what they would to force and balance.
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
            doubtful = np.isnan(v) or nearest <= band[k]
            w = 0.0 if np.isnan(v) else share[i] * v * s
            if doubtful:
                v = 0.0
                open_balance[k] += w
                if w != 0.0:
                    for j in range(n_features):
                        open_force[k, j] += w * features[i, j]
            else:
                const = share[i] * offsets[k, piece]
                level[k] += share[i] * v * offset[k, i] - const
                loss[k] += share[i] * v * r - const
                balance[k] += w
                if w != 0.0:
                    for j in range(n_features):
                        force[k, j] += w * features[i, j]
            residual[k, i] = r
            dual[k, i] = v
            doubt[k, i] = doubtful


@njit(cache=True, nogil=True, fastmath=FAST)
def screen_active_rows(
    features: Any, offset: Any, sign: Any, share: Any, coef: Any, intercept: Any, knots: Any, slopes: Any, offsets: Any,
    widest: Any, narrowest: Any, errors: Any, shifts: Any, residual: Any, dual: Any, doubt: Any, force: Any,
    open_force: Any, balance: Any, open_balance: Any, level: Any,
) -> None:  # fmt: skip
    """`screen_rows` for the rows in doubt, at another fit and within the bands of `doubt.Bands`.

    Sums are over those that are settled now.
    """
    n_columns, n_features = coef.shape
    for k in range(n_columns):
        for i in range(len(share)):
            if not doubt[k, i]:
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
            doubtful = np.isnan(v) or nearest <= narrowest[k]
            if not doubtful and nearest <= widest[k]:
                square = 0.0
                for e in range(errors.shape[1]):
                    off = 0.0
                    for j in range(n_features):
                        off += features[i, j] * errors[k, e, j]
                    off += shifts[k, e]
                    square += off * off
                doubtful = nearest * nearest <= square
            if doubtful:
                dual[k, i] = 0.0
                open_balance[k] += w
                if w != 0.0:
                    for j in range(n_features):
                        open_force[k, j] += w * features[i, j]
            else:
                dual[k, i], doubt[k, i] = v, False
                level[k] += share[i] * (v * offset[k, i] - offsets[k, piece])
                balance[k] += w
                if w != 0.0:
                    for j in range(n_features):
                        force[k, j] += w * features[i, j]


@njit(cache=True, nogil=True, fastmath=FAST)
def sort_rows_together(
    features: Any, offset: Any, share: Any, coef: Any, intercept: Any, knots: Any, slopes: Any, offsets: Any,
    band: Any, residual: Any, dual: Any, doubt: Any, force: Any, open_force: Any, balance: Any, open_balance: Any,
    level: Any, loss: Any,
) -> None:  # fmt: skip
    """`screen_rows` for several columns with one knot each, in the order of their levels, that share offset and sign 1.

    Where curves do not cross, a row lies above the first so many of them. Rows are added up by that number, once each
    and not once for every column; what the doubtful add that way is taken back. All sums begin at zero.
    """
    n_columns, n_features = coef.shape
    above = np.zeros((n_columns + 1, n_features))
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
            doubtful = abs(r - knots[k, 0]) <= band[k]
            w = share[i] * v
            if doubtful:
                open_balance[k] += w
            else:
                const = share[i] * offsets[k, piece[k]]
                level[k] += w * offset[k, i] - const
                loss[k] += w * r - const
                balance[k] += w
            residual[k, i] = r
            dual[k, i] = 0.0 if doubtful else v
            doubt[k, i] = doubtful
        if ordered:
            w = share[i]
            for j in range(n_features):
                above[count, j] += w * features[i, j]
        for k in range(n_columns):
            w = share[i] * slopes[k, piece[k]]
            if doubt[k, i]:
                for j in range(n_features):
                    open_force[k, j] += w * features[i, j]
            if not ordered:
                for j in range(n_features):
                    force[k, j] += w * features[i, j]
    for k in range(n_columns):
        for j in range(n_features):
            force[k, j] -= open_force[k, j]
        for count in range(n_columns + 1):
            v = slopes[k, 1 if k < count else 0]
            for j in range(n_features):
                force[k, j] += v * above[count, j]


@njit(cache=True, nogil=True, fastmath=FAST)
def check_rows(
    features: Any, offset: Any, sign: Any, share: Any, coef: Any, intercept: Any, knots: Any, slopes: Any, offsets: Any,
    dual: Any, doubt: Any, residual: Any, odd: Any, force: Any, balance: Any, loss: Any, farthest: Any,
) -> None:  # fmt: skip
    """Move residuals to a new fit.

    Rows off their dual's line, and the doubtful, are odd; loss sums the others. force and balance sum the doubtful;
    farthest is the largest distance from a knot of a settled row that is odd.
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
            if doubt[k, i]:
                odd[k, i] = True
                w = share[i] * v * s
                balance[k] += w
                for j in range(n_features):
                    force[k, j] += w * features[i, j]
                continue
            piece, nearest = 0, np.inf
            for p in range(knots.shape[1]):
                nearest = min(nearest, abs(r - knots[k, p]))
                if r > knots[k, p]:
                    piece = p + 1
            odd[k, i] = slopes[k, piece] != v
            if odd[k, i]:
                farthest[k] = max(farthest[k], nearest)
            else:
                loss[k] += share[i] * (v * r - offsets[k, piece])


@njit(cache=True, nogil=True, fastmath=FAST)
def force_by_sign(features: Any, weighted: Any, upward: Any, downward: Any) -> None:
    """Add up features times weights, the positive and the negative ones apart; weighted (q, m)."""
    n_columns, n_features = upward.shape
    for i in range(weighted.shape[1]):
        for k in range(n_columns):
            w = weighted[k, i]
            if w > 0.0:
                for j in range(n_features):
                    upward[k, j] += w * features[i, j]
            else:
                for j in range(n_features):
                    downward[k, j] += w * features[i, j]


@njit(cache=True, nogil=True, fastmath=FAST)
def pull_column(
    residual: Any, anchor: Any, share: Any, turned: Any, low: float, high: float, width: float, weighted: Any
) -> tuple[float, float, float, float, int]:
    """Fill weighted = turned v (turned = share sign); sum it, its positive part, loss and slack; count the free."""
    balance, positive, loss, slack, active = 0.0, 0.0, 0.0, 0.0, 0
    scale = 1 / width
    for i in range(len(residual)):
        r = residual[i]
        line = r * scale + anchor[i]
        v = min(max(line, low), high)
        value = max(low * r, high * r)
        w = turned[i] * v
        weighted[i] = w
        balance += w
        positive += max(w, 0.0)
        loss += share[i] * value
        slack += share[i] * (value - v * r)
        active += (line > low) & (line < high)  # strictly: an anchor at the end of the box is clipped
    return balance, positive, loss, slack, active


@njit(cache=True, nogil=True, fastmath=FAST)
def probe_column(
    residual: Any, anchor: Any, change: Any, share: Any, low: float, high: float, width: float, step: float
) -> tuple[float, float]:
    """Slope and curvature of the smoothed mean loss at residual - step change."""
    slope, bend = 0.0, 0.0
    scale = 1 / width
    for i in range(len(residual)):
        c = change[i]
        line = (residual[i] - step * c) * scale + anchor[i]
        weighted = share[i] * c
        slope -= weighted * min(max(line, low), high)
        bend += weighted * c if (line > low) & (line < high) else 0.0
    return slope, bend * scale


@njit(cache=True, nogil=True)
def active_rows(at: Any, anchor: Any, low: float, high: float, width: float) -> Any:
    """The rows whose v is not clipped, at these residuals."""
    scale = 1 / width
    found, count = np.empty(len(at), np.intp), 0
    for i in range(len(at)):
        line = at[i] * scale + anchor[i]
        found[count] = i
        count += (line > low) & (line < high)
    return found[:count]
