"""Certificates hold for the numbers that are stored: the gap, checked in 60 digits, whatever the offsets and scales.

The claimed gap times its scale must be at least F(stored) - F(another point), for every other point; Clarabel's
solution of the centred problem is one that is close to the optimum.
"""

import warnings
from itertools import product

import dask.array as da
import numpy as np
import pytest
from mpmath import mp, mpf
from sklearn.exceptions import ConvergenceWarning

from quernel import KernelClassifier, KernelRegressor
from quernel.data import DaskRows, ParquetRows
from quernel.losses import (
    Absolute,
    EpsilonInsensitive,
    Expectile,
    Hinge,
    Huber,
    LogCosh,
    Logistic,
    Pinball,
    SmoothedHinge,
    SmoothedPinball,
    Squared,
    SquaredHinge,
)
from quernel.objective.problem import Centring
from support.exact_objective import DIGITS, exact_objective
from support.loss_optima import exponential, quadratic
from support.models import plain_regressor

TOL, N = 1e-6, 30
LOSSES = {
    "pinball": lambda unit: Pinball(0.3),
    "absolute": lambda unit: Absolute(),
    "huber": lambda unit: Huber(0.7 * unit),
    "epsilon_insensitive": lambda unit: EpsilonInsensitive(0.7 * unit),
    "smoothed_pinball": lambda unit: SmoothedPinball(0.7 * unit, 0.3),
    "squared": lambda unit: Squared(),
    "expectile": lambda unit: Expectile(0.3),
    "logcosh": lambda unit: LogCosh(0.7 * unit),
}
MARGINS = {
    "hinge": Hinge(),
    "squared_hinge": SquaredHinge(),
    "smoothed_hinge": SmoothedHinge(0.7),
    "logistic": Logistic(),
}


def rows(seed, weighted=False, n=N):
    """Two columns, y around 1 with noise of size 1, and weights over twelve decades."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    y = 1 + X @ [1.0, -0.5] + rng.standard_normal(n)
    return X, y, 10 ** rng.uniform(-6, 6, n) if weighted else None


def fit(model, *data):
    """The fitted model, and whether it warned."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(*data)
    return model, any(issubclass(one.category, ConvergenceWarning) for one in seen)


def check_claim(model, warned, value, other, null, k=0):
    """The gap that is claimed is true, F is no worse than the null model's, and a miss was warned of."""
    with mp.workdps(DIGITS):
        scale = max(value, null / 1000)
        assert mpf(float(model.duality_gap_[k])) * scale >= value - other
        assert value <= null * (1 + mpf(10) ** -12)
        assert warned or value - other <= TOL * scale


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e9, 1e12])
@pytest.mark.parametrize("name", LOSSES)
def test_the_gap_holds_for_stored_numbers_far_from_zero(name, offset):
    oracle = exponential if name == "logcosh" else quadratic
    for weighted, alpha in ((False, 1e-8), (True, 1e-2)):
        X, y, weight = rows(1, weighted)
        y = y + offset  # rounded here: the targets are these numbers
        centred = y - offset  # exact
        model = KernelRegressor(LOSSES[name](1.0), kernel="linear", alpha=alpha, tol=TOL)
        model, warned = fit(model, X, y, weight)
        coef, constant = oracle(name, X, centred, alpha, weight, intercept=True)
        value = exact_objective(name, X, y, alpha, model.coef_[:, 0], float(model.intercept_[0]), weight)
        other = exact_objective(name, X, centred, alpha, coef, constant, weight)
        null = exact_objective(name, X, y, alpha, [0, 0], float(np.round(y.mean())), weight)
        check_claim(model, warned, value, other, null)
        assert abs(offset) > 1e9 or not warned, "not merely careful"


