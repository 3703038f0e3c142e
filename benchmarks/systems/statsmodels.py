"""statsmodels' QuantReg: iterated least squares, without a penalty."""

from quernel.bench import Answer, System, Task, time_best


def _fit(task: Task) -> Answer:
    from statsmodels.regression.quantile_regression import QuantReg

    seconds, result = time_best(lambda: QuantReg(task.y, task.design).fit(q=task.level), task.repeats)
    coef = result.params
    intercept = float(coef[task.M]) if task.fit_intercept else 0.0
    return task.make_answer(seconds, coef[: task.M], intercept, "solves alpha = 0")


QUANTREG = System("statsmodels QuantReg", "statsmodels", _fit)
