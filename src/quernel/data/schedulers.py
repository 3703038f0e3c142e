"""Where tasks run: on a cluster, or by one of Dask's schedulers on this machine.

Both take delayed tasks. What is to be kept becomes a handle, which later tasks take as an argument: on a cluster it is
a Future, whose value stays on a worker and is computed again from its own tasks should that worker be lost; on this
machine it is the value itself.
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

# The share of the workers' memory that stored features may take: Dask begins to spill to disk at 0.6 of it.
FEATURE_SHARE = 0.4
_numbers = count()


class Scheduler(Protocol):
    """Runs delayed tasks."""

    here: bool
    threads: list[int]  # of each worker
    together: int  # threads that a task may use while it is the only one

    def compute(self, keep: Sequence[Task], bring: Sequence[Task] = ()) -> tuple[list[Handle], list[Any]]:
        """Handles of the first tasks, and values of the others."""

    def use(self, handle: Handle) -> Any:
        """The handle as an argument of a task."""

    def is_handle(self, value: Any) -> bool:
        """Whether this is a handle rather than a value of ours."""

    def homes(self, handles: Sequence[Handle]) -> list[int | None]:
        """The number of the worker that holds each."""

    def at(self, worker: int) -> Any:
        """A context in which tasks are made that this worker should do, or another if it is lost."""

    def feature_memory(self) -> float:
        """Bytes that stored features may take altogether."""

    def worker_memory(self) -> float:
        """Bytes that the smallest worker has."""


def current() -> Scheduler:
    """The client that is active, unless Dask is told to use another scheduler; the one it is told to use otherwise."""
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
    """A value as a task, without looking into it."""
    from dask import delayed

    return delayed(value, name=f"quernel-{os.getpid()}-{next(_numbers)}", traverse=False)


class LocalScheduler:
    """Dask's threads, processes, or synchronous scheduler."""

    here = True

    def __init__(self, kind: str) -> None:
        import dask

        alone = kind in ("synchronous", "sync", "single-threaded")
        workers = dask.config.get("num_workers", None) or os.cpu_count() or 1
        self.threads = [1 if alone else workers]
        self.together = self.threads[0]
        # To send features to another process costs more than to compute them there.
        self._separate = kind in ("processes", "multiprocessing")

    def compute(self, keep: Sequence[Task], bring: Sequence[Task] = ()) -> tuple[list[Handle], list[Any]]:
        """All values, computed now."""
        import dask

        values = list(dask.compute(*keep, *bring, optimize_graph=False))
        return values[: len(keep)], values[len(keep) :]

    def use(self, handle: Handle) -> Any:
        """The value as a task."""
        return leaf(handle)

    def is_handle(self, value: Any) -> bool:  # noqa: ARG002
        """Handles are values here."""
        return False

    def homes(self, handles: Sequence[Handle]) -> list[int | None]:
        """There is one place only."""
        return [0] * len(handles)

    @contextmanager
    def at(self, worker: int) -> Iterator[None]:  # noqa: ARG002
        """Anywhere."""
        yield

    def feature_memory(self) -> float:
        """A share of the free memory; nothing where every sweep would have to send the features to another process."""
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
        """Futures of the first, and the others' values: one graph, one wait, and none if nothing is to be brought."""
        import dask

        # What a task must know is part of it, large or not: only so can it be done again.
        with explained(self.client), dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
            futures = self.client.compute([*keep, *bring], optimize_graph=False)
            values = self.client.gather(futures[len(keep) :]) if bring else []
        return futures[: len(keep)], values

    def use(self, handle: Handle) -> Any:
        """Tasks take Futures as they are."""
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
        """Prefer this worker."""
        import dask

        with dask.annotate(workers=[self._addresses[worker]], allow_other_workers=True):
            yield

    def feature_memory(self) -> float:
        """A share of the workers' limits."""
        return FEATURE_SHARE * sum(self._limits())

    def worker_memory(self) -> float:
        """The lowest limit."""
        return min(self._limits())

    def _limits(self) -> list[float]:
        """How much memory each worker may take; those without a limit share what is free."""
        return [worker["memory_limit"] or available_memory() / len(self._workers) for worker in self._workers]


@contextmanager
def explained(client: Any) -> Iterator[None]:
    """What went wrong with the cluster, in words; errors of the tasks themselves pass."""
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
            raise  # the task's own
        raise ConnectionError(
            f"The connection to the Dask scheduler was lost ({type(error).__name__}: {error}), and with it what the "
            "workers held. Start the cluster again, connect a new Client, and fit again."
        ) from error
