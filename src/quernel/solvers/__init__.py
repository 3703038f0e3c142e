"""Solvers: each minimises a `Problem` and returns a `Result` with a certificate."""

from collections.abc import Callable

from quernel.solvers import admm, screening
from quernel.solvers.result import Result, Status

SOLVERS: dict[str, Callable[..., Result]] = {"newton": screening.solve, "admm": admm.solve}

__all__ = ["SOLVERS", "Result", "Status"]
