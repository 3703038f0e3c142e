"""On many rows every loss gives what plain Newton gives: rows are screened where possible, directions left out."""

import numpy as np
import pytest

from quernel.data import ArrayRows, InMemoryDesign
from quernel.datasets import make_homoscedastic
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import (
    LOSSES,
    Absolute,
    EpsilonInsensitive,
    Expectile,
    GeneralizedPareto,
    Hinge,
    Huber,
    LogCosh,
    Logistic,
    SmoothedHinge,
    SmoothedPinball,
    Squared,
    SquaredHinge,
)
from quernel.objective import Problem
from quernel.solvers import newton
from quernel.solvers import screening as driver

N, M = 60_000, 40
# Losses that are linear where most rows lie, so that rows can be screened, and losses that are curved there.
LINES = [Absolute(), EpsilonInsensitive(0.2), Huber(0.02), SmoothedPinball(0.02, 0.3), Hinge(), SmoothedHinge(0.02)]
CURVES = [Huber(1.0), Squared(), Expectile(0.8), LogCosh(), SquaredHinge(), SmoothedHinge(2.0), Logistic()]
CURVES += [GeneralizedPareto(0.2), GeneralizedPareto(-0.2)]


@pytest.fixture(scope="module")
def design():
    X, y, _ = make_homoscedastic(N, random_state=0)
    y[: N // 2] *= 2  # so that weights matter
    return RandomFeatures(Gaussian(1.0), M, random_state=0).fit(X).transform(X), y


def problem(design, loss, *, weighted, intercept, alpha=1e-4, **more):
    Phi, y = design
    target = np.where(y > 1.5 + 0.5 * Phi[:, 0] / np.abs(Phi[:, 0]).max(), 1.0, -1.0) if loss.margin else y
    weight = np.random.default_rng(1).integers(0, 4, N).astype(float) if weighted else None
    rows = InMemoryDesign(ArrayRows(Phi, target, weight), features=Phi, **more)
    return Problem(rows, loss, alpha, fit_intercept=intercept)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LINES + CURVES, ids=repr)
def test_same_optimum_as_the_plain_loop(design, loss, weighted):
    how = {"weighted": weighted, "intercept": weighted}
    ours = driver.solve(problem(design, loss, **how))
    plain = newton.solve(problem(design, loss, **how), tol=1e-9, polish=False)
    assert ours.converged
    assert plain.converged
    assert bool(ours.active_rows) == any(loss is one for one in LINES), "lines are screened, curves are not"
    assert ours.objective[0] <= plain.objective[0] * (1 + 1.01e-6)
    assert ours.gap[0] >= ours.objective[0] - plain.objective[0] - 1e-13


def test_every_loss_is_here():
    assert {type(loss) for loss in LINES + CURVES} >= set(LOSSES.values()) - {LOSSES["pinball"]}


@pytest.mark.parametrize("loss", [Huber(1.0), Logistic()], ids=repr)
def test_curved_losses_leave_directions_out(loss):
    X, y, _ = make_homoscedastic(30_000, random_state=0)
    Phi = RandomFeatures(Gaussian(1.0), 200, random_state=0).fit(X).transform(X)
    rows = InMemoryDesign(ArrayRows(Phi, np.sign(y - 1.5) if loss.margin else y), features=Phi)
    ours, plain = (solve(Problem(rows, loss, 1e-4)) for solve in (driver.solve, newton.solve))
    assert ours.converged
    assert ours.sweeps < 0.5 * plain.sweeps


def test_directions_that_matter_are_taken_back(design, monkeypatch):
    """A basis that is far too small costs work, never the answer."""
    monkeypatch.setattr(driver, "principal_basis", lambda *_: np.linalg.qr(np.eye(M)[:, :2])[0])
    ours = driver.solve(problem(design, Logistic(), weighted=False, intercept=True))
    plain = newton.solve(problem(design, Logistic(), weighted=False, intercept=True), tol=1e-9, polish=False)
    assert ours.converged
    assert ours.objective[0] == pytest.approx(plain.objective[0], rel=1.01e-6)


def test_labels_of_their_own_for_every_column_are_screened_together(design):
    Phi, y = design
    targets = np.where(np.digitize(y, [1.0, 2.0])[:, None] == np.arange(3), 1.0, -1.0)
    loss = Hinge(n_columns=3)
    together = driver.solve(Problem(InMemoryDesign(ArrayRows(Phi, targets), features=Phi), loss, 1e-4))
    assert together.converged
    assert together.active_rows
    for k in range(3):
        rows = InMemoryDesign(ArrayRows(Phi, targets[:, k].copy()), features=Phi)
        alone = newton.solve(Problem(rows, Hinge(), 1e-4), tol=1e-9, polish=False)
        assert together.objective[k] == pytest.approx(alone.objective[0], rel=1.01e-6)
        assert together.gap[k] >= together.objective[k] - alone.objective[0] - 1e-13


def test_features_that_are_not_stored_give_the_same(design):
    X, y, _ = make_homoscedastic(N, random_state=0)
    features = RandomFeatures(Gaussian(1.0), M, random_state=0).fit(X)
    rows = InMemoryDesign(ArrayRows(X, y), features, max_memory=0)
    assert not rows.cached
    again = driver.solve(Problem(rows, Squared(), 1e-4))
    stored = driver.solve(Problem(InMemoryDesign(ArrayRows(X, y), features), Squared(), 1e-4))
    np.testing.assert_allclose(again.objective, stored.objective, rtol=1e-6)


def test_what_counts_as_curved():
    rng = np.random.default_rng(0)
    Phi, y = rng.standard_normal((500, 3)), rng.standard_normal(500)
    for loss, expected in ((Absolute(), False), (Huber(0.01), False), (Huber(1.0), True), (Squared(), True)):
        sample = Problem(InMemoryDesign(ArrayRows(Phi, y), features=Phi), loss, 1e-3)
        result = newton.solve(sample)
        residual = driver._residuals(sample, result.coef, result.intercept)
        assert driver.is_curved(sample.loss, residual, result.dual) == expected
