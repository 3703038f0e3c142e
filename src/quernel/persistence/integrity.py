"""Integrity of loaded models: objects that skops made of a file are checked one by one, then models are tried.

skops sets attributes without calling constructors, so whatever a constructor or a fit guarantees is checked here. Most
of all what compiled code relies on without looking: child and feature indices of trees, shapes of random features,
positions in the buffers of random generators. An error in Python is no danger; memory read by a forged index is.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import sys
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import BSpline
from sklearn.base import BaseEstimator
from sklearn.ensemble import BaseEnsemble
from sklearn.ensemble._gb import BaseGradientBoosting
from sklearn.ensemble._hist_gradient_boosting.gradient_boosting import BaseHistGradientBoosting
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import BaseDecisionTree
from sklearn.tree._tree import Tree

from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.adapters import unwrap_frozen
from quernel.conformal.methods import METHODS, Scores
from quernel.conformal.table_model import TableModel
from quernel.estimators import KernelClassifier, KernelQuantileRegressor, TabularQuantileRegressor
from quernel.estimators.base import KernelEstimator
from quernel.features import (
    LandmarkPredictor,
    Nystroem,
    PivotedCholesky,
    PrecomputedFeatures,
    RandomFeatures,
    TrendFeatures,
)
from quernel.forecasting import AdaptiveCalibrator, AdaptiveConformalRegressor, QuantileForecaster
from quernel.kernels import resolve
from quernel.persistence.archive import type_name
from quernel.tables import TableEncoder

FEATURE_MAPS = (RandomFeatures, PivotedCholesky, Nystroem, LandmarkPredictor, PrecomputedFeatures, TrendFeatures)
# A value of each kind of column, from which the encodings of `quernel.tables` can read.
SAMPLES = {
    "number": 0.0,
    "duration": 0.0,
    "boolean": True,
    "text": "some text",
    "date": "1970-01-01",
    "time": "00:00:00",
}


def check_model(model: object, trusted: Collection[str] = ()) -> None:
    """Raise ValueError, TypeError, LookupError or AttributeError unless the model is consistent and predicts.

    Objects of classes whose names are in `trusted` are not checked.
    """
    parts = [part for part in walk_objects(model) if type_name(type(part)) not in trusted]
    for part in parts:
        _check_attributes(part)
        if dataclasses.is_dataclass(part) and type(part).__module__.startswith("quernel."):
            _check_dataclass(part)
    # Only errors count: warnings (the rows may be unlike the training rows) and the values themselves do not.
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for rules in (RULES, TRIALS):
            for part, (kind, rule) in itertools.product(parts, rules):
                if isinstance(part, kind):
                    rule(part)


def walk_objects(root: object) -> Iterator[Any]:
    """Yield an object and everything inside it, each once; of containers and attributes, not of plain arrays."""
    seen, stack = {id(root): root}, [root]
    while stack:
        value = stack.pop()
        yield value
        inner: Any = ()
        if isinstance(value, Mapping):
            inner = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            inner = value
        elif isinstance(value, np.ndarray):
            inner = value.ravel().tolist() if value.dtype == object else ()
        else:
            inner = _attributes(value).values()
        for one in inner:
            if id(one) not in seen:
                seen[id(one)] = one  # which also keeps it, so that no identity is used again
                stack.append(one)


def _attributes(value: object) -> dict[str, Any]:
    """Return the attributes of an instance; none of arrays, classes and functions."""
    is_whole = isinstance(value, np.ndarray | np.ufunc | type | types.FunctionType)
    return {} if is_whole else getattr(value, "__dict__", {})


def _check_attributes(value: object) -> None:
    """Raise if an attribute hides a method of its class."""
    for name in _attributes(value):
        if callable(getattr(type(value), name, None)):
            raise ValueError(f"{type(value).__name__} has a method {name!r}, which no attribute may replace")


def _check_estimator(model: BaseEstimator) -> None:
    """Raise unless all parameters are there, and the names of columns, if any, are as many as there are columns."""
    model.get_params(deep=False)
    if "feature_names_in_" in vars(model) and np.shape(model.feature_names_in_) != (model.n_features_in_,):
        raise ValueError(f"{type(model).__name__} does not have {model.n_features_in_} names of columns")


def _check_dataclass(value: Any) -> None:
    """Raise unless the fields have the annotated types, and the constructor accepts them; drop cached properties."""
    kind = type(value)
    state = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    for name in set(vars(value)) - set(state):
        if not isinstance(vars(value)[name], bool) or not isinstance(getattr(kind, name, None), cached_property):
            raise ValueError(f"{kind.__name__} has no field {name!r}")
        del vars(value)[name]
    _check_types(value, state)
    kind(**state)


def _check_types(value: object, state: Mapping[str, Any]) -> None:
    """Raise TypeError unless the entries of a state have the types that the class of the value annotates."""
    hints = typing.get_type_hints(type(value), vars(sys.modules[type(value).__module__]))
    for name, item in state.items():
        if not _matches(item, hints.get(name, Any)):
            raise TypeError(f"{name} of {type(value).__name__} is {str(item)[:40]!r}, a {type(item).__name__}")


def _matches(value: object, hint: Any) -> bool:
    """Whether a value is of an annotated type: of one of a union, with items of the right types."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, arg) for arg in args)
    if origin is typing.Literal:
        return value in args
    if origin is tuple:
        items = args[:1] * len(value) if isinstance(value, tuple) and args[-1:] == (...,) else args
        return isinstance(value, tuple) and all(map(_matches, value, items)) and len(items) == len(value)
    if hint in (int, float, complex):  # complex is how NumPy spells a number that becomes an array
        numbers = (int, np.integer) if hint is int else (int, float, np.integer, np.floating)
        return isinstance(value, numbers) and not isinstance(value, bool)
    kind = origin or hint
    return hint is Any or not isinstance(kind, type) or isinstance(value, kind)


