"""Free memory of the machine or of its container."""

from __future__ import annotations

import os
from pathlib import Path

# Bytes assumed where the system reports nothing.
FALLBACK = 4 * 2**30


def available_memory() -> int:
    """Bytes that can be allocated now without swapping: the lesser of what machine and container have left."""
    return min(_machine(), _container())


def _machine() -> int:
    """MemAvailable on Linux; half of the physical memory elsewhere."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return FALLBACK


def _container() -> int:
    """Limit minus usage of the control group (v2, then v1), its file cache counted as free; 2^62 without a limit."""
    group = Path("/sys/fs/cgroup")
    for limit, used, stat in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            spare = int((group / limit).read_text()) - int((group / used).read_text())
            counts = dict(line.split()[:2] for line in (group / stat).read_text().splitlines())
            return max(0, spare + int(counts.get("inactive_file", 0)))
        except (OSError, ValueError):
            continue
    return 2**62
