"""Items that only evaluate formulas: what holds is stated, not shown, and what fails is said to fail."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from quernel.cli.experiments import _count_verdicts, _readme
from quernel.paper import OutputFolder, Section, Table, Verdict
from quernel.paper import stated_formulas as formulas
from quernel.paper.output import Chapter, render_page
from quernel.theory import METHODS

HEADING = "What the paper reports, and how we read it"
LISTED = {key: method for key, method in METHODS.items() if method.in_table}


def without(*keys):
    return {key: method for key, method in LISTED.items() if key not in keys}


def test_the_claim_of_fewest_features_fails_for_smooth_targets_in_the_papers_own_table():
    verdict = formulas.judge_feature_count(LISTED)
    assert verdict.holds is False
    for message in ("c = 0.619 against 0.476 of Li and Liu 2023", "c = 0.524 against 0.238 of Li and Liu 2023"):
        assert message in verdict.text
    assert verdict.text.count("is the least") == 4
    assert "The claim fails" in verdict.text


def test_without_the_rows_that_need_fewer_the_claim_is_stated():
    verdict = formulas.judge_feature_count(without("krr_rf_uniform_li", "krr_rf_leverage_li"))
    assert verdict.holds == "stated"
    assert verdict.text.count("is the least") == 6
    assert "The claim holds" in verdict.text


def test_a_row_with_fewer_features_but_a_slower_rate_is_no_rival():
    few = replace(LISTED["lip_rf_uniform_rahimi"], features=lambda *_: 0.01)
    assert formulas.judge_feature_count(LISTED | {"lip_rf_uniform_rahimi": few}).text.count("is the least") == 4
    fast = replace(few, rate=LISTED["thm1"].rate)
    rival = formulas.judge_feature_count(LISTED | {"lip_rf_uniform_rahimi": fast})
    assert "c = 0.667 against 0.010 of Rahimi and Recht 2008" in rival.text
    assert "1 beside the paper's" in rival.text


def test_the_best_rate_is_stated_and_a_better_one_or_an_agnostic_rival_would_be_seen():
    assert formulas.judge_rate(LISTED).holds == "stated"
    faster = LISTED | {"kqr_lian": replace(LISTED["kqr_lian"], rate=lambda *_: 0.9)}
    assert formulas.judge_rate(faster).holds is False
    assert "not the best of the table" in formulas.judge_rate(faster).text
    agnostic = LISTED | {"kqr_lian": replace(LISTED["kqr_lian"], r_range=(0.0, 1.0, False))}
    assert formulas.judge_rate(agnostic).holds is False
    assert "1 covers the agnostic case" in formulas.judge_rate(agnostic).text


def test_table_1_shows_the_point_where_the_claim_fails(tmp_path):
    section = formulas.present_methods(Table([]), OutputFolder(tmp_path))
    assert [verdict.holds for verdict in section.verdicts] == ["stated", False]
    head, *lines = (tmp_path / "tables" / "tab1-methods.csv").read_text().splitlines()
    assert "c at r=0.8, gamma=0.5" in head
    assert any("Li and Liu" in line and "0.4761904762" in line for line in lines)
    assert any("Li and Liu" in line and "0.2380952381" in line for line in lines)


def test_the_map_of_exponents_is_stated_and_a_place_where_leverage_needs_more_is_told(tmp_path):
    section = formulas.present_exponents(Table([]), OutputFolder(tmp_path))
    assert [verdict.holds for verdict in section.verdicts] == ["stated"]
    more = formulas.judge_exponents({"agnostic": np.array([0.2, 0.0]), "realizable": np.array([0.1, -0.3])})
    assert more.holds is False
    assert "0.30 in the realizable case" in more.text


def chapter(*held):
    section = Section(["It reports 1 < 2.", "We read p = 3."], [], [Verdict(f"Verdict {one}.", one) for one in held])
    return Chapter(formulas.METHODS_TABLE, section, 3.0)


def test_page_and_summary_say_what_the_paper_reports_and_how_it_is_read():
    one = chapter(True)
    readme, html = _readme(["How."], [one]), render_page([one], ["How."])
    assert f"### {HEADING}\n\nIt reports 1 < 2.\n\nWe read p = 3.\n\n### Verdict\n\n- **Shown.** Verdict" in readme
    assert f"<h3>{HEADING}</h3><p>It reports 1 &lt; 2.</p><p>We read p = 3.</p><h3>Verdict</h3>" in html


def test_every_kind_of_verdict_is_marked_and_counted():
    one = chapter(True, False, "undecided", "stated", None, False)
    readme = _readme([], [one])
    for mark in ("**Shown.** Verdict True", "**Not shown.** Verdict False", "**Undecided.**", "**Stated.**"):
        assert mark in readme
    assert "- Verdict None." in readme
    assert _count_verdicts(one).startswith("1 shown, 2 not shown, 1 undecided, 1 stated;")
    assert _count_verdicts(chapter(None)).startswith("remarks only")
