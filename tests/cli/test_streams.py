"""Commands on tables of many files that are read in parts: the answers are those of the table in memory."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quernel
from quernel.cli.data import bytes_from
from quernel.datasets import load_wind
from quernel.tables import read
from tables.made import sales

SHARED = Path(__file__).parents[3] / "shared" / "data"
QUICK = ("--components", "40", "--quantiles", "0.1,0.5,0.9", "--json")
LITTLE = ("--max-memory", "300kB")


def in_files(folder, table, n_files=5, group=None):
    """The table in files, named in the order of their rows."""
    folder.mkdir(exist_ok=True)
    ends = np.linspace(0, len(table), n_files + 1).astype(int)
    for k in range(n_files):
        part = table.slice(ends[k], ends[k + 1] - ends[k])
        pq.write_table(part, folder / f"part{k:02}.parquet", row_group_size=group or max(len(part) // 2, 1))
    return folder


def wind():
    data = load_wind()
    return pa.table({**{f"x{j}": data.X[:, j] for j in range(data.X.shape[1])}, "power": data.y})


def windmills():
    table = read_shared("wind_la_haute_borne_scada")
    return table.take(np.sort(np.random.default_rng(0).choice(len(table), 20_000, replace=False)))


def flights():
    table = read_shared("nycflights13_flights")
    return table.take(np.sort(np.random.default_rng(0).choice(len(table), 20_000, replace=False)))


def read_shared(name):
    path = SHARED / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    return read(path)


CASES = {
    "sales": (sales, "price", ["--log-target"]),
    "wind": (wind, "power", []),
}


def same_fit(command, folder, target, tmp_path, *options):
    """The model of the folder read whole, and that of the folder read in parts, with what was said of each."""
    told, models = [], []
    for name, more in (("whole", ()), ("streamed", LITTLE)):
        model = tmp_path / f"{name}.quernel"
        ran = command("fit", folder, "--target", target, "--model", model, *options, *QUICK, *more)
        assert ran.returncode == 0, ran.stderr
        told.append(json.loads(ran.stdout))
        models.append(quernel.load(model))
        assert told[-1]["read"] == name
    whole, streamed = models
    assert streamed.encoder == whole.encoder
    for name in ("rows", "rows_without_target", "columns", "encoded_columns", "notes", "n_components"):
        assert told[1][name] == told[0][name], name
    np.testing.assert_allclose(streamed.model.alpha_, whole.model.alpha_, rtol=1e-12)
    np.testing.assert_allclose(streamed.model.bandwidth_, whole.model.bandwidth_, rtol=1e-9)
    np.testing.assert_allclose(streamed.model.feature_map_.frequencies_, whole.model.feature_map_.frequencies_, rtol=1e-9)
    gaps = np.maximum(told[0]["duality_gap"], told[1]["duality_gap"])
    assert gaps.max() <= 1e-6
    np.testing.assert_allclose(streamed.model.objective_, whole.model.objective_, rtol=2 * gaps.max())
    table = read(folder)
    spread = np.nanstd(np.asarray(table[target].to_numpy(), dtype=float))
    assert np.abs(streamed.predict(table) - whole.predict(table)).max() < 0.01 * spread
    return whole, streamed
