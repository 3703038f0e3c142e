"""Data files as tables: CSV, Parquet, Arrow, databases of DuckDB and SQLite, and queries over them, by DuckDB.

Parquet files are read in place. Everything else is first copied to temporary Parquet files, of which every pass is
quick and has the same rows in the same order. Nothing is fetched from the network, and a query can read the files that
it names, but write nothing.
"""

from __future__ import annotations

import csv
import glob
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from quernel._files import remove_leftovers, temporary_folder
from quernel.data.parquet import (
    PARQUET,
    ColumnFilter,
    ParquetTable,
    any_column,
    cast_batch,
    list_files,
    open_parquet,
    plain_type,
)
from quernel.data.sources import check_stamp, read_stamp
from quernel.tables.csv_files import INFER_TYPES, CsvOptions, copy_csv
from quernel.tables.frames import TableError

# By format, how names of its files end.
FORMATS = {
    "CSV": (".csv", ".tsv", ".txt"),
    "Parquet": PARQUET,
    "Arrow": (".arrow", ".feather", ".ipc"),
    "database": (".duckdb", ".db", ".sqlite", ".sqlite3"),
}
# Compression of CSV files.
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
# How the names of files in a folder end that are read as data.
DATA_ENDINGS = (*FORMATS["CSV"], *FORMATS["Parquet"], *FORMATS["Arrow"], *COMPRESSED)
# DuckDB's memory for a copy or a query; what needs more is spilled to the temporary folder.
MEMORY_LIMIT = "512MB"
# Rows of a row group of a copy, which are one or two blocks of a pass, and of a batch from SQLite.
GROUP_ROWS = 2**17
# Text in single quotes in a query, which may be the name of a file.
LITERAL = re.compile(r"'((?:[^']|'')*)'")


# Finding files


def file_format(path: Path) -> tuple[str, str | None]:
    """Return the format of a file, a key of FORMATS, and its compression: ("CSV", "gzip") for x.csv.gz."""
    endings = ["", "", *(ending.lower() for ending in path.suffixes)]
    compression = COMPRESSED.get(endings[-1])
    ending = endings[-1] if compression is None else endings[-2]
    for name, known in FORMATS.items():
        if ending in known and (compression is None or name == "CSV"):
            return name, compression
    raise TableError(
        f"{path} must end in one of {', '.join(chain(*FORMATS.values()))}, so that its format is known; CSV files may "
        f"be compressed ({', '.join(COMPRESSED)})."
    )


def find_files(data: Path) -> list[Path]:
    """Return the file itself, or all data files of a folder or pattern, sorted by name."""
    found = [Path(path) for path in list_files(str(data), DATA_ENDINGS)]
    if not found:
        where = f"The folder {data} has" if data.is_dir() else f"The pattern {data} finds"
        raise TableError(f"{where} no CSV, Parquet or Arrow files.")
    one, *others = {file_format(path)[0]: path for path in reversed(found)}.values()
    if others:
        raise TableError(
            f"{data} has files of different formats, such as {one} and {others[0]}. Choose some by a pattern."
        )
    return found


def find_query_files(query: str) -> list[Path]:
    """Return the files that a query names, in single quotes, as paths or patterns."""
    found: list[Path] = []
    for literal in LITERAL.findall(query):
        with suppress(OSError, ValueError):  # a name that cannot be one of a file
            found += [Path(path) for path in sorted(glob.glob(literal.replace("''", "'"), recursive=True))]
    return [path for path in dict.fromkeys(found) if path.is_file()]


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
    if query is None and file_format(files[0])[0] == "Parquet":
        yield open_parquet(files, needed=needed)
        return
    stamps = {str(path): read_stamp(str(path)) for path in (*files, *find_query_files(query or ""))}
    remove_leftovers()
    with temporary_folder() as folder:
        copies = Copies(folder, options, needed if query is None else any_column)
        if query is not None:
            copies.copy_query(query, data, files)
        else:
            for path in files:
                copies.copy_file(path)
        for name, stamp in stamps.items():
            check_stamp(name, stamp)
        yield replace(open_parquet([*copies.labels], copies.labels, needed), notes=tuple(copies.notes))


