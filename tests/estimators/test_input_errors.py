"""Bad input fails before any work, and the message says what is wrong, what was given and what to do."""

import datetime
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from sklearn.exceptions import NotFittedError

from quernel import KernelRegressor
from quernel.features import SAMPLINGS, RandomFeatures
from quernel.kernels import KERNELS, Gaussian, Linear, PeriodicSpline
from quernel.solvers import SOLVERS
from support.models import plain_regressor

N = 30
COLUMNS = ["wind", "load", "price"]


class WorkStartedError(Exception):
    """Raised in place of a solve."""


@pytest.fixture(autouse=True)
def no_work(monkeypatch, request):
    """No solver may be reached, unless the test needs a fitted model."""
    if "model" in request.fixturenames:
        return

    def refuse(*_, **__):
        raise WorkStartedError

    for name in SOLVERS:
        monkeypatch.setitem(SOLVERS, name, replace(SOLVERS[name], solve=refuse))


@pytest.fixture
def table():
    rng = np.random.default_rng(5)
    return rng.random((N, 3)), rng.standard_normal(N)


@pytest.fixture
def model(table):
    return plain_regressor([0.1, 0.5, 0.9], n_components=20, random_state=0).fit(*table)


def message_of(call, *args, error=ValueError, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def says(message, *fragments):
    missing = [word for word in fragments if word not in message]
    assert not missing, f"{missing} not in {message!r}"


@pytest.mark.parametrize("solver", SOLVERS)
def test_good_input_does_reach_the_solver(table, solver):
    # Without this, every test below could pass because nothing ever reaches a solver.
    with pytest.raises(WorkStartedError):
        plain_regressor(solver=solver).fit(*table)


# --- settings --------------------------------------------------------------------------------------------------------

SETTINGS = [
    ("level 0", {"quantiles": 0}, ["strictly between 0 and 1", "got [0.0]", "0.95"]),
    ("level 1", {"quantiles": 1.0}, ["strictly between 0 and 1", "got [1.0]"]),
    ("level below 0", {"quantiles": [0.5, -0.1]}, ["strictly between 0 and 1", "got [-0.1]"]),
    ("level as percentage", {"quantiles": [5, 95]}, ["between 0 and 1", "[5.0, 95.0]", "0.95 for the 95th percentile"]),
    ("level nan", {"quantiles": [0.1, np.nan]}, ["between 0 and 1", "nan"]),
    ("levels repeated", {"quantiles": [0.1, 0.5, 0.1]}, ["must differ", "[0.1, 0.5, 0.1]"]),
    ("levels empty", {"quantiles": []}, ["one level or a flat sequence", "[]"]),
    ("level text", {"quantiles": "median"}, ["a number or a sequence of numbers", "'median'"]),
    ("levels text", {"quantiles": ["low", "high"]}, ["a number or a sequence of numbers", "'low'"]),
    ("levels 2-D", {"quantiles": [[0.1, 0.9]]}, ["flat sequence", "[[0.1, 0.9]]"]),
    ("alpha 0", {"alpha": 0}, ["alpha", "positive", '"auto"', "got 0"]),
    ("alpha negative", {"alpha": -1e-3}, ["alpha", "positive", '"auto"', "got -0.001"]),
    ("alpha nan", {"alpha": np.nan}, ["alpha", "finite", '"auto"', "nan"]),
    ("alpha inf", {"alpha": np.inf}, ["alpha", "finite", '"auto"', "inf"]),
    ("alpha text", {"alpha": "small"}, ["alpha", '"auto"', "'small'"]),
    ("alpha list", {"alpha": [1e-3, 1e-2]}, ["alpha", "number", "[0.001, 0.01]"]),
    ("kernel", {"kernel": "rbf"}, ["Unknown kernel 'rbf'", *map(repr, KERNELS), "quernel.kernels"]),
    ("sampling", {"sampling": "magic"}, ["Unknown sampling 'magic'", *map(repr, SAMPLINGS)]),
    ("solver", {"solver": "simplex"}, ["Unknown solver 'simplex'", *map(repr, SOLVERS)]),
    ("noncrossing", {"noncrossing": "sort"}, ["Unknown noncrossing 'sort'", "'rearrange'", "None"]),
    ("joint admm", {"noncrossing": "joint", "solver": "admm"}, ["'joint' is for solver='newton'", "solver='admm'"]),
    ("joint single", {"noncrossing": "joint", "dtype": "float32"}, ["dtype='float64' only", "dtype='float32'"]),
    ("noncrossing False", {"noncrossing": False}, ["Unknown noncrossing False", "'rearrange'", "None"]),
    ("bandwidth 0", {"bandwidth": 0.0}, ["bandwidth", "positive", "got 0.0"]),
    ("bandwidth negative", {"bandwidth": [1.0, -2.0, 1.0]}, ["bandwidth", "positive", "-2.0"]),
    ("bandwidth nan", {"bandwidth": np.nan}, ["bandwidth", "finite", "nan"]),
    ("bandwidth short", {"bandwidth": [1.0, 2.0]}, ["bandwidth has 2 entries", "3 columns", "one number or one per"]),
    ("bandwidth word", {"bandwidth": "wide"}, ["bandwidth 'wide'", "'auto'"]),
    ("bandwidth texts", {"bandwidth": ["a", "b", "c"]}, ["bandwidth", "'a'"]),
    (
        "bandwidth linear",
        {"kernel": "linear", "bandwidth": 1.0},
        ["linear kernel has no bandwidth", "leave bandwidth at its default"],
    ),
    (
        "bandwidth spline",
        {"kernel": "spline", "bandwidth": 1.0},
        ["spline kernel has no bandwidth", "leave bandwidth at its default"],
    ),
    ("bandwidth arccosine", {"kernel": "arccosine", "bandwidth": 1.0}, ["arccosine kernel has no bandwidth"]),
    (
        "bandwidth sum",
        {"kernel": Gaussian(1.0) + Gaussian(2.0), "bandwidth": 1.0},
        ["its own bandwidth", "leave the estimator's at its default"],
    ),
    ("spline exact", {"kernel": PeriodicSpline(1), "n_components": "exact"}, ["infinite where x = z", "order above 1"]),
    ("spline orthogonal", {"kernel": "spline", "sampling": "orthogonal"}, ["unit cube", "'qmc'"]),
    ("linear summand", {"kernel": Gaussian() + Linear()}, ["no spectral measure", "'gaussian'", '"exact"']),
    ("too few for a sum", {"kernel": Gaussian() + Gaussian(2.0), "n_components": 1}, ["sum of 2 kernels"]),
    (
        "leverage_alpha",
        {"sampling": RandomFeatures(sampling="leverage", leverage_alpha=0)},
        ["leverage_alpha", "got 0"],
    ),
    ("sampling object", {"sampling": RandomFeatures(sampling="magic")}, ["Unknown sampling 'magic'", "'leverage'"]),
    (
        "bandwidth twice",
        {"kernel": Gaussian(2.0), "bandwidth": 1.0},
        ["its own bandwidth", "leave the estimator's at its default"],
    ),
    ("bandwidth of object short", {"kernel": Gaussian([1.0, 2.0])}, ["2 entries", "3 columns"]),
    ("n_components 0", {"n_components": 0}, ["n_components", "positive integer", '"auto" or "exact"', "got 0"]),
    ("n_components 1.5", {"n_components": 1.5}, ["n_components", "positive integer", '"exact"', "got 1.5"]),
    ("n_components text", {"n_components": "many"}, ["n_components", '"auto" or "exact"', "'many'"]),
    ("tol 0", {"tol": 0}, ["tol", "positive", "got 0"]),
    ("tol text", {"tol": "tight"}, ["tol", "positive", "'tight'"]),
    ("max_iter 0", {"max_iter": 0}, ["max_iter", "positive integer", "got 0"]),
    ("max_iter 1.5", {"max_iter": 1.5}, ["max_iter", "positive integer", "got 1.5"]),
    ("max_memory text", {"max_memory": "1GB"}, ["max_memory", "bytes", "'1GB'"]),
]


@pytest.mark.parametrize(("settings", "messages"), [case[1:] for case in SETTINGS], ids=[case[0] for case in SETTINGS])
def test_settings(table, settings, messages):
    says(message_of(plain_regressor(**settings).fit, *table), *messages)


# --- numbers that are missing ----------------------------------------------------------------------------------------


def spoiled(X, value, rows=(3, 7), column=1):
    X = X.copy()
    X[list(rows), column] = value
    return X


@pytest.mark.parametrize(
    ("make", "label"),
    [
        (np.asarray, "column 1 "),
        (lambda X: X.astype(np.float32), "column 1 "),
        (lambda X: X.tolist(), "column 1 "),
        (lambda X: pd.DataFrame(X, columns=COLUMNS), "column 'load'"),
        (lambda X: pl.DataFrame(X, schema=COLUMNS), "column 'load'"),
    ],
    ids=["array", "float32", "lists", "pandas", "polars"],
)
def test_infinite_numbers_in_X_are_refused_and_missing_ones_are_not(table, make, label):
    X, y = table
    message = message_of(plain_regressor().fit, make(spoiled(X, -np.inf)), y)
    says(message, "X contains infinity", label, "0 NaN, 2 infinite", "by NaN if the value is missing")
    with pytest.raises(WorkStartedError):
        plain_regressor().fit(make(spoiled(X, np.nan)), y)


def test_infinite_numbers_beside_text_are_refused(table):
    X, y = table
    frame = pd.DataFrame(X, columns=COLUMNS).assign(load=np.inf, colour=["red", "blue"] * (N // 2))
    says(message_of(plain_regressor().fit, frame, y), "infinity in column 'load'", f"({N} entries)")


def test_columns_of_one_name_are_refused_by_name(table, model):
    X, y = table
    frame = pd.DataFrame(X, columns=["wind", "load", "wind"])
    for call in (partial(plain_regressor().fit, frame, y), partial(model.predict, frame)):
        says(message_of(call), "several columns of one name: 'wind'", "Rename or drop")


def test_every_column_with_infinite_numbers_is_named(table):
    X, y = table
    X = spoiled(spoiled(X, -np.inf, rows=(0,), column=0), np.inf, rows=(1, 2), column=2)
    message = message_of(plain_regressor().fit, pd.DataFrame(X, columns=COLUMNS), y)
    says(message, "'wind' (0 NaN, 1 infinite)", "'price' (0 NaN, 2 infinite)")
    assert "load" not in message


@pytest.mark.parametrize(
    "make",
    [
        lambda values: pd.DataFrame({"wind": pd.array(values, dtype="Float64"), "load": 1.0}),
        lambda values: pl.DataFrame({"wind": values, "load": [1.0] * len(values)}),
        lambda values: pd.DataFrame({"wind": pd.Series(values, dtype=object), "load": 1.0}),
    ],
    ids=["pandas NA", "polars null", "None among objects"],
)
def test_empty_cells_of_frames(table, make):
    with pytest.raises(WorkStartedError):
        plain_regressor().fit(make([None, *np.arange(1.0, N)]), table[1])


@pytest.mark.parametrize(("value", "count"), [(np.nan, "3 NaN and 0 infinite"), (np.inf, "0 NaN and 3 infinite")])
@pytest.mark.parametrize("make", [np.asarray, pd.Series, pl.Series, list], ids=["array", "pandas", "polars", "list"])
def test_missing_numbers_in_y(table, make, value, count):
    X, y = table
    y = y.copy()
    y[4:7] = value
    says(message_of(plain_regressor().fit, X, make(y)), "y", count, f"{N} values", "Leave those rows out")


# --- things that are not numbers -------------------------------------------------------------------------------------


def with_text(X):
    X = X.astype(object)
    X[3, 1] = "red"
    return X


TEXTS = [
    ("object array", with_text, "Column 1"),
    ("lists", lambda X: with_text(X).tolist(), "Column 1"),
    ("text array", lambda X: np.where(np.arange(3) == 1, "red", X.astype(str)), "Column 1"),
    ("pandas object", lambda X: pd.DataFrame(with_text(X), columns=COLUMNS), "Column 'load'"),
    ("pandas str", lambda X: pd.DataFrame(X, columns=COLUMNS).assign(load="red"), "Column 'load'"),
    (
        "pandas string with gaps",
        lambda X: pd.DataFrame(X, columns=COLUMNS).assign(load=pd.array([None] + ["red"] * (N - 1), dtype="string")),
        "Column 'load'",
    ),
    (
        "pandas category",
        lambda X: pd.DataFrame(X, columns=COLUMNS).assign(load=pd.Categorical(["red"] * N)),
        "Column 'load'",
    ),
    (
        "polars string",
        lambda X: pl.DataFrame(X, schema=COLUMNS).with_columns(load=pl.lit("red")),
        "Column 'load'",
    ),
    (
        "polars category",
        lambda X: pl.DataFrame(X, schema=COLUMNS).with_columns(load=pl.lit("red").cast(pl.Categorical)),
        "Column 'load'",
    ),
]


@pytest.mark.parametrize(("make", "label"), [case[1:] for case in TEXTS], ids=[case[0] for case in TEXTS])
def test_text_where_the_model_was_fitted_to_numbers(table, model, make, label):
    named = plain_regressor(n_components=20).fit(pd.DataFrame(table[0], columns=COLUMNS), table[1])
    fitted = named if "'" in label else model
    says(message_of(fitted.predict, make(table[0])), label, "text", "such as 'red'", "fitted to numbers")


DAY = datetime.date(2024, 2, 29)
DAYS = pd.date_range("2024-02-29", periods=N)
DATES = [
    ("object array", lambda X: np.array([[0.5, DAY]] * N, dtype=object), "Column 1"),
    ("lists", lambda X: [[0.5, DAY]] * N, "Column 1"),
    ("pandas", lambda X: pd.DataFrame({"wind": X[:, 0], "when": DAYS}), "Column 'when'"),
    ("pandas time zone", lambda X: pd.DataFrame({"wind": X[:, 0], "when": DAYS.tz_localize("UTC")}), "Column 'when'"),
    ("pandas period", lambda X: pd.DataFrame({"wind": X[:, 0], "when": DAYS.to_period("D")}), "Column 'when'"),
    ("pandas objects", lambda X: pd.DataFrame({"wind": X[:, 0], "when": [DAY] * N}), "Column 'when'"),
    ("polars date", lambda X: pl.DataFrame({"wind": X[:, 0], "when": [DAY] * N}), "Column 'when'"),
    (
        "polars time zone",
        lambda X: pl.DataFrame({"wind": X[:, 0]}).with_columns(
            when=pl.lit(datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC))
        ),
        "Column 'when'",
    ),
]


@pytest.mark.parametrize(("make", "label"), [case[1:] for case in DATES], ids=[case[0] for case in DATES])
def test_dates_where_the_model_was_fitted_to_numbers(table, make, label, model):
    named = plain_regressor(n_components=20).fit(pd.DataFrame({"wind": table[0][:, 0], "when": 1.0}), table[1])
    fitted = named if "'" in label else plain_regressor(n_components=20).fit(table[0][:, :2], table[1])
    says(message_of(fitted.predict, make(table[0])), label, "dates", "2024-02-29", "fitted to numbers")


@pytest.mark.parametrize(
    "make",
    [
        list,
        np.array,
        lambda y: np.array([1.0, *y[1:]], dtype=object),
        pd.Series,
        lambda y: pd.Series(pd.Categorical(y)),
        pl.Series,
    ],
    ids=["list", "text array", "objects", "pandas", "pandas category", "polars"],
)
def test_text_in_y(table, make):
    message = message_of(plain_regressor().fit, table[0], make(["cheap"] * N))
    says(message, "y holds text", "'cheap'", "Encode")


@pytest.mark.parametrize("make", [np.asarray, pd.Series], ids=["numpy", "pandas"])
def test_dates_in_y(table, make):
    says(message_of(plain_regressor().fit, table[0], make(DAYS)), "y", "dates")


def test_complex_numbers(table):
    X, y = table
    says(message_of(plain_regressor().fit, X + 1j, y), "Complex data not supported")
    says(message_of(plain_regressor().fit, X, y + 1j), "Complex data not supported")


@pytest.mark.parametrize("make", [scipy.sparse.csr_array, scipy.sparse.csc_matrix])
def test_sparse_X(table, make):
    X, y = table
    says(message_of(plain_regressor().fit, make(X), y, error=TypeError), "Sparse", "X", "toarray()")


# --- shapes and weights ----------------------------------------------------------------------------------------------


def test_lengths_that_differ(table):
    X, y = table
    says(message_of(plain_regressor().fit, X, y[:-1]), "X", "y", str(N), str(N - 1))


def test_no_rows():
    message = message_of(plain_regressor().fit, np.empty((0, 3)), np.empty(0))
    says(message, "0 sample(s)", "(0, 3)", "minimum of 1")


def test_no_columns():
    says(message_of(plain_regressor().fit, np.empty((5, 0)), np.zeros(5)), "0 feature(s)", "minimum of 1")


def test_X_of_one_dimension(table):
    X, y = table
    says(message_of(plain_regressor().fit, X[:, 0], y), "Expected 2D array", "reshape(-1, 1)")


def test_y_of_two_columns(table):
    X, y = table
    says(message_of(plain_regressor().fit, X, np.column_stack([y, y])), "y should be a 1d array", f"({N}, 2)")


def test_y_left_out(table):
    says(message_of(plain_regressor().fit, table[0]), "requires y", "None")


WEIGHTS = [
    ("negative", np.r_[-1.0, -2.0, np.ones(N - 2)], ["sample_weight", "2 negative", ">= 0"]),
    ("all zero", np.zeros(N), ["sample_weight", "zero for every row", "Give some rows a weight"]),
    ("short", np.ones(N - 1), ["sample_weight", f"({N - 1},)", f"({N},)", "one weight per row"]),
    ("nan", np.r_[np.nan, np.ones(N - 1)], ["sample_weight", "1 NaN or infinite"]),
    ("infinite", np.r_[np.inf, np.ones(N - 1)], ["sample_weight", "1 NaN or infinite"]),
    ("two-dimensional", np.ones((N, 1)), ["ample weights", "1D", "2D"]),
    ("text", ["heavy"] * N, ["sample_weight", "'heavy'"]),
]


@pytest.mark.parametrize(("weight", "messages"), [case[1:] for case in WEIGHTS], ids=[case[0] for case in WEIGHTS])
def test_weights(table, weight, messages):
    says(message_of(plain_regressor().fit, *table, sample_weight=weight), *messages)


# --- after the fit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda model, X, y: model.predict(X),
        lambda model, X, y: model.predict_interval(X),
        lambda model, X, y: model.predict_cdf(X, y),
        lambda model, X, y: model.sample(X),
        lambda model, X, y: model.score(X, y),
    ],
    ids=["predict", "predict_interval", "predict_cdf", "sample", "score"],
)
def test_use_before_fit(table, call):
    message = message_of(call, plain_regressor(), *table, error=NotFittedError)
    says(message, "KernelQuantileRegressor", "not fitted yet", "Call 'fit'")


