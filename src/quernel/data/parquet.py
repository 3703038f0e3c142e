"""Raw rows in Parquet files, read row group by row group."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data.feature_cache import check_policy
from quernel.data.parquet_files import Footer, check_schema, complaints, find, footer, inputs, opened
from quernel.data.prefetch import read_ahead
from quernel.data.sources import Array, Piece, RowsError, checked, cut


def expression(filters: Any) -> Any:
    """A pyarrow expression, from one or from (lists of) lists of (column, operator, value)."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if filters is None or isinstance(filters, pc.Expression):
        return filters
    try:
        return pq.filters_to_expression(filters)
    except Exception as error:  # whatever it stumbles over: the filters are not of that form
        raise RowsError(
            "filters must be a pyarrow expression or a list of (column, operator, value), such as "
            f"[('year', '>=', 2020)]; got {filters!r}: {error}"
        ) from error


def mentioned(kept: Any, names: Sequence[str]) -> tuple[str, ...]:
    """The names that stand in an expression; perhaps also one that only looks like a part of it, which does no harm."""
    text = str(kept)
    return tuple(name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text))


def keep(table: Any, kept: Any) -> Any:
    """The rows for which the expression is true, in their order (`Table.filter` would start threads)."""
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    chosen = acero.Declaration("filter", acero.FilterNodeOptions(kept))
    return acero.Declaration.from_sequence([source, chosen]).to_table(use_threads=False)


# Rows whose columns are put side by side at a time: small enough to stay in cache meanwhile.
STRIP = 2048
# A column that is added to rows before they are filtered: their numbers in the file.
NUMBER = "number of the row (quernel)"


@dataclass(frozen=True)
class Group:
    """A row group: its file and number there, its first row in the file, its rows, and how many of them are kept."""

    file: int
    number: int
    first_row: int
    n_rows: int
    kept: int
    blocks: range = range(0)


