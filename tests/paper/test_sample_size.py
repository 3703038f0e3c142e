"""Verdicts on tables 2 and 3: each says what the numbers say, and the opposite of opposite numbers."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm, qmc

from quernel.paper import Table, paper_numbers
from quernel.paper import paper_numbers as verdicts
from quernel.paper.experiment import Summary
from quernel.paper.holdout_fit import LEVELS
from quernel.paper.output import OutputFolder
from quernel.paper.paper_numbers import EXACT, RF
from quernel.paper.sample_size import SAMPLE_SIZE
from quernel.paper.simulated import SIMULATIONS, bayes_risk, bound, bound_with_row_betas

SUMMARY = Path(__file__).parents[2] / "docs" / "reproduction" / "tables"
METHODS = (RF, EXACT)
HOMOSCEDASTIC, HETEROSCEDASTIC = SIMULATIONS


def fabricate(pqe, excess, *, repetitions=50, noise=0.002, seed=0):
    """Rows whose means are these functions of (method, level, n); both methods share most of their noise."""
    rng, rows = np.random.default_rng(seed), []
    for level in LEVELS:
        for n in paper_numbers.SIZES:
            shared = centred(rng, repetitions)
            for method in METHODS:
                own = 0.1 * centred(rng, repetitions)
                for k in range(repetitions):
                    error = noise * (shared[k] + own[k])
                    cell = method, level, n
                    row = {"method": method, "level": level, "n": n, "repetition": k, "alpha": 1e-4, "gap": 1e-7}
                    risk = excess(*cell) + error / 20
                    rows.append({**row, "pqe": pqe(*cell) + error, "excess": risk, "least_excess": risk})
    fine = [row for row in rows if row["method"] == EXACT and row["repetition"] == 0 and row["n"] <= 2000]
    return Table(rows + [{**row, "method": "KQR, finer"} for row in fine])


def centred(rng, count):
    draws = rng.standard_normal(count)
    return (draws - draws.mean()) / draws.std(ddof=1)


def falling(method, level, n, *, gap=0.0):
    """An excess risk of 1 / n, and KQR-RF above exact KQR by a gap that falls with n as well."""
    return 2 / n + (gap * 500 / n if method == RF else 0.0)


def as_printed(simulation):
    cells = paper_numbers.sample_size_cells(simulation)
    return lambda *cell: cells[cell][0]


def table(simulation=HOMOSCEDASTIC, pqe=None, excess=falling, **options):
    return fabricate(pqe or as_printed(simulation), excess, **options)


def printed_with(change, simulation=HOMOSCEDASTIC):
    """The paper's cells after change(cell, mean, sd) -> (mean, sd)."""
    return {cell: change(cell, *entry) for cell, entry in paper_numbers.sample_size_cells(simulation).items()}


# The noise of the test rows, against simulated losses.


def simulated_losses(simulation, level, *, row_betas, rows=1_000_000):
    """Check losses of noise at the true quantile, the betas of rows being noise too where they are asked for.

    With row betas the level is 1/2: there the quantile given x is the centre of symmetry.
    """
    rng = np.random.default_rng(0)
    x, scale = rng.random((rows, 3)), 1.0
    residual = rng.standard_normal(rows) - norm.ppf(level)
    if simulation == HETEROSCEDASTIC:
        scale = 1 + x.mean(axis=1)
    residual = scale * residual
    if row_betas:
        residual += (rng.random(rows) - 0.5) * np.sin(2 * np.pi * x).sum(axis=1)
    return np.maximum(level * residual, (level - 1) * residual)


@pytest.mark.parametrize("simulation", SIMULATIONS)
@pytest.mark.parametrize("level", [0.1, 0.5, 0.75])
def test_the_noise_of_a_test_set_is_that_of_simulated_losses(simulation, level):
    losses = simulated_losses(simulation, level, row_betas=False)
    risk, test_sd = bound(simulation, level)
    assert risk == pytest.approx(losses.mean(), abs=4 * losses.std() / 1000)
    assert test_sd == pytest.approx(losses.std() / 100, rel=0.005)


