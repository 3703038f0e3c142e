"""Beyond the paper's experiments: two of its results, measured in designs where every quantity is known.

The error decomposition (`lemA.1.1`) has four terms, whose L2 norms can be computed exactly in the spline design
(`quernel.theory.error_decomposition`):

    |f_fit - f*| <= |check loss - least squares| + |sample - population| + |features - kernel| + |ridge - f*|

The theorem for Lipschitz losses (`thm3`) is tried with the logistic and the hinge loss. Labels are drawn on the circle
with known probabilities, so that the minimiser f* and the excess risk have closed forms. The logistic loss meets the
theorem's local strong convexity (`ass7`); the hinge loss does not, and is shown beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from quernel import theory
from quernel.data import ArrayRows
from quernel.data.design_matrix import FeatureMap
from quernel.datasets.simulations import SplineQuantile
from quernel.losses import Hinge, Logistic
from quernel.paper import simulated
from quernel.paper.experiment import (
    MAX_WIDTH,
    Experiment,
    Row,
    Size,
    Slope,
    Table,
    Task,
    all_hold,
    allowed_slope,
    fit_slope,
    get_solver,
    repetitions,
)
from quernel.paper.holdout_fit import fit_ridge_path, solver_function
from quernel.paper.output import (
    BARS,
    REFERENCE,
    SERIES,
    Item,
    OutputFolder,
    Section,
    Verdict,
    add_shared_legend,
    make_panels,
    plot_geometric_means,
    set_log_log,
)
from quernel.plots import house_style
from quernel.plots.style import INK

# Source and capacity exponent of the spline design, cut off after 100 frequencies.
R, GAMMA = 0.5, 0.25
POPULATION = theory.SplinePopulation(R, GAMMA, 100)
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


def make_decomposition_tasks(size: Size) -> list[Task]:
    """One per constant, number of rows and repetition."""
    if size == "quick":
        return repetitions(3, constant=CONSTANTS, n=(250, 1000, 4000))
    return repetitions(20, constant=CONSTANTS, n=(250, 500, 1000, 2000, 4000, 8000))


def measure_decomposition(task: Task, rng: np.random.Generator) -> list[Row]:
    """Decompose the error of one fit, with lambda and M as the theorem has them."""
    n = int(task["n"])
    M = int(task["constant"]) * theory.features_needed(n, R, GAMMA, compatibility=GAMMA)
    X, y = POPULATION.sample(n, random_state=rng)
    alpha, solve = theory.regularization(n, R, GAMMA), solver_function(get_solver(task))
    features = cast(FeatureMap, POPULATION.features(M, rng))
    parts = theory.error_decomposition(POPULATION, features, X, y, alpha=alpha, tol=1e-5, solver=solve)
    terms = {term: getattr(parts, term) for term in TERMS}
    return [{**task, "M": M, "total": parts.total, "bound": parts.bound, **terms}]


def present_decomposition(table: Table, output: OutputFolder) -> Section:
    """Plot the terms against N, and tabulate their slopes beside the theorem's."""
    predicted, last = predicted_norm_slope(), max(table.values("n"))
    lines = [
        [
            *(constant, NAMES[term], table.select(constant=constant, n=last).geometric_mean(term)),
            *(slope.value, slope.low, slope.high, predicted),
        ]
        for (constant, term), slope in _fit_term_slopes(table).items()
    ]
    columns = {"constant": "d", "term": "", f"norm at N = {last:,}": ".4f", "slope": ".2f", "low": ".2f"}
    caption = "Slopes of the log norms against log N, 95 % intervals."
    numbers = output.save_table(columns | {"high": ".2f", "theory": ".2f"}, lines, "beyond-decomposition", caption)
    reported = [
        "Not in the paper's experiments: its proof splits the error of KQR-RF into four terms (Lemma A.1): from the "
        "check loss to least squares without noise, from the rows to their law, from the random features to the "
        "kernel, and from the kernel to the truth. In the spline design all four can be computed.",
        f"lambda = N^(-1/(2r + gamma)) and M = {CONSTANTS[0]} N^c or {CONSTANTS[1]} N^c with compatibility gamma. The "
        f"norms, not their squares, should fall like N^(-r/(2r + gamma)) = N^{predicted:.2f} up to logarithms.",
    ]
    return Section(reported, [_plot_decomposition(table, predicted, output), numbers], judge_decomposition(table))


