"""Distributed design matrix: rows on the workers of a Dask cluster (or in the threads and processes of this machine).

The rows are repartitioned into *parts*, about one per worker thread. A part is a future on a worker, and so are its
features, if they fit, and its row state. A pass is one task graph: step and arguments are sent out with the tasks, one
task per part applies the step to the blocks of the part, results are reduced in a tree on the workers, and
a few small ones return to the client for the last reduction. Rows are never sent to the client.

Tasks are pure: each pass makes new row state from the old. If a worker is lost, Dask runs its tasks again, starting
from the chunks of the collection, and the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quernel._machine import Answer, blocks
from quernel.data import dask_tasks
from quernel.data.dask import DaskRows
from quernel.data.dask_tasks import Handle, Scheduler, Task, as_task, current_scheduler
from quernel.data.design_matrix import SIZE_ROWS, FeatureMap, InMemoryDesign, ProjectedMap, Reduce, RemoteStub, Step
from quernel.data.sources import RowsError

Array = NDArray[np.floating]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class DaskOptions:
    """Sizes of parts, blocks and messages."""

    # Fewest entries of Phi in a part: a task costs some milliseconds, whatever it does.
    small_part: int = 500_000
    # A part ends at the end of a chunk if this changes its length by no more than this fraction.
    slack: float = 0.25
    # Fraction of a worker's memory that the features of a sample or of the active rows may take.
    sample_share: float = 0.2
    # Passes that recompute features before they are stored: a screened solve needs no more of them, and writing to
    # fresh memory takes longer than computing a block again in the memory of the last one.
    unstored_passes: int = 2
    # Blocks are so many times smaller than those of rows in memory: the allocator reuses memory of that size rather
    # than returning it to the system.
    block_share: int = 4
    # Results are reduced so many at a time: the width of the reduction tree.
    fan_in: int = 8
    # Arguments up to so many bytes are sent with each task; larger ones are a task of their own, which workers fetch.
    small_message: int = 64 * 2**10


OPTIONS = DaskOptions()


def partition_bounds(lengths: list[int], n_features: int, threads: int) -> list[int]:
    """Row indices 0 = b_0 < b_1 < ... = n at which parts begin and end.

    There is one part per thread (fewer where parts would be small), of nearly equal size; bounds are moved to the ends
    of chunks, of these `lengths`, where `slack` allows, so that fewer chunks are cut in two.
    """
    n = sum(lengths)
    n_parts = min(threads, -(-n * n_features // OPTIONS.small_part), n)
    ends, size = np.cumsum(lengths), n / n_parts
    bounds = [0]
    for k in range(1, n_parts):
        even = round(k * size)
        nearest = int(ends[np.argmin(np.abs(ends - even))])
        bounds.append(nearest if abs(nearest - even) <= OPTIONS.slack * size else even)
    return [*bounds, n]


def assign_workers(threads: list[int], bounds: list[int], lengths: list[int], homes: Sequence[int | None]) -> list[int]:
    """Worker of each part: among those with a free thread, the one that holds most of its rows already.

    `threads` are those of each worker, `homes` the worker that holds each chunk (None: unknown). Greedy, in row order.
    """
    free = -(-(len(bounds) - 1) // sum(threads)) * np.asarray(threads)
    ends, known = np.cumsum(lengths), np.array([home is not None for home in homes])
    starts, holders = ends - lengths, np.array([home or 0 for home in homes])
    workers = []
    for start, stop in pairwise(bounds):
        overlap = np.where(known, np.maximum(np.minimum(ends, stop) - np.maximum(starts, start), 0), 0)
        local_rows = np.bincount(holders, overlap, len(threads))
        workers.append(int(np.lexsort((local_rows, free > 0))[-1]))
        free[workers[-1]] -= 1
    return workers


@dataclass
class Traffic:
    """Bytes sent: arguments out to the tasks, results back, and rows gathered on one worker; and the passes made."""

    sweeps: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    bytes_gathered: int = 0


@dataclass
class _FeatureStore:
    """Features of all parts, shared by copies of the same design matrix (by `take`)."""

    features: list[Handle] | None = None  # per part, a list with an array (m, M) per block; None: not stored (yet)
    looks: int = 0  # passes that needed features so far
    size: float | None = None  # mean |phi|^2, once it is known


class DaskRowState:
    """Row state of a solver on the workers: a handle per part, None where a part has no state yet."""

    def __init__(self, scheduler: Scheduler, kept: list[Handle | None], sweeps: float = 0) -> None:
        self.scheduler, self.kept, self.sweeps = scheduler, kept, sweeps

    def take(self, columns: Index) -> DaskRowState:
        """The state of some of the columns (fits)."""
        task = _task(dask_tasks.take_columns)
        tasks = [task(self.scheduler.use(kept), columns) for kept in self.kept]
        return DaskRowState(self.scheduler, self.scheduler.compute(tasks)[0], self.sweeps)

    def copy_columns(self, name: str, columns: Index, out: Array, places: Index) -> None:
        """Nothing: row state stays on the workers, and `out` has no rows."""


class DaskDesign:
    """Design matrix Phi = feature_map(X) of Dask collections, computed and kept on the workers.

    Parameters
    ----------
    source : DaskRows
    feature_map : object with `transform` and `n_components_`
    max_memory : int or None
        Bytes that stored features may take on all workers together; None is 0.4 of the workers' memory limits. Features
        that do not fit are recomputed in every pass.
    dtype : float64 or float32
        Storage type of features. With float32, all passes from the first on and the active rows see the rounded
        features, so that they belong to one problem; features that do not fit are not rounded.
    """

    returns_rows = False
    random_access = False
    n_duals = 0

    def __init__(
        self, source: DaskRows, feature_map: FeatureMap, *, max_memory: int | None = None, dtype: DTypeLike = float
    ) -> None:
        self.source = source
        self.n_rows = source.n_rows
        self.scheduler = current_scheduler()
        self.threads = self.scheduler.together
        self.traffic = Traffic()
        self.allowed = self.scheduler.feature_memory() if max_memory is None else max_memory
        self._bounds = partition_bounds(source.lengths, feature_map.n_components_, sum(self.scheduler.threads))
        self._parts, self.largest_share = self._load(feature_map.n_components_)
        self._columns: Index | None = None
        self._seed: list[int] = []
        self.dtype = dtype
        self._set_feature_map(feature_map)

    @property
    def rounded(self) -> bool:
        """Whether any pass has used float32 features."""
        return self._rounds and self._store.looks > 0

    @property
    def _rounds(self) -> bool:
        """Whether passes use float32 features."""
        return self.cached and np.dtype(self.dtype) != float

    def as_float64(self) -> DaskDesign:
        """The same rows with float64 features, recomputed in every pass; stored float32 features are dropped."""
        exact = copy(self)
        exact.allowed, exact.dtype = 0, float
        exact._set_feature_map(self.feature_map)
        self._store.features = None
        return exact

    @property
    def cached(self) -> bool:
        """Whether Phi fits in the workers' memory: it is then stored after `unstored_passes` passes."""
        return np.dtype(self.dtype).itemsize * self.n_rows * self.n_features <= self.allowed

    @property
    def spans(self) -> list[slice]:
        """The rows of each block, as slices of all rows."""
        return [
            slice(start + span.start, start + span.stop)
            for start, spans in zip(self._bounds, self._spans, strict=False)
            for span in spans
        ]

    def _load(self, n_features: int) -> tuple[list[Handle], float]:
        """Repartition the chunks: returns handles of the parts, and the largest normalized weight max_i w_i / W."""
        scheduler, lengths = self.scheduler, self.source.lengths
        chunks = self.source.chunks()
        weight_stats = _task(dask_tasks.weight_stats)
        pieces, weights = scheduler.compute(chunks, [weight_stats(chunk) for chunk in chunks])
        total, largest = sum(weight for weight, _ in weights), max(largest for _, largest in weights)
        if not total > 0:
            raise RowsError("The weights sum to 0. At least one row must have a positive weight.")
        workers = assign_workers(scheduler.threads, self._bounds, lengths, scheduler.homes(pieces))
        width = OPTIONS.block_share * n_features
        self._spans = [list(blocks(stop - start, width)) for start, stop in pairwise(self._bounds)]
        ends = np.cumsum(lengths)
        tasks = []
        for start, stop, spans, worker in zip(self._bounds[:-1], self._bounds[1:], self._spans, workers, strict=True):
            inside = []  # the chunks, or slices of chunks, that make up rows start:stop
            for k in range(np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop) + 1):
                low, high = max(start - (ends[k] - lengths[k]), 0), min(stop - (ends[k] - lengths[k]), lengths[k])
                piece = scheduler.use(pieces[k])
                whole = high - low == lengths[k]
                inside.append(piece if whole else _task(dask_tasks.slice_piece)(piece, int(low), int(high)))
            with scheduler.at(worker):
                tasks.append(_task(dask_tasks.make_part)(inside, total, start, spans))
        return scheduler.compute(tasks)[0], largest / total

    def _set_feature_map(self, feature_map: FeatureMap) -> None:
        """Use this feature map from here on: it is sent to the workers, and stored features are those of another."""
        self.feature_map, self.n_features = feature_map, feature_map.n_components_
        typed_map = dask_tasks.TypedMap(feature_map, self.dtype if self._rounds else float)
        (self._typed_map,), _ = self.scheduler.compute([as_task(typed_map)])
        self._store = _FeatureStore()

    def _part_features(self) -> list[Any]:
        """Per part, its stored features, or the feature map that recomputes them; counts one pass.

        Features that fit are stored once `unstored_passes` passes have been made.
        """
        store, use = self._store, self.scheduler.use
        if self.cached and store.features is None and store.looks >= OPTIONS.unstored_passes:
            tasks = [_task(dask_tasks.transform_part)(use(part), use(self._typed_map)) for part in self._parts]
            store.features = self.scheduler.compute(tasks)[0]
        store.looks += 1
        return store.features or [self._typed_map] * len(self._parts)

    def take(self, columns: Index) -> DaskDesign:
        """The same rows for some of the fits; parts and stored features are shared."""
        if self.source.y.ndim == 1:
            return self
        subset = copy(self)
        subset._columns = columns if self._columns is None else self._columns[columns]
        return subset

    def project(self, basis: Array) -> DaskDesign:
        """Project on a basis B (M, k): the same rows with the features Phi B."""
        projected = copy(self)
        projected._set_feature_map(ProjectedMap(self.feature_map, basis))
        return projected

    def kernel_scale(self) -> float:
        """Scale of the kernel: mean |phi_i|^2 over the first SIZE_ROWS rows."""
        if self._store.size is None:
            use = self.scheduler.use
            task = _task(dask_tasks.mean_square)(use(self._parts[0]), use(self._typed_map))
            _, (self._store.size,) = self.scheduler.compute([], [task])
        return self._store.size

    @property
    def most_sampled(self) -> int:
        """Largest size of a random sample: its features (m, M) must fit on one worker."""
        return max(int(self._room / (8 * self.n_features)), SIZE_ROWS)

    most_stored = most_sampled

    @property
    def _room(self) -> float:
        """Bytes that the features of a sample, or of the active rows, may take on one worker."""
        return OPTIONS.sample_share * self.scheduler.worker_memory()

    def remote(self) -> RemoteStub:
        """Stub that stands in for these rows in a problem sent to a worker by `run_at`."""
        feature_map = dask_tasks.TypedMap(self.feature_map, self.dtype) if self._rounds else self.feature_map
        return RemoteStub(feature_map, int(self._room), self.threads)

    def use_threads(self, threads: int) -> None:
        """Do nothing: workers have their own threads."""

    def in_memory(self, reason: str, *, instead: str = "solver='newton'") -> InMemoryDesign:
        """Raise a ValueError that begins with `reason` and names the alternative `instead`: Phi is on the workers."""
        raise ValueError(
            f"{reason}, but {self.n_rows:,} rows x {self.n_features:,} features are spread over Dask workers. "
            f"Use {instead}, or rows in memory."
        )

    def new_state(self, **arrays: Array) -> DaskRowState:
        """Row state for this design matrix; arrays of shape (n, q), if any, are sent to the workers part by part."""
        if not arrays:
            return DaskRowState(self.scheduler, [None] * len(self._parts))
        tasks = []
        for start, spans in zip(self._bounds, self._spans, strict=False):
            rows = [slice(start + span.start, start + span.stop) for span in spans]
            states = [{name: array[block] for name, array in arrays.items()} for block in rows]
            tasks.append(as_task(dask_tasks.TaskOutput(states, None)))
        return DaskRowState(self.scheduler, self.scheduler.compute(tasks)[0])

    def map_reduce(
        self, step: Step, state: DaskRowState, args: object = None, *, reduce: Reduce, per_block_args: Any = None
    ) -> Any:
        """Apply `step` to every block and reduce the results with `reduce`: one pass over Phi, one task graph.

        Parameters as in `InMemoryDesign.map_reduce`; `per_block_args` may also be a handle to a list, from `run_at`,
        which is then distributed without visiting the client.
        """
        self._count_pass(state)
        return self._map_reduce(step, state, args, reduce, per_block_args, with_features=True)

    def map_rows(self, step: Step, state: DaskRowState, args: object = None, *, reduce: Reduce) -> Any:
        """Like `map_reduce`, for steps that need targets and row state only, no features."""
        return self._map_reduce(step, state, args, reduce, None, with_features=False)

    def map_reduce_split(
        self, step: Step, state: DaskRowState, args: object = None, *, reduce: Reduce
    ) -> tuple[Any, Handle]:
        """Like `map_reduce`, for results (small, large): the small one is returned, the large one stays on a worker.

        What is returned for the large one is a handle, to be used in `run_at` or as `per_block_args`.
        """
        self._count_pass(state)
        tasks, parcel, results = self._build_tasks(step, state, args, reduce, None, with_features=True)
        root = _task(dask_tasks.reduce_split)(parcel, results)
        small = _task(dask_tasks.small_part)(root)
        (*state.kept, handle), (transfer,) = self.scheduler.compute([*tasks, root], [small])
        self.traffic.bytes_in += dask_tasks.n_bytes(transfer.result)
        self.traffic.bytes_gathered += transfer.moved
        return transfer.result, self._unwrap(handle)

    def _count_pass(self, state: DaskRowState) -> None:
        state.sweeps += 1
        self.traffic.sweeps += 1

    def _map_reduce(
        self, step: Step, state: DaskRowState, args: object, reduce: Reduce, per_block_args: Any, *, with_features: bool
    ) -> Any:
        """Compute one task graph: the row state is replaced, the last few results are reduced on the client."""
        tasks, _, results = self._build_tasks(step, state, args, reduce, per_block_args, with_features=with_features)
        state.kept, transfers = self.scheduler.compute(tasks, results)
        self.traffic.bytes_in += sum(one.moved + dask_tasks.n_bytes(one.result) for one in transfers)
        return reduce([one.result for one in transfers])

    def _build_tasks(
        self, step: Step, state: DaskRowState, args: object, reduce: Reduce, per_block_args: Any, *, with_features: bool
    ) -> tuple[list[Task], Any, list[Task]]:
        """The task graph of one pass, not yet computed.

        Returns a task per part, which applies the step to its blocks (-> `TaskOutput`); the pickled (step, reduce,
        args) that they receive; and at most `fan_in` tasks with partly reduced results (-> `Transfer`).
        """
        use, task, n_parts = self.scheduler.use, _task(dask_tasks.map_part), len(self._parts)
        parcel: Any = dask_tasks.pack((step, reduce, args))
        self.traffic.bytes_out += len(parcel) * n_parts
        if len(parcel) > OPTIONS.small_message:
            parcel = as_task(parcel)
        features: list[Any] = [self.n_features] * n_parts
        if with_features:
            features = [use(one) for one in self._part_features()]
        tasks = [
            task(parcel, use(part), phi, None if kept is None else use(kept), part_args, self._columns)
            for part, phi, kept, part_args in zip(
                self._parts, features, state.kept, self._split_by_part(per_block_args), strict=True
            )
        ]
        results = [_task(dask_tasks.result_of)(task) for task in tasks]
        reduce_some = _task(dask_tasks.reduce_results)
        width = OPTIONS.fan_in
        while len(results) > width:
            results = [reduce_some(parcel, results[k : k + width]) for k in range(0, len(results), width)]
        return tasks, parcel, results

    def _split_by_part(self, per_block_args: Any) -> list[Any]:
        """Split a list with an entry per block, or a handle to such a list, into the entries of each part."""
        ends = np.cumsum([0, *(len(spans) for spans in self._spans)]).tolist()
        if per_block_args is None:
            return [None] * len(self._spans)
        if self.scheduler.is_handle(per_block_args):
            return [_task(dask_tasks.slice_list)(per_block_args, start, stop) for start, stop in pairwise(ends)]
        self.traffic.bytes_out += dask_tasks.n_bytes(per_block_args)
        return [as_task(per_block_args[start:stop]) for start, stop in pairwise(ends)]

    def run_at(self, function: Callable, *args: object) -> tuple[Handle, Any]:
        """Call function(*args) -> (stays, returned) on a worker, where the handles among its arguments are.

        Handles, and lists of handles, are replaced by their values there. Returns a handle to what stays, and the other
        result itself.
        """
        if self.scheduler.here:
            return function(*args)
        positions = [k for k, arg in enumerate(args) if self._holds_handle(arg)]
        plain = [None if k in positions else arg for k, arg in enumerate(args)]
        parcel: Any = dask_tasks.pack((function, plain))
        self.traffic.bytes_out += len(parcel)
        output = _task(dask_tasks.call_function)(parcel, positions, *(args[k] for k in positions))
        (handle,), (small,) = self.scheduler.compute([output], [_task(dask_tasks.small_part)(output)])
        self.traffic.bytes_in += dask_tasks.n_bytes(small)
        return self._unwrap(handle), small

    def submit(self, function: Callable[..., Answer], *args: object) -> Callable[[], Answer]:
        """function(*args), called when its result is asked for: tasks of two passes would compete for the workers."""
        return partial(function, *args)

    def _holds_handle(self, arg: object) -> bool:
        """Whether an argument is a handle, or a list with a handle in it."""
        is_handle = self.scheduler.is_handle
        return is_handle(arg) or (isinstance(arg, list) and any(is_handle(one) for one in arg))

    def _unwrap(self, handle: Handle) -> Handle:
        """The handle itself on a cluster, whose tasks resolve it; its value on this machine."""
        return handle if self.scheduler.is_handle(handle) else dask_tasks.resolve(handle)

    def gather(self, size: int, rng: np.random.Generator) -> Handle:
        """Handle to a random sample of `size` rows on one worker."""
        return self.sample(size, rng)

    def sample(
        self,
        size: int,
        rng: np.random.Generator,
        basis: Array | None = None,
        *,
        stored: bool = True,  # noqa: ARG002
    ) -> Handle:
        """Handle to a random sample of `size` rows on one worker: an `InMemoryDesign` with stored features.

        The features are Phi, or Phi B with a basis B (M, k). The random order of the rows is drawn once, by the
        generator of the first call, so that samples are nested: a smaller one is the beginning of a larger one.
        """
        if not self._seed:
            self._seed.append(int(rng.integers(2**63)))  # in a list, which copies of this design matrix share
        use, lengths = self.scheduler.use, tuple(stop - start for start, stop in pairwise(self._bounds))
        plan = dask_tasks.SamplePlan(self._seed[0], lengths)
        counts, _ = plan.first(size)
        packed, task = dask_tasks.pack(plan), _task(dask_tasks.sample_part)
        pieces = [
            task(use(part), packed, k, count, self._columns)
            for k, (part, count) in enumerate(zip(self._parts, counts, strict=True))
        ]
        gathered = _task(dask_tasks.gather_sample)(
            packed, size, pieces, use(self._typed_map), basis, self.source.weighted, self.threads
        )
        return self.scheduler.compute([gathered])[0][0]


def _task(function: Callable) -> Callable[..., Task]:
    """dask.delayed of an impure function: equal arguments do not make equal tasks."""
    from dask import delayed

    return delayed(function, pure=False)
