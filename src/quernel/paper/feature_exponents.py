"""The exponent c in M = |D|^c over the source exponent r and the capacity exponent gamma (`fig1`).

Nothing is measured: the map evaluates the formulas of `thm1` (uniform sampling) and `cor1` (leverage sampling).
"""

from __future__ import annotations

import numpy as np

from quernel.paper.experiment import Experiment, Table, no_rows, no_tasks
from quernel.paper.output import OutputFolder, Section, Verdict
from quernel.plots import exponent_grid, feature_map
from quernel.theory import METHODS
from quernel.theory.rates import ROUNDING

# Points (r, gamma) of the map that are tabulated, and the number of rows at which M = |D|^c is evaluated.
CORNERS = [(0.25, 0.5), (0.5, 0.0), (0.5, 0.5), (0.5, 1.0), (1.0, 0.0), (1.0, 0.5), (1.0, 1.0)]
ROWS = 10_000


def present(table: Table, output: OutputFolder) -> Section:  # noqa: ARG001
    """The map, some of its values, and whether leverage sampling ever needs more features."""
    columns = {
        "r": "g",
        "gamma": "g",
        "c, uniform": ".3f",
        "c, leverage": ".3f",
        "M, uniform": ",d",
        "M, leverage": ",d",
    }
    lines = []
    for r, gamma in CORNERS:
        both = METHODS["thm1"], METHODS["cor1"]
        exponents = [method.feature_exponent(r, gamma) for method in both]
        lines.append([r, gamma, *exponents, *(method.features_needed(ROWS, r, gamma) for method in both)])
    saved = {case: _exponent_saving(case) for case in ("agnostic", "realizable")}
    figure = output.save_figure(
        feature_map(),
        "fig1-feature-exponents",
        "The exponent c in M = |D|^c: uniform sampling (compatibility 1) on the left, leverage sampling "
        "(compatibility gamma) on the right; agnostic case above, realizable case below. Grey: no theorem.",
    )
    numbers = output.save_table(
        columns, lines, "fig1-feature-exponents", f"Some points of the map; M = |D|^c at |D| = {ROWS:,}."
    )
    reported = [
        "The paper draws how many random features M = O(|D|^c) suffice for the optimal learning rate, over the source "
        "exponent r and the capacity exponent gamma: uniform sampling (Theorem 1) beside leverage sampling "
        "(Corollary 1), for the agnostic case r < 1/2 and the realizable case r >= 1/2. The theorems ask for "
        "2r + gamma >= 1; where that fails there is nothing to draw. The constant in M is left open; the table has it "
        "as 1.",
        "Nothing is measured here: the map evaluates the formulas of the paper, which were typed in.",
    ]
    return Section(reported, [figure, numbers], [judge(saved)])


def judge(saved: dict[str, np.ndarray]) -> Verdict:
    """Whether leverage sampling ever needs more features than uniform sampling.

    `saved` maps the case ("agnostic", "realizable") to c of uniform minus c of leverage sampling over the map.
    """
    most = {case: f"{difference.max():.2f} in the {case} case" for case, difference in saved.items()}
    if all((difference >= -ROUNDING).all() for difference in saved.values()):
        return Verdict(
            "By the formulas, leverage sampling asks for at most as many features as uniform sampling at every "
            f"(r, gamma): the exponent falls by up to {' and '.join(most.values())}.",
            "stated",
        )
    more = {case: f"{-difference.min():.2f} in the {case} case" for case, difference in saved.items()}
    return Verdict(
        "By the formulas, leverage sampling asks for more features than uniform sampling somewhere: the exponent rises "
        f"by up to {' and '.join(more.values())}.",
        holds=False,
    )


def _exponent_saving(case: str) -> np.ndarray:
    """c of uniform minus c of leverage sampling, at the points of the map that a theorem covers."""
    uniform, leverage = (exponent_grid(case, sampling)[2] for sampling in ("uniform", "leverage"))
    return (uniform - leverage)[np.isfinite(uniform)]


FIG1 = Experiment("fig1", "fig1", "How many random features: the exponent c in M = |D|^c", no_tasks, no_rows, present)
