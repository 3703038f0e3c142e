"""Losses: convex functions of the residual, one small class each.

`LOSSES` is the registry of the names that estimators accept as ``loss="..."``.
"""

from quernel.losses.base import Loss, Piecewise, Smooth
from quernel.losses.margins import Hinge, Logistic, Margin, SmoothedHinge, SquaredHinge
from quernel.losses.regression import (
    Absolute,
    EpsilonInsensitive,
    Expectile,
    GeneralizedPareto,
    Huber,
    LogCosh,
    Pinball,
    SmoothedPinball,
    Squared,
    weighted_quantiles,
)

LOSSES: dict[str, type[Loss]] = {
    "pinball": Pinball,
    "absolute": Absolute,
    "huber": Huber,
    "epsilon_insensitive": EpsilonInsensitive,
    "smoothed_pinball": SmoothedPinball,
    "squared": Squared,
    "expectile": Expectile,
    "logcosh": LogCosh,
    "generalized_pareto": GeneralizedPareto,
    "hinge": Hinge,
    "squared_hinge": SquaredHinge,
    "smoothed_hinge": SmoothedHinge,
    "logistic": Logistic,
}

__all__ = [
    "LOSSES",
    "Absolute",
    "EpsilonInsensitive",
    "Expectile",
    "GeneralizedPareto",
    "Hinge",
    "Huber",
    "LogCosh",
    "Logistic",
    "Loss",
    "Margin",
    "Piecewise",
    "Pinball",
    "Smooth",
    "SmoothedHinge",
    "SmoothedPinball",
    "Squared",
    "SquaredHinge",
    "weighted_quantiles",
]
