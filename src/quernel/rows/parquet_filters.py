"""Which rows of an Arrow table to keep."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from quernel.rows.sources import RowsError


def expression(filters: Any) -> Any:
    """A pyarrow expression, from one or from (lists of) lists of (column, operator, value)."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if filters is None or isinstance(filters, pc.Expression):
        return filters
    try:
        return pq.filters_to_expression(filters)
    except Exception as error:  # whatever it stumbles over: the filters are not of that form
        raise RowsError(
            "filters must be a pyarrow expression or a list of (column, operator, value), such as "
            f"[('year', '>=', 2020)]; got {filters!r}: {error}"
        ) from error


def mentioned(kept: Any, names: Sequence[str]) -> tuple[str, ...]:
    """The names that stand in an expression; perhaps also one that only looks like a part of it, which does no harm."""
    text = str(kept)
    return tuple(name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text))


def keep(table: Any, kept: Any) -> Any:
    """The rows for which the expression is true, in their order (`Table.filter` would start threads)."""
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    chosen = acero.Declaration("filter", acero.FilterNodeOptions(kept))
    return acero.Declaration.from_sequence([source, chosen]).to_table(use_threads=False)
