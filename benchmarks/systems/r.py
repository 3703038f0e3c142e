"""R's packages, where Rscript is installed: kernlab, quantreg and conquer. The time is taken inside R."""

import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from quernel.bench import Answer, System, Task

SCRIPT = Path(__file__).with_name("fit.R")
NOT_INSTALLED = 3


def _fit(method: str, note: str, task: Task) -> Answer:
    if shutil.which("Rscript") is None:
        raise ImportError("Rscript")
    if method in ("kqr", "conquer") and not task.fit_intercept:
        raise ValueError(f"{method} always has an intercept")
    x = task.X if task.M is None else task.features if method == "conquer" else task.design
    cost = 1 / (2 * task.n * task.alpha)  # C sum loss + |u|^2 / 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.asfortranarray(x).ravel(order="F").tofile(folder / "x.bin")
        task.y.tofile(folder / "y.bin")
        numbers = (task.n, x.shape[1], task.level, cost, 0.5 / task.bandwidth**2, task.repeats, task.M or 0)
        command = ["Rscript", "--vanilla", str(SCRIPT), str(folder), method, *map(repr, numbers)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode == NOT_INSTALLED:
            raise ImportError(method)
        if ran.returncode != 0:
            raise RuntimeError(_complaint(ran.stderr))
        seconds, penalty, version, said = (*(folder / "facts.txt").read_text().split("\n"), "")[:4]
        notes = "; ".join(text for text in (note, said.strip()) if text)
        return Answer(float(seconds), np.fromfile(folder / "fitted.bin"), float(penalty), note=notes, version=version)


def _complaint(said: str) -> str:
    """What R calls the error, which may come on a line of its own."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and "Execution halted" not in line]
    first = next((k for k, line in enumerate(lines) if line.startswith("Error")), -1)
    return " ".join(lines[first:][:2]) if lines else "Rscript failed"


KQR = System("R kernlab kqr", "", partial(_fit, "kqr", ""))
FN = System("R quantreg, fn", "", partial(_fit, "fn", "solves alpha = 0"))
PFN = System("R quantreg, pfn", "", partial(_fit, "pfn", "solves alpha = 0"))
PFNB = System("R quantreg, pfnb", "", partial(_fit, "pfnb", "solves alpha = 0"))
CONQUER = System("R conquer", "", partial(_fit, "conquer", "solves alpha = 0, smoothed"))
