"""Laws of every loss, and for every law a loss that breaks it."""

import math
from fractions import Fraction

import numpy as np
import pytest

from quernel import losses
from quernel.losses import Hinge, Logistic, Pinball, Squared, weighted_quantiles
from support.loss_laws import LAWS

LEVELS = np.array([0.05, 0.5, 0.9])
THREE = np.array([0.3, 1.0, 2.5])
SHAPES = np.array([-0.4, 0.0, 0.3])
ALIKE = {"n_columns": 3}
LOSSES = {
    "pinball": Pinball(LEVELS),
    "absolute": losses.Absolute(**ALIKE),
    "huber": losses.Huber(THREE),
    "epsilon_insensitive": losses.EpsilonInsensitive([0.0, 0.3, 1.5]),
    "smoothed_pinball": losses.SmoothedPinball(THREE, LEVELS),
    "squared": Squared(**ALIKE),
    "expectile": losses.Expectile(LEVELS),
    "logcosh": losses.LogCosh(THREE),
    "generalized_pareto": losses.GeneralizedPareto(SHAPES),
    "hinge": Hinge(**ALIKE),
    "squared_hinge": losses.SquaredHinge(**ALIKE),
    "smoothed_hinge": losses.SmoothedHinge(THREE),
    "logistic": Logistic(**ALIKE),
}


def rounded(r, width, low, high):
    """The largest of the lines  v r - width v^2 / 2  with v between low and high."""
    v = min(max(r / width, low), high)
    return v * r - width * v * v / 2


def pareto(r, shape):
    """- log density of e^r under the generalised Pareto law of scale 1, less its least value; slopes up to 20."""
    bent = min(r, math.log(21 / (1 - 20 * shape)) if 20 * shape < 1 else 100.0)
    if shape == 0:
        return math.expm1(bent) - bent + 20 * (r - bent)
    log = (1 + 1 / shape) * math.log1p(shape / (1 + shape) * math.expm1(bent))
    return log - bent + min(1 / shape if shape > 0 else 20, 20) * (r - bent)


