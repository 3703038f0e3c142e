"""Laws of sampling: whatever the kernel and the strategy, phi(x)'phi(z) is K(x, z) on average, and the error falls."""

import numpy as np
import pytest

from quernel.features import SAMPLINGS, RandomFeatures
from quernel.features.sampling import (
    allocate_components,
    inclusion_probabilities,
    leverage_scores,
    orthogonal_normals,
    sample_without_replacement,
)
from quernel.kernels import (
    ArcCosine,
    Cauchy,
    Gaussian,
    Laplacian,
    Linear,
    Matern,
    Periodic,
    PeriodicSpline,
    ShiftInvariantKernel,
    SpectralKernel,
)


def boxes(rng, n_components, n_columns):
    return rng.uniform(-1, 1, (n_columns, n_components))


def sinc(X, Z):
    return np.sinc((X[:, None] - Z[None]) / np.pi).prod(axis=2)


# Each beside a kernel that is not the same.
KERNELS = {
    "gaussian": (Gaussian(0.6), Gaussian(0.8)),
    "per column": (Gaussian([0.3, 0.6, 1.2]), Gaussian(0.6)),
    "laplacian": (Laplacian(0.9), Laplacian(1.4)),
    "matern 1/2": (Matern(0.6, nu=0.5), Matern(0.9, nu=0.5)),
    "matern 3/2": (Matern(0.6), Matern(0.8)),
    "matern 5/2": (Matern(0.6, nu=2.5), Matern(0.8, nu=2.5)),
    "cauchy": (Cauchy(0.6), Cauchy(0.9)),
    "arccosine 0": (ArcCosine(0), 1.2 * ArcCosine(0, bias=1.0)),
    "arccosine 1": (ArcCosine(1), ArcCosine(1, bias=0.5)),
    "arccosine with bias": (ArcCosine(1, bias=1.0), ArcCosine(1, bias=0.5)),
    "spline 4": (PeriodicSpline(4), PeriodicSpline(2.5)),
    "spline 2.5": (PeriodicSpline(2.5), PeriodicSpline(4)),
    "spline, infinite": (PeriodicSpline(np.inf), PeriodicSpline(3)),
    "periodic": (Periodic(0.3, [0.7, 1.5, np.inf]), Periodic(0.3, [1.4, 1.5, np.inf])),
    "sum": (Gaussian(0.6) + 0.5 * Matern(1.0), Gaussian(0.6) + 0.8 * Matern(1.0)),
    "mixed sum": (0.3 * Gaussian(0.6) + ArcCosine(1), 0.6 * Gaussian(0.6) + ArcCosine(1)),
    "own": (SpectralKernel(0.3, boxes, sinc), SpectralKernel(0.4, boxes, sinc)),
}
DRAWS = [
    (name, way)
    for name, (kernel, _) in KERNELS.items()
    for way in SAMPLINGS
    if not any(way in part.refused_samplings for _, part in kernel.summands)
]
SOME = ("gaussian", "laplacian", "matern 3/2", "arccosine 1", "spline 4", "mixed sum")
every_draw = pytest.mark.parametrize(("name", "sampling"), DRAWS)
every_draw_of_some = pytest.mark.parametrize(("name", "sampling"), [case for case in DRAWS if case[0] in SOME])


def columns(name):
    """Splines in one column: products over several have a variance that takes many more draws to average out."""
    return 1 if "spline" in name else 3


def rows(n, d=3, seed=41):
    return np.random.default_rng(seed).uniform(size=(n, d))


def drawn(kernel, n_components, sampling, seed, X, **settings):
    settings = {"leverage_alpha": 1e-2, **settings}
    return RandomFeatures(kernel, n_components, sampling=sampling, random_state=seed, **settings).fit(X)


def pairs(kernel, X, Z):
    return np.array([kernel.gram(x[None], z[None])[0, 0] for x, z in zip(X, Z, strict=True)])


def products(kernel, X, Z, sampling, draws=250, n_components=17, **settings):
    """phi(x)'phi(z) for pairs of rows, one line per independent map; shape (draws, n)."""
    values = []
    for seed in range(draws):
        features = drawn(kernel, n_components, sampling, seed, np.vstack([X, Z]), **settings)
        values.append(np.einsum("ij,ij->i", features.transform(X), features.transform(Z)))
    return np.array(values)