def predicted_norm_slope() -> float:
    """-r/(2r + gamma): the theorem's slope for norms, half of that for squared errors."""
    return -float(theory.learning_rate(R, GAMMA)) / 2


def _fit_term_slopes(table: Table) -> dict[tuple[int, str], Slope]:
    """Fitted slopes by (constant, term), the total error among the terms."""
    return {(constant, term): fit_slope(part, term) for (constant,), part in table.groups("constant") for term in NAMES}


def judge_decomposition(table: Table) -> list[Verdict]:
    """Whether all terms fall as fast as the theorem allows, their sum bounds the error, and what few features cost."""
    predicted, slopes, sizes = predicted_norm_slope(), _fit_term_slopes(table), table.values("n")
    # The theorem allows the norm a factor log N.
    allowed = allowed_slope(predicted, sizes, power=1)
    judged = {term: slopes[CONSTANTS[0], term].meets_bound(allowed) for term in NAMES}
    slow = [NAMES[term] for term, meets in judged.items() if meets is False]
    undecided = [f"{NAMES[term]} {slopes[CONSTANTS[0], term]}" for term in NAMES if judged[term] == "undecided"]
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
            all_hold(judged.values()),
        ),
        Verdict(
            f"The error is {tight:.0%} of the sum of the four on average, which bounds it (a triangle inequality).",
            None if np.all(table.column("total") <= table.column("bound") * (1 + 1e-9)) else False,
        ),
        Verdict(
            f"With M = {CONSTANTS[1]} N^c the step from the features to the kernel is {share:.0%} of the sum at N = "
            f"{sizes[-1]:,}: that is where too few features show."
        ),
    ]


@house_style()
def _plot_decomposition(table: Table, predicted: float, output: OutputFolder) -> Item:
    """The four terms, their total, and the theorem's slope; one panel per constant."""
    figure, axes = make_panels(1, 2, size=(9.0, 4.4), sharey=True)
    for ax, constant in zip(axes[0], CONSTANTS, strict=True):
        part = table.select(constant=constant)
        sizes, total, _ = part.geometric_means("total")
        ax.plot(sizes, total, color=INK, linewidth=2.4, label="total error $|f - f^*|$")
        for style, (term, label) in zip(SERIES, TERMS.items(), strict=True):
            _, centre, bars = part.geometric_means(term)
            ax.errorbar(sizes, centre, yerr=bars, label=label, **BARS, **style)
        line = total[0] * (np.array(sizes) / sizes[0]) ** predicted
        ax.plot(sizes, 1.25 * line, label=f"slope ${predicted:.2f}$", **REFERENCE)
        set_log_log(ax, sizes, max_ticks=8)
        ax.set_xlabel("rows $N$")
        ax.set_title(f"$M = {constant}\\,N^c$", loc="left")
    axes[0, 0].set_ylabel("$L_2$ norm")
    add_shared_legend(figure, axes[0, 0], columns=3)
    return output.save_figure(
        figure,
        "beyond-decomposition",
        f"The four terms of the error and their total, spline design with r = {R:g}, gamma = {GAMMA:g}: L2 norms, "
        "geometric means over repetitions. Left with enough features, right with a tenth of them.",
    )


Array = NDArray[np.float64]