class ParquetRows:
    """Rows of Parquet files, which may be larger than memory.

    Files, columns and numbers of rows are looked at when this is made; rows are read when they are streamed, and
    checked then. Files without rows are passed over. Bytes that were replaced by others are noticed for certain only in
    files that have page checksums; pyarrow writes them with write_page_checksum=True.

    Parameters
    ----------
    paths : path, pattern such as "trips/*.parquet", folder, list of paths, or pyarrow dataset
    target : str
        The column to predict.
    columns : sequence of str or None
        The inputs, in this order. None takes all columns but target and weight, and wants them to hold numbers; columns
        of another kind that `filters` name are left out. Integers and truth values become floats.
    weight : str or None
        The column of row weights; None for equal weights.
    filters : pyarrow expression, list of (column, operator, value), list of such lists, or None
        Which rows to keep; a list of lists is an "or" of "and"s. Kept rows are counted when this is made, in one pass
        over the columns that the filters name.
    cache : "auto", "recompute", "memory", "disk", or a folder, default="auto"
        Whether a fit that streams these rows keeps their features after the first sweep: see docs/scale.md.
        "recompute" never; "memory" or "disk" (the temporary folder, or the one that is named) always, or there is an
        error; "auto" in memory if half of `max_memory` holds them, on disk if that pays, and not otherwise. They are
        of the estimator's `dtype`: float64 are the very numbers, so that the fit is the same; float32 take half. They
        are gone when the fit ends.
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
        _check_names(columns, target, weight)
        self.cache = check_policy(cache)
        self.target, self.weight, self._filter = target, weight, expression(filters)
        self._found = find(paths)
        footers = [footer(path, self._found.filesystem) for path in self.files]
        self._filtered_by = () if filters is None else mentioned(self._filter, footers[0].schema.names)
        self.names = self._inputs(0, footers[0]) if columns is None else tuple(columns)
        self.n_columns, self.weighted = len(self.names), weight is not None
        for i, one in enumerate(footers):
            self._check(i, one, all_columns=columns is None)
        groups = [group for i, one in enumerate(footers) for group in _groups(i, one.sizes)]
        self._groups, self.spans = _cut(groups if filters is None else self._counted(groups), self.n_columns)
        if not self.spans:
            kept = "that the filters keep " if filters is not None else ""
            raise RowsError(f"There are no rows {kept}in {self._files_in_words()}.")
        self.n_rows = self.spans[-1].stop

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the files, in the order in which they are read."""
        return self._found.paths

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """These blocks in order, read ahead in a thread; X=False reads target and weight only.

        Parquet cannot be entered in the middle of a row group: a stream that begins there reads what comes before, too.
        """
        return read_ahead(self._pieces(blocks, X))

    def place(self, k: int) -> str:
        """Where block k comes from, for messages."""
        return self._place(self._groups[bisect_right(self._groups, k, key=lambda group: group.blocks.start) - 1])

    def __repr__(self) -> str:
        return f"ParquetRows({self._files_in_words()}: {self.n_rows:,} rows x {self.n_columns} columns)"

    def _files_in_words(self) -> str:
        return self.files[0] + (f" and {len(self.files) - 1} more files" if len(self.files) > 1 else "")

    def _place(self, group: Group) -> str:
        return f"{self.files[group.file]}, row group {group.number}"

    # Before any row is read

    def _inputs(self, i: int, of: Footer) -> tuple[str, ...]:
        """The columns of a file that are neither target nor weight."""
        if self._found.from_folders:
            raise RowsError(
                f"The dataset has columns that are known from the names of folders only, which are not read: "
                f"{', '.join(self._found.from_folders)}. Choose the inputs with columns=."
            )
        return inputs(self.files[i], of.schema, (self.target, self.weight), self._filtered_by)

    def _check(self, i: int, of: Footer, all_columns: bool) -> None:
        """A file must have the columns that are read and, if all are read, no others."""
        path = self.files[i]
        check_schema(path, of.schema, self._needed(X=True))
        if all_columns and (more := set(self._inputs(i, of)) - set(self.names)):
            raise RowsError(
                f"{path} has a column {min(more)!r}, unlike {self.files[0]}. Choose the inputs with columns=."
            )
        if self._filter is not None:
            with complaints(f"{path} with the filters {self._filter}", remedy="Are their names and types right?"):
                keep(of.schema.empty_table(), self._filter)

    def _counted(self, groups: list[Group]) -> Iterator[Group]:
        """The groups with the numbers of their rows that the filters keep."""
        for group, tables in self._read(groups, ()):
            yield replace(group, kept=sum(len(table) for table in tables))

    # Reading

    def _needed(self, X: bool) -> list[str]:
        return [*(self.names if X else ()), self.target, *([] if self.weight is None else [self.weight])]

    def _pieces(self, blocks: range, X: bool) -> Generator[Piece, None, None]:
        wanted = [group for group in self._groups if any(k in blocks for k in group.blocks)]
        for group, tables in self._read(wanted, self._needed(X)):
            spans = [self.spans[k] for k in group.blocks if k <= blocks[-1]]
            row = group.first_row
            for k, table in zip(group.blocks, self._cut_anew(tables, spans, group), strict=False):
                if k in blocks:
                    yield self._piece(table, group, row, X)
                row += len(table)

    def _read(self, groups: Sequence[Group], needed: Sequence[str]) -> Iterator[tuple[Group, Iterator[Any]]]:
        """Each group with its kept rows, as Arrow tables of whatever length."""
        for i, some in groupby(groups, key=lambda group: group.file):
            with opened(self.files[i], self._found.filesystem) as file:
                for group in some:
                    yield group, self._tables(file, group, needed)

    def _tables(self, file: Any, group: Group, needed: Sequence[str]) -> Iterator[Any]:
        import pyarrow as pa

        columns = list(dict.fromkeys([*needed, *self._filtered_by]))
        size, row = cut(group.n_rows, self.n_columns)[0].stop, group.first_row
        with complaints(self._place(group)):
            there = file.metadata
            if group.number >= there.num_row_groups or there.row_group(group.number).num_rows != group.n_rows:
                raise self._changed(group)
            batches = file.iter_batches(size, [group.number], columns, use_threads=False)
        while True:
            with complaints(self._place(group)):
                batch = next(batches, None)
                if batch is None:
                    return
                table = pa.Table.from_batches([batch])
                if self._filter is not None:
                    numbers = pa.array(np.arange(row, row + len(table)))
                    table = keep(table.append_column(NUMBER, numbers), self._filter)
            yield table
            row += batch.num_rows

    def _cut_anew(self, tables: Iterator[Any], spans: Sequence[slice], group: Group) -> Iterator[Any]:
        """The same rows as tables of the lengths of these spans."""
        import pyarrow as pa

        held: list[Any] = []
        for span in spans:
            size = span.stop - span.start
            while sum(map(len, held)) < size:
                table = next(tables, None)
                if table is None:
                    raise self._changed(group)
                held.append(table)
            together = pa.concat_tables(held)
            held = [together.slice(size)]
            yield together.slice(0, size)

    def _piece(self, table: Any, group: Group, first_row: int, X: bool) -> Piece:
        """The numbers of a table, checked."""

        def where(row: int) -> str:
            number = first_row + row if self._filter is None else table.column(NUMBER)[row].as_py()
            return f"{self._place(group)}, row {number:,} of the file (counted from 0)"

        weight = None if self.weight is None else _side_by_side(table, [self.weight])[:, 0]
        inputs = _side_by_side(table, self.names) if X else None
        piece = Piece(inputs, _side_by_side(table, [self.target])[:, 0], weight)
        return checked(piece, [f"column {name!r}" for name in (*self.names, self.target, self.weight)], where)

    def _changed(self, group: Group) -> RowsError:
        return RowsError(f"{self._place(group)} has other rows than before: the file was changed while it was in use.")


