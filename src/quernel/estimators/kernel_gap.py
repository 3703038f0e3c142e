"""`KernelQuantileRegressor.kernel_gap`: compare a fit on random features with exact kernel quantile regression."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from quernel.data import ArrayRows, DaskRows
from quernel.estimators.inputs import load_if_fits, source_of
from quernel.estimators.validation import check_lengths, check_rows, check_target, check_weight
from quernel.estimators.warnings import print_progress
from quernel.features import LandmarkPredictor
from quernel.kernels import Kernel, Linear
from quernel.losses import Pinball
from quernel.solvers.progress import listening
from quernel.theory.kernel_gap import KernelGap, kernel_gap
from quernel.tuning.alpha import has_gram

if TYPE_CHECKING:
    from quernel.estimators.quantile import KernelQuantileRegressor

Array = NDArray[np.floating]

# Rows on whose pairs features are compared with the kernel.
COMPARED_ROWS = 50
# Relative difference of the objective above which the data are not the training data.
SAME_OBJECTIVE = 1e-5


def feature_error(kernel: Kernel, feature_map: Any, X: Array) -> float:
    """Root mean square of phi(x)'phi(z) - k(x, z) over pairs of some of the rows; NaN if k cannot be evaluated."""
    if isinstance(kernel, Linear):
        return 0.0
    if not has_gram(kernel):
        return float("nan")
    some = np.asarray(X[:: -(-len(X) // COMPARED_ROWS)], dtype=float)
    Phi = feature_map.transform(some)
    try:
        gram = kernel.gram(some, some)
    except NotImplementedError:  # a kernel of the user's that has random features only
        return float("nan")
    difference = (Phi @ Phi.T - gram)[np.triu_indices(len(some), 1)]
    return float(np.sqrt(np.mean(difference**2))) if len(difference) else 0.0


def compute_kernel_gap(
    model: KernelQuantileRegressor, X: Any, y: Any, sample_weight: Any, *, similarity_only: bool
) -> KernelGap:
    """Check by the objective that these are the training data, and compute the bounds (`theory.kernel_gap`)."""
    if isinstance(model.kernel_, Linear):
        raise ValueError("The linear kernel has its own features, which cost nothing: kernel_gap is for other kernels.")
    model.kernel_.check_diagonal()
    rows = _training_rows(model, X, y, sample_weight)
    features = model.feature_map_
    if isinstance(features, LandmarkPredictor):  # a loaded model: its coefficients refer to k(x, landmarks)
        features = features.to_nystroem()
    objective = _objective(model, rows)
    if not np.allclose(objective, model.objective_, rtol=SAME_OBJECTIVE, atol=0):
        raise ValueError(
            f"kernel_gap needs the rows, targets and weights that the model was fitted to: on these {rows.n_rows:,} "
            f"rows its objective is {objective.tolist()}, at the end of its fit it was {model.objective_.tolist()}."
        )
    with listening(print_progress) if model.verbose else nullcontext():
        return kernel_gap(
            rows,
            model.kernel_,
            features,
            model.quantiles_,
            model.alpha_,
            objective,
            fit_intercept=model.fit_intercept,
            tol=model.tol,
            max_iter=model.max_iter,
            max_memory=model.max_memory,
            similarity_only=similarity_only,
        )


def _training_rows(model: KernelQuantileRegressor, X: Any, y: Any, sample_weight: Any) -> ArrayRows:
    """Validate the data as `fit` does, in memory and without rows of weight 0, but leave the model unchanged."""
    given = source_of(X, y, sample_weight)
    if given is not None:
        source = load_if_fits(given, model.max_memory)
        if not isinstance(source, ArrayRows):
            where = "stay where Dask has them" if isinstance(source, DaskRows) else "exceed max_memory"
            raise ValueError(
                f"kernel_gap compares every row with every other, in memory, but these {source.n_rows:,} rows {where}. "
                "Give rows that fit in memory, or fit a model to a sample of them and ask that."
            )
        X, y, sample_weight = source.X, source.y, source.weight
    y = check_target(y)
    check_lengths(X, y)
    weight = None if sample_weight is None else check_weight(sample_weight, len(y))
    if weight is not None and not weight.all():
        counts = np.flatnonzero(weight)
        X, y, weight = _safe_indexing(X, counts), y[counts], weight[counts]
    return ArrayRows(check_rows(model, X, training=True), y, weight)


def _objective(model: KernelQuantileRegressor, rows: ArrayRows) -> Array:
    """Objective F = mean pinball loss + alpha u'u of the model on these rows, shape (q,)."""
    coef, features = model.coef_, model.feature_map_
    curves = model._predict_unsnapped(rows.X)
    if isinstance(features, LandmarkPredictor):
        squared_norm = np.einsum("iq,ij,jq->q", coef, features.transform(features.landmarks_), coef)
    else:
        squared_norm = np.einsum("iq,iq->q", coef, coef)
    mean_loss = rows.share() @ Pinball(model.quantiles_).value(rows.y[:, None] - curves)
    return mean_loss + model.alpha_ * squared_norm
