"""The simulations follow their own true quantiles; the wind sample is what its description says."""

import doctest
import importlib
import pickle
import subprocess
import sys
from statistics import NormalDist

import numpy as np
import pytest

from quernel.datasets import load_used_cars, load_wind, make_heteroscedastic, make_homoscedastic, make_spline

MAKERS = {
    "homoscedastic": make_homoscedastic,
    "heteroscedastic": make_heteroscedastic,
    "heteroscedastic at 0.1": lambda n, **options: make_heteroscedastic(n, 0.1, **options),
    "heteroscedastic, 5 features": lambda n, **options: make_heteroscedastic(n, 0.75, n_features=5, **options),
    "homoscedastic, 5 features": lambda n, **options: make_homoscedastic(n, n_features=5, **options),
    "spline": lambda n, **options: make_spline(n, 0.5, 0.25, **options),
    "spline, worst case": lambda n, **options: make_spline(n, 0, 1, **options),
    "spline, most benign case": lambda n, **options: make_spline(n, 1, 0, **options),
}
LEVELS = np.array([0.05, 0.25, 0.5, 0.9])


def standard_errors_off(y, curves, level):
    return np.abs(np.mean(y <= curves) - level) / np.sqrt(level * (1 - level) / len(y))


@pytest.mark.parametrize("name", MAKERS)
def test_true_quantiles_cover_their_share(name):
    X, y, quantile = MAKERS[name](40_000, random_state=3)
    parts = {"all": np.full(len(y), True), "left": X[:, 0] < 0.5, "high mean": X.mean(axis=1) > 0.6}
    for rows in parts.values():  # in parts of the cube too: a marginal match would hide a wrong shape
        for level in LEVELS:
            assert standard_errors_off(y[rows], quantile(X[rows], level), level) < 4
            assert standard_errors_off(y[rows], quantile(X[rows], level + 0.05), level) > 4


@pytest.mark.parametrize("name", MAKERS)
def test_quantiles_have_the_shape_of_the_level_and_ascend(name):
    X, y, quantile = MAKERS[name](7, random_state=0)
    curves = quantile(X, LEVELS)
    assert y.shape == quantile(X, 0.3).shape == (7,)
    assert quantile(X, [0.3]).shape == (7, 1)
    assert curves.shape == (7, 4)
    np.testing.assert_array_equal(curves[:, 1], quantile(X, 0.25))
    assert np.all(np.diff(curves, axis=1) > 0)


def test_homoscedastic_draws_in_the_documented_order():
    rng = np.random.default_rng(11)
    X = rng.random((4, 3))
    y = [np.exp(-a + b) - b * c + (a + b + c) / 3 for a, b, c in X] + rng.standard_normal(4)
    simulation = make_homoscedastic(4, random_state=11)
    np.testing.assert_array_equal(simulation.X, X)
    np.testing.assert_allclose(simulation.y, y, rtol=1e-13)
    assert not np.allclose(make_homoscedastic(4, random_state=12).y, y)


def test_heteroscedastic_draws_in_the_documented_order():
    rng = np.random.default_rng(11)
    X, noise, beta = rng.random((6, 4)), rng.standard_normal(6), rng.random(3)
    upper_quartile = NormalDist().inv_cdf(0.75)
    sines = [sum(b * np.sin(2 * np.pi * v) for b, v in zip(beta, row, strict=False)) for row in X]
    y = sines + (1 + X.sum(axis=1) / 4) * (noise - upper_quartile)
    simulation = make_heteroscedastic(6, 0.75, n_features=4, random_state=11)
    np.testing.assert_array_equal(simulation.X, X)
    np.testing.assert_allclose(simulation.y, y, rtol=1e-12)
    assert not np.allclose(make_heteroscedastic(6, 0.5, n_features=4, random_state=11).y, y)


def test_heteroscedastic_is_a_sum_of_sines_at_its_own_level():
    X, _, quantile = make_heteroscedastic(50, 0.9, n_features=4, random_state=2)
    sines = sum(beta * np.sin(2 * np.pi * X[:, j]) for j, beta in enumerate(quantile.beta))
    np.testing.assert_allclose(quantile(X, 0.9), sines, atol=1e-12)
    assert np.all(np.abs(quantile(X, 0.5) - sines) > 1)
    assert len(set(quantile.beta)) == 3


@pytest.mark.parametrize("name", MAKERS)
def test_same_seed_same_data_and_a_generator_moves_on(name):
    make, rng = MAKERS[name], np.random.default_rng(5)
    first, again, second = make(20, random_state=5), make(20, random_state=rng), make(20, random_state=rng)
    np.testing.assert_array_equal(first.y, again.y)
    assert not np.any(first.y == second.y)
    assert not np.any(make(20).y == make(20).y)


