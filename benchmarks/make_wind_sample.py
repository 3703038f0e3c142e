"""Build the wind sample that quernel ships from the full La Haute Borne record.

python benchmarks/make_wind_sample.py SOURCE.parquet src/quernel/datasets/data/wind.npz
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

ROWS = 15_000
SEED = 20_140_101
NAMES = {
    "Wind_turbine_name": "turbine",
    "Date_time": "time",
    "Ws_avg": "wind_speed",
    "Wa_avg": "wind_direction",
    "Ot_avg": "temperature",
    "P_avg": "power",
}
NUMBERS = ("wind_speed", "wind_direction", "temperature", "power")


def clean(source: pd.DataFrame) -> pd.DataFrame:
    """Readable names, UTC, no missing values, no sensor faults, no ambiguous times; ordered by time and turbine."""
    frame = source[list(NAMES)].rename(columns=NAMES).dropna()
    frame["time"] = pd.to_datetime(frame["time"], utc=True)
    frame = frame[frame["temperature"] > -40]  # the sensor reports -273.2 when it fails
    # When summer time begins, the source gives two readings the same hour: which is which cannot be told.
    frame = frame.drop_duplicates(["time", "turbine"], keep=False)
    return frame.sort_values(["time", "turbine"], ignore_index=True)


def sample(frame: pd.DataFrame) -> pd.DataFrame:
    chosen = np.random.default_rng(SEED).choice(len(frame), size=ROWS, replace=False)
    return frame.iloc[np.sort(chosen)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="Parquet file of the full record")
    parser.add_argument("output", type=Path, help="NumPy archive to write")
    arguments = parser.parse_args()
    rows = sample(clean(pd.read_parquet(arguments.source)))
    turbines, turbine = np.unique(rows["turbine"].astype(str), return_inverse=True)
    numbers = {name: np.round(100 * rows[name]).astype(np.int32) for name in NUMBERS}
    seconds = rows["time"].to_numpy().astype("datetime64[s]").astype(np.int64)
    np.savez_compressed(
        arguments.output, **numbers, time=seconds, turbine=turbine.astype(np.uint8), turbines=turbines.astype(np.str_)
    )
    print(f"{arguments.output}: {len(rows)} rows, {arguments.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
