"""Numbers printed in the paper's tables, and verdicts on `tab.2` and `tab.3`: whether ours agree and support it.

Printed are mean and standard deviation of the PQE over 50 repetitions; PQE, the paper's predicted quantile error, is
the mean pinball loss on test rows. Verdicts take them as an argument, {(method, level, N): (mean, sd)}, so that tests
can ask for verdicts on other numbers. No method has an expected PQE below the Bayes risk, which is known: printed means
are also checked against that bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.stats import binom, chi2, norm

from quernel.paper.experiment import Summary, Table, summarize
from quernel.paper.holdout_fit import LEVELS
from quernel.paper.output import Holds, Verdict
from quernel.paper.simulated import Bound, bound, bound_with_row_betas

# A cell of a table, (method, quantile level, N), and the (mean, sd) printed in it.
Cell = tuple[str, float, int]
Cells = dict[Cell, tuple[float, float]]

REPETITIONS = 50
# Numbers are printed with three decimals: the largest rounding error, and its standard deviation (uniform law).
HALF_UNIT = 0.0005
ROUNDING_SD = 0.001 / 12**0.5
SIZES = (500, 1000, 2000, 5000, 10_000)
METHODS = RF, EXACT = "KQR-RF", "KQR"
# By simulation, method and level, in the order of SIZES: tables `tab.2` and `tab.3`.
_TABLES = {
    "homoscedastic": """
        0.1  | 0.193 0.014  0.185 0.010  0.178 0.007  0.176 0.005  0.174 0.003
             | 0.184 0.005  0.175 0.004  0.168 0.001  0.164 0.001  0.162 0.001
        0.25 | 0.332 0.007  0.325 0.005  0.321 0.002  0.319 0.002  0.317 0.002
             | 0.323 0.002  0.315 0.002  0.312 0.001  0.308 0.001  0.306 0.001
        0.5  | 0.419 0.008  0.407 0.006  0.402 0.002  0.400 0.002  0.398 0.001
             | 0.405 0.002  0.395 0.002  0.391 0.002  0.388 0.001  0.386 0.001
        0.75 | 0.338 0.010  0.327 0.008  0.322 0.004  0.319 0.002  0.316 0.002
             | 0.321 0.003  0.313 0.003  0.306 0.002  0.304 0.001  0.302 0.001
        0.9  | 0.191 0.016  0.183 0.011  0.177 0.005  0.175 0.004  0.174 0.003
             | 0.183 0.005  0.173 0.004  0.168 0.001  0.166 0.001  0.165 0.001""",
    "heteroscedastic": """
        0.1  | 0.284 0.009  0.275 0.008  0.268 0.005  0.266 0.004  0.264 0.003
             | 0.271 0.005  0.266 0.004  0.261 0.001  0.259 0.001  0.256 0.001
        0.25 | 0.502 0.007  0.495 0.006  0.487 0.003  0.483 0.002  0.479 0.002
             | 0.492 0.002  0.484 0.002  0.479 0.001  0.472 0.001  0.470 0.001
        0.5  | 0.621 0.009  0.614 0.006  0.605 0.003  0.601 0.002  0.598 0.001
             | 0.609 0.002  0.601 0.002  0.597 0.002  0.594 0.001  0.591 0.001
        0.75 | 0.501 0.009  0.495 0.008  0.482 0.004  0.479 0.002  0.476 0.002
             | 0.493 0.003  0.483 0.003  0.474 0.002  0.467 0.001  0.463 0.001
        0.9  | 0.295 0.013  0.283 0.011  0.270 0.006  0.266 0.004  0.264 0.003
             | 0.284 0.005  0.275 0.004  0.261 0.001  0.256 0.001  0.254 0.001""",
}
# `tab.4`, quantile level 0.5.
USED_CARS = {"exact": (0.094, 0.000), "uniform": (0.105, 0.004), "leverage": (0.098, 0.003)}


def sample_size_cells(simulation: str) -> Cells:
    """All entries of `tab.2` or `tab.3`: (method, level, N) to (mean, sd).

    In `_TABLES` each level has one line per method, with a mean and an sd for each N.
    """
    cells: Cells = {}
    for k, line in enumerate(_TABLES[simulation].strip().splitlines()):
        level, (_, numbers) = LEVELS[k // 2], line.split("|")
        values = [float(number) for number in numbers.split()]
        for size, entry in zip(SIZES, zip(values[::2], values[1::2], strict=True), strict=True):
            cells[METHODS[k % 2], level, size] = entry
    return cells


@dataclass(frozen=True)
class Limits:
    """When two numbers differ, and when there are too few to tell."""

    differs: float = 2.0  # standard errors beyond which two means differ
    impossible: float = 3.0  # standard deviations that the draw of one test set cannot explain
    min_repetitions: int = 10  # with fewer, standard errors are too uncertain to decide anything
    rare: float = 0.01  # probability below which a count, or a printed sd, is not put down to chance
    small_alpha: float = 1e-9  # ridge weights up to this one hardly regularise


LIMITS = Limits()
# Text on whether the gap between the methods shrinks.
FINDINGS: dict[Holds, str] = {
    True: "It shrinks.",
    False: "It shows no shrinking.",
    "undecided": "That is too little to tell.",
}


class Difference(NamedTuple):
    """Our mean minus the printed one, with two standard errors.

    `se` takes all repetitions as independent; `se_one_test_set` adds the deviation of one test set that the paper may
    have reused in all repetitions, which its printed standard deviations cannot show.
    """

    value: float
    se: float
    se_one_test_set: float


def summarize_cell(table: Table, cell: Cell, name: str) -> Summary:
    """Mean, sd and standard error of a column over the repetitions of one cell."""
    method, level, n = cell
    return table.select(method=method, level=level, n=n).summary(name)


def compare(ours: Summary, printed: tuple[float, float], test_sd: float) -> Difference:
    """Difference to a printed (mean, sd): its variance adds up both standard errors and the rounding of print."""
    mean, sd = printed
    variance = ours.se**2 + sd**2 / REPETITIONS + ROUNDING_SD**2
    return Difference(ours.mean - mean, float(np.sqrt(variance)), float(np.sqrt(variance + test_sd**2)))


def judge_numbers(simulation: str, table: Table, paper: Cells) -> Verdict:
    """Whether our means agree with the printed ones, two-sided.

    They do if no more cells differ by two standard errors than chance allows (binomial 99 % quantile).
    """
    differences = {
        cell: compare(summarize_cell(table, cell, "pqe"), printed, bound(simulation, cell[1]).test_sd)
        for cell, printed in paper.items()
    }
    off = [cell for cell, d in differences.items() if abs(d.value) > LIMITS.differs * d.se]
    beyond = [cell for cell, d in differences.items() if abs(d.value) > LIMITS.impossible * d.se_one_test_set]
    lowest, highest = (choose(differences, key=lambda cell: differences[cell].value) for choose in (min, max))
    chance = 2 * float(norm.sf(LIMITS.differs))
    agree = len(off) <= _max_by_chance(len(differences), chance)
    holds: Holds = True if agree else False if beyond else "undecided"
    by_method = ", ".join(f"{sum(cell[0] == method for cell in off)} of {method}" for method in METHODS)
    disagree = f"The numbers do not agree{'' if beyond else ', but that may be its luck'}."
    return _verdict(
        table,
        f"Numbers: {len(off)} of {len(differences)} printed means differ from ours by more than {LIMITS.differs:g} "
        f"standard errors ({by_method}; chance would give {chance * len(differences):.1f}), ours minus print from "
        f"{differences[lowest].value:+.4f} ({_format_cell(lowest)}) to {differences[highest].value:+.4f} "
        f"({_format_cell(highest)}). If all repetitions of the paper shared one test set, whose luck its standard "
        f"deviations do not show, {len(beyond)} still differ by more than {LIMITS.impossible:g}. "
        + ("The numbers agree." if agree else disagree),
        holds,
    )


def judge_fall(table: Table, paper: Cells) -> Verdict:
    """First conclusion of the paper, that the PQE falls with N: in print, and by our excess risks."""
    sizes = table.values("n")
    pairs = [(method, level) for method in METHODS for level in LEVELS]
    steps = [(pair, before, after) for pair in pairs for before, after in pairwise(sizes)]
    printed = sum(paper[*pair, after][0] < paper[*pair, before][0] for pair, before, after in steps)
    fallen = [pair for pair in pairs if _rise_in_se(table, *pair, sizes[0], sizes[-1]) < -LIMITS.differs]
    rises = [
        (*pair, after) for pair, before, after in steps if _rise_in_se(table, *pair, before, after) > LIMITS.differs
    ]
    in_print, in_ours = printed == len(steps), len(fallen) == len(pairs) and not rises
    phrases = {True: "it falls", False: "it does not everywhere"}
    agreement = f"In print {phrases[in_print]}, in ours {phrases[in_ours]}."
    if in_print and in_ours:
        agreement = "Print and ours agree: it falls."
    return _verdict(
        table,
        f"Conclusion: the PQE falls with N. In print it does at {printed} of {len(steps)} steps from one N to the "
        f"next. Ours, by the excess risk: from N = {sizes[0]:,} to {sizes[-1]:,} it falls by more than "
        f"{LIMITS.differs:g} standard errors for {len(fallen)} of {len(pairs)} pairs of method and level; it rises by "
        f"as much from one N to the next {_format_places(map(_format_cell, rises))}. {agreement}",
        in_print and in_ours,
    )


def judge_printed_gap(paper: Cells) -> Verdict:
    """Second conclusion, that KQR-RF approaches exact KQR as N grows, in the printed numbers."""
    sizes = sorted({n for _, _, n in paper})
    gaps = {n: _printed_gap(paper, n) for n in sizes}
    (first, first_se), (last, last_se) = gaps[sizes[0]], gaps[sizes[-1]]
    fall, error = first - last, float(np.hypot(first_se, last_se))
    # Rounded, because sums of decimals that are equal may differ in the last bit.
    holds: Holds = True if fall > LIMITS.differs * error else "undecided" if round(fall, 6) > 0 else False
    return Verdict(
        "Conclusion: KQR-RF comes near to exact KQR as N grows. In print the gap between them, the mean over the "
        f"levels, is {_format_by_size({n: gap for n, (gap, _) in gaps.items()})}: from the first to the last it "
        f"changes by {-fall:+.4f}, with a standard error of {error:.4f} if all cells are independent. "
        f"{FINDINGS[holds]}",
        holds,
    )


def judge_our_gap(table: Table) -> Verdict:
    """The same in our numbers: paired gaps of the excess risks, averaged over the levels."""
    sizes = table.values("n")
    gaps = {n: _our_gap(table, n) for n in sizes}
    first, last = gaps[sizes[0]], gaps[sizes[-1]]
    pqe = max(_gap(table, level, n, "pqe").mean() for level in LEVELS for n in sizes)
    if first.mean <= LIMITS.differs * first.se:
        holds: Holds = "undecided"
        finding = f"At N = {sizes[0]:,} there is no gap beyond {LIMITS.differs:g} standard errors that could shrink."
    else:
        fall, error = first.mean - abs(last.mean), float(np.hypot(first.se, last.se))
        holds = True if fall > LIMITS.differs * error else "undecided" if fall > 0 else False
        finding = FINDINGS[holds]
    return _verdict(
        table,
        "The same conclusion in our numbers: the gap of the excess risks on the same rows, the mean over the levels, "
        f"is {_format_by_size({n: gap.mean for n, gap in gaps.items()}, digits=5)}, with standard errors of "
        f"{first.se:.5f} at the first and {last.se:.5f} at the last; the mean PQE of KQR-RF is above that of KQR by at "
        f"most {pqe:.4f} at any level and N. {finding}",
        holds,
    )


def judge_exact(table: Table) -> Verdict:
    """Whether exact KQR is nowhere worse than KQR-RF."""
    worse, most = _find_worse(table, "excess")
    paired, most_paired = _find_worse(table, "excess", paired=True)
    at_best, most_at_best = _find_worse(table, "least_excess", paired=True)
    pairs = len(LEVELS) * len(table.values("n"))
    text = (
        f"Excess risk of exact KQR against KQR-RF, {pairs} pairs of level and N: larger by more than "
        f"{LIMITS.differs:g} standard errors of the two means {_format_places(worse)} (at most {most:.1f} of them). "
        f"Repetition by repetition, on the same rows, which sees more: {_format_places(paired)} (at most "
        f"{most_paired:.1f} standard errors; chance alone would give {pairs * norm.sf(LIMITS.differs):.1f} such pairs "
        "if both were equal). So compared, but with the weight of the grid that is best for the true risk instead of "
        f"validation's choice: {_format_places(at_best)} (at most {most_at_best:.1f})."
    )
    if worse or paired:
        exact, others = (
            np.mean(table.select(method=method).column("alpha") <= LIMITS.small_alpha) for method in (EXACT, RF)
        )
        text += (
            f" Validation on 1,000 rows chose weights up to {LIMITS.small_alpha:g}, which hardly regularise, in "
            f"{exact:.1%} of the exact fits and {others:.1%} of the others."
        )
    by_chance = _max_by_chance(pairs, float(norm.sf(LIMITS.differs)))
    return _verdict(table, text, not worse and len(paired) <= by_chance)


def judge_bounds(simulation: str, paper: Cells) -> list[Verdict]:
    """Whether the printed means are possible: no expected PQE lies below the Bayes risk."""
    bounds = {level: bound(simulation, level) for level in LEVELS}
    reused, remark = _judge_test_set(bounds, paper)
    verdicts = [remark, *(_judge_possible(method, bounds, paper, reused=reused) for method in METHODS)]
    if simulation == "heteroscedastic":
        verdicts.append(_remark_row_betas(bounds, paper, reused=reused))
    return verdicts


def _judge_test_set(bounds: dict[float, Bound], paper: Cells) -> tuple[bool, Verdict]:
    """Whether the printed standard deviations leave room for the noise of test rows drawn anew in every repetition.

    If they do not, one test set was probably reused, and its deviation is in all means of a level. Returns that, and a
    remark.
    """
    # Chi-square quantile: the sd of so many numbers is rarely below this fraction of the true one.
    low = float(np.sqrt(chi2.ppf(LIMITS.rare, REPETITIONS - 1) / (REPETITIONS - 1)))
    sds = {cell: (sd + HALF_UNIT) / bounds[cell[1]].test_sd for cell, (_, sd) in paper.items()}
    below, too_low = (sum(ratio < limit for ratio in sds.values()) for limit in (1.0, low))
    reused = too_low > _max_by_chance(len(paper), LIMITS.rare)
    test_sds = [one.test_sd for one in bounds.values()]
    text = (
        f"Of the {len(paper)} printed standard deviations, {below} lie below that of the mean loss of the true "
        f"quantile on 10,000 test rows ({min(test_sds):.4f} to {max(test_sds):.4f} by level), rounding allowed for; "
        f"{too_low} of them by more than {REPETITIONS} repetitions explain (chance would give at most "
        f"{LIMITS.rare * len(paper):.1f}). "
    )
    text += (
        "So one test set was probably reused in all repetitions, and its luck is in all means of a level."
        if reused
        else "So a test set may have been drawn in every repetition."
    )
    return reused, Verdict(text)


def _judge_possible(method: str, bounds: dict[float, Bound], paper: Cells, *, reused: bool) -> Verdict:
    """Whether the printed means of one method lie too far below the Bayes risk to be luck."""
    means = {cell: mean for cell, (mean, _) in paper.items() if cell[0] == method}
    below = {cell: bounds[cell[1]].risk - mean for cell, mean in means.items()}
    impossible = _impossible(method, bounds, paper, reused=reused)
    luck_sd = {cell: _test_set_sd(bounds[cell[1]], reused=reused) for cell in below}
    worst = max(below, key=lambda cell: below[cell] / luck_sd[cell])
    whose = "one test set" if reused else f"{REPETITIONS} test sets"
    start = f"Printed means of {method} against the Bayes risk, which no method beats in expectation: "
    count = sum(gap > HALF_UNIT for gap in below.values())
    if not count:
        return Verdict(f"{start}none of {len(means)} lies below it.", holds=True)
    return Verdict(
        f"{start}{count} of {len(means)} lie below it by more than their rounding, by up to "
        f"{below[worst] / luck_sd[worst]:.1f} standard deviations of the luck of {whose} ({_format_cell(worst)}: "
        f"{means[worst]:.3f} against {bounds[worst[1]].risk:.4f}). "
        + (
            f"{len(impossible)} of them by more than {LIMITS.impossible:g}: these are impossible, for the noise alone "
            "costs more."
            if impossible
            else f"None by more than {LIMITS.impossible:g}: all are within luck."
        ),
        not impossible,
    )


def _remark_row_betas(bounds: dict[float, Bound], paper: Cells, *, reused: bool) -> Verdict:
    """How the bound changes if the paper is read literally, with one unobserved beta per row."""
    literal = {level: bound_with_row_betas(level) for level in LEVELS}
    counts = [
        f"{len(_impossible(method, literal, paper, reused=reused))} of {method} (instead of "
        f"{len(_impossible(method, bounds, paper, reused=reused))})"
        for method in METHODS
    ]
    before, after = (", ".join(f"{one.risk:.4f}" for one in every.values()) for every in (bounds, literal))
    change = "raises" if all(literal[level].risk > bounds[level].risk for level in LEVELS) else "does not always raise"
    return Verdict(
        f"To read the paper literally, with a beta for every row, which no method sees, {change} the bound: from "
        f"{before} to {after} at levels {', '.join(f'{level:g}' for level in LEVELS)}. More than {LIMITS.impossible:g} "
        f"standard deviations below it would lie {' and '.join(counts)} of the printed means."
    )


def _impossible(method: str, bounds: dict[float, Bound], paper: Cells, *, reused: bool) -> list[Cell]:
    """Cells that lie so far below the bound that neither rounding nor the draw of test rows explains it."""
    return [
        cell
        for cell, (mean, _) in paper.items()
        if cell[0] == method
        and bounds[cell[1]].risk - mean - HALF_UNIT > LIMITS.impossible * _test_set_sd(bounds[cell[1]], reused=reused)
    ]


def _test_set_sd(one: Bound, *, reused: bool) -> float:
    """Standard deviation of a mean over all repetitions due to the draw of test rows."""
    return one.test_sd if reused else one.test_sd / float(np.sqrt(REPETITIONS))


def _rise_in_se(table: Table, method: str, level: float, before: int, after: int) -> float:
    """Rise of the mean excess risk from one N to another, in standard errors."""
    one, other = (summarize_cell(table, (method, level, n), "excess") for n in (before, after))
    return (other.mean - one.mean) / float(np.hypot(one.se, other.se))


def _gap(table: Table, level: float, n: int, name: str) -> np.ndarray:
    """KQR-RF minus exact KQR, one number per repetition."""
    rough, exact = (table.select(method=method, level=level, n=n).column(name) for method in METHODS)
    return rough - exact


def _our_gap(table: Table, n: int) -> Summary:
    """Summary over repetitions of our gap of excess risks, averaged over the levels."""
    gaps = np.mean([_gap(table, level, n, "excess") for level in LEVELS], axis=0)
    return summarize(gaps)


def _printed_gap(paper: Cells, n: int) -> tuple[float, float]:
    """Printed gap averaged over the levels, and its standard error if all cells are independent."""
    gap = np.mean([paper[RF, level, n][0] - paper[EXACT, level, n][0] for level in LEVELS])
    variances = [
        paper[method, level, n][1] ** 2 / REPETITIONS + ROUNDING_SD**2 for method in METHODS for level in LEVELS
    ]
    return float(gap), float(np.sqrt(sum(variances))) / len(LEVELS)


def _find_worse(table: Table, name: str, *, paired: bool = False) -> tuple[list[str], float]:
    """Cells where exact KQR is worse by more than two standard errors, and the largest difference in standard errors.

    The standard error is that of a difference of independent means or, `paired`, of the mean of differences on the same
    rows.
    """
    worse, most = [], -np.inf
    for level, n in ((level, n) for level in LEVELS for n in table.values("n")):
        exact, others = (table.select(method=method, level=level, n=n).column(name) for method in (EXACT, RF))
        variance = np.var(exact - others, ddof=1) if paired else np.var(exact, ddof=1) + np.var(others, ddof=1)
        difference, error = np.mean(exact - others), np.sqrt(variance / len(exact))
        most = max(most, difference / error)
        if difference > LIMITS.differs * error:
            worse.append(f"level {level:g}, N = {n:,} (by {difference:.5f})")
    return worse, float(most)


def _format_places(places: Iterable[str]) -> str:
    """A list of places as text."""
    listed = "; ".join(places)
    return f"at {listed}" if listed else "nowhere"


def _max_by_chance(cells: int, probability: float) -> int:
    """Binomial quantile: more cells than this exceed a limit by chance with probability below `LIMITS.rare` only."""
    return int(binom.ppf(1 - LIMITS.rare, cells, probability))


def _verdict(table: Table, text: str, holds: Holds) -> Verdict:
    """A verdict on our numbers, undecided if there are too few repetitions."""
    count = len(table.values("repetition"))
    if count >= LIMITS.min_repetitions:
        return Verdict(text, holds)
    return Verdict(
        f"{text} But {count} repetitions are too few to tell: at least {LIMITS.min_repetitions} are needed.",
        "undecided",
    )


def _format_cell(cell: Cell) -> str:
    """A cell as text."""
    return f"{cell[0]}, level {cell[1]:g}, N = {cell[2]:,}"


def _format_by_size(values: dict[int, float], digits: int = 4) -> str:
    """Values by N, as text."""
    return ", ".join(f"{value:.{digits}f} at N = {n:,}" for n, value in values.items())
