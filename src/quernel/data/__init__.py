"""Data access: raw rows from arrays, files or Dask, and design matrices in feature space, processed block by block.

Two layers. A *row source* holds raw rows, X (n, d), y and weights: `ArrayRows` in memory, `MemmapRows` and
`ParquetRows` out of core, `DaskRows` on a cluster. A *design matrix* maps them into feature space, Phi (n, M), and is
all that the objective and the solvers know of data: `InMemoryDesign`, `StreamedDesign`, `DaskDesign`. What these have
in common is written down in `protocols.DesignMatrix`. What a solver stores about the rows of a block is a `BlockState`,
a dict of arrays by name.
"""

from typing import TYPE_CHECKING, Any

from quernel._machine import available_memory, blocks
from quernel.data.dask import DaskRows
from quernel.data.dask_design import DaskDesign
from quernel.data.design_matrix import Block, BlockState, InMemoryDesign, RowState, discard, memory_budget, sum_tuples
from quernel.data.protocols import DesignMatrix, OutOfCoreDesign, RowStateLike
from quernel.data.sources import ArrayRows, MappedRows, MemmapRows, Piece, RowsError, RowSource, SelectedRows
from quernel.data.streaming import StreamedDesign

if TYPE_CHECKING:
    from quernel.data.parquet import ParquetRows

__all__ = [
    "ArrayRows",
    "Block",
    "BlockState",
    "DaskDesign",
    "DaskRows",
    "DesignMatrix",
    "InMemoryDesign",
    "MappedRows",
    "MemmapRows",
    "OutOfCoreDesign",
    "ParquetRows",
    "Piece",
    "RowSource",
    "RowState",
    "RowStateLike",
    "RowsError",
    "SelectedRows",
    "StreamedDesign",
    "available_memory",
    "blocks",
    "discard",
    "memory_budget",
    "sum_tuples",
]


def __getattr__(name: str) -> Any:
    """Import `ParquetRows`, which needs pyarrow, when it is first used."""
    if name != "ParquetRows":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from quernel.data.parquet import ParquetRows
    except ImportError as error:
        raise ImportError("ParquetRows needs pyarrow, which is not installed. Run: pip install pyarrow") from error
    return ParquetRows
