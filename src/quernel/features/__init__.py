"""Feature maps phi: rows of X become rows of Phi, so that phi(x)'phi(z) is the kernel, or close to it."""

from quernel.features.cholesky import PivotedCholesky
from quernel.features.nystroem import LandmarkPredictor, Nystroem
from quernel.features.precomputed import PrecomputedFeatures
from quernel.features.random import RandomFeatures
from quernel.features.sampling import SAMPLINGS

__all__ = ["SAMPLINGS", "LandmarkPredictor", "Nystroem", "PivotedCholesky", "PrecomputedFeatures", "RandomFeatures"]
