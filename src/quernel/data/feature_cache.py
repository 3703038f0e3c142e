"""Caches for the features of streamed rows: written in the first pass of a fit, read back in later ones.

A cache is in memory if the budget holds all features. Otherwise it may be on disk, in a temporary file without a name,
which disappears when it is closed and however the process ends. The policy "auto" caches on disk only where a cost
model (`disk_pays`) says that reading features back is cheaper than computing them again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data.sources import RowsError

Array = NDArray[np.floating]


@dataclass(frozen=True)
class CacheOptions:
    """What a cache may take, and the cost model of the policy "auto"."""

    memory_share: float = 0.5  # of the memory budget; the rest is for samples and for row state
    auto_disk_share: float = 0.5  # of the free disk space, under "auto"
    asked_disk_share: float = 0.95  # ... and where the user asked for a cache
    # Bytes per second, as measured by benchmarks/caching.py; reading where the page cache no longer holds them.
    write_speed: float = 0.35e9
    read_speed: float = 1e9
    n_passes: int = 4  # of a fit; most take two to six
    min_seconds: float = 1.0  # shorter passes are not worth a file


OPTIONS = CacheOptions()


class MemoryCache:
    """Feature cache in memory: one array (m, M) per block."""

    def __init__(self, n_blocks: int) -> None:
        self._blocks: list[Array | None] = [None] * n_blocks

    @property
    def complete(self) -> bool:
        """Whether the features of all rows are cached."""
        return all(block is not None for block in self._blocks)

    def get(self, k: int) -> Array | None:
        """Features (m, M) of block k, or None if they are not cached."""
        return self._blocks[k]

    def put(self, k: int, features: Array) -> None:
        """Cache the features of block k."""
        self._blocks[k] = features

    def close(self) -> None:
        """Drop all features."""
        self._blocks = [None] * len(self._blocks)


class DiskCache:
    """Feature cache in an unnamed temporary file: blocks are written at their offsets and returned as memory maps.

    If the disk fills up, the cache is closed with a warning, and features are recomputed from then on.

    Parameters
    ----------
    folder : path
    spans : list of slices
        The rows of each block.
    n_features : int
    dtype : float64 or float32
        Type in which features are written and returned.
    """

    def __init__(self, folder: str | os.PathLike[str], spans: list[slice], n_features: int, dtype: Any = float) -> None:
        self.folder, self._spans, self._n_features, self._dtype = folder, spans, n_features, np.dtype(dtype)
        self._file: Any = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._written: set[int] = set()
        self._lock = threading.Lock()

    @property
    def complete(self) -> bool:
        """Whether the features of all rows are cached."""
        return len(self._written) == len(self._spans)

    def get(self, k: int) -> Array | None:
        """Features (m, M) of block k, or None if they are not cached; the next block is prefetched by the system."""
        with self._lock:
            if k not in self._written:
                return None
            if hasattr(os, "posix_fadvise"):
                ahead = self._spans[(k + 1) % len(self._spans)]
                os.posix_fadvise(self._file.fileno(), *self._place(ahead), os.POSIX_FADV_WILLNEED)
            shape = (self._spans[k].stop - self._spans[k].start, self._n_features)
            # Copy-on-write, though nobody writes: a read-only array would be another type to compiled code.
            return np.asarray(np.memmap(self._file, self._dtype, "c", self._place(self._spans[k])[0], shape))

    def put(self, k: int, features: Array) -> None:
        """Cache the features of block k; `get` finds them once all bytes are written."""
        with self._lock:
            if self._file.closed:
                return
            try:
                self._file.seek(self._place(self._spans[k])[0])
                rest = np.ascontiguousarray(features, dtype=self._dtype).data.cast("B")
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                self._give_up(error)
            else:
                self._written.add(k)

    def close(self) -> None:
        """Drop all features and free the disk space."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        """`close`, for callers that hold the lock."""
        self._written.clear()
        self._file.close()

    def _give_up(self, error: OSError) -> None:
        """Close the cache and warn: features are recomputed from here on."""
        self._close()
        warnings.warn(
            f"Features can no longer be cached in {self.folder} ({error.strerror}): they are computed again in every "
            "pass from here on. Name a folder with more space where the rows are made, or cache='recompute'.",
            RuntimeWarning,
            stacklevel=2,
        )

    def _place(self, span: slice) -> tuple[int, int]:
        """Offset and length, in bytes, of the features of these rows in the file."""
        row = self._dtype.itemsize * self._n_features
        return row * span.start, row * (span.stop - span.start)


Cache = MemoryCache | DiskCache


def new_cache(policy: Any, spans: list[slice], n_features: int, allowed: float, dtype: Any = float) -> Cache | None:
    """Create an empty feature cache; None means that features are recomputed in every pass.

    Parameters
    ----------
    policy : "auto", "recompute", "memory", "disk", or a folder
        "auto" prefers memory, then disk, then no cache; the caller has made sure that a disk cache pays. The other
        policies raise a `RowsError` where they cannot be satisfied.
    spans : list of slices
        The rows of each block.
    n_features : int
    allowed : float
        Memory budget of the fit in bytes, of which a half is for the cache.
    dtype : float64 or float32
    """
    size = np.dtype(dtype).itemsize * spans[-1].stop * n_features
    needed = f"The features of {spans[-1].stop:,} rows take {size / 1e9:.3g} GB as {np.dtype(dtype)}"
    if policy == "recompute":
        return None
    if policy in ("auto", "memory") and fits_memory(size, allowed):
        return MemoryCache(len(spans))
    if policy == "memory":
        raise RowsError(
            f"{needed}, and cache='memory' has room for {OPTIONS.memory_share * allowed / 1e9:.3g} GB, a half "
            "of max_memory. Raise max_memory, or use cache='disk', 'recompute' or 'auto'."
        )
    asked = policy != "auto"
    try:
        folder = _temporary_folder() if policy in ("auto", "disk") else policy
        free = shutil.disk_usage(folder).free
        if size > (OPTIONS.asked_disk_share if asked else OPTIONS.auto_disk_share) * free:
            raise RowsError(
                f"{needed}, but {os.fspath(folder)} has only {free / 1e9:.3g} GB left. Name another folder with "
                "cache=, take fewer components, or use cache='recompute'."
            )
        return DiskCache(folder, spans, n_features, dtype)
    except (RowsError, OSError) as error:
        if not asked:
            return None
        if isinstance(error, RowsError):
            raise
        raise RowsError(f"Features cannot be cached in {os.fspath(folder)}: {error.strerror}.") from error


def _temporary_folder() -> str:
    """The system's temporary folder, refused where it is a file system in memory."""
    folder = tempfile.gettempdir()
    if in_memory(folder):
        raise RowsError(
            f"The temporary folder {folder} lies in memory: name a folder of a disk with cache=, or use "
            "cache='recompute'."
        )
    return folder


