"""Row source for Parquet files: found and checked first, by their schemas, then read row group by row group.

Files are read without Arrow's threads: these compete with our own, and may deadlock in a forked process.
"""

from __future__ import annotations

import glob
import os
import re
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data.passes import read_ahead
from quernel.data.sources import (
    Array,
    Piece,
    RowsError,
    Stamp,
    check_piece,
    check_policy,
    check_stamp,
    read_stamp,
    split_blocks,
)

# Rows that are transposed from columns at a time: few enough to stay in the processor's cache.
STRIP = 2048
# Column added to rows before they are filtered: their indices in the file, for error messages.
NUMBER = "number of the row (quernel)"
ENDINGS = (".parquet", ".pq")
# Bytes of a column that are buffered at a time; without a limit, a whole row group would be in memory.
BUFFER = 2**20


def as_expression(filters: Any) -> Any:
    """Filters as a pyarrow expression: from one, or from a list, or list of lists, of (column, operator, value)."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if filters is None or isinstance(filters, pc.Expression):
        return filters
    try:
        return pq.filters_to_expression(filters)
    except Exception as error:  # of any type: the filters are not of that form
        raise RowsError(
            "filters must be a pyarrow expression or a list of (column, operator, value), such as "
            f"[('year', '>=', 2020)]; got {filters!r}: {error}"
        ) from error


def columns_in_filter(kept: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Columns named in a filter expression, by its text; a column too many is only read in vain."""
    text = str(kept)
    return tuple(name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text))


def filter_table(table: Any, kept: Any) -> Any:
    """Filter a table, keeping the order of rows, without threads (`Table.filter` would start some)."""
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    chosen = acero.Declaration("filter", acero.FilterNodeOptions(kept))
    return acero.Declaration.from_sequence([source, chosen]).to_table(use_threads=False)


@dataclass(frozen=True)
class Group:
    """A row group, and the blocks that it is divided into."""

    file: int  # index of its file
    number: int  # index within the file
    first_row: int  # index of its first row within the file
    n_rows: int
    kept: int  # rows that the filters keep
    blocks: range = range(0)  # numbers of its blocks among all blocks


