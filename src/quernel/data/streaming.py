"""Out-of-core design matrix: rows read from files, a few blocks at a time, in every pass.

Memory does not grow with the number of rows, except for the row state of a solver, which is spilled to disk beyond its
budget (`SpilledRowState`). Features are computed again in every pass: reading them back from a disk was slower, or
hardly faster. A random sample is drawn once, in one pass over the raw rows; smaller samples are the first rows of it.
"""

from __future__ import annotations

import pickle
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from quernel._machine import Answer, blocks, parallel_map
from quernel.data.design_matrix import (
    SIZE_ROWS,
    Block,
    BlockState,
    FeatureMap,
    InMemoryDesign,
    ProjectedMap,
    Reduce,
    RemoteStub,
    Step,
    memory_budget,
    stratified_indices,
)
from quernel.data.sources import ArrayRows, Piece, RowSource, begin_pass

Array = NDArray[np.floating]


@dataclass(frozen=True)
class StreamingOptions:
    """How the memory budget is divided."""

    # Fractions of the memory budget: for row state, and for the features of a sample or of the active rows.
    state_share: float = 0.25
    feature_share: float = 0.25
    # Bytes that a sample may take however small the budget is. Problems of that size are solved in memory as a whole
    # (`solvers.screening`), and a poor warm start costs many times more than a sample.
    always_sampled: int = 16_000_000
    # Results are reduced so many at a time, as they come.
    fan_in: int = 16


OPTIONS = StreamingOptions()


