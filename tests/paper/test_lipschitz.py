"""Lipschitz losses: what is judged by the theorem, and what it does not cover."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from quernel.paper import OutputFolder, Table
from quernel.paper.experiment import Slope
from quernel.paper.theorems import DESIGNS, LIPSCHITZ, estimate_convexity, judge_lipschitz_rate
from quernel.theory import LocalConvexity


def fabricated(slope):
    """Rows whose errors fall like n^slope."""
    rng = np.random.default_rng(0)
    rows = []
    for task in LIPSCHITZ.tasks("quick"):
        error = float(task["n"] ** slope * np.exp(1e-3 * rng.standard_normal()))
        rows.append({**task, "alpha": 1e-3, "excess": error, "squared": error})
    return Table(rows)


@pytest.mark.parametrize(("slope", "holds"), [(-1.0, True), (-0.3, False)])
def test_the_theorem_judges_the_logistic_loss_and_not_the_hinge(slope, holds, tmp_path):
    section = LIPSCHITZ.present(fabricated(slope), OutputFolder(tmp_path))
    logistic, _, hinge, _ = section.verdicts
    assert logistic.holds is holds
    assert hinge.holds is None
    assert "measured; no theorem covers it" in hinge.text
    assert f"slope {slope:.2f}".replace("-", "\u2212") in hinge.text  # what was measured
    assert "is \u221215.0" in hinge.text
    assert "no theorem covers" not in logistic.text
    numbers = (tmp_path / "tables" / "beyond-lipschitz.csv").read_text().splitlines()
    assert [line.rsplit(",", 1)[1] == "" for line in numbers[1:]] == [False, False, True, True]


def test_convexity_decides_whether_the_theorem_judges():
    steep, flat, wide = Slope(-1.0, -1.1, -0.9), Slope(-0.1, -0.2, 0.0), Slope(-0.8, -2.5, 0.9)
    convex, not_convex = LocalConvexity(-0.1, 0.9, 0.05), LocalConvexity(-16.0, -15.0, 0.05)
    for slope, holds in ((steep, True), (flat, False), (wide, "undecided")):
        slopes = {"excess": slope, "squared": slope}
        assert judge_lipschitz_rate("hinge", slopes, -0.5, -0.3, convex).holds == holds
        assert judge_lipschitz_rate("logistic", slopes, -0.5, -0.3, not_convex).holds is None


def test_local_strong_convexity_of_the_designs_by_hand():
    """Hinge: a step t towards f* gains (0.9 - 0.1) t. Logistic: the risk by quadrature over the labels."""
    hinge = estimate_convexity(DESIGNS["hinge"])
    assert hinge.c3 == pytest.approx(-0.8 / 0.05)
    assert hinge.c4 == pytest.approx(-0.8 / 0.05 + 1)

    odds = DESIGNS["logistic"].function((np.arange(5000)[:, None] + 0.5) / 5000)
    p = 1 / (1 + np.exp(-odds))

    def risk(f):
        return np.mean(p * np.log1p(np.exp(-f)) + (1 - p) * np.log1p(np.exp(f)))

    t = 0.05 / np.sqrt(np.mean(odds**2))
    towards, away = (risk(odds * s) - risk(odds * (1 - t)) for s in (1, 1 - 2 * t))
    logistic = estimate_convexity(DESIGNS["logistic"])
    assert logistic.c4 == pytest.approx(min(towards, away) / 0.05**2 + 1, abs=0.1)
    assert logistic.c4 > 0