def _check_generator(generator: Any) -> None:
    """Raise if the next random number would be read from outside of the generator's buffer."""
    new = isinstance(generator, np.random.Generator)
    state = generator.bit_generator.state if new else generator.get_state(legacy=False)
    # The buffers are those of MT19937 and Philox.
    for position, size in ((state["state"].get("pos", 0), 624), (state.get("buffer_pos", 0), 4)):
        if not 0 <= position <= size:
            raise ValueError(f"the position {position} of a random generator is outside of its buffer")


def _check_random_features(features: RandomFeatures) -> None:
    """Raise unless all arrays are of float64 and of consistent shapes; make them read-only, as `fit` does."""
    if not hasattr(features, "frequencies_"):  # a parameter of an estimator
        return
    m = features.n_components_
    for name in ("frequencies_", "phases_", "weights_"):
        array = getattr(features, name)
        if not isinstance(array, np.ndarray) or array.dtype != float or array.shape[-1:] != (m,):
            raise ValueError(f"{name} is no array of {m} features")
        if array.ndim != (2 if name == "frequencies_" else 1):
            raise ValueError(f"{name} has the shape {array.shape}")
        array.flags.writeable = False
    n_terms = len(resolve(features.kernel).summands)
    if features.terms_.shape != (m,) or not np.isin(features.terms_, np.arange(n_terms)).all():
        raise ValueError(f"terms_ are not those of {n_terms} kernels")


def _check_kernel_model(model: KernelEstimator) -> None:
    """Raise unless a fitted model has a feature map, and coefficients for its features."""
    if not _is_fitted(model):
        return
    if not isinstance(model.feature_map_, FEATURE_MAPS):
        raise TypeError(f"feature_map_ is a {type(model.feature_map_).__name__}")
    shape = model.feature_map_.n_components_, len(model.intercept_)
    if model.coef_.shape != shape or model.coef_.dtype != float:
        raise ValueError(f"its coefficients have the shape {model.coef_.shape}, not {shape}")
    n_columns = len(model.encoder_.names) if hasattr(model, "encoder_") else model.n_features_in_
    base = model.feature_map_
    if isinstance(base, TrendFeatures):
        inner, p = base.base, len(base.columns)
        if not isinstance(inner, FEATURE_MAPS[:-1]) or not isinstance(base.others, Nystroem | None):
            raise ValueError("its trends are not those of a feature map")
        n_others = 0 if base.others is None else base.others.n_components_
        if shape[0] != inner.n_components_ + (1 + p) * n_others + p:
            raise ValueError("its trends are not those of a feature map")
        if min(base.columns) < 0 or max(base.columns) >= n_columns:
            raise ValueError(f"its trends are not those of {n_columns} columns")
        base = base.base
    ranges, frequencies = np.shape(model.input_range_), getattr(base, "frequencies_", None)
    if ranges != (2, n_columns) or (frequencies is not None and len(frequencies) != n_columns):
        raise ValueError(f"its features are not those of {n_columns} columns")
    if isinstance(model, KernelClassifier) and model.calibration is not None:
        n_curves, n_scores = len(model.calibrated_.curves), len(model.intercept_)
        if n_curves != n_scores:
            raise ValueError(f"it has {n_curves} curves of probabilities for {n_scores} scores")


