"""What a fit uses of this machine: row blocks of convenient size, the threads that share them, and free memory.

BLAS threads that spin over small matrices cost more than they gain, and numpy and scipy bring a pool each. So BLAS runs
on one thread while quernel solves, and large problems are parallelised over row blocks instead, on as many threads as
the user allows BLAS (OMP_NUM_THREADS, threadpoolctl), but no more than there are cores.

- `blocks`, `strips`      divide rows into slices whose features have a convenient size;
- `single_threaded_blas`  limits BLAS for the duration of a `with` block, and says how many threads to use instead;
- `parallel_map`          is a parallel map over blocks;
- `submit`                starts one call in the background;
- `read_ahead`            runs a generator in a thread, so that one item is used while the next ones are read;
- `available_memory`      is the least of what the machine, the control groups and the resource limits have left.

The threads run numpy and nogil numba code, so the interpreter lock is no bottleneck. One pool per thread count lives
for the whole process. Calls from one of its own threads run serially: waiting there for others could deadlock. Its
threads see the context variables of the caller, such as the request to stop (`solvers.progress`).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, partial
from pathlib import PurePosixPath
from queue import SimpleQueue
from typing import Any, TypeVar

from threadpoolctl import LibController, ThreadpoolController

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Entries of the feature matrix Phi (rows times features) up to which one thread is faster than several.
MIN_PARALLEL_SIZE = 3_000_000
# Prefix of the pool's thread names, by which they are recognised.
POOL_NAME = "quernel"


@cache
def _controller() -> ThreadpoolController:
    """threadpoolctl's view of the BLAS libraries; cached, because it scans all loaded libraries."""
    return ThreadpoolController()


def _is_per_thread(library: LibController) -> bool:
    """Whether every thread has a setting of its own, as with OpenMP; otherwise there is one for the whole process."""
    return getattr(library, "threading_layer", None) == "openmp"


def _set_threads(library: LibController, n_threads: int) -> None:
    """Set the number of threads of a BLAS library, from any thread.

    From version 3.8 on, threadpoolctl ignores settings of OpenBLAS by all threads but the one that came first. Here a
    reference count keeps threads out of each other's way, so whoever controls the library gives it up.
    """
    give_up_control = getattr(library, "clear_controlling_thread", None)
    if give_up_control is not None:
        give_up_control(force=True)
    library.set_num_threads(n_threads)
    if give_up_control is not None:
        give_up_control(force=True)


class _BlasLimit:
    """Reference-counted limit of BLAS to one thread: the first user sets it, the last restores the setting before.

    The count is one for the whole process, or one per thread for libraries that have a setting per thread. If two fits
    that overlap in time each saved and restored the setting, the later one would save, and finally restore, the limit
    of the earlier.
    """

    def __init__(self, per_thread: bool) -> None:
        # Reentrant, because a garbage collection, in which users end, may come at any time.
        self._per_thread, self._lock = per_thread, threading.RLock()
        self._users: dict[int, int] = {}  # by identity of a user, its thread
        self._before: list[tuple[LibController, int]] = []  # what to restore; empty while there is no limit

    def acquire(self, user: int) -> int:
        """Limit BLAS if it is not limited yet; return the number of threads that the user allows."""
        with self._lock:
            self._users[user] = threading.get_ident()
            if not self._before:
                libraries = [library for library in _controller().lib_controllers if library.user_api == "blas"]
                chosen = [library for library in libraries if _is_per_thread(library) == self._per_thread]
                self._before = [(library, library.num_threads) for library in chosen if library.num_threads]
                for library, _ in self._before:
                    _set_threads(library, 1)
            return min([count_cores(), *(n_threads for _, n_threads in self._before)])

    def release(self, user: int) -> None:
        """Restore the setting before if this was the last user of the limit; a second call changes nothing."""
        with self._lock:
            self._users.pop(user, None)
            if not self._users:
                self._restore()

    def keep_own_after_fork(self) -> None:
        """In a forked child: forget the users in other threads, which are not there, and what they held."""
        self._lock = threading.RLock()
        self._users = {user: thread for user, thread in self._users.items() if thread == threading.get_ident()}
        if not self._users:
            self._restore()

    def _restore(self) -> None:
        for library, n_threads in self._before:
            _set_threads(library, n_threads)
        self._before = []


