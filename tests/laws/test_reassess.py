"""Other duals on a fit that was verified: the verdict of another sweep, without one."""

from dataclasses import replace

import numpy as np
import pytest

from quernel.data import ArrayRows, InMemoryDesign
from quernel.losses import Hinge, Pinball
from quernel.objective import Problem
from quernel.solvers.screening import driver, rounds
from quernel.solvers.screening.active_set import expand_active, scatter_duals, screen
from quernel.solvers.screening.kkt_check import recheck_changed, verify

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
def test_it_is_what_another_sweep_would_say(loss):
    whole, rng = problem(loss), np.random.default_rng(1)
    coef, move, intercept = rng.normal(0, 0.3, (M, 2)), rng.normal(0, 0.1, (M, 2)), np.zeros(2)
    memory, starts = whole.rows.new_memory(), np.array([span.start for span in whole.rows.spans])
    _, settled, doubts = screen(whole, memory, coef, intercept, np.array([0.2, 0.1]), None)

    def drawn():
        low, high = loss.domain
        rows = [
            replace(part, anchor=rng.uniform(low[k], high[k], len(part.anchor))) for k, part in enumerate(doubts.rows)
        ]
        return scatter_duals(rows, starts)

    first = verify(whole, memory, coef + move, intercept, drawn())
    _, doubts = expand_active(whole, memory, settled, doubts, np.array([0.05, 0.05]), None)
    duals, sweeps = drawn(), memory.sweeps
    found = recheck_changed(whole, memory, first, duals)
    assert memory.sweeps == sweeps
    again = verify(whole, memory, coef + move, intercept, duals)
    for name in ("slack", "force", "balance"):
        ours, theirs, old = (getattr(verdict, name) for verdict in (found, again, first))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())
        assert np.abs(old - theirs).max() > 1e-6, "negative control: the duals did change"


def test_a_near_miss_is_certified_without_another_sweep(monkeypatch):
    """With a band so narrow that the first round just fails."""

    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((100_000, 30))
    y = Phi[:, 0] + rng.standard_normal(100_000)
    large = Problem(InMemoryDesign(ArrayRows(Phi, y), features=Phi), Pinball([0.5]), 1e-4, fit_intercept=False)
    tried = []
    real = rounds.recheck_changed
    monkeypatch.setattr(rounds, "recheck_changed", lambda *args: tried.append(1) or real(*args))
    for cost in (3.0, 10.0, 30.0, 100.0):
        monkeypatch.setattr("quernel.solvers.screening.sampling_error.COST", cost)
        with_it = driver.solve(large, tol=1e-5)
        if tried:
            break
    assert tried
    assert with_it.converged
    monkeypatch.setattr(rounds, "NEARLY", 0)
    without = driver.solve(large, tol=1e-5)
    assert without.converged
    assert with_it.sweeps < without.sweeps - 0.5