def _check_tabular(model: TabularQuantileRegressor) -> None:
    """Raise unless a fitted model has a range and a mean of each of its columns."""
    if _is_fitted(model):
        n_columns = len(model.encoder_.names) if hasattr(model, "encoder_") else model.n_features_in_
        if np.shape(model.input_range_) != (2, n_columns) or np.shape(model._fill) != (n_columns,):
            raise ValueError(f"its ranges are not those of {n_columns} columns")


def _check_conformal(model: ConformalQuantileRegressor) -> None:
    """Raise unless the scores of each group fit together, and refer to a method and models that exist."""
    if not _is_fitted(model):
        return
    if model.method_ not in METHODS:
        raise ValueError(f"its conformal method {model.method_!r} is unknown: register it in METHODS before loading")
    for scores in model.calibration_.values():
        if not isinstance(scores, Scores):
            raise TypeError("its calibration scores do not fit together")
        lengths = {len(values) for values in (scores.below, scores.above, scores.model, scores.weight, scores.width)}
        if len(lengths) != 1 or not np.isin(scores.model, np.arange(len(model.estimators_))).all():
            raise ValueError("its calibration scores do not fit together")
    for inner in map(unwrap_frozen, model.estimators_):
        own = isinstance(inner, KernelEstimator)
        if not hasattr(inner, "predict_interval" if own else "predict"):
            raise ValueError("what it calibrates is no model of quantiles")


def _check_encoder(encoder: TableEncoder) -> None:
    """Raise unless the fitted attributes have the annotated types, and missing-value markers are text."""
    _check_types(encoder, vars(encoder))
    if not all(isinstance(text, str) for text in encoder.missing):
        raise TypeError("missing-value markers are no text")


def _check_table_model(model: TableModel) -> None:
    """Raise unless the models inside have as many inputs as the encoder has outputs."""
    for inner in (model.model, model.interval):
        if inner is not None and len(model.encoder.names) != inner.n_features_in_:
            raise ValueError(f"its table has {len(model.encoder.names)} columns, not {inner.n_features_in_}")


def _check_tree(tree: Tree) -> None:
    """Raise unless a tree of scikit-learn is one: every node but the root has one parent, which comes before it."""
    n = tree.capacity  # the nodes in memory
    if not 0 < n == tree.node_count or tree.n_outputs < 1:
        raise ValueError(f"a tree of {n} nodes does not have {tree.node_count}")
    left, right = tree.children_left, tree.children_right
    inner = np.flatnonzero(left >= 0)
    depth = check_children(left[inner], right[inner], inner, n)
    if not depth <= tree.max_depth <= n:
        raise ValueError(f"a tree of depth {depth} does not have the depth {tree.max_depth}")
    if np.any((tree.feature[inner] < 0) | (tree.feature[inner] >= tree.n_features)):
        raise ValueError(f"a tree splits by a column that is none of {tree.n_features}")


def check_children(left: NDArray[Any], right: NDArray[Any], inner: NDArray[np.intp], n_nodes: int) -> int:
    """Return the depth of a binary tree; raise ValueError unless each node but node 0 has one parent, before it.

    Parameters
    ----------
    left, right : int arrays of shape (m,), the children of the inner nodes
    inner : int array of shape (m,), the inner nodes, ascending
    n_nodes : int
    """
    left, right = left.astype(np.int64), right.astype(np.int64)
    children = np.sort(np.concatenate([left, right]))
    if n_nodes < 1 or not np.array_equal(children, np.arange(1, n_nodes)) or np.any(np.minimum(left, right) <= inner):
        raise ValueError("the children of a tree's nodes make no tree")
    depth, level = 0, np.zeros(1, dtype=np.int64)
    while True:
        here = np.flatnonzero(np.isin(inner, level))
        if len(here) == 0:
            return depth
        depth, level = depth + 1, np.concatenate([left[here], right[here]])


def _check_decision_tree(model: BaseDecisionTree) -> None:
    """Raise unless the tree has the columns of its model; an unfitted one has none."""
    if hasattr(model, "tree_") and (type(model.tree_) is not Tree or model.tree_.n_features != model.n_features_in_):
        raise ValueError(f"a tree does not have the {model.n_features_in_} columns of its model")