class StreamedDesign:
    """Design matrix Phi = feature_map(X) of a `RowSource`, recomputed in every pass.

    Parameters
    ----------
    source : RowSource
    feature_map : object with `transform` and `n_components_`
    total, largest : float
        Sum of all weights, and the largest of them.
    max_memory : int or None
        Memory budget in bytes; None is half of the free memory.
    threads : int
        Number of threads that share a pass; each reads its own part of the files.
    """

    returns_rows = False
    random_access = False
    cached = False
    rounded = False
    n_duals = 0

    def __init__(
        self,
        source: RowSource,
        feature_map: FeatureMap,
        *,
        total: float,
        largest: float,
        max_memory: int | None = None,
        threads: int = 1,
    ) -> None:
        self.source, self.feature_map = source, feature_map
        self.n_rows, self.n_features = source.n_rows, feature_map.n_components_
        self.threads, self.total, self.largest_share = threads, total, largest / total
        self.allowed = memory_budget(max_memory)
        # A block of raw rows may be too large once it is transformed: each is cut into blocks of Phi. The first of
        # those of block k of the source has the number `_first[k]`.
        self._parts = [list(blocks(span.stop - span.start, self.n_features)) for span in source.spans]
        self.spans = [
            slice(span.start + part.start, span.start + part.stop)
            for span, parts in zip(source.spans, self._parts, strict=True)
            for part in parts
        ]
        self._first = np.cumsum([0, *(len(parts) for parts in self._parts)])
        self._shared = _Shared()
        self._columns: NDArray[np.intp] | None = None
        if hasattr(feature_map, "prepare"):
            feature_map.prepare(self.n_rows)

    def use_threads(self, threads: int) -> None:
        """Share passes among so many threads."""
        self.threads = threads

    def as_float64(self) -> StreamedDesign:
        """The rows themselves, whose features are never rounded."""
        return self

    @property
    def most_stored(self) -> int:
        """Largest size of a random sample whose features (m, M) are stored."""
        return min(max(int(self._room / (8 * self.n_features)), SIZE_ROWS), self.most_sampled)

    @property
    def most_sampled(self) -> int:
        """Largest size of a random sample: above `most_stored`, raw rows are kept and transformed in every pass."""
        return max(int(self._room / (8 * (self.source.n_columns + 1))), SIZE_ROWS)

    @property
    def _room(self) -> float:
        """Bytes that a sample may take, as raw rows or as features."""
        return max(OPTIONS.feature_share * self.allowed, OPTIONS.always_sampled)

    def take(self, columns: NDArray[np.intp]) -> StreamedDesign:
        """The same rows for some of the fits; the sample is shared."""
        subset = copy(self)
        subset._columns = columns if self._columns is None else self._columns[columns]
        return subset

    def _targets(self, y: Array) -> Array:
        """Columns of y (m, q) that belong to the chosen fits; y itself where all fits share a target (m,)."""
        return y if y.ndim == 1 or self._columns is None else y[:, self._columns]

    def in_memory(self, reason: str, *, instead: str = "solver='newton'") -> InMemoryDesign:
        """Raise a ValueError that begins with `reason` and names the alternative `instead`."""
        raise ValueError(
            f"{reason}, but these {self.n_rows:,} rows are read from files in every pass. Use {instead}, or rows that "
            "fit in memory."
        )

    def sample(
        self, size: int, rng: np.random.Generator, basis: Array | None = None, *, stored: bool = True
    ) -> InMemoryDesign:
        """A random sample of `size` rows in memory, with features Phi, or Phi B with a basis B (M, k).

        stored=False keeps the raw rows and transforms them in every pass over the sample. The largest sample allowed is
        drawn at the first call, so that later calls read nothing.
        """
        drawn = self._shared.drawn
        if drawn is None or drawn.n_rows < size:
            drawn = self._shared.drawn = self._draw(min(max(size, self.most_sampled), self.n_rows), rng)
        drawn.threads = self.threads
        sample = drawn.sample(size, rng, basis) if stored else self._first_rows(drawn, size, basis)
        return sample if self._columns is None else sample.take(self._columns)

    def _first_rows(self, drawn: InMemoryDesign, size: int, basis: Array | None) -> InMemoryDesign:
        """Design matrix of the first rows of a sample, whose features are not stored."""
        X, y, weight = drawn.source.X, drawn.source.y, drawn.source.weight
        first = ArrayRows(X[:size], y[:size], None if weight is None else weight[:size])
        feature_map = self.feature_map if basis is None else ProjectedMap(self.feature_map, basis)
        return InMemoryDesign(first, feature_map, shuffled=True, max_memory=0, threads=self.threads)

    def _draw(self, size: int, rng: np.random.Generator) -> InMemoryDesign:
        """Draw a stratified random sample in random order: one pass over the raw rows; no feature is computed."""
        chosen = stratified_indices(
            self.n_rows, size, rng
        )  # increasing, so chosen[bounds[k]:bounds[k+1]] are block k's
        bounds = np.searchsorted(chosen, [span.start for span in self.source.spans] + [self.n_rows])
        order = rng.permutation(size)
        position = np.argsort(order)
        # X is by far the largest array: its rows are written to their final positions at once, not reordered later.
        X = np.empty((size, self.source.n_columns))

        def take_rows(k: int, piece: Piece) -> list[Piece]:
            index = chosen[bounds[k] : bounds[k + 1]] - self.source.spans[k].start
            assert piece.X is not None
            X[position[bounds[k] : bounds[k + 1]]] = piece.X[index]
            return [Piece(None, piece.y[index], None if piece.weight is None else piece.weight[index])]

        pieces = self._pass(take_rows, reduce=lambda results: [piece for result in results for piece in result])
        y = np.concatenate([piece.y for piece in pieces])[order]
        weight = np.concatenate([piece.weight for piece in pieces])[order] if self.source.weighted else None
        return InMemoryDesign(ArrayRows(X, y, weight), self.feature_map, shuffled=True, max_memory=0)

    def gather(self, size: int, rng: np.random.Generator) -> InMemoryDesign:
        """A random sample of `size` rows in memory."""
        return self.sample(size, rng)

    def remote(self) -> RemoteStub:
        """Stub that stands in for these rows in a problem handed to `run_at`."""
        return RemoteStub(self.feature_map, int(OPTIONS.feature_share * self.allowed), self.threads)

    def kernel_scale(self) -> float:
        """Scale of the kernel: mean |phi_i|^2 over SIZE_ROWS rows of the sample."""
        return self.sample(min(SIZE_ROWS, self.n_rows), np.random.default_rng(0)).kernel_scale()

    def project(self, basis: Array) -> StreamedDesign:
        """Project on a basis B (M, k): the same rows with the features Phi B."""
        inner = StreamedDesign(
            self.source, ProjectedMap(self.feature_map, basis), total=self.total,
            largest=self.largest_share * self.total, max_memory=int(self.allowed), threads=self.threads,
        )  # fmt: skip
        return inner if self._columns is None else inner.take(self._columns)

    def new_state(self, **arrays: Array) -> SpilledRowState:
        """Empty row state; initial arrays are refused, for they would be as long as the files."""
        if arrays:
            raise ValueError("Row state of rows that are read from files must start empty: pass no arrays.")
        return SpilledRowState(len(self.spans), int(OPTIONS.state_share * self.allowed))

    def map_reduce(
        self,
        step: Step,
        state: SpilledRowState,
        args: object = None,
        *,
        reduce: Reduce,
        per_block_args: list[Any] | None = None,
    ) -> Any:
        """Apply `step` to every block and reduce the results with `reduce`: one pass over Phi.

        Parameters as in `InMemoryDesign.map_reduce`.
        """
        state.sweeps += 1
        return self._map_blocks(step, state, args, per_block_args, reduce)

    def map_reduce_split(
        self, step: Step, state: SpilledRowState, args: object = None, *, reduce: Reduce
    ) -> tuple[Any, Any]:
        """Like `map_reduce`, for results (small, large); `block.raw` is there, so that steps can return raw rows.

        The rows pass through this process, so both results are returned as they are.
        """
        state.sweeps += 1
        small, large = self._map_blocks(step, state, args, None, reduce)
        return small, large

    def map_rows(self, step: Step, state: SpilledRowState, args: object = None, *, reduce: Reduce) -> Any:
        """Like `map_reduce`, for steps that need no features: only targets and weights are read, and no pass counts."""
        return self._map_blocks(step, state, args, None, reduce, X=False)

    def run_at(self, function: Callable[..., tuple[Any, Any]], *args: object) -> tuple[Any, Any]:
        """Call function(*args) -> (stays, returned): in this process, where large results are."""
        return function(*args)

    def submit(self, function: Callable[..., Answer], *args: object) -> Callable[[], Answer]:
        """function(*args), called when its result is asked for: two passes at a time would compete for the disk."""
        return partial(function, *args)

    def _map_blocks(
        self,
        step: Step,
        state: SpilledRowState,
        args: object,
        per_block_args: list[Any] | None,
        reduce: Reduce,
        *,
        X: bool = True,
    ) -> Any:
        """Apply `step` to every block of Phi; X=False reads no X, for steps that need no features."""
        no_features = np.empty((0, self.n_features))

        def run_piece(k: int, piece: Piece) -> Any:
            share = np.full(len(piece.y), 1 / self.total) if piece.weight is None else piece.weight / self.total
            results = []
            for number, part in enumerate(self._parts[k], start=int(self._first[k])):
                raw = piece.X[part] if piece.X is not None else None
                Phi = no_features if raw is None else self.feature_map.transform(raw)
                block = Block(Phi, self._targets(piece.y[part]), share[part], self.spans[number].start, raw)
                block_args = () if per_block_args is None else (per_block_args[number],)
                with state.open(number) as block_state:
                    results.append(step(block, block_state, args, *block_args))
            return reduce(results)

        return self._pass(run_piece, reduce=reduce, X=X)

    def _pass(self, function: Callable[[int, Piece], Any], *, reduce: Reduce, X: bool = True) -> Any:
        """Map-reduce over the blocks of the source: each thread streams a contiguous run of them.

        Passes over X report the rows done to whoever watches progress (`sources.watching`).
        """
        n_blocks = len(self.source.spans)
        threads = max(1, min(self.threads, n_blocks))
        runs = [range(n_blocks * t // threads, n_blocks * (t + 1) // threads) for t in range(threads)]

        count_rows = begin_pass(self.n_rows) if X else None

        def run_piece(k: int, piece: Piece) -> Any:
            result = function(k, piece)
            if count_rows is not None:
                count_rows(len(piece.y))
            return result

        def read_run(run: range) -> Any:
            stream = self.source.stream(run, X=X)
            return _tree_reduce((run_piece(k, piece) for k, piece in zip(run, stream, strict=True)), reduce)

        return reduce(parallel_map(read_run, runs, threads))


class _Shared:
    """What copies of the same design matrix (by `take`) have in common."""

    drawn: InMemoryDesign | None = None  # the largest sample so far, in random order, as raw rows


def _tree_reduce(results: Iterator[Any], reduce: Reduce) -> Any:
    """Reduce results as they come, `fan_in` at a time and in order.

    levels[l] holds results that each stand for `fan_in`^l blocks, fewer than `fan_in` of them: only O(log n_blocks)
    results are in memory at a time.
    """
    levels: list[list[Any]] = [[]]
    for result in results:
        levels[0].append(result)
        level = 0
        while len(levels[level]) == OPTIONS.fan_in:
            if level + 1 == len(levels):
                levels.append([])
            levels[level + 1].append(reduce(levels[level]))
            levels[level] = []
            level += 1
    return reduce([result for level in reversed(levels) for result in level])


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