def distance(values, expected):
    """|mean - expected| in standard errors, at its largest."""
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return np.max(np.abs(values.mean(axis=0) - expected) / error)


@every_draw
def test_on_average_the_features_give_the_kernel(name, sampling):
    (kernel, other), X, Z = KERNELS[name], rows(8, columns(name)), rows(8, columns(name), seed=42)
    values = products(kernel, X, Z, sampling)
    assert distance(values, pairs(kernel, X, Z)) < 4.2
    assert distance(values, pairs(other, X, Z)) > 4.5, "negative control"


@pytest.mark.parametrize("scores", ["features", "gram"])
@pytest.mark.parametrize("replacement", [True, False])
def test_every_variant_of_leverage_is_unbiased(scores, replacement):
    kernel, X, Z = Gaussian(0.3), rows(8), rows(8, seed=42)
    values = products(kernel, X, Z, "leverage", 400, scores=scores, replacement=replacement, pool_size=40)
    assert distance(values, pairs(kernel, X, Z)) < 4.2


def test_leverage_without_its_weights_is_biased():
    """Negative control: the sampled features with equal weights do not give the kernel."""
    kernel, X, Z = Gaussian(0.6), rows(8), rows(8, seed=42)
    values = []
    for seed in range(400):
        features = drawn(kernel, 40, "leverage", seed, np.vstack([X, Z]))
        equal = [features.transform(A) / features.weights_ / np.sqrt(40) for A in (X, Z)]
        values.append(np.einsum("ij,ij->i", *equal))
    assert distance(np.array(values), pairs(kernel, X, Z)) > 6


def test_orthogonal_directions_of_the_wrong_length_are_biased():
    """Negative control: a rotation whose columns all have the mean length does not give the Gaussian kernel."""
    X, Z = rows(8), rows(8, seed=42)
    kernel, values = Gaussian(0.6), []
    for seed in range(400):
        normal = orthogonal_normals(np.random.default_rng(seed), 3, 30)
        wrong = normal / np.linalg.norm(normal, axis=0) * np.sqrt(3)
        values.append(np.cos((X - Z) / 0.6 @ wrong).mean(axis=1))
    assert distance(np.array(values), pairs(kernel, X, Z)) > 6


@every_draw_of_some
def test_the_error_falls_with_the_number_of_features(name, sampling):
    (kernel, _), X = KERNELS[name], rows(15, columns(name))
    K = kernel.gram(X, X)

    def error(n_components, target):
        grams = (Phi @ Phi.T for Phi in (drawn(kernel, n_components, sampling, s, X).transform(X) for s in range(60)))
        return np.sqrt(np.mean([np.mean((G - target) ** 2) for G in grams]))

    coarse, fine = error(32, K), error(128, K)
    # Like 1/sqrt(M) where features are independent; no slower elsewhere.
    assert 1.6 < coarse / fine < (2.5 if sampling == "uniform" else 6)
    assert error(32, 2 * K) / error(128, 2 * K) < 1.4, "negative control: it stays away from another kernel"


@pytest.mark.parametrize("d", [5, 20])
@pytest.mark.parametrize("multiple", [2, 4, 10])
def test_orthogonal_and_quasi_random_features_err_less(d, multiple):
    kernel, X, M = Gaussian(np.sqrt(d)), np.random.default_rng(3).standard_normal((40, d)), multiple * d
    K = kernel.gram(X, X)

    def errors(sampling):
        Phis = (drawn(kernel, M, sampling, seed, X).transform(X) for seed in range(100))
        return np.array([np.mean((Phi @ Phi.T - K) ** 2) for Phi in Phis])

    uniform = errors("uniform")
    for sampling, better in (("orthogonal", 0.6), ("qmc", 1.0)):
        ours = errors(sampling)
        noise = np.hypot(uniform.std(), ours.std()) / np.sqrt(100)
        assert ours.mean() + 1.6 * noise < better * uniform.mean(), sampling


