"""What a fit costs, said before it is begun: memory held against what a fit really takes, and refusals."""

import dataclasses
import doctest
import time
import tracemalloc

import numpy as np
import pytest

import quernel.data.design_matrix
import quernel.tuning.cost
import quernel.tuning.data_summary
import quernel.tuning.plan
from quernel import KernelQuantileRegressor, estimate_cost
from quernel.datasets import make_homoscedastic
from quernel.features import RandomFeatures
from quernel.tuning.cost import estimate_tabular_seconds
from support.models import plain_regressor

GIGABYTE = 10**9


@pytest.fixture
def free_memory(monkeypatch):
    """Pretend that so many bytes are free."""

    def pretend(n_bytes):
        for room in (quernel.tuning.plan, quernel.data.design_matrix):
            monkeypatch.setattr(room, "available_memory", lambda: n_bytes)

    return pretend


def peak_of(model, X, y):
    model.fit(X, y)  # what is loaded or compiled once is no part of it
    tracemalloc.start()
    try:
        model.fit(X, y)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("n", "M", "levels"), [(8_000, 300, [0.1, 0.5, 0.9]), (40_000, 100, 0.5), (1_500, 1_500, 0.5)])
def test_peak_memory_is_what_a_fit_takes(n, M, levels):
    X, y, _ = make_homoscedastic(n, random_state=0)
    model = plain_regressor(levels, n_components=M, random_state=0)
    ratio = estimate_cost(n, 3, M, np.size(levels)).peak_memory / peak_of(model, X, y)
    assert 0.5 < ratio < 2


def test_recomputed_features_are_not_counted_and_not_held():
    X, y, _ = make_homoscedastic(100_000, random_state=0)
    model = plain_regressor(n_components=200, random_state=0, max_memory=1)
    cost = estimate_cost(100_000, 3, 200, max_memory=1)
    whole = 100_000 * 200 * 8
    assert not cost.stored
    assert cost.memory < 0.7 * whole < whole < estimate_cost(100_000, 3, 200).memory
    assert 0.5 < cost.peak_memory / peak_of(model, X, y) < 2


@pytest.mark.parametrize("M", [7, 40])
def test_features_are_counted_to_the_byte(M):
    X, _, _ = make_homoscedastic(500, random_state=0)
    assert estimate_cost(500, 3, M).features == RandomFeatures(n_components=M).fit(X).transform(X).nbytes


def test_the_linear_kernel_needs_no_further_features():
    assert estimate_cost(10**6, 50, kernel="linear").features == 0
    assert estimate_cost(10**6, 50, kernel="linear", max_memory=1).stored


BASE = {"n": 20_000, "d": 5, "n_components": 200, "n_levels": 3}


@pytest.mark.parametrize("solver", ["newton", "admm"])
@pytest.mark.parametrize("name", BASE)
def test_more_of_anything_costs_more(name, solver):
    small, large = (estimate_cost(**{**BASE, name: factor * BASE[name]}, solver=solver) for factor in (1, 4))
    assert large.memory > small.memory or (name == "d" and large.memory == small.memory)  # X itself is not copied
    assert large.peak_memory >= small.peak_memory
    assert large.seconds > small.seconds


def test_recomputing_takes_less_memory_and_more_time():
    stored, recomputed = estimate_cost(10**6, 3, 300, max_memory=10**10), estimate_cost(10**6, 3, 300, max_memory=1)
    assert recomputed.peak_memory < stored.peak_memory
    assert recomputed.seconds > stored.seconds


def test_auto_is_the_estimators_own_choice():
    X, y, _ = make_homoscedastic(200, random_state=0)
    used = plain_regressor(random_state=0).fit(X, y).n_components_
    assert estimate_cost(200, 3, bandwidth="auto") == estimate_cost(200, 3, used, bandwidth="auto")
    used = KernelQuantileRegressor(kernel="laplacian").fit(X, y).n_components_
    assert estimate_cost(200, 3, kernel="laplacian").features == 8 * 200 * used


@pytest.mark.parametrize(("n", "levels"), [(400, [0.1, 0.5, 0.9]), (1500, 0.5)])
def test_seconds_of_default_fits(n, levels):
    X, y, _ = make_homoscedastic(n, random_state=0)
    model = KernelQuantileRegressor(levels, kernel="laplacian")
    model.fit(X[:100], y[:100])  # what is loaded or compiled once is no part of it
    start = time.process_time()
    model.fit(X, y)
    expected = estimate_cost(n, 3, n_levels=np.size(levels), kernel="laplacian").seconds
    assert 1 / 3 < expected / (time.process_time() - start) < 3


def test_learning_costs_time_and_landmarks_memory():
    learned, automatic = (estimate_cost(20_000, 8, bandwidth=one) for one in ("learned", "auto"))
    assert learned.seconds > automatic.seconds + 0.3
    assert learned.features == 8 * 20_000 * 2000
    smooth = estimate_cost(20_000, 8, kernel="gaussian")
    assert smooth.features == automatic.features
    assert smooth.seconds > automatic.seconds + 0.3


