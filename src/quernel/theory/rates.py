"""Rates, ridge weights and numbers of features: the exponents of the paper's theorems, and Table 1 as data.

With the source exponent r (how smooth the target is), the capacity exponent gamma (how large the kernel's space is) and
the compatibility of the features (the paper's alpha: 1 for uniform sampling, gamma for leverage sampling):

    lambda = n^(-1 / (2r + gamma)),    |f - f*|^2 = O(n^(-2r / (2r + gamma)))  up to logarithms,    M = n^c,
    c = compatibility / (2r + gamma)                                          for r < 1/2,
    c = ((2r - 1)(1 + gamma - compatibility) + compatibility) / (2r + gamma)  for r >= 1/2.

`thm2` has these formulas for the check loss and `thm3` for every Lipschitz loss that is locally strongly convex; `thm1`
and `cor2` are compatibility 1, `cor1` and `cor3` are compatibility gamma. Constants are not part of the theory.

`METHODS` is the paper's Table 1: what each method assumes, how many random features it asks for, how fast it learns.
Table 1 prints the numbers of features of the KRR-RF rows with a minus sign in the exponent; that is a slip, and the
sign is left out here. The appendix prints log n in the squared error of `thm3`, `cor2` and `cor3`; their proof bounds
the error itself by log n and section 3.4 has log^2 n, which stands here. Ridge weights are those of the theorems that
the paper states; Table 1 has none for other methods.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.theory.dimensions import as_scalar

Array = NDArray[np.floating]

# Tolerance for rounding errors in sums such as 0.7 + 0.3.
ROUNDING = 1e-12
# Applied before rounding up, so that 10,000^(1/2) = 100.000...1 stays 100.
ROUND_DOWN = 1 - ROUNDING


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
    return as_scalar(2 * r / (2 * r + gamma))


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
    return as_scalar((excess * (1 + gamma - compatibility) + compatibility) / (2 * r + gamma))


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
    return max(1, math.ceil(power * ROUND_DOWN))


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


Formula = Callable[[float, float, float], float]


@dataclass(frozen=True)
class Method:
    """One row of Table 1, or a theorem beside it.

    Attributes
    ----------
    name, source, loss : str
        As printed.
    r_range : (float, float, bool)
        Lowest and highest source exponent, and whether the lowest itself is allowed.
    rate, features, ridge : callables of (r, gamma, compatibility)
        Exponents of the learning rate, of the number of features (None for methods with the exact kernel) and of the
        ridge weight (None where the paper states none).
    joint : bool
        Whether 2r + gamma >= 1 is required.
    label : str or None
        The paper's LaTeX label if the result is the paper's.
    in_table : bool
        Whether it is a row of Table 1.
    features_log, rate_log : int
        Powers of log n that multiply the number of features and the squared error.
    """

    name: str
    source: str
    loss: str
    r_range: tuple[float, float, bool]
    rate: Formula
    features: Formula | None = None
    ridge: Formula | None = None
    joint: bool = False
    label: str | None = None
    in_table: bool = True
    features_log: int = 0
    rate_log: int = 0

    @property
    def conditions(self) -> str:
        """Conditions on r and gamma as text."""
        low, high, closed = self.r_range
        r = f"r = {low:g}" if low == high else f"r in {'[' if closed else '('}{low:g}, {high:g}]"
        return f"{r}, gamma in [0, 1]" + (", 2r + gamma >= 1" if self.joint else "")

    def covers(self, r: float, gamma: float) -> bool:
        """Whether (r, gamma) satisfies the conditions."""
        low, high, closed = self.r_range
        inside = (low <= r if closed else low < r) and r <= high
        return inside and not violations(r, gamma, joint=self.joint)

    def learning_rate(self, r: float, gamma: float) -> float:
        """Exponent a in  squared error = O(n^-a)."""
        self._check(r, gamma)
        return float(self.rate(r, gamma, 1.0))

    def ridge_exponent(self, r: float, gamma: float) -> float | None:
        """Exponent b in  lambda = n^-b;  None where the paper does not state the ridge weight."""
        self._check(r, gamma)
        return None if self.ridge is None else float(self.ridge(r, gamma, 1.0))

    def feature_exponent(self, r: float, gamma: float, compatibility: float = 1.0) -> float | None:
        """Exponent c in  M = n^c;  None for methods with the exact kernel.

        Only `thm2` and `thm3` depend on `compatibility`.
        """
        self._check(r, gamma, compatibility)
        return None if self.features is None else float(self.features(r, gamma, compatibility))

    def features_needed(self, n: float, r: float, gamma: float, compatibility: float = 1.0) -> int | None:
        """M = n^c (log n)^features_log, rounded up; None for methods with the exact kernel."""
        exponent = self.feature_exponent(r, gamma, compatibility)
        if exponent is None:
            return None
        return max(1, math.ceil(n**exponent * math.log(n) ** self.features_log * ROUND_DOWN))

    def _check(self, r: float, gamma: float, compatibility: float = 1.0) -> None:
        """ValueError if the method's conditions fail."""
        wrong = violations(1, 1, compatibility)  # of the compatibility alone; `covers` is about the others
        if wrong or not self.covers(r, gamma):
            reason = "; ".join(wrong) or f"it asks for {self.conditions}; got r={r!r}, gamma={gamma!r}"
            raise ValueError(f"{self.name} ({self.source}) says nothing here: {reason}.")


# Ranges of the source exponent: realizable, all, and r = 1/2, a target in the kernel's space.
REALIZABLE = (0.5, 1.0, True)
ALL = (0.0, 1.0, False)
IN_SPACE = (0.5, 0.5, True)


def _optimal_rate(r: float, gamma: float, _: float) -> float:
    """2r / (2r + gamma), the optimal rate."""
    return 2 * r / (2 * r + gamma)