class _BlasUse:
    """One use of the limits. It ends with this object at the latest: Ctrl-C may come just before the call of `end`."""

    def __init__(self) -> None:
        self._limits = _blas_limit, _thread_limit.limit
        self._end_at_the_latest = weakref.finalize(self, _release, self._limits, id(self))

    def begin(self) -> int:
        """Limit BLAS; return the number of threads that the user allows."""
        return min([limit.acquire(id(self)) for limit in self._limits])

    def end(self) -> None:
        """Give BLAS back."""
        _release(self._limits, id(self))
        self._end_at_the_latest.detach()


def _release(limits: Iterable[_BlasLimit], user: int) -> None:
    for limit in limits:
        limit.release(user)


_blas_limit = _BlasLimit(per_thread=False)


class _ThreadLimit(threading.local):
    """The limit of this thread, for BLAS libraries with a setting per thread."""

    def __init__(self) -> None:
        self.limit = _BlasLimit(per_thread=True)


_thread_limit = _ThreadLimit()


def count_cores() -> int:
    """The cores that this process may use; fewer than the machine's under taskset or in some containers."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def single_threaded_blas(n_rows: int, n_features: int) -> Iterator[int]:
    """Context manager: BLAS on one thread; yields how many threads should share the row blocks.

    Parameters
    ----------
    n_rows, n_features : int
        Shape of the feature matrix: a small one is not worth several threads, and yields 1.
    """
    use = _BlasUse()
    try:
        allowed = use.begin()
        yield 1 if n_rows * n_features <= MIN_PARALLEL_SIZE or _in_pool_thread() else max(1, allowed)
    finally:
        use.end()


def parallel_map(function: Callable[[Item], Answer], items: Iterable[Item], threads: int) -> list[Answer]:
    """Parallel map:  [function(item) for item in items]  on this thread and threads - 1 of the pool.

    Items are scheduled dynamically: each thread takes the next one as soon as it is free, so that a thread which the
    machine slows down delays one item only. Results are in the order of the items. An exception in any thread stops the
    others after their current item and is raised here.
    """
    items = list(items)
    threads = min(threads, len(items))
    if threads <= 1 or _in_pool_thread():
        return [function(item) for item in items]
    indices, results = iter(range(len(items))), [None] * len(items)
    work = partial(_run_worker, function, items, indices, results)
    futures = [_pool(threads).submit(copy_context().run, work) for _ in range(threads - 1)]
    try:
        work()
    finally:  # all items are taken by now: workers that have not started need not
        started = [future for future in futures if not future.cancel()]
        wait(started)
    for future in started:
        future.result()  # raises the worker's exception, if it had one
    return results  # type: ignore[return-value]


def submit(function: Callable[..., Answer], *args: object, threads: int) -> Callable[[], Answer]:
    """Start function(*args) in a background thread; return a function that waits for its result.

    With a single thread the call is made only when the result is asked for.
    """
    if threads <= 1 or _in_pool_thread():
        return partial(function, *args)
    return _pool(threads).submit(copy_context().run, function, *args).result


def _run_worker(
    function: Callable[[Item], Answer], items: list[Item], indices: Iterator[int], results: list[Any]
) -> None:
    """Process items until the shared iterator of indices is exhausted."""
    try:
        for k in indices:  # the interpreter lock makes next() on it atomic: every index goes to exactly one thread
            results[k] = function(items[k])
    except BaseException:
        deque(indices, maxlen=0)  # exhaust the iterator, so that the other workers stop
        raise


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """The process-wide pool of so many threads, created on first use."""
    return ThreadPoolExecutor(threads, POOL_NAME, initializer=lambda: _thread_limit.limit.acquire(0))


def _in_pool_thread() -> bool:
    """Whether this is one of the pool's own threads, which must not wait for other tasks of the pool."""
    return threading.current_thread().name.startswith(POOL_NAME)


