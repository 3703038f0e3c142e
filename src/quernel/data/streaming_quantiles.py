"""Exact weighted quantiles of a target that does not fit in memory, by radix selection.

Floating-point numbers are ordered like their bits, once those of negative numbers are inverted. So the first round sums
the weights of rows by the leading DIGIT bits of y, a histogram from which the leading bits of every quantile follow;
the next round looks at the following bits of the rows that share this prefix, and so on. The result is exact after
64 / DIGIT passes over the target, with 2^DIGIT counters per distinct prefix in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data.sources import Array

Bits = NDArray[np.uint64]

# Bits decided per round: few enough that the histograms are small.
DIGIT = 13
# A cumulative weight within this relative distance of the goal reaches it, as in `losses.weighted_quantiles`.
SUM_ROUNDING = 1e-11


@dataclass(frozen=True, eq=False)
class RadixSearch:
    """State of a radix search for several values v, each the least with  sum of w_i over y_i <= v  >= its goal."""

    known: int  # leading bits known so far
    prefix: Bits  # (r,), these bits of each value
    goal: Array  # (r,), what is left of each goal once the weight of rows with smaller prefixes is subtracted

    @property
    def done(self) -> bool:
        """Whether all 64 bits are known."""
        return self.known == 64

    @property
    def digit(self) -> int:
        """Number of bits that the next round decides."""
        return min(DIGIT, 64 - self.known)


def start_search(levels: Array, total: float) -> RadixSearch:
    """Start a search for the quantiles at these levels (q,) of rows of this total weight.

    Two values are sought per level, at goals just below and just above level * total. They differ where the cumulative
    weight meets the level exactly between two values of y, and their midpoint is then the quantile.
    """
    goal = np.outer([1 - SUM_ROUNDING, 1 + SUM_ROUNDING], levels * total).ravel()
    return RadixSearch(0, np.zeros(len(goal), dtype=np.uint64), goal)


def count_next_digits(y: Array, weight: Array | None, state: RadixSearch) -> Array:
    """Histogram of a block: weight of its rows by their next digit, for each distinct prefix; (prefixes, 2^digit)."""
    bits = _ordered(y)
    digits = ((bits << np.uint64(state.known)) >> np.uint64(64 - state.digit)).astype(np.intp)
    found = np.zeros((len(np.unique(state.prefix)), 2**state.digit))
    for k, prefix in enumerate(np.unique(state.prefix)):
        shares_prefix = slice(None) if state.known == 0 else (bits >> np.uint64(64 - state.known)) == prefix
        weights = None if weight is None else weight[shares_prefix]
        found[k] = np.bincount(digits[shares_prefix], weights, minlength=2**state.digit)
    return found


def sum_counts(parts: Sequence[Array]) -> Array:
    """Sum the histograms of several blocks."""
    return np.sum(parts, axis=0)


def refine(state: RadixSearch, found: Array) -> RadixSearch:
    """The search after one more round, given the histogram of all rows: one more digit of every value is known."""
    prefixes = np.unique(state.prefix)
    prefix, goal = state.prefix.copy(), state.goal.copy()
    for i, row in enumerate(np.searchsorted(prefixes, state.prefix)):
        digits = np.flatnonzero(found[row])
        cumulative = np.cumsum(found[row, digits])
        # The first digit whose cumulative weight reaches the goal; the last one, should rounding keep it below.
        place = min(int(np.searchsorted(cumulative, state.goal[i])), len(digits) - 1)
        prefix[i] = (state.prefix[i] << np.uint64(state.digit)) | np.uint64(digits[place])
        goal[i] -= cumulative[place - 1] if place else 0.0
    return RadixSearch(state.known + state.digit, prefix, goal)


def quantile_values(state: RadixSearch) -> Array:
    """Quantiles (q,) of a search that is done: midpoints, where a level is met exactly between two values."""
    negative = (state.prefix >> np.uint64(63)) == 0
    bits = np.where(negative, ~state.prefix, state.prefix ^ np.uint64(1 << 63))
    return bits.view(np.float64).reshape(2, -1).mean(axis=0)


def _ordered(y: Array) -> Bits:
    """Map float64 to uint64 so that the order is preserved: invert negative numbers, set the sign bit of others."""
    bits = (np.asarray(y, dtype=np.float64) + 0.0).view(np.uint64)  # + 0.0 makes -0.0 equal to 0.0
    return np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(1 << 63))


# Once few values share the known prefixes, they may be gathered and sorted instead of counted further.


def n_candidates(state: RadixSearch, after: RadixSearch, found: Array) -> int:
    """Number of rows (of weight 1) that share a prefix known `after` a round, from the histogram of that round."""
    rows = np.searchsorted(np.unique(state.prefix), after.prefix >> np.uint64(state.digit))
    digits = after.prefix & np.uint64(2**state.digit - 1)
    return int(sum(found[row, digit] for row, digit in {*zip(rows.tolist(), digits.tolist(), strict=True)}))


def candidates(y: Array, state: RadixSearch) -> Array:
    """Candidates: the values of a block that share the prefix of a value sought."""
    return y[np.isin(_ordered(y) >> np.uint64(64 - state.known), state.prefix)]


def select(state: RadixSearch, gathered: Array) -> Array:
    """Quantiles (q,) of rows of weight 1, from the candidates that `candidates` found in all blocks."""
    gathered = np.sort(gathered)
    prefixes = _ordered(gathered) >> np.uint64(64 - state.known)
    firsts = np.searchsorted(prefixes, state.prefix)
    places = firsts + np.maximum(np.ceil(state.goal).astype(np.intp) - 1, 0)
    places = np.minimum(places, np.searchsorted(prefixes, state.prefix, side="right") - 1)
    return (gathered[places] + 0.0).reshape(2, -1).mean(axis=0)
