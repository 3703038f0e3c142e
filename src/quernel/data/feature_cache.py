"""The features of rows that pass by, kept by the first sweep that has them and read back by the next ones.

In memory they are kept where that has room for all. On disk they lie in a file without a name, of which nothing is left
when it is closed, whatever happened before, or when the process ends, however it ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data.sources import RowsError

Array = NDArray[np.floating]

POLICIES = ("auto", "recompute", "memory", "disk")
# Of the memory allowed: what cached features may take. The rest is for samples, and for what is remembered of rows.
CACHE_SHARE = 0.5
# Of the free disk space: what cached features may take, where nobody has asked for them and where somebody has.
SPARED, ASKED = 0.5, 0.95
# A disk for which caching shall pay (bytes a second, as measured by benchmarks/caching.py: to write, and to read what
# the system no longer has in memory), and for how many sweeps: most fits take two to six.
WRITE, READ, SWEEPS = 0.35e9, 1e9, 4
# Sweeps of so many seconds are not worth a file.
SHORT = 1.0


class MemoryCache:
    """Features in memory, a block at a time."""

    def __init__(self, n_blocks: int) -> None:
        self._blocks: list[Array | None] = [None] * n_blocks

    @property
    def complete(self) -> bool:
        """Whether the features of all rows are here."""
        return all(block is not None for block in self._blocks)

    def get(self, k: int) -> Array | None:
        """The features of block k, if they are here."""
        return self._blocks[k]

    def put(self, k: int, features: Array) -> None:
        """Keep the features of block k."""
        self._blocks[k] = features

    def close(self) -> None:
        """Forget everything."""
        self._blocks = [None] * len(self._blocks)


class DiskCache:
    """Features in a nameless file, each block at its place; they are mapped into memory when they are asked for.

    A disk that fills up meanwhile ends the cache with a warning, and features are computed again from then on.

    Parameters
    ----------
    folder : path
    spans : list of slices
        The rows of every block.
    n_features : int
    dtype : float64 or float32
        The type in which they are written; they come in it, too.
    """

    def __init__(self, folder: str | os.PathLike[str], spans: list[slice], n_features: int, dtype: Any = float) -> None:
        self.folder, self._spans, self._n_features, self._dtype = folder, spans, n_features, np.dtype(dtype)
        self._file: Any = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._written: set[int] = set()
        self._lock = threading.Lock()

    @property
    def complete(self) -> bool:
        """Whether the features of all rows are here."""
        return len(self._written) == len(self._spans)

    def get(self, k: int) -> Array | None:
        """The features of block k, if they are here; the system is told that the next block will be wanted, too."""
        with self._lock:
            if k not in self._written:
                return None
            if hasattr(os, "posix_fadvise"):
                ahead = self._spans[(k + 1) % len(self._spans)]
                os.posix_fadvise(self._file.fileno(), *self._place(ahead), os.POSIX_FADV_WILLNEED)
            shape = (self._spans[k].stop - self._spans[k].start, self._n_features)
            # Copied on writing, which nobody does: compiled code knows two kinds of arrays, and this is the usual one.
            return np.asarray(np.memmap(self._file, self._dtype, "c", self._place(self._spans[k])[0], shape))

    def put(self, k: int, features: Array) -> None:
        """Keep the features of block k: they are here once all of them are written."""
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
        """Forget everything, and give the disk space back."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._written.clear()
        self._file.close()

    def _give_up(self, error: OSError) -> None:
        self._close()
        warnings.warn(
            f"Features can no longer be cached in {self.folder} ({error.strerror}): they are computed again in every "
            "sweep from here on. Name a folder with more space where the rows are made, or cache='recompute'.",
            RuntimeWarning,
            stacklevel=2,
        )

    def _place(self, span: slice) -> tuple[int, int]:
        """Where the features of these rows are: first byte, and number of bytes."""
        row = self._dtype.itemsize * self._n_features
        return row * span.start, row * (span.stop - span.start)


Cache = MemoryCache | DiskCache


def check_policy(cache: Any) -> Any:
    """The policy, if it is one of the words or a folder in which files can be made."""
    if cache in POLICIES:
        return cache
    words = ", ".join(repr(word) for word in POLICIES)
    if not isinstance(cache, str | os.PathLike):
        raise RowsError(f"cache must be one of {words}, or a folder; got {cache!r}.")
    if not Path(cache).is_dir():
        raise RowsError(f"There is no folder {os.fspath(cache)!r}: cache must be one of {words}, or a folder that is.")
    try:
        tempfile.TemporaryFile(dir=os.fspath(cache)).close()
    except OSError as error:
        raise RowsError(
            f"Features cannot be cached in {os.fspath(cache)!r}: {error.strerror}. Name a folder in which files can be "
            "made, or cache='recompute'."
        ) from error
    return cache


def new_cache(policy: Any, spans: list[slice], n_features: int, allowed: float, dtype: Any = float) -> Cache | None:
    """An empty cache as the policy says, where "auto" has found that it pays; None recomputes features.

    Features are kept in memory where `allowed` bytes have room for them and on disk otherwise. What was asked for and
    cannot be had is an error.
    """
    size = np.dtype(dtype).itemsize * spans[-1].stop * n_features
    needed = f"The features of {spans[-1].stop:,} rows take {size / 1e9:.3g} GB as {np.dtype(dtype)}"
    if policy == "recompute":
        return None
    if policy in ("auto", "memory") and fits_memory(size, allowed):
        return MemoryCache(len(spans))
    if policy == "memory":
        raise RowsError(
            f"{needed}, and cache='memory' has room for {CACHE_SHARE * allowed / 1e9:.3g} GB, a half of max_memory. "
            "Raise max_memory, or use cache='disk', 'recompute' or 'auto'."
        )
    asked = policy != "auto"
    try:
        folder = _temporary_folder() if policy in ("auto", "disk") else policy
        free = shutil.disk_usage(folder).free
        if size > (ASKED if asked else SPARED) * free:
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
    folder = tempfile.gettempdir()
    if in_memory(folder):
        raise RowsError(
            f"The temporary folder {folder} lies in memory: name a folder of a disk with cache=, or use "
            "cache='recompute'."
        )
    return folder


def in_memory(folder: str) -> bool:
    """Whether files in this folder lie in memory, as far as the system tells."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return False
    path = Path(folder).resolve()
    found = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    kinds = {Path(place): kind for place, kind in found if path.is_relative_to(place)}
    return kinds.get(max(kinds, key=lambda place: len(place.parts), default=path)) in ("tmpfs", "ramfs")


def fits_memory(size: float, allowed: float) -> bool:
    """Whether features of so many bytes may be cached in memory."""
    return size <= CACHE_SHARE * allowed


def disk_pays(again: float, n_rows: int, n_features: int, dtype: Any = float) -> bool:
    """Whether reading features back costs less than the `again` seconds a row that it takes to have them anew.

    (sweeps - 1) (again - read) > write:  the first sweep computes them in any case. Rounded features save a sweep less,
    for the certificate is taken over unrounded ones.
    """
    size, saved = np.dtype(dtype).itemsize * n_features, SWEEPS - 1 - (np.dtype(dtype) != float)
    return again * n_rows > SHORT and saved * again - (SWEEPS - 1) * size / READ > size / WRITE