def test_a_beta_per_row_raises_the_bound_to_that_of_simulated_losses():
    losses = simulated_losses(HETEROSCEDASTIC, 0.5, row_betas=True)
    risk, test_sd = bound_with_row_betas(0.5)
    assert risk == pytest.approx(losses.mean(), abs=4 * losses.std() / 1000)
    assert test_sd == pytest.approx(losses.std() / 100, rel=0.005)
    for level in LEVELS:
        assert bound_with_row_betas(level).risk > bayes_risk(HETEROSCEDASTIC, level) + 0.005
        assert bound_with_row_betas(level) == pytest.approx(bound_with_row_betas(1 - level), rel=1e-9)


def test_the_bound_of_row_betas_is_that_of_the_quantiles_of_draws_at_many_points():
    rng, level = np.random.default_rng(0), 0.1
    risks = []
    for x in qmc.Sobol(3, rng=0).random(1024):
        y = np.sin(2 * np.pi * x).sum() * rng.random(4000) + (1 + x.mean()) * rng.standard_normal(4000)
        residual = y - np.quantile(y, level)
        risks.append(np.maximum(level * residual, (level - 1) * residual).mean())
    assert bound_with_row_betas(level).risk == pytest.approx(np.mean(risks), abs=0.0005)


# Numbers.


def test_means_as_printed_agree_and_the_text_counts_none():
    verdict = verdicts.judge_numbers(HOMOSCEDASTIC, table(), paper_numbers.sample_size_cells(HOMOSCEDASTIC))
    assert verdict.holds is True
    assert "0 of 50 printed means differ" in verdict.text
    assert "The numbers agree." in verdict.text


@pytest.mark.parametrize("shift", [0.02, -0.02])
def test_means_far_from_print_do_not_agree_whether_above_or_below(shift):
    paper = as_printed(HOMOSCEDASTIC)
    moved = table(pqe=lambda *cell: paper(*cell) + shift)
    verdict = verdicts.judge_numbers(HOMOSCEDASTIC, moved, paper_numbers.sample_size_cells(HOMOSCEDASTIC))
    assert verdict.holds is False
    assert "50 of 50 printed means differ" in verdict.text
    assert f"{shift:+.4f}" in verdict.text
    assert "do not agree" in verdict.text


def test_differences_that_one_reused_test_set_explains_leave_it_undecided():
    paper = as_printed(HOMOSCEDASTIC)
    moved = table(pqe=lambda *cell: paper(*cell) + 0.003, noise=0.0005)
    verdict = verdicts.judge_numbers(HOMOSCEDASTIC, moved, paper_numbers.sample_size_cells(HOMOSCEDASTIC))
    assert verdict.holds == "undecided"
    assert "0 still differ by more than 3" in verdict.text
    assert verdict.text.endswith("The numbers do not agree, but that may be its luck.")


def test_a_difference_has_the_standard_errors_of_both_and_of_rounding():
    found = verdicts.compare(Summary(0.3, 0.0, 0.0003, 50), (0.29, 0.002), 0.0016)
    assert found.value == pytest.approx(0.01)
    assert found.se == pytest.approx((0.0003**2 + 0.002**2 / 50 + 0.001**2 / 12) ** 0.5)
    assert found.se_one_test_set == pytest.approx((found.se**2 + 0.0016**2) ** 0.5)


def test_three_repetitions_decide_nothing():
    few = table(repetitions=3)
    paper = paper_numbers.sample_size_cells(HOMOSCEDASTIC)
    for verdict in (
        verdicts.judge_numbers(HOMOSCEDASTIC, few, paper),
        verdicts.judge_fall(few, paper),
        verdicts.judge_our_gap(few),
        verdicts.judge_exact(few),
    ):
        assert verdict.holds == "undecided"
        assert "3 repetitions are too few" in verdict.text


@pytest.mark.parametrize("simulation", SIMULATIONS)
def test_the_means_of_the_full_run_are_counted_as_by_hand(simulation):
    with (SUMMARY / f"sample_size_{simulation}.csv").open() as file:
        rows = list(csv.DictReader(file))
    ours = {(row["method"], float(row["level"]), int(row["N"])): float(row["mean PQE"]) for row in rows}
    off = 0
    for row in rows:
        error = (0.002**2 / 50 + float(row["paper's sd"]) ** 2 / 50 + 0.001**2 / 12) ** 0.5
        off += abs(float(row["mean PQE"]) - float(row["paper's mean"])) > 2 * error
    run_task = uncorrelated(lambda *cell: ours[cell], 0.002)
    verdict = verdicts.judge_numbers(simulation, run_task, paper_numbers.sample_size_cells(simulation))
    assert f"{off} of 50 printed means differ" in verdict.text
    assert verdict.holds is False


