"""Atomic file writes: readers find the old file or the new one, never a part of it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

try:
    import fcntl
except ImportError:  # Windows, where files that are open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]


def check_writable(path: Path, *, overwrite: bool, remedy: str = "overwrite=True") -> None:
    """Raise, before any work, if a file cannot be written here, or exists already and must not be overwritten."""
    folder = follow_link(path).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"The folder {folder} is missing. Create it first.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file.")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is a device or a pipe, which cannot be replaced by a file. Give the name of a file.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already. Choose another name, or replace it with {remedy}.")


def follow_link(path: Path) -> Path:
    """The file that a symbolic link points to, which need not exist; any other path as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


@contextmanager
def write_atomically(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield the path of an empty temporary file that replaces `path` at the end, and is removed if anything fails.

    Both are in the same folder, hence on the same disk, so that the replacement is a single step. The new file has the
    permissions of the old one, and only its owner can read it before. A symbolic link stays, and the file that it
    points to is replaced. Temporary files for the same path that a killed process left behind are removed.
    """
    check_writable(path, overwrite=overwrite)
    target = follow_link(path)
    part: Path | None = None
    lock: int | None = None
    try:
        _remove_leftovers(target)
        part, lock = _create_part(target)
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        if target.exists():
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        part.replace(target)
    except OSError as error:
        raise OSError(f"{path} could not be written: {error.strerror or error}") from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)


def _create_part(target: Path) -> tuple[Path, int]:
    """Create the temporary file of a target: its path, and a file descriptor that holds a lock on it.

    The lock shows other processes that the file is in use; the system releases it when this process ends, however it
    ends. Without file locks (Windows, some network disks) leftovers stay.
    """
    while True:
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        lock = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600 if target.exists() else 0o666)
        _lock(lock)
        if part.exists():  # otherwise somebody took it for a leftover, before it was locked
            return part, lock
        os.close(lock)


def _remove_leftovers(target: Path) -> None:
    """Remove temporary files of the target that no living process holds a lock on."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.part")
    with contextlib.suppress(OSError):  # a folder that cannot be listed, a file of another user
        for part in [one for one in target.parent.iterdir() if name.fullmatch(one.name)]:
            lock = os.open(part, os.O_RDWR)
            try:
                if _lock(lock):
                    part.unlink()
            finally:
                os.close(lock)


def _lock(file: int) -> bool:
    """Lock an open file until it is closed; False if another process holds the lock, or there are no locks here."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def write_text_atomically(path: Path, text: str, *, overwrite: bool = True) -> None:
    """Write a text file (UTF-8) atomically."""
    with write_atomically(path, overwrite=overwrite) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def exit_on_termination() -> Iterator[None]:
    """Context manager for programs: SIGTERM and SIGHUP raise SystemExit, so that temporary files are removed.

    A signal that is handled or ignored already (as by nohup) is left alone, and so is any thread but the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)  # as shells report a process that was ended by the signal

    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ours = [one for one in signals if signal.getsignal(one) == signal.SIG_DFL]
    for one in ours:
        signal.signal(one, leave)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)


# Names of temporary folders, and of the file in them that their process keeps locked.
FOLDER_PREFIX, FOLDER_LOCK = "quernel-copy-", "owner.lock"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder that is removed at the end or, if this process is killed, by the next `remove_leftovers`."""
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as made, (Path(made) / "owner").open("wb") as owner:
        if _lock(owner.fileno()):
            Path(owner.name).rename(Path(made) / FOLDER_LOCK)  # visible to others only once it is locked
        inner = Path(made) / "files"
        inner.mkdir()
        yield inner


def remove_leftovers() -> None:
    """Remove the temporary folders of processes that have ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        # OSError: removed in the meantime, or another user's.
        with contextlib.suppress(OSError), (folder / FOLDER_LOCK).open("rb") as owner:
            if _lock(owner.fileno()):
                shutil.rmtree(folder)
