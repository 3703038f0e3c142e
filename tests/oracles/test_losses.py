"""Every loss against solvers that know nothing of this library: the same optimum, and a gap that is a bound."""

import warnings

import numpy as np
import pytest

from quernel import losses
from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.objective import Problem
from quernel.objective.duality_gap import certify, null_model
from quernel.solvers import SOLVERS, newton
from support.loss_optima import LENGTH, LEVEL, MARGIN, SHAPE, SPLITS, known_solver, objective, optimum

MADE = {
    "pinball": losses.Pinball(LEVEL),
    "absolute": losses.Absolute(),
    "huber": losses.Huber(LENGTH),
    "epsilon_insensitive": losses.EpsilonInsensitive(LENGTH),
    "smoothed_pinball": losses.SmoothedPinball(LENGTH, LEVEL),
    "squared": losses.Squared(),
    "expectile": losses.Expectile(LEVEL),
    "logcosh": losses.LogCosh(LENGTH),
    "generalized_pareto": losses.GeneralizedPareto(SHAPE),
    "hinge": losses.Hinge(),
    "squared_hinge": losses.SquaredHinge(),
    "smoothed_hinge": losses.SmoothedHinge(LENGTH),
    "logistic": losses.Logistic(),
}
SEEDS = range(20)
# What Clarabel leaves of its own problem, relative to the objective.
ORACLE = 1e-8
ADMM = {"tol": 1e-4, "max_iter": 20_000}


def drawn(seed, name):
    """Features, target, alpha, weights and intercept of a random problem."""
    rng = np.random.default_rng([7, seed])
    n, M = (int(size) for size in np.exp(rng.uniform(np.log([25, 4]), np.log([160, 60]))))
    X = rng.uniform(size=(n, 3))
    features = RandomFeatures(Gaussian(rng.choice([0.3, 1.0])), M, random_state=seed).fit(X).transform(X)
    y = 3 * np.sin(4 * X[:, 0]) + rng.standard_normal(n)
    if name in MARGIN:
        y = np.where(y > np.quantile(y, 0.4), 1.0, -1.0)
    weight = [None, rng.integers(1, 4, n).astype(float), rng.uniform(0.1, 2, n)][seed % 3]
    return features, y, float(10 ** rng.uniform(-6, -0.5)), weight, bool(seed % 2)


def solved(name, features, y, alpha, weight, intercept, solver=newton.solve, **how):
    rows = InMemoryDesign(ArrayRows(features, y, weight), features=features)
    return solver(Problem(rows, MADE[name], alpha, fit_intercept=intercept), **how)


def test_every_loss_is_here():
    assert {name: type(loss) for name, loss in MADE.items()} == losses.LOSSES


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("seed", SEEDS)
def test_same_optimum_as_independent_solvers(name, seed):
    features, y, alpha, weight, intercept = drawn(seed, name)
    found = solved(name, features, y, alpha, weight, intercept)
    assert found.converged
    ours = objective(name, features, y, alpha, found.coef[:, 0], float(found.intercept[0]), weight)
    assert found.objective[0] == pytest.approx(ours, rel=1e-10), "F is what it says"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an oracle that stops short: the better one counts
        theirs = min(optimum(name, features, y, alpha, weight, intercept))
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert found.gap[0] >= ours - theirs - ORACLE * theirs


