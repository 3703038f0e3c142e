"""Free memory: the least of what the machine, the control groups and the resource limits of this process have left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

# Bytes of free memory assumed where the system reports nothing, and what stands for no limit.
FALLBACK = 4 * 2**30
UNLIMITED = 2**62


@dataclass(frozen=True)
class _GroupFiles:
    """Names of the files of a memory control group, and of the entries of its memory.stat that are page cache.

    Page cache counts as used memory there, but the kernel gives it up when memory is needed. The files of a tmpfs,
    which it cannot give up, are in neither entry.
    """

    limits: tuple[str, ...]
    used: str
    caches: tuple[str, ...]


V1 = _GroupFiles(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
# Beyond memory.high a group is slowed down until it gives memory back, which a fit cannot.
V2 = _GroupFiles(("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file"))


def available_memory() -> int:
    """Bytes that this process can allocate now without swapping, being killed or a MemoryError."""
    return min(_machine_memory(), _control_group_memory("/"), _resource_limit_memory())


def _machine_memory() -> int:
    """MemAvailable on Linux; half of the physical memory elsewhere."""
    try:
        for line in _read("/proc/meminfo").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return FALLBACK


def _resource_limit_memory() -> int:
    """What RLIMIT_AS and RLIMIT_DATA (ulimit -v and -d) leave of address space and data; UNLIMITED without them."""
    left = [UNLIMITED]
    for name, entry in (("RLIMIT_AS", 0), ("RLIMIT_DATA", 5)):  # entry of /proc/self/statm: pages in use
        limit = resource.getrlimit(getattr(resource, name))[0] if hasattr(resource, name) else -1
        if limit not in (-1, getattr(resource, "RLIM_INFINITY", -1)):
            try:
                pages = int(_read("/proc/self/statm").split()[entry])
            except (OSError, IndexError):  # not Linux: how much is in use is not known
                pages = 0
            left.append(limit - pages * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(left))


def _control_group_memory(root: str) -> int:
    """Limit minus usage of the control groups around this process, the least; UNLIMITED where none has a limit.

    Parameters
    ----------
    root : str
        The folder that holds proc/self and sys: "/", except in tests.
    """
    left = [UNLIMITED]
    try:
        groups = _control_groups(root, _read(os.path.join(root, "proc/self/cgroup")))
    except OSError:
        return UNLIMITED
    for group, files in groups:
        try:
            limit = min(_read_limit(f"{group}/{name}") for name in files.limits)
            if (
                limit >= UNLIMITED
            ):  # most groups: what they use, which takes the kernel some time to add up, is not read
                continue
            stat = dict(line.split()[:2] for line in _read(f"{group}/memory.stat").splitlines())
            used = int(_read(f"{group}/{files.used}")) - sum(int(stat.get(name, 0)) for name in files.caches)
        except (OSError, ValueError):  # not a group that limits memory
            continue
        left.append(limit - max(used, 0))
    return max(0, min(left))


def _read(path: str) -> str:
    """The text of a small file; every fit reads several."""
    with open(path) as file:
        return file.read()


def _read_limit(path: str) -> int:
    """The limit in bytes that the file holds; UNLIMITED if it says "max" or does not exist."""
    try:
        text = _read(path).strip()
    except FileNotFoundError:
        return UNLIMITED
    return UNLIMITED if text == "max" else int(text)


@cache
def _control_groups(root: str, lines: str) -> list[tuple[str, _GroupFiles]]:
    """Folders of the memory control groups that this process is in, from its own to the outermost that it sees.

    `lines` are those of /proc/self/cgroup, which change if the process is moved to another group.
    """
    groups = []
    for _, controllers, path in (line.split(":", 2) for line in lines.splitlines()):
        if controllers and "memory" not in controllers.split(","):
            continue
        for is_v1, top, mount_point in _control_group_mounts(root):
            if is_v1 != bool(controllers):
                continue
            own = PurePosixPath(path)
            inside = own.relative_to(top) if own.is_relative_to(top) else PurePosixPath()
            files = V1 if is_v1 else V2
            groups += [(os.path.join(mount_point, group), files) for group in (inside, *inside.parents)]
    return groups


def _control_group_mounts(root: str) -> list[tuple[bool, str, str]]:
    """Where control groups of memory are mounted: whether version 1, the group that is on top there, and the folder."""
    mounts = []
    for line in _read(os.path.join(root, "proc/self/mountinfo")).splitlines():
        mount, _, file_system = line.partition(" - ")
        kind, _, options = file_system.split()[:3]
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            top, folder = mount.split()[3:5]
            mounts.append((kind == "cgroup", top, os.path.join(root, folder.lstrip("/"))))
    return mounts


def as_size(n_bytes: float) -> str:
    """Format bytes for display, such as 2.4 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= size or unit == "MB":
            return f"{max(n_bytes / size, 0.1):.{1 if n_bytes < 10 * size else 0}f} {unit}"
    raise AssertionError
