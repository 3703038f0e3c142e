"""The numeric columns of a data file, complete rows only: all that `quernel plan` looks at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quernel.cli.console import fail
from quernel.tables.columns import kind_of, numbers
from quernel.tables.reading import nearest
from quernel.tables.several import read

Array = NDArray[np.float64]


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
    table = read(path)
    if target not in table.column_names:
        fail(f"{path} has no column {target!r}. {nearest(target, table.column_names)} Choose one with --target.")
    numeric = [field.name for field in table.schema if kind_of(field.type) in ("number", "boolean")]
    if target not in numeric:
        kind = table.schema.field(target).type
        fail(f"Column {target!r} of {path} holds {kind}, not numbers. Choose another --target.")
    names = tuple(name for name in numeric if name != target)
    if not names:
        fail(f"{path} has no numeric column besides {target!r} to predict it from.")
    columns = np.column_stack([numbers(table[name]) for name in (*names, target)])
    complete = np.isfinite(columns).all(axis=1)
    columns = columns[complete]
    ignored = tuple(name for name in table.column_names if name not in numeric)
    return Table(columns[:, :-1], columns[:, -1], names, ignored, int(np.sum(~complete)))
