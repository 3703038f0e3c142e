"""What is remembered of rows that pass by: in memory as far as that goes, on disk beyond."""

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
    """The memories of all blocks, and how often the rows were swept.

    Together they take at most `room` bytes of memory; what is beyond lies in a temporary file until it is asked for. It
    has no name, where the system allows that: nothing is left of it, however the process ends.
    """

    def __init__(self, n_blocks: int, room: int) -> None:
        self.sweeps = 0
        self._room = room
        self._kept: list[BlockState | None] = [{} for _ in range(n_blocks)]
        self._sizes = [0] * n_blocks
        self._file: IO[bytes] | None = None
        self._places = [(0, 0, 0)] * n_blocks  # first byte in the file, bytes there, and bytes in use
        self._end = 0
        self._lock = threading.Lock()

    @contextmanager
    def open(self, k: int) -> Iterator[BlockState]:
        """The memory of block k, to be read and overwritten; two threads never open the same."""
        block = self._fetch(k)
        yield block
        self._put(k, block)

    def take(self, columns: NDArray[np.intp]) -> SpilledRowState:
        """What is remembered of some of the columns."""
        some = SpilledRowState(len(self._kept), self._room)
        some.sweeps = self.sweeps
        for k in range(len(self._kept)):
            some._put(k, {name: array[:, columns] for name, array in self._fetch(k).items()})
        return some

    @property
    def on_disk(self) -> int:
        """How many blocks lie on disk."""
        return sum(block is None for block in self._kept)

    def _fetch(self, k: int) -> BlockState:
        block = self._kept[k]
        return pickle.loads(self._read(k)) if block is None else block

    def _put(self, k: int, block: BlockState) -> None:
        size = sum(array.nbytes for array in block.values())
        fits = sum(self._sizes) - self._sizes[k] + size <= self._room
        if not fits:
            self._write(k, pickle.dumps(block, protocol=5))
        self._kept[k], self._sizes[k] = (block, size) if fits else (None, 0)

    def _read(self, k: int) -> bytes:
        start, _, size = self._places[k]
        with self._lock:
            assert self._file is not None
            self._file.seek(start)
            parts = [self._file.read(size)]
            while (missing := size - sum(map(len, parts))) > 0:
                parts.append(self._file.read(missing))
            return b"".join(parts)

    def _write(self, k: int, data: bytes) -> None:
        """Where the block was before, if there is room enough, or at the end."""
        with self._lock:
            if self._file is None:
                # Without a buffer: what a full disk refused would be refused again when the file is closed.
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
