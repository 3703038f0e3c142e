"""The verdicts on numbers of features and their sampling: they follow the numbers, in both directions."""

import itertools
import re

import numpy as np
import pytest
from scipy.stats import norm

pytest.importorskip("matplotlib")

from quernel.paper import EXPERIMENTS, OutputFolder, Table
from quernel.paper.experiment import summarize
from quernel.paper.sampling import (
    LEVERAGE,
    LITERAL,
    UNIFORM,
    distance_of_constant,
    fit_median,
    judge_constant,
    judge_flat,
    present,
    present_counts,
    verdicts,
)
from quernel.paper.simulated import make_trial

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
COUNTS = (2, 5, 10, 50, 100, 150)
FALLING = dict(zip(COUNTS, (0.05, 0.01, 0.004, 0.003, 0.003, 0.003), strict=True))


def fabricate(curve, factors, *, noise=0.02, count=10, simulation="homoscedastic"):
    """Rows of fig3 whose excess risk is curve[M] times factors[method], noise of the repetition shared by methods."""
    rng, rows, scale = np.random.default_rng(0), [], 1.0 if simulation == "homoscedastic" else 1.5
    for M, excess in curve.items():
        for k in range(count):
            shared = np.exp(0.3 * rng.standard_normal(len(LEVELS)))
            for method, factor in factors.items():
                for level, draw in zip(LEVELS, shared * np.exp(noise * rng.standard_normal(len(LEVELS))), strict=True):
                    risk = float(excess * factor * draw)
                    row = {"simulation": simulation, "M": M, "repetition": k, "method": method, "level": level}
                    rows.append({**row, "excess": risk, "pqe": scale * norm.pdf(norm.ppf(level)) + risk, "alpha": 1e-4})
    return Table(rows)


def with_factors(literal, leverage, **options):
    return fabricate(FALLING, {UNIFORM: 1.0, LEVERAGE: leverage, LITERAL: literal}, **options)


@pytest.mark.parametrize(
    ("literal", "leverage", "holds"),
    [(0.9, 1.1, [True, False]), (1.1, 0.9, [False, True]), (1.0, 1.0, ["undecided", "undecided"])],
)
def test_the_printed_formula_is_judged_first_and_proper_sampling_beside_it(literal, leverage, holds):
    _, as_printed, proper = verdicts(with_factors(literal, leverage))
    assert as_printed.text.startswith("Leverage, as printed")
    assert proper.text.startswith("Leverage sampling (ours)")
    assert [as_printed.holds, proper.holds] == holds
    assert float(re.search(r"excess risk is (\S+) times", as_printed.text)[1]) == pytest.approx(literal, abs=0.005)


def test_pairs_of_m_and_level_are_counted_on_the_side_where_they_are():
    text = verdicts(with_factors(0.8, 1.25))[1].text
    assert "30 in all: it is lower at 30 and higher at 0," in text
    assert "30 in all: it is lower at 0 and higher at 30," in verdicts(with_factors(0.8, 1.25))[2].text


def test_pairing_finds_what_unpaired_means_would_not():
    table = with_factors(0.97, 1.0)
    cells = [table.select(method=method, M=50, level=0.5).summary("excess") for method in (LITERAL, UNIFORM)]
    assert (cells[0] - cells[1]).is_below_zero() == "undecided"
    assert verdicts(table)[1].holds is True


def test_more_features_are_better_only_if_they_are():
    factors = {UNIFORM: 1.0, LEVERAGE: 1.0, LITERAL: 1.0}
    assert verdicts(fabricate(FALLING, factors))[0].holds is True
    rising = verdicts(fabricate(dict(zip(COUNTS, sorted(FALLING.values()), strict=True)), factors))[0]
    assert rising.holds is False
    assert "falls for 0 of 15" in rising.text
    assert "rises as clearly for 15" in rising.text
    level = verdicts(fabricate(dict.fromkeys(COUNTS, 0.01), factors))[0]
    assert level.holds != True  # noqa: E712  neither "undecided" nor False


