"""Leave-one-out errors in closed form are those of fits without the row, and descent follows their derivatives."""

from dataclasses import replace

import numpy as np
import pytest

from quernel.kernels import Cauchy, Gaussian, Laplacian, Matern
from quernel.tuning import leave_one_out
from quernel.tuning.leave_one_out import LeaveOneOut, LooResult, Target, first_bandwidth

KERNELS = {
    "gaussian": Gaussian(),
    "laplacian": Laplacian(),
    "matern": Matern(),
    "sum": Gaussian() + 0.5 * Laplacian(2.0),  # the second keeps its own
    "sum of open ones": Cauchy() + 2.0 * Laplacian(),
}


def problem(kernel, n=25, seed=0):
    rng = np.random.default_rng(seed)
    X, weight = rng.standard_normal((n, 3)), rng.integers(1, 4, n).astype(float)
    y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1]]) + 0.1 * rng.standard_normal((n, 2))
    targets = Target(y - y.mean(axis=0)), Target(np.abs(y[:, :1]) - 0.5, 0.7)
    return LeaveOneOut(kernel, X, weight / weight.mean(), targets, np.array([1.0, 2.0, 0.5]))


@pytest.mark.parametrize("name", KERNELS)
def test_errors_are_those_of_fits_without_the_row(name):
    by = problem(KERNELS[name])
    found = by.descend(np.ones(3), np.ones(3), steps=10)
    for k, (errors, ridge) in enumerate(zip(by.errors(found), found.ridges, strict=True)):
        for i in range(3):
            rest = np.arange(len(by.X)) != i
            targets = tuple(Target(target.y[rest]) for target in by.targets)
            without = LeaveOneOut(by.kernel, by.X[rest], by.weight[rest], targets, by.usual)
            np.testing.assert_allclose(
                by.targets[k].y[i] - without.predict(found, by.X[[i]])[k][0], errors[i], rtol=1e-6, atol=1e-9
            )
            assert ridge > 0


@pytest.mark.parametrize("name", KERNELS)
def test_derivatives_are_those_of_the_error(name):
    by, at = problem(KERNELS[name]), np.log([0.7, 1.3, 2.0, 0.05, 0.3])  # bandwidths and two ridges
    _, gradient = by._log_error(at)
    for j, step in enumerate(1e-5 * np.eye(5)):
        slope = (by._log_error(at + step)[0] - by._log_error(at - step)[0]) / 2e-5
        assert gradient[j] == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", KERNELS)
def test_in_single_precision_error_and_derivatives_keep_two_digits(name, monkeypatch):
    """Up to the largest condition number for which it is taken; beyond, and with few rows, nothing changes."""
    by = problem(KERNELS[name], n=300)
    K = by._gram(np.array([0.7, 1.3, 2.0]))
    least = np.trace(K) * by.weight.max() / leave_one_out.OPTIONS.single_condition
    for ridge, single in ((0.5, True), (1.01 * least, True), (0.99 * least, False)):
        at = np.log([0.7, 1.3, 2.0, ridge, 3 * least])
        error, gradient = by._log_error(at)
        with monkeypatch.context() as patch:
            patch.setattr(leave_one_out, "OPTIONS", replace(leave_one_out.OPTIONS, single_from=200))
            rounded, rounded_gradient = by._log_error(at)
            assert (by._solve(K, ridge, by.targets[0].y)[0].dtype == np.float32) == single
        assert rounded == pytest.approx(error, abs=1e-3)
        np.testing.assert_allclose(rounded_gradient, gradient, atol=1e-2 * np.abs(gradient).max())
        assert not np.array_equal(rounded_gradient, gradient)


def test_descent_ends_below_its_start_and_finds_the_columns_that_matter():
    by = replace(problem(Laplacian(), n=150), usual=np.ones(3))
    start = first_bandwidth(Laplacian(), np.ones(3), by.X)
    begun, found = (by.descend(start, np.ones(3), steps=steps) for steps in (1, 20))
    assert found.error < begun.error - 0.2
    assert found.bandwidth[2] > 3 * found.bandwidth[:2].max()  # nothing depends on the third


def test_bandwidths_that_are_apart_from_the_usual_ones_cost(monkeypatch):
    """By the square of the distance of their logarithms from each other; a common factor is free."""
    by, d = problem(Gaussian()), 3
    at, one = np.log([*by.usual, 0.05, 0.3]), np.eye(5)[0]
    monkeypatch.setattr(leave_one_out, "OPTIONS", replace(leave_one_out.OPTIONS, apart=0.0))
    free = by._log_error(at)[0], by._log_error(at + np.log(3) * np.r_[np.ones(d), 0, 0])[0]
    apart = by._log_error(at + one)[0]
    monkeypatch.setattr(leave_one_out, "OPTIONS", replace(leave_one_out.OPTIONS, apart=2.0))
    assert by._log_error(at)[0] == pytest.approx(free[0], abs=1e-12)
    assert by._log_error(at + np.log(3) * np.r_[np.ones(d), 0, 0])[0] == pytest.approx(free[1], abs=1e-12)
    spread = 2.0 / len(by.X) * (4 / 9 + 1 / 9 + 1 / 9)
    assert by._log_error(at + one)[0] == pytest.approx(apart + spread, abs=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_usual_bandwidths_are_kept_with_the_ridge_of_the_least_error(name):
    by = problem(KERNELS[name])
    found = by.select_ridge()
    np.testing.assert_array_equal(found.bandwidth, by.usual)
    by = replace(by, targets=by.targets[:1])
    errors = [by.errors(LooResult(by.usual, np.array([ridge]), 0.0))[0] for ridge in leave_one_out.RIDGES]
    squares = [np.mean(by.weight[:, None] * error**2) for error in errors]
    assert found.ridges == leave_one_out.RIDGES[np.argmin(squares)]
    assert found.error == pytest.approx(min(squares), rel=1e-6)


def test_the_start_is_where_kernels_are_neither_0_nor_1():
    X = np.random.default_rng(0).standard_normal((100, 6))
    for kernel in KERNELS.values():
        if len(kernel.summands) == 1:
            width = first_bandwidth(kernel, np.ones(6), X)
            pairs = kernel.with_bandwidth(width).gram(X, X)[np.triu_indices(100, 1)]
            assert np.median(pairs) == pytest.approx(0.25, abs=0.01)


def test_constant_targets_have_nothing_to_learn():
    by = LeaveOneOut(
        Gaussian(),
        np.random.default_rng(0).standard_normal((40, 2)),
        np.ones(40),
        (Target(np.zeros((40, 1))),),
        np.ones(2),
    )
    np.testing.assert_array_equal(by.descend(np.ones(2), np.ones(2), steps=5).bandwidth, 1.0)