@pytest.mark.parametrize("name", ["hinge", "squared_hinge", "epsilon_insensitive", "logistic"])
def test_where_problems_coincide_libsvm_liblinear_and_scikit_learn_agree(name):
    """They are among the oracles above, and it is seen here that they take part: they stop no lower, and near."""
    excess = []
    for seed in SEEDS:
        features, y, alpha, weight, intercept = drawn(seed, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            known = known_solver(name, features, y, alpha, weight, intercept)
        if known is not None:
            ours = solved(name, features, y, alpha, weight, intercept).objective[0]
            excess.append(objective(name, features, y, alpha, *known, weight) / ours - 1)
    assert min(excess) >= -1e-9
    assert np.count_nonzero(np.array(excess) <= 1e-6) >= 3
    assert max(excess) <= 1e-4  # libsvm's own tolerance is on its gradient


@pytest.mark.parametrize("name", MADE)
def test_the_gap_is_a_bound_wherever_the_solver_stops(name):
    features, y, alpha, weight, intercept = drawn(1, name)
    best = min(optimum(name, features, y, alpha, weight, intercept))
    for steps in (1, 2, 3, 5):
        early = solved(name, features, y, alpha, weight, intercept, tol=1e-14, max_iter=steps)
        reached = objective(name, features, y, alpha, early.coef[:, 0], float(early.intercept[0]), weight)
        assert early.gap[0] >= reached - best - ORACLE * best


@pytest.mark.parametrize("intercept", [False, True], ids=["without", "intercept"])
@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize("name", MADE)
def test_admm_takes_every_loss(name, weighted, intercept):
    features, y, _, weight, _ = drawn(4, name)
    weight = weight if weighted else None
    for alpha in (1e-2, 1e-4):
        found = solved(name, features, y, alpha, weight, intercept, SOLVERS["admm"], **ADMM)
        assert found.converged
        assert intercept or found.intercept[0] == 0
        reached = objective(name, features, y, alpha, found.coef[:, 0], float(found.intercept[0]), weight)
        assert found.objective[0] == pytest.approx(reached, rel=1e-10), "F is what it says"
        best = min(optimum(name, features, y, alpha, weight, intercept))
        assert reached <= best * (1 + ADMM["tol"])
        assert is_bound(found.gap[0], reached, best)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("seed", [1, 5])
def test_the_gap_of_admm_is_a_bound_after_any_number_of_rounds(name, seed):
    """Duals of early rounds are far outside of their box, and unbalanced once they are moved into it."""
    features, y, alpha, weight, _ = drawn(seed, name)
    best = min(optimum(name, features, y, alpha, weight, intercept=True))
    for rounds in (1, 3, 10, 30, 100):
        early = solved(name, features, y, alpha, weight, True, SOLVERS["admm"], tol=1e-14, max_iter=rounds)
        reached = objective(name, features, y, alpha, early.coef[:, 0], float(early.intercept[0]), weight)
        assert np.isfinite(early.gap[0])
        assert is_bound(early.gap[0], reached, best)


@pytest.mark.parametrize("name", MARGIN)
def test_a_gap_that_is_too_small_by_a_hundredth_is_caught(name):
    """Negative control of `is_bound`: with the best duals the gap of a point far away has nothing to give away."""
    features, y, _, weight, _ = drawn(4, name)
    exact = solved(name, features, y, 1e-2, weight, True)
    rows = InMemoryDesign(ArrayRows(features, y, weight), features=features)
    problem = Problem(rows, MADE[name], 1e-2)
    away, state = exact.coef + 0.1, rows.new_state(anchor=exact.dual)
    problem.set_coefficients(state, away, exact.intercept)
    known = certify(problem, state, away, exact.intercept, null_model(problem))
    reached = objective(name, features, y, 1e-2, away[:, 0], float(exact.intercept[0]), weight)
    best = min(optimum(name, features, y, 1e-2, weight, intercept=True))
    assert is_bound(known.gap[0], reached, best)
    assert not is_bound(0.99 * known.gap[0], reached, best)


@pytest.mark.parametrize("name", MARGIN)
def test_admm_gives_columns_their_own_labels_and_weights(name):
    """One against the rest, at two ridge weights: the same as each alone, though columns finish one by one."""
    features, y, _, weight, _ = drawn(13, "squared")
    codes = np.digitize(y, np.quantile(y, [0.3, 0.6]))
    targets, alphas = np.where(codes[:, None] == np.arange(3), 1.0, -1.0), np.array([1e-1, 1e-2, 1e-3])
    rows = InMemoryDesign(ArrayRows(features, targets, weight), features=features)
    problem = Problem(rows, MADE[name].take(np.zeros(3, dtype=int)), alphas)
    together = SOLVERS["admm"](problem, **ADMM)
    assert together.converged
    for k in range(3):
        alone = solved(name, features, targets[:, k], alphas[k], weight, True)
        assert alone.objective[0] * (1 - 1e-9) <= together.objective[k] <= alone.objective[0] + together.gap[k]
        other = solved(name, features, targets[:, k - 1], alphas[k], weight, True)
        assert abs(other.objective[0] - alone.objective[0]) > 10 * together.gap[k], "other labels would be noticed"


def is_bound(gap, reached, best):
    """Whether what was reached is no further from the best than the gap says."""
    return gap >= reached - best - ORACLE * best


@pytest.mark.parametrize("name", MADE)
def test_another_loss_has_another_optimum(name):
    """The oracle can fail: no two losses have the same optimum on the same rows."""
    features, y, alpha, weight, intercept = drawn(5, name)
    found = solved(name, features, y, alpha, weight, intercept).objective[0]
    for other in SPLITS:
        if other != name and (other in MARGIN) == (name in MARGIN):
            assert abs(min(optimum(other, features, y, alpha, weight, intercept)) / found - 1) > 1e-3


@pytest.mark.parametrize("name", ["squared"])
def test_least_squares_takes_one_step(name):
    features, y, alpha, weight, intercept = drawn(3, name)
    rows = InMemoryDesign(ArrayRows(features, y, weight), features=features)
    found = newton.solve(Problem(rows, MADE[name], alpha, fit_intercept=intercept), tol=1e-6, polish=False)
    assert found.iterations[0] == 1
    assert found.relative_gap[0] < 1e-10


@pytest.mark.parametrize("name", MARGIN)
def test_columns_with_labels_of_their_own_do_not_mix(name):
    """One against the rest, three classes together: the same as each alone."""
    features, y, alpha, weight, intercept = drawn(13, "squared")
    codes = np.digitize(y, np.quantile(y, [0.3, 0.6]))
    targets = np.where(codes[:, None] == np.arange(3), 1.0, -1.0)
    loss = MADE[name].take(np.zeros(3, dtype=int))
    rows = InMemoryDesign(ArrayRows(features, targets, weight), features=features)
    together = newton.solve(Problem(rows, loss, alpha, fit_intercept=intercept))
    for k in range(3):
        alone = solved(name, features, targets[:, k], alpha, weight, intercept)
        assert together.objective[k] == pytest.approx(alone.objective[0], rel=1e-9)
        np.testing.assert_allclose(together.coef[:, k], alone.coef[:, 0], atol=1e-6 * max(np.abs(alone.coef).max(), 1))
