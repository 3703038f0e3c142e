"""Data access: raw rows from arrays, files or Dask, and design matrices in feature space, processed block by block.

Two layers. A *row source* holds raw rows, X (n, d), y and weights: `ArrayRows` in memory, `MemmapRows` and
`ParquetRows` out of core, `DaskRows` on a cluster. A *design matrix* maps them into feature space, Phi (n, M), and is
all that the objective and the solvers know of data: `InMemoryDesign`, `StreamedDesign`, `DaskDesign`. What these have
in common is written down in `protocols.DesignMatrix`. What a solver stores about the rows of a block is a `BlockState`,
a dict of arrays by name.
"""

from quernel._machine import available_memory, blocks
from quernel.data.dask import DaskRows
from quernel.data.dask_design import DaskDesign
from quernel.data.design_matrix import Block, BlockState, InMemoryDesign, RowState, discard, memory_budget, sum_tuples
from quernel.data.parquet import ParquetRows
from quernel.data.protocols import DesignMatrix, OutOfCoreDesign, RowStateLike
from quernel.data.sources import ArrayRows, MemmapRows, Piece, RowsError, RowSource, SelectedRows, ShiftedRows
from quernel.data.streaming import StreamedDesign

__all__ = [
    "ArrayRows",
    "Block",
    "BlockState",
    "DaskDesign",
    "DaskRows",
    "DesignMatrix",
    "InMemoryDesign",
    "MemmapRows",
    "OutOfCoreDesign",
    "ParquetRows",
    "Piece",
    "RowSource",
    "RowState",
    "RowStateLike",
    "RowsError",
    "SelectedRows",
    "ShiftedRows",
    "StreamedDesign",
    "available_memory",
    "blocks",
    "discard",
    "memory_budget",
    "sum_tuples",
]