class ParquetRows:
    """Rows of Parquet files, which may be larger than memory.

    The constructor reads metadata only (and the columns that `filters` name); rows are read and validated when they are
    streamed. A file that changes between two passes, by its size or time, is an error. Files without rows are skipped.
    Corrupt bytes are detected for certain only in files with page checksums, which pyarrow writes with
    write_page_checksum=True.

    Parameters
    ----------
    paths : path, glob pattern such as "trips/*.parquet", folder, list of paths, or pyarrow dataset
    target : str
        Column to predict.
    columns : sequence of str or None
        Columns of X, in this order. None takes all columns except target and weight, which must be numeric; columns of
        other types that `filters` name are left out. Integers and booleans are converted to float64.
    weight : str or None
        Column of row weights, >= 0; None for equal weights.
    filters : pyarrow expression, list of (column, operator, value), list of such lists, or None
        Rows to keep; a list of lists is a disjunction ("or") of conjunctions ("and"). The constructor counts the rows
        that are kept, in one pass over the columns that the filters name.
    cache : "auto", "recompute", "memory", "disk", or a folder, default="auto"
        Whether a fit that streams these rows caches their features after the first pass: see docs/scale.md.
        "recompute" never caches. "memory" and "disk" (in the temporary folder, or in the folder given) always do, or
        raise an error. "auto" caches in memory if half of `max_memory` holds the features, on disk if that should be
        faster than recomputing them, and not otherwise. Cached features have the estimator's `dtype`: float64 leaves
        the fit unchanged, float32 takes half the space. The cache is deleted when the fit ends.
    """

    def __init__(
        self,
        paths: Any,
        target: str,
        *,
        columns: Sequence[str] | None = None,
        weight: str | None = None,
        filters: Any = None,
        cache: str | os.PathLike[str] = "auto",
    ) -> None:
        _require_pyarrow()
        _check_names(columns, target, weight)
        self.cache = check_policy(cache)
        self.target, self.weight, self._filter = target, weight, as_expression(filters)
        self._found = find_files(paths)
        footers = [read_footer(path, self._found.filesystem) for path in self.files]
        self._stamps = [one.stamp for one in footers]
        self._filtered_by = () if filters is None else columns_in_filter(self._filter, footers[0].schema.names)
        self.names = self._inputs(0, footers[0]) if columns is None else tuple(columns)
        self.n_columns, self.weighted = len(self.names), weight is not None
        for i, one in enumerate(footers):
            self._check_schema(i, one, all_columns=columns is None)
        groups = [group for i, one in enumerate(footers) for group in _row_groups(i, one.sizes)]
        self._groups, self.spans = _divide(groups if filters is None else self._count_kept(groups), self.n_columns)
        if not self.spans:
            kept = "that the filters keep " if filters is not None else ""
            raise RowsError(f"There are no rows {kept}in {self._describe_files()}.")
        self.n_rows = self.spans[-1].stop

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files, in the order in which they are read."""
        return self._found.paths

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """Iterate over these blocks in order, prefetched by a thread; X=False reads target and weight only.

        Parquet is read from the beginning of a row group: a stream that starts inside one reads the rows before, too.
        """
        return read_ahead(self._pieces(blocks, X))

    def place(self, k: int) -> str:
        """Where block k comes from (file and row group), for error messages."""
        return self._place(self._groups[bisect_right(self._groups, k, key=lambda group: group.blocks.start) - 1])

    def __repr__(self) -> str:
        return f"ParquetRows({self._describe_files()}: {self.n_rows:,} rows x {self.n_columns} columns)"

    def _describe_files(self) -> str:
        return self.files[0] + (f" and {len(self.files) - 1} more files" if len(self.files) > 1 else "")

    def _place(self, group: Group) -> str:
        return f"{self.files[group.file]}, row group {group.number}"

    # Metadata

    def _inputs(self, i: int, metadata: Footer) -> tuple[str, ...]:
        """Numeric columns of file i that are neither target nor weight."""
        if self._found.from_folders:
            raise RowsError(
                f"The dataset has columns that are known from the names of folders only, which are not read: "
                f"{', '.join(self._found.from_folders)}. Choose the inputs with columns=."
            )
        return numeric_columns(self.files[i], metadata.schema, (self.target, self.weight), self._filtered_by)

    def _check_schema(self, i: int, metadata: Footer, all_columns: bool) -> None:
        """File i must have the columns that are read and, if all are read, no others."""
        path = self.files[i]
        check_schema(path, metadata.schema, self._needed(X=True))
        if all_columns and (more := set(self._inputs(i, metadata)) - set(self.names)):
            raise RowsError(
                f"{path} has a column {min(more)!r}, unlike {self.files[0]}. Choose the inputs with columns=."
            )
        if self._filter is not None:
            with explain_errors(f"{path} with the filters {self._filter}", remedy="Are their names and types right?"):
                filter_table(metadata.schema.empty_table(), self._filter)

    def _count_kept(self, groups: list[Group]) -> Iterator[Group]:
        """The row groups with the number of rows that the filters keep: one pass over the columns they name."""
        for group, tables in self._read(groups, ()):
            yield replace(group, kept=sum(len(table) for table in tables))

    # Reading

    def _needed(self, X: bool) -> list[str]:
        """Columns to read: inputs if X, target, and weight if there is one."""
        return [*(self.names if X else ()), self.target, *([] if self.weight is None else [self.weight])]

    def _pieces(self, blocks: range, X: bool) -> Generator[Piece, None, None]:
        """Read and validate these blocks; runs in the prefetching thread."""
        wanted = [group for group in self._groups if any(k in blocks for k in group.blocks)]
        for group, tables in self._read(wanted, self._needed(X)):
            spans = [self.spans[k] for k in group.blocks if k <= blocks[-1]]
            row = group.first_row
            for k, table in zip(group.blocks, self._resize(tables, spans, group), strict=False):
                if k in blocks:
                    yield self._piece(table, group, row, X)
                row += len(table)

    def _read(self, groups: Sequence[Group], needed: Sequence[str]) -> Iterator[tuple[Group, Iterator[Any]]]:
        """Each row group with the rows that the filters keep, as Arrow tables of any length; one file is open."""
        for i, of_file in groupby(groups, key=lambda group: group.file):
            with open_file(self.files[i], self._found.filesystem) as file:
                self._check_unchanged(i, file)
                for group in of_file:
                    yield group, self._tables(file, group, needed)
                self._check_unchanged(i, file)

    def _check_unchanged(self, i: int, file: Any) -> None:
        """Raise if file i has another stamp than its metadata had; the error names the first row group that differs."""
        try:
            check_stamp(self.files[i], self._stamps[i], self._found.filesystem)
        except RowsError:
            metadata, groups = file.metadata, [group for group in self._groups if group.file == i]
            for group in groups:
                if group.number >= metadata.num_row_groups or metadata.row_group(group.number).num_rows != group.n_rows:
                    raise self._changed(group) from None
            raise

    def _tables(self, file: Any, group: Group, needed: Sequence[str]) -> Iterator[Any]:
        """Read a row group in batches and filter them; raises if the file has changed since its metadata were read."""
        import pyarrow as pa

        columns = list(dict.fromkeys([*needed, *self._filtered_by]))
        size, row = split_blocks(group.n_rows, self.n_columns)[0].stop, group.first_row
        with explain_errors(self._place(group)):
            metadata = file.metadata
            if group.number >= metadata.num_row_groups or metadata.row_group(group.number).num_rows != group.n_rows:
                raise self._changed(group)
            batches = file.iter_batches(size, [group.number], columns, use_threads=False)
        while True:
            with explain_errors(self._place(group)):
                batch = next(batches, None)
                if batch is None:
                    return
                table = pa.Table.from_batches([batch])
                if self._filter is not None:
                    numbers = pa.array(np.arange(row, row + len(table)))
                    table = filter_table(table.append_column(NUMBER, numbers), self._filter)
            yield table
            row += batch.num_rows

    def _resize(self, tables: Iterator[Any], spans: Sequence[slice], group: Group) -> Iterator[Any]:
        """The same rows as tables with the lengths of these spans."""
        import pyarrow as pa

        pending: list[Any] = []
        for span in spans:
            size = span.stop - span.start
            while sum(map(len, pending)) < size:
                table = next(tables, None)
                if table is None:
                    raise self._changed(group)
                pending.append(table)
            joined = pa.concat_tables(pending)
            pending = [joined.slice(size)]
            yield joined.slice(0, size)

    def _piece(self, table: Any, group: Group, first_row: int, X: bool) -> Piece:
        """A table as a validated `Piece`; `first_row` is the index of its first row in the file."""

        def where(row: int) -> str:
            number = first_row + row if self._filter is None else table.column(NUMBER)[row].as_py()
            return f"{self._place(group)}, row {number:,} of the file (counted from 0)"

        weight = None if self.weight is None else _to_numpy(table, [self.weight])[:, 0]
        X_piece = _to_numpy(table, self.names) if X else None
        piece = Piece(X_piece, _to_numpy(table, [self.target])[:, 0], weight)
        return check_piece(piece, [f"column {name!r}" for name in (*self.names, self.target, self.weight)], where)

    def _changed(self, group: Group) -> RowsError:
        return RowsError(f"{self._place(group)} has other rows than before: the file was changed while it was in use.")


def _require_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError("ParquetRows needs pyarrow, which is not installed. Run: pip install pyarrow") from error


def _check_names(columns: Sequence[str] | None, target: str, weight: str | None) -> None:
    """Raise a `RowsError` unless columns, target and weight are distinct names."""
    if isinstance(columns, str) or (columns is not None and len(columns) == 0):
        raise RowsError(f"columns must be a list of names, or None for all columns; got {columns!r}.")
    named = [*(columns if columns is not None else ()), target, *([] if weight is None else [weight])]
    for name in named:
        if not isinstance(name, str):
            raise RowsError(f"Columns are known by their names; got {name!r}.")
        if named.count(name) > 1:
            raise RowsError(f"Column {name!r} is named twice among columns, target and weight.")


def _row_groups(file: int, sizes: Sequence[int]) -> Iterator[Group]:
    """The row groups of a file, of these numbers of rows, without empty ones."""
    first_row = 0
    for number, size in enumerate(sizes):
        if size:
            yield Group(file, number, first_row, size, size)
        first_row += size


def _divide(groups: Iterator[Group] | list[Group], n_columns: int) -> tuple[list[Group], list[slice]]:
    """Divide row groups into blocks: the groups that keep rows, with their blocks, and the spans of all blocks."""
    divided: list[Group] = []
    spans: list[slice] = []
    start = 0
    for group in groups:
        if group.kept:
            parts = split_blocks(group.kept, n_columns)
            divided.append(replace(group, blocks=range(len(spans), len(spans) + len(parts))))
            spans += [slice(start + part.start, start + part.stop) for part in parts]
            start += group.kept
    return divided, spans


def _to_numpy(table: Any, names: Sequence[str]) -> Array:
    """Columns of a table as a float64 array (m, number of names) in C order; missing values become NaN."""
    out = np.empty((len(table), len(names)))
    values = [_floats(table.column(name)) for name in names]
    for start in range(0, len(table), STRIP):
        strip = slice(start, start + STRIP)
        for j, column in enumerate(values):
            out[strip, j] = column[strip]
    return out


def _floats(column: Any) -> NDArray[Any]:
    """A column as a numpy array; booleans by way of uint8, for numpy's booleans have no missing value."""
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    return column.to_numpy()


