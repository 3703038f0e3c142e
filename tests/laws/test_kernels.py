"""Laws of every kernel: a Gram matrix it is, and the frequencies it draws are its own."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import Matern as MaternElsewhere
from sklearn.gaussian_process.kernels import RationalQuadratic
from sklearn.metrics.pairwise import laplacian_kernel, linear_kernel, rbf_kernel

from quernel import KernelQuantileRegressor, load, save
from quernel.kernels import KERNELS, Gaussian, Laplacian, Linear, Matern, Periodic, ShiftInvariantKernel, resolve

# Every kernel of the registry as it comes, and the other members of its family.
INSTANCES = {name: kind() for name, kind in KERNELS.items()}
INSTANCES |= {"matern 1/2": Matern(nu=0.5), "matern 5/2": Matern(nu=2.5), "periodic": Periodic(period=5.0)}
SHIFT_INVARIANT = {name: kernel for name, kernel in INSTANCES.items() if isinstance(kernel, ShiftInvariantKernel)}
DIMENSIONS = (1, 4)


def rows(n, d, seed=31):
    return np.random.default_rng(seed).standard_normal((n, d))


def bandwidths(d):
    return {"scalar": 0.7, "per column": np.linspace(0.5, 2, d)}


# Gram matrices


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("name", INSTANCES)
def test_gram_is_symmetric_and_positive_semidefinite_with_its_diagonal(name, d):
    kernel, X = INSTANCES[name], rows(40, d)
    X[7] = X[3]
    K = kernel.gram(X, X)
    np.testing.assert_allclose(K, K.T, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(np.diag(K), kernel.diagonal(X), rtol=1e-13)
    assert np.linalg.eigvalsh(K).min() >= -1e-12 * np.trace(K)
    np.testing.assert_allclose(K[3], K[7], rtol=1e-13)


def test_a_matrix_that_is_no_kernel_fails_the_law():
    """Negative control: "closer than 1.5" is symmetric and has the diagonal 1, but is no kernel."""
    X = rows(40, 4)
    K = (np.linalg.norm(X[:, None] - X[None], axis=-1) < 1.5).astype(float)
    assert np.linalg.eigvalsh(K).min() < -1e-12 * np.trace(K)


@pytest.mark.parametrize("name", INSTANCES)
def test_gram_of_two_sets_is_a_part_of_the_gram_of_both(name):
    kernel, X, Z = INSTANCES[name], rows(9, 3), rows(5, 3, seed=32)
    both = np.vstack([X, Z])
    K = kernel.gram(X, Z)
    assert K.shape == (9, 5)
    np.testing.assert_allclose(K, kernel.gram(both, both)[:9, 9:], rtol=1e-12)


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
def test_bandwidth_divides_the_columns(name):
    kernel, X, Z, width = SHIFT_INVARIANT[name], rows(9, 3), rows(5, 3, seed=32), np.array([0.3, 1.0, 4.0])
    unit = replace(kernel, period=kernel.period / width) if isinstance(kernel, Periodic) else kernel
    np.testing.assert_allclose(
        kernel.with_bandwidth(width).gram(X, Z), unit.with_bandwidth(1.0).gram(X / width, Z / width), rtol=1e-12
    )
    np.testing.assert_array_equal(kernel.gram(X, Z), kernel.with_bandwidth(1.0).gram(X, Z))  # None means 1
    np.testing.assert_allclose(kernel.gram(X + 5, Z + 5), kernel.gram(X, Z), rtol=1e-10)
    assert not np.allclose(kernel.with_bandwidth(width).gram(X, Z), kernel.with_bandwidth(2.0).gram(X, Z))


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
def test_small_distances_keep_their_digits(name):
    """|x|^2 + |z|^2 - 2 x'z would not: 1 - K must be right for rows that nearly coincide, far from the origin."""
    kernel = SHIFT_INVARIANT[name]
    offset, step = 1024.0, 2.0**-20  # exact in binary
    far = kernel.gram(np.array([[offset]]), np.array([[offset + step]]))
    near = kernel.gram(np.array([[0.0]]), np.array([[step]]))
    assert far[0, 0] == near[0, 0] < 1


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
def test_derivatives_by_the_bandwidth_are_those_of_differences(name):
    kernel, X = SHIFT_INVARIANT[name].with_bandwidth([0.5, 1.0, 3.0]), rows(12, 3) + 100
    X[5] = X[4]  # where a rough kernel has its kink
    weight = np.random.default_rng(0).standard_normal((12, 12))
    by_differences = ShiftInvariantKernel.bandwidth_gradient(kernel, X, weight)
    np.testing.assert_allclose(kernel.bandwidth_gradient(X, weight), by_differences, rtol=1e-6, atol=1e-7)
    assert not np.allclose(kernel.with_bandwidth(1.0).bandwidth_gradient(X, weight), by_differences, rtol=0.1)


