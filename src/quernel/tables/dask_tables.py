"""DaskTable: Parquet files read by the workers of a Dask cluster; no row is sent to this process.

Every worker must see the files under the same paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from quernel.data.dask import DaskRows
from quernel.data.sources import Piece
from quernel.tables.encoder import TableEncoder
from quernel.tables.parquet_table import REDUCE_SIZE, Map, ParquetTable, Reduce, RowGroup, reduce_stream
from quernel.tables.streaming_training import StripSizes, encode_batch, needed_columns
from quernel.tables.training_data import ReadOptions

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

LOCAL = "local"
# Seconds in which a scheduler must answer.
TIMEOUT = 5


@contextmanager
def connect(address: str) -> Iterator[Client]:
    """Yield a client of the cluster at this address or, for "local", of one on this machine, closed at the end."""
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
        client = Client(address, timeout=TIMEOUT)
    except (OSError, ValueError, TypeError) as error:
        raise ConnectionError(
            f"No Dask scheduler answers at {address!r}. Give the address of a running one, such as "
            f"tcp://127.0.0.1:8786, or {LOCAL!r} to start one here."
        ) from error
    with client:
        yield client


class DaskTable:
    """A `ParquetTable` whose row groups are read by the workers of a cluster."""

    def __init__(self, table: ParquetTable, client: Client) -> None:
        self.table, self.client = table, client
        self.groups, self.schema, self.n_rows = table.groups, table.schema, table.n_rows

    def map_reduce(self, step: Map, reduce: Reduce, columns: Sequence[str]) -> Any:
        """Apply `step` to every batch and merge the results by `reduce`, on the workers, in a tree."""
        held = [
            self.client.submit(
                map_reduce_group, self.table.select_group(group), step, reduce, list(columns), pure=False
            )
            for group in self.groups
        ]
        while len(held) > 1:
            parts = [held[start : start + REDUCE_SIZE] for start in range(0, len(held), REDUCE_SIZE)]
            held = [self.client.submit(reduce, part, pure=False) for part in parts]
        return held[0].result()


def dask_rows(table: DaskTable, encoder: TableEncoder, options: ReadOptions, sizes: StripSizes) -> DaskRows:
    """Return the encoded rows as Dask arrays, a chunk for every row group, computed by the workers."""
    import dask.array as da
    from dask import delayed

    n_rows: dict[RowGroup, int] = {}
    for (group, _), size in sizes.items():
        n_rows[group] = n_rows.get(group, 0) + size
    encode, select = delayed(encode_group, pure=True), delayed(_select, pure=True)
    chunks = [
        (encode(table.table.select_group(group), encoder, options), n_rows[group])
        for group in table.groups
        if n_rows[group]
    ]

    def concatenate(place: int, *shape: int) -> da.Array:
        return da.concatenate(
            [da.from_delayed(select(piece, place), (size, *shape), dtype=float) for piece, size in chunks]
        )

    weight = None if options.weights is None else concatenate(2)
    return DaskRows(concatenate(0, len(encoder.names)), concatenate(1), weight)


# What follows runs on the workers.


def map_reduce_group(table: ParquetTable, step: Map, reduce: Reduce, columns: list[str]) -> Any:
    """Apply `step` to the batches of a table of one row group, and merge the results."""
    return reduce_stream(map(step, table.iter_batches(columns)), reduce)


def encode_group(table: ParquetTable, encoder: TableEncoder, options: ReadOptions) -> Piece:
    """Encode a table of one row group."""
    columns = needed_columns(encoder, options, X=True)
    pieces = [encode_batch(batch, encoder, options) for batch in table.iter_batches(columns)]
    joined: list[Any] = [None if part[0] is None else np.concatenate(part) for part in zip(*pieces, strict=True)]
    return Piece(*joined)


def _select(piece: Piece, place: int) -> Any:
    return piece[place]
