"""A solver is one function and one entry in a registry: here is one, added without touching the library."""

import re

import numpy as np
import pytest
from pyarrow import csv
from sklearn.exceptions import ConvergenceWarning

import quernel
from quernel import KernelClassifier, KernelRegressor, solvers
from quernel.data import MemmapRows
from quernel.objective.duality_gap import certify, null_model
from quernel.solvers.result import BestIterate
from support.command_line import run
from support.models import plain_regressor
from support.tables import sales

LEVELS = [0.1, 0.5, 0.9]
SETTINGS = {"alpha": 1e-2, "n_components": 20, "random_state": 0}
CHECK_EVERY = 10


def descend(problem, *, tol, max_iter, initial=None, callback=None):
    """Accelerated gradient descent on the smoothed loss (Nesterov 2005)."""
    null, q = null_model(problem), problem.n_columns
    best, width = BestIterate(problem, null, tol), 0.02 * null.objective
    state = problem.rows.new_state(anchor=np.zeros((problem.rows.n_rows, q)))
    # One over the largest curvature, or less.
    step = 1 / (2 * problem.alpha + (problem.rows.kernel_scale() + 1) / width)
    point = np.vstack([np.zeros((problem.rows.n_features, q)), null.constant])
    if initial is not None:
        point = np.vstack([initial.coef, initial.intercept])
    before = point
    for k in range(1, max_iter + 1):
        ahead = point + (k - 1) / (k + 2) * (point - before)
        problem.set_coefficients(state, ahead[:-1], ahead[-1])
        sums = problem.smoothed_gradient(state, width)
        gradient = np.vstack([2 * problem.alpha * ahead[:-1] - sums.phi_t_dual, -sums.mean_dual])
        before, point = point, ahead - step * gradient
        if k % CHECK_EVERY == 0 or k == max_iter:
            found = problem.rows.new_state(anchor=np.zeros((problem.rows.n_rows, q)))
            problem.set_coefficients(found, point[:-1], point[-1])
            problem.update_multipliers(found, width, np.full(q, True))
            best.update(np.arange(q), point[:-1], point[-1], found, certify(problem, found, *split(point), null), k)
            if np.all(best.relative_gap <= tol):
                break
    return best.result()


def split(point):
    return point[:-1], point[-1]


@pytest.fixture
def gradient_descent(monkeypatch):
    monkeypatch.setitem(solvers.SOLVERS, "gradient", solvers.Solver(descend, warm_starts=True))


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 2))
    return X, np.sin(3 * X[:, 0]) + 0.3 * rng.standard_normal(200)


def fit(X, y=None, solver="gradient", tol=0.05, **settings):
    return plain_regressor(LEVELS, solver=solver, tol=tol, **SETTINGS, **settings).fit(X, y)


def test_its_fits_are_within_their_gaps_of_the_minimum(gradient_descent, table):
    found, best = fit(*table), fit(*table, solver="newton", tol=1e-9)
    assert np.all(found.duality_gap_ <= 0.05)
    assert np.all(found.n_iter_ % CHECK_EVERY == 0)
    excess = found.objective_ / best.objective_ - 1
    assert np.all((excess > 1e-9) & (excess <= found.duality_gap_))
    assert np.abs(found.predict(table[0]) - best.predict(table[0])).mean() < 0.1


def test_a_gap_above_the_tolerance_is_reported(gradient_descent, table):
    with pytest.warns(ConvergenceWarning, match="gap") as caught:
        found = fit(*table, tol=1e-6, max_iter=80)
    assert np.all(found.duality_gap_ > 1e-6)
    (stated,) = re.findall(r"gap of (\S+), above tol=1e-06", str(caught[0].message))
    assert float(stated) == pytest.approx(found.duality_gap_.max(), rel=0.05)
    best = fit(*table, solver="newton", tol=1e-9)
    assert np.all(found.objective_ / best.objective_ - 1 <= found.duality_gap_)


def test_it_serves_other_losses_and_classes(gradient_descent, table):
    X, y = table
    for model, target in (
        (KernelRegressor("huber", solver="gradient", tol=0.05, **SETTINGS), y),
        (KernelClassifier("hinge", solver="gradient", tol=0.1, max_iter=5000, **SETTINGS), y > 0),
    ):
        assert np.all(model.fit(X, target).duality_gap_ <= model.tol)
        assert model.score(X, target) > 0.5


def test_a_warm_start_pays(gradient_descent, table):
    model = plain_regressor(LEVELS, solver="gradient", tol=0.05, **SETTINGS, warm_start=True).fit(*table)
    first = model.n_iter_
    assert model.fit(*table).n_iter_ < first


def test_what_a_solver_does_not_declare_is_not_asked_of_it(monkeypatch, table):
    monkeypatch.setitem(solvers.SOLVERS, "gradient", solvers.Solver(descend))
    with pytest.raises(ValueError, match="solver='gradient'"):
        fit(*table, warm_start=True)
    with pytest.raises(ValueError, match="solver='gradient' needs all rows in memory"):
        fit(MemmapRows(*table), max_memory=1000)
    with pytest.raises(ValueError, match="dtype='float32'"):
        fit(*table, dtype="float32")


def test_the_command_line_offers_it(gradient_descent, tmp_path):
    csv.write_csv(sales(150), tmp_path / "t.csv")
    arguments = ("fit", "t.csv", "--target", "price", "--model", "m", "--components", 10, "--alpha", 1e-5, "--tol", 0.3)
    ran = run(*arguments, "--solver", "gradient", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert quernel.load(tmp_path / "m").model.solver == "gradient"
    assert "gradient" in run(*arguments, "--solver", "descent", "--force", cwd=tmp_path).stderr


def test_nothing_stays_behind(table):
    with pytest.raises(ValueError, match=r"solver.*'gradient'"):
        fit(*table)
