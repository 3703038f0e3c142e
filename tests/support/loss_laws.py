"""Laws of every loss: functions of a loss and of the same loss written by hand, `by_hand(residual, column)`."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from quernel.losses import Smooth

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
