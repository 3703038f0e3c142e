"""Laws of the certificate: true for any point and any duals, tight for the best duals, and in the stated units."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import PivotedCholesky
from quernel.kernels import Gaussian
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.objective.duality_gap import certify, low_rank_bound, null_model, relative
from quernel.solvers import newton
from support.pinball_optima import lower_bound, minimiser, objective, optimum

N, M, LEVELS = 80, 7, (0.05, 0.5, 0.8)
ROUNDING = 1e-11


@pytest.fixture(params=["equal", "integer", "real"])
def weight(request):
    rng = np.random.default_rng(11)
    return {"equal": None, "integer": rng.integers(0, 4, N).astype(float), "real": rng.exponential(size=N)}[
        request.param
    ]


@pytest.fixture
def data():
    rng = np.random.default_rng(12)
    features = rng.standard_normal((N, M)) / np.sqrt(M)
    return features, features @ rng.standard_normal(M) + rng.standard_normal(N) + 2


def certificate_of(features, y, levels, alpha, coef, constant, dual, weight=None, intercept=False):
    """The library's certificate, with residuals and duals set by hand."""
    rows = InMemoryDesign(ArrayRows(features, y, weight), features=features)
    problem = Problem(rows, Pinball(levels), alpha, fit_intercept=intercept)
    state = rows.new_state(anchor=dual)
    problem.set_coefficients(state, coef, constant)
    return certify(problem, state, coef, constant, null_model(problem))


def random_points(rng, coef, dual, level):
    """Coefficients and duals from anywhere to nearly optimal."""
    for size in (1e-6, 1e-3, 1.0, 1e3):
        away = coef + size * rng.standard_normal(coef.shape)
        for share in (0.0, 1e-3, 1.0):
            mixed = (1 - share) * dual + share * rng.uniform(level - 1, level, N)
            yield away, np.clip(mixed, level - 1, level)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("alpha", [1e-6, 1e-2, 1.0])
def test_the_gap_bounds_the_excess_of_any_point_with_any_duals(data, weight, alpha, intercept):
    rng, (features, y) = np.random.default_rng(13), data
    for level in LEVELS:
        best, constant, best_dual = minimiser(features, y, level, alpha, weight, intercept)
        _, bound = optimum(features, y, level, alpha, weight, intercept)
        for coef, dual in random_points(rng, best, best_dual, level):
            shift = constant + rng.standard_normal() * intercept
            found = certificate_of(
                features, y, [level], alpha, coef[:, None], np.array([shift]), dual[:, None], weight, intercept
            )
            value = objective(features, y, level, alpha, coef, shift, weight)
            assert found.objective[0] == pytest.approx(value, rel=1e-12)
            assert found.gap[0] >= value - bound - ROUNDING * value
            # The gap is the objective minus the dual one, and nothing else.
            dual_value = lower_bound(features, y, level, alpha, dual, weight, intercept)
            assert found.gap[0] == pytest.approx(value - dual_value, rel=1e-7, abs=ROUNDING * (value + abs(dual_value)))


@pytest.mark.parametrize("intercept", [False, True])
def test_with_the_best_duals_the_gap_is_the_excess(data, weight, intercept):
    """Tight: a certificate that is merely large would pass the law above."""
    rng, (features, y) = np.random.default_rng(14), data
    for level in LEVELS:
        best, constant, dual = minimiser(features, y, level, 1e-2, weight, intercept)
        reached, bound = optimum(features, y, level, 1e-2, weight, intercept)
        for coef in (best, best + 0.01 * rng.standard_normal(M)):
            found = certificate_of(
                features, y, [level], 1e-2, coef[:, None], np.array([constant]), dual[:, None], weight, intercept
            )
            excess = objective(features, y, level, 1e-2, coef, constant, weight) - reached
            assert found.gap[0] == pytest.approx(excess, abs=2 * (reached - bound) + 1e-9 * reached)


@pytest.mark.parametrize("side", [-1, 1, 0])
def test_unbalanced_duals_are_balanced_before_they_count(data, weight, side):
    """With an intercept the bound needs mean v = 0; taken as they are, these duals would prove a falsehood."""
    rng, (features, y) = np.random.default_rng(15), data
    alpha, level = 1e-2, 0.5
    _, bound = optimum(features, y, level, alpha, weight, intercept=True)
    dual = np.sort(rng.uniform(-0.5, 0.5, N))[np.argsort(np.argsort(y))]
    dual = np.clip(dual + 0.4 * side, -0.5, 0.5) if side else np.full(N, 0.5)
    coef, shift = np.zeros(M), np.median(y)
    found = certificate_of(
        features, y, [level], alpha, coef[:, None], np.array([shift]), dual[:, None], weight, intercept=True
    )
    excess = objective(features, y, level, alpha, coef, shift, weight) - bound
    assert found.gap[0] >= excess * (1 - ROUNDING)


