"""What goes into a model, as ONNX graphs: the columns of a table, encoded, and feature maps phi(x)'u.

Below, n is the number of rows, d of columns, M of random features, P of landmarks and q of quantile levels.

No formula ends in a multiplication by a scalar. onnxruntime would fuse it into the matrix product that follows, as an
attribute in float32, and lose half of the digits: such factors are multiplied into the coefficients instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import cheb2poly
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
    PeriodicSpline,
    ShiftInvariantKernel,
    resolve,
)
from quernel.kernels.spline import NEAREST, OPTIONS, TINY, Pair, Power, direct_coefficients, expansion
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
    log,
    nearest_integer,
    sin,
    sqrt,
    where,
)
from quernel.tables import DateColumn, NumberColumn, TableEncoder, TextColumn, TimeColumn
from quernel.tables.columns import CYCLES, DAY, Column
from quernel.tables.frames import factorize, open_frame
from quernel.tables.missing_values import Markers, number_markers

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
    if isinstance(column, DateColumn):
        return [*_encode_dates(column, filled), *flag]
    if isinstance(column, TimeColumn):
        angle = 2 * np.pi / DAY * filled
        return [filled, sin(angle), cos(angle), *flag]
    return [filled, *flag]


def _encode_text(text: Tensor, column: TextColumn, markers: tuple[str, ...]) -> Tensor:
    """Return the one-hot encoding of a text column, (n, width), as a lookup in `column.codes`.

    Its first rows are those of the known categories; then come one for other text and one for missing values, to which
    the missing-value markers belong.
    """
    n, graph = len(column.categories), text.graph
    rows = dict.fromkeys(markers, n + 1) | column.places
    row = graph.lookup(text, rows, default=n)
    return graph.constant(column.codes).take(graph.apply("Squeeze", row, np.array([1])), axis=0)


def _encode_dates(column: DateColumn, time: Tensor) -> list[Tensor]:
    """Return the trend in years, then sine and cosine of every cycle, each (n, 1), from seconds since 1970."""
    elapsed = time - column.start
    angles = [2 * np.pi / CYCLES[cycle] * elapsed for cycle in column.cycles]
    return [elapsed / CYCLES["year"], *(function(angle) for angle in angles for function in (sin, cos))]


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
    arc-cosine kernels, and the spline kernel of half the order, centred at the frequencies, for periodic splines.
    """
    if isinstance(kernel, ShiftInvariantKernel):
        return np.sqrt(2), cos(x @ frequencies + phases)
    if type(kernel) is ArcCosine:
        unit = x @ frequencies + phases
        return np.sqrt(2), unit.maximum(0) if kernel.order == 1 else (unit > 0.0).astype(float)
    if type(kernel) is PeriodicSpline:
        return 1.0, periodic_spline(kernel.order / 2, _differences(x, frequencies.T), NEAREST).prod(axis=2)
    raise ValueError(_unsupported_message(kernel))


def kernel_matrix(kernel: Kernel, x: Tensor, landmarks: Array) -> Tensor:
    """Return the kernel matrix K(x_i, p_k) between rows and landmarks, shape (n, P)."""
    if type(kernel) is Linear:
        return x @ landmarks.T
    if type(kernel) is PeriodicSpline:
        return periodic_spline(kernel.order, _differences(x, landmarks)).prod(axis=2)
    if type(kernel) is ArcCosine:
        return arc_cosine(kernel, x, landmarks)
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


def arc_cosine(kernel: ArcCosine, x: Tensor, landmarks: Array) -> Tensor:
    """Return the arc-cosine kernel  (|x||p|)^order kappa_order(t),  shape (n, P), where t is the angle of x and p.

    The bias is an additional coordinate of both. The angle is computed as tan(t/2) = |u - v| / |u + v| for the unit
    vectors u, v of x and p, which is accurate also for small angles, unlike the arc cosine of u'v.
    """
    size_p = np.sqrt(kernel.bias**2 + np.sum(landmarks**2, axis=1))
    size_x = sqrt((x * x).sum(axis=1, keepdims=True) + kernel.bias**2)
    bias_u, bias_v = kernel.bias / size_x.maximum(TINY), kernel.bias / np.maximum(size_p, TINY)
    u, v = x / size_x.maximum(TINY), landmarks / np.maximum(size_p, TINY)[:, None]
    apart, together = _differences(u, v), _differences(u, -v)
    apart_bias, together_bias = bias_u - bias_v, bias_u + bias_v
    p = sqrt((apart * apart).sum(axis=2) + apart_bias * apart_bias)
    q = sqrt((together * together).sum(axis=2) + together_bias * together_bias)
    # onnxruntime has arctan in float32 only; one Newton step for  p cos(h) = q sin(h)  in float64 makes it exact.
    half = x.graph.apply("Atan", (p / q.maximum(TINY)).astype(np.float32)).astype(float)
    half = half + (p * cos(half) - q * sin(half)) / (q * cos(half) + p * sin(half)).maximum(TINY)
    angle = 2.0 * half
    if kernel.order == 0:
        return (1.0 - angle / np.pi) * (size_x > 0.0).astype(float) * (size_p > 0).astype(float)
    return (sin(angle) + (np.pi - angle) * cos(angle)) * size_x * (size_p / np.pi)


def periodic_spline(order: float, t: Tensor, nearest: float = 0.0) -> Tensor:
    """Return the periodic spline kernel Lambda_order(t), elementwise, by the expansions of `quernel.kernels.spline`.

    Distances below `nearest` are raised to it, because random features of low order have a pole at 0.
    """
    turn = absolute(t - nearest_integer(t))
    angle = 2 * np.pi * (turn.maximum(nearest) if nearest else turn)
    if order >= OPTIONS.direct_from:
        return _polynomial(tuple(cheb2poly(direct_coefficients(order))), cos(angle))
    form = expansion(float(order))
    return _polynomial(form.smooth, angle * angle * (2 / np.pi**2) - 1.0) + _singular(form.singular, angle)


def _singular(form: Power | Pair, angle: Tensor) -> Tensor:
    """Return the part of the expansion that is not smooth at angle 0; TINY keeps 0 out of powers and logarithms."""
    if isinstance(form, Power):
        return form.coefficient * (angle if form.order == 2 else angle.maximum(TINY) ** (form.order - 1))
    angle = angle.maximum(TINY)
    exponent = form.slope + log(angle)
    bracket = form.zeta - _expm1_over(form.e, exponent)
    return form.front * angle ** (2 * form.m) * bracket if form.m else form.front * bracket


def _expm1_over(e: float, x: Tensor) -> Tensor:
    """Return (exp(e x) - 1) / e, by its Taylor series near e = 0, where the difference would cancel."""
    if abs(e) > 1e-4:
        return (exp(e * x) - 1.0) / e
    return x * (1.0 + e * x * (1 / 2 + e * x * (1 / 6 + e * x * (1 / 24))))


def _polynomial(coefficients: tuple[float, ...], z: Tensor) -> Tensor:
    """Evaluate the polynomial with these coefficients, lowest degree first, by Horner's rule."""
    result = coefficients[-1] * z + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result = result * z + coefficient
    return result


def _differences(x: Tensor, points: Array) -> Tensor:
    """Return x_i - p_k for all pairs, shape (n, P, d)."""
    return x.graph.apply("Unsqueeze", x, np.array([1])) - points


def _unsupported_message(kernel: Kernel) -> str:
    return f"The kernel {type(kernel).__name__} has no formula for ONNX. Use one of quernel's own kernels" + (
        ", or random features (n_components=500, say)." if isinstance(kernel, ShiftInvariantKernel) else "."
    )
