"""Ranks, weighted ranks and intervals of scores, against their definitions in exact arithmetic."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest

from quernel.conformal.methods import Scores, conformal_quantile, min_calibration_rows

LEVELS = ["0.5", "0.7", "0.8", "0.9", "0.95", "0.975", "0.99", "0.07"]


def scores_of(below, above, model=None, weight=None):
    n = len(above)
    model = np.zeros(n, dtype=int) if model is None else model
    return Scores(np.asarray(below), np.asarray(above), model, np.ones(n) if weight is None else weight, np.ones(n))


@pytest.mark.parametrize("level", LEVELS)
def test_the_rank_is_that_of_exact_arithmetic(level):
    exact = Fraction(level)
    for n in [*range(1, 130), 199, 499, 999]:
        rank = ceil(exact * (n + 1))
        score = np.random.default_rng(n).permutation(n).astype(float)
        expected = rank - 1 if rank <= n else np.inf
        assert conformal_quantile(score, np.ones(n), np.ones(1), float(level)) == expected
    needed = next(n for n in range(1, 1000) if ceil(exact * (n + 1)) <= n)
    assert min_calibration_rows(float(level)) == needed


@pytest.mark.parametrize("level", LEVELS)
def test_weights_are_repeats(level):
    """A weight of 3 counts like three equal scores; the new row counts once."""
    rng = np.random.default_rng(0)
    score, weight = rng.normal(size=40), rng.integers(1, 5, 40).astype(float)
    repeated = np.repeat(score, weight.astype(int))
    once = np.ones(1)
    expected = conformal_quantile(repeated, np.ones(len(repeated)), once, float(level))
    assert conformal_quantile(score, weight, once, float(level)) == expected


def test_a_weighty_new_row_reaches_farther_and_finally_to_infinity():
    score = np.arange(20.0)
    own = np.array([0.0, 1.0, 2.0, 2.3, 50.0])
    found = conformal_quantile(score, np.ones(20), own, 0.9)
    np.testing.assert_array_equal(found, [17, 18, 19, np.inf, np.inf])


def test_ties_are_covered_whole():
    assert conformal_quantile(np.array([0.0, 0.0, 1.0, 1.0, 1.0]), np.ones(5), np.ones(1), 0.5) == 1.0


def test_scores_by_their_definition():
    ends, y = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]), np.array([-2.0, 0.25, 4.0])
    both = Scores.from_predictions(ends, y, np.zeros(3, dtype=int), np.ones(3), symmetric=False)
    np.testing.assert_array_equal(both.below, [2, -0.25, -4])
    np.testing.assert_array_equal(both.above, [-3, -0.75, 3])
    same = Scores.from_predictions(ends, y, np.zeros(3, dtype=int), np.ones(3), symmetric=True)
    np.testing.assert_array_equal(same.below, [2, -0.25, 3])
    np.testing.assert_array_equal(same.above, same.below)


def test_an_empty_interval_becomes_its_middle():
    scores = scores_of(np.full(30, -1.0), np.full(30, -1.0))
    ends = np.array([[[0.0, 1.0], [0.0, 3.0]]])
    np.testing.assert_allclose(scores.interval(ends, np.ones(2), 0.9), [[0.5, 0.5], [1.0, 2.0]])


def test_infinite_on_both_sides_where_one_row_outweighs_all():
    interval = scores_of(np.zeros(30), np.zeros(30)).interval(np.zeros((1, 2, 2)), np.array([1.0, 1e6]), 0.9)
    np.testing.assert_array_equal(interval, [[0, 0], [-np.inf, np.inf]])


@pytest.mark.parametrize("weighted", [False, True])
def test_several_models_by_hand(weighted):
    """CV+: sort  end of the row's model + score  over the calibration rows, for each new row."""
    rng = np.random.default_rng(3)
    n, m, models, level = 50, 7, 4, 0.8
    model, weight = rng.integers(0, models, n), rng.random(n) if weighted else np.ones(n)
    scores = scores_of(rng.normal(size=n), rng.normal(size=n), model, weight)
    ends, own = np.sort(rng.normal(size=(models, m, 2)) * 3, axis=2), rng.random(m) if weighted else np.ones(m)
    found = scores.interval(ends, own, level)
    for j in range(m):
        upper = sorted((ends[model[i], j, 1] + scores.above[i], weight[i]) for i in range(n))
        lower = sorted((-ends[model[i], j, 0] + scores.below[i], weight[i]) for i in range(n))
        expected = []
        for values in (lower, upper):
            goal, sofar = level * (weight.sum() + own[j]), 0.0
            for value, part in values:
                sofar += part
                if sofar >= goal * (1 - 1e-12):
                    expected.append(value)
                    break
            else:
                expected.append(np.inf)
        low, high = -expected[0], expected[1]
        if low > high:
            low = high = (low + high) / 2
        np.testing.assert_allclose(found[j], [low, high], rtol=1e-12)


def test_one_model_seen_as_several_equal_ones_changes_nothing():
    rng = np.random.default_rng(4)
    score, ends = rng.normal(size=60), np.sort(rng.normal(size=(1, 5, 2)), axis=2)
    one = scores_of(score, score).interval(ends, np.ones(5), 0.9)
    three = scores_of(score, score, rng.integers(0, 3, 60)).interval(np.repeat(ends, 3, axis=0), np.ones(5), 0.9)
    np.testing.assert_allclose(one, three, rtol=1e-12)
