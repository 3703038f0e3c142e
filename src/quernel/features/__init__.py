"""Feature maps phi: rows of X become rows of Phi, so that phi(x)'phi(z) is the kernel, or close to it."""

from quernel.features.cholesky import PivotedCholesky
from quernel.features.identity import ReadyFeatures
from quernel.features.kernel_values import KernelValues
from quernel.features.nystroem import Nystroem
from quernel.features.random import RandomFeatures
from quernel.features.sampling import SAMPLINGS

__all__ = ["SAMPLINGS", "KernelValues", "Nystroem", "PivotedCholesky", "RandomFeatures", "ReadyFeatures"]
