"""The exponents are found where they are known, their intervals cover, and noise is called noise."""

import numpy as np
import pytest

from quernel import theory


def spline_sample(r, gamma, n, seed, noise=0.1, n_frequencies=300):
    law = theory.SplinePopulation(r, gamma, n_frequencies)
    X, y = law.sample(n, noise, random_state=seed)
    basis = law.basis(X)
    return law, X, y, (basis * law.eigenvalues) @ basis.T


def covers(estimate, value):
    return estimate.interval[0] <= value <= estimate.interval[1]


@pytest.mark.parametrize("gamma", [0.2, 0.25, 0.5])
def test_capacity_of_the_spline_kernel(gamma):
    """mu_k = |k|^(-1/gamma), so that N(alpha) grows like alpha^-gamma."""
    for seed in range(3):
        law, X, _, gram = spline_sample(0.5, gamma, 500, seed)
        exact = theory.capacity_exponent(gram=gram)
        assert covers(exact, gamma)
        assert abs(exact.value - gamma) < 0.02
        assert np.ptp(exact.interval) < 0.15
        assert not covers(exact, gamma + 0.1)
        random = theory.capacity_exponent(law.features(300, random_state=seed).transform(X))
        assert covers(random, gamma)


def test_capacity_intervals_tell_orders_apart():
    first, second = (theory.capacity_exponent(gram=spline_sample(0.5, g, 400, 0)[3]) for g in (0.2, 0.3))
    assert first.interval[1] < second.interval[0]


@pytest.mark.parametrize("gamma", [0.25, 0.5])
def test_compatibility_of_the_spline_features_is_gamma(gamma):
    for seed in range(2):
        law, X, _, gram = spline_sample(0.5, gamma, 500, seed)
        features = law.features(300, random_state=seed + 10).transform(X)
        estimate = theory.compatibility_exponent(features, gram=gram)
        assert covers(estimate, gamma)
        assert abs(estimate.value - gamma) < 0.1
        assert estimate.interval[1] < 1  # the worst case is told apart
        assert covers(theory.compatibility_exponent(features), gamma)


def test_compatibility_above_the_capacity():
    """Single waves sqrt(mu_k / p_k) e_k with p_k ~ k^-2, mu_k = k^-4: leverage k^2 mu_k / (mu_k + alpha), so 2/4.

    The same kernel has capacity 1/4: an estimate that looked at average leverage would say so.
    """
    rng = np.random.default_rng(0)
    law, X, _, _ = spline_sample(0.5, 0.25, 600, 0, n_frequencies=60)
    k = np.concatenate([[1], np.arange(1, 61), np.arange(1, 61)])
    p = k**-2.0 / np.sum(k**-2.0)
    drawn = rng.choice(len(k), 1000, p=p)
    basis = law.basis(X)
    features = basis[:, drawn] * np.sqrt(k**-4.0 / p)[drawn] / np.sqrt(1000)
    estimate = theory.compatibility_exponent(features, gram=(basis * k**-4.0) @ basis.T)
    assert covers(estimate, 0.5)
    assert not covers(estimate, 0.25)
    assert not covers(estimate, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("r", "gamma"), [(0.25, 0.25), (0.3, 0.5), (0.5, 0.5), (0.5, 0.25)])
def test_source_of_the_spline_target(r, gamma):
    covered, decided = 0, 0
    for seed in range(6):
        _, _, y, gram = spline_sample(r, gamma, 600, seed)
        estimate = theory.source_exponent(y, gram=gram)
        if estimate.decided:
            decided += 1
            covered += covers(estimate, r)
            assert abs(estimate.value - r) < 0.15
            assert np.ptp(estimate.interval) <= 0.8
    assert decided >= 4
    assert covered >= decided - 1


def test_source_tells_rough_from_smooth():
    samples = [spline_sample(r, 0.5, 800, 3) for r in (0.2, 0.6)]
    rough, smooth = (theory.source_exponent(y, gram=gram) for _, _, y, gram in samples)
    assert rough.interval[1] < smooth.interval[0]


def test_source_from_features():
    law, X, y, _ = spline_sample(0.2, 0.25, 800, 0)
    assert covers(theory.source_exponent(y, law.features(300, random_state=1).transform(X)), 0.2)


def test_source_at_another_level():
    _, X, _, gram = spline_sample(0.3, 0.5, 600, 0)
    law = theory.SplinePopulation(0.3, 0.5, 300)
    rng = np.random.default_rng(1)
    y = law.target(X) + 0.1 * (rng.standard_exponential(600) + np.log(0.25))  # level 3/4 of the noise is 0
    assert covers(theory.source_exponent(y, gram=gram, level=0.75), 0.3)


def test_pure_noise_is_undecided():
    _, _, _, gram = spline_sample(0.5, 0.25, 400, 0)
    for seed in range(8):
        y = np.random.default_rng(seed).standard_normal(400)
        estimate = theory.source_exponent(y, gram=gram)
        assert not estimate.decided
        assert np.isnan(estimate.value)
        assert "undecided" in str(estimate)
        assert "noise" in str(estimate)


def test_a_signal_of_two_waves_is_undecided():
    """A target so smooth that only a few coefficients are seen has no slope to read."""
    _, X, _, gram = spline_sample(0.5, 0.25, 400, 0)
    y = np.sin(2 * np.pi * X[:, 0]) + 0.1 * np.random.default_rng(0).standard_normal(400)
    assert not theory.source_exponent(y, gram=gram).decided


def test_a_kernel_without_decay_to_read_is_undecided():
    estimate = theory.capacity_exponent(np.random.default_rng(0).standard_normal((300, 3)))
    assert not estimate.decided
    assert "undecided" in str(estimate)


def test_an_estimate_prints_itself():
    estimate = theory.Exponent("capacity gamma", 0.25, (0.2, 0.3), 0.95)
    assert str(estimate) == "capacity gamma = 0.250 (95% interval 0.200 to 0.300)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.capacity_exponent(), "Give features"),
        (lambda: theory.capacity_exponent(np.ones((300, 3)), gram=np.eye(300)), "one of the two"),
        (lambda: theory.capacity_exponent(np.ones((50, 3))), "at least 200 rows"),
        (lambda: theory.capacity_exponent(np.full((300, 3), np.nan)), "finite"),
        (lambda: theory.capacity_exponent(np.ones((300, 3)), alphas=[0.1]), "two different ridge weights"),
        (lambda: theory.capacity_exponent(np.ones((300, 3)), alphas=[0.1, -1]), "alpha must be positive"),
        (lambda: theory.capacity_exponent(np.ones((300, 3)), confidence=95), "confidence must lie"),
        (lambda: theory.source_exponent(np.ones(300), gram=np.eye(300), confidence=0), "confidence must lie"),
        (lambda: theory.source_exponent(np.ones(300)), "Give features"),
        (lambda: theory.source_exponent(np.ones(299), gram=np.eye(300)), "y must hold 300"),
        (lambda: theory.source_exponent(np.ones(300), gram=np.eye(300), level=1.0), "strictly between 0 and 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
