"""Loader of the UK used cars, the paper's real data, from files that the user has downloaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEATURES = ("year", "mileage", "tax", "mpg", "engineSize")
TARGET = "price"
KEY = "carID"
SOURCE = "https://www.kaggle.com/datasets/kukuroo3/used-car-price-dataset-competition-format"
ADVICE = (
    f"Download the UK used cars from {SOURCE} and give the unpacked folder, with X_train.csv, y_train.csv, X_test.csv "
    f"and y_test.csv, or one CSV file (may be .gz) with the columns {', '.join((*FEATURES, TARGET))}."
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
    feature_names: tuple[str, ...] = FEATURES
    target_name: str = TARGET


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
        raise FileNotFoundError(f"There are no used cars at {place}. {ADVICE}")
    columns = _from_folder(place) if place.is_dir() else _read(place, (*FEATURES, TARGET))
    table = np.column_stack([columns[name] for name in (*FEATURES, TARGET)])
    table = table[np.isfinite(table).all(axis=1)]
    if len(table) == 0 or not np.all(table[:, -1] > 0):
        raise ValueError(f"{place} must hold cars with prices above 0; got {len(table)} complete rows. {ADVICE}")
    return UsedCars(table[:, :-1], table[:, -1])


def _from_folder(folder: Path) -> dict[str, NDArray[np.float64]]:
    """Read Kaggle's four files and join covariates and prices by `carID`; a car without a price gets NaN."""
    parts = []
    for part in ("train", "test"):
        X = _read(folder / f"X_{part}.csv", (KEY, *FEATURES))
        y = _read(folder / f"y_{part}.csv", (KEY, TARGET))
        price = dict(zip(y[KEY].tolist(), y[TARGET].tolist(), strict=True))
        parts.append(X | {TARGET: np.array([price.get(car, np.nan) for car in X[KEY].tolist()])})
    return {name: np.concatenate([part[name] for part in parts]) for name in (*FEATURES, TARGET)}


def _read(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """Read some columns of a CSV file as float64, with NaN for missing entries."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. {ADVICE}")
    import pyarrow as pa  # not at the top of the module: the import takes longer than reading the file
    from pyarrow import csv

    try:
        table = csv.read_csv(str(path), read_options=csv.ReadOptions(use_threads=False))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as CSV: {str(error).splitlines()[0]}. {ADVICE}") from error
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise ValueError(f"{path} has no column {', '.join(missing)}. {ADVICE}")
    return {name: _numbers(path, table, name) for name in names}


def _numbers(path: Path, table: Any, name: str) -> NDArray[np.float64]:
    """A column of an Arrow table as float64; a ValueError if it holds anything but numbers."""
    import pyarrow as pa

    try:
        return table[name].cast(pa.float64()).to_numpy().astype(np.float64)
    except pa.ArrowException as error:
        raise ValueError(f"Column {name} of {path} holds {table[name].type}, not numbers. {ADVICE}") from error
