"""Feature maps: transformers that turn rows of X into rows of Phi with phi(x)'phi(z) = K(x, z), or close to it.

All follow scikit-learn's transformer interface (`fit`, `transform`):

- `RandomFeatures`       random Fourier features and their relatives, independent of the data;
- `Nystroem`             projection of the kernel on landmarks, a subset of the rows;
- `PivotedCholesky`      landmarks chosen until the kernel is reproduced to a tolerance: the exact kernel method;
- `PrecomputedFeatures`  the columns of X as they are: the linear kernel;
- `TrendFeatures`        features of another map, and functions that are monotone or convex in some columns;
- `LandmarkPredictor`    kernel values at landmarks, for predictions of a fitted model only.

`SAMPLINGS` are the names of the ways to draw random features.
"""

from quernel.features.landmarks import LandmarkPredictor, Nystroem, PivotedCholesky
from quernel.features.random import PrecomputedFeatures, RandomFeatures, TrendFeatures
from quernel.features.sampling import SAMPLINGS

__all__ = [
    "SAMPLINGS",
    "LandmarkPredictor",
    "Nystroem",
    "PivotedCholesky",
    "PrecomputedFeatures",
    "RandomFeatures",
    "TrendFeatures",
]
