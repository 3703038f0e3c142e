"""KernelRegressor: every loss of the residual behind the same words."""

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge
from sklearn.svm import SVR
from sklearn.utils.estimator_checks import parametrize_with_checks

from quernel import KernelRegressor
from quernel.losses import LOSSES, EpsilonInsensitive, Expectile, Hinge, Huber, Pinball, Squared
from support.models import plain_regressor

NAMES = [name for name, loss in LOSSES.items() if not loss.margin]
SMALL = {"n_components": 40, "random_state": 0}


@parametrize_with_checks(
    [
        KernelRegressor(),
        KernelRegressor("squared", n_components="exact"),
        KernelRegressor("epsilon_insensitive", kernel="linear"),
        KernelRegressor("huber", solver="admm", tol=1e-3, max_iter=5000),
    ]
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    X = rng.random((250, 2))
    return X, np.sin(6 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(250)


@pytest.mark.parametrize("n_components", [40, "exact"])
@pytest.mark.parametrize("name", NAMES)
def test_every_name_fits_well_and_is_certified(table, name, n_components):
    X, y = table
    model = KernelRegressor(name, n_components=n_components, random_state=0).fit(X, y)
    assert model.duality_gap_.shape == model.objective_.shape == model.intercept_.shape == (1,)
    assert model.coef_.shape == (model.n_components_, 1)
    assert model.duality_gap_[0] <= 1e-6
    assert model.predict(X).shape == (250,)
    assert model.score(X, y) > 0.5
    truth = np.sin(6 * X[:, 0]) + X[:, 1]
    assert np.mean(np.abs(model.predict(X) - truth)) < 0.15


def test_default_fits_to_logarithms_follow_the_units_of_what_they_are_of(table):
    """Of the generalised Pareto loss: another unit is a shift."""
    X, y = table
    here, there = (KernelRegressor("generalized_pareto", **SMALL).fit(X, y + shift) for shift in (0.0, 5.0))
    np.testing.assert_allclose(there.predict(X) - 5, here.predict(X), atol=1e-4)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "generalized_pareto"])
def test_default_fits_follow_the_units_of_y(table, name):
    X, y = table
    here, there = (KernelRegressor(name, **SMALL).fit(X, factor * y) for factor in (1.0, 100.0))
    np.testing.assert_allclose(there.predict(X) / 100, here.predict(X), atol=1e-4)
    if name == "huber":  # negative control: a threshold in units of its own does not
        fixed = [KernelRegressor(Huber(0.1), **SMALL).fit(X, factor * y) for factor in (1.0, 100.0)]
        assert np.abs(fixed[1].predict(X) / 100 - fixed[0].predict(X)).max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_integer_weights_are_repeated_rows(table, name):
    X, y = table[0][:80], table[1][:80]
    count = np.random.default_rng(0).integers(0, 4, 80)
    how = {"alpha": 1e-3, "bandwidth": 0.3, **SMALL, "n_components": 20, "sampling": "qmc", "tol": 1e-9}
    weighted = KernelRegressor(name, **how).fit(X, y, sample_weight=count)
    repeated = KernelRegressor(name, **how).fit(np.repeat(X, count, axis=0), np.repeat(y, count))
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), atol=2e-4)


def test_the_pinball_loss_is_the_quantile_regressor(table):
    X, y = table
    how = {"alpha": 1e-3, **SMALL}
    ours = KernelRegressor(Pinball(0.8), **how).fit(X, y)
    np.testing.assert_allclose(ours.predict(X), plain_regressor(0.8, **how).fit(X, y).predict(X), atol=1e-9)


def test_squared_is_kernel_ridge_regression(table):
    """alpha u'u beside a mean of squares: scikit-learn's alpha is n times ours."""
    X, y = table
    ours = KernelRegressor("squared", n_components="exact", bandwidth=0.5, alpha=1e-3, fit_intercept=False, tol=1e-10)
    theirs = KernelRidge(alpha=250 * 1e-3, kernel="rbf", gamma=1 / (2 * 0.5**2)).fit(X, y)
    np.testing.assert_allclose(ours.fit(X, y).predict(X), theirs.predict(X), atol=1e-5)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-5), "D^2 is R^2"


def test_epsilon_insensitive_is_support_vector_regression(table):
    X, y = table
    alpha = 1e-3
    ours = KernelRegressor(EpsilonInsensitive(0.1), n_components="exact", bandwidth=0.5, alpha=alpha, tol=1e-9).fit(
        X, y
    )
    theirs = SVR(C=1 / (2 * 250 * alpha), epsilon=0.1, gamma=1 / (2 * 0.5**2), tol=1e-7).fit(X, y)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-3)


def test_a_tube_that_holds_all_rows_leaves_the_constant(table):
    X, y = table
    model = KernelRegressor(EpsilonInsensitive(100.0), **SMALL).fit(X, y)
    assert model.alpha_ > 0
    assert model.objective_[0] == model.duality_gap_[0] == 0
    assert np.ptp(model.predict(X)) == 0


def test_expectiles_are_ordered(table):
    X, y = table
    low, high = (KernelRegressor(Expectile(level), **SMALL).fit(X, y).predict(X) for level in (0.1, 0.9))
    assert np.all(low < high)


def test_robust_losses_bear_outliers(table):
    X, y = table
    spoilt = y.copy()
    spoilt[::10] += 100
    error = {
        name: np.mean(np.abs(KernelRegressor(name, **SMALL).fit(X, spoilt).predict(X) - y))
        for name in ("huber", "absolute", "squared")
    }
    assert error["squared"] > 5  # negative control
    assert error["absolute"] < 1
    assert error["huber"] < 1


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("hubert", r"Unknown loss 'hubert'\. Known: 'pinball', .*'logcosh'.*quernel.losses"),
        ("hinge", "is one of the margin. Use KernelClassifier"),
        (Hinge(), "is one of the margin. Use KernelClassifier"),
        (Huber, "loss must be one of 'pinball'"),
        (3, "loss must be one of 'pinball'"),
        (Pinball([0.1, 0.9]), "must be of one column here"),
    ],
)
def test_other_losses_are_refused(table, loss, message):
    with pytest.raises(ValueError, match=message):
        KernelRegressor(loss).fit(*table)


def test_the_objective_is_its_definition(table):
    X, y = table
    model = KernelRegressor(Squared(), alpha=1e-2, **SMALL).fit(X, y, sample_weight=np.arange(1, 251))
    share = np.arange(1, 251) / np.arange(1, 251).sum()
    by_hand = share @ (y - model.predict(X)) ** 2 + 1e-2 * np.sum(model.coef_**2)
    assert model.objective_[0] == pytest.approx(by_hand, rel=1e-10)