@dataclass(frozen=True)
class Design:
    """A law of labels: a noise model, exponents r and gamma, and the function of x behind the probabilities.

    The risk is minimised by `function` itself (logistic loss), or by the step at its changes of sign (hinge loss).
    """

    law: theory.Labels
    r: float
    gamma: float
    function: Callable[[Array], Array]

    @property
    def slope(self) -> float:
        """-2r/(2r + gamma)."""
        return simulated.predicted_slope(self.r, self.gamma)

    def count_features(self, n: int) -> int:
        """M of the theorem for n rows."""
        return simulated.features_of_theorem(n, self.r, self.gamma)


# The hinge risk is minimised by the more likely label: a step, +1 on the half circle around 0, -1 on the other. Its
# Fourier coefficients fall like 1/k, so that every r below gamma/2 is a source exponent, and gamma/2 itself is not.
LIKELY = 0.9
# The log odds are the spline function of order r/gamma + 1/2. For the hinge r is gamma/2, the limit of its exponents.
DESIGNS = {
    "logistic": Design(theory.Labels(Logistic()), 0.5, 0.25, SplineQuantile(0.5, 0.25).location),
    "hinge": Design(theory.Labels(Hinge(), likely=LIKELY), 0.25, 0.5, lambda X: np.cos(2 * np.pi * X[:, 0])),
}
# Column of the results to its name on the page, and to its label in figures.
ERRORS = {"excess": ("excess risk", "excess risk"), "squared": ("squared error", r"$\|f - f^*\|^2$")}
# Points of the midpoint rule over which errors are averaged.
N_TEST = 4000


@dataclass(frozen=True)
class LipschitzPlan:
    """What is run at one size."""

    repetitions: int
    sizes: tuple[int, ...]  # numbers of rows, with M of the theorem
    fixed: int  # the number of rows at which the number of features varies
    features: tuple[int, ...]  # those numbers of features


PLANS: dict[Size, LipschitzPlan] = {
    "full": LipschitzPlan(20, (500, 1000, 2000, 4000, 8000), 4000, (2, 5, 10, 20, 50, 100, 200, 400)),
    "quick": LipschitzPlan(3, (500, 1000, 2000), 2000, (2, 10, 50, 200)),
}


def make_lipschitz_tasks(size: Size) -> list[Task]:
    """Growing N with M of the theorem, and growing M at a fixed N."""
    plan, grid = PLANS[size], list[Task]()
    for name, design in DESIGNS.items():
        for n in plan.sizes:
            grid += repetitions(plan.repetitions, loss=name, vary="rows", n=n, M=design.count_features(n))
        grid += repetitions(plan.repetitions, loss=name, vary="features", n=plan.fixed, M=plan.features)
    return grid


def estimate_lipschitz_seconds(task: Task) -> float:
    """Rough running time in seconds."""
    return 0.03 + 5e-7 * float(task["n"]) * float(task["M"])


def measure_lipschitz(task: Task, rng: np.random.Generator) -> list[Row]:
    """One fit with lambda of the theorem: its excess risk and squared distance to f*, integrated over x."""
    design, n, M = DESIGNS[str(task["loss"])], int(task["n"]), int(task["M"])
    X = rng.random((n, 1))
    rows = ArrayRows(X, design.law.draw(design.function(X), rng))
    alpha = simulated.ridge_of_theorem(n, design.r, design.gamma)
    features = simulated.spline_features(design.gamma, M, X, rng)
    fits = fit_ridge_path(features, rows, design.law.loss, np.array([alpha]), solver=get_solver(task))
    f, function = fits.predict(simulated.midpoints(N_TEST))[:, 0], design.function(simulated.midpoints(N_TEST))
    squared = float(np.mean((f - design.law.minimiser(function)) ** 2))
    return [{**task, "alpha": alpha, "excess": design.law.excess_risk(f, function), "squared": squared}]


