"""Losses, conjugates and certain values of F for the attack, written from their definitions and in extended precision.

    F(u, b) = sum_i share_i loss(r_i) + alpha u'u,    r = y - f  or, for losses of the margin,  r = 1 - y f,

with f = Phi u + b.

Nothing here comes from the library. Products Phi u are summed in double-double arithmetic (Dekker 1971), what follows
in 80-bit numbers, so that F is known to about 18 digits, whatever the offsets of y and of the features are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Extended = np.longdouble
# Relative rounding error, amply, of pairwise sums in 80-bit numbers, whose own is 5e-20: brackets are wider by it.
ROUNDING = Extended(1e-17)
# Relative error of an entry of the kernel matrix and of its share in a sum.
GRAM_ROUNDING = Extended(6e-19)
SPLITTER = 134_217_729.0  # 2^27 + 1
MARGIN = ("hinge", "squared_hinge", "smoothed_hinge", "logistic")
UNBOUNDED = ("squared", "expectile", "squared_hinge")
REGRESSION = (
    "pinball", "absolute", "huber", "epsilon_insensitive", "smoothed_pinball", "squared", "expectile", "logcosh",
)  # fmt: skip


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    c, d = SPLITTER * a, SPLITTER * b
    a_high, b_high = c - (c - a), d - (d - b)
    a_low, b_low = a - a_high, b - b_high
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def halves(numbers: Array) -> tuple[Array, Array]:
    """Extended numbers as the unevaluated sum of two doubles."""
    high = np.asarray(numbers, dtype=float)
    return high, np.asarray(numbers - high, dtype=float)


def multiply(matrix: Array, vector: Array) -> tuple[Array, Array]:
    """matrix @ vector in double-double arithmetic; the vector may be extended."""
    high, low = halves(vector)
    product, error = _two_product(matrix, np.broadcast_to(high, matrix.shape))
    error += matrix * low
    while product.shape[1] > 1:  # pairwise sums
        if product.shape[1] % 2:
            product, error = (np.pad(part, ((0, 0), (0, 1))) for part in (product, error))
        product, lost = _two_sum(product[:, ::2], product[:, 1::2])
        error = error[:, ::2] + error[:, 1::2] + lost
    return product[:, 0], error[:, 0]


def add_up(first: Array, parts: list[Array]) -> Array:
    """first + sum of parts, extended; what cancels does so in double-double arithmetic, before anything is rounded."""
    total, rest = first, np.zeros(first.shape)
    for part in parts:
        total, lost = _two_sum(total, part)
        rest = rest + lost
    return total.astype(Extended) + rest


@dataclass(frozen=True)
class LossByHand:
    """One loss: `level` of quantiles and expectiles; `length` is Huber's threshold, a width, epsilon or a scale."""

    name: str
    level: float = 0.5
    length: float = 1.0

    @property
    def margin(self) -> bool:
        return self.name in MARGIN

    @property
    def kinked(self) -> bool:
        return self.name in ("pinball", "absolute", "epsilon_insensitive", "hinge")

    @property
    def box(self) -> tuple[Array, Array]:
        """Bounds of the duals, the range of the slope."""
        tau, length, inf = Extended(self.level), Extended(self.length), Extended(np.inf)
        match self.name:
            case "pinball" | "smoothed_pinball":
                return tau - 1, tau
            case "huber" | "logcosh":
                return -length, length
            case "squared" | "expectile":
                return -inf, inf
            case "squared_hinge":
                return Extended(0), inf
            case "absolute" | "epsilon_insensitive":
                return Extended(-1), Extended(1)
        return Extended(0), Extended(1)

    @property
    def lengths(self) -> tuple[Array, Array]:
        """1 / second derivative for negative and positive slopes; 0 for kinks."""
        one, tau = Extended(1), Extended(self.level)
        match self.name:
            case "huber":
                return one, one
            case "smoothed_pinball" | "smoothed_hinge":
                return Extended(self.length), Extended(self.length)
            case "squared" | "squared_hinge":
                return one / 2, one / 2
            case "expectile":
                return one / (2 * (1 - tau)), one / (2 * tau)
        return Extended(0), Extended(0)

    @property
    def tube(self) -> Array:
        """Half width of the zone in which residuals cost nothing."""
        return Extended(self.length if self.name == "epsilon_insensitive" else 0)

    def value(self, r: Array) -> Array:
        """loss(r)."""
        tau, length = Extended(self.level), Extended(self.length)
        match self.name:
            case "pinball":
                return np.maximum(tau * r, (tau - 1) * r)
            case "absolute":
                return np.abs(r)
            case "huber":
                return np.where(np.abs(r) <= length, r**2 / 2, length * (np.abs(r) - length / 2))
            case "epsilon_insensitive":
                return np.maximum(np.abs(r) - length, 0)
            case "squared":
                return r**2
            case "expectile":
                return np.where(r >= 0, tau, 1 - tau) * r**2
            case "hinge":
                return np.maximum(r, 0)
            case "squared_hinge":
                return np.maximum(r, 0) ** 2
            case "smoothed_pinball" | "smoothed_hinge":
                slope = np.clip(r / length, *self.box)
                return slope * r - length * slope**2 / 2
            case "logistic":
                return np.logaddexp(Extended(0), r - 1)
            case "logcosh":
                x = np.abs(r / length)
                near = np.log1p(2 * np.sinh(np.minimum(x, 1) / 2) ** 2)
                return length**2 * np.where(x < 1, near, x + np.log1p(np.exp(-2 * x)) - np.log(Extended(2)))
        raise KeyError(self.name)

    def slope(self, r: Array) -> Array:
        """A subgradient at r; at kinks, 0."""
        length = Extended(self.length)
        match self.name:
            case "logistic":
                return 1 / (1 + np.exp(np.clip(1 - r, -11_000, 11_000)))
            case "logcosh":
                return length * np.tanh(r / length)
        below, above = self.lengths
        inside = np.sign(r) * np.maximum(np.abs(r) - self.tube, 0)
        side = np.where(inside < 0, below, above)
        if not (below > 0 or above > 0):
            low, high = self.box
            return np.where(inside > 0, high, np.where(inside < 0, low, Extended(0)))
        return np.clip(inside / side, *self.box)

    def conjugate(self, v: Array) -> Array:
        """max over r of v r - loss(r), for v in the box."""
        match self.name:
            case "logistic":
                inner = np.where(v > 0, v * np.log(np.where(v > 0, v, 1)), 0)
                rest = np.where(v < 1, (1 - v) * np.log1p(-np.where(v < 1, v, 0)), 0)
                return v + inner + rest
            case "logcosh":
                u = np.clip(v / Extended(self.length), -1, 1)
                series = sum(u ** (2 * k) / Extended(k * (2 * k - 1)) for k in range(1, 11))
                a, b = 1 + u, 1 - u
                direct = np.where(a > 0, a * np.log(np.where(a > 0, a, 1)), 0)
                direct = direct + np.where(b > 0, b * np.log(np.where(b > 0, b, 1)), 0)
                return Extended(self.length) ** 2 * np.where(np.abs(u) < 0.1, series, direct) / 2
        below, above = self.lengths
        return np.where(v < 0, below, above) * v**2 / 2 + self.tube * np.abs(v)


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows of a problem with positive weight: features (n, M) or a kernel matrix, y (n,), share (n,) of sum 1.

    `centre` (M,) and `middle` are subtracted from the features and y where there is an intercept, for the digits.
    """

    y: Array
    share: Array
    alpha: float
    intercept: bool
    features: Array | None = None
    gram: Array | None = None
    centre: Array | None = None
    middle: float = 0.0

    @classmethod
    def from_rows(
        cls,
        y: Array,
        weight: Array | None,
        alpha: float,
        intercept: bool,
        features: Array | None = None,
        gram: Array | None = None,
        *,
        margin: bool = False,
    ) -> Sample:
        """The sample of all rows with a positive weight."""
        weight = np.ones(len(y)) if weight is None else np.asarray(weight, dtype=float)
        kept = np.flatnonzero(weight > 0)
        share = weight[kept].astype(Extended)
        share /= share.sum()
        y = np.asarray(y, dtype=float)[kept]
        features = None if features is None else np.asarray(features, dtype=float)[kept]
        gram = None if gram is None else gram[np.ix_(kept, kept)]
        centre = None
        if features is not None and intercept:
            centre = np.asarray(share @ (features - features[0]) + features[0], dtype=float)
        middle = _weighted_median(y, share) if intercept and not margin else 0.0
        return cls(y, share, alpha, intercept, features, gram, centre, middle)

    def centred(self) -> Array:
        """Features minus their centres, extended."""
        assert self.features is not None
        features = self.features.astype(Extended)
        return features if self.centre is None else features - self.centre

    def residuals(self, loss: LossByHand, coef: Array, intercept: Array) -> Array:
        """r (n,), extended, of coefficients and an intercept that refer to the features and y as they are.

        An intercept is a sequence of numbers whose sum is meant.
        """
        assert self.features is not None
        high, low = multiply(self.features, coef)
        sign = -self.y if loss.margin else np.full(len(self.y), -1.0)
        parts = [sign * high, sign * low]
        for number in np.atleast_1d(intercept):
            parts += [sign * half for half in halves(Extended(number))]
        return add_up(np.ones(len(self.y)) if loss.margin else self.y, parts)

    def objective(self, loss: LossByHand, coef: Array, intercept: Array) -> Array:
        """F(u, b), to 18 digits."""
        coef = np.asarray(coef, dtype=Extended)
        return self.mean(loss.value(self.residuals(loss, coef, intercept))) + Extended(self.alpha) * np.sum(coef**2)

    def mean(self, values: Array) -> Array:
        """sum share value, by pairwise summation (a product of vectors sums in order, with more rounding)."""
        return np.sum(self.share * values)

    def apply_phi_t(self, weighted: Array) -> Array:
        """Phi'weighted (M,), of weights whose sum is 0 if there is an intercept; double-double before it is rounded."""
        assert self.features is not None
        high, low = multiply(np.ascontiguousarray(self.features.T), weighted)
        force = high.astype(Extended) + low
        if self.centre is None:
            return force
        # What is left of the sum stands for a change of some rows' weights, which moves the centred features only.
        left = multiply(np.ones((1, len(weighted))), weighted)
        return force - self.centre * (left[0].astype(Extended) + left[1])

    def offsets(self, loss: LossByHand) -> tuple[Array, Array]:
        """(offset, sign) of r = offset - sign f, with y minus its middle."""
        if loss.margin:
            return np.ones(len(self.y), dtype=Extended), self.y.astype(Extended)
        return self.y.astype(Extended) - self.middle, np.ones(len(self.y), dtype=Extended)

    def balance(self, loss: LossByHand, dual: Array) -> Array:
        """Duals moved into their box and, with an intercept, shrunk on one side until sum share sign v = 0."""
        _, sign = self.offsets(loss)
        dual = np.clip(np.asarray(dual, dtype=Extended), *loss.box)
        if not self.intercept:
            return dual
        for _ in range(3):
            weighted = self.share * sign * dual
            up, down = weighted[weighted > 0].sum(), -weighted[weighted < 0].sum()
            small = min(up, down)
            dual = dual * np.where(weighted > 0, small / up if up > 0 else 0, small / down if down > 0 else 0)
        return dual

    def dual_value(self, loss: LossByHand, dual: Array) -> tuple[Array, Array]:
        """(a value that F never falls below, Phi'(share sign v) or its image under the kernel), for balanced duals."""
        offset, sign = self.offsets(loss)
        weighted = self.share * sign * dual
        if self.gram is None:
            force = self.apply_phi_t(weighted)
            square = np.sum(force**2)
        else:
            force = np.sum(self.gram * weighted, axis=1)
            square = np.sum(weighted * force)
        linear, conjugate = self.share * dual * offset, self.share * loss.conjugate(dual)
        square = square / (4 * Extended(self.alpha))
        rounding = ROUNDING * (np.abs(linear).sum() + np.abs(conjugate).sum() + square)
        if self.gram is not None:
            size = np.abs(weighted)
            rounding += GRAM_ROUNDING * np.sum(size * (np.abs(self.gram) @ size)) / (4 * Extended(self.alpha))
        return linear.sum() - conjugate.sum() - square - rounding, force

    def best_constant(self, loss: LossByHand, residual: Array | None = None) -> tuple[Array, Array]:
        """(b, mean loss) of the best constant to add to a fit of residuals (n,), by bisection of the derivative."""
        offset, sign = self.offsets(loss)
        offset = offset if residual is None else residual
        low, high = (sign * offset).min(), (sign * offset).max()
        if loss.margin:
            low, high = low - 60, high + 60
        values = {}
        for _ in range(300):
            b = (low + high) / 2
            if b in (low, high):
                break
            slope = (self.share * sign) @ loss.slope(offset - sign * b)
            low, high = (b, high) if slope > 0 else (low, b)
        near = (sign * offset)[np.argsort(np.abs(sign * offset - low))[:3]]
        for b in (low, high, *near, *(near - loss.tube), *(near + loss.tube)):
            values[b] = self.mean(loss.value(offset - sign * b))
        best = min(values, key=values.__getitem__)
        return best, values[best]

    def null_objective(self, loss: LossByHand) -> tuple[Array, Array]:
        """F at the best constant, and the most that it is at constants off by one in the last digit of a double.

        At 0 without an intercept, both.
        """
        offset, sign = self.offsets(loss)
        if not self.intercept:
            value = self.mean(loss.value(offset))
            return value, value
        constant, value = self.best_constant(loss)
        double = float(constant + self.middle)
        near = [double, np.nextafter(double, -np.inf), np.nextafter(double, np.inf)]
        return value, max(self.mean(loss.value(offset - sign * (Extended(b) - self.middle))) for b in near)


def _weighted_median(values: Array, share: Array) -> float:
    order = np.argsort(values, kind="stable")
    return float(values[order[min(np.searchsorted(np.cumsum(share[order]), 0.5), len(values) - 1)]])