def _reset_after_fork() -> None:
    """Start afresh in a forked child, which has neither the pool's threads nor those that may have held the lock."""
    _pool.cache_clear()
    _blas_limit.keep_own_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


# Items of `read_ahead` that may be finished or in progress before they are asked for: a bound on memory.
AHEAD = 2
READING_THREAD = "quernel-reading-ahead"
_END = object()  # marks the end of the queue


def read_ahead(pieces: Generator[Item, None, None], ahead: int = AHEAD) -> Iterator[Item]:
    """Iterate over a generator that runs in a thread, at most `ahead` items in front of the consumer.

    Exceptions of the generator are raised here. The thread starts when the first item is asked for. It has ended, and
    the generator is closed with its files, once the iterator is exhausted, has raised, or is closed or collected as
    garbage where a consumer stops early.
    """
    queue: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    room, stop = threading.Semaphore(ahead), threading.Event()
    # A daemon: a thread that waits for room must not keep the interpreter from exiting.
    thread = threading.Thread(target=_produce, args=(pieces, queue, room, stop), name=READING_THREAD, daemon=True)
    thread.start()
    try:
        while True:
            piece, error = queue.get()
            if error is not None:
                raise error
            if piece is _END:
                return
            room.release()
            yield piece
            del piece  # so that its memory is free while the next one is awaited
    finally:
        stop.set()
        room.release()
        thread.join()


def _produce(
    pieces: Generator[Any, None, None],
    queue: SimpleQueue[tuple[Any, BaseException | None]],
    room: threading.Semaphore,
    stop: threading.Event,
) -> None:
    """Body of the thread: put (item, None) into the queue, then (_END, None), or (None, error) after an exception."""
    try:
        while True:
            room.acquire()
            if stop.is_set():
                return
            piece = next(pieces, _END)
            queue.put((piece, None))
            if piece is _END:
                return
            del piece
    except BaseException as error:
        queue.put((None, error))
    finally:
        pieces.close()


# Row blocks. *Blocks* are the unit of map-reduce and of threads: large enough that the overhead of a call is
# negligible. Features that are recomputed exist one block at a time. *Strips* are parts of a block, small enough that
# their features are still in cache when they are used a second time.

# Size of a block's features as float64, and the smallest number of its rows.
BLOCK_BYTES = 64 * 2**20
BLOCK_ROWS = 4096
# Size of a strip's features as float64: small enough to stay in a core's cache.
STRIP_BYTES = 2**20


