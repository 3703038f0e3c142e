"""Exact medians of columns that are never gathered: digit by digit, as in `rows.quantiles`, for all columns at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.rows.quantiles import Search, counts, join_counts, left, narrowed, picked, search, sharing, values

Array = NDArray[np.floating]

# From so many values of a column on they are not counted further but gathered.
GATHERED = 2**16

# The finite numbers of every column, in a piece of the table.
Columns = Callable[[Any], dict[str, Array]]
Fold = Callable[[Callable[[Any], Any], Callable[[list[Any]], Any]], Any]


def medians(fold: Fold, columns: Columns, there: dict[str, int]) -> dict[str, float]:
    """The median of every column, of which `there` says how many numbers it has, in two or three passes."""
    states = {name: search(np.array([0.5]), float(count)) for name, count in there.items()}
    remaining = dict(there)
    while max(remaining.values(), default=0) > GATHERED:
        found = fold(partial(count_digits, columns, states), join_digits)
        for name, state in states.items():
            if state.done:
                continue
            states[name] = narrowed(state, found[name])
            remaining[name] = 0 if states[name].done else left(state, states[name], found[name])
    gathered = fold(partial(gather, columns, states), join_gathered) if there else {}
    return {
        name: float(values(state)[0] if state.done else picked(state, gathered[name])[0])
        for name, state in states.items()
    }


def count_digits(columns: Columns, states: dict[str, Search], piece: Any) -> dict[str, Array]:
    """How the next digit of the numbers of a piece is distributed, column by column."""
    return {name: counts(y, None, states[name]) for name, y in columns(piece).items() if not states[name].done}


def join_digits(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """The counts of all pieces."""
    return {name: join_counts([part[name] for part in parts]) for name in parts[0]}


def gather(columns: Columns, states: dict[str, Search], piece: Any) -> dict[str, Array]:
    """The numbers of a piece that may be the median."""
    return {name: sharing(y, states[name]) for name, y in columns(piece).items() if not states[name].done}


def join_gathered(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Those of all pieces."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