# Each loss again, as a person would say it: of one residual (1 - y f for a loss of the margin), in one column.
BY_HAND = {
    "pinball": lambda r, k: LEVELS[k] * r if r >= 0 else (LEVELS[k] - 1) * r,
    "absolute": lambda r, k: abs(r),
    "huber": lambda r, k: r * r / 2 if abs(r) <= THREE[k] else THREE[k] * abs(r) - THREE[k] ** 2 / 2,
    "epsilon_insensitive": lambda r, k: max(abs(r) - (0.0, 0.3, 1.5)[k], 0),
    "smoothed_pinball": lambda r, k: rounded(r, THREE[k], LEVELS[k] - 1, LEVELS[k]),
    "squared": lambda r, k: r * r,
    "expectile": lambda r, k: (LEVELS[k] if r >= 0 else 1 - LEVELS[k]) * r * r,
    "logcosh": lambda r, k: THREE[k] ** 2 * math.log1p(2 * math.sinh(r / THREE[k] / 2) ** 2),
    "generalized_pareto": lambda r, k: pareto(r, SHAPES[k]),
    "hinge": lambda r, k: max(r, 0),
    "squared_hinge": lambda r, k: max(r, 0) ** 2,
    "smoothed_hinge": lambda r, k: rounded(r, THREE[k], 0, 1),
    "logistic": lambda r, k: math.log1p(math.exp(r - 1)),
}
# Lipschitz constants, as the literature has them; on [-V, V] where there is none on the line.
STEEPEST = {
    "pinball": np.maximum(LEVELS, 1 - LEVELS),
    "absolute": np.ones(3),
    "huber": THREE,
    "epsilon_insensitive": np.ones(3),
    "smoothed_pinball": np.maximum(LEVELS, 1 - LEVELS),
    "squared": np.full(3, np.inf),
    "expectile": np.full(3, np.inf),
    "logcosh": THREE,
    "generalized_pareto": np.array([20, 20, 1 / 0.3]),
    "hinge": np.ones(3),
    "squared_hinge": np.full(3, np.inf),
    "smoothed_hinge": np.ones(3),
    "logistic": np.ones(3),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("law", LAWS)
def test_law(law, name):
    LAWS[law](LOSSES[name], BY_HAND[name])


def test_every_loss_is_here():
    """A loss added to the registry is to be added to the tables above."""
    assert {name: type(loss) for name, loss in LOSSES.items()} == losses.LOSSES
    assert LOSSES.keys() == BY_HAND.keys() == STEEPEST.keys()


@pytest.mark.parametrize("name", LOSSES)
def test_the_stated_lipschitz_constant_is_the_known_one(name):
    np.testing.assert_allclose(LOSSES[name].lipschitz(), STEEPEST[name])


# Negative controls: the check loss with one mistake, and the laws that must notice it.


class Wrong(Pinball):
    def take(self, columns):
        return type(self)(self.levels[columns])


class MirroredValue(Wrong):
    def value(self, residual):
        return super().value(-residual)


class MirroredSlope(Wrong):
    def slope(self, residual):
        return -super().slope(-residual)


class SteepAtTheKink(Wrong):
    def slope(self, residual):
        return np.where(residual == 0, 1.0, super().slope(residual))


class ProxWithoutWidth(Wrong):
    def prox(self, residual, width):
        return residual - np.clip(residual / width, *self.domain)


class DualWithoutAnchor(Wrong):
    def dual(self, residual, anchor, width):
        return super().dual(residual, 0 * anchor, width)


class UnclippedDual(Wrong):
    def dual(self, residual, anchor, width):
        return residual / width + anchor


class CurvatureEverywhere(Wrong):
    def curvature(self, residual, anchor, width):
        return np.full_like(residual, 1 / width)


class CurvatureWithoutWidth(Wrong):
    def curvature(self, residual, anchor, width):
        return np.sign(super().curvature(residual, anchor, width))


class NegativeConjugate(Wrong):
    def conjugate(self, dual):
        return super().conjugate(dual) - 0.1


class UnboundedConjugate(Wrong):
    def conjugate(self, dual):
        return np.zeros_like(dual)


class OpenDomain(Wrong):
    def conjugate(self, dual):
        low, high = self.domain
        return np.where((dual > low) & (dual < high), 0.0, np.inf)


class InverseSubgradientBesideTheKink(Wrong):
    def inverse_subgradient(self, dual):
        return np.full_like(dual, 0.01)


class IntervalWithoutEnd(Wrong):
    def subgradient_interval(self, residual, dual):
        return np.full_like(residual, -np.inf), np.full_like(residual, np.inf)


class TooSteep(Wrong):
    def lipschitz(self, bound=np.inf):
        return np.minimum(self.levels, 1 - self.levels)


class MirroredFrame(Wrong):
    def margin_transform(self, target):
        return 1.0, target


class KnotsElsewhere(Wrong):
    @property
    def segments(self):
        knots, slopes = super().segments
        return knots + 0.5, slopes


class MeanConstant(Wrong):
    def fit_constant(self, target, share):
        return np.full(len(self.levels), share @ target)


class UnweightedConstant(Wrong):
    def fit_constant(self, target, share):
        return super().fit_constant(target, np.full_like(share, 1 / len(share)))


class TakesTheFirst(Pinball):
    def take(self, columns):
        return Pinball(self.levels[: len(columns)])


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (MirroredValue, "value"),
        (MirroredSlope, "slope_is_the_derivative"),
        (SteepAtTheKink, "slope_supports_the_loss"),
        (ProxWithoutWidth, "prox_is_optimal"),
        (DualWithoutAnchor, "dual_is_the_slope_of_the_smoothed_loss"),
        (UnclippedDual, "dual_is_the_maximiser"),
        (CurvatureEverywhere, "curvature_is_the_derivative_of_the_dual"),
        (CurvatureWithoutWidth, "curvature_is_the_derivative_of_the_dual"),
        (NegativeConjugate, "fenchel_young"),
        (MirroredValue, "fenchel_young"),
        (UnboundedConjugate, "conjugate"),
        (OpenDomain, "conjugate"),
        (InverseSubgradientBesideTheKink, "inverse_subgradient"),
        (IntervalWithoutEnd, "subgradient_interval"),
        (TooSteep, "lipschitz"),
        (MirroredFrame, "frame"),
        (KnotsElsewhere, "lines"),
        (MeanConstant, "fit_constant"),
        (UnweightedConstant, "fit_constant"),
        (TakesTheFirst, "take"),
    ],
)
def test_a_wrong_loss_breaks_the_law(wrong, law):
    with pytest.raises(AssertionError):
        LAWS[law](wrong(LEVELS), BY_HAND["pinball"])