def test_duals_left_unbalanced_would_prove_a_falsehood():
    """Negative control: the same sums without the balancing (the problem without an intercept) are no bound at all."""
    rng = np.random.default_rng(16)
    features, y = rng.standard_normal((N, M)), rng.standard_normal(N) + 100
    high = np.full((N, 1), 0.5)
    reached, _ = optimum(features, y, 0.5, 10.0, intercept=True)
    point = (np.zeros((M, 1)), np.array([0.0]), high)
    # At (0, 0) the loss is 50 and the optimum with an intercept below 1, yet these duals claim a gap of nearly 0.
    unbalanced = certificate_of(features, y, [0.5], 10.0, *point, intercept=False)
    assert unbalanced.objective[0] - unbalanced.gap[0] > reached
    balanced = certificate_of(features, y, [0.5], 10.0, *point, intercept=True)
    assert balanced.objective[0] - balanced.gap[0] <= reached


def test_columns_do_not_mix(data, weight):
    rng, (features, y) = np.random.default_rng(17), data
    levels, alpha = np.array(LEVELS), 1e-3
    coef, constant = rng.standard_normal((M, 3)), rng.standard_normal(3)
    dual = rng.uniform(levels - 1, levels, (N, 3))
    together = certificate_of(features, y, levels, alpha, coef, constant, dual, weight, intercept=True)
    for k, level in enumerate(levels):
        one = [k]
        alone = certificate_of(
            features, y, [level], alpha, coef[:, one], constant[one], dual[:, one], weight, intercept=True
        )
        for field in ("objective", "gap"):
            assert getattr(together, field)[k] == pytest.approx(getattr(alone, field)[0], rel=1e-12)


def test_relative_gap_by_its_definition():
    gap, value, null = np.array([1e-3, 1e-3, 1e-3, 0.0, 5.0]), np.array([2.0, 1e-9, 0.0, 0.0, 1.0]), np.full(5, 4.0)
    np.testing.assert_allclose(relative(gap, value, null), [1e-3 / 2, 1e-3 / 4e-3, 1e-3 / 4e-3, 0, 5], rtol=1e-15)


def test_relative_gap_is_zero_where_the_constant_is_perfect():
    np.testing.assert_array_equal(relative(np.array([0.0, 1e-20]), np.array([0.0, 1e-20]), np.zeros(2)), [0, 0])


@pytest.mark.parametrize("intercept", [False, True])
def test_the_null_model_is_the_best_constant(data, weight, intercept):
    features, y = data
    rows = InMemoryDesign(ArrayRows(features, y, weight), features=features)
    null = null_model(Problem(rows, Pinball(LEVELS), 1.0, fit_intercept=intercept))
    for k, level in enumerate(LEVELS):
        trials = np.concatenate([y, np.linspace(y.min(), y.max(), 201)]) if intercept else [0.0]
        best = min(objective(features, y, level, 1.0, np.zeros(M), trial, weight) for trial in trials)
        assert null.objective[k] == pytest.approx(best, rel=1e-12)
        reached = objective(features, y, level, 1.0, np.zeros(M), null.constant[k], weight)
        assert reached == pytest.approx(best, rel=1e-12)


# What features leave out of the kernel


def root_of(K):
    """Features of the whole kernel: K = R R'."""
    values, vectors = np.linalg.eigh(K)
    return vectors * np.sqrt(np.maximum(values, 0))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("tol", "alpha"), [(1e-1, 1e-2), (1e-2, 1e-4), (1e-3, 1e-3), (1e-6, 1e-6)])
def test_truncation_covers_what_a_loose_factor_misses(weight, tol, alpha, intercept):
    rng = np.random.default_rng(18)
    X = rng.uniform(size=(N, 2))
    y = np.sin(6 * X[:, 0]) * X[:, 1] + 0.2 * rng.standard_normal(N)
    bandwidth = 0.3
    kernel_map = PivotedCholesky(Gaussian(bandwidth), tol=tol)
    features = kernel_map.fit_transform(X, sample_weight=weight)
    rows = InMemoryDesign(ArrayRows(X, y, weight), features=features)
    whole = root_of(rbf_kernel(X, gamma=1 / (2 * bandwidth**2)))
    result = newton.solve(Problem(rows, Pinball(LEVELS), alpha, fit_intercept=intercept), max_iter=200)
    missed = low_rank_bound(result.dual, rows.share, kernel_map.residual_, np.full(3, alpha))
    assert np.all(missed > 0)
    for k, level in enumerate(LEVELS):
        reached, bound = optimum(whole, y, level, alpha, weight, intercept)
        value = result.objective[k]
        assert reached >= value - result.gap[k] - missed[k] - 1e-9 * value
        assert value >= bound * (1 - 1e-9), "fewer features cannot fit better"
        if tol >= 1e-2:  # negative control: without the term the claim is false
            assert reached < value - result.gap[k] - 1e-3 * value * alpha


def test_truncation_by_hand():
    """(sum |share v| sqrt(E_ii))^2 / (4 alpha)."""
    dual, share, left_out = np.array([[0.5, -0.2], [-0.5, 0.8]]), np.array([0.25, 0.75]), np.array([0.04, 0.01])
    np.testing.assert_allclose(
        low_rank_bound(dual, share, left_out, np.array([0.1, 0.2])),
        [(0.25 * 0.5 * 0.2 + 0.75 * 0.5 * 0.1) ** 2 / 0.4, (0.25 * 0.2 * 0.2 + 0.75 * 0.8 * 0.1) ** 2 / 0.8],
        rtol=1e-14,
    )
    assert np.all(low_rank_bound(dual, share, np.zeros(2), np.array([0.1, 0.2])) == 0)
