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
### Goals that are missed, or are met in some runs only, and why

- *Which lines are met depends on the run.* In three runs within two hours, nearly of the same code, lines that were
  missed in any of them took: n=200,000, level 0.5, alpha 1e-6, 0.51 to 0.75 times ridge; n=2,000,000, alpha 1e-6,
  0.40 to 0.60 (level 0.1) and 0.48 to 0.71 (level 0.5); alpha 1e-10, 0.85 to 1.53; bandwidth 0.2, alpha 1e-8, 2.5 to
  3.5; five levels, 2.4 to 2.85; the search at n=500, 3.8 to 4.7. Ridge is bound by arithmetic and these fits by
  memory, and the machine is shared: the first run missed one line, the second three, the third, which is shown, four.
- *alpha = 1e-10.* 107 directions of 300
  matter, and the band of doubt that the tolerance asks for is wider than what is affordable (0.18 of all rows): a
  first round on 36,000 rows leaves a gap of 2e-4, a second on 40,000 closes it. Of 0.45 s the samples take 0.13, the
  pass that sorts rows and projects those in doubt 0.10, Newton's 23 steps 0.19, and the two passes that verify 0.06.
  Tried: 0.20 to 0.30 of all rows; samples 1.7 and 2.5 times as large; a first round solved to 1e-6, 1e-5 and 1e-4
  only (a tenth to a quarter less of Newton's work, but a third pass at alpha = 1e-8); and narrower widths to begin
  with. None was better on all of these lines.
- *2,000,000 rows, level 0.5, alpha = 1e-6.* At smaller ridge weights more directions of feature space matter and more
  rows are in doubt: here 45 directions of 100 and 131,000 rows. In quiet moments the fit takes 0.41 to 0.44 s and ridge
  0.69, in others the line was missed (0.6 to 0.78). Of these the two passes over the features at the speed of memory
  take 0.17 to 0.19, picking up the doubtful rows and projecting them 0.06, Newton's steps on them 0.07, and the samples
  0.09. Bands now follow from the standard errors of the sample's fit and the tolerance (they were sized by a count of
  duals, up to 25 times the parameters in use): about half as many rows at alpha 1e-2 and 1e-4, and no second round at
  level 0.1. Tried on top: bands by each row's own standard error. The exact ones would leave 90,000 rows in doubt
  instead of 128,000; from 8 random errors of the fit they are about as good, from 4 no better than one band for all,
  and 16 in the pass cost as much as they saved. Blocks of 8, 16 and 32 MB instead of 64, to pick up rows while they are
  in cache: no difference beyond noise.
- *Five levels.* Of 0.33 s (one level: 0.12), the two passes take 0.15 and the projection of every level's own
  doubtful rows 0.07; a fifth are the levels' Newton steps, which are small. Settled rows are added up by how many
  curves they lie above, once each and not once for every level: a third off the first pass. Tried besides: the
  levels' Newton steps on two threads (0.41 s against 0.38 at the time); matrix products for the predictions of five
  columns, which take as long as the compiled loop alone; and compiled loops over four rows at a time, a tenth to a
  quarter faster for five columns of 300 features or more but up to twice as slow for one column of 100. None of these
  was kept. One level has become faster, too, and with it the measure.
- *Bandwidth 0.2, alpha = 1e-8.* 2.6 to 3.5 times ridge: no direction can be left out, and the second round on 40,000
  rows takes 23 steps with all 300 features.
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