def _check_names(columns: Sequence[str] | None, target: str, weight: str | None) -> None:
    if isinstance(columns, str) or (columns is not None and len(columns) == 0):
        raise RowsError(f"columns must be a list of names, or None for all columns; got {columns!r}.")
    named = [*(columns if columns is not None else ()), target, *([] if weight is None else [weight])]
    for name in named:
        if not isinstance(name, str):
            raise RowsError(f"Columns are known by their names; got {name!r}.")
        if named.count(name) > 1:
            raise RowsError(f"Column {name!r} is named twice among columns, target and weight.")


def _groups(file: int, sizes: Sequence[int]) -> Iterator[Group]:
    """The row groups of a file with these numbers of rows, without empty ones."""
    first_row = 0
    for number, size in enumerate(sizes):
        if size:
            yield Group(file, number, first_row, size, size)
        first_row += size


def _cut(groups: Iterator[Group] | list[Group], n_columns: int) -> tuple[list[Group], list[slice]]:
    """The groups that have rows, with their blocks, and the spans of all blocks."""
    cut_up: list[Group] = []
    spans: list[slice] = []
    start = 0
    for group in groups:
        if group.kept:
            parts = cut(group.kept, n_columns)
            cut_up.append(replace(group, blocks=range(len(spans), len(spans) + len(parts))))
            spans += [slice(start + part.start, start + part.stop) for part in parts]
            start += group.kept
    return cut_up, spans


def _side_by_side(table: Any, names: Sequence[str]) -> Array:
    """Columns of a table as a float64 array in C order; what is missing becomes NaN."""
    out = np.empty((len(table), len(names)))
    values = [_floats(table.column(name)) for name in names]
    for start in range(0, len(table), STRIP):
        strip = slice(start, start + STRIP)
        for j, column in enumerate(values):
            out[strip, j] = column[strip]
    return out


def _floats(column: Any) -> NDArray[Any]:
    """The numbers of a column, by way of bytes where they are truth values, which cannot be missing in numpy."""
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    return column.to_numpy()
