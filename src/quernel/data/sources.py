"""What a source of raw rows that are not in memory offers, and the checks that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Rows held in arrays: X (n, d), y (n,) or (n, q) for one per fit, and weights (n,) or None for equal weights."""

    X: Array
    y: Array
    weight: Array | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.y)

    def share(self) -> Array:
        """Every row's part w_i / W of the total weight: sums over rows become means."""
        if self.weight is None:
            return np.full(self.n_rows, 1 / self.n_rows)
        return self.weight / self.weight.sum()


# A block of raw rows: so many at most, and fewer where they are wide. Large enough that handing it over costs nothing
# beside reading it, small enough that a few of them in flight are nothing beside the memory of any machine.
BLOCK = 65_536
BLOCK_BYTES = 8 * 2**20


class RowsError(ValueError):
    """Rows that cannot be read, or are not what is needed; the message names the place."""


class Piece(NamedTuple):
    """Consecutive rows: X (m, d) in C order, or None if it was not asked for; y (m,); weight (m,) or None; float64."""

    X: Array | None
    y: Array
    weight: Array | None


class RowSource(Protocol):
    """Rows that are met only as a stream of pieces, always the same ones in the same order.

    The pieces are those of `spans`, numbered from 0. Several streams may run at once, in different threads. An
    attribute `cache` says whether features shall be kept, as for `ParquetRows`; sources need not have it.
    """

    @property
    def n_rows(self) -> int:
        """The number of all rows, known before any is read."""

    @property
    def n_columns(self) -> int:
        """The number of columns of X."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The columns' names, where they have any."""

    @property
    def spans(self) -> list[slice]:
        """Where the rows of each block lie among all: consecutive, BLOCK rows at most."""

    @property
    def weighted(self) -> bool:
        """Whether the rows have weights."""

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """These blocks in order, read ahead in a thread; X=False reads target and weight only."""

    def place(self, k: int) -> str:
        """Where block k comes from, for messages."""


def cut(n_rows: int, n_columns: int) -> list[slice]:
    """Consecutive slices of rows of a moderate size."""
    size = min(BLOCK, max(BLOCK_BYTES // (8 * max(n_columns, 1)), 1))
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def checked(piece: Piece, labels: Sequence[str], where: Callable[[int], str]) -> Piece:
    """The piece itself, or an error that says where its first bad number is.

    `labels` name the columns of X, the target and the weight in this order; `where` names a row of the piece.
    """
    n_columns = len(labels) - 2
    for values, first in ((piece.X, 0), (piece.y, n_columns), (piece.weight, n_columns + 1)):
        if values is not None and not _all_finite(values):
            row, column = np.argwhere(~np.isfinite(values.reshape(len(values), -1)))[0]
            bad = values.reshape(len(values), -1)[row, column]
            kind = "missing (null or NaN)" if np.isnan(bad) else "infinite"
            label = labels[first + int(column)]
            raise RowsError(f"{where(int(row))}: {label} is {kind}. Fill such values in, or leave the rows out.")
    if piece.weight is not None and piece.weight.size and piece.weight.min() < 0:
        row = int(np.argmax(piece.weight < 0))
        raise RowsError(
            f"{where(row)}: {labels[-1]} is negative ({piece.weight[row]:g}). Weights must be >= 0; 0 leaves a row out."
        )
    return piece


def _all_finite(values: Array) -> bool:
    """One cheap pass decides almost always; finite numbers may have an infinite sum, though."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum())) or bool(np.isfinite(values).all())


Mask = NDArray[np.bool_]


class SelectedRows:
    """The rows of another source that are chosen; they are streamed as that one is, without the others.

    Parameters
    ----------
    source : RowSource
    chosen : array of n booleans
        It is kept as bits.
    """

    def __init__(self, source: RowSource, chosen: Mask) -> None:
        self.source, self.cache = source, getattr(source, "cache", "auto")
        self.n_columns, self.names, self.weighted = source.n_columns, source.names, source.weighted
        counts = [int(np.count_nonzero(chosen[span])) for span in source.spans]
        self._blocks = [k for k, count in enumerate(counts) if count]  # those of the source that have any
        self._bits = {k: np.packbits(chosen[source.spans[k]]) for k in self._blocks}
        ends = np.cumsum([0, *(counts[k] for k in self._blocks)]).tolist()
        self.spans = [slice(start, stop) for start, stop in pairwise(ends)]
        self.n_rows = ends[-1]

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """These blocks in order, read ahead in a thread; X=False reads target and weight only."""
        wanted = [self._blocks[k] for k in blocks]
        if not wanted:
            return
        everything = range(wanted[0], wanted[-1] + 1)
        for k, piece in zip(everything, self.source.stream(everything, X=X), strict=True):
            if k in self._bits:
                chosen = np.unpackbits(self._bits[k], count=len(piece.y)).view(bool)
                yield Piece(*(None if part is None else part[chosen] for part in piece))  # type: ignore[arg-type]

    def place(self, k: int) -> str:
        """Where block k comes from, for messages."""
        return self.source.place(self._blocks[k])


def is_stream(X: Any) -> bool:
    """Whether these are rows of files."""
    return hasattr(X, "stream") and hasattr(X, "spans")


def counting(source: Any) -> NDArray[np.bool_]:
    """Which rows of a source count, (n,): those of weight above 0."""
    if is_stream(source):
        pieces = source.stream(range(len(source.spans)), X=False) if source.weighted else []
        above = [piece.weight > 0 for piece in pieces]
        return np.concatenate(above) if above else np.ones(source.n_rows, dtype=bool)
    return np.ones(source.n_rows, dtype=bool) if source.weight is None else np.asarray(source.weight > 0)
