"""TableModel: an encoder and an estimator that predict conditional quantiles from a table; and estimators as such."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_weight
from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.adapters import unwrap_frozen
from quernel.estimators import KernelQuantileRegressor, TabularQuantileRegressor
from quernel.estimators.inputs import check_target
from quernel.kernels.base import Seed
from quernel.losses import Pinball
from quernel.tables import NumericColumn, TableEncoder
from quernel.tables.columns import TextColumn
from quernel.tables.frames import factorize, open_frame

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False, repr=False)
class TableModel:
    """Model saved by `quernel fit` and loaded by `quernel.load`; predicts from data frames and Arrow tables.

    Parameters
    ----------
    encoder : TableEncoder
        How the table's columns become numbers.
    model : TabularQuantileRegressor or KernelQuantileRegressor, fitted to those numbers
    target : str
        The column that is predicted.
    log_target : bool
        Whether the model was fitted to the logarithm of the target. Quantiles are transformed back: the quantile of a
        logarithm is the logarithm of the quantile.
    interval : ConformalQuantileRegressor or None
        The same model with calibrated intervals, which `predict_interval` gives.
    """

    encoder: TableEncoder
    model: TabularQuantileRegressor | KernelQuantileRegressor
    target: str
    log_target: bool = False
    interval: ConformalQuantileRegressor | None = None

    @property
    def quantiles_(self) -> Array:
        """The fitted quantile levels."""
        return self.model.quantiles_

    def __repr__(self) -> str:
        return f"TableModel of {self.target!r} from {', '.join(map(repr, self.encoder.inputs))}: {self.model!r}"

    def __str__(self) -> str:
        logged = "the logarithm of " if self.log_target else ""
        lines = [f"TableModel of {logged}{self.target!r} from {', '.join(map(repr, self.encoder.inputs))}"]
        lines.append(str(getattr(self.model, "plan_", self.model)))
        if self.interval is not None:
            rows = self.interval.n_calibration_
            lines.append(f"interval calibrated on {rows:,} other rows for a coverage of {self.interval.coverage_:g}")
        return "\n".join(lines)

    def predict(self, table: Any, quantiles: float | ArrayLike | None = None) -> Array:
        """Conditional quantiles of the target; levels and shapes as in `predict` of the model inside."""
        return self.predict_encoded(self._encode(table), quantiles)

    def predict_encoded(self, X: Array, quantiles: float | ArrayLike | None = None) -> Array:
        """Predict from an encoded matrix."""
        return self._predict_on_target_scale(lambda rows: self.model.predict(rows, quantiles), X)

    def predict_interval(self, table: Any, coverage: float | ArrayLike | None = None) -> Array:
        """Lower and upper bounds of a prediction interval for each row, shape (n, 2), or (n, 2, k) of k coverages.

        Parameters
        ----------
        table : data frame or Arrow table
        coverage : float, sequence of floats or None
            Of a model with conformal intervals, which are calibrated for any coverage, None is that of its fit. Of
            others, the central interval between the quantiles (1 - coverage) / 2 and (1 + coverage) / 2.
        """
        return self.predict_interval_encoded(self._encode(table), coverage)

    def predict_interval_encoded(self, X: Array, coverage: float | ArrayLike | None = None) -> Array:
        """Predict intervals from an encoded matrix."""
        calibrated = self.interval
        if calibrated is not None:
            return self._predict_on_target_scale(lambda rows: calibrated.predict_interval(rows, coverage), X)
        if coverage is None:
            raise ValueError(
                "This model has no calibrated intervals. Fit it with quernel fit --conformal, or ask for the interval "
                "between its levels: predict_interval(table, coverage=0.9)."
            )
        if np.ndim(coverage) > 0:
            several = np.asarray(coverage).tolist()
            return np.stack([self.predict_interval_encoded(X, one) for one in several], axis=2)
        return self._predict_on_target_scale(lambda rows: self.model.predict_interval(rows, coverage), X)

    def predict_band_encoded(self, X: Array, level: float) -> Array:
        """Confidence band of every fitted curve at each row of an encoded matrix, shape (n, q, 2).

        It is pointwise: rows may come in batches, and a simultaneous band depends on all of them. A band of the
        logarithm is one of the target, for a quantile of the logarithm is the logarithm of the quantile.
        """
        if not isinstance(self.model, KernelQuantileRegressor):
            raise ValueError(f"Bands are for a KernelQuantileRegressor; this model is a {type(self.model).__name__}.")
        model = self.model
        bounds = self._predict_on_target_scale(lambda rows: model.predict_band(rows, level, simultaneous=False), X)
        return bounds.reshape(len(X), -1, 2)

    def predict_cdf(self, table: Any, y: ArrayLike) -> Array:
        """P(target <= y) for each row and its entry of y (or one y for all); see `KernelQuantileRegressor`."""
        X = self._encode(table)
        y = np.full(len(X), y, dtype=float) if np.ndim(y) == 0 else np.asarray(y, dtype=float)
        if len(X) == len(y) == 0:
            return np.empty(0)
        if not self.log_target:
            return self.model.predict_cdf(X, y)
        below = y <= 0  # impossible for a target that has a logarithm
        return np.where(below, 0.0, self.model.predict_cdf(X, np.log(np.where(below, 1.0, y))))

    def sample(self, table: Any, n: int = 1, rng: Seed = None) -> Array:
        """Draws from each row's conditional distribution, shape (rows, n), as `KernelQuantileRegressor.sample`."""
        return self._predict_on_target_scale(lambda rows: self.model.sample(rows, n, rng), self._encode(table))

    def is_extrapolation(self, table: Any) -> NDArray[np.bool_]:
        """Which rows are outside the training range in some column, shape (n,)."""
        return np.asarray(self.extrapolates(self._encode(table)).any(axis=1))

    def score(self, table: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Mean D^2 over the levels, as `KernelQuantileRegressor.score`: of the target itself, not of its logarithm."""
        curves, y = self.predict(table).reshape(-1, len(self.quantiles_)), check_target(y)
        weight = np.ones(len(y)) if sample_weight is None else check_weight(sample_weight, len(y))
        return Pinball(self.quantiles_).d2_score(y, curves, weight)

    def _encode(self, table: Any) -> Array:
        """Encode a table, with a warning if none of a column's categories is known."""
        table = open_frame(table, self.encoder.inputs)
        X = self.encoder.transform(table)
        for sentence in describe_unseen(self.encoder, table):
            warnings.warn(sentence, UnseenCategoriesWarning, stacklevel=3)
        return X

    def _predict_on_target_scale(self, ask: Callable[[Array], Array], X: Array) -> Array:
        """Call a method of the estimator and transform its result back from the log scale."""
        if len(X) == 0:  # which estimators refuse: predict one row within the training range, and drop it
            return self._predict_on_target_scale(ask, np.clip(0.0, *self.model.input_range_)[None])[:0]
        return self.inverse_transform_target(ask(X))

    def inverse_transform_target(self, values: Array) -> Array:
        """Inverse-transform predictions from the log scale, if the model was fitted to that.

        The logarithm of a point mass of the target becomes exactly that value again, which exp alone may miss by
        rounding.
        """
        if not self.log_target:
            return values
        masses, back = getattr(self.model, "frequent_values_", np.empty(0)), np.exp(values)
        if len(masses) == 0:
            return back
        rounded = np.array([float(f"{value:.14g}") for value in np.exp(masses)])
        exact = np.where(np.log(rounded) == masses, rounded, np.exp(masses))
        nearest = np.minimum(np.searchsorted(masses, values), len(masses) - 1)
        return np.where(masses[nearest] == values, exact[nearest], back)

    def extrapolates(self, X: Array) -> NDArray[np.bool_]:
        """Which values of an encoded matrix are outside the training range, (n, d).

        Cyclic columns, such as the time of day, never are.
        """
        low, high = self.model.input_range_
        return ((low > X) | (high < X)) & ~self.encoder.cyclic


# Rows from which unknown categories are reported: a single row with a new one is nothing unusual.
MIN_UNSEEN_ROWS = 2
# Number of the model's categories in a message.
MAX_SHOWN = 3


class UnseenCategoriesWarning(UserWarning):
    """None of the categories in a column is known to the model."""


@dataclass
class UnseenCategories:
    """Find text columns none of whose categories the model knows, usually because they are spelled differently.

    Tables are checked batch by batch; a column with a known category is not checked again.
    """

    encoder: TableEncoder
    _rows: dict[str, int] = field(init=False)
    _examples: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = {column.name: 0 for column in self.encoder.columns_ if isinstance(column, TextColumn)}

    def _suspects(self) -> list[TextColumn]:
        columns = [column for column in self.encoder.columns_ if isinstance(column, TextColumn)]
        return [column for column in columns if column.name in self._rows]

    def check(self, table: Any) -> None:
        """Check a table or batch that the encoder accepts."""
        frame = open_frame(table)
        for column in self._suspects():
            name, entries = column.name, frame.get(column.name)
            rows = column.read(entries, self.encoder.markers)
            unknown = rows == len(column.categories)
            if np.any(rows < len(column.categories)):
                del self._rows[name]
            elif unknown.any():
                self._rows[name] += int(unknown.sum())
                labels, index = factorize(entries)
                self._examples.setdefault(name, labels[index[np.argmax(unknown)]])

    def describe(self) -> list[str]:
        """Return a note on each column without any known category."""
        return [
            f"None of the categories in column {column.name!r} is known to the model, in {self._rows[column.name]:,} "
            f"rows: it holds {self._examples[column.name]!r}, where the model was fitted to "
            f"{', '.join(map(repr, column.categories[:MAX_SHOWN]))}"
            f"{', ...' if len(column.categories) > MAX_SHOWN else ''}."
            for column in self._suspects()
            if self._rows[column.name] >= MIN_UNSEEN_ROWS
        ]


def describe_unseen(encoder: TableEncoder, table: Any) -> list[str]:
    """Return notes on the columns of a table none of whose categories the encoder knows."""
    unseen = UnseenCategories(encoder)
    unseen.check(table)
    return unseen.describe()


def as_table_model(model: Any, X: Any, target: str) -> TableModel:
    """Return a fitted estimator as a model of the table X, whose encoder makes what the estimator computes with."""
    if isinstance(model, TableModel):
        return model
    if isinstance(model, ConformalQuantileRegressor):
        return _as_calibrated(model, X, target)
    if hasattr(model, "backtest"):
        raise TypeError(
            f"{type(model).__name__} forecasts a series, and has a page of its own: quernel forecast --report. In "
            "Python, its backtest(...) gives past forecasts beside what came, for the displays of quernel.plots."
        )
    if not isinstance(model, KernelQuantileRegressor | TabularQuantileRegressor):
        raise TypeError(
            "A report takes a fitted TabularQuantileRegressor, KernelQuantileRegressor or ConformalQuantileRegressor "
            f"around one of these, or a model of a table that quernel.load returned; got {type(model).__name__}. Of a "
            "pipeline or a search, pass the model inside."
        )
    check_is_fitted(model)
    encoder = getattr(model, "encoder_", None)
    if encoder is None:
        frame = open_frame(X)
        if len(frame.names) != model.n_features_in_:
            raise ValueError(f"X has {len(frame.names)} columns; the model was fitted to {model.n_features_in_}.")
        fills = zip(frame.names, model._fill, strict=True)
        encoder = TableEncoder()
        encoder.columns_ = tuple(NumericColumn(name, "number", float(fill), flagged=False) for name, fill in fills)
        encoder.dropped_, encoder.notes_, encoder.alarms_, encoder.n_features_in_ = {}, (), (), len(frame.names)
        encoder.feature_names_in_ = np.array(frame.names, dtype=object)
    # From here on rows are encoded, and the estimator takes numbers without names.
    model = copy(model)
    for name in ("encoder_", "feature_names_in_"):
        model.__dict__.pop(name, None)
    model.n_features_in_ = model.input_range_.shape[1]
    return TableModel(encoder, model, target)


def _as_calibrated(model: ConformalQuantileRegressor, X: Any, target: str) -> TableModel:
    """Return a fitted ConformalQuantileRegressor as a model of the table X with a calibrated interval."""
    check_is_fitted(model)
    if (
        len(model.estimators_) > 1
        or model._conditional is not None
        or model._groups is not None
        or model._ratio is not None
    ):
        raise ValueError(
            "A report takes a ConformalQuantileRegressor with one model and one calibration for all rows: with "
            f"method='split' or 'prefit', without groups, density_ratio and conditional; got {model!r}. Report on "
            "estimators_[0] of it, and draw its coverage by quernel.plots.IntervalWidthDisplay."
        )
    inside = as_table_model(unwrap_frozen(model.estimators_[0]), X, target)
    interval = copy(model)
    interval.estimators_, interval.n_features_in_ = [inside.model], inside.model.n_features_in_
    interval.__dict__.pop("feature_names_in_", None)
    return replace(inside, interval=interval)
