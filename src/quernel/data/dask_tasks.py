"""Dask tasks and the schedulers that run them: what is done to a part of the rows, on the worker that holds it.

Tasks are plain functions of plain values. None of them changes its arguments: if a worker is lost, Dask runs a task
again on another one, and it must then find the inputs of the first run.

There are two kinds of scheduler behind one interface: a distributed cluster, or threads and processes of this machine.
A value that shall be kept becomes a *handle*, which later tasks take as an argument. On a cluster a handle is a Future:
its value stays on a worker, and Dask recomputes it from its task graph if that worker is lost. On this machine it is
the value itself.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quernel._machine import available_memory, single_threaded_blas
from quernel.data.design_matrix import SIZE_ROWS, Block, BlockState, FeatureMap, InMemoryDesign
from quernel.data.sources import ArrayRows, Piece, RowsError

Array = NDArray[np.floating]
Handle = Any
Task = Any

# Parameters of glibc's mallopt (<malloc.h>), and the bytes that they are set to: up to 256 MiB of free memory stay with
# the process, and arrays up to 32 MiB are allocated from it. A pass then reuses the memory of its last block instead of
# requesting cleared pages from the system for every block.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT, LARGE = 256 * 2**20, 32 * 2**20
# Fraction of the workers' memory that stored features may take: Dask starts spilling to disk at 0.6 of it.
FEATURE_SHARE = 0.4
_numbers = count()  # make the names of leaves unique


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


@dataclass(frozen=True, eq=False)
class Part:
    """Consecutive rows on one worker, and how they are divided into blocks."""

    X: Array  # (m, d)
    y: Array  # (m,) or (m, q)
    share: Array  # (m,), normalized weights w_i / W
    start: int  # index of the first row among all rows
    spans: list[slice]  # the rows of each block, within the part


class TypedMap:
    """Feature map with the dtype in which features are computed."""

    def __init__(self, feature_map: FeatureMap, dtype: DTypeLike = float) -> None:
        self.feature_map, self.dtype, self.n_components_ = feature_map, dtype, feature_map.n_components_

    def transform(self, X: Array, **kwargs: Any) -> Array:
        """Phi (m, M) of the rows X (m, d), in this dtype unless another one is asked for."""
        if self.dtype is not float:  # not every feature map takes a dtype
            kwargs = {"dtype": self.dtype, **kwargs}
        return np.asarray(self.feature_map.transform(X, **kwargs), dtype=kwargs.get("dtype", float))

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


def pack(value: object) -> bytes:
    """Pickle functions and arguments once for all tasks; cloudpickle also takes lambdas and local functions."""
    import cloudpickle

    return cloudpickle.dumps(value)


def n_bytes(value: object) -> int:
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


def transform_part(part: Part, typed_map: TypedMap) -> list[Array]:
    """Features (m, M) of every block of a part, to be stored."""
    typed_map.prepare(len(part.y))
    with single_threaded_blas(0, 0):
        features = typed_map.transform(part.X)  # one allocation: the system clears its pages fastest
    return [features[span] for span in part.spans]


def mean_square(part: Part, typed_map: TypedMap) -> float:
    """mean |phi_i|^2 over the first SIZE_ROWS rows of a part."""
    first = typed_map.transform(part.X[:SIZE_ROWS])
    return float(np.mean(np.einsum("ij,ij->i", first, first)))


# Map-reduce


def map_part(
    parcel: bytes,
    part: Part,
    features: list[Array] | TypedMap | int,
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
    features : list of arrays, TypedMap or int
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
    if isinstance(features, TypedMap):
        features.prepare(len(part.y))
    results = []
    with single_threaded_blas(0, 0):
        for k, span in enumerate(part.spans):
            target = part.y[span] if columns is None or part.y.ndim == 1 else part.y[span][:, columns]
            if isinstance(features, TypedMap):
                phi = features.transform(part.X[span])
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


def small_part(kept: TaskOutput) -> object:
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
    plan: bytes,
    size: int,
    pieces: Sequence[Piece],
    typed_map: TypedMap,
    basis: Array | None,
    weighted: bool,
    threads: int,
) -> InMemoryDesign:
    """The sample as a design matrix on this worker, in random order, with features Phi, or Phi B, stored."""
    _, order = pickle.loads(plan).first(size)
    X, y, weight = (np.concatenate(arrays)[order] for arrays in zip(*pieces, strict=True))
    source = ArrayRows(X, y, weight if weighted else None)
    typed_map.prepare(size)
    with single_threaded_blas(0, 0):
        rows = InMemoryDesign(source, typed_map.feature_map, shuffled=True, max_memory=0, threads=threads)
        return rows.sample(size, np.random.default_rng(0), basis)


def as_task(value: Any) -> Task:
    """A value as a task; Dask does not traverse it in search of other tasks."""
    from dask import delayed

    return delayed(value, name=f"quernel-{os.getpid()}-{next(_numbers)}", traverse=False)


class LocalScheduler:
    """Dask's threaded, multiprocessing or synchronous scheduler: one worker, whose handles are values.

    Attributes
    ----------
    here : bool
        Whether handles are values in this process.
    threads : list of int
        Number of threads of each worker.
    together : int
        Number of threads that a task may use while it runs alone.
    """

    here = True

    def __init__(self, kind: str) -> None:
        import dask

        alone = kind in ("synchronous", "sync", "single-threaded")
        workers = dask.config.get("num_workers", None) or os.cpu_count() or 1
        self.threads = [1 if alone else workers]
        self.together = self.threads[0]
        # Sending features to another process costs more than computing them there.
        self._separate = kind in ("processes", "multiprocessing")

    def compute(self, keep: Sequence[Task], bring: Sequence[Task] = ()) -> tuple[list[Handle], list[Any]]:
        """Compute one graph: handles of the tasks in `keep`, and values of those in `bring`; here all are values."""
        import dask

        values = list(dask.compute(*keep, *bring, optimize_graph=False))
        return values[: len(keep)], values[len(keep) :]

    def use(self, handle: Handle) -> Any:
        """A handle as an argument of a task."""
        return as_task(handle)

    def is_handle(self, value: object) -> bool:  # noqa: ARG002
        """Whether a value is a handle to a value elsewhere: never, for handles are values."""
        return False

    def homes(self, handles: Sequence[Handle]) -> list[int | None]:
        """For each handle, the index of a worker that holds its value: the only one."""
        return [0] * len(handles)

    @contextmanager
    def at(self, worker: int) -> Iterator[None]:  # noqa: ARG002
        """Context manager: tasks made inside prefer this worker; here there is only one."""
        yield

    def feature_memory(self) -> float:
        """Bytes that stored features may take on all workers together: a fraction of the free memory.

        0 for processes, to which features would be sent in every pass.
        """
        return 0 if self._separate else FEATURE_SHARE * available_memory()

    def worker_memory(self) -> float:
        """Memory of the smallest worker, in bytes: all that is free."""
        return available_memory()


class Cluster:
    """The workers of a distributed client, with the same attributes and methods as `LocalScheduler`."""

    here = False

    def __init__(self, client: Any) -> None:
        self.client = client
        with explain_failures(self.client):
            found = client.scheduler_info(n_workers=-1)["workers"]
        if not found:
            raise RowsError(
                "The Dask cluster has no workers. Start some, or wait for them: client.wait_for_workers(1)."
            )
        self._addresses = sorted(found)
        self._workers = [found[address] for address in self._addresses]
        self.threads = [worker["nthreads"] for worker in self._workers]
        machines: dict[str, int] = {}
        for worker in self._workers:
            machines[worker["host"]] = machines.get(worker["host"], 0) + worker["nthreads"]
        self.together = min(machines.values())

    def compute(self, keep: Sequence[Task], bring: Sequence[Task] = ()) -> tuple[list[Handle], list[Any]]:
        """Futures of `keep`, values of `bring`: one graph and one wait, or no wait where nothing is brought."""
        import dask

        # All inputs are part of the graph, large or not: only then can Dask run a task again on another worker.
        with (
            explain_failures(self.client),
            dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}),
        ):
            futures = self.client.compute([*keep, *bring], optimize_graph=False)
            values = self.client.gather(futures[len(keep) :]) if bring else []
        return futures[: len(keep)], values

    def use(self, handle: Handle) -> Any:
        """Futures are arguments as they are; values become leaves of the graph."""
        return handle if self.is_handle(handle) else as_task(handle)

    def is_handle(self, value: object) -> bool:
        """Whether it is a Future."""
        from distributed import Future

        return isinstance(value, Future)

    def homes(self, handles: Sequence[Handle]) -> list[int | None]:
        """The number of the worker that holds each, None where it has been lost since."""
        with explain_failures(self.client):
            holders = self.client.who_has(list(handles))
        known = {address: k for k, address in enumerate(self._addresses)}
        found = (holders.get(handle.key) or [None] for handle in handles)
        return [known.get(next(iter(addresses))) for addresses in found]

    @contextmanager
    def at(self, worker: int) -> Iterator[None]:
        """Annotate tasks with this worker's address; others are allowed."""
        import dask

        with dask.annotate(workers=[self._addresses[worker]], allow_other_workers=True):
            yield

    def feature_memory(self) -> float:
        """A fraction of the sum of the workers' memory limits."""
        return FEATURE_SHARE * sum(self._limits())

    def worker_memory(self) -> float:
        """The lowest memory limit."""
        return min(self._limits())

    def _limits(self) -> list[float]:
        """Memory limit of each worker in bytes; workers without one share the free memory equally."""
        return [worker["memory_limit"] or available_memory() / len(self._workers) for worker in self._workers]


