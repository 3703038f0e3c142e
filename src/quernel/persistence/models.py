"""`save` and `load`, and the registry of classes that a model file may contain.

Loading trusts nothing in the file: objects are built from registered classes by their constructors, then checked for
consistent shapes, then tried on made-up rows, so that a file that cannot predict raises when it is loaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from functools import singledispatch
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import model_selection
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.adapters import unwrap_frozen
from quernel.conformal.methods import METHODS, Scores
from quernel.conformal.table_model import TableModel
from quernel.estimators import KernelClassifier, KernelQuantileRegressor, KernelRegressor
from quernel.estimators.base import KernelEstimator
from quernel.estimators.multiclass import Isotonic, ProbabilityCurves, Sigmoid
from quernel.estimators.quantile_cv import KernelQuantileRegressorCV
from quernel.estimators.splits import LastRows
from quernel.features import LandmarkPredictor, Nystroem, PivotedCholesky, PrecomputedFeatures, RandomFeatures
from quernel.kernels import KERNELS, Sum
from quernel.losses import LOSSES, Pinball
from quernel.persistence.archive import Decoder, Encoder, ModelFileError, read_archive, write_archive
from quernel.tables import BooleanColumn, DateColumn, NumberColumn, TableEncoder, TextColumn, TimeColumn
from quernel.tuning.alpha import AlphaChoice
from quernel.tuning.bandwidth import BandwidthChoice, Round
from quernel.tuning.n_components import ComponentsChoice, Trial
from quernel.tuning.plan import FitPlan

# Version of the file format, to be increased when older versions of quernel would misread new files.
FORMAT = 1

# Estimators that can be saved. To add one, register its class here and the classes of its attributes below. Files refer
# to classes and attributes by name: renaming one makes existing files unreadable.
QUANTILE_MODELS = (KernelQuantileRegressor, KernelQuantileRegressorCV)
MODELS: tuple[type, ...] = (
    *QUANTILE_MODELS,
    *(KernelRegressor, KernelClassifier, ConformalQuantileRegressor, TableModel),
)
# Splitters of scikit-learn whose state is the arguments of their constructor.
SPLITTERS = tuple(
    getattr(model_selection, name)
    for name in ("KFold", "GroupKFold", "ShuffleSplit", "GroupShuffleSplit", "TimeSeriesSplit", "LeaveOneGroupOut")
)
# Classes that occur inside the models, besides kernels and losses, which are in registries of their own.
COMPONENTS: tuple[type, ...] = (
    *(RandomFeatures, PivotedCholesky, Nystroem, LandmarkPredictor, PrecomputedFeatures),
    *(Sum, Pinball),
    *(FitPlan, ComponentsChoice, Trial, BandwidthChoice, Round, AlphaChoice),
    *(Scores, ProbabilityCurves, Sigmoid, Isotonic),
    *(FrozenEstimator, LastRows, *SPLITTERS),
    *(TableEncoder, NumberColumn, BooleanColumn, TextColumn, DateColumn, TimeColumn),
)
# What building and trying an inconsistent model raises.
DECODING_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)
# Remedies for attributes that hold objects of other classes, by the name of the attribute.
FOREIGN_MODEL = (
    "Calibrate a KernelQuantileRegressor instead, or keep the other model in a file of its own kind and calibrate it "
    "again where it is loaded, with method='prefit'."
)
REMEDIES = {
    "cv": "Only fitting needs it: call model.set_params(cv=5) before saving, or give a list of index arrays.",
    **dict.fromkeys(("alphas", "bandwidths"), "Give a list of numbers instead."),
    "estimator": FOREIGN_MODEL,
    "estimators_": FOREIGN_MODEL,
}


def save(model: Any, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Save a fitted model to a file for `load`; its predictions stay the same to the last bit.

    Parameters
    ----------
    model : fitted estimator of quernel
    path : str or path-like
    overwrite : bool, default=False
        Whether to replace an existing file. Writing is atomic: the new file appears complete or not at all.

    Raises
    ------
    TypeError
        The model, or an attribute of it, is of a class that model files cannot hold.
    FileExistsError
        The file exists, and `overwrite` is False.
    """
    check_model_type(model, MODELS, "quernel.save")
    _check_saveable(model)
    encoder = Encoder(known_classes(), REMEDIES)
    content = encoder.encode(model, type(model).__name__)
    document = {"format": FORMAT, "quernel": _version(), "model": content}
    write_archive(Path(path), document, encoder.arrays, overwrite=overwrite)


