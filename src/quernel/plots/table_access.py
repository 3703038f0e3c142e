"""The columns of arrays, data frames and tables, each by itself, and rows made of other values for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.plots.checks import Floats
from quernel.tables import BooleanColumn, DateColumn, TableModel, TextColumn, TimeColumn
from quernel.tables.columns import CYCLES
from quernel.tables.encoder import as_arrow

# Of a column's values beyond these quantiles a few rows would be drawn as if they were known.
ENDS = (0.005, 0.995)
FEW_VALUES = 10
MAX_CATEGORIES = 10
# Times of day are those of this day.
FIRST_DAY = date(1970, 1, 1)
# Along dates with a yearly cycle, and how many there may be for that.
POINTS_PER_YEAR, MAX_DATES = 12, 400


@dataclass(frozen=True, eq=False)
class Columns:
    """What a model looks at, column by column: numbers (float64), dates (datetime64[us]), or words (object)."""

    names: list[str]
    values: list[NDArray[Any]]
    assemble: Callable[[Sequence[NDArray[Any]]], Any]
    """From values for every column to rows that the model takes."""

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.values[0])

    def take(self, rows: NDArray[np.intp]) -> list[NDArray[Any]]:
        """All columns of these rows."""
        return [column[rows] for column in self.values]

    def typical(self) -> list[NDArray[Any]]:
        """One row: the median of numbers and dates, the commonest of words."""
        return [_typical_value(column) for column in self.values]


def split_columns(model: Any, X: Any) -> Columns:
    """The columns of X; of a table that has more columns than its model looks at, only these."""
    if isinstance(model, TableModel):
        return _columns_of_table(model, model.encoder.without_marks(as_arrow(X)))
    if not hasattr(X, "columns"):
        return _columns_of_array(model, X)
    labels = list(X.columns)
    values = [_to_plain_array(X[label]) for label in labels]
    names = [str(label) for label in labels]
    columns = Columns(names, values, lambda made: type(X)(dict(zip(labels, made, strict=True))))
    return _check_shape(columns, (len(X), len(labels)))


def make_grid(values: NDArray[Any], n_points: int) -> NDArray[Any]:
    """Where to compute curves along a column: its values if they are few, or between its ends; the commonest words."""
    there = drop_missing(values)
    if len(there) == 0:
        raise ValueError("The column has no value in these rows. Give rows that have some, or draw another column.")
    if values.dtype.kind == "O":
        return _most_frequent(there)[:MAX_CATEGORIES]
    if values.dtype.kind == "M":
        return to_dates(date_grid(to_seconds(there), n_points))
    different = np.unique(there)
    return different if len(different) <= FEW_VALUES else np.linspace(*np.quantile(there, ENDS), n_points)


def date_grid(seconds: Floats, n_points: int, *, yearly: bool = True) -> Floats:
    """Dates whole weeks apart, or whole days: steps at other times of the week would show its cycle as slow waves.

    So would steps across the seasons: where there may be a yearly cycle, there are more points if need be.
    """
    low, high = np.quantile(seconds, ENDS)
    unit = next((CYCLES[cycle] for cycle in ("week", "day") if high - low >= FEW_VALUES * CYCLES[cycle]), None)
    if unit is None:
        return np.linspace(low, high, n_points) if high > low else np.array([low])
    step, typical = unit * np.ceil((high - low) / unit / n_points), np.median(seconds)
    step = _seasonal_step(step, high - low, unit) if yearly else step
    steps = np.arange(np.ceil((low - typical) / step), np.floor((high - typical) / step) + 1)
    return typical + unit * np.fix(step * steps / unit)  # years are no whole weeks


def _seasonal_step(step: float, span: float, unit: float) -> float:
    """A step that shows the seasons; or one of whole years, where that would take too many points."""
    year = CYCLES["year"]
    fine = unit * max(np.floor(year / POINTS_PER_YEAR / unit), np.ceil(span / unit / MAX_DATES))
    if step <= fine:
        return step
    return fine if fine <= year / 4 else year * np.ceil(step / year)


def convert_grid(grid: ArrayLike, values: NDArray[Any]) -> NDArray[Any]:
    """Points that were given, of the kind of the column and ascending; words stay in their order."""
    if values.dtype.kind == "O":
        return np.ravel(np.asarray(grid, dtype=object))
    points = np.ravel(np.asarray(grid))
    if values.dtype.kind == "M" and points.dtype.kind != "M" and is_time_of_day(values):
        points = np.array([_parse_time(point) for point in points.tolist()])
    return np.sort(points.astype(values.dtype))


def is_time_of_day(dates: NDArray[Any]) -> bool:
    """Whether these are times of day: those of the first day of 1970, and gaps."""
    there = drop_missing(dates)
    return bool(len(there) and np.all(there.astype("datetime64[D]") == np.datetime64(FIRST_DAY)))


def _parse_time(point: Any) -> Any:
    """A time of day, or text that holds one, as a date; others as they are."""
    if isinstance(point, str) and ":" in point[:3]:
        try:
            point = time.fromisoformat(point)
        except ValueError as error:
            raise ValueError(f"grid holds {point!r}, which is no time of day. Write times like 08:30.") from error
    return datetime.combine(FIRST_DAY, point) if isinstance(point, time) else point


def drop_missing(values: NDArray[Any]) -> NDArray[Any]:
    """The values without the gaps."""
    if values.dtype.kind == "O":
        return values[[value is not None and value == value and value != "" for value in values]]
    return values[~np.isnat(values)] if values.dtype.kind == "M" else values[np.isfinite(values)]


def to_seconds(dates: NDArray[Any]) -> Floats:
    """Seconds since 1970."""
    return dates.astype("datetime64[us]").astype(np.int64) / 1e6


def to_dates(seconds: Floats) -> NDArray[Any]:
    """Dates from seconds since 1970, NaT where there are none."""
    there = np.isfinite(seconds)
    dates = (1e6 * np.where(there, seconds, 0)).round().astype(np.int64).astype("datetime64[us]")
    return np.where(there, dates, np.datetime64("NaT", "us"))


def _typical_value(values: NDArray[Any]) -> NDArray[Any]:
    there = drop_missing(values)
    if len(there) == 0:
        return values[:1]
    if values.dtype.kind == "M":
        return to_dates(np.array([np.median(to_seconds(there))]))
    if values.dtype.kind == "f":
        return np.array([np.median(there)])
    return _most_frequent(there)[:1]


def _most_frequent(words: NDArray[Any]) -> NDArray[Any]:
    """The different words, or whatever there is instead of numbers, the commonest first."""
    _, first, counts = np.unique(words.astype(str), return_index=True, return_counts=True)
    return words[first[np.argsort(-counts, kind="stable")]]


def _columns_of_table(model: TableModel, table: Any) -> Columns:
    model.encoder.check(table.schema)
    values: list[NDArray[Any]] = []
    for column in model.encoder.columns:
        if isinstance(column, TextColumn):
            values.append(np.asarray(table[column.name].to_pylist(), dtype=object))
            continue
        read = column.read(table[column.name])
        if isinstance(column, BooleanColumn):  # nothing lies between true and false
            values.append(np.where(np.isnan(read), None, read > 0.5))
        else:
            values.append(to_dates(read) if isinstance(column, DateColumn | TimeColumn) else read)
    names = model.encoder.inputs
    times = [isinstance(column, TimeColumn) for column in model.encoder.columns]

    def assemble(made: Sequence[NDArray[Any]]) -> Any:
        told = (_to_arrow_times(column) if time else column for column, time in zip(made, times, strict=True))
        return as_arrow(dict(zip(names, told, strict=True)))

    return _check_shape(Columns(names, values, assemble), (table.num_rows, len(names)))


def _to_arrow_times(dates: NDArray[Any]) -> Any:
    """Dates as Arrow's times of day."""
    import pyarrow as pa

    count = dates.astype("datetime64[us]").astype(np.int64)
    return pa.array(count, mask=np.isnat(dates)).cast(pa.time64("us"))


