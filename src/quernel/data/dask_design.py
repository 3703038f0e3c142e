"""Rows in feature space, spread over the workers of a cluster (or the threads and processes of this machine).

The rows are cut into parts, about one for each thread of the workers; a part is a future, as are its features, if they
fit, and what is remembered of its rows. A sweep is one graph: the message goes out with the tasks, a task per part
applies the step to its blocks, answers are joined in a tree, and a few small ones come back. No row ever does.

Tasks change nothing that they are given: each fold makes new memories from the old. Should a worker be lost, Dask does
its tasks again, from the chunks on, and the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import dask_design
from quernel.data import dask_tasks as bodies
from quernel.data.dask import DaskRows
from quernel.data.design_matrix import SIZE_ROWS, FeatureMap, Float32Map, Join, ProjectedMap, RemoteStub, Step
from quernel.data.schedulers import Handle, Scheduler, Task, current, leaf
from quernel.data.sources import RowsError
from quernel.features.blocks import blocks

# A part has so many entries of Phi at least: a task costs some milliseconds, whatever it does.
SMALL_PART = 500_000
# A part ends where a chunk does if that makes it no more than so much longer or shorter.
SLACK = 0.25


def cuts(lengths: list[int], n_features: int, threads: int) -> list[int]:
    """Where parts begin and end: a part per thread, of equal size or nearly so, at the ends of chunks if they allow."""
    n = sum(lengths)
    n_parts = min(threads, -(-n * n_features // SMALL_PART), n)
    ends, size = np.cumsum(lengths), n / n_parts
    found = [0]
    for k in range(1, n_parts):
        even = round(k * size)
        near = int(ends[np.argmin(np.abs(ends - even))])
        found.append(near if abs(near - even) <= SLACK * size else even)
    return [*found, n]


def places(threads: list[int], cuts: list[int], lengths: list[int], homes: Sequence[int | None]) -> list[int]:
    """The worker of each part: one that holds most of its rows if it has a thread to spare, any that has otherwise."""
    room = -(-(len(cuts) - 1) // sum(threads)) * np.asarray(threads)
    ends, held = np.cumsum(lengths), np.array([home is not None for home in homes])
    starts, holders = ends - lengths, np.array([home or 0 for home in homes])
    found = []
    for start, stop in pairwise(cuts):
        here = np.where(held, np.maximum(np.minimum(ends, stop) - np.maximum(starts, start), 0), 0)
        local = np.bincount(holders, here, len(threads))
        found.append(int(np.lexsort((local, room > 0))[-1]))
        room[found[-1]] -= 1
    return found


Array = NDArray[np.floating]
Index = NDArray[np.intp]

# Of a worker's memory: the features of a sample or of the rows in doubt.
LIFTED_SHARE = 0.2
# Features are looked at so many times before they are stored: a screened solve needs no more, and to fill fresh memory
# takes longer than to compute them again, a block at a time, where the last block was.
UNSTORED_LOOKS = 2
# Blocks are so many times smaller than those of rows at hand: memory of that size is used again rather than given back.
BLOCK_SHARE = 4
# So many answers are joined at a time.
FAN_IN = 8
# Messages up to so many bytes travel with each task; a larger one is a task of its own, from which workers fetch it.
SMALL_MESSAGE = 64 * 2**10


@dataclass
class Traffic:
    """What was sent: messages out to the tasks, answers on their way back, and rows gathered on one worker."""

    sweeps: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    bytes_gathered: int = 0


@dataclass
class _Store:
    """What is known of the features: copies of the same rows share it."""

    features: list[Handle] | None = None
    looks: int = 0
    size: float | None = None


class DistributedMemory:
    """What is remembered of the rows, part by part, where they are."""

    def __init__(self, scheduler: Scheduler, kept: list[Handle | None], sweeps: int = 0) -> None:
        self.scheduler, self.kept, self.sweeps = scheduler, kept, sweeps

    def take(self, columns: Index) -> DistributedMemory:
        """What is remembered of some of the columns."""
        task = _task(bodies.take_columns)
        tasks = [task(self.scheduler.use(kept), columns) for kept in self.kept]
        return DistributedMemory(self.scheduler, self.scheduler.compute(tasks)[0], self.sweeps)


class DaskDesign:
    """Rows of `source` seen through `feature_map`, where Dask has them.

    Parameters
    ----------
    source : DaskRows
    feature_map : object with `transform` and `n_components_`
    max_memory : int or None
        Bytes that stored features may take on all workers together; None is 0.4 of the workers' memory limits. Features
        that do not fit are computed again in every sweep.
    dtype : float64 or float32
        The type in which features are stored. Rounded ones are those of every sweep, from the first on, and of the rows
        in doubt; where they are not stored they are not rounded.
    """

    near = False
    shuffled = False

    def __init__(
        self, source: DaskRows, feature_map: FeatureMap, *, max_memory: int | None = None, dtype: Any = float
    ) -> None:
        self.source = source
        self.n_rows = source.n_rows
        self.scheduler = current()
        self.threads = self.scheduler.together
        self.traffic = Traffic()
        self.allowed = self.scheduler.feature_memory() if max_memory is None else max_memory
        self._cuts = dask_design.cuts(source.lengths, feature_map.n_components_, sum(self.scheduler.threads))
        self._parts, self.largest_share = self._load(feature_map.n_components_)
        self._columns: Index | None = None
        self._seed: list[int] = []
        self.dtype = dtype
        self._see(feature_map)

    @property
    def rounded(self) -> bool:
        """Whether sweeps have had rounded features."""
        return self._rounds and self._store.looks > 0

    @property
    def _rounds(self) -> bool:
        return self.cached and np.dtype(self.dtype) != float

    def as_float64(self) -> DaskDesign:
        """The same rows with features as they are computed, anew in every sweep; stored ones are forgotten."""
        exact = copy(self)
        exact.allowed, exact.dtype = 0, float
        exact._see(self.feature_map)
        self._store.features = None
        return exact

    @property
    def cached(self) -> bool:
        """Whether the features are stored, once it pays, rather than recomputed in every sweep."""
        return np.dtype(self.dtype).itemsize * self.n_rows * self.n_features <= self.allowed

    @property
    def spans(self) -> list[slice]:
        """Where the rows of each block lie among all."""
        return [
            slice(start + span.start, start + span.stop)
            for start, spans in zip(self._cuts, self._spans, strict=False)
            for span in spans
        ]

    def _load(self, n_features: int) -> tuple[list[Handle], float]:
        """The parts, and the largest share of the weight that a row has."""
        scheduler, lengths = self.scheduler, self.source.lengths
        chunks = self.source.chunks()
        weight_stats = _task(bodies.weight_stats)
        pieces, weights = scheduler.compute(chunks, [weight_stats(chunk) for chunk in chunks])
        total, largest = sum(weight for weight, _ in weights), max(largest for _, largest in weights)
        if not total > 0:
            raise RowsError("The weights sum to 0. At least one row must have a positive weight.")
        places = dask_design.places(scheduler.threads, self._cuts, lengths, scheduler.homes(pieces))
        self._spans = [list(blocks(stop - start, BLOCK_SHARE * n_features)) for start, stop in pairwise(self._cuts)]
        ends = np.cumsum(lengths)
        tasks = []
        for start, stop, spans, place in zip(self._cuts[:-1], self._cuts[1:], self._spans, places, strict=True):
            some = []
            for k in range(np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop) + 1):
                low, high = max(start - (ends[k] - lengths[k]), 0), min(stop - (ends[k] - lengths[k]), lengths[k])
                piece = scheduler.use(pieces[k])
                some.append(piece if high - low == lengths[k] else _task(bodies.cut)(piece, int(low), int(high)))
            with scheduler.at(place):
                tasks.append(_task(bodies.part_of)(some, total, start, spans))
        return scheduler.compute(tasks)[0], largest / total

    def _see(self, feature_map: FeatureMap) -> None:
        """Look at the rows through this."""
        self.feature_map, self.n_features = feature_map, feature_map.n_components_
        lift = bodies.Lift(feature_map, self.dtype if self._rounds else float)
        (self._lift,), _ = self.scheduler.compute([leaf(lift)])
        self._store = _Store()

    def _seen(self) -> list[Any]:
        """Each part's features, or what makes them: stored, if they fit, once they have been looked at often enough."""
        store, use = self._store, self.scheduler.use
        if self.cached and store.features is None and store.looks >= UNSTORED_LOOKS:
            tasks = [_task(bodies.lift_part)(use(part), use(self._lift)) for part in self._parts]
            store.features = self.scheduler.compute(tasks)[0]
        store.looks += 1
        return store.features or [self._lift] * len(self._parts)

    def take(self, columns: Index) -> DaskDesign:
        """The rows for some of the fits."""
        if self.source.y.ndim == 1:
            return self
        some = copy(self)
        some._columns = columns if self._columns is None else self._columns[columns]
        return some

    def within(self, basis: Array) -> DaskDesign:
        """The same rows with the features Phi B."""
        some = copy(self)
        some._see(ProjectedMap(self.feature_map, basis))
        return some

    def size(self) -> float:
        """mean |phi|^2 over the first rows: the scale of the kernel, roughly."""
        if self._store.size is None:
            use = self.scheduler.use
            task = _task(bodies.mean_square)(use(self._parts[0]), use(self._lift))
            _, (self._store.size,) = self.scheduler.compute([], [task])
        return self._store.size

    @property
    def most_sampled(self) -> int:
        """How many rows a sample may have, if its features shall fit on one worker."""
        return max(int(self._room / (8 * self.n_features)), SIZE_ROWS)

    most_stored = most_sampled

    @property
    def _room(self) -> float:
        """Bytes that the features of a sample, or of the rows in doubt, may take on one worker."""
        return LIFTED_SHARE * self.scheduler.worker_memory()

    def elsewhere(self) -> RemoteStub:
        """What is sent where these rows are."""
        feature_map = Float32Map(self.feature_map) if self._rounds else self.feature_map
        return RemoteStub(feature_map, int(self._room), self.threads)

    def as_array(self, reason: str, *, instead: str = "solver='newton'") -> Array:
        """Refused: the features are on the workers."""
        raise ValueError(
            f"{reason}, but {self.n_rows:,} rows x {self.n_features:,} features are spread over Dask workers. "
            f"Use {instead}, or rows in memory."
        )

    def new_memory(self, **arrays: Array) -> DistributedMemory:
        """A memory for every block, of these arrays of shape (n, q), if any: they are sent to the workers."""
        if not arrays:
            return DistributedMemory(self.scheduler, [None] * len(self._parts))
        tasks = []
        for start, spans in zip(self._cuts, self._spans, strict=False):
            places = [slice(start + span.start, start + span.stop) for span in spans]
            memories = [{name: array[place] for name, array in arrays.items()} for place in places]
            tasks.append(leaf(bodies.TaskOutput(memories, None)))
        return DistributedMemory(self.scheduler, self.scheduler.compute(tasks)[0])

    def map_reduce(
        self, step: Step, memory: DistributedMemory, message: Any = None, *, join: Join, each: Any = None
    ) -> Any:
        """The step's answers for all blocks, joined; `each` holds (or stands for) a further message for every block."""
        self._count(memory)
        return self._fold(step, memory, message, join, each, look=True)

    def map_rows(self, step: Step, memory: DistributedMemory, message: Any = None, *, join: Join) -> Any:
        """Like `map_reduce`, for steps that do not look at the features."""
        return self._fold(step, memory, message, join, None, look=False)

    def map_reduce_split(
        self, step: Step, memory: DistributedMemory, message: Any = None, *, join: Join
    ) -> tuple[Any, Handle]:
        """Like `map_reduce`, for answers of two parts: a small one that comes back, and one that stays on one worker."""
        self._count(memory)
        tasks, parcel, answers = self._tasks(step, memory, message, join, None, look=True)
        root = _task(bodies.joined_apart)(parcel, answers)
        (*memory.kept, handle), (carried,) = self.scheduler.compute([*tasks, root], [_task(bodies.small_part)(root)])
        self.traffic.bytes_in += bodies.n_bytes(carried.answer)
        self.traffic.bytes_gathered += carried.moved
        return carried.answer, self._held(handle)

    def _count(self, memory: DistributedMemory) -> None:
        memory.sweeps += 1
        self.traffic.sweeps += 1

    def _fold(self, step: Step, memory: DistributedMemory, message: Any, join: Join, each: Any, *, look: bool) -> Any:
        tasks, _, answers = self._tasks(step, memory, message, join, each, look=look)
        memory.kept, carried = self.scheduler.compute(tasks, answers)
        self.traffic.bytes_in += sum(one.moved + bodies.n_bytes(one.answer) for one in carried)
        return join([one.answer for one in carried])

    def _tasks(
        self, step: Step, memory: DistributedMemory, message: Any, join: Join, each: Any, *, look: bool
    ) -> tuple[list[Task], Any, list[Task]]:
        """A task for each part that takes the step at its blocks, what it is sent, and a few joined answers."""
        use, task, n_parts = self.scheduler.use, _task(bodies.fold_part), len(self._parts)
        parcel: Any = bodies.pack((step, join, message))
        self.traffic.bytes_out += len(parcel) * n_parts
        if len(parcel) > SMALL_MESSAGE:
            parcel = leaf(parcel)
        features: list[Any] = [self.n_features] * n_parts
        if look:
            features = [use(one) for one in self._seen()]
        tasks = [
            task(parcel, use(part), phi, None if kept is None else use(kept), own, self._columns)
            for part, phi, kept, own in zip(self._parts, features, memory.kept, self._dealt(each), strict=True)
        ]
        answers = [_task(bodies.answer_of)(task) for task in tasks]
        while len(answers) > FAN_IN:
            answers = [_task(bodies.joined)(parcel, answers[k : k + FAN_IN]) for k in range(0, len(answers), FAN_IN)]
        return tasks, parcel, answers

    def _dealt(self, each: Any) -> list[Any]:
        """Each part's entries of a list with one for every block, or of a handle to one."""
        ends = np.cumsum([0, *(len(spans) for spans in self._spans)]).tolist()
        if each is None:
            return [None] * len(self._spans)
        if self.scheduler.is_handle(each):
            return [_task(bodies.entries)(each, start, stop) for start, stop in pairwise(ends)]
        self.traffic.bytes_out += bodies.n_bytes(each)
        return [leaf(each[start:stop]) for start, stop in pairwise(ends)]

    def run_at(self, function: Callable, *args: Any) -> tuple[Handle, Any]:
        """Call a function where the handles among its arguments are: it returns (what stays, what comes back)."""
        if self.scheduler.here:
            return function(*args)
        places = [k for k, arg in enumerate(args) if self._stands_for_more(arg)]
        plain = [None if k in places else arg for k, arg in enumerate(args)]
        parcel: Any = bodies.pack((function, plain))
        self.traffic.bytes_out += len(parcel)
        kept = _task(bodies.call_here)(parcel, places, *(args[k] for k in places))
        (handle,), (small,) = self.scheduler.compute([kept], [_task(bodies.small_part)(kept)])
        self.traffic.bytes_in += bodies.n_bytes(small)
        return self._held(handle), small

    def _stands_for_more(self, arg: Any) -> bool:
        is_handle = self.scheduler.is_handle
        return is_handle(arg) or (isinstance(arg, list) and any(is_handle(one) for one in arg))

    def _held(self, handle: Handle) -> Handle:
        """Tasks unwrap what is held by themselves; on this machine a handle is the object."""
        return handle if self.scheduler.is_handle(handle) else bodies.held(handle)

    def sample(
        self,
        size: int,
        rng: np.random.Generator,
        basis: Array | None = None,
        *,
        stored: bool = True,  # noqa: ARG002
    ) -> Handle:
        """That many random rows on one worker, in random order, with their features, or Phi B.

        The order is drawn once, by the generator of the first call: a smaller sample is the beginning of a larger one.
        """
        if not self._seed:
            self._seed.append(int(rng.integers(2**63)))  # a list, for copies of these rows share it
        use, lengths = self.scheduler.use, tuple(stop - start for start, stop in pairwise(self._cuts))
        drawing = bodies.SamplePlan(self._seed[0], lengths)
        counts, _ = drawing.first(size)
        packed, task = bodies.pack(drawing), _task(bodies.draw)
        pieces = [
            task(use(part), packed, k, count, self._columns)
            for k, (part, count) in enumerate(zip(self._parts, counts, strict=True))
        ]
        gathered = _task(bodies.sample_of)(
            packed, size, pieces, use(self._lift), basis, self.source.weighted, self.threads
        )
        return self.scheduler.compute([gathered])[0][0]


def _task(function: Callable) -> Callable[..., Task]:
    """The function as one that makes tasks."""
    from dask import delayed

    return delayed(function, pure=False)