@dataclass(frozen=True)
class Files:
    """Parquet files in the order in which they are read."""

    paths: tuple[str, ...]
    filesystem: Any = None  # Arrow file system; None is the local one
    from_folders: tuple[str, ...] = ()  # partition columns, known from the names of folders only


def find_files(paths: Any) -> Files:
    """List the files of a path, a glob pattern, a folder, a list of paths, or a pyarrow dataset."""
    if hasattr(paths, "get_fragments"):
        return _from_dataset(paths)
    if isinstance(paths, str | os.PathLike):
        found = _from_path(os.fspath(paths))
    elif isinstance(paths, Sequence):
        found = [os.fspath(path) for path in paths]
    else:
        raise RowsError(f"paths must be a path, a list of paths or a pyarrow dataset; got {type(paths).__name__}.")
    if not found:
        raise RowsError(
            f"No Parquet file was found at {paths!r}. Give a file, a folder, or a pattern like 'trips/*.parquet'."
        )
    for path in found:
        if not os.path.isfile(path):
            raise RowsError(f"{path} is not a file. Give Parquet files, or a folder or pattern by itself.")
    return Files(tuple(found))


def _from_path(path: str) -> list[str]:
    """The file itself, or all Parquet files of a folder or glob pattern, sorted by name."""
    if os.path.isdir(path):  # writers leave metadata beside the data, in files that begin with . or _
        inside = (p for p in Path(path).rglob("*") if p.suffix in ENDINGS and not p.name.startswith((".", "_")))
        return sorted(str(p) for p in inside if p.is_file())
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]
    return sorted(p for p in glob.glob(path, recursive=True) if os.path.isfile(p))


