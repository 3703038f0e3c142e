"""The start at ridge regression on a sample: the same optimum, and fewer rows summed into Hessians on the way."""

from dataclasses import replace

import numpy as np
import pytest

from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import Nystroem, RandomFeatures
from quernel.kernels import Laplacian
from quernel.losses import Absolute, Pinball, Squared
from quernel.objective import Problem
from quernel.solvers import newton, screening
from quernel.solvers.linear_system import ActiveGram
from quernel.solvers.newton import ridge_start


def problem_of(loss, *, n=6000, M=400, alpha=1e-5, weighted=False, fit_intercept=True):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    y = np.abs(X[:, 0]) + np.sin(3 * X[:, 1]) + (0.1 + 0.3 * np.abs(X[:, 2])) * rng.standard_normal(n)
    Phi = Nystroem(Laplacian(3.0), M, landmarks="distinct").fit(X).transform(X)
    weight = rng.integers(1, 4, n).astype(float) if weighted else None
    rows = InMemoryDesign(ArrayRows(Phi, y, weight), features=Phi)
    return Problem(rows, loss, alpha, fit_intercept=fit_intercept).in_memory("test")


@pytest.mark.parametrize("settings", [{}, {"weighted": True}, {"fit_intercept": False}])
def test_it_leads_to_the_same_optimum_with_fewer_rows_summed(monkeypatch, settings):
    problem, summed = problem_of(Pinball(np.array([0.1, 0.5])), **settings), []
    add = ActiveGram._add_to
    monkeypatch.setattr(ActiveGram, "_add_to", lambda self, *a: summed.append(len(a[2])) or add(self, *a))
    cold, from_constant = newton.solve(problem, polish=False), sum(summed)
    summed.clear()
    warm = newton.solve(problem, polish=False, start=ridge_start(problem))
    assert warm.converged
    np.testing.assert_allclose(warm.objective, cold.objective, rtol=2e-6)
    assert sum(summed) < 0.8 * from_constant


def test_its_levels_are_quantiles_of_the_residuals():
    levels = np.array([0.1, 0.5, 0.9])
    problem = problem_of(Pinball(levels))
    start, rows = ridge_start(problem), problem.rows
    below = rows.target[:, None] <= rows.as_array("test") @ start.coef + start.intercept
    np.testing.assert_allclose(below.mean(axis=0), levels, atol=2 / rows.n_rows)
    low, high = problem.loss.domain
    assert np.all((start.anchor >= low) & (start.anchor <= high))


@pytest.mark.parametrize(
    ("loss", "settings"), [(Pinball(np.array([0.5])), {"n": 700}), (Absolute(), {"n": 500, "M": 300}), (Squared(), {})]
)
def test_elsewhere_it_is_the_best_constant(loss, settings):
    problem = problem_of(loss, **settings)
    assert np.all(ridge_start(problem).coef == 0)


@pytest.mark.parametrize(("n", "stored", "recomputed"), [(159, True, True), (161, True, False), (321, False, False)])
def test_few_rows_per_feature_are_solved_without_samples(n, stored, recomputed, monkeypatch):
    """Fewer than 32 per feature where features are stored; 16 where all rows would be gathered for that."""
    monkeypatch.setattr(screening, "OPTIONS", replace(screening.OPTIONS, small=0))
    rng = np.random.default_rng(0)
    rows = ArrayRows(rng.standard_normal((n, 2)), rng.standard_normal(n))
    features = RandomFeatures(n_components=10, random_state=0).fit(rows.X)
    for expected, in_memory in ((stored, None), (recomputed, 0)):
        design = InMemoryDesign(rows, features, max_memory=in_memory)
        assert design.random_access == (in_memory is None)
        assert screening.is_small(Problem(design, Pinball(np.array([0.5])), 1e-3)) == expected
