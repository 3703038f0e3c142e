"""What the library must reach, from solvers it knows nothing of: Clarabel's interior point and HiGHS.

    F(u, b) = (1/W) sum w pinball(y - Phi u - b) + alpha u'u

Split the residual into its positive and negative parts p and m; then F is a quadratic program in (u, b, p, m),

    minimise  alpha u'u + sum share (level p + (1 - level) m)   subject to   Phi u + b + p - m = y,   p, m >= 0.

Every oracle answers with a number that F reaches (evaluated again here, from u and b alone) and a number that F cannot
go below (weak duality, evaluated again here, from duals moved into their box): the truth lies between the two.
"""

import clarabel
import highspy
import numpy as np
from scipy import sparse
from scipy.optimize import linprog


def pinball_by_hand(residual, level):
    """level |r| above the fit, (1 - level) |r| below it."""
    return np.where(residual >= 0, level, 1 - level) * np.abs(residual)


def shares(n, weight=None):
    """w / W."""
    weight = np.ones(n) if weight is None else np.asarray(weight, dtype=float)
    return weight / weight.sum()


def objective(features, y, level, alpha, coef, constant=0.0, weight=None):
    """F(u, b), from its definition."""
    residual = y - features @ coef - constant
    return float(shares(len(y), weight) @ pinball_by_hand(residual, level) + alpha * coef @ coef)


def lower_bound(features, y, level, alpha, dual, weight=None, intercept=False):
    """mean(v y) - |Phi'(share v)|^2 / (4 alpha) for the duals moved into the box and, with an intercept, balanced."""
    share = shares(len(y), weight)
    phi_t_dual = share * np.clip(dual, level - 1, level)
    if intercept:
        up, down = phi_t_dual[phi_t_dual > 0].sum(), -phi_t_dual[phi_t_dual < 0].sum()
        phi_t_dual[phi_t_dual > 0] *= min(up, down) / up if up > 0 else 0
        phi_t_dual[phi_t_dual < 0] *= min(up, down) / down if down > 0 else 0
    force = features.T @ phi_t_dual
    return float(phi_t_dual @ y - force @ force / (4 * alpha))


def optimum(features, y, level, alpha, weight=None, intercept=False):
    """(a value that F takes, a value that F never falls below), by Clarabel."""
    coef, constant, dual = minimiser(features, y, level, alpha, weight, intercept)
    return (
        objective(features, y, level, alpha, coef, constant, weight),
        lower_bound(features, y, level, alpha, dual, weight, intercept),
    )


def minimiser(features, y, level, alpha, weight=None, intercept=False):
    """(u, b, duals) by Clarabel; rows without weight are left out and get the dual 0."""
    share = shares(len(y), weight)
    kept = np.flatnonzero(share)
    design, size = _design(features[kept], intercept), float(np.abs(y[kept]).max()) or 1.0
    # In units of y's size: u = size x, so that F / size has the ridge alpha size.
    columns, n = design.shape[1], len(kept)
    cost = np.concatenate([np.zeros(columns), level * share[kept], (1 - level) * share[kept]])
    ridge = np.zeros(columns + 2 * n)
    ridge[: features.shape[1]] = 2 * alpha * size
    equalities = sparse.hstack([sparse.csc_matrix(design), sparse.eye(n), -sparse.eye(n)])
    signs = sparse.hstack([sparse.csc_matrix((2 * n, columns)), -sparse.eye(2 * n)])
    scale = n  # the costs are shares: back to order one
    solution = clarabel.DefaultSolver(
        sparse.diags(scale * ridge, format="csc"),
        scale * cost,
        sparse.vstack([equalities, signs], format="csc"),
        np.concatenate([y[kept] / size, np.zeros(2 * n)]),
        [clarabel.ZeroConeT(n), clarabel.NonnegativeConeT(2 * n)],
        _tight(),
    ).solve()
    point = size * np.array(solution.x)[:columns]
    dual = np.zeros(len(y))
    dual[kept] = np.clip(-np.array(solution.z)[:n] / (scale * share[kept]), level - 1, level)
    coef = point[: features.shape[1]]
    return coef, float(point[-1]) if intercept else 0.0, dual


def _tight():
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_iter = 500
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    settings.tol_ktratio = 1e-10
    return settings


def _design(features, intercept):
    return np.column_stack([features, np.ones(len(features))]) if intercept else np.asarray(features)


def highs_optimum(features, y, level, alpha, weight=None, intercept=False):
    """A value that F takes, by HiGHS's active set method; meant for small problems."""
    n, columns = len(y), features.shape[1] + bool(intercept)
    share = shares(n, weight)
    infinity = highspy.kHighsInf
    model = highspy.HighsModel()
    program, hessian = model.lp_, model.hessian_
    program.num_col_, program.num_row_ = columns + 2 * n, n
    program.col_cost_ = n * np.concatenate([np.zeros(columns), level * share, (1 - level) * share])
    program.col_lower_ = np.concatenate([np.full(columns, -infinity), np.zeros(2 * n)])
    program.col_upper_ = np.full(columns + 2 * n, infinity)
    program.row_lower_ = program.row_upper_ = np.asarray(y, dtype=float)
    rows = sparse.hstack([sparse.csc_matrix(_design(features, intercept)), sparse.eye(n), -sparse.eye(n)]).tocsc()
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_, program.a_matrix_.index_, program.a_matrix_.value_ = rows.indptr, rows.indices, rows.data
    ridge = sparse.csc_matrix(
        (np.full(features.shape[1], 2 * n * alpha), (np.arange(features.shape[1]),) * 2), shape=(columns + 2 * n,) * 2
    )
    hessian.dim_, hessian.format_ = columns + 2 * n, highspy.HessianFormat.kTriangular
    hessian.start_, hessian.index_, hessian.value_ = ridge.indptr, ridge.indices, ridge.data
    solver = highspy.Highs()
    solver.silent()
    solver.passModel(model)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"HiGHS stopped with {solver.modelStatusToString(solver.getModelStatus())}.")
    point = np.array(solver.getSolution().col_value)[:columns]
    coef, constant = point[: features.shape[1]], float(point[-1]) if intercept else 0.0
    return objective(features, y, level, alpha, coef, constant, weight)


def unpenalised(features, y, level, weight=None, intercept=False):
    """(smallest mean loss at alpha = 0, a u that reaches it), by HiGHS's simplex."""
    n, design, share = len(y), _design(features, intercept), shares(len(y), weight)
    columns = design.shape[1]
    answer = linprog(
        n * np.concatenate([np.zeros(columns), level * share, (1 - level) * share]),
        A_eq=sparse.hstack([sparse.csc_matrix(design), sparse.eye(n), -sparse.eye(n)]).tocsc(),
        b_eq=y,
        bounds=[(None, None)] * columns + [(0, None)] * (2 * n),
        method="highs-ds",
    )
    if answer.status != 0:
        raise RuntimeError(answer.message)
    coef, constant = answer.x[: features.shape[1]], float(answer.x[columns - 1]) if intercept else 0.0
    return objective(features, y, level, 0.0, coef, constant, weight), coef
