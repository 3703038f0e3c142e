"""The constants of the assumptions on the noise, where they are known."""

import numpy as np
import pytest

from quernel import theory
from quernel.losses import Pinball

PHI0 = 1 / np.sqrt(2 * np.pi)


def test_self_calibration_of_normal_noise():
    """The density is at most 0.399 everywhere, and at least that at 0.54 (radius + step) within the range looked at."""
    residual = np.random.default_rng(0).standard_normal(50_000)
    found = theory.self_calibration(residual)
    far = found.radius + found.step
    assert found.radius == pytest.approx(1.349 / 5, rel=0.02)
    assert PHI0 * np.exp(-(far**2) / 2) - 4 * found.c2_error < found.c2 < PHI0
    assert found.c1 == pytest.approx(PHI0, rel=0.05)


def test_a_gap_around_the_quantile_is_seen():
    """y = +-1 with a little noise has no mass near its median: the condition fails, and c2 says so."""
    rng = np.random.default_rng(0)
    residual = rng.choice([-1.0, 1.0], 5000) + 0.05 * rng.standard_normal(5000)
    assert theory.self_calibration(residual, radius=0.2, step=0.2).c2 == 0


def test_every_group_must_satisfy_the_condition():
    """Noise ten times as wide in one group has a tenth of the density there; pooled rows hide it."""
    rng = np.random.default_rng(0)
    group = np.arange(20_000) % 2
    residual = np.where(group == 1, 10.0, 1.0) * rng.standard_normal(20_000)
    pooled = theory.self_calibration(residual, radius=0.2, step=0.4)
    grouped = theory.self_calibration(residual, radius=0.2, step=0.4, groups=group)
    assert grouped.c2 == pytest.approx(PHI0 / 10, rel=0.3)
    assert pooled.c2 > 4 * grouped.c2
    assert grouped.c1 == pytest.approx(PHI0, rel=0.1)


def test_local_convexity_of_the_check_loss_is_half_the_density():
    """E(f* + t) - E(f*) = t^2 density / 2 for small t, in every direction."""
    rng = np.random.default_rng(0)
    n = 100_000
    y, x = rng.standard_normal(n), rng.random(n)
    directions = np.column_stack([np.ones(n), np.sign(x - 0.5)])
    found = theory.local_convexity(y, np.zeros(n), directions, radius=0.3, truth=np.zeros(n))
    assert found.c3 == pytest.approx(PHI0 / 2, rel=0.1)
    assert found.c4 == found.c3


def test_away_from_the_truth_only_the_adaptive_constant_stays_positive():
    """At f' = f* + 0.2 a step back lowers the risk: c3 < 0, while |f' - f*|^2 makes up for it in c4."""
    rng = np.random.default_rng(0)
    y, ones = rng.standard_normal(20_000), np.ones((20_000, 1))
    found = theory.local_convexity(y, np.full(20_000, 0.2), ones, radius=0.2, truth=np.zeros(20_000))
    assert found.c3 < 0 < found.c4
    assert theory.local_convexity(y, np.zeros(20_000), ones, radius=0.2).c4 is None


def test_local_convexity_of_another_level():
    rng = np.random.default_rng(0)
    y = rng.standard_exponential(100_000)
    quantile = np.full(100_000, -np.log(0.75))
    found = theory.local_convexity(y, quantile, np.ones((100_000, 1)), radius=0.1, loss=Pinball([0.25]))
    assert found.c3 == pytest.approx(0.75 / 2, rel=0.15)  # the density at the first quartile is 3/4
    assert theory.local_convexity(y, quantile, np.ones((100_000, 1)), radius=0.1).c3 < 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.self_calibration(np.ones(10)), "at least 50 finite"),
        (lambda: theory.self_calibration(np.zeros(100)), "radius must be positive"),
        (lambda: theory.self_calibration(np.arange(100.0), step=-1.0), "step must be positive"),
        (lambda: theory.self_calibration(np.arange(100.0), groups=[1, 2]), "one label per residual"),
        (lambda: theory.self_calibration(np.arange(100.0), groups=np.arange(100)), "Merge groups"),
        (lambda: theory.local_convexity(np.ones(60), np.ones(60), np.ones((50, 1)), radius=1.0), "directions"),
        (lambda: theory.local_convexity(np.ones(60), np.ones(60), np.zeros((60, 1)), radius=1.0), "zero columns"),
        (lambda: theory.local_convexity(np.ones(60), np.ones(60), np.ones((60, 1)), radius=0.0), "radius must be"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
