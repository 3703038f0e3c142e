"""Loader of a real data set that ships with the library: power of a wind farm against wind and temperature."""

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

FEATURES = ("wind_speed", "wind_direction", "temperature")
TARGET = "power"
DESCRIPTION = """\
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

    X: "NDArray[np.float64] | pd.DataFrame"
    """Features, shape (n, 3): wind_speed, wind_direction, temperature."""
    y: "NDArray[np.float64] | pd.Series"
    """Power in kW, shape (n,)."""
    time: NDArray[np.datetime64]
    """Time stamps in UTC, shape (n,), ascending."""
    turbine: NDArray[np.str_]
    """Names of the turbines, shape (n,)."""
    feature_names: tuple[str, ...] = FEATURES
    target_name: str = TARGET
    description: str = DESCRIPTION


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
    X = np.column_stack([columns[name] for name in FEATURES])
    wind = Wind(X=X, y=columns[TARGET], time=columns["time"], turbine=columns["turbine"])
    return _as_frame(wind) if as_frame else wind


def _read_columns() -> dict[str, NDArray[Any]]:
    """Read the shipped file as named arrays, numbers as float64."""
    import pyarrow as pa  # not at the top of the module: the import takes longer than reading the file
    import pyarrow.parquet as pq

    # From a buffer and without Arrow's threads: with a Python file, those may abort the interpreter when it exits.
    content = resources.files("quernel.datasets").joinpath("data", "wind.parquet").read_bytes()
    table = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False).read(use_threads=False)
    # The logger writes two decimals and the file keeps 32 bits of them: rounding gives back the number that was logged.
    numbers = {name: table[name].to_numpy().astype(np.float64).round(2) for name in (*FEATURES, TARGET)}
    return {
        **numbers,
        "time": table["time"].to_numpy().astype("datetime64[s]"),
        "turbine": np.array(table["turbine"].to_pylist(), dtype=np.str_),
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
        X=pd.DataFrame(wind.X, columns=list(FEATURES)),
        y=pd.Series(wind.y, name=TARGET),
        time=wind.time,
        turbine=wind.turbine,
    )
