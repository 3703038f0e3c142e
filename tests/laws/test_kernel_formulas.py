"""Laws of the periodic spline kernel, and of arc-cosine kernels, against formulas from elsewhere."""

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad

from quernel.features import RandomFeatures
from quernel.kernels import ArcCosine, Gaussian, Matern, PeriodicSpline, SpectralKernel, Sum
from quernel.kernels.periodic import periodic_sum

ORDERS = [0.5, 0.7, 0.99, 1, 1.001, 1.5, 2, 2.3, 2.5, 3, 3 + 1e-9, 3.02, 4, 5, 5.5, 7.01, 9, 12, 15.7, 19, 19.99, 20]
T = np.array([1e-5, 0.003, 0.1, 0.25, 0.41, 0.5, 0.77, 0.999])


def polylogarithm(order, t):
    """1 + 2 Re Li_s(exp(2 pi i t))."""
    with mpmath.workdps(30):
        return float(1 + 2 * mpmath.re(mpmath.polylog(mpmath.mpf(order), mpmath.exp(2j * mpmath.pi * mpmath.mpf(t)))))


@pytest.mark.parametrize("order", ORDERS)
def test_the_sum_is_a_polylogarithm(order):
    expected = np.array([polylogarithm(order, float(t)) for t in T])
    np.testing.assert_allclose(periodic_sum(order, T), expected, rtol=1e-11, atol=1e-11)
    assert np.max(np.abs(periodic_sum(1.0001 * order, T) - expected)) > 1e-11, "negative control"


@pytest.mark.parametrize("order", [1.1, 1.5, 2, 3, 3.3, 4, 8, 21])
def test_on_the_diagonal_it_is_a_zeta_value(order):
    expected = 1 + 2 * float(mpmath.zeta(order))
    assert periodic_sum(order, np.zeros(1))[0] == pytest.approx(expected, rel=1e-11)
    assert PeriodicSpline(order).diagonal(np.zeros((3, 2))) == pytest.approx(np.full(3, expected**2), rel=1e-11)


@pytest.mark.parametrize(("order", "next_order"), [(1, 2), (1.5, 1.5), (2, 2), (2.5, 3.2), (0.8, 4), (5, np.inf)])
def test_orders_add_under_convolution(order, next_order):
    """int Lambda_q(x - z) Lambda_p(z) dz = Lambda_{q+p}(x), by quadrature."""
    for x in (0.13, 0.4):

        def integrand(z, x=x):
            return float(periodic_sum(order, np.array([x - z]))[0] * periodic_sum(next_order, np.array([z]))[0])

        value = sum(quad(integrand, a, b, epsabs=1e-9, limit=200)[0] for a, b in ((0, x), (x, 1)))
        total = order + next_order
        assert value == pytest.approx(periodic_sum(total, np.array([x]))[0], abs=1e-7)
        assert abs(value - periodic_sum(1.1 * order, np.array([x]))[0]) > 1e-3, "negative control"


def test_infinite_order_leaves_one_wave():
    np.testing.assert_allclose(periodic_sum(np.inf, T), 1 + 2 * np.cos(2 * np.pi * T), rtol=1e-12)
    np.testing.assert_allclose(periodic_sum(60.0, T), 1 + 2 * np.cos(2 * np.pi * T), atol=1e-15)


def test_everything_has_period_one():
    X, kernel = np.random.default_rng(0).random((6, 2)), PeriodicSpline(2.5)
    np.testing.assert_allclose(kernel.gram(X + 3, X - 1), kernel.gram(X, X), atol=1e-9)
    assert not np.allclose(kernel.gram(X + 0.5, X), kernel.gram(X, X))


@pytest.mark.parametrize("order", [0.5, 1])
def test_up_to_order_one_the_diagonal_is_infinite(order):
    kernel, X = PeriodicSpline(order), np.random.default_rng(0).random((5, 1))
    assert np.all(np.isinf(np.diag(kernel.gram(X, X))))
    assert np.all(np.isfinite(kernel.gram(X, X + 0.3)))
    with pytest.raises(ValueError, match=r"infinite where x = z.*order above 1, or random features"):
        kernel.diagonal(X)
    # At a knot the feature has its pole.
    features = RandomFeatures(kernel, 20, random_state=0).fit(X)
    assert np.all(np.isfinite(features.transform(features.frequencies_.T)))


@pytest.mark.parametrize("order", [0, -1.0, np.nan, "4", True, None])
def test_orders_that_make_no_sense_are_refused(order):
    with pytest.raises(ValueError, match="order must be a number above 0"):
        PeriodicSpline(order)


# Arc-cosine


