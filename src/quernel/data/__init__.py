"""Where the rows live: raw rows, and rows lifted into feature space, met only block by block."""

from quernel.data.dask import DaskRows
from quernel.data.dask_design import DaskDesign
from quernel.data.design_matrix import (
    Block,
    BlockState,
    InMemoryDesign,
    RemoteStub,
    RowState,
    memory_budget,
    nothing,
    total,
)
from quernel.data.memmap import MemmapRows
from quernel.data.memory import available_memory
from quernel.data.parquet import ParquetRows
from quernel.data.sources import ArrayRows, Piece, RowsError, RowSource, SelectedRows
from quernel.data.streaming import StreamedDesign
from quernel.features.blocks import blocks

__all__ = [
    "ArrayRows",
    "Block",
    "BlockState",
    "DaskDesign",
    "DaskRows",
    "InMemoryDesign",
    "MemmapRows",
    "ParquetRows",
    "Piece",
    "RemoteStub",
    "RowSource",
    "RowState",
    "RowsError",
    "SelectedRows",
    "StreamedDesign",
    "available_memory",
    "blocks",
    "memory_budget",
    "nothing",
    "total",
]
