"""Conditional quantiles of a numeric target.

Kernels and forests for tables, certified kernel quantile regression, conformal intervals and forecasts.

Names are imported when they are first used, so that `import quernel` itself takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quernel.conformal import ConformalQuantileRegressor
    from quernel.estimators import (
        ExtrapolationWarning,
        KernelClassifier,
        KernelQuantileRegressor,
        KernelRegressor,
        TabularQuantileRegressor,
        estimate_cost,
    )
    from quernel.estimators.quantile_cv import KernelQuantileRegressorCV
    from quernel.forecasting import QuantileForecaster
    from quernel.persistence import load, onnx_inputs, save, to_onnx
    from quernel.report import make_report
    from quernel.tables import TableEncoder

__version__ = "0.2.0"

__all__ = [
    "ConformalQuantileRegressor",
    "ExtrapolationWarning",
    "KernelClassifier",
    "KernelQuantileRegressor",
    "KernelQuantileRegressorCV",
    "KernelRegressor",
    "QuantileForecaster",
    "TableEncoder",
    "TabularQuantileRegressor",
    "__version__",
    "estimate_cost",
    "load",
    "make_report",
    "onnx_inputs",
    "save",
    "to_onnx",
]

_HOMES = {
    "conformal": ["ConformalQuantileRegressor"],
    "estimators": [
        "ExtrapolationWarning", "KernelClassifier", "KernelQuantileRegressor", "KernelRegressor",
        "TabularQuantileRegressor", "estimate_cost",
    ],
    "estimators.quantile_cv": ["KernelQuantileRegressorCV"],
    "forecasting": ["QuantileForecaster"],
    "persistence": ["load", "onnx_inputs", "save", "to_onnx"],
    "report": ["make_report"],
    "tables": ["TableEncoder"],
}  # fmt: skip
_HOME_OF = {name: f"quernel.{home}" for home, names in _HOMES.items() for name in names}
_MODULES = {"data", "datasets", "features", "forecasting", "kernels", "losses", "metrics", "paths", "plots", "theory"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"quernel.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'quernel' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
