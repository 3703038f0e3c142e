"""Adapters of what users give: any quantile model to two bounds, any rows to a fit and to predictions.

`InMemoryRows` and `OutOfCoreRows` have the same methods, so that calibration does not ask where the rows are.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.validation import _num_samples, has_fit_parameter

from quernel._validation import check_weight, check_weight_sum
from quernel.conformal.methods import Index, Mask
from quernel.data import ArrayRows, DaskRows, RowSource, SelectedRows
from quernel.data.sources import positive_weight_mask
from quernel.estimators import KernelQuantileRegressor, TabularQuantileRegressor
from quernel.estimators.inputs import check_target, source_of, subset
from quernel.estimators.prediction import predict_in_place
from quernel.estimators.splits import check_groups
from quernel.kernels.base import Seed

Array = NDArray[np.floating]
Labels = NDArray[Any]  # of groups or units: numbers, text or objects

# Most calibration rows of out-of-core data, where `calibration_size` is a share. The coverage varies with the draw of n
# calibration rows by a standard deviation of at most 0.5 / sqrt(n): a twentieth of a per cent for a million of them.
MAX_CALIBRATION_ROWS = 1_000_000


def is_frozen(estimator: BaseEstimator) -> bool:
    """Whether the estimator is wrapped by scikit-learn's FrozenEstimator, whose `fit` does nothing."""
    return isinstance(estimator, FrozenEstimator)


def unwrap_frozen(estimator: BaseEstimator) -> BaseEstimator:
    """Return the estimator inside a FrozenEstimator; any other is returned as it is."""
    return estimator.estimator if is_frozen(estimator) else estimator


def clone_with_levels(estimator: BaseEstimator | None, coverage: float, random_state: Seed = None) -> BaseEstimator:
    """Return an unfitted clone that predicts the quantile levels of the interval.

    The levels are (1 - coverage) / 2, 1/2 and (1 + coverage) / 2. They are set if the estimator's parameter `quantiles`
    is a single number. A sequence of levels stays as it is, and must enclose the outer two. An estimator without that
    parameter is cloned as it is. None is a KernelQuantileRegressor with this random state.
    """
    tail = round((1 - coverage) / 2, 12)  # 1 - 0.9 is not 0.1 in floating point
    levels = [tail, 0.5, 1 - tail]
    if estimator is None:
        return KernelQuantileRegressor(levels, random_state=random_state)
    if not hasattr(estimator, "fit"):
        raise ValueError(
            f"{type(estimator).__name__} cannot be fitted. If it is a fitted model, such as one of a table, calibrate "
            "it as it is: method='prefit', with rows that it has not seen."
        )
    unfitted = clone(estimator)
    quantiles = unfitted.get_params(deep=False).get("quantiles", levels)
    if isinstance(unfitted, TabularQuantileRegressor):  # which predicts any level, whatever its quantiles
        return unfitted
    if np.ndim(quantiles) == 0:
        return unfitted.set_params(quantiles=levels)
    if min(quantiles) > tail + 1e-9 or max(quantiles) < 1 - tail - 1e-9:
        raise ValueError(
            f"An interval of coverage {coverage:g} needs the levels {tail:g} and {1 - tail:g}; the estimator has "
            f"quantiles={list(quantiles)}. Give it wider ones, or leave its quantiles at their default."
        )
    return unfitted


def interval_bounds(model: BaseEstimator, X: Any, coverage: float) -> Array:
    """Predict the lower and upper bound of each row, before calibration, shape (n, 2).

    They are what `predict_interval` returns or, for models without it, the outermost columns of `predict`. Either is
    sorted within each row: models whose quantiles cross give an interval all the same.
    """
    name = type(model).__name__
    if hasattr(model, "predict_interval"):
        kwargs = {"coverage": coverage} if _accepts_coverage(model) else {}
        predicted = np.asarray(model.predict_interval(X, **kwargs), dtype=float)
    else:
        predicted = np.asarray(model.predict(X), dtype=float)
    if predicted.ndim != 2 or predicted.shape[1] < 2:
        raise ValueError(
            f"An interval needs two bounds: {name} must have predict_interval(X, coverage), or a predict(X) of "
            f"two or more quantiles per row, shape (n, 2); its predictions have shape {predicted.shape}. Fit it "
            "with levels on either side of 0.5."
        )
    if np.isnan(predicted).any():
        raise ValueError(f"{name} predicts NaN in {np.isnan(predicted).any(axis=1).sum()} rows. Leave those rows out.")
    return np.column_stack([predicted.min(axis=1), predicted.max(axis=1)])


