"""Kernels: positive definite functions with their Gram matrices and, but for the linear one, random features.

Estimators accept a kernel by its name in `KERNELS`, or as an object with parameters of its own, such as
``Matern(2.0, nu=2.5)``. Objects can be added and multiplied by positive numbers: ``Gaussian(1.0) + 0.5 * Matern(3.0)``.
"""

from quernel.kernels.base import KERNELS, ArcCosine, Kernel, Linear, RandomFeatureKernel, Sum, resolve
from quernel.kernels.fourier import Cauchy, Gaussian, Laplacian, Matern, ShiftInvariantKernel, SpectralKernel
from quernel.kernels.periodic import Periodic, PeriodicSpline

__all__ = [
    "KERNELS",
    "ArcCosine",
    "Cauchy",
    "Gaussian",
    "Kernel",
    "Laplacian",
    "Linear",
    "Matern",
    "Periodic",
    "PeriodicSpline",
    "RandomFeatureKernel",
    "ShiftInvariantKernel",
    "SpectralKernel",
    "Sum",
    "resolve",
]

KERNELS |= {kernel.name: kernel for kernel in (Gaussian, Laplacian, Matern, Cauchy, ArcCosine, PeriodicSpline, Linear)}
