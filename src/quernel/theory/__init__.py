"""The paper's theory as functions: rates, effective dimensions, error decomposition, and planning of a fit.

Results are named by the paper's own LaTeX labels: `thm2` is its second theorem, `lemA.2.4` a lemma of appendix A.2,
`ass6` an assumption. Notation throughout: n rows, M random features, ridge weight alpha (the paper's lambda), source
exponent r, capacity exponent gamma, and the compatibility of the features (the paper's alpha).

    rates, methods                   exponents of the theorems, and Table 1 as data
    dimensions, exponents, source    effective dimensions of data, and the exponents estimated from them
    planning, kernel_gap             how many features a fit needs, and what those of a fit cost
    populations, decomposition       known laws of rows, and the four terms of a fit's error
    lemma_bounds, operators          what the lemmas promise, beside what is measured
    noise_models, noise_conditions,
    convexity, excess_risk_curves    losses and noise: excess risks, self-calibration, local strong convexity
    rademacher                       local Rademacher complexity
"""

from quernel.theory.convexity import LocalConvexity, local_convexity, upper_quadratic_constant
from quernel.theory.decomposition import ErrorDecomposition, error_decomposition
from quernel.theory.dimensions import effective_dimension, leverage_scores, max_dimension
from quernel.theory.excess_risk_curves import ExcessRisk, excess_risk_curve
from quernel.theory.exponents import Exponent, capacity_exponent, compatibility_exponent
from quernel.theory.kernel_gap import KernelGap, kernel_gap
from quernel.theory.lemma_bounds import (
    DIMENSION_TOLERANCE,
    ErrorBounds,
    error_bounds,
    features_for_dimension,
    sufficient_features,
    sufficient_rows,
)
from quernel.theory.methods import METHODS, Method
from quernel.theory.noise_conditions import (
    CalibrationInequality,
    SelfCalibration,
    calibration_inequality,
    self_calibration,
)
from quernel.theory.noise_models import Labels, Noise, excess_risk
from quernel.theory.operators import (
    OperatorSimilarity,
    feature_similarity,
    feature_similarity_bound,
    sample_similarity,
    sample_similarity_bound,
)
from quernel.theory.planning import (
    Exponents,
    FeatureConstant,
    Plan,
    calibrate_features,
    estimate_exponents,
    plan,
)
from quernel.theory.populations import SampledPopulation, SplinePopulation
from quernel.theory.rademacher import local_rademacher_complexity
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
    "CalibrationInequality",
    "ErrorBounds",
    "ErrorDecomposition",
    "ExcessRisk",
    "Exponent",
    "Exponents",
    "FeatureConstant",
    "KernelGap",
    "Labels",
    "LocalConvexity",
    "Method",
    "Noise",
    "OperatorSimilarity",
    "OutsideTheoryWarning",
    "Plan",
    "SampledPopulation",
    "SelfCalibration",
    "SplinePopulation",
    "calibrate_features",
    "calibration_inequality",
    "capacity_exponent",
    "compatibility_exponent",
    "effective_dimension",
    "error_bounds",
    "error_decomposition",
    "estimate_exponents",
    "excess_risk",
    "excess_risk_curve",
    "feature_exponent",
    "feature_similarity",
    "feature_similarity_bound",
    "features_for_dimension",
    "features_needed",
    "kernel_gap",
    "learning_rate",
    "leverage_scores",
    "local_convexity",
    "local_rademacher_complexity",
    "max_dimension",
    "plan",
    "regularization",
    "sample_similarity",
    "sample_similarity_bound",
    "self_calibration",
    "source_exponent",
    "sufficient_features",
    "sufficient_rows",
    "upper_quadratic_constant",
]
