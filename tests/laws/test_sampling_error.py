"""Sampling error of a fit: against the spread of fits to many samples, and against simulated errors."""

import numpy as np
import pytest

from quernel.data import ArrayRows, InMemoryDesign
from quernel.datasets import make_homoscedastic
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.solvers import newton
from quernel.solvers import screening as driver
from quernel.solvers.screening.sampling import FeatureMoments, SamplingError, _curvature, _solve_for_band

M, SIZE, SAMPLES = 20, 2_000, 40
MAP = RandomFeatures(Gaussian(1.0), M, random_state=0)


def sample(seed, level, alpha, intercept):
    X, y, _ = make_homoscedastic(SIZE, random_state=seed)
    Phi = MAP.fit(X).transform(X)
    return Problem(InMemoryDesign(ArrayRows(Phi, y), features=Phi), Pinball([level]), alpha, fit_intercept=intercept)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("level", "alpha"), [(0.5, 1e-2), (0.5, 1e-4), (0.2, 1e-4)])
def test_standard_errors_are_the_spread_of_fits_to_other_samples(level, alpha, intercept):
    problems = [sample(seed, level, alpha, intercept) for seed in range(SAMPLES)]
    fits = [newton.solve(problem, tol=1e-5, polish=False) for problem in problems]
    Phi = problems[0].rows.as_array("")
    standard_deviation = np.std([Phi @ fit.coef[:, 0] + fit.intercept[0] for fit in fits], axis=0)
    residual = driver._residuals(problems[0], fits[0].coef, fits[0].intercept)
    curvature = _curvature(problems[0].loss, np.quantile(np.abs(residual), 0.1, axis=0))
    errors = FeatureMoments.from_sample(problems[0]).errors(
        curvature, problems[0].alpha, np.mean(fits[0].dual ** 2, axis=0) / SIZE
    )
    typical = np.sqrt(np.mean(errors**2))
    assert 0.7 < typical / np.sqrt(np.mean(standard_deviation**2)) < 1.4
    assert 0.6 < errors.max() / standard_deviation.max() < 1.7


def test_a_band_is_as_wide_as_the_tolerance_asks():
    """Rows beyond it that drawn errors carry to the other side cost, in the mean, what they may."""
    rng = np.random.default_rng(0)
    errors, cost = rng.uniform(0.5, 2.0, (300, 1)), np.array([1e-2])
    band = _solve_for_band(errors, cost)[0]
    drawn = errors * rng.standard_normal((300, 4_000))

    def beyond(band):  # the integral of (error - x)+ over x > band is (error - band)+^2 / 2
        return np.mean(np.maximum(drawn - band, 0) ** 2 / 2)

    assert beyond(band) == pytest.approx(cost[0], rel=0.1)
    assert beyond(0.8 * band) > 2 * cost[0], "a narrower one would not do"


def test_bands_follow_rows_and_tolerance():
    problem = sample(0, 0.5, 1e-4, True)
    fit = newton.solve(problem, tol=1e-5, polish=False)
    residual = driver._residuals(problem, fit.coef, fit.intercept)

    def known(n_rows, tol):
        return SamplingError.estimate(problem, residual, fit.dual, n_rows, FeatureMoments.from_sample(problem), tol)

    assert known(100_000, 1e-6).band < known(25_000, 1e-6).band
    assert known(100_000, 1e-6).band < known(100_000, 1e-8).band
    assert 1 < known(100_000, 1e-6).parameters < M
    assert known(100, 1e-6).band <= np.median(np.abs(residual))
    assert np.all(known(100, 1e-6).active_share <= 0.5)
