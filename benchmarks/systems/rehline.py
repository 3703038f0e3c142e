"""ReHLine: coordinate descent on the dual, for piecewise linear-quadratic losses and a ridge."""

from quernel.bench import Answer, System, Task, time_best


def _fit(task: Task) -> Answer:
    from rehline import plqERM_Ridge

    if task.fit_intercept:
        raise ValueError("ReHLine penalises its intercept; ask without")
    # C sum loss + |u|^2 / 2: C = 1 / (2 n alpha).
    model = plqERM_Ridge(
        loss={"name": "QR", "qt": task.level}, C=1 / (2 * task.n * task.alpha), max_iter=100_000, tol=1e-6
    )
    seconds, model = time_best(lambda: model.fit(X=task.features, y=task.y), task.repeats)
    return task.make_answer(seconds, model.coef_)


REHLINE = System("ReHLine", "rehline", _fit)
