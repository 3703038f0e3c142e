"""Class labels as signs for margin losses, and scores as class probabilities.

Two classes make one output, whose positive class is `classes[1]`, with y = -1 or +1; K > 2 classes make K outputs, one
against the rest. Fitted calibrators of scikit-learn are reduced to plain numbers, which is what model files and ONNX
graphs hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from quernel.data import DaskRows, Piece, RowSource, statistics

Array = NDArray[np.floating]
Index = NDArray[np.intp]


def encode_signs(codes: Index, n_columns: int) -> Array:
    """Signs -1 and +1 of class codes 0 ... K-1: shape (n,) for two classes, (n, K) one-vs-rest for more."""
    if n_columns == 1:
        return np.where(codes == 1, 1.0, -1.0)
    return np.asfortranarray(np.where(codes[:, None] == np.arange(n_columns), 1.0, -1.0))


def encode_labels(y: Array, classes: Array) -> Index:
    """Class codes: positions of the labels y in the sorted `classes`.

    A label not in `classes` occurs only in rows of weight 0, so that any valid code will do for it.
    """
    return np.minimum(np.searchsorted(classes, y), len(classes) - 1)


class OneVsRestRows:
    """Row source of files with signs as its target, encoded block by block as they are read.

    `factor` of shape (K,), if given, multiplies the weights of the rows of each class (class_weight).
    """

    def __init__(self, source: RowSource, classes: Array, n_columns: int, factor: Array | None) -> None:
        self.source, self._classes, self._n_columns, self._factor = source, classes, n_columns, factor
        self.n_rows, self.n_columns, self.names = source.n_rows, source.n_columns, source.names
        self.spans, self.weighted = source.spans, source.weighted or factor is not None

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """Yield these blocks, in order, with encoded targets and weights."""
        for piece in self.source.stream(blocks, X=X):
            codes = encode_labels(piece.y, self._classes)
            yield Piece(piece.X, encode_signs(codes, self._n_columns), _scale_weight(codes, piece.weight, self._factor))

    def place(self, k: int) -> str:
        """Where block k comes from, for error messages."""
        return self.source.place(k)


def encode_target(source: Any, classes: Array, n_columns: int, factor: Array | None) -> Any:
    """Encode the labels of out-of-core rows as signs, lazily, and multiply weights by the class factors, if any."""
    if not isinstance(source, DaskRows):
        return OneVsRestRows(source, classes, n_columns, factor)
    chunks = {} if n_columns == 1 else {"new_axis": 1, "chunks": (source.y.chunks[0], (n_columns,))}
    y = source.y.map_blocks(partial(_encode_signs_block, classes, n_columns), dtype=float, **chunks)
    weight = source.weight
    if factor is not None:
        by_class = source.y.map_blocks(partial(_class_factor_block, classes, factor), dtype=float)
        weight = by_class if weight is None else weight * by_class
    rows = DaskRows(source.X, y, weight)
    rows.names = source.names
    return rows


def _encode_signs_block(classes: Array, n_columns: int, y: Array) -> Array:
    return encode_signs(encode_labels(y, classes), n_columns)


def _class_factor_block(classes: Array, factor: Array, y: Array) -> Array:
    return factor[encode_labels(y, classes)]


def _scale_weight(codes: Index, weight: Array | None, factor: Array | None) -> Array | None:
    """weight * factor[class], where None stands for ones; None if both are."""
    if factor is None:
        return weight
    return factor[codes] if weight is None else weight * factor[codes]


def class_weights(source: Any, classes: Array) -> Array:
    """Sum of the sample weights of every class, shape (K,), in one pass over y."""

    def step(piece: Piece) -> Array:
        return np.bincount(encode_labels(piece.y, classes), piece.weight, minlength=len(classes)).astype(float)

    return statistics.map_reduce(source, step, lambda parts: np.sum(parts, axis=0), X=False)


@dataclass(frozen=True)
class Sigmoid:
    """Platt scaling: probability 1 / (1 + exp(slope s + offset)) of a score s."""

    slope: float
    offset: float

    def __call__(self, scores: Array) -> Array:
        """Calibrated probability of each score."""
        return expit(-(self.slope * scores + self.offset))


@dataclass(frozen=True, eq=False)
class Isotonic:
    """Isotonic calibration: linear interpolation of (scores, chances), both increasing; constant beyond the ends."""

    scores: Array
    chances: Array

    def __post_init__(self) -> None:
        if self.scores.shape != self.chances.shape or self.scores.ndim != 1 or np.any(np.diff(self.scores) <= 0):
            raise ValueError(f"an isotonic curve of {self.scores.shape} scores and {self.chances.shape} chances")

    def __call__(self, scores: Array) -> Array:
        """Calibrated probability of each score."""
        return np.interp(scores, self.scores, self.chances)


@dataclass(frozen=True)
class ProbabilityCurves:
    """Calibration curves: one for the second of two classes, or one per class, normalised to sum to one."""

    curves: tuple[Sigmoid | Isotonic, ...]

    @classmethod
    def from_calibrators(cls, calibrators: Any) -> ProbabilityCurves:
        """From the fitted calibrators of a CalibratedClassifierCV."""
        return cls(tuple(_curve(one) for one in calibrators))

    def probabilities(self, scores: Array) -> Array:
        """Class probabilities (n, K) from the decision function, of shape (n,) for two classes or (n, K) for more."""
        if scores.ndim == 1:
            second = self.curves[0](scores)
            return np.column_stack([1 - second, second])
        each = np.column_stack([curve(column) for curve, column in zip(self.curves, scores.T, strict=True)])
        total = each.sum(axis=1, keepdims=True)
        # If all curves give 0, all classes are equally likely.
        return np.where(total > 0, each / np.where(total > 0, total, 1), 1 / len(self.curves))


def _curve(calibrator: Any) -> Sigmoid | Isotonic:
    """Numbers of one fitted calibrator of scikit-learn."""
    if hasattr(calibrator, "a_"):
        return Sigmoid(float(calibrator.a_), float(calibrator.b_))
    return Isotonic(calibrator.X_thresholds_, calibrator.y_thresholds_)
