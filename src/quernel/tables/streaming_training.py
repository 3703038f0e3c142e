"""Training data from files larger than memory: the same encoding as `training_data`, streamed in batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data.passes import read_ahead
from quernel.data.sources import BLOCK_ROWS, Piece, RowsError, check_piece, split_blocks
from quernel.data.streaming_quantiles import (
    RadixSearch,
    candidates,
    count_next_digits,
    n_candidates,
    quantile_values,
    refine,
    select,
    start_search,
    sum_counts,
)
from quernel.tables.arrow_casts import as_words, numbers
from quernel.tables.column_stats import Facts, column_from, facts_of, joined, kind_or_reason, remarks
from quernel.tables.columns import Column, TextColumn
from quernel.tables.encoder import TableEncoder, learnt_from
from quernel.tables.parquet_table import Group, ParquetTable, Slab
from quernel.tables.reservoir_sample import Drawn, drawn, join_drawn
from quernel.tables.training_data import (
    check_columns,
    input_columns,
    refuse_gaps,
    refuse_no_target,
    refuse_not_inputs,
    refuse_not_positive,
)

Array = NDArray[np.floating]

# From so many values of a column on they are not counted further but gathered.
GATHERED = 2**16

# The finite numbers of every column, in a piece of the table.
Columns = Callable[[Any], dict[str, Array]]
Fold = Callable[[Callable[[Any], Any], Callable[[list[Any]], Any]], Any]


def medians(fold: Fold, columns: Columns, there: dict[str, int]) -> dict[str, float]:
    """The median of every column, of which `there` says how many numbers it has, in two or three passes."""
    states = {name: start_search(np.array([0.5]), float(count)) for name, count in there.items()}
    remaining = dict(there)
    while max(remaining.values(), default=0) > GATHERED:
        found = fold(partial(count_digits, columns, states), join_digits)
        for name, state in states.items():
            if state.done:
                continue
            states[name] = refine(state, found[name])
            remaining[name] = 0 if states[name].done else n_candidates(state, states[name], found[name])
    gathered = fold(partial(gather, columns, states), join_gathered) if there else {}
    return {
        name: float(quantile_values(state)[0] if state.done else select(state, gathered[name])[0])
        for name, state in states.items()
    }


def count_digits(columns: Columns, states: dict[str, RadixSearch], piece: Any) -> dict[str, Array]:
    """How the next digit of the numbers of a piece is distributed, column by column."""
    return {
        name: count_next_digits(y, None, states[name]) for name, y in columns(piece).items() if not states[name].done
    }


def join_digits(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """The counts of all pieces."""
    return {name: sum_counts([part[name] for part in parts]) for name in parts[0]}


def gather(columns: Columns, states: dict[str, RadixSearch], piece: Any) -> dict[str, Array]:
    """The numbers of a piece that may be the median."""
    return {name: candidates(y, states[name]) for name, y in columns(piece).items() if not states[name].done}


def join_gathered(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Those of all pieces."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True, eq=False)
class Roles:
    """What the columns of a table are: target and weights (or None) by name, and whether the logarithm is fitted."""

    target: str
    weights: str | None = None
    log_target: bool = False

    @property
    def names(self) -> list[str]:
        """Target and weights."""
        return [self.target, *([] if self.weights is None else [self.weights])]


@dataclass(frozen=True, eq=False)
class StreamedTraining:
    """A table of files, its encoder, the rows it gives, those dropped for want of a target, and notes.

    `sizes` and `target_range` are those of `count_targets`; `groups` (n,) are labels of the rows, or None; `infinite`
    of the dropped rows have an infinite target.
    """

    table: Any
    roles: Roles
    sizes: dict[tuple[Group, int], int]
    target_range: tuple[float, float]
    encoder: TableEncoder
    rows: Any
    dropped: int
    notes: tuple[str, ...]
    groups: NDArray[np.uint64] | None = None
    infinite: int = 0

    @property
    def n_rows(self) -> int:
        """The rows with a target."""
        return self.rows.n_rows


def prepare_streamed(
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
    make_rows: Callable[..., Any] | None = None,
) -> StreamedTraining:
    """As `training.prepare`, with the same answer, for files that are read in a few passes; no row is kept.

    Of rows that belong together a label is kept, 8 bytes a row, the same for equal entries.

    `table` is a `ParquetTable`, or a `ClusterTable`, whose workers read the files and with which
    `make_rows` is `cluster_rows`.
    """
    check_columns(table.schema, target, weights, groups, columns, exclude)
    roles = Roles(target, weights, log_target)
    counted = table.fold(partial(count_targets, roles), join_targets, [target])
    refuse_no_target(target, sum(counted.sizes.values()), table.n_rows)
    if log_target:
        refuse_not_positive(target, counted.not_positive, counted.low)
    inputs = input_columns(table.schema, columns, [target, weights, groups, *exclude])
    refuse_not_inputs(categorical, inputs, table.schema.names)
    learnt = learnt_from(*learn(table, roles, inputs, categorical), missing)
    rows = (make_rows or TableRows)(table, learnt.encoder, roles, counted.sizes)
    labels = None
    if groups is not None:
        labels = table.fold(partial(group_labels, roles, groups), np.concatenate, [*dict.fromkeys([target, groups])])
    dropped = table.n_rows - rows.n_rows
    return StreamedTraining(
        table, roles, counted.sizes, (counted.low, counted.high), learnt.encoder, rows, dropped, learnt.notes, labels,
        counted.infinite,
    )  # fmt: skip


# Which rows count


@dataclass(frozen=True, eq=False)
class Counted:
    """Rows with a target in every strip of a group, by group and strip; their range, and those not positive.

    Also, how many others have an infinite target.
    """

    sizes: dict[tuple[Group, int], int]
    low: float
    high: float
    not_positive: int
    infinite: int


# Rows of a group whose targets are counted together. A block of rows has one or more strips.
STRIP = 4096


def count_targets(roles: Roles, slab: Slab) -> Counted:
    """The targets of a slab."""
    y = numbers(slab.table[roles.target])
    there = np.isfinite(y)
    starts = range(0, len(y), STRIP)
    sizes = {(slab.group, slab.start + start): int(there[start : start + STRIP].sum()) for start in starts}
    low, high = y[there].min(initial=np.inf), y[there].max(initial=-np.inf)
    return Counted(sizes, float(low), float(high), int(np.sum(y[there] <= 0)), int(np.isinf(y).sum()))


def join_targets(parts: Sequence[Counted]) -> Counted:
    """Those of all slabs."""
    sizes = {key: size for part in parts for key, size in part.sizes.items()}
    low, high = min(part.low for part in parts), max(part.high for part in parts)
    not_positive, infinite = (sum(getattr(part, name) for part in parts) for name in ("not_positive", "infinite"))
    return Counted(sizes, low, high, not_positive, infinite)


def with_target(table: Any, roles: Roles) -> Any:
    """The rows of a table that have a target."""
    there = np.isfinite(numbers(table[roles.target]))
    return table if there.all() else table.filter(there)


def group_labels(roles: Roles, name: str, slab: Slab) -> NDArray[np.uint64]:
    """A number for every row with a target, the same for equal entries of a column wherever they are."""
    column = with_target(slab.table, roles)[name]
    refuse_gaps(name, column, str(slab.group))
    words, index = as_words(column)
    codes = [int.from_bytes(blake2b(word.encode(), digest_size=8).digest()) for word in words]
    return np.array(codes, dtype=np.uint64)[index]


# A sample of them


def draw_rows(training: StreamedTraining, limit: int, seed: int) -> Drawn:
    """A random sample of all rows of the table, in one pass, with the columns that are used.

    Rows without a target are among them; `number` counts the others, as `training.rows` does.
    """
    columns = needed_columns(training.encoder, training.roles, X=True)
    found = training.table.fold(partial(draw_slab, training.roles, limit, seed), join_drawn, columns)
    starts, before, count = [], [], 0
    for group in training.table.groups:
        for start in range(0, group.n_rows, STRIP):
            if start % BLOCK_ROWS == 0:  # where a slab begins
                starts.append(group.first + start)
                before.append(count)
            count += training.sizes[group, start]
    slab = np.searchsorted(starts, found.place, side="right") - 1
    return replace(found, number=found.number + np.array(before)[slab])


def draw_slab(roles: Roles, limit: int, seed: int, slab: Slab) -> Drawn:
    """That of a slab, in which numbers are counted from its beginning."""
    there = np.isfinite(numbers(slab.table[roles.target]))
    return drawn(slab.table, there, limit=limit, seed=seed, place=slab.group.first + slab.start)


# What becomes of the columns


def learn(
    table: Any, roles: Roles, inputs: Sequence[str], categorical: Sequence[str] = ()
) -> tuple[dict[str, Column | str], dict[str, list[str]]]:
    """What is kept of every input, or why nothing, learnt from the rows with a target in three or four passes.

    Remarks on every column, besides.
    """
    kinds = {name: kind_or_reason(name, table.schema.field(name).type, name in categorical) for name in inputs}
    known = {name: kind for name, (kind, _) in kinds.items() if kind is not None}
    needed = list(dict.fromkeys([*known, roles.target]))
    facts = table.fold(partial(column_facts, roles, known), join_facts, needed) if known else {}
    made = {
        name: reason if kind is None else column_from(name, kind, facts[name]) for name, (kind, reason) in kinds.items()
    }
    measured = {name: column for name, column in made.items() if not isinstance(column, str | TextColumn)}
    there = {name: _there(facts[name]) for name in measured}

    def fold(step: Any, join: Any) -> Any:
        return table.fold(step, join, list(dict.fromkeys([*measured, roles.target])))

    found = medians(fold, partial(finite_numbers, roles, measured), there)
    made |= {name: replace(column, fill=found[name]) for name, column in measured.items()}
    return made, {name: remarks(facts[name]) if name in facts else [] for name in made}


def column_facts(roles: Roles, kinds: dict[str, str], slab: Slab) -> dict[str, Facts]:
    """The facts of every column in a slab."""
    table = with_target(slab.table, roles)
    return {name: facts_of(name, table[name], kind) for name, kind in kinds.items()}


def join_facts(parts: Sequence[dict[str, Facts]]) -> dict[str, Facts]:
    """Those of all slabs."""
    return {name: joined([part[name] for part in parts]) for name in parts[0]}


def finite_numbers(roles: Roles, columns: dict[str, Any], slab: Slab) -> dict[str, Array]:
    """The numbers and dates of a slab, without missing ones."""
    table = with_target(slab.table, roles)
    read = {name: column.read(table[name]) for name, column in columns.items()}
    return {name: values[np.isfinite(values)] for name, values in read.items()}


def _there(facts: Any) -> int:
    """How many numbers, or dates in text, a column has."""
    return facts.there if hasattr(facts, "there") else facts.dates.there


# The rows


@dataclass(frozen=True)
class Stretch:
    """A block of rows: where it lies in its group before rows without a target are dropped, and how many are left."""

    group: Group
    start: int
    kept: int


class TableRows:
    """Rows of Parquet files, turned into numbers as they are read; a `RowSource`. Rows without a target are dropped.

    Parameters
    ----------
    table : ParquetTable
    encoder : TableEncoder
    roles : Roles
    sizes : dict
        How many rows with a target there are in every strip of every group, as `count_targets` has them.
    """

    def __init__(
        self, table: ParquetTable, encoder: TableEncoder, roles: Roles, sizes: dict[tuple[Group, int], int]
    ) -> None:
        self.table, self.encoder, self.roles = table, encoder, roles
        # Models of tables know their columns by the encoder: as in memory, the estimator is given none.
        self.names, self.n_columns = None, len(encoder.names)
        self.weighted = roles.weights is not None
        self.size = max(split_blocks(BLOCK_ROWS, self.n_columns)[0].stop // STRIP, 1) * STRIP
        self.stretches = self._stretches(sizes)
        ends = np.cumsum([0, *(stretch.kept for stretch in self.stretches)]).tolist()
        self.spans = [slice(start, stop) for start, stop in pairwise(ends)]
        self.n_rows = ends[-1]

    def _stretches(self, sizes: dict[tuple[Group, int], int]) -> list[Stretch]:
        """The blocks that have rows, in order."""
        kept: dict[tuple[Group, int], int] = {}
        for (group, start), size in sizes.items():
            first = start - start % self.size
            kept[group, first] = kept.get((group, first), 0) + size
        order = {group: place for place, group in enumerate(self.table.groups)}
        stretches = [Stretch(group, start, size) for (group, start), size in kept.items() if size]
        return sorted(stretches, key=lambda stretch: (order[stretch.group], stretch.start))

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """These blocks in order, read ahead in a thread; X=False reads target and weight only."""
        return read_ahead(self._pieces(blocks, X))

    def place(self, k: int) -> str:
        """Where block k comes from, for messages."""
        return str(self.stretches[k].group)

    def _pieces(self, blocks: range, X: bool) -> Generator[Piece, None, None]:
        wanted = {(self.stretches[k].group, self.stretches[k].start): self.stretches[k].kept for k in blocks}
        groups = [group for group, _ in groupby(self.stretches[k].group for k in blocks)]
        last = self.stretches[blocks[-1]] if len(blocks) else None
        for slab in self.table.slabs(needed_columns(self.encoder, self.roles, X), groups, self.size):
            kept = wanted.get((slab.group, slab.start))
            if kept is not None:
                piece = encoded(slab, self.encoder, self.roles, X)
                if len(piece.y) != kept:
                    raise RowsError(f"{slab.group} has other rows than before: the file was changed while in use.")
                yield piece
            if last is not None and (slab.group, slab.start) == (last.group, last.start):
                return


def needed_columns(encoder: TableEncoder, roles: Roles, X: bool) -> list[str]:
    """The columns that are read."""
    return list(dict.fromkeys([*(encoder.inputs if X else ()), *roles.names]))


def encoded(slab: Slab, encoder: TableEncoder, roles: Roles, X: bool = True) -> Piece:
    """The numbers of a slab, without the rows that have no target."""
    y = numbers(slab.table[roles.target])
    there = np.isfinite(y)
    table = slab.table if there.all() else slab.table.filter(there)
    y = np.log(y[there]) if roles.log_target else y[there]
    weight = None if roles.weights is None else np.ascontiguousarray(numbers(table[roles.weights]))
    piece = Piece(np.ascontiguousarray(encoder.encode(table)) if X else None, np.ascontiguousarray(y), weight)
    labels = [f"column {name!r}" for name in (*encoder.names, roles.target, roles.weights)]

    def where(row: int) -> str:
        return f"{slab.group}, row {slab.start + int(np.flatnonzero(there)[row]):,} of the group (counted from 0)"

    return check_piece(piece, labels, where)
