"""Atomic file writes: readers find the old file or the new one, never a part of it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_writable(path: Path, *, overwrite: bool, remedy: str = "overwrite=True") -> None:
    """Raise, before any work, if a file cannot be written here, or exists already and must not be overwritten."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {path.parent} is missing. Create it first.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already. Choose another name, or replace it with {remedy}.")


@contextmanager
def write_atomically(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces `path` at the end, and is removed if anything fails.

    Both are in the same folder, hence on the same disk, so that the replacement is a single step.
    """
    check_writable(path, overwrite=overwrite)
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


def write_text_atomically(path: Path, text: str, *, overwrite: bool = True) -> None:
    """Write a text file (UTF-8) atomically."""
    with write_atomically(path, overwrite=overwrite) as part:
        part.write_text(text, encoding="utf-8")
