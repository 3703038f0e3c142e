"""Kernels: positive definite functions with their Gram matrices and, but for the linear one, random features.

Estimators accept a kernel by its name in `KERNELS`, or as an object with parameters of its own, such as
``Matern(2.0, nu=2.5)``. Objects can be added and multiplied by positive numbers: ``Gaussian(1.0) + 0.5 * Matern(3.0)``.
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
    """Return the kernel object for a name, or the object itself.

    "auto" gives the Gaussian kernel, which stands where no kernel is chosen from the data.
    """
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
