"""Tables of mixed columns: encoding columns as numbers, and reading files."""

from quernel.tables.column_stats import TableWarning
from quernel.tables.columns import NumericColumn, TextColumn
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import TableError

__all__ = [
    "NumericColumn",
    "TableEncoder",
    "TableError",
    "TableWarning",
    "TextColumn",
]
