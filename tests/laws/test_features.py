"""Laws of the feature maps: phi(x)'phi(z) is the kernel, on average or up to a residual that is known."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from quernel.features import SAMPLINGS, Nystroem, PivotedCholesky, PrecomputedFeatures, RandomFeatures
from quernel.kernels import KERNELS, Gaussian, Laplacian, Linear, Matern, RandomFeatureKernel, ShiftInvariantKernel

DRAWABLE = [name for name, kind in KERNELS.items() if issubclass(kind, RandomFeatureKernel)]
every_draw = pytest.mark.parametrize(
    ("kernel", "sampling"),
    [(name, way) for name in DRAWABLE for way in SAMPLINGS if way not in KERNELS[name].refused_samplings],
)


def rows(n, d=3, seed=41):
    return np.random.default_rng(seed).uniform(size=(n, d))


# Random features


def drawn(kernel="gaussian", n_components=50, seed=0, X=None, **kwargs):
    features = RandomFeatures(kernel, n_components, random_state=seed, leverage_alpha=1e-3, **kwargs)
    return features.fit(rows(2) if X is None else X)


@every_draw
def test_random_features_have_the_promised_shape_and_size(kernel, sampling):
    X = rows(20, 4)
    features = drawn(kernel, 31, X=X, sampling=sampling)
    Phi = features.transform(X)
    assert Phi.shape == (20, 31)
    assert features.n_components_ == 31
    assert np.all(np.isfinite(Phi))
    if issubclass(KERNELS[kernel], ShiftInvariantKernel):
        assert np.all(np.abs(Phi) <= np.sqrt(2) * features.weights_ * (1 + 1e-15))
    if sampling != "leverage":
        np.testing.assert_allclose(features.weights_, 1 / np.sqrt(31), rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_floating_type_is_kept(dtype):
    features = drawn()
    Phi = features.transform(rows(30).astype(dtype))
    assert Phi.dtype == dtype
    np.testing.assert_allclose(Phi, features.transform(rows(30)), atol=1e-5 if dtype == np.float32 else 0)


def test_whole_numbers_become_doubles_and_x_is_left_alone():
    X = np.arange(12).reshape(4, 3)
    before = X.copy()
    Phi = drawn().transform(X)
    assert Phi.dtype == np.float64
    np.testing.assert_array_equal(Phi, drawn().transform(X.astype(float)))
    np.testing.assert_array_equal(X, before)


def test_what_was_drawn_is_frozen():
    features = drawn()
    for array in (features.frequencies_, features.phases_, features.weights_):
        with pytest.raises(ValueError, match="read-only"):
            array[..., 0] = 1.0


@every_draw
def test_the_same_seed_makes_the_same_map(kernel, sampling):
    X = rows(15)
    first, again, other = (drawn(kernel, seed=seed, sampling=sampling).transform(X) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_values_of_x_enter_the_draw_by_leverage_only(sampling):
    one, other = (drawn(X=X, sampling=sampling).transform(rows(5)) for X in (rows(3), 100 * rows(50, seed=1)))
    assert np.array_equal(one, other) == (sampling != "leverage")


def test_generators_and_older_random_states_are_sources_too():
    for make in (np.random.default_rng, np.random.RandomState):
        one, other = (drawn(seed=make(5)).transform(rows(5)) for _ in range(2))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_row_by_row_is_the_same_as_all_at_once(sampling):
    X, features = rows(25), drawn(sampling=sampling)
    single = np.vstack([features.transform(x[None]) for x in X])
    np.testing.assert_allclose(single, features.transform(X), rtol=0, atol=1e-14)


def test_random_features_refuse_what_they_cannot_draw():
    with pytest.raises(ValueError, match=r"no spectral measure.*'gaussian'"):
        RandomFeatures(Linear()).fit(rows(3))
    with pytest.raises(ValueError, match=r"Unknown sampling 'sobol'.*'uniform'"):
        RandomFeatures(sampling="sobol").fit(rows(3))
    with pytest.raises(ValueError, match="Unknown kernel"):
        RandomFeatures("rbf").fit(rows(3))


# Both


MAPS = {
    "random": RandomFeatures(Gaussian(0.5), 40, random_state=1),
    "cholesky": PivotedCholesky(Gaussian(0.5), tol=1e-6),
    "nystroem": Nystroem(Gaussian(0.5), 15, random_state=1),
    "ready": PrecomputedFeatures(),
}


@pytest.mark.parametrize("name", MAPS)
def test_clones_are_unfitted_and_alike_and_pickles_are_fitted(name):
    X = rows(40)
    fitted = clone(MAPS[name]).fit(X)
    assert not hasattr(clone(fitted), "n_components_")
    np.testing.assert_array_equal(clone(fitted).fit(X).transform(X), fitted.transform(X))
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(X), fitted.transform(X))
    assert again.n_components_ == fitted.n_components_ == fitted.transform(X).shape[1]


def test_ready_features_are_the_columns_themselves():
    X = rows(6)
    assert PrecomputedFeatures().fit(X).transform(X) is X


# Pivoted Cholesky

EXACT = {
    "gaussian": Gaussian(0.5),
    "wide gaussian": Gaussian(3.0),
    "laplacian": Laplacian(0.5),
    "matern": Matern(0.5, nu=2.5),
    "linear": Linear(),
} | {f"default {name}": kind() for name, kind in KERNELS.items()}


@pytest.mark.parametrize("tol", [1e-1, 1e-4, 1e-8, 0])
@pytest.mark.parametrize("name", EXACT)
def test_what_is_left_is_positive_semidefinite_and_its_trace_is_known(name, tol):
    kernel, X = EXACT[name], rows(70)
    cholesky = PivotedCholesky(kernel, tol=tol)
    G = cholesky.fit_transform(X)
    K = kernel.gram(X, X)
    E, size = K - G @ G.T, np.trace(K)
    assert np.linalg.eigvalsh((E + E.T) / 2).min() >= -1e-13 * size
    assert cholesky.residual_trace_ == pytest.approx(np.trace(E), rel=1e-9, abs=1e-13 * size)
    np.testing.assert_allclose(cholesky.residual_, np.diag(E), atol=1e-14 * size)
    assert cholesky.residual_trace_ <= max(tol, 1e-13) * size
    assert G.shape == (70, cholesky.n_components_)


def test_a_factor_of_another_kernel_fails_the_law():
    """Negative control: what is left of the wrong kernel is not positive semidefinite."""
    X = rows(70)
    G = PivotedCholesky(Gaussian(0.5), tol=1e-6).fit_transform(X)
    K = Gaussian(0.55).gram(X, X)
    assert np.linalg.eigvalsh(K - G @ G.T).min() < -1e-3
    assert abs(np.trace(K - G @ G.T)) <= 1e-5 * 70  # the trace alone would not have told


@pytest.mark.parametrize("name", EXACT)
def test_transform_of_the_training_rows_is_fit_transform(name):
    X = rows(120)
    cholesky = PivotedCholesky(EXACT[name], tol=1e-8)
    G = cholesky.fit_transform(X)
    np.testing.assert_allclose(cholesky.transform(X), G, atol=1e-6)
    np.testing.assert_array_equal(clone(cholesky).fit(X).transform(X[:5]), cholesky.transform(X[:5]))


def test_new_rows_meet_the_kernel_with_the_training_rows():
    """phi(x)'phi(z) = K(x, z) nearly, for x unseen, where the kernel is smooth."""
    X, Z, kernel = rows(300), rows(20, seed=43), Gaussian(1.0)
    cholesky = PivotedCholesky(kernel, tol=1e-12).fit(X)
    gram = cholesky.transform(Z) @ cholesky.transform(X).T
    np.testing.assert_allclose(gram, kernel.gram(Z, X), atol=1e-5)
    loose = PivotedCholesky(kernel, tol=1e-2).fit(X)  # negative control
    assert np.max(np.abs(loose.transform(Z) @ loose.transform(X).T - kernel.gram(Z, X))) > 1e-3


