"""Solvers: each minimises a `Problem` and returns a `Result` with its duality gap.

`SOLVERS` are those that users choose by name: `"newton"` is screened semismooth Newton (`screening.driver`), `"admm"`
the alternating directions of the paper. `MULTINOMIAL` and `NONCROSSING` solve problems whose columns are coupled.
"""

from quernel.solvers import admm, multinomial
from quernel.solvers.noncrossing import driver as noncrossing
from quernel.solvers.result import Result, Solver, Status
from quernel.solvers.screening import driver as screening

SOLVERS: dict[str, Solver] = {
    "newton": Solver(screening.solve, warm_starts=True, out_of_core=True, float32=True, polishes=True),
    "admm": Solver(admm.solve),
}
MULTINOMIAL = Solver(multinomial.solve)
NONCROSSING = Solver(noncrossing.solve)

__all__ = ["MULTINOMIAL", "NONCROSSING", "SOLVERS", "Result", "Solver", "Status"]