@every_draw_of_some
def test_moving_rows_and_center_together_changes_nothing(name, sampling):
    kernel, X = KERNELS[name][0], rows(30, columns(name))
    if name in ("arccosine 1", "spline 4", "mixed sum"):  # no waves, or not only
        centered, plain = (drawn(kernel, 20, sampling, 0, X, center=c) for c in (X.mean(axis=0), None))
        still = np.array([not isinstance(part, ShiftInvariantKernel) for _, part in kernel.summands])
        if sampling != "leverage":
            kept = still[plain.terms_]
            np.testing.assert_array_equal(centered.transform(X)[:, kept], plain.transform(X)[:, kept])
        return
    here, there = (drawn(kernel, 20, sampling, 0, X + c, center=X.mean(axis=0) + c) for c in (0.0, 4.0))
    np.testing.assert_allclose(there.transform(X + 4), here.transform(X), atol=1e-9)
    assert not np.allclose(drawn(kernel, 20, sampling, 0, X).transform(X), here.transform(X)), "negative control"


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "own"])
def test_uniform_features_for_m_are_the_first_of_those_for_more(name):
    """Up to their weights, summand by summand; a user's own sampler may do as it likes."""
    kernel, X = KERNELS[name][0], rows(8, columns(name))
    few, many = (drawn(kernel, M, "uniform", 5, X) for M in (20, 40))
    other = drawn(kernel, 40, "uniform", 6, X)
    for term in range(len(kernel.summands)):
        mine, theirs = few.terms_ == term, many.terms_ == term
        first = np.flatnonzero(theirs)[: mine.sum()]
        np.testing.assert_array_equal(few.frequencies_[:, mine], many.frequencies_[:, first])
        np.testing.assert_array_equal(few.phases_[mine], many.phases_[first])
        assert not np.allclose(few.frequencies_[:, mine], other.frequencies_[:, first])


@every_draw
def test_one_or_two_features_are_possible(name, sampling):
    kernel = KERNELS[name][0]
    M = len(kernel.summands)
    Phi = drawn(kernel, M, sampling, 0, rows(6, columns(name))).transform(rows(6, columns(name)))
    assert Phi.shape == (6, M)
    assert np.all(np.isfinite(Phi))


# Orthogonal and quasi-random


def test_blocks_are_orthogonal_and_lengths_are_those_of_normal_vectors():
    normal = orthogonal_normals(np.random.default_rng(0), 6, 15)
    gram = normal.T @ normal
    for start in (0, 6, 12):
        block = gram[start : start + 6, start : start + 6]
        np.testing.assert_allclose(block, np.diag(np.diag(block)), atol=1e-12)
    assert np.max(np.abs(gram - np.diag(np.diag(gram)))) > 0.1, "only within blocks"
    many = orthogonal_normals(np.random.default_rng(0), 6, 30_000)
    squared = np.sum(many**2, axis=0)
    assert squared.mean() == pytest.approx(6, rel=0.02)
    assert squared.var() == pytest.approx(12, rel=0.05)
    np.testing.assert_allclose(many @ many.T / 30_000, np.eye(6), atol=0.03)


@pytest.mark.parametrize("sampling", ["orthogonal", "qmc"])
def test_waves_come_in_pairs_of_cosine_and_sine(sampling):
    features = drawn(Gaussian(1.0), 9, sampling, 0, rows(4))
    np.testing.assert_array_equal(features.frequencies_[:, 0:8:2], features.frequencies_[:, 1:8:2])
    x = features.transform(rows(4))
    np.testing.assert_allclose(np.sum(x[:, :8] ** 2, axis=1), 8 / 9, rtol=1e-12)


def test_quasi_random_points_are_more_even_than_random_ones():
    """256 frequencies of one column: every 1/16 of the normal law holds 8 of the 128 points, in pairs."""
    from scipy.special import ndtr

    counts = {}
    for sampling in ("qmc", "uniform"):
        w = drawn(Gaussian(1.0), 256, sampling, 0, rows(3, 1)).frequencies_[0]
        counts[sampling] = np.histogram(ndtr(w), bins=16, range=(0, 1))[0]
    assert np.all(counts["qmc"] == 16)
    assert np.ptp(counts["uniform"]) > 4


