"""Row state of streamed rows: in memory up to a budget, in a temporary file beyond it."""

from __future__ import annotations

import pickle
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np
from numpy.typing import NDArray

from quernel.data.design_matrix import BlockState


class SpilledRowState:
    """Per-row arrays of a solver, block by block, and the number of passes over Phi that it has taken.

    Blocks that do not fit in the budget are pickled into a temporary file. The file has no name, where the system
    supports that, so that it disappears however the process ends.

    Parameters
    ----------
    n_blocks : int
    room : int
        Memory budget in bytes, for all blocks together.
    """

    def __init__(self, n_blocks: int, room: int) -> None:
        self.sweeps: float = 0
        self._room = room
        self._kept: list[BlockState | None] = [{} for _ in range(n_blocks)]  # None: the block is in the file
        self._sizes = [0] * n_blocks  # bytes in memory
        self._file: IO[bytes] | None = None
        self._places = [(0, 0, 0)] * n_blocks  # offset in the file, bytes reserved there, and bytes in use
        self._end = 0
        self._lock = threading.Lock()

    @contextmanager
    def open(self, k: int) -> Iterator[BlockState]:
        """The state of block k, to be read and overwritten inside the context; each block by one thread at a time."""
        block = self._fetch(k)
        yield block
        self._put(k, block)

    def take(self, columns: NDArray[np.intp]) -> SpilledRowState:
        """The state of some of the columns (fits)."""
        subset = SpilledRowState(len(self._kept), self._room)
        subset.sweeps = self.sweeps
        for k in range(len(self._kept)):
            subset._put(k, {name: array[:, columns] for name, array in self._fetch(k).items()})
        return subset

    def copy_columns(
        self, name: str, columns: NDArray[np.intp], out: NDArray[np.floating], places: NDArray[np.intp]
    ) -> None:
        """Nothing: row state of files is not collected, and `out` has no rows."""

    @property
    def on_disk(self) -> int:
        """Number of blocks on disk."""
        return sum(block is None for block in self._kept)

    def _fetch(self, k: int) -> BlockState:
        """The state of block k, from memory or from the file."""
        block = self._kept[k]
        return pickle.loads(self._read(k)) if block is None else block

    def _put(self, k: int, block: BlockState) -> None:
        """Store the state of block k: in memory if the budget allows, else in the file."""
        size = sum(array.nbytes for array in block.values())
        fits = sum(self._sizes) - self._sizes[k] + size <= self._room
        if not fits:
            self._write(k, pickle.dumps(block, protocol=5))
        self._kept[k], self._sizes[k] = (block, size) if fits else (None, 0)

    def _read(self, k: int) -> bytes:
        """The bytes of block k; an unbuffered file may return fewer than asked for at a time."""
        start, _, size = self._places[k]
        with self._lock:
            assert self._file is not None
            self._file.seek(start)
            parts = [self._file.read(size)]
            while (missing := size - sum(map(len, parts))) > 0:
                parts.append(self._file.read(missing))
            return b"".join(parts)

    def _write(self, k: int, data: bytes) -> None:
        """Write block k where it was before, if it fits there, or else at the end of the file."""
        with self._lock:
            if self._file is None:
                # Unbuffered: a buffer that a full disk refused would raise a second time when the file is closed.
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            start, room, _ = self._places[k]
            if room < len(data):
                start, room = self._end, len(data)
                self._end += room
            self._file.seek(start)
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
            self._places[k] = start, room, len(data)
