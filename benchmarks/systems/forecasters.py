"""Systems that predict quantiles by other means: five levels from X, timed at fitting and at predicting new rows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from quernel import KernelQuantileRegressor
from quernel.bench import Answer, System, Task, time_best
from quernel.datasets import make_homoscedastic
from quernel.metrics import pinball_loss

LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]
NEW_ROWS = 100_000


def _answer(task: Task, fit: Callable[[], Any], predict: Callable[[np.ndarray], np.ndarray]) -> Answer:
    new = make_homoscedastic(NEW_ROWS, random_state=1)
    seconds, _ = time_best(fit, task.repeats)
    predicting, curves = time_best(lambda: predict(new.X), task.repeats)
    loss = np.mean(pinball_loss(new.y, curves, LEVELS))
    return Answer(seconds, note=f"predicts {NEW_ROWS / predicting:,.0f} rows/s; loss on new rows {loss:.4f}")


def _quernel(task: Task) -> Answer:
    model = KernelQuantileRegressor(LEVELS, bandwidth="auto", n_components=500, random_state=0)
    return _answer(task, lambda: model.fit(task.X, task.y), model.predict)


def _lightgbm(task: Task) -> Answer:
    from lightgbm import LGBMRegressor

    models = [LGBMRegressor(objective="quantile", alpha=level, n_estimators=100, verbose=-1) for level in LEVELS]
    return _answer(
        task,
        lambda: [model.fit(task.X, task.y) for model in models],
        lambda X: np.column_stack([model.predict(X) for model in models]),
    )


def _forest(task: Task) -> Answer:
    from quantile_forest import RandomForestQuantileRegressor

    model = RandomForestQuantileRegressor(n_estimators=100, min_samples_leaf=20, random_state=0)
    return _answer(task, lambda: model.fit(task.X, task.y), lambda X: model.predict(X, quantiles=LEVELS))


QUERNEL = System("quernel, 500 features", "quernel", _quernel)
LIGHTGBM = System("LightGBM, 5 models of 100 trees", "lightgbm", _lightgbm)
FOREST = System("quantile-forest, 100 trees", "quantile-forest", _forest)