@pytest.mark.parametrize(
    ("kernel", "sampling", "message"),
    [
        (PeriodicSpline(4), "orthogonal", "uniform on the unit cube.*'qmc'"),
        (Gaussian(1.0) + PeriodicSpline(4), "orthogonal", "uniform on the unit cube.*'qmc'"),
        (SpectralKernel(1.0, boxes), "orthogonal", "sampler only.*'leverage'"),
        (SpectralKernel(1.0, boxes), "qmc", "sampler only.*'uniform'"),
        (Gaussian(1.0) + Linear(), "uniform", "no spectral measure"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_alternatives(kernel, sampling, message):
    with pytest.raises(ValueError, match=message):
        drawn(kernel, 10, sampling, 0, rows(3))


def test_a_sampler_of_the_wrong_shape_is_told_so():
    with pytest.raises(ValueError, match=r"shape \(n_columns, n_components\) = \(3, 10\)"):
        drawn(SpectralKernel(1.0, lambda rng, m, d: rng.random((m, d))), 10, "uniform", 0, rows(3))


# Leverage


def explicit_scores(Phi, share, alpha):
    C = Phi.T @ (share[:, None] * Phi)
    return np.diag(C @ np.linalg.inv(C + alpha * np.eye(len(C))))


@pytest.mark.parametrize("shape", [(30, 12), (12, 30)])
@pytest.mark.parametrize("alpha", [1e-1, 1e-4])
def test_scores_are_the_papers_formula_on_either_side(shape, alpha):
    rng = np.random.default_rng(0)
    Phi, share = rng.standard_normal(shape), rng.dirichlet(np.ones(shape[0]))
    np.testing.assert_allclose(leverage_scores(Phi, share, alpha), explicit_scores(Phi, share, alpha), rtol=1e-8)
    gram = Phi @ Phi.T
    np.testing.assert_allclose(
        leverage_scores(Phi, share, alpha, gram), explicit_scores(Phi, share, alpha), rtol=1e-6, atol=1e-9
    )


def test_scores_from_features_and_from_the_gram_matrix_agree_as_the_pool_grows():
    kernel, X = Gaussian(0.5), rows(60)
    share, apart = np.full(60, 1 / 60), []
    for pool in (100, 1000, 10_000):
        Phi = drawn(kernel, pool, "uniform", 0, X).transform(X)
        by_features = leverage_scores(Phi, share, 1e-3)
        by_gram = leverage_scores(Phi, share, 1e-3, kernel.gram(X, X))
        apart.append(np.mean(np.abs(by_features - by_gram)) / np.mean(by_gram))
    assert apart[0] > 2 * apart[1] > 4 * apart[2]
    assert apart[2] < 0.05


@pytest.mark.parametrize("replacement", [True, False])
def test_weights_are_one_over_the_root_of_the_chance(replacement):
    X, alpha = rows(50), 1e-3
    features = drawn(Gaussian(0.5), 20, "leverage", 5, X, leverage_alpha=alpha, replacement=replacement)
    pool = drawn(Gaussian(0.5), 200, "uniform", 5, X)
    where = [np.flatnonzero(pool.phases_ == phase)[0] for phase in features.phases_]
    np.testing.assert_array_equal(pool.frequencies_[:, where], features.frequencies_)
    score = explicit_scores(pool.transform(X), np.full(50, 1 / 50), alpha)
    q = score / score.sum()
    expected = (
        1 / np.sqrt(200 * 20 * q[where]) if replacement else 1 / np.sqrt(200 * inclusion_probabilities(q, 20)[where])
    )
    np.testing.assert_allclose(features.weights_, expected, rtol=1e-9)
    if not replacement:
        assert len(set(where)) == 20


def test_the_pivotal_method_keeps_every_feature_with_its_chance():
    rng = np.random.default_rng(0)
    q = rng.dirichlet(np.full(30, 0.4))
    chance = inclusion_probabilities(q, 10)
    assert chance.sum() == pytest.approx(10)
    assert chance.max() == 1
    free = chance < 1
    np.testing.assert_allclose(chance[free] / q[free], (chance[free] / q[free])[0])
    counts = np.zeros(30)
    for _ in range(4000):
        index, factor = sample_without_replacement(rng, q, 10)
        assert len(set(index.tolist())) == 10
        np.testing.assert_allclose(factor, 1 / np.sqrt(chance[index]))
        counts[index] += 1
    noise = np.sqrt(np.maximum(chance * (1 - chance), 1e-12) / 4000)
    assert np.all(np.abs(counts / 4000 - chance) < 4 * noise + 1e-9)


def test_sampling_without_replacement_errs_less():
    kernel, X = Gaussian(0.5), rows(40)
    K = kernel.gram(X, X)

    def error(replacement):
        settings = {"replacement": replacement, "pool_size": 60, "leverage_alpha": 1e-3}
        Phis = (drawn(kernel, 30, "leverage", seed, X, **settings).transform(X) for seed in range(100))
        return np.mean([np.mean((Phi @ Phi.T - K) ** 2) for Phi in Phis])

    assert error(False) < 0.9 * error(True)


@pytest.mark.parametrize("simulation", ["homoscedastic", "heteroscedastic"])
@pytest.mark.parametrize("alpha", [1e-2, 1e-3, 1e-4])
def test_leverage_approximates_the_kernel_better_where_the_fit_looks(alpha, simulation):
    """|(K/n + alpha)^-1/2 (K_M - K)/n (K/n + alpha)^-1/2| is smaller than with uniform sampling, M = 20 to 200."""
    from quernel import datasets

    X = getattr(datasets, f"make_{simulation}")(100, random_state=len(simulation)).X
    kernel, n = Gaussian(1.0), len(X)
    K = kernel.gram(X, X) / n
    value, vector = np.linalg.eigh(K)
    root = vector / np.sqrt(value.clip(0) + alpha) @ vector.T
    draws = 100 if alpha == 1e-2 else 30  # few directions count at a large alpha, and the gain is smaller

    def norms(sampling, M):
        Phis = (drawn(kernel, M, sampling, seed, X, leverage_alpha=alpha).transform(X) for seed in range(draws))
        return np.array([np.linalg.norm(root @ (Phi @ Phi.T / n - K) @ root, 2) for Phi in Phis])

    for M in (20, 200):
        uniform, ours = norms("uniform", M), norms("leverage", M)
        noise = np.hypot(uniform.std(), ours.std()) / np.sqrt(draws)
        assert uniform.mean() - ours.mean() > 2 * noise, M


def test_order_and_repetition_of_rows_do_not_matter_to_leverage():
    X, weight = rows(40), np.random.default_rng(0).integers(0, 4, 40)
    order = np.random.default_rng(1).permutation(40)

    def fitted(X, weight=None):
        features = RandomFeatures(Gaussian(0.5), 20, sampling="leverage", leverage_alpha=1e-3, random_state=0)
        return features.fit(X, sample_weight=weight).transform(rows(5, seed=2))

    weighted = fitted(X, weight)
    np.testing.assert_allclose(fitted(X[order], weight[order]), weighted, rtol=1e-9)
    np.testing.assert_allclose(fitted(np.repeat(X, weight, axis=0)), weighted, rtol=1e-9)
    assert not np.allclose(fitted(X), weighted), "negative control"


def test_many_rows_are_thinned_repeatably():
    X = rows(30_000)
    one, other = (drawn(Gaussian(0.5), 10, "leverage", 0, X).weights_ for _ in range(2))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"leverage_alpha": None}, "needs leverage_alpha.*got None"),
        ({"leverage_alpha": -1.0}, "leverage_alpha must be a positive number.*-1"),
        ({"pool_size": 5}, "pool_size must be at least n_components = 10"),
        ({"scores": "rows"}, "Unknown scores 'rows'.*'gram'"),
    ],
)
def test_settings_of_leverage_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        drawn(Gaussian(1.0), 10, "leverage", 0, rows(5), **settings)


