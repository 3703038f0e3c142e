"""Tables of files read by the workers of a Dask cluster; no row is sent to this process.

Every worker must see the files under the same paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from quernel.data.dask import DaskRows
from quernel.data.sources import Piece
from quernel.tables.encoder import TableEncoder
from quernel.tables.parquet_table import JOINED, Group, ParquetTable, joined_as_they_come
from quernel.tables.streaming_training import Roles, encoded, needed_columns

LOCAL = "local"
# Seconds in which a scheduler must answer.
PATIENCE = 5


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of the cluster at this address or, for "local", of one on this machine that ends with the block."""
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ImportError("--dask needs Dask, which is not installed: pip install 'quernel[dask]'.") from error
    if address == LOCAL:
        with (
            LocalCluster(host="127.0.0.1", processes=True, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            yield client
        return
    try:
        client = Client(address, timeout=PATIENCE)
    except (OSError, ValueError, TypeError) as error:
        raise ConnectionError(
            f"No Dask scheduler answers at {address!r}. Give the address of a running one, such as "
            f"tcp://127.0.0.1:8786, or {LOCAL!r} to start one here."
        ) from error
    with client:
        yield client


class ClusterTable:
    """A `ParquetTable` whose row groups are read by the workers of a cluster."""

    def __init__(self, table: ParquetTable, client: Any) -> None:
        self.table, self.client = table, client
        self.groups, self.schema, self.n_rows = table.groups, table.schema, table.n_rows

    def fold(self, step: Callable[[Any], Any], join: Callable[[list[Any]], Any], columns: Sequence[str]) -> Any:
        """The step's answers for all slabs, joined where they are, in a tree."""
        held = [
            self.client.submit(fold_group, self.table.of(group), step, join, list(columns), pure=False)
            for group in self.groups
        ]
        while len(held) > 1:
            parts = [held[start : start + JOINED] for start in range(0, len(held), JOINED)]
            held = [self.client.submit(join, part, pure=False) for part in parts]
        return held[0].result()


def cluster_rows(
    table: ClusterTable, encoder: TableEncoder, roles: Roles, sizes: dict[tuple[Group, int], int]
) -> DaskRows:
    """The rows, a chunk for every row group, encoded on the workers."""
    import dask.array as da
    from dask import delayed

    kept: dict[Group, int] = {}
    for (group, _), size in sizes.items():
        kept[group] = kept.get(group, 0) + size
    make, take = delayed(encode_group, pure=True), delayed(_part, pure=True)
    chunks = [(make(table.table.of(group), encoder, roles), kept[group]) for group in table.groups if kept[group]]

    def side_by_side(place: int, *shape: int) -> Any:
        return da.concatenate(
            [da.from_delayed(take(piece, place), (size, *shape), dtype=float) for piece, size in chunks]
        )

    weight = None if roles.weights is None else side_by_side(2)
    return DaskRows(side_by_side(0, len(encoder.names)), side_by_side(1), weight)


# What follows runs on the workers.


def fold_group(
    table: ParquetTable, step: Callable[[Any], Any], join: Callable[[list[Any]], Any], columns: list[str]
) -> Any:
    """The step's answers for the slabs of a table of one group, joined."""
    return joined_as_they_come(map(step, table.slabs(columns)), join)


def encode_group(table: ParquetTable, encoder: TableEncoder, roles: Roles) -> Piece:
    """The numbers of a table of one group."""
    columns = needed_columns(encoder, roles, X=True)
    parts = zip(*(encoded(slab, encoder, roles) for slab in table.slabs(columns)), strict=True)
    return Piece(*(None if part[0] is None else np.concatenate(part) for part in parts))


def _part(piece: Piece, place: int) -> Any:
    return piece[place]