class LogisticWithoutTheOne(Logistic):
    def conjugate(self, dual):
        return super().conjugate(dual) - dual


class LogisticOfHalfTheSecondDerivative(Logistic):
    def second_derivative(self, residual):
        return super().second_derivative(residual) / 2


class SteepSquare(Squared):
    @property
    def inverse_curvatures(self):
        return 2 * super().inverse_curvatures[0], 2 * super().inverse_curvatures[1]


class TwoSidedHinge(Hinge):
    @property
    def domain(self):
        return -np.ones(3), np.ones(3)


@pytest.mark.parametrize(
    ("wrong", "name", "laws"),
    [
        (LogisticWithoutTheOne, "logistic", ("fenchel_young", "conjugate", "inverse_subgradient")),
        (LogisticOfHalfTheSecondDerivative, "logistic", ("curvature_is_the_derivative_of_the_dual",)),
        (SteepSquare, "squared", ("slope_is_the_derivative", "prox_is_optimal", "fenchel_young", "lipschitz")),
        (TwoSidedHinge, "hinge", ("slope_is_the_derivative", "prox_is_optimal", "fenchel_young", "lines", "conjugate")),
    ],
)
def test_wrong_losses_of_other_kinds_break_them_too(wrong, name, laws):
    for law in laws:
        with pytest.raises(AssertionError):
            LAWS[law](wrong(**ALIKE), BY_HAND[name])


def test_every_law_has_its_negative_control():
    (mark,) = test_a_wrong_loss_breaks_the_law.pytestmark
    assert {law for _, law in mark.args[1]} == set(LAWS)


# What is particular to the check loss


@pytest.mark.parametrize("seed", range(5))
def test_fit_constant_is_a_weighted_quantile(seed):
    """share{y < b} <= level <= share{y <= b}, and integer weights count rows."""
    rng = np.random.default_rng(seed)
    y, count = np.round(rng.standard_normal(30), 1), rng.integers(0, 4, 30)
    found = Pinball(LEVELS).fit_constant(y, count / count.sum())
    rows = np.repeat(y, count)
    for level, b in zip(LEVELS, found, strict=True):
        assert np.mean(rows < b) <= level + 1e-12
        assert np.mean(rows <= b) >= level - 1e-12
    np.testing.assert_allclose(found, Pinball(LEVELS).fit_constant(rows, np.full(len(rows), 1 / len(rows))))
    np.testing.assert_allclose(found, Pinball(LEVELS).fit_constant(y, count.astype(float)))  # shares of any total


def test_fit_constant_is_the_middle_of_its_interval():
    y = np.array([4.0, 1.0, 10.0, 2.0])
    np.testing.assert_array_equal(Pinball([0.25, 0.5, 0.6]).fit_constant(y, np.full(4, 0.25)), [1.5, 3.0, 4.0])
    # A row without weight is not there.
    weights = np.array([1, 0, 1, 1, 0]) / 3
    assert Pinball(0.5).fit_constant(np.array([0.0, 5.0, 1.0, 2.0, -9.0]), weights)[0] == 1