Scheduler = LocalScheduler | Cluster


def current_scheduler() -> Scheduler:
    """The active distributed client, if there is one and Dask's configuration names no other scheduler.

    Otherwise the scheduler of that configuration, on this machine: threads where it names none.
    """
    import dask

    asked = dask.config.get("scheduler", None)
    if "distributed" in sys.modules and asked in (None, "dask.distributed", "distributed"):
        from distributed import default_client

        try:
            return Cluster(default_client())
        except ValueError:  # there is none
            pass
    return LocalScheduler(str(asked))


@contextmanager
def explain_failures(client: Any) -> Iterator[None]:
    """Turn failures of the cluster into errors that name the remedy; errors raised by tasks pass unchanged."""
    from concurrent.futures import CancelledError

    from distributed import KilledWorker

    try:
        yield
    except KilledWorker as error:
        raise RowsError(
            f"Workers of the Dask cluster died again and again over the same task ({error.task}), most often for want "
            "of memory. Give the workers more of it, use more workers, or pass a smaller max_memory."
        ) from error
    except (Exception, CancelledError) as error:
        if client.status == "running" and not isinstance(error, CancelledError):
            raise  # raised by a task
        raise ConnectionError(
            f"The connection to the Dask scheduler was lost ({type(error).__name__}: {error}), and with it what the "
            "workers held. Start the cluster again, connect a new Client, and fit again."
        ) from error
