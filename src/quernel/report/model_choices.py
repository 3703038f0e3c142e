"""The hyperparameters of a model, and how each was chosen."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quernel.estimators import KernelQuantileRegressor
from quernel.features import LandmarkPredictor, Nystroem
from quernel.kernels import Linear
from quernel.report.number_format import percent
from quernel.theory import KernelGap, effective_dimension
from quernel.tuning import alpha, bandwidth
from quernel.tuning.data_summary import robust_scale

Array = NDArray[np.floating]

# Rows on which the effective dimension is computed, at most.
ROWS = 1000


class Choice(NamedTuple):
    """A hyperparameter or diagnostic: name, value, and how it was chosen or what it means."""

    name: str
    value: str
    why: str


def choices(model: KernelQuantileRegressor, X: Array, y: Array, kernel_gap: KernelGap | None = None) -> list[Choice]:
    """Return the choices of a fitted model; X and y, in its units, are used for its effective dimension."""
    tolerance = np.format_float_positional(model.tol, trim="-")  # 1e-06 could break at its sign at the end of a line
    return [
        Choice("Quantile levels", ", ".join(f"{level:g}" for level in model.quantiles_), "given"),
        Choice("Kernel", model.kernel_.full_name, "similarity of two rows as a function of their distance"),
        _bandwidth(model),
        _alpha(model),
        _components(model),
        *_features_cost(kernel_gap),
        Choice(
            "Effective dimension",
            f"{dimension(model, X, y):.1f}",
            "approximate degrees of freedom of the fit at this ridge weight",
        ),
        Choice(
            "Certified gap",
            f"{model.duality_gap_.max():.1e}",
            f"relative duality gap: the objective is at most this fraction above its minimum (tolerance: {tolerance})",
        ),
        Choice("Crossing levels", percent(model.crossing_rate_, 2), _crossing(model)),
    ]


def dimension(model: KernelQuantileRegressor, X: Array, y: Array) -> float:
    """Effective dimension Tr((C + alpha I)^-1 C) of the features on at most ROWS rows, alpha scaled by that of y."""
    some = np.sort(np.random.default_rng(0).permutation(len(X))[:ROWS])
    ridge = model.alpha_ * robust_scale(y, np.full(len(y), 1 / len(y)))
    features = model.feature_map_
    if isinstance(features, LandmarkPredictor):  # a saved model with landmarks
        features = features.making_the_kernel()
    return float(effective_dimension(features.transform(X[some]), alpha=ridge))


def _bandwidth(model: KernelQuantileRegressor) -> Choice:
    widths = model.bandwidth_
    if widths is None:
        return Choice("Bandwidth", "none", "this kernel has none")
    if isinstance(widths, tuple):
        return Choice("Bandwidth", "several", "the kernel is a sum, each term with its own")
    learned = getattr(model, "bandwidth_choice_", None)
    if hasattr(model, "cv_results_"):
        why = _searched(model)
    elif learned is not None:
        why = f"by leave-one-out error of kernel ridge regression, one per column. {learned.reason}"
    elif isinstance(model.bandwidth, str):
        why = (
            f"median heuristic: each column's standard deviation (or the distance between its two values), times "
            f"{bandwidth.OPTIONS.factor:g} of the median distance between rows in these units"
        )
    else:
        why = "given"
    return Choice("Bandwidth", "one per column, below" if np.ndim(widths) else f"{widths:.3g}", why)


def _alpha(model: KernelQuantileRegressor) -> Choice:
    learned = getattr(model, "bandwidth_choice_", None)
    if hasattr(model, "cv_results_"):
        why = _searched(model)
    elif not isinstance(model.alpha, str):
        why = "given"
    elif learned is not None:
        why = "tuned together with the bandwidths"
    elif (chosen := getattr(model, "alpha_choice_", None)) is not None:
        why = f"by held-out loss, among {len(chosen.tried)} values on {chosen.n_rows:,} rows"
    else:
        why = f"default: {alpha.OPTIONS.default:.0e} divided by a robust scale of the target, smaller for many rows"
    return Choice("Ridge weight alpha", f"{model.alpha_:.3g}", f"{why}; larger values give smoother quantiles")


def _searched(model: KernelQuantileRegressor) -> str:
    tried = np.isfinite(model.cv_results_["mean_test_score"]).sum()
    return f"by held-out loss, among {tried} pairs of ridge weight and bandwidth"


def _components(model: KernelQuantileRegressor) -> Choice:
    if isinstance(model.kernel_, Linear):
        return Choice("Features M", f"{model.n_components_:,}", "the encoded columns themselves (linear kernel)")
    if isinstance(model.feature_map_, Nystroem | LandmarkPredictor):
        return Choice("Features M", f"{model.n_components_:,}", "kernel values at this many landmark rows (Nyström)")
    if model.n_components == "exact":
        return Choice("Features M", f"{model.n_components_:,}", "exact kernel, no approximation")
    choice = getattr(model, "n_components_choice_", None)
    return Choice("Random features M", f"{model.n_components_:,}", "given" if choice is None else choice.reason)


def _features_cost(gap: KernelGap | None) -> list[Choice]:
    """Return bounds on what random features cost compared with the exact kernel, if computed."""
    if gap is None:
        return []
    levels = "; ".join(
        f"level {level:g}: {low} to {high}" for level, (low, high) in zip(gap.quantiles, gap.as_percent(), strict=True)
    )
    why = f"proven bounds on the relative excess over the minimum of the objective with the exact kernel ({levels})"
    return [Choice("Cost of the features", f"at most {gap.as_percent()[int(gap.upper.argmax())][1]}", why)]


def _crossing(model: KernelQuantileRegressor) -> str:
    if model.noncrossing != "rearrange":
        return "of the training rows; " + (
            "fitted under noncrossing constraints" if model.noncrossing else "not corrected"
        )
    return "of the training rows, before the predictions of each row were sorted"
