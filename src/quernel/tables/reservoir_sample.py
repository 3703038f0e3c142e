"""Reservoir sampling from a table read in batches: a fixed number of rows, or all if there are fewer.

Every row has a random key, and the rows with the smallest keys are kept. Whatever the pieces are, and in whatever order
they are joined, every set of so many rows is as likely as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Index = NDArray[np.intp]

# Rows that are drawn of a table that memory does not hold, and the share of the memory for the numbers they become.
FEWEST_DRAWN, MOST_DRAWN, DRAWN_SHARE = 1000, 100_000, 0.25


def rows_to_draw(n_columns: int, allowed: float) -> int:
    """How many rows of so many numbers a sample may have, where so many bytes are allowed."""
    return min(max(int(DRAWN_SHARE * allowed / (8 * n_columns)), FEWEST_DRAWN), MOST_DRAWN)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Rows in their order, at most `limit`: an Arrow table and, for each row, its key and two numbers, from 0 on.

    `place` is that among all rows, of which `n_rows` passed by, and `number` that among those that count, `n_counted`.
    """

    limit: int
    table: Any
    key: Array
    place: Index
    number: Index
    n_rows: int
    n_counted: int

    @property
    def whole(self) -> bool:
        """Whether these are all rows."""
        return len(self.key) == self.n_rows

    def only(self, limit: int) -> Drawn:
        """A sample of the sample, which is one of all rows, too."""
        return _smallest(limit, self.table, self.key, self.place, self.number, self.n_rows, self.n_counted)


def drawn(
    table: Any,
    counts: NDArray[np.bool_] | None = None,
    *,
    limit: int,
    seed: int,
    place: int = 0,
    number: int = 0,
) -> Drawn:
    """The sample of a piece; `counts` says which rows count, `place` and `number` are those of its first row."""
    counts = np.ones(len(table), dtype=bool) if counts is None else counts
    key = np.random.default_rng([seed, place]).random(len(table))
    before = np.cumsum(counts) - counts
    places = np.arange(place, place + len(table))
    return _smallest(limit, table, key, places, number + before, len(table), int(counts.sum()))


def join_drawn(parts: Sequence[Drawn]) -> Drawn:
    """The sample of all rows of the parts, which are in order."""
    import pyarrow as pa

    key, place, number = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("key", "place", "number")
    )
    table = pa.concat_tables([part.table for part in parts])
    n_rows, n_counted = sum(part.n_rows for part in parts), sum(part.n_counted for part in parts)
    return _smallest(parts[0].limit, table, key, place, number, n_rows, n_counted)


def _smallest(limit: int, table: Any, key: Array, place: Index, number: Index, n_rows: int, n_counted: int) -> Drawn:
    """The rows with the smallest keys."""
    if len(key) <= limit:
        return Drawn(limit, table, key, place, number, n_rows, n_counted)
    kept = np.sort(np.argpartition(key, limit)[:limit])
    return Drawn(limit, table.take(kept), key[kept], place[kept], number[kept], n_rows, n_counted)
