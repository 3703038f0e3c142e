"""From a table to what an estimator is fitted to: inputs, target and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.tables.columns import kind_of, numbers
from quernel.tables.encoder import TableEncoder, learn_encoder
from quernel.tables.reading import TableError, nearest

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Training:
    """X (n, d) as the encoder makes it, y (n,), weights and group numbers (n,) or None, rows dropped, and notes.

    Rows are dropped for want of a target.
    """

    encoder: TableEncoder
    X: Array
    y: Array
    weight: Array | None
    dropped: int
    notes: tuple[str, ...]
    groups: NDArray[np.intp] | None = None


def prepare(
    table: Any,
    target: str,
    *,
    columns: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    weights: str | None = None,
    groups: str | None = None,
    log_target: bool = False,
) -> Training:
    """Choose the input columns of an Arrow table, drop rows without a target, learn the encoder and apply it.

    Parameters
    ----------
    table : Arrow table
    target : str
        The column to predict: numbers.
    columns : sequence of str or None
        The input columns; None is all but the target, the weights and the groups.
    exclude : sequence of str
        Columns that are not to be used.
    weights : str or None
        A column with the weight of every row.
    groups : str or None
        A column that says which rows belong together.
    log_target : bool
        Whether to fit the logarithm of the target.
    """
    for name in (target, *(name for name in (weights, groups) if name is not None), *(columns or ()), *exclude):
        if name not in table.column_names:
            raise TableError(f"There is no column {name!r}. {nearest(name, table.column_names)}")
    y = _numbers_of(table, target, "target")
    there = np.isfinite(y)
    if not there.any():
        raise TableError(f"The target {target!r} is missing in all {len(y):,} rows: there is nothing to learn from.")
    if not there.all():
        table, y = table.filter(there), y[there]
    if log_target and y.min() <= 0:
        raise TableError(
            f"The logarithm needs positive targets, but {np.sum(y <= 0):,} values of {target!r} are not (the "
            f"smallest is {y.min():g}). Leave out --log-target, or those rows."
        )
    weight = _numbers_of(table, weights, "column of weights") if weights else None
    left_out = {target, weights, groups, *exclude}
    learnt = learn_encoder(table, [name for name in columns or table.column_names if name not in left_out])
    X = learnt.encoder.encode(table)
    y = np.log(y) if log_target else y
    labels = None if groups is None else _numbered(table[groups], groups)
    return Training(learnt.encoder, X, y, weight, int(np.sum(~there)), learnt.notes, labels)


def _numbers_of(table: Any, name: str, role: str) -> Array:
    kind = table.schema.field(name).type
    if kind_of(kind) not in ("number", "boolean", "nothing"):
        raise TableError(f"The {role} {name!r} holds {kind}, not numbers. Choose another column.")
    return numbers(table[name])


def _numbered(labels: Any, name: str) -> NDArray[np.intp]:
    """A number for every row, the same for equal labels."""
    if labels.null_count:
        raise TableError(
            f"The column of groups {name!r} is empty in {labels.null_count:,} of {len(labels):,} rows. Fill it, or "
            "leave those rows out."
        )
    return labels.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.intp)
