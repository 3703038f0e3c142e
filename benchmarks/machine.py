"""What the figures were measured on."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe() -> dict[str, str]:
    model = platform.processor() or "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("quernel", "numpy", "scipy", "scikit-learn", "numba"))
    return {
        "processor": f"{model}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory:.0f} GiB",
        "python": platform.python_version(),
        "packages": packages,
    }