def estimate_convexity(design: Design) -> theory.LocalConvexity:
    """Constants of local strong convexity (`ass7`) at f' = (1 - t) f*, shrunk as by a ridge penalty, along f*.

    The law is represented by a grid of points x, each with labels in proportion to their probabilities; `distance` is
    |f' - f*|.
    """
    distance, points, labels = 0.05, 200, 100
    x, levels = simulated.midpoints(points), simulated.midpoints(labels)[:, 0]
    function = np.repeat(design.function(x), labels)
    y = np.where(np.tile(levels, points) < design.law.probability(function), 1.0, -1.0)
    truth = design.law.minimiser(function)
    shrunk = truth * (1 - distance / np.sqrt(np.mean(truth**2)))
    return theory.local_convexity(y, shrunk, truth[:, None], radius=distance, loss=design.law.loss, truth=truth)


def present_lipschitz(table: Table, output: OutputFolder) -> Section:
    """Plot errors against N and M for both losses; tabulate slopes."""
    lines, verdicts = [], []
    for name, design in DESIGNS.items():
        convexity, part = estimate_convexity(design), table.select(loss=name, vary="rows")
        allowed = allowed_slope(design.slope, sorted(part.values("n")), power=theory.METHODS["thm3"].rate_log)
        slopes = {error: fit_slope(part, error) for error in ERRORS}
        theorem = design.slope if _is_convex(convexity) else None
        for error, slope in slopes.items():
            interval = (slope.value, slope.low, slope.high)
            lines.append([name, design.r, design.gamma, ERRORS[error][0], *interval, design.slope, theorem])
        verdicts.append(judge_lipschitz_rate(name, slopes, design.slope, allowed, convexity))
        verdicts.append(_remark_sufficient_features(table.select(loss=name, vary="features"), name, design))
    columns = {"loss": "", "r": "g", "gamma": "g", "error": "", "slope": ".2f", "low": ".2f", "high": ".2f"}
    numbers = output.save_table(
        columns | {"-2r/(2r+gamma)": ".2f", "theorem": ".2f"},
        lines,
        "beyond-lipschitz",
        "Slopes of log error against log N, 95 % intervals. A dash: no theorem covers the loss.",
    )
    reported = [
        "The paper proves its rates for every Lipschitz loss that is locally strongly convex (Theorem 3), without an "
        "experiment, and names kernel support vector machines and kernel logistic regression as its cases. Here labels "
        "-1 and +1 are drawn with known probabilities on the circle, and the spline kernel is fitted with the logistic "
        "and the hinge loss. Excess risk is computed from the probabilities, in closed form.",
        "Logistic: the log odds are the spline function with r = 1/2, gamma = 1/4. Hinge: the label +1 has probability "
        f"{LIKELY:g} on one half of the circle and {1 - LIKELY:g} on the other; the minimiser is a step, whose source "
        "exponents are those below gamma/2. With gamma = 1/2 we set r = gamma/2 in the formulas.",
        "No theorem covers the hinge loss. On the way to the minimiser its risk falls linearly, which no multiple of a "
        "squared distance makes up for: the risk of kernel support vector machines is not locally strongly convex in "
        "the theorem's sense, whatever the law. In this design two more of its conditions fail: r stays below gamma/2, "
        "so that 2r + gamma stays below 1, and the spline's features are unbounded from gamma = 1/2 on.",
    ]
    return Section(reported, [_plot_lipschitz(table, output), numbers], verdicts)