@pytest.mark.parametrize("method", ["predict", "predict_interval", "sample"])
def test_another_number_of_columns(model, table, method):
    keywords = {"coverage": 0.5} if method == "predict_interval" else {}
    message = message_of(getattr(model, method), table[0][:, :2], **keywords)
    says(message, "2 features", "KernelQuantileRegressor", "3 features")


def test_missing_numbers_at_predict(model, table):
    """They are imputed by the means, if the training rows had none."""
    X = table[0]
    np.testing.assert_allclose(model.predict(spoiled(X, np.nan)), model.predict(spoiled(X, X[:, 1].mean())))
    says(message_of(model.predict, spoiled(X, np.inf)), "column 1 ", "2 infinite", "by NaN if the value is missing")


def test_text_at_predict(model, table):
    says(message_of(model.predict, with_text(table[0])), "Column 1", "text", "fitted to numbers")


@pytest.mark.parametrize(("wanted", "named"), [(0.95, "0.95"), (0.05, "0.05"), ([0.5, 0.99], "0.99")])
def test_levels_outside_the_fitted_range(model, table, wanted, named):
    says(message_of(model.predict, table[0], quantiles=wanted), f"Level {named}", "[0.1, 0.9]", "Fit with levels")


@pytest.mark.parametrize(
    ("wanted", "word"), [(1.2, "[1.2]"), ([], "[]"), ("median", "'median'"), ([0.5, 0.5], "differ")]
)
def test_levels_that_are_no_levels_at_predict(model, table, wanted, word):
    says(message_of(model.predict, table[0], quantiles=wanted), "uantile", word)


