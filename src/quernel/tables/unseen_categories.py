"""Detect text columns none of whose categories a model knows, usually because they are spelled differently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quernel.tables.arrow_casts import as_words
from quernel.tables.columns import TextColumn
from quernel.tables.encoder import TableEncoder

# From so many rows on: a single row with a new word is nothing to speak of.
FEWEST_ROWS = 2
# Words that are shown.
SHOWN = 3


class UnknownWordsWarning(UserWarning):
    """None of the categories in a column is known to the model."""


@dataclass
class UnseenCategories:
    """Find columns without any known category, batch by batch; a column with a known one is not checked again."""

    encoder: TableEncoder
    _rows: dict[str, int] = field(init=False)
    _words: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = {column.name: 0 for column in self.encoder.columns if isinstance(column, TextColumn)}

    def meet(self, table: Any) -> None:
        """Check an Arrow table or batch that the encoder accepts."""
        suspects = [column for column in self.encoder.columns if column.name in self._rows]
        if not suspects:
            return
        table = self.encoder.without_marks(table.select([column.name for column in suspects]))
        for column in suspects:
            name, rows = column.name, column.read(table[column.name])
            unknown = rows == len(column.levels)
            if np.any(rows < len(column.levels)):
                del self._rows[name]
            elif unknown.any():
                self._rows[name] += int(unknown.sum())
                self._words.setdefault(name, next(word for word in as_words(table[name])[0] if word))

    def watched(self, pieces: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches, checking each."""
        for piece in pieces:
            self.meet(piece)
            yield piece

    def sentences(self) -> list[str]:
        """Return a note on each column without any known category."""
        known = {column.name: column.levels for column in self.encoder.columns if column.name in self._rows}
        return [
            f"None of the categories in column {name!r} is known to the model, in {rows:,} rows: it holds "
            f"{self._words[name]!r}, where the model was fitted to {', '.join(map(repr, known[name][:SHOWN]))}"
            f"{', ...' if len(known[name]) > SHOWN else ''}."
            for name, rows in self._rows.items()
            if rows >= FEWEST_ROWS
        ]


def describe_unseen(encoder: TableEncoder, table: Any) -> list[str]:
    """Return notes on the columns of an Arrow table none of whose categories the encoder knows."""
    strangers = UnseenCategories(encoder)
    strangers.meet(table)
    return strangers.sentences()
