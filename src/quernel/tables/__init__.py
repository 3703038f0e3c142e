"""Tables of mixed columns: encoding columns as numbers, and reading files."""

from quernel.tables.column_stats import TableWarning
from quernel.tables.columns import BooleanColumn, DateColumn, NumberColumn, TextColumn, TimeColumn
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import TableError

__all__ = [
    "BooleanColumn",
    "DateColumn",
    "NumberColumn",
    "TableEncoder",
    "TableError",
    "TableWarning",
    "TextColumn",
    "TimeColumn",
]