def test_gram_scores_need_a_finite_diagonal():
    with pytest.raises(ValueError, match="infinite where x = z"):
        drawn(PeriodicSpline(1.0), 10, "leverage", 0, rows(5), scores="gram")
    assert np.all(np.isfinite(drawn(PeriodicSpline(1.0), 10, "leverage", 0, rows(5)).transform(rows(5))))


# Sums


@pytest.mark.parametrize(
    ("coefficients", "M", "expected"),
    [([1, 1], 10, [5, 5]), ([1, 3], 9, [3, 6]), ([1, 1000], 5, [1, 4]), ([5], 7, [7])],
)
def test_features_are_shared_out_in_proportion(coefficients, M, expected):
    np.testing.assert_array_equal(allocate_components(np.array(coefficients, dtype=float), M), expected)


def test_a_sum_needs_a_feature_for_each_summand():
    with pytest.raises(ValueError, match="sum of 2 kernels needs at least one random feature for each"):
        drawn(Gaussian(1.0) + Matern(1.0), 1, "uniform", 0, rows(3))


def test_a_scaled_kernel_scales_its_features():
    X = rows(5)
    one, scaled = (drawn(kernel, 12, "uniform", 0, X).transform(X) for kernel in (Gaussian(1.0), 4 * Gaussian(1.0)))
    np.testing.assert_allclose(scaled, 2 * one, rtol=1e-14)