def load(path: str | PathLike[str]) -> Any:
    """Load a model that `save` wrote. Nothing in the file is executed.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    The fitted estimator.

    Raises
    ------
    ModelFileError
        A ValueError: the file is not a model, is damaged, or was written by a newer version of quernel.
    """
    path = Path(path)
    document, arrays = read_archive(path)
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise ModelFileError(f"{path} is not a valid quernel model file: it does not say which format it has.")
    if not 1 <= document["format"] <= FORMAT:
        raise ModelFileError(
            f"{path} has format {document['format']}, written by quernel {document.get('quernel')}; this is quernel "
            f"{_version()}, which reads formats up to {FORMAT}. Update quernel, or save the model again with this one."
        )
    try:
        model = Decoder(known_classes(), arrays).decode(document["model"])
        if type(model) not in MODELS:
            raise ValueError(f"it holds a {type(model).__name__}, not a model")
        _check_saveable(model)
        _add_missing_attributes(model)
        _check_shapes(model)
        _run_smoke_test(model)
    except DECODING_ERRORS as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ModelFileError(f"{path} is not a valid quernel model file: {reason}.") from error
    return model


def known_classes() -> dict[str, type]:
    """Return the classes that a model file may contain, by name, with all registered kernels and losses."""
    kinds: list[type] = [*MODELS, *COMPONENTS, *KERNELS.values(), *LOSSES.values()]
    return {kind.__name__: kind for kind in kinds}


def check_model_type(model: Any, kinds: Collection[type], function: str) -> None:
    """Raise TypeError unless the model is of one of these classes.

    For wrappers of scikit-learn (pipelines, searches, frozen estimators) the message says how to get at the model.
    """
    if type(model) in kinds:
        return
    names, advice = ", ".join(kind.__name__ for kind in kinds), "Fit one of those."
    if isinstance(model, Pipeline):
        advice = (
            "Give it the model in the last step, pipeline[-1], and build the other steps again where it is used; a "
            "model that quernel fit makes of a table keeps what becomes of the columns."
        )
    elif isinstance(model, FrozenEstimator):
        advice = "Give it the model inside, model.estimator."
    elif hasattr(model, "best_estimator_"):
        advice = "Give it the model that was chosen, search.best_estimator_."
    raise TypeError(f"{function} takes a fitted {names}; got {type(model).__name__}. {advice}")


def _check_saveable(model: Any) -> None:
    """Raise unless the model and all models inside it are fitted, and hold no functions."""
    for part in _nested_models(model):
        if not isinstance(part, TableModel):  # a TableModel is no estimator; it holds fitted ones
            check_is_fitted(part)
        if isinstance(part, ConformalQuantileRegressor):
            for name, given in (("groups", part._groups), ("density_ratio", part._ratio)):
                if callable(given):
                    raise ValueError(
                        f"{name} was given to fit as a function, and model files hold no code. Give it as an array: "
                        f"fit(X, y, {name}=f(X)), and then predict_interval(X, {name}=f(X))."
                    )


def _nested_models(model: Any) -> list[Any]:
    """Return the model and, recursively, the models inside it."""
    inner: list[Any] = []
    if isinstance(model, TableModel):
        inner = [model.model, *([] if model.interval is None else [model.interval])]
    if isinstance(model, ConformalQuantileRegressor):
        inner = [unwrap_frozen(one) for one in getattr(model, "estimators_", [])]
    return [model, *(part for one in inner for part in _nested_models(one))]


def _add_missing_attributes(model: Any) -> None:
    """Set `coverage_`, `symmetric_` and `method_`, which earlier files lack: they had the parameters only."""
    for part in _nested_models(model):
        if isinstance(part, ConformalQuantileRegressor):
            for name in ("coverage", "symmetric", "method"):
                if not hasattr(part, f"{name}_"):
                    setattr(part, f"{name}_", getattr(part, name))


def _check_shapes(model: Any) -> None:
    """Raise unless everything that predictions need is there, with consistent shapes."""
    for part in _nested_models(model):
        if isinstance(part, TableModel):
            _check_text(part)
            for inner in _nested_models(part)[1:]:
                if len(part.encoder.names) != inner.n_features_in_:
                    raise ValueError(f"its table has {len(part.encoder.names)} columns, not {inner.n_features_in_}")
        if isinstance(part, KernelEstimator):
            _check_random_features(part.feature_map_)
            shape = part.feature_map_.n_components_, len(part.intercept_)
            if part.coef_.shape != shape or part.coef_.dtype != float:
                raise ValueError(f"its coefficients have the shape {part.coef_.shape}, not {shape}")
        if isinstance(part, ConformalQuantileRegressor):
            _check_scores(part)
        if isinstance(part, KernelClassifier) and part.calibration is not None:
            n_curves, n_scores = len(part.calibrated_.curves), len(part.intercept_)
            if n_curves != n_scores:
                raise ValueError(f"it has {n_curves} curves of probabilities for {n_scores} scores")


