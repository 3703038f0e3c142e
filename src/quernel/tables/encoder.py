"""TableEncoder: encode a table of mixed columns as a numeric matrix, consistently between fit and predict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_weight
from quernel.tables.column_stats import OPTIONS, Alarm, choose_encoding, find_leak, give_advice
from quernel.tables.columns import Column, Markers, TextColumn, row_folds
from quernel.tables.frames import Frame, TableError, open_frame, suggest_name

Array = NDArray[np.floating]


class TableEncoder(TransformerMixin, BaseEstimator):
    """Encode a table of mixed columns as a numeric matrix: numbers, categories, dates, times and missing values.

    Takes data frames of pandas and polars, Arrow tables and NumPy arrays, and encodes them alike:

    - numbers, durations (in seconds) and booleans as they are, missing values by the median, with an indicator;
    - categories by a column for each frequent one, one for all others and one for missing values; more than 30
      categories, if `fit` is given y, by the mean of y over the rows of each (out of fold for the training rows);
    - dates by a trend in years, and sine and cosine of the cycles of day, week and year that the rows span;
    - times of day by seconds since midnight, with their sine and cosine;
    - text that holds nothing but numbers, dates or times, as these.

    Columns that say nothing (one value everywhere), that identify rows (a different text or whole number in each), or
    that hold nothing that can be encoded are left out; `notes_` names them.

    Parameters
    ----------
    categorical : sequence of str
        Columns whose numbers, booleans or dates in text are categories.
    keep : sequence of str
        Columns that look like identifiers of rows and are to be used all the same.
    missing : sequence of str
        Missing-value markers besides NA, NULL and the like. Those that are numbers also mark numeric columns.

    Attributes
    ----------
    columns_ : tuple of Column
        The encoding of every column that is used, in the order of the encoded matrix.
    notes_ : tuple of str
        Sentences for the user: columns that were left out, and what is unusual about others.
    alarms_ : tuple of str
        Those of them that estimators warn of: columns that identify rows, or that tell the target.
    dropped_ : dict of str
        By column that was left out, the reason.
    n_features_in_, feature_names_in_ : as in scikit-learn

    Examples
    --------
    >>> import pandas as pd
    >>> from quernel import TableEncoder
    >>> frame = pd.DataFrame({"size": [50.0, None, 80.0] * 5, "place": ["north", "south", "south"] * 5})
    >>> encoder = TableEncoder().fit(frame)
    >>> encoder.get_feature_names_out().tolist()
    ['size', 'size missing', 'place = north', 'place = south']
    >>> encoder.transform(frame)[1].tolist()
    [65.0, 1.0, 0.0, 1.0]
    """

    def __init__(
        self, *, categorical: Sequence[str] = (), keep: Sequence[str] = (), missing: Sequence[str] = ()
    ) -> None:
        self.categorical = categorical
        self.keep = keep
        self.missing = missing

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the encoding of every column.

        Parameters
        ----------
        X : table of shape (n, d)
        y : array-like of shape (n,) or None
            The target, numbers or labels, for columns of many categories.
        sample_weight : array-like of shape (n,) or None
            Weights of the rows in means of the target.

        Returns
        -------
        self : the fitted encoder
        """
        frame = open_frame(X)
        if not frame.n_rows or not frame.names:
            what, shape = "sample" if frame.names else "feature", (frame.n_rows, len(frame.names))
            raise TableError(f"Found array with 0 {what}(s) ({shape=}) while a minimum of 1 is required.")
        for parameter in ("categorical", "keep", "missing"):
            given = getattr(self, parameter)
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise TableError(f"{parameter} must be a list of names; got {given!r}.")
            if parameter != "missing" and (unknown := [name for name in given if name not in frame.names]):
                hint = suggest_name(unknown[0], frame.names)
                raise TableError(f"There is no column {unknown[0]!r} for {parameter}. {hint}")
        targets = None if y is None else _read_targets(y, frame.n_rows)
        weight = None if sample_weight is None else check_weight(sample_weight, frame.n_rows)
        found = {name: self._fit_column(frame, name, targets, weight, name in self.keep) for name in frame.names}
        if all(isinstance(one, str) for one, _ in found.values()):  # a column that counts is better than none
            numbers = [name for name in frame.names if frame.get(name).kind == "number"]
            found |= {name: self._fit_column(frame, name, targets, weight, keep=True) for name in numbers}
        notes = [note for _, several in found.values() for note in several]
        self.columns_ = tuple(one for one, _ in found.values() if not isinstance(one, str))
        if not self.columns_:
            few = "There is one sample only (n_samples=1). " if frame.n_rows == 1 else ""
            raise TableError(f"{few}The table has no usable input column. {' '.join(notes)}")
        self.dropped_ = {name: str(one) for name, (one, _) in found.items() if isinstance(one, str)}
        notes += give_advice(frame.names, targets[:, 0] if targets is not None and targets.shape[1] == 1 else None)
        self.notes_ = tuple(map(str, notes))  # plain text, as model files hold it
        self.alarms_ = tuple(str(note) for note in notes if isinstance(note, Alarm))
        self.n_features_in_ = len(frame.names)
        self.__dict__.pop("feature_names_in_", None)
        if frame.named:
            self.feature_names_in_: NDArray[np.object_] = np.array(frame.names, dtype=object)
        return self

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> Array:
        """Fit the encoder and encode the training rows, with means of the target over rows of other folds.

        `transform` of the same rows differs in columns of many categories: it uses all rows, as for new ones.
        """
        return self.fit(X, y, sample_weight).encode(X, 0)

    def transform(self, X: Any) -> Array:
        """Encode a table, shape (n, width); columns are found by name, and others are ignored.

        Categories that were not seen in `fit` count as other ones; infinite numbers as missing.
        """
        check_is_fitted(self)
        return self.encode(X)

    def encode(self, X: Any, first_row: int | None = None) -> Array:
        """Encode a table.

        Rows that the encoder was fitted to are encoded as `fit_transform` does if `first_row` is given: the number of
        the first one among all rows of the fit, on which their folds depend.
        """
        frame, known = open_frame(X, self.inputs), self._names_in
        if frame.named != hasattr(self, "feature_names_in_") and len(frame.names) == len(known):
            given, get = dict(zip(known, frame.names, strict=True)), frame.get  # one has no names: by position
            frame = Frame(known, lambda name: get(given[name]), frame.n_rows)
        self.check_frame(frame)
        folds = None if first_row is None else row_folds(np.arange(frame.n_rows) + first_row)
        markers = self.markers
        blocks = [column.encode(column.read(frame.get(column.name), markers), folds) for column in self.columns_]
        return np.concatenate(blocks, axis=1)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the encoded columns."""
        check_is_fitted(self)
        if input_features is not None and list(input_features) != self._names_in:
            raise ValueError("input_features is not equal to feature_names_in_: leave it out, or give those names.")
        return np.array(self.names, dtype=object)

    @property
    def inputs(self) -> list[str]:
        """Names of the columns that are used, which a table must have."""
        return [column.name for column in self.columns_]

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        return [name for column in self.columns_ for name in column.names]

    @property
    def cyclic(self) -> NDArray[np.bool_]:
        """Which encoded columns are cyclic (sines and cosines of times), so that no value is an extrapolation."""
        waves = [wave for column in self.columns_ for wave in getattr(column, "waves", ())]
        return np.isin(self.names, waves)

    @property
    def markers(self) -> Markers:
        """Missing-value markers."""
        return Markers(tuple(self.missing))

    def missing_markers(self, column: Column) -> tuple[str, ...]:
        """Return the text that marks missing values of a column, without text that was a category in training."""
        categories = column.categories if isinstance(column, TextColumn) else ()
        return tuple(sorted(self.markers.texts.difference(categories)))

    def check_frame(self, table: Any, of: str = "The table") -> None:
        """Raise TableError if a table does not have the columns and types of the encoder."""
        frame = open_frame(table, self.inputs)
        if not frame.named and len(frame.names) != self.n_features_in_:
            raise TableError(
                f"X has {len(frame.names)} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input: give the columns that it was fitted to."
            )
        for column in self.columns_:
            known = column.name in frame.names
            if known and column.can_read(entries := frame.get(column.name)):
                continue
            fault = f"is missing. {suggest_name(column.name, frame.names)}"
            if known:
                fault = f"holds {entries.type_name}, but the model was fitted to {column.kind}s."
            raise TableError(f"{of} does not fit the model: column {column.name!r} {fault}")

    def _fit_column(
        self, frame: Frame, name: str, targets: Array | None, weight: Array | None, keep: bool
    ) -> tuple[Column | str, list[str]]:
        """Choose the encoding of a column and learn it; return it, or the reason to leave it out, and notes."""
        entries, markers = frame.get(name), self.markers
        column, remarks = choose_encoding(
            name, entries, markers, categorical=name in self.categorical, keep=keep, has_target=targets is not None
        )
        if isinstance(column, str):
            sentence = f"Column {name!r} is left out: {'. It '.join([column, *remarks])}."
            return column, [Alarm(sentence) if isinstance(column, Alarm) else sentence]
        notes = [f"Column {name!r} {remark}." for remark in remarks]
        if targets is not None:
            values = column.read(entries, markers)
            if isinstance(column, TextColumn) and len(column.categories) > OPTIONS.max_one_hot:
                folds = row_folds(np.arange(frame.n_rows)) if frame.folds is None else frame.folds
                column = column.with_target(values, targets, weight, folds)
            if targets.shape[1] == 1:
                notes += find_leak(name, values, targets[:, 0])
        return column, notes

    @property
    def _names_in(self) -> list[str]:
        return list(getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)]))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags


def _read_targets(y: Any, n_rows: int) -> Array:
    """Return numbers as one column, shape (n, 1); of labels, an indicator of each class but the first."""
    labels = np.asarray(y).ravel()
    if len(labels) != n_rows:
        raise TableError(f"X has {n_rows} rows but y has shape {np.shape(y)}: give one entry per row.")
    if labels.dtype.kind in "biuf":
        return labels.astype(float)[:, None]
    text = labels.astype(str)
    classes = np.unique(text)
    return (text[:, None] == classes[min(1, len(classes) - 1) :]).astype(float)
