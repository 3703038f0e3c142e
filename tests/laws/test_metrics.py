"""Laws of the scores: what they must equal, what minimises them, and what they must refuse."""

from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest

from quernel.metrics import coverage, crossing_rate, crps, interval_score, pinball_loss

LEVELS = [0.1, 0.5, 0.8]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def forecast(rng):
    y = rng.standard_normal(60)
    return y, np.sort(rng.standard_normal((60, 3)), axis=1)


def by_hand(y, prediction, level):
    total = 0.0
    for truth, guess in zip(y, prediction, strict=True):
        total += level * (truth - guess) if truth >= guess else (1 - level) * (guess - truth)
    return total / len(y)


SCORES = {
    "pinball": lambda y, p, w: pinball_loss(y, p, LEVELS, sample_weight=w),
    "crps": lambda y, p, w: crps(y, p, LEVELS, sample_weight=w),
    "coverage": lambda y, p, w: coverage(y, p[:, 0], p[:, 2], sample_weight=w),
    "interval": lambda y, p, w: interval_score(y, p[:, 0], p[:, 2], 0.7, sample_weight=w),
}


@pytest.mark.parametrize("name", SCORES)
def test_integer_weights_are_repeated_rows(name, forecast, rng):
    (y, p), score = forecast, SCORES[name]
    weight = rng.integers(0, 4, len(y))
    repeated = score(np.repeat(y, weight), np.repeat(p, weight, axis=0), None)
    np.testing.assert_allclose(score(y, p, weight), repeated, rtol=1e-13)
    assert np.all(score(y, p, None) != repeated)  # the weights matter here


@pytest.mark.parametrize("name", SCORES)
def test_only_the_ratios_of_weights_matter(name, forecast, rng):
    (y, p), score = forecast, SCORES[name]
    weight = rng.random(len(y))
    np.testing.assert_allclose(score(y, p, 1000 * weight), score(y, p, weight), rtol=1e-13)
    assert np.all(np.abs(score(y, p, weight + 1) - score(y, p, weight)) > 1e-6)


@pytest.mark.parametrize("name", ["pinball", "crps", "interval"])
def test_scores_scale_with_y_and_ignore_shifts(name, forecast):
    (y, p), score = forecast, SCORES[name]
    np.testing.assert_allclose(score(3 * y + 5, 3 * p + 5, None), 3 * np.asarray(score(y, p, None)), rtol=1e-12)
    assert np.all(np.abs(score(3 * y + 50, 3 * p, None) - 3 * np.asarray(score(y, p, None))) > 0.1)


def test_pinball_is_the_loss_written_out(forecast):
    y, p = forecast
    expected = [by_hand(y, p[:, k], level) for k, level in enumerate(LEVELS)]
    np.testing.assert_allclose(pinball_loss(y, p, LEVELS), expected, rtol=1e-13)
    assert not np.allclose(pinball_loss(y, p, [0.2, 0.4, 0.9]), expected, rtol=1e-2)


def test_pinball_mirrors_when_y_and_level_do(forecast):
    y, p = forecast
    assert pinball_loss(-y, -p[:, 0], 0.9) == pytest.approx(pinball_loss(y, p[:, 0], 0.1), rel=1e-13)
    assert pinball_loss(-y, -p[:, 0], 0.1) != pytest.approx(pinball_loss(y, p[:, 0], 0.1), rel=1e-2)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_the_sample_quantile_minimises_pinball(level, rng):
    y = rng.standard_normal(1001)
    losses = {shift: pinball_loss(y, np.full(1001, np.quantile(y, level) + shift), level) for shift in (-0.2, 0, 0.2)}
    assert min(losses, key=losses.get) == 0
    wrong = {shift: pinball_loss(y, np.full(1001, np.quantile(y, 0.3) + shift), level) for shift in (-0.2, 0, 0.2)}
    assert min(wrong, key=wrong.get) != 0  # not the minimum at another level


