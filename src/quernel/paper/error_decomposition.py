"""Beyond the paper: the four terms of its error decomposition (`lemA.1.1`), measured against the number of rows.

    |f_fit - f*| <= |check loss - least squares| + |sample - population| + |features - kernel| + |ridge - f*|

In the spline design all four L2 norms can be computed exactly (`quernel.theory.error_decomposition`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quernel.paper.experiment import Experiment, Row, Size, Table, Task, get_solver, repetitions
from quernel.paper.figures import REFERENCE, SERIES, add_shared_legend, make_panels, set_log_log
from quernel.paper.holdout_fit import solver_function
from quernel.paper.output import OutputFolder, Section, Verdict
from quernel.paper.slopes import Slope, all_hold, allowed_slope, fit_slope, geometric_means
from quernel.plots import house_style
from quernel.plots.style import INK
from quernel.theory import SplinePopulation, error_decomposition, features_needed, learning_rate, regularization

# Source and capacity exponent of the spline design, cut off after 100 frequencies.
R, GAMMA = 0.5, 0.25
POPULATION = SplinePopulation(R, GAMMA, 100)
# Constants of M = constant * n^c: with the first, M does not limit the accuracy of the fit; with the second it does.
CONSTANTS = (20, 2)
# Attribute of `ErrorDecomposition` to its name on the page.
TERMS = {
    "least_squares": "check loss to least squares",
    "empirical": "rows to their law",
    "random_feature": "features to the kernel",
    "approximation": "kernel to the truth",
}
NAMES = {**TERMS, "total": "total error"}
SIZES: dict[Size, list[int]] = {"full": [250, 500, 1000, 2000, 4000, 8000], "quick": [250, 1000, 4000]}
REPETITIONS: dict[Size, int] = {"full": 20, "quick": 3}


def tasks(size: Size) -> list[Task]:
    """One per constant, number of rows and repetition."""
    return [
        task
        for constant in CONSTANTS
        for n in SIZES[size]
        for task in repetitions(REPETITIONS[size], constant=constant, n=n)
    ]


def measure(task: Task, rng: np.random.Generator) -> list[Row]:
    """Decompose the error of one fit, with lambda and M as the theorem has them."""
    n = int(task["n"])
    M = int(task["constant"]) * features_needed(n, R, GAMMA, compatibility=GAMMA)
    X, y = POPULATION.sample(n, random_state=rng)
    alpha, solve = regularization(n, R, GAMMA), solver_function(get_solver(task))
    parts = error_decomposition(POPULATION, POPULATION.features(M, rng), X, y, alpha=alpha, tol=1e-5, solver=solve)
    return [
        {**task, "M": M, "total": parts.total, "bound": parts.bound, **{term: getattr(parts, term) for term in TERMS}}
    ]


def present(table: Table, output: OutputFolder) -> Section:
    """Plot the terms against N, and tabulate their slopes beside the theorem's."""
    predicted, slopes = predicted_norm_slope(), all_slopes(table)
    figure = output.save_figure(
        _plot(table, predicted),
        "beyond-decomposition",
        f"The four terms of the error and their total, spline design with r = {R:g}, gamma = {GAMMA:g}: L2 norms, "
        "geometric means over repetitions. Left with enough features, right with a tenth of them.",
    )
    last = max(table.values("n"))
    lines = [
        [
            constant,
            NAMES[term],
            float(np.exp(np.log(table.select(constant=constant, n=last).column(term)).mean())),
            slope.value,
            slope.low,
            slope.high,
            predicted,
        ]
        for (constant, term), slope in slopes.items()
    ]
    columns = {
        "constant": "d",
        "term": "",
        f"norm at N = {last:,}": ".4f",
        "slope": ".2f",
        "low": ".2f",
        "high": ".2f",
        "theory": ".2f",
    }
    numbers = output.save_table(
        columns, lines, "beyond-decomposition", "Slopes of the log norms against log N, 95 % intervals."
    )
    reported = [
        "Not in the paper's experiments: its proof splits the error of KQR-RF into four terms (Lemma A.1): from the "
        "check loss to least squares without noise, from the rows to their law, from the random features to the "
        "kernel, and from the kernel to the truth. In the spline design all four can be computed.",
        f"lambda = N^(-1/(2r + gamma)) and M = {CONSTANTS[0]} N^c or {CONSTANTS[1]} N^c with compatibility gamma. The "
        f"norms, not their squares, should fall like N^(-r/(2r + gamma)) = N^{predicted:.2f} up to logarithms.",
    ]
    return Section(reported, [figure, numbers], verdicts(table))


