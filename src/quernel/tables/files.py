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
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import duckdb
import pyarrow as pa

from quernel._files import remove_leftovers, temporary_folder
from quernel.data import parquet
from quernel.data.parquet import GROUP_ROWS, ColumnFilter, ParquetTable, any_column, list_files, open_parquet
from quernel.data.sources import check_stamp, read_stamp
from quernel.tables.csv_files import INFER_TYPES, CsvOptions, copy_csv
from quernel.tables.frames import TableError

# By format, how names of its files end.
FORMATS = {
    "CSV": (".csv", ".tsv", ".txt"),
    "Parquet": parquet.PARQUET,
    "Arrow": (".arrow", ".feather", ".ipc"),
    "database": (".duckdb", ".db", ".sqlite", ".sqlite3"),
}
# Compression of CSV files.
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
# How the names of files in a folder end that are read as data.
DATA_ENDINGS = (*FORMATS["CSV"], *FORMATS["Parquet"], *FORMATS["Arrow"], *COMPRESSED)
# DuckDB's memory for a copy or a query; what needs more is spilled to the temporary folder.
MEMORY_LIMIT = "512MB"
# Types of columns of SQLite, as they are copied.
ARROW_TYPES = {"real": pa.float64(), "text": pa.string(), "blob": pa.binary()}
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
    names = [literal.replace("''", "'") for literal in LITERAL.findall(query)]
    found = dict.fromkeys(path for name in names for path in sorted(glob.glob(name, recursive=True)))
    return [path for path in map(Path, found) if path.is_file()]


# Opening tables


@contextmanager
def open_table(
    data: Path | None, *, query: str | None = None, options: CsvOptions = INFER_TYPES, needed: ColumnFilter = any_column
) -> Iterator[ParquetTable]:
    """Yield the table of a file, a folder, a pattern, or a query, valid within the context.

    The query is one SELECT in the SQL of DuckDB, or of SQLite if `data` is a database of that. It names its files
    itself if `data` is None; otherwise `data` has that name, and the tables of a database have their own. `options` say
    how CSV files are read, and `needed` which columns are used; several files may differ in others.
    """
    files = [] if data is None else find_files(data)
    for path in files:
        if not path.is_file():
            raise TableError(f"{path} is not a file. Give a CSV, Parquet or Arrow file, a database, or a folder.")
    form = file_format(files[0])[0] if files else None
    if form == "Parquet" and query is None:
        yield open_parquet(files, needed=needed)
        return
    stamps = {str(path): read_stamp(str(path)) for path in (*files, *find_query_files(query or ""))}
    remove_leftovers()
    with temporary_folder() as folder:
        names, notes = dict[str, str](), list[str]()  # by path of a copy, the name of its source in messages
        for number, path in enumerate(files):
            copy = path if form == "Parquet" else folder / f"{number:06}.parquet"
            names[str(copy)] = str(path)
            if form == "database":
                copy_database(copy, path, query)
            elif form != "Parquet":
                notes += copy_file(copy, path, options, needed if query is None else any_column)
        if query is not None and form != "database":
            if names:
                open_parquet([*names], names)  # refuses files with different columns
            copy_query(folder / "query.parquet", query, data=[*names])
            names = {str(folder / "query.parquet"): "The query"}
        for name, stamp in stamps.items():
            check_stamp(name, stamp)
        yield replace(open_parquet([*names], names, needed), notes=tuple(notes))


def copy_file(copy: Path, path: Path, options: CsvOptions, needed: ColumnFilter) -> list[str]:
    """Copy a CSV or Arrow file; columns that are not needed are null. Returns sentences for the user."""
    form, compression = file_format(path)
    write = partial(parquet.write_parquet, copy, needed)
    with explain_errors(path, form):
        if form == "CSV":
            return copy_csv(path, compression, options, needed, write)
        with pa.OSFile(str(path)) as file:
            is_file = file.read(6) == b"ARROW1"  # not a stream
            file.seek(0)
            reader = pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
            write(reader.schema, map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader)
        return []


# Databases and queries


