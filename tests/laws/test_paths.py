"""A grid of fits is the fits one by one, for less work."""

import numpy as np
import pytest

from quernel import paths
from quernel.data import ArrayRows, InMemoryDesign
from quernel.datasets import make_homoscedastic
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import Expectile, Huber, LogCosh, Pinball, Squared
from quernel.objective import Problem
from quernel.solvers import newton
from quernel.solvers import screening as driver

ALPHAS = [1e-7, 1e-1, 1e-3, 1e-5]
LEVELS = [0.1, 0.5, 0.8]


def problem(n, M, *, weighted=False, intercept=False):
    X, y, _ = make_homoscedastic(n, random_state=0)
    Phi = RandomFeatures(Gaussian(1.0), M, random_state=0).fit(X).transform(X)
    weight = np.random.default_rng(1).integers(0, 4, n).astype(float) if weighted else None
    rows = InMemoryDesign(ArrayRows(Phi, y, weight), features=Phi)
    return Problem(rows, Pinball([0.5]), 1.0, fit_intercept=intercept)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "M"), [(1500, 40), (120, 200), (60_000, 40)])
def test_every_cell_is_certified_and_the_optimum(n, M, weighted, intercept):
    whole = problem(n, M, weighted=weighted, intercept=intercept)
    grid = paths.solve(whole, ALPHAS, LEVELS)
    assert grid.coef.shape == (4, M, 3)
    assert np.all(grid.relative_gap <= 1e-6)
    np.testing.assert_array_equal(grid.alphas, ALPHAS)
    for k, alpha in enumerate(ALPHAS):
        cell = Problem(whole.rows, Pinball(LEVELS), alpha, fit_intercept=intercept)
        alone = newton.solve(cell, tol=1e-9, polish=False)
        assert np.all(grid.objective[k] <= alone.objective * (1 + 1.01e-6))
        assert np.all(grid.gap[k] >= grid.objective[k] - alone.objective - 1e-13), "the gap bounds the true distance"
        residual = whole.rows.target[:, None] - grid.predict(whole.rows.take_rows(np.arange(n)))[k]
        F = whole.rows.share @ Pinball(LEVELS).value(residual) + alpha * np.sum(grid.coef[k] ** 2, axis=0)
        np.testing.assert_allclose(F, grid.objective[k], rtol=1e-12, err_msg="objective of these coefficients")


@pytest.mark.parametrize(("n", "M", "share"), [(5000, 60, 0.3), (60_000, 40, 0.8)])
def test_the_grid_takes_fewer_sweeps_than_its_cells(n, M, share):
    whole = problem(n, M)
    alphas = 10.0 ** (np.arange(-8, 1) if n == 5000 else np.arange(-4, -1.9, 0.5))
    grid = paths.solve(whole, alphas, LEVELS)
    cells = [
        driver.solve(Problem(whole.rows, Pinball([level]), alpha, fit_intercept=False)).sweeps
        for alpha in alphas
        for level in LEVELS
    ]
    assert grid.sweeps < share * sum(cells)


def test_folds_are_the_rows_of_the_fold():
    whole = problem(1500, 40, weighted=True)
    folds = [np.arange(0, 1500, 2), np.arange(1, 1500, 2)]
    for fold, grid in zip(folds, paths.solve_folds(whole, ALPHAS, LEVELS, folds), strict=True):
        features, source = whole.rows.take_rows(fold), whole.rows.source
        rows = InMemoryDesign(ArrayRows(features, source.y[fold], source.weight[fold]), features=features)
        alone = paths.solve(Problem(rows, Pinball(LEVELS), 1.0, fit_intercept=False), ALPHAS)
        np.testing.assert_allclose(grid.objective, alone.objective, rtol=2e-6)


@pytest.mark.parametrize("loss", [Squared(), LogCosh(), Huber(0.5), Expectile([0.2, 0.7])])
def test_a_path_of_another_loss_is_the_fits_one_by_one(loss):
    rows = problem(400, 60).rows
    grid = paths.solve(Problem(rows, loss, 1.0), ALPHAS)
    assert np.all(grid.relative_gap <= 1e-6)
    for k, alpha in enumerate(ALPHAS):
        alone = newton.solve(Problem(rows, loss, alpha), tol=1e-9)
        np.testing.assert_allclose(grid.objective[k], alone.objective, rtol=2e-6)


def test_a_constant_target_is_fitted_by_the_constant():
    whole = problem(300, 20, intercept=True)
    rows = InMemoryDesign(ArrayRows(whole.rows.source.X, np.full(300, 2.5)), features=whole.rows.source.X)
    grid = paths.solve(Problem(rows, Pinball(LEVELS), 1.0), ALPHAS)
    np.testing.assert_allclose(grid.intercept, 2.5)
    assert np.all(grid.relative_gap == 0)


@pytest.mark.parametrize("alphas", [[], [1e-3, -1.0], [np.nan], 1e-3])
def test_bad_weights(alphas):
    with pytest.raises(ValueError, match="alphas must be a list of positive, finite numbers"):
        paths.solve(problem(100, 10), alphas, LEVELS)


@pytest.mark.parametrize("weighted", [False, True])
def test_levels_may_have_targets_of_their_own(weighted):
    whole = problem(1500, 40, weighted=weighted)
    y = whole.rows.target
    own = np.column_stack([y, 3 - y, y**2])
    source = ArrayRows(whole.rows.source.X, own, whole.rows.source.weight)
    grid = paths.solve(Problem(InMemoryDesign(source, features=source.X), Pinball([0.5]), 1.0), ALPHAS, LEVELS)
    for k, level in enumerate(LEVELS):
        single = ArrayRows(source.X, own[:, k], source.weight)
        rows = InMemoryDesign(single, features=source.X)
        alone = paths.solve(Problem(rows, Pinball([0.5]), 1.0), ALPHAS, [level])
        np.testing.assert_allclose(grid.objective[:, k], alone.objective[:, 0], rtol=2e-6)
        assert not np.allclose(grid.objective[:, k], grid.objective[:, (k + 1) % 3], rtol=1e-3)