def uncorrelated(pqe, sd):
    """Rows of the PQE alone, with exactly these means and standard deviations."""
    rng = np.random.default_rng(0)
    return Table(
        [
            {"method": method, "level": level, "n": n, "repetition": k, "pqe": pqe(method, level, n) + sd * error}
            for method in METHODS
            for level in LEVELS
            for n in paper_numbers.SIZES
            for k, error in enumerate(centred(rng, 50))
        ]
    )


# Conclusions.


def test_a_fall_in_print_and_in_ours_is_shown():
    verdict = verdicts.judge_fall(table(), paper_numbers.sample_size_cells(HOMOSCEDASTIC))
    assert verdict.holds is True
    assert "at 40 of 40 steps" in verdict.text
    assert "10 of 10 pairs" in verdict.text
    assert "agree" in verdict.text


@pytest.mark.parametrize(
    ("excess", "messages"),
    [
        (lambda method, level, n: 0.004, ("0 of 10 pairs", "nowhere")),
        (lambda method, level, n: 2 / n if n != 5000 else 0.002, ("10 of 10 pairs", "KQR, level 0.9, N = 5,000")),
    ],
)
def test_an_excess_risk_that_stays_or_rises_is_not_a_fall(excess, messages):
    verdict = verdicts.judge_fall(table(excess=excess), paper_numbers.sample_size_cells(HOMOSCEDASTIC))
    assert verdict.holds is False
    for word in (*messages, "In print it falls, in ours it does not"):
        assert word in verdict.text, verdict.text


def test_a_rise_in_print_is_told_though_ours_fall():
    paper = printed_with(lambda cell, mean, sd: (mean + (0.02 if cell == (RF, 0.5, 10_000) else 0), sd))
    verdict = verdicts.judge_fall(table(), paper)
    assert verdict.holds is False
    assert "at 39 of 40 steps" in verdict.text
    assert "In print it does not everywhere, in ours it falls." in verdict.text


def test_the_printed_gap_shrinks_stays_or_is_too_uncertain():
    assert verdicts.judge_printed_gap(paper_numbers.sample_size_cells(HOMOSCEDASTIC)).holds is False
    assert "0.0114 at N = 500" in verdicts.judge_printed_gap(paper_numbers.sample_size_cells(HOMOSCEDASTIC)).text

    def closing(cell, mean, sd):
        method, _, n = cell
        return mean - (0.01 if method == RF and n == 10_000 else 0), sd

    shrinks = verdicts.judge_printed_gap(printed_with(closing))
    assert shrinks.holds is True
    assert "0.0016 at N = 10,000" in shrinks.text
    uncertain = verdicts.judge_printed_gap(printed_with(lambda *entry: (closing(*entry)[0], 10 * entry[2])))
    assert uncertain.holds == "undecided"


def test_our_gap_shrinks_stays_or_was_never_there():
    shrinks = verdicts.judge_our_gap(table(excess=lambda *cell: falling(*cell, gap=0.001)))
    assert shrinks.holds is True
    assert "0.00100 at N = 500" in shrinks.text
    stays = verdicts.judge_our_gap(table(excess=lambda method, level, n: 2 / n + 0.001 * (method == RF)))
    assert stays.holds is False
    never = verdicts.judge_our_gap(table())
    assert never.holds == "undecided"
    assert "no gap" in never.text
    turned = verdicts.judge_our_gap(
        table(excess=lambda method, level, n: 2 / n + 0.001 * (method == RF) * (1 if n < 10_000 else -1))
    )
    assert turned.holds is False, "a gap that only changes sides does not shrink"
    little = verdicts.judge_our_gap(
        table(excess=lambda method, level, n: 2 / n + (0.00005 if n < 10_000 else 0.00004) * (method == RF), noise=0.02)
    )
    assert little.holds == "undecided"
    assert little.text.endswith("That is too little to tell.")


def test_exact_kqr_may_be_worse():
    assert verdicts.judge_exact(table()).holds is True
    worse = verdicts.judge_exact(table(excess=lambda method, level, n: 2 / n + 0.001 * (method == EXACT)))
    assert worse.holds is False
    assert "level 0.5, N = 2,000 (by 0.00100)" in worse.text
    paired = verdicts.judge_exact(worse_in_pairs())
    assert "standard errors of the two means nowhere" in paired.text, "rows vary more than the methods differ"
    assert paired.holds is False, "in pairs, on the same rows, more cells are worse than chance allows"


