"""A fit to begin from: the solution on fewer rows, or what an earlier solve had reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Guess:
    """Coefficients (M, q) and intercepts (q,), found on `n_rows` rows with about so many parameters in use.

    From these follows how far it may be from the solution; where that is known better, `band` (q,) is the size of
    residual below which rows are in doubt. One that is `solved` needs only to be proved, if it can be: it was found for
    features that are nearly these.
    """

    coef: Array
    intercept: Array
    n_rows: int
    parameters: float
    band: Array | None = None
    solved: bool = False

    @classmethod
    def solution(cls, coef: Array, intercept: Array, n_rows: int, parameters: float, tol: float) -> Guess:
        """One that lacks no more than a share `tol` of F, about what a fit to `parameters / tol` rows lacks."""
        return cls(coef, intercept, max(n_rows, int(parameters / tol)), parameters, solved=True)


# Is told how far a solve has come, to write it down.
Keep = Callable[[Guess], None]