def _columns_of_array(model: Any, X: Any) -> Columns:
    matrix = np.asarray(X)
    values = [_to_plain_array(column) for column in matrix.T] if matrix.ndim == 2 else []
    names = getattr(model, "feature_names_in_", [f"column {j}" for j in range(len(values))])

    def assemble(made: Sequence[NDArray[Any]]) -> NDArray[Any]:
        words = any(column.dtype.kind == "O" for column in made)
        return np.stack([column.astype(object) for column in made], axis=1) if words else np.stack(made, axis=1)

    return _check_shape(Columns([str(name) for name in names], values, assemble), matrix.shape)


def _to_plain_array(column: Any) -> NDArray[Any]:
    """A column of an array or a data frame as numbers, dates or words."""
    kind = getattr(column.dtype, "kind", "O")
    if kind == "M":  # pandas' dates with a zone are no array of dates by themselves; as one, they are in UTC
        return np.asarray(column, dtype="datetime64[us]")
    if kind in "iufb" and hasattr(column, "iloc"):  # pandas' own numbers may have gaps
        return column.to_numpy(dtype=float, na_value=np.nan)
    if hasattr(column, "iloc"):
        return column.to_numpy(dtype=object, na_value=None)
    values = np.asarray(column)
    if values.dtype.kind == "M":
        return values.astype("datetime64[us]")
    words = values.dtype.kind not in "iufb" and any(isinstance(value, str) for value in values)
    return values.astype(object if words else np.float64)


def _check_shape(columns: Columns, shape: tuple[int, ...]) -> Columns:
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"X must have shape (n, d) with n > 0; got {shape}.")
    return columns
