"""What a user would take instead on a table: boosting and forests, with their defaults and tuned.

A method gets rows to fit, new rows and a seed, and returns quantiles of the new rows at `LEVELS`; one thread each.
Tuned methods choose among at most nine settings on one inner split, a fifth of the training rows, with early stopping
of boosting there, and are then fitted to all training rows. `lightgbm_tuned_longer` has five folds and 40 draws.
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

LEVELS = [0.1, 0.5, 0.9]
# Boosting stops early after so many trees without a better one, and has at most so many.
PATIENCE, MOST_TREES = 50, 2000
LIGHTGBM_GRID = [
    {"num_leaves": leaves, "min_data_in_leaf": rows, "learning_rate": 0.05}
    for leaves, rows in product((8, 31, 127), (10, 60))
]
CATBOOST_GRID = [{"depth": depth, "learning_rate": rate} for depth, rate in product((6, 9), (0.06, 0.2))]
FOREST_LEAVES = (1, 5, 15)
# The longer search: draws that are worse than the best in the first fold by more than this part are dropped.
FOLDS, DRAWS, RACE = 5, 40, 0.02

Split = tuple[np.ndarray, np.ndarray]
Predict = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]


def mean_loss(y: np.ndarray, curves: np.ndarray) -> float:
    """Mean pinball loss over rows and `LEVELS`; levels are sorted, for every method alike."""
    residual = y[:, None] - np.sort(curves, axis=1)
    return float(np.mean(np.maximum(np.multiply(LEVELS, residual), np.subtract(LEVELS, 1) * residual)))


def inner_split(n_rows: int, seed: int) -> Split:
    """Rows to fit and rows to judge by, four to one."""
    order = np.random.default_rng([seed, 1]).permutation(n_rows)
    return order[n_rows // 5 :], order[: n_rows // 5]


def lightgbm(X, y, X_new, seed):
    from lightgbm import LGBMRegressor

    settings = {"objective": "quantile", "verbose": -1, "n_jobs": 1, "random_state": seed}
    return np.column_stack([LGBMRegressor(alpha=level, **settings).fit(X, y).predict(X_new) for level in LEVELS])


def lightgbm_tuned(X, y, X_new, seed):
    split = [inner_split(len(y), seed)]
    return np.column_stack([_tune_lightgbm(X, y, X_new, level, seed, LIGHTGBM_GRID, split) for level in LEVELS])


def lightgbm_tuned_longer(X, y, X_new, seed):
    from sklearn.model_selection import KFold

    folds, columns = list(KFold(FOLDS, shuffle=True, random_state=seed).split(X)), []
    for level in LEVELS:
        rng = np.random.default_rng([seed, round(1000 * level)])
        columns.append(_tune_lightgbm(X, y, X_new, level, seed, [_draw(rng) for _ in range(DRAWS)], folds))
    return np.column_stack(columns)


def _tune_lightgbm(X, y, X_new, level: float, seed: int, grid: list[dict], folds: Sequence[Split]) -> np.ndarray:
    """Predictions with the setting of least loss in the folds, and the mean of its numbers of trees there."""
    import lightgbm

    common = {"objective": "quantile", "alpha": level, "metric": "quantile", "verbose": -1, "num_threads": 1}
    grid = [common | {"seed": seed} | settings for settings in grid]
    first = [_stop_early(settings, X, y, *folds[0]) for settings in grid]
    best_first = min(loss for loss, _ in first)
    found = []
    for settings, start in zip(grid, first, strict=True):
        if start[0] <= (1 + RACE) * best_first:
            losses, trees = zip(start, *(_stop_early(settings, X, y, *fold) for fold in folds[1:]), strict=True)
            found.append((float(np.mean(losses)), settings, max(round(float(np.mean(trees))), 1)))
    _, settings, n_trees = min(found, key=lambda one: one[0])
    return lightgbm.train(settings, lightgbm.Dataset(X, y), n_trees).predict(X_new)


def _draw(rng: np.random.Generator) -> dict:
    return {
        "num_leaves": int(np.exp(rng.uniform(np.log(7), np.log(255)))),
        "learning_rate": float(np.exp(rng.uniform(np.log(0.01), np.log(0.2)))),
        "min_data_in_leaf": int(np.exp(rng.uniform(np.log(5), np.log(200)))),
    }


def _stop_early(settings: dict, X, y, train, test) -> tuple[float, int]:
    """Held-out loss, and after how many trees."""
    import lightgbm

    model = lightgbm.train(
        settings,
        lightgbm.Dataset(X[train], y[train]),
        MOST_TREES,
        valid_sets=[lightgbm.Dataset(X[test], y[test])],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    return model.best_score["valid_0"]["quantile"], model.best_iteration


def _catboost(seed: int, **settings):
    from catboost import CatBoostRegressor

    common = {"thread_count": 1, "verbose": 0, "allow_writing_files": False, "random_seed": seed}
    return CatBoostRegressor(loss_function=f"MultiQuantile:alpha={','.join(map(str, LEVELS))}", **common, **settings)


def catboost(X, y, X_new, seed):
    return _catboost(seed).fit(X, y).predict(X_new)


def catboost_tuned(X, y, X_new, seed):
    train, test = inner_split(len(y), seed)
    found = []
    for settings in CATBOOST_GRID:
        model = _catboost(seed, iterations=MOST_TREES, **settings)
        model.fit(X[train], y[train], eval_set=(X[test], y[test]), early_stopping_rounds=PATIENCE)
        found.append((mean_loss(y[test], model.predict(X[test])), settings, model.tree_count_))
    _, settings, n_trees = min(found, key=lambda one: one[0])
    return _catboost(seed, iterations=n_trees, **settings).fit(X, y).predict(X_new)


def _forest(seed: int, **settings):
    from quantile_forest import RandomForestQuantileRegressor

    return RandomForestQuantileRegressor(random_state=seed, n_jobs=1, **settings)


def forest(X, y, X_new, seed):
    return _forest(seed).fit(X, y).predict(X_new, quantiles=LEVELS)


def forest_tuned(X, y, X_new, seed):
    train, test = inner_split(len(y), seed)
    found = []
    for leaf in FOREST_LEAVES:
        settings = {"min_samples_leaf": leaf, "max_samples_leaf": None}  # all rows of a leaf count, not one
        model = _forest(seed, **settings).fit(X[train], y[train])
        found.append((mean_loss(y[test], model.predict(X[test], quantiles=LEVELS)), settings))
    settings = min(found, key=lambda one: one[0])[1]
    return _forest(seed, **settings).fit(X, y).predict(X_new, quantiles=LEVELS)


def xgboost(X, y, X_new, seed):
    from xgboost import XGBRegressor

    settings = {"objective": "reg:quantileerror", "quantile_alpha": LEVELS, "n_jobs": 1, "random_state": seed}
    return XGBRegressor(**settings).fit(X, y).predict(X_new)


PEERS: dict[str, Predict] = {
    "LightGBM": lightgbm,
    "CatBoost": catboost,
    "XGBoost": xgboost,
    "quantile forest": forest,
    "LightGBM tuned": lightgbm_tuned,
    "CatBoost tuned": catboost_tuned,
    "quantile forest tuned": forest_tuned,
    "LightGBM tuned longer": lightgbm_tuned_longer,
}
