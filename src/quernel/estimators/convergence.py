"""What a fit tells its user: how far it has come and, where it stopped short, how short."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from quernel.estimators.cost import as_duration
from quernel.solvers.progress import Progress


def print_progress(progress: Progress) -> None:
    """A line for every pass over rows that is done, or whenever the certificate improves."""
    if progress.sweep:
        if progress.done == 1:
            print(f"quernel: pass {progress.sweep} over the rows is done, about {as_duration(progress.left or 0)} left")
        return
    print(f"quernel: step {progress.iteration}, {progress.columns} fits at work, relative gap {progress.gap:.1e}")


def warn_not_converged(model: Any, names: list[str], of: str = "") -> None:
    """Warn where the certificate is above `tol`, and say of which columns."""
    short = ~(model.duality_gap_ <= model.tol)  # so that a gap that is no number warns, too
    if short.any():
        fits, gap = ", ".join(np.array(names)[short]), model.duality_gap_.max()
        accept = f", or accept the gap with tol={2 * gap:.0e}" if gap < 0.01 else ""
        warnings.warn(
            f"The fit of {of}{fits} stopped at a relative duality gap of {gap:.1e}, above tol={model.tol:g}. "
            f"Try a larger max_iter (now {model.max_iter}) or a larger alpha (now {model.alpha_:.2g}){accept}.",
            ConvergenceWarning,
            stacklevel=3,
        )
