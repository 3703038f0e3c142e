"""Levels under shape constraints, against Clarabel's optimum of the whole problem with all its constraints."""

import clarabel
import numpy as np
import pytest
from scipy import sparse

from quernel.data import ArrayRows, InMemoryDesign
from quernel.estimators.shapes import GridOptions, Shapes, build_constraints
from quernel.features import Nystroem, RandomFeatures
from quernel.kernels import Gaussian, Laplacian
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.solvers import SHAPED, SHAPED_NONCROSSING, SOLVERS
from support.pinball_optima import objective

LEVELS = np.array([0.8, 0.2, 0.5])  # in no order
SMALL = GridOptions(n_values=6, n_anchors=10)


def rows_with_noise(seed, n=60):
    """Quantiles that rise in the first column and fall in the second, under much noise."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    y = np.exp(X[:, 0]) - X[:, 1] + (0.5 + X[:, 1]) * rng.standard_normal(n)
    return X, y - y.min()


def shapes_of(monotone=None, convex=None, lower=None, upper=None):
    columns = {*(monotone or {}), *(convex or {})}
    return Shapes(monotone or {}, convex or {}, lower, upper, {j: f"column {j}" for j in columns}, {})


def problem_of(Phi, X, y, alpha, levels=LEVELS):
    return Problem(InMemoryDesign(ArrayRows(X, y), features=Phi), Pinball(levels), alpha, fit_intercept=True)


def clarabel_optimum(Phi, y, alpha, C, d, e, joint):
    """The least sum of F over levels with C u + d b >= e, and uncrossed if `joint`, to Clarabel's precision."""
    tau, (n, M), q = np.sort(LEVELS), Phi.shape, len(LEVELS)
    width = M + 1
    design = np.column_stack([Phi, np.ones(n)])
    cost = np.concatenate([np.zeros(q * width), np.repeat(tau, n) / n, np.repeat(1 - tau, n) / n])
    ridge = np.zeros(len(cost))
    ridge[: q * width] = np.tile(np.append(np.full(M, 2 * alpha), 0.0), q)
    none = lambda rows: sparse.csc_matrix((rows, 2 * q * n))  # noqa: E731
    equal = sparse.hstack([sparse.kron(sparse.eye(q), design), sparse.eye(q * n), -sparse.eye(q * n)])
    shaped = sparse.hstack([-sparse.kron(sparse.eye(q), np.column_stack([C, d])), none(q * len(e))])
    step = sparse.diags([1.0, -1.0], [0, 1], shape=(q - 1, q)) if joint else sparse.csc_matrix((0, q))
    ordered = sparse.hstack([sparse.kron(step, design), none(step.shape[0] * n)])
    signs = sparse.hstack([sparse.csc_matrix((2 * q * n, q * width)), -sparse.eye(2 * q * n)])
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_iter = False, 300
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    inequalities = shaped.shape[0] + ordered.shape[0] + 2 * q * n
    solution = clarabel.DefaultSolver(
        sparse.diags(n * ridge, format="csc"),
        n * cost,
        sparse.vstack([equal, shaped, ordered, signs], format="csc"),
        np.concatenate([np.tile(y, q), -np.tile(e, q), np.zeros(ordered.shape[0] + 2 * q * n)]),
        [clarabel.ZeroConeT(q * n), clarabel.NonnegativeConeT(inequalities)],
        settings,
    ).solve()
    fits = np.array(solution.x)[: q * width].reshape(q, width)
    return sum(objective(Phi, y, level, alpha, fit[:M], fit[M]) for level, fit in zip(tau, fits, strict=True))


SHAPES = {
    "monotone": shapes_of({0: 1, 1: -1}),
    "convex and bounded": shapes_of(convex={0: 1}, lower=0.0, upper=4.5),
    "all": shapes_of({1: -1}, {0: 1}, lower=0.0),
}


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_the_optimum_under_all_constraints(name, joint, monkeypatch):
    monkeypatch.setattr("quernel.estimators.shapes.OPTIONS", SMALL)
    X, y = rows_with_noise(1)
    constraints = build_constraints(SHAPES[name], X).use(RandomFeatures(Gaussian(0.3), 20, random_state=1).fit(X))
    feature_map, alpha = constraints.feature_map, 1e-4
    Phi = feature_map.transform(X)
    found = (SHAPED_NONCROSSING if joint else SHAPED)(problem_of(Phi, X, y, alpha), constraints=constraints, tol=1e-7)
    assert found.converged
    # From the definition: C at all points, not those rows that the solver asked for.
    C = constraints.combination @ feature_map.transform(constraints.points)
    d = np.asarray(constraints.combination.sum(axis=1)).ravel()
    best = clarabel_optimum(Phi, y, alpha, C, d, constraints.target, joint)
    value = sum(objective(Phi, y, level, alpha, found.coef[:, k], found.intercept[k]) for k, level in enumerate(LEVELS))
    assert value == pytest.approx(found.objective.sum(), rel=1e-10)
    assert np.min(C @ found.coef + np.outer(d, found.intercept) - constraints.target[:, None]) >= 0  # not -1e-12
    assert abs(value - best) <= 1e-6 * best
    assert value - best <= found.gap.sum() + 1e-8 * best  # the gap is a bound
    apart = SOLVERS["newton"](problem_of(Phi, X, y, alpha), tol=1e-7)
    slack = constraints.slack(apart.coef, apart.intercept)
    assert np.mean(slack.min(axis=1) < 0) > 0.02  # nothing would be shown if the free fit had these shapes
    assert value > apart.objective.sum() * (1 + 1e-3)


