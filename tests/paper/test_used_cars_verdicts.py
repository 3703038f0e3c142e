"""The verdicts on used cars and their prices: they follow the numbers, in both directions."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from quernel.datasets import UsedCars
from quernel.paper import OutputFolder, Table
from quernel.paper import used_cars as cars
from quernel.paper.motivation import judge_prices

PAPER = {"exact": 0.094, "uniform": 0.105, "leverage, literal": 0.098, "leverage": 0.098, "linear": 0.112}
OLD = {"car": 7, "year": 1970.0, "engineSize": 0.0, "mileage": 14_000.0, "mpg": 39.2, "tax": 305.0, "price": 24_999.0}
NEW = {"car": 9, "year": 1998.0, "engineSize": 6.0, "mileage": 43_534.0, "mpg": 23.3, "tax": 265.0, "price": 19_990.0}


def fabricate(means, *, count=20, noise=0.0005, capped=(0.1,), other=0.08):
    """Rows of tab.4 with these mean PQEs; splits differ by more than methods do on the same split."""
    rng, rows = np.random.default_rng(0), []
    for k in range(count):
        split = 0.002 * (k % 2 - 0.5)
        for method, mean in means.items():
            bad = k % 4 == 0
            row = {"bandwidth": 1.0, "repetition": k, "method": method, "worst": 0.01, "alpha": 1e-9, "features": 100}
            row |= {"pqe": mean + split + noise * rng.standard_normal(), "largest": 16.32 if bad else 1.632}
            rows.append(row | (OLD if bad else NEW) | ({"left_out": 1e-10} if method == "exact" else {}))
    for width in (0.5, 0.1):
        for k in range(4):
            for method in ("uniform", "exact"):
                row = {**rows[0], "bandwidth": width, "repetition": k, "method": method}
                row |= {"pqe": other + 0.0001 * k, "left_out": 1e-4 if width in capped else 5e-10}
                rows.append(row)
    return Table(rows)


def judge(**changed):
    found = cars.verdicts(fabricate({**PAPER, **{name.replace("_", ", "): mean for name, mean in changed.items()}}))
    return {"nearer": found[:2], "cells": found[2:6], "remarks": found[6:]}


def test_leverage_is_nearer_to_exact_only_if_it_is_and_the_printed_formula_comes_first():
    as_printed, proper = judge()["nearer"]
    assert as_printed.text.startswith("Leverage, as printed: nearer to")
    assert proper.text.startswith("Leverage sampling (ours): nearer to")
    assert as_printed.holds is proper.holds is True
    as_printed, proper = judge(leverage_literal=0.12, leverage=0.07)["nearer"]
    assert as_printed.holds is proper.holds is False, "above or below: both are farther away"
    assert "farther from" in proper.text
    as_printed, proper = judge(leverage_literal=0.105)["nearer"]
    assert (as_printed.holds, proper.holds) == ("undecided", True)


def test_printed_cells_are_judged_on_both_sides():
    assert [verdict.holds for verdict in judge()["cells"]] == [True] * 4
    for shift, message in ((0.006, "is above"), (-0.006, "is below")):
        moved = judge(**{name.replace(", ", "_"): mean + shift for name, mean in PAPER.items()})["cells"]
        assert [verdict.holds for verdict in moved] == [False] * 4
        assert all(message in verdict.text for verdict in moved)
    assert judge(exact=0.0944)["cells"][0].holds is True, "half a unit of the last digit"


def test_one_split_decides_nothing():
    few = cars.verdicts(fabricate(PAPER, count=1))
    assert {verdict.holds for verdict in few[:6]} == {"undecided"}


def test_the_cars_behind_bad_splits_are_named():
    exact = fabricate(PAPER).select(method="exact", bandwidth=1.0)
    often, seldom = cars.find_worst_cars(exact)
    assert (often.car["year"], seldom.car["year"]) == (1998.0, 1970.0)
    assert (often.share, seldom.share) == (0.75, 0.25)
    assert seldom.loss == pytest.approx(16.32)
    assert seldom.part == pytest.approx(16.32 / 1632 / seldom.pqe)
    assert seldom.pqe == pytest.approx(np.mean(exact.column("pqe")[::4]))
    text = judge()["remarks"][1].text
    assert "that of 1970 with 0.0 litres at 24,999 pounds in 25% of the splits" in text
    assert cars.find_worst_cars(exact.select(car=9))[0].share == 1.0


def test_a_capped_factor_is_not_called_exact(tmp_path):
    cars.present(fabricate(PAPER), OutputFolder(tmp_path))
    lines = (tmp_path / "tables" / "used_cars_bandwidth.csv").read_text().splitlines()[1:4]
    assert [line.split("0.08")[0].startswith('"KQR, factor capped at 400 columns",0.1') for line in lines] == [
        False,
        False,
        True,
    ]
    assert [line.startswith("exact KQR") for line in lines] == [True, True, False]
    assert "capped at 400 columns" in (tmp_path / "figures" / "used_cars_bandwidth.svg").read_text()
    assert "(KQR, factor capped at 400 columns" in cars.verdicts(fabricate(PAPER, capped=(0.1, 0.5)))[-1].text
    free = cars.verdicts(fabricate(PAPER, capped=()))[-1].text
    assert "capped" not in free
    assert "(exact KQR" in free


def test_no_bandwidth_is_called_better_that_is_not():
    worse = cars.verdicts(fabricate(PAPER, other=0.2))[-1].text
    assert "No other bandwidth" in worse
    assert "may be chance" in cars.verdicts(fabricate(PAPER, other=0.0936))[-1].text
    assert "may be chance" not in cars.verdicts(fabricate(PAPER))[-1].text


def test_a_split_names_the_test_car_that_it_misses_most():
    rng = np.random.default_rng(0)
    X, y = rng.random((7000, 5)), np.zeros(7000)
    order = rng.permutation(7000)
    odd = int(order[6500])
    y[odd] = 50.0
    split = cars.Split(X[order], y[order], UsedCars(X, np.exp(y)), order)
    row = split.evaluate("uniform", split.parts)
    assert row["car"] == odd
    assert row["year"] == X[odd, 0]
    assert row["price"] == pytest.approx(np.exp(50.0))
    assert row["largest"] == pytest.approx(25, rel=0.01)


def moments(raw, log):
    common = {"low": 0.0, "high": 1.0, "count": 5, "cars": 7632, "kurtosis": 3.5}
    return Table([{**common, "scale": "price", "skewness": raw}, {**common, "scale": "log price", "skewness": log}])


@pytest.mark.parametrize(
    ("raw", "log", "holds"),
    [
        (1.9, 0.4, [True, True, True]),
        (1.9, -0.4, [True, True, False]),
        (-1.9, 0.4, [False, True, True]),
        (0.5, 1.9, [True, False, True]),
        (0.01, -0.01, ["undecided", False, "undecided"]),
    ],
)
def test_tails_are_on_the_side_of_the_skewness(raw, log, holds):
    found = judge_prices(moments(raw, log))
    assert [verdict.holds for verdict in found] == holds
    assert {True: "on the right", False: "on the left"}.get(holds[2], "on neither side") in found[2].text