def _check_random_features(features: Any) -> None:
    """Raise unless the parameters of random features are arrays: compiled code would fail on others obscurely."""
    if isinstance(features, RandomFeatures):
        for name in ("frequencies_", "phases_", "weights_"):
            if not isinstance(getattr(features, name), np.ndarray):
                raise TypeError(f"{name} is no array")


def _check_text(model: TableModel) -> None:
    """Raise unless column names, missing-value markers and categories are text."""
    categories = [level for column in model.encoder.columns_ for level in getattr(column, "categories", ())]
    for text in (model.target, *model.encoder.inputs, *model.encoder.missing, *categories):
        if not isinstance(text, str):
            raise TypeError(f"its table has {text!r} where text is needed")


def _check_scores(model: ConformalQuantileRegressor) -> None:
    """Raise unless the arrays of each group's scores have one length, and refer to a method and models that exist."""
    if model.method_ not in METHODS:
        raise ValueError(f"its conformal method {model.method_!r} is unknown: register it in METHODS before loading")
    interval_models = (*QUANTILE_MODELS, ConformalQuantileRegressor, TableModel)
    if not all(isinstance(unwrap_frozen(inner), interval_models) for inner in model.estimators_):
        raise ValueError("what it calibrates is no model of quantiles")
    for scores in model.calibration_.values():
        lengths = {len(values) for values in (scores.below, scores.above, scores.model, scores.weight)}
        if len(lengths) != 1 or not np.isin(scores.model, np.arange(len(model.estimators_))).all():
            raise ValueError("its calibration scores do not fit together")


def _run_smoke_test(model: Any) -> None:
    """Call all prediction methods of the model on made-up rows; whatever is wrong with its parts raises.

    Only errors count: warnings (the rows may be unlike the training rows) and the values themselves do not.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        _predict_all(model, _make_rows(model))


@singledispatch
def _make_rows(model: Any) -> Any:
    """Return input that the model accepts: one row, 0 clipped to the range of the training rows."""
    return np.clip(np.zeros(model.n_features_in_), *model.input_range_)[None]


@_make_rows.register
def _(model: TableModel) -> Any:
    """A table of two rows: one of values, one of missing values."""
    import pyarrow as pa

    columns = {}
    for column in model.encoder.columns_:
        if isinstance(column, TextColumn):
            columns[column.name] = pa.array(["some text", None])
        elif isinstance(column, NumberColumn):
            columns[column.name] = pa.array([0.0, None])
        else:
            columns[column.name] = pa.array([0, None], pa.timestamp("s") if column.kind == "date" else pa.time32("s"))
    return pa.table(columns)


@_make_rows.register
def _(model: ConformalQuantileRegressor) -> Any:
    """Those of the model inside."""
    return _make_rows(unwrap_frozen(model.estimators_[0]))


@singledispatch
def _predict_all(model: Any, rows: Any) -> None:
    """Call every prediction method, by the type of the model; results are discarded."""
    model.predict(rows)


@_predict_all.register
def _(model: KernelClassifier, rows: Any) -> None:
    model.predict(rows)
    if hasattr(model, "predict_proba"):  # not for every loss
        model.predict_proba(rows)


@_predict_all.register(KernelQuantileRegressor)
@_predict_all.register(TableModel)
def _(model: Any, rows: Any) -> None:
    model.predict(rows)
    model.predict(rows, float(np.mean(model.quantiles_)))  # a level between the fitted ones
    model.predict_cdf(rows, np.zeros(len(rows)))
    model.is_extrapolation(rows)
    if getattr(model, "interval", None) is not None:
        model.predict_interval(rows)


@_predict_all.register
def _(model: ConformalQuantileRegressor, rows: Any) -> None:
    kwargs: dict[str, Any] = {} if model._groups is None else {"groups": [next(iter(model.calibration_))] * len(rows)}
    kwargs |= {} if model._ratio is None else {"density_ratio": np.ones(len(rows))}
    model.predict_interval(rows, **kwargs)
    model.predict(rows)


def _version() -> str:
    from quernel import __version__  # not at the top: the package imports this module

    return __version__
