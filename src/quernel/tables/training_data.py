"""Training data from a table in memory: encoded inputs, target, weights and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.tables.arrow_casts import kind_of, numbers, plain
from quernel.tables.encoder import TableEncoder, learn_encoder
from quernel.tables.reading import TableError, nearest

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Training:
    """Encoded X (n, d), y (n,), weights and group codes (n,) or None, the number of dropped rows, and notes.

    Rows are dropped for want of a target; `infinite` of them have an infinite one.
    """

    encoder: TableEncoder
    X: Array
    y: Array
    weight: Array | None
    dropped: int
    notes: tuple[str, ...]
    groups: NDArray[np.intp] | None = None
    infinite: int = 0

    @property
    def n_rows(self) -> int:
        """The rows with a target."""
        return len(self.y)

    @property
    def target_range(self) -> tuple[float, float]:
        """The smallest and the largest target, as it is fitted."""
        return float(self.y.min()), float(self.y.max())


def prepare(
    table: Any,
    target: str,
    *,
    columns: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    weights: str | None = None,
    groups: str | None = None,
    log_target: bool = False,
    missing: Sequence[str] = (),
    categorical: Sequence[str] = (),
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
    missing : sequence of str
        Words that stand for gaps, as the table was read; the model reads others in the same way.
    categorical : sequence of str
        Input columns whose numbers or truth values are words: names, not amounts.
    """
    check_columns(table.schema, target, weights, groups, columns, exclude)
    y = numbers(table[target])
    there, infinite = np.isfinite(y), int(np.isinf(y).sum())
    refuse_no_target(target, int(there.sum()), len(y))
    if not there.all():
        table, y = table.filter(there), y[there]
    if log_target:
        refuse_not_positive(target, int(np.sum(y <= 0)), float(y.min()))
    weight = None if weights is None else _weight(table[weights], weights)
    inputs = input_columns(table.schema, columns, [target, weights, groups, *exclude])
    refuse_not_inputs(categorical, inputs, table.schema.names)
    learnt = learn_encoder(table, inputs, missing, categorical)
    X = learnt.encoder.encode(table)
    y = np.log(y) if log_target else y
    labels = None if groups is None else _numbered(table[groups], groups)
    return Training(learnt.encoder, X, y, weight, int(np.sum(~there)), learnt.notes, labels, infinite)


def check_columns(
    schema: Any,
    target: str,
    weights: str | None,
    groups: str | None,
    columns: Sequence[str] | None,
    exclude: Sequence[str],
) -> None:
    """Raise if a named column is missing, or target or weights are not numeric."""
    for name in (target, *(name for name in (weights, groups) if name is not None), *(columns or ()), *exclude):
        if name not in schema.names:
            raise TableError(f"There is no column {name!r}. {nearest(name, schema.names)}")
    for name, role in ((target, "target"), (weights, "column of weights")):
        kind = None if name is None else schema.field(name).type
        if kind is not None and kind_of(kind) not in ("number", "boolean", "nothing"):
            raise TableError(
                f"The {role} {name!r} holds {kind}, not numbers. Choose another column, or write 1234.5 for a "
                "number; of a CSV file, --missing names words that stand for gaps."
            )


def input_columns(schema: Any, columns: Sequence[str] | None, left_out: Sequence[str | None]) -> list[str]:
    """Return the chosen input columns, all by default, without the excluded ones."""
    return [name for name in columns or schema.names if name not in left_out]


def refuse_not_inputs(categorical: Sequence[str], inputs: Sequence[str], known: Sequence[str]) -> None:
    """Raise if a column of --categorical is not an input."""
    for name in categorical:
        if name not in known:
            raise TableError(f"There is no column {name!r} for --categorical. {nearest(name, known)}")
        if name not in inputs:
            raise TableError(
                f"Column {name!r} is named by --categorical, but is no input column. Remove it from --categorical."
            )


def refuse_no_target(target: str, n_there: int, n_rows: int) -> None:
    """Raise if no row has a target."""
    if n_rows == 0:
        raise TableError("The table has no rows: there is nothing to learn from.")
    if n_there == 0:
        raise TableError(f"The target {target!r} is missing in all {n_rows:,} rows: there is nothing to learn from.")


def refuse_not_positive(target: str, count: int, smallest: float) -> None:
    """Raise if a target on the log scale is not positive."""
    if count:
        raise TableError(
            f"The logarithm needs positive targets, but {count:,} values of {target!r} are not (the smallest is "
            f"{smallest:g}). Leave out --log-target, or those rows."
        )


def refuse_gaps(name: str, labels: Any, place: str = "") -> None:
    """Raise if a row has no group label."""
    import pyarrow as pa
    import pyarrow.compute as pc

    labels = plain(labels)
    count = labels.null_count
    if pa.types.is_floating(labels.type):
        count += pc.sum(pc.is_nan(labels)).as_py() or 0
    if count:
        of = f" of {place}" if place else ""
        raise TableError(
            f"The group column {name!r} is empty in {count:,} of {len(labels):,} rows{of}. Fill it, or leave those "
            "rows out."
        )


def _weight(column: Any, name: str) -> Array:
    weight = numbers(column)
    gaps, negative = int(np.sum(~np.isfinite(weight))), int(np.sum(weight < 0))
    if gaps or negative:
        what = f"{gaps:,} missing or infinite" if gaps else f"{negative:,} negative"
        raise TableError(
            f"The weight column {name!r} has {what} entries. Weights must be 0 or more; 0 leaves a row out."
        )
    return weight


def _numbered(labels: Any, name: str) -> NDArray[np.intp]:
    """Encode group labels as integers."""
    refuse_gaps(name, labels)
    return plain(labels).combine_chunks().dictionary_encode().indices.to_numpy().astype(np.intp)
