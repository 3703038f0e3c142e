"""A row source is one class: that of CONTRIBUTING, run as printed, outside of the library."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import quernel
from quernel._machine import read_ahead
from quernel.data import MemmapRows, Piece, RowsError, RowSource, StreamedDesign, statistics
from quernel.data.sources import check_piece
from support.models import plain_regressor

PAGE = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
N, SIZES = 6000, (1000, 2500, 1, 2499)
X = np.random.default_rng(0).uniform(-1, 1, (N, 2))
Y = np.sin(3 * X[:, 0]) + 0.3 * np.random.default_rng(1).standard_normal(N)
MODEL = plain_regressor([0.2, 0.8], bandwidth=0.5, alpha=1e-3, n_components=50, max_memory=100_000, random_state=0)


@pytest.fixture(scope="module")
def npz_rows():
    section = PAGE.partition("## Adding a row source")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    names = {"np": np, "pairwise": pairwise, "Piece": Piece, "read_ahead": read_ahead, "check_piece": check_piece}
    exec(code, names)
    return names["NpzRows"]


@pytest.fixture
def paths(tmp_path):
    ends = np.cumsum([0, *SIZES])
    found = [tmp_path / f"{k}.npz" for k in range(len(SIZES))]
    for path, start, stop in zip(found, ends, ends[1:], strict=False):
        np.savez(path, X=X[start:stop], y=Y[start:stop])
    return found


def test_it_holds_the_rows_of_all_files(npz_rows, paths):
    rows: RowSource = npz_rows(paths)
    assert (rows.n_rows, rows.n_columns, len(rows.spans)) == (N, 2, len(SIZES))
    pieces = list(rows.stream(range(1, 3)))
    np.testing.assert_array_equal(np.concatenate([piece.X for piece in pieces]), X[1000:3501])
    assert all(piece.X is None for piece in rows.stream(range(4), X=False))
    found = statistics.summarise(rows, 100).moments
    np.testing.assert_allclose(found.mean, X.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.variance, X.var(axis=0), rtol=1e-12)


def test_it_is_fitted_block_by_block_and_predicted_in_place(npz_rows, paths, tmp_path, monkeypatch):
    designs = []
    start = StreamedDesign.__init__
    monkeypatch.setattr(StreamedDesign, "__init__", lambda self, *a, **k: designs.append(a[0]) or start(self, *a, **k))
    rows = npz_rows(paths)
    model = MODEL.fit(rows)
    assert designs == [rows]  # it was streamed, not loaded
    assert np.all(model.duality_gap_ <= 1e-6)
    np.testing.assert_allclose(model.predict(rows), model.predict(X), rtol=1e-12)
    objective = model.objective_
    known = MODEL.fit(MemmapRows(X, Y))
    np.testing.assert_allclose(objective, known.objective_, rtol=2e-6)
    quernel.save(known, tmp_path / "m.quernel")
    np.testing.assert_allclose(quernel.load(tmp_path / "m.quernel").predict(rows), known.predict(X), rtol=1e-12)


def test_a_bad_number_is_found_and_its_place_named(npz_rows, paths):
    y = Y[1000:3500].copy()
    y[7] = np.nan
    np.savez(paths[1], X=X[1000:3500], y=y)
    with pytest.raises(RowsError, match=r"1\.npz, row 7: y is missing"):
        MODEL.fit(npz_rows(paths))


def test_what_lacks_a_member_is_no_row_source(npz_rows, paths):
    class Deaf(npz_rows):
        spans = property()  # raises AttributeError, as if it were not there

        def __init__(self, paths):
            pass

    with pytest.raises((ValueError, TypeError)):
        MODEL.fit(Deaf(paths))
