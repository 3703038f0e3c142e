"""The law of the rows as a space of vectors: functions become vectors whose length is their L2 norm.

Two such spaces serve: the Fourier basis, exact for the periodic spline kernel and uniform rows, and the values at a
large sample of rows, for any other kernel and law.
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
    """A law of rows, a kernel and a true quantile function f*."""

    def target(self, X: Array) -> Array:
        """f*(x) for every row, shape (n,)."""

    @property
    def target_vector(self) -> Array:
        """f* as a vector, shape (p,)."""

    @property
    def operator(self) -> Array:
        """L_K as a matrix (p, p): `def1`."""

    def shrunk_target(self, alpha: float) -> Array:
        """(L + alpha I)^-1 L f* as a vector: `defA1`'s f_lambda."""

    def feature_vectors(self, feature_map: FeatureMap) -> Array:
        """The features as vectors, shape (p, M): `defA2`'s S_M."""


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
        """k = 1, ..., n_frequencies."""
        return np.arange(1, self.n_frequencies + 1, dtype=float)

    @cached_property
    def eigenvalues(self) -> Array:
        """|k|^-q in the order of the basis: the constant, the cosines, the sines."""
        mu = self.frequencies ** (-1 / self.gamma)
        return np.concatenate([[1.0], mu, mu])

    @cached_property
    def target_vector(self) -> Array:
        """1 and sqrt2 k^-(r q + 1/2) on the cosines, times the scale."""
        cosines = np.sqrt(2) * self.frequencies ** (-self.r / self.gamma - 1 / 2)
        return self.scale * np.concatenate([[1.0], cosines, np.zeros_like(cosines)])

    @property
    def operator(self) -> Array:
        """L_K, diagonal in the basis."""
        return np.diag(self.eigenvalues)

    @property
    def radius(self) -> float:
        """|h| in f* = L^r h."""
        return float(np.linalg.norm(self.target_vector * self.eigenvalues**-self.r))

    @property
    def kappa(self) -> float:
        """sup |phi| = Lambda_(q/2)(0, 0). Without the cut-off it is infinite from gamma = 1/2 on, against `ass4`."""
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
        """N(alpha); every feature has this leverage, so that it is N_infinity(alpha) too."""
        return float(np.sum(self.eigenvalues / (self.eigenvalues + check_alpha(alpha))))

    def basis(self, X: Array) -> Array:
        """The basis functions at these rows, shape (n, 2 n_frequencies + 1)."""
        angle = 2 * np.pi * np.outer(np.ravel(X), self.frequencies)
        return np.hstack([np.ones((len(angle), 1)), np.sqrt(2) * np.cos(angle), np.sqrt(2) * np.sin(angle)])

    def target(self, X: Array) -> Array:
        """f*(x)."""
        return self.basis(X) @ self.target_vector

    def shrunk_target(self, alpha: float) -> Array:
        """mu / (mu + alpha) times f*, coordinate by coordinate."""
        return self.eigenvalues / (self.eigenvalues + alpha) * self.target_vector

    def feature_vectors(self, feature_map: FeatureMap) -> Array:
        """Fourier coefficients of the features, by a rule that is exact up to the frequencies of the design."""
        grid = np.arange(4 * self.n_frequencies + 2) / (4 * self.n_frequencies + 2)
        return self.basis(grid).T @ feature_map.transform(grid[:, None]) / len(grid)

    def features(self, n_components: int, random_state: int | np.random.Generator | None = None) -> SplineFeatures:
        """phi(x, w) for w uniform on [0, 1]."""
        w = np.random.default_rng(random_state).random(n_components)
        return SplineFeatures(self, w)

    def sample(
        self, n: int, noise: float = 0.1, random_state: int | np.random.Generator | None = None
    ) -> tuple[Array, Array]:
        """Rows (n, 1) and y = f*(x) + noise times a standard normal: f* is the median, and the mean."""
        rng = np.random.default_rng(random_state)
        X = rng.random((n, 1))
        return X, self.target(X) + noise * rng.standard_normal(n)


@dataclass(frozen=True, eq=False)
class SplineFeatures:
    """phi(x, w_j) / sqrt(M) with phi = Lambda_(q/2), cut off like its population."""

    population: SplinePopulation
    w: Array

    @property
    def n_components_(self) -> int:
        """M."""
        return len(self.w)

    def transform(self, X: Array) -> Array:
        """sum over k of |k|^(-q/2) cos(2 pi k (x - w)), constant included, shape (n, M)."""
        # The basis at x, times its values at w scaled by the root of the eigenvalues: cos(a - b) = cos cos + sin sin.
        population = self.population
        at_w = np.sqrt(population.eigenvalues) * population.basis(self.w)
        return population.basis(X) @ at_w.T / np.sqrt(len(self.w))


class SampledPopulation:
    """Any kernel, any f* and any law of rows, known through a large sample: integrals become means over its rows.

    Parameters
    ----------
    kernel : name or kernel object
    quantile : function of X (m, d) that gives f* (m,)
    X : array of shape (m, d), rows drawn from the law, apart from those of the fit and several times as many: the law
        is known to a share sqrt(n / m) of what n rows of a fit miss of it; costs an (m, m) matrix
    """

    def __init__(self, kernel: str | Kernel, quantile: object, X: Array) -> None:
        if not callable(quantile):
            raise ValueError(f"quantile must be a function of X, the true f*; got {quantile!r}.")
        self.kernel, self.quantile, self.X = resolve(kernel), quantile, np.asarray(X, dtype=float)
        if self.X.ndim != 2 or len(self.X) < 2:
            raise ValueError(f"X must have shape (m, d) with two rows or more; got {self.X.shape}.")

    def target(self, X: Array) -> Array:
        """f*(x)."""
        return np.asarray(self.quantile(X), dtype=float)

    @cached_property
    def target_vector(self) -> Array:
        """f* at the sample over sqrt(m)."""
        return self.target(self.X) / np.sqrt(len(self.X))

    @cached_property
    def operator(self) -> Array:
        """L_K, the Gram matrix of the sample over m."""
        return self.kernel.gram(self.X, self.X) / len(self.X)

    def shrunk_target(self, alpha: float) -> Array:
        """(K/m + alpha I)^-1 K/m f*, as f* minus what the ridge takes away."""
        bias = np.linalg.solve(self.operator + alpha * np.eye(len(self.X)), alpha * self.target_vector)
        return self.target_vector - bias

    def feature_vectors(self, feature_map: FeatureMap) -> Array:
        """The features at the sample over sqrt(m)."""
        return feature_map.transform(self.X) / np.sqrt(len(self.X))
