"""Random trees as weights: which training rows resemble a row x, and how much.

A forest gives each training row i the weight  w_i(x) = mean over trees of  1{i in the leaf of x} / |leaf|  (Meinshausen
2006). Distributions of anything known of the training rows, such as y or residuals, follow from these weights.

- Columns are coded by the rank of their value, so that trees do not depend on monotone transformations of a column.
- A node is split where the squared error falls most, among a random part of the columns and up to `cells` cut points of
  each, whose grid is shifted at random. Trees are grown on a part of the rows, without replacement: the others are *out
  of bag*, and judge.
- Rows of a node are one interval of the tree's `order`, those of its children are the two parts of it. So one deep
  `Forest` is a forest for every leaf size m: a row descends for as long as the next node has m rows (`cut`).
- A `QuantileForest` is one of these: trees of one leaf size, in the layout in which rows descend quickly, with the
  values of the rows in the leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel._machine import parallel_map, single_threaded_blas
from quernel.solvers.progress import stop_requested

Array = NDArray[np.floating]
Index = NDArray[np.integer]


@dataclass(frozen=True)
class ForestOptions:
    """Constants of growing trees and of reading distributions off them."""

    codes: int = 4096  # distinct codes of a column at most: resolution of cut points against model size
    bag: float = 0.75  # share of the rows (or groups) on which a tree is grown
    bag_rows: int = 24_000  # rows of a bag, at most: model size and time
    columns: float = 0.5  # share of the columns tried at each node
    cells: int = 64  # cut points tried per column and node, at most
    cell: int = 16  # rows of a node from which on it is split by columns without a sign first
    min_split: int = 3  # rows of a node that is split
    per_leaf: int = 8  # rows of a leaf that enter a distribution, at most: speed against noise
    min_trees: int = 10  # grown even if there is no time left
    block: int = 8192  # rows that descend at a time, at most: the more, the less often a tree is read from memory


OPTIONS = ForestOptions()


@dataclass(frozen=True, eq=False)
class ColumnCodes:
    """Cut points of each column, flat, and where those of column j begin: `edges[start[j]:start[j + 1]]`, ascending."""

    edges: Array
    start: Index

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.start) - 1

    @classmethod
    def from_rows(cls, X: Array) -> ColumnCodes:
        """Cut points half-way between neighbouring values of the columns of X (n, d), or between some of many."""
        cuts = []
        for column in X.T:
            values = np.unique(column)
            if len(values) > OPTIONS.codes:  # evenly among the rows, not among the values
                ordered = np.sort(column)
                values = np.unique(ordered[np.linspace(0, len(ordered) - 1, OPTIONS.codes).astype(int)])
            cuts.append(values[:-1] + np.diff(values) / 2)
        return cls(np.concatenate([*cuts, np.empty(0)]), np.cumsum([0, *map(len, cuts)]).astype(np.int64))

    def encode(self, X: Array) -> NDArray[np.uint16]:
        """Codes of the rows, shape (n, d): how many cut points lie below each value."""
        if X.shape[1] != self.n_columns:
            raise ValueError(f"the trees have {self.n_columns} columns, not {X.shape[1]}")
        codes = np.empty(X.shape, dtype=np.uint16)
        for j, column in enumerate(X.T):
            codes[:, j] = np.searchsorted(self.edges[self.start[j] : self.start[j + 1]], column)
        return codes


@dataclass(frozen=True, eq=False)
class Forest:
    """Deep trees as flat arrays, one after the other; `cut` makes forests of any leaf size of them.

    Attributes
    ----------
    codes : ColumnCodes
    column : ndarray of int16, the column j by which an inner node is split, or -1 - j if its left child is a leaf
    cuts : ndarray of uint16; codes below it go to the left
    right : ndarray of int32, the right child, counted from the tree's first node, or -1 for a leaf; an inner left child
        is the next node
    middle : ndarray of int32, where the rows of the right child begin, counted from the tree's first row
    first_node, first_row : ndarrays of int64 of shape (T + 1,), where the inner nodes and the rows of each tree begin
    order : ndarray of int32, row numbers of the trees' bags, sorted by leaf
    signs : ndarray of int8 of shape (d,), directions in which values are ordered along the columns, 0 for no order
    """

    codes: ColumnCodes
    column: Index
    cuts: Index
    right: Index
    middle: Index
    first_node: Index
    first_row: Index
    order: Index
    signs: Index

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.first_node) - 1

    def bags(self, n_rows: int) -> NDArray[np.bool_]:
        """Which trees have seen each row, shape (n_rows, T)."""
        seen = np.zeros((n_rows, self.n_trees), dtype=np.bool_)
        seen[self.order, np.repeat(np.arange(self.n_trees), np.diff(self.first_row))] = True
        return seen

    def cut(self, min_leaf: int, values: SortedValues) -> QuantileForest:
        """The forest whose leaves have at least so many rows, with these values of the rows in its leaves."""
        from quernel.estimators.numba_forest import cut_ordered_tree, cut_tree  # numba takes a second to import

        ordered, most = bool(self.signs.any()), min(2 * min_leaf, OPTIONS.per_leaf)
        per_leaf = 1 << (most.bit_length() - 1)  # sums of equal masses are exact if this is a power of 2
        trees: list[tuple[int, Index, Index]] = []
        n_nodes = n_members = 0
        for t in range(self.n_trees):
            own, rows = slice(*self.first_node[t : t + 2]), slice(*self.first_row[t : t + 2])
            arrays = (self.column[own], self.cuts[own], self.right[own], self.middle[own])
            order, offsets = self.order[rows], (n_nodes, n_members)
            if ordered:
                known = values.rank[order], values.weight[order]
                trees.append(cut_ordered_tree(*arrays, known, self.signs, min_leaf, per_leaf, *offsets))
            else:
                trees.append(cut_tree(*arrays, order, min_leaf, OPTIONS.per_leaf, *offsets))
            n_nodes, n_members = n_nodes + len(trees[-1][1]), n_members + len(trees[-1][2])
        roots, nodes, members = zip(*trees, strict=True)
        joined = np.array(roots, dtype=np.int32), np.concatenate(nodes), np.concatenate(members)
        if ordered:
            return QuantileForest(self.codes, *joined, np.empty(0), values.value, min_leaf)
        return QuantileForest.from_rows(self.codes, *joined, values, min_leaf)


@dataclass(frozen=True, eq=False)
class QuantileForest:
    """Trees of one leaf size, and the values of the rows in their leaves.

    Attributes
    ----------
    codes : ColumnCodes
    root : ndarray of int32 of shape (T,), where each tree begins: a node, or -1 - the first member of a leaf
    nodes : ndarray of int32 of shape (k, 3): 2^16 column + cut, where codes below the cut go to, and where the others
    members : ndarray of int32, ranks of the values in each leaf, one leaf after the other; -1 - rank ends a leaf
    mass : ndarray, the probability of each member in its leaf; empty if those of a leaf are equal
    value : ndarray of shape (n,), ascending
    min_leaf : int
    """

    codes: ColumnCodes
    root: Index
    nodes: Index
    members: Index
    mass: Array
    value: Array
    min_leaf: int

    def __post_init__(self) -> None:
        """Raise ValueError where compiled code would read outside of the arrays."""
        kinds = {"root": np.int32, "nodes": np.int32, "members": np.int32, "mass": np.float64, "value": np.float64}
        if any(getattr(self, name).dtype != kind for name, kind in kinds.items()):
            raise ValueError("a forest has arrays of other types than fits have")
        k, size, vectors = len(self.nodes), len(self.members), (self.root, self.members, self.mass, self.value)
        if (
            self.nodes.shape != (k, 3) or any(one.ndim != 1 for one in vectors) or len(self.root) == 0 or size == 0
            or len(self.mass) not in (0, size) or self.members[-1] >= 0
        ):  # fmt: skip
            raise ValueError("the trees of a forest do not fit together")
        places, column = self.nodes[:, 1:], self.nodes[:, 0] >> 16
        # Children come after their parents, so that every descent ends.
        ahead = (places < 0) | ((places > np.arange(k)[:, None]) & (places < k))
        if not (
            ahead.all() and places.min(initial=-1) >= -size and -size <= self.root.min() and self.root.max() < k
            and column.min(initial=0) >= 0 and column.max(initial=0) < self.codes.n_columns
        ):  # fmt: skip
            raise ValueError("the nodes of a forest make no trees")
        last = np.flatnonzero(self.members < 0)
        longest, ranks = np.diff(last, prepend=-1).max(), np.where(self.members < 0, -1 - self.members, self.members)
        if longest > OPTIONS.per_leaf or ranks.max() >= len(self.value):
            raise ValueError("the leaves of a forest do not fit its values")

    @classmethod
    def from_rows(
        cls, codes: ColumnCodes, root: Index, nodes: Index, members: Index, values: SortedValues, min_leaf: int
    ) -> QuantileForest:
        """From trees whose members are row numbers."""
        ends = members < 0
        rows = np.where(ends, -1 - members, members)
        mass: Array = np.empty(0)
        if np.ptp(values.weight) > 0:
            first = np.append(0, np.flatnonzero(ends)[:-1] + 1)
            mass = values.weight[rows]
            mass = mass / np.repeat(np.add.reduceat(mass, first), np.diff(np.append(first, len(mass))))
        ranks = values.rank[rows]
        return cls(codes, root, nodes, np.where(ends, -1 - ranks, ranks), mass, values.value, min_leaf)

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.root)

    def quantiles(self, X: Array, levels: Array, skip: NDArray[np.bool_] | None = None) -> Array:
        """Quantiles of the values under the weights of each row of X, shape (n, len(levels)), levels ascending.

        `skip` of shape (n, T) leaves trees out: those that have seen a row of X. A row that all have seen gets NaN.
        """
        from quernel.estimators.numba_forest import fill_quantiles  # numba takes a second to import

        codes, out = self.codes.encode(X), np.empty((len(X), len(levels)))
        skip = np.empty((0, self.n_trees), dtype=np.bool_) if skip is None else skip
        arrays = _read_only(self.root, self.nodes, self.members, self.mass)
        (value,), levels = _read_only(self.value), np.array(levels, dtype=float)

        def fill(rows: slice) -> None:
            fill_quantiles(codes[rows], *arrays, OPTIONS.per_leaf, skip[rows], value, levels, out[rows])

        with single_threaded_blas(len(X), 10 * self.n_trees) as threads:
            size = min(OPTIONS.block, -(-len(X) // threads))
            parallel_map(fill, [slice(first, first + size) for first in range(0, len(X), max(size, 1))], threads)
        return out


@dataclass(frozen=True, eq=False)
class SortedValues:
    """Numbers of the training rows, sorted: value (n,) ascending, and the rank and the weight of each row (n,)."""

    value: Array
    rank: Index
    weight: Array

    def __post_init__(self) -> None:
        """Raise ValueError where compiled code would read outside of the arrays."""
        n, kinds = len(self.value), (self.value.dtype, self.rank.dtype, self.weight.dtype)
        if kinds != (np.float64, np.int32, np.float64) or not self.value.shape == self.rank.shape == self.weight.shape:
            raise ValueError("sorted values have arrays of other types or lengths than fits have")
        if n == 0 or self.rank.min() < 0 or self.rank.max() >= n:
            raise ValueError("ranks of values are not those of rows")

    @classmethod
    def from_values(cls, values: Array, weight: Array) -> SortedValues:
        """Sort these values of the rows."""
        order = np.argsort(values, kind="stable")
        rank = np.empty(len(values), dtype=np.int32)
        rank[order] = np.arange(len(values))
        return cls(values[order], rank, weight)

    def quantiles(self, levels: Array) -> Array:
        """Weighted quantiles (q,), linear between the middles of the values' probability masses."""
        weight = np.empty_like(self.weight)
        weight[self.rank] = self.weight
        total = np.cumsum(weight)
        return np.interp(levels, (total - weight / 2) / total[-1], self.value)


