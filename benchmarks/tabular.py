"""The tables on which accuracy is measured, and their splits into training and test rows.

The files are not part of the project; `read` takes the folder that holds them. The wind farm is shipped.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from quernel.datasets import load_wind

# Random splits, where none is standard: so many, each with this share of the rows held out.
RANDOM_SPLITS, TEST_SHARE = 5, 0.2
STANDARD_SPLITS = 20


@dataclass(frozen=True, eq=False)
class Table:
    """X (n, d) of numbers, y (n,), and the test rows of every split."""

    name: str
    X: np.ndarray
    y: np.ndarray
    tests: list[np.ndarray]

    def split(self, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """X and y to fit, X and y to judge by; missing entries are filled with the median of the former's column."""
        held_out = np.zeros(len(self.y), dtype=bool)
        held_out[self.tests[k]] = True
        X = np.where(np.isnan(self.X), np.nanmedian(self.X[~held_out], axis=0), self.X)
        return X[~held_out], self.y[~held_out], X[held_out], self.y[held_out]


def standard(name: str, file: str, target: str) -> Callable[[Path], Table]:
    """A table with its twenty standard splits."""

    def load(folder: Path) -> Table:
        X, y = _numbers(_csv(folder / f"{file}.csv.gz"), target)
        splits = pd.read_parquet(folder / "uci_test_splits.parquet")
        splits = splits[splits.dataset == file]
        tests = [splits.test_row[splits.split == k].to_numpy() for k in range(STANDARD_SPLITS)]
        return Table(name, X, y, tests)

    return load


def california(folder: Path) -> Table:
    frame = pd.get_dummies(_csv(folder / "california_housing.csv.gz"), columns=["ocean_proximity"])
    return _random("california", *_numbers(frame, "median_house_value"))


def bike(folder: Path) -> Table:
    """Hourly counts; the two columns that sum to them, the row number and the date are left out."""
    frame = _csv(folder / "bike_sharing_hour.csv.gz").drop(columns=["instant", "dteday", "casual", "registered"])
    return _random("bike", *_numbers(frame, "cnt"))


def used_cars(folder: Path) -> Table:
    """The logarithm of the price, by the five columns of the paper."""
    frame = _csv(folder / "uk_used_cars_kaggle_7632.csv.gz")
    frame = frame[["year", "mileage", "tax", "mpg", "engineSize", "price"]].assign(price=np.log(frame["price"]))
    return _random("used cars", *_numbers(frame, "price"))


def wind(folder: Path) -> Table:  # noqa: ARG001
    data = load_wind()
    return _random("wind", data.X, data.y)


def protein(folder: Path) -> Table:
    return _random("protein", *_numbers(pd.read_parquet(folder / "uci_protein.parquet"), "RMSD"))


def pm25(folder: Path) -> Table:
    """Hours with a measurement; the direction of the wind as one column for each, without the row number."""
    frame = (
        pd.read_parquet(folder / "beijing_pm25.parquet").dropna(subset=["pm2.5"]).drop(columns="No", errors="ignore")
    )
    return _random("pm2.5", *_numbers(pd.get_dummies(frame, columns=["cbwd"]), "pm2.5"))


TABLES: dict[str, Callable[[Path], Table]] = {
    "concrete": standard("concrete", "uci_concrete", "strength"),
    "power plant": standard("power plant", "uci_power_plant", "PE"),
    "wine": standard("wine", "uci_wine_red", "quality"),
    "yacht": standard("yacht", "uci_yacht", "resistance"),
    "california": california,
    "bike": bike,
    "used cars": used_cars,
    "wind": wind,
    "protein": protein,
    "pm2.5": pm25,
}


def read(folder: Path, names: list[str] | None = None) -> Iterator[Table]:
    """The tables of these names, or all."""
    for name in names or TABLES:
        yield TABLES[name](folder)


def _csv(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, float_precision="round_trip", keep_default_na=False, na_values=["", "NA", "NaN"])


def _numbers(frame: pd.DataFrame, target: str) -> tuple[np.ndarray, np.ndarray]:
    return frame.drop(columns=target).to_numpy(dtype=float), frame[target].to_numpy(dtype=float)


def _random(name: str, X: np.ndarray, y: np.ndarray) -> Table:
    size = round(TEST_SHARE * len(y))
    tests = [np.random.default_rng(seed).permutation(len(y))[:size] for seed in range(RANDOM_SPLITS)]
    return Table(name, X, y, tests)