@pytest.mark.parametrize("name", ["gaussian", "laplacian", "linear"])
def test_duplicates_add_no_rank(name):
    X = rows(40)
    once = PivotedCholesky(EXACT[name], tol=0).fit(X)
    cholesky = PivotedCholesky(EXACT[name], tol=0)
    G = cholesky.fit_transform(np.repeat(X, 3, axis=0))
    assert cholesky.n_components_ <= once.n_components_ + 2  # rounding decides about the last pivots
    assert cholesky.n_components_ <= 40
    np.testing.assert_allclose(G[::3], G[1::3], atol=1e-12)
    assert len(np.unique(cholesky.landmarks_, axis=0)) == cholesky.n_components_


def half_without_weight(n=80):
    """Every second row has no weight, and lies far away: with weight it would be a landmark at once."""
    X, weight = rows(n), np.ones(n)
    weight[::2] = 0
    X[::2] += 10
    return X, weight


def test_rows_without_weight_do_not_count():
    (X, weight), kernel = half_without_weight(), Laplacian(0.5)
    cholesky = PivotedCholesky(kernel, tol=1e-10)
    G = cholesky.fit_transform(X, sample_weight=weight)
    kept = weight > 0
    np.testing.assert_allclose(G[kept] @ G[kept].T, kernel.gram(X[kept], X[kept]), atol=1e-9)
    assert weight @ cholesky.residual_ <= 1e-10 * weight.sum()