def _accepts_coverage(model: BaseEstimator) -> bool:
    """Whether `predict_interval` has a parameter `coverage`, or takes any keyword."""
    parameters = inspect.signature(model.predict_interval).parameters
    return "coverage" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def point_prediction(model: BaseEstimator, X: Any, coverage: float) -> Array:
    """Predict the median, shape (n,), if `predict` takes `quantiles`; otherwise the midpoint of the interval."""
    if "quantiles" in inspect.signature(model.predict).parameters:
        return np.asarray(model.predict(X, quantiles=0.5), dtype=float)
    return interval_bounds(model, X, coverage).mean(axis=1)


@dataclass(frozen=True, eq=False)
class InMemoryRows:
    """The rows given to `fit`, in memory, of any type that the estimator takes.

    Parameters
    ----------
    X : array-like or data frame of shape (N, d)
    y : array of shape (N,)
    weight : array of shape (N,) or None
        Rows of weight 0 neither train nor calibrate. Positions given to the methods count the others.
    units : array of shape (N,) or None
        Labels of repeated units, which models whose `fit` has a parameter `groups` are given.
    """

    X: Any
    y: Array
    weight: Array | None
    units: Labels | None = None
    max_calibration: int | None = None

    @cached_property
    def positive(self) -> Mask:
        """Mask of the rows of positive weight, shape (N,)."""
        return np.ones(len(self.y), dtype=bool) if self.weight is None else self.weight > 0

    def row_metadata(self, groups: Any, density_ratio: Any) -> tuple[Labels | None, Array]:
        """Return the group labels, None without groups, and the density ratios of all rows, shape (N,) each."""
        return resolve_groups(groups, self.X), resolve_density_ratio(density_ratio, self.X)

    def fit(self, model: BaseEstimator, rows: Index | Mask, fit_params: dict[str, Any]) -> BaseEstimator:
        """Fit a model to some of the rows, and return it."""
        rows = np.flatnonzero(self.positive)[rows]
        weight_params = {} if self.weight is None else {"sample_weight": self.weight[rows]}
        if self.units is not None and has_fit_parameter(model, "groups"):
            fit_params = fit_params | {"groups": self.units[rows]}
        return model.fit(_safe_indexing(self.X, rows), self.y[rows], **weight_params, **fit_params)

    def predict_bounds(self, model: BaseEstimator, rows: Index, coverage: float) -> tuple[Array, Array]:
        """Return the predicted intervals of some of the rows, shape (k, 2), and their targets, shape (k,)."""
        rows = np.flatnonzero(self.positive)[rows]
        return interval_bounds(model, _safe_indexing(self.X, rows), coverage), self.y[rows]


class OutOfCoreRows:
    """The rows given to `fit` as a row source or a Dask collection; splits are masks of it, and nothing is copied."""

    X = y = units = None
    max_calibration = MAX_CALIBRATION_ROWS

    def __init__(self, source: DaskRows | RowSource) -> None:
        self.source, self.positive = source, positive_weight_mask(source)

    def row_metadata(self, groups: Any, density_ratio: Any) -> tuple[None, Array]:
        """Return no groups, and density ratios of 1, shape (N,); raise if any were given."""
        for name, given in (("groups", groups), ("density_ratio", density_ratio)):
            if given is not None:
                raise ValueError(
                    f"{name} was given, which is for rows in memory. Leave it out, or calibrate on arrays with "
                    "method='prefit'."
                )
        return None, np.broadcast_to(1.0, len(self.positive))  # takes no memory

    def fit(self, model: BaseEstimator, rows: Index | Mask, fit_params: dict[str, Any]) -> BaseEstimator:
        """Fit a model to some of the rows, and return it."""
        return model.fit(self._select(rows), **fit_params)

    def predict_bounds(self, model: BaseEstimator, rows: Index, coverage: float) -> tuple[Array, Array]:
        """Return the predicted intervals of some of the rows, shape (k, 2), and their targets, shape (k,)."""
        return predict_in_place(partial(interval_bounds, model, coverage=coverage), self._select(rows))

    def _select(self, rows: Index | Mask) -> DaskRows | SelectedRows:
        """Return a source of some of the rows of positive weight."""
        chosen, mask = np.zeros(int(self.positive.sum()), dtype=bool), np.zeros(len(self.positive), dtype=bool)
        chosen[rows] = True
        mask[self.positive] = chosen
        return subset(self.source, mask)


