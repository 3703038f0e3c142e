"""The verdicts on heavy tails and on cost: they follow the numbers, in both directions."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from quernel.paper import Table, motivation


def tails(factor, *, count=10, noise=0.1):
    """Squared errors of KRR-RF `factor` times those of KQR-RF."""
    rng = np.random.default_rng(0)
    return Table(
        [
            {"noise": law, "n": n, "repetition": k, "method": method, "squared": float(scale * base * np.exp(draw))}
            for law in motivation.NOISES
            for n in (500, 1000)
            for k, base in enumerate(np.exp(rng.standard_normal(count)))
            for (method, scale), draw in zip(
                (("KQR-RF", 1.0), ("KRR-RF", factor if n == 1000 else 1 / factor)),
                noise * rng.standard_normal(2),
                strict=True,
            )
        ]
    )


@pytest.mark.parametrize(("factor", "holds"), [(3.0, True), (1 / 3, False), (1.0, "undecided")])
def test_heavy_tails_favour_the_check_loss_only_if_they_do(factor, holds):
    normal, *heavy = motivation.judge_noise(tails(factor))
    assert normal.holds is None
    assert [verdict.holds for verdict in heavy] == [holds, holds]
    assert all("N = 1,000" in verdict.text for verdict in heavy)


def test_one_repetition_decides_nothing():
    assert motivation.judge_noise(tails(3.0, count=1))[1].holds == "undecided"


def costs(risks, seconds, *, count=8):
    """Excess risk and seconds by number of features, the exact ones under "exact"."""
    rng = np.random.default_rng(0)
    return Table(
        [
            {"kernel": "Gaussian", "n": 1000, "repetition": k, "features": features, "M": 100, "alpha": 1e-4}
            | {"excess": risks[features], "seconds": float(seconds[features] * np.exp(0.05 * rng.standard_normal()))}
            for k in range(count)
            for features in risks
        ]
    )


@pytest.mark.parametrize(
    ("risks", "seconds", "holds", "message"),
    [
        ((0.02, 0.0105, 0.01), (0.01, 0.02, 0.1), True, "20 features come within 10% of exact KQR's excess risk, 5"),
        ((0.0105, 0.0105, 0.01), (0.01, 0.02, 0.1), True, "5 features come"),
        ((0.02, 0.0105, 0.01), (0.01, 0.2, 0.1), False, "times slower"),
        ((0.02, 0.0120, 0.01), (0.01, 0.02, 0.1), False, "no number of features"),
        ((0.02, 0.0105, 0.01), (0.01, 0.1, 0.1), "undecided", "20 features"),
    ],
)
def test_features_are_cheap_if_few_are_near_and_cost_less(risks, seconds, holds, message):
    names = ("5", "20", "exact")
    table = costs(dict(zip(names, risks, strict=True)), dict(zip(names, seconds, strict=True)))
    (verdict,) = motivation.judge_cost(table)
    assert verdict.holds == holds
    assert message in verdict.text


def test_features_that_may_or_may_not_be_near_decide_nothing():
    table = costs({"5": 0.02, "exact": 0.01}, {"5": 0.01, "exact": 0.1})
    rng = np.random.default_rng(0)
    for row in table.rows:
        if row["features"] == "5":
            row["excess"] = 0.011 + 0.002 * rng.standard_normal()
    (verdict,) = motivation.judge_cost(table)
    assert verdict.holds == "undecided"
    assert "for certain" in verdict.text
