"""Newton steps with full gradient and subsampled Hessian, and the rows that are still active after them."""

from dataclasses import replace

import numpy as np
import pytest

from quernel.data import ArrayRows, InMemoryDesign
from quernel.datasets import make_homoscedastic
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import EpsilonInsensitive, Hinge, Pinball, SmoothedPinball
from quernel.objective import Problem
from quernel.solvers import newton
from quernel.solvers import screening as driver
from quernel.solvers.screening import sampling
from quernel.solvers.screening.active_set import ScreeningBands, screen, tighten
from quernel.solvers.screening.subsampled_newton import SubsampledNewton, has_enough_rows

N, M, SIZE = 60_000, 40, 6_000
LOSSES = [Pinball([0.3, 0.8]), EpsilonInsensitive(0.2, n_columns=2), Hinge(n_columns=2)]


@pytest.fixture(scope="module")
def design():
    X, y, _ = make_homoscedastic(N, random_state=0)
    return RandomFeatures(Gaussian(0.7), M, random_state=0).fit(X).transform(X), y


def problem(design, loss, alpha=1e-6, n=N, fit_intercept=True):
    Phi, y = design[0][:n], design[1][:n]
    target = np.sign(y - np.median(design[1])) if loss.margin else y
    rows = InMemoryDesign(ArrayRows(Phi, target), features=Phi, shuffled=True)
    return Problem(rows, loss, alpha, fit_intercept=fit_intercept)


def bands(q, band):
    return ScreeningBands.uniform(np.full(q, band), M)


