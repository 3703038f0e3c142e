"""Where the rows live: raw rows, and rows lifted into feature space, met only block by block."""

from quernel.features.blocks import blocks
from quernel.rows.arrays import ArrayRows
from quernel.rows.dask import DaskRows
from quernel.rows.distributed import DistributedRows
from quernel.rows.lifted import Block, BlockMemory, Elsewhere, LiftedRows, Memory, allowance, nothing, total
from quernel.rows.memmap import MemmapRows
from quernel.rows.memory import available_memory
from quernel.rows.parquet import ParquetRows
from quernel.rows.selected import SelectedRows
from quernel.rows.sources import Piece, RowsError, RowSource
from quernel.rows.streamed import StreamedRows

__all__ = [
    "ArrayRows",
    "Block",
    "BlockMemory",
    "DaskRows",
    "DistributedRows",
    "Elsewhere",
    "LiftedRows",
    "MemmapRows",
    "Memory",
    "ParquetRows",
    "Piece",
    "RowSource",
    "RowsError",
    "SelectedRows",
    "StreamedRows",
    "allowance",
    "available_memory",
    "blocks",
    "nothing",
    "total",
]
