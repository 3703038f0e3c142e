"""The theorems' exponents and Table 1, held against values worked out by hand."""

import itertools
import warnings
from fractions import Fraction

import numpy as np
import pytest

from quernel import theory
from quernel.theory import METHODS

HALF = Fraction(1, 2)


def exponent_by_hand(r, gamma, compatibility):
    """`thm2`, typed from the paper, in exact fractions."""
    if r < HALF:
        return compatibility / (2 * r + gamma)
    return ((2 * r - 1) * (1 + gamma - compatibility) + compatibility) / (2 * r + gamma)


# (r, gamma, compatibility): c in M = n^c and the rate, by hand. Corners of the region, and one point inside each part.
CORNERS = [
    (Fraction(1, 2), Fraction(1), Fraction(1), Fraction(1, 2), Fraction(1, 2)),
    (Fraction(1, 2), Fraction(0), Fraction(1), Fraction(1), Fraction(1)),
    (Fraction(1, 2), Fraction(0), Fraction(0), Fraction(0), Fraction(1)),
    (Fraction(1), Fraction(0), Fraction(1), Fraction(1, 2), Fraction(1)),
    (Fraction(1), Fraction(0), Fraction(0), Fraction(1, 2), Fraction(1)),
    (Fraction(1), Fraction(1), Fraction(1), Fraction(2, 3), Fraction(2, 3)),
    (Fraction(1), Fraction(1), Fraction(0), Fraction(2, 3), Fraction(2, 3)),
    (Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(1), Fraction(1, 2)),
    (Fraction(1, 4), Fraction(1, 2), Fraction(1, 2), Fraction(1, 2), Fraction(1, 2)),
    (Fraction(1, 4), Fraction(1), Fraction(1), Fraction(2, 3), Fraction(1, 3)),
    (Fraction(1, 8), Fraction(3, 4), Fraction(3, 4), Fraction(3, 4), Fraction(1, 4)),
    (Fraction(3, 4), Fraction(1, 2), Fraction(1), Fraction(5, 8), Fraction(3, 4)),
    (Fraction(3, 4), Fraction(1, 2), Fraction(1, 2), Fraction(1, 2), Fraction(3, 4)),
]


@pytest.mark.parametrize(("r", "gamma", "compatibility", "c", "rate"), CORNERS)
def test_corner_points(r, gamma, compatibility, c, rate):
    point = float(r), float(gamma)
    assert theory.learning_rate(*point) == pytest.approx(float(rate), abs=1e-15)
    assert theory.feature_exponent(*point, float(compatibility)) == pytest.approx(float(c), abs=1e-15)
    assert theory.regularization(4096, *point) == pytest.approx(4096 ** float(-1 / (2 * r + gamma)), rel=1e-14)
    exact = 4096 ** float(c)
    assert exact - 1e-9 <= theory.features_needed(4096, *point, float(compatibility)) < exact + 1
    assert c == exponent_by_hand(r, gamma, compatibility)  # the hand itself


def test_features_are_rounded_up_but_not_by_rounding_errors():
    assert theory.features_needed(10_000, 0.5, 1) == 100
    assert theory.features_needed(10_001, 0.5, 1) == 101
    assert theory.features_needed(10_000, 0.5, 0, compatibility=0) == 1
    assert theory.features_needed(1000, 0.25, 0.5) == 1000


def test_uniform_and_leverage_are_compatibility_one_and_gamma():
    grid = itertools.product(np.linspace(0.05, 1, 20), np.linspace(0, 1, 21))
    for r, gamma in grid:
        if 2 * r + gamma < 1:
            continue
        uniform = 1 / (2 * r + gamma) if r < 0.5 else ((2 * r - 1) * gamma + 1) / (2 * r + gamma)
        leverage = gamma / (2 * r + gamma) if r < 0.5 else (2 * r + gamma - 1) / (2 * r + gamma)
        assert theory.feature_exponent(r, gamma) == pytest.approx(uniform, abs=1e-14)
        assert theory.feature_exponent(r, gamma, gamma) == pytest.approx(leverage, abs=1e-14)
        assert METHODS["thm1"].feature_exponent(r, gamma) == pytest.approx(uniform, abs=1e-14)
        assert METHODS["cor1"].feature_exponent(r, gamma) == pytest.approx(leverage, abs=1e-14)
        for label, twin in (("thm1", "cor2"), ("cor1", "cor3"), ("thm2", "thm3")):
            same = [METHODS[name].feature_exponent(r, gamma, 0.7) for name in (label, twin)]
            assert same[0] == same[1]
        assert METHODS["thm2"].feature_exponent(r, gamma, 0.7) == pytest.approx(theory.feature_exponent(r, gamma, 0.7))


