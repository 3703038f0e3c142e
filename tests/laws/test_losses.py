"""Laws of every loss, and for every law a loss that breaks it."""

import inspect

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from quernel import losses
from quernel.losses import Pinball

LEVELS = np.array([0.05, 0.5, 0.9])
LOSSES = {"pinball": Pinball(LEVELS)}
# Each loss again, as a person would say it: of one residual, in one column.
BY_HAND = {"pinball": lambda r, k: LEVELS[k] * r if r >= 0 else (LEVELS[k] - 1) * r}

GRID = np.linspace(-6, 6, 1201)
WIDTHS = (0.03, 1.0, 20.0)


def columns(values, loss):
    """The same numbers in every column, shape (n, q)."""
    return np.tile(np.asarray(values, dtype=float)[:, None], (1, len(loss.domain[0])))


def inside(loss, count=41):
    """Duals from one end of the domain to the other (of a wide part of it, where it is unbounded)."""
    low, high = (np.clip(end, -50, 50) for end in loss.domain)
    return np.clip(low + np.linspace(0, 1, count)[:, None] * (high - low), low, high)


def residuals():
    rng = np.random.default_rng(21)
    return np.concatenate([rng.uniform(-5, 5, 60), rng.uniform(-0.1, 0.1, 20)])


def anchors(loss, n):
    low, high = (np.clip(end, -50, 50) for end in loss.domain)
    return np.clip(np.random.default_rng(22).uniform(low, high, (n, len(low))), low, high)


def smoothed(loss, residual, anchor, width):
    """max over v of  v r - conjugate(v) - width (v - anchor)^2 / 2,  by search over v, entry by entry."""
    low, high = (np.clip(end, -50, 50) for end in loss.domain)
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
    np.testing.assert_allclose(loss.value(r), expected, rtol=1e-14, atol=0)


def law_slope_is_the_derivative(loss, by_hand):
    r, step = residuals(), 1e-6
    for k in range(len(loss.domain[0])):
        smooth = r[np.abs(r) > 1e-3]
        numeric = [(by_hand(x + step, k) - by_hand(x - step, k)) / (2 * step) for x in smooth]
        np.testing.assert_allclose(loss.slope(columns(smooth, loss))[:, k], numeric, atol=1e-6)


def law_slope_supports_the_loss(loss, by_hand):
    """loss(z) >= loss(r) + slope(r) (z - r), at the kink too."""
    for at in (-2.0, 0.0, 1e-9, 3.0):
        slope = loss.slope(columns([at], loss))
        for k in range(slope.shape[1]):
            assert all(by_hand(z, k) >= by_hand(at, k) + slope[0, k] * (z - at) - 1e-12 for z in GRID)


def law_prox_is_optimal(loss, by_hand):
    r = columns(residuals(), loss)
    for width in WIDTHS:
        point = loss.prox(r, width)
        for i, k in np.ndindex(r.shape):

            def cost(z, i=i, k=k, width=width):
                return by_hand(z, k) + (z - r[i, k]) ** 2 / (2 * width)

            reached = cost(point[i, k])
            near = point[i, k] + np.array([-1e-3, 1e-3])
            assert reached <= min(cost(z) for z in np.concatenate([GRID[::10], near])) + 1e-12