def _check_ensemble(model: BaseEnsemble) -> None:
    """Raise unless all trees have the columns that the ensemble gives them, without a check of their own."""
    trees = np.ravel(getattr(model, "estimators_", []))
    subsets = getattr(model, "estimators_features_", [range(model.n_features_in_)] * len(trees) if len(trees) else [])
    for tree, subset in zip(trees, subsets, strict=True):
        if isinstance(tree, BaseDecisionTree) and tree.n_features_in_ != len(subset):
            raise ValueError(f"a tree of an ensemble has {tree.n_features_in_} columns, not {len(subset)}")


def _check_histogram_trees(model: BaseHistGradientBoosting) -> None:
    """Raise unless all trees are such, with the columns of the model; categorical columns are not supported."""
    for predictor in (one for stage in getattr(model, "_predictors", ()) for one in stage):
        nodes = predictor.nodes
        inner = np.flatnonzero(nodes["is_leaf"] == 0)
        check_children(nodes["left"][inner], nodes["right"][inner], inner, len(nodes))
        split = nodes["feature_idx"][inner]
        if np.any((split < 0) | (split >= model.n_features_in_)):
            raise ValueError(f"a tree splits by a column that is none of {model.n_features_in_}")
        if model._preprocessor is not None or nodes["is_categorical"].any():
            raise ValueError(f"{type(model).__name__} with categorical columns has to be trusted by its name")


def _check_one_hot(encoder: OneHotEncoder) -> None:
    """Raise if a category would be encoded outside of the columns: SciPy writes to such places without looking."""
    if not _is_fitted(encoder):
        return
    widths, dropped = encoder._compute_n_features_outs(), encoder._drop_idx_after_grouping
    fine = encoder._n_features_outs == widths
    for i, categories in enumerate(encoder.categories_):
        if categories.dtype.kind not in "OUS":  # found by bisection
            fine &= np.array_equal(categories, np.sort(categories), equal_nan=True)
        drop = None if dropped is None else dropped[i]
        places = np.arange(len(categories))
        if encoder._infrequent_enabled and encoder._infrequent_indices[i] is not None:
            fine &= 0 <= encoder._infrequent_indices[i][0] < len(categories)
            places = encoder._default_to_infrequent_mappings[i]
        width = widths[i] + (drop is not None)
        fine &= len(places) == len(categories) and min(places) >= 0 and max(places) < width
        fine &= drop is None or 0 <= drop < width
    if not fine:
        raise ValueError("a OneHotEncoder has categories without a column")


def _check_spline(spline: BSpline) -> None:
    """Raise unless there are as many knots as coefficients need, in the layout that compiled code expects."""
    again = BSpline(spline.t, spline.c, spline.k, spline.extrapolate, spline.axis)
    for name in ("t", "c"):
        array = getattr(spline, name)
        if (type(array), array.dtype, array.flags.c_contiguous) != (np.ndarray, getattr(again, name).dtype, True):
            raise ValueError("a spline has arrays of the wrong kind")


def _check_gradient_boosting(model: BaseGradientBoosting) -> None:
    """Raise unless the first predictions have a column for every tree of a stage: compiled code adds to them."""
    if hasattr(model, "estimators_"):
        row = np.broadcast_to(np.float32(0), (1, model.n_features_in_))  # which takes no memory, whatever the number
        start = model._raw_predict_init(row)
        if start.shape != (1, model.estimators_.shape[1]) or start.dtype != float:
            raise ValueError(f"{model.estimators_.shape[1]} trees add to predictions of shape {start.shape}")


def _check_forecaster(model: QuantileForecaster) -> None:
    """Raise unless there is a model for each group of steps, and the history is longer than the horizon."""
    if not _is_fitted(model):
        return
    ends, shortest = model.group_ends_, min(len(one.y) for one in model.series_)
    if len(ends) != len(model.models_) or sorted(set(ends)) != ends or not 1 <= ends[0] <= ends[-1] < shortest:
        raise ValueError(f"its {len(model.models_)} models are not those of steps up to {ends}")
    if model.horizon_ != ends[-1] or sum(model.harmonics_.values()) > 100:
        raise ValueError("its horizon or calendar is not that of its models")


def _try_forecaster(model: QuantileForecaster) -> None:
    """Forecast all steps of all series, columns that are known in the future being 0."""
    if not _is_fitted(model):
        return
    ahead = model.step_ * np.arange(1, model.horizon_ + 1)
    times = np.concatenate([one.times[-1] + ahead for one in model.series_])
    key = {} if model.id is None else {model.id: np.repeat([one.key for one in model.series_], len(ahead))}
    future = {model.time: times, **key, **{name: np.zeros(len(times)) for name in model.known}}
    model.predict(future)
    if not model.known:
        model.predict()


