"""One pass over the features, each row used twice while it is in cache.

The loss enters as lines (`Loss.lines`): sorted knots, and between them slopes v with offsets conjugate(v), so that the
loss is v r - conjugate(v) there; nan where it is curved. A row farther than `band` from every knot, on a line, is
settled: its dual is that slope. Arrays have a row per fit: coef (q, M), residual (q, m); a row's residual is
offset - sign (phi'u + b). Compiled on first use and
cached on disk. Loops are written out, for the compiler makes vector instructions of plain loops only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

FAST = {"contract", "reassoc", "nsz"}  # sums may be taken in any order; nan and infinity keep their meaning


@njit(cache=True, nogil=True, fastmath=FAST)
def sort_rows(
    features: Any, offset: Any, sign: Any, share: Any, coef: Any, intercept: Any, knots: Any, slopes: Any, offsets: Any,
    band: Any, residual: Any, dual: Any, doubt: Any, force: Any, balance: Any, level: Any, loss: Any,
) -> None:  # fmt: skip
    """Fill residual, dual (0 for the doubtful) and doubt; sum the settled rows' force, balance, level and loss."""
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
            if doubtful:
                v = 0.0
            else:
                const = share[i] * offsets[k, piece]
                w = share[i] * v
                level[k] += w * offset[k, i] - const
                loss[k] += w * r - const
                w *= s
                balance[k] += w
                if w != 0.0:
                    for j in range(n_features):
                        force[k, j] += w * features[i, j]
            residual[k, i] = r
            dual[k, i] = v
            doubt[k, i] = doubtful


@njit(cache=True, nogil=True, fastmath=FAST)
def sort_rows_together(
    features: Any, offset: Any, share: Any, coef: Any, intercept: Any, knots: Any, slopes: Any, offsets: Any,
    band: Any, residual: Any, dual: Any, doubt: Any, force: Any, balance: Any, level: Any, loss: Any,
) -> None:  # fmt: skip
    """`sort_rows` for several columns with one knot each, in the order of their levels, that share offset and sign 1.

    Where curves do not cross, a row lies above the first so many of them. Rows are added up by that number, once each
    and not once for every column; what the doubtful should not have added is taken back.
    """
    n_columns, n_features = coef.shape
    above = np.zeros((n_columns + 1, n_features))
    piece = np.empty(n_columns, dtype=np.intp)
    for i in range(len(share)):
        count, ordered = 0, True
        for k in range(n_columns):
            prediction = 0.0
            for j in range(n_features):
                prediction += features[i, j] * coef[k, j]
            r = offset[k, i] - (prediction + intercept[k])
            piece[k] = 1 if r > knots[k, 0] else 0
            ordered = ordered and (piece[k] == 0 or count == k)
            count += piece[k]
            v = slopes[k, piece[k]]
            doubtful = abs(r - knots[k, 0]) <= band[k]
            if not doubtful:
                const = share[i] * offsets[k, piece[k]]
                w = share[i] * v
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
            if ordered == doubt[k, i]:
                w = share[i] * slopes[k, piece[k]]
                if ordered:
                    w = -w
                for j in range(n_features):
                    force[k, j] += w * features[i, j]
    for k in range(n_columns):
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
    for i in range(len(share)):
        for k in range(n_columns):
            prediction = 0.0
            for j in range(n_features):
                prediction += features[i, j] * coef[k, j]
            s = sign[k, i]
            r = offset[k, i] - s * (prediction + intercept[k])
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