def test_shapes_follow_the_levels(forecast):
    y, p = forecast
    assert isinstance(pinball_loss(y, p[:, 1], 0.5), float)
    assert pinball_loss(y, p[:, [1]], [0.5]).shape == (1,)
    assert pinball_loss(y, p, LEVELS).shape == (3,)
    assert isinstance(crps(y, p, LEVELS), float)


def exact_normal_crps(y, mean, sd):
    z = (y - mean) / sd
    cdf, pdf = (np.array([f(v) for v in z]) for f in (NormalDist().cdf, NormalDist().pdf))
    return np.mean(sd * (z * (2 * cdf - 1) + 2 * pdf - 1 / np.sqrt(np.pi)))


def test_crps_of_a_normal_forecast_has_its_closed_form(rng):
    mean, sd = rng.standard_normal(500), 0.5 + rng.random(500)
    y = mean + sd * rng.standard_normal(500)
    levels = np.arange(1, 100) / 100
    z = np.array([NormalDist().inv_cdf(level) for level in levels])
    score = crps(y, mean[:, None] + sd[:, None] * z, levels)
    assert score == pytest.approx(exact_normal_crps(y, mean, sd), rel=3e-3)
    assert score != pytest.approx(exact_normal_crps(y, mean, 1.2 * sd), rel=3e-3)  # another forecast is told apart


def test_crps_of_a_sure_forecast_is_the_absolute_error_for_symmetric_levels(forecast):
    y, p = forecast
    sure, error = np.repeat(p[:, :1], 4, axis=1), np.mean(np.abs(y - p[:, 0]))
    assert crps(y, sure, [0.1, 0.3, 0.7, 0.9]) == pytest.approx(error, rel=1e-12)
    assert crps(y, p[:, 0], 0.5) == pytest.approx(error, rel=1e-12)
    assert crps(y, sure, [0.1, 0.2, 0.3, 0.4]) != pytest.approx(error, rel=1e-2)


def test_crps_is_the_trapezoid_rule_with_constant_ends(forecast):
    y, p = forecast
    loss = [by_hand(y, p[:, k], level) for k, level in enumerate(LEVELS)]
    inside = sum((b - a) * (f + g) / 2 for (a, b), (f, g) in zip(pairwise(LEVELS), pairwise(loss), strict=True))
    ends = LEVELS[0] * loss[0] + (1 - LEVELS[-1]) * loss[-1]
    assert crps(y, p, LEVELS) == pytest.approx(2 * (inside + ends), rel=1e-12)
    assert crps(y, p, LEVELS) != pytest.approx(2 * inside, rel=1e-2)


def test_coverage_counts_its_bounds():
    y = [0.0, 1.0, 2.0, 3.0]
    assert coverage(y, [0, 0, 0, 0], [0, 2, 2, 2]) == 0.75
    assert coverage(y, [0.1, 0, 0, 0], [0.2, 2, 1.9, 2]) == 0.25
    assert coverage(y, np.full(4, -np.inf), np.full(4, np.inf)) == 1


def test_interval_score_is_the_pinball_loss_of_its_two_bounds(forecast):
    y, p = forecast
    two = by_hand(y, p[:, 0], 0.1) + by_hand(y, p[:, 2], 0.9)
    assert interval_score(y, p[:, 0], p[:, 2], 0.8) == pytest.approx(2 / 0.2 * two, rel=1e-12)
    assert interval_score(y, p[:, 0], p[:, 2], 0.7) != pytest.approx(2 / 0.2 * two, rel=1e-2)


def test_interval_score_by_hand():
    # a hit of width 2, a miss below by 1 and a miss above by 3, at 2/(1 - 0.9) = 20 per unit
    assert interval_score([1, -1, 5], [0, 0, 0], [2, 2, 2]) == pytest.approx((2 + 22 + 62) / 3)
    assert interval_score([1.0], [-np.inf], [2.0]) == np.inf
    assert interval_score([1.0, 1.0], [-np.inf, 0], [2.0, 2.0], sample_weight=[0, 1]) == pytest.approx(2)


