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

- *2,000,000 rows.* A fit reads the features three times: to see that all are finite, to sort rows into settled and
  doubtful, and to check them. Each pass runs at the speed of memory, and the three come to about a third of the time of
  ridge; the rest is the solve for the doubtful rows, single numpy operations over some 100,000 of them. At
  alpha = 1e-6 the first solve moves rows at the corners of the domain farther than the band, and a second round with
  its own pass follows. Tried: wider and narrower bands (a wider one costs more rows than it saves rounds), larger
  samples before the last stage (copying their rows costs as much), bands by leverage.
- *alpha = 1e-10, and bandwidth 0.2.* The number of Newton steps grows as alpha falls, and at bandwidth 0.2 nearly all
  300 directions matter, so that nothing is gained by leaving some out. A sample of 19,200 rows knows the fit too
  badly: settled rows flip, and at alpha = 1e-8 the solver falls back on all rows. Tried: solving the first round less
  far (kept), allowing more doubtful rows before giving up (no gain).
- *Five levels, the grid, the exact kernel at n=2,000.* These lie near their goals and move by a fifth from run to run;
  what remains is the overhead of many small numpy calls in the Newton loop.
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