def in_memory(folder: str) -> bool:
    """Whether a folder is on a file system in memory (tmpfs, ramfs), by /proc/mounts; False where that is missing."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return False
    path = Path(folder).resolve()
    found = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    kinds = {Path(place): kind for place, kind in found if path.is_relative_to(place)}
    return kinds.get(max(kinds, key=lambda place: len(place.parts), default=path)) in ("tmpfs", "ramfs")


def fits_memory(size: float, allowed: float) -> bool:
    """Whether features of `size` bytes may be cached in memory, within a budget of `allowed` bytes."""
    return size <= OPTIONS.memory_share * allowed


def disk_pays(again: float, n_rows: int, n_features: int, dtype: Any = float) -> bool:
    """Whether a disk cache is expected to be cheaper than recomputing features at `again` seconds per row and pass.

    Per row, with P passes of which the first computes the features in any case:

        (P - 1) (again - read) > write

    float32 features save one recomputation less, for the duality gap is evaluated on float64 features.
    """
    size, n_reads = np.dtype(dtype).itemsize * n_features, OPTIONS.n_passes - 1
    saved = n_reads - (np.dtype(dtype) != float)
    gain = saved * again - n_reads * size / OPTIONS.read_speed
    return again * n_rows > OPTIONS.min_seconds and gain > size / OPTIONS.write_speed
