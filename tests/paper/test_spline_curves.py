"""The estimated curves (`fig_2`): judged by the mean excess risk, which sees the spikes that a median does not."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from quernel.paper import OutputFolder, Table
from quernel.paper import spline_curves as curves

BAYES = 0.1 * 0.3989423


def fabricated(excess):
    """Rows of fig_2 with these mean excess risks; all of it stems from 1 % of x, the median deviation is tiny."""
    rows = []
    for (r, gamma), mean in zip(curves.CASES, excess, strict=True):
        common = {"r": r, "gamma": gamma, "n": 1000, "M": 159, "alpha": 1e-3, "spread": 1e-3, "excess": mean}
        for k in range(500):
            spike = k % 100 == 50
            point = {"x": (k + 0.5) / 500, "truth": 1.0, "estimate": 1.0 + spike, "largest": -7.0 if spike else 1e-3}
            rows.append({**common, "least_excess": mean / 2.3, "risk": 100 * mean if spike else 0.0, **point})
    return Table(rows)


def test_the_bayes_risk_is_what_noise_costs_the_true_median():
    noise = 0.1 * np.random.default_rng(0).standard_normal(400_000)
    assert pytest.approx(np.mean(np.abs(noise)) / 2, abs=2e-4) == curves.BAYES


def test_spikes_are_found_out_however_small_the_median_deviation():
    verdicts = curves.judge_fitted(fabricated([2.3 * BAYES, 0.11 * BAYES, 0.09 * BAYES]))
    assert [verdict.holds for verdict in verdicts] == [False, False, True]
    assert "2.3 times the Bayes risk" in verdicts[0].text
    assert "100% of it falls on the worst 5% of x" in verdicts[0].text
    assert "70 at most" in verdicts[0].text
    assert "With the best weight of the grid the ratio is 1." in verdicts[0].text
    verdicts = curves.judge_fitted(fabricated([0.05 * BAYES, 0.05 * BAYES, 0.2 * BAYES]))
    assert [verdict.holds for verdict in verdicts] == [True, True, False]
    assert {type(verdict.holds) for verdict in verdicts} == {bool}


def test_the_figure_shows_the_spikes_on_their_full_scale(tmp_path):
    table = fabricated([2.3 * BAYES, 0.11 * BAYES, 0.09 * BAYES])
    below = curves._plot_fitted(table, SimpleNamespace(save_figure=lambda figure, *_: figure)).axes[3]
    assert below.get_yscale() == "log"
    assert below.lines[0].get_ydata().max() == 7.0
    assert below.get_ylim()[1] > 7.0
    section = curves.present_fitted(table, OutputFolder(tmp_path))
    assert len(section.verdicts) == 3
    assert "pole" in " ".join(section.reported)


def test_no_deviation_between_the_drawn_points_is_lost():
    task = {"r": 1.0, "gamma": 0.0, "n": 60}
    rows = curves.measure_fitted(task, np.random.default_rng(0))
    assert len(rows) == curves.SETTINGS.n_plotted
    assert np.mean([row["risk"] for row in rows]) == pytest.approx(rows[0]["excess"])
    assert all(abs(row["largest"]) >= abs(row["estimate"] - row["truth"]) for row in rows)
    assert rows[0]["least_excess"] <= rows[0]["excess"] * (1 + 1e-12)


def test_the_true_curves_are_refuted_by_rows_that_lie_elsewhere(tmp_path):
    rows = [
        row for task in curves.make_true_tasks("quick") for row in curves.measure_true(task, np.random.default_rng(0))
    ]
    (verdict,) = curves.present_true(Table(rows), OutputFolder(tmp_path)).verdicts
    assert verdict.holds is True
    moved = [{**row, "y": row["y"] + 0.05 * (row["kind"] == "data" and row["gamma"] == 0)} for row in rows]
    (verdict,) = curves.present_true(Table(moved), OutputFolder(tmp_path)).verdicts
    assert verdict.holds is False