def _optimal_ridge(r: float, gamma: float, _: float) -> float:
    """1 / (2r + gamma)."""
    return 1 / (2 * r + gamma)


def _half(r: float, gamma: float, _: float) -> float:  # noqa: ARG001
    return 1 / 2


def _half_gamma(r: float, gamma: float, _: float) -> float:  # noqa: ARG001
    return gamma / 2


def _exponent_thm2(r: float, gamma: float, compatibility: float) -> float:
    """Exponent of the number of features in `thm2`, for any compatibility."""
    if r < 1 / 2:
        return compatibility / (2 * r + gamma)
    return ((2 * r - 1) * (1 + gamma - compatibility) + compatibility) / (2 * r + gamma)


def _exponent_thm1(r: float, gamma: float, _: float) -> float:
    """Exponent of the number of features in `thm1`: compatibility 1, uniform sampling."""
    return (1 if r < 1 / 2 else (2 * r - 1) * gamma + 1) / (2 * r + gamma)


def _exponent_cor1(r: float, gamma: float, _: float) -> float:
    """Exponent of the number of features in `cor1`: compatibility gamma, leverage sampling."""
    return (gamma if r < 1 / 2 else 2 * r + gamma - 1) / (2 * r + gamma)


RUDI, LI, LIP = "Rudi and Rosasco 2017", "Li and Liu 2023", "Li, Ton, Oglic and Sejdinovic 2021"
OURS = "the paper"
SQUARED, CHECK, LIPSCHITZ = "squared", "check", "Lipschitz"

METHODS: dict[str, Method] = {
    "krr_caponnetto": Method("KRR", "Caponnetto and De Vito 2007", SQUARED, REALIZABLE, _optimal_rate),
    "krr_zhang": Method("KRR", "Zhang, Li and Lin 2023", SQUARED, ALL, _optimal_rate),
    "krr_rf_uniform_rudi": Method(
        "KRR-RF-Uniform", RUDI, SQUARED, REALIZABLE, _optimal_rate,
        lambda r, gamma, _: ((2 * r - 1) * gamma + 1) / (2 * r + gamma),
    ),
    "krr_rf_leverage_rudi": Method(
        "KRR-RF-Leverage", RUDI, SQUARED, REALIZABLE, _optimal_rate,
        lambda r, gamma, _: (2 * r + gamma - 1) / (2 * r + gamma),
    ),
    "krr_rf_uniform_li": Method(
        "KRR-RF-Uniform", LI, SQUARED, ALL, _optimal_rate, lambda r, gamma, _: 1 / (2 * r + gamma), joint=True
    ),
    "krr_rf_leverage_li": Method(
        "KRR-RF-Leverage", LI, SQUARED, ALL, _optimal_rate, lambda r, gamma, _: gamma / (2 * r + gamma)
    ),
    "kqr_lian": Method("KQR", "Lian 2022", CHECK, REALIZABLE, _optimal_rate),
    "lip_rf_uniform_rahimi": Method(
        "Lip-RF-Uniform", "Rahimi and Recht 2008", LIPSCHITZ, IN_SPACE, _half, lambda *_: 1.0
    ),
    "lip_rf_leverage_bach": Method(
        "Lip-RF-Leverage", "Bach 2017", LIPSCHITZ, IN_SPACE, _half, _half_gamma
    ),
    "lip_rf_uniform_li": Method("Lip-RF-Uniform", LIP, LIPSCHITZ, IN_SPACE, _half, lambda *_: 1.0),
    "lip_rf_leverage_li": Method("Lip-RF-Leverage", LIP, LIPSCHITZ, IN_SPACE, _half, _half_gamma),
    "ksvm_rf_sun": Method(
        "KSVM-RF", "Sun, Gilbert and Tewari 2018", "hinge", IN_SPACE,
        lambda _, gamma, __: 1 / (2 * gamma + 1), lambda _, gamma, __: 2 * gamma / (2 * gamma + 1),
    ),
    "thm2": Method(
        "KQR-RF", OURS, CHECK, ALL, _optimal_rate, _exponent_thm2, _optimal_ridge,
        joint=True, label="thm2", rate_log=2,
    ),
    "thm1": Method(
        "KQR-RF-Uniform", OURS, CHECK, ALL, _optimal_rate, _exponent_thm1, _optimal_ridge,
        joint=True, label="thm1", rate_log=2,
    ),
    "cor1": Method(
        "KQR-RF-Leverage", OURS, CHECK, ALL, _optimal_rate, _exponent_cor1, _optimal_ridge,
        joint=True, label="cor1", rate_log=2,
    ),
    "exist_thm": Method(
        "KQR-RF", LIP, LIPSCHITZ, IN_SPACE, _half, _half_gamma, lambda *_: 1.0,
        label="exist_thm", in_table=False, features_log=1,
    ),
    "thm3": Method(
        "Lip-RF", OURS, LIPSCHITZ, ALL, _optimal_rate, _exponent_thm2, _optimal_ridge,
        joint=True, label="thm3", in_table=False, rate_log=2,
    ),
    "cor2": Method(
        "Lip-RF-Uniform", OURS, LIPSCHITZ, ALL, _optimal_rate, _exponent_thm1, _optimal_ridge,
        joint=True, label="cor2", in_table=False, rate_log=2,
    ),
    "cor3": Method(
        "Lip-RF-Leverage", OURS, LIPSCHITZ, ALL, _optimal_rate, _exponent_cor1, _optimal_ridge,
        joint=True, label="cor3", in_table=False, rate_log=2,
    ),
}  # fmt: skip
"""By key; the rows of Table 1 in its order, then `exist_thm` and the Lipschitz results `thm3`, `cor2`, `cor3`."""