def copy_database(copy: Path, path: Path, query: str | None) -> None:
    """Copy the only table of a database, or the rows of a query over it."""
    with path.open("rb") as file:
        is_sqlite = file.read(16) == b"SQLite format 3\0"
    if not is_sqlite:
        copy_query(copy, query, path)
        return
    with (
        explain_errors(path, "a database", query),
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database,
    ):
        if query is None:
            tables = database.execute("select name from sqlite_master where type in ('table', 'view')").fetchall()
            query = _select_only_table(path, tables)
        # Part of a SELECT, so that it can be nothing else; the file is opened read-only besides.
        query = f"({query.strip().rstrip(';')})"
        names = [one[0] for one in database.execute(f"select * from {query} limit 0").description]
        quoted = [_quote_name(name) for name in names]
        kinds = ", ".join(f"group_concat(distinct typeof({name}))" for name in quoted)
        (found,) = database.execute(f"select {kinds} from {query}")
        # A column may have values of any type there: numbers in a column with text are read as text.
        types = [next((one for one in ("blob", "text") if one in (kind or "")), "real") for kind in found]
        values = ", ".join(f"cast({name} as {kind})" for name, kind in zip(quoted, types, strict=True))
        rows = database.execute(f"select {values} from {query}")
        schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in zip(names, types, strict=True)])
        batches = (
            pa.record_batch([*map(pa.array, zip(*some, strict=True), schema.types)], schema=schema)
            for some in iter(partial(rows.fetchmany, GROUP_ROWS), [])
        )
        parquet.write_parquet(copy, any_column, schema, batches)


def copy_query(copy: Path, query: str | None, database: Path | None = None, data: Sequence[str] = ()) -> None:
    """Copy the rows of a query over a database, over Parquet files as the table `data`, or over files that it names.

    Without a query, copy the only table of the database. DuckDB spills to the folder of the copy, installs nothing,
    sees no variables of Python, and reads and writes no other files.
    """
    settings: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": str(copy.parent / "spill"),
    }
    named = find_query_files(query or "")
    paths = [str(way) for path in (*named, *map(Path, data)) for way in (path, path.absolute())]
    with (
        explain_errors(database, "a database", query),
        closing(duckdb.connect(database or ":memory:", read_only=database is not None, config=settings)) as engine,
    ):
        if data:
            engine.read_parquet(list(data), union_by_name=True).create_view("data")
        engine.execute("set TimeZone = 'UTC'")
        engine.execute("set allowed_paths = ?", [paths])
        engine.execute("set allowed_directories = ?", [[str(copy.parent), *{str(path.parent) for path in named}]])
        engine.execute("set enable_external_access = false; set lock_configuration = true")
        if query is None:
            tables = engine.execute("select table_name from duckdb_tables() where not internal").fetchall()
            query = _select_only_table(database, tables)
        statements = engine.extract_statements(query)
        if [one.type for one in statements] != [duckdb.StatementType.SELECT]:
            found = f"{len(statements)} statements" if len(statements) != 1 else statements[0].type.name
            raise TableError(f"--query takes one SELECT, which reads and writes nothing; got {found}.")
        engine.sql(query).write_parquet(str(copy), row_group_size=GROUP_ROWS)


def _select_only_table(path: Path | None, tables: Sequence[tuple[str]]) -> str:
    """Return the query of the only table of a database."""
    if len(tables) != 1:
        listed = f"the tables {', '.join(name for (name,) in tables[:12])}" if tables else "no table"
        raise TableError(f"{path} has {listed}. Choose by --query, such as --query 'select * from NAME'.")
    return f"select * from {_quote_name(tables[0][0])}"


def _quote_name(name: str) -> str:
    """Quote the name of a column or table for SQL."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def explain_errors(path: Path | None, kind: str, query: str | None = None) -> Iterator[None]:
    """Translate errors of DuckDB, Arrow, SQLite and of text into one line that names the file, or the query."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, sqlite3.Error, OSError, EOFError, csv.Error) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = re.sub(r"^[A-Z][\w ]+ Error: ", "", first_line).rstrip(".:")  # without the class of DuckDB's error
        if isinstance(error, duckdb.PermissionException):
            reason = f"it names a file that does not exist, or not in single quotes: {reason}"
        if re.search("Could not write|Error writing|No space left", str(error)):
            reason += ". Name another folder for temporary files by the environment variable TMPDIR"
        place = f"{path} cannot be read as {kind}" if query is None else "The query cannot be read as SQL"
        raise TableError(f"{place}: {reason}.") from error
