"""Row sources: raw rows X, y and weights, in arrays or as a stream of blocks, and the checks that all sources share.

`ArrayRows` holds arrays. Everything out of core implements `RowSource`: `MemmapRows` (numpy files) and `SelectedRows`
(a subset of another source) here, `ParquetRows` in a module of its own. Dask collections are not streamed; `DaskRows`
leaves them on their workers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from quernel._machine import read_ahead

Array = NDArray[np.floating]
Mask = NDArray[np.bool_]
# Size, time of the last change, and identity of a file: what tells that it was changed.
Stamp = tuple[int, int, int]

# Size of a block of raw rows: at most so many rows, and at most so many bytes where rows are wide. The overhead per
# block is then negligible beside reading it, and a few blocks in flight take little memory on any machine.
BLOCK_ROWS = 65_536
BLOCK_BYTES = 8 * 2**20


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


class RowsError(ValueError):
    """Rows that cannot be read or are not valid; the message names the file, chunk or row, and the remedy."""


class Piece(NamedTuple):
    """A block of consecutive raw rows, as float64."""

    X: Array | None
    """Features, shape (m, d), in C order; None if they were not asked for."""
    y: Array
    """Targets, shape (m,)."""
    weight: Array | None
    """Weights, shape (m,); None for equal ones."""


class RowSource(Protocol):
    """Out-of-core rows, read as a stream of blocks: in every pass the same blocks, in the same order.

    Blocks are numbered from 0, as in `spans`. Several streams may be open at once, in different threads.
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


