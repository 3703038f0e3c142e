"""Curved losses on many rows: the sums of a full gradient, its certificate, and Newton with a subsampled Hessian."""

from dataclasses import replace

import numpy as np
import pytest

from quernel.data import ArrayRows, InMemoryDesign
from quernel.datasets import make_homoscedastic
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import Expectile, Huber, LogCosh, Logistic, Squared, SquaredHinge
from quernel.objective import NotFiniteError, Problem
from quernel.objective.duality_gap import certify, certify_gradient, full_gradient, null_model
from quernel.solvers import newton
from quernel.solvers import screening as driver
from quernel.solvers.screening import subsampled_newton

LOSSES = [Squared(), Huber(1.0), Expectile(np.array([0.2, 0.7])), LogCosh(), SquaredHinge(), Logistic()]
N, M = 40_000, 60


@pytest.fixture(scope="module")
def data():
    X, y, _ = make_homoscedastic(N, random_state=0)
    weight = np.random.default_rng(1).integers(1, 4, N).astype(float)
    return X, y, weight, RandomFeatures(Gaussian(0.5), M, random_state=0).fit(X)


def problem(data, loss, *, intercept=True, n=N, stored=True):
    X, y, weight, features = data
    target = np.where(y > np.median(y), 1.0, -1.0) if loss.margin else y
    rows = InMemoryDesign(ArrayRows(X[:n], target[:n], weight[:n]), features, max_memory=None if stored else 0)
    return Problem(rows, loss, 1e-4, fit_intercept=intercept)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_full_gradient_is_its_sums(data, loss, stored):
    rng, q = np.random.default_rng(2), loss.n_columns
    small = problem(data, loss, n=3000, stored=stored)
    coef, intercept, state = rng.standard_normal((M, q)), rng.standard_normal(q), small.rows.new_state()
    found = full_gradient(small, state, coef, intercept)
    X, _, weight, features = data
    Phi, share, target = features.transform(X[:3000]), weight[:3000] / weight[:3000].sum(), small.rows.target[:, None]
    prediction = Phi @ coef + intercept
    sign = target if loss.margin else np.ones_like(target)
    residual = 1 - target * prediction if loss.margin else target - prediction
    turned = share[:, None] * sign * loss.slope(residual)
    np.testing.assert_allclose(state.collect("residual"), residual, atol=1e-12)
    np.testing.assert_allclose(found.loss, share @ loss.value(residual), rtol=1e-12)
    np.testing.assert_allclose(found.phi_t_positive, Phi.T @ np.where(turned > 0, turned, 0), atol=1e-13)
    np.testing.assert_allclose(found.phi_t_negative, Phi.T @ np.where(turned < 0, turned, 0), atol=1e-13)
    np.testing.assert_allclose(found.mean_dual, turned.sum(axis=0), atol=1e-13)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_its_certificate_is_that_of_the_slopes(data, loss, intercept):
    rng, q = np.random.default_rng(3), loss.n_columns
    small, null = problem(data, loss, intercept=intercept, n=3000), null_model(problem(data, loss, n=3000))
    coef, constant, state = (
        0.1 * rng.standard_normal((M, q)),
        rng.standard_normal(q) * intercept,
        small.rows.new_state(),
    )
    ours = certify_gradient(small, state, full_gradient(small, state, coef, constant), coef, constant, null)
    again = small.rows.new_state(anchor=state.collect("anchor"))
    small.set_coefficients(again, coef, constant)
    plain = certify(small, again, coef, constant, null)
    np.testing.assert_allclose(ours.gap, plain.gap, rtol=1e-9)
    np.testing.assert_allclose(ours.objective, plain.objective, rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_subsampled_hessian_leads_to_the_optimum_in_few_passes(data, loss):
    ours = driver.solve(problem(data, loss))
    plain = newton.solve(problem(data, loss), tol=1e-10, polish=False)
    assert ours.converged
    assert np.all(ours.gap >= ours.objective - plain.objective - 1e-13)
    np.testing.assert_allclose(ours.objective, plain.objective, rtol=1.01e-6)
    assert ours.sweeps < 8
    assert ours.hessian_rows < N * loss.n_columns


def test_a_sample_that_misleads_costs_work_only(data, monkeypatch):
    honest = driver.solve(problem(data, Logistic()))
    right = subsampled_newton._systems
    monkeypatch.setattr(
        subsampled_newton, "_systems", lambda sample, at: right(Problem(sample.rows, sample.loss, 0.1), at)
    )
    misled = driver.solve(problem(data, Logistic()))
    assert misled.converged
    assert misled.sweeps > honest.sweeps
    assert misled.objective[0] == pytest.approx(honest.objective[0], rel=2e-6)


def test_few_rows_are_no_sample(data):
    assert subsampled_newton.sample_size(problem(data, Squared(), n=100 * M)) is None
    assert subsampled_newton.sample_size(problem(data, Squared())) == N // 8


def test_rows_that_are_not_finite_are_found(data):
    X, y, weight, features = data
    Phi = features.transform(X)
    Phi[-1, 0] = np.nan
    rows = InMemoryDesign(ArrayRows(Phi, y, weight), features=Phi)
    with pytest.raises(NotFiniteError):
        driver.solve(Problem(rows, Squared(), 1e-4))


def test_what_is_not_reached_by_the_sample_is_reached_without(data, monkeypatch):
    """With one subsampled step only, plain Newton takes over."""
    options = replace(subsampled_newton.SMOOTH, max_gap_ratio=1e-300, rows_per_feature=8)
    monkeypatch.setattr(subsampled_newton, "SMOOTH", options)
    ours = driver.solve(problem(data, Huber(1.0)))
    assert ours.converged
