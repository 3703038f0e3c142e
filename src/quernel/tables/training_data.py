"""Training data from a table: options, the fitted encoder, and rows that are encoded as they are read.

Memory makes no difference to what is learnt: `prepare_files` reads the files in a few passes, and
`StreamedTrainingData.load` collects the encoded rows where they fit in memory. `prepare` does the same for a table that
is in memory already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby, pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quernel.data.dask import DaskRows
from quernel.data.passes import read_ahead
from quernel.data.sources import BLOCK_ROWS, Piece, RowsError, check_piece, split_blocks
from quernel.tables.column_queries import query_stats
from quernel.tables.column_stats import choose_encoding, encodable_kind, list_remarks
from quernel.tables.columns import Column, NumberColumn, TargetColumn, row_folds, sum_targets, with_target
from quernel.tables.csv_files import CsvOptions
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import TableError, as_entries, factorize, suggest_name, to_numbers
from quernel.tables.missing_values import Markers, number_markers
from quernel.tables.parquet_table import ParquetTable, RowBatch, RowGroup, kind_of_type
from quernel.tables.traps import describe_tail, find_date_parts, find_leaks

Array = NDArray[np.floating]
# Number of rows with a target in every strip of every row group, by group and first row of the strip.
StripSizes: TypeAlias = dict[tuple[RowGroup, int], int]
# Rows of a group whose targets are counted together. A block of rows has one or more strips.
STRIP = 4096
# Bounds on the sampled rows of a table larger than memory, and the share of memory for their encoded matrix.
MIN_SAMPLE, MAX_SAMPLE, MEMORY_SHARE = 1000, 100_000, 0.25


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


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training data in memory, encoded as numbers.

    Attributes
    ----------
    encoder : TableEncoder
    X : array (n, d)
    y : array (n,), the target or its logarithm
    weight : array (n,) or None
    dropped : number of rows without a target, or with an infinite one; these are not among the n
    notes : sentences for the user, on columns left out and the like
    groups : hashes (n,) of the group labels, or None
    infinite : number of the dropped rows that have an infinite target
    """

    encoder: TableEncoder
    X: Array
    y: Array
    weight: Array | None
    dropped: int
    notes: tuple[str, ...]
    groups: NDArray[np.uint64] | None = None
    infinite: int = 0

    @property
    def n_rows(self) -> int:
        """Number of rows with a target."""
        return len(self.y)

    @property
    def target_range(self) -> tuple[float, float]:
        """Minimum and maximum of y."""
        return float(self.y.min()), float(self.y.max())


