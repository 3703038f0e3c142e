"""Tables with columns of any kind: read from files, turned into numbers, predicted from."""

from quernel.tables.columns import BooleanColumn, DateColumn, NumberColumn, TextColumn, TimeColumn
from quernel.tables.encoder import Learnt, TableEncoder, as_arrow, learn_encoder
from quernel.tables.model import TableModel
from quernel.tables.reading import TableError
from quernel.tables.several import in_batches, read
from quernel.tables.strangers import UnknownWordsWarning
from quernel.tables.streaming import StreamedTraining, TableRows, prepare_streamed
from quernel.tables.training import Training, prepare

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
