"""Distributions of rows with a kernel and a true function f*, in coordinates in which Euclidean norms are L2 norms.

Two representations: Fourier coefficients, exact for the periodic spline kernel and uniform rows (`SplinePopulation`),
and values at a large sample of rows over the root of its size, for any kernel and distribution (`SampledPopulation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quernel.data.design_matrix import FeatureMap
from quernel.kernels import Kernel, resolve
from quernel.theory.dimensions import check_alpha

Array = NDArray[np.floating]


class Population(Protocol):
    """Protocol of a population: a distribution of rows, a kernel and a true quantile function f*."""

    def target(self, X: Array) -> Array:
        """True function f*(x) at these rows, shape (n,)."""

    @property
    def target_vector(self) -> Array:
        """f* as a vector of shape (p,)."""

    @property
    def operator(self) -> Array:
        """Integral operator L_K of the kernel as a matrix (p, p): `def1`."""

    def shrunk_target(self, alpha: float) -> Array:
        """Kernel ridge regression of f* over the distribution, (L + alpha I)^-1 L f*: `defA1`'s f_lambda."""

    def feature_vectors(self, feature_map: FeatureMap) -> Array:
        """The features as vectors, one column each, shape (p, M): `defA2`'s S_M."""


@dataclass(frozen=True)
class SplinePopulation:
    """The paper's spline design, cut off after some frequencies: x uniform on [0, 1], q = 1 / gamma, and

        K = Lambda_q,  phi(x, w) = Lambda_(q/2)(x, w),  f*(x) = scale Lambda_(r q + 1/2)(x, 0),
        Lambda_s(x, z) = sum over |k| <= n_frequencies of |k|^-s e^(2 pi i k (x - z)),  |0|^-s read as 1.

    The basis 1, sqrt2 cos(2 pi k x), sqrt2 sin(2 pi k x) diagonalises L, so that all L2 norms are exact for the design
    as it is cut off; `target_tail` bounds what f* loses by that, and `dimension_tail` what N does. Capacity and
    compatibility exponent are gamma. f* has every source exponent below r, and r itself but for a logarithm: |h|, the
    `radius`, grows like sqrt(2 log n_frequencies).
    """

    r: float
    gamma: float
    n_frequencies: int = 200
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.r < np.inf and 0 < self.gamma <= 1 and self.n_frequencies >= 1 and 0 < self.scale < np.inf):
            raise ValueError(
                "SplinePopulation needs r >= 0, gamma in (0, 1], n_frequencies >= 1 and a positive scale; got "
                f"r={self.r!r}, gamma={self.gamma!r}, n_frequencies={self.n_frequencies!r}, scale={self.scale!r}."
            )

    @cached_property
    def frequencies(self) -> Array:
        """Frequencies k = 1, ..., n_frequencies."""
        return np.arange(1, self.n_frequencies + 1, dtype=float)

    @cached_property
    def eigenvalues(self) -> Array:
        """Eigenvalues |k|^-q of L in the order of the basis: constant, cosines, sines."""
        mu = self.frequencies ** (-1 / self.gamma)
        return np.concatenate([[1.0], mu, mu])

    @cached_property
    def target_vector(self) -> Array:
        """Fourier coefficients of f*: scale, and scale sqrt2 k^-(r q + 1/2) on the cosines."""
        cosines = np.sqrt(2) * self.frequencies ** (-self.r / self.gamma - 1 / 2)
        return self.scale * np.concatenate([[1.0], cosines, np.zeros_like(cosines)])

    @property
    def operator(self) -> Array:
        """Integral operator L_K, diagonal in the Fourier basis."""
        return np.diag(self.eigenvalues)

    @property
    def radius(self) -> float:
        """|h| in the source condition f* = L^r h."""
        return float(np.linalg.norm(self.target_vector * self.eigenvalues**-self.r))

    @property
    def kappa(self) -> float:
        """Bound on the features, sup |phi| = Lambda_(q/2)(0, 0).

        Without the cut-off it is infinite from gamma = 1/2 on, where `ass4` fails.
        """
        return float(1 + 2 * np.sum(self.frequencies ** (-1 / (2 * self.gamma))))

    @property
    def target_tail(self) -> float:
        """Bound on the L2 norm of the frequencies left out of f*: scale sqrt(gamma/r) n_frequencies^(-r/gamma)."""
        if self.r == 0:
            return np.inf
        return float(self.scale * np.sqrt(self.gamma / self.r) * self.n_frequencies ** (-self.r / self.gamma))

    def dimension_tail(self, alpha: float) -> float:
        """Bound on what the frequencies left out would add to N(alpha): their trace over alpha."""
        if self.gamma == 1:
            return np.inf
        return 2 * self.n_frequencies ** (1 - 1 / self.gamma) / ((1 / self.gamma - 1) * alpha)

    def effective_dimension(self, alpha: float) -> float:
        """N(alpha); all features have this leverage, so that N_infinity(alpha) is the same."""
        return float(np.sum(self.eigenvalues / (self.eigenvalues + check_alpha(alpha))))

    def basis(self, X: Array) -> Array:
        """Orthonormal Fourier basis at these rows, shape (n, 2 n_frequencies + 1)."""
        angle = 2 * np.pi * np.outer(np.ravel(X), self.frequencies)
        return np.hstack([np.ones((len(angle), 1)), np.sqrt(2) * np.cos(angle), np.sqrt(2) * np.sin(angle)])

    def target(self, X: Array) -> Array:
        """True function f*(x) at these rows, shape (n,)."""
        return self.basis(X) @ self.target_vector

    def shrunk_target(self, alpha: float) -> Array:
        """mu / (mu + alpha) times the coefficients of f*: L is diagonal."""
        return self.eigenvalues / (self.eigenvalues + alpha) * self.target_vector

    def feature_vectors(self, feature_map: FeatureMap) -> Array:
        """Fourier coefficients of the features, shape (p, M).

        By the trapezoidal rule on the circle, which is exact up to the frequencies of the design.
        """
        grid = np.arange(4 * self.n_frequencies + 2) / (4 * self.n_frequencies + 2)
        return self.basis(grid).T @ feature_map.transform(grid[:, None]) / len(grid)

    def features(self, n_components: int, random_state: int | np.random.Generator | None = None) -> SplineFeatures:
        """Random features phi(x, w) with w uniform on [0, 1]."""
        w = np.random.default_rng(random_state).random(n_components)
        return SplineFeatures(self, w)

    def sample(
        self, n: int, noise: float = 0.1, random_state: int | np.random.Generator | None = None
    ) -> tuple[Array, Array]:
        """Draw rows (n, 1) and y = f*(x) + noise e, e standard normal: f* is both median and mean."""
        rng = np.random.default_rng(random_state)
        X = rng.random((n, 1))
        return X, self.target(X) + noise * rng.standard_normal(n)