@dataclass(frozen=True, eq=False)
class StreamedTrainingData:
    """Training data in files, encoded as they are read; as `TrainingData`, but for the rows.

    Attributes
    ----------
    table : ParquetTable, the files
    options : ReadOptions
    counts : TargetCounts
    encoder : TableEncoder
    rows : a row source of X, y and weights, for estimators
    notes, groups : as in `TrainingData`
    """

    table: ParquetTable
    options: ReadOptions
    counts: TargetCounts
    encoder: TableEncoder
    rows: EncodedRows | DaskRows
    notes: tuple[str, ...]
    groups: NDArray[np.uint64] | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows with a target."""
        return self.rows.n_rows

    @property
    def dropped(self) -> int:
        """Number of rows without a target, or with an infinite one."""
        return self.table.n_rows - self.n_rows

    @property
    def infinite(self) -> int:
        """Number of rows with an infinite target."""
        return self.counts.infinite

    @property
    def target_range(self) -> tuple[float, float]:
        """Minimum and maximum of the target, or of its logarithm."""
        low, high = self.counts.low, self.counts.high
        return (math.log(low), math.log(high)) if self.options.log_target else (low, high)

    @property
    def n_bytes(self) -> int:
        """Memory that the table and its encoded rows would take."""
        return self.table.n_bytes + 8 * self.n_rows * (len(self.encoder.names) + 2)

    def load(self) -> TrainingData:
        """Return the same training data in memory."""
        assert isinstance(self.rows, EncodedRows)
        piece = join_pieces([*self.rows.stream(range(len(self.rows.spans)))])
        assert piece.X is not None
        return TrainingData(
            self.encoder, piece.X, piece.y, piece.weight, self.dropped, self.notes, self.groups, self.infinite
        )


# Encoded training data, wherever the rows are.
AnyTrainingData: TypeAlias = TrainingData | StreamedTrainingData


def prepare(table: pa.Table, options: ReadOptions) -> TrainingData:
    """Choose the input columns of an Arrow table, leave out rows without a target, fit the encoder and apply it."""
    inputs, y = options.input_columns(table.schema), read_numbers(table, options.target)
    finite = np.isfinite(y)
    counts = TargetCounts({}, len(y), 0, np.inf, -np.inf, 0, 0).add(y)
    counts.check(options)
    table = table.filter(finite)
    check_weights(table, options)
    kept = [name for name in options.columns or () if name in inputs]
    encoder = TableEncoder(categorical=options.categorical, keep=kept, missing=tuple(options.missing))
    encoder.fit(table.select(inputs), *read_targets(table, options))
    X, y, weight = encode_rows(table, encoder, options)
    groups = None if options.groups is None else hash_labels(table, options.groups)
    assert X is not None
    return TrainingData(encoder, X, y, weight, int(np.sum(~finite)), encoder.notes_, groups, counts.infinite)


def prepare_files(
    table: ParquetTable, options: ReadOptions, make_rows: Callable[..., EncodedRows | DaskRows] | None = None
) -> StreamedTrainingData:
    """Choose the input columns, leave out rows without a target, and fit the encoder, in a few passes over the files.

    With groups, a hash of every label is kept, 8 bytes a row. `make_rows` makes the row source, `EncodedRows` if it is
    not given; `dask_tables.dask_rows` leaves the rows with the workers of a cluster.
    """
    inputs, counts = options.input_columns(table.schema), count_targets(table, options)
    check_weights(table, options)
    encoder = fit_encoder(table, options, inputs)
    groups = None if options.groups is None else hash_groups(table, options)
    rows = (make_rows or EncodedRows)(table, encoder, options, counts.sizes)
    return StreamedTrainingData(table, options, counts, encoder, rows, (*table.notes, *encoder.notes_), groups)


def fit_encoder(table: ParquetTable, options: ReadOptions, inputs: Sequence[str]) -> TableEncoder:
    """Fit the encoding of these columns to the rows with a target; the same as that of a data frame of these rows."""
    kinds, encodings, remarks = dict[str, str](), dict[str, Column | str](), dict[str, list[str]]()
    for name in inputs:
        empty = pa.chunked_array([], table.schema.field(name).type)
        kind, reason = encodable_kind(name, as_entries(empty), name in options.categorical)
        encodings[name], remarks[name] = reason, []
        if kind is not None:
            kinds[name] = kind
    stats = query_stats(table, options.target, kinds, Markers.from_given(options.missing))
    for name, kind in kinds.items():
        keep = name in (options.columns or ())
        encodings[name] = choose_encoding(name, kind, stats[name], keep=keep, has_target=True)
        remarks[name] = list_remarks(stats[name])
    if all(isinstance(column, str) for column in encodings.values()):  # a column that counts is better than none
        for name in [name for name, kind in kinds.items() if kind == "number"]:
            encodings[name] = choose_encoding(name, "number", stats[name], keep=True)
    _fit_target_means(table, options, encodings)
    encoder = TableEncoder.from_encodings(encodings, remarks, options.missing)
    encoder.notes_ = (*encoder.notes_, *_find_traps(table, options, encoder, inputs))
    return encoder


def _find_traps(table: ParquetTable, options: ReadOptions, encoder: TableEncoder, inputs: Sequence[str]) -> list[str]:
    """Return what `TableEncoder.fit` says about the training data as a whole, from all rows or a sample of them."""
    rows = sample_rows(table, [*encoder.inputs, *options.outputs], options.target, MAX_SAMPLE, seed=0).table
    rows = rows.filter(np.isfinite(read_numbers(rows, options.target)))
    y, _ = read_targets(rows, options)
    values = {one.name: one.read(as_entries(rows[one.name]), encoder.markers) for one in encoder.columns_}
    advice = find_date_parts(inputs), describe_tail(y)
    with np.errstate(over="ignore", invalid="ignore"):  # targets out of range are refused later
        leaks = find_leaks(values, y)
    return [*leaks, *(sentence for sentence in advice if sentence is not None)]


def _fit_target_means(table: ParquetTable, options: ReadOptions, encodings: dict[str, Column | str]) -> None:
    """Fill in the means of the target that stand for categories, in one pass if there are such columns."""
    columns = [column for column in encodings.values() if isinstance(column, TargetColumn)]
    if not columns:
        return
    markers, first_row, sums = Markers.from_given(options.missing), 0, dict[str, Array]()
    for batch in table.iter_batches(list(dict.fromkeys([*(column.name for column in columns), *options.outputs]))):
        finite = np.isfinite(read_numbers(batch.table, options.target))
        rows = batch.table.filter(finite)
        y, weight = read_targets(rows, options)
        folds = row_folds(first_row, len(rows))
        for column in columns:
            values = column.read(as_entries(rows[column.name]), markers)
            found = sum_targets(values, len(column.categories) + 2, y[:, None], weight, folds)
            sums[column.name] = sums.get(column.name, 0) + found
        first_row += len(rows)
    encodings |= {column.name: with_target(column, sums[column.name]) for column in columns}


def read_targets(table: pa.Table, options: ReadOptions) -> tuple[Array, Array | None]:
    """Return the target, or its logarithm, and the weights of rows that have a target."""
    y = read_numbers(table, options.target)
    weight = None if options.weights is None else read_numbers(table, options.weights)
    return np.log(y) if options.log_target else y, weight


# The target


@dataclass(frozen=True, eq=False)
class TargetCounts:
    """Rows with a target per strip and in all, the target's range, and how many are infinite or not positive."""

    sizes: StripSizes
    n_rows: int
    n_finite: int
    low: float
    high: float
    infinite: int
    not_positive: int

    def add(self, y: Array) -> TargetCounts:
        """Return the counts with those of a batch."""
        finite = y[np.isfinite(y)]
        return replace(
            self,
            n_finite=self.n_finite + len(finite),
            low=float(finite.min(initial=self.low)),
            high=float(finite.max(initial=self.high)),
            infinite=self.infinite + int(np.isinf(y).sum()),
            not_positive=self.not_positive + int(np.sum(finite <= 0)),
        )

    def check(self, options: ReadOptions) -> None:
        """Raise if there is no target, or one that has no logarithm where that is needed."""
        if self.n_rows == 0:
            raise TableError("The table has no rows: there is nothing to learn from.")
        if self.n_finite == 0:
            raise TableError(
                f"The target {options.target!r} is missing in all {self.n_rows:,} rows: there is nothing to learn from."
            )
        if options.log_target and self.not_positive:
            raise TableError(
                f"The logarithm needs positive targets, but {self.not_positive:,} values of {options.target!r} are not "
                f"(the smallest is {self.low:g}). Leave out --log-target, or those rows."
            )


