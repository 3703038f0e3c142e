"""Statistics of rows on which automatic choices rest: moments and ranges of columns, a sample, quantiles, labels.

Each is a map-reduce, a pure function of a block and an associative reduction of its results, so that it is the same
for rows in memory, in files and on a cluster. `map_reduce` runs it over a stream of blocks, or over the chunks of Dask
collections on their workers. Rows of weight 0 are ignored throughout.

*Moments* of blocks are merged by the parallel variance formula (Chan, Golub, LeVeque 1979), so that the result is that
of one block up to rounding.

The *hash sample* depends on the values and weights of the rows only, not on their order or blocks. Rows are hashed by
x, and the sample holds the `limit` distinct x with the smallest hash codes (bottom-k sampling), each with all its
distinct y and with the total weight of the rows equal to (x, y). Repeated rows are merged on the way, so that the
sample stays small. An x with very many y, at least PAIRS of them, is represented by those pairs whose own hash codes
are smallest.

*Quantiles* of y are found exactly, in a few passes, by radix selection. Floating-point numbers are ordered like their
bits, once those of negative numbers are inverted. So the first round sums the weights of rows by the leading DIGIT bits
of y, a histogram from which the leading bits of every quantile follow; the next round looks at the following bits of
the rows that share this prefix, and so on. The result is exact after 64 / DIGIT passes over the target, with 2^DIGIT
counters per distinct prefix in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from quernel._validation import check_weight_ratio, check_weight_sum
from quernel.data.dask import DaskRows
from quernel.data.sources import Array, ArrayRows, Piece, RowsError, RowSource, begin_pass
from quernel.features.landmarks import sample_of_rows

Codes = NDArray[np.uint64]
Answer = TypeVar("Answer")

# Entries per row from which numpy's reductions over rows are fast.
FOLDED_ROW = 1024
# At most PAIRS * limit pairs (x, y) are held.
PAIRS = 64
# Weights from which a sum of squares that overflows is their fault, not that of the columns.
LARGE_WEIGHT = 1e150
# Results of Dask chunks are reduced so many at a time: the width of the reduction tree.
FAN_IN = 8
# Results of streamed blocks are reduced so many at a time: a bound on memory.
JOINED = 16
# Bits of a quantile decided per round: few enough that the histograms are small.
DIGIT = 13
# A cumulative weight within this relative distance of the goal reaches it, as in `losses.weighted_quantiles`.
SUM_ROUNDING = 1e-11


@dataclass(frozen=True, eq=False)
class Moments:
    """Sufficient statistics of the rows of a block, or of several, which `join_moments` can merge with others.

    The mean is stored in two parts, origin + offset, where the origin is one of the rows: a column whose values are far
    from 0 (years, coordinates) then loses no digits in the differences between the means of blocks.
    """

    n_rows: int  # rows of positive weight
    total: float  # sum of the weights
    largest: float  # largest weight
    smallest: float  # smallest positive weight
    origin: Array  # (d,), the first row of the first block
    offset: Array  # (d,), weighted mean of x_i - origin
    scatter: Array  # (d,), sum_i w_i (x_i - mean)^2
    low: Array  # (d,), smallest entry of each column
    high: Array  # (d,), largest entry of each column

    @property
    def mean(self) -> Array:
        """Weighted mean of each column, shape (d,)."""
        return self.origin + self.offset

    @property
    def variance(self) -> Array:
        """Weighted variance of each column, shape (d,): scatter / total weight, without a correction for bias."""
        return self.scatter / self.total

    @property
    def range(self) -> Array:
        """Smallest and largest entry of each column, shape (2, d)."""
        return np.array([self.low, self.high])


def compute_moments(X: Array, weight: Array | None) -> Moments:
    """Moments of one block X (m, d) with weights (m,), or None for equal weights 1."""
    if weight is not None and not (weight > 0).all():
        X, weight = X[weight > 0], weight[weight > 0]
    n, d = X.shape
    if n == 0:
        zeros = np.zeros(d)
        return Moments(0, 0.0, 0.0, np.inf, zeros, zeros, zeros, np.full(d, np.inf), np.full(d, -np.inf))
    share, total, largest, smallest = np.full(n, 1 / n), float(n), 1.0, 1.0
    if weight is not None:
        with np.errstate(over="ignore"):  # `require_weight` explains it
            total, largest, smallest = float(weight.sum()), float(weight.max()), float(weight.min())
        share = weight / total
    shifted = X - X[0]
    offset = share @ shifted
    with np.errstate(over="ignore", invalid="ignore"):
        scatter = total * (share @ (shifted - offset) ** 2)
    return Moments(n, total, largest, smallest, X[0].copy(), offset, scatter, *column_range(X))


def column_range(X: Array) -> Array:
    """Smallest and largest entry of each column of X (n, d), shape (2, d).

    numpy reduces an array of long rows ten times as fast as one of short rows. So `n_folded` consecutive rows are
    viewed as one row of n_folded * d entries, whose extremes are reduced to those of the d columns afterwards.
    """
    n, d = X.shape
    n_folded = max(1, min(n, FOLDED_ROW // d))
    whole = n - n % n_folded
    wide, rest = X[:whole].reshape(-1, n_folded * d), X[whole:].ravel()
    low, high = (np.concatenate([ends, rest]).reshape(-1, d) for ends in (wide.min(axis=0), wide.max(axis=0)))
    return np.array([low.min(axis=0), high.max(axis=0)])


def join_moments(parts: Sequence[Moments]) -> Moments:
    """Merge moments of disjoint sets of rows k, of total weights W_k.

    scatter = sum_k scatter_k + sum_k W_k (mean_k - mean)^2
    """
    some = [part for part in parts if part.n_rows]
    if not some:
        return parts[0]
    weight = np.array([part.total for part in some])
    with np.errstate(over="ignore"):  # `require_weight` explains it
        total, origin = float(weight.sum()), some[0].origin
    if not np.isfinite(total):
        return replace(some[0], total=total, largest=max(part.largest for part in some))
    offsets = np.array([(part.origin - origin) + part.offset for part in some])
    offset = weight @ offsets / total
    return Moments(
        n_rows=sum(part.n_rows for part in some),
        total=total,
        largest=max(part.largest for part in some),
        smallest=min(part.smallest for part in some),
        origin=origin,
        offset=offset,
        scatter=np.sum([part.scatter for part in some], axis=0) + weight @ (offsets - offset) ** 2,
        low=np.min([part.low for part in some], axis=0),
        high=np.max([part.high for part in some], axis=0),
    )


def require_weight(found: Moments) -> Moments:
    """Return the moments, or raise a `RowsError` if no row has a positive weight, or weights are too large."""
    if found.n_rows == 0:
        raise RowsError("The weight is zero for every row: there is nothing to fit. Give some rows a weight.")
    try:
        # The sum of squares overflows with the weights, too, unless the columns are as large as that.
        total = found.total if found.largest < LARGE_WEIGHT else found.total + float(found.scatter.sum())
        check_weight_sum("the weights", total, found.largest)
        check_weight_ratio("the weights", found.largest, found.smallest)
    except ValueError as error:
        raise RowsError(str(error)) from error
    return found


@dataclass(frozen=True, eq=False)
class HashSample:
    """Distinct pairs (x, y), sorted by the hash code of x, then of the pair: equal x are adjacent."""

    limit: int  # largest number of distinct x
    code: Codes  # (p,), hash code of x
    pair_code: Codes  # (p,), hash code of (x, y)
    X: Array  # (p, d)
    y: Array  # (p,)
    weight: Array  # (p,), total weight of the rows equal to the pair
    whole: Array  # (p,), total weight of the rows with this x, in the first pair of each x; 0 in its other pairs

    def rows(self) -> ArrayRows:
        """The pairs as weighted rows; where pairs of an x were dropped, its other pairs carry their weight."""
        _, group = np.unique(self.code, return_inverse=True)
        kept, whole = np.bincount(group, self.weight), np.bincount(group, self.whole)
        # Exactly 1 unless pairs were dropped: sums of the same weights in another order differ by rounding.
        factor = np.where(np.isclose(kept, whole, rtol=1e-9, atol=0), 1.0, whole / kept)
        return ArrayRows(self.X, self.y, self.weight * factor[group])

    @property
    def n_pairs(self) -> int:
        """Number of distinct pairs in all rows: exact up to `limit` distinct x, an estimate above.

        Hash codes are uniform on [0, 2^64): if the largest code in the sample is c, the sample holds a fraction
        (c + 1) / 2^64 of all x.
        """
        if len(np.unique(self.code)) < self.limit:
            return len(self.code)
        return round(len(self.code) / ((float(self.code[-1]) + 1) / 2.0**64))


def hash_sample(X: Array, y: Array, weight: Array | None, limit: int) -> HashSample:
    """Sample of one block: X (m, d), y (m,), weight (m,) or None; rows of weight 0 are ignored."""
    weight = np.ones(len(y)) if weight is None else weight
    if not (weight > 0).all():
        X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
    if len(y) == 0:
        codes = np.empty(0, dtype=np.uint64)
        return HashSample(limit, codes, codes, X, y, weight, weight)
    picked, code = sample_of_rows(X, limit)
    X, y, weight = X[picked], y[picked], weight[picked]
    _, pair_code = sample_of_rows(np.column_stack([X, y]), len(y))
    return _merge_pairs(HashSample(limit, code, pair_code, X, y, weight, weight))


def join_samples(parts: Sequence[HashSample]) -> HashSample:
    """Merge the samples of disjoint sets of rows."""
    names = ("code", "pair_code", "X", "y", "weight", "whole")
    arrays = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return _merge_pairs(HashSample(parts[0].limit, *arrays))


def _merge_pairs(found: HashSample) -> HashSample:
    """Sum the weights of equal pairs, then keep the `limit` x of smallest code, with as many y each as are allowed.

    PAIRS * limit // (number of x) pairs are allowed per x. The number of x never falls while samples are merged, so a
    pair dropped early would also be dropped at the end: the result does not depend on the blocks.
    """
    if len(found.code) == 0:
        return found
    order = np.lexsort((found.pair_code, found.code))
    code, pair_code = found.code[order], found.pair_code[order]
    new_x = _changes(code)
    new_pair = np.flatnonzero(new_x | _changes(pair_code))
    weight = np.add.reduceat(found.weight[order], new_pair)
    whole = np.zeros(len(new_pair))
    whole[np.flatnonzero(new_x[new_pair])] = np.add.reduceat(found.whole[order], np.flatnonzero(new_x))
    x_number = np.cumsum(new_x[new_pair]) - 1  # of each pair: the rank of its x
    pairs_before = np.flatnonzero(new_x[new_pair])[x_number]
    n_x = min(int(x_number[-1]) + 1, found.limit)
    keep = (x_number < n_x) & (np.arange(len(new_pair)) - pairs_before < PAIRS * found.limit // n_x)
    at = order[new_pair[keep]]
    return HashSample(
        found.limit, found.code[at], found.pair_code[at], found.X[at], found.y[at], weight[keep], whole[keep]
    )


def _changes(codes: Codes) -> NDArray[np.bool_]:
    """Boolean mask: whether each code differs from the one before; True for the first."""
    return np.r_[True, codes[1:] != codes[:-1]]


def _fold_chunks(
    source: DaskRows, step: Callable[[Piece], Answer], join: Callable[[Sequence[Answer]], Answer], *, X: bool = True
) -> Answer:
    """Map-reduce over the chunks of Dask collections, as one task graph; X=False computes target and weight only."""
    from dask import compute, delayed

    map_task, reduce_task = delayed(step, pure=False), delayed(join, pure=False)
    results = [map_task(piece) for piece in source.chunks(X=X)]
    while len(results) > FAN_IN:
        results = [reduce_task(results[k : k + FAN_IN]) for k in range(0, len(results), FAN_IN)]
    return join(compute(*results))


@dataclass(frozen=True, eq=False)
class Summary:
    """Moments and hash sample of all rows."""

    moments: Moments
    sample: HashSample
    target: Moments  # those of y, as one column


def map_reduce(
    source: RowSource | DaskRows,
    step: Callable[[Piece], Answer],
    join: Callable[[Sequence[Answer]], Answer],
    *,
    X: bool = True,
) -> Answer:
    """Map-reduce over raw rows in one pass: join([step(piece) for all blocks of the source]).

    `join` is associative, for results are reduced as they come; X=False reads target and weight only.
    """
    if isinstance(source, DaskRows):
        return _fold_chunks(source, step, join, X=X)
    results: list[Answer] = []
    count_rows = begin_pass(source.n_rows) if X else None
    for piece in source.stream(range(len(source.spans)), X=X):
        results.append(step(piece))
        if count_rows is not None:
            count_rows(len(piece.y))
        if len(results) == JOINED:
            results = [join(results)]
    return join(results)


def summarise(source: RowSource | DaskRows, limit: int) -> Summary:
    """Moments, and a hash sample of up to `limit` distinct x with their y: one pass over the rows."""

    def step(piece: Piece) -> Summary:
        assert piece.X is not None
        return Summary(
            compute_moments(piece.X, piece.weight),
            hash_sample(piece.X, piece.y, piece.weight, limit),
            compute_moments(piece.y if piece.y.ndim == 2 else piece.y[:, None], piece.weight),
        )

    found = map_reduce(source, step, join_summaries)
    require_weight(found.moments)
    return found


def join_summaries(parts: Sequence[Summary]) -> Summary:
    """Merge the summaries of disjoint sets of rows."""
    return Summary(
        join_moments([part.moments for part in parts]),
        join_samples([part.sample for part in parts]),
        join_moments([part.target for part in parts]),
    )


@dataclass(frozen=True, eq=False)
class RadixSearch:
    """State of a radix search for several values v, each the least with  sum of w_i over y_i <= v  >= its goal."""

    known: int  # leading bits known so far
    prefix: Codes  # (r,), these bits of each value
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


def _ordered(y: Array) -> Codes:
    """Map float64 to uint64 so that the order is preserved: invert negative numbers, set the sign bit of others."""
    bits = (np.asarray(y, dtype=np.float64) + 0.0).view(np.uint64)  # + 0.0 makes -0.0 equal to 0.0
    return np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(1 << 63))


def streamed_quantiles(source: RowSource | DaskRows, levels: Array, total: float) -> Array:
    """Exact weighted quantiles (q,) of y, as by `losses.weighted_quantiles`, in a few passes over y and weights.

    `levels` (q,) are quantile levels in (0, 1), and `total` is the weight of all rows.
    """
    state = start_search(np.asarray(levels, dtype=float), total)
    while not state.done:

        def step(piece: Piece, state: RadixSearch = state) -> Array:
            return count_next_digits(piece.y, piece.weight, state)

        state = refine(state, map_reduce(source, step, lambda parts: np.sum(parts, axis=0), X=False))
    return quantile_values(state)


def mean_absolute_deviation(source: RowSource | DaskRows, centre: float, total: float) -> float:
    """Weighted mean of |y - centre|; `total` is the weight of all rows."""

    def step(piece: Piece) -> float:
        distance = np.abs(piece.y - centre)
        return float(distance.sum() if piece.weight is None else piece.weight @ distance)

    return map_reduce(source, step, math.fsum, X=False) / total


def distinct_labels(source: RowSource | DaskRows, most: int) -> Array:
    """Sorted distinct values of y over rows of positive weight; only the first most + 1 where there are more."""

    def step(piece: Piece) -> Array:
        return np.unique(piece.y if piece.weight is None else piece.y[piece.weight > 0])[: most + 1]

    return map_reduce(source, step, lambda parts: np.unique(np.concatenate(parts))[: most + 1], X=False)