def blocks(n_rows: int, n_features: int, at_least: int = 1) -> Iterator[slice]:
    """Consecutive row slices of about BLOCK_BYTES of features, or of BLOCK_ROWS rows if that is more.

    Parameters
    ----------
    n_rows, n_features : int
        Shape of the feature matrix.
    at_least : int, default=1
        Smallest number of slices, if there are rows enough: give the number of threads to occupy all of them.
    """
    size = max(BLOCK_BYTES // (8 * max(n_features, 1)), BLOCK_ROWS)
    return _slices(n_rows, max(min(size, -(-n_rows // at_least)), 1))


def strips(n_rows: int, n_features: int) -> Iterator[slice]:
    """Consecutive row slices of about STRIP_BYTES of features, but of at least 32 rows."""
    return _slices(n_rows, max(STRIP_BYTES // (8 * max(n_features, 1)), 32))


def _slices(n_rows: int, size: int) -> Iterator[slice]:
    """Slices of `size` rows; the last may be shorter."""
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


# Bytes of free memory assumed where the system reports nothing, and what stands for no limit.
FALLBACK = 4 * 2**30
UNLIMITED = 2**62


@dataclass(frozen=True)
class _GroupFiles:
    """Names of the files of a memory control group, and of the entries of its memory.stat that are page cache.

    Page cache counts as used memory there, but the kernel gives it up when memory is needed. The files of a tmpfs,
    which it cannot give up, are in neither entry.
    """

    limits: tuple[str, ...]
    used: str
    caches: tuple[str, ...]


V1 = _GroupFiles(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
# Beyond memory.high a group is slowed down until it gives memory back, which a fit cannot.
V2 = _GroupFiles(("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file"))


def available_memory() -> int:
    """Bytes that this process can allocate now without swapping, being killed or a MemoryError."""
    return min(_machine_memory(), _control_group_memory("/"), _resource_limit_memory())


def _machine_memory() -> int:
    """MemAvailable on Linux; half of the physical memory elsewhere."""
    try:
        for line in _read("/proc/meminfo").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return FALLBACK


def _resource_limit_memory() -> int:
    """What RLIMIT_AS and RLIMIT_DATA (ulimit -v and -d) leave of address space and data; UNLIMITED without them."""
    left = [UNLIMITED]
    for name, entry in (("RLIMIT_AS", 0), ("RLIMIT_DATA", 5)):  # entry of /proc/self/statm: pages in use
        limit = resource.getrlimit(getattr(resource, name))[0] if hasattr(resource, name) else -1
        if limit not in (-1, getattr(resource, "RLIM_INFINITY", -1)):
            try:
                pages = int(_read("/proc/self/statm").split()[entry])
            except (OSError, IndexError):  # not Linux: how much is in use is not known
                pages = 0
            left.append(limit - pages * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(left))


def _control_group_memory(root: str) -> int:
    """Limit minus usage of the control groups around this process, the least; UNLIMITED where none has a limit.

    Parameters
    ----------
    root : str
        The folder that holds proc/self and sys: "/", except in tests.
    """
    left = [UNLIMITED]
    try:
        groups = _control_groups(root, _read(os.path.join(root, "proc/self/cgroup")))
    except OSError:
        return UNLIMITED
    for group, files in groups:
        try:
            limit = min(_read_limit(f"{group}/{name}") for name in files.limits)
            if (
                limit >= UNLIMITED
            ):  # most groups: what they use, which takes the kernel some time to add up, is not read
                continue
            stat = dict(line.split()[:2] for line in _read(f"{group}/memory.stat").splitlines())
            used = int(_read(f"{group}/{files.used}")) - sum(int(stat.get(name, 0)) for name in files.caches)
        except (OSError, ValueError):  # not a group that limits memory
            continue
        left.append(limit - max(used, 0))
    return max(0, min(left))


def _read(path: str) -> str:
    """The text of a small file; every fit reads several."""
    with open(path) as file:
        return file.read()


def _read_limit(path: str) -> int:
    """The limit in bytes that the file holds; UNLIMITED if it says "max" or does not exist."""
    try:
        text = _read(path).strip()
    except FileNotFoundError:
        return UNLIMITED
    return UNLIMITED if text == "max" else int(text)


@cache
def _control_groups(root: str, lines: str) -> list[tuple[str, _GroupFiles]]:
    """Folders of the memory control groups that this process is in, from its own to the outermost that it sees.

    `lines` are those of /proc/self/cgroup, which change if the process is moved to another group.
    """
    groups = []
    for _, controllers, path in (line.split(":", 2) for line in lines.splitlines()):
        if controllers and "memory" not in controllers.split(","):
            continue
        for is_v1, top, mount_point in _control_group_mounts(root):
            if is_v1 != bool(controllers):
                continue
            own = PurePosixPath(path)
            inside = own.relative_to(top) if own.is_relative_to(top) else PurePosixPath()
            files = V1 if is_v1 else V2
            groups += [(os.path.join(mount_point, group), files) for group in (inside, *inside.parents)]
    return groups


def _control_group_mounts(root: str) -> list[tuple[bool, str, str]]:
    """Where control groups of memory are mounted: whether version 1, the group that is on top there, and the folder."""
    mounts = []
    for line in _read(os.path.join(root, "proc/self/mountinfo")).splitlines():
        mount, _, file_system = line.partition(" - ")
        kind, _, options = file_system.split()[:3]
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            top, folder = mount.split()[3:5]
            mounts.append((kind == "cgroup", top, os.path.join(root, folder.lstrip("/"))))
    return mounts


def as_size(n_bytes: float) -> str:
    """Format bytes for display, such as 2.4 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= size or unit == "MB":
            return f"{max(n_bytes / size, 0.1):.{1 if n_bytes < 10 * size else 0}f} {unit}"
    raise AssertionError
