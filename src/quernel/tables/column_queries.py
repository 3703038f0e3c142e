"""Statistics of the columns of Parquet files by queries: what `column_stats.compute_stats` finds of a table in memory.

Nothing is held in memory but the counts of categories and, for a median, the values near it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from quernel._files import temporary_folder
from quernel.tables.column_stats import OPTIONS, ColumnStats, NumberStats, TextStats
from quernel.tables.columns import TEXTS
from quernel.tables.csv_files import quote_list, quote_name
from quernel.tables.files import connect, first_line
from quernel.tables.frames import TableError, label_text
from quernel.tables.missing_values import MISSING_MARKERS, Markers
from quernel.tables.parquet_table import ParquetTable

if TYPE_CHECKING:
    import duckdb

# Seconds of a value v of each kind, and per unit of a duration, which Parquet stores as whole numbers.
SECONDS = {"date": "cast(epoch_us({v}) as double) / 1e6", "time": "cast(epoch_us({v}) as double) / 1e6"}
NANOSECONDS = "cast(epoch_ns({v}) // 1000 as double) / 1e6"
UNITS = {"s": "1", "ms": "1e3", "us": "1e6", "ns": "1e9"}
# Column of the places of rows among all: categories are in the order of their first rows, as in a table in memory.
PLACE = '"place of the row (quernel)"'
# A median is looked for between two quantiles of a sample, of so many rows: 6 standard errors on each side.
SHARE, SAMPLED = 0.01, 100_000


def query_stats(table: ParquetTable, target: str, kinds: Mapping[str, str], markers: Markers) -> dict[str, ColumnStats]:
    """Return the statistics of columns of these kinds, over the rows that have a finite target."""
    paths = list(dict.fromkeys(group.path for group in table.groups))
    condition = f"isfinite(cast({quote_name(target)} as double))"
    files = f"read_parquet({quote_list(paths)}, union_by_name=true)"
    source = f"(select *, file_index * {2**40} + file_row_number as {PLACE} from {files} where {condition})"
    numbers = {
        name: _number(name, kind, table.schema.field(name).type, markers)
        for name, kind in kinds.items()
        if kind not in TEXTS
    }
    found: dict[str, ColumnStats] = {}
    with _explain_errors(table), temporary_folder() as folder, closing(connect(folder)) as connection:
        if numbers:
            found |= _number_stats(connection, source, numbers)
        for name, kind in kinds.items():
            if kind in TEXTS:
                found[name] = _text_stats(connection, source, name, kind, markers)
    return {name: found[name] for name in kinds}


@contextmanager
def _explain_errors(table: ParquetTable) -> Iterator[None]:
    """Find out which file DuckDB could not read, by reading them all again."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        for _ in table.iter_batches(table.schema.names):
            pass
        raise TableError(f"The statistics of columns cannot be computed: {first_line(error)}.") from error


def _number(name: str, kind: str, arrow_type: pa.DataType, markers: Markers) -> str:
    """Return the SQL of a column as numbers, or as seconds."""
    value = quote_name(name)
    if kind in SECONDS:
        fine = pa.types.is_timestamp(arrow_type) and arrow_type.unit == "ns"
        return (NANOSECONDS if fine else SECONDS[kind]).format(v=value)
    value = f"cast({value} as double)"
    if pa.types.is_duration(arrow_type):
        return f"{value} / {UNITS[arrow_type.unit]}"
    if not markers.numbers or kind != "number":
        return value
    return f"case when list_contains({[*markers.numbers]}, {value}) then null else {value} end"


