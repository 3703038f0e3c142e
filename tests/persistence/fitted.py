"""Small fitted models: every estimator, kernel, sampling and shape of answer that a file must carry."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from quernel import KernelClassifier, KernelQuantileRegressor, KernelRegressor
from quernel.features import RandomFeatures
from quernel.kernels import ArcCosine, Cauchy, Gaussian, Laplacian, Matern, PeriodicSpline
from quernel.losses import LOSSES, Expectile, Huber

LEVELS = [0.9, 0.1, 0.5]  # not in order, so that a file that sorts them would be found out
SMALL: dict[str, Any] = {"n_components": 30, "alpha": 1e-3, "random_state": 0}
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


MAKERS: dict[str, Callable[[], Any]] = {
    **{f"random {name}": _quantiles(kernel=kernel) for name, kernel in KERNELS.items()},
    **{f"exact {name}": _quantiles(kernel=kernel, n_components="exact") for name, kernel in KERNELS.items()},
    **{f"sampling {way}": _quantiles(sampling=way) for way in ("orthogonal", "qmc", "leverage")},
    "spline with poles": _quantiles(kernel=PeriodicSpline(1.4)),
    "sampling object": _quantiles(sampling=RandomFeatures(sampling="leverage", leverage_alpha=1e-2, replacement=False)),
    "linear": _quantiles(kernel="linear"),
    "one level": _quantiles(0.5),
    "one level in a list": _quantiles([0.5]),
    "crossing": _quantiles(noncrossing=None),
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
    "multinomial": _classifier("logistic", ["a", "b", "ccc"], class_weight={"a": 2.0}),
}


@cache
def fitted(name: str) -> Any:
    return MAKERS[name]()
