"""Effect of the sample size: KQR-RF with M = 50 features against exact KQR (`tab.2`, `tab.3`).

Five quantile levels, N from 500 to 10,000, 50 repetitions. "Exact" KQR uses a pivoted Cholesky factor of the kernel
matrix whose remaining trace is negligible; verdicts on the printed numbers are in `paper_numbers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from quernel.features import PivotedCholesky, RandomFeatures
from quernel.paper import paper_numbers as paper
from quernel.paper.experiment import Experiment, Row, Size, Table, Task, get_solver, repetitions
from quernel.paper.holdout_fit import LEVELS
from quernel.paper.output import (
    REFERENCE,
    SERIES,
    Item,
    OutputFolder,
    Section,
    Verdict,
    add_shared_legend,
    label_decades,
    make_panels,
    plot_means,
    set_log_log,
    share_y_axis,
)
from quernel.paper.paper_numbers import EXACT, METHODS, RF, Cells, compare, summarize_cell
from quernel.paper.simulated import KERNEL, bayes_risk, bound, make_trial
from quernel.plots import house_style

# Method name of the finer fits.
FINE = "KQR, finer"


@dataclass(frozen=True)
class Settings:
    """Numbers of both tables."""

    n_components: int = 50  # random features, as in the paper
    # Fraction of the kernel matrix's trace that its pivoted Cholesky factor leaves out. Those directions hardly matter
    # at the selected ridge weights: first repetitions are fitted again with a finer factor, and the page shows the
    # difference.
    trace_tol: float = 1e-8
    fine_trace_tol: float = 1e-12
    fine_up_to: int = 2000  # largest N of the finer fits


SETTINGS = Settings()
# Texts of the page: the paper's formulas for y, what they leave open, and how we read them.
COVARIATES = (
    "The paper does not say how many covariates mean(x) is the mean of: we take p = 3, those that the formula names."
)
LAWS = {
    "homoscedastic": "The law: y = exp(-x1 + x2) - x2 x3 + mean(x) + e, with x uniform on the unit cube and e standard "
    f"normal. {COVARIATES}",
    "heteroscedastic": "The law: y = sum_j beta_j sin(2 pi x_j) + (1 + mean(x)) (e - F^-1(tau)), j = 1, 2, 3, with x "
    "uniform on the unit cube and e standard normal with distribution function F; y depends on the level tau, on the "
    f"same rows and noise. {COVARIATES} It prints beta_i ~ U(0, 1), one for each row i. That would be more noise, and "
    "the sum of sines, which it calls the true quantile, would be no function of x: we take one beta_j ~ U(0, 1) per "
    "coordinate, drawn once per repetition.",
}


def make_tasks(simulation: str, size: Size) -> list[Task]:
    """Sizes times repetitions; those of the quick size are among the full ones."""
    sizes, count = ((500, 2000), 3) if size == "quick" else (paper.SIZES, paper.REPETITIONS)
    return repetitions(count, simulation=simulation, n=sizes)


def measure(task: Task, rng: np.random.Generator) -> list[Row]:
    """Fit one draw of the rows by KQR-RF and by exact KQR.

    The first repetition of moderate sizes also fits a finer factor of the kernel: what changes is the error of "exact".
    """
    trial = make_trial(str(task["simulation"]), int(task["n"]), rng, get_solver(task))
    rows = trial.evaluate(RF, trial.transform(RandomFeatures(KERNEL, SETTINGS.n_components, random_state=rng)))
    rows += trial.evaluate(EXACT, trial.transform(PivotedCholesky(KERNEL, tol=SETTINGS.trace_tol)))
    if task["repetition"] == 0 and int(task["n"]) <= SETTINGS.fine_up_to:
        rows += trial.evaluate(FINE, trial.transform(PivotedCholesky(KERNEL, tol=SETTINGS.fine_trace_tol)))
    return rows


def present(simulation: str, table: Table, output: OutputFolder) -> Section:
    """The paper's table beside ours, risks as curves, and verdicts."""
    label = {"homoscedastic": "2", "heteroscedastic": "3"}[simulation]
    printed = paper.sample_size_cells(simulation)
    run = {cell: entry for cell, entry in printed.items() if cell[2] in table.values("n")}
    return Section(
        reported=[
            f"Table {label}: mean and standard deviation over 50 repetitions of the PQE on 10,000 test rows, for N "
            f"from 500 to 10,000 and five levels: KQR-RF with M = {SETTINGS.n_components} features of the Gaussian "
            "kernel with bandwidth 1, and exact KQR. The ridge weight is the best of 10^(s/2), s = -20, ..., 2, on "
            "1,000 validation rows, for each level; there is no intercept. The paper concludes that the PQE of KQR-RF "
            "falls with N, and that KQR-RF comes near to KQR as N grows.",
            LAWS[simulation],
            "With this noise no method can have an expected PQE below the Bayes risk, which is known. We draw test "
            "rows anew in every repetition; the paper does not say whether it did. Standard errors of differences "
            "combine ours, the printed sd over the root of 50, and the rounding of print to three decimals.",
        ],
        items=[
            _plot(simulation, table, run, output),
            _tabulate_as_printed(simulation, table, run, output),
            _tabulate_all(simulation, table, run, output),
        ],
        verdicts=[
            paper.judge_numbers(simulation, table, run),
            paper.judge_fall(table, printed),
            paper.judge_printed_gap(printed),
            paper.judge_our_gap(table),
            paper.judge_exact(table),
            *paper.judge_bounds(simulation, printed),
            _remark_accuracy(table),
        ],
    )