def _try_calibrator(model: AdaptiveCalibrator) -> None:
    """Adjust an interval and learn from its target, by a copy."""
    if _is_fitted(model):
        trial = copy.deepcopy(model)
        trial.adjust([0.0], [1.0])
        trial.update([0.0], [1.0], [2.0]).adjust([0.0], [1.0])


def _check_adaptive(model: AdaptiveConformalRegressor) -> None:
    """Raise unless a fitted model has a calibrator."""
    if _is_fitted(model) and not isinstance(model.calibrator_, AdaptiveCalibrator):
        raise TypeError(f"its calibrator is a {type(model.calibrator_).__name__}")


def _is_fitted(model: object) -> bool:
    """Whether an estimator has fitted attributes; parameters of other estimators have none."""
    return any(name.endswith("_") for name in vars(model))


def _make_rows(model: Any) -> Any:
    """Return input that a model accepts: a row within the training range or, of mixed columns, a table; or None."""
    if isinstance(model, ConformalQuantileRegressor):
        return _make_rows(unwrap_frozen(model.estimators_[0]))
    encoder = model.encoder if isinstance(model, TableModel) else getattr(model, "encoder_", None)
    if isinstance(encoder, TableEncoder):
        return _make_table(encoder)
    known = isinstance(model, KernelEstimator | TabularQuantileRegressor)
    return np.clip(np.zeros(model.n_features_in_), *model.input_range_)[None] if known else None


def _make_table(encoder: TableEncoder) -> dict[str, list[Any]]:
    """Return a table of two rows: one of values, one of missing values."""
    return {column.name: [SAMPLES.get(column.kind), None] for column in encoder.columns_}


def _try_model(model: Any) -> None:
    """Call all prediction methods of a fitted model of quernel on made-up rows; whatever is wrong with it raises."""
    if isinstance(model, BaseEstimator) and not _is_fitted(model):
        return
    rows = _make_rows(model)
    if rows is None or (isinstance(rows, dict) and isinstance(model, ConformalQuantileRegressor)):
        return
    n = 2 if isinstance(rows, dict) else len(rows)
    str(getattr(model, "plan_", model))
    model.predict(rows)
    if isinstance(model, ConformalQuantileRegressor):
        groups = {} if model._groups is None else {"groups": [next(iter(model.calibration_))] * n}
        ratio = {} if model._ratio is None else {"density_ratio": np.ones(n)}
        model.predict_interval(rows, **groups, **ratio)
    elif hasattr(model, "predict_proba"):  # not for every loss
        model.predict_proba(rows)
    elif isinstance(model, KernelQuantileRegressor | TabularQuantileRegressor | TableModel):
        model.predict(rows, float(np.mean(model.quantiles_)))  # a level between the fitted ones
        model.predict_cdf(rows, np.zeros(n))
        model.is_extrapolation(rows)
        if getattr(model, "interval", None) is not None:
            model.predict_interval(rows)


# What is checked of the objects of a class: everything in itself, then what rests on objects inside that are fine.
RULES: tuple[tuple[Any, Callable[[Any], None]], ...] = (
    (np.random.Generator | np.random.RandomState, _check_generator),
    (BaseEstimator, _check_estimator),
    (RandomFeatures, _check_random_features),
    (OneHotEncoder, _check_one_hot),
    (BSpline, _check_spline),
    (Tree, _check_tree),
    (BaseDecisionTree, _check_decision_tree),
    (BaseEnsemble, _check_ensemble),
    (BaseHistGradientBoosting, _check_histogram_trees),
    (KernelEstimator, _check_kernel_model),
    (TabularQuantileRegressor, _check_tabular),
    (ConformalQuantileRegressor, _check_conformal),
    (TableEncoder, _check_encoder),
    (TableModel, _check_table_model),
    (QuantileForecaster, _check_forecaster),
    (AdaptiveConformalRegressor, _check_adaptive),
)
TRIALS: tuple[tuple[Any, Callable[[Any], None]], ...] = (
    (BaseGradientBoosting, _check_gradient_boosting),
    (KernelEstimator | TabularQuantileRegressor | ConformalQuantileRegressor | TableModel, _try_model),
    (QuantileForecaster, _try_forecaster),
    (AdaptiveCalibrator, _try_calibrator),
)
