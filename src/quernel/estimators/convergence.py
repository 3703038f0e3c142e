"""Progress messages for `verbose=1`, and the ConvergenceWarning of a fit that did not reach `tol`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from quernel.estimators.cost import as_duration
from quernel.solvers.progress import Progress


def print_progress(progress: Progress) -> None:
    """Print a line after every pass over out-of-core rows, or whenever the duality gap improves."""
    if progress.sweep:
        if progress.done == 1:
            print(f"quernel: pass {progress.sweep} over the rows is done, about {as_duration(progress.left or 0)} left")
        return
    print(f"quernel: step {progress.iteration}, {progress.columns} active fits, relative gap {progress.gap:.1e}")


def warn_not_converged(model: Any, names: list[str], of: str = "") -> None:
    """Raise a ConvergenceWarning that names the outputs whose relative duality gap is above `tol`.

    `names` has one label per output, such as a quantile level; `of` is put before them, such as "level ".
    """
    short = ~(model.duality_gap_ <= model.tol)  # negated, so that a gap of NaN also warns
    if short.any():
        fits, gap = ", ".join(np.array(names)[short]), model.duality_gap_.max()
        accept = f", or accept the gap with tol={2 * gap:.0e}" if gap < 0.01 else ""
        warnings.warn(
            f"The fit of {of}{fits} stopped at a relative duality gap of {gap:.1e}, above tol={model.tol:g}. "
            f"Try a larger max_iter (now {model.max_iter}) or a larger alpha (now {model.alpha_:.2g}){accept}.",
            ConvergenceWarning,
            stacklevel=3,
        )
