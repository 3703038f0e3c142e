"""What displays are computed from: quantiles and intervals of fitted models, and columns of arrays, frames and tables.

Models are estimators by themselves, in pipelines or in models of tables. Displays replace or permute single columns;
`Columns.assemble` turns the columns back into what the model takes.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.tables import TableEncoder, TableError, TextColumn
from quernel.tables.columns import CYCLES, Column
from quernel.tables.frames import refuse_repeated_names

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.floating]
# The entries of a column: numbers (float64), dates and times (datetime64[us]), or categories (object).
Values = NDArray[Any]
Model: TypeAlias = BaseEstimator | TableModel

# Coverage of intervals that were not calibrated for one.
DEFAULT_COVERAGE = 0.9


def unwrap_estimator(model: Model) -> BaseEstimator:
    """Return the fitted estimator inside pipelines, models of tables and frozen estimators; raise if unfitted."""
    while isinstance(model, Pipeline | TableModel | FrozenEstimator):
        if isinstance(model, Pipeline):
            model = model.steps[-1][1]
        else:
            model = model.model if isinstance(model, TableModel) else model.estimator
    check_is_fitted(model)
    return model


def unwrap_tuned_estimator(model: Model) -> BaseEstimator:
    """Return the estimator that was tuned: as `unwrap_estimator`, and also inside a ConformalQuantileRegressor."""
    inner = unwrap_estimator(model)
    if not isinstance(inner, ConformalQuantileRegressor):
        return inner
    if len(inner.estimators_) > 1:
        raise ValueError(
            f"This {type(inner).__name__} has a model for each of {len(inner.estimators_)} folds, each with choices of "
            "its own. Draw one of them: give estimators_[0] of it instead."
        )
    return unwrap_tuned_estimator(inner.estimators_[0])


def get_input_names(model: Model) -> Sequence[str] | None:
    """Return the names of the columns that the innermost estimator is given, or None if they have none."""
    if isinstance(model, FrozenEstimator):
        return get_input_names(model.estimator)
    if isinstance(model, ConformalQuantileRegressor):  # its model may be a pipeline, with names of its own
        inner = get_input_names(model.estimators_[0])
        return getattr(model, "feature_names_in_", None) if inner is None else inner
    if isinstance(model, TableModel):
        return model.encoder.names
    if isinstance(model, Pipeline) and len(model) > 1:
        try:
            return model[:-1].get_feature_names_out()
        except (AttributeError, ValueError):  # a step has no feature names
            return None
    return getattr(model, "feature_names_in_", None)


def predict_quantiles(model: Model, X: Any, quantiles: ArrayLike | None) -> tuple[Floats, Floats]:
    """Predict quantiles; return them, shape (n, q), and their levels (q,). None is all fitted levels."""
    inner = unwrap_estimator(model)
    name = type(inner).__name__
    if isinstance(inner, ConformalQuantileRegressor):
        raise ValueError(
            f"{name} predicts one interval and has no quantiles_. Draw its intervals with IntervalWidthDisplay, or the "
            "model that it calibrates: give estimators_[0] of it instead."
        )
    quantiles = getattr(inner, "quantiles_", None) if quantiles is None else quantiles
    if quantiles is None or "quantiles" not in inspect.signature(inner.predict).parameters:
        raise ValueError(
            f"{name} has no quantiles_, or no predict(X, quantiles=...). Fit a KernelQuantileRegressor, or draw what "
            "another model predicts with from_predictions."
        )
    levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    return np.asarray(model.predict(X, quantiles=levels), dtype=np.float64), levels


def predict_interval_with_coverage(
    model: Model, X: Any, coverage: float | None, groups: Any = None, density_ratio: Any = None
) -> tuple[Floats, float]:
    """Predict intervals; return them, shape (n, 2), and their nominal coverage.

    A coverage of None is that of the calibration or, for a model without one, 0.9. `groups` and `density_ratio` are for
    a ConformalQuantileRegressor whose `fit` was given arrays of them; groups are ignored by others.
    """
    inner = unwrap_estimator(model)
    while isinstance(model, Pipeline | FrozenEstimator):  # they have no predict_interval of their own
        if isinstance(model, Pipeline):
            X, model = (model[:-1].transform(X) if len(model) > 1 else X), model[-1]
        else:
            model = model.estimator
    if not hasattr(model, "predict_interval"):
        raise ValueError(
            f"{type(inner).__name__} predicts no intervals. Fit a KernelQuantileRegressor or a "
            "ConformalQuantileRegressor, or draw other intervals with from_predictions."
        )
    if isinstance(model, ConformalQuantileRegressor):
        coverage = model.coverage_ if coverage is None else coverage
        kwargs = {"groups": groups} if model._groups is True else {}  # True: `fit` was given an array of groups
        return np.asarray(model.predict_interval(X, coverage, **kwargs, density_ratio=density_ratio)), coverage
    if density_ratio is not None:
        raise ValueError(
            f"density_ratio is for intervals that were calibrated with one, and {type(inner).__name__} has none. Leave "
            "it out, or fit a ConformalQuantileRegressor with it."
        )
    calibrated = model.interval if isinstance(model, TableModel) else None
    if coverage is None:
        coverage = DEFAULT_COVERAGE if calibrated is None else calibrated.coverage_
    return np.asarray(model.predict_interval(X, coverage=coverage)), coverage


# Names of the categories that a model of tables does not know, and of missing ones.
OTHER, MISSING = "(other)", "(missing)"
# Times of day are represented as datetimes of this day.
FIRST_DAY = date(1970, 1, 1)


@dataclass(frozen=True)
class GridOptions:
    """Constants of the values along a column at which quantiles are predicted."""

    ends: tuple[float, float] = (0.005, 0.995)  # quantiles where a grid ends: beyond, too few rows support the curves
    few_values: int = (
        10  # so many distinct numbers are their own grid; dates over so many weeks (days) go in whole ones
    )
    max_categories: int = 10  # the most frequent ones
    points_per_year: int = 12  # resolution of a grid of dates that is to show the seasons ...
    max_dates: int = 400  # ... and the most points it may take


GRID = GridOptions()


@dataclass(frozen=True, eq=False)
class Columns:
    """The input columns of a model: names, values of shape (n,), and how to put them together again."""

    names: list[str]
    values: list[Values]
    """Numbers (float64), dates and times (datetime64[us]), or categories (object)."""
    assemble: Callable[[Sequence[Values]], Any]
    """Function from a list of columns to an array, data frame or table that the model takes."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.values[0])

    def take(self, rows: NDArray[np.intp]) -> list[Values]:
        """Return all columns of the rows at these positions."""
        return [column[rows] for column in self.values]

    @cached_property
    def typical_row(self) -> list[Values]:
        """One row: the median of numbers and dates, the most frequent category."""
        return [_typical_value(column) for column in self.values]


