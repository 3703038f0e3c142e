"""Tables of mixed columns: reading files, encoding columns as numbers, and models that predict from tables."""

from quernel.tables.columns import BooleanColumn, DateColumn, NumberColumn, TextColumn, TimeColumn
from quernel.tables.encoder import EncoderFit, TableEncoder, as_arrow, fit_encoder
from quernel.tables.model import TableModel, UnseenCategoriesWarning
from quernel.tables.multi_file import in_batches, read
from quernel.tables.reading import TableError
from quernel.tables.streaming_training import AnyTrainingData, StreamedTrainingData, TableRows, prepare_streamed
from quernel.tables.training_data import ReadOptions, TrainingData, prepare

__all__ = [
    "AnyTrainingData",
    "BooleanColumn",
    "DateColumn",
    "EncoderFit",
    "NumberColumn",
    "ReadOptions",
    "StreamedTrainingData",
    "TableEncoder",
    "TableError",
    "TableModel",
    "TableRows",
    "TextColumn",
    "TimeColumn",
    "TrainingData",
    "UnseenCategoriesWarning",
    "as_arrow",
    "fit_encoder",
    "in_batches",
    "prepare",
    "prepare_streamed",
    "read",
]