def test_a_kernel_with_kinks_on_landmarks():
    X, y = rows_with_noise(2)
    feature_map = Nystroem(Laplacian(1.0), 30, landmarks="distinct").fit(X)
    constraints = build_constraints(shapes_of({0: 1}), X).use(feature_map)
    feature_map = constraints.feature_map
    found = SHAPED(problem_of(feature_map.transform(X), X, y, 1e-4), constraints=constraints)
    assert found.converged
    assert constraints.slack(found.coef, found.intercept).min() >= 0


def test_satisfied_constraints_change_no_bit():
    X, y = rows_with_noise(3)
    feature_map = RandomFeatures(Gaussian(0.5), 20, random_state=1).fit(X)
    problem = problem_of(feature_map.transform(X), X, y, 1e-3)
    wide = build_constraints(shapes_of(lower=-50.0, upper=50.0), X).use(feature_map)
    free, found = SOLVERS["newton"](problem), SHAPED(problem, constraints=wide)
    np.testing.assert_array_equal(free.coef, found.coef)


def test_the_interior_makes_the_fit_feasible(monkeypatch):
    # Without it constraints are met up to a tolerance only, and no feasible fit but the best constants is known.
    X, y = rows_with_noise(1)
    constraints = build_constraints(SHAPES["monotone"], X).use(RandomFeatures(Gaussian(0.3), 20, random_state=1).fit(X))
    problem = problem_of(constraints.feature_map.transform(X), X, y, 1e-4)
    monkeypatch.setattr("quernel.solvers.noncrossing.problem.share_to_mix", lambda *_: 0.0)
    monkeypatch.setattr("quernel.solvers.noncrossing.shapes.share_to_mix", lambda *_: 0.0)
    found = SHAPED(problem, constraints=constraints, max_iter=60)
    assert not found.converged
    assert np.any(np.all(found.coef == 0, axis=0))  # the best constant


def test_a_kernel_that_decays_between_the_rows_has_room():
    # Features vanish between rows at this bandwidth: without trends only constants would be monotone with room.
    X, y = rows_with_noise(6)
    constraints = build_constraints(SHAPES["monotone"], X).use(Nystroem(Laplacian(0.05), 30).fit(X))
    found = SHAPED(problem_of(constraints.feature_map.transform(X), X, y, 1e-6), constraints=constraints)
    assert found.converged
    assert constraints.slack(found.coef, found.intercept).min() >= 0
    assert np.all(found.objective < 0.95 * found.null_objective)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_fit_that_is_stopped_has_the_shape(steps):
    X, y = rows_with_noise(4)
    feature_map = RandomFeatures(Gaussian(0.3), 20, random_state=1).fit(X)
    constraints = build_constraints(SHAPES["all"], X).use(feature_map)
    feature_map = constraints.feature_map
    problem = problem_of(feature_map.transform(X), X, y, 1e-4)
    best = SHAPED(problem, constraints=constraints, tol=1e-7)
    found = SHAPED(problem, constraints=constraints, max_iter=steps)
    assert constraints.slack(found.coef, found.intercept).min() >= -1e-14  # chords of constants are rounded
    assert found.objective.sum() - best.objective.sum() <= found.gap.sum() * (1 + 1e-9)
    assert np.all(found.objective <= found.null_objective * (1 + 1e-12))


class Counted:
    """Constraints that count the rows which were asked for."""

    def __init__(self, constraints):
        self.slack, self.all_rows, self.n_asked = constraints.slack, constraints.rows, 0
        self.interior = constraints.interior

    def rows(self, index):
        self.n_asked += len(index)
        return self.all_rows(index)


def test_few_constraints_are_solved_for():
    X, y = rows_with_noise(5, n=300)
    feature_map = RandomFeatures(Gaussian(0.4), 30, random_state=1).fit(X)
    constraints = build_constraints(SHAPES["monotone"], X).use(feature_map)
    feature_map = constraints.feature_map
    counted = Counted(constraints)
    assert SHAPED(problem_of(feature_map.transform(X), X, y, 1e-4), constraints=counted).converged
    assert 0 < counted.n_asked < 0.1 * len(constraints.target)
