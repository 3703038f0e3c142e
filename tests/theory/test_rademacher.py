"""The local Rademacher complexity of lemA.2.5: its formula, what it bounds, and examples of the theory's docstrings."""

import doctest
import importlib

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from quernel import theory

RNG = np.random.default_rng(0)
PHI = RNG.standard_normal((80, 6)) * np.array([1.0, 0.5, 0.3, 0.2, 0.1, 0.01])


def by_hand(mu, radius, n):
    return np.sqrt(sum(min(value, radius**2) for value in mu) / n)


@pytest.mark.parametrize("radius", [1e-3, 0.2, 0.5, 10.0])
def test_the_formula_from_features_a_gram_matrix_and_eigenvalues(radius):
    mu = np.linalg.svd(PHI, compute_uv=False) ** 2 / 80
    expected = by_hand(mu, radius, 80)
    assert theory.local_rademacher_complexity(PHI, radius=radius) == pytest.approx(expected)
    assert theory.local_rademacher_complexity(gram=PHI @ PHI.T, radius=radius) == pytest.approx(expected, rel=1e-6)
    assert theory.local_rademacher_complexity(eigenvalues=mu, radius=radius, n=80) == pytest.approx(expected)
    assert theory.local_rademacher_complexity(PHI, radius=radius, n=320) == pytest.approx(expected / 2)


def test_radii_may_be_an_array():
    radii = np.array([[0.1, 0.2], [0.3, 5.0]])
    found = theory.local_rademacher_complexity(PHI, radius=radii)
    assert found.shape == (2, 2)
    assert found[1, 0] == theory.local_rademacher_complexity(PHI, radius=0.3)
    assert np.all(np.diff(found.ravel()) > 0)


def test_it_is_the_effective_dimension_up_to_a_factor_of_two():
    for alpha in np.geomspace(1e-4, 1, 9):
        N = theory.effective_dimension(PHI, alpha=alpha)
        assert N <= 80 * theory.local_rademacher_complexity(PHI, radius=np.sqrt(alpha)) ** 2 / alpha <= 2 * N


def largest_mean(b, mu, radius):
    """sup of sum b_j g_j with sum g_j^2 <= radius^2 and sum g_j^2 / mu_j <= 1, by its dual: one number to minimise."""
    weight = lambda theta: theta / radius**2 + (1 - theta) / mu  # noqa: E731
    found = minimize_scalar(lambda theta: np.sum(b**2 / weight(theta)), bounds=(0, 1), method="bounded")
    return np.sqrt(found.fun)


@pytest.mark.parametrize("radius", [0.02, 0.2])
def test_it_bounds_the_largest_mean_of_coin_flips(radius):
    """Monte Carlo over rows and signs in the Fourier basis, with the supremum solved for: about R to sqrt(2) R."""
    k, n, rng = np.arange(1, 31), 400, np.random.default_rng(1)
    mu = np.concatenate([[1.0], k**-2.0, k**-2.0])
    means = []
    for _ in range(100):
        angle = 2 * np.pi * np.outer(rng.random(n), k)
        psi = np.hstack([np.ones((n, 1)), np.sqrt(2) * np.cos(angle), np.sqrt(2) * np.sin(angle)])
        means.append(largest_mean(rng.choice([-1.0, 1.0], n) @ psi / n, mu, radius))
    bound = theory.local_rademacher_complexity(eigenvalues=mu, radius=radius, n=n)
    error = np.std(means) / 10
    assert np.mean(means) <= np.sqrt(2) * bound + 3 * error
    assert np.mean(means) >= 0.9 * bound - 3 * error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"radius": 1.0}, "one of the three"),
        ({"features": PHI, "gram": PHI @ PHI.T, "radius": 1.0}, "one of the three"),
        ({"eigenvalues": [1.0], "radius": 1.0}, "give n"),
        ({"eigenvalues": [-1.0], "radius": 1.0, "n": 5}, "none negative"),
        ({"features": PHI, "radius": 0.0}, "radius must be positive"),
        ({"features": PHI, "radius": 1.0, "n": 0}, "1 or more"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        theory.local_rademacher_complexity(**arguments)


@pytest.mark.parametrize("module", ["dimensions", "decomposition"])
def test_docstring_examples(module):
    failed, tried = doctest.testmod(
        importlib.import_module(f"quernel.theory.{module}"), extraglobs={"SplinePopulation": theory.SplinePopulation}
    )
    assert tried > 0
    assert failed == 0
