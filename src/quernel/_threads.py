"""Threads, right-sized.

A BLAS pool spinning over small matrices costs more than it gives, and numpy and scipy bring a pool each. So BLAS runs
on one thread while quernel solves, and large problems are spread over row blocks instead: as many threads as the user
lets BLAS have (OMP_NUM_THREADS, threadpoolctl) and the machine has cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Entries of Phi below which one thread is faster than several.
SMALL = 3_000_000


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries: once is enough


def allowed_threads() -> int:
    """What the user lets BLAS have, and no more than the cores this process may use."""
    pools = [pool["num_threads"] for pool in _controller().info() if pool["user_api"] == "blas"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *pools]))


@contextmanager
def right_sized(n_rows: int, n_features: int) -> Iterator[int]:
    """BLAS on one thread; yields how many threads should share the row blocks."""
    threads = 1 if n_rows * n_features <= SMALL else allowed_threads()
    with _controller().limit(limits=1, user_api="blas"):
        yield threads


def spread(function: Callable[[Item], Answer], items: Iterable[Item], threads: int) -> list[Answer]:
    """[function(item) for item in items], each thread taking one run of them, this one included.

    One run per thread, for handing over many small ones would cost more than an uneven split.
    """
    items = list(items)
    threads = min(threads, len(items))
    if threads <= 1:
        return [function(item) for item in items]
    cuts = [len(items) * k // threads for k in range(threads + 1)]
    runs = [items[start:end] for start, end in pairwise(cuts)]
    others = [_pool(threads).submit(_run, function, run) for run in runs[1:]]
    answers = _run(function, runs[0])
    return answers + [answer for other in others for answer in other.result()]


def _run(function: Callable[[Item], Answer], items: list[Item]) -> list[Answer]:
    return [function(item) for item in items]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="quernel")
