"""One interface to the two kinds of Dask scheduler: a distributed cluster, or threads and processes of this machine.

Both compute delayed tasks. A value that shall be kept becomes a *handle*, which later tasks take as an argument. On a
cluster a handle is a Future: its value stays on a worker, and Dask recomputes it from its task graph if that worker is
lost. On this machine it is the value itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol

from quernel.data.memory import available_memory
from quernel.data.sources import RowsError

Handle = Any
Task = Any

# Fraction of the workers' memory that stored features may take: Dask starts spilling to disk at 0.6 of it.
FEATURE_SHARE = 0.4
_numbers = count()  # make the names of leaves unique


class Scheduler(Protocol):
    """Computes delayed tasks, and says what its workers offer."""

    here: bool  # whether handles are values in this process
    threads: list[int]  # number of threads of each worker
    together: int  # number of threads that a task may use while it runs alone

    def compute(self, keep: Sequence[Task], bring: Sequence[Task] = ()) -> tuple[list[Handle], list[Any]]:
        """Compute one graph: handles of the tasks in `keep`, and values of those in `bring`."""

    def use(self, handle: Handle) -> Any:
        """A handle as an argument of a task."""

    def is_handle(self, value: Any) -> bool:
        """Whether a value is a handle to a value elsewhere."""

    def homes(self, handles: Sequence[Handle]) -> list[int | None]:
        """For each handle, the index of a worker that holds its value, or None where that is unknown."""

    def at(self, worker: int) -> Any:
        """Context manager: tasks made inside prefer this worker, and may run on another if it is lost."""

    def feature_memory(self) -> float:
        """Bytes that stored features may take on all workers together."""

    def worker_memory(self) -> float:
        """Memory of the smallest worker, in bytes."""


def current() -> Scheduler:
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


def leaf(value: Any) -> Task:
    """A value as a task; Dask does not traverse it in search of other tasks."""
    from dask import delayed

    return delayed(value, name=f"quernel-{os.getpid()}-{next(_numbers)}", traverse=False)


class LocalScheduler:
    """Dask's threaded, multiprocessing or synchronous scheduler: one worker, whose handles are values."""

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
        """All values, computed now: handles are values."""
        import dask

        values = list(dask.compute(*keep, *bring, optimize_graph=False))
        return values[: len(keep)], values[len(keep) :]

    def use(self, handle: Handle) -> Any:
        """The value as a task."""
        return leaf(handle)

    def is_handle(self, value: Any) -> bool:  # noqa: ARG002
        """False: handles are values."""
        return False

    def homes(self, handles: Sequence[Handle]) -> list[int | None]:
        """All on the only worker."""
        return [0] * len(handles)

    @contextmanager
    def at(self, worker: int) -> Iterator[None]:  # noqa: ARG002
        """No preference: there is one worker."""
        yield

    def feature_memory(self) -> float:
        """A fraction of the free memory; 0 for processes, to which features would be sent in every pass."""
        return 0 if self._separate else FEATURE_SHARE * available_memory()

    def worker_memory(self) -> float:
        """The free memory."""
        return available_memory()


class Cluster:
    """The workers of a distributed client."""

    here = False

    def __init__(self, client: Any) -> None:
        self.client = client
        with explained(self.client):
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
        with explained(self.client), dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
            futures = self.client.compute([*keep, *bring], optimize_graph=False)
            values = self.client.gather(futures[len(keep) :]) if bring else []
        return futures[: len(keep)], values

    def use(self, handle: Handle) -> Any:
        """Futures are arguments as they are; values become leaves of the graph."""
        return handle if self.is_handle(handle) else leaf(handle)

    def is_handle(self, value: Any) -> bool:
        """Whether it is a Future."""
        from distributed import Future

        return isinstance(value, Future)

    def homes(self, handles: Sequence[Handle]) -> list[int | None]:
        """The number of the worker that holds each, None where it has been lost since."""
        with explained(self.client):
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


@contextmanager
def explained(client: Any) -> Iterator[None]:
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
