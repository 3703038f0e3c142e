"""Fits that are stopped: by `max_seconds` and Ctrl-C at their best certified solution; by an error, without a trace."""

import signal
import sys
import threading
import warnings
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from quernel import KernelClassifier, KernelQuantileRegressor, KernelQuantileRegressorCV, KernelRegressor
from quernel.estimators import base
from quernel.estimators.warnings import warn_not_converged
from quernel.losses import Pinball
from support.models import plain_regressor

SMALL = {"n_components": 20, "random_state": 0}
MODELS = {
    "quantiles": plain_regressor([0.2, 0.8], **SMALL),
    "joint": KernelQuantileRegressor([0.2, 0.8], noncrossing="joint", **SMALL),
    "learned": KernelQuantileRegressor(0.5, bandwidth="learned", tol=1e-2, **SMALL),
    "exact": KernelQuantileRegressor(0.5, n_components="exact", bandwidth=1.0),
    "warm": plain_regressor(0.5, warm_start=True, **SMALL),
    "cv": KernelQuantileRegressorCV(0.5, alphas=[1e-3, 1e-2], bandwidths=[1.0], cv=2, **SMALL),
    "huber": KernelRegressor(**SMALL),
    "classes": KernelClassifier("logistic", **SMALL),
    "calibrated": KernelClassifier(calibration="sigmoid", **SMALL),
}


