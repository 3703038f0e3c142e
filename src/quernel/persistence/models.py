"""`save` and `load`, and the classes that a model file may speak of."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from sklearn.utils.validation import check_is_fitted

from quernel import kernels, losses
from quernel.estimators import KernelClassifier, KernelQuantileRegressor, KernelRegressor
from quernel.estimators.base import KernelEstimator
from quernel.estimators.growth import ComponentsChoice, Trial
from quernel.features import Nystroem, PivotedCholesky, RandomFeatures, ReadyFeatures
from quernel.losses import LOSSES
from quernel.persistence.archive import ModelFileError, read_archive, write_archive
from quernel.persistence.codec import Decoder, Encoder
from quernel.tables import BooleanColumn, DateColumn, NumberColumn, TableEncoder, TableModel, TextColumn

# Raised when files are written that an older quernel would misread.
FORMAT = 1

# What can be saved. A new estimator is added here, and what it is made of below; nothing else needs to know it.
MODELS: tuple[type, ...] = (KernelQuantileRegressor, KernelRegressor, KernelClassifier, TableModel)
PARTS: tuple[type, ...] = (
    *(RandomFeatures, PivotedCholesky, Nystroem, ReadyFeatures),
    *(kernels.Gaussian, kernels.Laplacian, kernels.Matern, kernels.Cauchy),
    *(kernels.ArcCosine, kernels.PeriodicSpline, kernels.Linear, kernels.Sum),
    *dict.fromkeys(LOSSES.values()),
    losses.Pinball,
    *(ComponentsChoice, Trial),
    *(TableEncoder, NumberColumn, BooleanColumn, TextColumn, DateColumn),
)
KNOWN = {kind.__name__: kind for kind in (*MODELS, *PARTS)}


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
    encoder = Encoder(KNOWN)
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
    if isinstance(model, TableModel):
        model = model.model
    check_is_fitted(model)
    if getattr(model, "calibrated_", None) is not None:
        raise ValueError(
            f"KernelClassifier with calibration={model.calibration!r} holds scikit-learn's own objects, which model "
            "files cannot. Use loss='logistic', whose probabilities need no calibration, or calibration=None."
        )


def _check_shapes(model: Any) -> None:
    """What predictions are made of must be there, and fit together."""
    if isinstance(model, TableModel):
        if len(model.encoder.names) != model.model.n_features_in_:
            raise ValueError(f"its table has {len(model.encoder.names)} columns, not {model.model.n_features_in_}")
        model = model.model
    if isinstance(model, KernelEstimator):
        shape = model.feature_map_.n_components_, len(model.intercept_)
        if model.coef_.shape != shape or model.coef_.dtype != float:
            raise ValueError(f"its coefficients have the shape {model.coef_.shape}, not {shape}")


def _version() -> str:
    from quernel import __version__  # the package imports this module

    return __version__
