"""The compiled steps of the active-set method of `active_set_path`, for a block of independent problems.

`find_directions` and `take_steps` are called in turn; products of matrices between them are left to BLAS.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quernel._compile import compiled

# What became of a path: it goes on, has reached its end, would have to go on for ever, or has no room for more rows.
RUNNING, DONE, UNBOUNDED, FULL = 0, 1, 2, 3


@compiled(error_model="numpy")
def _multiply(matrix: Any, vector: Any) -> Any:
    """The product of the leading part of a symmetric matrix with a vector."""
    product = np.zeros(len(vector))
    for a in range(len(vector)):
        product += vector[a] * matrix[a, : len(vector)]
    return product


@compiled(error_model="numpy")
def find_directions(
    status: Any, held: Any, active: Any, n_active: Any, inverse: Any, dual: Any, kernel_new: Any, columns_new: Any,
    score_move: Any, features: Any, columns: Any, middle: float, kappa: float, d_dual: Any, d_intercept: Any,
    moved: Any,
) -> None:  # fmt: skip
    """How duals (B, cap) and b (B, p) move along the lines, and the sum `moved` (B, M) of active rows' features."""
    p = columns_new.shape[1]
    for j in range(len(status)):
        moved[j] = 0.0
        d_intercept[j] = 0.0
        if status[j] != RUNNING:
            continue
        m = n_active[j]
        if held[j] >= 0:
            # Only b moves, as far as the other rows leave it free: the held row's residual to its dual's side.
            row = active[j, held[j]]
            free = np.linalg.eigh(_gram(columns, active[j, :m], held[j]))[1][:, 0].copy()
            d_intercept[j] = free / np.dot(free, columns[row]) * (-1.0 if dual[j, row] > middle else 1.0)
            d_dual[j] = 0.0
            continue
        right = np.zeros(p + m)
        right[:p] = -columns_new[j]
        for k in range(m):
            row = active[j, k]
            right[p + k] = score_move[j, row] - kernel_new[j, row] / kappa
        solution = _multiply(inverse[j], right)
        d_intercept[j] = solution[:p]
        for k in range(m):
            d_dual[j, k] = solution[p + k]
            moved[j] += solution[p + k] * features[active[j, k]]


@compiled(error_model="numpy")
def take_steps(
    status: Any, held: Any, last: Any, active: Any, n_active: Any, inverse: Any, dual: Any, residual: Any,
    intercept: Any, position: Any, end: Any, d_dual: Any, d_residual: Any, d_intercept: Any, features: Any,
    columns: Any, level: float, nugget: float, kappa: float, undetermined: float,
) -> None:  # fmt: skip
    """Move each problem to the next change of its active set, or to the end of its line, and make the change."""
    p, cap = columns.shape[1], active.shape[1]
    for j in range(len(status)):
        if status[j] != RUNNING:
            continue
        m, slides = n_active[j], held[j] >= 0
        if slides:  # rows on which the part of b that moves has no influence stay where they are
            still = np.abs(d_residual[j]) <= undetermined * np.abs(d_residual[j]).max()
            d_residual[j] = np.where(still, 0.0, d_residual[j])
        step, leaving, entering = _find_step(
            np.inf if slides else end[j] - position[j], held[j], last[j], active[j, :m], dual[j], residual[j],
            d_dual[j], d_residual[j], level,
        )  # fmt: skip
        if step == np.inf:
            status[j] = UNBOUNDED
            continue
        position[j] += 0.0 if slides else step
        residual[j] += step * d_residual[j]
        for k in range(m):
            row = active[j, k]
            dual[j, row] += step * d_dual[j, k]
            if not (slides and k == held[j]):
                residual[j, row] = 0.0
        intercept[j] += step * d_intercept[j]
        if leaving >= 0:
            row = active[j, leaving]
            dual[j, row] = level if d_dual[j, leaving] > 0 else level - 1.0
            last[j] = row
            gram = _gram(columns, active[j, :m], leaving)
            if np.linalg.eigh(gram)[0][0] <= undetermined * np.trace(gram):  # b would not be determined
                status[j] = UNBOUNDED if slides else RUNNING
                held[j] = leaving
            else:
                _remove(inverse[j], active[j], m, p, leaving)
                held[j] = leaving if held[j] == m - 1 else held[j]
                n_active[j] = m - 1
        elif entering >= 0 and m == cap:
            status[j] = FULL
        elif entering >= 0:
            residual[j, entering] = 0.0
            _insert(inverse[j], active[j], m, entering, features, columns, nugget, kappa)
            last[j] = entering
            n_active[j] = m + 1
            if slides:
                _remove(inverse[j], active[j], m + 1, p, held[j])
                n_active[j], held[j] = m, -1
        else:
            status[j] = DONE


@compiled(error_model="numpy")
def _find_step(
    longest: float, held: int, last: int, active: Any, dual: Any, residual: Any, d_dual: Any, d_residual: Any,
    level: float,
) -> tuple[float, int, int]:  # fmt: skip
    """The step to the first change of one active set, and the place of the row that leaves or the row that enters.

    The row that changed last cannot change back at once, other than by a rounding error: that is ignored.
    """
    step, leaving, entering = longest, -1, -1
    is_active = np.zeros(len(dual), dtype=np.bool_)
    for k in range(len(active)):
        row, speed = active[k], d_dual[k]
        is_active[row] = True
        if k != held and speed != 0.0:
            room = ((level if speed > 0 else level - 1.0) - dual[row]) / speed
            if room < step and not (row == last and room <= 0):
                step, leaving = max(room, 0.0), k
    for i in range(len(dual)):
        speed = d_residual[i]
        if not is_active[i] and speed != 0.0 and (speed < 0) == (dual[i] > level - 0.5):
            room = -residual[i] / speed
            if room < step and not (i == last and room <= 0):
                step, leaving, entering = max(room, 0.0), -1, i
    return step, leaving, entering


@compiled(error_model="numpy")
def _gram(columns: Any, active: Any, without: int) -> Any:
    """The sum of z z' (p, p) over all active rows but one."""
    p = columns.shape[1]
    gram = np.zeros((p, p))
    for k in range(len(active)):
        if k != without:
            z = columns[active[k]]
            for a in range(p):
                gram[a] += z[a] * z
    return gram


@compiled(error_model="numpy")
def _remove(inverse: Any, active: Any, n_active: int, p: int, place: int) -> None:
    """Take an active row out of the inverse; the last one moves to its place."""
    size, at = p + n_active, p + place
    column = inverse[:size, at].copy()
    for a in range(size):
        inverse[a, :size] -= column[a] / column[at] * column
    inverse[:size, at] = inverse[:size, size - 1]
    inverse[at, :size] = inverse[size - 1, :size]
    active[place] = active[n_active - 1]


@compiled(error_model="numpy")
def _insert(
    inverse: Any, active: Any, n_active: int, row: int, features: Any, columns: Any, nugget: float, kappa: float
) -> None:
    """Put a row into the active set, as the last one."""
    p = columns.shape[1]
    size = p + n_active
    border = np.empty(size)
    border[:p] = columns[row]
    for k in range(n_active):
        border[p + k] = np.dot(features[active[k]], features[row]) / kappa
    solved = _multiply(inverse, border)
    schur = (np.dot(features[row], features[row]) + nugget) / kappa - np.dot(border, solved)
    for a in range(size):
        inverse[a, :size] += solved[a] / schur * solved
    inverse[:size, size] = -solved / schur
    inverse[size, :size] = -solved / schur
    inverse[size, size] = 1.0 / schur
    active[n_active] = row