def split_columns(model: Model, X: Any, *, pooled: bool = False) -> Columns:
    """Split X into its columns; for a model of tables, only those that it uses.

    With `pooled`, categories that such a model does not know are one, "(other)", and missing ones another, "(missing)".
    """
    if isinstance(X, Columns):
        return X
    if isinstance(model, TableModel):
        return _split_table(model, replace_missing_markers(model.encoder, as_arrow(X)), pooled=pooled)
    if not hasattr(X, "columns"):
        return _split_array(model, X)
    labels = list(X.columns)
    values = [_to_plain_array(X[label]) for label in labels]
    names = [str(label) for label in labels]
    columns = Columns(names, values, lambda arrays: type(X)(dict(zip(labels, arrays, strict=True))))
    return _check_shape(columns, (len(X), len(labels)))


def find_column(column: int | str, names: list[str]) -> int:
    """Return the position of a column that is given by name or position."""
    if isinstance(column, str):
        if column not in names:
            raise ValueError(f"There is no column {column!r}. Its columns: {', '.join(names)}.")
        return names.index(column)
    if not 0 <= column < len(names):
        raise ValueError(f"column must be a name, or a number from 0 to {len(names) - 1}; got {column!r}.")
    return int(column)


def make_grid(values: Values, n_points: int, *, yearly: bool = True) -> Values:
    """Return the default grid along a column, in its own type.

    Its distinct values if they are few, otherwise n_points between its outer quantiles; the most frequent categories.
    With `yearly`, a grid of dates is as fine as the seasons need.
    """
    observed = drop_missing(values)
    if len(observed) == 0:
        raise ValueError("The column has no value in these rows. Give rows that have some, or draw another column.")
    if values.dtype.kind == "O":
        return _most_frequent(observed)[: GRID.max_categories]
    if values.dtype.kind == "M":
        few = is_time_of_day(values) and len(np.unique(observed)) <= GRID.few_values
        return np.unique(observed) if few else to_dates(date_grid(to_seconds(observed), n_points, yearly=yearly))
    distinct = np.unique(observed)
    if len(distinct) <= GRID.few_values:
        return distinct
    low, high = np.quantile(observed, GRID.ends)
    return np.linspace(low, high, n_points)


