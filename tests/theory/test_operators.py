"""Similarity of operators (lemC.1 to lemC.4): against dense matrix functions, and how often the bounds hold."""

import numpy as np
import pytest
from scipy.linalg import fractional_matrix_power as power

from quernel import theory
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian

ALPHA, DELTA, DRAWS = 1e-2, 0.1, 60
K = np.concatenate([[1.0], np.arange(1, 13), np.arange(1, 13)])  # |k|, with |0| read as 1
MU = K**-4.0  # gamma = 1/4


@pytest.fixture(scope="module")
def law():
    return theory.SplinePopulation(0.5, 0.25, n_frequencies=12)


def waves(x):
    """1, sqrt2 cos and sqrt2 sin of 2 pi k x."""
    angle = 2 * np.pi * np.outer(x, np.arange(1, 13))
    return np.hstack([np.ones((len(angle), 1)), np.sqrt(2) * np.cos(angle), np.sqrt(2) * np.sin(angle)])


def norms(A, B, alpha):
    """The three norms by matrix powers."""
    A_alpha, B_alpha = (matrix + alpha * np.eye(len(matrix)) for matrix in (A, B))
    root = power(A_alpha, -0.5)
    return [
        np.linalg.norm(product, 2)
        for product in (root @ (A - B) @ root, root @ (A - B), power(A_alpha, 0.5) @ power(B_alpha, -0.5))
    ]


def values(found):
    return [found.difference, found.one_sided, found.ratio]


@pytest.mark.parametrize("alpha", [1e-1, 1e-3])
def test_feature_similarity_in_the_fourier_basis(law, alpha):
    features = law.features(40, random_state=3)
    phi = np.sqrt(MU) * waves(features.w)  # coefficients of phi(., w), one row per feature
    expected = norms(np.diag(MU), phi.T @ phi / 40, alpha)
    assert values(theory.feature_similarity(law, features, alpha=alpha)) == pytest.approx(expected, rel=1e-9)


def test_sample_similarity_in_the_fourier_basis(law):
    features, X = law.features(15, random_state=3), np.random.default_rng(4).random((60, 1))
    at_w = np.sqrt(MU) * waves(features.w) / np.sqrt(15)
    Phi = waves(X[:, 0]) @ at_w.T
    expected = norms(at_w @ at_w.T, Phi.T @ Phi / 60, ALPHA)
    assert values(theory.sample_similarity(law, features, X, alpha=ALPHA)) == pytest.approx(expected, rel=1e-9)


def test_similarities_of_a_sampled_population():
    """Any kernel: L_K is the Gram matrix over m, C_M the mean of phi phi' over its rows."""
    rng = np.random.default_rng(0)
    Z, X = rng.standard_normal((150, 2)), rng.standard_normal((50, 2))
    law = theory.SampledPopulation(Gaussian(1.0), lambda rows: rows[:, 0], Z)
    features = RandomFeatures(Gaussian(1.0), 30, random_state=1).fit(Z)
    Phi, sample = features.transform(Z), features.transform(X)
    gram = np.exp(-((Z[:, None] - Z[None]) ** 2).sum(axis=2) / 2)
    expected = norms(gram / 150, Phi @ Phi.T / 150, ALPHA)
    assert values(theory.feature_similarity(law, features, alpha=ALPHA)) == pytest.approx(expected, rel=1e-6)
    expected = norms(Phi.T @ Phi / 150, sample.T @ sample / 50, ALPHA)
    assert values(theory.sample_similarity(law, features, X, alpha=ALPHA)) == pytest.approx(expected, rel=1e-6)


def broken(found, bound):
    """How often each norm exceeds its bound."""
    return [np.mean([getattr(f, name) > getattr(bound, name) for f in found]) for name in ("difference", "ratio")]


