"""The verdicts on learning rates (`fig_3`, `decomposition`): each is fed numbers for which it must say the opposite."""

import functools

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from quernel.paper import OutputFolder, Table
from quernel.paper import learning_rate as rates
from quernel.paper import theorems as errors
from quernel.paper.experiment import Slope, all_hold, allowed_slope

# Minus the printed slopes, and minus those of the theory, -2r/(2r + gamma).
PRINTED = {(0.2, 0.1): 0.81, (0.4, 0.2): 1.21, (0.5, 0.1): 1.63, (0.8, 0.2): 0.95}
THEORY = {
    (0.2, 0.1): 4 / 5, (0.4, 0.2): 4 / 5, (0.5, 0.1): 10 / 11, (0.8, 0.2): 8 / 9, (0.4, 0.4): 2 / 3, (0.3, 0.45): 4 / 7,
}  # fmt: skip
COVERED = [(0.5, 0.1), (0.8, 0.2), (0.4, 0.4), (0.3, 0.45)]
# What log^2 N adds to a slope: between 1,000 and 10,000 rows 2 log(4/3)/log(10), and a little more up to 8,000.
LOGARITHM = 0.25
SIZES = (1000, 2000, 4000, 8000, 10_000)


def fabricated(slope, *, spread=0.001, size="full"):
    """Rows of fig_3 whose errors fall like n^slope(pair, features, ridge) on average; repetitions differ in slope.

    With 4 or 5 repetitions an interval reaches about two spreads to either side.
    """
    rows = []
    counts = {
        ((task["r"], task["gamma"]), task["features"], task["ridge"]): min(task["repetition"] + 1, 5)
        for task in rates.make_tasks(size)
    }
    for task in rates.make_tasks(size):
        key = ((task["r"], task["gamma"]), task["features"], task["ridge"])
        if task["repetition"] >= 5 or task["n"] not in SIZES:
            continue  # few are enough
        error = float(task["n"] ** (slope(*key) + spread * (task["repetition"] - (counts[key] - 1) / 2)))
        rows.append({**task, "M": 20, "alpha": 1e-3, "excess": error, "squared": error, rates.LEAST: error / 2})
    return Table(rows)


@functools.cache
def printed_verdicts(shift=0.0, spread=0.001):
    """All slopes are the printed ones, but for a shift."""
    return rates.judge_printed(fabricated(lambda pair, *_: shift - PRINTED.get(pair, 1.0), spread=spread))


@functools.cache
def theorem_verdicts(shift=0.0, spread=0.001):
    """All slopes are those of the theory, but for a shift."""
    return rates.judge_theorem(fabricated(lambda pair, *_: shift - THEORY[pair], spread=spread))


def of_pair(verdicts, pair):
    return [verdict for verdict in verdicts if verdict.text.startswith(f"(r, gamma) = ({pair[0]:g}, {pair[1]:g})")]


def test_the_printed_slopes_are_met_from_both_sides_or_not_at_all():
    assert [verdict.holds for verdict in printed_verdicts()] == [True] * 4
    for shift in (-0.2, 0.2):
        verdicts = printed_verdicts(shift)
        assert [verdict.holds for verdict in verdicts] == [False] * 4
        assert all("None of our other runs holds it" in verdict.text for verdict in verdicts)


def test_an_interval_that_is_too_wide_confirms_no_printed_slope_but_may_refute_it():
    assert {verdict.holds for verdict in printed_verdicts(spread=0.3)} == {"undecided"}
    assert {verdict.holds for verdict in printed_verdicts(-2, spread=0.3)} == {False}


def test_the_constant_that_meets_a_printed_slope_is_named():
    pair = (0.5, 0.1)
    table = fabricated(lambda own, features, _: -1.63 if own == pair and features == "1" else -0.7)
    (verdict,) = of_pair(rates.judge_printed(table), pair)
    assert verdict.holds is False
    assert "these hold the printed slope: constant 1, lambda from theory" in verdict.text
    assert "constant 1, lambda from validation" in verdict.text
    assert "constant 20" not in verdict.text
    assert "too few" not in verdict.text
    table = fabricated(lambda own, features, _: -1.63 if own == pair and features == "1" else -2.5)
    (verdict,) = of_pair(rates.judge_printed(table), pair)
    assert "too few" in verdict.text  # 10,000^(2.5 - 1.63) times the risk


def test_the_printed_numbers_are_judged_as_ratios_too():
    inside = fabricated(lambda pair, *_: -PRINTED.get(pair, 1.0) * THEORY[pair])
    for verdict in rates.judge_printed(inside):
        assert verdict.holds is False
        assert verdict.text.count("outside of this interval") == 1
        assert verdict.text.count("inside of this interval") == 1
    (verdict,) = of_pair(rates.judge_printed(inside), (0.4, 0.2))
    assert "1.21 x 0.80 = 0.97" in verdict.text


@pytest.mark.parametrize("pair", COVERED)
def test_slopes_of_the_theory_are_shown_and_flat_ones_found_out(pair):
    assert {verdict.holds for verdict in of_pair(theorem_verdicts(), pair)} == {True}
    flat = of_pair(theorem_verdicts(LOGARITHM + 0.1), pair)
    assert {verdict.holds for verdict in flat} == {False}
    assert all("too slow" in verdict.text for verdict in flat)


