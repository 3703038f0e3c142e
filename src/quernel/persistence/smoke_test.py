"""Smoke test of a loaded model: whatever its file lacks raises on loading, not when the model is used."""

from __future__ import annotations

import warnings
from functools import singledispatch
from typing import Any

import numpy as np

from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.adapters import unwrap_frozen
from quernel.estimators import KernelClassifier, KernelQuantileRegressor
from quernel.tables import NumberColumn, TableModel, TextColumn


def run_smoke_test(model: Any) -> None:
    """Call all prediction methods of the model on made-up rows; whatever is wrong with its parts raises.

    Only errors count: warnings (the rows may be unlike the training rows) and the values themselves do not.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        _predict_all(model, _make_rows(model))


@singledispatch
def _make_rows(model: Any) -> Any:
    """Return input that the model accepts: one row, 0 clipped to the range of the training rows."""
    return np.clip(np.zeros(model.n_features_in_), *model.input_range_)[None]


@_make_rows.register
def _(model: TableModel) -> Any:
    """A table of two rows: one of values, one of missing values."""
    import pyarrow as pa

    columns = {}
    for column in model.encoder.columns:
        if isinstance(column, TextColumn):
            columns[column.name] = pa.array(["some text", None])
        elif isinstance(column, NumberColumn):
            columns[column.name] = pa.array([0.0, None])
        else:
            columns[column.name] = pa.array([0, None], pa.timestamp("s") if column.kind == "date" else pa.time32("s"))
    return pa.table(columns)


@_make_rows.register
def _(model: ConformalQuantileRegressor) -> Any:
    """Those of the model inside."""
    return _make_rows(unwrap_frozen(model.estimators_[0]))


@singledispatch
def _predict_all(model: Any, rows: Any) -> None:
    """Call every prediction method, by the type of the model; results are discarded."""
    model.predict(rows)


@_predict_all.register
def _(model: KernelClassifier, rows: Any) -> None:
    model.predict(rows)
    if hasattr(model, "predict_proba"):  # not for every loss
        model.predict_proba(rows)


@_predict_all.register(KernelQuantileRegressor)
@_predict_all.register(TableModel)
def _(model: Any, rows: Any) -> None:
    model.predict(rows)
    model.predict(rows, float(np.mean(model.quantiles_)))  # a level between the fitted ones
    model.predict_cdf(rows, np.zeros(len(rows)))
    model.is_extrapolation(rows)
    if getattr(model, "interval", None) is not None:
        model.predict_interval(rows)


@_predict_all.register
def _(model: ConformalQuantileRegressor, rows: Any) -> None:
    kwargs: dict[str, Any] = {} if model._groups is None else {"groups": [next(iter(model.calibration_))] * len(rows)}
    kwargs |= {} if model._ratio is None else {"density_ratio": np.ones(len(rows))}
    model.predict_interval(rows, **kwargs)
    model.predict(rows)
