"""Temporary folders that do not outlive their process for long.

A process that is killed leaves its folder behind, and whoever needs such a folder next removes it. In every folder lies
a file that the system keeps locked for as long as the owner lives; where there are no such locks, nothing is removed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows
    flock = None  # type: ignore[assignment]

PREFIX = "quernel-copy-"
LOCK = "owner.lock"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that goes with the block or, after this process was killed, with the next call of `remove_leftovers`."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as made, (Path(made) / "owner").open("wb") as owner:
        if _locked(owner):
            Path(owner.name).rename(Path(made) / LOCK)  # nobody sees it before it is locked
        inner = Path(made) / "files"
        inner.mkdir()
        yield inner


def remove_leftovers() -> None:
    """Remove the folders of processes that are no more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Not there any more, or another user's.
        with suppress(OSError), (folder / LOCK).open("rb") as owner:
            if _locked(owner):
                shutil.rmtree(folder)


def _locked(file: IO[bytes]) -> bool:
    """Whether this process has the lock of a file from here on."""
    if flock is None:
        return False
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except OSError:  # somebody else has it, or the file system has no locks
        return False
    return True