def judge_lipschitz_rate(
    name: str, slopes: dict[str, Slope], bound: float, allowed: float, convexity: theory.LocalConvexity
) -> Verdict:
    """Whether the errors fall as fast as the theorem says; a remark if its local strong convexity does not hold.

    `bound` is the theorem's slope, `allowed` the same with its logarithmic factor over these N.
    """
    text = (
        f"{name.capitalize()} loss: slope {slopes['excess']} of the excess risk, {slopes['squared']} of the squared "
        f"error, -2r/(2r + gamma) = {bound:.2f}; "
    )
    if not _is_convex(convexity):
        text += (
            f"measured; no theorem covers it. At a distance of {convexity.radius:g} from f* the constant c4 of "
            f"adaptive local strong convexity, which must be positive, is {convexity.c4:.1f}."
        )
        return Verdict(text.replace(" -", " \u2212"))
    holds = all_hold(slope.meets_bound(allowed) for slope in slopes.values())
    reasons = {
        True: "as fast as the theorem allows, or faster.",
        False: "too slow.",
        "undecided": f"an interval holds the allowed slope, or is wider than {MAX_WIDTH:g}.",
    }
    text += f"allowed with log^2 N {allowed:.2f}: {reasons[holds]}"
    return Verdict(text.replace(" -", " \u2212"), holds)


def _is_convex(convexity: theory.LocalConvexity) -> bool:
    """Whether c4 of `ass7` is positive."""
    return convexity.c4 is not None and convexity.c4 > 0


def _remark_sufficient_features(table: Table, name: str, design: Design) -> Verdict:
    """The number of features from which on the error stays within 10 % of that with the most."""
    sizes, centre, _ = table.geometric_means("excess", against="M")
    is_close = centre <= 1.1 * centre[-1]
    first = int(np.argmax([bool(is_close[k:].all()) for k in range(len(is_close))]))
    n = table.values("n")[0]
    return Verdict(
        f"{name.capitalize()} loss, N = {n:,}: from {sizes[first]:.0f} features on the excess risk is within 10 % of "
        f"that with {sizes[-1]:.0f}; M = ceil({simulated.CONSTANT} N^c) is {design.count_features(n)}."
    )


@house_style()
def _plot_lipschitz(table: Table, output: OutputFolder) -> Item:
    """Errors against N (left) and M (right), one row of panels per loss."""
    figure, axes = make_panels(2, 2, size=(9.0, 7.0))
    for row, (name, design) in zip(axes, DESIGNS.items(), strict=True):
        for ax, vary, against in ((row[0], "rows", "n"), (row[1], "features", "M")):
            part = table.select(loss=name, vary=vary)
            for series, (error, (_, label)) in enumerate(ERRORS.items()):
                sizes, centre = plot_geometric_means(ax, part, error, against=against, series=series, label=label)
                if vary == "rows":
                    line = centre[0] * (np.array(sizes) / sizes[0]) ** design.slope
                    ax.plot(sizes, line, label=f"slope ${design.slope:.2f}$" if series else None, **REFERENCE)
            set_log_log(ax, sizes, max_ticks=8)
            ax.set_ylabel("error")
            ax.legend()
        n = part.values("n")[0]
        row[1].axvline(design.count_features(n), **REFERENCE)
        row[0].set_title(f"{name.capitalize()} loss: rows", loc="left")
        row[1].set_title(f"{name.capitalize()} loss: features, $N$ = {n:,}", loc="left")
        row[0].set_xlabel("rows $N$")
        row[1].set_xlabel("features $M$")
    return output.save_figure(
        figure,
        "beyond-lipschitz",
        "Logistic (above) and hinge loss (below). Left: errors against the number of rows, M = ceil(5 N^c), lambda "
        "from theory; dotted: the slope -2r/(2r + gamma), a theorem's for the logistic loss only. Right: errors "
        "against the number of features at a fixed number of rows; the vertical line marks M = ceil(5 N^c). Geometric "
        "means, bars of one standard error.",
    )


DECOMPOSITION = Experiment(
    "decomposition",
    "beyond the paper",
    "Where the error comes from: four terms against N",
    present_decomposition,
    make_decomposition_tasks,
    measure_decomposition,
)
LIPSCHITZ = Experiment(
    "lipschitz",
    "beyond the paper",
    "Lipschitz losses: logistic and hinge",
    present_lipschitz,
    make_lipschitz_tasks,
    measure_lipschitz,
    estimate_lipschitz_seconds,
)
