"""Validation of the parameters and the data of `ConformalQuantileRegressor`; every error names a remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _num_samples, has_fit_parameter

from quernel._validation import check_choice, check_share
from quernel.conformal.adapters import is_frozen
from quernel.conformal.splits import check_size
from quernel.estimators.validation import check_groups, check_target, check_weight

Array = NDArray[np.floating]


def resolve_groups(groups: Any, X: Any) -> NDArray[Any] | None:
    """Return the group label of each row, shape (n,), none missing; None without groups.

    `groups` is an array, a function of X, or None.
    """
    if groups is None:
        return None
    labels = _evaluate_per_row("groups", groups, X)
    check_groups(labels)
    return labels


def resolve_density_ratio(density_ratio: Any, X: Any) -> Array:
    """Return the density ratio of each row, shape (n,), finite and not negative.

    `density_ratio` is an array, a function of X, or None for ones: no covariate shift.
    """
    if density_ratio is None:
        return np.ones(_num_samples(X))
    ratio = _evaluate_per_row("density_ratio", density_ratio, X).astype(float)
    bad = ~(np.isfinite(ratio) & (ratio >= 0))
    if bad.any():
        raise ValueError(
            f"density_ratio must be finite and not negative; {bad.sum()} of {len(ratio)} entries are not, such as "
            f"{ratio[bad][0]:g}. Estimate it as a ratio of densities, for example p / (1 - p) of a classifier."
        )
    return ratio


def _evaluate_per_row(name: str, given: Any, X: Any) -> NDArray[Any]:
    """Return an array with one entry per row of X: the given one, or that of the given function of X."""
    values = np.asarray(given(X) if callable(given) else given)
    if values.ndim != 1 or len(values) != _num_samples(X):
        raise ValueError(f"{name} must have one entry for each of {_num_samples(X)} rows; got shape {values.shape}.")
    return values


def check_parameters(model: Any) -> bool:
    """Validate the constructor's parameters, and return whether the estimator is used as fitted (prefit).

    That is so with ``method="prefit"`` and for a FrozenEstimator.
    """
    check_share("coverage", model.coverage)
    check_choice("method", model.method, ("split", "cv+", "prefit"))
    check_size(model.calibration_size)
    for name in ("symmetric", "time_ordered"):
        if not isinstance(getattr(model, name), bool | np.bool_):
            raise ValueError(f"{name} must be True or False; got {getattr(model, name)!r}.")
    prefit = model.method == "prefit" or is_frozen(model.estimator)
    if model.time_ordered and (prefit or model.method != "split"):
        raise ValueError(
            "time_ordered=True divides the rows into earlier and later ones, which method='split' does and "
            f"method={'prefit' if prefit else model.method!r} does not. Use method='split', or leave it False."
        )
    if model.method == "prefit" and model.estimator is None:
        raise ValueError("method='prefit' needs a fitted estimator; got None. Give one, or use method='split'.")
    if prefit and model.method == "cv+":
        raise ValueError("method='cv+' fits a model for each fold, and a FrozenEstimator cannot be fitted again.")
    return prefit


def checkpoint_params(model: Any, checkpoint: Any, prefit: bool) -> dict[str, Any]:
    """Return the keyword arguments of the estimator's `fit` other than the data: the checkpoint, if there is one."""
    if checkpoint is None:
        return {}
    if prefit or model.method == "cv+":
        how = "several models" if model.method == "cv+" else "none"
        raise ValueError(f"checkpoint is for the fit of one model, and here {how} will be fitted. Leave it out.")
    if model.estimator is not None and not has_fit_parameter(model.estimator, "checkpoint"):
        raise ValueError(f"{type(model.estimator).__name__} takes no checkpoint. Leave it out.")
    return {"checkpoint": checkpoint}


def check_y_and_weight(model: Any, X: Any, y: Any, sample_weight: Any, prefit: bool) -> tuple[Array, Array | None]:
    """Validate y and the sample weights against X, and return both as arrays; None for no weights."""
    if y is None:
        raise ValueError(f"This {type(model).__name__} estimator requires y to be passed, but the target y is None.")
    y, n = check_target(y), _num_samples(X)
    if n != len(y):
        raise ValueError(
            f"X has {n} rows but y has {len(y)} entries (inconsistent numbers of samples): give one per row."
        )
    if sample_weight is None:
        return y, None
    if prefit:
        raise ValueError(
            "sample_weight is for fitting, and a prefit model is not fitted again. Leave it out; to weigh "
            "calibration rows use density_ratio."
        )
    if model.estimator is not None and not has_fit_parameter(model.estimator, "sample_weight"):
        raise ValueError(f"{type(model.estimator).__name__} takes no sample_weight. Leave it out.")
    return y, check_weight(sample_weight, n)
