"""Beyond the paper: why features sampled by leverage lose without an intercept (see `sampling`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quernel.features import RandomFeatures
from quernel.losses import Pinball
from quernel.paper.experiment import Experiment, Row, Size, Table, Task, repetitions
from quernel.paper.printed import REPETITIONS
from quernel.paper.risk import normal_excess_risk
from quernel.paper.sampling import LEVERAGE, MEDIAN, UNIFORM, N
from quernel.paper.sheet import Section, Sheet
from quernel.paper.simulated import KERNEL, Trial, make_trial
from quernel.paper.validated import ALPHAS, pinball
from quernel.paths import solve
from quernel.problem import Problem
from quernel.rows import ArrayRows, LiftedRows

Array = NDArray[np.floating]

SIMULATION, LEVEL = "homoscedastic", 0.5
COUNTS = (5, 10, 50)
TOL = 1e-5


def tasks(size: Size) -> list[Task]:
    """Numbers of features and repetitions."""
    return [task for M in COUNTS for task in repetitions(3 if size == "quick" else REPETITIONS, M=M)]


def measure(task: Task, rng: np.random.Generator) -> list[Row]:
    """One draw of the rows: uniform and leverage features, each fitted without and with an intercept.

    As in `sampling`, leverage scores are taken at the ridge weight that validation chose for the median with uniform
    features and no intercept. At that weight both kinds of features have to represent the constant.
    """
    trial, M = make_trial(SIMULATION, N, rng), int(task["M"])
    parts = [trial.X[part] for part in (trial.train, trial.validation, trial.test)]
    uniform = RandomFeatures(KERNEL, M, random_state=rng).fit(parts[0])
    features = [uniform.transform(part) for part in parts]
    alpha, excess = fit_median(trial, features, fit_intercept=False)
    leverage = RandomFeatures(KERNEL, M, sampling="leverage", leverage_alpha=alpha, random_state=rng).fit(parts[0])
    sampled = [leverage.transform(part) for part in parts]
    return [
        _row(UNIFORM, trial, features, alpha, excess),
        _row(LEVERAGE, trial, sampled, alpha, fit_median(trial, sampled, fit_intercept=False)[1]),
    ]


def _row(method: str, trial: Trial, features: list[Array], alpha: float, excess: float) -> Row:
    train, _, test = features
    return {
        "method": method,
        "alpha": alpha,
        "excess": excess,
        "excess_intercept": fit_median(trial, features, fit_intercept=True)[1],
        "distance": distance_of_constant(train, test, alpha),
        "distance_span": distance_of_constant(train, test, 0.0),
    }


def fit_median(trial: Trial, features: list[Array], *, fit_intercept: bool) -> tuple[float, float]:
    """The ridge weight that validation chooses for the median, and the excess risk of that fit on the test rows."""
    train, validation, test = features
    rows = LiftedRows(ArrayRows(train, trial.y[trial.train]), features=train)
    grid = solve(Problem(rows, Pinball([LEVEL]), 1.0, fit_intercept=fit_intercept), ALPHAS, [LEVEL], tol=TOL)
    held_out = trial.y[trial.validation][:, None]
    best = int(np.argmin(pinball(held_out - grid.predict(validation), np.array([LEVEL])).mean(axis=1)[:, 0]))
    deviation = test @ grid.coef[best, :, 0] + grid.intercept[best, 0] - trial.truth[trial.test, MEDIAN]
    return float(ALPHAS[best]), float(normal_excess_risk(deviation, 1.0, LEVEL).mean())


def distance_of_constant(train: Array, test: Array, alpha: float) -> float:
    """Root mean square over the test rows of 1 - phi(x)'u, where u minimises mean (1 - phi(x)'u)^2 + alpha |u|^2.

    The mean is over the training rows. It is 0 if the features span the constant (and alpha is 0), 1 if they are
    orthogonal to it.
    """
    # Least squares on rows that the ridge adds, which keeps its accuracy where the normal equations lose it.
    ridge = np.sqrt(alpha * len(train)) * np.eye(train.shape[1])
    target = np.concatenate([np.ones(len(train)), np.zeros(len(ridge))])
    coef = np.linalg.lstsq(np.vstack([train, ridge]), target, rcond=None)[0]
    return float(np.sqrt(np.mean((1 - test @ coef) ** 2)))


def present(table: Table, sheet: Sheet) -> Section:
    """Distances of the constant, and differences of excess risk without and with an intercept."""
    columns = {"M": "d", "method": "", "distance": ".4f", "excess": ".5f", "with an intercept": ".5f"}
    names = ("distance", "excess", "excess_intercept")
    rows = [
        [M, method, *(cell.summary(name).mean for name in names)] for (M, method), cell in table.groups("M", "method")
    ]
    return Section(["The paper fits no intercept."], [sheet.table(columns, rows, "beyond-leverage-constant", "Means.")])


def _cost(task: Task) -> float:
    return 0.6 + float(task["M"]) / 150


LEVERAGE_CONSTANT = Experiment(
    name="leverage_constant",
    label="beyond the paper",
    title="Why leverage features lose without an intercept",
    tasks=tasks,
    measure=measure,
    present=present,
    cost=_cost,
)
