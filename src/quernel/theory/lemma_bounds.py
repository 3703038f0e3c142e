"""Bounds of the paper's lemmas with their constants, and the numbers of features and rows for which they hold.

The constants are the paper's. They rest on `lemD.5`, printed with log(2/delta) where an operator norm also needs the
logarithm of a dimension; kernels with many equal eigenvalues need more (`feature_similarity_bound`).

R bounds |h| in f* = L^r h, kappa bounds the features |phi(x, w)|, delta is the probability that a bound fails, and
N, N_infinity are the dimensions of `quernel.theory.dimensions`, all at the same ridge weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# Relative accuracy of the effective dimension from features, `lemD.7`: |N_M - N| <= DIMENSION_TOLERANCE N.
DIMENSION_TOLERANCE = 1.55


@dataclass(frozen=True)
class ErrorBounds:
    """Bounds on three of the four errors of `lemA.1.1`, in the L2 norm of the rows' law.

    approximation is R alpha^r (`lemA.2.1`, always); random_feature is R alpha^r (`lemA.2.2`, with as many features as
    `sufficient_features` says); empirical is 2 (2 + sqrt 2) R alpha^r (`lemA.2.3`, with `sufficient_rows` too). The
    fourth, from least squares to the check loss, is bounded by `lemA.2.6` up to an unknown constant only.

    The paper prints half of `empirical`: it puts R alpha^r for |f_M - f*|, which the two lemmas before bound by twice
    that. One step remains unproved even so: |f_M - f*| enters as a mean over the rows, and is bounded in the L2 norm of
    their law. The two agree in the mean over the rows, not with the probability that the lemma states.
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
