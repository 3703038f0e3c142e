"""Fits that do not begin from nothing: warm starts and checkpoints. Right answers, and for less work."""

import json

import numpy as np
import pytest
from sklearn.base import clone

import quernel
from quernel import KernelClassifier, KernelRegressor
from quernel.data import MemmapRows
from quernel.estimators.solve import Task
from quernel.losses import LOSSES
from quernel.solvers.result import Checkpoint, InitialPoint
from support.models import plain_regressor

SMALL = 1_200_000


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (40_000, 3))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + (0.3 + 0.2 * X[:, 2] ** 2) * rng.standard_normal(len(X))


@pytest.fixture
def work(monkeypatch):
    """Sweeps and rows of Hessians of every fit."""
    done, solve_on = [], Task.solve

    def solve(self, rows, **kwargs):
        result = solve_on(self, rows, **kwargs)
        done.append((result.sweeps, result.hessian_rows))
        return result

    monkeypatch.setattr(Task, "solve", solve)
    return done


MODELS = {
    "quantiles": (lambda **kwargs: plain_regressor([0.1, 0.5, 0.9], **kwargs), lambda y: y),
    "huber": (lambda **kwargs: KernelRegressor("huber", **kwargs), lambda y: y),
    "hinge": (lambda **kwargs: KernelClassifier("hinge", **kwargs), lambda y: y > 0.5),
}


@pytest.mark.parametrize(
    ("name", "n", "M", "most"),
    [
        ("quantiles", 6000, 50, 0.6),
        ("hinge", 6000, 50, 0.7),
        ("quantiles", 40_000, 60, 0.5),
        ("hinge", 40_000, 60, 0.5),
        ("huber", 40_000, 60, 0.8),
    ],
)
def test_a_warm_start_on_more_rows_pays(name, n, M, most, data, work):
    make, target = MODELS[name]
    X, y = data[0][:n], target(data[1][:n])
    kwargs = {"n_components": M, "random_state": 0}
    model = make(**kwargs, warm_start=True).fit(X[: n * 9 // 10], y[: n * 9 // 10])
    features, alpha = model.feature_map_, model.alpha_
    model.fit(X, y)
    assert model.feature_map_ is features
    assert model.alpha_ == alpha
    assert model.duality_gap_.max() <= 1e-6
    make(**kwargs, alpha=alpha, bandwidth=model.bandwidth_).fit(X, y)
    _, warm, cold = (sweeps * n + hessian_rows * M for sweeps, hessian_rows in work)  # times M: operations
    assert warm < most * cold


def test_a_warm_start_gives_the_solution_on_the_new_rows(data):
    X, y = (part[:5000] for part in data)
    model = plain_regressor([0.2, 0.7], n_components=40, random_state=0, warm_start=True, tol=1e-9)
    model.fit(X[:3000], y[:3000]).fit(X, y)
    objective = model.objective_
    model.coef_ = np.zeros_like(model.coef_)  # as if from nothing, with the same features and ridge weight
    np.testing.assert_allclose(model.fit(X, y).objective_, objective, rtol=1e-8)


def of_loss(name, X, y, **kwargs):
    """An estimator of this loss, and rows for it."""
    if LOSSES[name].margin:
        return KernelClassifier(name, **kwargs), X, y > 0.5
    return KernelRegressor(name, **kwargs), X, y


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_a_warm_start(name, data):
    # Duals of some losses have no bounds, and so no middle to begin from.
    model, X, y = of_loss(name, *(part[:600] for part in data), n_components=30, random_state=0, warm_start=True)
    cold = model.fit(X, y).objective_
    warm = model.fit(X[:400], y[:400]).fit(X, y)
    assert warm.duality_gap_.max() <= 1e-6
    np.testing.assert_allclose(warm.objective_, cold, rtol=2e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_bandwidths_are_learned_for_the_squared_hinge(classes):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (150, 1))
    labels = np.digitize(X[:, 0] + 0.3 * rng.standard_normal(150), np.arange(1, classes) / classes)
    model = KernelClassifier("squared_hinge", kernel="gaussian", bandwidth="learned", random_state=0).fit(X, labels)
    assert model.duality_gap_.max() <= 1e-6


@pytest.mark.parametrize("name", ["squared", "expectile", "squared_hinge"])
def test_duals_without_bounds_go_on_from_a_checkpoint(name, data, tmp_path, monkeypatch):
    kwargs = {"n_components": 52, "random_state": 0, "max_memory": SMALL}
    model, X, y = of_loss(name, *data, **kwargs)
    rows, path = MemmapRows(X, y.astype(float)), tmp_path / "fit.ckpt"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(Interrupted):
            model.fit(rows, checkpoint=path)
    again = clone(model).fit(rows, checkpoint=path)
    assert again.duality_gap_.max() <= 1e-6
    np.testing.assert_allclose(again.objective_, clone(model).fit(rows).objective_, rtol=2e-6)


def test_a_warm_start_begins_anew_where_features_would_differ(data):
    X, y = (part[:2000] for part in data)
    model = plain_regressor(n_components=20, random_state=0, warm_start=True).fit(X, y)
    features = model.feature_map_
    assert model.fit(X, y).feature_map_ is features
    assert model.set_params(n_components=30).fit(X, y).n_components_ == 30
    assert model.fit(X[:, :2], y).n_features_in_ == 2
    assert model.set_params(quantiles=[0.1, 0.9]).fit(X[:, :2], y).coef_.shape == (30, 2)
    assert model.set_params(alpha=0.5).fit(X[:, :2], y).alpha_ == 0.5
    assert model.set_params(warm_start=False, alpha="auto").fit(X[:, :2], y).alpha_ < 0.01


def test_a_loaded_model_goes_on(data, tmp_path, work):
    X, y = data
    model = plain_regressor(n_components=60, random_state=0, warm_start=True).fit(X[:35_000], y[:35_000])
    quernel.save(model, tmp_path / "m.quernel")
    quernel.load(tmp_path / "m.quernel").fit(X, y)
    assert work[1][1] < 0.8 * work[0][1]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"solver": "admm"}, "solver='admm'"),
        ({"n_components": "exact"}, "exact"),
        ({"noncrossing": "joint"}, "joint"),
        ({"warm_start": "yes"}, "True or False"),
    ],
)
def test_what_begins_from_nothing_has_no_warm_start(kwargs, message, data):
    X, y = (part[:50] for part in data)
    with pytest.raises(ValueError, match=message):
        plain_regressor([0.1, 0.9], **{"warm_start": True, **kwargs}).fit(X, y)
    with pytest.raises(ValueError, match="multinomial model has no warm_start"):
        KernelClassifier("logistic", warm_start=True).fit(X, np.arange(50) % 3)