@pytest.mark.parametrize("unit", [1e-12, 1e12])
@pytest.mark.parametrize("name", LOSSES)
def test_the_gap_holds_at_any_scale_of_y(name, unit):
    """Scales and offsets: y = unit (1 + noise) and y = unit (1e9 + noise), with losses in units of y."""
    squares = name in ("huber", "squared", "expectile", "logcosh")  # F has the unit of y^2, alpha that of F / u^2
    for offset in (0.0, 1e9):
        X, y, weight = rows(2, weighted=True)
        y = unit * (y + offset)
        alpha = 1e-4 * (1 if squares else 1 / unit)
        model = KernelRegressor(LOSSES[name](unit), kernel="linear", alpha=alpha, tol=TOL)
        model, warned = fit(model, X, y, weight)
        near = y - unit * offset
        oracle = exponential if name == "logcosh" else quadratic
        coef, constant = oracle(name, X, near / unit, 1e-4, weight, intercept=True)
        how = {"length": 0.7 * unit}
        value = exact_objective(name, X, y, alpha, model.coef_[:, 0], float(model.intercept_[0]), weight, **how)
        with mp.workdps(DIGITS):
            far = mpf(float(unit * offset)) + mpf(float(unit * constant))
            other = exact_objective(name, X, y, alpha, unit * coef, far, weight, **how)
            null = exact_objective(name, X, y, alpha, [0, 0], far, weight, **how)
        check_claim(model, warned, value, other, null)


