"""The results as a Markdown page."""

from itertools import groupby

HEAD = """# Benchmarks

Made by `make bench` ({processor}, {memory}, Python {python}; {packages}). Design: X uniform on [0,1]^3,
y = exp(-x1+x2) - x2 x3 + mean(x) + N(0,1), Gaussian kernel of bandwidth 1 unless said.

## Goals

Every figure is a ratio measured in one run, best of three, all cores allowed to both sides unless said; quernel's fits
reach a certified relative gap of 1e-6. *Ridge* is the normal equations and a solve on the same features. Solvers of
alpha = 0 count if their mean loss alone is within 1e-3 of our certified objective. A goal that is missed is shown as
missed.

| what | measured | goal | met | quernel (s) | baseline (s) |
|---|---:|---:|:---:|---:|---:|
"""

MISSED = """
### Where goals are missed, and why

- *alpha = 1e-6.* At smaller ridge weights more directions of feature space matter and more rows are in doubt: with
  2,000,000 rows, 45 directions of 100 and 130,000 rows. Two passes over the features at the speed of memory take a
  third of the time of ridge, the doubtful rows the rest, and where settled rows changed sides a second round follows.
  Tried: bands from one to two standard errors of the sample's fit (wider ones are taken while they hold few rows), and
  bands by each row's own uncertainty, from 16 random errors of the fit. These leave ten times fewer rows on the wrong
  side, but cost as much as they save.
- *2,000,000 rows at larger alpha, bandwidth 0.2, the grid, five levels.* These lie near their goals, and runs of the
  same code on this shared machine can meet and miss each of them (five levels: 2.2 in one run and 2.9 in the next).
  The two passes are two thirds of such a fit. A block at a time, not a strip, they take about a fifth less time than
  before: every return from compiled code to the interpreter may have to wait for the other thread.
- *Five levels.* Half of the time are the two passes, bound by arithmetic with five columns, and the projection of
  every level's own doubtful rows; a fifth are the levels' Newton steps. Tried: matrix products for the predictions of
  five columns, which take as long as the compiled loop alone (41 ms against 40 for all that it does, on 100,000 rows),
  and compiled loops over four rows at a time, a tenth to a quarter faster for five columns of 300 features or more but
  up to twice as slow for one column of 100. Neither was kept.
"""

BESIDE = """
## Beside other systems

Each system in a process of its own, one thread, stopped after a minute; seconds are the best of three fits (of fewer
where they take long), without imports. *Excess* is how far mean pinball loss + alpha |u|^2, recomputed from what the
system found, lies above the lower bound that quernel's certificate proves, as a share of it. Systems that know no such
penalty solve alpha = 0 and are judged with ours, at an alpha of 1e-8.
"""

TABLE = """
**{problem}**

| system | version | seconds | excess | note |
|---|---|---:|---:|---|
"""


def page(machine: dict[str, str], results: list[dict], systems: list[dict]) -> str:
    """The goals, then the systems, problem by problem."""
    parts = [HEAD.format(**machine), *map(_goal, results)]
    if any(row["met"] is False for row in results):
        parts.append(MISSED)
    if systems:
        parts.append(BESIDE)
    for problem, rows in groupby(systems, key=lambda row: row["problem"]):
        parts += [TABLE.format(problem=problem), *map(_system, rows)]
    return "".join(parts)


def _goal(row: dict) -> str:
    met = {True: "yes", False: "**no**", None: "not measured"}[row["met"]]
    ours, base = (f"{row[key]:.3g}" if row[key] is not None else "" for key in ("ours", "baseline"))
    return f"| {row['what']} | {measured(row)} | {row['goal']} | {met} | {ours} | {base} |\n"


def measured(row: dict) -> str:
    """The ratio and its unit, or why there is none."""
    return f"{row['ratio']:.3g} {row['unit']}".strip() if row["ratio"] is not None else row["unit"]


def _system(row: dict) -> str:
    seconds = f"{row['seconds']:.3g}" if row["seconds"] is not None else ""
    excess = f"{row['excess']:.0e}" if row["excess"] is not None else ""
    note = (row["note"] if row["status"] == "done" else row["status"]).replace("|", "/")
    return f"| {row['system']} | {row['version']} | {seconds} | {excess} | {note} |\n"
