"""Reading data files for the commands: CSV and Parquet, through pyarrow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.cli.console import fail

Array = NDArray[np.float64]

PARQUET = (".parquet", ".pq")
CSV = (".csv", ".txt", ".tsv")


@dataclass(frozen=True, eq=False)
class Table:
    """Complete numeric rows: X (n, d), y (n,), the names of the columns of X, and what was left out."""

    X: Array
    y: Array
    names: tuple[str, ...]
    ignored: tuple[str, ...]
    incomplete: int


def read_table(path: Path, target: str) -> Table:
    """The numeric columns of a file, the target apart; rows with a missing value are left out."""
    table = _read(path)
    if target not in table.column_names:
        fail(f"{path} has no column {target!r}. Its columns: {_listed(table.column_names)}. Choose one with --target.")
    numeric = [name for name in table.column_names if _is_number(table.schema.field(name).type)]
    if target not in numeric:
        kind = table.schema.field(target).type
        fail(f"Column {target!r} of {path} holds {kind}, not numbers. Choose another --target.")
    names = tuple(name for name in numeric if name != target)
    if not names:
        fail(f"{path} has no numeric column besides {target!r} to predict it from.")
    columns = np.column_stack([_values(table, name) for name in (*names, target)])
    complete = np.isfinite(columns).all(axis=1)
    columns = columns[complete]
    ignored = tuple(name for name in table.column_names if name not in numeric)
    return Table(columns[:, :-1], columns[:, -1], names, ignored, int(np.sum(~complete)))


def _read(path: Path) -> Any:
    """The file as an Arrow table, read without Arrow's threads, which may abort the interpreter when it exits."""
    if not path.is_file():
        fail(f"{path} is not a file. Give a CSV or Parquet file.")
    ending = path.suffix.lower()
    if ending not in (*PARQUET, *CSV):
        fail(f"{path} must end in one of {', '.join((*CSV, *PARQUET))}, so that its format is known.")
    import pyarrow as pa  # here, because importing it takes longer than most commands

    try:
        if ending in PARQUET:
            import pyarrow.parquet as pq

            return pq.ParquetFile(str(path), pre_buffer=False).read(use_threads=False)
        from pyarrow import csv

        delimiter = "\t" if ending == ".tsv" else ","
        options = csv.ReadOptions(use_threads=False)
        return csv.read_csv(str(path), read_options=options, parse_options=csv.ParseOptions(delimiter=delimiter))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        kind = "Parquet" if ending in PARQUET else "CSV"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        fail(f"{path} cannot be read as {kind}: {reason.rstrip('.')}.")


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)


def _values(table: Any, name: str) -> Array:
    """A column as float64, missing entries as NaN."""
    import pyarrow as pa

    return table[name].cast(pa.float64()).to_numpy().astype(np.float64)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:12])
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} more"
