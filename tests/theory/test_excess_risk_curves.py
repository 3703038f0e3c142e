"""Theory for every loss: local strong convexity where it is known, and excess risks that fall as the theorem says."""

import numpy as np
import pytest
from scipy.special import expit, rel_entr
from scipy.stats import norm, t

from quernel import losses, theory

RESIDUAL = [name for name, loss in losses.LOSSES.items() if not loss.margin]
MARGIN = [name for name, loss in losses.LOSSES.items() if loss.margin]
LENGTH = {"huber": {"threshold": 0.1}, "epsilon_insensitive": {"epsilon": 0.05}, "logcosh": {"scale": 0.1}}


def made(name):
    return losses.LOSSES[name](**LENGTH.get(name, {}))


def labels(name):
    """The law of labels for a loss of the margin: a step for the one with a kink."""
    return theory.Labels(made(name), likely=0.9 if name == "hinge" else None)


# Values of a population's function, in (-1, 1) and away from 0, where both labels are as likely.
TARGET = np.array([-0.9, -0.5, -0.1, 0.2, 0.6, 0.95])


def risk(name, f, p):
    """p loss(1 - f) + (1 - p) loss(1 + f), with the losses written out."""
    value = {
        "hinge": lambda r: np.maximum(r, 0),
        "squared_hinge": lambda r: np.maximum(r, 0) ** 2,
        "smoothed_hinge": lambda r: np.where(r > 1, r - 0.5, np.maximum(r, 0) ** 2 / 2),  # width 1
        "logistic": lambda r: np.log1p(np.exp(r - 1)),
    }[name]
    return p * value(1 - f) + (1 - p) * value(1 + f)


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


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("logistic", 0.0, 1 / 8),  # half the second derivative p (1 - p) of the risk
        ("squared_hinge", 0.5, 1.0),  # the excess is t^2 in (-1, 1)
        ("smoothed_hinge", 0.0, 1 / 4),  # the excess is t^2 / 4
        ("hinge", 0.5, 0.1 / 0.3),  # f* = 1; away from 0 only one label in ten gains: t / 10, at t = 0.3
    ],
)
def test_local_strong_convexity_of_losses_of_the_margin(name, target, expected):
    law, n = labels(name), 100_000
    y = law.draw(np.full(n, target), np.random.default_rng(0))
    best = law.minimiser(np.full(n, target))
    found = theory.local_convexity(y, best, np.ones((n, 1)), radius=0.3, loss=law.loss)
    # The sample's first order term is E s(r) y = 0 up to 1 / sqrt(n), and is divided by the radius.
    assert found.c3 == pytest.approx(expected, abs=4 / np.sqrt(n) / 0.3 * made(name).lipschitz(2.0)[0])
    assert theory.local_convexity(y, best - 0.3, np.ones((n, 1)), radius=0.3, loss=law.loss).c3 < 0, "not at f*"


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


@pytest.mark.parametrize("name", MARGIN)
def test_labels_make_f_star_the_minimiser(name):
    """The risk falls up to f* and rises from there: 0 is one of its slopes. Exchanged labels have another minimiser."""
    law, step = labels(name), 1e-6
    p, best = law.probability(TARGET), law.minimiser(TARGET)
    assert np.all((p > 0) & (p < 1))
    if name != "hinge":
        assert best is TARGET

    def is_least(p, f):
        before = (risk(name, f, p) - risk(name, f - step, p)) / step
        after = (risk(name, f + step, p) - risk(name, f, p)) / step
        return (before < 10 * step) & (after > -10 * step)

    assert is_least(p, best).all()
    assert not is_least(1 - p, best).any(), "negative control"
    assert not is_least(p, best + 0.01).any(), "negative control"
    for shift in (-0.1, 0.1):
        assert law.excess_risk(best + shift, TARGET) > 1e-3
    assert law.excess_risk(best, TARGET) == pytest.approx(0, abs=1e-12)


def test_probabilities_of_labels_are_the_known_ones():
    assert labels("logistic").probability(3 * TARGET) == pytest.approx(expit(3 * TARGET))
    assert labels("squared_hinge").probability(TARGET) == pytest.approx((1 + TARGET) / 2)
    assert labels("hinge").probability(TARGET) == pytest.approx([0.1, 0.1, 0.1, 0.9, 0.9, 0.9])
    assert labels("hinge").minimiser(TARGET) == pytest.approx(np.sign(TARGET))
    # Of any other loss a step can be had too: between its best constants.
    assert theory.Labels(losses.Logistic(), likely=0.9).minimiser(TARGET) == pytest.approx(
        np.sign(TARGET) * np.log(0.9 / 0.1)
    )


def test_excess_risk_of_labels_is_the_known_one():
    f = np.random.default_rng(0).uniform(-1, 1, len(TARGET))
    assert labels("squared_hinge").excess_risk(f, TARGET) == pytest.approx(np.mean((f - TARGET) ** 2))
    assert labels("hinge").excess_risk(f, TARGET) == pytest.approx(0.8 * np.mean(np.abs(f - np.sign(TARGET))))
    p, model = expit(TARGET), expit(f)  # logistic: the Kullback-Leibler divergence
    assert labels("logistic").excess_risk(f, TARGET) == pytest.approx(
        np.mean(rel_entr(p, model) + rel_entr(1 - p, 1 - model))
    )


