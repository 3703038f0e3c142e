"""PIQP, a proximal interior-point method, on the dual: dense for the kernel itself, sparse for features."""

import numpy as np

from benchmarks.systems.quadratic import answer, dual
from quernel.bench import Answer, System, Task, time_best


def _fit(task: Task) -> Answer:
    import piqp

    def solve() -> tuple[object, object]:
        program = dual(task)
        free = len(program.c) - task.n
        solver = piqp.DenseSolver() if task.M is None else piqp.SparseSolver()
        equalities = program.A.shape[0]
        solver.setup(
            np.asfortranarray(program.P) if task.M is None else program.P,
            program.c,
            (np.asfortranarray(program.A) if task.M is None else program.A) if equalities else None,
            np.zeros(equalities) if equalities else None,
            x_l=np.r_[np.full(task.n, program.low), np.full(free, -np.inf)],
            x_u=np.r_[np.full(task.n, program.high), np.full(free, np.inf)],
        )
        status = solver.solve()
        return solver.result, status

    seconds, (result, status) = time_best(solve, task.repeats)
    note = "" if status == piqp.PIQP_SOLVED else f"status {status}"
    return answer(task, seconds, np.array(result.x), np.array(result.y), note)


PIQP = System("PIQP on the dual", "piqp", _fit)