@dataclass(frozen=True, eq=False)
class Copies:
    """Copies of files as Parquet, in a temporary folder."""

    folder: Path
    options: CsvOptions  # how CSV files are read
    needed: ColumnFilter  # whether a column is copied; others are null
    labels: dict[str, str] = field(default_factory=dict)  # by path of a copy, the name of its source in messages
    notes: list[str] = field(default_factory=list)  # sentences for the user

    def copy_file(self, path: Path) -> str:
        """Copy a file that is not Parquet, and return the path of the copy."""
        (form, compression), copy = file_format(path), self._add(path)
        with explain_errors(path, "a database" if form == "database" else form):
            if form == "CSV":
                self.notes.extend(copy_csv(path, compression, self.options, self.needed, partial(self._write, copy)))
            elif form == "Arrow":
                with pa.OSFile(str(path)) as file:
                    self._write(copy, *_open_arrow(file))
            elif _is_sqlite(path):
                self._copy_sqlite(copy, path)
            else:
                self._copy_duckdb(copy, path)
        return copy

    def copy_query(self, query: str, data: Path | None, files: Sequence[Path]) -> None:
        """Copy the rows of a query, over `data` if that is given."""
        query = query.strip().rstrip(";")
        if data is not None and _is_sqlite(files[0]):
            with explain_errors("The query", "SQL"):
                self._copy_sqlite(self._add("The query"), files[0], query)
            return
        _check_select(query)
        database, copies = None, list[str]()
        if data is not None and file_format(files[0])[0] == "database":
            database = files[0]
        elif data is not None:
            copies = [str(path) if file_format(path)[0] == "Parquet" else self.copy_file(path) for path in files]
            open_parquet(copies, self.labels)  # refuses files with different columns
            self.labels.clear()
        with explain_errors("The query", "SQL"):
            self._copy_duckdb(self._add("The query"), database, query, copies)

    def _add(self, path: Path | str) -> str:
        """Return the path of a new copy of what this names."""
        copy = str(self.folder / f"{len(list(self.folder.iterdir())):06}.parquet")
        Path(copy).touch()
        self.labels[copy] = str(path)
        return copy

    def _write(self, copy: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Write batches to a Parquet file; columns that are not needed are null."""
        stored = pa.schema([(one.name, plain_type(one.type) if self.needed(one.name) else pa.null()) for one in schema])
        with pq.ParquetWriter(copy, stored) as writer:
            for batch in batches:
                writer.write_table(cast_batch(batch, stored), row_group_size=GROUP_ROWS)

    def _copy_duckdb(
        self, copy: str, database: Path | None, query: str | None = None, data: Sequence[str] = ()
    ) -> None:
        """Copy the rows of a query over a database, over Parquet files as the table `data`, or over files it names.

        Without a query, copy the only table of the database. DuckDB spills to the temporary folder, installs nothing,
        sees no variables of Python, and reads and writes no other files.
        """
        import duckdb

        settings: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": str(self.folder / "spill"),
        }
        named = find_query_files(query or "")
        paths = [str(way) for path in (*named, *map(Path, data)) for way in (path, path.absolute())]
        folders = [str(self.folder), *{str(path.parent) for path in named}]
        with explain_errors(database or "The query", "a database"):
            engine = duckdb.connect(database or ":memory:", read_only=database is not None, config=settings)
        with closing(engine):
            if data:
                engine.read_parquet(list(data), union_by_name=True).create_view("data")
            if query is None:
                tables = engine.execute("select table_name from duckdb_tables() where not internal").fetchall()
                query = f"select * from {_only_table(database, tables)}"
            rules = (
                "TimeZone = 'UTC'",
                f"allowed_paths = {_quote_list(paths)}",
                f"allowed_directories = {_quote_list(folders)}",
                "enable_external_access = false",
                "lock_configuration = true",
            )
            for rule in rules:
                engine.execute(f"set {rule}")
            engine.execute(f"copy ({query}) to {_quote_text(copy)} (format parquet, row_group_size {GROUP_ROWS})")

    def _copy_sqlite(self, copy: str, path: Path, query: str | None = None) -> None:
        """Copy the rows of a query, or the only table of a SQLite database, by Python's own module.

        A column may have values of any type there: numbers in a column with text are written as text.
        """
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            if query is None:
                tables = database.execute("select name from sqlite_master where type in ('table', 'view')").fetchall()
                query = f"select * from {_only_table(path, tables)}"
            # Part of a SELECT, so that it can be nothing else; the file is opened read-only besides.
            names = [one[0] for one in database.execute(f"select * from ({query}) limit 0").description]
            kinds = ", ".join(f"group_concat(distinct typeof({_quote_name(name)}))" for name in names)
            (found,) = database.execute(f"select {kinds} from ({query})")
            schema = pa.schema([(name, _sqlite_type(of)) for name, of in zip(names, found, strict=True)])
            rows = database.execute(query)
            self._write(
                copy, schema, (_sqlite_batch(some, schema) for some in iter(partial(rows.fetchmany, GROUP_ROWS), []))
            )


def _only_table(path: Path | None, tables: Sequence[tuple[str]]) -> str:
    """Return the quoted name of the only table of a database."""
    if len(tables) != 1:
        listed = f"the tables {', '.join(name for (name,) in tables[:12])}" if tables else "no table"
        raise TableError(f"{path} has {listed}. Choose by --query, such as --query 'select * from NAME'.")
    return _quote_name(tables[0][0])


def _check_select(query: str) -> None:
    """Raise unless the query is one SELECT."""
    import duckdb

    with explain_errors("The query", "SQL"):
        statements = duckdb.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        found = f"{len(statements)} statements" if len(statements) != 1 else statements[0].type.name
        raise TableError(f"--query takes one SELECT, which reads and writes nothing; got {found}.")


# Arrow and SQLite


def _open_arrow(file: pa.NativeFile) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Return schema and batches of an Arrow file, or of a stream."""
    try:
        reader = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        stream = pa.ipc.open_stream(file)
        return stream.schema, stream
    return reader.schema, map(reader.get_batch, range(reader.num_record_batches))


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _sqlite_type(found: str | None) -> pa.DataType:
    """Return the Arrow type of a column from the types of its values in SQLite, joined by commas; None without rows."""
    kinds = {*(found or "null").split(",")} - {"null"}
    if kinds <= {"integer", "real"}:
        return pa.float64() if kinds else pa.null()
    return pa.binary() if kinds == {"blob"} else pa.string()


def _sqlite_batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        [value if value is None or one.type != pa.string() else str(value) for value in column]
        for column, one in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.record_batch([*map(pa.array, columns, schema.types)], schema=schema)


# Errors and SQL


@contextmanager
def explain_errors(path: Path | str, kind: str) -> Iterator[None]:
    """Translate errors of DuckDB, Arrow, SQLite and of text into one line that names the file."""
    import duckdb

    try:
        yield
    except duckdb.PermissionException as error:
        raise TableError(
            f"{path} names a file that does not exist, or not in single quotes: {_first_line(error)}."
        ) from error
    except (duckdb.Error, pa.ArrowException, sqlite3.Error, OSError, EOFError, csv.Error) as error:
        if re.search("Could not write|Error writing|No space left", str(error)):
            raise TableError(
                f"{path} could not be copied for reading: {_first_line(error)}. Name another folder for temporary "
                "files by the environment variable TMPDIR, or convert the data to Parquet yourself."
            ) from error
        raise TableError(f"{path} cannot be read as {kind}: {_first_line(error)}.") from error


def _first_line(error: Exception) -> str:
    """Return the first line of a message, without the name of the class that DuckDB puts before."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^[A-Z][\w ]+ Error: ", "", lines[0]).rstrip(".:")


def _quote_text(text: str) -> str:
    """Quote text for SQL."""
    return "'" + text.replace("'", "''") + "'"


def _quote_name(name: str) -> str:
    """Quote the name of a column or table for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _quote_list(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_quote_text, texts))}]"
