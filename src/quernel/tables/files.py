"""Data files as tables: CSV, Parquet, Arrow, databases of DuckDB and SQLite, and queries over them, by DuckDB.

Parquet files are read in place. Everything else is first copied to temporary Parquet files, of which every pass is
quick and has the same rows in the same order. Nothing is fetched from the network, and a query can read the files that
it names, but write nothing.
"""

from __future__ import annotations

import csv
import glob
import io
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from quernel._files import remove_leftovers, temporary_folder
from quernel._machine import as_size
from quernel.data.parquet import list_files
from quernel.data.sources import check_stamp, read_stamp
from quernel.tables import formats
from quernel.tables.formats import (
    INFER_TYPES,
    ColumnFilter,
    CsvOptions,
    ParquetTable,
    any_column,
    open_csv,
    open_parquet,
    quote_list,
    quote_name,
    quote_text,
    without_view,
)
from quernel.tables.frames import TableError

if TYPE_CHECKING:
    import duckdb

CSV = (".csv", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
DATABASE = (".duckdb", ".db", ".sqlite", ".sqlite3")
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
# Estimated ratio of a compressed file's content to its size.
COMPRESSION_RATIO = 6
# DuckDB's memory for a copy or a query; what needs more is spilled to the temporary folder.
MEMORY_LIMIT = "512MB"
# Rows of a row group of a copy, which are one or two blocks of a pass, and of a batch from SQLite.
GROUP_ROWS = 2**17
# DuckDB's messages on a line of a CSV file, and on its number of fields.
CSV_LINE = re.compile(r"CSV Error on Line: (\d+)")
FIELDS = re.compile(r"Expected Number of Columns: (\d+) Found: (\d+)")
# End of the name of a type that copies cannot store.
NOT_STORED = " (not stored)"
# Text in single quotes in a query, which may be the name of a file.
LITERAL = re.compile(r"'((?:[^']|'')*)'")


# Finding files


def split_extension(path: Path) -> tuple[str, str | None]:
    """Return the extension, which determines the format, and the compression: ('.csv', 'gzip') for x.csv.gz."""
    endings = [ending.lower() for ending in path.suffixes]
    compression = COMPRESSED.get(endings[-1]) if endings else None
    last = (endings[-2] if len(endings) > 1 else "") if compression else (endings[-1] if endings else "")
    if last not in (CSV if compression else (*CSV, *PARQUET, *ARROW, *DATABASE)):
        known = ", ".join((*CSV, *PARQUET, *ARROW, *DATABASE))
        raise TableError(
            f"{path} must end in one of {known}, so that its format is known; CSV files may be compressed "
            f"({', '.join(COMPRESSED)})."
        )
    return last, compression


def file_format(path: Path) -> tuple[str, ...]:
    """Return the extensions of the format of a file: CSV, PARQUET, ARROW or DATABASE."""
    ending, _ = split_extension(path)
    return next(endings for endings in (CSV, PARQUET, ARROW, DATABASE) if ending in endings)


def find_files(data: Path) -> list[Path]:
    """Return the file itself, or all data files of a folder or pattern, sorted by name."""
    found = [Path(path) for path in list_files(str(data), is_data_file)]
    if not found:
        raise TableError(
            f"The folder {data} has no CSV, Parquet or Arrow files."
            if data.is_dir()
            else f"No file was found for the pattern {data}."
        )
    formats = {file_format(path): path for path in reversed(found)} if len(found) > 1 else {}
    if len(formats) > 1:
        one, other, *_ = formats.values()
        raise TableError(f"{data} has files of different formats, such as {one} and {other}. Choose some by a pattern.")
    return found


def is_data_file(path: Path) -> bool:
    """Whether a file in a folder is read as data; names that begin with . or _ belong to the programs that write it."""
    known = (*CSV, *PARQUET, *ARROW, *COMPRESSED)
    return path.suffix.lower() in known and not path.name.startswith((".", "_"))


def find_query_files(query: str) -> list[Path]:
    """Return the files that a query names, in single quotes, as paths or patterns."""
    found: list[Path] = []
    for literal in LITERAL.findall(query):
        with suppress(OSError, ValueError):  # a name that cannot be one of a file
            found += [Path(path) for path in sorted(glob.glob(literal.replace("''", "'"), recursive=True))]
    return [path for path in dict.fromkeys(found) if path.is_file()]


def estimate_bytes(path: Path) -> int:
    """Return the size of a file or, if it is compressed, an estimate of its uncompressed size."""
    size = path.stat().st_size
    return size if split_extension(path)[1] is None else COMPRESSION_RATIO * size


# Opening tables


@contextmanager
def open_table(
    data: Path | None,
    *,
    query: str | None = None,
    options: CsvOptions = INFER_TYPES,
    needed: ColumnFilter = any_column,
) -> Iterator[ParquetTable]:
    """Yield the table of a file, a folder, a pattern, or a query, valid within the context.

    Parameters
    ----------
    data : Path or None
        None if the query names its files itself; otherwise it is called `data` in the query, and the tables of a
        database by their own names.
    query : str or None
        One SELECT in the SQL of DuckDB, or of SQLite if `data` is a database of that.
    options : CsvOptions
        How CSV files are read.
    needed : callable
        Whether a column is used; several files may differ in others.
    """
    files = [] if data is None else find_files(data)
    for path in files:
        if not path.is_file():
            raise TableError(f"{path} is not a file. Give a CSV, Parquet or Arrow file, a database, or a folder.")
    if query is None and files and all(file_format(path) == PARQUET for path in files):
        yield open_parquet(files, needed=needed)
        return
    stamps = {str(path): read_stamp(str(path)) for path in (*files, *find_query_files(query or ""))}
    remove_leftovers()
    with temporary_folder() as folder, closing(connect(folder)) as connection:
        _check_disk([Path(path) for path in stamps], folder)
        copies = Copies(connection, folder, options, needed if query is None else any_column)
        if query is not None:
            copies.copy_query(query, data, files, needed)
        else:
            for path in files:
                copies.copy_file(path)
        for name, stamp in stamps.items():
            check_stamp(name, stamp)
        table = open_parquet([Path(copy) for copy in copies.labels], copies.labels, needed)
        yield replace(table, notes=tuple(copies.notes))


def read_table(data: Path, options: CsvOptions = INFER_TYPES, needed: ColumnFilter = any_column) -> pa.Table:
    """Read all rows of a file, a folder or a pattern."""
    with open_table(data, options=options, needed=needed) as table:
        return table.read()


def connect(folder: Path) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that spills to a folder, installs nothing and sees no variables of Python."""
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": str(folder / "spill"),
    }
    connection = duckdb.connect(config=settings)
    connection.execute("set TimeZone = 'UTC'")
    return connection


@dataclass(frozen=True, eq=False)
class Copies:
    """Copies of files as Parquet, in a temporary folder.

    Attributes
    ----------
    connection : DuckDB
    folder : where the copies are
    options : how CSV files are read
    needed : whether a column of a CSV file is read
    labels : by path of a copy, the name of its source in messages
    notes : sentences for the user
    """

    connection: duckdb.DuckDBPyConnection
    folder: Path
    options: CsvOptions
    needed: ColumnFilter
    labels: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def copy_file(self, path: Path) -> Path:
        """Copy a file that is not Parquet, and return the copy."""
        form = file_format(path)
        if form == CSV:
            with explain_errors(path, "CSV"):
                return self._copy_csv(path)
        if form == ARROW:
            return self._copy_arrow(path)
        if _is_sqlite(path):
            return self._copy_sqlite(path, None)
        with explain_errors(path, "a database"):
            self._attach(path)
            tables = self.connection.execute("select table_name from duckdb_tables() where not internal").fetchall()
            name = _only_table(path, [name for (name,) in tables])
            return self._copy(f"select * from {quote_name(name)}", path)

    def copy_query(self, query: str, data: Path | None, files: Sequence[Path], needed: ColumnFilter) -> None:
        """Copy the rows of a query, over `data` if that is given."""
        if data is not None and _is_sqlite(files[0]):
            self._copy_sqlite(files[0], query)
            return
        _check_select(query)
        if data is not None and file_format(files[0]) == DATABASE:
            with explain_errors(data, "a database"):
                self._attach(files[0])
        elif data is not None:
            self._create_view(files, needed)
        named = find_query_files(query)
        paths = [*map(str, named), *(str(path.absolute()) for path in (*named, *files))]
        with explain_errors("The query", "SQL"):
            for setting in (
                f"allowed_paths = {quote_list(paths)}",
                f"allowed_directories = {quote_list([str(self.folder), *{str(path.parent) for path in named}])}",
                "enable_external_access = false",
                "lock_configuration = true",
            ):
                self.connection.execute(f"set {setting}")
            self._copy(query.strip().rstrip(";"), "The query")

    def _create_view(self, files: Sequence[Path], needed: ColumnFilter) -> None:
        """Let queries read files by the name `data`."""
        copies = [path if file_format(path) == PARQUET else self.copy_file(path) for path in files]
        open_parquet(copies, self.labels, needed)  # refuses files with different columns
        self.labels.clear()
        paths = quote_list([*map(str, copies)])
        self.connection.execute(f"create view data as select * from read_parquet({paths}, union_by_name=true)")

    def _add(self, path: Path | str) -> Path:
        """Return the name of a new copy of what this names."""
        copy = self.folder / f"{len(self.labels):06}.parquet"
        self.labels[str(copy)] = str(path)
        return copy

    def _copy(self, query: str, path: Path | str) -> Path:
        copy = self._add(path)
        target = f"{quote_text(str(copy))} (format parquet, row_group_size {GROUP_ROWS})"
        self.connection.execute(f"copy ({query}) to {target}")
        return copy

    def _attach(self, path: Path) -> None:
        self.connection.execute(f"attach {quote_text(str(path))} as source (read_only)")
        self.connection.execute("use source")

    def _copy_csv(self, path: Path) -> Path:
        """Copy a CSV file, with types inferred from its first rows or, if others do not fit these, from all."""
        import duckdb

        file, notes = open_csv(path, split_extension(path)[1], self.folder, self.options)
        self.notes.extend(notes)
        types = file.infer_types(self.connection, self.needed, formats.SNIFFED_ROWS)
        if "NULL" not in types.values():
            with suppress(duckdb.ConversionException):
                return self._copy(file.select(types), path)
            self.labels.popitem()
        return self._copy(file.select(file.infer_types(self.connection, self.needed, None)), path)

    def _copy_arrow(self, path: Path) -> Path:
        copy = self._add(path)
        with explain_errors(path, "Arrow"), pa.OSFile(str(path)) as file:
            try:
                reader = pa.ipc.open_file(file)
                pieces: Iterator[pa.RecordBatch] = map(reader.get_batch, range(reader.num_record_batches))
            except pa.ArrowInvalid:
                file.seek(0)
                reader = pa.ipc.open_stream(file)
                pieces = iter(reader)
            _write_parquet(copy, reader.schema, pieces)
        return copy

    def _copy_sqlite(self, path: Path, query: str | None) -> Path:
        """Copy the only table of a SQLite database, or the rows of a query, by Python's own module."""
        copy = self._add(path)
        with (
            explain_errors(path if query is None else "The query", "a database" if query is None else "SQL"),
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database,
        ):
            if query is None:
                tables = database.execute("select name from sqlite_master where type in ('table', 'view')").fetchall()
                query = f"select * from {quote_name(_only_table(path, [name for (name,) in tables]))}"
            database.set_authorizer(_allow_reading)
            query = query.strip().rstrip(";")
            names = [one[0] for one in database.execute(f"select * from ({query}) limit 0").description]
            schema = pa.schema([(name, _sqlite_type(database, query, name)) for name in names])
            _write_parquet(copy, schema, _sqlite_batches(database, query, schema))
        return copy


def _only_table(path: Path, tables: Sequence[str]) -> str:
    """Return the name of the only table of a database."""
    if len(tables) != 1:
        listed = f"the tables {', '.join(tables[:12])}" if tables else "no table"
        raise TableError(f"{path} has {listed}. Choose by --query, such as --query 'select * from NAME'.")
    return tables[0]


def _check_select(query: str) -> None:
    """Raise unless the query is one SELECT."""
    import duckdb

    with explain_errors("The query", "SQL"):
        statements = duckdb.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        found = f"{len(statements)} statements" if len(statements) != 1 else statements[0].type.name
        raise TableError(f"--query takes one SELECT, which reads and writes nothing; got {found}.")


# Arrow and SQLite


def _write_parquet(copy: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Write batches to a Parquet file; columns of a type that it cannot store become a placeholder."""
    stored = pa.schema([one.with_type(_parquet_type(without_view(one.type))) for one in schema])
    with pq.ParquetWriter(str(copy), stored) as writer:
        for batch in batches:
            columns = [
                column if column.type == one.type else pa.nulls(len(batch), one.type)
                for column, one in zip(map(_plain_text, batch.columns), stored, strict=True)
            ]
            writer.write_table(pa.table(columns, schema=stored), row_group_size=GROUP_ROWS)


def _plain_text(column: pa.Array) -> pa.Array:
    """Return a column without views; Arrow does not cast dictionaries of them."""
    kind = without_view(column.type)
    if kind == column.type:
        return column
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(kind.value_type))
    return column.cast(kind)


def _parquet_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type or, if Parquet cannot store it, a placeholder of its name, whose values are null."""
    try:
        pq.ParquetWriter(io.BytesIO(), pa.schema([pa.field("x", arrow_type)])).close()
    except pa.ArrowNotImplementedError:
        return pa.struct([pa.field(f"{arrow_type}{NOT_STORED}", pa.bool_())])
    return arrow_type


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _allow_reading(action: int, *_: Any) -> int:
    """Let SQLite do nothing but read."""
    reading = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    return sqlite3.SQLITE_OK if action in reading else sqlite3.SQLITE_DENY


def _sqlite_type(database: sqlite3.Connection, query: str, name: str) -> pa.DataType:
    """Return the Arrow type of a column, whose values may have any type in SQLite."""
    column = quote_name(name)
    found = {kind for (kind,) in database.execute(f"select distinct typeof({column}) from ({query})")} - {"null"}
    if not found:
        return pa.null()
    if found <= {"integer", "real"}:
        return pa.int64() if found == {"integer"} else pa.float64()
    return pa.binary() if found == {"blob"} else pa.string()


def _sqlite_batches(database: sqlite3.Connection, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query; numbers in a column of text are written as text."""
    rows = database.execute(query)
    while found := rows.fetchmany(GROUP_ROWS):
        columns = [list(column) for column in zip(*found, strict=True)]
        for column, one in zip(columns, schema, strict=True):
            if one.type == pa.string():
                column[:] = [None if value is None else str(value) for value in column]
        arrays = [pa.array(column, one.type) for column, one in zip(columns, schema, strict=True)]
        yield pa.record_batch(arrays, schema=schema)


# Errors


@contextmanager
def explain_errors(path: Path | str, kind: str) -> Iterator[None]:
    """Translate errors of DuckDB, Arrow, SQLite and of text into one line that names the file."""
    import duckdb

    try:
        yield
    except duckdb.PermissionException as error:
        raise TableError(
            f"{path} names a file that does not exist, or not in single quotes: {first_line(error)}."
        ) from error
    except (duckdb.Error, pa.ArrowException, sqlite3.Error, OSError, EOFError, csv.Error) as error:
        if "Could not write" in str(error):
            raise TableError(
                f"{path} could not be copied for reading: {first_line(error)}. Name another folder for temporary "
                "files by the environment variable TMPDIR, or convert the data to Parquet yourself."
            ) from error
        line, fields = CSV_LINE.search(str(error)), FIELDS.search(str(error))
        if line is not None:
            what = f"{fields[2]} fields, but the header has {fields[1]}" if fields else "a quote that does not end"
            raise TableError(f"{path} cannot be read as {kind}: line {int(line[1]):,} has {what}.") from error
        raise TableError(f"{path} cannot be read as {kind}: {first_line(error)}.") from error


def first_line(error: Exception) -> str:
    """Return the first line of a message, without the name of the class that DuckDB puts before."""
    inner = re.search(r'"exception_message":"(.*?)","', str(error))  # of a write in another thread
    text = inner[1].replace('\\"', "'") if inner else str(error)
    lines = text.strip().splitlines() or [type(error).__name__]
    return re.sub(r"^[A-Z][\w ]+ Error: ", "", lines[0]).rstrip(".:")


def _check_disk(files: Sequence[Path], folder: Path) -> None:
    needed, free = sum(map(estimate_bytes, files)), shutil.disk_usage(folder).free
    if needed > free:
        raise TableError(
            f"{files[0]} is copied to Parquet before it is read, which may take {as_size(needed)}; the folder for "
            f"temporary files, {tempfile.gettempdir()}, has {as_size(free)}. Name a larger one by the environment "
            "variable TMPDIR, or convert the files to Parquet yourself."
        )
