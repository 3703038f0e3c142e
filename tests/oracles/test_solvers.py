"""Every solver against solvers it knows nothing of: it reaches the optimum, and never claims more than it knows."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.objective.duality_gap import certify, null_model
from quernel.solvers import SOLVERS, newton
from support.pinball_optima import highs_optimum, minimiser, objective, optimum, unpenalised

SETTINGS = {"newton": {"tol": 1e-6}, "admm": {"tol": 1e-4, "max_iter": 30_000}}
ANY_SOLVER = {"tol": 1e-4, "max_iter": 10_000}  # for a solver that nobody has said anything about
ALPHAS = (1e-10, 1e-8, 1e-4, 1.0, 10.0)
# More than any hard case needs; what is left of them is spent on digits that nobody asked for.
STEPS = 120
# What adding up a few thousand floating point numbers may cost, relative to the result.
ROUNDING = 1e-10


# The problems

LEVELS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


class Drawn(NamedTuple):
    """One fit: everything that F is made of."""

    features: np.ndarray
    y: np.ndarray
    level: float
    alpha: float
    weight: np.ndarray | None
    intercept: bool


def smooth_rows(rng, n, n_features, bandwidth=1.0):
    """Random features of n uniform rows, and y = exp(-x1 + x2) - x2 x3 + mean(x) + N(0, 1)."""
    X = rng.uniform(size=(n, 3))
    y = np.exp(-X[:, 0] + X[:, 1]) - X[:, 1] * X[:, 2] + X.mean(axis=1) + rng.standard_normal(n)
    return RandomFeatures(Gaussian(bandwidth), n_features, random_state=rng).fit(X).transform(X), y


def size_of(seed):
    """(rows, features), both log-uniform."""
    rng = np.random.default_rng([31, seed])
    low, high = np.log([30, 5]), np.log([3000, 400])
    n, n_features = np.exp(rng.uniform(low, high)).astype(int)
    return int(n), int(n_features)


def draw(seed):
    """The seed's problem: every second one with an intercept; in turn without, with integer, with real weights."""
    rng = np.random.default_rng([2, seed])
    n, n_features = size_of(seed)
    features, y = smooth_rows(rng, n, n_features, rng.choice([0.2, 1.0]))
    weight = [
        None,
        rng.integers(0, 4, n).astype(float),
        rng.uniform(0, 2, n) * (rng.uniform(size=n) > 0.1),
    ][seed // 2 % 3]
    return Drawn(features, y, float(rng.choice(LEVELS)), float(10 ** rng.uniform(-8, 0)), weight, bool(seed % 2))


def problem_of(features, y, levels, alpha, weight=None, intercept=False):
    """The library's own statement of the problem."""
    rows = InMemoryDesign(ArrayRows(features, y, weight), features=features)
    return Problem(rows, Pinball(levels), alpha, fit_intercept=intercept)


def hard_rows(name):
    """Features and y of a hard case."""
    rng = np.random.default_rng(5)
    match name:
        case "more features than rows":
            return smooth_rows(rng, 50, 250, 0.2)
        case "ties in y":
            features, y = smooth_rows(rng, 150, 30)
            return features, np.round(y)
        case "repeated rows":
            features, y = smooth_rows(rng, 40, 30)
            return np.repeat(features, 4, axis=0), np.repeat(y, 4)
        case "repeated features, other y":
            features, _ = smooth_rows(rng, 40, 30)
            return np.repeat(features, 4, axis=0), smooth_rows(rng, 160, 5)[1]
        case "constant columns":
            X = rng.standard_normal((150, 3))
            flat = np.column_stack([np.ones(150), np.full(150, 7.0), np.zeros(150)])
            return np.column_stack([X, flat]), X[:, 0] + rng.standard_normal(150)
        case "perfect fit":
            features, _ = smooth_rows(rng, 150, 30)
            return features, features @ rng.standard_normal(30)
        case "perfect fit, more features than rows":
            features, _ = smooth_rows(rng, 50, 250)
            return features, features @ rng.standard_normal(250)
        case "perfect linear fit":
            X = rng.standard_normal((150, 4))
            return X, X @ np.arange(1.0, 5.0) + 3
        case "constant y":
            features, _ = smooth_rows(rng, 150, 30)
            return features, np.full(150, 3.0)
        case "two values of y":
            features, y = smooth_rows(rng, 150, 30)
            return features, (y > 1.5).astype(float)
        case "y far from zero":
            features, y = smooth_rows(rng, 150, 30)
            return features, y + 1e6
    raise KeyError(name)


HARD = (
    "more features than rows",
    "ties in y",
    "repeated rows",
    "repeated features, other y",
    "constant columns",
    "perfect fit",
    "perfect fit, more features than rows",
    "perfect linear fit",
    "constant y",
    "two values of y",
    "y far from zero",
)


def bounds(value, gap, reachable):
    """Whether the certificate is true: value - gap claims to be below the minimum, hence below any reachable value."""
    return value - gap <= reachable + ROUNDING * abs(reachable)


def settings_of(solver):
    return SETTINGS.get(solver, ANY_SOLVER)


CASES = [(seed, solver) for seed in range(40) for solver in SOLVERS]


@cache
def solved_elsewhere(seed):
    return optimum(*draw(seed))


# The oracles themselves


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("level", "alpha"), [(0.1, 1e-2), (0.5, 1e-4), (0.9, 1.0)])
def test_two_oracles_agree(level, alpha, intercept, weighted):
    rng = np.random.default_rng(3)
    features, y = smooth_rows(rng, 60, 8)
    weight = rng.integers(0, 3, 60).astype(float) if weighted else None
    reached, bound = optimum(features, y, level, alpha, weight, intercept)
    other = highs_optimum(features, y, level, alpha, weight, intercept)
    assert bound * (1 - 1e-9) <= other <= reached * (1 + 1e-6)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("level", [0.05, 0.5, 0.8])