@pytest.mark.parametrize("name", MARGIN)
def test_excess_risk_of_labels_is_what_draws_cost(name):
    law, rng = labels(name), np.random.default_rng(1)
    target = np.repeat(TARGET, 50_000)
    best = law.minimiser(target)
    f = best + np.repeat([0.4, -0.3, 0.2, -0.5, 0.6, -0.2], 50_000)
    y = law.draw(target, rng)
    paid = risk(name, y * f, 1.0) - risk(name, y * best, 1.0)
    error = np.std(paid) / np.sqrt(len(paid))
    assert law.excess_risk(f, target) == pytest.approx(np.mean(paid), abs=4 * error)
    exchanged = risk(name, -y * f, 1.0) - risk(name, -y * best, 1.0)
    assert abs(law.excess_risk(f, target) - np.mean(exchanged)) > 20 * error, "negative control"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: theory.excess_risk(losses.Hinge(), [0.1], [0.1]), "Hinge is a loss of the margin: give the prob"),
        (lambda: theory.excess_risk(losses.Huber(), [0.1], probability=0.6), "Huber is a loss of the residual"),
        (lambda: theory.excess_risk(losses.Logistic(), [0.1], probability=1.0), "between 0 and 1; got 1.0"),
        (lambda: theory.excess_risk(losses.Logistic(), [0.1, 0.2], probability=[0.5] * 3), "one for each of 2 rows"),
        (lambda: theory.excess_risk(losses.Huber([1.0, 2.0]), [0.1], [0.1]), "with 2 columns"),
        (lambda: theory.Labels(losses.Hinge()), "Hinge has a kink.*Give likely"),
        (lambda: theory.Labels(losses.Hinge(), likely=0.5), "likely must be between 1/2 and 1; got 0.5"),
        (lambda: theory.Labels(losses.Huber()), "Huber is a loss of the residual.*use Noise"),
        (lambda: theory.Noise(losses.Hinge(), norm.ppf), "Hinge is a loss of the margin.*use Labels"),
        (lambda: theory.Noise(losses.Huber(), 0.1), "such as scipy.stats.norm.ppf; got 0.1"),
        (lambda: labels("squared_hinge").probability(np.array([0.2, 1.5])), r"SquaredHinge where f\* = 1.5; f\* lies"),
        (lambda: labels("smoothed_hinge").probability(np.array([-1.0])), r"SmoothedHinge where f\* = -1"),
        (lambda: theory.Labels(losses.SmoothedHinge(0.5)).probability(np.array([0.3])), r"f\* = 0.3"),  # a flat risk
        (lambda: labels("logistic").probability(np.array([800.0])), r"Logistic where f\* = 800"),
    ],
)
def test_what_has_no_excess_risk_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("squared", {"noise": norm.ppf, "repetitions": 1}, "repetitions must be at least 2"),
        ("squared", {}, "Squared is a loss of the residual: give noise"),
        ("squared", {"noise": norm.ppf, "likely": 0.9}, "leave out likely"),
        ("logistic", {"noise": norm.ppf}, "Logistic is a loss of labels -1 and \\+1, which have no noise"),
        ("hinge", {}, "Hinge has a kink"),
        ("squared_hinge", {}, "a SplinePopulation takes scale"),
    ],
)
def test_curves_that_cannot_be_are_refused_before_any_fit(name, given, message):
    def never(n):
        raise AssertionError("a fit was prepared")

    with pytest.raises(ValueError, match=message):
        theory.excess_risk_curve(
            theory.SplinePopulation(0.5, 0.5), made(name), [50], alpha=never, features=never, **given
        )


def slope_of(curve):
    """The slope of log risk against log n between two points, and its standard error."""
    few, many = curve
    length = np.log(many.n / few.n)
    return np.log(many.risk / few.risk) / length, np.hypot(few.error / few.risk, many.error / many.risk) / length


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
    slope, error = slope_of(curve)
    assert slope <= -theory.learning_rate(r, gamma) + 2 * error + 0.05
    stuck = theory.excess_risk_curve(law, made(name), sizes, alpha=lambda n: 0.1, **how)
    assert stuck[1].risk > 0.2 * stuck[0].risk, "negative control"


@pytest.mark.slow
@pytest.mark.parametrize("name", MARGIN)
def test_excess_risk_of_labels_falls_as_the_formula_says(name):
    """The same, with f* in (-1, 1). The hinge's is a step: no theorem covers it, but the formula at gamma/2 fits."""
    r, gamma, given = (0.25, 0.5, {"likely": 0.9}) if name == "hinge" else (0.5, 0.25, {})
    law, sizes = theory.SplinePopulation(r, gamma, scale=0.25), [100, 1600]

    def falls(alpha, repetitions):
        slope, error = slope_of(
            theory.excess_risk_curve(
                law,
                made(name),
                sizes,
                alpha=alpha,
                features=lambda n: int(5 * n**0.5),
                repetitions=repetitions,
                **given,
            )
        )
        return slope <= -theory.learning_rate(r, gamma) + 2 * error

    assert falls(lambda n: theory.regularization(n, r, gamma), repetitions=12)
    assert not falls(lambda n: 0.5, repetitions=4), "negative control"
