"""Laws of Nystroem features: the kernel's projection on the landmarks, the better the better they are chosen."""

import numpy as np
import pytest

from quernel.features import Nystroem
from quernel.features.landmarks import LANDMARKS, LandmarkPredictor, row_leverage_scores
from quernel.kernels import ArcCosine, Gaussian, Laplacian, Matern, PeriodicSpline, fourier


def rows(n, d=2, seed=41):
    return np.random.default_rng(seed).uniform(size=(n, d))


def fitted(landmarks, X, size=20, kernel=None, seed=0, weight=None):
    kernel = Gaussian(0.4) if kernel is None else kernel
    return Nystroem(kernel, size, landmarks=landmarks, alpha=1e-3, random_state=seed).fit(X, sample_weight=weight)


@pytest.mark.parametrize("kernel", [Gaussian(0.4), Laplacian(0.5), PeriodicSpline(4), ArcCosine(1, bias=1.0)])
@pytest.mark.parametrize("landmarks", LANDMARKS)
def test_features_give_the_projected_kernel(landmarks, kernel):
    X = rows(80)
    if landmarks == "kmeans" and not kernel.takes_bandwidth:
        with pytest.raises(ValueError, match="needs a kernel with bandwidths"):
            fitted(landmarks, X, kernel=kernel)
        return
    features = fitted(landmarks, X, kernel=kernel)
    P, Phi = features.landmarks_, features.transform(X)
    across = kernel.gram(X, P)
    np.testing.assert_allclose(Phi @ Phi.T, across @ np.linalg.pinv(kernel.gram(P, P), 1e-13) @ across.T, atol=1e-6)
    on_landmarks = features.transform(P)
    np.testing.assert_allclose(on_landmarks @ on_landmarks.T, kernel.gram(P, P), atol=1e-8)
    left = kernel.gram(X, X) - Phi @ Phi.T
    assert np.linalg.eigvalsh(left).min() > -1e-8
    assert Phi.shape == (80, features.n_components_)
    assert all(np.any(np.all(p == X, axis=1)) for p in P) == (landmarks != "kmeans")


@pytest.mark.parametrize("landmarks", LANDMARKS)
def test_the_same_seed_makes_the_same_landmarks(landmarks):
    X = rows(300)
    one, again = (fitted(landmarks, X).landmarks_ for _ in range(2))
    np.testing.assert_array_equal(one, again)
    assert np.array_equal(fitted(landmarks, X, seed=1).landmarks_, one) == (
        landmarks in ("greedy", "distinct", "kmeans")
    )


@pytest.mark.parametrize("chosen", ["distinct", "kmeans"])
def test_landmarks_depend_on_the_values_and_weights_of_rows_alone(chosen):
    """Not on their order, repeats instead of weights, or units; random ones do. Centres of clusters go by weights."""
    X, rng = rows(300), np.random.default_rng(0)
    count, units = rng.integers(0, 3, 300), np.array([1e-3, 70.0])
    same = X[rng.permutation(300)], np.vstack([X, X[:100]]), X * units + 5
    for landmarks in (chosen, "uniform"):
        kernel, other = Gaussian([0.4, 0.5]), Gaussian([0.4, 0.5] * units)
        one = fitted(landmarks, X, kernel=kernel).landmarks_
        order, repeats = (fitted(landmarks, rows, kernel=kernel).landmarks_ for rows in same[:2])
        scaled = fitted(landmarks, same[2], kernel=other).landmarks_
        alike = [np.allclose(one, order), np.allclose((scaled - 5) / units, one)]
        assert all(alike) == (landmarks == chosen), landmarks
        assert np.array_equal(one, repeats) == (landmarks == "distinct")
    weighted = fitted(chosen, X, weight=count).landmarks_
    np.testing.assert_allclose(weighted, fitted(chosen, np.repeat(X, count, axis=0)).landmarks_, rtol=1e-12)
    assert not np.array_equal(weighted, fitted(chosen, X).landmarks_)


def test_centres_of_clusters_leave_less_of_the_kernel_than_rows():
    """k-means is at work: a tenth of the rows as centres reproduces the kernel better than as many of the rows."""
    X, kernel = rows(2000), Laplacian(0.5)
    left = {
        landmarks: np.mean(1 - np.sum(fitted(landmarks, X, 100, kernel).transform(X) ** 2, axis=1))
        for landmarks in ("distinct", "kmeans")
    }
    assert left["kmeans"] < 0.95 * left["distinct"], left


