"""What is done to a part of the rows, where that part is.

Plain functions of plain values, each the body of one task. None changes what it is given: a task may have to be done
again, on another worker, and must then find what it found the first time.
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

# Names and numbers of glibc's <malloc.h>: free memory is kept up to the first, arrays up to the second come from it.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT, LARGE = 256 * 2**20, 32 * 2**20


@cache
def keep_freed_memory() -> bool:
    """Let this process keep some free memory; whether it could be told to. Once is enough."""
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
    """Consecutive rows, and where the blocks lie in them; `start` is the number of the first among all rows."""

    X: Array
    y: Array
    share: Array
    start: int
    spans: list[slice]


@dataclass(frozen=True, eq=False)
class Lift:
    """From X to features of this type."""

    feature_map: FeatureMap
    dtype: Any = float

    def __call__(self, X: Array) -> Array:
        """The features of these rows."""
        kind = {} if self.dtype is float else {"dtype": self.dtype}  # not every feature map knows of types
        return np.asarray(self.feature_map.transform(X, **kind), dtype=self.dtype)

    def prepare(self, n_rows: int) -> None:
        """Get ready for so many rows."""
        if hasattr(self.feature_map, "prepare"):
            self.feature_map.prepare(n_rows)


class TaskOutput(NamedTuple):
    """What a task leaves behind: something that stays where it is, and something small that may travel."""

    stays: Any
    small: Any


class Transfer(NamedTuple):
    """An answer on its way, and how many bytes were moved for it before."""

    answer: Any
    moved: int


def pack(value: Any) -> bytes:
    """Functions and messages as bytes, once for all tasks."""
    import cloudpickle

    return cloudpickle.dumps(value)


def n_bytes(value: Any) -> int:
    """What it takes to send this: arrays are counted, not copied."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


# Rows


def weight_stats(piece: Piece) -> tuple[float, float]:
    """Total and largest weight."""
    if piece.weight is None:
        return float(len(piece.y)), 1.0
    return float(piece.weight.sum()), float(piece.weight.max(initial=0))


def cut(piece: Piece, start: int, stop: int) -> Piece:
    """Some of the rows of a piece: a copy, so that the others need not stay."""
    X, y, weight = (None if array is None else array[start:stop].copy() for array in piece)
    return Piece(X, y, weight)  # type: ignore[arg-type]


def part_of(pieces: Sequence[Piece], total: float, start: int, spans: list[slice]) -> Part:
    """The rows of these pieces, with their share of the total weight."""
    keep_freed_memory()
    X, y = _joined([piece.X for piece in pieces]), _joined([piece.y for piece in pieces])
    if pieces[0].weight is None:
        return Part(X, y, np.full(len(y), 1 / total), start, spans)
    return Part(X, y, _joined([piece.weight for piece in pieces]) / total, start, spans)