def predicted_norm_slope() -> float:
    """-r/(2r + gamma): the theorem's slope for norms, half of that for squared errors."""
    return -float(learning_rate(R, GAMMA)) / 2


def all_slopes(table: Table) -> dict[tuple[int, str], Slope]:
    """Fitted slopes by (constant, term), the total error among the terms."""
    return {
        (constant, term): fit_slope(part, term)
        for (constant,), part in table.groups("constant")
        for term in (*TERMS, "total")
    }


def verdicts(table: Table) -> list[Verdict]:
    """Whether all terms fall as fast as the theorem allows, their sum bounds the error, and what few features cost."""
    predicted, slopes, sizes = predicted_norm_slope(), all_slopes(table), table.values("n")
    # The theorem allows the norm a factor log N.
    allowed = allowed_slope(predicted, sizes, power=1)
    judged = {term: slopes[CONSTANTS[0], term].meets_bound(allowed) for term in (*TERMS, "total")}
    slow = [NAMES[term] for term, meets in judged.items() if meets is False]
    undecided = [
        f"{NAMES[term]} {slopes[CONSTANTS[0], term]}" for term, meets in judged.items() if meets == "undecided"
    ]
    finding = (
        f"too slow are: {', '.join(slow)}" if slow else "no term is found to fall more slowly than the theorem allows"
    )
    tight = float(np.mean(table.column("total") / table.column("bound")))
    few = table.select(constant=CONSTANTS[1], n=sizes[-1])
    share = float(np.mean(few.column("random_feature") / few.column("bound")))
    return [
        Verdict(
            f"With M = {CONSTANTS[0]} N^c the total error falls like N to the {slopes[CONSTANTS[0], 'total']}; "
            f"{finding} "
            + f"(N^{predicted:.2f} log N: a slope of {allowed:.2f} over these N)".replace("-", "\u2212")
            + (f"; undecided: {', '.join(undecided)}." if undecided else "."),
            all_hold(list(judged.values())),
        ),
        Verdict(
            f"The error is {tight:.0%} of the sum of the four on average, which bounds it (a triangle inequality).",
            None if np.all(table.column("total") <= table.column("bound") * (1 + 1e-9)) else False,
        ),
        Verdict(
            f"With M = {CONSTANTS[1]} N^c the step from the features to the kernel is {share:.0%} of the sum at "
            f"N = {sizes[-1]:,}: that is where too few features show."
        ),
    ]


def _plot(table: Table, predicted: float) -> Any:
    """The four terms, their total, and the theorem's slope; one panel per constant."""
    with house_style():
        figure, axes = make_panels(1, 2, size=(9.0, 4.4), sharey=True)
        for ax, constant in zip(axes[0], CONSTANTS, strict=True):
            part = table.select(constant=constant)
            sizes, total, _ = geometric_means(part, "total")
            ax.plot(sizes, total, color=INK, linewidth=2.4, label="total error $|f - f^*|$")
            for style, (term, label) in zip(SERIES, TERMS.items(), strict=True):
                _, centre, bars = geometric_means(part, term)
                ax.errorbar(sizes, centre, yerr=bars, label=label, markersize=4, linewidth=1.3, capsize=2, **style)
            line = total[0] * (np.array(sizes) / sizes[0]) ** predicted
            ax.plot(sizes, 1.25 * line, label=f"slope ${predicted:.2f}$", **REFERENCE)
            set_log_log(ax, sizes, max_ticks=8)
            ax.set_xlabel("rows $N$")
            ax.set_title(f"$M = {constant}\\,N^c$", loc="left")
        axes[0, 0].set_ylabel("$L_2$ norm")
        add_shared_legend(figure, axes[0, 0], columns=3)
    return figure


ERROR_DECOMPOSITION = Experiment(
    "decomposition", "beyond the paper", "Where the error comes from: four terms against N", tasks, measure, present
)
