"""A model of tables does what its estimator does, on the scale of the target."""

import numpy as np
import pyarrow as pa
import pytest

from quernel import ConformalQuantileRegressor, ExtrapolationWarning, KernelQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.tables.training_data import ReadOptions
from support.models import plain_regressor
from support.tables import LEVELS, prepare, sales


def made(levels=LEVELS, log_target=False, conformal=False, **options):
    training = prepare(sales(), ReadOptions("price", log_target=log_target))
    base = plain_regressor(levels, **({"n_components": 40, "random_state": 0} | options))
    if not conformal:
        return TableModel(training.encoder, base.fit(training.rows.X, training.rows.y), "price", log_target)
    interval = ConformalQuantileRegressor(base, 0.8, random_state=0).fit(training.rows.X, training.rows.y)
    return TableModel(training.encoder, interval.estimators_[0], "price", log_target, interval)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "logarithm"])
def model(request):
    return made(log_target=request.param)


@pytest.fixture(scope="module")
def new():
    table = sales(80, seed=1).to_pandas()
    return table[table["price"].notna()]


def test_the_distribution_is_that_of_the_quantiles(model, new):
    curves = model.predict(new)
    np.testing.assert_allclose(model.predict_cdf(new, curves[:, 1]), 0.5, rtol=1e-9)
    for level in (0.3, 0.7):
        np.testing.assert_allclose(model.predict_cdf(new, model.predict(new, level)), level, rtol=1e-9)
    assert model.predict_cdf(new, -1e9).tolist() == [0.0] * len(new)
    draws = model.sample(new, 2000, rng=0)
    assert draws.shape == (len(new), 2000)
    assert np.mean(draws <= curves[:, 1:2]) == pytest.approx(0.5, abs=0.01)
    np.testing.assert_allclose(draws.min(axis=1), curves[:, 0])  # the tails lie on the outermost curves
    with pytest.raises(ValueError, match="NaN"):
        model.predict_cdf(new, np.full(len(new), np.nan))


def test_the_interval_as_fitted(model, new):
    np.testing.assert_allclose(model.predict_interval(new, coverage=0.8), model.predict(new)[:, [0, 2]])
    np.testing.assert_array_equal(model.predict_interval(new, 0.5), model.predict(new, [0.25, 0.75]))
    with pytest.raises(ValueError, match=r"Ask for at most 0.8"):
        model.predict_interval(new, coverage=0.9)
    with pytest.raises(ValueError, match=r"quernel fit --conformal, or.*coverage=0.9"):
        model.predict_interval(new)


@pytest.mark.parametrize("log_target", [False, True])
def test_a_calibrated_interval_has_any_coverage(new, log_target):
    model = made(log_target=log_target, conformal=True)
    ends = model.interval.predict_interval(model.encoder.transform(new))
    expected = np.exp(ends) if log_target else ends
    np.testing.assert_array_equal(model.predict_interval(new), expected)
    np.testing.assert_array_equal(model.predict_interval(new, coverage=0.8), expected)
    ends = model.interval.predict_interval(model.encoder.transform(new), [0.5, 0.9])
    np.testing.assert_array_equal(model.predict_interval(new, [0.5, 0.9]), np.exp(ends) if log_target else ends)
    plain = made(log_target=log_target)
    several = plain.predict_interval(new, [0.5, 0.7])
    np.testing.assert_array_equal(several[:, :, 1], plain.predict_interval(new, 0.7))
    with pytest.raises(ValueError, match=r"no calibrated intervals. Fit it with quernel fit --conformal"):
        plain.predict_interval(new)


def test_the_score_is_that_of_the_target_itself(new):
    weight = np.random.default_rng(0).integers(0, 3, len(new))
    plain, logarithm = made(), made(log_target=True)
    X = plain.encoder.transform(new)
    assert plain.score(new, new["price"]) == pytest.approx(plain.model.score(X, new["price"]), rel=1e-12)
    expected = plain.model.score(X, new["price"], sample_weight=weight)
    assert plain.score(new, new["price"], sample_weight=weight) == pytest.approx(expected, rel=1e-12)

    class MappedBack(KernelQuantileRegressor):
        def _curves(self, X):
            return np.exp(super()._curves(X))

    back = MappedBack()
    back.__dict__.update(logarithm.model.__dict__)
    assert logarithm.score(new, new["price"]) == pytest.approx(back.score(X, new["price"]), rel=1e-12)
    assert 0.1 < logarithm.score(new, new["price"]) < 1


def test_the_warning_names_what_the_model_has(new):
    model = made()
    far = new.assign(size=new["size"].where(np.arange(len(new)) % 2 == 0, 1e6))
    with pytest.warns(ExtrapolationWarning, match=r"model.is_extrapolation\(X\)"):
        model.predict(far)
    inside = model.is_extrapolation(new)
    assert model.is_extrapolation(far).tolist() == (inside | (np.arange(len(new)) % 2 == 1)).tolist()
    assert not inside.all()


@pytest.mark.parametrize("kernel", ["auto", "linear"])
def test_no_rows_are_no_predictions(new, kernel):
    options = {"n_components": "auto"} if kernel == "linear" else {}
    model, none = made(conformal=True, log_target=True, kernel=kernel, **options), new.head(0)
    assert model.predict(none).shape == (0, 3)
    assert model.predict(none, 0.5).shape == (0,)
    assert model.predict_interval(none).shape == (0, 2)
    assert model.sample(none, 4).shape == (0, 4)
    assert model.predict_cdf(none, 1.0).shape == model.is_extrapolation(none).shape == (0,)
    assert made(levels=0.5).predict(none).shape == (0,)
    with pytest.raises(ValueError, match="outside the fitted range"):
        model.predict(none, 0.99)


def test_it_introduces_itself_in_few_words():
    text = repr(made())
    assert text.startswith("TableModel of 'price' from 'size', 'age', 'place', 'garden', 'sold': KernelQuantile")
    assert len(text) < 250


def test_a_value_that_many_rows_have_survives_the_logarithm():
    """exp(log(7)) is not 7: rows on a curve would fall beside it."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(600) < 0.7, rng.choice([5.0, 7.0, 0.3], 600), 5 + rng.exponential(5.0, 600))
    table = pa.table({"x": rng.random(600), "y": y})
    training = prepare(table, ReadOptions("y", log_target=True))
    estimator = plain_regressor([0.05, 0.4, 0.95], n_components=20, alpha=0.1, random_state=0)
    model = TableModel(training.encoder, estimator.fit(training.rows.X, training.rows.y), "y", log_target=True)
    assert len(estimator.frequent_values_) == 3
    curves = model.predict(table)
    assert np.any(curves == 5.0)
    assert not np.any((curves != 5.0) & np.isclose(curves, 5.0, rtol=1e-12))
    often = np.isin(y, [5.0, 7.0, 0.3])
    np.testing.assert_array_equal(model.inverse_transform_target(training.rows.y)[often], y[often])


def test_calibrated_intervals_of_tables_can_be_calibrated_for_another_coverage(new):
    inner = made(conformal=True)
    y = np.asarray(new["price"], dtype=float)
    again = ConformalQuantileRegressor(inner, coverage=0.5, method="prefit").fit(new, y)
    assert again.predict_interval(new).shape == (len(y), 2)
