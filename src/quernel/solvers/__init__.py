"""Solvers: each minimises a `Problem` and returns a `Result` with its duality gap.

`SOLVERS` are those that users choose by name: `"newton"` is screened semismooth Newton (`screening`), `"admm"`
the alternating directions of the paper. `MULTINOMIAL` and `NONCROSSING` solve problems whose columns are coupled,
`SHAPED` and `SHAPED_NONCROSSING` those with shape constraints.
"""

from functools import partial

from quernel.solvers import admm, multinomial
from quernel.solvers.noncrossing import solve as solve_noncrossing
from quernel.solvers.noncrossing.shapes import solve as solve_shapes
from quernel.solvers.result import Result, Solver, Status
from quernel.solvers.screening import solve as screened_newton

SOLVERS: dict[str, Solver] = {
    "newton": Solver(
        screened_newton, warm_starts=True, out_of_core=True, float32=True, polishes=True, second_order=True
    ),
    "admm": Solver(admm.solve),
}
MULTINOMIAL = Solver(multinomial.solve)
NONCROSSING = Solver(solve_noncrossing)
# Shapes of curves that may cross, and of curves that must not.
SHAPED, SHAPED_NONCROSSING = (Solver(partial(solve_shapes, joint=joint)) for joint in (False, True))

__all__ = ["MULTINOMIAL", "NONCROSSING", "SHAPED", "SHAPED_NONCROSSING", "SOLVERS", "Result", "Solver", "Status"]
