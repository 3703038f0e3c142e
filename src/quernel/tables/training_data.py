"""Training data from a table: the fitted encoder, and its encoded rows, in memory or read block by block.

Memory makes no difference to what is learnt: `prepare_files` reads the files in a few passes, and
`StreamedTrainingData.load` collects the encoded rows where they fit in memory. `prepare` does the same for a table that
is in memory already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quernel.data.dask import DaskRows
from quernel.tables import encoded_rows
from quernel.tables.column_queries import query_stats
from quernel.tables.column_stats import choose_encoding, encodable_kind, list_remarks
from quernel.tables.columns import Column, TargetColumn, row_folds, sum_targets, with_target
from quernel.tables.encoded_rows import (
    MAX_SAMPLE,
    EncodedRows,
    StripSizes,
    encode_rows,
    join_pieces,
    sample_rows,
)
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import TableError, as_entries, factorize
from quernel.tables.missing_values import Markers
from quernel.tables.parquet_table import ParquetTable
from quernel.tables.read_options import ReadOptions, read_numbers, read_targets
from quernel.tables.traps import describe_tail, find_date_parts, find_leaks

Array = NDArray[np.floating]


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


# Encoded training data, in memory or out of core.
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
        for start in range(0, len(y), encoded_rows.STRIP):
            strip = y[start : start + encoded_rows.STRIP]
            counts.sizes[batch.group, batch.start + start] = int(np.isfinite(strip).sum())
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