@dataclass(frozen=True, eq=False)
class SplineFeatures:
    """Random features phi(x, w_j) / sqrt(M) with phi = Lambda_(q/2), cut off like their population."""

    population: SplinePopulation
    w: Array

    @property
    def n_components_(self) -> int:
        """Number of features M."""
        return len(self.w)

    def transform(self, X: Array) -> Array:
        """sum over k of |k|^(-q/2) cos(2 pi k (x - w_j)) / sqrt(M), the constant included, shape (n, M)."""
        # The basis at x, times its values at w scaled by the root of the eigenvalues: cos(a - b) = cos cos + sin sin.
        population = self.population
        at_w = np.sqrt(population.eigenvalues) * population.basis(self.w)
        return population.basis(X) @ at_w.T / np.sqrt(len(self.w))


class SampledPopulation:
    """Any kernel, f* and distribution of rows, known through a large sample: integrals become means over its rows.

    Parameters
    ----------
    kernel : str or Kernel
    quantile : callable
        X of shape (m, d) to f*, shape (m,).
    X : ndarray of shape (m, d)
        Rows drawn from the distribution, independent of those of the fit and several times as many: the error of this
        quadrature is about sqrt(n / m) of what n rows of a fit miss of it. Costs an (m, m) matrix.
    """

    def __init__(self, kernel: str | Kernel, quantile: object, X: Array) -> None:
        if not callable(quantile):
            raise ValueError(f"quantile must be a function of X, the true f*; got {quantile!r}.")
        self.kernel, self.quantile, self.X = resolve(kernel), quantile, np.asarray(X, dtype=float)
        if self.X.ndim != 2 or len(self.X) < 2:
            raise ValueError(f"X must have shape (m, d) with two rows or more; got {self.X.shape}.")

    def target(self, X: Array) -> Array:
        """True function f*(x) at these rows, shape (n,)."""
        return np.asarray(self.quantile(X), dtype=float)

    @cached_property
    def target_vector(self) -> Array:
        """Values of f* at the sample over sqrt(m)."""
        return self.target(self.X) / np.sqrt(len(self.X))

    @cached_property
    def operator(self) -> Array:
        """Integral operator L_K: the Gram matrix of the sample over m."""
        return self.kernel.gram(self.X, self.X) / len(self.X)

    def shrunk_target(self, alpha: float) -> Array:
        """(K/m + alpha I)^-1 K/m f*, computed as f* minus the bias of the ridge penalty."""
        bias = np.linalg.solve(self.operator + alpha * np.eye(len(self.X)), alpha * self.target_vector)
        return self.target_vector - bias

    def feature_vectors(self, feature_map: FeatureMap) -> Array:
        """Features at the sample over sqrt(m), shape (m, M)."""
        return feature_map.transform(self.X) / np.sqrt(len(self.X))