@pytest.mark.parametrize("pair", COVERED)
def test_a_slope_that_needs_the_logarithm_is_allowed_and_said_to_need_it(pair):
    for verdict in of_pair(theorem_verdicts(LOGARITHM / 2), pair):
        assert verdict.holds is True
        assert "Without the logarithm it is too slow" in verdict.text
    for verdict in of_pair(theorem_verdicts(-0.1), pair):
        assert verdict.holds is True
        assert "Without the logarithm" not in verdict.text


@pytest.mark.parametrize("pair", COVERED)
def test_intervals_that_are_wide_or_hold_the_bound_decide_nothing(pair):
    wide = of_pair(theorem_verdicts(spread=0.3), pair)
    assert {verdict.holds for verdict in wide} == {"undecided"}
    close = of_pair(theorem_verdicts(LOGARITHM, spread=0.05), pair)
    assert {verdict.holds for verdict in close} == {"undecided"}
    assert all("an interval holds" in verdict.text for verdict in close)


@pytest.mark.parametrize(("pair", "reason"), [((0.2, 0.1), "2r + gamma = 0.5 < 1"), ((0.4, 0.2), "up to a logarithm")])
def test_where_no_theorem_speaks_nothing_is_judged_and_the_reason_told(pair, reason):
    for shift, message in ((-0.1, "no interval lies wholly above"), (0.4, "an interval lies wholly above")):
        verdicts = of_pair(theorem_verdicts(shift), pair)
        assert len(verdicts) == 2
        for verdict in verdicts:
            assert verdict.holds is None
            assert reason in verdict.text
            assert message in verdict.text


def test_the_theorem_speaks_of_the_other_pairs():
    assert [pair for pair in (*rates.PAIRS, *rates.INSIDE) if not rates.explain_outside(*pair)] == COVERED


def test_too_slow_a_slope_comes_with_what_other_features_and_weights_do():
    table = fabricated(lambda pair, features, _: -0.3 if features == rates.MAIN else -THEORY[pair])
    for verdict in of_pair(rates.judge_theorem(table), (0.8, 0.2)):
        assert verdict.holds is False
        assert "kernel itself" in verdict.text
        assert "which meets the theorem" in verdict.text


def test_the_pairs_of_the_paper_keep_their_tasks():
    own = [task for task in rates.make_tasks("full") if (task["r"], task["gamma"]) in PRINTED]
    assert len(own) == 4 * 10 * (40 + 10 + 20 + 5 + 10 + 4 + 10)
    assert own == rates.make_tasks("full")[: len(own)]
    assert own[0] == {"r": 0.2, "gamma": 0.1, "features": "5", "ridge": "theory", "n": 1000, "repetition": 0}


def test_the_item_is_shown(tmp_path):
    section = rates.present(fabricated(lambda pair, *_: -THEORY[pair], size="quick"), OutputFolder(tmp_path))
    assert len(list((tmp_path / "figures").glob("*.png"))) == 3
    assert "0.81 x 0.80 = 0.65, 1.21 x 0.80 = 0.97, 1.63 x 0.91 = 1.48, 0.95 x 0.89 = 0.84" in " ".join(
        section.reported
    )


@pytest.mark.parametrize(
    ("low", "high", "bound", "value"),
    [
        (-0.9, -0.7, True, False),
        (-0.6, -0.4, "undecided", True),
        (-0.4, -0.2, False, False),
        (-1.4, -0.7, "undecided", False),
        (-0.9, -0.3, "undecided", "undecided"),
        (-0.4, 0.4, False, False),
    ],
)
def test_an_interval_is_judged_against_a_bound_and_against_a_value(low, high, bound, value):
    slope = Slope((low + high) / 2, low, high)
    assert slope.meets_bound(-0.5) == bound
    assert slope.meets_value(-0.5) == value


def test_one_failure_outweighs_what_is_undecided():
    assert all_hold([True, "undecided", False]) is False
    assert all_hold([True, "undecided"]) == "undecided"
    assert all_hold([True, True]) is True


def test_the_allowed_slope_is_that_of_the_bound_between_its_ends():
    def bound(n):
        return n**-0.8 * np.log(n) ** 2

    expected = np.log(bound(10_000) / bound(1000)) / np.log(10)
    assert allowed_slope(-0.8, [1000, 3000, 10_000], power=2) == pytest.approx(expected)
    assert expected == pytest.approx(-0.8 + LOGARITHM, abs=1e-3)


def fabricated_terms(slope, *, noise=0.01, total=0.9):
    """Rows of the decomposition whose terms fall like n^slope(term)."""
    rng = np.random.default_rng(0)
    rows = []
    for task in errors.make_decomposition_tasks("full"):
        terms = {term: float(task["n"] ** slope(term) * np.exp(noise * rng.standard_normal())) for term in errors.TERMS}
        bound = sum(terms.values())
        rows.append({**task, "M": 20, "total": total * bound, "bound": bound, **terms})
    return Table(rows)


@pytest.mark.parametrize(
    ("slope", "noise", "holds"), [(-0.4, 0.01, True), (-0.1, 0.01, False), (-0.4, 4.0, "undecided")]
)
def test_a_term_that_falls_too_slowly_is_found_out(slope, noise, holds):
    table = fabricated_terms(lambda term: slope if term == "empirical" else -0.4, noise=noise)
    verdict = errors.judge_decomposition(table)[0]
    assert verdict.holds == holds
    assert ("rows to their law" in verdict.text) == (holds is not True)


def test_an_error_above_the_sum_of_its_terms_is_found_out():
    for total, holds in ((0.9, None), (1.1, False)):
        table = fabricated_terms(lambda term: -0.4, total=total)
        assert errors.judge_decomposition(table)[1].holds is holds