@pytest.mark.parametrize("coverage", [0, 1, -0.5, 90, np.nan, "most"])
def test_coverage_outside_0_and_1(model, table, coverage):
    message = message_of(model.predict_interval, table[0], coverage=coverage)
    says(message, "coverage", "strictly between 0 and 1", f"got {coverage!r}")


def test_coverage_beyond_the_fitted_levels(model, table):
    says(
        message_of(model.predict_interval, table[0], coverage=0.9),
        "0.05",
        "[0.1, 0.9]",
        "at most 0.8",
        "fit with wider levels",
    )


@pytest.mark.parametrize("method", ["score", "predict_cdf"])
def test_lengths_that_differ_after_the_fit(model, table, method):
    X, y = table
    message = message_of(getattr(model, method), X, y[:-1])
    says(message, "X", "y", str(N), str(N - 1))
    assert "broadcast" not in message


@pytest.mark.parametrize("n", [0, 1.5, -2, "ten"])
def test_numbers_of_draws(model, table, n):
    says(message_of(model.sample, table[0], n), "n must be a positive integer", f"got {n!r}")


def test_missing_numbers_in_the_thresholds_of_predict_cdf(model, table):
    X, y = table
    says(message_of(model.predict_cdf, X, np.where(np.arange(N) == 3, np.nan, y)), "y", "NaN")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 77_777, 149_999])