def fits(apart):
    """Two, and how far the intercept of the second is from that of the first."""
    rng = np.random.default_rng(1)
    first = rng.normal(0, 1.5, (M, 2)), rng.normal(0, 0.1, 2)
    return first, (first[0] + rng.normal(0, 0.03, (M, 2)), first[1] + apart)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_screening_all_rows_again_is_screening_them_for_the_first_time(design, loss):
    whole, (first, second) = problem(design, loss), fits(apart=0.5)
    state, other = whole.rows.new_state(), whole.rows.new_state()
    screen(whole, state, *first, np.full(2, 0.4), None)
    first_active = state.collect("active").copy()
    screened, active_set = tighten(whole, state, None, *second, bands(2, 0.1), None)
    _, right, rows = screen(whole, other, *second, np.full(2, 0.1), None)
    for ours, theirs in ((screened, right), (active_set, rows)):
        for name in ("phi_t_dual", "mean_dual"):
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-12)
    np.testing.assert_allclose(screened.constant, right.constant, rtol=1e-12)
    np.testing.assert_array_equal(active_set.count, rows.count)
    assert active_set.count.max() > 0
    for name in ("dual", "active"):
        np.testing.assert_array_equal(state.collect(name), other.collect(name))
    assert np.any(state.collect("active") & ~first_active), "rows that were screened are in active now"


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_tightening_loses_no_active_row_and_keeps_the_screened_ones(design, loss):
    """What screened and active rows would add together: screened ones by the old fit, the others by the new one."""
    whole, (first, second) = problem(design, loss), fits(apart=0.02)
    state = whole.rows.new_state()
    _, screened, active_set = screen(whole, state, *first, np.full(2, 0.4), None)
    known, before = state.collect("active"), state.collect("dual")
    sweeps, (after, fewer) = state.sweeps, tighten(whole, state, screened, *second, bands(2, 0.1), None)
    assert state.sweeps == sweeps
    active, dual = state.collect("active"), state.collect("dual")
    assert np.all(known | ~active)
    np.testing.assert_array_equal(dual[~known], before[~known])
    assert 0 < fewer.count.min() <= fewer.count.max() < active_set.count.min()
    offset, sign = loss.margin_transform(whole.rows.target[:, None])
    residual = offset - sign * (whole.rows.as_array("") @ second[0] + second[1])
    slopes = np.where(known, loss.slope(residual), before) * sign / N
    np.testing.assert_allclose(
        after.phi_t_dual + fewer.phi_t_dual, whole.rows.as_array("").T @ slopes, rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(after.mean_dual + fewer.mean_dual, slopes.sum(axis=0), rtol=0, atol=1e-12)


def test_every_row_is_active_within_its_own_band(design):
    whole, rng = problem(design, Pinball([0.5])), np.random.default_rng(0)
    coef, intercept, state = rng.normal(0, 0.3, (M, 1)), np.zeros(1), whole.rows.new_state()
    errors, shifts = rng.normal(0, 0.1, (1, 5, M)), rng.normal(0, 0.1, (1, 5))
    Phi = whole.rows.as_array("")
    reach = np.sqrt(np.sum((Phi @ errors[0].T + shifts[0]) ** 2, axis=1))
    narrowest, widest = np.quantile(reach, [[0.2], [0.8]])
    screen(whole, state, coef, intercept, np.array([np.inf]), None)
    tighten(whole, state, None, coef, intercept, ScreeningBands(widest, narrowest, errors, shifts), None)
    active = np.abs(state.collect("residual")[:, 0]) <= np.clip(reach, narrowest, widest)
    np.testing.assert_array_equal(state.collect("active")[:, 0], active)
    assert 0 < active.mean() < 1
    assert np.any(active != (np.abs(state.collect("residual")[:, 0]) <= np.median(reach))), "negative control"


@pytest.mark.parametrize("loss", [Pinball([0.5]), Pinball([0.1]), EpsilonInsensitive(0.2)], ids=repr)
def test_a_step_removes_most_of_the_error_and_its_bands_hold_the_rest(design, loss):
    whole, few = problem(design, loss), problem(design, loss, n=SIZE)
    best, initial = (newton.solve(one, tol=1e-7, polish=False) for one in (whole, few))
    Phi = whole.rows.as_array("")

    def errors(coef, intercept):
        return (Phi @ (coef - best.coef) + intercept - best.intercept)[:, 0]

    _, screened, active_set = screen(
        whole, whole.rows.new_state(), initial.coef, initial.intercept, np.array([0.1]), None
    )
    sums = screened.phi_t_dual + active_set.phi_t_dual, screened.mean_dual + active_set.mean_dual
    step = SubsampledNewton(few, None, 20).step(initial.coef, initial.intercept, *sums, N)
    before, after = errors(initial.coef, initial.intercept), errors(step.coef, step.intercept)
    assert np.sqrt(np.mean(after**2)) < 0.4 * np.sqrt(np.mean(before**2))
    reach = np.sqrt(np.sum((Phi @ step.bands.errors[0].T + step.bands.shifts[0]) ** 2, axis=1))
    reach = np.clip(reach, step.bands.narrowest, step.bands.widest)
    assert np.mean(np.abs(after) > reach) < 0.002
    assert np.mean(np.abs(before) > reach) > 0.1, "negative control: the errors before were larger"
    # The sample's own gradient, which is nearly zero, leads nowhere.
    _, screened, active_set = screen(few, few.rows.new_state(), initial.coef, initial.intercept, np.array([0.1]), None)
    sums = screened.phi_t_dual + active_set.phi_t_dual, screened.mean_dual + active_set.mean_dual
    own = SubsampledNewton(few, None, 20).step(initial.coef, initial.intercept, *sums, N)
    assert np.sqrt(np.mean(errors(own.coef, own.intercept) ** 2)) > 0.8 * np.sqrt(np.mean(before**2))


def test_steps_lead_to_the_fit_of_the_sample(design):
    first, sample = (problem(design, Pinball([0.3, 0.7]), n=n) for n in (1_000, SIZE))
    initial, best = (newton.solve(one, tol=1e-8, polish=False) for one in (first, sample))
    coef, intercept, residual = SubsampledNewton(sample, None, 20).fit_subsample(initial.coef, initial.intercept)
    Phi, y = sample.rows.as_array(""), sample.rows.target[:, None]
    np.testing.assert_allclose(residual, y - Phi @ coef - intercept, atol=1e-10)

    def off(coef, intercept):
        return np.sqrt(np.mean((Phi @ (coef - best.coef) + intercept - best.intercept) ** 2, axis=0))

    assert np.all(off(coef, intercept) < 0.35 * off(initial.coef, initial.intercept))


def test_steps_that_do_not_contract_are_rejected(design):
    sample, far = problem(design, Pinball([0.5]), n=SIZE), np.full((M, 1), 30.0)
    assert SubsampledNewton(sample, None, 20).fit_subsample(far, np.zeros(1)) is None


def test_a_sample_must_have_enough_rows(design):
    assert has_enough_rows(problem(design, Pinball([0.5]), n=SIZE), parameters=M)
    assert not has_enough_rows(problem(design, Pinball([0.5]), n=SIZE // 10), parameters=M)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("levels", [[0.5], [0.1, 0.5, 0.9]])
def test_steps_leave_fewer_active_rows_and_cost_no_more_passes(design, levels, intercept, monkeypatch):
    whole = problem(design, Pinball(levels), 1e-7, fit_intercept=intercept)
    corrected = driver.solve(whole)
    monkeypatch.setattr(driver, "OPTIONS", replace(driver.OPTIONS, steps_from=np.inf))
    plain = driver.solve(whole)
    assert corrected.converged
    assert plain.converged
    np.testing.assert_allclose(corrected.objective, plain.objective, rtol=2e-6)
    assert sum(corrected.active_rows) < 0.3 * sum(plain.active_rows)
    assert corrected.hessian_rows < plain.hessian_rows
    assert corrected.sweeps < plain.sweeps


@pytest.mark.parametrize("step", [0.01, 1.0])
def test_targets_with_many_ties_are_solved_too(design, step):
    """Rounded to few values, most rows of a column may lie on the fit."""
    Phi, y = design[0], np.round(design[1] / step) * step
    rows = InMemoryDesign(ArrayRows(Phi, y), features=Phi)
    result = driver.solve(Problem(rows, Pinball([0.3, 0.5]), 1e-4))
    assert result.converged


def test_losses_that_are_curved_somewhere_or_of_the_margin_are_not_corrected(design, monkeypatch):
    """What rows on a curved piece add to the gradient is not summed; of a margin, steps lead astray."""
    taken = []
    real = SubsampledNewton.step
    monkeypatch.setattr(SubsampledNewton, "step", lambda *args: taken.append(1) or real(*args))
    cases = ((SmoothedPinball(width=0.05, levels=[0.5]), False), (Hinge(), False), (Pinball([0.5]), True))
    for loss, corrected in cases:
        taken.clear()
        assert driver.solve(problem(design, loss, 1e-7)).converged
        assert bool(taken) == corrected


def test_where_no_step_can_be_taken_no_more_rows_are_solved_for(design, monkeypatch):
    whole = problem(design, Pinball([0.2, 0.5]), 1e-7)
    monkeypatch.setattr(SubsampledNewton, "step", lambda *args: None)
    without_steps = driver.solve(whole)
    monkeypatch.setattr(driver, "OPTIONS", replace(driver.OPTIONS, steps_from=np.inf))
    plain = driver.solve(whole)
    assert without_steps.active_rows == plain.active_rows
    np.testing.assert_allclose(without_steps.objective, plain.objective, rtol=1e-9)


@pytest.mark.parametrize("number", [np.nan, 0.0, np.inf])
def test_a_step_whose_band_is_no_band_is_not_taken(design, number, monkeypatch):
    whole, real = problem(design, Pinball([0.5]), 1e-7), SubsampledNewton.step
    tried = []

    def broken(*args):
        tried.append(1)
        return replace(real(*args), band=np.array([number]))

    monkeypatch.setattr(SubsampledNewton, "step", broken)
    assert driver.solve(whole).converged
    assert len(tried) == 1


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_steps_that_mislead_cost_work_and_never_the_answer(design, factor, monkeypatch):
    """Bands that are far too narrow, or a fit that was thrown far away."""
    whole, real = problem(design, Pinball([0.5]), 1e-7), SubsampledNewton.step
    right = driver.solve(whole)

    def misled(self, coef, intercept, *args):
        step = real(self, coef, intercept, *args)
        if factor > 1:
            return replace(step, coef=step.coef + factor * (step.coef - coef))
        bands = step.bands._replace(widest=factor * step.bands.widest, narrowest=factor * step.bands.narrowest)
        return replace(step, bands=bands)

    monkeypatch.setattr(SubsampledNewton, "step", misled)
    result = driver.solve(whole)
    assert result.converged
    np.testing.assert_allclose(result.objective, right.objective, rtol=2e-6)
    assert result.sweeps > right.sweeps


@pytest.mark.parametrize("case", ["weights", "float32", "targets", "left out"])
def test_rows_of_all_kinds_are_corrected(design, case, monkeypatch):
    """Weights, of which many are zero; rounded features; a target per column; directions left out that do matter."""
    Phi, y, weight = design[0], design[1], None
    levels = [0.3, 0.7]
    if case == "weights":
        weight = np.random.default_rng(0).integers(0, 3, N).astype(float)
    elif case == "float32":
        Phi = Phi.astype(np.float32)
    elif case == "targets":
        y = np.column_stack([y, y**2])
    else:
        monkeypatch.setattr(sampling, "BASIS", replace(sampling.BASIS, cost=300.0))
    whole = Problem(InMemoryDesign(ArrayRows(Phi, y, weight), features=Phi), Pinball(levels), 1e-6)
    taken, step = [], SubsampledNewton.step
    monkeypatch.setattr(SubsampledNewton, "step", lambda *args: taken.append(1) or step(*args))
    result = driver.solve(whole)
    assert taken
    assert result.converged
    monkeypatch.setattr(driver, "OPTIONS", replace(driver.OPTIONS, steps_from=np.inf))
    np.testing.assert_allclose(result.objective, driver.solve(whole).objective, rtol=2e-6)
