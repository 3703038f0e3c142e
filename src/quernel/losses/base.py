"""The interface of a loss: a convex function of the residual, given together with its convex conjugate.

A closed convex loss is the supremum of its supporting lines, which defines the conjugate (Fenchel):

    loss(r) = max over v of  v r - conjugate(v),      conjugate(v) = max over r of  v r - loss(r).

The solvers use the augmented Lagrangian method, a proximal point method in the dual variables. With multipliers v0,
called `anchor`, and a smoothing width d they work on the smoothed loss (for v0 = 0, the Moreau envelope of the loss)

    loss_d(r) = max over v of  v r - conjugate(v) - d (v - v0)^2 / 2,

and need of a loss only

- `dual(r, v0, d)`       the maximising v, which is the derivative of loss_d at r;
- `curvature(r, v0, d)`  its derivative in r, an element of the generalised Hessian used by semismooth Newton: at most
                         1/d, and 0 on rows where v sits at a bound;
- `value`, `conjugate`   for the duality gap, because  value(r) + conjugate(v) - v r >= 0  for every r and v, with
                         equality if and only if v is a subgradient at r (the Fenchel-Young inequality).

Shapes: q fits ("columns", usually one per quantile level) are solved side by side, so r and v have shape (n, q), and
parameters of a loss have shape (q,): a loss may differ from column to column.

Regression and classification share this code because the residual of a target y and a prediction f is

    r = offset - sign f,      (offset, sign) = `margin_transform(y)`,

that is (y, 1) for regression, hence r = y - f, and (1, y) for a loss of the margin y f with labels y in {-1, +1}, hence
r = 1 - y f.

Two families derive most of this from less: `Smooth`, twice differentiable losses, and `Piecewise`, losses made of lines
and parabolas, whose dual variables have a closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Mask = NDArray[np.bool_]
# A parameter of a loss: one number for all columns, or one per column. After construction, an array of shape (q,).
Parameter = Any

# Ranges of parameters, by the words that complete "must be ..." in an error message.
RANGES: dict[str, Callable[[Array], Mask]] = {
    "positive": lambda values: (values > 0) & np.isfinite(values),
    "0 or more": lambda values: (values >= 0) & np.isfinite(values),
    "strictly between 0 and 1": lambda values: (values > 0) & (values < 1),
    "above -1": lambda values: (values > -1) & np.isfinite(values),
}
# Iterations after which `monotone_root` stops at the latest. Bisection alone halves the bracket each time, so far fewer
# reach machine precision: this is a safeguard.
MAX_ROOT_ITERATIONS = 200


@dataclass(frozen=True, eq=False)
class Loss:
    """Base class of all losses: a convex loss for q columns at once.

    A subclass is a frozen dataclass whose fields are its parameters, each one number for all columns or one per column.
    It implements `value`, `slope`, `dual`, `curvature`, `conjugate`, `inverse_subgradient`, `domain` or `ends`, and
    `smoothing_width` or `inverse_curvature`. `Smooth` and `Piecewise` derive most of these from less.

    Parameters
    ----------
    n_columns : int, default=1
        The number q of columns. 1 means: as many as the longest parameter has entries.

    Attributes
    ----------
    margin : bool
        Whether the loss is one of the margin y f, for labels -1 and +1 (a class attribute, as are all below).
    ends : (float, float)
        The range of the slope, where it is the same in every column; otherwise override `domain`.
    inverse_curvature : float
        1 / the largest second derivative, 0 for a loss with kinks, where it is the same in every column; otherwise
        override `smoothing_width`.
    ranges : dict of str to str
        The range of each parameter that has one, by its name in `RANGES`; others raise a ValueError.
    length_parameter : str or None
        The parameter that is a length in units of y, if there is one.
    relative_length : float
        Its default, relative to the scale of y, for a loss given to an estimator by name.
    """

    margin: ClassVar[bool] = False
    ends: ClassVar[tuple[float, float]]
    inverse_curvature: ClassVar[float]
    ranges: ClassVar[dict[str, str]] = {}
    length_parameter: ClassVar[str | None] = None
    relative_length: ClassVar[float]
    n_columns: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        given = {name: np.atleast_1d(np.asarray(getattr(self, name), dtype=float)) for name in self._parameters()}
        lengths = [len(array) for array in given.values() if array.ndim == 1]
        size = self.n_columns if self.n_columns != 1 else max([1, *lengths])
        for name, array in given.items():
            if array.ndim != 1 or len(array) not in (1, size):
                wanted = f"a number or one for each of {size} columns"
                raise ValueError(f"{name} must be {wanted}; got an array of shape {array.shape}.")
            # The dataclass is frozen; this is the one moment at which its fields are normalised.
            object.__setattr__(self, name, np.broadcast_to(array, (size,)))
        object.__setattr__(self, "n_columns", size)
        for name, wanted in self.ranges.items():
            if not np.all(RANGES[wanted](getattr(self, name))):
                raise ValueError(
                    f"{name} of the {type(self).__name__} loss must be {wanted}; got {getattr(self, name)}."
                )

    def _parameters(self) -> list[str]:
        """Names of the fields that are parameters of the loss."""
        return [part.name for part in fields(self) if part.name != "n_columns"]

    def value(self, residual: Array) -> Array:
        """loss(r), elementwise."""
        raise NotImplementedError

    def slope(self, residual: Array) -> Array:
        """A subgradient of the loss at r: its derivative where there is one."""
        raise NotImplementedError

    def dual(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """argmax over v of  v r - conjugate(v) - width (v - anchor)^2 / 2:  the derivative of the smoothed loss."""
        raise NotImplementedError

    def curvature(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """d dual / d r: the second derivative of the smoothed loss, between 0 and 1 / width."""
        raise NotImplementedError

    def smooth(self, residual: Array, anchor: Array, width: Array | float) -> tuple[Array, Array]:
        """(`dual`, `curvature`) in new arrays, which the caller may overwrite."""
        return np.array(self.dual(residual, anchor, width)), np.array(self.curvature(residual, anchor, width))

    def conjugate(self, dual: Array) -> Array:
        """The convex conjugate  max over r of  v r - loss(r);  inf outside the domain."""
        raise NotImplementedError

    def inverse_subgradient(self, dual: Array) -> Array:
        """A residual r at which v is a subgradient of the loss, that is, a subgradient of the conjugate at v."""
        raise NotImplementedError

    @property
    def domain(self) -> tuple[Array, Array]:
        """Lower and upper bound of the dual variables with a finite conjugate, each of shape (q,).

        This is the range of the slopes of the loss, and the box constraint of the dual problem: [tau - 1, tau] for the
        pinball loss.
        """
        low, high = self.ends
        return np.full(self.n_columns, low), np.full(self.n_columns, high)

    @property
    def smoothing_width(self) -> Array:
        """1 / the largest second derivative of the loss, 0 for a loss with kinks; shape (q,).

        A loss with a positive width is smooth by itself: the solvers need not smooth it further.
        """
        return np.full(self.n_columns, self.inverse_curvature)

    @property
    def segments(self) -> tuple[Array, Array]:
        """Knots (q, p) in ascending order, and the slopes (q, p + 1) before, between and after them.

        On a segment on which the loss is not linear the slope is nan. Screening rests on this: a row whose residual
        stays on one linear segment has a known, constant dual variable.
        """
        return np.empty((self.n_columns, 0)), np.full((self.n_columns, 1), np.nan)

    @cached_property
    def is_two_piece(self) -> bool:
        """Whether the loss is two half-lines that meet at 0, in every column: pinball, absolute and hinge are."""
        knots, slopes = self.segments
        return knots.shape[1] == 1 and not knots.any() and not np.isnan(slopes).any()

    def prox(self, residual: Array, width: Array | float) -> Array:
        """The proximal operator  argmin over z of  loss(z) + (z - r)^2 / (2 width).

        By Moreau's identity it is r minus width times the `dual` with anchor 0.
        """
        return residual - width * self.dual(residual, np.zeros_like(residual), width)

    def lipschitz(self, bound: float = np.inf) -> Array:
        """The Lipschitz constant of the loss on [-bound, bound], shape (q,); inf where there is none."""
        ends = self.domain if np.isinf(bound) else self.slope(np.full((2, self.n_columns), [[-bound], [bound]]))
        return np.max(np.abs(ends), axis=0)

    def distance_to_knot(self, residual: Array) -> Array:
        """|r - nearest knot|; inf for a loss without knots."""
        knots, _ = self.segments
        no_knot = np.full(residual.shape, np.inf)
        return np.min([no_knot, *(np.abs(residual - knot) for knot in knots.T)], axis=0)

    def strictly_inside(self, dual: Array, margin: float = 1e-9) -> Mask:
        """Where v is strictly inside the domain: by more than a margin, up to rounding by default.

        These are the rows that the fit interpolates (pinball) or that are free support vectors (hinge): the only ones
        to which the solution reacts when a target moves a little.
        """
        low, high = self.domain
        distance = margin * np.minimum(high - low, 1)
        return (dual > low + distance) & (dual < high - distance)

    def subgradient_interval(self, residual: Array, dual: Array) -> tuple[Array, Array]:
        """The smallest and the largest s for which v is still a subgradient of the loss at r - s.

        The interval by which a prediction may change before the dual variable has to; infinite on the side on which v
        is a bound of the domain, because there the loss goes on as a line.
        """
        low, high = self.domain
        shift = residual - self.inverse_subgradient(dual)
        return np.where(dual >= high, -np.inf, shift), np.where(dual <= low, np.inf, shift)

    def margin_transform(self, target: Array) -> tuple[Array | float, Array | float]:
        """(offset, sign) of  r = offset - sign f:  (y, 1) for regression."""
        return target, 1.0

    def fit_constant(self, target: Array, share: Array) -> Array:
        """The best constant prediction  argmin over b of  sum_i share_i loss(r_i at f = b),  shape (q,).

        Here for regression losses with a continuous slope; others override it.
        """
        return stationary_constant(self, target, share)

    def d2_score(self, y: Array, predicted: Array, weight: Array) -> float:
        """Mean over the columns of D^2 = 1 - (mean loss of the predictions) / (mean loss of the best constant).

        Parameters
        ----------
        y, weight : arrays of shape (n,)
        predicted : array of shape (n, q)
        """
        share = weight / weight.sum()
        ours = share @ self.value(y[:, None] - predicted)
        constant = share @ self.value(y[:, None] - self.fit_constant(y, share))
        return float(np.mean(np.where(constant > 0, 1 - ours / np.where(constant > 0, constant, 1), ours == 0)))

    def take(self, columns: NDArray[np.intp]) -> Self:
        """The same loss for some of the columns, by index; an index may occur repeatedly."""
        chosen = {name: getattr(self, name)[columns] for name in self._parameters()}
        return replace(self, n_columns=len(columns), **chosen)


def stationary_constant(loss: Loss, target: Array, share: Array) -> Array:
    """The constant b at which the derivative of  sum_i share_i loss(y_i - b)  is zero, shape (q,).

    For losses of y - f with a continuous slope. The derivative increases in b, and changes sign between min y - z and
    max y - z, where z is the residual at which the loss is least; Newton's method starts from the weighted mean, the
    answer for the squared loss.
    """
    anchor = np.zeros((len(target), loss.n_columns))

    def weighted_slope(constant: Array) -> tuple[Array, Array]:
        """First and second derivative of the objective in b; the curvature of width 0 is loss''."""
        residual = target[:, None] - constant
        return -(share @ loss.slope(residual)), share @ loss.curvature(residual, anchor, 0.0)

    least = loss.inverse_subgradient(np.zeros((1, loss.n_columns)))[0]
    low, high = target.min() - least, target.max() - least
    return monotone_root(weighted_slope, low, high, np.full(loss.n_columns, share @ target / share.sum()))


def monotone_root(function: Callable[[Array], tuple[Array, Array]], low: Array, high: Array, start: Array) -> Array:
    """The root of an increasing function in the bracket [low, high], elementwise.

    Safeguarded Newton: a Newton step is taken while it stays inside the bracket and is at most half as long as the step
    before; otherwise the bracket is bisected. So convergence is quadratic near the root and never slower than bisection
    far from it.

    Parameters
    ----------
    function : callable
        Returns the value and the derivative, both of the shape of its argument.
    low, high, start : arrays of one shape
        The bracket, and the first point, which is clipped to it.
    """
    z, last_step = np.clip(start, low, high), high - low
    tolerance = 1e-15 * (np.abs(low) + np.abs(high))
    for _ in range(MAX_ROOT_ITERATIONS):
        value, derivative = function(z)
        low, high = np.where(value <= 0, z, low), np.where(value >= 0, z, high)
        newton = z - np.divide(value, derivative, out=np.full_like(value, np.nan), where=derivative > 0)
        accept = (newton > low) & (newton < high) & (np.abs(newton - z) <= last_step / 2)
        next_z = np.where(accept, newton, (low + high) / 2)
        last_step = np.abs(next_z - z)
        z = next_z
        if np.all(last_step <= tolerance):
            break
    return z


class Smooth(Loss):
    """A twice differentiable loss.

    A subclass gives `value`, `slope` (the first derivative), `second_derivative`, `conjugate` and
    `inverse_subgradient`, and the class attributes `ends` and `inverse_curvature`. `dual` and `curvature` follow from
    these. With the smoothing width d and the multipliers v0, the maximising v is the slope at the proximal point z,
    which solves  z + d slope(z) = r + d v0.
    """

    def second_derivative(self, residual: Array) -> Array:
        """loss''(r), elementwise."""
        raise NotImplementedError

    def dual(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """slope(z) at the proximal point z, where  z + width (slope(z) - anchor) = r."""
        return self.slope(self._proximal_point(residual, anchor, width))

    def curvature(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """loss''(z) / (1 + width loss''(z)),  by the implicit function theorem."""
        second = self.second_derivative(self._proximal_point(residual, anchor, width))
        return second / (1 + width * second)

    def _proximal_point(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """The solution z of  z + width slope(z) = r + width anchor,  by safeguarded Newton; r itself for width 0.

        The slope lies in the domain [low, high], so z lies in [goal - width high, goal - width low].
        """
        if not np.any(width):
            return residual
        goal = residual + width * anchor
        low, high = self.domain
        return monotone_root(
            lambda z: (z + width * self.slope(z) - goal, 1 + width * self.second_derivative(z)),
            goal - width * high,
            goal - width * low,
            goal,
        )


class Piecewise(Loss):
    """A piecewise linear-quadratic loss, given by its conjugate  c v^2 / 2 + tube |v|  on a box [low, high] around 0.

    In terms of the residual: the loss is 0 up to a distance `tube` from 0 (an insensitive zone, for the
    epsilon-insensitive loss); then a parabola with second derivative 1 / c; and, from where the slope reaches a bound
    of the box, a line. With c = 0 there is no parabola but a kink.

    A subclass gives `value`, the box by `ends` or `domain` and, where they are not 0, `inverse_curvature` (or
    `inverse_curvatures`, for negative and for positive slopes) and `tube`. Everything else, `dual` and `curvature`
    included, is a formula in these.

    ====================  ===================  ========  =================
    loss                  box [low, high]      tube      c
    ====================  ===================  ========  =================
    absolute              [-1, 1]              0         0
    epsilon-insensitive   [-1, 1]              epsilon   0
    Huber                 [-t, t]              0         1
    squared               all numbers          0         1/2
    hinge                 [0, 1]               0         0
    ====================  ===================  ========  =================
    """

    inverse_curvature: ClassVar[float] = 0.0
    """c, where it is the same on both sides and in every column; otherwise override `inverse_curvatures`."""

    @property
    def inverse_curvatures(self) -> tuple[Array, Array]:
        """c = 1 / loss'' on the parabolas of negative and of positive slope, (q,) each; 0 where there is a kink.

        Equivalently, the length of residual over which the slope changes by 1.
        """
        both = np.full(self.n_columns, self.inverse_curvature)
        return both, both

    @property
    def tube(self) -> Array | None:
        """Half the width of the zone around 0 in which the loss is 0, shape (q,); None for no such zone."""
        return None

    def _inverse_curvature_at(self, sign: Array) -> Array:
        """c on the side of 0 on which `sign` lies, elementwise."""
        below, above = self.inverse_curvatures
        return above if np.array_equal(below, above) else np.where(sign < 0, below, above)

    def _unclipped_dual(self, residual: Array, anchor: Array, width: Array | float) -> tuple[Array, Array]:
        """The maximising v without the box, and 1 / its derivative in r, that is c + width.

        Without a tube, v = (r + width anchor) / (c + width). It is computed as  anchor + (r - c anchor) / (c + width),
        which is the same number but equals the anchor to the last digit where r = `inverse_subgradient(anchor)`: at the
        solution, rounding must not move a dual variable that is already right.
        """
        point = residual + width * anchor
        zero = point == 0
        if self.tube is not None:  # soft thresholding
            zero = np.abs(point) <= self.tube
            residual = residual - self.tube * np.sign(point)
        c = self._inverse_curvature_at(point)
        length = c + width
        # At a kink with width 0 the length is 0, and the quotient +-inf, which is clipped to the box, or nan, where
        # `zero` holds.
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(zero, 0.0, (residual - c * anchor) / length + anchor), length

    @property
    def smoothing_width(self) -> Array:
        """1 / the largest second derivative: the smaller c of the two sides."""
        return np.minimum(*self.inverse_curvatures)

    def slope(self, residual: Array) -> Array:
        """The dual of width 0; at a kink at 0, 0."""
        return self.dual(residual, np.zeros_like(residual), 0.0)

    def dual(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """(r + width anchor) / (c + width), soft-thresholded by the tube and clipped to the box."""
        return np.clip(self._unclipped_dual(residual, anchor, width)[0], *self.domain)

    def curvature(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """1 / (c + width) on rows that are neither clipped nor in the tube, else 0."""
        unclipped, length = self._unclipped_dual(residual, anchor, width)
        low, high = self.domain
        active = (unclipped > low) & (unclipped < high) & (length > 0)
        if self.tube is not None:
            active &= unclipped != 0
        return np.divide(1.0, length, out=np.zeros_like(unclipped), where=active)

    def conjugate(self, dual: Array) -> Array:
        """c v^2 / 2 + tube |v|  in the box, inf outside."""
        low, high = self.domain
        inside = self._inverse_curvature_at(dual) * dual**2 / 2
        if self.tube is not None:
            inside = inside + self.tube * np.abs(dual)
        return np.where((dual >= low) & (dual <= high), inside, np.inf)

    def inverse_subgradient(self, dual: Array) -> Array:
        """c v + tube sign(v):  a subgradient of the conjugate."""
        point = self._inverse_curvature_at(dual) * dual
        return point if self.tube is None else point + self.tube * np.sign(dual)

    def subgradient_interval(self, residual: Array, dual: Array) -> tuple[Array, Array]:
        """As in the base class; with v = 0, r - s may lie anywhere in the tube."""
        least, largest = super().subgradient_interval(residual, dual)
        if self.tube is None:
            return least, largest
        flat = dual == 0
        return np.where(flat, residual - self.tube, least), np.where(flat, residual + self.tube, largest)

    def strictly_inside(self, dual: Array, margin: float = 1e-9) -> Mask:
        """Where v is neither a bound of the box nor, with a tube, 0: on both, v stays as it is while r moves."""
        inside = super().strictly_inside(dual, margin)
        return inside if self.tube is None else inside & (np.abs(dual) > 1e-9)

    @property
    def segments(self) -> tuple[Array, Array]:
        """Knots at the ends of the parabola, at the ends of the tube, or at the kink 0."""
        low, high = self.domain
        if np.any(self.inverse_curvatures):
            curved = np.full(self.n_columns, np.nan)
            below, above = self.inverse_curvatures
            return np.column_stack([below * low, above * high]), np.column_stack([low, curved, high])
        if self.tube is not None:
            return np.column_stack([-self.tube, self.tube]), np.column_stack([low, np.zeros(self.n_columns), high])
        return np.zeros((self.n_columns, 1)), np.column_stack([low, high])
