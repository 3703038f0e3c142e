"""Atomic file writes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_free(path: Path, *, overwrite: bool, remedy: str = "overwrite=True") -> None:
    """Complain, before any work, about a path that cannot be written or holds something already."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {path.parent} is missing. Create it first.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already. Choose another name, or replace it with {remedy}.")


@contextmanager
def written_whole(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A new path beside this one to write to: it takes the place of `path` at the end, and vanishes if anything fails.

    Both are in the same folder, hence on the same disk, so that taking the place is one step: a reader finds the old
    file or the new one, never half of it.
    """
    check_free(path, overwrite=overwrite)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise OSError(f"{path} could not be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
