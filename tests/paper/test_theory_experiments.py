"""The experiments about theory: slopes that can be trusted, risks that are true, measurements that repeat."""

import itertools

import numpy as np
import pytest
from scipy.stats import norm

pytest.importorskip("matplotlib")

from quernel.data import ArrayRows
from quernel.losses import Hinge, Logistic, Pinball, Squared
from quernel.paper import EXPERIMENTS, OutputFolder, Table
from quernel.paper.experiment import fit_slope
from quernel.paper.holdout_fit import fit_ridge_path
from quernel.paper.motivation import NOISES
from quernel.paper.simulated import (
    features_of_theorem,
    midpoints,
    normal_excess_risk,
    predicted_slope,
    ridge_of_theorem,
    spline_features,
)
from quernel.paper.stated_formulas import FORMULAS
from quernel.paper.theorems import DESIGNS
from quernel.theory import METHODS, excess_risk

NAMES = ("fig1", "tab1", "fig_1", "fig_2", "fig_3", "decomposition", "lipschitz", "heavy_tails", "cost")
BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}


def planted(slope, *, repetitions=20, noise=0.3, seed=0):
    """Errors that fall like n^slope, with noise of their own and noise that all points of a repetition share."""
    rng = np.random.default_rng(seed)
    sizes = np.arange(1000, 10_001, 1000)
    return Table(
        [
            {"n": int(n), "repetition": k, "error": float(n**slope * np.exp(noise * (shift + rng.standard_normal())))}
            for k, shift in enumerate(rng.standard_normal(repetitions))
            for n in sizes
        ]
    )


def test_the_slopes_interval_covers_a_planted_slope_as_often_as_it_says():
    covered = 0
    for seed in range(200):
        slope = fit_slope(planted(-0.8, repetitions=5, seed=seed), "error")
        covered += slope.low <= -0.8 <= slope.high
    assert 0.90 <= covered / 200 <= 0.99  # 95 %, give or take three standard errors


def test_a_slope_that_is_too_flat_is_found_out_and_a_steep_one_is_allowed():
    assert fit_slope(planted(-0.5), "error").lies_above(-0.8)
    assert not fit_slope(planted(-1.2), "error").lies_above(-0.8)
    with pytest.raises(ValueError, match="at least 2 repetitions"):
        fit_slope(planted(-0.8, repetitions=1), "error")


def means(draws):
    return np.mean(draws), np.std(draws) / np.sqrt(len(draws))


@pytest.mark.parametrize(("level", "deviation"), list(itertools.product((0.5, 0.9), (-0.15, 0.02, 0.3))))
def test_the_excess_risk_of_the_check_loss_is_that_of_simulated_noise(level, deviation):
    noise = 0.1 * (np.random.default_rng(0).standard_normal(400_000) - norm.ppf(level))  # its quantile is 0

    def rho(r):
        return np.maximum(level * r, (level - 1) * r)

    mean, error = means(rho(noise - deviation) - rho(noise))
    assert normal_excess_risk(np.array(deviation), 0.1, level) == pytest.approx(mean, abs=4 * error)
    assert normal_excess_risk(np.array(0.0), 0.1, level) == pytest.approx(0, abs=1e-16)


@pytest.mark.parametrize("f", [-1.5, -0.3, 0.8, 2.0])
def test_the_excess_risks_of_classifiers_are_those_of_simulated_labels(f):
    rng, odds = np.random.default_rng(0), 0.7
    p = 1 / (1 + np.exp(-odds))
    y = np.where(rng.random(400_000) < p, 1.0, -1.0)
    for value, best, excess in (
        (Logistic().value, odds, excess_risk(Logistic(), [f - odds], probability=p)),
        (Hinge().value, 1.0, excess_risk(Hinge(), [f - 1], probability=p)),
    ):
        mean, error = means(value(1 - y * f) - value(1 - y * best))
        assert excess == pytest.approx(mean, abs=4 * error)


@pytest.mark.parametrize("name", DESIGNS)
def test_the_target_of_each_design_minimises_its_risk(name):
    law, function = DESIGNS[name].law, DESIGNS[name].function(midpoints(50))
    truth = law.minimiser(function)
    assert law.excess_risk(truth, function) == pytest.approx(0, abs=1e-14)
    for shift in (-0.2, 0.2):
        for row in range(50):
            assert law.excess_risk(truth[[row]] + shift, function[[row]]) > 1e-4