def test_missing_values_in_large_precomputed_features_are_found_by_the_passes(model, row, bad):
    """Features that the solver reads anyway are not read once more to look for them."""
    X = np.random.default_rng(0).normal(size=(150_000, 20))
    y = X[:, 0].copy()
    X[row, 3] = bad
    with pytest.raises(ValueError, match=r"column 3 \(\d NaN, \d infinite\)"):
        model.set_params(kernel="linear").fit(X, y)


@pytest.mark.parametrize("fit", [plain_regressor(0.5, n_components=5), KernelRegressor(n_components=5)])
def test_numbers_beyond_reckoning_are_refused_before_any_work(fit):
    X, y = np.random.default_rng(0).uniform(0.1, 1, (30, 2)), np.linspace(0.1, 1, 30)
    with pytest.raises(ValueError, match=r"^Column 1 of X holds numbers as large as .*e\+307, .* Rescale it"):
        fit.fit(X * [1, 1e308], y)
    with pytest.raises(ValueError, match=r"^y holds numbers as large as 1e\+308, .* Rescale it"):
        fit.fit(X, 1e308 * y)
    with pytest.raises(ValueError, match=r"^The entries of y differ by 9e-321 at most, .* Rescale it"):
        fit.fit(X, 1e-320 * y)
    for inputs, target in ((1e140 * X, 1e140 * y), (X, 1e-140 * y)):
        with pytest.raises(WorkStartedError):
            fit.fit(inputs, target)