def date_grid(seconds: Floats, n_points: int, *, yearly: bool = True) -> Floats:
    """Return a grid of dates, in seconds since 1970, that does not alias daily, weekly and yearly cycles.

    Points are whole weeks apart, or whole days if the span is short: points at varying times of the week would show its
    cycle as slow waves. For the same reason, with `yearly` there are more than n_points if the seasons need it.
    """
    low, high = np.quantile(seconds, GRID.ends)
    unit = next((CYCLES[cycle] for cycle in ("week", "day") if high - low >= GRID.few_values * CYCLES[cycle]), None)
    if unit is None:
        return np.linspace(low, high, n_points) if high > low else np.array([low])
    # The grid contains the median date, so that it is at a usual time of the week and of the day.
    step, median = unit * np.ceil((high - low) / unit / n_points), np.median(seconds)
    step = _seasonal_step(step, high - low, unit) if yearly else step
    steps = np.arange(np.ceil((low - median) / step), np.floor((high - median) / step) + 1)
    return median + unit * np.fix(step * steps / unit)  # a year is not a whole number of weeks: round to them


def _seasonal_step(step: float, span: float, unit: float) -> float:
    """Return a step that resolves the seasons or, if that takes too many points, one of whole years."""
    year = CYCLES["year"]
    fine = unit * max(np.floor(year / GRID.points_per_year / unit), np.ceil(span / unit / GRID.max_dates))
    if step <= fine:
        return step
    return fine if fine <= year / 4 else year * np.ceil(step / year)


def convert_grid(grid: ArrayLike, values: Values) -> Values:
    """Convert a user's grid to the type of the column and sort it; categories keep their order."""
    if values.dtype.kind == "O":
        return np.ravel(np.asarray(grid, dtype=object))
    points = np.ravel(np.asarray(grid))
    if values.dtype.kind == "M" and points.dtype.kind != "M" and is_time_of_day(values):
        points = np.array([_parse_time(point) for point in points.tolist()])
    return np.sort(points.astype(values.dtype))


def is_time_of_day(dates: Values) -> bool:
    """Whether datetimes represent times of day: all on 1 January 1970, or missing."""
    observed = drop_missing(dates)
    return bool(len(observed) and np.all(observed.astype("datetime64[D]") == np.datetime64(FIRST_DAY)))


def _parse_time(point: object) -> object:
    """Convert a time of day, or text such as 08:30, to a datetime; anything else is returned as it is."""
    if isinstance(point, str) and ":" in point[:3]:
        try:
            point = time.fromisoformat(point)
        except ValueError as error:
            raise ValueError(f"grid holds {point!r}, which is no time of day. Write times like 08:30.") from error
    return datetime.combine(FIRST_DAY, point) if isinstance(point, time) else point


def drop_missing(values: Values) -> Values:
    """Return the values that are not missing; infinite numbers and empty text count as missing."""
    if values.dtype.kind == "O":
        return values[[value is not None and value == value and value != "" for value in values]]
    return values[~np.isnat(values)] if values.dtype.kind == "M" else values[np.isfinite(values)]


def to_seconds(dates: Values) -> Floats:
    """Convert datetimes to seconds since 1970, NaN where they are missing."""
    return np.where(np.isnat(dates), np.nan, dates.astype("datetime64[us]").astype(np.int64) / 1e6)


def to_dates(seconds: Floats) -> Values:
    """Convert seconds since 1970 to datetimes, NaT where they are not finite."""
    finite = np.isfinite(seconds)
    dates = (1e6 * np.where(finite, seconds, 0)).round().astype(np.int64).astype("datetime64[us]")
    return np.where(finite, dates, np.datetime64("NaT", "us"))


def _typical_value(values: Values) -> Values:
    """Return the median or the most frequent category, shape (1,); a missing value if there are no others."""
    observed = drop_missing(values)
    if len(observed) == 0:
        return values[:1]
    if values.dtype.kind == "M":
        return to_dates(np.array([np.median(to_seconds(observed))]))
    if values.dtype.kind == "f":
        return np.array([np.median(observed)])
    return _most_frequent(observed)[:1]


def _most_frequent(categories: Values) -> Values:
    """Return the distinct categories, the most frequent first, ties alphabetically; they are compared as text."""
    originals = {str(category): category for category in categories[::-1]}
    counts = Counter(map(str, categories))
    ranked = sorted(counts, key=lambda text: (-counts[text], text))
    return np.array([originals[text] for text in ranked], dtype=object)


def _split_table(model: TableModel, table: pa.Table, *, pooled: bool) -> Columns:
    """Split an Arrow table into the columns that a model of tables uses, converted as for its encoder."""
    encoder = model.encoder
    encoder.check_frame(table.schema.empty_table())
    values = [_read_column(column, table[column.name], pooled=pooled) for column in encoder.columns_]

    def assemble(arrays: Sequence[Values]) -> pa.Table:
        columns = zip(encoder.columns_, arrays, strict=True)
        return as_arrow({column.name: _to_arrow(column, array, pooled=pooled) for column, array in columns})

    return _check_shape(Columns(encoder.inputs, values, assemble), (table.num_rows, len(encoder.inputs)))