def count_targets(table: ParquetTable, options: ReadOptions) -> TargetCounts:
    """Count the targets in one pass; raise if there are none, or not all are positive where that is needed."""
    counts = TargetCounts({}, table.n_rows, 0, np.inf, -np.inf, 0, 0)
    for batch in table.iter_batches([options.target]):
        y = read_numbers(batch.table, options.target)
        for start in range(0, len(y), STRIP):
            counts.sizes[batch.group, batch.start + start] = int(np.isfinite(y[start : start + STRIP]).sum())
        counts = counts.add(y)
    counts.check(options)
    return counts


def check_weights(table: ParquetTable | pa.Table, options: ReadOptions) -> None:
    """Raise if a row with a target has a weight that is missing or negative."""
    name, missing, negative = options.weights, 0, 0
    if name is None:
        return
    for part in [table] if isinstance(table, pa.Table) else (one.table for one in table.iter_batches(options.outputs)):
        weight = read_numbers(part, name)[np.isfinite(read_numbers(part, options.target))]
        missing, negative = missing + int(np.sum(~np.isfinite(weight))), negative + int(np.sum(weight < 0))
    if missing or negative:
        what = f"{missing:,} missing or infinite" if missing else f"{negative:,} negative"
        raise TableError(
            f"The weight column {name!r} has {what} entries. Weights must be 0 or more; 0 leaves a row out."
        )


def hash_groups(table: ParquetTable, options: ReadOptions) -> NDArray[np.uint64]:
    """Return a hash of the group label of every row with a target, equal for equal labels, in one pass."""
    assert options.groups is not None
    found = [np.empty(0, dtype=np.uint64)]
    for batch in table.iter_batches(list(dict.fromkeys([options.target, options.groups]))):
        finite = np.isfinite(read_numbers(batch.table, options.target))
        found.append(hash_labels(batch.table.filter(finite), options.groups, str(batch.group)))
    return np.concatenate(found)


def hash_labels(table: pa.Table, name: str, place: str = "") -> NDArray[np.uint64]:
    """Return a hash of every group label; raise if a row has none."""
    labels, index = factorize(as_entries(table[name]))
    empty = int(np.sum(index < 0))
    if empty:
        of = f" of {place}" if place else ""
        raise TableError(
            f"The group column {name!r} is empty in {empty:,} of {len(index):,} rows{of}. Fill it, or leave those rows "
            "out."
        )
    codes = [int.from_bytes(blake2b(label.encode(), digest_size=8).digest()) for label in labels]
    return np.array(codes, dtype=np.uint64)[index]


