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
from sklearn.model_selection import GridSearchCV, KFold, RepeatedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import quernel
from quernel import (
    ConformalQuantileRegressor,
    KernelQuantileRegressor,
    KernelQuantileRegressorCV,
    KernelRegressor,
)
from quernel.conformal.table_model import TableModel
from quernel.estimators.multiclass import Isotonic
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian, SpectralKernel
from quernel.persistence import ModelFileError
from quernel.persistence.models import SPLITTERS
from quernel.tables import TableEncoder
from quernel.tables.training_data import ReadOptions, prepare
from support.model_files import assert_refused, read_archive, tamper, write_archive
from support.models import LEVELS, MAKERS, SMALL, conformal_by_group, fitted, rows
from support.tables import sales

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
    one = KernelQuantileRegressor(0.5, kernel="laplacian", n_components=600, sampling="landmarks").fit(X, y)
    quernel.save(one, tmp_path / "one.quernel")
    np.testing.assert_array_equal(quernel.load(tmp_path / "one.quernel").predict(X_NEW), one.predict(X_NEW))
    model = KernelQuantileRegressor(LEVELS, n_components=300, sampling="landmarks", warm_start=True).fit(X, y)
    quernel.save(model, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    weights = 8 * 300 * (X.shape[1] + len(LEVELS))
    assert (
        weights < (tmp_path / "m.quernel").stat().st_size < weights + 20_000 < 8 * model.feature_map_.projection_.size
    )
    np.testing.assert_array_equal(loaded.predict(X_NEW), model.predict(X_NEW))
    np.testing.assert_allclose(loaded.feature_map_.transform(X_NEW) @ loaded.coef_ + loaded.intercept_,
                               loaded._decision_function(X_NEW))  # fmt: skip
    whole = loaded.feature_map_.to_nystroem().transform(X_NEW)
    np.testing.assert_allclose(whole @ whole.T, (Phi := model.feature_map_.transform(X_NEW)) @ Phi.T, atol=1e-8)
    quernel.save(loaded, tmp_path / "again.quernel")
    np.testing.assert_array_equal(quernel.load(tmp_path / "again.quernel").predict(X_NEW), model.predict(X_NEW))
    loaded.fit(X, y)  # begins anew, with features that make the kernel
    np.testing.assert_array_equal(loaded.predict(X_NEW), KernelQuantileRegressor(
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


@pytest.mark.parametrize("kind", SPLITTERS)
def test_splitters_are_kept_as_their_arguments(kind, tmp_path):
    arguments = {"n_splits": 3, "test_size": 7, "gap": 1, "random_state": 4, "shuffle": True}
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
    model = ConformalQuantileRegressor(KernelQuantileRegressor(LEVELS, **SMALL), 0.7, random_state=0)
    model.fit(X, y, density_ratio=ratio)
    quernel.save(model, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    expected = model.predict_interval(X_NEW, density_ratio=new)
    np.testing.assert_array_equal(loaded.predict_interval(X_NEW, density_ratio=new), expected)


def test_functions_of_rows_are_refused_with_a_remedy(tmp_path):
    X, y = rows()
    for name in ("groups", "density_ratio"):
        model = ConformalQuantileRegressor(KernelQuantileRegressor(LEVELS, **SMALL), 0.7, random_state=0)
        model.fit(X, y, **{name: lambda X: (X[:, 0] > 0) + 1})
        with pytest.raises(ValueError, match=rf"{name} was given to fit as a function.*predict_interval\(X, {name}="):
            quernel.save(model, tmp_path / "m")
    assert os.listdir(tmp_path) == []


def test_foreign_models_and_splitters_are_refused_with_a_remedy(tmp_path):
    X, y = rows()

    class Band(LinearRegression):
        def predict(self, X):
            return super().predict(X)[:, None] + np.array([-1.0, 1.0])

    foreign = Band().fit(X, y)
    for model in (
        ConformalQuantileRegressor(foreign, random_state=0).fit(X, y),
        ConformalQuantileRegressor(foreign, method="prefit").fit(X, y),
        ConformalQuantileRegressor(FrozenEstimator(foreign)).fit(X, y),
        ConformalQuantileRegressor(make_pipeline(StandardScaler(), KernelQuantileRegressor([0.05, 0.95], **SMALL)))
        .fit(X, y),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"\.estimator is a .*(Band|Pipeline).*method='prefit'"):
            quernel.save(model, tmp_path / "m")
    settings = {"alphas": [1e-3], "n_components": 10, "random_state": 0}
    for cv in (RepeatedKFold(n_splits=2, n_repeats=1), KFold(2).split(X)):
        model = KernelQuantileRegressorCV(cv=cv, **settings).fit(X, y)
        with pytest.raises(TypeError, match=r"KernelQuantileRegressorCV\.cv is a .*set_params\(cv=5\)"):
            quernel.save(model, tmp_path / "m")
    with pytest.raises(TypeError, match=r"KernelQuantileRegressorCV\.alphas is a .*range.* list of numbers"):
        quernel.save(model.set_params(cv=5, alphas=range(1, 3)), tmp_path / "m")
    quernel.save(model.set_params(alphas=[1, 2]), tmp_path / "m")
    np.testing.assert_array_equal(quernel.load(tmp_path / "m").predict(X_NEW), model.predict(X_NEW))


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
        bad.calibration_ = {None: dataclasses.replace(scores, **{part: changed[part]})}
    quernel.save(bad, tmp_path / "m")
    with pytest.raises(ModelFileError, match=r"do not fit together|no model of quantiles"):
        quernel.load(tmp_path / "m")


def test_a_model_of_tables_is_kept_with_its_columns(tmp_path):
    table, new = sales(), sales(60, seed=1)
    training = prepare(table, ReadOptions("price", log_target=True))
    model = KernelQuantileRegressor(LEVELS, n_components=50, random_state=0).fit(training.X, training.y)
    saved = TableModel(training.encoder, model, "price", log_target=True)
    quernel.save(saved, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    assert (loaded.encoder.columns_, loaded.target, loaded.log_target) == (saved.encoder.columns_, "price", True)
    np.testing.assert_array_equal(loaded.predict(new), saved.predict(new))
    np.testing.assert_array_equal(loaded.predict(new.to_pandas(), quantiles=0.3), saved.predict(new, quantiles=0.3))
    fewer = TableEncoder.from_encodings({column.name: column for column in saved.encoder.columns_[1:]}, {})
    wrong = TableModel(fewer, model, "price", log_target=True)
    quernel.save(wrong, tmp_path / "wrong.quernel")
    with pytest.raises(ModelFileError, match="its table has"):
        quernel.load(tmp_path / "wrong.quernel")


def test_generators_go_on_where_they_were(tmp_path):
    for maker in (np.random.default_rng, np.random.RandomState):
        model = KernelQuantileRegressor(**(SMALL | {"random_state": maker(5)})).fit(*rows())
        quernel.save(model, tmp_path / "m.quernel", overwrite=True)
        loaded = quernel.load(tmp_path / "m.quernel").random_state
        assert loaded.normal() == model.random_state.normal()


def test_names_of_columns_and_their_order_are_kept(tmp_path):
    X, y = rows()
    frame = pd.DataFrame(X, columns=["wind", "load"])
    quernel.save(KernelQuantileRegressor(LEVELS, **SMALL).fit(frame, y), tmp_path / "m.quernel")
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


def state(document):
    return {name: i for i, (name, _) in enumerate(document["model"]["state"])}, document["model"]["state"]


def without_coefficients(document, _):
    where, entries = state(document)
    del entries[where["coef_"]]


def with_other_coefficients(document, _):
    where, entries = state(document)
    entries[where["coef_"]] = ["coef_", entries[where["intercept_"]][1]]


def without_parameter(document, _):
    where, entries = state(document)
    del entries[where["tol"]]


def with_method(document, _):
    state(document)[1].append(["predict", 1])


def with_unknown_class(document, _):
    document["model"]["object"] = "Popen"


def with_part_as_model(document, _):
    where, entries = state(document)
    document["model"] = entries[where["feature_map_"]][1]


def with_pickled_array(_, arrays):
    made = io.BytesIO()
    np.save(made, np.array([{"code": os.system}], dtype=object), allow_pickle=True)
    arrays[0] = made.getvalue()


def with_boundless_array(_, arrays):
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    arrays[0] = made.getvalue()


def with_missing_array(_, arrays):
    arrays.pop()


def of_the_future(document, _):
    document["format"], document["quernel"] = 99, "7.0"


def without_format(document, _):
    del document["format"]


def with_bad_kernel(document, _):
    where, entries = state(document)
    entries[where["kernel"]][1] = {"object": "Gaussian", "state": [["bandwidth", -1.0]]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_coefficients, "coef_"),
        (with_other_coefficients, "coefficients have the shape"),
        (without_parameter, "tol"),
        (with_method, "predict"),
        (with_unknown_class, "'Popen' are unknown"),
        (with_part_as_model, "RandomFeatures, not a model"),
        (with_pickled_array, "does not hold what it says"),
        (with_boundless_array, "does not hold what it says"),
        (with_missing_array, "is missing"),
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


@pytest.mark.parametrize("document", ["[" * 100_000, "not json", "[]", "null", '{"format": 1}'])
def test_documents_that_make_no_sense_are_refused(tmp_path, document):
    assert_refused(tmp_path / "m", write_archive(document))


def test_compressed_members_are_refused(whole, tmp_path):
    """A few compressed bytes may claim to be as many gigabytes."""
    assert_refused(
        tmp_path / "m", write_archive(*read_archive(whole), compression=zipfile.ZIP_DEFLATED), "must not be compressed"
    )


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
    with pytest.raises(NotFittedError):
        quernel.save(KernelRegressor(), path)
    for other in (StandardScaler(), make_pipeline(fitted("one level")), RandomFeatures(), "model"):
        with pytest.raises(TypeError, match=r"quernel\.save takes a fitted KernelQuantileRegressor"):
            quernel.save(other, path)
    assert not path.exists()


@pytest.mark.parametrize("write", [quernel.save, quernel.to_onnx])
def test_a_model_inside_of_scikit_learns_can_be_got_at(tmp_path, write):
    model = fitted("one level")
    search = GridSearchCV(KernelQuantileRegressor(**SMALL), {"alpha": [0.1]}, cv=2).fit(*rows())
    for other, advice in (
        (make_pipeline(StandardScaler(), model), r"got Pipeline\. Give it the model in the last step, pipeline\[-1\]"),
        (FrozenEstimator(model), r"got FrozenEstimator\. .* model\.estimator\."),
        (search, r"got GridSearchCV\. .* search\.best_estimator_\."),
        (StandardScaler(), r"got StandardScaler\. Fit one of those"),
    ):
        with pytest.raises(TypeError, match=advice):
            write(other, tmp_path / "m")


def box(rng, n_components, n_columns):
    return rng.uniform(-1, 1, (n_columns, n_components))


class Shadow(Gaussian):
    """A kernel of the user's own."""


def test_code_of_the_user_is_refused_by_name(tmp_path):
    model = KernelQuantileRegressor(kernel=SpectralKernel(1.0, box), **SMALL).fit(*rows())
    with pytest.raises(TypeError, match=r"KernelQuantileRegressor\.kernel is a .*SpectralKernel.* never code"):
        quernel.save(model, tmp_path / "m")
    with pytest.raises(TypeError, match="Shadow"):
        quernel.save(KernelQuantileRegressor(kernel=Shadow(1.0), **SMALL).fit(*rows()), tmp_path / "m")
    assert os.listdir(tmp_path) == []


def test_curves_of_probabilities_must_fit_the_classes(tmp_path):
    bad = copy.copy(fitted("isotonic chances of 3"))
    bad.calibrated_ = fitted("isotonic chances of 2").calibrated_
    quernel.save(bad, tmp_path / "m")
    with pytest.raises(ModelFileError, match="1 curves of probabilities for 3 scores"):
        quernel.load(tmp_path / "m")
    with pytest.raises(ValueError, match="isotonic curve"):
        Isotonic(np.array([1.0, 0.0]), np.array([0.0, 1.0]))


def test_kernels_are_known_as_long_as_they_are_registered(tmp_path, monkeypatch):
    class Narrow(quernel.kernels.Gaussian):
        name = "narrow"

    model = KernelQuantileRegressor(0.5, kernel=Narrow(0.3), n_components=10, random_state=0).fit(*rows(100))
    with pytest.raises(
        TypeError, match=r"KernelQuantileRegressor.kernel is a .*Narrow, which a model file cannot hold"
    ):
        quernel.save(model, tmp_path / "m")
    with monkeypatch.context() as registered:
        registered.setitem(quernel.kernels.KERNELS, "narrow", Narrow)
        quernel.save(model, tmp_path / "m")
        np.testing.assert_array_equal(quernel.load(tmp_path / "m").predict(X_NEW), model.predict(X_NEW))
    with pytest.raises(ModelFileError, match="objects of the class 'Narrow' are unknown"):
        quernel.load(tmp_path / "m")


def test_loading_warns_of_nothing(whole, tmp_path):
    (tmp_path / "m").write_bytes(whole)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quernel.load(str(tmp_path / "m"))
    assert not caught


def test_without_onnx_the_export_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'quernel\[onnx\]'"):
        quernel.to_onnx(fitted("one level"), tmp_path / "m.onnx")
    assert os.listdir(tmp_path) == []
