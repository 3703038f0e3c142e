"""Errors of a fit where the true function f* is known: their decomposition, bounds on them, and learning curves.

The decomposition (`lemA.1.1`) is a chain of four estimators from the fit to f*:

    f_MD  --least_squares-->  f_MD'  --empirical-->  f_M  --random_feature-->  f_K  --approximation-->  f*

f_MD is the fit, f_MD' the ridge regression of the noiseless f*(x_i) on the same features and rows, f_M that over the
distribution of rows, f_K that with the exact kernel. The L2 norms of the four steps add up to a bound on |f_MD - f*|.

`error_bounds` has what the lemmas promise of these terms, `sufficient_features` and `sufficient_rows` for how many
features and rows they do. The constants are the paper's. They rest on `lemD.5`, printed with log(2/delta) where an
operator norm also needs the logarithm of a dimension; kernels with many equal eigenvalues need more
(`feature_similarity_bound`). There, R bounds |h| in f* = L^r h, kappa bounds the features |phi(x, w)|, delta is the
probability that a bound fails, and N, N_infinity are the dimensions of `quernel.theory.dimensions`, all at the same
ridge weight.

`excess_risk_curve` measures learning curves: the excess risk of fits with random features against the number of rows,
for any loss (`thm3`).

The paper bounds the random-feature and the empirical error through the similarity of operators (`lemC.1` to `lemC.4`):
how close L_M over random features is to L_K, and C_MD over a sample of rows to C_M. These norms are measured on a known
distribution of rows, and bounded as in the lemmas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.data import ArrayRows, InMemoryDesign
from quernel.data.design_matrix import FeatureMap
from quernel.losses import Loss, Pinball
from quernel.objective import Problem
from quernel.solvers import SOLVERS, Result
from quernel.theory.dimensions import check_one_alpha
from quernel.theory.noise import Labels, Noise, NoiseModel, is_margin_loss
from quernel.theory.populations import Population, SplinePopulation

Array = NDArray[np.floating]

# Points of the midpoint rule in x over which risks are averaged.
N_GRID = 1000


@dataclass(frozen=True)
class ErrorDecomposition:
    """L2 norms of the steps from a fit to the true function.

    Attributes
    ----------
    total : float
        |f_MD - f*|, at most the sum of the four others.
    least_squares : float
        |f_MD - f_MD'|, from the fitted loss to least squares without noise on the same rows.
    empirical : float
        |f_MD' - f_M|, from the sample of rows to their distribution.
    random_feature : float
        |f_M - f_K|, from the random features to the kernel.
    approximation : float
        |f_K - f*|, the bias of the ridge penalty.
    """

    total: float
    least_squares: float
    empirical: float
    random_feature: float
    approximation: float

    @property
    def bound(self) -> float:
        """Sum of the four terms, at least `total` by the triangle inequality."""
        return self.least_squares + self.empirical + self.random_feature + self.approximation


def error_decomposition(
    population: Population,
    feature_map: FeatureMap,
    X: ArrayLike,
    y: ArrayLike,
    *,
    alpha: float,
    loss: Loss | None = None,
    tol: float = 1e-8,
    max_iter: int = 1000,
    solver: Callable[..., Result] = SOLVERS["newton"],
) -> ErrorDecomposition:
    """Split the error of the fit to (X, y) as `lemA.1.1` does (and `thm3`'s proof, for another loss).

    Parameters
    ----------
    population : the distribution of rows: `SplinePopulation` (exact) or `SampledPopulation` (large-sample quadrature)
    feature_map : fitted features, an object with `transform` and `n_components_`
    X, y : training rows (n, d) and targets (n,); the fit has no intercept, as in the paper
    alpha : ridge weight of all four estimators
    loss : the loss fitted, of one column; None is the check loss at level 1/2. f* must be its population minimiser
    tol, max_iter : for the solver
    solver : a value of `quernel.solvers.SOLVERS`, or a function like them

    Examples
    --------
    >>> spline = SplinePopulation(r=0.5, gamma=0.25)
    >>> X, y = spline.sample(500, random_state=0)
    >>> parts = error_decomposition(spline, spline.features(50, random_state=1), X, y, alpha=1e-3)
    >>> parts.total <= parts.bound
    True
    """
    alpha = check_one_alpha(alpha)
    X, y = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
    if X.ndim != 2 or y.shape != (len(X),):
        raise ValueError(f"X must have shape (n, d) and y (n,); got {X.shape} and {y.shape}.")
    Phi, S = feature_map.transform(X), population.feature_vectors(feature_map)
    truth = population.target_vector
    loss = Pinball(np.array([0.5])) if loss is None else loss
    if loss.n_columns != 1:
        raise ValueError(f"The loss must have one column; got {loss.n_columns}. Decompose one level at a time.")
    fitted = S @ fit_on_features(Phi, y, loss, alpha, tol=tol, max_iter=max_iter, solver=solver)
    on_rows = S @ _ridge(Phi / np.sqrt(len(X)), population.target(X) / np.sqrt(len(X)), alpha)
    on_features = S @ _ridge(S, truth, alpha)
    on_kernel = population.shrunk_target(alpha)
    chain = [fitted, on_rows, on_features, on_kernel, truth]
    steps = [float(np.linalg.norm(a - b)) for a, b in pairwise(chain)]
    return ErrorDecomposition(float(np.linalg.norm(fitted - truth)), *steps)


def _ridge(A: Array, b: Array, alpha: float) -> Array:
    """Ridge regression: argmin over u of |A u - b|^2 + alpha |u|^2, by the smaller of primal and dual system."""
    if len(A) < A.shape[1]:
        return A.T @ np.linalg.solve(A @ A.T + alpha * np.eye(len(A)), b)
    return np.linalg.solve(A.T @ A + alpha * np.eye(A.shape[1]), A.T @ b)


def fit_on_features(
    Phi: Array,
    y: Array,
    loss: Loss,
    alpha: float,
    *,
    tol: float,
    max_iter: int = 1000,
    solver: Callable[..., Result] = SOLVERS["newton"],
) -> Array:
    """Coefficients (M,) of the fit of a loss of one column on features (n, M), without an intercept as in the paper."""
    problem = Problem(InMemoryDesign(ArrayRows(Phi, y), features=Phi), loss, alpha, fit_intercept=False)
    return solver(problem, tol=tol, max_iter=max_iter).coef[:, 0]


# Relative accuracy of the effective dimension from features, `lemD.7`: |N_M - N| <= DIMENSION_TOLERANCE N.
DIMENSION_TOLERANCE = 1.55


@dataclass(frozen=True)
class ErrorBounds:
    """Bounds on three of the four errors of `lemA.1.1`, in the L2 norm of the distribution of rows.

    approximation is R alpha^r (`lemA.2.1`, always); random_feature is R alpha^r (`lemA.2.2`, with as many features as
    `sufficient_features` says); empirical is 2 (2 + sqrt 2) R alpha^r (`lemA.2.3`, with `sufficient_rows` too). The
    fourth, from least squares to the check loss, is bounded by `lemA.2.6` up to an unknown constant only.

    The paper prints half of `empirical`: it puts R alpha^r for |f_M - f*|, which the two lemmas before bound by twice
    that. One step remains unproved even so: |f_M - f*| enters as a mean over the rows, and is bounded in the L2 norm of
    their distribution. The two agree in the mean over the rows, not with the probability that the lemma states.
    """

    approximation: float
    random_feature: float
    empirical: float

    @property
    def total(self) -> float:
        """Their sum, a bound on |f_MD' - f*|: `propA.2.1`, which prints (4 + sqrt 2) R for this (6 + 2 sqrt 2) R."""
        return self.approximation + self.random_feature + self.empirical


def error_bounds(alpha: float, r: float, radius: float) -> ErrorBounds:
    """R alpha^r, R alpha^r and 2 (2 + sqrt 2) R alpha^r, for 0 < alpha < 1 and r in (0, 1].

    Examples
    --------
    >>> error_bounds(0.01, r=0.5, radius=1.0).random_feature
    0.1
    """
    check_ranges(alpha=(alpha, 0 < alpha < 1, "in (0, 1)"), r=(r, 0 < r <= 1, "in (0, 1]"))
    check_ranges(radius=(radius, 0 <= radius < math.inf, "0 or more"))
    bound = radius * alpha**r
    return ErrorBounds(bound, bound, 2 * (2 + math.sqrt(2)) * bound)


def sufficient_features(
    alpha: float, r: float, *, dimension: float, max_dimension: float, kappa: float = 1.0, delta: float = 0.05
) -> int:
    """The features that `lemA.2.2` and `lemA.2.3` ask for.

        M >= 16 (N_infinity + 1) log(4/delta), and for r >= 1/2 also
        M >= 128 kappa^2 alpha^(1-2r) N^(2r-1) N_infinity^(2-2r) log(4/delta)

    Parameters
    ----------
    alpha : ridge weight, at most the largest eigenvalue of the kernel's operator
    r : source exponent, in (0, 1]
    dimension, max_dimension : N(alpha) and N_infinity(alpha), from `effective_dimension` and `max_dimension`
    kappa : bound on |phi(x, w)|, at least 1; sqrt 2 for random Fourier features
    delta : probability with which the bound may fail

    Examples
    --------
    >>> sufficient_features(1e-2, 0.4, dimension=5.0, max_dimension=5.0)
    421
    """
    check_lemma(alpha, kappa, delta)
    check_ranges(
        r=(r, 0 < r <= 1, "in (0, 1]"),
        dimension=(dimension, 0 < dimension < math.inf, "positive"),
        max_dimension=(max_dimension, 0 < max_dimension < math.inf, "positive"),
    )
    needed = 16 * (max_dimension + 1) * math.log(4 / delta)
    if r >= 1 / 2:
        volume = alpha ** (1 - 2 * r) * dimension ** (2 * r - 1) * max_dimension ** (2 - 2 * r)
        needed = max(needed, 128 * kappa**2 * volume * math.log(4 / delta))
    return math.ceil(needed)


def sufficient_rows(alpha: float, *, kappa: float = 1.0, delta: float = 0.05) -> int:
    """n >= 16 (kappa^2 / alpha + 1) log(6/delta), the rows that `lemA.2.3` asks for.

    Examples
    --------
    >>> sufficient_rows(1e-2)
    7737
    """
    check_lemma(alpha, kappa, delta)
    return math.ceil(16 * (kappa**2 / alpha + 1) * math.log(6 / delta))


def features_for_dimension(alpha: float, *, max_dimension: float, kappa: float = 1.0, delta: float = 0.05) -> int:
    """M >= (4 + 18 N_infinity) log(12 kappa^2 / (alpha delta)), with which |N_M - N| <= 1.55 N (`lemD.7`)."""
    check_lemma(alpha, kappa, delta)
    check_ranges(max_dimension=(max_dimension, 0 < max_dimension < math.inf, "positive"))
    return math.ceil((4 + 18 * max_dimension) * math.log(12 * kappa**2 / (alpha * delta)))


def check_lemma(alpha: float, kappa: float, delta: float) -> None:
    """ValueError unless alpha, kappa and delta are in the ranges that all lemmas share."""
    check_ranges(
        alpha=(alpha, 0 < alpha < math.inf, "positive and finite"),
        kappa=(kappa, 1 <= kappa < math.inf, "at least 1"),
        delta=(delta, 0 < delta < 1, "in (0, 1)"),
    )


def check_ranges(**arguments: tuple[float, bool | np.bool_, str]) -> None:
    """ValueError for the first argument out of range; maps names to (value, whether allowed, what is allowed)."""
    for name, (value, holds, wanted) in arguments.items():
        if not holds:
            raise ValueError(f"{name} must be {wanted}; got {value!r}.")


@dataclass(frozen=True)
class ExcessRisk:
    """Point of a learning curve: n rows, M features, ridge weight alpha, mean excess risk and its standard error."""

    n: int
    M: int
    alpha: float
    risk: float
    error: float


def excess_risk_curve(
    population: SplinePopulation,
    loss: Loss,
    sizes: Sequence[int],
    *,
    alpha: Callable[[int], float],
    features: Callable[[int], int],
    noise: Callable[[Array], Array] | None = None,
    likely: float | None = None,
    repetitions: int = 10,
    random_state: int = 0,
    tol: float = 1e-6,
) -> list[ExcessRisk]:
    """The excess risk of fits at growing numbers of rows, to y = f*(x) + noise or to labels -1 and +1.

    Parameters
    ----------
    population : the distribution of rows and f*
    loss : any of `quernel.losses`, of one column
    sizes : numbers of rows
    alpha, features : the ridge weight and the number of features for n rows, such as `regularization` and
        `features_needed` with exponents filled in
    noise : for a loss of the residual: quantile function of the noise, see `Noise`
    likely : for a loss of the margin: probability of the more likely label, see `Labels`. With it, and the hinge needs
        it, f* is no longer the population's function but a step, which lies outside the kernel's space: the curve is
        measured all the same, but no theorem gives its rate (see `Labels`)
    repetitions, random_state, tol : how many draws of rows and features, their seed, and the solver's tolerance

    Examples
    --------
    >>> from scipy.stats import norm
    >>> from quernel.losses import Huber
    >>> spline = SplinePopulation(r=0.5, gamma=0.25)
    >>> how = {"alpha": lambda n: n**-0.8, "features": lambda n: int(2 * n**0.4)}
    >>> few, many = excess_risk_curve(spline, Huber(0.1), [100, 1000], noise=norm(scale=0.1).ppf, repetitions=3, **how)
    >>> many.risk < few.risk
    True

    Labels, of which the population's function is the log odds:

    >>> from quernel.losses import Logistic
    >>> few, many = excess_risk_curve(spline, Logistic(), [100, 1000], repetitions=3, **how)
    >>> many.risk < few.risk
    True
    """
    if repetitions < 2:
        raise ValueError(f"repetitions must be at least 2, for a standard error; got {repetitions!r}.")
    model = _make_noise_model(loss, noise, likely)
    x = (np.arange(N_GRID)[:, None] + 0.5) / N_GRID
    target, curve = population.target(x), []
    model.minimiser(target)  # raises for a target that the model cannot have, before any fit
    for n in sizes:
        M, ridge, risks = int(features(n)), float(alpha(n)), []
        for rng in np.random.default_rng([random_state, n]).spawn(repetitions):
            X = rng.random((n, 1))
            y = model.draw(population.target(X), rng)
            feature_map = population.features(M, rng)
            coef = fit_on_features(feature_map.transform(X), y, loss, ridge, tol=tol)
            risks.append(model.excess_risk(feature_map.transform(x) @ coef, target))
        error = float(np.std(risks, ddof=1) / np.sqrt(repetitions))
        curve.append(ExcessRisk(int(n), M, ridge, float(np.mean(risks)), error))
    return curve


def _make_noise_model(loss: Loss, noise: Callable[[Array], Array] | None, likely: float | None) -> NoiseModel:
    """`Labels` for a loss of the margin, `Noise` for one of the residual."""
    if is_margin_loss(loss):
        if noise is not None:
            raise ValueError(f"{type(loss).__name__} is a loss of labels -1 and +1, which have no noise: leave it out.")
        return Labels(loss, likely)
    if likely is not None or noise is None:
        raise ValueError(
            f"{type(loss).__name__} is a loss of the residual: give noise, such as scipy.stats.norm(scale=0.1).ppf, "
            "and leave out likely, which is for labels -1 and +1."
        )
    return Noise(loss, noise)


@dataclass(frozen=True)
class OperatorSimilarity:
    """Norms that compare an average B with its mean A at the ridge weight alpha, or bounds on them.

        difference = |(A + alpha I)^-1/2 (A - B) (A + alpha I)^-1/2|
        one_sided  = |(A + alpha I)^-1/2 (A - B)|
        ratio      = |(A + alpha I)^1/2 (B + alpha I)^-1/2|

    The ratio is at most (1 - difference)^-1/2 (`lemD.3`). one_sided is None where the paper has no bound.
    """

    difference: float
    one_sided: float | None
    ratio: float


def feature_similarity(population: Population, feature_map: FeatureMap, *, alpha: float) -> OperatorSimilarity:
    """A = L_K, the operator of the kernel, and B = L_M, that of the features (`lemC.1`, `lemC.2`, `lemC.2p`).

    Parameters
    ----------
    population : the distribution of rows and the kernel: `SplinePopulation` (exact) or `SampledPopulation`
    feature_map : fitted features of that kernel, an object with `transform` and `n_components_`
    alpha : ridge weight

    Examples
    --------
    >>> spline = SplinePopulation(r=0.5, gamma=0.25, n_frequencies=20)
    >>> few, many = (feature_similarity(spline, spline.features(M, random_state=0), alpha=1e-2) for M in (100, 10_000))
    >>> many.difference < few.difference
    True
    """
    S = population.feature_vectors(feature_map)
    return compare_operators(population.operator, S @ S.T, check_one_alpha(alpha))


def sample_similarity(
    population: Population, feature_map: FeatureMap, X: ArrayLike, *, alpha: float
) -> OperatorSimilarity:
    """A = C_M, the covariance of the features over the distribution of rows, and B = C_MD, that in a sample X (n, d).

    difference is the paper's R_MD (`lemC.3`), ratio its Q_MD (`lemC.4`). Parameters are those of `feature_similarity`.
    """
    S, Phi = population.feature_vectors(feature_map), feature_map.transform(np.asarray(X, dtype=float))
    return compare_operators(S.T @ S, Phi.T @ Phi / len(Phi), check_one_alpha(alpha))


def feature_similarity_bound(
    M: int,
    alpha: float,
    *,
    dimension: float,
    max_dimension: float,
    kappa: float = 1.0,
    delta: float = 0.05,
    trace: float | None = None,
) -> OperatorSimilarity:
    """What `lemC.1` to `lemC.2p` promise of `feature_similarity`, each with probability 1 - delta.

    With l = log(2/delta):

        difference <= 2 (N_infinity + 1) l / M + sqrt(2 N_infinity l / M)
        one_sided  <= 4 kappa sqrt(N_infinity) l / M + sqrt(4 kappa^2 N l / M)
        ratio      <= (1 - difference)^-1/2

    With M >= 16 (N_infinity + 1) l these are at most 1/2 and sqrt 2, as `lemC.2` says. The first line is the paper's
    and is not proved: an operator norm of many dimensions needs their logarithm. Give `trace` for the inequality of
    Rudi and Rosasco (2017, proposition 6), which the paper quotes without it, for alpha up to the largest eigenvalue:

        difference <= 2 (N_infinity + 1) l' / (3M) + sqrt(2 N_infinity l' / M),   l' = log(4 trace / (alpha delta))

    Parameters
    ----------
    M : number of features
    alpha : ridge weight
    dimension, max_dimension : N(alpha) and N_infinity(alpha)
    kappa : bound on |phi(x, w)|, at least 1
    delta : probability with which each bound may fail
    trace : of L_K, the mean of K(x, x); None for the paper's own bound

    Examples
    --------
    >>> round(feature_similarity_bound(2000, 1e-2, dimension=5.0, max_dimension=5.0).difference, 3)
    0.158
    """
    _check_count(M, "M")
    check_lemma(alpha, kappa, delta)
    check_ranges(
        dimension=(dimension, 0 < dimension < math.inf, "positive"),
        max_dimension=(max_dimension, 0 < max_dimension < math.inf, "positive"),
    )
    log = math.log(2 / delta)
    one_sided = 4 * kappa * math.sqrt(max_dimension) * log / M + math.sqrt(4 * kappa**2 * dimension * log / M)
    difference = _difference_bound(M, max_dimension, alpha, delta, trace)
    return OperatorSimilarity(difference, one_sided, _ratio_bound(difference))


def sample_similarity_bound(
    n: int, alpha: float, *, kappa: float = 1.0, delta: float = 0.05, trace: float | None = None
) -> OperatorSimilarity:
    """What `lemC.3` and `lemC.4` promise of `sample_similarity`, with probability 1 - delta.

    The bounds on difference and ratio are those of `feature_similarity_bound`, with n for M and kappa^2 / alpha for
    N_infinity. trace is that of C_M, at most kappa^2; None for the paper's own bound.
    """
    _check_count(n, "n")
    check_lemma(alpha, kappa, delta)
    difference = _difference_bound(n, kappa**2 / alpha, alpha, delta, trace)
    return OperatorSimilarity(difference, None, _ratio_bound(difference))


def compare_operators(A: Array, B: Array, alpha: float) -> OperatorSimilarity:
    """The three norms for positive semidefinite A and B, computed in the eigenbasis of A."""
    mu, vectors = np.linalg.eigh(A)
    root = np.sqrt(np.maximum(mu, 0) + alpha)
    one_sided = vectors.T @ (A - B) @ vectors / root[:, None]
    spectrum = np.linalg.eigvalsh(one_sided / root)
    # (A + alpha)^1/2 (B + alpha)^-1 (A + alpha)^1/2 = (I - D)^-1 with D the whitened difference A - B; spectrum[-1] is
    # the largest eigenvalue of D.
    ratio = 1 / math.sqrt(1 - spectrum[-1])
    return OperatorSimilarity(float(np.abs(spectrum).max()), float(np.linalg.norm(one_sided, 2)), ratio)


def _difference_bound(count: int, max_dimension: float, alpha: float, delta: float, trace: float | None) -> float:
    """`lemD.5` (a Bernstein inequality for operators), as printed or, given the trace, as proved."""
    if trace is None:
        log, factor = math.log(2 / delta), 1.0
    else:
        check_ranges(trace=(trace, alpha <= trace < math.inf, "alpha or more"))
        log, factor = math.log(4 * trace / (alpha * delta)), 1 / 3
    return factor * 2 * (max_dimension + 1) * log / count + math.sqrt(2 * max_dimension * log / count)


def _ratio_bound(difference: float) -> float:
    """Bound on the ratio from that on the difference: `lemD.3`."""
    return 1 / math.sqrt(1 - difference) if difference < 1 else math.inf


def _check_count(count: int, name: str) -> None:
    """ValueError unless 1 or more."""
    check_ranges(**{name: (count, 1 <= count < math.inf, "1 or more")})