@pytest.mark.parametrize("name", MAKERS)
def test_simulations_survive_pickling(name):
    simulation = MAKERS[name](6, random_state=1)
    copy = pickle.loads(pickle.dumps(simulation))
    np.testing.assert_array_equal(copy.quantile(copy.X, LEVELS), simulation.quantile(simulation.X, LEVELS))


@pytest.mark.parametrize("make", [make_homoscedastic, make_heteroscedastic])
@pytest.mark.parametrize("n", [0, -1, 2.0, "3", True, None])
def test_n_must_be_a_positive_integer(make, n):
    with pytest.raises(ValueError, match="n must be an integer of at least 1; got"):
        make(n)


@pytest.mark.parametrize("make", [make_homoscedastic, make_heteroscedastic])
def test_counts_may_be_numpy_integers_but_three_features_are_needed(make):
    assert make(np.int64(2), n_features=np.int32(4)).X.shape == (2, 4)
    with pytest.raises(ValueError, match="n_features must be an integer of at least 3; got 2"):
        make(5, n_features=2)


@pytest.mark.parametrize("tau", [0, 1, -0.1, 50, np.nan])
def test_tau_must_be_a_level(tau):
    with pytest.raises(ValueError, match="tau must be one level strictly between 0 and 1"):
        make_heteroscedastic(5, tau)


def test_true_quantiles_refuse_other_points_and_levels():
    X, _, quantile = make_homoscedastic(5, random_state=0)
    with pytest.raises(ValueError, match=r"X must have shape \(n, 3\)"):
        quantile(X[:, :2], 0.5)
    with pytest.raises(ValueError, match="level must be"):
        quantile(X, [0.5, 1.0])


def test_wind_is_what_its_description_says():
    wind = load_wind()
    assert wind.X.shape == (15_000, 3)
    assert wind.y.shape == wind.time.shape == wind.turbine.shape == (15_000,)
    assert wind.X.dtype == wind.y.dtype == np.float64
    assert wind.feature_names == ("wind_speed", "wind_direction", "temperature")
    assert wind.target_name == "power"
    assert np.all(np.isfinite(wind.X))
    assert np.all(np.isfinite(wind.y))
    speed, direction, temperature = wind.X.T
    assert 0 <= speed.min() < speed.max() < 40
    assert 0 <= direction.min() < direction.max() <= 360
    assert -40 < temperature.min() < 0 < temperature.max() < 50
    assert -50 < wind.y.min() < 0 < 2000 < wind.y.max() < 2200
    for word in ("ENGIE", "La Haute Borne", "Etalab Open Licence 2.0", "kW", "m/s"):
        assert word in wind.description


def test_wind_rows_are_distinct_times_in_order():
    wind = load_wind()
    assert np.all(np.diff(wind.time) >= np.timedelta64(0, "s"))
    assert np.datetime64("2014-01-01T00:00") <= wind.time[0]
    assert wind.time[-1] < np.datetime64("2016-01-01T00:00")
    assert len(np.unique(wind.turbine)) == 4
    assert len(set(zip(wind.time.tolist(), wind.turbine.tolist(), strict=True))) == 15_000


def test_wind_power_rises_with_wind_speed():
    wind = load_wind()
    speed = wind.X[:, 0]
    calm, breeze, gale = (np.median(wind.y[(speed >= a) & (speed < a + 2)]) for a in (1, 6, 11))
    assert calm < 10 < 300 < breeze < 900 < gale


def test_wind_keeps_the_two_decimals_that_were_logged():
    wind = load_wind()
    np.testing.assert_array_equal(wind.X, np.round(wind.X, 2))
    assert np.any(wind.X.astype(np.float32) != wind.X)  # 32 bits alone would not give them


def test_wind_as_frame_holds_the_same_numbers():
    pd = pytest.importorskip("pandas")
    arrays, frame = load_wind(), load_wind(as_frame=True)
    assert isinstance(frame.X, pd.DataFrame)
    assert tuple(frame.X.columns) == arrays.feature_names
    assert frame.y.name == arrays.target_name
    np.testing.assert_array_equal(frame.X.to_numpy(), arrays.X)
    np.testing.assert_array_equal(frame.y.to_numpy(), arrays.y)


