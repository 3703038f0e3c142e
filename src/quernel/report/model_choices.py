"""What was chosen for a model, and why."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quernel.estimators import KernelQuantileRegressor
from quernel.features import LandmarkPredictor, Nystroem
from quernel.kernels import Linear
from quernel.report.number_format import percent
from quernel.theory import KernelGap, effective_dimension
from quernel.tuning.defaults import ALPHA, BANDWIDTH, spread

Array = NDArray[np.floating]

ROWS = 1000


class Choice(NamedTuple):
    """What, how much of it, and why."""

    name: str
    value: str
    why: str


def choices(model: KernelQuantileRegressor, X: Array, y: Array, kernel_gap: KernelGap | None = None) -> list[Choice]:
    """The choices of a fitted model; X and y, in its units, are rows to compute its effective dimension on."""
    tolerance = np.format_float_positional(model.tol, trim="-")  # 1e-06 would break at its sign
    return [
        Choice("Levels", ", ".join(f"{level:g}" for level in model.quantiles_), "asked for"),
        Choice("Kernel", model.kernel_.full_name, "how alike two rows are, by their distance"),
        _bandwidth(model),
        _alpha(model),
        _components(model),
        *_features_cost(kernel_gap),
        Choice(
            "Effective dimension",
            f"{dimension(model, X, y):.1f}",
            "about so many free parameters are left by the ridge weight",
        ),
        Choice(
            "Certified gap",
            f"{model.duality_gap_.max():.1e}",
            f"no other coefficients are better by more than this share of the objective (asked for: {tolerance})",
        ),
        Choice("Crossing levels", percent(model.crossing_rate_, 2), _crossing(model)),
    ]


def dimension(model: KernelQuantileRegressor, X: Array, y: Array) -> float:
    """Tr((C + alpha I)^-1 C) of the model's features on at most a thousand of these rows, alpha in units of y."""
    some = np.sort(np.random.default_rng(0).permutation(len(X))[:ROWS])
    ridge = model.alpha_ * spread(y, np.full(len(y), 1 / len(y)))
    features = model.feature_map_
    if isinstance(features, LandmarkPredictor):  # a model with landmarks that was saved
        features = features.making_the_kernel()
    return float(effective_dimension(features.transform(X[some]), alpha=ridge))


def _bandwidth(model: KernelQuantileRegressor) -> Choice:
    widths = model.bandwidth_
    if widths is None:
        return Choice("Bandwidth", "none", "this kernel has none")
    if isinstance(widths, tuple):
        return Choice("Bandwidth", "several", "the kernel is a sum, each part with its own")
    learned = getattr(model, "bandwidth_choice_", None)
    if hasattr(model, "cv_results_"):
        why = _searched(model)
    elif learned is not None:
        why = f"those by which rows are best predicted from all others. {learned.reason}"
    elif isinstance(model.bandwidth, str):
        why = (
            f"each column's standard deviation, or the distance between its two values, times {BANDWIDTH:g} of the "
            "median distance between rows measured in these"
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
        why = "chosen together with the bandwidths"
    elif (chosen := getattr(model, "alpha_choice_", None)) is not None:
        why = f"by held-out loss, among {len(chosen.tried)} tried on {chosen.n_rows:,} rows"
    else:
        why = f"{ALPHA:.0e} over a robust spread of the target, so that its unit does not matter, less for many rows"
    return Choice("Ridge weight alpha", f"{model.alpha_:.3g}", f"{why}; larger is smoother")


def _searched(model: KernelQuantileRegressor) -> str:
    tried = np.isfinite(model.cv_results_["mean_test_score"]).sum()
    return f"by held-out loss, among {tried} pairs of a ridge weight and bandwidths"


def _components(model: KernelQuantileRegressor) -> Choice:
    if isinstance(model.kernel_, Linear):
        return Choice("Features M", f"{model.n_components_:,}", "the columns themselves")
    if isinstance(model.feature_map_, Nystroem | LandmarkPredictor):
        return Choice("Features M", f"{model.n_components_:,}", "how alike a row is to so many others, the landmarks")
    if model.n_components == "exact":
        return Choice("Features M", f"{model.n_components_:,}", "as many as the kernel itself needs")
    choice = getattr(model, "n_components_choice_", None)
    return Choice("Random features M", f"{model.n_components_:,}", "given" if choice is None else choice.reason)


def _features_cost(gap: KernelGap | None) -> list[Choice]:
    """What the features cost beside the exact kernel, where that was asked for."""
    if gap is None:
        return []
    levels = "; ".join(
        f"level {level:g}: {low} to {high}" for level, (low, high) in zip(gap.quantiles, gap.as_percent(), strict=True)
    )
    why = f"proved: so far the objective lies above the best that the exact kernel could reach ({levels})"
    return [Choice("Cost of the features", f"at most {gap.as_percent()[int(gap.upper.argmax())][1]}", why)]


def _crossing(model: KernelQuantileRegressor) -> str:
    if model.noncrossing != "rearrange":
        return "of the training rows; " + ("fitted together" if model.noncrossing else "left as fitted")
    return "of the training rows before the levels of each row were put in order"
