"""Loaders of real data: a wind farm, shipped with the library, and the paper's used cars, which the user downloads."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

WIND_COLUMNS = ("wind_speed", "wind_direction", "temperature")
WIND_TARGET = "power"
WIND_DESCRIPTION = """\
Wind power at La Haute Borne (Meuse, France): a random sample of 15,000 ten-minute averages of its four turbines,
2014 and 2015, in order of time.

  wind_speed      m/s, measured on the nacelle
  wind_direction  degrees, 0 to 360, clockwise from north
  temperature     degrees Celsius, outdoors
  power           kW (target); slightly negative when a standing turbine draws power
  time            UTC, time stamp of the ten minutes
  turbine         name of the turbine

Rows with a missing value, with an impossible temperature or with an ambiguous time stamp were left out. Idle and
throttled turbines were kept: they are why the lower quantiles are of interest.

Source: ENGIE, La Haute Borne open data, under the Etalab Open Licence 2.0 (Licence Ouverte 2.0).
"""


@dataclass(frozen=True, eq=False)
class Wind:
    """The wind farm sample, in order of time. See ``description`` for units, source and licence."""

    X: NDArray[np.float64] | pd.DataFrame
    """Features, shape (n, 3): wind_speed, wind_direction, temperature."""
    y: NDArray[np.float64] | pd.Series
    """Power in kW, shape (n,)."""
    time: NDArray[np.datetime64]
    """Time stamps in UTC, shape (n,), ascending."""
    turbine: NDArray[np.str_]
    """Names of the turbines, shape (n,)."""
    feature_names: tuple[str, ...] = WIND_COLUMNS
    target_name: str = WIND_TARGET
    description: str = field(default_factory=lambda: WIND_DESCRIPTION)  # keeps the text out of the signature


def load_wind(*, as_frame: bool = False) -> Wind:
    """Load 15,000 ten-minute averages of the La Haute Borne wind farm (ENGIE open data, 2014 and 2015).

    Parameters
    ----------
    as_frame : whether to return ``X`` and ``y`` as a pandas DataFrame and Series rather than as arrays

    Returns
    -------
    Wind, with ``X`` (n, 3), ``y`` (n,), ``time``, ``turbine``, ``feature_names``, ``target_name``, ``description``

    Examples
    --------
    >>> wind = load_wind()
    >>> wind.X.shape, wind.feature_names
    ((15000, 3), ('wind_speed', 'wind_direction', 'temperature'))
    """
    columns = _read_columns()
    X = np.column_stack([columns[name] for name in WIND_COLUMNS])
    wind = Wind(X=X, y=columns[WIND_TARGET], time=columns["time"], turbine=columns["turbine"])
    return _as_frame(wind) if as_frame else wind


def _read_columns() -> dict[str, NDArray[Any]]:
    """Read the shipped file as named arrays, numbers as float64."""
    content = resources.files("quernel.datasets").joinpath("data", "wind.npz").read_bytes()
    with np.load(io.BytesIO(content)) as stored:
        # The logger writes two decimals, and the file has hundredths.
        numbers = {name: stored[name] / 100 for name in (*WIND_COLUMNS, WIND_TARGET)}
        return {
            **numbers,
            "time": stored["time"].astype("datetime64[s]"),
            "turbine": stored["turbines"][stored["turbine"]],
        }


def _as_frame(wind: Wind) -> Wind:
    """The same sample with X as a pandas DataFrame and y as a Series."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            "load_wind(as_frame=True) needs pandas, which is not installed. "
            "Run `pip install pandas`, or call load_wind() for numpy arrays."
        ) from error
    return Wind(
        X=pd.DataFrame(wind.X, columns=list(WIND_COLUMNS)),
        y=pd.Series(wind.y, name=WIND_TARGET),
        time=wind.time,
        turbine=wind.turbine,
    )