def test_oracles_agree_in_the_limit_of_no_penalty(level, intercept):
    """min loss <= min F <= F at the minimiser of the loss."""
    features, y = smooth_rows(np.random.default_rng(4), 200, 6)
    least, coef = unpenalised(features, y, level, intercept=intercept)
    for alpha in (1e-6, 1e-9):
        reached, bound = optimum(features, y, level, alpha, intercept=intercept)
        assert least <= reached * (1 + 1e-9)
        assert bound <= (least + alpha * coef @ coef) * (1 + 1e-9)


# Random problems


@pytest.mark.parametrize(("seed", "solver"), CASES)
def test_reaches_the_optimum_and_the_gap_is_true(seed, solver):
    drawn, settings = draw(seed), settings_of(solver)
    result = SOLVERS[solver](problem_of(*drawn), **settings)
    reached, bound = solved_elsewhere(seed)
    assert bound * (1 - 1e-13) <= reached <= bound * (1 + 1e-9), "the oracle does not know the optimum"
    value, gap = result.objective[0], result.gap[0]
    again = objective(*drawn[:4], result.coef[:, 0], result.intercept[0], drawn.weight)
    assert value == pytest.approx(again, rel=1e-9), "the reported objective is not F at the reported point"
    assert value >= bound * (1 - ROUNDING), "no point has so low an objective"
    assert value <= bound * (1 + settings["tol"]) + ROUNDING * bound
    assert gap >= 0
    assert bounds(value, gap, reached)
    assert drawn.intercept or result.intercept[0] == 0


def test_a_certificate_that_forgets_half_of_the_gap_is_caught():
    """Negative control of `bounds`: away from the optimum and with the best duals the gap has nothing to give away."""
    features, y = smooth_rows(np.random.default_rng(6), 120, 10)
    coef, constant, dual = minimiser(features, y, 0.3, 1e-3, intercept=True)
    reached, _ = optimum(features, y, 0.3, 1e-3, intercept=True)
    problem = problem_of(features, y, [0.3], 1e-3, intercept=True)
    certificate = certificate_of(problem, coef + 0.1, constant, dual)
    assert bounds(certificate.objective[0], certificate.gap[0], reached)
    assert not bounds(certificate.objective[0], certificate.gap[0] / 2, reached)
    assert not bounds(certificate.objective[0], certificate.gap[0] * 0.999, reached)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_perturbed_fit_has_no_small_gap(seed, solver):
    """Negative control: the certificate looks at the coefficients it is given."""
    rng = np.random.default_rng(seed)
    features, y = smooth_rows(rng, 150, 12)
    problem = problem_of(features, y, [0.25, 0.5], 1e-3, intercept=True)
    result = SOLVERS[solver](problem, **settings_of(solver))
    assert result.converged
    shaken = result.coef * (1 + 0.3 * rng.standard_normal(result.coef.shape))
    certificate = certificate_of(problem, shaken, result.intercept, result.dual)
    assert np.all(certificate.gap > 10 * settings_of(solver)["tol"] * certificate.objective)
    assert np.all(certificate.gap >= (certificate.objective - result.objective) * (1 - ROUNDING))


def certificate_of(problem, coef, intercept, dual):
    """The library's certificate of a point and duals set by hand."""
    n, q = problem.rows.n_rows, problem.n_columns
    state = problem.rows.new_state(anchor=np.reshape(dual, (n, q)))
    coef = np.reshape(coef, (-1, q))
    problem.set_coefficients(state, coef, np.atleast_1d(intercept))
    return certify(problem, state, coef, np.atleast_1d(intercept), null_model(problem))


# Several levels at once


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_levels_together_equal_levels_alone(solver, intercept):
    rng = np.random.default_rng(8)
    features, y = smooth_rows(rng, 300, 25)
    weight = rng.uniform(0, 2, 300)
    together = SOLVERS[solver](problem_of(features, y, LEVELS, 1e-4, weight, intercept), **settings_of(solver))
    assert together.converged
    for k, level in enumerate(LEVELS):
        alone = SOLVERS[solver](problem_of(features, y, [level], 1e-4, weight, intercept), **settings_of(solver))
        unsure = max(together.gap[k], alone.gap[0])
        assert abs(together.objective[k] - alone.objective[0]) <= unsure + 1e-9 * alone.objective[0]
        if solver == "newton":  # polished to rounding, so much more is true
            assert together.objective[k] == pytest.approx(alone.objective[0], rel=1e-9)
    assert len(set(together.objective)) == len(LEVELS), "negative control: levels differ"


