"""Effective and maximal dimension: against their definitions, and features against the exact Gram matrix."""

import numpy as np
import pytest

from quernel import theory
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian

ALPHA = 1e-3


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).random((300, 2))


def by_definition(C, alpha):
    return np.trace(np.linalg.solve(C + alpha * np.eye(len(C)), C))


@pytest.mark.parametrize("shape", [(80, 20), (20, 80), (30, 30)])
def test_features_on_either_side_and_gram_agree_with_the_trace(shape):
    Phi = np.random.default_rng(1).standard_normal(shape)
    expected = by_definition(Phi.T @ Phi / len(Phi), 0.1)
    assert theory.effective_dimension(Phi, alpha=0.1) == pytest.approx(expected, rel=1e-10)
    assert theory.effective_dimension(gram=Phi @ Phi.T, alpha=0.1) == pytest.approx(expected, rel=1e-10)
    several = theory.effective_dimension(Phi, alpha=[0.1, 1.0])
    assert several == pytest.approx([expected, by_definition(Phi.T @ Phi / len(Phi), 1.0)], rel=1e-10)


def test_integer_weights_are_repeated_rows():
    rng = np.random.default_rng(2)
    Phi, weight = rng.standard_normal((40, 15)), rng.integers(0, 4, 40)
    repeated = np.repeat(Phi, weight, axis=0)
    for function in (theory.effective_dimension, theory.max_dimension):
        assert function(Phi, alpha=0.1, sample_weight=weight) == pytest.approx(function(repeated, alpha=0.1))
        assert function(Phi, alpha=0.1) != pytest.approx(function(repeated, alpha=0.1), rel=1e-3)
    weighted = theory.effective_dimension(gram=Phi @ Phi.T, alpha=0.1, sample_weight=weight)
    assert weighted == pytest.approx(theory.effective_dimension(repeated, alpha=0.1))


def test_random_features_converge_to_the_exact_gram_matrix(rows):
    kernel = Gaussian(0.3)
    exact = theory.effective_dimension(gram=kernel.gram(rows, rows), alpha=ALPHA)
    errors = []
    for M in (100, 1000, 10_000):
        draws = [
            theory.effective_dimension(RandomFeatures(kernel, M, random_state=s).fit(rows).transform(rows), alpha=ALPHA)
            for s in range(3)
        ]
        errors.append(abs(np.mean(draws) / exact - 1))
    assert errors[0] > errors[1] > errors[2]
    assert errors[0] > 0.05  # a hundred are too few, or the last line would show nothing
    assert errors[2] < 0.01


@pytest.mark.parametrize("M", [50, 400])
def test_leverage_by_definition_with_and_without_gram(rows, M):
    kernel = Gaussian(0.3)
    Phi = RandomFeatures(kernel, M, random_state=0).fit(rows).transform(rows)
    n = len(rows)
    phi = np.sqrt(M) * Phi
    for gram in (None, kernel.gram(rows, rows)):
        K = Phi @ Phi.T if gram is None else gram
        expected = np.einsum("ij,ij->j", phi, np.linalg.solve(K / n + ALPHA * np.eye(n), phi)) / n
        scores = theory.leverage_scores(Phi, gram=gram, alpha=ALPHA)
        np.testing.assert_allclose(scores, expected, rtol=1e-8)
        assert theory.max_dimension(Phi, gram=gram, alpha=ALPHA) == pytest.approx(expected.max())
    own = theory.leverage_scores(Phi, alpha=ALPHA).mean()
    assert own == pytest.approx(theory.effective_dimension(Phi, alpha=ALPHA))


def test_the_spline_design_has_equal_leverage_everywhere():
    """N_infinity = N there: the feature is the same function, shifted."""
    law = theory.SplinePopulation(0.5, 0.25, 60)
    grid = np.arange(400)[:, None] / 400
    K = (law.basis(grid) * law.eigenvalues) @ law.basis(grid).T
    scores = theory.leverage_scores(law.features(30, 0).transform(grid), gram=K, alpha=ALPHA)
    np.testing.assert_allclose(scores, law.effective_dimension(ALPHA), rtol=1e-9)
    assert theory.effective_dimension(gram=K, alpha=ALPHA) == pytest.approx(law.effective_dimension(ALPHA))
    longer = theory.SplinePopulation(0.5, 0.25, 60_000).effective_dimension(ALPHA)
    added = longer - law.effective_dimension(ALPHA)
    assert 0 < added <= law.dimension_tail(ALPHA)
    assert added > law.dimension_tail(ALPHA) / 3  # the bound is not idle


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 1.0}, "one of the two"),
        ({"features": np.eye(3), "gram": np.eye(3), "alpha": 1.0}, "one of the two"),
        ({"features": np.eye(3), "alpha": 0.0}, "alpha must be positive"),
        ({"features": np.eye(3), "alpha": [1.0, np.nan]}, "alpha must be positive"),
        ({"features": np.eye(3), "alpha": "small"}, "alpha must hold numbers"),
        ({"features": np.ones(3), "alpha": 1.0}, "features must be a matrix"),
        ({"features": np.full((3, 3), np.nan), "alpha": 1.0}, "finite"),
        ({"gram": np.ones((3, 2)), "alpha": 1.0}, r"gram must have shape \(3, 3\)"),
        ({"features": np.eye(3), "alpha": 1.0, "sample_weight": [1, 2]}, "sample_weight must hold 3"),
        ({"features": np.eye(3), "alpha": 1.0, "sample_weight": [1, -1, 1]}, "none negative"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        theory.effective_dimension(**arguments)
