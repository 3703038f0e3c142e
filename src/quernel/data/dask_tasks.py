"""Bodies of the Dask tasks of `dask_design`: what is done to a part of the rows, on the worker that holds it.

Plain functions of plain values. None of them changes its arguments: if a worker is lost, Dask runs a task again on
another one, and it must then find the inputs of the first run.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quernel._threads import single_threaded_blas
from quernel.data.design_matrix import SIZE_ROWS, Block, BlockState, FeatureMap, InMemoryDesign
from quernel.data.sources import ArrayRows, Piece

# Parameters of glibc's mallopt (<malloc.h>), and the bytes that they are set to: up to 256 MiB of free memory stay with
# the process, and arrays up to 32 MiB are allocated from it. A pass then reuses the memory of its last block instead of
# requesting cleared pages from the system for every block.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT, LARGE = 256 * 2**20, 32 * 2**20


@cache
def keep_freed_memory() -> bool:
    """Let this process keep freed memory for reuse, once; returns whether the C library supports it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT)) and bool(mallopt(M_MMAP_THRESHOLD, LARGE))


Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Part:
    """Consecutive rows on one worker, and how they are divided into blocks."""

    X: Array  # (m, d)
    y: Array  # (m,) or (m, q)
    share: Array  # (m,), normalized weights w_i / W
    start: int  # index of the first row among all rows
    spans: list[slice]  # the rows of each block, within the part


@dataclass(frozen=True, eq=False)
class Lift:
    """Feature map with the dtype in which features are computed."""

    feature_map: FeatureMap
    dtype: Any = float

    def __call__(self, X: Array) -> Array:
        """Phi (m, M) of the rows X (m, d)."""
        kwargs = {} if self.dtype is float else {"dtype": self.dtype}  # not every feature map takes a dtype
        return np.asarray(self.feature_map.transform(X, **kwargs), dtype=self.dtype)

    def prepare(self, n_rows: int) -> None:
        """Prepare the feature map for so many rows, where it has something to prepare."""
        if hasattr(self.feature_map, "prepare"):
            self.feature_map.prepare(n_rows)


class TaskOutput(NamedTuple):
    """Output of a task: a large value that stays on its worker, and a small one that may be sent."""

    stays: Any
    small: Any


class Transfer(NamedTuple):
    """A result on its way to the client, and the bytes that were sent between workers to reduce it so far."""

    result: Any
    moved: int


def pack(value: Any) -> bytes:
    """Pickle functions and arguments once for all tasks; cloudpickle also takes lambdas and local functions."""
    import cloudpickle

    return cloudpickle.dumps(value)


def n_bytes(value: Any) -> int:
    """Size of a pickled value; arrays are counted out of band (pickle protocol 5), not copied."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


# Rows


def weight_stats(piece: Piece) -> tuple[float, float]:
    """Sum and maximum of the weights of one chunk."""
    if piece.weight is None:
        return float(len(piece.y)), 1.0
    return float(piece.weight.sum()), float(piece.weight.max(initial=0))


def slice_piece(piece: Piece, start: int, stop: int) -> Piece:
    """Rows start:stop of a chunk, copied: a view would keep the whole chunk in memory."""
    X, y, weight = (None if array is None else array[start:stop].copy() for array in piece)
    return Piece(X, y, weight)  # type: ignore[arg-type]


def make_part(pieces: Sequence[Piece], total: float, start: int, spans: list[slice]) -> Part:
    """Concatenate chunks, or slices of them, into a part; `total` is the weight W of all rows."""
    keep_freed_memory()
    X, y = _concatenate([piece.X for piece in pieces]), _concatenate([piece.y for piece in pieces])
    if pieces[0].weight is None:
        return Part(X, y, np.full(len(y), 1 / total), start, spans)
    return Part(X, y, _concatenate([piece.weight for piece in pieces]) / total, start, spans)


def _concatenate(arrays: Sequence[Any]) -> Array:
    """np.concatenate, without a copy of a single array."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def lift_part(part: Part, lift: Lift) -> list[Array]:
    """Features (m, M) of every block of a part, to be stored."""
    lift.prepare(len(part.y))
    with single_threaded_blas(0, 0):
        features = lift(part.X)  # one allocation: the system clears its pages fastest
    return [features[span] for span in part.spans]


def mean_square(part: Part, lift: Lift) -> float:
    """mean |phi_i|^2 over the first SIZE_ROWS rows of a part."""
    first = lift(part.X[:SIZE_ROWS])
    return float(np.mean(np.einsum("ij,ij->i", first, first)))


# Map-reduce


def map_part(
    parcel: bytes,
    part: Part,
    features: list[Array] | Lift | int,
    kept: TaskOutput | None,
    each: Sequence[Any] | None,
    columns: NDArray[np.intp] | None,
) -> TaskOutput:
    """Apply a step to every block of a part; its output is the new row state, which stays, and the reduced result.

    Parameters
    ----------
    parcel : bytes
        Pickled (step, join, args).
    part : Part
    features : list of arrays, Lift or int
        Stored features of the blocks; the feature map that computes them; or their number M, where the step needs none.
    kept : TaskOutput or None
        Output of the task that made the present row state; None: it is empty.
    each : sequence or None
        Arguments of each block.
    columns : array of int or None
        Columns of y (m, q) that belong to the fits at hand; None is all.
    """
    step, join, args = pickle.loads(parcel)
    states = [_copy_state(state) for state in kept.stays] if kept is not None else [{} for _ in part.spans]
    if isinstance(features, Lift):
        features.prepare(len(part.y))
    results = []
    with single_threaded_blas(0, 0):
        for k, span in enumerate(part.spans):
            target = part.y[span] if columns is None or part.y.ndim == 1 else part.y[span][:, columns]
            if isinstance(features, Lift):
                phi = features(part.X[span])
            else:
                phi = np.empty((0, features)) if isinstance(features, int) else features[k]
            block = Block(phi, target, part.share[span], part.start + span.start, part.X[span])
            extra = () if each is None else (each[k],)
            results.append(step(block, states[k], args, *extra))
        return TaskOutput(states, join(results))