class Interrupted(Exception):
    pass


def interrupt_after(monkeypatch, times):
    """Fits stop right after they have written down their progress so many times."""
    written, write = [], Checkpoint.write

    def stop(self, initial):
        write(self, initial)
        written.append(initial)
        if len(written) == times:
            raise Interrupted

    monkeypatch.setattr(Checkpoint, "write", stop)
    return written


@pytest.mark.parametrize(
    ("name", "streamed"), [("quantiles", False), ("quantiles", True), ("huber", True), ("hinge", False)]
)
def test_an_interrupted_fit_goes_on_from_its_checkpoint(name, streamed, data, work, tmp_path, monkeypatch):
    # It ends where it last wrote: what was solved on samples and in earlier rounds need not be solved again.
    make, target = MODELS[name]
    X, y = data[0], target(data[1]).astype(float)
    rows = (MemmapRows(X, y),) if streamed else (X, y)
    kwargs = {"n_components": 52, "random_state": 0, "max_memory": SMALL if streamed else None}
    path = tmp_path / "fit.ckpt"
    with monkeypatch.context() as patch:
        written = interrupt_after(patch, None)
        whole = make(**kwargs).fit(*rows, checkpoint=path)
    times = len(written)
    with monkeypatch.context() as patch:
        written = interrupt_after(patch, times)
        with pytest.raises(Interrupted):
            make(**kwargs).fit(*rows, checkpoint=path)
    assert path.exists()
    assert len(written) == times >= 1
    again = make(**kwargs).fit(*rows, checkpoint=path)
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []
    assert again.duality_gap_.max() <= 1e-6
    np.testing.assert_allclose(again.objective_, whole.objective_, rtol=2e-6)
    (sweeps, hessian_rows), (fewer_sweeps, fewer_hessian_rows) = work
    assert fewer_sweeps < sweeps
    assert fewer_hessian_rows < hessian_rows


