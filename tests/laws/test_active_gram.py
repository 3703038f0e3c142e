"""Second moments of active rows: what is updated by the rows that change is what would be summed anew."""

import numpy as np
import pytest

from quernel.data import ArrayRows, InMemoryDesign
from quernel.losses import Pinball
from quernel.objective import Curvature, Problem
from quernel.solvers import linear_system, newton
from quernel.solvers.linear_system import ActiveGram, NewtonSystem


def rows_of(n=3000, M=60, weighted=False, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    Phi = np.cos(X @ rng.standard_normal((2, M)) * 3 + rng.uniform(0, 6, M)) * np.sqrt(2 / M)
    y = np.sin(3 * X[:, 0]) + (0.2 + 0.3 * np.abs(X[:, 1])) * rng.standard_normal(n)
    weight = rng.integers(1, 4, n).astype(float) if weighted else None
    return InMemoryDesign(ArrayRows(Phi, y, weight), features=Phi)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_updates_equal_sums_made_anew(weighted, threads):
    rows, rng = rows_of(9000, weighted=weighted), np.random.default_rng(1)
    gram, before = ActiveGram(rows), np.arange(0)
    for size in (8000, 7900, 4100, 4000, 20, 0, 300):
        active = np.sort(rng.permutation(rows.n_rows)[:size])
        if size in (7900, 4000):  # a few rows fewer than before
            active = np.setdiff1d(before, before[::50])
        index, share = gram.changes(active)
        assert set(index[share > 0]) == set(active) - set(before)
        assert set(index[share < 0]) == set(before) - set(active)
        gram.update(active, threads)
        Phi, share = rows.as_array("test")[active], rows.share[active]
        np.testing.assert_allclose(np.tril(gram.gram), np.tril(Phi.T @ (share[:, None] * Phi)), atol=1e-14)
        np.testing.assert_allclose(gram.cross, share @ Phi, atol=1e-14)
        assert gram.total == pytest.approx(share.sum(), abs=1e-14)
        assert len(gram.changes(active)[0]) == 0
        before = active


@pytest.mark.parametrize("alpha", [1e-3, 1e-6])
@pytest.mark.parametrize("weighted", [False, True])
def test_newton_takes_the_same_steps(monkeypatch, alpha, weighted):
    problem = Problem(rows_of(weighted=weighted), Pinball(np.array([0.1, 0.5])), alpha)
    updated = newton.solve(problem, polish=False)
    monkeypatch.setattr(newton, "_can_update", lambda *_: False)
    anew = newton.solve(problem, polish=False)
    assert updated.converged
    np.testing.assert_array_equal(updated.iterations, anew.iterations)
    np.testing.assert_allclose(updated.objective, anew.objective, rtol=1e-9)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_corrected_systems_are_those_of_the_rows(fit_intercept):
    rows, rng = rows_of(600), np.random.default_rng(2)
    gram, order = ActiveGram(rows), rng.permutation(600)

    def factorized(active):
        gram.update(active)
        moments = {"gram": gram.gram, "cross": gram.cross, "total": gram.total, "scale": 50.0}
        return NewtonSystem(Curvature(np.zeros(61), **moments), 1e-4, fit_intercept)

    system, active = factorized(order[:300]), order[20:310]
    changed, share = gram.changes(active)
    assert len(changed) == 30
    for _ in range(2):  # a second correction replaces the first
        system = system.corrected(gram.take(changed), 50 * share, np.zeros(61))
    gradient = rng.standard_normal(60)
    x, z = system.direction(gradient, 0.3)
    expected, shift = factorized(active).direction(gradient, 0.3)
    np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    assert z == pytest.approx(shift, rel=1e-9)


def test_hessians_are_summed_from_few_rows(monkeypatch):
    summed = []
    add = ActiveGram._add_to
    monkeypatch.setattr(ActiveGram, "_add_to", lambda self, *a: summed.append(len(a[2])) or add(self, *a))
    result = newton.solve(Problem(rows_of(M=300), Pinball(np.array([0.5])), 1e-6), polish=False)
    assert result.converged
    assert 0 < sum(summed) < 0.5 * result.hessian_rows


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_systems_in_single_precision_are_nearly_those_in_double(monkeypatch, fit_intercept):
    monkeypatch.setattr(linear_system, "SINGLE_SIZE", 0)
    monkeypatch.setattr(linear_system, "SINGLE_FEATURES", 1)
    rows, rng = rows_of(600), np.random.default_rng(3)
    active, gradient = np.sort(rng.permutation(600)[:300]), 1e-60 * rng.standard_normal(60)
    changed, answers = np.r_[0:20], []
    for ridge in (1e-7, np.inf):
        monkeypatch.setattr(linear_system, "SINGLE_RIDGE", ridge)
        gram = ActiveGram(rows)
        system = gram.system(active, 0.02, 1e-3, fit_intercept, np.zeros(61))
        corrected = system.corrected(gram.take(changed), 50 * rows.share[changed], np.zeros(61))
        answers += [(gram.gram.dtype, *(np.append(*one.direction(gradient, 3e-61)) for one in (system, corrected)))]
    (single, *found), (double, *expected) = answers
    assert (single, double) == (np.float32, np.float64)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-3 * np.abs(y).max())


def test_where_single_precision_makes_a_matrix_indefinite_double_is_used(monkeypatch):
    monkeypatch.setattr(linear_system, "SINGLE_SIZE", 0)
    monkeypatch.setattr(linear_system, "SINGLE_FEATURES", 1)
    monkeypatch.setattr(linear_system, "SINGLE_RIDGE", 0.0)
    gram = ActiveGram(rows_of(600))
    for count in (40, 50):  # fewer rows than features, and a ridge that single precision cannot see
        system = gram.system(np.arange(count), 0.02, 1e-10, True, np.zeros(61))
        assert gram.gram.dtype == float
        assert system.factored_at == 50


def test_single_precision_leads_to_the_same_optimum(monkeypatch):
    problem = Problem(rows_of(2000, M=80), Pinball(np.array([0.1, 0.5])), 1e-4)
    double = newton.solve(problem, polish=False)
    monkeypatch.setattr(linear_system, "SINGLE_SIZE", 0)
    monkeypatch.setattr(linear_system, "SINGLE_FEATURES", 1)
    single = newton.solve(problem, polish=False)
    assert single.converged
    assert np.all(single.iterations <= double.iterations + 4)
    assert np.any(single.coef != double.coef)
    np.testing.assert_allclose(single.objective, double.objective, rtol=2e-6)
