"""`save` and `load`, and the classes that a model file may speak of."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import model_selection
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from quernel import kernels, losses
from quernel.calibration import ConformalQuantileRegressor
from quernel.calibration.models import thawed
from quernel.calibration.scores import Scores
from quernel.estimators import KernelClassifier, KernelQuantileRegressor, KernelRegressor
from quernel.estimators.base import KernelEstimator
from quernel.estimators.growth import ComponentsChoice, Trial
from quernel.estimators.learning import BandwidthChoice, Round
from quernel.features import KernelValues, Nystroem, PivotedCholesky, RandomFeatures, ReadyFeatures
from quernel.losses import LOSSES
from quernel.persistence.archive import ModelFileError, read_archive, write_archive
from quernel.persistence.codec import Decoder, Encoder
from quernel.selection import KernelQuantileRegressorCV
from quernel.selection.splits import LastRows
from quernel.tables import BooleanColumn, DateColumn, NumberColumn, TableEncoder, TableModel, TextColumn, TimeColumn

# Raised when files are written that an older quernel would misread.
FORMAT = 1

# What can be saved. A new estimator is added here, and what it is made of below; nothing else needs to know it.
QUANTILE_MODELS = (KernelQuantileRegressor, KernelQuantileRegressorCV)
MODELS: tuple[type, ...] = (
    *QUANTILE_MODELS,
    *(KernelRegressor, KernelClassifier, ConformalQuantileRegressor, TableModel),
)
# scikit-learn's splitters that are no more than the arguments of their constructors.
SPLITTERS = tuple(
    getattr(model_selection, name)
    for name in ("KFold", "GroupKFold", "ShuffleSplit", "GroupShuffleSplit", "TimeSeriesSplit", "LeaveOneGroupOut")
)
PARTS: tuple[type, ...] = (
    *(RandomFeatures, PivotedCholesky, Nystroem, KernelValues, ReadyFeatures),
    *(kernels.Gaussian, kernels.Laplacian, kernels.Matern, kernels.Cauchy),
    *(kernels.ArcCosine, kernels.PeriodicSpline, kernels.Linear, kernels.Sum),
    *dict.fromkeys(LOSSES.values()),
    losses.Pinball,
    *(ComponentsChoice, Trial, BandwidthChoice, Round, Scores),
    *(FrozenEstimator, LastRows, *SPLITTERS),
    *(TableEncoder, NumberColumn, BooleanColumn, TextColumn, DateColumn, TimeColumn),
)
KNOWN = {kind.__name__: kind for kind in (*MODELS, *PARTS)}
# What to do about attributes that hold what is not known.
FOREIGN = (
    "Calibrate a KernelQuantileRegressor instead, or keep the other model in a file of its own kind and calibrate it "
    "again where it is loaded, with method='prefit'."
)
REMEDIES = {
    "cv": "Only fitting needs it: call model.set_params(cv=5) before saving, or give a list of index arrays.",
    **dict.fromkeys(("alphas", "bandwidths"), "Give a list of numbers instead."),
    "estimator": FOREIGN,
    "estimators_": FOREIGN,
}


def save(model: Any, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted model to a file from which `load` makes it again; its predictions are the same to the last bit.

    Parameters
    ----------
    model : a fitted estimator of quernel
    path : str or path
    overwrite : bool, default=False
        Whether to replace a file that is there already. The new file appears whole or not at all.
    """
    if type(model) not in MODELS:
        names = ", ".join(kind.__name__ for kind in MODELS)
        raise TypeError(f"quernel.save takes a fitted {names}; got {type(model).__name__}.")
    _check_ready(model)
    encoder = Encoder(KNOWN, REMEDIES)
    content = encoder.encode(model, type(model).__name__)
    document = {"format": FORMAT, "quernel": _version(), "model": content}
    write_archive(Path(path), document, encoder.arrays, overwrite=overwrite)


def load(path: str | PathLike[str]) -> Any:
    """The model that `save` wrote. Nothing in the file is executed; a file that is not whole is refused.

    Raises
    ------
    ModelFileError
        A ValueError: the file is no model, is damaged, or comes from a newer quernel.
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
        model = Decoder(KNOWN, arrays).decode(document["model"])
        if type(model) not in MODELS:
            raise ValueError(f"it holds a {type(model).__name__}, not a model")
        _check_ready(model)
        _check_shapes(model)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        raise ModelFileError(f"{path} is not a valid quernel model file: {error}.") from error
    return model


def _check_ready(model: Any) -> None:
    """Fitted, and with nothing in it that is code."""
    for part in _parts(model):
        check_is_fitted(part)
    if getattr(model, "calibrated_", None) is not None:
        raise ValueError(
            f"KernelClassifier with calibration={model.calibration!r} holds scikit-learn's own objects, which model "
            "files cannot. Use loss='logistic', whose probabilities need no calibration, or calibration=None."
        )
    if isinstance(model, ConformalQuantileRegressor):
        for name, given in (("groups", model._groups), ("density_ratio", model._ratio)):
            if callable(given):
                raise ValueError(
                    f"{name} was given to fit as a function, and model files hold no code. Give it as an array: "
                    f"fit(X, y, {name}=f(X)), and then predict_interval(X, {name}=f(X))."
                )


def _parts(model: Any) -> list[Any]:
    """The model, and the models inside of it."""
    if isinstance(model, TableModel):
        return [*_parts(model.model), *(_parts(model.interval) if model.interval is not None else [])]
    if isinstance(model, ConformalQuantileRegressor) and hasattr(model, "estimators_"):
        return [model, *model.estimators_]
    return [model]


def _check_shapes(model: Any) -> None:
    """What predictions are made of must be there, and fit together."""
    if isinstance(model, TableModel):
        for part in _parts(model):
            if len(model.encoder.names) != part.n_features_in_:
                raise ValueError(f"its table has {len(model.encoder.names)} columns, not {part.n_features_in_}")
    for part in _parts(model):
        if isinstance(part, KernelEstimator):
            shape = part.feature_map_.n_components_, len(part.intercept_)
            if part.coef_.shape != shape or part.coef_.dtype != float:
                raise ValueError(f"its coefficients have the shape {part.coef_.shape}, not {shape}")
        if isinstance(part, ConformalQuantileRegressor):
            _check_scores(part)


def _check_scores(model: ConformalQuantileRegressor) -> None:
    """Every group's scores are of one length, and each was made by a model that is there."""
    if not all(isinstance(thawed(inner), QUANTILE_MODELS) for inner in model.estimators_):
        raise ValueError("what it calibrates is no model of quantiles")
    for scores in model.calibration_.values():
        lengths = {len(part) for part in (scores.below, scores.above, scores.model, scores.weight)}
        if len(lengths) != 1 or not np.isin(scores.model, np.arange(len(model.estimators_))).all():
            raise ValueError("its calibration scores do not fit together")


def _version() -> str:
    from quernel import __version__  # the package imports this module

    return __version__
