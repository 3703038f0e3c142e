"""Rows of Parquet files that the workers of a Dask cluster read and encode; no row is sent to this process.

Every worker must see the files under the same paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from quernel.data.dask import DaskRows
from quernel.data.sources import Piece
from quernel.tables.encoded_rows import StripSizes, encode_batch, join_pieces, needed_columns
from quernel.tables.encoder import TableEncoder
from quernel.tables.parquet_table import ParquetTable, RowGroup
from quernel.tables.read_options import ReadOptions

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
        raise ImportError(
            "--dask needs Dask, which is not installed. Run: pip install 'dask[array,distributed]'"
        ) from error
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


def dask_rows(table: ParquetTable, encoder: TableEncoder, options: ReadOptions, sizes: StripSizes) -> DaskRows:
    """Return the encoded rows as Dask arrays, a chunk for every row group, computed by the workers."""
    import dask.array as da
    from dask import delayed

    n_rows: dict[RowGroup, int] = {}
    for (group, _), size in sizes.items():
        n_rows[group] = n_rows.get(group, 0) + size
    encode, select = delayed(encode_group, pure=True), delayed(_select, pure=True)
    firsts = dict(zip(n_rows, accumulate(n_rows.values(), initial=0), strict=False))
    chunks = [
        (encode(table.select_group(group), encoder, options, firsts[group]), n_rows[group])
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


def encode_group(table: ParquetTable, encoder: TableEncoder, options: ReadOptions, first_row: int) -> Piece:
    """Encode a table of one row group, whose first row with a target has this number among all."""
    pieces: list[Piece] = []
    for batch in table.iter_batches(needed_columns(encoder, options, X=True)):
        pieces.append(encode_batch(batch, encoder, options, first_row))
        first_row += len(pieces[-1].y)
    return join_pieces(pieces)


def _select(piece: Piece, place: int) -> Any:
    return piece[place]