def test_a_checkpoint_of_another_fit_is_refused(data, tmp_path, monkeypatch):
    X, y = data
    path = tmp_path / "fit.ckpt"
    kwargs = {"n_components": 60, "random_state": 0}
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(Interrupted):
            plain_regressor(0.5, **kwargs).fit(X, y, checkpoint=path)
    for model, rows, message in (
        (plain_regressor(0.4, **kwargs), (X, y), "quantiles"),
        (plain_regressor(0.5, **kwargs), (X, y + 1), "target"),
        (plain_regressor(0.5, **kwargs), (X[:-1], y[:-1]), "number of rows"),
        (plain_regressor(0.5, **kwargs), (X + 0.1, y), "inputs"),
        (plain_regressor(0.5, **{**kwargs, "random_state": 1}), (X, y), "random_state"),
    ):
        with pytest.raises(ValueError, match=f"checkpoint of another fit: it differs in .*{message}"):
            model.fit(*rows, checkpoint=path)
    assert plain_regressor(0.5, **kwargs, max_iter=999).fit(X, y, checkpoint=path).duality_gap_[0] <= 1e-6


@pytest.mark.parametrize("grows", [True, False], ids=["more memory", "less memory"])
@pytest.mark.parametrize(
    ("name", "weighted"), [("quantiles", False), ("quantiles", True), ("huber", True), ("hinge", False)]
)
def test_a_fit_goes_on_from_its_checkpoint_with_other_memory(name, weighted, grows, data, work, tmp_path, monkeypatch):
    # Rows are read whole before and in parts afterwards, or the other way round, and are the same rows.
    make, target = MODELS[name]
    X, y = data[0] + [0, 1e4, -3], target(data[1]).astype(float)
    weight = np.where(np.arange(len(y)) < 50, 0, np.random.default_rng(1).integers(1, 4, len(y)) / 3)
    rows, path = MemmapRows(X, y, weight if weighted else None), tmp_path / "fit.ckpt"
    before, after = (SMALL, None) if grows else (None, SMALL)
    kwargs = {"n_components": 52, "random_state": 0}
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        with pytest.raises(Interrupted):
            make(**kwargs, max_memory=before).fit(rows, checkpoint=path)
    assert make(**kwargs, max_memory=after).fit(rows, checkpoint=path).duality_gap_.max() <= 1e-6
    assert not path.exists()


def test_damaged_checkpoints_are_refused(tmp_path):
    file = Checkpoint(tmp_path / "c", {"number of rows": 3, "inputs": [[0.0, 1.0, 0.5]]})
    rng = np.random.default_rng(0)
    file.write(InitialPoint(rng.random((20, 3)), rng.random(3), 10, 2.0, rng.random(3)))
    content = file.path.read_bytes()
    assert file.read().coef.shape == (20, 3)
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.integers(8)
        file.path.write_bytes(damaged)
        with pytest.raises(ValueError, match="c is not a checkpoint of a fit, or it is damaged"):
            file.read()
    for some in (b"", content[:10], content[:100], content[:-1], content + b"0"):
        file.path.write_bytes(some)
        with pytest.raises(ValueError, match="c is not a checkpoint of a fit, or it is damaged"):
            file.read()
    file.path.write_bytes(content)
    assert file.read().n_rows == 10


def test_unfit_checkpoints_are_refused_before_any_work(data, tmp_path):
    X, y = (part[:3000] for part in data)
    model = plain_regressor(n_components=20, random_state=0)
    with pytest.raises(ValueError, match="a folder that is missing"):
        model.fit(X, y, checkpoint=tmp_path / "none" / "fit.ckpt")
    with pytest.raises(ValueError, match="path of a file"):
        model.fit(X, y, checkpoint=3)
    with pytest.raises(ValueError, match="integer as random_state; got None"):
        plain_regressor().fit(X, y, checkpoint=tmp_path / "a")
    with pytest.raises(ValueError, match="not for n_components"):
        plain_regressor(n_components="exact", random_state=0).fit(X, y, checkpoint=tmp_path / "a")
    (tmp_path / "text").write_text("not a checkpoint")
    with pytest.raises(ValueError, match="text is not a checkpoint"):
        model.fit(X, y, checkpoint=tmp_path / "text")
    assert (tmp_path / "text").read_text() == "not a checkpoint"


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = Checkpoint(tmp_path / "c", {"rows": 3})
    initial = InitialPoint(np.ones((2, 1)), np.zeros(1), 10, 2.0)
    file.write(initial)

    def fail(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dumps", fail)
    with pytest.raises(KeyboardInterrupt):
        file.write(InitialPoint(np.zeros((2, 1)), np.zeros(1), 20, 2.0))
    monkeypatch.undo()
    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        file.write(InitialPoint(np.zeros((2, 1)), np.zeros(1), 20, 2.0))
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    found = file.read()
    assert found.n_rows == 10
    np.testing.assert_array_equal(found.coef, initial.coef)
