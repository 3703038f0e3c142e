"""From the scores of a classifier to probabilities: what scikit-learn's calibration found, as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Sigmoid:
    """1 / (1 + exp(slope s + offset))."""

    slope: float
    offset: float

    def __call__(self, scores: Array) -> Array:
        """The probability of each score."""
        return expit(-(self.slope * scores + self.offset))


@dataclass(frozen=True, eq=False)
class Isotonic:
    """Straight lines between the points (scores, chances), both rising, and level beyond the outermost."""

    scores: Array
    chances: Array

    def __post_init__(self) -> None:
        if self.scores.shape != self.chances.shape or self.scores.ndim != 1 or np.any(np.diff(self.scores) <= 0):
            raise ValueError(f"an isotonic curve of {self.scores.shape} scores and {self.chances.shape} chances")

    def __call__(self, scores: Array) -> Array:
        """The probability of each score."""
        return np.interp(scores, self.scores, self.chances)


@dataclass(frozen=True)
class ProbabilityCurves:
    """The curve of the second of two classes, or that of each class, whose answers are then divided by their sum."""

    curves: tuple[Sigmoid | Isotonic, ...]

    @classmethod
    def of(cls, calibrators: Any) -> ProbabilityCurves:
        """From the fitted calibrators of a CalibratedClassifierCV."""
        return cls(tuple(_curve(one) for one in calibrators))

    def probabilities(self, scores: Array) -> Array:
        """The probability of every class, shape (n, K), for scores (n,) of two classes or (n, K) of more."""
        if scores.ndim == 1:
            second = self.curves[0](scores)
            return np.column_stack([1 - second, second])
        each = np.column_stack([curve(column) for curve, column in zip(self.curves, scores.T, strict=True)])
        total = each.sum(axis=1, keepdims=True)
        # Where no class is possible by itself, all are equally likely.
        return np.where(total > 0, each / np.where(total > 0, total, 1), 1 / len(self.curves))


def _curve(calibrator: Any) -> Sigmoid | Isotonic:
    if hasattr(calibrator, "a_"):
        return Sigmoid(float(calibrator.a_), float(calibrator.b_))
    return Isotonic(calibrator.X_thresholds_, calibrator.y_thresholds_)