def test_arrays_are_taken_entry_by_entry():
    r, gamma = np.meshgrid([0.5, 0.75, 1], [0, 0.5, 1])
    together = theory.feature_exponent(r, gamma, 0.5)
    apart = [theory.feature_exponent(float(a), float(b), 0.5) for a, b in zip(r.flat, gamma.flat, strict=True)]
    np.testing.assert_array_equal(together.ravel(), apart)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 1), "r must lie in (0, 1], got 0"),
        ((1.2, 0.5), "r must lie in (0, 1], got 1.2"),
        ((0.5, -0.1), "gamma must lie in [0, 1], got -0.1"),
        ((0.5, 1.5), "gamma must lie in [0, 1], got 1.5"),
        ((0.2, 0.1), "2r + gamma must be at least 1, got 0.5"),
    ],
)
def test_outside_of_the_theorems_strict_raises_and_lenient_warns(arguments, named):
    calls = [
        lambda **options: theory.learning_rate(*arguments, **options),
        lambda **options: theory.regularization(1000, *arguments, **options),
        lambda **options: theory.features_needed(1000, *arguments, **options),
        lambda **options: theory.feature_exponent(*arguments, **options),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="Outside of the theorems") as caught:
            call()
        assert named in str(caught.value)
        with pytest.warns(theory.OutsideTheoryWarning) as warned:
            assert np.isfinite(call(strict=False))
        assert named in str(warned[0].message)


def test_every_violation_is_named():
    with pytest.raises(ValueError, match="r must") as caught:
        theory.features_needed(1000, -0.1, 2, 3)
    for message in ("r must lie", "gamma must lie", "compatibility must lie"):
        assert message in str(caught.value)


def test_the_papers_own_experiments_can_be_evaluated():
    """(0.2, 0.1) violates 2r + gamma >= 1: the formulas give rate 0.8 and c = compatibility / 0.5."""
    with pytest.warns(theory.OutsideTheoryWarning):
        assert theory.learning_rate(0.2, 0.1, strict=False) == pytest.approx(0.8)
    with pytest.warns(theory.OutsideTheoryWarning):
        assert theory.features_needed(1000, 0.2, 0.1, 0.1, strict=False) == 4  # 1000^0.2 = 3.98
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert theory.learning_rate(0.4, 0.2) == pytest.approx(0.8)


@pytest.mark.parametrize("n", [0, -5, np.nan, np.inf, "many", True, None])
def test_impossible_numbers_of_rows(n):
    with pytest.raises(ValueError, match="n must be"):
        theory.features_needed(n, 0.5, 0.5)


@pytest.mark.parametrize("values", [(np.nan, 0.5), (0.5, np.inf), (0, 0), ("smooth", 0.5)])
def test_where_there_is_no_formula_even_lenient_raises(values):
    with pytest.raises(ValueError, match="must be"):
        theory.learning_rate(*values, strict=False)


# Table 1, typed from the paper: regularity condition, exponent of M (the KRR-RF rows without the stray minus), rate, at
# (r, gamma) = (1/2, 1/2) and (3/4, 1/2); None where the row has no features or does not cover the point.
TABLE = {
    "krr_caponnetto": ("r in [0.5, 1], gamma in [0, 1]", (None, 2 / 3), (None, 3 / 4)),
    "krr_zhang": ("r in (0, 1], gamma in [0, 1]", (None, 2 / 3), (None, 3 / 4)),
    "krr_rf_uniform_rudi": ("r in [0.5, 1], gamma in [0, 1]", (2 / 3, 2 / 3), (5 / 8, 3 / 4)),
    "krr_rf_leverage_rudi": ("r in [0.5, 1], gamma in [0, 1]", (1 / 3, 2 / 3), (1 / 2, 3 / 4)),
    "krr_rf_uniform_li": ("r in (0, 1], gamma in [0, 1], 2r + gamma >= 1", (2 / 3, 2 / 3), (1 / 2, 3 / 4)),
    "krr_rf_leverage_li": ("r in (0, 1], gamma in [0, 1]", (1 / 3, 2 / 3), (1 / 4, 3 / 4)),
    "kqr_lian": ("r in [0.5, 1], gamma in [0, 1]", (None, 2 / 3), (None, 3 / 4)),
    "lip_rf_uniform_rahimi": ("r = 0.5, gamma in [0, 1]", (1, 1 / 2), None),
    "lip_rf_leverage_bach": ("r = 0.5, gamma in [0, 1]", (1 / 4, 1 / 2), None),
    "lip_rf_uniform_li": ("r = 0.5, gamma in [0, 1]", (1, 1 / 2), None),
    "lip_rf_leverage_li": ("r = 0.5, gamma in [0, 1]", (1 / 4, 1 / 2), None),
    "ksvm_rf_sun": ("r = 0.5, gamma in [0, 1]", (1 / 2, 1 / 2), None),
    "thm2": ("r in (0, 1], gamma in [0, 1], 2r + gamma >= 1", (2 / 3, 2 / 3), (5 / 8, 3 / 4)),
    "thm1": ("r in (0, 1], gamma in [0, 1], 2r + gamma >= 1", (2 / 3, 2 / 3), (5 / 8, 3 / 4)),
    "cor1": ("r in (0, 1], gamma in [0, 1], 2r + gamma >= 1", (1 / 3, 2 / 3), (1 / 2, 3 / 4)),
}


