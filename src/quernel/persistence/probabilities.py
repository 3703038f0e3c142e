"""Calibrated probabilities of classes as graphs."""

from __future__ import annotations

import numpy as np

from quernel.estimators.probabilities import Isotonic, ProbabilityCurves, Sigmoid
from quernel.persistence.graph import Tensor, join, where


def calibrated_probabilities(calibration: ProbabilityCurves, scores: Tensor) -> Tensor:
    """As `ProbabilityCurves.probabilities`, from scores (n, 1) of two classes or (n, K) of more; shape (n, K)."""
    each = [_chance(curve, scores.take([k], axis=1)) for k, curve in enumerate(calibration.curves)]
    if len(each) == 1:
        return join([1.0 - each[0], each[0]])
    together = join(each)
    total = together.sum(axis=1, keepdims=True)
    possible = total > 0.0
    return where(possible, together / where(possible, total, 1.0), 1 / len(each))


def _chance(curve: Sigmoid | Isotonic, score: Tensor) -> Tensor:
    """The probability of each score, (n, 1)."""
    graph = score.graph
    if isinstance(curve, Sigmoid):
        return graph.apply("Sigmoid", -curve.slope * score - curve.offset)
    if len(curve.scores) == 1:
        return 0.0 * score + curve.chances
    # What every piece adds: how far the score has come along it, from nothing to all of its rise.
    length, rise = np.diff(curve.scores), np.diff(curve.chances)
    share = graph.apply("Min", ((score - curve.scores[:-1]) / length).at_least(0.0), 1.0)
    return (share * rise).sum(axis=1, keepdims=True) + curve.chances[0]