def _copy_state(state: BlockState) -> BlockState:
    """A copy that a step may overwrite: the original belongs to an earlier task."""
    return {name: array.copy(order="K") if isinstance(array, np.ndarray) else array for name, array in state.items()}


def take_columns(kept: TaskOutput | None, columns: NDArray[np.intp]) -> TaskOutput | None:
    """Row state of some of the columns (fits)."""
    if kept is None:
        return None
    return TaskOutput([{name: array[:, columns] for name, array in state.items()} for state in kept.stays], None)


def result_of(kept: TaskOutput) -> Transfer:
    """The result of a part, without its row state."""
    return Transfer(kept.small, 0)


def reduce_results(parcel: bytes, results: Sequence[Transfer]) -> Transfer:
    """Reduce several results to one: an inner node of the tree."""
    _, join, _ = pickle.loads(parcel)
    with single_threaded_blas(0, 0):
        result = join([one.result for one in results])
    return Transfer(result, sum(one.moved + n_bytes(one.result) for one in results))


def reduce_split(parcel: bytes, results: Sequence[Transfer]) -> TaskOutput:
    """Reduce several pairs (small, large) to one, whose large part stays on this worker: the root of the tree."""
    (small, large), moved = reduce_results(parcel, results)
    return TaskOutput(large, Transfer(small, moved))


def small_part(kept: TaskOutput) -> Any:
    """The part of a task's output that may be sent."""
    return kept.small


def slice_list(kept: Any, start: int, stop: int) -> Any:
    """Entries start:stop of a list that a handle stands for."""
    return resolve(kept)[start:stop]


def resolve(value: Any) -> Any:
    """The value that a handle stands for: what stays of a task's output, or the value itself."""
    return value.stays if isinstance(value, TaskOutput) else value


# Samples and function calls


def call_function(parcel: bytes, positions: Sequence[int], *handles: Any) -> TaskOutput:
    """Call a pickled (function, arguments), with the values of `handles` as the arguments at these positions."""
    function, arguments = pickle.loads(parcel)
    for position, handle in zip(positions, handles, strict=True):
        arguments[position] = [resolve(one) for one in handle] if isinstance(handle, list) else resolve(handle)
    with single_threaded_blas(0, 0):
        stays, small = function(*arguments)
    return TaskOutput(stays, small)


class SamplePlan(NamedTuple):
    """A random order of all rows, of which every sample is the beginning: workers derive the same one from the seed.

    The rows of each part are permuted, and the j-th of its m rows receives a random key between j / m and (j + 1) / m;
    the order is that of the keys. Every sample is thereby stratified by part: it holds rows of each in proportion to
    their lengths, up to a row.
    """

    seed: int
    lengths: tuple[int, ...]  # rows of each part

    def first(self, size: int) -> tuple[list[int], NDArray[np.intp]]:
        """The number of rows that each part contributes to a sample, and their order once they are concatenated."""
        n, n_parts = sum(self.lengths), len(self.lengths)
        # Bounds on the numbers of rows from each part: only these need keys.
        candidates = [min(m, (size + n_parts) * m // n + 2) for m in self.lengths]
        keys = [
            (np.arange(c) + np.random.default_rng([self.seed, k, 0]).random(c)) / m
            for k, (c, m) in enumerate(zip(candidates, self.lengths, strict=True))
        ]
        chosen = np.argsort(np.concatenate(keys), kind="stable")[:size]
        owner = np.repeat(np.arange(n_parts), candidates)[chosen]
        counts = np.bincount(owner, minlength=n_parts)
        # Keys increase within a part, so its c chosen rows are its first c: from indices among all candidates to
        # indices among the chosen ones, only the offsets of the parts change.
        candidate_offset, chosen_offset = np.cumsum(candidates) - candidates, np.cumsum(counts) - counts
        return counts.tolist(), chosen - candidate_offset[owner] + chosen_offset[owner]

    def rows(self, k: int, count: int) -> NDArray[np.intp]:
        """Indices, within part k, of the rows that it contributes."""
        return np.random.default_rng([self.seed, k, 1]).permutation(self.lengths[k])[:count]


def sample_part(part: Part, plan: bytes, k: int, count: int, columns: NDArray[np.intp] | None) -> Piece:
    """The rows that part k contributes to a sample; their shares stand in for weights."""
    rows = pickle.loads(plan).rows(k, count)
    y = part.y[rows] if columns is None or part.y.ndim == 1 else part.y[rows][:, columns]
    return Piece(part.X[rows], y, part.share[rows])


def gather_sample(
    plan: bytes, size: int, pieces: Sequence[Piece], lift: Lift, basis: Array | None, weighted: bool, threads: int
) -> InMemoryDesign:
    """The sample as a design matrix on this worker, in random order, with features Phi, or Phi B, stored."""
    _, order = pickle.loads(plan).first(size)
    X, y, weight = (np.concatenate(arrays)[order] for arrays in zip(*pieces, strict=True))
    source = ArrayRows(X, y, weight if weighted else None)
    lift.prepare(size)
    with single_threaded_blas(0, 0):
        rows = InMemoryDesign(source, lift.feature_map, shuffled=True, max_memory=0, threads=threads)
        return rows.sample(size, np.random.default_rng(0), basis)