# The rows


@dataclass(frozen=True)
class RowBlock:
    """A block of rows: its start in its row group, rows without a target included, and its rows with a target."""

    group: RowGroup
    start: int
    n_rows: int


class EncodedRows:
    """Rows of a table, encoded as they are read; a `RowSource`. Rows without a target are left out.

    Parameters
    ----------
    table : ParquetTable
    encoder : TableEncoder
    options : ReadOptions
    sizes : dict
        Number of rows with a target in every strip, as in `TargetCounts`.
    """

    def __init__(self, table: ParquetTable, encoder: TableEncoder, options: ReadOptions, sizes: StripSizes) -> None:
        self.table, self.encoder, self.options = table, encoder, options
        # Table models have column names in the encoder: as with data in memory, the estimator gets none.
        self.names, self.n_columns = None, len(encoder.names)
        self.weighted = options.weights is not None
        self.size = max(split_blocks(BLOCK_ROWS, self.n_columns)[0].stop // STRIP, 1) * STRIP
        self.blocks = self._make_blocks(sizes)
        ends = np.cumsum([0, *(block.n_rows for block in self.blocks)]).tolist()
        self.spans = [slice(start, stop) for start, stop in pairwise(ends)]
        self.n_rows = ends[-1]

    def _make_blocks(self, sizes: StripSizes) -> list[RowBlock]:
        """Join strips to blocks of `size` rows; those without a target are left out."""
        joined: StripSizes = {}
        for (group, start), size in sizes.items():
            first = start - start % self.size
            joined[group, first] = joined.get((group, first), 0) + size
        return [RowBlock(group, start, size) for (group, start), size in joined.items() if size]

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """Iterate over these blocks in order, prefetched by a thread; X=False reads target and weight only."""
        return read_ahead(self._read_blocks(blocks, X))

    def place(self, k: int) -> str:
        """Where block k comes from, for error messages."""
        return str(self.blocks[k].group)

    def _read_blocks(self, numbers: range, X: bool) -> Generator[Piece, None, None]:
        wanted = {(self.blocks[k].group, self.blocks[k].start): self.blocks[k].n_rows for k in numbers}
        firsts = {(self.blocks[k].group, self.blocks[k].start): self.spans[k].start for k in numbers}
        groups = [group for group, _ in groupby(self.blocks[k].group for k in numbers)]
        last = self.blocks[numbers[-1]] if len(numbers) else None
        for batch in self.table.iter_batches(needed_columns(self.encoder, self.options, X), groups, self.size):
            n_rows = wanted.get((batch.group, batch.start))
            if n_rows is not None:
                piece = encode_batch(batch, self.encoder, self.options, firsts[batch.group, batch.start], X)
                if len(piece.y) != n_rows:
                    raise RowsError(f"{batch.group} has other rows than before: the file was changed while in use.")
                yield piece
            if last is not None and (batch.group, batch.start) == (last.group, last.start):
                return


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """Concatenate pieces."""
    parts: list[Any] = [None if part[0] is None else np.concatenate(part) for part in zip(*pieces, strict=True)]
    return Piece(*parts)


def needed_columns(encoder: TableEncoder, options: ReadOptions, X: bool) -> list[str]:
    """Return the columns to read: target and weights, with X also the inputs."""
    return list(dict.fromkeys([*(encoder.inputs if X else ()), *options.outputs]))


def encode_batch(batch: RowBatch, encoder: TableEncoder, options: ReadOptions, first_row: int, X: bool = True) -> Piece:
    """Encode a batch, without the rows that have no target; `first_row` counts those that have one before it."""
    finite = np.isfinite(read_numbers(batch.table, options.target))
    table = batch.table if finite.all() else batch.table.filter(finite)

    def where(row: int) -> str:
        place = batch.start + int(np.flatnonzero(finite)[row])
        return f"{batch.group}, row {place:,} of the group (counted from 0)"

    return encode_rows(table, encoder, options, first_row, X, where)


def encode_rows(
    table: pa.Table,
    encoder: TableEncoder,
    options: ReadOptions,
    first_row: int = 0,
    X: bool = True,
    where: Callable[[int], str] = "Row {:,} (counted from 0)".format,
) -> Piece:
    """Encode training rows, which have a target, and check them; `where` describes the place of a row."""
    inputs = np.ascontiguousarray(encoder.transform_training(table, first_row)) if X else None
    piece = Piece(inputs, *read_targets(table, options))
    labels = [f"column {name!r}" for name in (*encoder.names, options.target, options.weights)]
    return check_piece(piece, labels, where)


# A random sample


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