def grow_forest(
    X: Array,
    target: Array,
    weight: Array,
    n_trees: int,
    rng: np.random.Generator,
    groups: Index | None = None,
    signs: Index | None = None,
) -> Forest:
    """Grow trees that explain the target (n,) by X (n, d).

    With `signs` (d,) the distributions in leaves rise stochastically with columns of sign 1 and fall with those of sign
    -1. Rows with the same entry of `groups` (n,) are in the bag of a tree together, or not at all. The trees depend on
    `rng` alone, not on the number of threads. If a time limit ends the growth there are fewer of them.
    """
    from quernel.estimators.numba_forest import grow_tree

    codes = ColumnCodes.from_rows(X)
    coded = np.ascontiguousarray(codes.encode(X).T)
    bags = [_draw_bag(len(X), groups, rng) for _ in range(n_trees)]
    seeds = rng.integers(1, 2**63, n_trees, dtype=np.uint64)
    signs = np.zeros(X.shape[1], dtype=np.int8) if signs is None else np.asarray(signs, dtype=np.int8)
    counts = np.sum(signs == 0), np.sum(signs != 0)
    tries = np.array([max(1, round(OPTIONS.columns * count)) for count in counts])
    cell = OPTIONS.cell if counts[1] else 0
    target = np.ascontiguousarray(target)

    def grow(t: int) -> tuple[Index, ...] | None:
        if t >= OPTIONS.min_trees and stop_requested():
            return None
        order = bags[t]
        nodes = grow_tree(coded, target, weight, order, signs, cell, tries, OPTIONS.min_split, OPTIONS.cells, seeds[t])
        return *nodes, order

    with single_threaded_blas(len(X), 10 * n_trees) as threads:
        grown = [tree for tree in parallel_map(grow, range(n_trees), threads) if tree is not None]
    column, cuts, right, middle, order = (np.concatenate(parts) for parts in zip(*grown, strict=True))
    first_node = np.cumsum([0, *(len(tree[0]) for tree in grown)]).astype(np.int64)
    first_row = np.cumsum([0, *(len(tree[-1]) for tree in grown)]).astype(np.int64)
    return Forest(codes, column, cuts, right, middle, first_node, first_row, order, signs)


def _read_only(*arrays: NDArray[Any]) -> list[NDArray[Any]]:
    """Views that cannot be written to, so that numba compiles once for models in memory and on disk alike."""
    views = [array.view(np.ndarray) for array in arrays]
    for view in views:
        view.flags.writeable = False
    return views


def _draw_bag(n_rows: int, groups: Index | None, rng: np.random.Generator) -> Index:
    """Rows of one tree in random order: a share of the rows, or all rows of a share of the groups."""
    part = min(OPTIONS.bag, OPTIONS.bag_rows / n_rows)
    if groups is None:
        return rng.permutation(n_rows)[: max(1, round(part * n_rows))].astype(np.int32)
    n_groups = int(groups.max()) + 1
    chosen = np.zeros(n_groups, dtype=bool)
    chosen[rng.permutation(n_groups)[: max(1, round(part * n_groups))]] = True
    return rng.permutation(np.flatnonzero(chosen[groups])).astype(np.int32)