# The same formulas elsewhere

ELSEWHERE = {
    "gaussian": lambda X, Z, h: rbf_kernel(X, Z, gamma=1 / (2 * h**2)),
    "laplacian": lambda X, Z, h: laplacian_kernel(X, Z, gamma=1 / h),
    "matern": lambda X, Z, h: MaternElsewhere(h, nu=1.5)(X, Z),
    "matern 1/2": lambda X, Z, h: MaternElsewhere(h, nu=0.5)(X, Z),
    "matern 5/2": lambda X, Z, h: MaternElsewhere(h, nu=2.5)(X, Z),
    "cauchy": lambda X, Z, h: RationalQuadratic(length_scale=h / np.sqrt(2), alpha=1.0)(X, Z),
    "linear": lambda X, Z, h: linear_kernel(X, Z),
}


@pytest.mark.parametrize("bandwidth", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_gram_equals_scikit_learns(name, bandwidth):
    kernel, X, Z = INSTANCES[name], rows(12, 3), rows(8, 3, seed=33)
    if name in SHIFT_INVARIANT:
        kernel = kernel.with_bandwidth(bandwidth)
    np.testing.assert_allclose(kernel.gram(X, Z), ELSEWHERE[name](X, Z, bandwidth), rtol=1e-10)
    if name in SHIFT_INVARIANT:  # negative control
        assert not np.allclose(kernel.gram(X, Z), ELSEWHERE[name](X, Z, 1.1 * bandwidth), rtol=1e-2)


# Bochner


def farthest(kernel, frequencies, X, Z):
    """|mean cos(w'(x - z)) - K(x, z)| in standard errors, at its largest."""
    waves = np.cos((X - Z) @ frequencies)
    error = waves.std(axis=1, ddof=1) / np.sqrt(waves.shape[1])
    expected = np.array([kernel.gram(x[None], z[None])[0, 0] for x, z in zip(X, Z, strict=True)])
    return np.max(np.abs(waves.mean(axis=1) - expected) / error)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("which", ["scalar", "per column"])
@pytest.mark.parametrize("name", SHIFT_INVARIANT)
def test_the_mean_wave_is_the_kernel(name, which, d):
    kernel = SHIFT_INVARIANT[name].with_bandwidth(bandwidths(d)[which])
    X, Z = rows(10, d), rows(10, d) + 0.5 * rows(10, d, seed=34)
    frequencies = kernel.frequencies(np.random.default_rng(35), 40_000, d)
    assert frequencies.shape == (d, 40_000)
    assert farthest(kernel, frequencies, X, Z) < 4
    wrong = kernel.with_bandwidth(1.2 * np.asarray(kernel.bandwidth))
    assert farthest(kernel, wrong.frequencies(np.random.default_rng(35), 40_000, d), X, Z) > 6, "negative control"


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
def test_frequencies_repeat_with_the_generator(name):
    first, again, other = (
        SHIFT_INVARIANT[name].frequencies(np.random.default_rng(seed), 7, 3) for seed in (36, 36, 37)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


# Refusals


@pytest.mark.parametrize("bandwidth", [0, -1.0, np.inf, np.nan, [], [1.0, 0.0], [[1.0]]])
@pytest.mark.parametrize("name", SHIFT_INVARIANT)
def test_bandwidths_that_make_no_sense_are_refused(name, bandwidth):
    with pytest.raises(ValueError, match="bandwidth must be positive"):
        SHIFT_INVARIANT[name].with_bandwidth(bandwidth)


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
def test_one_bandwidth_per_column_or_none(name):
    kernel = SHIFT_INVARIANT[name].with_bandwidth([1.0, 2.0])
    with pytest.raises(ValueError, match=r"2 entries but X has 3 columns"):
        kernel.gram(rows(4, 3), rows(4, 3))
    with pytest.raises(ValueError, match=r"2 entries but X has 3 columns"):
        kernel.frequencies(np.random.default_rng(0), 5, 3)


@pytest.mark.parametrize("nu", [1, 0, 3.5, -0.5, np.inf])
def test_matern_names_its_smoothnesses(nu):
    with pytest.raises(ValueError, match=r"nu must be 0\.5, 1\.5 or 2\.5"):
        Matern(nu=nu)


def test_periodic_features_and_kernel_repeat_after_a_period():
    kernel, X = Periodic([3.0, 2.0], period=[24.0, np.inf]), rows(6, 2)
    for shift, same in (([24.0, 0.0], True), ([12.0, 0.0], False), ([0.0, 24.0], False)):
        frequencies = kernel.frequencies(np.random.default_rng(0), 50, 2)
        waves, shifted = (kernel.wave(Z, frequencies, np.zeros(50)) for Z in (X, X + shift))
        assert np.allclose(waves, shifted) == same
        assert np.allclose(kernel.gram(X, X), kernel.gram(X + shift, X)) == same


def test_without_a_period_a_column_has_the_gaussian_kernel():
    X, Z = rows(9, 3), rows(5, 3, seed=32)
    np.testing.assert_allclose(Periodic(0.7).gram(X, Z), Gaussian(0.7).gram(X, Z), rtol=1e-12)
    np.testing.assert_allclose(Periodic(0.7, 1e6).gram(X, Z), Gaussian(0.7).gram(X, Z), rtol=1e-6)
    assert not np.allclose(Periodic(0.7, 5.0).gram(X, Z), Gaussian(0.7).gram(X, Z), rtol=0.01)


@pytest.mark.parametrize("period", [0, -1.0, np.nan, [], [[1.0]], "day"])
def test_periods_that_make_no_sense_are_refused(period):
    with pytest.raises(ValueError, match="period must be positive"):
        Periodic(1.0, period)
    with pytest.raises(ValueError, match="period has 2 entries but X has 3 columns"):
        Periodic(1.0, [1.0, 2.0]).gram(rows(4, 3), rows(4, 3))


@pytest.mark.parametrize("unknown", ["rbf", "", 3, None])
def test_an_unknown_kernel_is_answered_with_the_known_ones(unknown):
    with pytest.raises(ValueError, match="Unknown kernel") as caught:
        resolve(unknown)
    assert all(repr(name) in str(caught.value) for name in KERNELS)


@pytest.mark.parametrize("name", KERNELS)
def test_names_and_objects_resolve(name):
    assert resolve(name) == KERNELS[name]()
    kernel = KERNELS[name]()
    assert resolve(kernel) is kernel


# Values


def twins():
    for name in SHIFT_INVARIANT:
        # The numbers are made anew in every call, as they are when a kernel is read from a file.
        for text in ("2.5", "1e300", "[0.5, 1.25]"):

            def make(name=name, text=text):
                width = np.array([float(part) for part in text.strip("[]").split(",")])
                return SHIFT_INVARIANT[name].with_bandwidth(width if text.startswith("[") else float(width[0]))

            yield pytest.param(make, id=f"{name} {text}")


@pytest.mark.parametrize("make", list(twins()))
def test_kernels_of_the_same_numbers_are_equal(make):
    assert make() == make()


@pytest.mark.parametrize("make", list(twins()))
def test_equal_kernels_hash_alike(make):
    one, other = make(), make()
    assert hash(one) == hash(other)
    assert len({one, other}) == 1


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
def test_a_list_an_array_and_a_tuple_are_the_same_bandwidth(name):
    one, other, third = same_bandwidth(name)
    assert one == other == third


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
def test_a_list_an_array_and_a_tuple_hash_alike(name):
    assert len({hash(kernel) for kernel in same_bandwidth(name)}) == 1


def same_bandwidth(name):
    widths = ([1.0, 2.0], (1.0, 2.0), np.array([1.0, 2.0]))
    return [SHIFT_INVARIANT[name].with_bandwidth(width) for width in widths]


def test_different_kernels_differ():
    assert Gaussian(1.0) != Gaussian(2.0)
    assert Gaussian(1.0) != Laplacian(1.0)
    assert Gaussian([1.0, 2.0]) != Gaussian([1.0, 3.0])
    assert Gaussian([1.0, 2.0]) != Gaussian(1.0)
    assert Gaussian() != Gaussian(1.0)
    assert Matern(1.0, nu=0.5) != Matern(1.0, nu=1.5)
    assert Linear() != Gaussian()


@pytest.mark.parametrize("name", INSTANCES)
def test_pickles_keep_the_kernel(name):
    kernel = INSTANCES[name]
    if name in SHIFT_INVARIANT:
        kernel = kernel.with_bandwidth(np.array([0.5, 1.0, 2.0]))
    again = pickle.loads(pickle.dumps(kernel))
    assert again == kernel
    np.testing.assert_array_equal(again.gram(rows(5, 3), rows(4, 3)), kernel.gram(rows(5, 3), rows(4, 3)))


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
def test_kernels_are_frozen(name):
    with pytest.raises(AttributeError):
        SHIFT_INVARIANT[name].bandwidth = 3.0


def test_models_with_periods_are_saved(tmp_path):
    X = rows(80, 2)
    kernel = Periodic([1.0, 2.0], period=[3.0, np.inf])
    model = KernelQuantileRegressor(0.5, kernel=kernel, n_components=20, alpha=1e-3, random_state=0).fit(X, X[:, 0])
    save(model, tmp_path / "m.quernel")
    again = load(tmp_path / "m.quernel")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_allclose(again.predict(X + np.array([3.0, 0.0])), model.predict(X), atol=1e-9)
