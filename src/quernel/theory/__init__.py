"""The paper's theory as functions: rates, effective dimensions, error decomposition, and planning of a fit.

Results are named by the paper's own LaTeX labels: `thm2` is its second theorem, `lemA.2.4` a lemma of appendix A.2,
`ass6` an assumption. Notation throughout: n rows, M random features, ridge weight alpha (the paper's lambda), source
exponent r, capacity exponent gamma, and the compatibility of the features (the paper's alpha).

    rates                       exponents of the theorems, and Table 1 as data
    dimensions, exponents       effective dimensions of data, and the exponents estimated from them
    planning, kernel_gap        how many features a fit needs, and what those of a fit cost
    populations, decomposition  known distributions of rows, the errors of fits to them, similarity of operators, and
                                bounds on these beside what is measured
    noise                       models of noise with excess risks, self-calibration, local strong convexity

`METHODS` has the methods of Table 1 by name, and `DIMENSION_TOLERANCE` is the relative accuracy of the effective
dimension of random features in `lemD.7`.
"""

from quernel.theory.decomposition import (
    DIMENSION_TOLERANCE,
    ErrorBounds,
    ErrorDecomposition,
    ExcessRisk,
    OperatorSimilarity,
    error_bounds,
    error_decomposition,
    excess_risk_curve,
    feature_similarity,
    feature_similarity_bound,
    features_for_dimension,
    sample_similarity,
    sample_similarity_bound,
    sufficient_features,
    sufficient_rows,
)
from quernel.theory.dimensions import effective_dimension, leverage_scores, local_rademacher_complexity, max_dimension
from quernel.theory.exponents import Exponent, capacity_exponent, compatibility_exponent, source_exponent
from quernel.theory.kernel_gap import KernelGap, kernel_gap
from quernel.theory.noise import (
    CalibrationInequality,
    Labels,
    LocalConvexity,
    Noise,
    SelfCalibration,
    calibration_inequality,
    excess_risk,
    local_convexity,
    self_calibration,
    upper_quadratic_constant,
)
from quernel.theory.planning import Exponents, FeatureConstant, Plan, calibrate_features, estimate_exponents, plan
from quernel.theory.populations import SampledPopulation, SplinePopulation
from quernel.theory.rates import (
    METHODS,
    Method,
    OutsideTheoryWarning,
    feature_exponent,
    features_needed,
    learning_rate,
    regularization,
)

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
