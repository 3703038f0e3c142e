"""How many features, and how sampled (`fig2`, `fig3`, `fig4`): uniform, by leverage, and the literal variant."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from quernel.features import RandomFeatures
from quernel.features.sampling.leverage import leverage_scores
from quernel.paper.drawing import REFERENCE, errorbars, panels, share_scale, shared_legend
from quernel.paper.experiment import (
    Experiment,
    Row,
    Size,
    Summary,
    Table,
    Task,
    no_rows,
    no_tasks,
    repetitions,
    solver_of,
)
from quernel.paper.log_axes import label_decades
from quernel.paper.printed import REPETITIONS
from quernel.paper.sheet import Item, Section, Sheet, Verdict
from quernel.paper.simulated import KERNEL, SIMULATIONS, bayes_risk, make_trial
from quernel.paper.validated import LEVELS
from quernel.plots import house_style

Array = NDArray[np.floating]

N = 1000
COUNTS = (2, 5, 10, 50, 100, 150)
UNIFORM, LEVERAGE, LITERAL = "uniform", "leverage", "leverage, literal"
METHODS = (UNIFORM, LEVERAGE, LITERAL)
MEDIAN = LEVELS.index(0.5)
# The curves "become relatively flat as the number of random features reaches 50".
FLAT_FROM, FLAT_SHARE = 50, 0.1


def tasks(simulation: str, size: Size) -> list[Task]:
    """Numbers of features and repetitions; the quick ones are a part of the full ones.

    With 5 features a bad draw, one in a hundred or so, is ten standard deviations off: the mean of three says nothing.
    """
    counts, count = ((10, 50), 3) if size == "quick" else (COUNTS, REPETITIONS)
    return [task for M in counts for task in repetitions(count, simulation=simulation, M=M)]


def measure(task: Task, rng: np.random.Generator) -> list[Row]:
    """One draw of the rows, fitted with the three kinds of features.

    Leverage scores need a ridge weight before one is chosen: that which validation chose for the median with uniform
    features. The grid is then searched again.
    """
    trial, M = make_trial(str(task["simulation"]), N, rng, solver_of(task)), int(task["M"])
    parts = [trial.X[part] for part in (trial.train, trial.validation, trial.test)]
    plain = RandomFeatures(KERNEL, M, random_state=rng).fit(parts[0])
    train, validation, test = (plain.transform(part) for part in parts)
    chosen = trial.choose(train, validation)
    rows: list[Row] = [{"method": UNIFORM, **row} for row in trial.judged(chosen, test)]
    alpha = float(chosen.alpha[MEDIAN])
    proper = RandomFeatures(KERNEL, M, sampling="leverage", leverage_alpha=alpha, random_state=rng).fit(parts[0])
    lifted = [proper.transform(part) for part in parts]
    rows += [{"method": LEVERAGE, **row} for row in trial.judged(trial.choose(lifted[0], lifted[1]), lifted[2])]
    factor = literal_factor(train, alpha)
    chosen = trial.choose(train * factor, validation * factor)
    rows += [{"method": LITERAL, **row} for row in trial.judged(chosen, test * factor)]
    return rows


def literal_factor(features: Array, alpha: float) -> Array:
    """The appendix as printed: the same features times q^(-1/2), q = r / sum r, r their ridge leverage scores.

    Nothing is sampled and the factor M is missing: features of low leverage are amplified.
    """
    score = leverage_scores(features, np.full(len(features), 1 / len(features)), alpha)
    return np.sqrt(score.sum() / score)


def present(simulation: str, table: Table, sheet: Sheet) -> Section:
    """Uniform and leverage sampling side by side."""
    label = {"homoscedastic": "3", "heteroscedastic": "4"}[simulation]
    return Section(
        reported=[
            f"Figure {label}: mean PQE and its standard deviation against M = 2, 5, 10, 50, 100, 150 features, N = "
            "1,000, for uniform features and features by leverage scores; curves only, no numbers. The paper concludes "
            "that both improve with M, and that leverage sampling does better with the same number of features.",
            "The appendix's ratio q_i = r_i / sum r lacks the factor M: as printed, nothing is sampled, features are "
            "only rescaled. We draw M of a pool of 10 M with probability q and weight them by (M_pool q)^(-1/2), which "
            'keeps the kernel on average ("leverage"), and show the printed variant, too ("leverage, literal"). Scores '
            "are taken at the ridge weight that validation chose for the median with uniform features.",
        ],
        items=[_figure(simulation, table, sheet), _numbers(simulation, table, sheet)],
        verdicts=[
            _more_is_better(table),
            *(_beside_uniform(table, method) for method in (LEVERAGE, LITERAL)),
        ],
    )


def present_counts(table: Table, sheet: Sheet) -> Section:
    """Uniform features alone, both simulations."""
    uniform = table.select(method=UNIFORM)
    return Section(
        reported=[
            "Figure 2: mean PQE and its standard deviation against M = 2, 5, 10, 50, 100, 150 uniform features, "
            "N = 1,000, five levels; curves only, no numbers. The paper concludes that the PQE falls with M and that "
            "its curve is nearly flat from M = 50 on. The measurements are those of Figures 3 and 4.",
        ],
        items=[_counts_figure(uniform, sheet)],
        verdicts=[_flat(uniform.select(simulation=simulation), simulation) for simulation in SIMULATIONS],
    )


def _cell(table: Table, method: str, level: float, M: int, name: str) -> Summary:
    return table.select(method=method, level=level, M=M).summary(name)


def _more_is_better(table: Table) -> Verdict:
    counts, rises = table.values("M"), []
    for method in METHODS:
        for level in LEVELS:
            first, last = (_cell(table, method, level, M, "excess") for M in (counts[0], counts[-1]))
            if last.mean > first.mean:
                rises.append(f"{method} at level {level:g}")
    return Verdict(
        f"From M = {counts[0]} to M = {counts[-1]} the mean excess risk falls for every method and level"
        + (f", but for {'; '.join(rises)}." if rises else "."),
        not rises,
    )


def _beside_uniform(table: Table, method: str) -> Verdict:
    """Differences are taken repetition by repetition, on the same rows."""
    better, worse, cells = [], [], 0
    for (level, M), cell in table.groups("level", "M"):
        difference = cell.select(method=method).column("excess") - cell.select(method=UNIFORM).column("excess")
        error = difference.std(ddof=1) / np.sqrt(len(difference))
        cells += 1
        (better if difference.mean() < 0 else worse).extend(
            [f"M = {M}, level {level:g}"] if abs(difference.mean()) > 2 * error else []
        )
    return Verdict(
        f"{method.capitalize()} against uniform, {cells} pairs of M and level: lower excess risk by more than two "
        f"standard errors at {len(better)}{_listed(better)}, higher at {len(worse)}{_listed(worse)}.",
        len(better) > len(worse) if method == LEVERAGE else None,
    )


def _listed(cells: list[str]) -> str:
    return f" ({'; '.join(cells)})" if 0 < len(cells) <= 10 else ""


def _flat(table: Table, simulation: str) -> Verdict:
    """What the features beyond 50 bring, beside what those up to 50 did."""
    counts = table.values("M")
    at = {M: np.mean([_cell(table, UNIFORM, level, M, "pqe").mean for level in LEVELS]) for M in counts}
    means = ", ".join(f"{mean:.4f} at M = {M}" for M, mean in at.items())
    first, last = at[counts[0]], at[counts[-1]]
    text = f"{simulation.capitalize()}: the mean PQE over all levels is {means}"
    if counts[-1] <= FLAT_FROM:
        return Verdict(f"{text}.", bool(last < first))
    share = (at[FLAT_FROM] - last) / (first - last)
    return Verdict(f"{text}; {share:.1%} of the whole fall comes after M = {FLAT_FROM}.", bool(share < FLAT_SHARE))


def _figure(simulation: str, table: Table, sheet: Sheet) -> Item:
    counts = table.values("M")
    with house_style():
        figure, axes = panels(2, len(LEVELS), size=(12.5, 5.6), sharex=True)
        share_scale(axes[1])
        for k, level in enumerate(LEVELS):
            for series, method in enumerate(METHODS):
                for ax, name, bar in ((axes[0, k], "pqe", "sd"), (axes[1, k], "excess", "se")):
                    cells = [_cell(table, method, level, M, name) for M in counts]
                    bars = [getattr(cell, bar) for cell in cells]
                    errorbars(ax, counts, [cell.mean for cell in cells], bars, series=series, label=method)
            axes[0, k].axhline(bayes_risk(simulation, level), **REFERENCE, label="Bayes risk: the least possible")
            axes[0, k].set_title(f"level {level:g}", loc="left")
            axes[1, k].set(xscale="log", yscale="log", xlabel="random features $M$")
            axes[1, k].set_xticks(counts, [str(M) for M in counts], rotation=45)
            axes[1, k].minorticks_off()
        axes[0, 0].set_ylabel("PQE")
        axes[1, 0].set_ylabel("excess risk")
        label_decades(axes[1, 0])
        shared_legend(figure, axes[0, 0])
    return sheet.figure(
        figure,
        f"sampling_{simulation}",
        f"Above: mean PQE with bars of one standard deviation, {simulation} case, N = 1,000. Below: excess risk with "
        "bars of one standard error, both axes logarithmic.",
    )


def _counts_figure(table: Table, sheet: Sheet) -> Item:
    counts = table.values("M")
    with house_style():
        figure, axes = panels(2, len(LEVELS), size=(12.5, 5.2), sharex=True)
        for row, simulation in zip(axes, SIMULATIONS, strict=True):
            own = table.select(simulation=simulation)
            for ax, level in zip(row, LEVELS, strict=True):
                cells = [_cell(own, UNIFORM, level, M, "pqe") for M in counts]
                errorbars(ax, counts, [c.mean for c in cells], [c.sd for c in cells], series=0, label="KQR-RF")
                ax.axhline(bayes_risk(simulation, level), **REFERENCE, label="Bayes risk: the least possible")
                ax.set_title(f"level {level:g}", loc="left")
            row[0].set_ylabel(f"PQE, {simulation}")
        for ax in axes[1]:
            ax.set(xscale="log", xlabel="random features $M$")
            ax.set_xticks(counts, [str(M) for M in counts], rotation=45)
            ax.minorticks_off()
        shared_legend(figure, axes[0, 0])
    caption = "Mean PQE with bars of one standard deviation against the number of uniform features, N = 1,000."
    return sheet.figure(figure, "feature_count", caption)


def _numbers(simulation: str, table: Table, sheet: Sheet) -> Item:
    rows = []
    for (level, method, M), cell in table.groups("level", "method", "M"):
        pqe, risk = cell.summary("pqe"), cell.summary("excess")
        alpha = float(np.median(cell.column("alpha")))
        rows.append([level, method, M, pqe.n, *pqe[:3], bayes_risk(simulation, level), *risk[:3], alpha])
    rows.sort(key=lambda row: (row[0], METHODS.index(row[1]), row[2]))
    columns = {"level": "g", "method": "", "M": "d", "repetitions": "d", "mean PQE": ".4f", "sd": ".4f", "s.e.": ".5f"}
    columns |= {"Bayes risk": ".4f", "excess risk": ".5f", "its sd": ".5f", "its s.e.": ".5f", "median alpha": ".0e"}
    return sheet.table(columns, rows, f"sampling_{simulation}", "All numbers of this item.", folded=True)


def _cost(task: Task) -> float:
    return (1.0 + float(task["M"]) / 40) * (1.0 if task["simulation"] == "homoscedastic" else 1.6)


EXPERIMENTS = tuple(
    Experiment(
        name=f"sampling_{simulation}",
        label=label,
        title=f"Uniform and leverage sampling, {simulation} case",
        tasks=partial(tasks, simulation),
        measure=measure,
        present=partial(present, simulation),
        cost=_cost,
    )
    for simulation, label in (("homoscedastic", "fig3"), ("heteroscedastic", "fig4"))
)
FEATURE_COUNT = Experiment(
    name="feature_count",
    label="fig2",
    title="Effect of the number of random features",
    tasks=no_tasks,
    measure=no_rows,
    present=present_counts,
    uses=tuple(experiment.name for experiment in EXPERIMENTS),
)