@pytest.mark.parametrize("name", MARGINS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gap_of_margin_losses_holds(name, weighted):
    oracle = exponential if name == "logistic" else quadratic
    X, y, weight = rows(3, weighted)
    y = np.where(y > 1, 1.0, -1.0)
    for alpha, far in product([1e-8, 1e-2], [0.0, 1e8]):
        model, warned = fit(KernelClassifier(MARGINS[name], kernel="linear", alpha=alpha, tol=TOL), X + far, y, weight)
        coef, constant = oracle(name, X, y, alpha, weight, intercept=True)
        value = exact_objective(name, X + far, y, alpha, model.coef_[:, 0], float(model.intercept_[0]), weight)
        other = exact_objective(name, (X + far) - far, y, alpha, coef, constant, weight)
        null = exact_objective(name, X, y, alpha, [0, 0], 0.0, weight)
        check_claim(model, warned, value, other, null)


def curves(n=50):
    """Levels that cross: few rows, a rough fit."""
    rng = np.random.default_rng(4)
    X = rng.uniform(-2, 2, (n, 1))
    return X, np.sin(2 * X[:, 0]) + (0.2 + 0.4 * np.abs(X[:, 0])) * rng.standard_normal(n)


@pytest.mark.parametrize(
    "kwargs", [{"noncrossing": "joint"}, {"n_components": "exact"}, {"solver": "admm", "max_iter": 3000}]
)
@pytest.mark.parametrize("offset", [1e6, 1e9, 1e12])
def test_levels_far_from_zero_are_those_near_zero(kwargs, offset):
    """F of the sum at the stored numbers, in 60 digits, against the fit of the centred targets."""
    X, y = curves()
    y = y + offset
    levels, alpha, tol = np.array([0.4, 0.5, 0.6]), 1e-5, 1e-4 if "solver" in kwargs else TOL
    kwargs = {
        "n_components": 25,
        "bandwidth": 0.3,
        "alpha": alpha,
        "random_state": 0,
        "tol": tol,
        "max_iter": 100,
        **kwargs,
    }
    near, _ = fit(plain_regressor(levels, **kwargs), X, y - offset)
    far, warned = fit(plain_regressor(levels, **kwargs), X, y)
    Phi = near.feature_map_.transform(X)
    np.testing.assert_array_equal(far.feature_map_.transform(X), Phi)
    assert not warned or offset == 1e12
    with mp.workdps(DIGITS):
        value, other, claim = mpf(0), mpf(0), mpf(0)
        for k, level in enumerate(levels):
            F = exact_objective("pinball", Phi, y, alpha, far.coef_[:, k], far.intercept_[k], level=level)
            value, claim = value + F, claim + mpf(float(far.duality_gap_[k])) * F
            b = mpf(float(near.intercept_[k])) + mpf(offset)
            other += exact_objective("pinball", Phi, y, alpha, near.coef_[:, k], b, level=level)
        assert claim >= value - other
        assert value - other <= 1e-4 * other
    grid = far.predict(X)
    assert np.all(np.diff(grid, axis=1) >= 0)


def awkward_columns(n=300):
    """Epoch milliseconds, revenues and a column of tiny numbers; the first two in reasonable units; and y."""
    rng = np.random.default_rng(5)
    time, revenue = 1.7e12 + rng.uniform(0, 3e10, n), 2e8 + 3e7 * rng.standard_normal(n)
    X = np.column_stack([time, revenue, 1e-9 * rng.standard_normal(n)])
    unit = np.column_stack([(time - 1.7e12) / 1e10, (revenue - 2e8) / 3e7])
    return X, unit, unit @ [1.0, 0.5] + 0.3 * rng.standard_normal(n)


@pytest.mark.parametrize("intercept", [True, False])
def test_linear_fits_on_huge_columns_converge(intercept):
    """In units in which the ridge is nothing, a fit on columns of reasonable units is the same."""
    X, unit, y = awkward_columns()
    how = {"kernel": "linear", "alpha": 5e-5, "fit_intercept": intercept}
    mixed, warned = fit(plain_regressor([0.1, 0.5, 0.9], **how), X, y)
    assert not warned
    X, unit = (X[:, :2], unit) if intercept else (X[:, 1:2], X[:, 1:2] / 2e8)
    model, warned = fit(plain_regressor([0.1, 0.5, 0.9], **how), X, y)
    assert not warned
    same, _ = fit(plain_regressor([0.1, 0.5, 0.9], **how | {"alpha": 1e-14}), unit, y)
    np.testing.assert_allclose(model.objective_, same.objective_, rtol=1e-6)
    assert np.all(mixed.objective_ <= model.objective_ * (1 + 1e-6))


def test_the_arc_cosine_kernel_takes_columns_in_any_unit():
    rng = np.random.default_rng(6)
    income = np.exp(np.log(5e4) + 0.5 * rng.standard_normal(300))
    y = np.log(income) + 0.3 * rng.standard_normal(300)
    how = {"kernel": "arccosine", "n_components": 30, "random_state": 0}
    far, warned = fit(plain_regressor([0.1, 0.9], alpha=1e-5, **how), income[:, None], y)
    near, _ = fit(plain_regressor([0.1, 0.9], alpha=1e-5 / 2.0**32, **how), income[:, None] / 2**16, y)
    assert not warned
    np.testing.assert_allclose(far.objective_, near.objective_, rtol=1e-6)


def test_the_ridge_stays_what_was_asked_for():
    """Centred columns, scaled features: the minimiser is that of the original problem, by Clarabel."""
    X, y, _ = rows(7)
    for alpha, unit in ((0.1, 1.0), (1e-8, 2.0**20), (1e6, 2.0**-20)):
        model, warned = fit(KernelRegressor(Squared(), kernel="linear", alpha=alpha), unit * (X + 1000), y)
        coef, _ = quadratic("squared", X, y, alpha / unit**2, intercept=True)
        assert not warned
        np.testing.assert_allclose(model.coef_[:, 0] * unit, coef, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(model.predict(unit * (X + 1000)), X @ coef + np.mean(y - X @ coef), atol=1e-4)


def test_rows_out_of_core_are_centred_too(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(8)
    X = 1e6 + rng.standard_normal((30_000, 4))
    y = 1e9 + (X - 1e6) @ [1.0, -1.0, 0.5, 0.0] + rng.standard_normal(len(X))
    weight = rng.exponential(size=len(X))
    pq.write_table(pa.table({f"x{j}": X[:, j] for j in range(4)} | {"y": y, "w": weight}), tmp_path / "a.parquet")
    how = {"kernel": "linear", "alpha": 1e-6, "max_memory": 200_000}
    chunks = [da.from_array(part, chunks=len(X) // 3) for part in (X, y, weight)]
    sources = [(X, y, weight), (ParquetRows(tmp_path / "a.parquet", "y", weight="w"),), (DaskRows(*chunks),)]
    models = []
    for data in sources:
        model, warned = fit(plain_regressor([0.2, 0.7], **how), *data)
        models.append(model)
        assert not warned
    for model in models[1:]:
        np.testing.assert_allclose(model.objective_, models[0].objective_, rtol=2e-6)
        np.testing.assert_allclose(model.coef_, models[0].coef_, atol=0.01)
        middle = np.full(4, 1e6)
        ours, theirs = (middle @ one.coef_ + one.intercept_ - 1e9 for one in (model, models[0]))
        np.testing.assert_allclose(ours, theirs, atol=0.01)


@pytest.mark.parametrize("loss", [Pinball(0.3), Squared()])
def test_centred_columns_may_be_solved_in_a_basis(loss):
    """Many rows and columns of low rank: samples have fewer features than there are columns."""
    rng = np.random.default_rng(11)
    factors = rng.standard_normal((40_000, 5))
    X = 1e6 + np.tanh(factors @ rng.standard_normal((5, 60)) / 50)
    y = factors[:, 0] + rng.standard_normal(len(X))
    model, warned = fit(KernelRegressor(loss, kernel="linear", alpha=1e-6), X, y)
    near, _ = fit(KernelRegressor(loss, kernel="linear", alpha=1e-6), X - 1e6, y)
    assert not warned
    np.testing.assert_allclose(model.objective_, near.objective_, rtol=1e-5)


def test_an_intercept_is_certified_as_it_is_stored():
    rng = np.random.default_rng(9)
    centring = Centring(1e12 + 0.25, 1e9 + rng.standard_normal(5), 2.0**-3)
    coef, intercept = rng.standard_normal((5, 3)), rng.standard_normal(3)
    u, b = centring.restore(coef, intercept)
    rounded = centring.round_intercept(coef, intercept)
    with mp.workdps(DIGITS):
        for k in range(3):
            exact = (
                mpf(b[k])
                - mpf(centring.target)
                + sum(mpf(m) * mpf(c) for m, c in zip(centring.mean, u[:, k], strict=True))
            )
            assert abs(exact - mpf(rounded[k])) <= abs(exact) * mpf(2) ** -53
            assert abs(exact - mpf(intercept[k])) <= mpf(float(np.spacing(np.abs(b[k])))) / 2 * (1 + mpf(10) ** -9)
    np.testing.assert_array_equal(centring.enter(u, b)[0], coef)
    np.testing.assert_array_equal(centring.round_intercept(coef, rounded), rounded)


@pytest.mark.parametrize("level", [0.5, 0.995])
def test_the_gap_of_the_exact_kernel_holds_for_predictions(level):
    """A tiny ridge on a nearly singular kernel matrix: predictions differ from the fit, and the gap contains that."""
    rng = np.random.default_rng(10)
    X, y = rng.uniform(-2, 2, (60, 3)), 2e-4 * rng.standard_normal(60)
    alpha = 3e-12
    model, _ = fit(plain_regressor([level], n_components="exact", bandwidth=3.0, alpha=alpha), X, y)
    Phi = model.feature_map_.transform(X)
    value = exact_objective("pinball", Phi, y, alpha, model.coef_[:, 0], float(model.intercept_[0]), level=level)
    null = exact_objective("pinball", Phi, y, alpha, [0] * Phi.shape[1], float(np.quantile(y, level)), level=level)
    with mp.workdps(DIGITS):
        scale = max(value, null / 1000)
        assert abs(value - mpf(float(model.objective_[0]))) <= mpf(float(model.duality_gap_[0])) * scale
