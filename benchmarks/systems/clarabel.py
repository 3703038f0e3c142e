"""Clarabel, an interior-point method for conic programs, on the dual."""

import numpy as np
from scipy import sparse

from benchmarks.systems.quadratic import answer, dual
from quernel.bench import Answer, System, Task, time_best


def _fit(task: Task) -> Answer:
    import clarabel

    settings = clarabel.DefaultSettings()
    settings.verbose = False

    def solve() -> tuple[object, int]:
        program = dual(task)
        n, size, equalities = task.n, len(program.c), program.A.shape[0]
        theta = sparse.eye(n, size)
        solver = clarabel.DefaultSolver(
            sparse.triu(sparse.csc_matrix(program.P), format="csc"),
            program.c,
            sparse.vstack([sparse.csc_matrix(program.A), theta, -theta], format="csc"),
            np.r_[np.zeros(equalities), np.full(n, program.high), np.full(n, -program.low)],
            [clarabel.ZeroConeT(equalities), clarabel.NonnegativeConeT(2 * n)],
            settings,
        )
        return solver.solve(), equalities

    seconds, (solution, equalities) = time_best(solve, task.repeats)
    note = "" if "Solved" in str(solution.status) else f"status {solution.status}"
    return answer(task, seconds, np.array(solution.x), np.array(solution.z)[:equalities], note)


CLARABEL = System("Clarabel on the dual", "clarabel", _fit)
