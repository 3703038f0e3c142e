"""Levels fitted together, against Clarabel's optimum of the whole problem with all its constraints."""

from dataclasses import replace

import clarabel
import numpy as np
import pytest
from scipy import sparse

from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import Hinge, Pinball
from quernel.objective import Problem
from quernel.solvers import SOLVERS
from quernel.solvers import noncrossing as driver
from quernel.solvers.linear_system import BlockTridiagonal
from quernel.solvers.noncrossing.problem import Duals, certify, crossing
from support.pinball_optima import objective, shares

LEVELS = np.array([0.7, 0.1, 0.5, 0.3, 0.6, 0.9])  # in no order
ROUNDING = 1e-10


def crossing_rows(seed, n=80, n_features=25):
    """Few rows and a narrow kernel: levels that cross often."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    y = np.sin(5 * X[:, 0]) + (0.2 + X[:, 1]) * rng.standard_normal(n)
    new = rng.random((30, 2))
    lift = RandomFeatures(Gaussian(0.3), n_features, random_state=seed).fit(X)
    return lift.transform(X), y, rng.integers(1, 4, n).astype(float), lift.transform(new)


def problem_of(features, y, alpha, weight=None, intercept=True, levels=LEVELS):
    rows = InMemoryDesign(ArrayRows(features, y, weight), features=features)
    return Problem(rows, Pinball(levels), alpha, fit_intercept=intercept)


def worst_crossing(features, result, levels=LEVELS):
    """The most by which a level lies above the next higher one."""
    curves = (features @ result.coef + result.intercept)[:, np.argsort(levels)]
    return np.max(curves[:, :-1] - curves[:, 1:])


def clarabel_optimum(features, y, alpha, weight, intercept, points, levels=LEVELS):
    """A value of the sum of F that feasible levels take, to Clarabel's precision."""
    order = np.argsort(levels)
    tau, q, (n, M) = levels[order], len(levels), features.shape
    share = shares(n, weight)
    design = np.column_stack([features, np.ones(n)]) if intercept else features
    places = features if points is None else np.vstack([features, points])
    places = np.column_stack([places, np.ones(len(places))]) if intercept else places
    width = design.shape[1]
    # Variables: (u_k, b_k) of all levels, then positive and negative residuals of all levels.
    cost = np.concatenate([np.zeros(q * width), np.outer(tau, share).ravel(), np.outer(1 - tau, share).ravel()])
    ridge = np.zeros(len(cost))
    ridge[: q * width] = np.tile(np.append(np.full(M, 2 * alpha), np.zeros(width - M)), q)
    equal = sparse.hstack([sparse.kron(sparse.eye(q), design), sparse.eye(q * n), -sparse.eye(q * n)])
    step = sparse.diags([1.0, -1.0], [0, 1], shape=(q - 1, q))
    ordered = sparse.hstack([sparse.kron(step, places), sparse.csc_matrix(((q - 1) * len(places), 2 * q * n))])
    signs = sparse.hstack([sparse.csc_matrix((2 * q * n, q * width)), -sparse.eye(2 * q * n)])
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_iter = False, 300
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    solution = clarabel.DefaultSolver(
        sparse.diags(n * ridge, format="csc"),
        n * cost,
        sparse.vstack([equal, ordered, signs], format="csc"),
        np.concatenate([np.tile(y, q), np.zeros(ordered.shape[0] + 2 * q * n)]),
        [clarabel.ZeroConeT(q * n), clarabel.NonnegativeConeT(ordered.shape[0] + 2 * q * n)],
        settings,
    ).solve()
    point = np.array(solution.x)[: q * width].reshape(q, width)
    return sum(
        objective(features, y, level, alpha, fit[:M], fit[M] if intercept else 0.0, weight)
        for level, fit in zip(tau, point, strict=True)
    )


def total(features, y, alpha, result, weight):
    """The sum of F, from its definition."""
    return sum(
        objective(features, y, level, alpha, result.coef[:, k], result.intercept[k], weight)
        for k, level in enumerate(LEVELS)
    )


