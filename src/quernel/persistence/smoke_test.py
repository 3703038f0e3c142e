"""A trial of a model that was loaded: what a file lacks shows there, not when the model is used."""

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
    """Ask the model for all that it can tell of a made-up row; whatever is wrong with its parts is raised."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        _predict_all(model, _make_rows(model))


@singledispatch
def _make_rows(model: Any) -> Any:
    """A row within the range of the training rows, such as the model takes."""
    return np.clip(np.zeros(model.n_features_in_), *model.input_range_)[None]


@_make_rows.register
def _(model: TableModel) -> Any:
    """One with values, and one of gaps."""
    import pyarrow as pa

    columns = {}
    for column in model.encoder.columns:
        if isinstance(column, TextColumn):
            columns[column.name] = pa.array(["a word", None])
        elif isinstance(column, NumberColumn):
            columns[column.name] = pa.array([0.0, None])
        else:
            columns[column.name] = pa.array([0, None], pa.timestamp("s") if column.kind == "date" else pa.time32("s"))
    return pa.table(columns)


@_make_rows.register
def _(model: ConformalQuantileRegressor) -> Any:
    return _make_rows(unwrap_frozen(model.estimators_[0]))


@singledispatch
def _predict_all(model: Any, row: Any) -> None:
    model.predict(row)


@_predict_all.register
def _(model: KernelClassifier, row: Any) -> None:
    model.predict(row)
    if hasattr(model, "predict_proba"):
        model.predict_proba(row)


@_predict_all.register(KernelQuantileRegressor)
@_predict_all.register(TableModel)
def _(model: Any, row: Any) -> None:
    model.predict(row)
    model.predict(row, float(np.mean(model.quantiles_)))
    model.predict_cdf(row, np.zeros(len(row)))
    model.outside(row)
    if getattr(model, "interval", None) is not None:
        model.predict_interval(row)


@_predict_all.register
def _(model: ConformalQuantileRegressor, row: Any) -> None:
    known = {} if model._groups is None else {"groups": [next(iter(model.calibration_))] * len(row)}
    known |= {} if model._ratio is None else {"density_ratio": np.ones(len(row))}
    model.predict_interval(row, **known)
    model.predict(row)
