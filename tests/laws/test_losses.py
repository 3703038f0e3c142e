"""Laws of every loss, and for every law a loss that breaks it."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from quernel import losses
from quernel.losses import Hinge, Logistic, Pinball, Smooth, Squared, weighted_quantiles

LEVELS = np.array([0.05, 0.5, 0.9])
THREE = np.array([0.3, 1.0, 2.5])
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
    "hinge": Hinge(**ALIKE),
    "squared_hinge": losses.SquaredHinge(**ALIKE),
    "smoothed_hinge": losses.SmoothedHinge(THREE),
    "logistic": Logistic(**ALIKE),
}


def rounded(r, width, low, high):
    """The largest of the lines  v r - width v^2 / 2  with v between low and high."""
    v = min(max(r / width, low), high)
    return v * r - width * v * v / 2


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
    "hinge": np.ones(3),
    "squared_hinge": np.full(3, np.inf),
    "smoothed_hinge": np.ones(3),
    "logistic": np.ones(3),
}

GRID = np.linspace(-60, 60, 12001)
WIDTHS = (0.03, 1.0, 20.0)
# Numbers of the size of 10 are known to this.
ROUNDING = 1e-12


def columns(values, loss):
    """The same numbers in every column, shape (n, q)."""
    return np.tile(np.asarray(values, dtype=float)[:, None], (1, len(loss.domain[0])))


def ends(loss):
    return tuple(np.clip(end, -4, 4) for end in loss.domain)


def inside(loss, count=41):
    """Duals from one end of the domain to the other (of a wide part of it, where it is unbounded)."""
    low, high = ends(loss)
    return np.clip(low + np.linspace(0, 1, count)[:, None] * (high - low), low, high)


def residuals():
    rng = np.random.default_rng(21)
    return np.concatenate([rng.uniform(-5, 5, 60), rng.uniform(-0.1, 0.1, 20)])


def anchors(loss, n):
    low, high = ends(loss)
    return np.clip(np.random.default_rng(22).uniform(low, high, (n, len(low))), low, high)


def smoothed(loss, residual, anchor, width):
    """max over v of  v r - conjugate(v) - width (v - anchor)^2 / 2,  by search over v, entry by entry."""
    low, high = (np.clip(end, -500, 500) for end in loss.domain)
    answer = np.empty_like(residual)
    for i, k in np.ndindex(residual.shape):

        def negative(v, i=i, k=k):
            dual = np.full((1, residual.shape[1]), np.nan)
            dual[0] = np.clip(0, low, high)
            dual[0, k] = v
            return -(v * residual[i, k] - loss.conjugate(dual)[0, k] - width * (v - anchor[i, k]) ** 2 / 2)

        found = minimize_scalar(negative, bounds=(low[k], high[k]), method="bounded", options={"xatol": 1e-11})
        answer[i, k] = -min(found.fun, negative(low[k]), negative(high[k]))
    return answer


# The laws: each a function of the loss (and of how a person says it), so that a broken loss can be held against it.


def law_value(loss, by_hand):
    r = columns(np.append(residuals(), 0.0), loss)
    expected = [[by_hand(r[i, k], k) for k in range(r.shape[1])] for i in range(len(r))]
    np.testing.assert_allclose(loss.value(r), expected, rtol=1e-12, atol=1e-16)


def law_slope_is_the_derivative(loss, by_hand):
    r, step = residuals(), 1e-6
    for k in range(len(loss.domain[0])):
        smooth = r[np.abs(loss.distance_to_knot(columns(r, loss))[:, k]) > 1e-3]
        assert len(smooth) > 60
        numeric = [(by_hand(x + step, k) - by_hand(x - step, k)) / (2 * step) for x in smooth]
        np.testing.assert_allclose(loss.slope(columns(smooth, loss))[:, k], numeric, atol=1e-5)


def law_slope_supports_the_loss(loss, by_hand):
    """loss(z) >= loss(r) + slope(r) (z - r), at the kink too."""
    for k in range(loss.n_columns):
        values = np.array([by_hand(z, k) for z in GRID[::10]])
        for at in (-2.0, 0.0, 1e-9, 3.0):
            slope = loss.slope(columns([at], loss))[0, k]
            assert np.all(values >= by_hand(at, k) + slope * (GRID[::10] - at) - ROUNDING)


def law_prox_is_optimal(loss, by_hand):
    r = columns(residuals(), loss)
    for width in WIDTHS:
        point = loss.prox(r, width)
        for i, k in np.ndindex(r.shape):

            def cost(z, i=i, k=k, width=width):
                return by_hand(z, k) + (z - r[i, k]) ** 2 / (2 * width)

            reached = cost(point[i, k])
            near = point[i, k] + np.array([-1e-3, 1e-3])
            assert reached <= min(cost(z) for z in np.concatenate([GRID[5400:6600:10], near])) + ROUNDING


def law_dual_is_the_slope_of_the_smoothed_loss(loss, by_hand):
    r = columns(residuals()[::4], loss)
    anchor, step = anchors(loss, len(r)), 1e-4
    for width in WIDTHS:
        ahead, behind = (smoothed(loss, r + sign * step, anchor, width) for sign in (1, -1))
        # Across a kink of the slope the central difference is off by at most step / (2 width).
        np.testing.assert_allclose(
            loss.dual(r, anchor, width), (ahead - behind) / (2 * step), atol=1e-6 + step / (2 * width)
        )


def law_dual_is_the_maximiser(loss, by_hand):
    r = columns(residuals(), loss)
    anchor = anchors(loss, len(r))
    for width in WIDTHS:
        dual = loss.dual(r, anchor, width)

        def gain(v, width=width):
            return v * r - loss.conjugate(v) - width * (v - anchor) ** 2 / 2

        assert np.all(np.isfinite(gain(dual)))
        for row in inside(loss):
            assert np.all(gain(dual) >= gain(np.broadcast_to(row, r.shape)) - ROUNDING)


def law_curvature_is_the_derivative_of_the_dual(loss, by_hand):
    r = columns(residuals(), loss)
    anchor, step = anchors(loss, len(r)), 1e-7
    for width in WIDTHS:
        curvature = loss.curvature(r, anchor, width)
        assert np.all((curvature >= 0) & (curvature <= 1 / width * (1 + 1e-12)))
        left, here, right = (loss.dual(r + move, anchor, width) for move in (-step, 0, step))
        before, after = (here - left) / step, (right - here) / step
        smooth = np.abs(before - after) <= 1e-5 / width  # a step across a kink has no derivative to compare with
        assert smooth.mean() > 0.95
        np.testing.assert_allclose(curvature[smooth], ((before + after) / 2)[smooth], rtol=1e-5, atol=1e-5 / width)
    smooth = np.all(loss.smoothing_width > 0)
    if smooth:  # then there is a curvature without any width, 1 / own_width at the most
        curvature = loss.curvature(r, anchor, 0.0)
        assert np.all((curvature >= 0) & (curvature <= 1 / loss.smoothing_width * (1 + 1e-12)))
        clear = loss.distance_to_knot(r) > 1e-3
        numeric = (loss.slope(r + 1e-5) - loss.slope(r - 1e-5)) / 2e-5
        np.testing.assert_allclose(
            curvature[clear & (np.abs(r) > 1e-3)], numeric[clear & (np.abs(r) > 1e-3)], atol=1e-7
        )


def law_fenchel_young(loss, by_hand):
    """value(r) + conjugate(v) - v r >= 0 for every v, and = 0 where v is the slope at r."""
    r = columns(residuals(), loss)
    for row in inside(loss):
        v = np.broadcast_to(row, r.shape)
        assert np.all(loss.value(r) + loss.conjugate(v) - v * r >= -ROUNDING)
    v = loss.slope(r)
    np.testing.assert_allclose(loss.value(r) + loss.conjugate(v) - v * r, 0, atol=ROUNDING)
    off = np.clip(v + 0.1, *ends(loss))  # and not merely everywhere
    assert np.any(loss.value(r) + loss.conjugate(off) - off * r > 1e-3)


def law_conjugate(loss, by_hand):
    """max over r of  v r - loss(r)  inside the domain; infinite outside."""
    v = inside(loss)
    for k in range(v.shape[1]):
        values = np.array([by_hand(r, k) for r in GRID])
        lines = v[:, k, None] * GRID - values
        reached = np.abs(loss.inverse_subgradient(v)[:, k]) < 50  # within the grid
        assert reached.sum() >= 20
        np.testing.assert_allclose(loss.conjugate(v)[reached, k], lines.max(axis=1)[reached], atol=1e-3)
    low, high = loss.domain
    for end, outwards in ((low, -1e-6), (high, 1e-6)):
        bounded = np.isfinite(end)
        assert np.all(np.isinf(loss.conjugate((end + outwards)[None, :])[0, bounded]))
        assert np.all(np.isfinite(loss.conjugate(end[None, :])[0, bounded])), "the domain is closed"


def law_inverse_subgradient(loss, by_hand):
    """v is a subgradient of the loss at inverse_subgradient(v)."""
    v = inside(loss)
    r = loss.inverse_subgradient(v)
    assert r.shape == v.shape
    np.testing.assert_allclose(loss.value(r) + loss.conjugate(v) - v * r, 0, atol=ROUNDING)


def law_subgradient_interval(loss, by_hand):
    """v stays a subgradient of the loss at r - s for s in the interval, and for none beyond."""
    v = inside(loss, 9)[1:-1] if isinstance(loss, Smooth) else inside(loss, 9)  # whose ends are at infinity
    r = loss.inverse_subgradient(v) + np.where(v >= loss.domain[1], 0.7, 0) - np.where(v <= loss.domain[0], 0.7, 0)
    low, high = loss.subgradient_interval(r, v)

    def miss(s):
        return loss.value(r - s) + loss.conjugate(v) - v * (r - s)

    for end, outwards in ((low, -0.3), (high, 0.3)):
        known = np.isfinite(end)
        np.testing.assert_allclose(miss(np.where(known, end, 2.0 * outwards)), 0, atol=ROUNDING)
        assert np.all(miss(np.where(known, end, 0) + outwards)[known] > 1e-4)


def law_lipschitz(loss, by_hand):
    """|loss(r) - loss(z)| <= L |r - z| for the smallest such L, on an interval and on the line."""
    for bound in (0.5, 3.0, 50.0):
        steepest = loss.lipschitz(bound)
        points = np.linspace(-bound, bound, 2001)
        for k, stated in enumerate(steepest):
            values = np.array([by_hand(r, k) for r in points])
            found = np.max(np.abs(np.diff(values) / np.diff(points)))
            assert found <= stated * (1 + 1e-9)
            assert found >= stated * (1 - 0.01) - 1e-9
            assert stated <= loss.lipschitz()[k] * (1 + 1e-12)
        if np.all(np.isfinite(loss.lipschitz())) and bound == 50.0:
            np.testing.assert_allclose(steepest, loss.lipschitz(), rtol=1e-3)


def law_frame(loss, by_hand):
    """r = offset - sign f is y - f, or 1 - y f for the margin."""
    target, f = np.array([[-1.0], [1.0]]), np.array([[0.3], [0.7]])
    offset, sign = loss.margin_transform(target)
    np.testing.assert_allclose(offset - sign * f, 1 - target * f if loss.margin else target - f)
    assert np.all(np.abs(sign) == 1)


def law_lines(loss, by_hand):
    """Between its knots the loss has the slopes it says; where it says nan it is no line."""
    knots, slopes = loss.segments
    assert slopes.shape == (len(knots), knots.shape[1] + 1)
    for k in range(len(knots)):
        ends = np.clip(np.concatenate([[-9.0], knots[k], [9.0]]), -9, 9)
        for first, last, stated in zip(ends[:-1], ends[1:], slopes[k], strict=True):
            if last - first < 1e-9:
                continue
            left, middle, right = (by_hand(first + part * (last - first), k) for part in (0.25, 0.5, 0.75))
            if np.isnan(stated):
                assert left + right - 2 * middle > 1e-6
            else:
                assert (right - left) / (0.5 * (last - first)) == pytest.approx(stated, abs=1e-9)
    r = columns(residuals(), loss)
    nearest = np.min([np.full(r.shape, np.inf), *(np.abs(r - knot) for knot in knots.T)], axis=0)
    np.testing.assert_allclose(loss.distance_to_knot(r), nearest)


def law_fit_constant(loss, by_hand):
    rng = np.random.default_rng(23)
    for target, weight in (
        (rng.standard_normal(40), np.ones(40)),
        (rng.integers(0, 4, 40).astype(float), np.ones(40)),
        (rng.standard_normal(40), rng.integers(0, 3, 40).astype(float)),
        (1e6 + rng.standard_normal(7), rng.exponential(size=7)),
        (np.array([2.0]), np.ones(1)),
    ):
        if loss.margin:
            target = np.where(target > np.quantile(target, 0.4), 1.0, -1.0)
            if np.ptp(target) == 0:
                continue
        share = weight / weight.sum()
        constant = loss.fit_constant(target, share)
        for k, b in enumerate(constant):

            def cost(b, k=k, target=target, share=share):
                residual = 1 - target * b if loss.margin else target - b
                return sum(s * by_hand(r, k) for s, r in zip(share, residual, strict=True))

            trials = np.concatenate([target, np.linspace(target.min(), target.max(), 101)])
            assert cost(b) <= min(cost(trial) for trial in trials) * (1 + 1e-12) + 1e-14


def law_take(loss, by_hand):
    r = columns(residuals(), loss)
    for chosen in (np.array([2, 0]), np.array([1]), np.array([], dtype=int)):
        part = loss.take(chosen)
        np.testing.assert_array_equal(part.value(r[:, chosen]), loss.value(r)[:, chosen])
        for mine, whole in zip(part.domain, loss.domain, strict=True):
            np.testing.assert_array_equal(mine, whole[chosen])


LAWS = {name.removeprefix("law_"): law for name, law in list(globals().items()) if name.startswith("law_")}


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
