"""The one way to compile a function: `compiled`, numba's `njit`, with a cache on disk that may fail.

*The cache is optional.* It saves seconds in the next process, and nothing depends on it. Installations without a
directory to write to (read-only containers, functions as a service), full disks and damaged cache files cost these
seconds again, no more.

*Ctrl-C does not interrupt numba.* Half imported, or interrupted within its first compilation, it is broken for the rest
of the process. Signals raise exceptions in the main thread only, so another one imports and compiles while the main
thread waits: an interrupt is raised there at once, and the work goes on in the background to be found done by the next
call.

*Compilation is announced* once per process, on a terminal or in a notebook.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import Any, TypeVar

Answer = TypeVar("Answer")


def run_to_the_end(function: Callable[..., Answer], *args: object) -> Answer:
    """function(*args), which a signal that raises an exception here leaves running in a thread of its own."""
    if threading.current_thread() is not threading.main_thread():
        return function(*args)
    executor = ThreadPoolExecutor(1)
    try:
        return executor.submit(function, *args).result()
    finally:
        executor.shutdown(wait=False)


numba = run_to_the_end(import_module, "numba")


@cache
def _tell_once() -> None:
    """Say that code is compiled, if somebody is likely to watch."""
    if "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty()):
        print("quernel: compiling numerical code, once per installation; this takes some seconds", file=sys.stderr)


class _OptionalCache(numba.core.caching.FunctionCache):  # type: ignore[name-defined]
    """numba's cache of one function, for which an entry that cannot be read or written is one that is not there."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function from disk; None, which means compile it, if it is not there or damaged."""
        try:
            found = super().load_overload(sig, target_context)
        except Exception:  # whatever unpickling a damaged file may raise
            found = None
        if found is None:
            _tell_once()
        return found

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
    return lambda function: run_to_the_end(_declare, function, options)


def _declare(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """numba's dispatcher for the function, which compiles it for the types of its arguments when it is first called."""
    dispatcher = numba.njit(nogil=True, **options)(function)
    if hasattr(dispatcher, "compile"):  # not where NUMBA_DISABLE_JIT leaves functions as they are
        dispatcher.compile = partial(run_to_the_end, dispatcher.compile)
        with suppress(RuntimeError, OSError):  # no directory that can be written to
            dispatcher._cache = _OptionalCache(function)
    return dispatcher
