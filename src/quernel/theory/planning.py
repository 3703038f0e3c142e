"""From rows and exponents, or from rows alone, to a ridge weight and a number of features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.features import RandomFeatures
from quernel.kernels import Kernel, ShiftInvariantKernel
from quernel.theory.exponents import Exponent, capacity_exponent, compatibility_exponent
from quernel.theory.rates import features_needed, learning_rate, regularization
from quernel.theory.source import source_exponent

Array = NDArray[np.floating]

# Features drawn to estimate the compatibility.
CANDIDATES = 500


@dataclass(frozen=True)
class Plan:
    """What the theorems recommend for n rows, constants left out.

    alpha is for a target of unit spread; uniform and leverage are numbers of features for the two ways of sampling;
    rate is the exponent with which the squared error falls.
    """

    n: int
    r: float
    gamma: float
    compatibility: float
    alpha: float
    rate: float
    uniform: int
    leverage: int


@dataclass(frozen=True)
class Exponents:
    """The three exponents of a data set, each with its interval."""

    source: Exponent
    capacity: Exponent
    compatibility: Exponent


def plan(n: int, r: float, gamma: float, compatibility: float = 1.0, *, strict: bool = True) -> Plan:
    """The recommendation of `thm2` for uniform sampling, at the compatibility given, and of `cor1` for leverage.

    Examples
    --------
    >>> plan(10_000, 0.5, 1.0).uniform
    100
    """
    return Plan(
        n=int(n),
        r=float(r),
        gamma=float(gamma),
        compatibility=float(compatibility),
        alpha=regularization(n, r, gamma, strict=strict),
        rate=float(learning_rate(r, gamma, strict=strict)),
        uniform=features_needed(n, r, gamma, compatibility, strict=strict),
        leverage=features_needed(n, r, gamma, gamma, strict=strict),
    )


def estimate_exponents(
    X: Array,
    y: Array,
    kernel: Kernel,
    *,
    level: float = 0.5,
    random_state: int | np.random.Generator | None = 0,
) -> Exponents:
    """All three exponents, from the kernel on these rows: many (n, n) decompositions, so give a subsample."""
    if not isinstance(kernel, ShiftInvariantKernel):
        raise ValueError(f"The compatibility is that of random features, which the {kernel.name} kernel has none of.")
    rng = np.random.default_rng(random_state)
    X, y = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
    gram = kernel.gram(X, X)
    features = RandomFeatures(kernel, CANDIDATES, random_state=rng).fit(X).transform(X)
    return Exponents(
        source=source_exponent(y, gram=gram, level=level, random_state=rng),
        capacity=capacity_exponent(gram=gram),
        compatibility=compatibility_exponent(features, gram=gram),
    )