CAR_COLUMNS = ("year", "mileage", "tax", "mpg", "engineSize")
CAR_TARGET = "price"
CAR_KEY = "carID"
CAR_SOURCE = "https://www.kaggle.com/datasets/kukuroo3/used-car-price-dataset-competition-format"
CAR_ADVICE = (
    f"Download the UK used cars from {CAR_SOURCE} and give the unpacked folder, with X_train.csv, y_train.csv, "
    f"X_test.csv and y_test.csv, or one CSV file (may be .gz) with the columns {', '.join((*CAR_COLUMNS, CAR_TARGET))}."
)


@dataclass(frozen=True, eq=False)
class UsedCars:
    """The used cars, in the order of the file.

    Attributes
    ----------
    X : array of shape (n, 5)
        The columns `feature_names`.
    y : array of shape (n,)
        Prices in pounds.
    feature_names, target_name : tuple of str, str
    """

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    feature_names: tuple[str, ...] = CAR_COLUMNS
    target_name: str = CAR_TARGET


def load_used_cars(path: str | os.PathLike[str]) -> UsedCars:
    """Load the UK used cars of the paper's section "Real Case Study": 7,632 cars, five covariates and the price.

    Nothing is downloaded. Rows with a missing value are dropped.

    Parameters
    ----------
    path : a CSV file (may be .gz) with the columns year, mileage, tax, mpg, engineSize and price, or the folder that
        Kaggle offers, with X_train.csv, y_train.csv, X_test.csv and y_test.csv, which are joined by carID

    Returns
    -------
    UsedCars, with ``X`` (n, 5), ``y`` (n,) in pounds (the paper takes its logarithm), ``feature_names``
    """
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(f"There are no used cars at {place}. {CAR_ADVICE}")
    columns = _from_folder(place) if place.is_dir() else _read(place, (*CAR_COLUMNS, CAR_TARGET))
    table = np.column_stack([columns[name] for name in (*CAR_COLUMNS, CAR_TARGET)])
    table = table[np.isfinite(table).all(axis=1)]
    if len(table) == 0 or not np.all(table[:, -1] > 0):
        raise ValueError(f"{place} must hold cars with prices above 0; got {len(table)} complete rows. {CAR_ADVICE}")
    return UsedCars(table[:, :-1], table[:, -1])


def _from_folder(folder: Path) -> dict[str, NDArray[np.float64]]:
    """Read Kaggle's four files and join covariates and prices by `carID`; a car without a price gets NaN."""
    parts = []
    for part in ("train", "test"):
        X = _read(folder / f"X_{part}.csv", (CAR_KEY, *CAR_COLUMNS))
        y = _read(folder / f"y_{part}.csv", (CAR_KEY, CAR_TARGET))
        price = dict(zip(y[CAR_KEY].tolist(), y[CAR_TARGET].tolist(), strict=True))
        parts.append(X | {CAR_TARGET: np.array([price.get(car, np.nan) for car in X[CAR_KEY].tolist()])})
    return {name: np.concatenate([part[name] for part in parts]) for name in (*CAR_COLUMNS, CAR_TARGET)}


def _read(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """Read some columns of a CSV file as float64, with NaN for missing entries."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. {CAR_ADVICE}")
    import pyarrow as pa  # not at the top of the module: the import takes longer than reading the file
    from pyarrow import csv

    try:
        table = csv.read_csv(str(path), read_options=csv.ReadOptions(use_threads=False))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as CSV: {str(error).splitlines()[0]}. {CAR_ADVICE}") from error
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise ValueError(f"{path} has no column {', '.join(missing)}. {CAR_ADVICE}")
    return {name: _numbers(path, table, name) for name in names}


def _numbers(path: Path, table: Any, name: str) -> NDArray[np.float64]:
    """A column of an Arrow table as float64; a ValueError if it holds anything but numbers."""
    import pyarrow as pa

    try:
        return table[name].cast(pa.float64()).to_numpy().astype(np.float64)
    except pa.ArrowException as error:
        raise ValueError(f"Column {name} of {path} holds {table[name].type}, not numbers. {CAR_ADVICE}") from error
