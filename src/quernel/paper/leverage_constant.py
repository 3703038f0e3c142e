"""Beyond the paper: why features sampled by leverage lose against uniform ones without an intercept (see `sampling`).

Hypothesis: without an intercept the features must represent the constant function, which leverage sampling, in favour
of features that rows distinguish, represents worse. So its distance to the features is measured, and both kinds of
features are fitted without and with an intercept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quernel.features import RandomFeatures
from quernel.paper.experiment import Experiment, Row, Size, Table, Task, get_solver, repetitions, summarize
from quernel.paper.holdout_fit import ALPHAS, OPTIONS, make_problem, pinball, solve_grid
from quernel.paper.output import (
    REFERENCE,
    Item,
    OutputFolder,
    Section,
    Verdict,
    label_decades,
    label_ticks,
    make_panels,
    plot_means,
)
from quernel.paper.paper_numbers import REPETITIONS
from quernel.paper.sampling import LEVERAGE, MEDIAN, NAMES, UNIFORM, N
from quernel.paper.simulated import KERNEL, Trial, make_trial, normal_excess_risk
from quernel.plots import house_style

Array = NDArray[np.floating]

SIMULATION, LEVEL = "homoscedastic", 0.5
COUNTS = (5, 10, 50)
METHODS = (UNIFORM, LEVERAGE)
# Columns of the results: excess risk without and with an intercept.
EXCESS = ("excess", "excess_intercept")
# Column of the results to its name on the page.
QUANTITIES = {
    "distance": "distance of the constant",
    "distance_span": "the same without ridge",
    "excess": "excess risk without an intercept",
    "excess_intercept": "excess risk with an intercept",
}


def make_tasks(size: Size) -> list[Task]:
    """Numbers of features times repetitions."""
    return repetitions(3 if size == "quick" else REPETITIONS, M=COUNTS)


def measure(task: Task, rng: np.random.Generator) -> list[Row]:
    """Fit uniform and leverage features to the same rows, without and with an intercept.

    As in `sampling`, leverage scores are computed at the ridge weight that validation selects for the median with
    uniform features and no intercept; the distance of the constant is computed at that weight too, for both kinds of
    features.
    """
    trial, M = make_trial(SIMULATION, N, rng, get_solver(task)), int(task["M"])
    features = trial.transform(RandomFeatures(KERNEL, M, random_state=rng))
    alpha, excess = fit_median(trial, features, fit_intercept=False)
    leverage = RandomFeatures(KERNEL, M, sampling="leverage", leverage_alpha=alpha, random_state=rng)
    sampled = trial.transform(leverage)
    return [
        _row(UNIFORM, trial, features, alpha, excess),
        _row(LEVERAGE, trial, sampled, alpha, fit_median(trial, sampled, fit_intercept=False)[1]),
    ]


def _row(method: str, trial: Trial, features: list[Array], alpha: float, excess: float) -> Row:
    """The measurements of one kind of features; `features` are those of training, validation and test rows."""
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
    """The ridge weight that validation selects for the median, and the excess risk of that fit on test rows."""
    train, validation, test = features
    problem = make_problem(train, trial.y[trial.train], [LEVEL], fit_intercept=fit_intercept)
    grid = solve_grid(problem, ALPHAS, tol=OPTIONS.path_tol, solver=trial.solver)
    held_out = trial.y[trial.validation][:, None]
    best = int(np.argmin(pinball(held_out - grid.predict(validation), np.array([LEVEL])).mean(axis=1)[:, 0]))
    deviation = test @ grid.coef[best, :, 0] + grid.intercept[best, 0] - trial.truth[trial.test, MEDIAN]
    return float(ALPHAS[best]), float(normal_excess_risk(deviation, 1.0, LEVEL).mean())


def distance_of_constant(train: Array, test: Array, alpha: float) -> float:
    """Distance of the constant function 1 from its ridge regression on the features, root mean square over test rows:

        sqrt(mean over test of (1 - phi(x)'u)^2),   u = argmin mean over train of (1 - phi(x)'u)^2 + alpha |u|^2.

    It is 0 if the features span the constant and alpha is 0, and 1 if they are orthogonal to it.
    """
    # Ridge regression as least squares on augmented rows: more accurate than the normal equations at small alpha.
    ridge = np.sqrt(alpha * len(train)) * np.eye(train.shape[1])
    target = np.concatenate([np.ones(len(train)), np.zeros(len(ridge))])
    coef = np.linalg.lstsq(np.vstack([train, ridge]), target, rcond=None)[0]
    return float(np.sqrt(np.mean((1 - test @ coef) ** 2)))


def present(table: Table, output: OutputFolder) -> Section:
    """Plot and tabulate distances of the constant, and paired differences of excess risk."""
    reported = [
        "The paper says that features sampled by leverage do better than uniform ones; with Figure 3 we found proper "
        "leverage sampling to do worse at small M. The paper fits no intercept, so that the features have to represent "
        "the level of y, too. Leverage scores prefer features that the rows tell apart, while the constant is what all "
        "slowly varying features have in common.",
        f"Here is the median of the {SIMULATION} simulation, N = {N:,}, ridge weight from the paper's grid by "
        "validation, uniform and leverage features (drawn from a pool of 10 M) on the same rows. The distance of the "
        "constant is the root mean square over the test rows of 1 - phi(x)'u, where u is the ridge regression of 1 on "
        "the features of the training rows, at the ridge weight that validation chose for uniform features: 0 if the "
        "features represent it, 1 if they cannot at all.",
    ]
    return Section(reported, [_plot(table, output), _tabulate(table, output)], verdicts(table))


def verdicts(table: Table) -> list[Verdict]:
    """Per number of features: whether leverage features represent the constant worse, and what an intercept does."""
    groups = list(table.groups("M"))
    return [_judge_distance(part, M) for (M,), part in groups] + [_judge_intercept(part, M) for (M,), part in groups]


def _judge_distance(part: Table, M: int) -> Verdict:
    """Whether the constant is farther from leverage than from uniform features (paired)."""
    uniform, leverage = (part.select(method=method).summary("distance").mean for method in METHODS)
    farther = part.paired_difference("distance", UNIFORM, LEVERAGE)
    holds = farther.is_below_zero()
    phrase = {True: "farther from", False: "nearer to", "undecided": "not clearly farther from"}[holds]
    return Verdict(
        f"M = {M}: leverage features are {phrase} the constant than uniform ones, at {leverage:.4f} against "
        f"{uniform:.4f}; the difference is {-farther.mean:+.4f} (s.e. {farther.se:.4f}), in pairs.",
        holds,
    )


def _judge_intercept(part: Table, M: int) -> Verdict:
    """Whether leverage features lose without an intercept, and no longer (and by less) with one."""
    without, with_intercept = (part.paired_difference(name, LEVERAGE, UNIFORM) for name in EXCESS)
    text = (
        f"M = {M}: the excess risk of leverage minus that of uniform features is {without} without an intercept and "
        f"{with_intercept} with one"
    )
    if without.is_below_zero() is not False:
        left = with_intercept.is_below_zero() is False
        phrase = "a loss only with an intercept" if left else "no clear loss to explain"
        return Verdict(f"{text}: {phrase}.", False if left else None)
    lost = [part.select(method=LEVERAGE).column(name) - part.select(method=UNIFORM).column(name) for name in EXCESS]
    smaller = summarize(lost[1] - lost[0]).is_below_zero() is True
    if with_intercept.is_below_zero() is False:
        share = f", {with_intercept.mean / without.mean:.0%} of it" if smaller else ""
        return Verdict(f"{text}: the loss is still there{share}.", False)
    return Verdict(
        f"{text}: the loss is {'gone, within the error' if smaller else 'not clearly smaller'}.", smaller or "undecided"
    )


@house_style()
def _plot(table: Table, output: OutputFolder) -> Item:
    """Distances of the constant (left), and excess risk of leverage minus uniform features (right)."""
    counts = table.values("M")
    figure, axes = make_panels(1, 2, size=(9.5, 3.8))
    left, right = axes[0]
    for series, method in enumerate(METHODS):
        distances = [table.select(method=method, M=M).summary("distance") for M in counts]
        plot_means(left, counts, distances, error="half_width", series=series, label=NAMES[method])
    for series, (name, label) in enumerate(zip(EXCESS, ("without an intercept", "with one"), strict=True)):
        losses = [table.select(M=M).paired_difference(name, LEVERAGE, UNIFORM) for M in counts]
        plot_means(right, counts, losses, error="half_width", series=series, label=label)
    right.axhline(0, **REFERENCE)
    left.set(yscale="log", ylabel="distance of the constant")
    right.set_ylabel("excess risk, leverage minus uniform")
    for ax in (left, right):
        ax.set_xscale("log")
        label_ticks(ax, counts)
        ax.set_xlabel("random features $M$")
        ax.legend(frameon=False)
    label_decades(left)
    return output.save_figure(
        figure,
        "beyond-leverage-constant",
        "Left: how far the constant is from uniform and from leverage features. Right: what leverage features lose "
        "against uniform ones, in pairs, without and with an intercept. Means, bars of 95 % intervals.",
    )


def _tabulate(table: Table, output: OutputFolder) -> Item:
    """Means of all quantities, and their paired differences."""
    rows = []
    for (M,), part in table.groups("M"):
        uniform, leverage = (part.select(method=method) for method in METHODS)
        for name, phrase in QUANTITIES.items():
            difference = part.paired_difference(name, LEVERAGE, UNIFORM)
            means = (one.summary(name).mean for one in (uniform, leverage))
            rows.append([M, phrase, difference.n, *means, difference.mean, difference.se])
    columns = {"M": "d", "quantity": "", "repetitions": "d", NAMES[UNIFORM]: ".5f", NAMES[LEVERAGE]: ".5f"}
    columns |= {"difference": "+.5f", "s.e.": ".5f"}
    return output.save_table(columns, rows, "beyond-leverage-constant", "Means, and differences in pairs.")


def estimate_seconds(task: Task) -> float:
    """Rough running time in seconds."""
    return 0.6 + float(task["M"]) / 150


LEVERAGE_CONSTANT = Experiment(
    "leverage_constant",
    "beyond the paper",
    "Why leverage features lose without an intercept",
    present,
    make_tasks,
    measure,
    estimate_seconds,
    version=2,
)
