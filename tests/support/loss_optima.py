"""Every loss's optimum from a solver that knows nothing of this library: Clarabel, libsvm, liblinear, scikit-learn.

    F(u, b) = (1/W) sum w loss(r) + alpha u'u,      r = y - Phi u - b  or, for the margin,  r = 1 - y (Phi u + b)

Losses of lines and parabolas split the residual into  r = a + e + p - m  with |e| <= tube and p, m >= 0, and pay
a^2 / (2 length) + up p + down m + up2 p^2 + down2 m^2:  a quadratic program. Those with an exponential use its cone.
"""

import clarabel
import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC, SVR, LinearSVC

from support.pinball_optima import _tight, shares

LEVEL, LENGTH = 0.3, 0.7
SHAPE = 0.3  # of the generalised Pareto law
SPLITS = {
    "pinball": {"up": LEVEL, "down": 1 - LEVEL},
    "absolute": {"up": 1, "down": 1},
    "huber": {"up": LENGTH, "down": LENGTH, "length": 1},
    "epsilon_insensitive": {"up": 1, "down": 1, "tube": LENGTH},
    "smoothed_pinball": {"up": LEVEL, "down": 1 - LEVEL, "length": LENGTH},
    "squared": {"up2": 1, "down2": 1},
    "expectile": {"up2": LEVEL, "down2": 1 - LEVEL},
    "hinge": {"up": 1},
    "squared_hinge": {"up2": 1},
    "smoothed_hinge": {"up": 1, "length": LENGTH},
}
MARGIN = ("hinge", "squared_hinge", "smoothed_hinge", "logistic")


def value_by_hand(name, r):
    """loss(r), with the level and length above."""
    match name:
        case "pinball":
            return np.where(r >= 0, LEVEL, 1 - LEVEL) * np.abs(r)
        case "absolute":
            return np.abs(r)
        case "huber":
            return np.where(np.abs(r) <= LENGTH, r**2 / 2, LENGTH * np.abs(r) - LENGTH**2 / 2)
        case "epsilon_insensitive":
            return np.maximum(np.abs(r) - LENGTH, 0)
        case "smoothed_pinball":
            v = np.clip(r / LENGTH, LEVEL - 1, LEVEL)
            return v * r - LENGTH * v**2 / 2
        case "squared":
            return r**2
        case "expectile":
            return np.where(r >= 0, LEVEL, 1 - LEVEL) * r**2
        case "logcosh":
            return LENGTH**2 * (np.logaddexp(r / LENGTH, -r / LENGTH) - np.log(2))
        case "generalized_pareto":
            return (1 + 1 / SHAPE) * (np.logaddexp(0, np.log(SHAPE) + r) - np.log1p(SHAPE)) - r
        case "hinge":
            return np.maximum(r, 0)
        case "squared_hinge":
            return np.maximum(r, 0) ** 2
        case "smoothed_hinge":
            return np.where(r < 0, 0, np.where(r < LENGTH, r**2 / (2 * LENGTH), r - LENGTH / 2))
        case "logistic":
            return np.logaddexp(0, r - 1)
    raise KeyError(name)


def objective(name, features, y, alpha, coef, constant=0.0, weight=None):
    """F(u, b), from its definition."""
    f = features @ coef + constant
    r = 1 - y * f if name in MARGIN else y - f
    return float(shares(len(y), weight) @ value_by_hand(name, r) + alpha * coef @ coef)


def optimum(name, features, y, alpha, weight=None, intercept=False):
    """What F comes to by Clarabel and, where the problem is its own, by a well-known solver."""
    points = [
        (exponential if name in ("logistic", "logcosh", "generalized_pareto") else quadratic)(
            name, features, y, alpha, weight, intercept
        )
    ]
    known = known_solver(name, features, y, alpha, weight, intercept)
    if known is not None:
        points.append(known)
    return [objective(name, features, y, alpha, *point, weight) for point in points]


