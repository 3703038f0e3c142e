"""Memory that numpy frees, kept at hand.

A nanny of Dask sets MALLOC_TRIM_THRESHOLD_, so that a worker gives memory back to the system as soon as it is free.
Every temporary array beyond 128 kB is then mapped and cleared anew, which takes longer than the arithmetic in it.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

# Names and numbers of glibc's <malloc.h>: free memory is kept up to the first, arrays up to the second come from it.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT, LARGE = 256 * 2**20, 32 * 2**20


@cache
def keep_freed_memory() -> bool:
    """Let this process keep some free memory; whether it could be told to. Once is enough."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT)) and bool(mallopt(M_MMAP_THRESHOLD, LARGE))