def test_curves_are_features_times_coefficients():
    X, new = rows(300), rows(50, seed=1)
    features, coef = fitted("distinct", X), np.random.default_rng(0).standard_normal((20, 3))
    coef = coef[: features.n_components_]
    np.testing.assert_allclose(features.curves(new, coef), features.transform(new) @ coef, atol=1e-7)


def clusters(n=600):
    """Nearly all rows in one spot, a few far away and apart: uniform landmarks miss them."""
    rng = np.random.default_rng(0)
    X = 0.05 * rng.standard_normal((n, 2))
    X[:15] = rng.uniform(1, 6, (15, 2))
    return X


def test_chosen_landmarks_beat_uniform_ones_on_uneven_rows():
    X, kernel = clusters(), Gaussian(0.4)
    K, n = kernel.gram(X, X), len(X)
    left = {}
    for landmarks in LANDMARKS:
        traces = []
        for seed in range(10):
            Phi = fitted(landmarks, X, seed=seed).transform(X)
            traces.append(np.trace(K - Phi @ Phi.T) / n)
        left[landmarks] = np.mean(traces)
    assert left["greedy"] < left["leverage"] < 0.5 * left["uniform"]


def test_recursive_scores_do_not_fall_below_the_true_ones():
    X, kernel, alpha = rows(120), Gaussian(0.4), 1e-3
    share = np.full(120, 1 / 120)
    K = kernel.gram(X, X) / 120
    true = np.diag(K @ np.linalg.inv(K + alpha * np.eye(120)))
    exact = row_leverage_scores(kernel, X, share, X, share, np.ones(120), alpha)
    np.testing.assert_allclose(exact, true, rtol=1e-6)
    few = row_leverage_scores(kernel, X, share, X[:10], share[:10], np.ones(10), alpha)
    assert np.all(few >= true * (1 - 1e-9))
    assert np.any(few > 1.5 * true)


@pytest.mark.parametrize("landmarks", LANDMARKS)
def test_rows_without_weight_are_no_landmarks(landmarks):
    X, weight = rows(200), np.ones(200)
    X[::2] += 10
    weight[::2] = 0
    assert np.all(fitted(landmarks, X, weight=weight).landmarks_ < 5)
    assert np.any(fitted(landmarks, X).landmarks_ > 5), "negative control"


def test_duplicates_leave_no_empty_directions():
    features = fitted("uniform", np.repeat(rows(5), 10, axis=0), size=30)
    assert features.n_components_ <= 5
    assert np.all(np.isfinite(features.transform(rows(4))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"landmarks": "best"}, "Unknown landmarks 'best'.*'greedy'"),
        ({"landmarks": "leverage"}, "needs alpha.*got None"),
        ({"kernel": PeriodicSpline(1)}, "infinite where x = z"),
    ],
)
def test_nonsense_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Nystroem(**settings).fit(rows(5))


def test_predictions_follow_the_coefficients_and_the_landmarks_but_convert_them_once(monkeypatch):
    """A conversion reads the whole projection: for one row that would be most of the time."""
    X = rows(40)
    features, coef = fitted("distinct", X, 12, Laplacian(2.0)), np.random.default_rng(1).standard_normal((12, 3))
    conversions, convert = [], LandmarkPredictor.from_nystroem
    monkeypatch.setattr(
        LandmarkPredictor, "from_nystroem", staticmethod(lambda *both: conversions.append(1) or convert(*both))
    )

    def check():
        np.testing.assert_allclose(features.curves(X[:5], coef), features.transform(X[:5]) @ coef, atol=1e-10)

    check()
    check()
    assert len(conversions) == 1
    coef *= 2  # in place: the same array, other predictions
    check()
    features.fit(X[20:])
    coef = coef[: features.n_components_]
    check()
    assert len(conversions) == 3


@pytest.mark.parametrize("d", [1, 3, 10])
@pytest.mark.parametrize("kernel", [Gaussian(0.7), Laplacian(2.0), Matern(1.5), 0.5 * Gaussian() + 0.5 * Laplacian()])
def test_compiled_distances_have_the_bits_of_others(monkeypatch, kernel, d):
    rng = np.random.default_rng(d)
    X, Z = np.asfortranarray(rng.standard_normal((33, d))), 1e3 * rng.standard_normal((17, d))
    Z[:5] = X[:5]
    monkeypatch.setattr(fourier, "_compiled", None)
    expected = kernel.gram(X, Z)
    fourier.prepare_distances(33, 17, d)
    assert fourier._compiled is None  # so few are not worth loading anything
    fourier.prepare_distances(10**7, 1000, d)
    assert fourier._compiled is not None
    np.testing.assert_array_equal(kernel.gram(X, Z), expected)
