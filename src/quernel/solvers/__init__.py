"""Solvers: each minimises a `Problem` and returns a `Result` with a certificate."""

from collections.abc import Callable

from quernel.losses import Loss
from quernel.solvers import admm, screening
from quernel.solvers.result import Result, Status

# What a solver needs of a loss, where it cannot take every one: it raises before the first sweep, with a remedy.
NEEDS: dict[str, Callable[[Loss], None]] = {"admm": admm.check_loss}
SOLVERS: dict[str, Callable[..., Result]] = {"newton": screening.solve, "admm": admm.solve}

__all__ = ["NEEDS", "SOLVERS", "Result", "Status"]