@pytest.mark.parametrize(
    ("order", "activation"), [(0, lambda a: (a > 0).astype(float)), (1, lambda a: np.maximum(a, 0))]
)
@pytest.mark.parametrize("bias", [0.0, 0.7])
def test_arc_cosine_kernels_are_means_over_a_normal_first_layer(order, activation, bias):
    """2 E s(w'x + b) s(w'z + b), by quadrature over the plane of two vectors."""
    x, z = np.array([0.8, -0.3]), np.array([-0.2, 1.1])
    both = np.vstack([np.append(x, bias), np.append(z, bias)])
    triangle = np.linalg.cholesky(both @ both.T)
    radius, weight = np.polynomial.legendre.leggauss(400)
    radius, weight = 6 * (radius + 1), 6 * weight
    angle = (np.arange(20_000) + 0.5) * 2 * np.pi / 20_000
    unit = np.stack([np.cos(angle), np.sin(angle)])
    on_circle = np.mean(activation(triangle[0] @ unit) * activation(triangle[1] @ unit))
    # A product of two activations of order p grows like r^(2p); the length of a normal plane vector has density
    # r exp(-r^2/2).
    expected = 2 * on_circle * np.sum(weight * radius ** (1 + 2 * order) * np.exp(-(radius**2) / 2))
    assert ArcCosine(order, bias=bias).gram(x[None], z[None])[0, 0] == pytest.approx(expected, rel=1e-3)
    assert ArcCosine(order, bias=bias + 0.3).gram(x[None], z[None])[0, 0] != pytest.approx(expected, rel=1e-2)


def test_rows_at_the_origin_have_no_direction():
    X = np.array([[0.0, 0.0], [1.0, 2.0]])
    for order in (0, 1):
        K = ArcCosine(order).gram(X, X)
        np.testing.assert_array_equal(K[0], 0)
        np.testing.assert_allclose(np.diag(K), ArcCosine(order).diagonal(X), rtol=1e-14)


def test_nearly_parallel_rows_keep_their_digits():
    step = 2.0**-30
    K = ArcCosine(0).gram(np.array([[1.0, 0.0]]), np.array([[1.0, step]]))
    assert 1 - K[0, 0] == pytest.approx(step / np.pi, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"), [({"order": 2}, "order must be 0 or 1; got 2"), ({"bias": -1.0}, "bias must be.*got -1")]
)
def test_arc_cosine_kernels_refuse_nonsense(settings, message):
    with pytest.raises(ValueError, match=message):
        ArcCosine(**settings)


# Sums and kernels of one's own


def test_sums_and_multiples_are_what_they_say():
    X, Z = np.random.default_rng(0).random((5, 2)), np.random.default_rng(1).random((4, 2))
    one, other = Gaussian(0.5), Matern(2.0)
    kernel = one + 0.5 * other
    np.testing.assert_allclose(kernel.gram(X, Z), one.gram(X, Z) + 0.5 * other.gram(X, Z), rtol=1e-14)
    np.testing.assert_allclose(kernel.diagonal(X), 1.5, rtol=1e-14)
    np.testing.assert_allclose((np.float64(2) * kernel * 3).gram(X, Z), 6 * kernel.gram(X, Z), rtol=1e-14)
    assert kernel == Gaussian(0.5) + 0.5 * Matern(2.0)
    assert hash(kernel) == hash(Gaussian(0.5) + 0.5 * Matern(2.0))
    assert kernel != one + other
    assert isinstance(kernel + one, Sum)
    assert len((kernel + one).summands) == 3


@pytest.mark.parametrize("number", [0, -1.0, np.inf, np.nan])
def test_only_positive_multiples_are_kernels(number):
    with pytest.raises(ValueError, match="positive finite numbers only"):
        number * Gaussian(1.0)


@pytest.mark.parametrize("nonsense", [lambda: Gaussian(1.0) + 1, lambda: Gaussian(1.0) * Gaussian(1.0)])
def test_kernels_do_not_mix_with_other_things(nonsense):
    with pytest.raises(TypeError):
        nonsense()


def test_open_bandwidths_of_a_sum_are_filled_and_others_stay():
    kernel = Gaussian() + 0.5 * Matern(3.0) + PeriodicSpline(4)
    assert kernel.has_free_bandwidth
    filled = kernel.with_bandwidth(0.25)
    assert not filled.has_free_bandwidth
    assert filled.bandwidth == (0.25, 3.0, None)


def spikes(rng, n_components, n_columns):
    return rng.choice([-1.0, 1.0], (n_columns, n_components))


def test_a_kernel_of_ones_own_needs_a_function_for_its_gram_matrix():
    kernel, X = SpectralKernel(2.0, spikes), np.zeros((2, 1))
    with pytest.raises(ValueError, match=r"no Gram matrix.*function="):
        kernel.gram(X, X)
    known = SpectralKernel(2.0, spikes, lambda X, Z: np.cos(X[:, None] - Z[None])[:, :, 0])
    np.testing.assert_allclose(known.gram(X, X + 2.0), np.cos(1.0))
    assert SpectralKernel(2.0, spikes) == kernel != known
    assert hash(SpectralKernel(2.0, spikes)) == hash(kernel)
    with pytest.raises(ValueError, match="sampler must be a function; got None"):
        SpectralKernel(2.0)
