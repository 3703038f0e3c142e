"""Feature maps phi: rows of X become rows of Phi, so that phi(x)'phi(z) is the kernel, or close to it."""

from quernel.features.cholesky import PivotedCholesky
from quernel.features.identity import ReadyFeatures
from quernel.features.random import SAMPLINGS, RandomFeatures

__all__ = ["SAMPLINGS", "PivotedCholesky", "RandomFeatures", "ReadyFeatures"]
