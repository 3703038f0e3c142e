"""Beyond the paper: its theorem for Lipschitz losses (`thm3`), with the logistic and the hinge loss.

Labels are drawn on the circle with known probabilities, so that the minimiser f* and the excess risk have closed forms.
The logistic loss meets the theorem's local strong convexity (`ass7`); the hinge loss does not, and is shown beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.datasets.simulations import SplineQuantile
from quernel.losses import Hinge, Logistic
from quernel.paper.experiment import Experiment, Row, Size, Table, Task, get_solver, repetitions
from quernel.paper.figures import REFERENCE, make_panels, plot_errorbars, set_log_log
from quernel.paper.holdout_fit import FIT_TOL, fit_ridge_path
from quernel.paper.output import OutputFolder, Section, Verdict
from quernel.paper.slopes import MAX_WIDTH, Slope, all_hold, allowed_slope, fit_slope, geometric_means
from quernel.paper.spline_design import (
    CONSTANT,
    features_of_theorem,
    midpoints,
    predicted_slope,
    ridge_of_theorem,
    spline_features,
)
from quernel.plots import house_style
from quernel.theory import METHODS, Labels, LocalConvexity, local_convexity

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Design:
    """A law of labels: a noise model, exponents r and gamma, and the function of x behind the probabilities.

    The risk is minimised by `function` itself (logistic loss), or by the step at its changes of sign (hinge loss).
    """

    law: Labels
    r: float
    gamma: float
    function: Callable[[Array], Array]


# The hinge risk is minimised by the more likely label: a step, +1 on the half circle around 0, -1 on the other. Its
# Fourier coefficients fall like 1/k, so that every r below gamma/2 is a source exponent, and gamma/2 itself is not.
LIKELY = 0.9
# The log odds are the spline function of order r/gamma + 1/2. For the hinge r is gamma/2, the limit of its exponents.
DESIGNS = {
    "logistic": Design(Labels(Logistic()), 0.5, 0.25, SplineQuantile(0.5, 0.25).location),
    "hinge": Design(Labels(Hinge(), likely=LIKELY), 0.25, 0.5, lambda X: np.cos(2 * np.pi * X[:, 0])),
}
ERRORS = {"excess": "excess risk", "squared": r"$\|f - f^*\|^2$"}
# Points of the midpoint rule over which errors are averaged.
N_TEST = 4000
SIZES: dict[Size, list[int]] = {"full": [500, 1000, 2000, 4000, 8000], "quick": [500, 1000, 2000]}
FEATURES: dict[Size, list[int]] = {"full": [2, 5, 10, 20, 50, 100, 200, 400], "quick": [2, 10, 50, 200]}
# Number of rows at which the number of features varies.
FIXED: dict[Size, int] = {"full": 4000, "quick": 2000}
REPETITIONS: dict[Size, int] = {"full": 20, "quick": 3}
# For `estimate_convexity`: the distance |f' - f*|, and the numbers of points and of labels per point.
DISTANCE, POINTS, LABELS = 0.05, 200, 100


def tasks(size: Size) -> list[Task]:
    """Growing N with M of the theorem, and growing M at a fixed N."""
    grid: list[Task] = []
    for name, design in DESIGNS.items():
        for n in SIZES[size]:
            M = features_of_theorem(n, design.r, design.gamma)
            grid += repetitions(REPETITIONS[size], loss=name, vary="rows", n=n, M=M)
        for M in FEATURES[size]:
            grid += repetitions(REPETITIONS[size], loss=name, vary="features", n=FIXED[size], M=M)
    return grid


def cost(task: Task) -> float:
    """Rough running time in seconds."""
    return 0.03 + 5e-7 * float(task["n"]) * float(task["M"])


def measure(task: Task, rng: np.random.Generator) -> list[Row]:
    """One fit with lambda of the theorem: its excess risk and squared distance to f*, integrated over x."""
    design, n, M = DESIGNS[str(task["loss"])], int(task["n"]), int(task["M"])
    X = rng.random((n, 1))
    y = design.law.draw(design.function(X), rng)
    alpha = ridge_of_theorem(n, design.r, design.gamma)
    features = spline_features(design.gamma, M, X, rng)
    fits = fit_ridge_path(features, X, y, design.law.loss, np.array([alpha]), tol=FIT_TOL, solver=get_solver(task))
    f, function = fits.predict(midpoints(N_TEST))[:, 0], design.function(midpoints(N_TEST))
    squared = float(np.mean((f - design.law.minimiser(function)) ** 2))
    return [{**task, "alpha": alpha, "excess": design.law.excess_risk(f, function), "squared": squared}]


def estimate_convexity(design: Design) -> LocalConvexity:
    """Constants of local strong convexity (`ass7`) at f' = (1 - t) f*, shrunk as by a ridge penalty, along f*.

    The law is represented by a grid of points x, each with `LABELS` labels in proportion to their probabilities.
    """
    x, levels = midpoints(POINTS), midpoints(LABELS)[:, 0]
    function = np.repeat(design.function(x), LABELS)
    y = np.where(np.tile(levels, POINTS) < design.law.probability(function), 1.0, -1.0)
    truth = design.law.minimiser(function)
    shrunk = truth * (1 - DISTANCE / np.sqrt(np.mean(truth**2)))
    return local_convexity(y, shrunk, truth[:, None], radius=DISTANCE, loss=design.law.loss, truth=truth)


def present(table: Table, output: OutputFolder) -> Section:
    """Plot errors against N and M for both losses; tabulate slopes."""
    lines, verdicts = [], []
    for name, design in DESIGNS.items():
        bound, convexity = predicted_slope(design.r, design.gamma), estimate_convexity(design)
        part = table.select(loss=name, vary="rows")
        allowed = allowed_slope(bound, sorted(part.values("n")), power=METHODS["thm3"].rate_log)
        slopes = {error: fit_slope(part, error) for error in ERRORS}
        for error, slope in slopes.items():
            label = "excess risk" if error == "excess" else "squared error"
            theory = bound if _is_convex(convexity) else None
            lines.append([name, design.r, design.gamma, label, slope.value, slope.low, slope.high, bound, theory])
        verdicts.append(rate_verdict(name, slopes, bound, allowed, convexity))
        verdicts.append(Verdict(_remark_sufficient_features(table.select(loss=name, vary="features"), name, design)))
    figure = output.save_figure(
        _plot(table),
        "beyond-lipschitz",
        "Logistic (above) and hinge loss (below). Left: errors against the number of rows, M = ceil(5 N^c), lambda "
        "from theory; dotted: the slope -2r/(2r + gamma), a theorem's for the logistic loss only. Right: errors "
        "against the number of features at a fixed number of rows; the vertical line marks M = ceil(5 N^c). Geometric "
        "means, bars of one standard error.",
    )
    columns = {
        "loss": "",
        "r": "g",
        "gamma": "g",
        "error": "",
        "slope": ".2f",
        "low": ".2f",
        "high": ".2f",
        "-2r/(2r+gamma)": ".2f",
        "theorem": ".2f",
    }
    numbers = output.save_table(
        columns,
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
    return Section(reported, [figure, numbers], verdicts)


def rate_verdict(
    name: str, slopes: dict[str, Slope], bound: float, allowed: float, convexity: LocalConvexity
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
            "adaptive "
            f"local strong convexity, which must be positive, is {convexity.c4:.1f}."
        )
        return Verdict(text.replace(" -", " \u2212"))
    holds = all_hold([slope.meets_bound(allowed) for slope in slopes.values()])
    reasons = {
        True: "as fast as the theorem allows, or faster.",
        False: "too slow.",
        "undecided": f"an interval holds the allowed slope, or is wider than {MAX_WIDTH:g}.",
    }
    text += f"allowed with log^2 N {allowed:.2f}: {reasons[holds]}"
    return Verdict(text.replace(" -", " \u2212"), holds)


def _is_convex(convexity: LocalConvexity) -> bool:
    """Whether c4 of `ass7` is positive."""
    return convexity.c4 is not None and convexity.c4 > 0


def _remark_sufficient_features(table: Table, name: str, design: Design) -> str:
    """The number of features from which on the error stays within 10 % of that with the most."""
    sizes, centre, _ = geometric_means(table, "excess", against="M")
    is_close = centre <= 1.1 * centre[-1]
    first = int(np.argmax([bool(is_close[k:].all()) for k in range(len(is_close))]))
    n = table.values("n")[0]
    return (
        f"{name.capitalize()} loss, N = {n:,}: from {sizes[first]:.0f} features on the excess risk is within 10 % "
        f"of that with {sizes[-1]:.0f}; M = ceil({CONSTANT} N^c) is {features_of_theorem(n, design.r, design.gamma)}."
    )


def _plot(table: Table) -> Any:
    """Errors against N (left) and M (right), one row of panels per loss."""
    with house_style():
        figure, axes = make_panels(2, 2, size=(9.0, 7.0))
        for row, (name, design) in zip(axes, DESIGNS.items(), strict=True):
            for ax, vary, against in ((row[0], "rows", "n"), (row[1], "features", "M")):
                part = table.select(loss=name, vary=vary)
                for series, (error, label) in enumerate(ERRORS.items()):
                    sizes, centre, bars = geometric_means(part, error, against=against)
                    plot_errorbars(ax, sizes, centre, bars, series=series, label=label)
                    if vary == "rows":
                        slope = predicted_slope(design.r, design.gamma)
                        line = centre[0] * (np.array(sizes) / sizes[0]) ** slope
                        ax.plot(sizes, line, label=f"slope ${slope:.2f}$" if series else None, **REFERENCE)
                set_log_log(ax, sizes, max_ticks=8)
                ax.set_ylabel("error")
                ax.legend()
            n = part.values("n")[0]
            row[1].axvline(features_of_theorem(n, design.r, design.gamma), **REFERENCE)
            row[0].set_title(f"{name.capitalize()} loss: rows", loc="left")
            row[1].set_title(f"{name.capitalize()} loss: features, $N$ = {n:,}", loc="left")
            row[0].set_xlabel("rows $N$")
            row[1].set_xlabel("features $M$")
    return figure


LIPSCHITZ = Experiment(
    "lipschitz", "beyond the paper", "Lipschitz losses: logistic and hinge", tasks, measure, present, cost
)
