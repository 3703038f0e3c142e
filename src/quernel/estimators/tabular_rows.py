"""Rows of `TabularQuantileRegressor`: validated and sorted, a sample of many, and all of them block by block."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import ArrayRows, DaskRows, Piece
from quernel.data.sources import split_blocks
from quernel.estimators.inputs import sample_rows, source_of, warn_of_traps
from quernel.estimators.location_scale import AllRows
from quernel.estimators.validation import check_groups, check_training, check_weight, refuse_large

Index = NDArray[np.integer]


def read_rows(
    header: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    groups: Any,
    max_rows: int,
    rng: np.random.Generator,
) -> tuple[ArrayRows, Index | None, AllRows | None]:
    """Validated rows of positive weight, sorted by their values, and the number of each row's group (n,) or None.

    Sorting makes the fit independent of the order in which rows are given. Of more than `max_rows` these are a sample,
    and the last result is all of them.
    """
    source: Any = source_of(X, y, sample_weight)
    index: Index | None = None
    names = None if source is None or isinstance(source, ArrayRows) else source.names
    if source is not None:
        if groups is not None:
            raise ValueError(f"groups are for arrays and data frames; got a {type(X).__name__}. Leave them out.")
        sample = source
        if not isinstance(source, ArrayRows):
            sample, index = sample_rows(source, min(max_rows, source.n_rows), rng.spawn(1)[0])
        X, y, sample_weight = sample.X, sample.y, sample.weight
    rows, target, weight = check_training(header, X, y, sample_weight)
    if names is not None:
        header.feature_names_in_ = np.array(names, dtype=object)
    known = getattr(header, "feature_names_in_", None)
    warn_of_traps(X, rows, target, known, getattr(header, "encoder_", None))
    refuse_large(np.array([rows.min(axis=0), rows.max(axis=0)]), known)
    counted = None if sample_weight is None else check_weight(sample_weight, len(np.asarray(y))) > 0
    labels = None if groups is None else _number_groups(groups, len(np.asarray(y)))
    if counted is not None:
        labels, index = (None if one is None else one[counted] for one in (labels, index))
    keys = [one for one in (*rows.T, target, labels, weight) if one is not None]
    order = np.lexsort(keys[::-1])
    labels = None if labels is None else _number_by_appearance(labels[order])
    found = ArrayRows(rows[order], target[order], None if weight is None else weight[order])
    if index is not None:
        everything = AllRows(partial(_read_pieces, source), source.n_rows, index[order])
        return found, labels, everything if everything.n_rows > len(found.y) else None
    if len(found.y) <= max_rows:
        return found, labels, None
    index = np.sort(rng.spawn(1)[0].permutation(len(found.y))[:max_rows])
    everything = AllRows(partial(_read_pieces, found), len(found.y), index, labels)
    some = ArrayRows(found.X[index], found.y[index], None if found.weight is None else found.weight[index])
    return some, None if labels is None else _number_by_appearance(labels[index]), everything


def _read_pieces(source: Any) -> Iterator[Piece]:
    """All rows of a source, in memory, in files or on Dask workers, block by block."""
    if isinstance(source, ArrayRows):
        for rows in split_blocks(*source.X.shape):
            yield Piece(source.X[rows], source.y[rows], None if source.weight is None else source.weight[rows])
    elif isinstance(source, DaskRows):
        for chunk in source.chunks():
            yield chunk.compute()
    else:
        yield from source.stream(range(len(source.spans)))


def _number_by_appearance(labels: Index) -> Index:
    """Number groups by their first appearance, so that only the grouping counts."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def _number_groups(groups: Any, n_rows: int) -> Index:
    """Number of each row's group (n,)."""
    given = np.asarray(groups)
    if given.shape != (n_rows,):
        raise ValueError(f"groups must have one label for each of {n_rows} rows; got shape {given.shape}.")
    check_groups(given)
    numbers = np.unique(given, return_inverse=True)[1].ravel()
    if numbers.max() == 0:
        raise ValueError("groups has one label only, so no row can be judged by others. Leave groups out.")
    return numbers
