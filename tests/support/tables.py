"""A small table with columns of every kind, and gaps in each."""

import tempfile
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from quernel.data.parquet import any_column, open_parquet
from quernel.tables import TableEncoder, training_data
from quernel.tables.csv_files import INFER_TYPES
from quernel.tables.files import open_table

LEVELS = [0.1, 0.5, 0.9]


def fit_encoder(table, inputs, missing=(), categorical=()):
    """An encoder of these columns of an Arrow table."""
    return TableEncoder(categorical=categorical, missing=missing).fit(table.select(inputs))


def read_table(data, options=INFER_TYPES, needed=any_column):
    """All rows of a file, a folder or a pattern."""
    with open_table(data, options=options, needed=needed) as table:
        return table.read()


FOLDER, NUMBERS = tempfile.TemporaryDirectory(), count()


def prepare(table, options):
    """Training data of an Arrow table in memory, by way of a file."""
    path = Path(FOLDER.name) / f"table{next(NUMBERS)}.parquet"
    pq.write_table(table, path)
    return training_data.prepare(open_parquet([path]), options).load()


def with_times(table, seed=0):
    """The table with a time of day and a duration more, with gaps in each."""
    rng = np.random.default_rng(seed)
    moments = [None if rng.random() < 0.1 else int(s) for s in rng.integers(0, 86_400, len(table))]
    lengths = [None if rng.random() < 0.1 else int(s) for s in rng.integers(0, 5_000, len(table))]
    table = table.append_column("hour", pa.array(moments, pa.time32("s")))
    return table.append_column("spent", pa.array(lengths, pa.duration("ms")))


def sales(n=400, seed=0, gaps=True):
    rng = np.random.default_rng(seed)
    size, age = rng.gamma(2, 50, n), rng.integers(0, 30, n).astype(float)
    place = rng.choice(["north", "south", "east"], n, p=[0.5, 0.3, 0.2])
    garden, day = rng.random(n) < 0.4, rng.integers(0, 900, n)
    price = 3000 * size * np.where(place == "north", 1.5, 1) * np.exp(0.2 * rng.standard_normal(n)) + 1e5 * garden

    def gappy(values, share):
        return [None if gaps and rng.random() < share else v for v in values]

    return pa.table(
        {
            "size": gappy(size.tolist(), 0.05),
            "age": pa.array(gappy(age.tolist(), 0.0)),
            "place": gappy(place.tolist(), 0.1),
            "garden": gappy(garden.tolist(), 0.05),
            "sold": gappy([datetime(2023, 1, 1, 12) + timedelta(days=int(d), hours=int(d) % 7) for d in day], 0.05),
            "price": gappy(price.tolist(), 0.02),
        }
    )


def write_files(folder, table, n_files=5, group=None):
    """Write the table as Parquet files named in the order of their rows, by default of two row groups each."""
    folder.mkdir(exist_ok=True)
    bounds = np.linspace(0, len(table), n_files + 1).astype(int)
    for k in range(n_files):
        part = table.slice(bounds[k], bounds[k + 1] - bounds[k])
        pq.write_table(part, folder / f"part{k:02}.parquet", row_group_size=group or max(len(part) // 2, 1))
    return folder


def collect_rows(source, X=True):
    """All rows of a row source: X, y and weights."""
    blocks = list(source.stream(range(len(source.spans)), X=X))
    assert [len(block.y) for block in blocks] == [span.stop - span.start for span in source.spans]
    return [None if parts[0] is None else np.concatenate(parts) for parts in zip(*blocks, strict=True)]
