"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from quernel import __version__

PACKAGES = ("quernel", "numpy", "scipy", "scikit-learn", "numba")


def describe() -> dict[str, str]:
    """Processor, memory, Python and the packages that matter."""
    return {
        "processor": f"{_processor()}, {cores()} cores",
        "memory": _memory(),
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {installed(name)}" for name in PACKAGES),
    }


def installed(package: str) -> str:
    """The version of an installed package, or a question mark."""
    if package == "quernel":  # also where it runs from its source
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
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    except (AttributeError, ValueError, OSError):
        return "unknown memory"