def worse_in_pairs():
    """Exact KQR a little worse on every draw of the rows, which both methods share."""
    rng, shared = np.random.default_rng(0), {}
    slightly = table(excess=lambda method, level, n: 1 + 0.001 * (method == EXACT))
    rows = []
    for row in slightly.rows:
        draw = shared.setdefault((row["level"], row["n"], row["repetition"]), 0.1 * rng.standard_normal())
        rows.append(row | {"excess": row["excess"] + draw})
    return Table(rows)


# The Bayes risk.


@pytest.mark.parametrize(
    ("simulation", "below", "impossible", "most"),
    [(HOMOSCEDASTIC, 27, 13, "8.2"), (HETEROSCEDASTIC, 29, 2, "3.7")],
)
def test_some_printed_means_of_exact_kqr_are_impossible_and_those_of_kqr_rf_are_luck(
    simulation, below, impossible, most
):
    test_set, rough, exact, *_ = verdicts.judge_bounds(simulation, paper_numbers.sample_size_cells(simulation))
    assert f"{below} lie below" in test_set.text
    assert "probably reused" in test_set.text
    assert rough.holds is True
    assert "all are within luck" in rough.text
    assert exact.holds is False
    assert f"{most} standard deviations of the luck of one test set" in exact.text
    assert f"{impossible} of them by more than 3" in exact.text


def test_means_above_the_bayes_risk_are_possible():
    above = printed_with(lambda cell, mean, sd: (bayes_risk(HOMOSCEDASTIC, cell[1]) + 0.001, sd))
    for verdict in verdicts.judge_bounds(HOMOSCEDASTIC, above)[1:]:
        assert verdict.holds is True
        assert "none of 25 lies below it" in verdict.text


def test_kqr_rf_too_would_be_found_impossible():
    lowered = printed_with(lambda cell, mean, sd: (bayes_risk(HOMOSCEDASTIC, cell[1]) - 0.012, sd))
    _, rough, exact = verdicts.judge_bounds(HOMOSCEDASTIC, lowered)
    assert rough.holds is exact.holds is False


def test_standard_deviations_with_room_for_fresh_test_sets_are_no_sign_of_a_reused_one():
    low = {level: bayes_risk(HOMOSCEDASTIC, level) - 0.0025 for level in LEVELS}
    fresh = printed_with(lambda cell, mean, sd: (low[cell[1]], 0.005))
    test_set, rough, _ = verdicts.judge_bounds(HOMOSCEDASTIC, fresh)
    assert "0 lie below" in test_set.text
    assert "may have been drawn in every repetition" in test_set.text
    assert rough.holds is False, "the luck of 50 test sets is smaller"
    reused = printed_with(lambda cell, mean, sd: (low[cell[1]], 0.0))
    assert verdicts.judge_bounds(HOMOSCEDASTIC, reused)[1].holds is True


def test_only_the_heteroscedastic_case_tells_of_row_betas():
    text = verdicts.judge_bounds(HETEROSCEDASTIC, paper_numbers.sample_size_cells(HETEROSCEDASTIC))[-1].text
    assert "raises the bound" in text
    assert f"{bound_with_row_betas(0.5).risk:.4f}" in text
    assert len(verdicts.judge_bounds(HOMOSCEDASTIC, paper_numbers.sample_size_cells(HOMOSCEDASTIC))) == 3


# The section.


def test_the_section_says_how_the_paper_is_read_and_draws_sizes_apart(tmp_path):
    pytest.importorskip("matplotlib")
    for one, simulation in zip(SAMPLE_SIZE, SIMULATIONS, strict=True):
        section = one.present(table(simulation), OutputFolder(tmp_path))
        text = " ".join(section.reported)
        assert "p = 3" in text
        assert "M = 50" in text
        assert ("one beta_j ~ U(0, 1) per coordinate" in text) == (simulation == HETEROSCEDASTIC)
        with (tmp_path / "tables" / f"sample_size_{simulation}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [(float(row["level"]), row["method"], int(row["N"])) for row in rows] == [
            (level, method, n) for level in LEVELS for method in METHODS for n in paper_numbers.SIZES
        ]
        assert all(abs(float(row["difference in s.e."])) < 1e-6 for row in rows)