def read_rows(
    estimator: BaseEstimator | None, X: Any, y: Any, sample_weight: ArrayLike | None, *, prefit: bool
) -> InMemoryRows | OutOfCoreRows:
    """Validate the rows given to `fit`; `estimator` is the model to be fitted, None for the default.

    A prefit model takes no sample weights.
    """
    source = source_of(X, y, sample_weight)
    if source is not None and not isinstance(source, ArrayRows):
        return OutOfCoreRows(source)
    if source is not None:
        X, y, sample_weight = source.X, source.y, source.weight
    (X,) = indexable(X)
    if y is None:
        raise ValueError("This ConformalQuantileRegressor estimator requires y to be passed, but the target y is None.")
    y, n = check_target(y), _num_samples(X)
    if n != len(y):
        raise ValueError(
            f"X has {n} rows but y has {len(y)} entries (inconsistent numbers of samples): give one per row."
        )
    if sample_weight is None:
        return InMemoryRows(X, y, None)
    if prefit:
        raise ValueError(
            "sample_weight is for fitting, and a prefit model is not fitted again. Leave it out; to weight "
            "calibration rows use density_ratio."
        )
    if estimator is not None and not has_fit_parameter(estimator, "sample_weight"):
        raise ValueError(f"{type(estimator).__name__} takes no sample_weight. Leave it out.")
    return InMemoryRows(X, y, check_weight(sample_weight, n))


def resolve_groups(groups: Any, X: Any, name: str = "groups") -> Labels | None:
    """Return the group label of each row, shape (n,), none missing; None without groups.

    `groups` is an array, a function of X, or None.
    """
    if groups is None:
        return None
    labels = _evaluate_per_row(name, groups, X)
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
    with np.errstate(over="ignore"):
        total = float(ratio.sum())
    check_weight_sum("density_ratio", total, float(ratio.max(initial=0)))
    return ratio


def resolve_covariates(covariates: Any, X: Any) -> Array | None:
    """Return the covariates of each row, finite numbers of shape (n, k); None without any.

    `covariates` is an array, a function of X, or None.
    """
    if covariates is None:
        return None
    values = np.asarray(covariates(X) if callable(covariates) else covariates, dtype=float)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or len(values) != _num_samples(X) or not np.isfinite(values).all():
        raise ValueError(
            f"covariates must be finite numbers, one row for each of {_num_samples(X)} rows; got shape {values.shape}."
        )
    return values


def _evaluate_per_row(name: str, given: Any, X: Any) -> Labels:
    """Return an array with one entry per row of X: the given one, or that of the given function of X."""
    values = np.asarray(given(X) if callable(given) else given)
    if values.ndim != 1 or len(values) != _num_samples(X):
        raise ValueError(f"{name} must have one entry for each of {_num_samples(X)} rows; got shape {values.shape}.")
    return values


def remember_argument(given: Any) -> Any:
    """What to store of `groups` or `density_ratio`: None, the function, or True for an array.

    New rows need the function itself; of an array only the fact that one must be given for them, too.
    """
    return given if given is None or callable(given) else True


def resolve_argument(name: str, given: Any, fitted: Any) -> Any:
    """Return what `predict_interval` was given or, failing that, the function that `fit` was given.

    `fitted` is what `remember_argument` stored. Raise if this call was given the argument and `fit` was not, or
    if `fit` was given an array and this call nothing.
    """
    if fitted is None and given is not None:
        raise ValueError(f"{name} was not given to fit, so nothing was calibrated by it. Leave it out, or fit with it.")
    if given is None and fitted is not None and not callable(fitted):
        raise ValueError(f"fit was given {name} of its rows: give those of the new rows, too ({name}=...).")
    return fitted if given is None else given
