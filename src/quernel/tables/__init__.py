"""Tables of mixed columns: reading files, encoding columns as numbers, and models that predict from tables."""

from quernel.tables.columns import BooleanColumn, DateColumn, NumberColumn, TextColumn, TimeColumn
from quernel.tables.encoder import Learnt, TableEncoder, as_arrow, learn_encoder
from quernel.tables.model import TableModel, UnknownWordsWarning
from quernel.tables.multi_file import in_batches, read
from quernel.tables.reading import TableError
from quernel.tables.streaming_training import StreamedTraining, TableRows, prepare_streamed
from quernel.tables.training_data import Training, prepare

__all__ = [
    "BooleanColumn",
    "DateColumn",
    "Learnt",
    "NumberColumn",
    "StreamedTraining",
    "TableEncoder",
    "TableError",
    "TableModel",
    "TableRows",
    "TextColumn",
    "TimeColumn",
    "Training",
    "UnknownWordsWarning",
    "as_arrow",
    "in_batches",
    "learn_encoder",
    "prepare",
    "prepare_streamed",
    "read",
]
