"""Small fitted models: every estimator, kernel, sampling and shape of answer that a file must carry."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import KFold, ShuffleSplit, TimeSeriesSplit

from quernel import (
    ConformalQuantileRegressor,
    KernelClassifier,
    KernelQuantileRegressor,
    KernelQuantileRegressorCV,
    KernelRegressor,
)
from quernel.estimators.splits import LastRows
from quernel.features import RandomFeatures
from quernel.kernels import ArcCosine, Cauchy, Gaussian, Laplacian, Matern, PeriodicSpline
from quernel.losses import LOSSES, Expectile, Huber

LEVELS = [0.9, 0.1, 0.5]  # not in order, so that a file that sorts them would be found out
SMALL: dict[str, Any] = {"bandwidth": "auto", "n_components": 30, "alpha": 1e-3, "random_state": 0}
EXACT = SMALL | {"n_components": "exact"}
KERNELS = {
    "gaussian": "gaussian",
    "laplacian": "laplacian",
    "matern": "matern",
    "matern 1/2": Matern(nu=0.5),
    "matern 5/2": Matern([1.0, 2.0], nu=2.5),
    "cauchy": "cauchy",
    "arccosine": "arccosine",
    "arccosine 0": ArcCosine(order=0, bias=0.5),
    "arccosine with bias": ArcCosine(bias=2.0),
    "spline": "spline",
    "spline 3": PeriodicSpline(3.0),
    "spline 2.2": PeriodicSpline(2.2),
    "spline 6.00001": PeriodicSpline(6.00001),
    "spline infinity": PeriodicSpline(np.inf),
    "sum": Gaussian(1.0) + 0.5 * Laplacian(),
    "sum of kinds": 0.3 * ArcCosine() + Cauchy() + PeriodicSpline(),
}


def plain_regressor(*args: Any, **params: Any) -> KernelQuantileRegressor:
    """The estimator without what other tests are about: automatic bandwidths, levels as they were fitted."""
    return KernelQuantileRegressor(*args, **({"bandwidth": "auto", "recalibrate": False} | params))


def rows(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(n)


def labels(X: np.ndarray, names: list[Any]) -> np.ndarray:
    score = np.sin(2 * X[:, 0]) + X[:, 1]
    return np.array(names)[np.digitize(score, np.quantile(score, np.arange(1, len(names)) / len(names)))]


def _quantiles(quantiles: Any = LEVELS, **settings: Any) -> Callable[[], Any]:
    return lambda: KernelQuantileRegressor(quantiles, **(SMALL | settings)).fit(*rows())


def _regressor(loss: Any, **settings: Any) -> Callable[[], Any]:
    return lambda: KernelRegressor(loss, **(SMALL | settings)).fit(*rows())


def _classifier(loss: str, names: list[Any], **settings: Any) -> Callable[[], Any]:
    X, _ = rows()
    return lambda: KernelClassifier(loss, **(SMALL | settings)).fit(X, labels(X, names))


def _tuned(**settings: Any) -> Callable[[], Any]:
    tuning = {"alphas": [1e-2, 1e-3], "cv": 2, "n_components": 30, "random_state": 0} | settings
    return lambda: KernelQuantileRegressorCV(LEVELS, **tuning).fit(*rows())


def _conformal(estimator: Any = None, **settings: Any) -> Callable[[], Any]:
    """Intervals of coverage 0.7, to be read between the levels; `estimator` is fitted or not."""
    inner = KernelQuantileRegressor(LEVELS, **SMALL) if estimator is None else estimator
    return lambda: ConformalQuantileRegressor(inner, 0.7, **({"random_state": 0} | settings)).fit(*rows(seed=5))


MAKERS: dict[str, Callable[[], Any]] = {
    **{f"random {name}": _quantiles(kernel=kernel) for name, kernel in KERNELS.items()},
    **{f"exact {name}": _quantiles(kernel=kernel, n_components="exact") for name, kernel in KERNELS.items()},
    **{f"sampling {way}": _quantiles(sampling=way) for way in ("orthogonal", "qmc", "leverage", "landmarks")},
    "landmarks of a sum": _quantiles(kernel=Gaussian(1.0) + 0.5 * Laplacian(), sampling="landmarks"),
    "spline with poles": _quantiles(kernel=PeriodicSpline(1.4)),
    "sampling object": _quantiles(sampling=RandomFeatures(sampling="leverage", leverage_alpha=1e-2, replacement=False)),
    "linear": _quantiles(kernel="linear"),
    "one level": _quantiles(0.5),
    "one level in a list": _quantiles([0.5]),
    "crossing": _quantiles(noncrossing=None),
    "joint": _quantiles(noncrossing="joint"),
    "learned bandwidth": _quantiles(bandwidth="learned", alpha="auto"),
    "learned rough": _quantiles(bandwidth="learned", kernel="laplacian", alpha="auto"),
    "regressor with learned bandwidth": _regressor("huber", bandwidth="learned"),
    "classes with learned bandwidth": _classifier("hinge", [0, 1], bandwidth="learned"),
    "tuned": _tuned(),
    "tuned learned bandwidth": _tuned(bandwidths="learned", one_standard_error=True),
    "tuned numbers and joint": _tuned(bandwidths=[1.0, [1.0, 2.0], "auto"], noncrossing="joint"),
    "tuned without bandwidth": _tuned(kernel="linear", alphas=None),
    "tuned with a share and auto": _tuned(cv=0.3, n_components="auto"),
    "tuned in order of time": _tuned(cv=TimeSeriesSplit(2, gap=1)),
    "tuned on the last rows": _tuned(cv=LastRows(0.25)),
    "tuned by a splitter": _tuned(cv=ShuffleSplit(2, test_size=0.2, random_state=1)),
    "tuned by index arrays": _tuned(cv=[(np.arange(60), np.arange(60, 120)), (np.arange(90), np.arange(90, 120))]),
    "conformal": _conformal(),
    "conformal by default": lambda: ConformalQuantileRegressor(random_state=0).fit(*rows()),
    "conformal on either side": _conformal(symmetric=False, calibration_size=60),
    "conformal in order of time": _conformal(time_ordered=True),
    "conformal around a fitted model": lambda: _conformal(fitted("random gaussian"), method="prefit")(),
    "conformal around a frozen model": lambda: _conformal(FrozenEstimator(fitted("tuned")))(),
    "conformal cv+": _conformal(method="cv+", cv=3),
    "conformal cv+ on either side": _conformal(method="cv+", cv=KFold(4), symmetric=False),
    "conformal around joint": _conformal(KernelQuantileRegressor(LEVELS, noncrossing="joint", **SMALL)),
    "conformal around tuned": _conformal(
        KernelQuantileRegressorCV(LEVELS, alphas=[1e-3], cv=2, n_components=30, random_state=0)
    ),
    "no intercept": _quantiles(fit_intercept=False),
    "auto": lambda: KernelQuantileRegressor(0.5, tol=1e-3, random_state=np.random.default_rng(3)).fit(*rows(1100)),
    "old random state": _quantiles(random_state=np.random.RandomState(1)),
    **{f"loss {name}": _regressor(name) for name, loss in LOSSES.items() if not loss.margin},
    "loss object": _regressor(Huber(0.3)),
    "expectile object": _regressor(Expectile(0.9), kernel=Matern(2.0)),
    "exact regressor": _regressor("squared", n_components="exact"),
    **{f"two classes {name}": _classifier(name, [0, 1]) for name, loss in LOSSES.items() if loss.margin},
    "labels of text": _classifier("hinge", ["cheap", "dear"]),
    "labels of truth": _classifier("logistic", [False, True]),
    "one against the rest": _classifier("hinge", [3, 5, 9]),
    "logistic against the rest": _classifier("logistic", ["a", "b", "c"], multiclass="ovr"),
    **{
        f"{way} chances of {len(names)}": _classifier("hinge", names, calibration=way)
        for way in ("sigmoid", "isotonic")
        for names in ([0, 1], ["a", "b", "c"])
    },
    "isotonic multinomial": _classifier("logistic", [1, 2, 3], calibration="isotonic"),
    "multinomial": _classifier("logistic", ["a", "b", "ccc"], class_weight={"a": 2.0}),
}


@cache
def fitted(name: str) -> Any:
    return MAKERS[name]()


def conformal_by_group(labels: list[Any], **settings: Any) -> ConformalQuantileRegressor:
    """Intervals that are calibrated apart for the rows with x_0 <= 0 and with x_0 > 0, which have these labels."""
    X, y = rows(200)
    model = ConformalQuantileRegressor(KernelQuantileRegressor(LEVELS, **SMALL), 0.7, random_state=0, **settings)
    return model.fit(X, y, groups=np.array(labels)[(X[:, 0] > 0).astype(int)])
