"""By simulation: fitted levels cover what they promise, everywhere, and approach the true quantiles.

Coverage of all rows together is no test of a regression: a model fitted on shuffled targets has it too. So coverage is
also asked of each quarter of the rows, cut by the true median, and there such a model fails.
"""

import functools

import numpy as np
import pytest

from quernel.datasets import make_heteroscedastic, make_homoscedastic
from quernel.metrics import pinball_loss
from support.models import plain_regressor

LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]
N, N_TEST = 4000, 20_000
# The noise has standard deviation 1, and 1 to 2. RMSE of the fitted curves at n = 4,000, by law.
LAWS = {"homoscedastic": (make_homoscedastic, 0.25), "heteroscedastic": (make_heteroscedastic, 0.4)}
# What estimation from 4,000 rows may add to the error of a coverage; twice that in a quarter of the rows.
ALLOWANCE = 0.02
SETTINGS = {
    "random": {"n_components": 300, "bandwidth": 0.5, "alpha": 3e-5, "random_state": 0},
    "exact": {"n_components": "exact", "bandwidth": 0.5, "alpha": 3e-5},
    "defaults": {"random_state": 0},
}

laws = pytest.mark.parametrize("law", LAWS)


@pytest.fixture(scope="module")
def simulations():
    """Training rows, test rows and true quantiles of each law, made in one call (a second follows another law)."""
    made = {}
    for name, (make, _) in LAWS.items():
        X, y, quantile = make(N + N_TEST, random_state=11)
        made[name] = X[:N], y[:N], X[N:], y[N:], quantile(X[N:], LEVELS)
    return made


@pytest.fixture(scope="module")
def models(simulations):
    """Models of all training rows, each fitted once."""

    @functools.cache
    def fit(law, name, shuffled=False):
        X, y, *_ = simulations[law]
        y = np.random.default_rng(0).permutation(y) if shuffled else y
        return plain_regressor(LEVELS, **SETTINGS[name]).fit(X, y)

    return fit


@pytest.fixture(scope="module")
def predictions(simulations, models):
    """Predicted levels at the test rows, for each law, model and order of the targets."""

    @functools.cache
    def predict(law, name, shuffled=False):
        return models(law, name, shuffled).predict(simulations[law][2])

    return predict


def coverage_errors(y, curves, groups):
    """Largest |share below - level| over groups of rows, in excess of 4 standard errors."""
    levels, worst = np.array(LEVELS), np.zeros(len(LEVELS))
    for rows in groups:
        error = np.abs(np.mean(y[rows, None] <= curves[rows], axis=0) - levels)
        worst = np.maximum(worst, error - 4 * np.sqrt(levels * (1 - levels) / len(rows)))
    return worst


def quarters(truth):
    return np.array_split(np.argsort(truth[:, 2]), 4)


def rmse(curves, truth):
    return np.sqrt(np.mean((curves - truth) ** 2, axis=0))


@laws
@pytest.mark.parametrize("name", SETTINGS)
def test_coverage_of_rows_that_were_held_out(simulations, predictions, law, name):
    y = simulations[law][3]
    curves = predictions(law, name)
    assert np.all(coverage_errors(y, curves, [np.arange(N_TEST)]) <= ALLOWANCE)
    assert np.all(coverage_errors(y, curves + 0.3, [np.arange(N_TEST)])[1:-1] > ALLOWANCE)


@laws
@pytest.mark.parametrize("name", ["random", "exact"])
def test_coverage_in_every_quarter(simulations, predictions, law, name):
    _, _, _, y, truth = simulations[law]
    assert np.all(coverage_errors(y, truth, quarters(truth)) <= 0)  # the truth passes without allowance
    assert np.all(coverage_errors(y, predictions(law, name), quarters(truth)) <= 2 * ALLOWANCE)
    assert np.any(coverage_errors(y, predictions(law, name, shuffled=True), quarters(truth)) > 2 * ALLOWANCE)


@laws
@pytest.mark.parametrize("name", ["random", "exact"])
def test_curves_are_close_to_the_true_quantiles(simulations, predictions, law, name):
    *_, truth = simulations[law]
    bound = LAWS[law][1]
    assert np.all(rmse(predictions(law, name), truth) < bound)
    assert np.all(rmse(predictions(law, name, shuffled=True), truth) > bound)


@laws
def test_defaults_beat_the_unconditional_quantiles(simulations, predictions, law):
    _, y, _, held_out, truth = simulations[law]

    def excess(curves):
        return np.sum(pinball_loss(held_out, curves, LEVELS) - pinball_loss(held_out, truth, LEVELS))

    constant = np.tile(np.quantile(y, LEVELS), (N_TEST, 1))
    assert excess(predictions(law, "defaults")) < 0.5 * excess(constant)
    assert excess(predictions(law, "defaults", shuffled=True)) > 0.75 * excess(constant)


@pytest.mark.slow
@laws
def test_errors_fall_as_rows_are_added(simulations, models, law):
    X, y, new, _, truth = simulations[law]
    errors = []
    for n in (250, 1000):
        # alpha ~ 1/sqrt(n), from the value of the other tests at n = 4,000.
        settings = {**SETTINGS["random"], "alpha": 3e-5 * np.sqrt(N / n)}
        fits = [plain_regressor(LEVELS, **settings).fit(X[k * n : (k + 1) * n], y[k * n : (k + 1) * n])
                for k in range(4)]  # fmt: skip
        errors.append(np.mean([rmse(model.predict(new), truth).mean() for model in fits]))
    errors.append(rmse(models(law, "random").predict(new), truth).mean())
    assert errors[1] < 0.75 * errors[0]
    assert errors[2] < 0.75 * errors[1]


@laws
def test_intervals_cover_what_they_promise(simulations, models, law):
    _, _, new, held_out, _ = simulations[law]
    model = models(law, "random")
    for coverage in (0.5, 0.8, 0.9):
        low, high = model.predict_interval(new, coverage=coverage).T
        share = np.mean((low <= held_out) & (held_out <= high))
        assert abs(share - coverage) <= 4 * np.sqrt(coverage * (1 - coverage) / N_TEST) + 2 * ALLOWANCE
        assert np.mean((low + 1 <= held_out) & (held_out <= high)) < coverage - 2 * ALLOWANCE


@laws
def test_the_distribution_function_is_uniform_at_the_outcomes(simulations, law):
    X, y, new, held_out, _ = simulations[law]
    model = plain_regressor(np.linspace(0.05, 0.95, 19), **SETTINGS["random"]).fit(X, y)
    for threshold in (0.2, 0.5, 0.8):
        share = np.mean(model.predict_cdf(new, held_out) <= threshold)
        assert abs(share - threshold) <= 4 * np.sqrt(threshold * (1 - threshold) / N_TEST) + ALLOWANCE
    assert np.mean(model.predict_cdf(new, held_out + 0.5) <= 0.5) < 0.45