@pytest.mark.parametrize(
    ("curve", "holds", "message"),
    [
        ((0.05, 0.01, 0.004, 0.003, 0.003, 0.0029), True, "falls by a further"),
        ((0.05, 0.01, 0.004, 0.003, 0.003, 0.0032), True, "rises by 0."),
        ((0.05, 0.045, 0.04, 0.03, 0.01, 0.001), False, "falls by a further 1"),
        ((0.05, 0.01, 0.004, 0.003, 0.03, 0.05), False, "rises by"),
        ((0.003, 0.003, 0.003, 0.004, 0.003, 0.003), False, "does not fall"),
        ((0.001, 0.004, 0.01, 0.05, 0.05, 0.05), False, "does not fall"),
    ],
)
def test_a_curve_is_flat_if_it_fell_and_then_neither_falls_nor_rises_much(curve, holds, message):
    verdict = judge_flat(fabricate(dict(zip(COUNTS, curve, strict=True)), {UNIFORM: 1.0}), "homoscedastic")
    assert verdict.holds is holds
    assert message in verdict.text
    assert "-" not in verdict.text, "a rise is not a negative fall"


def test_a_curve_that_stops_at_50_or_is_all_noise_is_undecided():
    short = fabricate({10: 0.05, 50: 0.003}, {UNIFORM: 1.0})
    assert judge_flat(short, "homoscedastic").holds == "undecided"
    noisy = fabricate({2: 0.01, 50: 0.0095, 150: 0.005}, {UNIFORM: 1.0}, noise=2.0, count=3)
    assert judge_flat(noisy, "homoscedastic").holds != True  # noqa: E712
    risen = fabricate({2: 0.0095, 50: 0.01, 150: 0.01}, {UNIFORM: 1.0}, noise=2.0, count=3)
    assert judge_flat(risen, "homoscedastic").holds == "undecided", "a rise by chance refutes nothing"
    single = fabricate(FALLING, {UNIFORM: 1.0}, count=1)
    assert judge_flat(single, "homoscedastic").holds == "undecided"


def test_the_page_calls_the_methods_by_what_they_are(tmp_path):
    section = present("homoscedastic", with_factors(0.9, 1.1), OutputFolder(tmp_path))
    written = (tmp_path / "tables" / "sampling_homoscedastic.csv").read_text()
    for name in ("leverage, as printed", "leverage sampling (ours)"):
        assert name in written
    assert "literal" not in written + "".join(section.reported)
    assert "lacks the factor M" in "".join(section.reported)