def _joined(arrays: Sequence[Any]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def lift_part(part: Part, lift: Lift) -> list[Array]:
    """The features of every block."""
    lift.prepare(len(part.y))
    with single_threaded_blas(0, 0):
        features = lift(part.X)  # one piece of memory: the system clears it fastest
    return [features[span] for span in part.spans]


def mean_square(part: Part, lift: Lift) -> float:
    """mean |phi|^2 over the first rows."""
    first = lift(part.X[:SIZE_ROWS])
    return float(np.mean(np.einsum("ij,ij->i", first, first)))


# Folds


def fold_part(
    parcel: bytes,
    part: Part,
    features: list[Array] | Lift | int,
    kept: TaskOutput | None,
    each: Sequence[Any] | None,
    columns: NDArray[np.intp] | None,
) -> TaskOutput:
    """The step at every block of a part: new memories, which stay, and the joined answer.

    `features` are those of the blocks, or what makes them; a mere number of columns where the step looks at none.
    """
    step, join, message = pickle.loads(parcel)
    memories = [_copied(memory) for memory in kept.stays] if kept is not None else [{} for _ in part.spans]
    if isinstance(features, Lift):
        features.prepare(len(part.y))
    answers = []
    with single_threaded_blas(0, 0):
        for k, span in enumerate(part.spans):
            target = part.y[span] if columns is None or part.y.ndim == 1 else part.y[span][:, columns]
            if isinstance(features, Lift):
                phi = features(part.X[span])
            else:
                phi = np.empty((0, features)) if isinstance(features, int) else features[k]
            block = Block(phi, target, part.share[span], part.start + span.start, part.X[span])
            extra = () if each is None else (each[k],)
            answers.append(step(block, memories[k], message, *extra))
        return TaskOutput(memories, join(answers))


def _copied(memory: BlockState) -> BlockState:
    """A memory that a step may write into."""
    return {name: array.copy(order="K") if isinstance(array, np.ndarray) else array for name, array in memory.items()}


def take_columns(kept: TaskOutput | None, columns: NDArray[np.intp]) -> TaskOutput | None:
    """What is remembered of some of the columns."""
    if kept is None:
        return None
    return TaskOutput([{name: array[:, columns] for name, array in memory.items()} for memory in kept.stays], None)


def answer_of(kept: TaskOutput) -> Transfer:
    """The answer alone, without what stays."""
    return Transfer(kept.small, 0)


def joined(parcel: bytes, answers: Sequence[Transfer]) -> Transfer:
    """Several answers as one."""
    _, join, _ = pickle.loads(parcel)
    with single_threaded_blas(0, 0):
        answer = join([one.answer for one in answers])
    return Transfer(answer, sum(one.moved + n_bytes(one.answer) for one in answers))


def joined_apart(parcel: bytes, answers: Sequence[Transfer]) -> TaskOutput:
    """Several pairs (small, large) as one, of which the large part stays."""
    (small, large), moved = joined(parcel, answers)
    return TaskOutput(large, Transfer(small, moved))


def small_part(kept: TaskOutput) -> Any:
    """What may travel."""
    return kept.small


def entries(kept: Any, start: int, stop: int) -> Any:
    """Some entries of a list that is held here."""
    return held(kept)[start:stop]


def held(value: Any) -> Any:
    """What a handle stands for."""
    return value.stays if isinstance(value, TaskOutput) else value


# Samples and calls


def call_here(parcel: bytes, places: Sequence[int], *handles: Any) -> TaskOutput:
    """The function of its own arguments and, at these places, of what handles stand for."""
    function, arguments = pickle.loads(parcel)
    for place, handle in zip(places, handles, strict=True):
        arguments[place] = [held(one) for one in handle] if isinstance(handle, list) else held(handle)
    with single_threaded_blas(0, 0):
        stays, small = function(*arguments)
    return TaskOutput(stays, small)


class SamplePlan(NamedTuple):
    """A random order of all rows, of which a sample is the beginning; the same wherever it is worked out.

    The rows of each part come in random order, the j-th of m at a random place between j / m and (j + 1) / m of the
    whole: every beginning then holds each part's share, up to a row, wherever the parts come from.
    """

    seed: int
    lengths: tuple[int, ...]

    def first(self, size: int) -> tuple[list[int], NDArray[np.intp]]:
        """How many of the first rows each part gives, and their order when these are laid end to end."""
        n, n_parts = sum(self.lengths), len(self.lengths)
        candidates = [min(m, (size + n_parts) * m // n + 2) for m in self.lengths]
        places = [
            (np.arange(c) + np.random.default_rng([self.seed, k, 0]).random(c)) / m
            for k, (c, m) in enumerate(zip(candidates, self.lengths, strict=True))
        ]
        chosen = np.argsort(np.concatenate(places), kind="stable")[:size]
        owner = np.repeat(np.arange(n_parts), candidates)[chosen]
        counts = np.bincount(owner, minlength=n_parts)
        # Within a part, places rise: its c chosen rows are its first c.
        beginning, dropped = np.cumsum(candidates) - candidates, np.cumsum(counts) - counts
        return counts.tolist(), chosen - beginning[owner] + dropped[owner]

    def rows(self, k: int, count: int) -> NDArray[np.intp]:
        """The first rows of part k."""
        return np.random.default_rng([self.seed, k, 1]).permutation(self.lengths[k])[:count]


def draw(part: Part, drawing: bytes, k: int, count: int, columns: NDArray[np.intp] | None) -> Piece:
    """Part k's rows of a sample."""
    rows = pickle.loads(drawing).rows(k, count)
    y = part.y[rows] if columns is None or part.y.ndim == 1 else part.y[rows][:, columns]
    return Piece(part.X[rows], y, part.share[rows])


def sample_of(
    drawing: bytes, size: int, pieces: Sequence[Piece], lift: Lift, basis: Array | None, weighted: bool, threads: int
) -> InMemoryDesign:
    """The sample itself, in random order."""
    _, order = pickle.loads(drawing).first(size)
    X, y, weight = (np.concatenate(arrays)[order] for arrays in zip(*pieces, strict=True))
    source = ArrayRows(X, y, weight if weighted else None)
    lift.prepare(size)
    with single_threaded_blas(0, 0):
        rows = InMemoryDesign(source, lift.feature_map, shuffled=True, max_memory=0, threads=threads)
        return rows.sample(size, np.random.default_rng(0), basis)
