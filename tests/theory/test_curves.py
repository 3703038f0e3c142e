"""Theory for every loss: local strong convexity where it is known, and excess risks that fall as the theorem says."""

import numpy as np
import pytest
from scipy.stats import norm, t

from quernel import losses, theory

RESIDUAL = [name for name, loss in losses.LOSSES.items() if not loss.margin]
LENGTH = {"huber": {"threshold": 0.1}, "epsilon_insensitive": {"epsilon": 0.05}, "logcosh": {"scale": 0.1}}


def made(name):
    return losses.LOSSES[name](**LENGTH.get(name, {}))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (losses.Squared(), 1.0),  # E (e - t)^2 - E e^2 = t^2
        (losses.Expectile(0.5), 0.5),
        (losses.Absolute(), 1 / np.sqrt(2 * np.pi)),  # the density at the median
        (losses.Huber(1.0), (norm.cdf(1) - norm.cdf(-1)) / 2),  # half the mass inside the threshold
    ],
)
def test_local_strong_convexity_has_its_known_constant(loss, expected):
    rng = np.random.default_rng(0)
    n = 200_000
    y = rng.standard_normal(n)
    directions = np.column_stack([np.ones(n), np.sign(rng.random(n) - 0.5)])
    found = theory.local_convexity(y, np.zeros(n), directions, radius=0.2, loss=loss)
    assert found.c3 == pytest.approx(expected, rel=0.08)


def test_local_strong_convexity_of_the_logistic_loss():
    """Labels of probability 1/2 and f* = 0: the second derivative of the risk is 1/4, so c3 = 1/8."""
    rng = np.random.default_rng(0)
    y = rng.choice([-1.0, 1.0], 100_000)
    found = theory.local_convexity(y, np.zeros(len(y)), np.ones((len(y), 1)), radius=0.3, loss=losses.Logistic())
    assert found.c3 == pytest.approx(1 / 8, rel=0.15)


def test_it_fails_where_the_loss_is_flat():
    """No mass at the ends of the tube: moving f a little costs nothing, and the condition is in doubt."""
    y = np.random.default_rng(0).uniform(-0.1, 0.1, 10_000)
    found = theory.local_convexity(
        y, np.zeros(len(y)), np.ones((len(y), 1)), radius=0.05, loss=losses.EpsilonInsensitive(0.5)
    )
    assert found.c3 == 0


@pytest.mark.parametrize("name", RESIDUAL)
def test_excess_risk_is_least_at_the_truth(name):
    noise = t(3).ppf((np.arange(801) + 0.5) / 801) * 0.1 + 0.3  # skew or not, its best constant counts as f*
    loss = made(name)
    assert theory.excess_risk(loss, np.zeros(5), noise) == pytest.approx(0, abs=1e-12)
    for shift in (-0.1, 0.1):
        assert theory.excess_risk(loss, np.full(5, shift), noise) > 1e-5


def test_excess_risk_of_the_squared_loss_is_the_squared_error():
    deviation = np.random.default_rng(0).standard_normal(50)
    assert theory.excess_risk(losses.Squared(), deviation, np.linspace(-1, 1, 401)) == pytest.approx(
        np.mean(deviation**2)
    )


def test_excess_risk_is_for_losses_of_the_residual():
    with pytest.raises(ValueError, match="loss of the residual with one column"):
        theory.excess_risk(losses.Hinge(), np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match="repetitions must be at least 2"):
        theory.excess_risk_curve(
            theory.SplinePopulation(0.5, 0.5), losses.Squared(), [50], alpha=lambda n: 0.1, features=lambda n: 5,
            noise=norm.ppf, repetitions=1,
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RESIDUAL)
def test_excess_risk_falls_at_least_as_fast_as_the_theorem_says(name):
    """`thm3`: n^-(2r / (2r + gamma)), with its ridge weight and number of features; too large a ridge does not fall."""
    r, gamma = 0.5, 0.25
    law, sizes = theory.SplinePopulation(r, gamma), [60, 600]
    how = {"features": lambda n: int(2 * n**0.8), "noise": norm(scale=0.1).ppf, "repetitions": 5}
    curve = theory.excess_risk_curve(
        law, made(name), sizes, alpha=lambda n: 0.1 * theory.regularization(n, r, gamma), **how
    )
    slope = np.log(curve[1].risk / curve[0].risk) / np.log(sizes[1] / sizes[0])
    error = np.hypot(*(point.error / point.risk for point in curve)) / np.log(sizes[1] / sizes[0])
    assert slope <= -theory.learning_rate(r, gamma) + 2 * error + 0.05
    stuck = theory.excess_risk_curve(law, made(name), sizes, alpha=lambda n: 0.1, **how)
    assert stuck[1].risk > 0.2 * stuck[0].risk, "negative control"