PAPERS_OWN = ("thm1", "thm2", "cor1", "thm3", "cor2", "cor3")


def test_table_1_has_the_papers_rows_in_order():
    assert [key for key, method in METHODS.items() if method.in_table] == list(TABLE)
    assert set(METHODS) - set(TABLE) == {"exist_thm", "thm3", "cor2", "cor3"}


@pytest.mark.parametrize("key", TABLE)
def test_table_1(key):
    conditions, *values = TABLE[key]
    method = METHODS[key]
    assert method.conditions == conditions
    for r, value in zip((0.5, 0.75), values, strict=True):
        if value is None:
            assert not method.covers(r, 0.5)
            with pytest.raises(ValueError, match="says nothing here"):
                method.learning_rate(r, 0.5)
            continue
        assert method.covers(r, 0.5)
        c, rate = value
        assert method.learning_rate(r, 0.5) == pytest.approx(rate)
        assert method.feature_exponent(r, 0.5) == (None if c is None else pytest.approx(c))
        needed = method.features_needed(1000, r, 0.5)
        assert needed is None if c is None else 1000**c - 1e-6 <= needed < 1000**c + 1


def test_exist_thm_has_a_logarithm_and_meets_thm1_at_the_worst_case():
    old = METHODS["exist_thm"]
    assert old.features_needed(1000, 0.5, 0.5) == int(np.ceil(1000**0.25 * np.log(1000)))
    assert old.feature_exponent(0.5, 1) == METHODS["thm1"].feature_exponent(0.5, 1)
    assert old.learning_rate(0.5, 1) == METHODS["thm1"].learning_rate(0.5, 1)


def test_agnostic_rows_and_logarithms():
    assert METHODS["thm2"].feature_exponent(0.25, 0.5, 0.75) == pytest.approx(0.75)
    assert METHODS["krr_rf_leverage_li"].covers(0.1, 0.1)
    assert not METHODS["thm1"].covers(0.1, 0.1)
    assert [METHODS[key].rate_log for key in PAPERS_OWN] == [2, 2, 2, 2, 2, 2]
    with pytest.raises(ValueError, match="compatibility"):
        METHODS["thm2"].feature_exponent(0.5, 0.5, 1.5)


def test_ridge_weights_are_those_that_the_paper_states():
    """n^(-1/(2r + gamma)) in its own theorems, 1/n in the one it quotes, and none in the rest of Table 1."""
    stated = {key for key, method in METHODS.items() if method.ridge_exponent(0.5, 0.5) is not None}
    assert stated == {*PAPERS_OWN, "exist_thm"}
    for key in PAPERS_OWN:
        assert METHODS[key].ridge_exponent(0.75, 0.5) == pytest.approx(1 / 2)
        assert 1000 ** -METHODS[key].ridge_exponent(0.4, 0.7) == pytest.approx(theory.regularization(1000, 0.4, 0.7))
    assert METHODS["exist_thm"].ridge_exponent(0.5, 0.2) == 1
    with pytest.raises(ValueError, match="says nothing here"):
        METHODS["thm1"].ridge_exponent(0.1, 0.1)


def test_plan_gathers_the_formulas():
    plan = theory.plan(10_000, 0.5, 0.5, 0.8)
    assert (plan.uniform, plan.leverage) == (136, 22)  # 10,000^(0.8/1.5) = 135.9 and 10,000^(0.5/1.5) = 21.5
    assert plan.alpha == pytest.approx(10_000 ** (-2 / 3))
    assert plan.rate == pytest.approx(2 / 3)
