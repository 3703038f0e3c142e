"""Calibrated class probabilities, with scikit-learn's fitted calibrators reduced to plain numbers.

Model files and ONNX graphs hold these numbers rather than scikit-learn objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Sigmoid:
    """Platt scaling: probability 1 / (1 + exp(slope s + offset)) of a score s."""

    slope: float
    offset: float

    def __call__(self, scores: Array) -> Array:
        """Calibrated probability of each score."""
        return expit(-(self.slope * scores + self.offset))


@dataclass(frozen=True, eq=False)
class Isotonic:
    """Isotonic calibration: linear interpolation of (scores, chances), both increasing; constant beyond the ends."""

    scores: Array
    chances: Array

    def __post_init__(self) -> None:
        if self.scores.shape != self.chances.shape or self.scores.ndim != 1 or np.any(np.diff(self.scores) <= 0):
            raise ValueError(f"an isotonic curve of {self.scores.shape} scores and {self.chances.shape} chances")

    def __call__(self, scores: Array) -> Array:
        """Calibrated probability of each score."""
        return np.interp(scores, self.scores, self.chances)


@dataclass(frozen=True)
class ProbabilityCurves:
    """Calibration curves: one for the second of two classes, or one per class, normalised to sum to one."""

    curves: tuple[Sigmoid | Isotonic, ...]

    @classmethod
    def of(cls, calibrators: Any) -> ProbabilityCurves:
        """From the fitted calibrators of a CalibratedClassifierCV."""
        return cls(tuple(_curve(one) for one in calibrators))

    def probabilities(self, scores: Array) -> Array:
        """Class probabilities (n, K) from the decision function, of shape (n,) for two classes or (n, K) for more."""
        if scores.ndim == 1:
            second = self.curves[0](scores)
            return np.column_stack([1 - second, second])
        each = np.column_stack([curve(column) for curve, column in zip(self.curves, scores.T, strict=True)])
        total = each.sum(axis=1, keepdims=True)
        # If all curves give 0, all classes are equally likely.
        return np.where(total > 0, each / np.where(total > 0, total, 1), 1 / len(self.curves))


def _curve(calibrator: Any) -> Sigmoid | Isotonic:
    """Numbers of one fitted calibrator of scikit-learn."""
    if hasattr(calibrator, "a_"):
        return Sigmoid(float(calibrator.a_), float(calibrator.b_))
    return Isotonic(calibrator.X_thresholds_, calibrator.y_thresholds_)