def test_it_reads_well_and_cannot_be_changed():
    cost = estimate_cost(10**6, 3, 300, max_memory=10**10)
    assert str(cost).startswith("about 2.4 GB of features (stored) + ")
    assert str(cost).endswith("s on this machine")
    assert "recomputed block by block" in str(estimate_cost(10**6, 3, 300, max_memory=1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        cost.memory = 0


@pytest.mark.parametrize(
    ("seconds", "message"), [(0.0234, "0.02 s"), (3.4, "3 s"), (94, "90 s"), (1234, "20 min"), (40_000, "10 h")]
)
def test_durations_have_one_digit(seconds, message):
    assert message in str(quernel.tuning.cost.Cost(10, 10, True, seconds))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 0}, "n must be a positive integer.*got 0"),
        ({"d": 2.5}, "d must be a positive integer.*got 2.5"),
        ({"n_levels": -1}, "n_levels.*got -1"),
        ({"n_components": "exact"}, "rank.*Give the rank you expect"),
        ({"n_components": "many"}, "n_components.*'many'"),
        ({"solver": "magic"}, "solver 'magic'.*newton"),
        ({"max_memory": "1GB"}, "max_memory.*bytes.*'1GB'"),
        ({"kernel": "gausian"}, "gausian"),
    ],
)
def test_bad_input_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        estimate_cost(**{**BASE, **settings})


# --- fits that are refused -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    X, y, _ = make_homoscedastic(1_000, random_state=0)
    return X, y


def test_admm_is_refused_where_its_features_do_not_fit(table):
    model = plain_regressor(n_components=1_000, solver="admm", max_memory=10**6)
    with pytest.raises(
        ValueError, match=r"admm.*1,000 rows x 1,000 features need 8\.0 MB.*1\.0 MB.*newton.*max_memory"
    ):
        model.fit(*table)
    assert not hasattr(model, "feature_map_")  # before any work


def test_admm_is_refused_where_its_copy_does_not_fit(table, free_memory):
    free_memory(12 * 10**6)
    with pytest.raises(ValueError, match=r"8\.0 MB twice over.*12 MB are free.*newton"):
        plain_regressor(n_components=1_000, solver="admm").fit(*table)


def test_an_allowance_beyond_the_machine_is_refused(table, free_memory):
    free_memory(7 * 10**6)
    with pytest.raises(ValueError, match=r"8\.0 MB.*7\.0 MB are free.*Lower max_memory"):
        plain_regressor(n_components=1_000, max_memory=GIGABYTE).fit(*table)


def test_newton_recomputes_instead_of_refusing(table, free_memory):
    """The negative control: with the same memory, a fit that may recompute its features goes through."""
    free_memory(7 * 10**6)
    model = plain_regressor(n_components=1_000, random_state=0, max_memory=10**6).fit(*table)
    assert model.duality_gap_[0] <= 1e-6


@pytest.mark.parametrize("settings", [{}, {"kernel": "linear"}, {"n_components": "exact"}, {"solver": "admm"}])
def test_rows_whose_own_state_does_not_fit_are_refused(table, free_memory, settings):
    levels = np.linspace(0.01, 0.99, 50)
    free_memory(2 * 10**6)
    with pytest.raises(ValueError, match=r"1,000 rows x 50 levels need 2\.4 MB.*2\.0 MB are free.*fewer levels"):
        plain_regressor(levels, **settings).fit(*table)


def test_a_weighted_table_counts_the_rows_that_are_left(table, free_memory):
    X, y = table
    free_memory(2 * 10**6)
    weight = np.r_[np.ones(400), np.zeros(600)]
    plain_regressor(np.linspace(0.01, 0.99, 50), kernel="linear", alpha=1.0).fit(X, y, weight)


def test_docstring_example():
    failed, tried = doctest.testmod(quernel.tuning.cost)
    assert (failed, tried) == (0, 4)


def test_a_linear_fit_makes_no_pass_over_X_for_what_missing_values_are_replaced_by(monkeypatch):
    """By means of some rows; a tenth of the time of large fits, and more, were spent on those of all rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(3.0, 1.0, (25_000, 2))
    y = X[:, 0] + rng.standard_normal(len(X))
    weight = rng.uniform(1, 2, len(X))
    monkeypatch.delattr(quernel.tuning.data_summary.DataSummary, "mean")
    model = plain_regressor(0.5, kernel="linear", alpha=1e-4).fit(X, y, weight)
    given = np.array([[np.nan, 3.0], [3.0, 3.0]])
    np.testing.assert_allclose(*model.predict(given), atol=0.1)


def test_the_time_of_a_tabular_fit_grows_with_its_rows_and_columns():
    assert estimate_tabular_seconds(50_000, 4) > 5 * estimate_tabular_seconds(500, 4)
    assert estimate_tabular_seconds(5000, 40) > 1.2 * estimate_tabular_seconds(5000, 4)