def test_all_noises_have_median_zero():
    for noise in NOISES.values():
        assert noise.ppf(0.5) == pytest.approx(0, abs=1e-12)


def test_features_and_ridge_of_the_theorem_are_the_papers():
    assert features_of_theorem(10_000, 0.5, 0.1, constant=1) == 3  # 10,000^(0.1/1.1) = 2.31
    assert features_of_theorem(10_000, 0.8, 0.2) == 300  # 5 * 10,000^(0.8/1.8) = 299.4
    assert features_of_theorem(1000, 0.2, 0.1) == 20  # outside of the theorem: the formula all the same, and silently
    assert ridge_of_theorem(1000, 0.2, 0.1) == pytest.approx(1e-6)
    assert predicted_slope(0.2, 0.1) == pytest.approx(-0.8)


@pytest.mark.parametrize("key", FORMULAS)
def test_the_formulas_of_table_1_are_those_of_the_methods(key):
    features, rate = (
        text
        and text.replace("2r", "2*r").replace("2gamma", "2*gamma").replace(")gamma", ")*gamma").replace(")(", ")*(")
        for text in FORMULAS[key]
    )
    method, tried = METHODS[key], 0
    for r, gamma, alpha in itertools.product((0.3, 0.5, 0.7, 1.0), (0.1, 0.6, 1.0), (0.2, 1.0)):
        if method.covers(r, gamma):
            values = {"r": r, "gamma": gamma, "alpha": alpha}
            assert eval(rate, values) == pytest.approx(method.learning_rate(r, gamma))
            expected = method.feature_exponent(r, gamma, alpha)
            assert expected is None if features is None else eval(features, values) == pytest.approx(expected)
            tried += 1
    assert tried >= 6


def test_table_1_lists_every_row():
    assert list(FORMULAS) == [key for key, method in METHODS.items() if method.in_table]


def test_the_best_fit_on_validation_rows_is_not_the_one_on_training_rows():
    rng = np.random.default_rng(0)
    X = rng.random((300, 1))
    y = np.cos(2 * np.pi * X[:, 0]) + rng.standard_normal(300)
    fits = fit_ridge_path(spline_features(0.25, 60, X, rng), ArrayRows(X[:100], y[:100]), Squared())
    best = fits.select_on(X[100:], y[100:])
    assert fits.select_on(X[:100], y[:100]) == 0  # the smallest weight fits the rows that it has seen best
    assert 0 < best < len(fits.alphas) - 1
    errors = np.mean((fits.predict(X[100:]) - y[100:, None]) ** 2, axis=0)
    assert errors[best] == errors.min()


def test_warm_and_cold_fits_agree():
    rng = np.random.default_rng(0)
    X = rng.random((200, 1))
    y, features = rng.standard_normal(200), spline_features(0.5, 20, X, rng)
    few = np.array([1e-1, 1e-3])
    warm, cold = (
        fit_ridge_path(features, ArrayRows(X, y), Pinball(np.array([0.5])), few, tol=1e-8, warm=warm)
        for warm in (True, False)
    )
    np.testing.assert_allclose(warm.predict(X), cold.predict(X), atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_registered_and_its_tasks_differ(name):
    experiment = BY_NAME[name]
    for size in ("quick", "full"):
        tasks = experiment.tasks(size)
        assert len({tuple(sorted(task.items())) for task in tasks}) == len(tasks)
        assert all(experiment.cost(task) > 0 for task in tasks)


@pytest.mark.parametrize("name", ["fig_1", "fig_3", "decomposition", "lipschitz", "heavy_tails", "cost"])
def test_a_measurement_repeats_with_its_seed_and_differs_with_another(name):
    experiment = BY_NAME[name]
    task = min(experiment.tasks("quick"), key=experiment.cost)
    first, again, other = (experiment.measure(task, np.random.default_rng(seed)) for seed in (1, 1, 2))
    for rows in (first, again, other):
        for row in rows:
            row.pop("seconds", None)
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", ["fig1", "tab1"])
def test_items_that_measure_nothing_are_shown(name, tmp_path):
    section = BY_NAME[name].present(Table([]), OutputFolder(tmp_path))
    assert section.verdicts[0].holds
    assert list((tmp_path / "tables").glob("*.csv"))