def _from_dataset(dataset: Any) -> Files:
    """The files of a pyarrow dataset; a filter of its own is refused, for it would be ignored."""
    if getattr(getattr(dataset, "format", None), "default_extname", None) != "parquet":
        raise RowsError(f"The dataset must be one of Parquet files; got a {type(dataset).__name__} of another kind.")
    if (getattr(dataset, "_scan_options", None) or {}).get("filter") is not None:
        raise RowsError("The dataset has a filter of its own. Give the whole dataset, and the filter as filters=.")
    if not dataset.files:
        raise RowsError("The dataset has no files.")
    partition = getattr(dataset, "partitioning", None)
    return Files(
        tuple(dataset.files), dataset.filesystem, tuple(partition.schema.names) if partition is not None else ()
    )


@dataclass(frozen=True)
class Footer:
    """Metadata of a file."""

    schema: Any  # Arrow schema
    sizes: tuple[int, ...]  # number of rows of each row group
    stamp: Stamp  # that of the file before it was opened


def read_footer(path: str, filesystem: Any = None) -> Footer:
    """Read the metadata of a file, which stand at its end."""
    with explain_errors(path):
        stamp = read_stamp(path, filesystem)
    with open_file(path, filesystem) as file, explain_errors(path):
        groups = range(file.metadata.num_row_groups)
        return Footer(file.schema_arrow, tuple(file.metadata.row_group(g).num_rows for g in groups), stamp)