def test_crossing_rate_counts_rows():
    curves = np.array([[0, 1, 2], [0, 1, 0.9], [3, 2, 1], [1, 1, 1]])
    assert crossing_rate(curves) == 0.5
    assert crossing_rate(curves, tolerance=0.2) == 0.25
    assert crossing_rate(np.sort(curves, axis=1)) == 0
    assert crossing_rate(curves[:, :1]) == 0
    assert crossing_rate([[-np.inf, 0, np.inf, np.inf]]) == 0


Y, P = np.zeros(3), np.zeros((3, 2))
REFUSED = {
    "levels without columns": (lambda: pinball_loss(Y, Y, [0.1, 0.9]), r"shape \(3, 2\).*got shape \(3,\)"),
    "one column, scalar level": (lambda: pinball_loss(Y, P[:, :1], 0.5), r"shape \(3,\).*got shape \(3, 1\)"),
    "rows differ": (lambda: pinball_loss(Y, P[:2], [0.1, 0.9]), r"got shape \(2, 2\)"),
    "y a matrix": (lambda: pinball_loss(P, P, [0.1, 0.9]), r"y_true must have shape \(n,\)"),
    "NaN in y": (lambda: pinball_loss([np.nan, 0], [0, 0], 0.5), "y_true contains NaN"),
    "NaN in prediction": (lambda: crps([0, 0], [0, np.nan], 0.5), "y_pred contains NaN"),
    "NaN in a bound": (lambda: coverage([0], [np.nan], [1]), "lower contains NaN"),
    "NaN in curves": (lambda: crossing_rate([[0, np.nan]]), "y_pred contains NaN"),
    "infinite y": (lambda: coverage([np.inf], [0], [1]), "y_true contains NaN or infinite"),
    "no rows": (lambda: coverage([], [], []), "empty"),
    "level 0": (lambda: pinball_loss(Y, Y, 0.0), "strictly between 0 and 1"),
    "level 1": (lambda: pinball_loss(Y, P, [0.1, 1.0]), "strictly between 0 and 1"),
    "NaN level": (lambda: pinball_loss(Y, Y, np.nan), "strictly between 0 and 1"),
    "levels in per cent": (lambda: crps(Y, P, [10, 90]), "strictly between 0 and 1"),
    "levels as a matrix": (lambda: pinball_loss(Y, P, [[0.1, 0.9]]), "flat sequence"),
    "levels descending": (lambda: crps(Y, P, [0.9, 0.1]), "strictly ascending"),
    "levels repeated": (lambda: crps(Y, P, [0.5, 0.5]), "strictly ascending"),
    "negative weight": (lambda: coverage(Y, Y, Y, sample_weight=[1, -1, 1]), "must not be negative"),
    "weights all zero": (lambda: pinball_loss(Y, Y, 0.5, sample_weight=np.zeros(3)), "zero on all 3 rows"),
    "weights too few": (lambda: crps(Y, P, [0.1, 0.9], sample_weight=[1, 1]), r"shape \(3,\); got shape \(2,\)"),
    "NaN weight": (lambda: coverage(Y, Y, Y, sample_weight=[1, 1, np.nan]), "sample_weight contains NaN"),
    "bounds too few": (lambda: interval_score(Y, Y[:2], Y), r"lower must have one bound per row.*got shape \(2,\)"),
    "bounds swapped": (lambda: interval_score(Y, [0, 1, 0], Y), "1 row.*first row 1 with lower=1, upper=0"),
    "bounds both at infinity": (lambda: interval_score([0.0], [np.inf], [np.inf]), "must not exceed"),
    "coverage in per cent": (lambda: interval_score(Y, Y, Y, 90), "coverage must be one number"),
    "curves flat": (lambda: crossing_rate([0, 1, 2]), r"shape \(n, q\)"),
    "tolerance negative": (lambda: crossing_rate(P, tolerance=-1), "tolerance must be 0 or more"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_refused_by_name(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()
