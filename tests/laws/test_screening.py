"""Screened Newton: the answer of plain Newton for a fraction of its work."""

import numpy as np
import pytest

from quernel import paths
from quernel.data import ArrayRows, InMemoryDesign
from quernel.datasets import make_homoscedastic
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.solvers import SOLVERS, newton
from quernel.solvers import screening as driver

N, M = 60_000, 40


@pytest.fixture(scope="module")
def design():
    X, y, _ = make_homoscedastic(N, random_state=0)
    return RandomFeatures(Gaussian(1.0), M, random_state=0).fit(X).transform(X), y


def problem(design, levels, alpha, *, weight=None, intercept=False, shuffled=True, order=None, **more):
    Phi, y = design
    if order is not None:
        Phi, y = Phi[order], y[order]
    rows = InMemoryDesign(ArrayRows(Phi, y, weight), features=Phi, shuffled=shuffled, **more)
    return Problem(rows, Pinball(levels), alpha, fit_intercept=intercept)


def test_it_is_the_default_solver():
    assert SOLVERS["newton"].solve is driver.solve


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("alpha", [1e-2, 1e-5, 1e-9])
def test_same_optimum_as_the_plain_loop(design, alpha, weighted, intercept):
    weight = np.random.default_rng(1).integers(0, 4, N).astype(float) if weighted else None
    levels = [0.02, 0.5, 0.9]
    ours = driver.solve(problem(design, levels, alpha, weight=weight, intercept=intercept))
    plain = newton.solve(problem(design, levels, alpha, weight=weight, intercept=intercept), tol=1e-9, polish=False)
    assert ours.converged
    assert plain.converged
    assert ours.active_rows, "nothing was screened"
    assert np.all(ours.objective <= plain.objective * (1 + 1.01e-6))
    # The certificate bounds the true distance from above, up to the rounding of F.
    assert np.all(ours.gap >= ours.objective - plain.objective - 1e-14)


@pytest.mark.parametrize("level", [0.1, 0.5])
def test_it_does_less_work(design, level):
    ours = driver.solve(problem(design, [level], 1e-4))
    plain = newton.solve(problem(design, [level], 1e-4), polish=False)
    assert max(ours.active_rows) < 0.25 * N
    assert ours.sweeps < 0.5 * plain.sweeps
    assert ours.hessian_rows < 0.5 * plain.hessian_rows
    everything = SOLVERS["newton"](problem((design[0][:500], design[1][:500]), [level], 1e-4))
    assert everything.active_rows == (), "a small problem is not screened"


def test_rows_sorted_by_target_cost_no_more(design):
    """The first rows of a sorted table are no random sample: it must be drawn, unless they are known to be shuffled."""
    order = np.argsort(design[1])
    shuffled = driver.solve(problem(design, [0.3], 1e-4))
    ordered = driver.solve(problem(design, [0.3], 1e-4, shuffled=False, order=order))
    assert ordered.converged
    assert ordered.sweeps < 1.5 * shuffled.sweeps
    np.testing.assert_allclose(ordered.objective, shuffled.objective, rtol=2e-6)
    deceived = driver.solve(problem(design, [0.3], 1e-4, shuffled=True, order=order))
    assert deceived.converged, "a bad sample costs work, never the answer"
    assert deceived.sweeps > 1.5 * ordered.sweeps, "negative control"


def test_features_recomputed_by_block_give_the_same_answer(design):
    X, y, _ = make_homoscedastic(N, random_state=0)
    features = RandomFeatures(Gaussian(1.0), M, random_state=0).fit(X)
    rows = InMemoryDesign(ArrayRows(X, y), features, shuffled=True, max_memory=0)
    assert not rows.cached
    recomputed = driver.solve(Problem(rows, Pinball([0.3]), 1e-4, fit_intercept=False), tol=5e-10)
    stored = driver.solve(problem(design, [0.3], 1e-4), tol=5e-10)
    np.testing.assert_allclose(recomputed.objective, stored.objective, rtol=1e-9)


def test_threads_do_not_change_the_answer(design):
    one = driver.solve(problem(design, [0.3, 0.8], 1e-4))
    two = driver.solve(problem(design, [0.3, 0.8], 1e-4, threads=2))
    np.testing.assert_allclose(two.coef, one.coef, rtol=0, atol=1e-9 * np.abs(one.coef).max())


def test_the_dual_belongs_to_the_rows(design):
    """In the order of the rows, in the box, and reproducing the coefficients:  Phi'v/n = 2 alpha u."""
    Phi, y = design
    result = driver.solve(problem(design, [0.3], 1e-3), tol=1e-9)
    dual, coef = result.dual[:, 0], result.coef[:, 0]
    assert np.all((dual >= 0.3 - 1) & (dual <= 0.3))
    np.testing.assert_allclose(Phi.T @ dual / N, 2e-3 * coef, rtol=0, atol=1e-6)
    residual = y - Phi @ coef
    clear = np.abs(residual) > 0.01
    np.testing.assert_allclose(dual[clear], np.where(residual > 0, 0.3, -0.7)[clear], atol=1e-12)


def test_a_ridge_weight_that_leaves_every_row_on_one_side_is_solved():
    """Without an intercept, and with large ridge weights among small ones, no row may be near the fit at all."""
    rng = np.random.default_rng(0)
    X = rng.random((40_000, 2))
    features = np.cos(3 * X @ rng.standard_normal((2, 60))) / np.sqrt(60)
    target = 20 + np.sin(6 * X[:, 0]) + 0.01 * rng.standard_normal(40_000)
    alphas = 10.0 ** (0.5 * np.arange(-20, 5))
    grid = paths.solve(problem((features, target), np.array([0.5]), 1.0), alphas, tol=1e-5)
    assert grid.relative_gap.max() <= 1e-5
    # At the largest, all duals are 1/2: F = mean y / 2 - |mean phi / 2|^2 / (4 alpha).
    sums = features.mean(axis=0) / 2
    assert grid.objective[-1, 0] == pytest.approx(target.mean() / 2 - sums @ sums / (4 * alphas[-1]), rel=1e-5)
