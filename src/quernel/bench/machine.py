"""Describe the machine and the package versions of a benchmark."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from quernel import __version__

PACKAGES = ("quernel", "numpy", "scipy", "scikit-learn", "numba")


def describe() -> dict[str, str]:
    """Return processor, memory, Python version and relevant package versions."""
    return {
        "processor": f"{_processor()}, {cores()} cores",
        "memory": _memory(),
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {installed(name)}" for name in PACKAGES),
    }


def installed(package: str) -> str:
    """Return the version of an installed package, "?" if there is none."""
    if package == "quernel":  # also when running from source
        return __version__
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in names if "model name" in line]
    return models[0] if models else platform.processor() or "unknown processor"


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    except (AttributeError, ValueError, OSError):
        return "unknown memory"
