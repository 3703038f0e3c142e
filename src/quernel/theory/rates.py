"""Rates, ridge weights and numbers of features: the exponents of the paper's theorems.

With the source exponent r (how smooth the target is), the capacity exponent gamma (how large the kernel's space is) and
the compatibility of the features (the paper's alpha: 1 for uniform sampling, gamma for leverage sampling):

    lambda = n^(-1 / (2r + gamma)),    |f - f*|^2 = O(n^(-2r / (2r + gamma)))  up to logarithms,    M = n^c,
    c = compatibility / (2r + gamma)                                          for r < 1/2,
    c = ((2r - 1)(1 + gamma - compatibility) + compatibility) / (2r + gamma)  for r >= 1/2.

`thm2` has these formulas for the check loss and `thm3` for every Lipschitz loss that is locally strongly convex; `thm1`
and `cor2` are compatibility 1, `cor1` and `cor3` are compatibility gamma. Constants are not part of the theory.
"""

from __future__ import annotations

import math
import numbers
import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating]

# Tolerance for rounding errors in sums such as 0.7 + 0.3 and powers such as 10,000^(1/2).
ROUNDING = 1e-12


class OutsideTheoryWarning(UserWarning):
    """A formula was evaluated where no theorem stands behind it."""


def learning_rate(r: ArrayLike, gamma: ArrayLike, *, strict: bool = True) -> float | Array:
    """Exponent of the optimal learning rate, 2r / (2r + gamma): the squared error is O(n^-rate), logarithms left out.

    Parameters
    ----------
    r, gamma : source and capacity exponent; arrays broadcast
    strict : raise outside of the theorems' range (r in (0, 1], gamma in [0, 1], 2r + gamma >= 1); False evaluates the
        formula there too, and warns

    Examples
    --------
    >>> learning_rate(0.5, 1)
    0.5
    """
    r, gamma, _ = _check_exponents(r, gamma, 1.0, strict)
    return _as_scalar(2 * r / (2 * r + gamma))


def regularization(n: float, r: float, gamma: float, *, strict: bool = True) -> float:
    """Ridge weight lambda = n^(-1 / (2r + gamma)) of the theorems for n rows.

    Constants are left out: it is for a target of unit scale, as in the paper.

    Examples
    --------
    >>> regularization(10_000, 0.5, 1)
    0.01
    """
    n = _check_n_rows(n)
    source, capacity, _ = _check_exponents(r, gamma, 1.0, strict)
    return float(n ** (-1 / (2 * source + capacity)))


def feature_exponent(
    r: ArrayLike, gamma: ArrayLike, compatibility: ArrayLike = 1.0, *, strict: bool = True
) -> float | Array:
    """Exponent c in M = n^c (`thm2`, `thm3`); see `features_needed`. Arrays broadcast."""
    r, gamma, compatibility = _check_exponents(r, gamma, compatibility, strict)
    excess = np.maximum(2 * r - 1, 0)  # 0 in the agnostic case r < 1/2, where only the compatibility counts
    return _as_scalar((excess * (1 + gamma - compatibility) + compatibility) / (2 * r + gamma))


def features_needed(n: float, r: float, gamma: float, compatibility: float = 1.0, *, strict: bool = True) -> int:
    """M = n^c, the number of random features with which n rows reach the optimal rate.

    Parameters
    ----------
    n : number of rows
    r : source exponent: the target is L^r h with a square-integrable h; 1/2 and more lies in the kernel's space
    gamma : capacity exponent: the effective dimension grows like lambda^-gamma
    compatibility : how fast the largest leverage of a feature grows, like lambda^-compatibility: 1 is the worst case
        and stands for uniform sampling (`thm1`, `cor2`), gamma is leverage sampling (`cor1`, `cor3`)
    strict : as in `learning_rate`

    Examples
    --------
    >>> features_needed(10_000, 0.5, 1)  # uniform sampling
    100
    >>> features_needed(10_000, 0.5, 0.5, compatibility=0.5)  # leverage sampling
    22
    """
    power = _check_n_rows(n) ** float(feature_exponent(r, gamma, compatibility, strict=strict))
    return max(1, math.ceil(power * (1 - ROUNDING)))


def violations(r: ArrayLike, gamma: ArrayLike, compatibility: ArrayLike = 1.0, *, joint: bool = True) -> list[str]:
    """Conditions of the theorems that do not hold, as text; `joint` includes 2r + gamma >= 1."""
    r, gamma, compatibility = (np.asarray(value, dtype=float) for value in (r, gamma, compatibility))
    total = 2 * r + gamma
    conditions = [
        ("r must lie in (0, 1]", r, (r > 0) & (r <= 1)),
        ("gamma must lie in [0, 1]", gamma, (gamma >= 0) & (gamma <= 1)),
        ("compatibility must lie in [0, 1]", compatibility, (compatibility >= 0) & (compatibility <= 1)),
        ("2r + gamma must be at least 1", total, (total >= 1 - ROUNDING) | (not joint)),
    ]
    return [f"{text}, got {_first_violation(value, ~held)}" for text, value, held in conditions if not held.all()]


def _first_violation(values: Array, wrong: NDArray[np.bool_]) -> str:
    """The first entry that violates a condition."""
    return f"{np.atleast_1d(values)[np.atleast_1d(wrong)][0]:g}"


def _check_exponents(
    r: ArrayLike, gamma: ArrayLike, compatibility: ArrayLike, strict: bool
) -> tuple[Array, Array, Array]:
    """The three exponents as arrays.

    Raises where the formula is undefined, and raises (`strict`) or warns where no theorem covers the exponents.
    """
    try:
        values = [np.asarray(value, dtype=float) for value in (r, gamma, compatibility)]
    except (TypeError, ValueError) as error:
        raise ValueError(f"r, gamma and compatibility must be numbers: {error}.") from error
    finite = all(np.isfinite(value).all() for value in values)
    if not finite or np.any(2 * values[0] + values[1] <= 0):
        raise ValueError(
            f"r, gamma and compatibility must be finite and 2r + gamma positive; got r={r!r}, gamma={gamma!r}, "
            f"compatibility={compatibility!r}."
        )
    wrong = "; ".join(violations(*values))
    if wrong and strict:
        raise ValueError(f"Outside of the theorems: {wrong}. Use strict=False to evaluate the formula all the same.")
    if wrong:
        warnings.warn(
            f"Outside of the theorems: {wrong}. The formula is evaluated.", OutsideTheoryWarning, stacklevel=3
        )
    return values[0], values[1], values[2]


def _check_n_rows(n: float) -> float:
    """A number of rows as float, or ValueError."""
    if isinstance(n, bool) or not isinstance(n, numbers.Real) or not (np.isfinite(n) and n >= 1):
        raise ValueError(f"n must be a number of rows, 1 or more; got {n!r}.")
    return float(n)


def _as_scalar(value: Array) -> float | Array:
    """A float if the arguments were numbers, otherwise the array."""
    return float(value) if np.ndim(value) == 0 else value
