"""What goes into a model, as ONNX graphs: the columns of a table, encoded, and feature maps phi(x)'u.

Below, n is the number of rows, d of columns, M of random features, P of landmarks and q of quantile levels.

No formula ends in a multiplication by a scalar. onnxruntime would fuse it into the matrix product that follows, as an
attribute in float32, and lose half of the digits: such factors are multiplied into the coefficients instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.adapters import unwrap_frozen
from quernel.features import LandmarkPredictor, Nystroem, PivotedCholesky, PrecomputedFeatures, RandomFeatures
from quernel.kernels import (
    ArcCosine,
    Cauchy,
    Gaussian,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    ShiftInvariantKernel,
    resolve,
)
from quernel.persistence.onnx_graph import (
    PREFIX,
    Graph,
    Tensor,
    absolute,
    add_all,
    cos,
    equal,
    exp,
    hstack,
    is_missing,
    sin,
    sqrt,
    where,
)
from quernel.tables import NumberColumn, TableEncoder, TextColumn
from quernel.tables.columns import CYCLES, Column, Markers, number_markers
from quernel.tables.frames import factorize, open_frame

Array = NDArray[np.floating]
FeatureMap = RandomFeatures | PivotedCholesky | Nystroem | LandmarkPredictor | PrecomputedFeatures


def onnx_inputs(model: Any, table: Any) -> dict[str, NDArray[Any]]:
    """Compute the inputs of the ONNX graph of a model of tables, for the rows of a table.

    Columns are converted as by `predict`, whatever their type: dates and times in any unit and time zone, durations,
    categories, numbers as text.

    Parameters
    ----------
    model : TableModel, TableEncoder, or Pipeline that begins with one
        A `TableModel` is what `quernel.load` returns for a file that `quernel fit` wrote.
    table : pandas or polars data frame, Arrow table, or dict of columns

    Returns
    -------
    dict of column name to array of shape (rows, 1)
        Text as strings, empty where missing; everything else as float64, NaN where missing. It is what `run` of an
        onnxruntime session takes.
    """
    encoder = find_encoder(model)
    if encoder is None:
        raise TypeError(
            f"quernel.onnx_inputs takes a model of tables, as quernel fit makes them; got {type(model).__name__}. The "
            'graph of a model of arrays is fed {"X": X}, of type float64.'
        )
    frame = open_frame(table)
    encoder.check_frame(frame)
    values = {
        column.name: _input_values(column, frame.get(column.name), encoder.markers) for column in encoder.columns_
    }
    return {name: column[:, None] for name, column in values.items()}


def find_encoder(model: Any) -> TableEncoder | None:
    """Return the encoder of the tables that a model predicts from; None if it predicts from arrays."""
    if isinstance(model, Pipeline):
        return find_encoder(model.steps[0][1])
    if isinstance(model, ConformalQuantileRegressor) and len(model.estimators_) == 1:
        return find_encoder(unwrap_frozen(model.estimators_[0]))
    candidates = (model, getattr(model, "encoder", None), getattr(model, "encoder_", None))
    return next((one for one in candidates if isinstance(one, TableEncoder)), None)


def _input_values(column: Column, entries: Any, markers: Markers) -> NDArray[Any]:
    """Return the values of a column, shape (n,), in the type of the graph's input."""
    if not isinstance(column, TextColumn):
        return column.read(entries, markers)
    labels, index = factorize(entries)
    categories = ["" if label in markers.texts and label not in column.categories else label for label in labels]
    return np.array([*categories, ""], dtype=object)[index]  # missing values have index -1, and so the empty string


def declare_columns(graph: Graph, encoder: TableEncoder) -> dict[str, Tensor]:
    """Declare an input for each column that an encoder uses, by its name, (rows, 1): text, or numbers as float64."""
    for name in encoder.inputs:
        if not name or name.startswith(PREFIX):
            raise ValueError(
                f"The input {name!r} cannot be one of a graph: there it must have a name that does not begin with "
                f"{PREFIX!r}. Rename the column, and fit again."
            )
    return {column.name: graph.input(column.name, input_type(column), (None, 1)) for column in encoder.columns_}


def input_type(column: Column) -> type:
    """Return the type of the input of a column."""
    return str if isinstance(column, TextColumn) else float


def encode_table(encoder: TableEncoder, columns: Mapping[str, Tensor]) -> Tensor:
    """Return the encoded matrix (n, width), as `TableEncoder` computes it, from its columns (n, 1) by name."""
    return hstack(
        [part for column in encoder.columns_ for part in _encode_column(columns[column.name], column, encoder)]
    )


def _encode_column(x: Tensor, column: Column, encoder: TableEncoder) -> list[Tensor]:
    """Return the encoded columns of one column of the table, x of shape (n, 1).

    Missing values are imputed by `column.fill`; a column that is `flagged` adds an indicator of them.
    """
    if isinstance(column, TextColumn):
        return [_encode_text(x, column, encoder.missing_markers(column))]
    if type(column) is NumberColumn:
        for number in number_markers(encoder.missing):  # missing-value markers that are numbers, such as -999
            x = where(equal(x, number), np.nan, x)
    missing = is_missing(x)
    filled = where(missing, column.fill, x)
    flag = [missing.astype(float)] if column.flagged else []
    is_date = column.kind == "date"
    elapsed = filled - column.start if is_date else filled
    angles = [2 * np.pi / CYCLES[cycle] * elapsed for cycle in column.cycles]
    waves = [function(angle) for angle in angles for function in (sin, cos)]
    return [elapsed / CYCLES["year"] if is_date else filled, *waves, *flag]