def law_dual_is_the_slope_of_the_smoothed_loss(loss, by_hand):
    r = columns(residuals()[::4], loss)
    anchor, step = anchors(loss, len(r)), 1e-4
    for width in WIDTHS:
        ahead, behind = (smoothed(loss, r + sign * step, anchor, width) for sign in (1, -1))
        # Across a kink of the slope the central difference is off by at most step / (2 width).
        np.testing.assert_allclose(
            loss.dual(r, anchor, width), (ahead - behind) / (2 * step), atol=1e-7 + step / (2 * width)
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
            assert np.all(gain(dual) >= gain(np.broadcast_to(row, r.shape)) - 1e-12)


def law_curvature_is_the_derivative_of_the_dual(loss, by_hand):
    r = columns(residuals(), loss)
    anchor, step = anchors(loss, len(r)), 1e-7
    for width in WIDTHS:
        curvature = loss.curvature(r, anchor, width)
        assert np.all((curvature >= 0) & (curvature <= 1 / width * (1 + 1e-12)))
        left, here, right = (loss.dual(r + move, anchor, width) for move in (-step, 0, step))
        before, after = (here - left) / step, (right - here) / step
        smooth = np.abs(before - after) <= 1e-6 / width  # a step across a kink has no derivative to compare with
        assert smooth.mean() > 0.95
        np.testing.assert_allclose(curvature[smooth], ((before + after) / 2)[smooth], rtol=1e-5, atol=1e-5 / width)


def law_fenchel_young(loss, by_hand):
    """value(r) + conjugate(v) - v r >= 0 for every v, and = 0 where v is the slope at r."""
    r = columns(residuals(), loss)
    for row in inside(loss):
        v = np.broadcast_to(row, r.shape)
        assert np.all(loss.value(r) + loss.conjugate(v) - v * r >= -1e-12)
    v = loss.slope(r)
    np.testing.assert_allclose(loss.value(r) + loss.conjugate(v) - v * r, 0, atol=1e-12)


def law_conjugate(loss, by_hand):
    """max over r of  v r - loss(r)  inside the domain; infinite outside."""
    v = inside(loss)
    for k in range(v.shape[1]):
        expected = [max(dual * r - by_hand(r, k) for r in GRID) for dual in v[:, k]]
        np.testing.assert_allclose(loss.conjugate(v)[:, k], expected, atol=1e-4)
    low, high = loss.domain
    for end, outwards in ((low, -1e-6), (high, 1e-6)):
        bounded = np.isfinite(end)
        assert np.all(np.isinf(loss.conjugate((end + outwards)[None, :])[0, bounded]))
        assert np.all(np.isfinite(loss.conjugate(end[None, :])[0, bounded])), "the domain is closed"


def law_contact(loss, by_hand):
    """v is a slope of the loss at contact(v)."""
    v = inside(loss)
    r = loss.contact(v)
    assert r.shape == v.shape
    np.testing.assert_allclose(loss.value(r) + loss.conjugate(v) - v * r, 0, atol=1e-12)


def law_best_constant(loss, by_hand):
    rng = np.random.default_rng(23)
    for target, weight in (
        (rng.standard_normal(40), np.ones(40)),
        (rng.integers(0, 4, 40).astype(float), np.ones(40)),
        (rng.standard_normal(40), rng.integers(0, 3, 40).astype(float)),
        (1e6 + rng.standard_normal(7), rng.exponential(size=7)),
        (np.array([2.0]), np.ones(1)),
    ):
        share = weight / weight.sum()
        constant = loss.best_constant(target, share)
        for k, b in enumerate(constant):

            def cost(b, k=k, target=target, share=share):
                return sum(s * by_hand(t - b, k) for s, t in zip(share, target, strict=True))

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
    """A loss added to the library is to be added to the tables above."""
    known = {type(loss) for loss in LOSSES.values()}
    there = {
        thing
        for thing in vars(losses).values()
        if inspect.isclass(thing) and hasattr(thing, "conjugate") and thing is not losses.Loss
    }
    assert there == known


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


class ContactBesideTheKink(Wrong):
    def contact(self, dual):
        return np.full_like(dual, 0.01)


class MeanConstant(Wrong):
    def best_constant(self, target, share):
        return np.full(len(self.levels), share @ target)


class UnweightedConstant(Wrong):
    def best_constant(self, target, share):
        return super().best_constant(target, np.full_like(share, 1 / len(share)))


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
        (ContactBesideTheKink, "contact"),
        (MeanConstant, "best_constant"),
        (UnweightedConstant, "best_constant"),
        (TakesTheFirst, "take"),
    ],
)
def test_a_wrong_loss_breaks_the_law(wrong, law):
    with pytest.raises(AssertionError):
        LAWS[law](wrong(LEVELS), BY_HAND["pinball"])


def test_every_law_has_its_negative_control():
    (mark,) = test_a_wrong_loss_breaks_the_law.pytestmark
    assert {law for _, law in mark.args[1]} == set(LAWS)


# What is particular to the check loss


@pytest.mark.parametrize("seed", range(5))
def test_best_constant_is_a_weighted_quantile(seed):
    """share{y < b} <= level <= share{y <= b}, and integer weights count rows."""
    rng = np.random.default_rng(seed)
    y, count = np.round(rng.standard_normal(30), 1), rng.integers(0, 4, 30)
    found = Pinball(LEVELS).best_constant(y, count / count.sum())
    rows = np.repeat(y, count)
    for level, b in zip(LEVELS, found, strict=True):
        assert np.mean(rows < b) <= level + 1e-12
        assert np.mean(rows <= b) >= level - 1e-12
    np.testing.assert_allclose(found, Pinball(LEVELS).best_constant(rows, np.full(len(rows), 1 / len(rows))))
    np.testing.assert_allclose(found, Pinball(LEVELS).best_constant(y, count.astype(float)))  # shares of any total


def test_best_constant_is_the_middle_of_its_interval():
    y = np.array([4.0, 1.0, 10.0, 2.0])
    np.testing.assert_array_equal(Pinball([0.25, 0.5, 0.6]).best_constant(y, np.full(4, 0.25)), [1.5, 3.0, 4.0])
    # A row without weight is not there.
    weights = np.array([1, 0, 1, 1, 0]) / 3
    assert Pinball(0.5).best_constant(np.array([0.0, 5.0, 1.0, 2.0, -9.0]), weights)[0] == 1


@pytest.mark.parametrize("levels", [0, 1, [0.5, 1.0], [-0.1], [np.nan], [[0.5]], 1.5])
def test_levels_outside_the_open_interval_are_refused(levels):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        Pinball(levels)


def test_a_scalar_level_is_one_column():
    assert Pinball(0.3).value(np.zeros((4, 1))).shape == (4, 1)
    np.testing.assert_array_equal(Pinball(0.3).domain, [[-0.7], [0.3]])
