"""A model file gives back the model, or one clear error."""

import copy
import dataclasses
import inspect
import io
import os
import pickle
import sys
import warnings
import zipfile

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import (
    GroupKFold,
    GroupShuffleSplit,
    KFold,
    LeaveOneGroupOut,
    RepeatedKFold,
    ShuffleSplit,
    TimeSeriesSplit,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import quernel
from quernel import (
    ConformalQuantileRegressor,
    KernelQuantileRegressorCV,
    KernelRegressor,
)
from quernel.conformal.table_model import TableModel
from quernel.estimators.classifier import Isotonic
from quernel.kernels import Gaussian, SpectralKernel
from quernel.persistence import ModelFileError
from quernel.persistence.archive import HEADER_SIZE, add_checksum
from quernel.tables import TableEncoder
from quernel.tables.training_data import ReadOptions
from support.model_files import add, assert_refused, attributes, node, read_archive, replace, tamper, write_archive
from support.models import LEVELS, MAKERS, SMALL, conformal_by_group, fitted, plain_regressor, rows
from support.tables import prepare, sales

X_NEW = rows(50, seed=1)[0]


def answers(model):
    """All that a model can say about new rows."""
    names = ("predict", "decision_function", "predict_proba")
    outputs = [getattr(model, name)(X_NEW) for name in names if hasattr(model, name)]
    if isinstance(model, ConformalQuantileRegressor):
        outputs.append(model.predict_interval(X_NEW))
    return (
        [*outputs, model.predict(X_NEW, quantiles=[0.2, 0.7])] if len(getattr(model, "quantiles_", ())) > 1 else outputs
    )


def described(value):
    """Something that can be compared, of parameters that cannot."""
    return value.bit_generator.state if isinstance(value, np.random.Generator) else repr(value)


def test_a_model_with_landmarks_ships_without_the_matrix_of_its_features(tmp_path):
    X, y = rows(600)
    # For one level the product of projection and coefficients is what threads would divide between them.
    one = plain_regressor(0.5, kernel="laplacian", n_components=600, sampling="landmarks").fit(X, y)
    quernel.save(one, tmp_path / "one.quernel")
    np.testing.assert_array_equal(quernel.load(tmp_path / "one.quernel").predict(X_NEW), one.predict(X_NEW))
    model = plain_regressor(LEVELS, n_components=300, sampling="landmarks", warm_start=True).fit(X, y)
    quernel.save(model, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    weights = 8 * 300 * (X.shape[1] + len(LEVELS))
    assert (
        weights < (tmp_path / "m.quernel").stat().st_size < weights + 24_000 < 8 * model.feature_map_.projection_.size
    )
    np.testing.assert_array_equal(loaded.predict(X_NEW), model.predict(X_NEW))
    np.testing.assert_allclose(loaded.feature_map_.transform(X_NEW) @ loaded.coef_ + loaded.intercept_,
                               loaded._decision_function(X_NEW))  # fmt: skip
    whole = loaded.feature_map_.to_nystroem().transform(X_NEW)
    np.testing.assert_allclose(whole @ whole.T, (Phi := model.feature_map_.transform(X_NEW)) @ Phi.T, atol=1e-8)
    quernel.save(loaded, tmp_path / "again.quernel")
    np.testing.assert_array_equal(quernel.load(tmp_path / "again.quernel").predict(X_NEW), model.predict(X_NEW))
    loaded.fit(X, y)  # begins anew, with features that make the kernel
    np.testing.assert_array_equal(loaded.predict(X_NEW), plain_regressor(
        LEVELS, n_components=300, sampling="landmarks").fit(X, y).predict(X_NEW))  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_a_loaded_model_is_the_model_that_was_saved(name, tmp_path):
    model = fitted(name)
    quernel.save(model, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    assert type(loaded) is type(model)
    for before, after in zip(answers(model), answers(loaded), strict=True):
        np.testing.assert_array_equal(after, before)
        assert after.dtype == before.dtype
    if not isinstance(model.random_state, np.random.RandomState):
        before, after = model.get_params(), loaded.get_params()
        assert {k: described(v) for k, v in after.items()} == {k: described(v) for k, v in before.items()}
    assert set(vars(loaded)) == set(vars(model))
    assert (tmp_path / "m.quernel").stat().st_size < 1_000_000


@pytest.mark.parametrize("name", [name for name in MAKERS if name.startswith("tuned")])
def test_the_path_of_a_search_is_kept(name, tmp_path):
    model = fitted(name)
    quernel.save(model, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    assert list(loaded.cv_results_) == list(model.cv_results_)
    for key, before in model.cv_results_.items():
        after = loaded.cv_results_[key]
        assert type(after) is type(before)
        assert repr(after) == repr(before)
    for key in ("alpha_", "best_index_", "best_score_", "n_splits_"):
        assert getattr(loaded, key) == getattr(model, key)
    for key in ("bandwidth_", "bandwidth_choice_", "n_components_choice_"):
        assert repr(getattr(loaded, key)) == repr(getattr(model, key))


def test_choices_are_kept_and_print_what_they_printed(tmp_path):
    for name in ("learned bandwidth", "tuned learned bandwidth"):
        assert fitted(name).bandwidth_choice_.rounds
        quernel.save(fitted(name), tmp_path / "m.quernel", overwrite=True)
        assert str(quernel.load(tmp_path / "m.quernel").bandwidth_choice_) == str(fitted(name).bandwidth_choice_)


def test_a_search_goes_on_as_before(tmp_path):
    """Parameters are those that were saved: fitted again, the loaded model comes to the same."""
    quernel.save(fitted("tuned by a splitter"), tmp_path / "m.quernel")
    again = quernel.load(tmp_path / "m.quernel").fit(*rows())
    np.testing.assert_array_equal(again.predict(X_NEW), fitted("tuned by a splitter").predict(X_NEW))


@pytest.mark.parametrize(
    "kind", [KFold, RepeatedKFold, GroupKFold, ShuffleSplit, GroupShuffleSplit, TimeSeriesSplit, LeaveOneGroupOut]
)
def test_splitters_are_kept_as_their_arguments(kind, tmp_path):
    arguments = {"n_splits": 3, "test_size": 7, "gap": 1, "random_state": 4, "shuffle": True, "n_repeats": 2}
    taken = inspect.signature(kind).parameters
    splitter = kind(**{name: value for name, value in arguments.items() if name in taken})
    quernel.save(copy.copy(fitted("tuned")).set_params(cv=splitter), tmp_path / "m")
    loaded = quernel.load(tmp_path / "m").cv
    X, groups = np.zeros((40, 1)), np.arange(40) // 5 if "Group" in kind.__name__ else None
    before, after = (list(one.split(X, groups=groups)) for one in (splitter, loaded))
    assert type(loaded) is kind
    np.testing.assert_equal(after, before)


@pytest.mark.parametrize("labels", [["low", "high"], [3, 7], [False, True], [0.5, 1.5]])
@pytest.mark.parametrize("method", ["split", "cv+"])
def test_groups_keep_their_scores(tmp_path, labels, method):
    model = conformal_by_group(labels, method=method)
    groups = np.array(labels)[(X_NEW[:, 0] > 0).astype(int)]
    quernel.save(model, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    expected = model.predict_interval(X_NEW, groups=groups)
    np.testing.assert_array_equal(loaded.predict_interval(X_NEW, groups=groups), expected)
    assert np.abs(loaded.predict_interval(X_NEW, groups=groups[::-1]) - expected).max() > 0  # the label is looked at
    with pytest.raises(ValueError, match="give those of the new rows"):
        loaded.predict_interval(X_NEW)


def test_density_ratios_given_as_numbers_are_kept(tmp_path):
    X, y = rows()
    ratio, new = np.exp(X[:, 0]), np.exp(X_NEW[:, 0])
    model = ConformalQuantileRegressor(plain_regressor(LEVELS, **SMALL), 0.7, random_state=0)
    model.fit(X, y, density_ratio=ratio)
    quernel.save(model, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    expected = model.predict_interval(X_NEW, density_ratio=new)
    np.testing.assert_array_equal(loaded.predict_interval(X_NEW, density_ratio=new), expected)


def test_functions_of_rows_are_refused_with_a_remedy(tmp_path):
    X, y = rows()
    for name in ("groups", "density_ratio"):
        model = ConformalQuantileRegressor(plain_regressor(LEVELS, **SMALL), 0.7, random_state=0)
        model.fit(X, y, **{name: lambda X: (X[:, 0] > 0) + 1})
        with pytest.raises(TypeError, match=r"_(groups|ratio) is of the type .*<lambda>.*\(a function by an array"):
            quernel.save(model, tmp_path / "m")
    assert os.listdir(tmp_path) == []


class Band(LinearRegression):
    """A model of the user's own."""

    def predict(self, X):
        return super().predict(X)[:, None] + np.array([-1.0, 1.0])


@pytest.mark.parametrize(
    "calibrated",
    [
        lambda X, y: ConformalQuantileRegressor(Band(), random_state=0),
        lambda X, y: ConformalQuantileRegressor(Band().fit(X, y), method="prefit"),
        lambda X, y: ConformalQuantileRegressor(FrozenEstimator(Band().fit(X, y))),
    ],
)
def test_models_of_other_classes_are_kept_if_they_are_trusted(tmp_path, calibrated):
    model = calibrated(*rows()).fit(*rows())
    path, name = tmp_path / "m", f"{Band.__module__}.Band"
    with pytest.raises(TypeError, match=rf"estimator(\.estimator)? is of the type .*Band.* give trusted=\['{name}'\]"):
        quernel.save(model, path)
    for trusted in ([Band], [name]):
        quernel.save(model, path, trusted=trusted, overwrite=True)
        loaded = quernel.load(path, trusted=trusted)
        np.testing.assert_array_equal(loaded.predict_interval(X_NEW), model.predict_interval(X_NEW))
    with pytest.raises(ModelFileError, match=rf"untrusted type {name}.* If you trust its source"):
        quernel.load(path)
    with pytest.raises(TypeError, match="trusted must be a list"):
        quernel.load(path, trusted=name)


def test_what_is_no_number_is_refused_by_name(tmp_path):
    X, y = rows()
    settings = {"alphas": [1e-3], "n_components": 10, "random_state": 0}
    model = KernelQuantileRegressorCV(cv=KFold(2).split(X), **settings).fit(X, y)
    with pytest.raises(TypeError, match=r"'generator' object.* by a list, with set_params"):
        quernel.save(model, tmp_path / "m")
    with pytest.raises(TypeError, match=r"KernelQuantileRegressorCV\.alphas is of the type builtins\.range"):
        quernel.save(model.set_params(cv=5, alphas=range(1, 3)), tmp_path / "m")
    for keys in ({True: 1.0, False: 2.0}, {None: 1.0}):  # which skops would read as {True: 2.0}, and not at all
        model = copy.copy(fitted("labels of truth")).set_params(class_weight=keys)
        with pytest.raises(TypeError, match=r"KernelClassifier\.class_weight has booleans or None as keys"):
            quernel.save(model, tmp_path / "m")
    assert os.listdir(tmp_path) == []


def test_a_model_that_is_there_twice_is_written_once(tmp_path):
    """A prefit model is both what was given and what predicts."""
    quernel.save(fitted("random gaussian"), tmp_path / "inside")
    quernel.save(fitted("conformal around a fitted model"), tmp_path / "around")
    inside, around = ((tmp_path / name).read_bytes() for name in ("inside", "around"))
    coef = fitted("random gaussian").coef_.tobytes()
    assert (inside.count(coef[:64]), around.count(coef[:64])) == (1, 1)


@pytest.mark.parametrize("part", ["model", "below", "estimators_"])
def test_scores_that_do_not_fit_are_refused(tmp_path, part):
    model = fitted("conformal cv+")
    bad = copy.deepcopy(model)
    (scores,) = bad.calibration_.values()
    if part == "estimators_":
        bad.estimators_ = [fitted("loss huber")]
    else:
        changed = {"model": scores.model + 1, "below": scores.below[1:]}
        bad._calibration = [(None, dataclasses.replace(scores, **{part: changed[part]}))]
    with pytest.raises(ValueError, match=r"cannot be saved: .*(do not fit together|no model of quantiles)"):
        quernel.save(bad, tmp_path / "m")


def test_a_model_of_tables_is_kept_with_its_columns(tmp_path):
    table, new = sales(), sales(60, seed=1)
    training = prepare(table, ReadOptions("price", log_target=True))
    model = plain_regressor(LEVELS, n_components=50, random_state=0).fit(training.rows.X, training.rows.y)
    saved = TableModel(training.encoder, model, "price", log_target=True)
    quernel.save(saved, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    assert (loaded.encoder.columns_, loaded.target, loaded.log_target) == (saved.encoder.columns_, "price", True)
    np.testing.assert_array_equal(loaded.predict(new), saved.predict(new))
    np.testing.assert_array_equal(loaded.predict(new.to_pandas(), quantiles=0.3), saved.predict(new, quantiles=0.3))
    fewer = TableEncoder().fit(table.select(["age", "place"]))
    wrong = TableModel(fewer, model, "price", log_target=True)
    with pytest.raises(ValueError, match="cannot be saved: its table has"):
        quernel.save(wrong, tmp_path / "wrong.quernel")


def test_generators_go_on_where_they_were(tmp_path):
    for maker in (np.random.default_rng, np.random.RandomState):
        model = plain_regressor(**(SMALL | {"random_state": maker(5)})).fit(*rows())
        quernel.save(model, tmp_path / "m.quernel", overwrite=True)
        loaded = quernel.load(tmp_path / "m.quernel").random_state
        assert loaded.normal() == model.random_state.normal()


def test_names_of_columns_and_their_order_are_kept(tmp_path):
    X, y = rows()
    frame = pd.DataFrame(X, columns=["wind", "load"])
    quernel.save(plain_regressor(LEVELS, **SMALL).fit(frame, y), tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    assert loaded.feature_names_in_.tolist() == ["wind", "load"]
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(frame[["load", "wind"]])


def test_what_was_drawn_stays_read_only(tmp_path):
    quernel.save(fitted("one level"), tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    assert not loaded.feature_map_.frequencies_.flags.writeable
    assert loaded.coef_.flags.writeable


def test_the_same_model_makes_the_same_file(tmp_path):
    for name in "ab":
        quernel.save(fitted("multinomial"), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# Files that are not whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "m.quernel"
    quernel.save(fitted("one level"), path)
    return path.read_bytes()


def test_the_file_itself_is_accepted(whole, tmp_path):
    (tmp_path / "m").write_bytes(whole)
    quernel.load(tmp_path / "m")


def test_a_change_of_any_byte_is_refused(whole, tmp_path):
    """One byte in every stretch of 61: magic, seal, names, document, headers, numbers and directory all have some."""
    for place in [*range(0, len(whole), 61), len(whole) - 1]:
        for flip in (0x01, 0xFF):
            changed = bytearray(whole)
            changed[place] ^= flip
            assert_refused(tmp_path / "m", bytes(changed), "not a quernel model|damaged")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused(whole, tmp_path, share):
    assert_refused(tmp_path / "m", whole[: int(share * len(whole))], "not a quernel model|damaged")


def test_something_appended_is_refused(whole, tmp_path):
    assert_refused(tmp_path / "m", whole + b"x", "damaged")


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"{}", pickle.dumps({"a": 1}), b"quernel"])
def test_a_foreign_file_is_refused(tmp_path, content):
    assert_refused(tmp_path / "m", content, "not a quernel model file")


def without_coefficients(schema, _):
    replace(schema, "coef_", None)


def with_other_coefficients(schema, _):
    replace(schema, "coef_", attributes(schema)["intercept_"])


def without_parameter(schema, _):
    replace(schema, "tol", None)


def with_method(schema, _):
    add(schema, "predict", node(1))


def with_unknown_class(schema, _):
    schema["__module__"], schema["__class__"] = "subprocess", "Popen"


def with_unknown_function(schema, _):
    replace(schema, "tol", node(1) | {"__module__": "os", "__class__": "system", "__loader__": "FunctionNode"})


def with_class_of_another_loader(schema, _):
    """A class that is known, called with what the file says."""
    forged = node(1) | {"__loader__": "ConstructorFromReduceNode", "content": node((1.0,))}
    replace(schema, "kernel_", forged | {"__module__": "quernel.kernels.fourier", "__class__": "Gaussian"})


def with_part_as_model(schema, _):
    kernel = attributes(schema)["kernel_"] | {name: schema[name] for name in ("protocol", "quernel")}
    schema.clear()
    schema.update(kernel)


def with_old_protocol(schema, _):
    schema["protocol"] = 1


def with_pickled_array(_, members):
    made = io.BytesIO()
    np.save(made, np.array([{"code": os.system}], dtype=object), allow_pickle=True)
    members["0.npy"] = made.getvalue()


def with_boundless_array(_, members, shape=(10**12,)):
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": "<f8", "fortran_order": False, "shape": shape})
    members["0.npy"] = made.getvalue()


def with_boundless_empty_array(schema, members):
    with_boundless_array(schema, members, (10**12, 0))


def with_compressed_arrays(_, members):
    made = io.BytesIO()
    np.savez_compressed(made, np.zeros(10**6))
    members["0.npz"] = made.getvalue()


def with_missing_array(_, members):
    members.popitem()


def with_array_of_many(schema, _):
    """A small file must not become a large model."""
    array = attributes(schema)["coef_"]
    replace(schema, "duality_gap_", array | {"__id__": node(1)["__id__"]})


def with_references(schema, _):
    """Forty lists of the list before, twice each, are a trillion of objects to whoever follows them."""
    for _ in range(40):
        inner = node(()) | {"content": [schema.get("last", node(1))] * 2}
        schema["last"] = {"__id__": inner["__id__"]}
        replace(schema, "tol", inner)


def of_the_future(schema, _):
    schema["quernel"] |= {"format": 99, "quernel": "7.0"}


def without_format(schema, _):
    del schema["quernel"]


def with_bad_kernel(schema, _):
    replace(schema, "bandwidth", node(-1.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_coefficients, "coef_"),
        (with_other_coefficients, "coefficients have the shape"),
        (without_parameter, "tol"),
        (with_method, "predict"),
        (with_unknown_class, r"untrusted type subprocess\.Popen.*trusted=\['subprocess\.Popen'\]"),
        (with_unknown_function, r"tol is of the untrusted type os\.system"),
        (with_class_of_another_loader, r"kernel_ is of the untrusted type quernel\.kernels"),
        (with_part_as_model, "Gaussian, not a model"),
        (with_old_protocol, "protocol 1 of skops"),
        (with_pickled_array, "does not hold what it says"),
        (with_boundless_array, "does not hold what it says"),
        (with_boundless_empty_array, "does not hold what it says"),
        (with_compressed_arrays, "of an unknown kind"),
        (with_missing_array, "no item named"),
        (with_array_of_many, "shares an array"),
        (with_references, "has no loader"),
        (of_the_future, r"format 99, written by quernel 7\.0.*Update quernel"),
        (without_format, "does not say which format"),
        (with_bad_kernel, "bandwidth must be positive"),
    ],
)
def test_a_tampered_file_with_a_right_checksum_cannot_smuggle_anything_in(whole, tmp_path, change, message):
    assert_refused(tmp_path / "m", tamper(whole, change), message)


def test_a_file_written_again_without_change_is_accepted(whole, tmp_path):
    """So that the refusals above are due to the changes."""
    (tmp_path / "m").write_bytes(tamper(whole, lambda *_: None))
    assert quernel.load(tmp_path / "m").coef_.shape == (30, 1)


@pytest.mark.parametrize("document", ["[" * 100_000, "not json", "[]", "null", '{"quernel": {"format": 1}}'])
def test_documents_that_make_no_sense_are_refused(tmp_path, document):
    assert_refused(tmp_path / "m", write_archive(document))


def test_compressed_members_are_refused(whole, tmp_path):
    """A few compressed bytes may claim to be as many gigabytes."""
    assert_refused(
        tmp_path / "m", write_archive(*read_archive(whole), compression=zipfile.ZIP_DEFLATED), "must not be compressed"
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_of_the_same_name_are_refused(whole, tmp_path):
    content = io.BytesIO(whole[HEADER_SIZE:])
    with zipfile.ZipFile(content, "a") as archive:
        archive.writestr("0.npy", archive.read("0.npy"))
    assert_refused(tmp_path / "m", add_checksum(content.getvalue()), "the same name")


# What cannot be saved


def test_nothing_is_overwritten_unless_asked(tmp_path):
    path = tmp_path / "m.quernel"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        quernel.save(fitted("one level"), path)
    assert path.read_bytes() == b"mine"
    quernel.save(fitted("one level"), path, overwrite=True)
    assert quernel.load(path).predict(X_NEW).shape == (50,)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "m.quernel"
    path.write_bytes(b"mine")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"m\.quernel could not be written: No space left"):
        quernel.save(fitted("one level"), path, overwrite=True)
    assert path.read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["m.quernel"]


def test_paths_that_cannot_be_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"folder .*nowhere is missing"):
        quernel.save(fitted("one level"), tmp_path / "nowhere" / "m.quernel")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        quernel.save(fitted("one level"), tmp_path)
    with pytest.raises(FileNotFoundError):
        quernel.load(tmp_path / "m.quernel")


def test_unfitted_and_foreign_objects_are_refused(tmp_path):
    path = tmp_path / "m.quernel"
    for unfitted in (KernelRegressor(), StandardScaler(), make_pipeline(StandardScaler(), KernelRegressor())):
        with pytest.raises(NotFittedError):
            quernel.save(unfitted, path)
    for other in ("model", Gaussian(1.0), StandardScaler):
        with pytest.raises(TypeError, match=r"quernel\.save takes a fitted estimator of quernel or scikit-learn; got"):
            quernel.save(other, path)
    assert not path.exists()


def box(rng, n_components, n_columns):
    return rng.uniform(-1, 1, (n_columns, n_components))


class Shadow(Gaussian):
    """A kernel of the user's own."""


def test_code_of_the_user_is_refused_by_name(tmp_path):
    model = plain_regressor(kernel=SpectralKernel(1.0, box), **SMALL).fit(*rows())
    with pytest.raises(TypeError, match=r"kernel\.sampler is of the type .*box.* never code"):
        quernel.save(model, tmp_path / "m")
    with pytest.raises(TypeError, match="Shadow"):
        quernel.save(plain_regressor(kernel=Shadow(1.0), **SMALL).fit(*rows()), tmp_path / "m")
    assert os.listdir(tmp_path) == []


def test_curves_of_probabilities_must_fit_the_classes(tmp_path):
    bad = copy.copy(fitted("isotonic chances of 3"))
    bad.calibrated_ = fitted("isotonic chances of 2").calibrated_
    with pytest.raises(ValueError, match="1 curves of probabilities for 3 scores"):
        quernel.save(bad, tmp_path / "m")
    with pytest.raises(ValueError, match="isotonic curve"):
        Isotonic(np.array([1.0, 0.0]), np.array([0.0, 1.0]))


class Narrow(Gaussian):
    """A kernel that is registered for a while."""

    name = "narrow"


def test_kernels_are_known_as_long_as_they_are_registered(tmp_path, monkeypatch):
    model = plain_regressor(0.5, kernel=Narrow(0.3), n_components=10, random_state=0).fit(*rows(100))
    with pytest.raises(
        TypeError, match=r"KernelQuantileRegressor.kernel is of the type .*Narrow, which a model file does not hold"
    ):
        quernel.save(model, tmp_path / "m")
    with monkeypatch.context() as registered:
        registered.setitem(quernel.kernels.KERNELS, "narrow", Narrow)
        quernel.save(model, tmp_path / "m")
        np.testing.assert_array_equal(quernel.load(tmp_path / "m").predict(X_NEW), model.predict(X_NEW))
    with pytest.raises(ModelFileError, match=r"untrusted type .*Narrow"):
        quernel.load(tmp_path / "m")


def test_loading_warns_of_nothing(whole, tmp_path):
    (tmp_path / "m").write_bytes(whole)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quernel.load(str(tmp_path / "m"))
    assert not caught


def test_without_onnx_the_export_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install onnx"):
        quernel.to_onnx(fitted("one level"), tmp_path / "m.onnx")
    assert os.listdir(tmp_path) == []
