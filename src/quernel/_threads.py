"""Threads, right-sized.

A BLAS pool spinning over small matrices costs more than it gives, and numpy and scipy bring a pool each. So BLAS runs
on one thread while quernel solves, and large problems are spread over row blocks instead: as many threads as the user
lets BLAS have (OMP_NUM_THREADS, threadpoolctl) and the machine has cores.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Entries of Phi below which one thread is faster than several.
SMALL = 3_000_000
POOL_NAME = "quernel"


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries: once is enough


class _Limit:
    """BLAS on one thread while anyone is inside: the first to enter asks what the user allows, the last restores it.

    The count is one for the whole process: two fits that overlap in threads must not each save and restore it.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0

    def enter(self) -> int:
        """Limit BLAS if nobody has; return the user's own number of threads."""
        with self._lock:
            if self._inside == 0:
                pools = [pool["num_threads"] for pool in _controller().info() if pool["user_api"] == "blas"]
                self._allowed = min([_cores(), *pools])
                self._limiter = _controller().limit(limits=1, user_api="blas")
            self._inside += 1
            return self._allowed

    def leave(self) -> None:
        """Restore the user's setting if nobody else is inside."""
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limiter.restore_original_limits()


_limit = _Limit()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def single_threaded_blas(n_rows: int, n_features: int) -> Iterator[int]:
    """BLAS on one thread; yields how many threads should share the row blocks."""
    allowed = _limit.enter()
    try:
        yield 1 if n_rows * n_features <= SMALL or _inside_pool() else max(1, allowed)
    finally:
        _limit.leave()


def spread(function: Callable[[Item], Answer], items: Iterable[Item], threads: int) -> list[Answer]:
    """[function(item) for item in items], each thread taking the next of them as soon as it is free, this one included.

    So a thread that the machine holds up holds up one item, and the answers are in the order of the items all the same.
    """
    items = list(items)
    threads = min(threads, len(items))
    if threads <= 1 or _inside_pool():
        return [function(item) for item in items]
    numbers, answers = iter(range(len(items))), [None] * len(items)
    others = [_pool(threads).submit(_work, function, items, numbers, answers) for _ in range(threads - 1)]
    try:
        _work(function, items, numbers, answers)
    finally:  # whoever has not begun by now need not
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        other.result()
    return answers  # type: ignore[return-value]


def ahead(function: Callable[..., Answer], *args: Any, threads: int) -> Callable[[], Answer]:
    """A promise of function(*args): another thread, if there are several, begins with it while this one goes on."""
    if threads <= 1 or _inside_pool():
        return partial(function, *args)
    return _pool(threads).submit(function, *args).result


def _work(function: Callable[[Item], Answer], items: list[Item], numbers: Iterator[int], answers: list[Any]) -> None:
    try:
        for k in numbers:  # gives each number once, to whichever thread asks: the interpreter's lock sees to that
            answers[k] = function(items[k])
    except BaseException:
        deque(numbers, maxlen=0)  # the others need not go on
        raise


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix=POOL_NAME)


def _inside_pool() -> bool:
    """Whether this is one of the pool's own threads, which must not wait for the others."""
    return threading.current_thread().name.startswith(POOL_NAME)


def _after_fork() -> None:
    """A forked process has neither the pool's threads nor those that held the lock."""
    global _limit
    _pool.cache_clear()
    _limit = _Limit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