def count_block_rows(n_columns: int) -> int:
    """Return the largest number of rows of a block: at most BLOCK_ROWS, of about BLOCK_BYTES."""
    return min(BLOCK_ROWS, max(BLOCK_BYTES // (8 * max(n_columns, 1)), 1))


def split_blocks(n_rows: int, n_columns: int) -> list[slice]:
    """Divide rows into consecutive slices of one block each: at most BLOCK rows and about BLOCK_BYTES."""
    size = count_block_rows(n_columns)
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def check_piece(piece: Piece, labels: Sequence[str], where: Callable[[int], str]) -> Piece:
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


class SelectedRows:
    """Subset of a row source, chosen by a mask; blocks of the source without chosen rows are left out.

    Parameters
    ----------
    source : RowSource
    chosen : boolean array of shape (n,)
        Stored as a bit per row, for n may be large.
    """

    def __init__(self, source: RowSource, chosen: Mask) -> None:
        self.source = source
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


def read_all(source: RowSource) -> ArrayRows:
    """Read all rows of a source into memory, block by block."""
    X, y = np.empty((source.n_rows, source.n_columns)), np.empty(source.n_rows)
    weight = np.empty(source.n_rows) if source.weighted else None
    for span, piece in zip(source.spans, source.stream(range(len(source.spans))), strict=True):
        X[span], y[span] = piece.X, piece.y
        if weight is not None:
            weight[span] = piece.weight
    return ArrayRows(X, y, weight)


class MappedRows:
    """Rows of a row source with targets and weights made of its own, block by block as they are read.

    Parameters
    ----------
    source : RowSource
    function : callable
        function(y, weight) -> (y, weight) of the m rows of a block, where None stands for equal weights.
    weighted : bool
        Whether that gives weights.
    """

    def __init__(
        self,
        source: RowSource,
        function: Callable[[Array, Array | None], tuple[Array, Array | None]],
        *,
        weighted: bool,
    ) -> None:
        self.source, self.function, self.weighted = source, function, weighted
        self.n_rows, self.n_columns, self.names = source.n_rows, source.n_columns, source.names
        self.spans, self.place = source.spans, source.place

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """Iterate over these blocks in order, prefetched by a thread; X=False reads target and weight only."""
        for piece in self.source.stream(blocks, X=X):
            yield Piece(piece.X, *self.function(piece.y, piece.weight))


def is_stream(X: Any) -> TypeGuard[RowSource]:
    """Whether X is a `RowSource`, whose rows are streamed."""
    return hasattr(X, "stream") and hasattr(X, "spans")


def positive_weight_mask(source: Any) -> Mask:
    """Boolean mask (n,) of the rows with positive weight; out of core it takes one pass over the weights, if any."""
    if is_stream(source):
        pieces = source.stream(range(len(source.spans)), X=False) if source.weighted else []
        above = [piece.weight > 0 for piece in pieces if piece.weight is not None]
        return np.concatenate(above) if above else np.ones(source.n_rows, dtype=bool)
    return np.ones(source.n_rows, dtype=bool) if source.weight is None else np.asarray(source.weight > 0)


def read_stamp(path: str) -> Stamp:
    """The stamp of a file."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, found.st_ino


def check_stamp(path: str, stamp: Stamp) -> None:
    """Raise a `RowsError` if a file changed since its stamp was read.

    Called after the file was opened for a pass, so that a swap before is seen, and again after the pass.
    """
    try:
        found = read_stamp(path)
    except OSError as error:
        raise RowsError(f"{path} cannot be read: {error}. Write the file again, or leave it out.") from error
    if found != stamp:
        raise RowsError(
            f"{path} has another size or time than before: the file was changed while it was in use. Start "
            "again with files that stay as they are."
        )


# Progress of passes over the rows, for those who watch.


@dataclass(frozen=True)
class Pass:
    """State of a pass over the rows."""

    done: int  # rows processed so far
    n_rows: int  # of so many
    seconds: float  # since the pass began


Watcher = Callable[[Pass], None]
_watcher: ContextVar[Watcher | None] = ContextVar("quernel_pass", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Context manager: every pass begun inside calls watcher(Pass) as it proceeds, from the threads that read."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def begin_pass(n_rows: int) -> Callable[[int], None]:
    """Start a pass: returns a thread-safe function to call with the number of rows whenever some are done."""
    watcher = _watcher.get()
    if watcher is None:
        return lambda _: None
    lock, start, done = threading.Lock(), time.perf_counter(), 0

    def count(rows: int) -> None:
        nonlocal done
        with lock:
            done += rows
            watcher(Pass(done, n_rows, time.perf_counter() - start))

    return count


class MemmapRows:
    """Rows of memory-mapped arrays, read block by block.

    A mapped file that changes between two passes, by its size or time, is an error.

    Parameters
    ----------
    X : array or np.memmap of shape (n, d), or the path of a .npy file
    y : array or np.memmap of shape (n,), or the path of a .npy file
    weight : the same as y, or None for equal weights
        Row weights, >= 0. All three may hold floats, integers or booleans of any size, which are converted to float64 a
        block at a time.
    """

    names: tuple[str, ...] | None = None

    def __init__(self, X: Any, y: Any, weight: Any = None) -> None:
        self._labels = tuple(_label(given, name) for given, name in ((X, "X"), (y, "y"), (weight, "weight")))
        self._X, self._y = _numbers(X, self._labels[0], 2), _numbers(y, self._labels[1], 1)
        self._weight = None if weight is None else _numbers(weight, self._labels[2], 1)
        self.n_rows, self.n_columns = self._X.shape
        self.weighted = weight is not None
        for label, values in zip(self._labels[1:], (self._y, self._weight), strict=True):
            if values is not None and len(values) != self.n_rows:
                raise RowsError(
                    f"{self._labels[0]} has {self.n_rows:,} rows but {label} has {len(values):,} entries. "
                    "Give one per row."
                )
        if 0 in self._X.shape:
            raise RowsError(f"{self._labels[0]} has shape {self._X.shape}: there is nothing to read.")
        self.spans = split_blocks(self.n_rows, self.n_columns)
        self._stamps = {path: read_stamp(path) for path in self._files() if os.path.exists(path)}

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """Iterate over these blocks in order, prefetched by a thread; X=False reads target and weight only."""
        return read_ahead(self._pieces(blocks, X))

    def place(self, k: int) -> str:
        """Where block k comes from (array or file, and rows), for error messages."""
        span = self.spans[k]
        return f"{self._labels[0]}, rows {span.start:,} to {span.stop - 1:,}"

    def _files(self) -> list[str]:
        """Paths of the files that are mapped; a copy of the rows in another process has none."""
        paths = [getattr(values, "filename", None) for values in (self._X, self._y, self._weight)]
        return [os.fspath(path) for path in paths if path is not None]

    def _check_unchanged(self) -> None:
        for path in set(self._files()) & set(self._stamps):
            check_stamp(path, self._stamps[path])

    def _pieces(self, blocks: range, X: bool) -> Generator[Piece, None, None]:
        """Read and validate these blocks; runs in the prefetching thread."""
        self._check_unchanged()
        labels = [*(f"column {j} of {self._labels[0]}" for j in range(self.n_columns)), *self._labels[1:]]
        for k in blocks:
            span = self.spans[k]
            weight = None if self._weight is None else _floats(self._weight[span])
            piece = Piece(_floats(self._X[span]) if X else None, _floats(self._y[span]), weight)

            def where(row: int, start: int = span.start) -> str:
                return f"Row {start + row:,} (counted from 0)"

            yield check_piece(piece, labels, where)
        self._check_unchanged()


def _label(given: Any, name: str) -> str:
    """Name of an array in error messages: its file, if it has one."""
    path = given if isinstance(given, str | os.PathLike) else getattr(given, "filename", None)
    return name if path is None else os.fspath(path)


def _numbers(given: Any, label: str, n_axes: int) -> NDArray[Any]:
    """Validate an array: numeric, with `n_axes` axes; the path of a .npy file is memory-mapped."""
    if isinstance(given, str | os.PathLike):
        try:
            given = np.load(given, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise RowsError(f"{label} cannot be read as a .npy file: {error}") from error
    if not isinstance(given, np.ndarray):
        raise RowsError(f"{label} must be a numpy array or the path of a .npy file; got {type(given).__name__}.")
    if given.dtype.kind not in "biuf":
        raise RowsError(f"{label} must hold floats, integers or booleans; its type is {given.dtype}.")
    if given.ndim != n_axes:
        wanted = "two axes, rows and columns" if n_axes == 2 else "one axis, an entry per row"
        raise RowsError(f"{label} must have {wanted}; its shape is {given.shape}.")
    return given


def _floats(values: NDArray[Any]) -> Array:
    """A float64 copy in C order: callers own what they receive, and it is no longer mapped."""
    return np.array(values, dtype=np.float64, order="C")
