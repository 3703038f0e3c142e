"""The constants of the assumptions on the noise, where they are known."""

import numpy as np
import pytest
from scipy.stats import norm

from quernel import theory
from quernel.losses import Hinge, Logistic, Pinball, Squared

PHI0 = 1 / np.sqrt(2 * np.pi)
NORMAL = norm.ppf((np.arange(100_000) + 0.5) / 100_000)


def test_self_calibration_of_normal_noise():
    """The density is at most 0.399 everywhere, and at least that at 0.54 (radius + step) within the range looked at."""
    residual = np.random.default_rng(0).standard_normal(50_000)
    found = theory.self_calibration(residual)
    far = found.radius + found.step
    assert found.radius == pytest.approx(1.349 / 5, rel=0.02)
    assert PHI0 * np.exp(-(far**2) / 2) - 4 * found.c2_error < found.c2 < PHI0
    assert found.c1 == pytest.approx(PHI0, rel=0.05)


@pytest.mark.parametrize("n", [200, 2000])
@pytest.mark.parametrize("name", ["normal", "uniform"])
def test_the_error_of_c1_says_how_far_it_may_be_off(name, n):
    """200 samples each of two laws whose densest stretch is known: the largest of many increments is too high."""
    off, errors = [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        residual = rng.standard_normal(n) if name == "normal" else rng.random(n) - 0.5
        found = theory.self_calibration(residual)
        share = 2 * norm.cdf(found.step / 2) - 1 if name == "normal" else found.step
        off.append((found.c1 - share / found.step) / found.c1_error)
        errors.append(found.c1_error * found.step / np.sqrt(share * (1 - share) / n))
    assert 1 < np.mean(off) < 2.3
    assert np.mean((np.array(off) > 0) & (np.array(off) < 3)) > 0.92  # 19 of 20, give or take two standard errors
    assert np.mean(errors) == pytest.approx(1, abs=0.25)


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


def test_hinge_risk_is_not_locally_strongly_convex():
    """Labels that are +1 with probability 0.9, f* = 1: a step towards f* gains 0.8 t, which no C t^2 pays for."""
    y = np.where(np.arange(1000) % 10 == 0, -1.0, 1.0)
    truth, ones = np.ones(1000), np.ones((1000, 1))
    for t in (0.05, 0.005):
        found = theory.local_convexity(y, truth - t, ones, radius=t, loss=Hinge(), truth=truth)
        assert found.c3 == pytest.approx(-0.8 / t)
        assert found.c4 == pytest.approx(-0.8 / t + 1)
        assert theory.upper_quadratic_constant(y, truth, ones, radius=t, loss=Hinge()) == pytest.approx(0.8 / t)


def test_the_adaptive_constant_depends_on_the_unit_of_y():
    """At f = f* it says E(f') - E(f*) < |f' - f*|^2, and the paper's own noise N(0, 0.01) has density / 2 = 1.99."""
    y = 0.1 * NORMAL
    truth, ones = np.zeros(len(y)), np.ones((len(y), 1))
    found = theory.local_convexity(y, truth - 0.01, ones, radius=0.01, truth=truth)
    assert found.c4 == pytest.approx(1 - 10 * PHI0 / 2, abs=0.02)
    assert found.c4 < 0


@pytest.mark.parametrize(
    ("y", "loss", "expected"),
    [
        (NORMAL, Squared(), 1.0),
        (NORMAL, Pinball([0.5]), PHI0 / 2),  # c1 / 2
        (np.sign(NORMAL), Logistic(), np.log(np.cosh(0.05)) / 0.1**2),  # a toss-up: log cosh(t/2) / t^2
    ],
)
def test_upper_quadratic_constant_where_it_is_known(y, loss, expected):
    directions = np.column_stack([np.ones(len(y)), np.full(len(y), -3.0)])
    found = theory.upper_quadratic_constant(y, np.zeros(len(y)), directions, radius=0.1, loss=loss)
    assert found == pytest.approx(expected, rel=0.01)


def check_risk(f, spread):
    """E of the check loss at level 1/2 for y uniform on (-spread, spread), |f| <= spread, by hand."""
    return (f**2 + spread**2) / (4 * spread)


def test_calibration_inequality_is_met_exactly_by_uniform_noise():
    """Density c: f' = b and f = -b have the same risk and are 2b apart, 4 c1^2/c2^2 b^2 = (2b)^2. Nothing is left."""
    spread, b = 2.0, 0.3
    density = 1 / (2 * spread)
    found = theory.calibration_inequality(density, density)
    assert found.bound(0.0, b) == pytest.approx((2 * b) ** 2)
    for f in np.linspace(-spread, spread, 41):
        excess = check_risk(f, spread) - check_risk(b, spread)
        assert (f - b) ** 2 <= found.bound(excess, b) * (1 + 1e-12)


def test_calibration_inequality_of_random_functions():
    """Normal noise, f' within epsilon of f* and f within epsilon' of f' at every x; the risks in closed form."""
    rng = np.random.default_rng(0)
    found = theory.calibration_inequality(PHI0, norm.pdf(0.7))

    def risk(f):  # E |e - f| / 2
        return np.mean(f * (norm.cdf(f) - 0.5) + norm.pdf(f))

    for _ in range(200):
        center = rng.uniform(-0.3, 0.3, 50) * rng.random()
        f = center + rng.uniform(-0.4, 0.4, 50) * rng.random()
        distance = np.sqrt(np.mean(center**2))
        assert np.mean((f - center) ** 2) <= found.bound(risk(f) - risk(center), distance)
    far = np.full(50, 100.0)  # the lemma as it is printed, for any f
    assert np.mean(far**2) > 10 * found.bound(risk(far) - risk(np.zeros(50)), 0.0)


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
        (lambda: theory.calibration_inequality(0.5, 1.0), "c2 at most c1"),
        (lambda: theory.calibration_inequality(0.5, 0.0), "must be positive"),
        (lambda: theory.upper_quadratic_constant(np.ones(60), np.ones(60), np.ones((60, 1)), radius=-1.0), "radius"),
        (lambda: theory.local_convexity(np.ones(60), np.ones(60), np.ones((50, 1)), radius=1.0), "directions"),
        (lambda: theory.local_convexity(np.ones(60), np.ones(60), np.zeros((60, 1)), radius=1.0), "zero columns"),
        (lambda: theory.local_convexity(np.ones(60), np.ones(60), np.ones((60, 1)), radius=0.0), "radius must be"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