def _remark_accuracy(table: Table) -> Verdict:
    """How accurate our fits are: duality gaps, and what a finer factor of the kernel changes."""
    fine = table.select(method=FINE)
    usual = table.select(method=EXACT, repetition=0)
    usual = Table([row for row in usual.rows if row["n"] in fine.values("n")])
    change = {name: fine.column(name) - usual.column(name) for name in ("pqe", "excess")}
    others, gap = np.sum(fine.column("alpha") != usual.column("alpha")), table.column("gap").max()
    return Verdict(
        f"Accuracy: every fit shown has a certified relative duality gap of at most {gap:.0e}. Exact KQR works on a "
        f"factor of the kernel that leaves out {SETTINGS.trace_tol:g} of its trace; with {SETTINGS.fine_trace_tol:g}, "
        f"single PQEs change by at most {np.abs(change['pqe']).max():.0e} and excess risks by "
        f"{np.abs(change['excess']).max():.0e} (in the mean {change['excess'].mean():+.0e}); validation then chooses "
        f"another weight in {others} of {len(fine)} fits."
    )


@house_style()
def _plot(simulation: str, table: Table, printed: Cells, output: OutputFolder) -> Item:
    """PQE with the printed means (above) and excess risk (below) against N, one column of panels per level."""
    sizes = table.values("n")
    figure, axes = make_panels(2, len(LEVELS), size=(12.5, 5.6), sharex=True)
    share_y_axis(axes[1])
    for (above, below), level in zip(axes.T, LEVELS, strict=True):
        for series, method in enumerate(METHODS):
            pqe, risks = (
                [summarize_cell(table, (method, level, n), name) for n in sizes] for name in ("pqe", "excess")
            )
            plot_means(above, sizes, pqe, error="sd", series=series, label=method)
            hollow = {name: SERIES[series][name] for name in ("color", "marker")} | {"markerfacecolor": "white"}
            means = [printed[method, level, n][0] for n in sizes]
            above.plot(sizes, means, linestyle="none", markersize=5, label=f"{method}, as printed", **hollow)
            plot_means(below, sizes, risks, error="se", series=series)
        above.axhline(bayes_risk(simulation, level), **REFERENCE, label="Bayes risk: the least expected PQE")
        above.set_title(f"level {level:g}", loc="left")
        below.set_xlabel("sample size $N$")
        set_log_log(below, sizes, max_ticks=3)
    axes[0, 0].set_ylabel("PQE")
    axes[1, 0].set_ylabel("excess risk")
    label_decades(axes[1, 0])
    add_shared_legend(figure, axes[0, 0], columns=5)
    return output.save_figure(
        figure,
        f"sample_size_{simulation}",
        f"Above: mean PQE with bars of one standard deviation, ours filled, the paper's hollow; {simulation} case. "
        "Below: excess risk with bars of one standard error, both axes logarithmic.",
    )


def _tabulate_as_printed(simulation: str, table: Table, printed: Cells, output: OutputFolder) -> Item:
    """The layout of the paper's table, with ours and the printed number in each cell."""
    sizes, rows = table.values("n"), []
    for level in LEVELS:
        for method in METHODS:
            ours = [summarize_cell(table, (method, level, n), "pqe") for n in sizes]
            means = [printed[method, level, n][0] for n in sizes]
            cells = [f"{o.mean:.4f} ({o.sd:.4f}) / {mean:.3f}" for o, mean in zip(ours, means, strict=True)]
            rows.append([f"{level:g}", method, *cells, bayes_risk(simulation, level)])
    columns = {"level": "", "method": "", **{f"N = {n:,}": "" for n in sizes}, "Bayes risk": ".4f"}
    caption = "PQE: our mean (standard deviation) / the paper's mean."
    return output.save_table(columns, rows, f"sample_size_{simulation}_as_printed", caption)


def _tabulate_all(simulation: str, table: Table, printed: Cells, output: OutputFolder) -> Item:
    """All numbers, with standard errors, bounds and differences from the printed ones."""
    rows: list[list[Any]] = []
    for cell, (mean, sd) in printed.items():
        (method, level, n), (risk, test_sd) = cell, bound(simulation, cell[1])
        ours, excess, least = (summarize_cell(table, cell, name) for name in ("pqe", "excess", "least_excess"))
        difference = compare(ours, (mean, sd), test_sd)
        compared = (mean, sd, difference.value / difference.se, risk, test_sd, (mean - risk) / test_sd)
        rows.append([level, method, n, ours.n, *ours[:3], *compared, *excess[:3], least.mean])
    rows.sort(key=lambda row: (row[0], row[1] != RF, row[2]))
    columns = {"level": "g", "method": "", "N": ",", "repetitions": "d", "mean PQE": ".4f", "sd": ".4f", "s.e.": ".5f"}
    columns |= {"paper's mean": ".3f", "paper's sd": ".3f", "difference in s.e.": ".1f", "Bayes risk": ".4f"}
    columns |= {"sd of one test set": ".4f", "paper's mean above the Bayes risk, in these": ".1f"}
    columns |= {"excess risk": ".5f", "its sd": ".5f", "its s.e.": ".5f", "excess risk at the best weight": ".5f"}
    return output.save_table(columns, rows, f"sample_size_{simulation}", "All numbers of this item.", folded=True)


def estimate_seconds(task: Task) -> float:
    """Rough running time in seconds."""
    return (0.6 + float(task["n"]) / 2000) * (1.0 if task["simulation"] == "homoscedastic" else 1.6)


SAMPLE_SIZE = tuple(
    Experiment(
        f"sample_size_{simulation}",
        label,
        f"Effect of the sample size, {simulation} case",
        partial(present, simulation),
        partial(make_tasks, simulation),
        measure,
        estimate_seconds,
        version=2,
    )
    for simulation, label in (("homoscedastic", "tab.2"), ("heteroscedastic", "tab.3"))
)