def _read_column(column: Column, entries: pa.ChunkedArray, *, pooled: bool) -> Values:
    """Convert a column of an Arrow table to float64, datetime64[us] or, for categories, object."""
    if isinstance(column, TextColumn):
        if pooled:
            return np.array([*column.categories, OTHER, MISSING], dtype=object)[column.read(entries)]
        return np.asarray(entries.to_pylist(), dtype=object)
    read = column.read(entries)
    if column.kind == "boolean":  # a category: a grid of numbers would have values between false and true
        flags = (read > 0.5).astype(object)
        flags[np.isnan(read)] = None
        return flags
    return to_dates(read) if column.kind in ("date", "time") else read


def _to_arrow(column: Column, values: Values, *, pooled: bool) -> pa.Array | Values:
    """Convert the values of a column to what an Arrow table is made of; the inverse of `_read_column`."""
    import pyarrow as pa

    if column.kind == "time":
        microseconds = values.astype("datetime64[us]").astype(np.int64)
        return pa.array(microseconds, mask=np.isnat(values)).cast(pa.time64("us"))
    if pooled and isinstance(column, TextColumn):
        return pa.array(values.tolist(), pa.string(), mask=values == MISSING)
    return values


def _split_array(model: Model, X: Any) -> Columns:
    """Split an array into its columns, named as those that the model was fitted to."""
    matrix = np.asarray(X)
    values = [_to_plain_array(column) for column in matrix.T] if matrix.ndim == 2 else []
    names = getattr(model, "feature_names_in_", [f"column {j}" for j in range(len(values))])

    def assemble(columns: Sequence[Values]) -> Values:
        if any(column.dtype.kind == "O" for column in columns):
            return np.stack([column.astype(object) for column in columns], axis=1)
        return np.stack(columns, axis=1)

    return _check_shape(Columns([str(name) for name in names], values, assemble), matrix.shape)


def _to_plain_array(column: Any) -> Values:
    """Convert a column of an array or data frame to float64, datetime64[us] or, for categories, object."""
    kind = getattr(column.dtype, "kind", "O")
    if kind == "M":  # also pandas' dates with a time zone, which NumPy converts to UTC
        return np.asarray(column, dtype="datetime64[us]")
    if kind in "iufb" and hasattr(column, "iloc"):  # pandas' nullable numbers may have missing values
        return column.to_numpy(dtype=float, na_value=np.nan)
    if hasattr(column, "iloc"):
        return column.to_numpy(dtype=object, na_value=None)
    values = np.asarray(column)
    if values.dtype.kind == "M":
        return values.astype("datetime64[us]")
    categorical = values.dtype.kind not in "iufb" and any(isinstance(value, str) for value in values)
    return values.astype(object if categorical else np.float64)


def _check_shape(columns: Columns, shape: tuple[int, ...]) -> Columns:
    """Return the columns, or raise if X is not a matrix with at least one row and one column."""
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"X must have shape (n, d) with n > 0; got {shape}.")
    return columns


# Arrow tables


def as_arrow(table: Any) -> pa.Table:
    """Convert Arrow, pandas or polars tables, or a dict of arrays, to an Arrow table."""
    import pyarrow as pa

    if isinstance(table, pa.Table | pa.RecordBatch):
        return table
    try:
        if not (hasattr(table, "columns") and hasattr(table, "dtypes")):
            return pa.table(table)
        refuse_repeated_names([str(name) for name in table.columns])
        if hasattr(table, "to_arrow"):
            return table.to_arrow()
        return pa.Table.from_pandas(table, preserve_index=False, nthreads=1)
    except (TypeError, AttributeError, pa.ArrowException) as error:
        reason = "; ".join(map(str, error.args)).strip().rstrip(".")
        raise TableError(f"The table cannot be read: {reason}. Give every column values of one kind.") from error


def replace_missing_markers(encoder: TableEncoder, table: pa.Table, *others: str) -> pa.Table:
    """Return an Arrow table with an encoder's missing-value markers replaced by null, as in a CSV file.

    `others` are numeric columns, besides the inputs, that are treated in the same way.
    """
    numbers = encoder.markers.numbers
    texts = {column.name: encoder.missing_markers(column) for column in encoder.columns_} | dict.fromkeys(others, ())
    for name in [name for name in texts if name in table.schema.names]:
        column = _markers_to_null(table[name], texts[name], numbers)
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def _markers_to_null(column: pa.ChunkedArray, texts: Sequence[str], numbers: Sequence[float]) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if str(kind) in ("string", "large_string", "string_view"):
        kind = pa.large_string()
    column = column.cast(kind)
    if texts and kind == pa.large_string():
        marked = pc.is_in(column, value_set=pa.array(texts, kind))
    elif numbers and (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        marked = pc.is_in(column.cast(pa.float64(), safe=False), value_set=pa.array(numbers, pa.float64()))
    else:
        return column
    return pc.if_else(marked, pa.scalar(None, kind), column) if pc.any(marked).as_py() else column
