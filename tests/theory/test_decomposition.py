"""The error decomposition of `lemA.1.1`: exact where it can be, an upper bound always, and at the predicted rates."""

import numpy as np
import pytest

from quernel import theory
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian, Kernel
from quernel.losses import Pinball

R, GAMMA = 0.5, 0.25
TERMS = ("least_squares", "empirical", "random_feature", "approximation")
SIZES = np.array([250, 1000, 4000])


@pytest.fixture(scope="module")
def law():
    return theory.SplinePopulation(R, GAMMA, 100)


class SplineKernel(Kernel):
    """Lambda_q by its Fourier sum, written without the population's basis."""

    name = "spline"

    def gram(self, X, Z):
        k = np.arange(1, 101)
        waves = [np.exp(2j * np.pi * rows * k) for rows in (X, Z)]
        return 1 + 2 * ((waves[0] * k ** (-1 / GAMMA)) @ waves[1].conj().T).real

    def diagonal(self, X):
        return np.full(len(X), self.gram(np.zeros((1, 1)), np.zeros((1, 1)))[0, 0])


def test_the_features_of_the_design_are_those_of_its_kernel(law):
    """phi(x, w) is the Fourier sum of half the order, and the mean of phi phi' over w is the kernel."""
    x, w = np.array([[0.1], [0.35], [0.9]]), np.arange(1000) / 1000
    features = type(law.features(1))(law, w)
    phi = np.sqrt(1000) * features.transform(x)
    k = np.arange(1, 101)
    by_hand = 1 + np.sum(2 * k ** (-1 / (2 * GAMMA)) * np.cos(2 * np.pi * k * (0.35 - 0.2)))
    assert phi[1, 200] == pytest.approx(by_hand)
    np.testing.assert_allclose(phi @ phi.T / 1000, SplineKernel().gram(x, x), atol=1e-12)
    assert law.target(x)[0] == pytest.approx(1 + np.sum(2 * k ** (-R / GAMMA - 0.5) * np.cos(2 * np.pi * k * 0.1)))
    assert np.abs(phi).max() == pytest.approx(law.kappa)  # reached where x = w
    assert law.kappa == pytest.approx(1 + 2 * np.sum(k ** (-1 / (2 * GAMMA))))


@pytest.mark.parametrize(("gamma", "bounded"), [(0.2, True), (0.4, True), (0.5, False), (1.0, False)])
def test_the_splines_features_are_bounded_below_gamma_one_half_only(gamma, bounded):
    """sup |phi| as the cut-off moves out: it settles, or grows at least like 2 log of the frequencies."""
    short, long = (theory.SplinePopulation(0.5, gamma, count).kappa for count in (10_000, 1_000_000))
    assert (long - short < 0.9) == bounded
    assert bounded or long - short > 0.99 * 2 * np.log(100)


@pytest.mark.parametrize("r", [0.2, 0.4])
def test_the_splines_target_has_its_source_exponent_up_to_a_logarithm(r):
    """|h|^2 = 1 + 2 (1 + 1/2 + 1/3 + ...) at r itself, and settles at a smaller exponent."""
    short, long = (theory.SplinePopulation(r, 0.2, count) for count in (1000, 100_000))
    assert long.radius**2 - short.radius**2 == pytest.approx(2 * np.log(100), rel=1e-3)
    smaller = [np.sum((law.target_vector * law.eigenvalues ** -(r - 0.05)) ** 2) for law in (short, long)]
    assert smaller[1] - smaller[0] < 0.2


def test_the_tail_bound_of_the_target_holds_and_is_not_idle(law):
    longer = theory.SplinePopulation(R, GAMMA, 50_000)
    missing = np.sqrt(np.sum(longer.target_vector**2) - np.sum(law.target_vector**2))
    assert law.target_tail / 1.1 < missing <= law.target_tail


def test_exact_and_sampled_populations_agree(law):
    """Values at a fine regular grid are an exact rule for the design; at random rows a good one."""
    X, y = law.sample(400, random_state=0)
    features = law.features(40, random_state=1)
    exact = theory.error_decomposition(law, features, X, y, alpha=1e-3)
    grid = np.arange(450)[:, None] / 450
    for points, tolerance in ((grid, 1e-6), (np.random.default_rng(2).random((1600, 1)), 0.15)):
        sampled = theory.SampledPopulation(SplineKernel(), law.target, points)
        parts = theory.error_decomposition(sampled, features, X, y, alpha=1e-3)
        for term in ("total", *TERMS):
            # The empirical error compares 400 rows with their law: 1,600 rows know that law to half of it.
            known = 0.5 if term == "empirical" and tolerance > 0.1 else tolerance
            assert getattr(parts, term) == pytest.approx(getattr(exact, term), rel=known), term


