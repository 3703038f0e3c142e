"""Rows of a table, encoded as they are read block by block, by this process or a Dask cluster; and samples of rows.

`ReadOptions` says which columns are inputs, target, weights and groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quernel.data.dask import DaskRows
from quernel.data.parquet import BlockedRows
from quernel.data.sources import Piece, check_piece, count_block_rows
from quernel.tables.columns import NumberColumn, number_markers
from quernel.tables.encoder import TableEncoder
from quernel.tables.formats import CsvOptions, ParquetTable, RowBatch, RowGroup, kind_of_type
from quernel.tables.frames import TableError, as_entries, suggest_name, to_numbers

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client


Array = NDArray[np.floating]


@dataclass(frozen=True)
class ReadOptions:
    """How a table is read as training data.

    Parameters
    ----------
    target : str
        The numeric column to predict.
    columns : sequence of str or None
        The input columns; None is all but the target, the weights and the groups.
    exclude : sequence of str
        Columns that are not to be used.
    weights : str or None
        The column of sample weights.
    groups : str or None
        The column of group labels; rows of one group are never split between training and validation.
    log_target : bool
        Whether to fit the logarithm of the target.
    missing : sequence of str
        Missing-value markers besides NA, NULL and the like; the model treats new data in the same way.
    categorical : sequence of str
        Input columns whose numbers or booleans are categories.
    """

    target: str
    columns: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    weights: str | None = None
    groups: str | None = None
    log_target: bool = False
    missing: Sequence[str] = ()
    categorical: Sequence[str] = ()

    @property
    def outputs(self) -> list[str]:
        """Names of the target and of the weights, if there are any."""
        return [self.target, *([] if self.weights is None else [self.weights])]

    def csv_options(self) -> CsvOptions:
        """Return how CSV files are read: categorical columns as text, with these missing-value markers."""
        return CsvOptions(tuple(self.missing), tuple(self.categorical))

    def uses(self, name: str) -> bool:
        """Whether a column is used, be it as input, target, weights or groups."""
        if name in self.exclude:
            return False
        return self.columns is None or name in (*self.columns, self.target, self.weights, self.groups)

    def input_columns(self, schema: pa.Schema) -> list[str]:
        """Return the names of the input columns, after checking every named column.

        Raise if one is missing, if target or weights are not numeric, or if a categorical column is not an input.
        """
        named = (self.target, self.weights, self.groups, *(self.columns or ()), *self.exclude)
        for name in named:
            if name is not None and name not in schema.names:
                raise TableError(f"There is no column {name!r}. {suggest_name(name, schema.names)}")
        for name, role in ((self.target, "target"), (self.weights, "column of weights")):
            kind = None if name is None else schema.field(name).type
            if kind is not None and not is_numeric(kind):
                raise TableError(
                    f"The {role} {name!r} holds {kind}, not numbers. Choose another column, or write 1234.5 for a "
                    "number; in a CSV file, --missing declares missing-value markers."
                )
        left_out = (self.target, self.weights, self.groups, *self.exclude)
        inputs = [name for name in self.columns or schema.names if name not in left_out]
        for name in self.categorical:
            if name not in schema.names:
                raise TableError(f"There is no column {name!r} for --categorical. {suggest_name(name, schema.names)}")
            if name not in inputs:
                raise TableError(
                    f"Column {name!r} is named by --categorical, but is no input column. Remove it from --categorical."
                )
        return inputs


def is_numeric(arrow_type: pa.DataType) -> bool:
    """Whether a column of this Arrow type can be a target: numbers, booleans, or nothing at all."""
    return pa.types.is_null(arrow_type) or kind_of_type(arrow_type) in ("number", "boolean", "duration")


def read_numbers(table: pa.Table | pa.RecordBatch, name: str, missing: Sequence[str] = ()) -> Array:
    """Return a column of an Arrow table as numbers, shape (n,), missing values and their markers as NaN."""
    if pa.types.is_null(table.schema.field(name).type):
        return np.full(len(table), np.nan)
    values = np.ascontiguousarray(to_numbers(as_entries(table[name])))
    return np.where(np.isin(values, number_markers(missing)), np.nan, values) if missing else values


def has_infinite(encoder: TableEncoder, table: pa.Table) -> NDArray[np.bool_]:
    """Which rows of a table have an infinite input, treated as missing; shape (n,)."""
    found = np.zeros(len(table), dtype=bool)
    for column in encoder.columns_:
        if isinstance(column, NumberColumn) and is_numeric(table.schema.field(column.name).type):
            found |= np.isinf(read_numbers(table, column.name))
    return found


def read_targets(table: pa.Table, options: ReadOptions) -> tuple[Array, Array | None]:
    """Return the target, or its logarithm, and the weights of rows that have a target."""
    y = read_numbers(table, options.target)
    weight = None if options.weights is None else read_numbers(table, options.weights)
    return np.log(y) if options.log_target else y, weight


Mask = NDArray[np.bool_]
# Bounds on the sampled rows of a table larger than memory, and the share of memory for their encoded matrix.
MIN_SAMPLE, MAX_SAMPLE, MEMORY_SHARE = 1000, 100_000, 0.25
# Dask: the address of a cluster to be started on this machine, and seconds in which a scheduler must answer.
LOCAL, TIMEOUT = "local", 5


class EncodedRows(BlockedRows):
    """Rows of a table, encoded as they are read; a `RowSource`. Rows without a target are left out.

    Parameters
    ----------
    table : ParquetTable
    encoder : TableEncoder
    options : ReadOptions
    finite : boolean array of shape (n,), which rows have a target
    """

    def __init__(self, table: ParquetTable, encoder: TableEncoder, options: ReadOptions, finite: Mask) -> None:
        self.table, self.encoder, self.options = table, encoder, options
        # Table models have column names in the encoder: as with data in memory, the estimator gets none.
        self.names, self.weighted = None, options.weights is not None
        n_columns = len(encoder.names)
        size, counts, first = count_block_rows(n_columns), list[tuple[RowGroup, int, int]](), 0
        for group in table.groups:
            inside = finite[first : first + group.n_rows]
            starts = range(0, group.n_rows, size)
            counts += [(group, start, int(inside[start : start + size].sum())) for start in starts]
            first += group.n_rows
        super().__init__(table, counts, n_columns)

    def _iter_batches(self, groups: Iterable[RowGroup], X: bool) -> Iterator[tuple[RowBatch, NDArray[np.intp]]]:
        """Yield batches of the rows with a target, and their indices in the file."""
        for batch in self.table.iter_batches(needed_columns(self.encoder, self.options, X), groups, self.size):
            rows = np.flatnonzero(np.isfinite(read_numbers(batch.table, self.options.target)))
            table = batch.table if len(rows) == len(batch.table) else batch.table.take(rows)
            yield batch._replace(table=table), batch.group.first + batch.start + rows

    def _read_piece(self, table: pa.Table, k: int, X: bool, where: Callable[[int], str]) -> Piece:
        """Return the encoded rows of block k."""
        return encode_rows(table, self.encoder, self.options, self.spans[k].start, X, where)


def needed_columns(encoder: TableEncoder, options: ReadOptions, X: bool) -> list[str]:
    """Return the columns to read: target and weights, with X also the inputs."""
    return list(dict.fromkeys([*(encoder.inputs if X else ()), *options.outputs]))


def encode_rows(
    table: pa.Table,
    encoder: TableEncoder,
    options: ReadOptions,
    first_row: int = 0,
    X: bool = True,
    where: Callable[[int], str] = "Row {:,} (counted from 0)".format,
) -> Piece:
    """Encode training rows, which have a target, and check them.

    `first_row` is the number of the first one among all training rows, and `where` describes the place of a row.
    """
    inputs = np.ascontiguousarray(encoder.transform_training(table, first_row)) if X else None
    piece = Piece(inputs, *read_targets(table, options))
    labels = [f"column {name!r}" for name in (*encoder.names, options.target, options.weights)]
    return check_piece(piece, labels, where)


def join_pieces(pieces: Iterable[Piece]) -> Piece:
    """Concatenate pieces."""
    parts: list[Any] = [None if part[0] is None else np.concatenate(part) for part in zip(*pieces, strict=True)]
    return Piece(*parts)


# A cluster, whose workers read and encode the rows: none is sent to this process, and every worker must see the files
# under the same paths.


@contextmanager
def connect(address: str) -> Iterator[Client]:
    """Yield a client of the cluster at this address or, for "local", of one on this machine, closed at the end."""
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ImportError(
            "--dask needs Dask, which is not installed. Run: pip install 'dask[array,distributed]'"
        ) from error
    if address == LOCAL:
        with (
            LocalCluster(host="127.0.0.1", processes=True, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            yield client
        return
    try:
        # A client that cannot connect would otherwise stay Dask's default one and break its later computations.
        client = Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise ConnectionError(
            f"No Dask scheduler answers at {address!r}. Give the address of a running one, such as "
            f"tcp://127.0.0.1:8786, or {LOCAL!r} to start one here."
        ) from error
    with client, client.as_current():
        yield client


def dask_rows(table: ParquetTable, encoder: TableEncoder, options: ReadOptions, finite: Mask) -> DaskRows:
    """Return the encoded rows as Dask arrays, a chunk for every row group, computed by the workers."""
    import dask.array as da
    from dask import delayed

    encode, select = delayed(_encode_group, pure=True), delayed(Piece.__getitem__, pure=True)
    chunks, first, first_row = [], 0, 0
    for group in table.groups:
        inside = finite[first : first + group.n_rows]
        if size := int(inside.sum()):
            chunks.append((encode(table.select_group(group), encoder, options, inside, first_row), size))
        first, first_row = first + group.n_rows, first_row + size

    def concatenate(place: int, *shape: int) -> da.Array:
        return da.concatenate(
            [da.from_delayed(select(piece, place), (size, *shape), dtype=float) for piece, size in chunks]
        )

    weight = None if options.weights is None else concatenate(2)
    return DaskRows(concatenate(0, len(encoder.names)), concatenate(1), weight)


def _encode_group(
    table: ParquetTable, encoder: TableEncoder, options: ReadOptions, finite: Mask, first_row: int
) -> Piece:
    """Encode a table of one row group, whose first row with a target has this number among all; runs on a worker."""
    rows = table.read(needed_columns(encoder, options, X=True)).filter(finite)
    return encode_rows(rows, encoder, options, first_row)


# Samples


@dataclass(frozen=True, eq=False)
class RowSample:
    """Sampled rows, in their order.

    Attributes
    ----------
    table : Arrow table of the rows
    row : array (m,), the index of each among all rows, of which there are `n_rows`
    target_row : array (m,), its index among the rows with a target, of which there are `n_counted`
    """

    table: pa.Table
    row: NDArray[np.intp]
    target_row: NDArray[np.intp]
    n_rows: int
    n_counted: int

    @property
    def whole(self) -> bool:
        """Whether these are all rows."""
        return len(self.row) == self.n_rows


def choose_sample_size(n_columns: int, memory: float) -> int:
    """Return the number of rows of a sample with this many encoded columns, given the bytes allowed."""
    return min(max(int(MEMORY_SHARE * memory / (8 * n_columns)), MIN_SAMPLE), MAX_SAMPLE)


def sample_rows(
    table: ParquetTable, columns: Sequence[str], target: str, limit: int, seed: int, missing: Sequence[str] = ()
) -> RowSample:
    """Return a random sample of at most `limit` rows, those without a target included, in one pass.

    `missing` are markers of missing targets.
    """
    n_rows = table.n_rows
    chosen = np.arange(n_rows)
    if n_rows > limit:
        chosen = np.sort(np.random.default_rng(seed).choice(n_rows, limit, replace=False, shuffle=False))
    names = list(dict.fromkeys([*columns, target]))
    parts, before, first = [pa.schema([table.schema.field(name) for name in names]).empty_table()], [], 0
    n_counted = 0
    for batch in table.iter_batches(names):
        finite = np.isfinite(read_numbers(batch.table, target, missing))
        inside = chosen[np.searchsorted(chosen, first) : np.searchsorted(chosen, first + len(finite))] - first
        parts.append(batch.table.take(inside))
        before.append(n_counted + (np.cumsum(finite) - finite)[inside])
        first, n_counted = first + len(finite), n_counted + int(finite.sum())
    target_row = np.concatenate(before) if before else np.empty(0, dtype=np.intp)
    return RowSample(pa.concat_tables(parts), chosen, target_row, n_rows, n_counted)
