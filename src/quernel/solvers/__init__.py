"""Solvers: each minimises a `Problem` and returns a `Result` with its duality gap.

`"newton"` is screened semismooth Newton (`screening.driver`), `"admm"` the alternating directions of the paper.
"""

from collections.abc import Callable

from quernel.solvers import admm
from quernel.solvers.result import Result, Status
from quernel.solvers.screening import driver

SOLVERS: dict[str, Callable[..., Result]] = {"newton": driver.solve, "admm": admm.solve}

__all__ = ["SOLVERS", "Result", "Status"]
