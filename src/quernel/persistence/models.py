"""`save` and `load` of fitted models, and the classes that a model file may contain.

A model file is an archive of skops (`archive`) whose classes are all on the list below, or named by the user. What was
loaded is checked before it is returned (`integrity`).
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterable
from functools import cache
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import sklearn
from scipy import special
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from quernel._files import check_writable, write_atomically
from quernel.conformal.table_model import TableModel
from quernel.kernels import KERNELS
from quernel.losses import LOSSES
from quernel.persistence.archive import (
    DTYPE_KINDS,
    ModelFileError,
    UntrustedError,
    add_checksum,
    check_schema,
    dump_archive,
    read_archive,
    read_schema,
    type_name,
)

# Version of the file format, to be increased when older versions of quernel would misread new files.
FORMAT = 1

# Modules whose own classes a model file may contain. Files refer to classes and attributes by name: renaming one makes
# existing files unreadable.
MODULES = (
    *(f"estimators.{name}" for name in ("quantile", "quantile_cv", "regressor", "classifier", "splits")),
    *(f"estimators.{name}" for name in ("tabular", "tabular_parts", "forest_weights", "location_scale", "tails")),
    *("estimators.inference", "estimators.shaped_parts"),
    *(
        "conformal.regressor",
        "conformal.methods",
        "conformal.conditional",
        "conformal.table_model",
        "features.random",
        "features.landmarks",
    ),
    *(f"kernels.{name}" for name in ("base", "fourier", "periodic")),
    *("losses.regression", "losses.margins"),
    *(f"forecasting.{name}" for name in ("adaptive", "features", "forecaster", "series")),
    *("tuning.plan", "tuning.alpha", "tuning.bandwidth", "tuning.n_components"),
    *("tables.columns", "tables.encoder", "metrics"),
)
# Packages of scikit-learn whose estimators predict with NumPy alone, and those of trees, which `integrity` checks.
# Compiled code of the others (libsvm, nearest neighbours, clusters, ...) trusts fitted arrays: users must name them.
SKLEARN_PACKAGES = (
    *("calibration", "compose", "decomposition", "discriminant_analysis", "dummy", "ensemble", "feature_selection"),
    *("frozen", "gaussian_process", "impute", "isotonic", "kernel_approximation", "kernel_ridge", "linear_model"),
    *("model_selection", "multiclass", "multioutput", "naive_bayes", "neural_network", "pipeline", "preprocessing"),
    *("random_projection", "tree"),
)
# Modules of scikit-learn whose classes occur inside of estimators.
SKLEARN_MODULES = (
    *("_loss.link", "_loss.loss", "compose._column_transformer", "metrics._scorer", "model_selection._split"),
    *("calibration", "gaussian_process.kernels", "neural_network._stochastic_optimizers", "utils._metadata_requests"),
    *("ensemble._hist_gradient_boosting.binning", "ensemble._hist_gradient_boosting.predictor"),
)
# Modules that NumPy's and SciPy's ufuncs name as theirs, by version.
UFUNC_MODULES = (
    (np, ("numpy", "numpy.core._multiarray_umath", "numpy._core._multiarray_umath")),
    (special, ("scipy.special._ufuncs", "scipy.special._special_ufuncs")),
)
# Types that occur as such: splitters that others repeat, and types of arrays.
SPLITTERS, PLAIN_TYPES = "sklearn.model_selection._split", ("bool", "str", "int", "float", "object")
# What a BSpline of SciPy, in a SplineTransformer, has as an attribute.
SPLINE_FUNCTION = "scipy._lib.array_api_compat.numpy._aliases.asarray"


def save(model: Any, path: str | PathLike[str], *, overwrite: bool = False, trusted: Iterable[Any] = ()) -> None:
    """Save a fitted model to a file for `load`; its predictions stay the same to the last bit.

    Parameters
    ----------
    model : fitted estimator
        Of quernel or scikit-learn, such as a `Pipeline` with an estimator of quernel.
    path : str or path-like
    overwrite : bool, default=False
        Whether to replace an existing file. Writing is atomic: the new file appears complete or not at all.
    trusted : classes, functions or their names ("module.name"), optional
        What the model holds besides objects of quernel and scikit-learn. `load` must be given the same.

    Raises
    ------
    TypeError
        The model holds objects of other classes, or functions, that are not trusted.
    ValueError
        The model is not consistent, so that `load` would refuse it.
    FileExistsError
        The file exists, and `overwrite` is False.
    """
    if not isinstance(model, BaseEstimator | TableModel):
        raise TypeError(
            f"quernel.save takes a fitted estimator of quernel or scikit-learn; got {type(model).__name__}."
        )
    if isinstance(model, BaseEstimator):
        check_is_fitted(model)
    path, trusted = Path(path), _names(trusted)
    check_writable(path, overwrite=overwrite)
    try:
        archive = dump_archive(_export(model), {"format": FORMAT, **_versions()})
        _construct(archive, trusted)  # what could not be loaded is not saved
    except UntrustedError as error:
        where, name = error.found[0]
        raise TypeError(
            f"{where} is of the type {name}, which a model file does not hold by itself: in it are numbers, text and "
            "objects of quernel and scikit-learn, never code. Replace it (a function by an array of what it returns) "
            f"or, if it can be imported where the file is loaded, give trusted=[{name!r}] to quernel.save and load."
        ) from error
    except Exception as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"The model cannot be saved: {_one_line(error)}. Replace what a file cannot hold, such as a generator by a "
            "list, with set_params."
        ) from error
    with write_atomically(path, overwrite=overwrite) as part, part.open("wb") as file:
        file.write(add_checksum(archive))


def load(path: str | PathLike[str], *, trusted: Iterable[Any] = ()) -> Any:
    """Load a model that `save` wrote. Nothing in the file is executed.

    Parameters
    ----------
    path : str or path-like
    trusted : classes, functions or their names ("module.name"), optional
        What the file may contain besides objects of quernel and scikit-learn. These are imported, and their content is
        not checked: trust only what you know, in files whose source you trust.

    Returns
    -------
    The fitted estimator.

    Raises
    ------
    ModelFileError
        A ValueError: the file is not a model, is damaged, was written by a newer version of quernel, or contains
        something that is not trusted.
    """
    path, trusted = Path(path), _names(trusted)
    archive = read_archive(path)
    try:
        return _construct(archive, trusted)
    except Exception as error:
        advice = ""
        if isinstance(error, UntrustedError):
            names = sorted({name for _, name in error.found})
            advice = f" If you trust its source, and know what these are, load it with trusted={names}."
        raise ModelFileError(f"{path} is not a valid quernel model file: {_one_line(error)}.{advice}") from error


def _construct(archive: bytes, trusted: set[str]) -> Any:
    """Return the model in an archive; raise an error of any kind if anything is wrong with it."""
    import skops.io

    from quernel.persistence.integrity import check_model  # which imports all of scikit-learn's ensembles

    schema, n_axes = read_schema(archive)
    about, versions = schema["quernel"], _versions()
    if not isinstance(about.get("format"), int) or not 1 <= about["format"] <= FORMAT:
        raise ValueError(
            f"it has format {about.get('format')}, written by quernel {about.get('quernel')}; this is quernel "
            f"{versions['quernel']}, which reads formats up to {FORMAT}. Update quernel, or save the model again with "
            "this one"
        )
    names = check_schema(schema, n_axes, _known_names(), trusted)
    try:
        model = skops.io.loads(archive, trusted=sorted(names))
        if not isinstance(model, BaseEstimator | TableModel):
            raise TypeError(f"it holds a {type(model).__name__}, not a model")
        if isinstance(model, BaseEstimator):
            check_is_fitted(model)
        check_model(model, trusted)
    except Exception as error:
        others = [f"{name} {about.get(name)}" for name, own in versions.items() if about.get(name) != own]
        if others:
            raise ValueError(f"{_one_line(error)} (it was written with {', '.join(others)})") from error
        raise
    return model


def _export(model: Any) -> Any:
    """Return a model whose parts with `_export_state` hold what predictions need and no more."""
    from quernel.persistence.integrity import walk_objects

    exported = {}
    for part in walk_objects(model):
        if hasattr(part, "_export_state"):
            state = part._export_state(vars(part))
            if state is not vars(part):
                exported[id(part)] = copy.copy(part)
                exported[id(part)].__dict__ = state
    return copy.deepcopy(model, exported) if exported else model


@cache
def _fixed_names() -> dict[str, set[str]]:
    """Return, for each loader of skops, the names of what it may construct, but for the classes of quernel."""
    from scipy.interpolate import BSpline
    from sklearn import feature_selection, metrics
    from sklearn._loss import _loss
    from sklearn.tree._tree import Tree
    from sklearn.utils import all_estimators

    packages = tuple(f"sklearn.{name}." for name in SKLEARN_PACKAGES)
    estimators = {name for _, kind in all_estimators() if (name := type_name(kind)).startswith(packages)}
    scalars = {type_name(kind) for kind in set(np.sctypeDict.values()) if np.dtype(kind).kind in DTYPE_KINDS}
    public = [getattr(package, name) for package in (metrics, feature_selection) for name in package.__all__]
    functions = {type_name(value) for value in public if isinstance(value, FunctionType)} | {SPLINE_FUNCTION}
    for package, modules in UFUNC_MODULES:
        ufuncs = [name for name, value in vars(package).items() if isinstance(value, np.ufunc)]
        functions |= {f"{module}.{name}" for module in modules for name in ufuncs}
    return {
        "ObjectNode": estimators | _own_classes(f"sklearn.{name}" for name in SKLEARN_MODULES) | {type_name(BSpline)},
        "TreeNode": {type_name(Tree)},
        "LossNode": {type_name(kind) for name, kind in vars(_loss).items() if name.startswith("Cy")},
        "FunctionNode": functions,
        "TypeNode": scalars | _own_classes([SPLITTERS]) | {f"builtins.{name}" for name in PLAIN_TYPES},
        "NdArrayNode": scalars | {"numpy.ndarray"},
        "MaskedArrayNode": {type_name(np.ma.MaskedArray)},
        "DTypeNode": {"numpy.dtype"},
        "RandomStateNode": {type_name(np.random.RandomState)},
        "RandomGeneratorNode": {type_name(np.random.Generator)},
        "DictNode": {"builtins.dict", "collections.OrderedDict", type_name(Bunch)},
        **{f"{name.title()}Node": {f"builtins.{name}"} for name in ("list", "tuple", "set", "slice", "bytes")},
    }


def _known_names() -> dict[str, set[str]]:
    """Return, for each loader of skops, the names of what it may construct, with all registered kernels and losses."""
    fixed = _fixed_names()
    registered = {type_name(kind) for kind in [*KERNELS.values(), *LOSSES.values()]}
    own = _own_classes(f"quernel.{name}" for name in MODULES)
    return fixed | {"ObjectNode": fixed["ObjectNode"] | own | registered}


def _own_classes(modules: Iterable[str]) -> set[str]:
    """Return the names of all classes that are defined in the modules."""
    found = set()
    for name in modules:
        values = vars(importlib.import_module(name)).values()
        found |= {type_name(value) for value in values if isinstance(value, type) and value.__module__ == name}
    return found


def _names(trusted: Iterable[Any]) -> set[str]:
    """Return the names of classes and functions that are given by themselves or by name."""
    if isinstance(trusted, str) or not isinstance(trusted, Iterable):
        raise TypeError(f"trusted must be a list of classes or names; got {trusted!r}.")
    return {one if isinstance(one, str) else type_name(one) for one in trusted}


def _versions() -> dict[str, str]:
    """Return the versions of the packages on whose classes a file depends."""
    from quernel import __version__  # not at the top: the package imports this module

    return {"quernel": __version__, "scikit-learn": sklearn.__version__}


def _one_line(error: BaseException) -> str:
    """Return the message of an error as one line, without a full stop."""
    return " ".join((str(error) or type(error).__name__).split()).rstrip(".")