@pytest.mark.parametrize("levels", [0, 1, [0.5, 1.0], [-0.1], [np.nan], [[0.5]], 1.5])
def test_levels_outside_the_open_interval_are_refused(levels):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        Pinball(levels)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.Huber(-1.0), "threshold of the Huber loss must be positive"),
        (lambda: losses.Huber([1.0, 0.0]), "threshold of the Huber loss must be positive"),
        (lambda: losses.EpsilonInsensitive(-0.1), "epsilon of the EpsilonInsensitive loss must be 0 or more"),
        (lambda: losses.EpsilonInsensitive(np.nan), "epsilon of the EpsilonInsensitive loss must be 0 or more"),
        (lambda: losses.SmoothedPinball(0.0), "width of the SmoothedPinball loss must be positive"),
        (lambda: losses.SmoothedPinball(0.1, 1.0), "levels of the SmoothedPinball loss must be strictly between"),
        (lambda: losses.Expectile(1.0), "level of the Expectile loss must be strictly between 0 and 1"),
        (lambda: losses.SmoothedHinge(-1), "width of the SmoothedHinge loss must be positive"),
        (lambda: losses.LogCosh(np.inf), "scale of the LogCosh loss must be positive"),
        (lambda: losses.Huber([[1.0]]), "threshold must be a number or one for each of 1 columns"),
        (lambda: losses.Huber([1.0, 2.0], n_columns=3), "threshold must be a number or one for each of 3 columns"),
    ],
)
def test_parameters_outside_their_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_scalar_level_is_one_column():
    assert Pinball(0.3).value(np.zeros((4, 1))).shape == (4, 1)
    np.testing.assert_array_equal(Pinball(0.3).domain, [[-0.7], [0.3]])


@pytest.mark.parametrize("order", ["random", "sorted", "ties", "one value", "deceiving"])
def test_quantiles_of_many_values_are_those_of_sorted_ones(order):
    """Few of many values are sorted: those between which a sample says that the quantile lies."""
    rng, n = np.random.default_rng(0), 150_001
    values = rng.standard_normal(n)
    if order == "sorted":
        values.sort()
    elif order == "ties":
        values = np.round(values)
    elif order == "one value":
        values[:] = 3.0
    elif order == "deceiving":  # the values of which a sample is taken are not like the others
        values[:: n // 2**14] += 5
    levels = np.array([1e-7, 0.001, 0.1, 1 / 3, 0.5, 0.999, 1 - 1e-7])
    right, share = np.sort(values), np.full(n, 1 / n)
    places = np.clip([np.ceil(levels * n - 1e-6) - 1, np.floor(levels * n + 1e-6)], 0, n - 1).astype(int)
    one_by_one = [weighted_quantiles(values, share, levels[k : k + 1])[0] for k in range(len(levels))]
    np.testing.assert_array_equal(one_by_one, right[places].mean(axis=0))
    np.testing.assert_array_equal(weighted_quantiles(values, share, levels), one_by_one)


def test_columns_of_many_targets_have_the_quantiles_that_each_has_alone():
    y = np.random.default_rng(0).standard_normal((100_000, 2))
    share = np.full(len(y), 1 / len(y))
    alone = [Pinball([level]).fit_constant(column, share)[0] for column, level in zip(y.T, (0.2, 0.8), strict=True)]
    np.testing.assert_array_equal(Pinball([0.2, 0.8]).fit_constant(y, share), alone)


def test_the_mean_of_equal_targets_is_that_target():
    rng = np.random.default_rng(0)
    for value in rng.standard_normal(50):
        share = 10.0 ** rng.uniform(-12, 0, 1000)
        assert np.all(losses.Squared().fit_constant(np.full(1000, value), share / share.sum()) == value)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 24.05])
def test_the_constant_of_a_tube_has_all_digits_beside_a_weight_that_outweighs_all_others(epsilon):
    """A row inside the tube costs nothing however heavy it is: the others decide, to their own digits."""
    rng = np.random.default_rng(0)
    y, weight = 30 * rng.standard_cauchy(37), rng.uniform(1, 2, 37)
    weight[5] = 1e14
    (found,) = losses.EpsilonInsensitive(epsilon).fit_constant(y, weight / weight.sum())

    def exact(constant):
        tube = [max(abs(Fraction(v) - Fraction(float(constant))) - Fraction(epsilon), 0) for v in y.tolist()]
        return sum(Fraction(w) * r for w, r in zip(weight.tolist(), tube, strict=True))

    # A knot is rounded, and the heavy row is outside by that: the best of the knots and their neighbours.
    knots = np.unique([y - epsilon, y + epsilon])
    near = np.concatenate([knots, np.nextafter(knots, -np.inf), np.nextafter(knots, np.inf)])
    best = min(exact(one) for one in near)
    rounding = min(exact(np.nextafter(found, way)) for way in (-np.inf, np.inf))
    assert min(exact(found), rounding) <= best * Fraction(1 + 1e-12)