def quadratic(name, features, y, alpha, weight=None, intercept=False):
    """(u, b) of the quadratic program."""
    n, share = len(y), shares(len(y), weight)
    rules = {"up": 0, "down": 0, "up2": 0, "down2": 0, "tube": 0, "length": 0, **SPLITS[name]}
    design = np.column_stack([features, np.ones(n)]) if intercept else features
    sign, offset = (y, np.ones(n)) if name in MARGIN else (np.ones(n), y)
    d = design.shape[1]
    identity, one = sparse.eye(n), np.ones(n)
    # Variables: (u, b), a, e, p, m.
    quadratic_cost = np.concatenate(
        [
            np.append(np.full(features.shape[1], 2 * alpha), np.zeros(d - features.shape[1])),
            share / rules["length"] if rules["length"] else 0 * one,
            0 * one,
            2 * rules["up2"] * share,
            2 * rules["down2"] * share,
        ]
    )
    linear_cost = np.concatenate([np.zeros(d), 0 * one, 0 * one, rules["up"] * share, rules["down"] * share])
    split = sparse.hstack([sparse.csc_matrix(sign[:, None] * design), identity, identity, identity, -identity])
    place = {"a": d, "e": d + n, "p": d + 2 * n, "m": d + 3 * n}
    total = d + 4 * n

    def pick(part, factor):
        return sparse.csc_matrix((np.full(n, factor), (np.arange(n), place[part] + np.arange(n))), shape=(n, total))

    above, bounds = [pick("p", -1.0)], [0 * one]
    if rules["tube"]:
        above, bounds = [*above, pick("e", 1.0), pick("e", -1.0)], [*bounds, rules["tube"] * one, rules["tube"] * one]
    if rules["down"] or rules["down2"]:
        equalities, right = [split], [offset]
        above, bounds = [*above, pick("m", -1.0)], [*bounds, 0 * one]
    else:  # m costs nothing: r <= a + e + p
        equalities, right = [pick("m", 1.0)], [0 * one]
        above, bounds = [*above, -(split + pick("m", 1.0))], [*bounds, -offset]
    for part, rule in (("a", "length"), ("e", "tube")):
        if not rules[rule]:
            equalities, right = [*equalities, pick(part, 1.0)], [*right, 0 * one]
    solution = clarabel.DefaultSolver(
        sparse.diags(n * quadratic_cost, format="csc"),
        n * linear_cost,
        sparse.vstack([*equalities, *above], format="csc"),
        np.concatenate([*right, *bounds]),
        [clarabel.ZeroConeT(n * len(equalities)), clarabel.NonnegativeConeT(n * len(above))],
        _tight(),
    ).solve()
    point = np.array(solution.x)[:d]
    return point[: features.shape[1]], float(point[-1]) if intercept else 0.0


def exponential(name, features, y, alpha, weight=None, intercept=False):
    """(u, b) with  t >= log(1 + exp z):  exp(z - t) <= g,  exp(-t) <= h,  g + h <= 1."""
    n, share = len(y), shares(len(y), weight)
    design = np.column_stack([features, np.ones(n)]) if intercept else features
    if name == "logistic":  # z = -y f
        slope, start, scale, drop = -y[:, None] * design, np.zeros(n), 1.0, np.zeros(n)
    elif name == "generalized_pareto":  # (1 + 1/shape) log(1 + exp z) - r,  z = log shape + r
        slope, start, scale = -design, np.log(SHAPE) + y, 1 + 1 / SHAPE
        drop = np.full(n, 2 / scale)
    else:  # log cosh x = log(1 + exp 2x) - x - log 2,  x = (y - f) / length
        slope, start, scale = -2 * design / LENGTH, 2 * y / LENGTH, LENGTH**2
        drop = np.ones(n)
    d = design.shape[1]
    total = d + 3 * n  # (u, b), t, g, h
    cost = np.zeros(total)
    cost[d : d + n] = scale * share
    cost[:d] -= scale * (drop * share) @ slope / 2
    ridge = np.zeros(total)
    ridge[: features.shape[1]] = 2 * alpha
    rows, right = np.zeros((7 * n, total)), np.zeros(7 * n)
    for i in range(n):
        t, g, h = d + i, d + n + i, d + 2 * n + i
        first = 6 * i
        rows[first, :d], rows[first, t], right[first] = -slope[i], 1, start[i]  # s0 = z - t
        right[first + 1] = 1
        rows[first + 2, g] = -1
        rows[first + 3, t] = 1  # s0 = -t
        right[first + 4] = 1
        rows[first + 5, h] = -1
        rows[6 * n + i, g] = rows[6 * n + i, h] = 1
        right[6 * n + i] = 1
    solution = clarabel.DefaultSolver(
        sparse.diags(n * ridge, format="csc"),
        n * cost,
        sparse.csc_matrix(rows),
        right,
        [*[clarabel.ExponentialConeT()] * (2 * n), clarabel.NonnegativeConeT(n)],
        _tight(),
    ).solve()
    point = np.array(solution.x)[:d]
    return point[: features.shape[1]], float(point[-1]) if intercept else 0.0


def known_solver(name, features, y, alpha, weight=None, intercept=False):
    """(u, b) by libsvm, liblinear or scikit-learn, where they solve this very problem; C = 1 / (2 n alpha)."""
    n, share = len(y), shares(len(y), weight)
    each = n * share
    C = 1 / (2 * n * alpha)
    if C > 1e3:  # their tolerances do not reach that far
        return None
    if name == "hinge" and intercept:
        model = SVC(kernel="linear", C=C, tol=1e-9).fit(features, y, sample_weight=each)
    elif name == "hinge":
        model = LinearSVC(loss="hinge", C=C, tol=1e-9, fit_intercept=False, max_iter=10**6).fit(
            features, y, sample_weight=each
        )
    elif name == "squared_hinge" and not intercept:
        model = LinearSVC(C=C, tol=1e-9, fit_intercept=False, dual=False).fit(features, y, sample_weight=each)
    elif name == "epsilon_insensitive" and intercept:
        model = SVR(kernel="linear", C=C, epsilon=LENGTH, tol=1e-9).fit(features, y, sample_weight=each)
    elif name == "logistic":
        model = LogisticRegression(C=C, tol=1e-12, solver="newton-cholesky", fit_intercept=intercept, max_iter=1000)
        model.fit(features, y, sample_weight=each)
    else:
        return None
    return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0]) if intercept else 0.0
