"""Number and sampling of random features (`fig2`, `fig3`, `fig4`): uniform, leverage as printed, and leverage.

The median and four other quantiles of the appendix's simulations are fitted at N = 1,000 with M = 2 to 150 features.
The paper's leverage formula rescales uniform features instead of sampling; it is kept as "leverage, as printed" beside
proper leverage sampling, which draws from a pool of 10 M features with probabilities proportional to their leverage
scores.

Beyond the paper (`LEVERAGE_CONSTANT`): why features sampled by leverage lose against uniform ones without an intercept.
Hypothesis: the features must then represent the constant function, which leverage sampling, in favour of features that
rows distinguish, represents worse. So its distance to the features is measured, and both kinds of features are fitted
without and with an intercept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quernel.features import RandomFeatures
from quernel.features.sampling import leverage_scores
from quernel.paper.experiment import (
    Experiment,
    Judgement,
    Row,
    Size,
    Summary,
    Table,
    Task,
    get_solver,
    repetitions,
    summarize,
)
from quernel.paper.holdout_fit import ALPHAS, LEVELS, OPTIONS, make_problem, pinball, solve_grid
from quernel.paper.output import (
    REFERENCE,
    Item,
    OutputFolder,
    Section,
    Verdict,
    add_shared_legend,
    label_decades,
    label_ticks,
    make_panels,
    plot_means,
    share_y_axis,
)
from quernel.paper.paper_numbers import REPETITIONS
from quernel.paper.simulated import KERNEL, SIMULATIONS, Trial, bayes_risk, make_trial, normal_excess_risk
from quernel.plots import house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.floating]

# Training rows, and the paper's numbers of features.
N = 1000
COUNTS = (2, 5, 10, 50, 100, 150)
# Methods, as stored in results.
UNIFORM, LEVERAGE, LITERAL = "uniform", "leverage", "leverage, literal"
# Method (as stored in results) to its name on the page. The formula that the paper prints counts as the paper's method.
NAMES = {UNIFORM: "uniform", LITERAL: "leverage, as printed", LEVERAGE: "leverage sampling (ours)"}
# Column of the median among the levels.
MEDIAN = LEVELS.index(0.5)


@dataclass(frozen=True)
class Settings:
    """How curves are judged and drawn."""

    # The paper: curves "become relatively flat as the number of random features reaches 50". Read as: after M = 50 they
    # change, up or down, by less than this fraction of their fall before.
    flat_from: int = 50
    flat_share: float = 0.1
    min_shown: int = 5  # fewest features whose PQE is plotted


SETTINGS = Settings()


def make_tasks(simulation: str, size: Size) -> list[Task]:
    """Numbers of features times repetitions; those of the quick size are among the full ones.

    The quick size leaves M = 5 out: about one draw in a hundred is ten standard deviations off, so that the mean of
    three repetitions says nothing.
    """
    counts, count = ((10, 50), 3) if size == "quick" else (COUNTS, REPETITIONS)
    return repetitions(count, simulation=simulation, M=counts)


def measure(task: Task, rng: np.random.Generator) -> list[Row]:
    """Fit the three kinds of features to one draw of the rows.

    Leverage scores need a ridge weight before one is selected: that which validation selects for the median with
    uniform features. The grid is then searched again with the new features.
    """
    trial, M = make_trial(str(task["simulation"]), N, rng, get_solver(task)), int(task["M"])
    # 1. Uniform features, which also give the ridge weight of the leverage scores.
    uniform = trial.transform(RandomFeatures(KERNEL, M, random_state=rng))
    rows = trial.evaluate(UNIFORM, uniform)
    alpha = float(rows[MEDIAN]["alpha"])
    # 2. Leverage sampling: new features drawn from a pool.
    leverage = RandomFeatures(KERNEL, M, sampling="leverage", leverage_alpha=alpha, random_state=rng)
    rows += trial.evaluate(LEVERAGE, trial.transform(leverage))
    # 3. The printed formula: the uniform features of step 1, rescaled.
    factor = literal_factor(uniform[0], alpha)
    return rows + trial.evaluate(LITERAL, [part * factor for part in uniform])


def literal_factor(features: Array, alpha: float) -> Array:
    """Factors (M,) of the appendix's formula as printed: q^(-1/2), q = r / sum r, r the ridge leverage scores (M,).

    Nothing is sampled, and the factor M is missing: all features grow, and those of low leverage the most.
    """
    score = leverage_scores(features, np.full(len(features), 1 / len(features)), alpha)
    return np.sqrt(score.sum() / score)


def present(simulation: str, table: Table, output: OutputFolder) -> Section:
    """Compare uniform features, the printed formula and leverage sampling in one simulation."""
    label = {"homoscedastic": "3", "heteroscedastic": "4"}[simulation]
    return Section(
        reported=[
            f"Figure {label}: mean PQE and its standard deviation against M = 2, 5, 10, 50, 100, 150 features, N = "
            "1,000, for uniform features and features by leverage scores; curves only, no numbers. The paper concludes "
            "that both improve with M, and that leverage sampling does better with the same number of features.",
            "How we read it: the appendix takes the M uniform features and multiplies each by q_i^(-1/2), q_i = r_i / "
            "sum r, with r_i its ridge leverage score. Nothing is sampled, and q_i lacks the factor M: all features "
            "grow by about sqrt(M), those of low leverage by more. This is "
            '"leverage, as printed", the paper\'s method, and judged first. Scores are taken at the ridge weight that '
            "validation chose for the median with uniform features.",
            'What leverage sampling means in theory is ours, and judged beside it: "leverage sampling (ours)" draws M '
            "features of a pool of 10 M with probability q and weights them by (M_pool q)^(-1/2), which keeps the "
            'kernel on average. The item "Why leverage features lose without an intercept" looks into its losses. '
            "Claims are judged by the excess risk: PQE minus Bayes risk, free of test noise.",
        ],
        items=[_plot(simulation, table, output), _tabulate(simulation, table, output)],
        verdicts=verdicts(table),
    )


def verdicts(table: Table) -> list[Verdict]:
    """Whether more features are better, and leverage better than uniform: the printed formula, then ours."""
    return [_judge_more_features(table), *(_judge_against_uniform(table, method) for method in (LITERAL, LEVERAGE))]


def present_counts(table: Table, output: OutputFolder) -> Section:
    """Show uniform features alone, in both simulations (`fig2`)."""
    uniform = table.select(method=UNIFORM)
    return Section(
        reported=[
            "Figure 2: mean PQE and its standard deviation against M = 2, 5, 10, 50, 100, 150 uniform features, N = "
            "1,000, five levels; curves only, no numbers. The paper concludes that the PQE falls with M and that its "
            "curve is nearly flat from M = 50 on. The measurements are those of Figures 3 and 4.",
            f"How we read it: flat is a curve that changes after M = {SETTINGS.flat_from} by less than "
            f"{SETTINGS.flat_share:.0%} of what it fell before, up or down. We judge the excess risk (PQE minus Bayes "
            "risk, free of test noise), averaged over the levels.",
        ],
        items=[_plot_counts(uniform, output)],
        verdicts=[judge_flat(uniform.select(simulation=simulation), simulation) for simulation in SIMULATIONS],
    )


def _excess(table: Table, method: str, level: float, M: int) -> Summary:
    """Summary of the excess risk over the repetitions of one method, level and M."""
    return table.select(method=method, level=level, M=M).summary("excess")


def _judge_more_features(table: Table) -> Verdict:
    """Whether the excess risk falls from the fewest to the most features, by method and level."""
    counts = table.values("M")
    falls: dict[Judgement, list[str]] = {True: [], False: [], "undecided": []}
    for method in NAMES:
        for level in LEVELS:
            first, last = (_excess(table, method, level, M) for M in (counts[0], counts[-1]))
            falls[(last - first).is_below_zero()].append(f"{NAMES[method]} at level {level:g}")
    total = len(NAMES) * len(LEVELS)
    text = (
        f"From M = {counts[0]} to M = {counts[-1]} the mean excess risk falls for {len(falls[True])} of {total} pairs "
        "of method and level (95 %)"
    )
    phrases: dict[Judgement, str] = {False: "rises as clearly", "undecided": "cannot be told"}
    for key, phrase in phrases.items():
        text += f"; it {phrase} for {len(falls[key])}{_format_cells(falls[key])}" if falls[key] else ""
    return Verdict(f"{text}.", False if falls[False] else "undecided" if falls["undecided"] else True)


def _judge_against_uniform(table: Table, method: str) -> Verdict:
    """Whether a kind of leverage features has a lower excess risk than uniform features on the same rows.

    Levels share their rows, so that single pairs of M and level are not independent, and some of 30 differ by chance.
    The claim is judged by the ratio of excess risks over all of them: log ratios are averaged over the levels of a
    repetition before their standard error is taken.
    """
    cells: dict[Judgement, list[str]] = {True: [], False: [], "undecided": []}
    for (level, M), cell in table.groups("level", "M"):
        cells[cell.paired_difference("excess", method, UNIFORM).is_below_zero()].append(f"M = {M}, level {level:g}")
    both = ((one.select(method=method), one.select(method=UNIFORM)) for _, one in table.groups("M", "repetition"))
    ratio = summarize(np.mean(np.log(own.column("excess") / other.column("excess"))) for own, other in both)
    low, high = np.exp(ratio.mean + ratio.half_width * np.array([-1, 1]))
    return Verdict(
        f"{NAMES[method].capitalize()}, against uniform features: its excess risk is {np.exp(ratio.mean):.3f} times "
        f"theirs (95 % interval {low:.3f} to {high:.3f}; geometric mean over all M and levels, in pairs). Single pairs "
        f"of M and level, {sum(map(len, cells.values()))} in all: it is lower at "
        f"{len(cells[True])}{_format_cells(cells[True])} and higher at "
        f"{len(cells[False])}{_format_cells(cells[False])}, each at 95 %.",
        ratio.is_below_zero(),
    )


def _format_cells(cells: list[str]) -> str:
    """Names of cells in parentheses, if there are at most ten."""
    return f" ({'; '.join(cells)})" if 0 < len(cells) <= 10 else ""


def judge_flat(table: Table, simulation: str) -> Verdict:
    """Whether the excess risk falls up to M = 50, and changes after it by less than a tenth of that fall."""
    at = {
        M: summarize(one.column("excess").mean() for _, one in cell.groups("repetition"))
        for (M,), cell in table.groups("M")
    }
    first, last = min(at), max(at)
    means = ", ".join(f"{mean.mean:.4f} at M = {M}" for M, mean in at.items())
    text = f"{simulation.capitalize()}: the excess risk over all levels is {means}"
    turn = min(SETTINGS.flat_from, last)
    before, after = at[turn] - at[first], at[last] - at[turn]
    fell = before.is_below_zero()
    if fell is not True:
        phrase = "does not fall" if fell is False else "does not fall clearly"
        return Verdict(f"{text}: up to M = {turn} it {phrase}.", fell)
    if last == turn:
        return Verdict(f"{text}. What comes after M = {SETTINGS.flat_from} was not run.", "undecided")
    share, error = after.mean / -before.mean, after.half_width / -before.mean
    phrase = f"falls by a further {-share:.1%}" if share < 0 else f"rises by {share:.1%}"
    least, most = abs(share) - error, abs(share) + error
    holds: Judgement = True if most < SETTINGS.flat_share else False if least > SETTINGS.flat_share else "undecided"
    return Verdict(
        f"{text}: after M = {turn} it {phrase} (95 % interval: \u00b1 {error:.1%}) of what it fell before; below "
        f"{SETTINGS.flat_share:.0%} is flat.",
        holds,
    )


@house_style()
def _plot(simulation: str, table: Table, output: OutputFolder) -> Item:
    """PQE (above) and excess risk (below) against M, one column of panels per level."""
    counts = table.values("M")
    figure, axes = make_panels(2, len(LEVELS), size=(12.5, 5.6), sharex=True)
    share_y_axis(axes[1])
    for (above, below), level in zip(axes.T, LEVELS, strict=True):
        for series, (method, label) in enumerate(NAMES.items()):
            risks = [_excess(table, method, level, M) for M in counts]
            plot_means(below, counts, risks, error="se", series=series, label=label)
        _plot_pqe(above, table.select(level=level), bayes_risk(simulation, level))
        above.set_title(f"level {level:g}", loc="left")
        below.set(yscale="log", xlabel="random features $M$")
        below.set_xscale("log")
        label_ticks(below, counts, min_distance=0.12)
    axes[0, 0].set_ylabel("PQE")
    axes[1, 0].set_ylabel("excess risk")
    label_decades(axes[1, 0])
    add_shared_legend(figure, axes[0, 0])
    return output.save_figure(
        figure,
        f"sampling_{simulation}",
        f"Above: mean PQE with bars of one standard deviation, {simulation} case, N = 1,000; means of M = 2, if run, "
        "are off the scale and stand in the corner. Below: excess risk with bars of one standard error, both axes "
        "logarithmic.",
    )


@house_style()
def _plot_counts(table: Table, output: OutputFolder) -> Item:
    """PQE of uniform features against M, one row of panels per simulation."""
    figure, axes = make_panels(2, len(LEVELS), size=(12.5, 5.2), sharex=True)
    for row, simulation in zip(axes, SIMULATIONS, strict=True):
        for ax, level in zip(row, LEVELS, strict=True):
            _plot_pqe(ax, table.select(simulation=simulation, level=level), bayes_risk(simulation, level))
            ax.set_title(f"level {level:g}", loc="left")
        row[0].set_ylabel(f"PQE, {simulation}")
    for ax in axes[1]:
        ax.set_xlabel("random features $M$")
        ax.set_xscale("log")
        label_ticks(ax, table.values("M"), min_distance=0.12)
    add_shared_legend(figure, axes[0, 0])
    caption = "Mean PQE with bars of one standard deviation against the number of uniform features, N = 1,000; the "
    caption += "mean of M = 2, if run, is off the scale and stands in the corner. Figures 3 and 4 draw the excess risk."
    return output.save_figure(figure, "feature_count", caption)


def _plot_pqe(ax: Axes, table: Table, least: float) -> None:
    """Plot the PQE of one level from M = 5 on.

    Means at fewer features would need a scale on which all others are one line: they are written into the corner.
    """
    shown = [count for count in table.values("M") if count >= SETTINGS.min_shown]
    methods = [method for method in NAMES if method in table.values("method")]
    for series, method in enumerate(methods):
        cells = [table.select(method=method, M=M).summary("pqe") for M in shown]
        plot_means(ax, shown, cells, error="sd", series=series, label=NAMES[method])
    ax.axhline(least, **REFERENCE, label="Bayes risk: the least expected PQE")
    notes = []
    for M in sorted(set(table.values("M")) - set(shown)):
        means = [table.select(method=method, M=M).summary("pqe").mean for method in methods]
        values = dict.fromkeys(f"{mean:.3f}" for mean in (min(means), max(means)))
        notes.append(f"M = {M}: {' to '.join(values)}")
    ax.text(0.98, 0.97, "\n".join(notes), transform=ax.transAxes, ha="right", va="top", fontsize=8)


def _tabulate(simulation: str, table: Table, output: OutputFolder) -> Item:
    """All means, standard deviations and standard errors."""
    rows = []
    for (level, method, M), cell in table.groups("level", "method", "M"):
        pqe, risk = cell.summary("pqe"), cell.summary("excess")
        alpha = float(np.median(cell.column("alpha")))
        rows.append([level, NAMES[method], M, pqe.n, *pqe[:3], bayes_risk(simulation, level), *risk[:3], alpha])
    rows.sort(key=lambda row: (row[0], list(NAMES.values()).index(row[1]), row[2]))
    columns = {"level": "g", "method": "", "M": "d", "repetitions": "d", "mean PQE": ".4f", "sd": ".4f", "s.e.": ".5f"}
    columns |= {"Bayes risk": ".4f", "excess risk": ".5f", "its sd": ".5f", "its s.e.": ".5f", "median alpha": ".0e"}
    return output.save_table(columns, rows, f"sampling_{simulation}", "All numbers of this item.", folded=True)


def estimate_seconds(task: Task) -> float:
    """Rough running time in seconds."""
    return (1.0 + float(task["M"]) / 40) * (1.0 if task["simulation"] == "homoscedastic" else 1.6)


SAMPLING = tuple(
    Experiment(
        f"sampling_{simulation}",
        label,
        f"Uniform and leverage sampling, {simulation} case",
        partial(present, simulation),
        partial(make_tasks, simulation),
        measure,
        estimate_seconds,
        version=2,
    )
    for simulation, label in (("homoscedastic", "fig3"), ("heteroscedastic", "fig4"))
)
FEATURE_COUNT = Experiment(
    "feature_count",
    "fig2",
    "Effect of the number of random features",
    present_counts,
    uses=tuple(experiment.name for experiment in SAMPLING),
)


# The constant function and features sampled by leverage.
SIMULATION, LEVEL = "homoscedastic", 0.5
CONSTANT_COUNTS = (5, 10, 50)
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


def make_constant_tasks(size: Size) -> list[Task]:
    """Numbers of features times repetitions."""
    return repetitions(3 if size == "quick" else REPETITIONS, M=CONSTANT_COUNTS)


def measure_constant(task: Task, rng: np.random.Generator) -> list[Row]:
    """Fit uniform and leverage features to the same rows, without and with an intercept.

    As in `measure`, leverage scores are computed at the ridge weight that validation selects for the median with
    uniform features and no intercept; the distance of the constant is computed at that weight too, for both kinds of
    features.
    """
    trial, M = make_trial(SIMULATION, N, rng, get_solver(task)), int(task["M"])
    features = trial.transform(RandomFeatures(KERNEL, M, random_state=rng))
    alpha, excess = fit_median(trial, features, fit_intercept=False)
    leverage = RandomFeatures(KERNEL, M, sampling="leverage", leverage_alpha=alpha, random_state=rng)
    sampled = trial.transform(leverage)
    return [
        _constant_row(UNIFORM, trial, features, alpha, excess),
        _constant_row(LEVERAGE, trial, sampled, alpha, fit_median(trial, sampled, fit_intercept=False)[1]),
    ]


def _constant_row(method: str, trial: Trial, features: list[Array], alpha: float, excess: float) -> Row:
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


def present_constant(table: Table, output: OutputFolder) -> Section:
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
    return Section(reported, [_plot_constant(table, output), _tabulate_constant(table, output)], judge_constant(table))


def judge_constant(table: Table) -> list[Verdict]:
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
def _plot_constant(table: Table, output: OutputFolder) -> Item:
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


def _tabulate_constant(table: Table, output: OutputFolder) -> Item:
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


def estimate_constant_seconds(task: Task) -> float:
    """Rough running time in seconds."""
    return 0.6 + float(task["M"]) / 150


LEVERAGE_CONSTANT = Experiment(
    "leverage_constant",
    "beyond the paper",
    "Why leverage features lose without an intercept",
    present_constant,
    make_constant_tasks,
    measure_constant,
    estimate_constant_seconds,
    version=2,
)
