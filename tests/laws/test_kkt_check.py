"""Rechecking a fit with other duals gives what another pass over all rows would, without one."""

from dataclasses import replace

import numpy as np
import pytest

from quernel.data import ArrayRows, InMemoryDesign
from quernel.losses import Hinge, Pinball
from quernel.objective import Problem
from quernel.solvers import screening as driver
from quernel.solvers.screening import rounds, sampling
from quernel.solvers.screening.active_set import expand_active, recheck_changed, scatter_duals, screen, verify

N, M = 5_000, 6


def problem(loss):
    rng = np.random.default_rng(0)
    Phi, noise = rng.standard_normal((N, M)), rng.standard_normal(N)
    y = Phi[:, 0] + noise
    weight = rng.integers(1, 4, N).astype(float)
    target = np.sign(y) if isinstance(loss, Hinge) else y
    rows = InMemoryDesign(ArrayRows(Phi, target, weight), features=Phi)
    return Problem(rows, loss, 1e-3)


@pytest.mark.parametrize("loss", [Pinball([0.3, 0.8]), Hinge(n_columns=2)], ids=repr)
def test_it_is_what_another_pass_would_give(loss):
    whole, rng = problem(loss), np.random.default_rng(1)
    coef, move, intercept = rng.normal(0, 0.3, (M, 2)), rng.normal(0, 0.1, (M, 2)), np.zeros(2)
    state, starts = whole.rows.new_state(), np.array([span.start for span in whole.rows.spans])
    _, screened, active_set = screen(whole, state, coef, intercept, np.array([0.2, 0.1]), None)

    def drawn():
        low, high = loss.domain
        rows = [
            replace(part, anchor=rng.uniform(low[k], high[k], len(part.anchor)))
            for k, part in enumerate(active_set.rows)
        ]
        return scatter_duals(rows, starts)

    first = verify(whole, state, coef + move, intercept, drawn())
    _, active_set = expand_active(whole, state, screened, active_set, np.array([0.05, 0.05]), None)
    duals, sweeps = drawn(), state.sweeps
    found = recheck_changed(whole, state, first, duals)
    assert state.sweeps == sweeps
    again = verify(whole, state, coef + move, intercept, duals)
    for name in ("fenchel_gap", "phi_t_dual", "mean_dual"):
        ours, theirs, old = (getattr(check, name) for check in (found, again, first))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())
        assert np.abs(old - theirs).max() > 1e-6, "negative control: the duals did change"


def test_a_near_miss_is_certified_without_another_pass(monkeypatch):
    """With a band so narrow that the first round just fails."""

    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((100_000, 30))
    y = Phi[:, 0] + rng.standard_normal(100_000)
    large = Problem(InMemoryDesign(ArrayRows(Phi, y), features=Phi), Pinball([0.5]), 1e-4, fit_intercept=False)
    tried = []
    real = rounds.recheck_changed
    monkeypatch.setattr(rounds, "recheck_changed", lambda *args: tried.append(1) or real(*args))
    for cost in (3.0, 10.0, 30.0, 100.0):
        monkeypatch.setattr(sampling, "BAND", replace(sampling.BAND, cost=cost))
        with_it = driver.solve(large, tol=1e-5)
        if tried:
            break
    assert tried
    assert with_it.converged
    monkeypatch.setattr(rounds, "OPTIONS", replace(rounds.OPTIONS, recheck_factor=0))
    without = driver.solve(large, tol=1e-5)
    assert without.converged
    assert with_it.sweeps < without.sweeps - 0.5
