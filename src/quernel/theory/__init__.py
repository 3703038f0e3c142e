"""The paper's theory, to be computed with: rates, dimensions, error decomposition, and planning."""

from quernel.theory.calibration import LocalConvexity, SelfCalibration, local_convexity, self_calibration
from quernel.theory.conditions import (
    DIMENSION_TOLERANCE,
    ErrorBounds,
    error_bounds,
    features_for_dimension,
    sufficient_features,
    sufficient_rows,
)
from quernel.theory.curves import ExcessRisk, excess_risk_curve
from quernel.theory.decomposition import ErrorDecomposition, error_decomposition
from quernel.theory.dimensions import effective_dimension, leverage_scores, max_dimension
from quernel.theory.exponents import Exponent, capacity_exponent, compatibility_exponent
from quernel.theory.kernel_gap import KernelGap, kernel_gap
from quernel.theory.laws import Labels, Noise, excess_risk
from quernel.theory.methods import METHODS, Method
from quernel.theory.planning import Exponents, Plan, estimate_exponents, plan
from quernel.theory.populations import SampledPopulation, SplinePopulation
from quernel.theory.rates import (
    OutsideTheoryWarning,
    feature_exponent,
    features_needed,
    learning_rate,
    regularization,
)
from quernel.theory.source import source_exponent

__all__ = [
    "DIMENSION_TOLERANCE",
    "METHODS",
    "ErrorBounds",
    "ErrorDecomposition",
    "ExcessRisk",
    "Exponent",
    "Exponents",
    "KernelGap",
    "Labels",
    "LocalConvexity",
    "Method",
    "Noise",
    "OutsideTheoryWarning",
    "Plan",
    "SampledPopulation",
    "SelfCalibration",
    "SplinePopulation",
    "capacity_exponent",
    "compatibility_exponent",
    "effective_dimension",
    "error_bounds",
    "error_decomposition",
    "estimate_exponents",
    "excess_risk",
    "excess_risk_curve",
    "feature_exponent",
    "features_for_dimension",
    "features_needed",
    "kernel_gap",
    "learning_rate",
    "leverage_scores",
    "local_convexity",
    "max_dimension",
    "plan",
    "regularization",
    "self_calibration",
    "source_exponent",
    "sufficient_features",
    "sufficient_rows",
]
