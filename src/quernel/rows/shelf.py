"""What is remembered of rows that pass by: in memory as far as that goes, on disk beyond."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quernel.rows.lifted import BlockMemory


class ShelvedMemory:
    """The memories of all blocks, and how often the rows were swept.

    Together they take at most `room` bytes of memory; what is beyond lies in a temporary folder until it is asked for.
    """

    def __init__(self, n_blocks: int, room: int) -> None:
        self.sweeps = 0
        self._room = room
        self._kept: list[BlockMemory | None] = [{} for _ in range(n_blocks)]
        self._sizes = [0] * n_blocks
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @contextmanager
    def open(self, k: int) -> Iterator[BlockMemory]:
        """The memory of block k, to be read and overwritten; two threads never open the same."""
        block = self._fetch(k)
        yield block
        self._put(k, block)

    def take(self, columns: NDArray[np.intp]) -> ShelvedMemory:
        """What is remembered of some of the columns."""
        some = ShelvedMemory(len(self._kept), self._room)
        some.sweeps = self.sweeps
        for k in range(len(self._kept)):
            some._put(k, {name: array[:, columns] for name, array in self._fetch(k).items()})
        return some

    @property
    def on_disk(self) -> int:
        """How many blocks lie on disk."""
        return sum(block is None for block in self._kept)

    def _fetch(self, k: int) -> BlockMemory:
        block = self._kept[k]
        if block is None:
            with self._file(k).open("rb") as file:
                block = pickle.load(file)
        return block

    def _put(self, k: int, block: BlockMemory) -> None:
        size = sum(array.nbytes for array in block.values())
        fits = sum(self._sizes) - self._sizes[k] + size <= self._room
        if not fits:
            with self._file(k).open("wb") as file:
                pickle.dump(block, file, protocol=5)
        self._kept[k], self._sizes[k] = (block, size) if fits else (None, 0)

    def _file(self, k: int) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="quernel-")
        return Path(self._folder.name) / f"{k}.pickle"
