"""Some of the rows of a source of files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quernel.rows.sources import Piece, RowSource

Mask = NDArray[np.bool_]


class SelectedRows:
    """The rows of another source that are chosen; they are streamed as that one is, without the others.

    Parameters
    ----------
    source : RowSource
    chosen : array of n booleans
        It is kept as bits.
    """

    def __init__(self, source: RowSource, chosen: Mask) -> None:
        self.source, self.cache = source, getattr(source, "cache", "auto")
        self.n_columns, self.names, self.weighted = source.n_columns, source.names, source.weighted
        counts = [int(np.count_nonzero(chosen[span])) for span in source.spans]
        self._blocks = [k for k, count in enumerate(counts) if count]  # those of the source that have any
        self._bits = {k: np.packbits(chosen[source.spans[k]]) for k in self._blocks}
        ends = np.cumsum([0, *(counts[k] for k in self._blocks)]).tolist()
        self.spans = [slice(start, stop) for start, stop in pairwise(ends)]
        self.n_rows = ends[-1]

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """These blocks in order, read ahead in a thread; X=False reads target and weight only."""
        wanted = [self._blocks[k] for k in blocks]
        if not wanted:
            return
        everything = range(wanted[0], wanted[-1] + 1)
        for k, piece in zip(everything, self.source.stream(everything, X=X), strict=True):
            if k in self._bits:
                chosen = np.unpackbits(self._bits[k], count=len(piece.y)).view(bool)
                yield Piece(*(None if part is None else part[chosen] for part in piece))  # type: ignore[arg-type]

    def place(self, k: int) -> str:
        """Where block k comes from, for messages."""
        return self.source.place(self._blocks[k])
