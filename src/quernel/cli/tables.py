"""The numeric columns of data files, complete rows only: all that `quernel plan` looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.cli.console import fail
from quernel.tables.columns import kind_of, numbers
from quernel.tables.drawing import Drawn, drawn, join_drawn
from quernel.tables.groups import ParquetTable, Slab
from quernel.tables.reading import nearest
from quernel.tables.several import read

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """Complete numeric rows: X (n, d), y (n,), the names of the columns of X, and what was left out.

    Where memory does not hold them, X and y are a random sample of the n_rows complete rows.
    """

    X: Array
    y: Array
    names: tuple[str, ...]
    ignored: tuple[str, ...]
    incomplete: int
    n_rows: int


def read_table(path: Path, target: str) -> Table:
    """The numeric columns of a file, the target apart; rows with a missing value are left out."""
    table = read(path)
    if len(table) == 0:
        fail(f"{path} has no rows: there is nothing to plan from.")
    names = _numeric(path, table.schema, target)
    columns = _stacked(table, names)
    complete = np.isfinite(columns).all(axis=1)
    return _made(columns[complete], names, table.column_names, int(complete.sum()), len(table))


def draw_table(parts: ParquetTable, path: Path, target: str, *, limit: int, seed: int) -> Table:
    """The same of a table that is read in parts: a random sample of at most so many complete rows, in one pass."""
    names = _numeric(path, parts.schema, target)
    found = parts.fold(partial(_draw_complete, names, limit, seed), join_drawn, names)
    return _made(_stacked(found.table, names), names, parts.schema.names, found.n_rows, parts.n_rows)


def _numeric(path: Path, schema: Any, target: str) -> list[str]:
    """The columns of numbers, the target last."""
    if target not in schema.names:
        fail(f"{path} has no column {target!r}. {nearest(target, schema.names)} Choose one with --target.")
    numeric = [field.name for field in schema if kind_of(field.type) in ("number", "boolean")]
    if target not in numeric:
        fail(f"Column {target!r} of {path} holds {schema.field(target).type}, not numbers. Choose another --target.")
    names = [name for name in numeric if name != target]
    if not names:
        fail(f"{path} has no numeric column besides {target!r} to predict it from.")
    return [*names, target]


def _stacked(table: Any, names: Sequence[str]) -> Array:
    return np.column_stack([numbers(table[name]) for name in names])


def _draw_complete(names: Sequence[str], limit: int, seed: int, slab: Slab) -> Drawn:
    complete = np.isfinite(_stacked(slab.table, names)).all(axis=1)
    return drawn(slab.table.filter(complete), limit=limit, seed=seed, place=slab.group.first + slab.start)


def _made(columns: Array, names: Sequence[str], known: Sequence[str], n_complete: int, n_rows: int) -> Table:
    ignored = tuple(name for name in known if name not in names)
    return Table(columns[:, :-1], columns[:, -1], tuple(names[:-1]), ignored, n_rows - n_complete, n_complete)
