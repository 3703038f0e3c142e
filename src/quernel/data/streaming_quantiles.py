"""Weighted quantiles of a target that is never gathered: found digit by digit, counting in every round.

Floating-point numbers have the order of their bits (with those of negative ones turned round). So the first round adds
up the weights of rows by the leading bits of y, and knows which leading bits the quantile has; the next looks at the
following bits of the rows that share these, and so on. The answer is exact, after ROUNDS passes over the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data.sources import Array

Bits = NDArray[np.uint64]

# Bits that a round decides: few enough that its counts are small.
DIGIT = 13
ROUNDS = -(-64 // DIGIT)
# A goal within this of a sum of weights counts as met by it, as in `losses.weighted_quantiles`.
SUM_ROUNDING = 1e-11


@dataclass(frozen=True, eq=False)
class Search:
    """What is known of some values: their leading bits, and the weight still to be passed by rows that share these.

    The values are the least with a weight of rows up to them that reaches `goal`.
    """

    known: int
    prefix: Bits
    goal: Array

    @property
    def done(self) -> bool:
        """Whether all bits are known."""
        return self.known == 64

    @property
    def digit(self) -> int:
        """How many bits come next."""
        return min(DIGIT, 64 - self.known)


def search(levels: Array, total: float) -> Search:
    """The beginning of a search for quantiles of rows of this total weight: nothing is known yet.

    For every level two values are sought, which differ where the level is met exactly between two.
    """
    goal = np.outer([1 - SUM_ROUNDING, 1 + SUM_ROUNDING], levels * total).ravel()
    return Search(0, np.zeros(len(goal), dtype=np.uint64), goal)


def counts(y: Array, weight: Array | None, state: Search) -> Array:
    """The weight of a block's rows by their next digit, for each different prefix: shape (prefixes, 2^digit)."""
    bits = _ordered(y)
    digits = ((bits << np.uint64(state.known)) >> np.uint64(64 - state.digit)).astype(np.intp)
    found = np.zeros((len(np.unique(state.prefix)), 2**state.digit))
    for k, prefix in enumerate(np.unique(state.prefix)):
        here = slice(None) if state.known == 0 else (bits >> np.uint64(64 - state.known)) == prefix
        heavy = None if weight is None else weight[here]
        found[k] = np.bincount(digits[here], heavy, minlength=2**state.digit)
    return found


def join_counts(parts: Sequence[Array]) -> Array:
    """The counts of all rows of the parts."""
    return np.sum(parts, axis=0)


def narrowed(state: Search, found: Array) -> Search:
    """The search after a round, by the counts of all rows."""
    prefixes = np.unique(state.prefix)
    prefix, goal = state.prefix.copy(), state.goal.copy()
    for i, row in enumerate(np.searchsorted(prefixes, state.prefix)):
        there = np.flatnonzero(found[row])
        reached = np.cumsum(found[row, there])
        place = min(int(np.searchsorted(reached, state.goal[i])), len(there) - 1)
        prefix[i] = (state.prefix[i] << np.uint64(state.digit)) | np.uint64(there[place])
        goal[i] -= reached[place - 1] if place else 0.0
    return Search(state.known + state.digit, prefix, goal)


def values(state: Search) -> Array:
    """The quantiles, when all is known: the middle, where a level is met exactly between two values."""
    negative = (state.prefix >> np.uint64(63)) == 0
    bits = np.where(negative, ~state.prefix, state.prefix ^ np.uint64(1 << 63))
    return bits.view(np.float64).reshape(2, -1).mean(axis=0)


def _ordered(y: Array) -> Bits:
    """The bits of floating-point numbers, so changed that they have the numbers' order."""
    bits = (np.asarray(y, dtype=np.float64) + 0.0).view(np.uint64)  # + 0.0 makes -0.0 equal to 0.0
    return np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(1 << 63))


# Where few values are left that share the bits known, they may be gathered instead of counted further.


def left(state: Search, after: Search, found: Array) -> int:
    """How many rows of weight 1 share the bits that are known after a round, by the counts of that round."""
    rows = np.searchsorted(np.unique(state.prefix), after.prefix >> np.uint64(state.digit))
    digits = after.prefix & np.uint64(2**state.digit - 1)
    return int(sum(found[row, digit] for row, digit in {*zip(rows.tolist(), digits.tolist(), strict=True)}))


def sharing(y: Array, state: Search) -> Array:
    """The values of a block that share the leading bits of a value sought."""
    return y[np.isin(_ordered(y) >> np.uint64(64 - state.known), state.prefix)]


def picked(state: Search, gathered: Array) -> Array:
    """The quantiles, from all values that `sharing` found, of rows of weight 1."""
    gathered = np.sort(gathered)
    prefixes = _ordered(gathered) >> np.uint64(64 - state.known)
    firsts = np.searchsorted(prefixes, state.prefix)
    places = firsts + np.maximum(np.ceil(state.goal).astype(np.intp) - 1, 0)
    places = np.minimum(places, np.searchsorted(prefixes, state.prefix, side="right") - 1)
    return (gathered[places] + 0.0).reshape(2, -1).mean(axis=0)
