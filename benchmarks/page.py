"""Results as a Markdown page, and as JSON with the machine that they are from."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from quernel.bench import describe_machine

HEAD = """# Benchmarks

Made by `make bench` ({processor}, {memory}, Python {python}; {packages}). Design: X uniform on [0,1]^3,
y = exp(-x1+x2) - x2 x3 + mean(x) + N(0,1), Gaussian kernel of bandwidth 1 unless stated otherwise.

## Goals

Every figure is a ratio measured in one run, best of three, with all cores for both sides unless stated otherwise.
quernel's fits reach a certified relative gap of 1e-6. *Ridge* solves the normal equations on the same features. Solvers
of alpha = 0 count if their mean loss alone is within 1e-3 of our certified objective. Missed goals are shown as such.

| what | measured | goal | met | quernel (s) | baseline (s) |
|---|---:|---:|:---:|---:|---:|
"""

NOTES = """
### How runs differ, and where the time goes

- Ridge is limited by arithmetic and these fits by memory bandwidth, and the machine is shared, so ratios vary from run
  to run. In three runs within an hour all goals of fits against ridge were met, with 0.48 to 0.51 times its time for
  2,000,000 rows at alpha 1e-6. In a shorter series just before, these took 0.59 (level 0.5) and 0.63 (level 0.1), above
  the goal.
- With 2,000,000 rows two passes over all of them, one that screens and one that checks the KKT conditions, take more
  than half of the time, both nearly at memory bandwidth. The rest are subsamples, a second screening of the active rows
  and Newton steps on the few that remain. With five levels subsamples take nearly as long as the passes. With bandwidth
  0.2 the features have no low-rank basis, and subsamples take nearly half.
- Tried without gain: subsamples that grow by a factor of 4 instead of 8 (faster at alpha 1e-4, slower elsewhere); the
  gradient over a part of the rows (reading every fifth row takes as long as reading most); the subsample's own loss
  with the gradient of all rows instead of a smoothed Hessian (no more accurate with few rows per feature).
"""

BESIDE = """
## Compared with other systems

Each system runs in a process of its own, with one thread, for at most a minute; seconds are the best of three fits
(fewer if they take long), without imports. *Excess* is how far mean pinball loss + alpha |u|^2, recomputed from the
system's solution, lies above the lower bound that quernel's certificate proves, as a share of it. Systems without a
ridge penalty solve alpha = 0 and are compared with ours at an alpha of 1e-8.
"""

RESIDUALS = """
## Residuals as qpbenchmark defines them

qpbenchmark (Caron and others, the benchmark of solvers of quadratic programs in Python) asks of a solution x of
min x'Px/2 + c'x subject to Gx <= h and Ax = b, with multipliers z and v, that three numbers be small:

- *primal residual*: the largest entry of |Ax - b| and of Gx - h, how far x is from the constraints;
- *dual residual*: the largest entry of |Px + c + A'v + G'z|, how far the multipliers are from stationarity;
- *duality gap*: |x'Px + c'x + b'v + h'z|, the difference of the two objectives.

Quantile regression is such a program in coefficients, intercept and the positive and negative parts p, m of the
residuals, y - Phi u - b = p - m, p >= 0, m >= 0; its multipliers are our duals theta, v = -theta / n. The three numbers
are absolute, and only together do they say something: where a residual is not zero, the gap can be small far from the
optimum. *Certificate* is quernel's own number, `duality_gap_`: the duals are put into their box and balanced first, p
and m are the parts of the residuals, so that the point is feasible, and what is left of the dual residual is charged in
the same units, as alpha |u - Phi'theta / (2 alpha n)|^2. It is one number, relative to the objective, and a bound: no
coefficients have an objective lower by more than this share. Measured by `python -m benchmarks.residuals` on n=2,000,
M=100, level 0.9, with intercept; Clarabel solves the quadratic program itself.

| alpha | system | tolerance | primal residual | dual residual | duality gap | certificate |
|---:|---|---:|---:|---:|---:|---:|
"""

TABLE = """
**{problem}**

| system | version | seconds | excess | note |
|---|---|---:|---:|---|
"""


def render_page(machine: dict[str, str], results: list[dict], systems: list[dict], residuals: list[dict]) -> str:
    """The goals, then the systems, problem by problem, then the residuals of some."""
    parts = [HEAD.format(**machine), *map(_format_goal, results)]
    parts.append(NOTES)
    if systems:
        parts.append(BESIDE)
    for problem, rows in groupby(systems, key=lambda row: row["problem"]):
        parts += [TABLE.format(problem=problem), *map(_format_system, rows)]
    return "".join([*parts, RESIDUALS, *map(_format_residuals, residuals)])


def _format_residuals(row: dict) -> str:
    numbers = " | ".join(f"{row[key]:.0e}" for key in ("tol", "primal", "dual", "gap", "certificate"))
    return f"| {row['alpha']:g} | {row['system']} | {numbers} |\n"


def _format_goal(row: dict) -> str:
    met = {True: "yes", False: "**no**", None: "not measured"}[row["met"]]
    ours, base = (f"{row[key]:.3g}" if row[key] is not None else "" for key in ("ours", "baseline"))
    return f"| {row['what']} | {format_ratio(row)} | {row['goal']} | {met} | {ours} | {base} |\n"


def format_ratio(row: dict) -> str:
    """The ratio and its unit, or why there is none."""
    return f"{row['ratio']:.3g} {row['unit']}".strip() if row["ratio"] is not None else row["unit"]


def _format_system(row: dict) -> str:
    seconds = f"{row['seconds']:.3g}" if row["seconds"] is not None else ""
    excess = f"{row['excess']:.0e}" if row["excess"] is not None else ""
    note = (row["note"] if row["status"] == "done" else row["status"]).replace("|", "/")
    return f"| {row['system']} | {row['version']} | {seconds} | {excess} | {note} |\n"


def write_results(path: Path, settings: dict[str, Any], results: list[dict]) -> None:
    """Write results with their settings and this machine to a JSON file."""
    path.write_text(
        json.dumps({"machine": describe_machine(), "settings": settings, "results": results}, indent=1) + "\n"
    )
