"""The record of best iterates: no returned fit is worse than the null model, and a bound once proved stays proved."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from quernel import KernelClassifier
from quernel.data import ArrayRows, InMemoryDesign
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.objective.duality_gap import Certificate, null_model
from quernel.solvers import NONCROSSING, SOLVERS
from quernel.solvers.result import BestIterate
from support.models import plain_regressor

LEVELS = np.array([0.1, 0.5, 0.9])


def hard_problem(intercept=True, n=300):
    """Columns of very different sizes, far from zero: nothing that a solver likes."""
    rng = np.random.default_rng(0)
    time = 1.7e12 + rng.uniform(0, 3e10, n)
    features = np.column_stack([time, rng.standard_normal(n), 1e-9 * rng.standard_normal(n)])
    y = (time - 1.7e12) / 1e10 + 0.3 * rng.standard_normal(n)
    rows = InMemoryDesign(ArrayRows(features, y), features=features)
    return Problem(rows, Pinball(LEVELS), 5e-5, fit_intercept=intercept)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("max_iter", [1, 3, 40])
@pytest.mark.parametrize("name", [*SOLVERS, "joint"])
def test_no_solver_returns_a_fit_worse_than_the_null_model(name, max_iter, intercept):
    problem = hard_problem(intercept)
    solver = NONCROSSING if name == "joint" else SOLVERS[name]
    result, null = solver(problem, tol=1e-6, max_iter=max_iter), null_model(problem)
    worse = result.objective.sum() > null.objective.sum() if name == "joint" else result.objective > null.objective
    assert not np.any(worse)
    assert np.all(result.gap <= 1.01 * result.objective), "losses are not negative: F is a bound, up to rounding"


def test_no_classifier_is_worse_than_the_class_frequencies():
    rng = np.random.default_rng(1)
    X = 1e9 + np.cumsum(rng.standard_normal((120, 2)), axis=0)
    y = rng.integers(3, size=120)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for kwargs in ({"multiclass": "multinomial", "loss": "logistic"}, {"loss": "hinge"}, {"loss": "squared_hinge"}):
            model = KernelClassifier(kernel="linear", max_iter=2, **kwargs).fit(X, y)
            assert np.all(model.objective_ <= null_of(model, y) * (1 + 1e-12)), kwargs


def null_of(model, y):
    """Objectives of the best constants, by hand."""
    share = np.bincount(y) / len(y)
    if len(model.objective_) == 1:
        return -share @ np.log(share)
    if type(model.loss_).__name__ == "Hinge":  # the majority: margins of 1 and -1
        return 2 * np.minimum(share, 1 - share)
    return 4 * share * (1 - share)  # squared hinge: f = 2 p - 1


def test_a_failed_fit_is_warned_of_and_no_worse_than_a_constant():
    """A few steps are not enough: the fit before them, a constant, is what remains."""
    problem = hard_problem()
    X, y = problem.rows.source.X, problem.rows.source.y
    with pytest.warns(ConvergenceWarning):
        model = plain_regressor(LEVELS, kernel="linear", alpha=5e-5, max_iter=1, tol=1e-12).fit(X, y)
    assert np.all(model.objective_ <= null_model(problem).objective)


def test_the_lowest_objective_and_the_highest_bound_may_come_from_two_iterates():
    problem = hard_problem()
    null, one = null_model(problem), np.array([0])
    best = BestIterate(problem, null, 1e-6)
    F0 = null.objective[0]

    def offer(objective, gap, mark):
        coef, copied = np.full((3, 1), mark), []
        certificate = Certificate(np.array([objective]), np.array([gap]), np.zeros(1))
        best.record(one, (coef, np.array([mark])), certificate, lambda columns, *_: copied.append(len(columns)) or None)
        return best.coef[0, 0], best.objective[0], best.gap[0], copied[0]

    # A worse fit with good duals: the constant stays, at their bound 2 F0 - 1.5 F0.
    assert offer(2 * F0, 1.5 * F0, 1.0) == (0, F0, pytest.approx(0.5 * F0), 1)
    # A better fit with bad duals: its distance from the same bound.
    assert offer(0.75 * F0, 5 * F0, 2.0) == (2, 0.75 * F0, pytest.approx(0.25 * F0), 0)
    # Without any bound, or not finite at all.
    assert offer(0.7 * F0, np.inf, 3.0) == (3, 0.7 * F0, pytest.approx(0.2 * F0), 0)
    assert offer(np.nan, np.nan, 4.0) == (3, 0.7 * F0, pytest.approx(0.2 * F0), 0)
    # Neither: nothing changes.
    assert offer(0.8 * F0, 0.35 * F0, 5.0) == (3, 0.7 * F0, pytest.approx(0.2 * F0), 0)