def decompose(law, n, M, alpha, seed):
    X, y = law.sample(n, random_state=seed)
    return theory.error_decomposition(law, law.features(M, random_state=seed + 100), X, y, alpha=alpha, tol=1e-5)


def fall(law, plan, repeats):
    """Minus the slope of each term's median in log n, where plan gives (M, alpha) for n."""
    medians = []
    for n in SIZES:
        parts = [decompose(law, n, *plan(n), seed) for seed in range(repeats)]
        assert all(part.total <= part.bound * (1 + 1e-12) for part in parts)
        medians.append([np.median([getattr(part, term) for part in parts]) for term in (*TERMS, "total")])
    slopes = -np.polyfit(np.log(SIZES), np.log(medians), 1)[0]
    return dict(zip((*TERMS, "total"), slopes, strict=True))


def theorem_plan(n):
    """`cor1` by hand: lambda = n^(-1/(2r + gamma)), M = 20 n^(gamma/(2r + gamma))."""
    return int(20 * n ** (GAMMA / (2 * R + GAMMA))), n ** (-1 / (2 * R + GAMMA))


@pytest.mark.slow
def test_every_term_falls_at_its_predicted_rate(law):
    """r/(2r + gamma) = 0.4 for the norm; `thm2` allows one factor log n, and errors may fall faster than that."""
    rate = R / (2 * R + GAMMA)
    logarithm = np.log(np.log(SIZES[-1]) / np.log(SIZES[0])) / np.log(SIZES[-1] / SIZES[0])
    falls = fall(law, theorem_plan, repeats=24)
    assert falls["approximation"] == pytest.approx(rate, abs=0.02)
    for term, slope in falls.items():
        assert slope > rate - logarithm, term


@pytest.mark.slow
def test_with_too_few_features_or_a_fixed_ridge_the_terms_do_not_fall(law):
    rate = R / (2 * R + GAMMA)
    few = fall(law, lambda n: (5, theorem_plan(n)[1]), repeats=12)
    assert few["random_feature"] < rate / 2
    assert few["total"] < rate / 2
    fixed = fall(law, lambda n: (60, 0.01), repeats=2)
    assert abs(fixed["approximation"]) < 1e-9
    assert fixed["total"] < rate / 2


def test_a_gaussian_kernel_by_quadrature():
    def quantile(X):
        return np.sin(3 * X[:, 0]) + X[:, 1] ** 2

    rng = np.random.default_rng(0)
    kernel, X = Gaussian(0.5), rng.random((600, 2))
    y = quantile(X) + 0.2 * rng.standard_exponential(600) + 0.2 * np.log(0.75)  # level 1/4 of the noise is 0
    law = theory.SampledPopulation(kernel, quantile, rng.random((1000, 2)))
    features = RandomFeatures(kernel, 100, random_state=0).fit(X)
    parts = theory.error_decomposition(law, features, X, y, alpha=1e-4, loss=Pinball([0.25]))
    wrong = theory.error_decomposition(law, features, X, y, alpha=1e-4, loss=Pinball([0.75]))
    assert parts.total <= parts.bound
    assert parts.total < 0.1
    assert wrong.least_squares > 3 * parts.least_squares  # f* is not the quantile at that level
    assert wrong.approximation == parts.approximation


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"alpha": [1e-3, 1e-2]}, "alpha must be one number"),
        ({"y": np.ones(3)}, "X must have shape"),
        ({"loss": Pinball([0.1, 0.9])}, "one column"),
    ],
)
def test_bad_input(law, change, message):
    X, y = law.sample(50, random_state=0)
    arguments = {"X": X, "y": y, "alpha": 1e-2, **change}
    with pytest.raises(ValueError, match=message):
        theory.error_decomposition(law, law.features(5, random_state=0), **arguments)


def test_bad_populations():
    with pytest.raises(ValueError, match="gamma in"):
        theory.SplinePopulation(0.5, 0.0)
    with pytest.raises(ValueError, match="quantile must be a function"):
        theory.SampledPopulation("gaussian", 3, np.ones((5, 1)))
    with pytest.raises(ValueError, match="X must have shape"):
        theory.SampledPopulation("gaussian", np.sum, np.ones(5))


def test_a_scaled_target_is_the_same_function_times_the_scale(law):
    half = theory.SplinePopulation(R, GAMMA, 100, scale=0.5)
    x = np.linspace(0, 1, 7)[:, None]
    assert half.target(x) == pytest.approx(law.target(x) / 2)
    assert (half.radius, half.target_tail) == pytest.approx((law.radius / 2, law.target_tail / 2))
    with pytest.raises(ValueError, match=r"a positive scale; got .* scale=0"):
        theory.SplinePopulation(R, GAMMA, scale=0)