@contextmanager
def open_file(path: str, filesystem: Any = None) -> Iterator[Any]:
    """Context manager: the file opened as a pyarrow ParquetFile, with page checksums verified."""
    import pyarrow.parquet as pq

    with explain_errors(path):
        file = pq.ParquetFile(
            path, filesystem=filesystem, pre_buffer=False, buffer_size=BUFFER, page_checksum_verification=True
        )
    with file:
        yield file


@contextmanager
def explain_errors(place: str, remedy: str = "Write the file again, or leave it out.") -> Iterator[None]:
    """Context manager: turn errors of Arrow and of the system into one-line `RowsError`s that name place and remedy."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RowsError(f"{place} cannot be read: {reason.rstrip('.')}. {remedy}") from error


def is_number(kind: Any) -> bool:
    """Whether an Arrow type converts to float64 without encoding: floats, integers and booleans."""
    import pyarrow.types as types

    return types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)


def numeric_columns(
    path: str, schema: Any, others: Sequence[str | None], only_filtered: Sequence[str]
) -> tuple[str, ...]:
    """Names of all numeric columns of a schema except `others` (target and weight).

    Other types raise a `RowsError`, except in columns that are only filtered by, which are left out.
    """
    chosen = []
    for field in schema:
        if field.name in others:
            continue
        if is_number(field.type):
            chosen.append(field.name)
        elif field.name not in only_filtered:
            raise RowsError(_not_a_number(path, field.name, field.type))
    if not chosen:
        raise RowsError(f"{path} has no column of numbers besides {', '.join(filter(None, others))}.")
    return tuple(chosen)


def check_schema(path: str, schema: Any, needed: Sequence[str]) -> None:
    """Raise a `RowsError` unless every needed column exists, once, and is numeric."""
    for name in needed:
        count = schema.names.count(name)
        if count == 0:
            listed = ", ".join(schema.names[:12]) + (", ..." if len(schema.names) > 12 else "")
            raise RowsError(f"{path} has no column {name!r}. Its columns: {listed}.")
        if count > 1:
            raise RowsError(f"{path} has {count} columns named {name!r}. Rename them, so that each is known.")
        kind = schema.field(name).type
        if not is_number(kind):
            raise RowsError(_not_a_number(path, name, kind))


def _not_a_number(path: str, name: str, kind: Any) -> str:
    return (
        f"{path}: column {name!r} holds {kind} values, not numbers. Choose other columns with columns=, turn it into "
        "numbers first, or use the command line, which encodes text."
    )