def test_levels_together_do_not_warn():
    """While one column is certified another may have no dual away from zero yet."""
    features, y = hard_rows("more features than rows")
    result = newton.solve(problem_of(features, y, [0.01, 0.1, 0.5, 0.9], 1e-8, intercept=True), max_iter=STEPS)
    assert result.converged


# Hard cases, for the default solver


@pytest.mark.parametrize("intercept", [False, True], ids=["without", "intercept"])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("name", HARD)
def test_newton_certifies_hard_cases_at_every_scale(name, alpha, intercept):
    """F scales with y when alpha is divided by the scale; alpha |u - u'|^2 is then at most the gaps of u and u'."""
    features, y = hard_rows(name)
    for level in (0.01, 0.5):
        plain = newton.solve(problem_of(features, y, [level], alpha, intercept=intercept), max_iter=STEPS)
        certified(plain)
        for scale in (1e-9, 1e9):
            scaled_problem = problem_of(features, scale * y, [level], alpha / scale, intercept=intercept)
            scaled = newton.solve(scaled_problem, max_iter=STEPS)
            certified(scaled)
            value, gap = scaled.objective / scale, scaled.gap / scale
            unsure = np.maximum(gap, plain.gap) + ROUNDING * plain.null_objective
            assert np.all(np.abs(value - plain.objective) <= unsure)
            moved = alpha * np.sum((scaled.coef / scale - plain.coef) ** 2, axis=0)
            assert np.all(moved <= (np.sqrt(gap) + np.sqrt(plain.gap)) ** 2 + ROUNDING * plain.null_objective)


def certified(result, tol=1e-6):
    assert result.converged
    assert np.all(result.relative_gap <= tol)
    assert np.all(result.gap >= -1e-15 * result.null_objective)
    scale = np.maximum(result.objective, result.null_objective / 1000)
    assert np.all(result.gap <= tol * scale)


@pytest.mark.parametrize("intercept", [False, True], ids=["without", "intercept"])
@pytest.mark.parametrize("alpha", [1e-8, 1e-4, 1.0])
@pytest.mark.parametrize("name", HARD)
def test_newton_reaches_the_optimum_of_hard_cases(name, alpha, intercept):
    features, y = hard_rows(name)
    for level in (0.1, 0.5):
        result = newton.solve(problem_of(features, y, [level], alpha, intercept=intercept), max_iter=STEPS)
        reached, bound = optimum(features, y, level, alpha, intercept=intercept)
        # The oracle loses digits where the optimum is nearly 0, there even the order of its bounds: it is forgiven what
        # it does not know.
        unsure = abs(reached - bound) + ROUNDING * max(reached, result.null_objective[0])
        assert result.objective[0] - result.gap[0] <= reached + unsure
        assert min(bound, reached) - unsure <= result.objective[0]
        assert result.objective[0] <= reached + result.gap[0] + unsure


def test_scaling_y_without_alpha_is_another_problem():
    """Negative control of the scaling law."""
    features, y = smooth_rows(np.random.default_rng(9), 100, 10)
    plain = newton.solve(problem_of(features, y, [0.5], 1e-2))
    scaled = newton.solve(problem_of(features, 1e3 * y, [0.5], 1e-2))
    moved = 1e-2 * np.sum((scaled.coef / 1e3 - plain.coef) ** 2)
    assert moved > 1e6 * (np.sqrt(scaled.gap[0] / 1e3) + np.sqrt(plain.gap[0])) ** 2


def test_too_few_steps_are_admitted():
    """Out of steps, the result says so, and its gap is still true."""
    features, y = smooth_rows(np.random.default_rng(10), 200, 20)
    reached, _ = optimum(features, y, 0.1, 1e-6, intercept=True)
    for name, solve in SOLVERS.items():
        result = solve(problem_of(features, y, [0.1], 1e-6, intercept=True), tol=1e-9, max_iter=2)
        assert not result.converged, name
        assert result.relative_gap[0] > 1e-9
        assert bounds(result.objective[0], result.gap[0], reached)


@pytest.mark.slow
def test_newton_stops_when_it_is_done():
    """The work done, and not only the answer: polishing ends after a few steps, also where rounding sets the limit."""
    taken = {}
    for name in HARD:
        features, y = hard_rows(name)
        result = newton.solve(problem_of(features, y, [0.1], 1.0, intercept=True), max_iter=2 * STEPS)
        taken[name] = int(result.iterations[0])
    assert max(taken.values()) < STEPS, taken


def test_admm_does_not_circle():
    """A penalty that adapts for ever may keep the iterates on a cycle, at a gap that no further round improves."""
    rng = np.random.default_rng(0)
    features, y = smooth_rows(rng, 100, 10)
    weight = rng.integers(0, 4, 100).astype(float)
    result = SOLVERS["admm"](problem_of(features, y, [0.01], 0.5, weight, intercept=True), tol=1e-4, max_iter=5000)
    assert result.converged, result.relative_gap
