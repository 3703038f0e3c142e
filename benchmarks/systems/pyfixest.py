"""pyfixest's Frisch-Newton interior-point solver, called without its formulas; no penalty."""

import numpy as np

from quernel.bench import Answer, System, Task, time_best


def _fit(task: Task) -> Answer:
    from pyfixest.estimation.quantreg.frisch_newton_ip import frisch_newton_solver
    from scipy.linalg import cho_factor, solve_triangular

    X, y, level = task.design, task.y, task.level

    def solve() -> tuple:
        # The set-up of its own `quantreg`: the linear program's dual, and a Cholesky factor made once.
        factor, _ = cho_factor(X.T @ X, lower=True, check_finite=False)
        return frisch_newton_solver(
            A=X.T, b=(1 - level) * X.sum(axis=0), c=-y, u=np.ones(len(y)), q=level, tol=1e-6, max_iter=1000,
            backoff=0.9995, beta_init=None, chol=factor,
            P=solve_triangular(factor, X.T, lower=True, check_finite=False),
        )  # fmt: skip

    seconds, (coef, converged, *_) = time_best(solve, task.repeats)
    coef = np.ravel(coef)
    intercept = float(coef[task.M]) if task.fit_intercept else 0.0
    note = "solves alpha = 0" + ("" if converged else "; not converged")
    return task.make_answer(seconds, coef[: task.M], intercept, note)


FRISCH_NEWTON = System("pyfixest quantreg (fn)", "pyfixest", _fit)