WITHOUT_PANDAS = """
import sys
class Absent:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from quernel.datasets import load_wind
assert load_wind().X.shape == (15_000, 3)
try:
    load_wind(as_frame=True)
except ImportError as error:
    assert "pip install pandas" in str(error), error
else:
    raise AssertionError("pandas was found")
"""


def test_wind_loads_without_pandas():
    subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], check=True)


@pytest.mark.parametrize(("r", "gamma"), [(0.5, 0.25), (0.8, 0.2), (1, 0.5)])
def test_the_spline_median_is_its_series(r, gamma):
    X, y, quantile = make_spline(50, r, gamma, random_state=2)
    k = np.arange(1, 4001)
    series = 1 + 2 * np.cos(2 * np.pi * X * k) @ k ** -(r / gamma + 0.5)
    np.testing.assert_allclose(quantile(X, 0.5), series, atol=1e-4)
    assert not np.allclose(quantile(X, 0.5), 1 + 2 * np.cos(2 * np.pi * X * k) @ k ** -(r / gamma), atol=1e-2)
    rng = np.random.default_rng(2)
    np.testing.assert_array_equal(X, rng.random((50, 1)))
    np.testing.assert_allclose(y - quantile(X, 0.5), 0.1 * rng.standard_normal(50), atol=1e-12)


def test_spline_limits_and_what_it_refuses():
    X, _, quantile = make_spline(20, 1, 0, random_state=0)
    np.testing.assert_allclose(quantile(X, 0.5), 1 + 2 * np.cos(2 * np.pi * X[:, 0]), rtol=1e-12)
    assert np.isfinite(make_spline(5, 0, 1, random_state=0).quantile([[0.0], [1.0]], 0.5)).all()
    for r, gamma in ((-0.1, 0.5), (0.5, 1.1), (0, 0), (np.nan, 0.5), (0.5, [0.1])):
        with pytest.raises(ValueError, match="make_spline needs r >= 0 and gamma in"):
            make_spline(5, r, gamma)
    with pytest.raises(ValueError, match="n must be an integer"):
        make_spline(0, 0.5, 0.5)
    assert pickle.loads(pickle.dumps(quantile)) == quantile


CARS = "carID,brand,year,mileage,tax,mpg,engineSize"
ROWS = ["7,audi,2015,1000,20,50.5,1.5", "3,vw,2018,,145,60,1.0", "5,ford,2019,30,145,40.1,2.0"]


def test_used_cars_from_one_file_and_from_the_folder_agree(tmp_path):
    one = tmp_path / "cars.csv"
    prices = {"7": 9000, "3": 8000, "5": 20000}
    one.write_text("\n".join([f"{CARS},price", *(f"{row},{prices[row.split(',')[0]]}" for row in ROWS)]))
    folder = tmp_path / "kaggle"
    folder.mkdir()
    (folder / "X_train.csv").write_text("\n".join([CARS, *ROWS[:2]]))
    (folder / "y_train.csv").write_text("carID,price\n3,8000\n7,9000")  # in another order
    (folder / "X_test.csv").write_text("\n".join([CARS, ROWS[2]]))
    (folder / "y_test.csv").write_text("carID,price\n5,20000")
    for cars in (load_used_cars(one), load_used_cars(str(folder))):
        np.testing.assert_array_equal(cars.X, [[2015, 1000, 20, 50.5, 1.5], [2019, 30, 145, 40.1, 2.0]])
        np.testing.assert_array_equal(cars.y, [9000, 20000])
        assert cars.feature_names == ("year", "mileage", "tax", "mpg", "engineSize")
    (folder / "y_test.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"y_test\.csv is missing\. .*kaggle\.com"):
        load_used_cars(folder)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (f"{CARS}\n{ROWS[0]}", "has no column price"),
        (f"{CARS},price\n{ROWS[0]},cheap", "Column price of .* holds string, not numbers"),
        (f"{CARS},price\n{ROWS[1]},5", "got 0 complete rows"),
        (f"{CARS},price\n{ROWS[0]},0", "prices above 0"),
        ("", "cannot be read as CSV"),
    ],
)
def test_files_that_are_no_used_cars_are_refused_with_advice(tmp_path, text, word):
    path = tmp_path / "cars.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{word}.*kaggle.com"):
        load_used_cars(path)
    with pytest.raises(FileNotFoundError, match=r"There are no used cars at .*kaggle.com"):
        load_used_cars(tmp_path / "nowhere.csv")


def test_the_examples_of_the_simulations():
    failed, tried = doctest.testmod(importlib.import_module("quernel.datasets.simulations"))
    assert (failed, tried) == (0, 6)