def data(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    return X, np.sin(5 * X[:, 0]) + 0.3 * rng.standard_normal(n)


def target(model, y):
    return (y > 0).astype(int) if isinstance(model, KernelClassifier) else y


class Interrupt:
    """Counts the calls of functions of quernel in this thread, and raises KeyboardInterrupt at the k-th."""

    def __init__(self, k=None):
        self.k, self.count = k, 0

    def __call__(self, frame, event, _):
        if event == "call" and "/quernel/" in frame.f_code.co_filename:
            self.count += 1
            if self.count == self.k:
                raise KeyboardInterrupt

    def run(self, action):
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            return action()
        finally:
            sys.setprofile(before)


def interrupt_refit(model, X, y, k):
    """Interrupt the fit of a copy of a fitted model to other rows at its k-th call; "as it was" or "fitted" is left."""
    before = dict(vars(model))
    again = clone(model)
    vars(again).update(before)
    try:
        Interrupt(int(k)).run(partial(again.fit, X, y))
    except KeyboardInterrupt:
        if again.coef_ is before["coef_"]:
            assert vars(again).keys() == before.keys()
            assert all(vars(again)[key] is value for key, value in before.items() if key.endswith("_"))
            return "as it was"
        # Complete: the same as an uninterrupted fit.
        whole = clone(model)
        vars(whole).update(before)
        whole.fit(X, y)
        np.testing.assert_array_equal(again.coef_, whole.coef_)
        assert vars(again).keys() == vars(whole).keys()
    return "fitted"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupted generators
@pytest.mark.parametrize("name", MODELS)
def test_an_interrupted_fit_leaves_the_estimator_as_it_was(name):
    model = clone(MODELS[name])
    X, y = data()
    other, z = data(50, 1)
    z = target(model, z)
    model.fit(X, target(model, y))
    predicted = model.predict(X)
    counted = Interrupt()
    counted.run(lambda: clone(model).fit(other, z))
    # The last calls come after the new attributes are written: warnings about convergence.
    outcomes = {interrupt_refit(model, other, z, k) for k in np.linspace(1, counted.count, 10)}
    assert "as it was" in outcomes
    np.testing.assert_array_equal(model.predict(X), predicted)
    new = clone(MODELS[name])
    with pytest.raises(KeyboardInterrupt):
        Interrupt(counted.count // 2).run(lambda: new.fit(other, z))
    assert not [key for key in vars(new) if key.endswith("_")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_one_of_the_last_calls_may_be_interrupted():
    """Around the place where attributes are written: all old before it, all new after it."""
    model = plain_regressor(alpha=0.1, bandwidth=1.0, n_components=5, tol=0.1, random_state=0)
    X, y = data(20)
    other, z = data(25, 1)
    model.fit(X, y)
    counted = Interrupt()
    counted.run(lambda: clone(model).fit(other, z))
    outcomes = [interrupt_refit(model, other, z, k) for k in range(counted.count - 30, counted.count + 1)]
    assert outcomes == sorted(outcomes)  # "as it was", and from some call on "fitted"
    assert set(outcomes) == {"as it was", "fitted"}


def objectives(model, X, y):
    """F of the model, and that of the best constant, by hand."""
    loss, share = Pinball(model.quantiles_), np.full(len(y), 1 / len(y))
    outputs = model._predict_unsnapped(X)
    fitted = share @ loss.value(y[:, None] - outputs) + model.alpha_ * np.sum(model.coef_**2, axis=0)
    return fitted, share @ loss.value(y[:, None] - loss.fit_constant(y, share))


@pytest.mark.parametrize("n", [500, 30_000])
@pytest.mark.parametrize("seconds", [1e-6, 0.05, 0.3])
def test_a_time_limit_keeps_the_best_certified_solution(n, seconds):
    X, y = data(n)
    hard = {"n_components": 200, "bandwidth": 0.2, "alpha": 1e-9, "random_state": 0, "tol": 1e-12}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = plain_regressor([0.1, 0.5], max_seconds=seconds, **hard).fit(X, y)
    fitted, null = objectives(model, X, y)
    np.testing.assert_allclose(model.objective_, fitted, rtol=1e-9)
    assert np.all(fitted <= null * (1 + 1e-12))
    assert np.all(model.duality_gap_ > 0)
    if seconds < 1e-3:  # far too little, whatever the machine
        (message,) = [str(one.message) for one in caught if issubclass(one.category, ConvergenceWarning)]
        assert "stopped by the time limit at a relative duality gap of" in message
        assert "larger max_seconds (now 1e-06)" in message
        assert "Nothing better than a constant was found by then: predictions are the best constant" in message
        assert not model.coef_.any()


def test_the_message_says_which_outputs_are_constant():
    X, y = data(200)
    model = plain_regressor([0.2, 0.5, 0.8], alpha=1e-3, fit_intercept=False, **SMALL).fit(X, y)
    model.coef_[:, 1:] = 0.0
    model.duality_gap_[:] = [1.0, 1.0, 0.0]
    with pytest.warns(ConvergenceWarning, match=r"found by then for 0.5: predictions are zero, whatever X\. Try"):
        warn_not_converged(model, ["0.2", "0.5", "0.8"], "interrupt")
    model.coef_[:] = 1.0
    with pytest.warns(ConvergenceWarning, match="Try more time or a larger alpha") as caught:
        warn_not_converged(model, ["0.2", "0.5", "0.8"], "interrupt")
    assert "Nothing" not in str(caught[0].message)


def test_a_time_limit_that_is_not_reached_changes_nothing():
    X, y = data(300)
    plain = plain_regressor([0.1, 0.5], random_state=0).fit(X, y)
    limited = plain_regressor([0.1, 0.5], random_state=0, max_seconds=1e6).fit(X, y)
    np.testing.assert_array_equal(plain.coef_, limited.coef_)


@pytest.mark.parametrize("name", ["learned", "cv", "huber", "classes", "calibrated", "quantiles"])
def test_choices_end_with_the_time(name):
    X, y = data(200)
    model = clone(MODELS[name]).set_params(max_seconds=1e-6, n_components="auto")
    with pytest.warns(ConvergenceWarning, match="time limit"):
        model.fit(X, target(model, y))
    assert np.isfinite(model.alpha_)
    assert model.stopped_by_ == "time limit"
    assert len(model.predict(X)) == len(y)


@pytest.mark.parametrize("wrong", [0, -1.0, np.inf, "long", True])
def test_a_time_limit_is_a_positive_number(wrong):
    with pytest.raises(ValueError, match="max_seconds must be a positive, finite number, or None"):
        plain_regressor(max_seconds=wrong).fit(*data())


def press_ctrl_c(monkeypatch, times):
    """Send SIGINT so many times at the first report of progress, while the solver is at work.

    Reports of a slow pass may come from another thread, whose signals the main thread handles at some later time: too
    late, if the fit is over by then. Those are not answered.
    """
    left = [times]

    def listener(progress):
        while progress.columns and left[0] and threading.current_thread() is threading.main_thread():
            left[0] -= 1
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(base, "print_progress", listener)


def test_ctrl_c_ends_a_fit_at_its_best_solution_and_a_second_one_raises(monkeypatch):
    X, y = data(500)
    hard = {"n_components": 100, "bandwidth": 0.2, "alpha": 1e-8, "random_state": 0, "tol": 1e-20, "verbose": 1}
    handler = signal.getsignal(signal.SIGINT)
    press_ctrl_c(monkeypatch, 1)
    with pytest.warns(ConvergenceWarning, match="stopped by the interrupt at a relative duality gap"):
        model = plain_regressor(0.5, **hard).fit(X, y)
    fitted, null = objectives(model, X, y)
    assert np.all(fitted <= null)
    assert signal.getsignal(signal.SIGINT) is handler
    press_ctrl_c(monkeypatch, 2)
    before = dict(vars(model))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:300], y[:300])
    assert vars(model) == before
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_stopped_fit_keeps_its_checkpoint(tmp_path, monkeypatch):
    X, y = data(30_000)
    path, kwargs = tmp_path / "fit.ckpt", {"n_components": 100, "alpha": 1e-6, "bandwidth": 0.5, "random_state": 0}
    monkeypatch.setattr(base, "print_progress", lambda _: path.exists())  # True asks for a stop
    model = plain_regressor(0.5, tol=1e-20, verbose=1, **kwargs)
    with pytest.warns(ConvergenceWarning, match="stopped by a callback"):
        model.fit(X, y, checkpoint=path)
    assert model.stopped_by_ == "callback"
    assert path.exists()
    model.set_params(tol=1e-6, verbose=0).fit(X, y, checkpoint=path)
    assert model.stopped_by_ is None
    assert not path.exists()


@pytest.mark.parametrize(
    ("at", "n_fits", "rest"),
    [
        (1, 2, "rest on what the first fold had by then, and may be no more than the shares of the classes"),
        (2, 2, "rest on what the first fold had by then, and may be no more than the shares of the classes"),
        (4, 4, "rest on 2 of 5 folds"),
        (None, 6, None),
    ],
)
@pytest.mark.parametrize("classes", [2, 3])
def test_ctrl_c_ends_the_calibration_of_probabilities(monkeypatch, at, n_fits, rest, classes):
    """In the fit of all rows, the first, or in one of the folds after it; none follows."""
    X, y = data(400)
    labels = np.digitize(y, [0.0, 0.5][: classes - 1])
    solve, calls = base.solve_on_features, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return solve(*args, **kwargs)

    monkeypatch.setattr(base, "solve_on_features", interrupted)
    model = KernelClassifier(calibration="sigmoid", alpha=1e-3, n_components=30, bandwidth=0.5, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, labels)
    messages = [str(one.message) for one in caught if issubclass(one.category, ConvergenceWarning)]
    assert len(calls) == n_fits
    assert model.stopped_by_ == (None if at is None else "interrupt")
    assert len(messages) == {1: 2, None: 0}.get(at, 1)
    if at is not None:
        assert messages[-1].startswith("The calibration was stopped by the interrupt: probabilities " + rest)
    chance = model.predict_proba(X)
    np.testing.assert_allclose(chance.sum(axis=1), 1)
    if at != 1:
        plain = clone(model).set_params(calibration=None).fit(X, labels)
        np.testing.assert_array_equal(model.decision_function(X), plain.decision_function(X))
    if rest is None or "2 of 5" in rest:
        assert np.mean(chance.argmax(axis=1) == labels) > 0.75
    else:
        np.testing.assert_allclose(chance.mean(axis=0), np.bincount(labels) / 400, atol=0.05)


def test_folds_of_a_calibration_share_the_time(monkeypatch):
    seconds = []
    init = base.TimeBudget.__init__

    def recorded(self, max_seconds):
        seconds.append(max_seconds)
        init(self, max_seconds)

    monkeypatch.setattr(base.TimeBudget, "__init__", recorded)
    X, y = data(100)
    KernelClassifier(calibration="isotonic", max_seconds=1000.0, **SMALL).fit(X, y > 0)
    assert seconds[0] == 1000
    assert len(seconds) == 6
    assert all(100 <= one <= 200 for one in seconds[1:])