def _encode_text(text: Tensor, column: TextColumn, markers: tuple[str, ...]) -> Tensor:
    """Return the one-hot encoding of a text column, (n, width), as a lookup in `column.codes`.

    Its first rows are those of the known categories; then come one for other text and one for missing values, to which
    the missing-value markers belong.
    """
    n, graph = len(column.categories), text.graph
    rows = dict.fromkeys(markers, n + 1) | column.places
    row = graph.lookup(text, rows, default=n)
    return graph.constant(column.codes).take(graph.apply("Squeeze", row, np.array([1])), axis=0)


def feature_map_dot(feature_map: FeatureMap, x: Tensor, coef: Array) -> Tensor:
    """Return Phi(x) u, shape (n, q), for coefficients u of shape (M, q) or, with landmarks, (P, q).

    Maps with landmarks need no features: phi(x)'u is a sum of kernel values K(x, p) times weights, found here.
    """
    if isinstance(feature_map, PrecomputedFeatures):
        return x @ coef
    kernel = resolve(feature_map.kernel)
    if isinstance(feature_map, PivotedCholesky):  # phi(x)'u = K(x, P) L^-T u: the factor L need not be exported
        return _kernel_sum(kernel, x, feature_map.landmarks_, np.linalg.solve(feature_map.factor_.T, coef))
    if isinstance(feature_map, Nystroem):
        feature_map, coef = LandmarkPredictor.from_nystroem(feature_map, coef)
    if isinstance(feature_map, LandmarkPredictor):
        return _kernel_sum(kernel, x, feature_map.landmarks_, coef)
    terms = []
    for term, (_, part) in enumerate(kernel.summands):
        own = feature_map.terms_ == term  # the features of this summand of the kernel
        factor, features = random_features(part, x, feature_map.frequencies_[:, own], feature_map.phases_[own])
        terms.append(features @ (factor * feature_map.weights_[own, None] * coef[own]))
    return add_all(terms)


def _kernel_sum(kernel: Kernel, x: Tensor, landmarks: Array, weights: Array) -> Tensor:
    """Return K(x, P) w, shape (n, q), for weights w of shape (P, q); K is a sum of kernels c_k K_k."""
    return add_all([kernel_matrix(part, x, landmarks) @ (c * weights) for c, part in kernel.summands])


def random_features(kernel: Kernel, x: Tensor, frequencies: Array, phases: Array) -> tuple[float, Tensor]:
    """Return the random features of a kernel as (factor, tensor of shape (n, M)), without their weights.

    sqrt(2) cos(w'x + b) for shift-invariant kernels (Rahimi and Recht 2007), rectified linear or step units for the
    arc-cosine kernels.
    """
    if isinstance(kernel, ShiftInvariantKernel):
        return np.sqrt(2), cos(x @ frequencies + phases)
    if type(kernel) is ArcCosine:
        unit = x @ frequencies + phases
        return np.sqrt(2), unit.maximum(0) if kernel.order == 1 else (unit > 0.0).astype(float)
    raise ValueError(_unsupported_message(kernel))


def kernel_matrix(kernel: Kernel, x: Tensor, landmarks: Array) -> Tensor:
    """Return the kernel matrix K(x_i, p_k) between rows and landmarks, shape (n, P)."""
    if type(kernel) is Linear:
        return x @ landmarks.T
    if type(kernel) not in (Gaussian, Laplacian, Matern, Cauchy):  # not isinstance: a subclass may have another formula
        raise ValueError(_unsupported_message(kernel))
    assert isinstance(kernel, ShiftInvariantKernel)
    difference = _differences(x, landmarks) / kernel.scale(landmarks.shape[1])
    if type(kernel) is Laplacian:
        return exp(-1.0 * absolute(difference).sum(axis=2))
    squared = (difference * difference).sum(axis=2)
    if type(kernel) is Gaussian:
        return exp(-0.5 * squared)
    if type(kernel) is Cauchy:
        return 1.0 / (1.0 + squared)
    assert isinstance(kernel, Matern)
    s = np.sqrt(2 * kernel.nu) * sqrt(squared)
    decay = exp(-1.0 * s)
    if kernel.nu == 0.5:
        return decay
    return (1.0 + s if kernel.nu == 1.5 else 1.0 + s + s * s / 3.0) * decay


def _differences(x: Tensor, points: Array) -> Tensor:
    """Return x_i - p_k for all pairs, shape (n, P, d)."""
    return x.graph.apply("Unsqueeze", x, np.array([1])) - points


def _unsupported_message(kernel: Kernel) -> str:
    waves = isinstance(kernel, ShiftInvariantKernel | ArcCosine)
    return f"The kernel {type(kernel).__name__} has no formula for ONNX. Use " + (
        "random features (n_components=500, say)." if waves else "another one of quernel's own kernels."
    )
