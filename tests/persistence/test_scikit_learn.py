"""Objects of scikit-learn in model files: kept as they are, and trees that are none refused before they are used."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    BaggingRegressor,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
    StackingRegressor,
)
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, SplineTransformer, StandardScaler
from sklearn.svm import SVR

import quernel
from quernel import ConformalQuantileRegressor, KernelClassifier
from support.model_files import assert_refused, node, read_archive, replace, tamper, write_archive
from support.models import LEVELS, SMALL, labels, plain_regressor, rows

X, Y = rows(80)
CURVES = plain_regressor(LEVELS, **SMALL)
MEDIAN = plain_regressor(0.5, **SMALL)
CLASSES = KernelClassifier("logistic", **SMALL)
FRAME = pd.DataFrame(X, columns=["a", "b"]).assign(c=np.where(X[:, 0] > 0, "u", "v"))
COLUMNS = ColumnTransformer(
    [("numbers", SimpleImputer(), ["a"]), ("text", OneHotEncoder(), make_column_selector(dtype_exclude=float))],
    remainder="passthrough",
    sparse_threshold=0,
)
GRID = {"standardscaler__with_mean": [True, False]}
TREES = [
    ("trees", ExtraTreesRegressor(3, random_state=0)),
    ("boosted", GradientBoostingRegressor(n_estimators=3, random_state=0)),
]
WRAPPED = {
    "pipeline": (make_pipeline(StandardScaler(), CURVES), X, Y),
    "columns": (make_pipeline(COLUMNS, MEDIAN), FRAME, Y),
    "function": (make_pipeline(FunctionTransformer(np.tanh), SplineTransformer(), MEDIAN), X, Y),
    "union": (make_pipeline(FeatureUnion([("p", PCA(1)), ("s", SelectKBest(f_regression, k=1))]), MEDIAN), X, Y),
    "target": (TransformedTargetRegressor(MEDIAN, func=np.log, inverse_func=np.exp), X, np.exp(Y)),
    "search": (
        GridSearchCV(make_pipeline(StandardScaler(), MEDIAN), {"standardscaler__with_mean": [True]}, cv=2),
        X,
        Y,
    ),
    "stacked with forests": (StackingRegressor([("kernel", MEDIAN), *TREES], cv=2), X, Y),
    "bagged": (BaggingRegressor(MEDIAN, 2, random_state=0), X, Y),
    "two targets": (MultiOutputRegressor(MEDIAN), X, np.column_stack([Y, -Y])),
    "calibrated": (CalibratedClassifierCV(CLASSES, cv=2), X, labels(X, ["p", "q"])),
    "conformal": (ConformalQuantileRegressor(make_pipeline(StandardScaler(), CURVES), 0.7, random_state=0), X, Y),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_what_is_around_a_model_is_kept_with_it(tmp_path, name):
    model, rows_, target = WRAPPED[name]
    model.fit(rows_, target)
    quernel.save(model, tmp_path / "m")
    loaded = quernel.load(tmp_path / "m")
    for method in ("predict", "predict_proba", "predict_interval"):
        if hasattr(model, method):
            np.testing.assert_array_equal(getattr(loaded, method)(rows_), getattr(model, method)(rows_))
    again = loaded.fit(rows_, target)
    np.testing.assert_array_equal(again.predict(rows_), model.predict(rows_))


def test_classes_whose_compiled_code_trusts_their_arrays_must_be_named(tmp_path):
    model = StackingRegressor([("kernel", MEDIAN), ("svr", SVR())], cv=2).fit(X, Y)
    with pytest.raises(TypeError, match=r"StackingRegressor\.estimators is of the type sklearn\.svm.* trusted=\['skl"):
        quernel.save(model, tmp_path / "m")
    quernel.save(model, tmp_path / "m", trusted=[SVR])
    np.testing.assert_array_equal(quernel.load(tmp_path / "m", trusted=[SVR]).predict(X), model.predict(X))


FORESTS = {
    "forest": RandomForestRegressor(2, random_state=0, max_leaf_nodes=12),
    "boosted": GradientBoostingClassifier(n_estimators=2, max_depth=2),
    "histograms": HistGradientBoostingRegressor(max_iter=2, max_leaf_nodes=8),
}
CHILDREN = {"forest": ("left_child", "right_child", "feature"), "boosted": ("left_child", "right_child", "feature"),
            "histograms": ("left", "right", "feature_idx")}  # fmt: skip


@pytest.fixture(scope="module", params=FORESTS)
def forest(request, tmp_path_factory):
    """The kind of a forest, and the bytes of its file."""
    path = tmp_path_factory.mktemp("forest") / "m"
    target = labels(X, ["a", "b", "c"]) if request.param == "boosted" else Y
    quernel.save(FORESTS[request.param].fit(X, target), path)
    return request.param, path.read_bytes()


def forge_nodes(members, change):
    """Change the nodes of all trees in a file."""
    for name, member in members.items():
        nodes = np.load(io.BytesIO(member)) if name.endswith(".npy") else np.empty(0)
        if nodes.dtype.names:
            made = io.BytesIO()
            np.save(made, change(nodes))
            members[name] = made.getvalue()


@pytest.mark.parametrize("forged", [10**9, 12345, -3, "itself", "the other"])
@pytest.mark.parametrize("field", [0, 1, 2])
def test_indices_of_trees_that_lead_elsewhere_are_refused(tmp_path, forest, field, forged):
    """Children of the root that are not there, or are the root itself, or the same; columns that are not there."""
    kind, whole = forest
    if field == 2 and isinstance(forged, str):
        forged = 2  # one more than there are

    def change(nodes):
        name, other = CHILDREN[kind][field], CHILDREN[kind][1 - field]
        value = {"itself": 0, "the other": nodes[other][0]}.get(forged, forged)
        nodes[name][0] = np.int64(value).astype(nodes.dtype[name])
        return nodes

    assert_refused(tmp_path / "m", tamper(whole, lambda _, members: forge_nodes(members, change)), "a tree")


def test_nodes_of_another_number_or_kind_are_refused(tmp_path, forest):
    _, whole = forest
    kinds = {
        "fewer": lambda nodes: nodes[:-1],
        "none": lambda nodes: nodes[:0],
        "more": lambda nodes: np.concatenate([nodes, nodes]),
        "other": lambda nodes: nodes[[nodes.dtype.names[0]]],
        "numbers": lambda nodes: np.zeros(len(nodes)),
        "one": lambda nodes: nodes[0],
        "one number": lambda nodes: np.float64(3),
    }
    for change in kinds.values():
        assert_refused(tmp_path / "m", tamper(whole, lambda _, members, it=change: forge_nodes(members, it)))


@pytest.mark.parametrize(
    ("name", "forged"),
    [
        *(("node_count", value) for value in (-5, 3)),
        *(("max_depth", value) for value in (-1, 0, 10**9)),
        *(("n_features_in_", value) for value in (1, 10**6, None)),
        *(("values", value) for value in (None, 1.0)),
        *(("tree_", value) for value in (None, "tree")),
        *(("estimators_", value) for value in (None, "trees", ("tree",))),
    ],
)
def test_trees_that_are_not_what_their_models_say_are_refused(tmp_path, name, forged):
    path, model = tmp_path / "m", FORESTS["boosted"]
    quernel.save(model.fit(X, labels(X, ["a", "b", "c"])), path)
    whole = path.read_bytes()
    if name == "max_depth":  # also a parameter
        assert_refused(path, tamper(whole, lambda schema, _: replace_tree(schema, name, node(forged))))
    else:
        assert_refused(path, tamper(whole, lambda schema, _: replace(schema, name, node(forged))))


def replace_tree(schema, name, forged):
    """Replace an entry of the state of every tree."""
    if isinstance(schema, dict) and schema.get("__loader__") == "TreeNode":
        replace(schema["content"], name, forged)
    for inside in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        replace_tree(inside, name, forged)


def test_trees_of_other_ensembles_are_refused(tmp_path):
    """Trees of two columns in a forest of three, and stages of three trees that add to one column."""
    wide = np.column_stack([X, X[:, 0]])
    forest = RandomForestRegressor(2, random_state=0).fit(wide, Y)
    forest.estimators_ = [forest.estimators_[0], RandomForestRegressor(1).fit(X, Y).estimators_[0]]
    with pytest.raises(ValueError, match="a tree of an ensemble has 2 columns, not 3"):
        quernel.save(forest, tmp_path / "m")
    boosted = GradientBoostingRegressor(n_estimators=2).fit(X, Y)
    boosted.estimators_ = GradientBoostingClassifier(n_estimators=2).fit(X, labels(X, ["a", "b", "c"])).estimators_
    boosted.n_trees_per_iteration_ = 3
    with pytest.raises(ValueError, match=r"3 trees add to predictions of shape \(1, 1\)"):
        quernel.save(boosted, tmp_path / "m")


def test_a_forest_written_again_without_change_is_accepted(tmp_path, forest):
    """So that the refusals above are due to the changes."""
    kind, whole = forest
    (tmp_path / "m").write_bytes(write_archive(*read_archive(whole)))
    np.testing.assert_array_equal(quernel.load(tmp_path / "m").predict(X), FORESTS[kind].predict(X))


COLORS = np.array(list("aabbbccd") * 10, dtype=object)[:, None]


@pytest.mark.parametrize(
    ("settings", "forged"),
    [
        ({}, {"_n_features_outs": [1]}),
        ({}, {"_n_features_outs": [10**9]}),
        ({"drop": "first"}, {"_drop_idx_after_grouping": np.array([-3], dtype=object)}),
        ({"max_categories": 2}, {"_default_to_infrequent_mappings": [np.array([0, 1, 2, 10**6])]}),
        ({"max_categories": 2}, {"_infrequent_indices": [np.array([-7, 2])]}),
        ({}, {"categories_": [np.array([3.0, 2.0, 1.0, 0.0])]}),
    ],
)
def test_categories_outside_of_the_encoded_matrix_are_refused(tmp_path, settings, forged):
    model = make_pipeline(OneHotEncoder(sparse_output=False, **settings), MEDIAN).fit(COLORS, Y)
    quernel.save(model, tmp_path / "m")
    np.testing.assert_array_equal(quernel.load(tmp_path / "m").predict(COLORS), model.predict(COLORS))
    vars(model[0]).update(forged)
    with pytest.raises(ValueError, match=r"cannot be saved: .*OneHotEncoder has categories without a column"):
        quernel.save(model, tmp_path / "n")


def test_generators_that_would_read_outside_of_their_buffer_are_refused(tmp_path):
    path = tmp_path / "m"
    for maker in (np.random.RandomState, lambda seed: np.random.Generator(np.random.Philox(seed))):
        model = plain_regressor(**(SMALL | {"random_state": maker(5)})).fit(X, Y)
        quernel.save(model, path, overwrite=True)
        whole = path.read_bytes()
        for name, forged in (("pos", 10**9), ("pos", -7), ("buffer_pos", 5), ("pool_size", 10**9)):
            if json.dumps(name) in whole.decode(errors="ignore"):
                change = lambda schema, _, name=name, forged=forged: replace(schema, name, node(forged))  # noqa: E731
                if name != "pool_size" or maker is not np.random.RandomState:
                    assert_refused(path, tamper(whole, change), "random generator")
