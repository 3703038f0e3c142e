"""The lemmas by simulation, in the Fourier basis of the spline design, each with a control in which it must fail.

Functions are vectors of Fourier coefficients here, and operators matrices, all written anew: nothing but the numbers of
features and rows, and the bounds, comes from the library.
"""

import numpy as np
import pytest

from quernel import theory

GAMMA, T, DELTA = 0.25, 10, 0.1
K = np.concatenate([[1.0], np.arange(1, T + 1), np.arange(1, T + 1)])  # |k|, with |0| read as 1
MU = K ** (-1 / GAMMA)
KAPPA = 1 + 2 * np.sum(np.arange(1, T + 1) ** (-1 / (2 * GAMMA)))
IDENTITY = np.eye(len(K))
REPEATS = 20


def waves(x):
    angle = 2 * np.pi * np.outer(x, np.arange(1, T + 1))
    return np.hstack([np.ones((len(x), 1)), np.sqrt(2) * np.cos(angle), np.sqrt(2) * np.sin(angle)])


def mean_square(x):
    """(1/n) sum of e(x) e(x)' over the rows, in parts."""
    parts = (waves(part) for part in np.array_split(x, len(x) // 50_000 + 1))
    return sum(part.T @ part for part in parts) / len(x)


def feature_operator(M, rng):
    """L_M = (1/M) sum of phi phi', where phi has the coefficients sqrt(mu) e(w)."""
    return np.sqrt(MU)[:, None] * mean_square(rng.random(M)) * np.sqrt(MU)


def ridge(L, f, alpha):
    return np.linalg.solve(L + alpha * IDENTITY, L @ f)


def truth(r, seed=None):
    """f* = L^r h and |h|: the paper's target, or a random h."""
    h = np.where(np.arange(len(K)) <= T, K**-0.5 * np.sqrt(2), 0.0)
    h[0] = 1.0
    h = h if seed is None else np.random.default_rng(seed).standard_normal(len(K))
    return MU**r * h, float(np.linalg.norm(h))


def dimension(L, alpha):
    return np.trace(np.linalg.solve(L + alpha * IDENTITY, L))


def conditions(alpha, r):
    N = dimension(np.diag(MU), alpha)  # every feature has this leverage, so it is N_infinity, too
    M = theory.sufficient_features(alpha, r, dimension=N, max_dimension=N, kappa=KAPPA, delta=DELTA)
    return M, theory.sufficient_rows(alpha, kappa=KAPPA, delta=DELTA)


# lemA.2.1


@pytest.mark.parametrize("r", [0.1, 0.4, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_approximation_error_is_at_most_R_alpha_to_the_r(r, seed):
    f, radius = truth(r, seed)
    for alpha in np.geomspace(1e-6, 0.99, 25):
        error = np.linalg.norm(ridge(np.diag(MU), f, alpha) - f)
        assert error <= theory.error_bounds(alpha, r, radius).approximation


def test_approximation_error_beyond_the_lemma():
    """Not with a larger exponent than the target has, and not above r = 1, where the ridge saturates."""
    f, radius = truth(0.4)
    error = np.linalg.norm(ridge(np.diag(MU), f, 1e-3) - f)
    assert error > theory.error_bounds(1e-3, 0.9, radius).approximation
    f, radius = truth(1.5)
    assert np.linalg.norm(ridge(np.diag(MU), f, 1e-3) - f) > radius * 1e-3**1.5


@pytest.mark.parametrize("r", [0.1, 0.3])
def test_the_kernels_norm_of_the_ridge_estimate_grows(r):
    """lemA.2.6 (i) bounds it by R kappa^(2r), mixing norms; R alpha^(r - 1/2) holds, and suffices for the rate."""
    f, radius = truth(r, seed=0)
    norms = []
    for alpha in (1e-1, 1e-4):
        norms.append(np.linalg.norm(ridge(np.diag(MU), f, alpha) / np.sqrt(MU)))
        assert norms[-1] <= radius * alpha ** (r - 1 / 2)
    assert norms[-1] > radius * KAPPA ** (2 * r)


# lemA.2.2 and lemA.2.3


@pytest.fixture(scope="module", params=[(0.4, 2e-3), (0.75, 0.05)], ids=["agnostic", "realizable"])
def case(request):
    r, alpha = request.param
    return r, alpha, *truth(r), *conditions(alpha, r)


def random_feature_errors(case, M):
    _, alpha, f, _, _, _ = case
    rng = np.random.default_rng(0)
    ideal = ridge(np.diag(MU), f, alpha)
    return np.array([np.linalg.norm(ridge(feature_operator(M, rng), f, alpha) - ideal) for _ in range(REPEATS)])


def test_enough_features_keep_the_random_feature_error_small(case):
    r, alpha, _, radius, M, _ = case
    bound = theory.error_bounds(alpha, r, radius).random_feature
    assert np.mean(random_feature_errors(case, M) > bound) <= DELTA


def test_far_fewer_features_break_the_bound(case):
    r, alpha, _, radius, M, _ = case
    assert M > 300
    bound = theory.error_bounds(alpha, r, radius).random_feature
    assert np.mean(random_feature_errors(case, 1) > bound) > 2 * DELTA


def empirical_error(L, n, f, alpha, rng):
    """|f_MD' - f_M|, with S(S'GS + alpha)^-1 S' = (L_M G + alpha)^-1 L_M on the rows' G."""
    G = mean_square(rng.random(n))
    return np.linalg.norm(np.linalg.solve(L @ G + alpha * IDENTITY, L @ G @ f) - ridge(L, f, alpha))


def test_enough_rows_keep_the_empirical_error_small(case):
    """And the sum of the three: |f_MD' - f*| is within the total of propA.2.1."""
    r, alpha, f, radius, M, n = case
    bounds, rng = theory.error_bounds(alpha, r, radius), np.random.default_rng(1)
    errors = [empirical_error(feature_operator(M, rng), n, f, alpha, rng) for _ in range(5)]
    assert np.mean(np.array(errors) > bounds.empirical) <= DELTA
    L, G = feature_operator(M, rng), mean_square(rng.random(n))
    total = np.linalg.norm(np.linalg.solve(L @ G + alpha * IDENTITY, L @ G @ f) - f)
    assert total <= bounds.total == bounds.approximation + bounds.random_feature + bounds.empirical


@pytest.mark.parametrize("r", [0.4, 0.75])
def test_far_fewer_rows_break_the_bound(r):
    """Two rows, and as many features as can be: L_M = L_K."""
    alpha, rng = 2e-3, np.random.default_rng(1)
    f, radius = truth(r)
    bounds = theory.error_bounds(alpha, r, radius)
    assert theory.sufficient_rows(alpha, kappa=KAPPA, delta=DELTA) > 10_000
    errors = np.array([empirical_error(np.diag(MU), 2, f, alpha, rng) for _ in range(REPEATS)])
    assert np.mean(errors > bounds.empirical) > 2 * DELTA


# lemD.7


def test_features_for_a_stable_effective_dimension():
    alpha = 2e-3
    N = dimension(np.diag(MU), alpha)
    M = theory.features_for_dimension(alpha, max_dimension=N, kappa=KAPPA, delta=DELTA)
    rng = np.random.default_rng(2)
    ratios = [dimension(feature_operator(M, rng), alpha) / N for _ in range(REPEATS)]
    assert np.mean(np.abs(np.array(ratios) - 1) > theory.DIMENSION_TOLERANCE) <= DELTA
    assert theory.DIMENSION_TOLERANCE == 1.55


def test_with_rare_features_one_is_not_enough_for_the_effective_dimension():
    """phi = 1 with probability 1/5, else 0, and alpha = 3: N = 0.2/3.2, but one draw in five has N_1 = 1/4 = 4 N.

    (N_M exceeds N in the mean for no law of features, and cannot fall short of it by more than N: the bound can only be
    broken by rare features.)
    """
    share, alpha = 0.2, 3.0
    N, worst = share / (share + alpha), 1 / (share + alpha)
    needed = theory.features_for_dimension(alpha, max_dimension=worst, delta=DELTA)
    rng = np.random.default_rng(3)

    def broken(M):
        mean = rng.binomial(M, share, size=2000) / M
        return np.mean(np.abs(mean / (mean + alpha) - N) > theory.DIMENSION_TOLERANCE * N)

    assert needed > 20
    assert broken(needed) <= DELTA
    assert broken(1) > DELTA


# The constants, by hand.


def test_constants():
    log = np.log
    assert theory.sufficient_features(0.01, 0.3, dimension=2, max_dimension=9, delta=0.04) == np.ceil(160 * log(100))
    # r = 3/4: 128 x 4 x 0.01^(-1/2) x 4^(1/2) x 9^(1/2) x log 100
    much = theory.sufficient_features(0.01, 0.75, dimension=4, max_dimension=9, kappa=2, delta=0.04)
    assert much == np.ceil(128 * 4 * 10 * 2 * 3 * log(100))
    # r = 1: N counts alone; r = 1/2: N_infinity alone
    assert theory.sufficient_features(0.1, 1, dimension=4, max_dimension=9, delta=0.04) == np.ceil(5120 * log(100))
    assert theory.sufficient_features(0.1, 0.5, dimension=4, max_dimension=9, delta=0.04) == np.ceil(1152 * log(100))
    assert theory.sufficient_rows(0.01, kappa=2, delta=0.06) == np.ceil(16 * 401 * log(100))
    assert theory.features_for_dimension(0.5, max_dimension=2, kappa=2, delta=0.96) == np.ceil(40 * log(100))
    bounds = theory.error_bounds(0.25, 0.5, 3.0)
    assert (bounds.approximation, bounds.random_feature) == (1.5, 1.5)
    # |f_M - f*| is at most 2 R alpha^r = 3, and the lemma multiplies it by Q + Q^2 with Q = sqrt 2.
    assert bounds.empirical == pytest.approx(3.0 * (2 + np.sqrt(2)))
    assert bounds.total == pytest.approx(3 * 0.5 * (6 + 2 * np.sqrt(2)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.error_bounds(2.0, 0.5, 1.0), "alpha must be in"),
        (lambda: theory.error_bounds(0.5, 1.5, 1.0), "r must be in"),
        (lambda: theory.error_bounds(0.5, 0.5, -1.0), "radius must be"),
        (lambda: theory.sufficient_features(0.1, 0.0, dimension=1, max_dimension=1), "r must be in"),
        (lambda: theory.sufficient_features(0.1, 0.5, dimension=0, max_dimension=1), "dimension must be positive"),
        (lambda: theory.sufficient_features(0.1, 0.5, dimension=1, max_dimension=np.nan), "max_dimension must be"),
        (lambda: theory.sufficient_features(-0.1, 0.5, dimension=1, max_dimension=1), "alpha must be positive"),
        (lambda: theory.sufficient_rows(0.1, kappa=0.5), "kappa must be at least 1"),
        (lambda: theory.sufficient_rows(0.1, delta=1), "delta must be in"),
        (lambda: theory.features_for_dimension(0.1, max_dimension=-1), "max_dimension must be positive"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
