"""How rows are dealt out to workers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

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