def test_all_numbers_of_features_but_two_are_drawn(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(OutputFolder, "save_figure", lambda self, figure, name, caption: figures.append(figure))
    both = [fabricate(FALLING, {UNIFORM: 1.0}, simulation=one).rows for one in ("homoscedastic", "heteroscedastic")]
    present_counts(Table(both[0] + both[1]), OutputFolder(tmp_path))
    (figure,) = figures
    figure.draw_without_rendering()
    for ax in figure.axes:
        low, high = ax.get_ylim()
        assert high - low < 0.03, "M = 2, 0.05 above the others, does not rule the scale"
        assert any(text.get_text().startswith("M = 2: 0.") for text in ax.texts)
    labels = [label for label in figure.axes[-1].get_xticklabels() if label.get_text()]
    assert [label.get_text() for label in labels] == ["2", "5", "10", "50", "150"]
    boxes = [label.get_window_extent() for label in labels]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def losses(distance, without, with_one, *, noise=0.0005, count=20):
    """Rows of the experiment: leverage minus uniform is `distance`, `without` and `with_one` on average."""
    rng, rows = np.random.default_rng(0), []
    for k in range(count):
        base = 0.01 * np.exp(0.5 * rng.standard_normal())
        for method, sign in ((UNIFORM, 0), (LEVERAGE, 1)):
            draw = noise * rng.standard_normal(3)
            values = dict(zip(("distance", "excess", "excess_intercept"), draw, strict=True))
            for name, shift in zip(values, (distance, without, with_one), strict=True):
                values[name] += base + sign * shift
            rows.append({"M": 10, "repetition": k, "method": method, **values, "distance_span": values["distance"]})
    return Table(rows)


@pytest.mark.parametrize(("distance", "holds"), [(0.03, True), (-0.03, False), (0.0, "undecided")])
def test_the_constant_is_farther_only_if_it_is(distance, holds):
    verdict = judge_constant(losses(distance, 0.002, 0.0))[0]
    assert verdict.holds == holds
    assert {True: "are farther from", False: "are nearer to"}.get(holds, "not clearly") in verdict.text


@pytest.mark.parametrize(
    ("without", "with_one", "holds", "message"),
    [
        (0.002, 0.0, True, "the loss is gone"),
        (0.002, -0.002, True, "the loss is gone"),
        (0.002, 0.002, False, "still there."),
        (0.004, 0.001, False, "still there, 2"),
        (0.0, 0.002, False, "only with an intercept"),
        (0.0, 0.0, None, "no clear loss"),
        (-0.002, 0.0, None, "no clear loss"),
    ],
)
def test_the_loss_is_gone_if_there_was_one_and_an_intercept_ends_it(without, with_one, holds, message):
    verdict = judge_constant(losses(0.03, without, with_one))[1]
    assert verdict.holds is holds
    assert message in verdict.text


def test_too_few_repetitions_do_not_end_a_loss():
    rows = losses(0.03, 0.0, 0.0, noise=0.0, count=3).rows
    for row, without, with_one in zip(
        rows, (0, 0.002, 0, 0.0021, 0, 0.0019), (0, 0.004, 0, -0.004, 0, 0.005), strict=True
    ):
        row["excess"] += without
        row["excess_intercept"] += with_one
    assert judge_constant(Table(rows))[1].holds == "undecided"


def test_the_distance_of_the_constant_is_that_of_a_ridge_regression():
    rng = np.random.default_rng(0)
    train, test, alpha = rng.standard_normal((50, 4)) + 0.3, rng.standard_normal((30, 4)), 0.1
    coef = np.linalg.solve(train.T @ train / 50 + alpha * np.eye(4), train.T @ np.ones(50) / 50)
    expected = np.linalg.norm(1 - test @ coef) / np.linalg.norm(np.ones(30))
    assert distance_of_constant(train, test, alpha) == pytest.approx(expected, rel=1e-10)
    assert distance_of_constant(train, test, 0.0) != pytest.approx(expected, rel=1e-3)
    spanned = np.column_stack([train[:, 0], 2 - train[:, 0]])
    assert distance_of_constant(spanned, spanned, 0.0) == pytest.approx(0, abs=1e-12)
    assert distance_of_constant(np.zeros((5, 1)), np.zeros((5, 1)), 0.1) == 1.0


def test_an_intercept_takes_the_place_of_the_constant():
    trial = make_trial("homoscedastic", 300, np.random.default_rng(0))
    parts = [trial.X[part] - 0.5 for part in (trial.train, trial.validation, trial.test)]  # no constant in their span
    (_, without), (_, with_one) = (fit_median(trial, parts, fit_intercept=given) for given in (False, True))
    assert with_one < 0.02 < 0.2 < without
    shifted = [np.column_stack([part, np.ones(len(part))]) for part in parts]
    assert fit_median(trial, shifted, fit_intercept=False)[1] == pytest.approx(with_one, rel=0.1)


def test_the_new_item_measures_what_its_verdicts_read(tmp_path):
    experiment = next(one for one in EXPERIMENTS if one.name == "leverage_constant")
    task = {"M": 5, "repetition": 0}
    rows = [experiment.measure(task, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert rows[0] == rows[1] != rows[2]
    table = Table([{**task, "repetition": k, **row} for k, part in enumerate(rows[1:]) for row in part])
    section = experiment.present(table, OutputFolder(tmp_path))
    assert len(section.verdicts) == 2
    assert (tmp_path / "figures" / "beyond-leverage-constant.png").exists()


def test_intervals_are_students():
    few = summarize([1.0, 2.0, 3.0])
    assert few.half_width == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)
    assert summarize([-1.0, -1.1, -0.9]).is_below_zero() is True
    assert summarize([1.0, 1.1, 0.9]).is_below_zero() is False
    assert summarize([-1.0, 1.0, -0.5]).is_below_zero() == "undecided"
    assert summarize([-1.0]).is_below_zero() == "undecided"
    table = Table(
        [{"method": "a", "x": 3.0}, {"method": "b", "x": 1.0}, {"method": "a", "x": 5.0}, {"method": "b", "x": 2.0}]
    )
    assert table.paired_difference("x", "a", "b").mean == 2.5
