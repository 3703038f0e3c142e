"""Random features: for shift-invariant kernels the random Fourier features sqrt(2 / M) cos(w'x + b).

And `PrecomputedFeatures`, for the linear kernel, which needs no random ones.
"""

from __future__ import annotations

from numbers import Real
from types import ModuleType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from quernel._machine import blocks, parallel_map, single_threaded_blas, strips
from quernel._validation import check_choice
from quernel.features.sampling import (
    POOL_FACTOR,
    SAMPLINGS,
    SCORES,
    STRATEGIES,
    Draw,
    draw_features,
    leverage_probabilities,
    sample_with_replacement,
    sample_without_replacement,
)
from quernel.kernels import KERNELS, Kernel, RandomFeatureKernel, ShiftInvariantKernel, fourier, resolve
from quernel.kernels.base import Seed, as_generator

Array = NDArray[np.floating]

# Entries of Phi from which loading the compiled cosine pays: below, numpy takes less time than importing numba does.
COMPILE_FROM = 3_000_000
# Columns of X up to which the cosine computes X @ frequencies itself, compiled faster than a matrix product in memory.
MAX_FUSED_COLUMNS = 8


class RandomFeatures(TransformerMixin, BaseEstimator):
    """Approximate a kernel by random features (Rahimi and Recht, 2007).

    For a shift-invariant kernel these are  phi(x) = sqrt(2 / M) (cos(w_1'x + b_1), ..., cos(w_M'x + b_M)),  the paper's
    features, with frequencies w drawn from the kernel's spectral measure and phases b uniform on [0, 2 pi), so that
    E phi(x)'phi(z) = K(x, z). Other kernels have features of their own (rectified linear units, splines), and a sum of
    kernels concatenates those of its summands. Everything is drawn once, by `fit`, and read-only from then on.

    Parameters
    ----------
    kernel : str or kernel object, default="gaussian"
        Any kernel but the linear one. A bandwidth that the object leaves open is 1.
    n_components : int, default=100
        The number of features, the paper's M.
    sampling : {"uniform", "orthogonal", "qmc", "leverage"}, default="uniform"
        All are unbiased for the kernel. "uniform" draws independent frequencies from the spectral measure; "orthogonal"
        makes them orthogonal within blocks and "qmc" takes them from a scrambled Sobol sequence, both with a smaller
        error; "leverage" draws a larger pool and samples from it by ridge leverage scores on the rows at hand.
    leverage_alpha : float or None
        For "leverage": the ridge penalty of the fit that will follow. Within an estimator, None means the estimator's
        own penalty.
    pool_size : int or None
        For "leverage": the size of the pool; None means 10 times `n_components`.
    scores : {"features", "gram"}, default="features"
        For "leverage": compute scores from the features of the pool, as in the paper, or from the kernel's Gram matrix;
        the two agree as the pool grows.
    replacement : bool, default=True
        For "leverage": whether a feature can be drawn repeatedly. False is never less precise.
    center : array of shape (n_columns,) or None
        Origin of the cosines; None means 0. The features are those of x - center, so that adding a constant to a column
        of X and to its center changes nothing.
    random_state : int, numpy Generator, numpy RandomState or None
        Seed or generator of the draws; an integer makes them reproducible.

    Attributes
    ----------
    frequencies_ : ndarray of shape (n_columns, n_components)
    phases_ : ndarray of shape (n_components,)
    weights_ : ndarray of shape (n_components,)
        Factor of each feature; 1 / sqrt(M) for one kernel unless sampling is "leverage".
    terms_ : ndarray of shape (n_components,)
        Index of the summand of the kernel that each feature belongs to.
    n_components_ : int
        The number of features.
    """

    def __init__(
        self,
        kernel: str | Kernel = "gaussian",
        n_components: int = 100,
        *,
        sampling: str = "uniform",
        leverage_alpha: float | None = None,
        pool_size: int | None = None,
        scores: str = "features",
        replacement: bool = True,
        center: Any = None,
        random_state: Seed = None,
    ) -> None:
        self.kernel = kernel
        self.n_components = n_components
        self.sampling = sampling
        self.leverage_alpha = leverage_alpha
        self.pool_size = pool_size
        self.scores = scores
        self.replacement = replacement
        self.center = center
        self.random_state = random_state

    def fit(
        self,
        X: Array,
        y: Any = None,  # noqa: ARG002 (scikit-learn's signature)
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Draw the features.

        Parameters
        ----------
        X : array of shape (n, d)
            Except for sampling="leverage", only its number of columns is used.
        y : ignored
        sample_weight : array of shape (n,), optional
            Used by sampling="leverage" only.
        """
        kernel = self.check()
        X, rng = np.asarray(X), as_generator(self.random_state)
        kernel.check_columns(X.shape[1])
        leverage = self.sampling == "leverage"
        size = (self.pool_size or POOL_FACTOR * self.n_components) if leverage else self.n_components
        strategy = STRATEGIES["uniform" if leverage else self.sampling]
        drawn = draw_features(kernel, strategy, rng, size, X.shape[1]).recenter(kernel, self.center)
        self._store(kernel, self._sample_by_leverage(drawn, kernel, X, rng, sample_weight) if leverage else drawn)
        return self

    def check(self) -> Kernel:
        """Validate the parameters and return the kernel; raise a ValueError where they do not fit together."""
        kernel = resolve(self.kernel)
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_choice("scores", self.scores, SCORES)
        for _, part in kernel.summands:
            if not isinstance(part, RandomFeatureKernel):
                able = ", ".join(repr(k) for k, v in KERNELS.items() if issubclass(v, RandomFeatureKernel))
                raise ValueError(
                    f"The kernel {self.kernel!r} has no spectral measure to draw random features from. "
                    f'Use one of {able}, or the kernel itself with n_components="exact".'
                )
            if self.sampling in part.refused_samplings:
                raise ValueError(part.refused_samplings[self.sampling])
        if self.sampling == "leverage" and self.scores == "gram":
            kernel.check_diagonal()
        alpha = self.leverage_alpha
        if alpha is not None and not (isinstance(alpha, Real) and 0 < alpha < np.inf):
            raise ValueError(f"leverage_alpha must be a positive number, or None in an estimator; got {alpha!r}.")
        if self.pool_size is not None and self.pool_size < self.n_components:
            raise ValueError(
                f"pool_size must be at least n_components = {self.n_components}, of which it is the choice; got "
                f"{self.pool_size!r}. None is ten times as many."
            )
        return kernel

    def _sample_by_leverage(
        self, pool: Draw, kernel: Kernel, X: Array, rng: np.random.Generator, sample_weight: ArrayLike | None
    ) -> Draw:
        """A sample of the pool for the rows of X, with weights normalised to sum to one."""
        if self.leverage_alpha is None:
            raise ValueError(
                "sampling='leverage' needs leverage_alpha, the ridge penalty of the fit that will follow; got None. "
                "(An estimator gives its own.)"
            )
        share = None if sample_weight is None else np.asarray(sample_weight, dtype=float) / np.sum(sample_weight)
        of_gram = self.scores == "gram"
        probability = leverage_probabilities(pool, kernel, X, share, self.leverage_alpha, of_gram=of_gram)
        sample = sample_with_replacement if self.replacement else sample_without_replacement
        return pool.take(*sample(rng, probability, self.n_components))

    def _store(self, kernel: Kernel, drawn: Draw) -> None:
        """Set the fitted attributes, as read-only arrays."""
        for array in (drawn.frequencies, drawn.phases, drawn.weights):
            array.flags.writeable = False
        self.frequencies_, self.phases_ = drawn.frequencies, drawn.phases
        self.weights_, self.terms_ = drawn.weights, drawn.terms
        self.n_components_ = self.n_components
        # Cosines have a fast path of their own. The attribute is part of saved model files, so its name stays.
        self._all_waves = all(isinstance(part, ShiftInvariantKernel) for _, part in kernel.summands)

    def transform(self, X: Array, *, dtype: DTypeLike | None = None) -> Array:
        """Compute the features Phi of the rows of X, in double precision, on several threads where that pays.

        Parameters
        ----------
        X : array of shape (n, d)
        dtype : float64, float32 or None
            Type in which Phi is stored; None means that of X.

        Returns
        -------
        Phi : array of shape (n, M)
        """
        X = np.asarray(X)
        if dtype is None:
            dtype = X.dtype if X.dtype in (np.float32, np.float64) else np.dtype(float)
        Phi = np.empty((len(X), self.n_components_), dtype=dtype)
        self.prepare(len(Phi))
        with single_threaded_blas(*Phi.shape) as threads:
            parallel_map(lambda block: self._transform_into(X[block], Phi[block]), blocks(*Phi.shape), threads)
        return Phi

    def prepare(self, n_rows: int) -> None:
        """Load the compiled cosine if that pays for a total of `n_rows` rows, transformed in one call or in many."""
        if n_rows * self.n_components_ >= COMPILE_FROM:
            _load_compiled()

    def _transform_into(self, X: Array, out: Array) -> None:
        """Write the features of these rows into `out`; computed in double precision whatever the type of either.

        Strip by strip, so that angles are still in cache when their cosines are taken.
        """
        if not self._all_waves:
            drawn = Draw(self.frequencies_, self.phases_, self.weights_, self.terms_)
            for strip in strips(*out.shape):
                out[strip] = drawn.evaluate_unweighted(resolve(self.kernel), X[strip]) * self.weights_
            return
        scale = np.sqrt(2) * self.weights_
        fast = fourier if _compiled is None else _compiled  # the same bits, sooner or later
        for strip in strips(*out.shape):
            rows = np.ascontiguousarray(X[strip], dtype=float)
            if X.shape[1] <= MAX_FUSED_COLUMNS:
                fast.scaled_cosine_fused(rows, self.frequencies_, self.phases_, scale, out[strip])
            else:
                fast.scaled_cosine(rows @ self.frequencies_, self.phases_, scale, out[strip])


# The module `numba_loops`, once loaded. Loading it imports numba, for which small problems need not wait.
_compiled: ModuleType | None = None


def _load_compiled() -> None:
    """Import the compiled cosine, if it is not loaded yet."""
    global _compiled
    if _compiled is None:
        from quernel.kernels import numba_loops

        _compiled = numba_loops


class PrecomputedFeatures(TransformerMixin, BaseEstimator):
    """Feature map  phi(x) = x,  for features computed by the caller and for linear quantile regression.

    Attributes
    ----------
    n_components_ : int
        The number of columns of X.
    """

    def fit(self, X: Array, y: Any = None) -> Self:  # noqa: ARG002 (scikit-learn's signature)
        """Store the number of columns."""
        self.n_components_ = X.shape[1]
        return self

    def transform(self, X: Array) -> Array:
        """X itself, not a copy."""
        return X


class TrendFeatures(TransformerMixin, BaseEstimator):
    """The features of another map, and functions that have a shape in some columns at every value of these.

    A trend t_j(x) has the shape that is asked for in its column everywhere: x if it is to be monotone, x^2 if convex,
    exp(x) or the like if both, with a sign. With features g(x) of the *other* columns, in which these columns stay at
    one value, there are g(x) and all products t_j(x) g(x), too: functions that are constant, or follow the trend, along
    these columns at a rate that depends on the others.

    Parameters
    ----------
    base : fitted feature map
    columns : list of p positions
    monotone, convex : lists of p numbers, 1, -1 or 0 for no constraint
    others : feature map for g, to be fitted, or None for none
    weight : float, by which its features are multiplied
    """

    def __init__(
        self,
        base: Any,
        columns: list[int],
        monotone: list[int],
        convex: list[int],
        others: Any = None,
        weight: float = 1.0,
    ) -> None:
        self.base = base
        self.columns = columns
        self.monotone = monotone
        self.convex = convex
        self.others = others
        self.weight = weight

    def fit(self, X: Array, y: Any = None) -> Self:  # noqa: ARG002 (scikit-learn's signature)
        """Find the ranges of the columns, and the means and standard deviations of the trends."""
        x = np.asarray(X, dtype=float)[:, self.columns]
        self.low_, self.range_ = x.min(axis=0), np.ptp(x, axis=0)
        self.range_[self.range_ == 0] = 1.0
        self.mean_, self.scale_ = np.zeros(x.shape[1]), np.ones(x.shape[1])
        trends = self._trends(X)
        self.mean_, self.scale_ = trends.mean(axis=0), trends.std(axis=0)
        self.scale_[self.scale_ == 0] = 1.0
        if self.others is not None:
            self.others.fit(self._hold(X))
        self._count()
        return self

    def _count(self) -> None:
        self.n_components_ = self.base.n_components_ + len(self.columns)
        if self.others is not None:
            self.n_components_ += (1 + len(self.columns)) * self.others.n_components_

    def on(self, base: Any) -> TrendFeatures:
        """The same trends with the features of another map."""
        other = TrendFeatures(base, self.columns, self.monotone, self.convex, self.others, self.weight)
        other.low_, other.range_, other.mean_, other.scale_ = self.low_, self.range_, self.mean_, self.scale_
        other._count()
        return other

    def transform(self, X: Array) -> Array:
        """The base's features, those of the others, their products with each trend, then the trends; (n, M)."""
        Phi, trends, start = np.empty((len(X), self.n_components_)), self._trends(X), self.base.n_components_
        Phi[:, :start] = self.base.transform(X)
        if self.others is not None:
            features = self.weight * self.others.transform(self._hold(X))
            for factor in (1.0, *trends.T[:, :, None]):
                np.multiply(features, factor, out=Phi[:, start : start + features.shape[1]])
                start += features.shape[1]
        Phi[:, start:] = trends
        return Phi

    def curves(self, X: Array, coef: Array) -> Array:
        """Phi u, shape (n, q)."""
        trends, (of_base, of_others, of_trends) = self._trends(X), self.split(coef)
        values = _multiply(self.base, X, of_base) + trends @ of_trends
        if self.others is not None:
            parts = _multiply(self.others, self._hold(X), self.weight * np.hstack(list(of_others)))
            parts = parts.reshape(len(X), len(of_others), -1)
            values += parts[:, 0] + np.sum(parts[:, 1:] * trends[:, :, None], axis=1)
        return values

    def split(self, coef: Array) -> tuple[Array, Array, Array]:
        """Coefficients of the base, of the others, alone and times each trend (1 + p, m, q), and of the trends."""
        first, last = self.base.n_components_, len(coef) - len(self.columns)
        return coef[:first], coef[first:last].reshape(1 + len(self.columns), -1, coef.shape[1]), coef[last:]

    def prepare(self, n_rows: int) -> None:
        """Prepare the maps for this many rows."""
        for one in (self.base, self.others):
            if hasattr(one, "prepare"):
                one.prepare(n_rows)

    def _hold(self, X: Array) -> Array:
        """Rows whose columns with a trend are at one value."""
        held = np.array(X, dtype=float)
        held[:, self.columns] = 0.0
        return held

    def _trends(self, X: Array) -> Array:
        """Trends (n, p) of columns in units of their ranges, standardised once `fit` has found how."""
        x = (np.asarray(X, dtype=float)[:, self.columns] - self.low_) / self.range_
        sign, bend = np.array(self.monotone), np.array(self.convex)
        trends = np.where(bend == 0, sign * x, bend * np.where(sign == 0, x * x, np.exp(sign * bend * x)))
        return (trends - self.mean_) / self.scale_


def _multiply(feature_map: Any, X: Array, coef: Array) -> Array:
    """Phi u, (n, q), without forming Phi where the map can."""
    multiply = getattr(feature_map, "curves", lambda X, coef: feature_map.transform(X) @ coef)
    return multiply(X, coef)