def test_rows_without_weight_are_no_landmarks():
    X, weight = half_without_weight()
    cholesky = PivotedCholesky(Laplacian(0.5), tol=1e-10).fit(X, sample_weight=weight)
    assert np.any(PivotedCholesky(Laplacian(0.5), tol=1e-10).fit(X).landmarks_ > 5), "negative control"
    assert np.all(cholesky.landmarks_ < 5)
    assert cholesky.n_components_ == 40


def test_the_tolerance_is_on_the_weighted_mean():
    """Light rows may be left out longer than heavy ones."""
    X, kernel = rows(100), Laplacian(0.5)
    weight = np.where(np.arange(100) < 30, 1.0, 1e-6)
    cholesky = PivotedCholesky(kernel, tol=0.3).fit(X, sample_weight=weight)
    assert weight @ cholesky.residual_ <= 0.3 * weight.sum()
    equal = PivotedCholesky(kernel, tol=0.3).fit(X)
    assert equal.residual_.mean() <= 0.3


def test_smooth_kernels_need_few_landmarks_and_rough_ones_all():
    X = rows(1000)
    smooth = PivotedCholesky(Gaussian(1.0), tol=1e-8).fit(X)
    assert smooth.n_components_ < 150
    more = PivotedCholesky(Gaussian(1.0), tol=1e-8).fit(rows(3000))
    assert more.n_components_ < 1.25 * smooth.n_components_, "the rank depends on the kernel, not on n"
    rough = PivotedCholesky(Laplacian(1.0), tol=1e-8).fit(X[:300])
    assert rough.n_components_ == 300


@pytest.mark.parametrize("limit", [1, 7, 33, 64])
def test_max_components_is_respected(limit):
    cholesky = PivotedCholesky(Laplacian(0.5), tol=1e-12, max_components=limit)
    G = cholesky.fit_transform(rows(90))
    assert G.shape == (90, limit)
    assert cholesky.n_components_ == limit
    assert cholesky.transform(rows(4, seed=44)).shape == (4, limit)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_very_few_rows(n):
    X = rows(n)
    cholesky = PivotedCholesky(Gaussian(0.5))
    np.testing.assert_allclose(cholesky.fit_transform(X) @ cholesky.transform(X).T, Gaussian(0.5).gram(X, X), atol=1e-9)