def _number_stats(
    connection: duckdb.DuckDBPyConnection, source: str, numbers: Mapping[str, str]
) -> dict[str, ColumnStats]:
    values = ", ".join(f"{value} as v{i}" for i, value in enumerate(numbers.values()))
    source = f"(select {values} from {source})"
    queries = [
        f"count(*), count(*) filter (isfinite({v})), count(*) filter (isinf({v})), "
        + ", ".join(
            f"{one} filter (isfinite({v}))"
            for one in (
                f"min({v})",
                f"max({v})",
                f"min({v} - 86400 * floor({v} / 86400))",
                f"max({v} - 86400 * floor({v} / 86400))",
                f"bool_and({v} = floor({v}))",
            )
        )
        for v in (f"v{i}" for i in range(len(numbers)))
    ]
    row = connection.execute(f"select {', '.join(queries)} from {source}").fetchall()[0]
    brackets = [
        f"quantile_disc(v{i}, [{0.5 - SHARE}, {0.5 + SHARE}]) filter (isfinite(v{i}))" for i in range(len(numbers))
    ]
    sample = f"(from {source} using sample {SAMPLED} rows)"
    bracket = connection.execute(f"select {', '.join(brackets)} from {sample}").fetchall()[0]
    found: dict[str, ColumnStats] = {}
    for i, name in enumerate(numbers):
        n_rows, n_finite, n_infinite, low, high, earliest, latest, whole = row[8 * i : 8 * i + 8]
        counts = n_rows, n_rows - n_finite - n_infinite, n_finite, n_infinite
        if not n_finite:
            found[name] = NumberStats(*counts)
            continue
        middle = _median(connection, source, f"v{i}", n_finite, bracket[i] or [low, high])
        distinct = n_finite > 1 and whole and high - low >= n_finite - 1
        if distinct:
            query = f"select count(distinct v{i}) from {source} where isfinite(v{i})"
            distinct = connection.execute(query).fetchall()[0][0] == n_finite
        found[name] = NumberStats(*counts, low, high, earliest, latest, middle, bool(distinct))
    return found


def _median(connection: duckdb.DuckDBPyConnection, source: str, v: str, n: int, bracket: Sequence[float]) -> float:
    """Return the exact median, as NumPy's, of n finite values, sought between two values near it."""
    low, high = bracket
    query = (
        f"select count(*) filter ({v} < $1), count(*) filter ({v} = $1), count(*) filter ({v} = $2), "
        f"list({v}) filter ({v} > $1 and {v} < $2) from {source} where isfinite({v})"
    )
    below, at_low, at_high, between = connection.execute(query, [low, high]).fetchall()[0]
    inner = np.sort(np.array(between or [], dtype=float))
    first, last = below, below + at_low + len(inner) + (at_high if high > low else 0)
    middle = (n - 1) // 2, n // 2
    if middle[0] < first or middle[1] >= last:  # the bracket was an estimate
        query = f"select quantile_disc({v}, 0.5), -quantile_disc(-{v}, 0.5) from {source} where isfinite({v})"
        one, other = connection.execute(query).fetchall()[0]
        return float(np.mean([one, other]))
    places = [k - below - at_low for k in middle]
    ends = [low if k < 0 else inner[k] if k < len(inner) else high for k in places]
    return float(np.mean(ends))


def _text_stats(
    connection: duckdb.DuckDBPyConnection, source: str, name: str, kind: str, markers: Markers
) -> TextStats:
    """Count the values of a column; None instead of counts if there are too many."""
    query = f"select {quote_name(name)} as value, count(*) as n from {source} group by value order by min({PLACE})"
    size = connection.execute(f"select count(*), sum(n), sum(n) filter (value is null) from ({query})").fetchall()[0]
    n_distinct, n_rows, n_null = size[0], int(size[1] or 0), int(size[2] or 0)
    if n_distinct > OPTIONS.max_distinct + 1:
        return TextStats(n_rows, n_null, n_null, None, kind)
    counts: Counter[str] = Counter()
    for value, n in connection.execute(query).fetchall():
        if _is_missing(value):
            n_null += n if value is not None else 0
        else:
            counts[label_text(value)] += n
    given = markers.texts.difference(MISSING_MARKERS)  # the user's: never categories
    n_missing = n_null + sum(counts.pop(text, 0) for text in ("", *given))
    return TextStats(n_rows, n_null, n_missing, dict(counts), kind)


def _is_missing(value: Any) -> bool:
    return value is None or value != value
