"""Row sources: raw rows X, y and weights, in arrays or as a stream of blocks, and the checks that all sources share.

`ArrayRows` holds arrays. Everything out of core implements `RowSource`: `MemmapRows`, `ParquetRows`, and
`SelectedRows`, a subset of another source. Dask collections are not streamed; `DaskRows` leaves them on their workers.
"""

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
    """Rows held in arrays."""

    X: Array  # (n, d)
    y: Array  # (n,), or (n, q) where every fit has its own target
    weight: Array | None = None  # (n,), or None for equal weights

    @property
    def n_rows(self) -> int:
        """Number of rows n, rows of weight 0 included."""
        return len(self.y)

    def share(self) -> Array:
        """Normalized weights w_i / W, shape (n,), where W is the sum of all: sums over rows become weighted means."""
        if self.weight is None:
            return np.full(self.n_rows, 1 / self.n_rows)
        return self.weight / self.weight.sum()


# Size of a block of raw rows: at most so many rows, and at most so many bytes where rows are wide. The overhead per
# block is then negligible beside reading it, and a few blocks in flight take little memory on any machine.
BLOCK = 65_536
BLOCK_BYTES = 8 * 2**20


class RowsError(ValueError):
    """Rows that cannot be read or are not valid; the message names the file, chunk or row, and the remedy."""


class Piece(NamedTuple):
    """A block of consecutive raw rows, as float64."""

    X: Array | None  # (m, d) in C order, or None if it was not asked for
    y: Array  # (m,)
    weight: Array | None  # (m,), or None for equal weights


class RowSource(Protocol):
    """Out-of-core rows, read as a stream of blocks: in every pass the same blocks, in the same order.

    Blocks are numbered from 0, as in `spans`. Several streams may be open at once, in different threads. A source may
    have an attribute `cache`, the policy for cached features (see `ParquetRows`); without it, the policy is "auto".
    """

    @property
    def n_rows(self) -> int:
        """Number of rows n, known before any is read."""

    @property
    def n_columns(self) -> int:
        """Number of columns d of X."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the columns of X, or None where they have none."""

    @property
    def spans(self) -> list[slice]:
        """The rows of each block, as slices of all rows: consecutive, at most BLOCK rows each."""

    @property
    def weighted(self) -> bool:
        """Whether the rows have weights."""

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """Iterate over these blocks in order, prefetched by a thread; X=False reads target and weight only."""

    def place(self, k: int) -> str:
        """Where block k comes from (file, row group, rows), for error messages."""


def cut(n_rows: int, n_columns: int) -> list[slice]:
    """Divide rows into consecutive slices of one block each: at most BLOCK rows and about BLOCK_BYTES."""
    size = min(BLOCK, max(BLOCK_BYTES // (8 * max(n_columns, 1)), 1))
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def checked(piece: Piece, labels: Sequence[str], where: Callable[[int], str]) -> Piece:
    """Validate a block: all numbers finite, weights >= 0. Returns it, or raises a `RowsError` at the first bad number.

    Parameters
    ----------
    piece : Piece
    labels : sequence of d + 2 str
        Names of the columns of X, of the target and of the weight, in this order.
    where : callable
        From the index of a row in the block to a description of its place, for the message.
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
    """Whether all values are finite. A finite sum proves it cheaply; an infinite one may also be an overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum())) or bool(np.isfinite(values).all())


Mask = NDArray[np.bool_]


class SelectedRows:
    """Subset of a row source, chosen by a mask; blocks of the source without chosen rows are left out.

    Parameters
    ----------
    source : RowSource
    chosen : boolean array of shape (n,)
        Stored as a bit per row, for n may be large.
    """

    def __init__(self, source: RowSource, chosen: Mask) -> None:
        self.source, self.cache = source, getattr(source, "cache", "auto")
        self.n_columns, self.names, self.weighted = source.n_columns, source.names, source.weighted
        counts = [int(np.count_nonzero(chosen[span])) for span in source.spans]
        self._blocks = [k for k, count in enumerate(counts) if count]  # blocks of the source with chosen rows
        self._bits = {k: np.packbits(chosen[source.spans[k]]) for k in self._blocks}
        ends = np.cumsum([0, *(counts[k] for k in self._blocks)]).tolist()
        self.spans = [slice(start, stop) for start, stop in pairwise(ends)]
        self.n_rows = ends[-1]

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """Iterate over these blocks in order, prefetched by a thread; X=False reads target and weight only."""
        wanted = [self._blocks[k] for k in blocks]
        if not wanted:
            return
        run = range(wanted[0], wanted[-1] + 1)  # one stream, which passes over blocks without chosen rows, too
        for k, piece in zip(run, self.source.stream(run, X=X), strict=True):
            if k in self._bits:
                chosen = np.unpackbits(self._bits[k], count=len(piece.y)).view(bool)
                yield Piece(*(None if part is None else part[chosen] for part in piece))  # type: ignore[arg-type]

    def place(self, k: int) -> str:
        """Where block k comes from, for error messages."""
        return self.source.place(self._blocks[k])


def is_stream(X: Any) -> bool:
    """Whether X is a `RowSource`, whose rows are streamed."""
    return hasattr(X, "stream") and hasattr(X, "spans")


def counting(source: Any) -> NDArray[np.bool_]:
    """Boolean mask (n,) of the rows with positive weight; out of core it takes one pass over the weights, if any."""
    if is_stream(source):
        pieces = source.stream(range(len(source.spans)), X=False) if source.weighted else []
        above = [piece.weight > 0 for piece in pieces]
        return np.concatenate(above) if above else np.ones(source.n_rows, dtype=bool)
    return np.ones(source.n_rows, dtype=bool) if source.weight is None else np.asarray(source.weight > 0)