@pytest.mark.parametrize("alpha", [1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("extra", [True, False])
def test_the_optimum_of_the_joint_problem(alpha, intercept, weighted, extra):
    features, y, weight, points = crossing_rows(3 + weighted)
    weight, points = weight if weighted else None, points if extra else None
    problem = problem_of(features, y, alpha, weight, intercept)
    found = driver.solve(problem, tol=1e-7, points=points)
    assert found.converged
    best, value = clarabel_optimum(features, y, alpha, weight, intercept, points), found.objective.sum()
    assert value == pytest.approx(total(features, y, alpha, found, weight), rel=ROUNDING)
    crossing_tolerance = 0 if intercept else 1e-7 * np.std(y)
    assert (
        worst_crossing(features if points is None else np.vstack([features, points]), found) <= 1.1 * crossing_tolerance
    )
    assert value <= best * (1 + 1e-6)
    assert value - best <= found.gap.sum() + 1e-8 * best  # the gap is a bound
    assert best - value <= 1e-6 * best  # and no feasible levels are better than the best
    apart = SOLVERS["newton"](problem, tol=1e-7)
    if alpha < 1e-2:
        assert worst_crossing(features, apart) > 1e-2 * np.std(y)  # nothing would be shown if levels did not cross


@pytest.mark.parametrize("steps", [1, 4, 12])
def test_the_gap_bounds_the_distance_wherever_it_stops(steps):
    features, y, _, _ = crossing_rows(7)
    best = clarabel_optimum(features, y, 1e-4, None, True, None)
    found = driver.solve(problem_of(features, y, 1e-4), tol=1e-7, max_iter=1000)
    table = driver.build_problem(problem_of(features, y, 1e-4), np.ones(6), np.argsort(LEVELS), np.arange(len(y)), None)
    rng = np.random.default_rng(steps)
    for _ in range(20):  # any coefficients and any duals
        coef = found.coef[:, np.argsort(LEVELS)] + rng.normal(size=found.coef.shape) * rng.random() / steps
        duals = Duals(
            np.clip(rng.normal(size=(len(y), 6)), table.levels - 1, table.levels), rng.exponential(0.1, (len(y), 5))
        )
        point = certify(table, coef, found.intercept[np.argsort(LEVELS)], duals, np.zeros(6, dtype=int))
        assert point.gap.sum() >= point.objective.sum() - best - 1e-9
        assert np.max(crossing(table.curves(point.coef, point.intercept))) <= 0


def test_levels_that_do_not_cross_are_left_as_they_are():
    features, y, _, _ = crossing_rows(5, n=400)
    problem = problem_of(features, y, 0.1)
    apart, together = SOLVERS["newton"](problem, tol=1e-7), driver.solve(problem, tol=1e-7)
    assert worst_crossing(features, apart) <= 0
    np.testing.assert_array_equal(together.coef, apart.coef)
    np.testing.assert_array_equal(together.relative_gap, apart.relative_gap)


def test_only_what_crosses_is_moved():
    """Two levels far from the others: what couples the others does not touch them."""
    features, y, _, _ = crossing_rows(6)
    levels = np.array([0.02, 0.48, 0.5, 0.52, 0.98])
    problem = problem_of(features, y, 1e-3, levels=levels)
    apart, together = SOLVERS["newton"](problem, tol=1e-7), driver.solve(problem, tol=1e-7)
    worst = crossing(features @ apart.coef + apart.intercept).max(axis=0)
    assert np.all(worst[[0, 3]] < -0.1)
    assert np.all(worst[[1, 2]] > 0.01)
    np.testing.assert_array_equal(together.coef[:, [0, 4]], apart.coef[:, [0, 4]])
    assert worst_crossing(features, together, levels) <= 0


def sizes_of_inner_problems(monkeypatch, problem, **settings):
    """The joint solution, and for every inner problem its number of rows and its width."""
    seen, inner = [], driver._inner

    def watched(near, place, anchors, width, *rest):
        seen.append((len(near.y), width))
        return inner(near, place, anchors, width, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(driver, "_inner", watched)
        patch.setattr(driver, "OPTIONS", replace(driver.OPTIONS, **settings))
        return driver.solve(problem, tol=1e-7), np.array(seen).T


def test_steps_see_the_active_rows_and_the_answer_is_that_of_all(monkeypatch):
    features, y, _, _ = crossing_rows(2, n=3000, n_features=40)
    problem = problem_of(features, y, 1e-6)
    found, (sizes, _) = sizes_of_inner_problems(monkeypatch, problem)
    every, (all_sizes, _) = sizes_of_inner_problems(monkeypatch, problem, max_active_share=0.0)
    assert found.converged
    assert every.converged
    assert found.objective.sum() == pytest.approx(every.objective.sum(), rel=2e-7)
    assert all_sizes.min() == 3000
    assert sizes.min() < 600
    assert np.median(sizes) < 1500
    assert worst_crossing(features, found) <= 0


def test_a_row_that_is_wrongly_thought_clear_is_found(monkeypatch):
    """Doubting nothing but the rows on a sloping piece is too little: others move over a kink, and are seen to."""
    features, y, _, _ = crossing_rows(2, n=3000, n_features=40)
    problem = problem_of(features, y, 1e-6)
    careful, _ = sizes_of_inner_problems(monkeypatch, problem)
    rash, (sizes, widths) = sizes_of_inner_problems(monkeypatch, problem, active_moves=0.0)
    again = np.flatnonzero(widths[1:] == widths[:-1]) + 1
    assert len(again)
    assert np.all(sizes[again] == len(y))
    assert rash.converged
    assert rash.objective.sum() == pytest.approx(careful.objective.sum(), rel=2e-7)
    assert worst_crossing(features, rash) <= 0


@pytest.mark.parametrize("intercept", [True, False])
def test_the_newton_system_of_coupled_levels(intercept):
    """Against the whole matrix: levels that meet the next on few rows, on more than there are features, on none."""
    rng = np.random.default_rng(0)
    n, M, q, spare = 300, 12, 4, 0.7
    features, alphas = rng.normal(size=(n, M)), rng.uniform(1e-3, 1e-2, q)
    losses = rng.exponential(size=(n, q)) * (rng.random((n, q)) < 0.2)
    ties = rng.exponential(40.0, (n, q - 1)) * (rng.random((n, q - 1)) < [0.02, 0.5, 0.0])
    rows = np.hstack([features, np.full((n, 1), float(intercept))])
    whole = np.zeros((q, M + 1, q, M + 1))
    for k in range(q):
        whole[k, :, k] += rows.T @ (losses[:, [k]] * rows) + np.diag(np.append(np.full(M, 2 * alphas[k]), 0))
        whole[k, -1, k, -1] += 0 if intercept else spare
    for k in range(q - 1):
        pair = np.kron([[1, -1], [-1, 1]], rows.T @ (ties[:, [k]] * rows)).reshape(2, M + 1, 2, M + 1)
        whole[k : k + 2, :, k : k + 2] += pair
    right = rng.normal(size=(M + 1, q))
    expected = np.linalg.solve(whole.reshape(q * (M + 1), -1), right.T.ravel()).reshape(q, M + 1).T
    found = BlockTridiagonal(features, alphas, intercept, losses, ties, spare).solve(right)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_more_features_than_rows():
    features, y, _, _ = crossing_rows(11, n=60, n_features=200)
    found = driver.solve(problem_of(features, y, 1e-4), tol=1e-6)
    assert found.converged
    best = clarabel_optimum(features, y, 1e-4, None, True, None)
    assert found.objective.sum() == pytest.approx(best, rel=1e-6)
    assert worst_crossing(features, found) <= 0


def test_two_rows_and_a_constant_target():
    rng = np.random.default_rng(0)
    for y in (np.ones(30), np.arange(30) % 2.0):
        features = rng.normal(size=(30, 4))
        found = driver.solve(problem_of(features, y, 1e-3), tol=1e-6)
        assert found.converged
        assert worst_crossing(features, found) <= 1e-12


@pytest.mark.parametrize("alpha", [1e-9, 1e-12])
def test_where_digits_run_out_the_gap_says_so(alpha):
    """Noise-free data and next to no ridge: whatever is reached is feasible, and its gap is a bound."""
    features, _, _, _ = crossing_rows(3, n=200, n_features=60)
    truth = np.random.default_rng(0).normal(size=60)
    y = features @ truth
    found = driver.solve(problem_of(features, y, alpha), tol=1e-6, max_iter=200)
    assert worst_crossing(features, found) <= 0
    assert np.isfinite(found.coef).all()
    feasible = len(LEVELS) * alpha * truth @ truth  # all levels equal to the truth
    assert found.gap.sum() >= found.objective.sum() - feasible


def test_other_losses_are_refused():
    rows = InMemoryDesign(ArrayRows(np.ones((4, 1)), np.array([1.0, -1, 1, -1]), None), features=np.ones((4, 1)))
    with pytest.raises(ValueError, match="Joint levels need the Pinball loss; got Hinge"):
        driver.solve(Problem(rows, Hinge(), 1.0))