@pytest.mark.parametrize("with_trace", [False, True])
def test_bounds_hold_as_often_as_they_say(law, with_trace):
    rng, N = np.random.default_rng(0), np.sum(MU / (MU + ALPHA))
    M = int(np.ceil(16 * (N + 1) * np.log(2 / DELTA)))
    trace = {"trace": np.sum(MU)} if with_trace else {}
    bound = theory.feature_similarity_bound(
        M, ALPHA, dimension=N, max_dimension=N, kappa=law.kappa, delta=DELTA, **trace
    )
    found = [theory.feature_similarity(law, law.features(M, rng), alpha=ALPHA) for _ in range(DRAWS)]
    assert max(broken(found, bound)) <= DELTA
    assert np.mean([f.one_sided > bound.one_sided for f in found]) <= DELTA
    assert bound.difference < 10 * np.median([f.difference for f in found])  # not idle
    # The same bounds asked of a twentieth of the features.
    few = [theory.feature_similarity(law, law.features(M // 20, rng), alpha=ALPHA) for _ in range(DRAWS)]
    assert np.mean([f.difference > bound.difference for f in few]) > DELTA


def test_bounds_over_rows_hold_as_often_as_they_say(law):
    rng, features = np.random.default_rng(1), law.features(20, random_state=2)
    n = int(np.ceil(16 * (law.kappa**2 / ALPHA + 1) * np.log(2 / DELTA)))
    bound = theory.sample_similarity_bound(n, ALPHA, kappa=law.kappa, delta=DELTA)
    assert bound.difference <= 1 / 2
    assert bound.ratio <= np.sqrt(2)
    assert bound.one_sided is None
    found = [theory.sample_similarity(law, features, rng.random((n, 1)), alpha=ALPHA) for _ in range(5)]
    assert max(broken(found, bound)) == 0
    few = [theory.sample_similarity(law, features, rng.random((5, 1)), alpha=ALPHA) for _ in range(DRAWS)]
    assert min(broken(few, bound)) > DELTA


def test_constants_by_hand():
    """delta = 2 / e^2, so that log(2/delta) = 2: 2 * 4 * 2 / 32 + sqrt(2 * 3 * 2 / 32) and so on."""
    delta = 2 * np.exp(-2)
    found = theory.feature_similarity_bound(32, 0.1, dimension=2.0, max_dimension=3.0, kappa=1.5, delta=delta)
    assert found.difference == pytest.approx(0.5 + np.sqrt(12 / 32))
    assert found.one_sided == pytest.approx(4 * 1.5 * np.sqrt(3) * 2 / 32 + np.sqrt(4 * 1.5**2 * 2 * 2 / 32))
    assert found.ratio == np.inf
    rows = theory.sample_similarity_bound(4000, 0.1, kappa=2.0, delta=delta)  # kappa^2 / alpha = 40
    assert rows.difference == pytest.approx(2 * 41 * 2 / 4000 + np.sqrt(2 * 40 * 2 / 4000))
    assert rows.ratio == pytest.approx(1 / np.sqrt(1 - rows.difference))
    traced = theory.sample_similarity_bound(4000, 0.1, kappa=2.0, delta=40 * np.exp(-5), trace=1.0)
    assert traced.difference == pytest.approx(2 * 41 * 5 / 12_000 + np.sqrt(2 * 40 * 5 / 4000))


def test_as_printed_the_bound_fails_where_dimensions_are_many():
    """2,000 points of equal weight and features d 1{x = w}: L_K is the identity, every leverage d / (1 + alpha).

    With M of lemC.2 the largest of 2,000 relative frequencies is off by more than 1/2 in most draws; lemma and bound
    promise one in ten. With the trace in the logarithm it holds.
    """
    d, rng = 2000, np.random.default_rng(0)
    N = d / (1 + ALPHA)
    M = int(np.ceil(16 * (N + 1) * np.log(2 / DELTA)))
    counts = rng.multinomial(M, np.full(d, 1 / d), size=40)
    difference = np.abs(d * counts / M - 1).max(axis=1) / (1 + ALPHA)
    how = {"dimension": N, "max_dimension": N, "kappa": d, "delta": DELTA}
    printed = theory.feature_similarity_bound(M, ALPHA, **how)
    proved = theory.feature_similarity_bound(M, ALPHA, **how, trace=d)
    assert printed.difference <= 1 / 2
    assert np.mean(difference > 1 / 2) > 0.5
    assert np.mean(difference > proved.difference) <= DELTA


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda law: theory.feature_similarity(law, law.features(3), alpha=[1.0]), "one number"),
        (lambda law: theory.sample_similarity(law, law.features(3), np.ones((2, 1)), alpha=0.0), "positive"),
        (lambda law: theory.feature_similarity_bound(0, 0.1, dimension=1, max_dimension=1), "M must be 1 or more"),
        (lambda law: theory.feature_similarity_bound(9, 0.1, dimension=0, max_dimension=1), "dimension must be"),
        (lambda law: theory.sample_similarity_bound(9, 0.1, kappa=0.1), "kappa must be"),
        (lambda law: theory.sample_similarity_bound(9, 0.1, trace=0.01), "trace must be"),
    ],
)
def test_bad_input(law, call, message):
    with pytest.raises(ValueError, match=message):
        call(law)
