"""The one way to compile a function: `compiled`, numba's `njit` with a cache on disk that may fail.

The cache saves seconds in the next process, and nothing depends on it. Installations without a directory to write to
(read-only containers, functions as a service), full disks and damaged cache files cost these seconds again, no more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


class _OptionalCache(FunctionCache):
    """numba's cache of one function, for which an entry that cannot be read or written is one that is not there."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function from disk; None, which means compile it, if it is not there or damaged."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever unpickling a damaged file may raise
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the compiled function to disk, where that is possible."""
        try:
            super().save_overload(sig, data)
        except Exception:  # a full disk, a directory that became read-only, a damaged index
            return


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: compile on first use, release the interpreter lock, and cache on disk where that is possible.

    Parameters
    ----------
    **options
        Options of `numba.njit`, such as fastmath.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=True, **options)(function)
        if hasattr(dispatcher, "enable_caching"):  # not where NUMBA_DISABLE_JIT leaves functions as they are
            with suppress(RuntimeError, OSError):  # no directory that can be written to
                dispatcher._cache = _OptionalCache(function)
        return dispatcher

    return decorate
