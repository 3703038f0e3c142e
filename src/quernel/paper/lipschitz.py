"""Beyond the paper: its theorem for Lipschitz losses, with the logistic and the hinge loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.datasets.spline import SplineQuantile
from quernel.losses import Hinge, Logistic
from quernel.paper.drawing import REFERENCE, errorbars, panels
from quernel.paper.experiment import Experiment, Row, Size, Table, Task, repetitions, solver_of
from quernel.paper.log_axes import log_log
from quernel.paper.ridge_grid import TOL, fit_each
from quernel.paper.sheet import Section, Sheet, Verdict
from quernel.paper.slopes import fit_slope, typical
from quernel.paper.spline_design import (
    CONSTANT,
    features_of_theorem,
    midpoints,
    predicted_slope,
    ridge_of_theorem,
    spline_features,
)
from quernel.plots import house_style
from quernel.theory import Labels

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Design:
    """Labels under which a function of x, or the step where it changes its sign, minimises the risk; its exponents."""

    law: Labels
    r: float
    gamma: float
    function: Callable[[Array], Array]


# The hinge's minimiser is the more likely label: a step, +1 on the half circle around 0 and -1 on the other. Its
# Fourier coefficients fall like 1/k, so that r = gamma/2, and the theorem's 2r + gamma >= 1 leaves gamma = 1/2 and
# more. Labels that are never a toss-up make the risk locally strongly convex.
LIKELY = 0.9
# The log odds are the spline function of order r/gamma + 1/2.
DESIGNS = {
    "logistic": Design(Labels(Logistic()), 0.5, 0.25, SplineQuantile(0.5, 0.25).location),
    "hinge": Design(Labels(Hinge(), likely=LIKELY), 0.25, 0.5, lambda X: np.cos(2 * np.pi * X[:, 0])),
}
ERRORS = {"excess": "excess risk", "squared": r"$\|f - f^*\|^2$"}
TEST = 4000
SIZES: dict[Size, list[int]] = {"full": [500, 1000, 2000, 4000, 8000], "quick": [500, 1000, 2000]}
FEATURES: dict[Size, list[int]] = {"full": [2, 5, 10, 20, 50, 100, 200, 400], "quick": [2, 10, 50, 200]}
FIXED: dict[Size, int] = {"full": 4000, "quick": 2000}
REPETITIONS: dict[Size, int] = {"full": 20, "quick": 3}


def tasks(size: Size) -> list[Task]:
    """Growing numbers of rows with M of the theorem, and growing numbers of features at a fixed number of rows."""
    found: list[Task] = []
    for name, design in DESIGNS.items():
        for n in SIZES[size]:
            M = features_of_theorem(n, design.r, design.gamma)
            found += repetitions(REPETITIONS[size], loss=name, vary="rows", n=n, M=M)
        for M in FEATURES[size]:
            found += repetitions(REPETITIONS[size], loss=name, vary="features", n=FIXED[size], M=M)
    return found


def cost(task: Task) -> float:
    """Seconds, about."""
    return 0.03 + 5e-7 * float(task["n"]) * float(task["M"])


def measure(task: Task, rng: np.random.Generator) -> list[Row]:
    """One fit with lambda of the theorem."""
    design, n, M = DESIGNS[str(task["loss"])], int(task["n"]), int(task["M"])
    X = rng.random((n, 1))
    y = design.law.draw(design.function(X), rng)
    alpha = ridge_of_theorem(n, design.r, design.gamma)
    features = spline_features(design.gamma, M, X, rng)
    fits = fit_each(features, X, y, design.law.loss, np.array([alpha]), tol=TOL, solver=solver_of(task))
    f, function = fits.predict(midpoints(TEST))[:, 0], design.function(midpoints(TEST))
    squared = float(np.mean((f - design.law.minimiser(function)) ** 2))
    return [{**task, "alpha": alpha, "excess": design.law.excess_risk(f, function), "squared": squared}]


def present(table: Table, sheet: Sheet) -> Section:
    """Errors against N and against M for both losses, slopes, and verdicts."""
    lines, verdicts = [], []
    for name, design in DESIGNS.items():
        bound = predicted_slope(design.r, design.gamma)
        part = table.select(loss=name, vary="rows")
        slopes = {error: fit_slope(part, error) for error in ERRORS}
        for error, slope in slopes.items():
            words = "excess risk" if error == "excess" else "squared error"
            lines.append([name, design.r, design.gamma, words, slope.value, slope.low, slope.high, bound])
        above = any(slope.lies_above(bound) for slope in slopes.values())
        verdicts.append(
            Verdict(
                f"{name.capitalize()} loss: slope {slopes['excess']} of the excess risk, {slopes['squared']} of the "
                f"squared error, theory {bound:.2f}".replace(" -", " \u2212")
                + (
                    ": slower than the theorem's bound without its logarithm."
                    if above
                    else ": as fast as the theorem says, or faster."
                ),
                not above,
            )
        )
        verdicts.append(Verdict(_enough(table.select(loss=name, vary="features"), name, design)))
    figure = sheet.figure(
        _figure(table),
        "beyond-lipschitz",
        "Logistic (above) and hinge loss (below). Left: errors against the number of rows, M = ceil(5 N^c), lambda "
        "from theory; dotted: the theorem's slope. Right: errors against the number of features at a fixed number of "
        "rows; the vertical line marks the theorem's M. Geometric means, bars of one standard error.",
    )
    columns = {
        "loss": "",
        "r": "g",
        "gamma": "g",
        "error": "",
        "slope": ".2f",
        "low": ".2f",
        "high": ".2f",
        "theory": ".2f",
    }
    numbers = sheet.table(columns, lines, "beyond-lipschitz", "Slopes of log error against log N, 95 % intervals.")
    reported = [
        "The paper proves its rates for every Lipschitz loss that is locally strongly convex (Theorem 3), without an "
        "experiment. Here labels -1 and +1 are drawn with known probabilities on the circle, and the spline kernel is "
        "fitted with the logistic and the hinge loss. Excess risk is computed from the probabilities, in closed form.",
        "Logistic: the log odds are the spline function with r = 1/2, gamma = 1/4. Hinge: the label +1 has probability "
        f"{LIKELY:g} on one half of the circle and {1 - LIKELY:g} on the other; the minimiser is a step, for which "
        "r = gamma/2, and gamma = 1/2 is where 2r + gamma >= 1 begins.",
    ]
    return Section(reported, [figure, numbers], verdicts)


def _enough(table: Table, name: str, design: Design) -> str:
    """From how many features on the error stays within a tenth of that with the most."""
    sizes, centre, _ = typical(table, "excess", against="M")
    settled = centre <= 1.1 * centre[-1]
    first = int(np.argmax([bool(settled[k:].all()) for k in range(len(settled))]))
    n = table.values("n")[0]
    return (
        f"{name.capitalize()} loss, N = {n:,}: from {sizes[first]:.0f} features on the excess risk is within 10 % "
        f"of that with {sizes[-1]:.0f}; the theorem's "
        f"M = ceil({CONSTANT} N^c) is {features_of_theorem(n, design.r, design.gamma)}."
    )


def _figure(table: Table) -> Any:
    with house_style():
        figure, axes = panels(2, 2, size=(9.0, 7.0))
        for row, (name, design) in zip(axes, DESIGNS.items(), strict=True):
            for ax, vary, against in ((row[0], "rows", "n"), (row[1], "features", "M")):
                part = table.select(loss=name, vary=vary)
                for series, (error, words) in enumerate(ERRORS.items()):
                    sizes, centre, bars = typical(part, error, against=against)
                    errorbars(ax, sizes, centre, bars, series=series, label=words)
                    if vary == "rows":
                        slope = predicted_slope(design.r, design.gamma)
                        line = centre[0] * (np.array(sizes) / sizes[0]) ** slope
                        ax.plot(sizes, line, label=f"slope ${slope:.2f}$" if series else None, **REFERENCE)
                log_log(ax, sizes, most=8)
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
