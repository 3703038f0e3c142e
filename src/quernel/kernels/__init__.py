"""Kernels: each knows its Gram matrix and, but for the linear one, how to draw random features that give it on average.

A kernel is named by a string, or is an object with its own parameters; objects can be added and multiplied by positive
numbers.
"""

from quernel.kernels.arccosine import ArcCosine, Linear
from quernel.kernels.base import Kernel, RandomFeatureKernel
from quernel.kernels.fourier import Cauchy, Gaussian, Laplacian, Matern, ShiftInvariantKernel, SpectralKernel
from quernel.kernels.spline import PeriodicSpline
from quernel.kernels.sums import Sum

__all__ = [
    "KERNELS",
    "ArcCosine",
    "Cauchy",
    "Gaussian",
    "Kernel",
    "Laplacian",
    "Linear",
    "Matern",
    "PeriodicSpline",
    "RandomFeatureKernel",
    "ShiftInvariantKernel",
    "SpectralKernel",
    "Sum",
    "resolve",
]

KERNELS: dict[str, type[Kernel]] = {
    kernel.name: kernel for kernel in (Gaussian, Laplacian, Matern, Cauchy, ArcCosine, PeriodicSpline, Linear)
}


def resolve(kernel: str | Kernel) -> Kernel:
    """The kernel of that name, or the object itself; "auto" is the Gaussian where nothing else is learned."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str) and kernel == "auto":
        return Gaussian()
    if isinstance(kernel, str) and kernel in KERNELS:
        return KERNELS[kernel]()
    if isinstance(kernel, type) and issubclass(kernel, Kernel):
        raise ValueError(f"kernel must be an object, not a class: write {kernel.__name__}().")
    known = ", ".join(repr(name) for name in KERNELS)
    raise ValueError(f"Unknown kernel {kernel!r}. Known kernels: {known}, 'auto', or an object of quernel.kernels.")
